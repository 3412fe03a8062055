"""Is splatting on a CPU right, and how fast is it beside the reference in plain torch? Both in one process, in turn.

    python -m benchmarks.splat_cpu --out splat_cpu.json [--threads 2]

All small cases are compared with the reference in float64 first, every output and gradient; no speed-up is printed
unless all are within tolerance. Then a forward and backward pass of 20,000 splats with harmonics of degree 3 at
480 x 270 is timed. The reference looks at every splat in every pixel, and the whole picture takes it many minutes. So
it draws ten bands of 27 rows, each without the splats outside it, which is less work than the whole: the speed-up is a
lower bound. After each band the kernel draws the whole picture once. Seconds are the clock's and the processor's.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from hotlap.kernels.agreement import in_float64, outputs_and_grads, relative_errors
from hotlap.kernels.splat import reference
from hotlap.kernels.splat.cases import SMALL, UNDECIDED, SplatCase, as_splats, run_frame, undecided
from hotlap.kernels.splat.op import splat
from hotlap.records.environment import capture

CPU = torch.device("cpu")
BANDS = 10
SCENE = SplatCase(splats=20_000, width=480, height=270, size=0.015, options={"sh_degree": 3, "raw": True})


def check(case: SplatCase) -> dict[str, Any]:
    """The largest relative error of every output and gradient of one case."""
    inputs = in_float64(case.make(CPU))
    decided = ~undecided(inputs, case.view, UNDECIDED[case.dtype])
    want = outputs_and_grads(run_frame(reference.forward, case.view, decided), inputs)
    got = outputs_and_grads(run_frame(partial(splat, impl="cpu"), case.view, decided), case.make(CPU))
    errors = relative_errors(got, want)
    passed = all(error <= case.tolerance for error in errors.values())
    return {"case": case.id, "passed": passed, "tolerance": case.tolerance, "errors": errors}


def step(draw: Callable[..., Any], band: int | None = None) -> dict[str, float]:
    """Seconds of a forward and a backward pass, with the gradients of all splats' parameters."""
    inputs, view = SCENE.make(CPU), SCENE.view
    if band is not None:
        view = dataclasses.replace(view, height=SCENE.height // BANDS)
        inputs["Ks"][:, 1, 2] -= band * view.height
    leaves = [inputs[name].requires_grad_() for name in ("means", "quats", "scales", "opacities", "colors")]
    weights = torch.randn(1, view.height, view.width, 3, generator=torch.Generator().manual_seed(0))
    clock, processor = time.perf_counter(), time.process_time()
    drawn = draw(as_splats(inputs), view)
    drawn_at = time.perf_counter()
    torch.autograd.grad(drawn.colors, leaves, weights)
    found = {"forward_s": drawn_at - clock, "total_s": time.perf_counter() - clock}
    return {**found, "processor_s": time.process_time() - processor}


def facts() -> dict[str, float]:
    """What the scene asks of a kernel."""
    with torch.no_grad():
        drawn = splat(as_splats(SCENE.make(CPU)), SCENE.view, "cpu")
    return {
        "drawn_splats": int((drawn.facts.radii.amax(-1) > 0).sum()),
        "pairs": int(drawn.facts.tiles_per_splat.sum()),
        "mean_alpha": drawn.alphas.mean().item(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("splat_cpu.json"))
    parser.add_argument("--threads", type=int, default=2)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    checks = [check(case) for case in SMALL]
    step(partial(splat, impl="cpu"))
    samples: dict[str, list[dict[str, float]]] = {"reference_bands": [], "cpu": []}
    for band in range(BANDS):
        samples["reference_bands"].append(step(reference.forward, band))
        samples["cpu"].append(step(partial(splat, impl="cpu")))
        print({name: found[-1] for name, found in samples.items()}, flush=True)
    answer = {
        "scene": {"id": SCENE.id, **facts()}, "threads": given.threads, "checks": checks, "samples": samples,
        "environment": dataclasses.asdict(capture()),
    }  # fmt: skip
    given.out.write_text(json.dumps(answer, indent=1, default=str) + "\n")
    if not all(found["passed"] for found in checks):
        print("no speed-up: not every check is green")
        return
    for clock in ("total_s", "processor_s"):
        slow = sum(one[clock] for one in samples["reference_bands"])
        fast = statistics.median(one[clock] for one in samples["cpu"])
        print(f"{clock}: reference in bands {slow:.1f}, cpu {fast:.3f}: at least {slow / fast:.0f} x")


if __name__ == "__main__":
    main()
