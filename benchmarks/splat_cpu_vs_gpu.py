"""How much faster than all cores of its host is a card at splatting? Forward and backward apart, in one process.

    python -m benchmarks.splat_cpu_vs_gpu --out splat_cpu_vs_gpu.json [--threads 16]

20,000 splats with coefficients of degree 3 at 480 x 270, eight cameras in turn, the same tensors on both sides: the
compiled CPU path on every core that this process may use, and the card's kernels, called one by one and replayed as a
CUDA graph. Pictures and gradients of both are compared first, at every camera; no speed-up is printed unless all agree.
Every sample is one pass by the wall, from a card that is idle to one that is idle again: nothing overlaps.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from benchmarks.splat_contenders import MAX_GRADIENT_ERROR, MAX_PIXELS, NEEDS
from benchmarks.splat_scene import NUM_CAMERAS, SCENES, make_scene

from hotlap.kernels.splat import cpu, cuda
from hotlap.kernels.splat.frame import Splats, View
from hotlap.records.environment import capture

SCENE = SCENES["20k"]
VIEW = View(width=SCENE.width, height=SCENE.height, sh_degree=3)
CPU_SAMPLES, CARD_SAMPLES = 24, 200
ASKED = 100.0


class Side:
    """One device with the scene on it, looking through one camera at a time."""

    def __init__(self, kernels: Any, device: str) -> None:
        splats, self.views, intrinsics = make_scene(SCENE, device)
        self.kernels = kernels
        self.splats = Splats(**splats, viewmats=self.views[:1].clone(), Ks=intrinsics[:1], backgrounds=None)
        generator = torch.Generator().manual_seed(1)
        weights = torch.randn(1, SCENE.height, SCENE.width, 3, generator=generator) / (SCENE.height * SCENE.width)
        self.v_colors = weights.to(device)
        self.drawn: Any = None

    def look(self, camera: int) -> None:
        self.splats.viewmats.copy_(self.views[camera % NUM_CAMERAS][None])

    def forward(self) -> None:
        self.drawn = self.kernels.forward(self.splats, VIEW)

    def backward(self) -> dict[str, Any]:
        return self.kernels.backward(self.splats, VIEW, self.drawn, self.v_colors, None, None, NEEDS)


def compare(host: Side, card: Side) -> dict[str, Any]:
    """The worst of all cameras: pixels that differ, and gradients by the norm of the difference."""
    apart, errors = 0.0, dict.fromkeys(sorted(NEEDS), 0.0)
    for camera in range(NUM_CAMERAS):
        found = []
        for side in (host, card):
            side.look(camera)
            side.forward()
            found.append(({name: grad.cpu().double() for name, grad in side.backward().items()}, side.drawn.colors))
        (want, picture), (got, other) = found
        apart = max(apart, ((picture - other.cpu()).abs() > 1e-3).any(dim=-1).float().mean().item())
        for name in errors:
            errors[name] = max(errors[name], ((got[name] - want[name]).norm() / want[name].norm()).item())
    passed = apart <= MAX_PIXELS and all(error <= MAX_GRADIENT_ERROR for error in errors.values())
    return {"passed": passed, "pixels_apart": apart, "errors": errors}


def sample(side: Side, runs: dict[str, Callable[[], Any]], samples: int) -> dict[str, list[float]]:
    """Milliseconds of each pass, in turn; the camera moves after all of them."""
    found: dict[str, list[float]] = {name: [] for name in runs}
    for n in range(samples + NUM_CAMERAS):
        side.look(n)
        for name, run in runs.items():
            torch.cuda.synchronize()
            begin = time.perf_counter()
            run()
            torch.cuda.synchronize()
            if n >= NUM_CAMERAS:
                found[name].append((time.perf_counter() - begin) * 1e3)
    return found


def record(side: Side) -> dict[str, Callable[[], Any]]:
    """Replays of both passes; the backward pass is of the frame that the forward one has drawn."""
    graphs = {"forward": torch.cuda.CUDAGraph(), "backward": torch.cuda.CUDAGraph()}
    with torch.cuda.graph(graphs["forward"]):
        side.forward()
    with torch.cuda.graph(graphs["backward"]):
        side.gradients = side.backward()  # type: ignore[attr-defined]
    return {name: graph.replay for name, graph in graphs.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("splat_cpu_vs_gpu.json"))
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    host, card = Side(cpu, "cpu"), Side(cuda, "cuda")
    compared = compare(host, card)
    passes = {
        name: {"forward": side.forward, "backward": side.backward} for name, side in (("cpu", host), ("card", card))
    }
    ms = {"cpu": sample(host, passes["cpu"], CPU_SAMPLES), "card": sample(card, passes["card"], CARD_SAMPLES)}
    ms["graph"] = sample(card, record(card), CARD_SAMPLES)
    overflowed = cuda.overflowed(torch.device("cuda"))
    answer = {
        "scene": dataclasses.asdict(SCENE), "threads": given.threads, "compared": compared, "ms": ms,
        "overflowed": overflowed, "environment": dataclasses.asdict(capture()),
    }  # fmt: skip
    given.out.write_text(json.dumps(answer, indent=1, default=str) + "\n")
    print(f"compared: {compared}; {given.threads} threads")
    for which in ("forward", "backward"):
        middle = {name: statistics.median(found[which]) for name, found in ms.items()}
        told = ", ".join(f"{name} {value:.3f} ms" for name, value in middle.items())
        ratios = ", ".join(f"{middle['cpu'] / middle[name]:.0f} x ({name})" for name in ("card", "graph"))
        green = compared["passed"] and not overflowed
        print(f"{which}: {told}; " + (f"{ratios}; asked {ASKED:.0f} x" if green else "no speed-up, not green"))


if __name__ == "__main__":
    main()
