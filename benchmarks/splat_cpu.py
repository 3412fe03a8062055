"""Is splatting on a CPU right, and how fast is it beside the reference in plain torch? Both in one process, in turn.

    python -m benchmarks.splat_cpu --out splat_cpu.json [--threads 2] [--samples 10] [--reference-samples 2]

All small cases are compared with the reference in float64 first, every output and gradient; no speed-up is printed
unless all are within tolerance. Then one forward and backward pass of 20,000 splats with harmonics of degree 3 at
480 x 270 is timed, each sample whole: the reference has to look at every splat in every pixel, in parts and twice, for
what it would have to keep for the backward pass does not fit into memory.
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


def step(draw: Callable[..., Any]) -> dict[str, float]:
    """Seconds of a forward and a backward pass, with the gradients of all splats' parameters."""
    inputs = SCENE.make(CPU)
    leaves = [inputs[name].requires_grad_() for name in ("means", "quats", "scales", "opacities", "colors")]
    weights = torch.randn(1, SCENE.height, SCENE.width, 3, generator=torch.Generator().manual_seed(0))
    began = time.perf_counter()
    drawn = draw(as_splats(inputs), SCENE.view)
    drawn_at = time.perf_counter()
    torch.autograd.grad(drawn.colors, leaves, weights)
    ended = time.perf_counter()
    return {"forward_s": drawn_at - began, "backward_s": ended - drawn_at, "total_s": ended - began}


def facts() -> dict[str, float]:
    """What the scene asks of a kernel."""
    with torch.no_grad():
        drawn = splat(as_splats(SCENE.make(CPU)), SCENE.view, "cpu")
    return {
        "drawn_splats": int((drawn.radii.amax(-1) > 0).sum()),
        "pairs": int(drawn.tiles_per_splat.sum()),
        "mean_alpha": drawn.alphas.mean().item(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("splat_cpu.json"))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--samples", type=int, default=10)
    parser.add_argument("--reference-samples", type=int, default=2)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    checks = [check(case) for case in SMALL]
    step(partial(splat, impl="cpu"))
    samples: dict[str, list[dict[str, float]]] = {"cpu": [], "reference": []}
    for turn in range(given.samples):
        if turn < given.reference_samples:
            samples["reference"].append(step(reference.forward))
            print(f"reference: {samples['reference'][-1]}", flush=True)
        samples["cpu"].append(step(partial(splat, impl="cpu")))
        print(f"cpu: {samples['cpu'][-1]}", flush=True)
    answer = {
        "scene": {"id": SCENE.id, **facts()}, "threads": given.threads, "checks": checks, "samples": samples,
        "environment": dataclasses.asdict(capture()),
    }  # fmt: skip
    given.out.write_text(json.dumps(answer, indent=1, default=str) + "\n")
    if all(found["passed"] for found in checks):
        middle = {name: statistics.median(one["total_s"] for one in all_of) for name, all_of in samples.items()}
        print(f"{middle['reference'] / middle['cpu']:.1f} x the reference: {middle}")
    else:
        print("no speed-up: not every check is green")


if __name__ == "__main__":
    main()
