"""How fast is Pixel2Mesh++ on a CPU, one sample of three views, beside its own plain form? In one process, in turn.

    PYTHONPATH=src python -m benchmarks.mesh_cpu --out mesh_cpu.json [--rounds 5] [--threads 2]

``plain`` is the network as torch runs it by default; ``kernels`` runs graph convolutions and the reading of features by
Hotlap's own kernels, vertices in portions that stay in the caches; ``kernels, channels last`` has its pictures in NHWC
order too; ``kernels, bf16`` multiplies in bfloat16, which pays where the processor has instructions for it. Each must
give plain float32's vertices up to a mean error of 1e-3 of the object's size, or gets no figure.
Seconds are the clock's and the processor's: on a machine that other work shares the processor's are the fairer ones.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hotlap.measure.arms import parse_arm
from hotlap.measure.session import Session
from hotlap.records.environment import capture
from hotlap.targets import load_target

ARMS = {
    "plain": "cpu",
    "kernels": "cpu:kernels",
    "kernels, channels last": "cpu:channels_last+kernels",
    "kernels, bf16": "cpu:bf16+kernels",
}
LARGEST_ERROR = 1e-3
"""Mean distance of vertices over the object's size."""
ASKED = 2.0


def timed(run: Callable[[], Any]) -> tuple[float, float]:
    """Seconds of the clock and of the processor."""
    clock, processor = time.perf_counter(), time.process_time()
    run()
    return time.perf_counter() - clock, time.process_time() - processor


def error(out: Tensor, want: Tensor) -> float:
    """The mean distance between vertices over the object's size from corner to corner."""
    size = (want.amax(1) - want.amin(1)).norm(dim=1)
    return float(((out - want).norm(dim=2).mean(1) / size).max())


def measure(threads: int, rounds: int) -> dict[str, Any]:
    """All samples of each arm, taken in turn, and its error."""
    workload = load_target("pixel2mesh-pp", {})
    sessions = {
        name: Session(workload, parse_arm(f"{arm}{'+' if ':' in arm else ':'}threads={threads}"), mode="infer",
                      batch=1, seed=0)
        for name, arm in ARMS.items()
    }  # fmt: skip
    found: dict[str, Any] = {name: {"clock_s": [], "processor_s": []} for name in sessions}
    want: Tensor | None = None
    for name, session in sessions.items():
        session.activate()
        out = session.run(session.batches[0]).float()
        want = out if want is None else want
        found[name]["error"] = error(out, want)
    for _ in range(rounds):
        for name, session in sessions.items():
            session.activate()
            clock, processor = timed(session.step)
            found[name]["clock_s"].append(clock)
            found[name]["processor_s"].append(processor)
            print(f"{name}: {clock:.2f} s, processor {processor:.2f} s", flush=True)
    return found


def verdict(found: dict[str, Any]) -> list[str]:
    """Medians, and how many times faster than plain; nothing of an arm whose vertices are elsewhere."""
    base, lines = found["plain"], []
    for name, arm in found.items():
        if arm["error"] >= LARGEST_ERROR:
            lines.append(f"{name}: no figure, its vertices are {arm['error']:.1e} of the object's size off")
            continue
        ratios = {
            kind: statistics.median(base[f"{kind}_s"]) / statistics.median(arm[f"{kind}_s"])
            for kind in ("clock", "processor")
        }
        each = [b / a for b, a in zip(base["clock_s"], arm["clock_s"], strict=True)]
        lines.append(
            f"{name}: {statistics.median(arm['clock_s']):.2f} s, {ratios['clock']:.2f} x plain by the clock "
            f"[{min(each):.2f}, {max(each):.2f}] and {ratios['processor']:.2f} x by the processor; "
            f"vertices {arm['error']:.1e} off; {ASKED:g} x asked"
        )
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("mesh_cpu.json"))
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    found = measure(args.threads, args.rounds)
    lines = verdict(found)
    kept = {"threads": args.threads, "arms": found, "verdict": lines, "environment": dataclasses.asdict(capture())}
    args.out.write_text(json.dumps(kept, indent=1) + "\n")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
