"""Does advice promise what was measured? The profile's estimates from stored H200 figures, beside stored speeds.

    python -m benchmarks.advice_check --out advice_check.json

Needs no card. Step, device and idle times are those of results/profile_check_h200_202611.json, ceilings those of
results/doctor_h200_202611.json, measured speeds those of results/tuned_speed_h200_202611.json. No file has the time of
single operators, so the shapes of a step are taken from a trace on torch's meta device, and the time of all
convolutions is spread as if each reached the same share of its ceiling.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

from hotlap.measure.arms import parse_arm
from hotlap.records.ceilings import Ceilings
from hotlap.records.codec import decode
from hotlap.tools.profile.advice import Case, advise
from hotlap.tools.profile.categories import CONVOLUTION, RECURRENT
from hotlap.tools.profile.found import Analysis, Part, Roofline, RoofRow
from hotlap.tools.profile.roofline import ceilings_found

RESULTS = Path(__file__).parents[1] / "results"
CONVOLUTIONS = ("aten::convolution", "aten::convolution_backward")


def stored(name: str) -> Any:
    return json.loads((RESULTS / f"{name}_h200_202611.json").read_text())


def unet_works(batch: int) -> tuple[list[tuple[str, float, float]], int, int]:
    """Name, arithmetic and bytes of each convolution of a training step, and the weights' numbers and tensors."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    from hotlap.data.kineto import read_trace
    from hotlap.segment.model import UNet
    from hotlap.tools.profile.arithmetic import work_of

    with torch.device("meta"):
        model, images = UNet(classes=3, width=64), torch.empty(batch, 3, 128, 128)
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as tracer:
        model(images).sum().backward()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "step.json"
        tracer.export_chrome_trace(str(file))
        trace = read_trace(file)
    found = []
    for name, shape in zip(trace.names_of(trace.ops), trace.ops.extra.tolist(), strict=True):
        work = work_of(name, trace.shapes[shape]) if name in CONVOLUTIONS and shape >= 0 else None
        if work is not None:
            found.append((name, work.flops, work.bytes))
    return found, sum(p.numel() for p in model.parameters()), len(list(model.parameters()))


def convolution_rows(works: list[tuple[str, float, float]], total_ms: float, peaks: dict[str, float]) -> list[RoofRow]:
    """All convolutions' time, spread over them by their time at the nearer ceiling."""
    ideal = [max(flops / peaks["fp32"] / 1e12, moved / peaks["copy"] / 1e9) for _, flops, moved in works]
    return [
        row(name, CONVOLUTION, total_ms * share / sum(ideal), flops, moved)
        for (name, flops, moved), share in zip(works, ideal, strict=True)
    ]


def row(name: str, category: str, ms: float, flops: float, moved: float) -> RoofRow:
    return RoofRow(
        name=name, shapes="", category=category, precision="fp32", calls=1, ms=ms, flops=flops, bytes=moved,
        tflops=flops / ms / 1e9, gbps=moved / ms / 1e6, intensity=flops / moved,
    )  # fmt: skip


def analysis_of(found: dict[str, Any]) -> Analysis:
    return Analysis(
        trace="", on_device=True, device="NVIDIA H200", steps=found["steps"], step_ms=found["traced_ms_by_the_trace"],
        busy_ms=found["busy_ms"], categories=[Part(**part) for part in found["categories"]], phases=[],
        idle=[Part(**part) for part in found["idle"]], ops=[], kernels=[], modules=[], syncs=[], memory=[],
        launches=found["launches"],
    )  # fmt: skip


def measured_tf32(name: str) -> dict[str, float]:
    """Times as fast as true float32, with its interval."""
    rows = next(found for found in stored("tuned_speed")["rows"] if found["row"] == f"{name}-train")
    arm = next(found for found in rows["configurations"] if found["arm"] == "cuda:tf32")
    return dict(arm["times_faster_than"]["cuda"])


def check() -> list[dict[str, Any]]:
    profiles = {found["workload"]: found for found in stored("profile_check")["rows"]}
    peaks = ceilings_found(decode(Ceilings, stored("doctor")["extra"]["ceilings"]["cuda"]))
    works, weights, tensors = unet_works(batch=16)
    unet, bilstm = analysis_of(profiles["unet"]), analysis_of(profiles["bilstm"])
    rows = convolution_rows(works, next(p.ms for p in unet.categories if p.name == CONVOLUTION), peaks)
    recurrent = next(part.ms for part in bilstm.categories if part.name == RECURRENT)
    # Any product far from memory's ceiling will do: where the host paces, no kernel's time matters.
    made = row("aten::_cudnn_rnn", RECURRENT, recurrent, 0.3 * recurrent * peaks["fp32"] * 1e9, 1e8)
    more = {"unet": {"num_weights": weights, "num_weight_tensors": tensors}, "bilstm": {"has_convolutions": False}}
    found = []
    for name, analysis, products in (("unet", unet, rows), ("bilstm", bilstm, [made])):
        case = Case(
            analysis=analysis, roofline=Roofline(rows=products, ceilings=peaks), arm=parse_arm("cuda"),
            step_ms=profiles[name]["step_ms"], target=name, **more[name],
        )  # fmt: skip
        advice = [{"name": a.name, "gain": a.gain, "at_most": a.at_most, "basis": a.basis} for a in advise(case)]
        pace = {key: getattr(case.pace, key) for key in ("step_ms", "host_ms", "device_ms", "waits_ms", "rest_ms")}
        found.append({"workload": name, "pace": pace, "advice": advice, "measured_tf32": measured_tf32(name)})
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("advice_check.json"))
    out = parser.parse_args().out
    rows = check()
    out.write_text(json.dumps({"rows": rows}, indent=1) + "\n")
    for found in rows:
        print(found["workload"], {key: round(ms, 2) for key, ms in found["pace"].items()})
        print(f"  tf32 measured {found['measured_tf32']['value']:.2f}x")
        for piece in found["advice"]:
            print(f"  {piece['name']}: {'at most ' if piece['at_most'] else ''}about {piece['gain']:.2f}x")


if __name__ == "__main__":
    main()
