"""What does a call of ``hotlap.splat.rasterize`` with its gradients cost the host? It needs no card.

    python -m benchmarks.splat_host [--samples 3000]

Launches do nothing and tensors of the CPU stand in for a card's, so that what is left is Python and torch: 20,000
splats of degree 3, one camera, gradients of all five parameters by ``torch.autograd.grad``. Beside it, in one process:
the kernels' layer called without autograd, as a trainer calls it, and what torch alone takes, an autograd node that
asks for the same tensors, keeps the same ones and does nothing else. A card adds to each: launches, its allocator, and
the thread that autograd runs its backward passes in.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

from benchmarks.splat_contenders import NEEDS, OursCalled
from benchmarks.splat_scene import SCENES, make_scene

QUICK_MALLOC = {"MALLOC_MMAP_THRESHOLD_": str(2**30), "MALLOC_TRIM_THRESHOLD_": str(2**34)}
"""The C library keeps large blocks for the next call, as torch's allocator for a card does."""
Halves = tuple[Callable[[], Any], Callable[[Any], Any]]


def ways() -> dict[str, Halves]:
    """What is timed, by name: a forward pass and, from its result, a backward pass."""
    import torch

    from hotlap.kernels.splat import cuda, cuda_program
    from hotlap.kernels.splat.frame import Splats, View

    cuda_program.launch = lambda *given: None
    cuda.why_not = lambda splats, view: ""
    scene = SCENES["20k"]
    splats, views, intrinsics = make_scene(scene, "cpu")
    called, v_colors = OursCalled(scene, splats, views, intrinsics), torch.ones(1, scene.height, scene.width, 3)
    leaves, view = called.leaves, View(width=scene.width, height=scene.height, sh_degree=3)
    given = Splats(**splats, viewmats=views[:1], Ks=intrinsics[:1], backgrounds=None)
    drawn = cuda.forward(given, view)
    shapes = [tensor.shape for tensor in (drawn.colors, drawn.alphas, drawn.means2d)]

    class Bare(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *tensors: Any) -> tuple[Any, ...]:
            found = tuple([torch.empty(*shape) for shape in shapes])
            ctx.set_materialize_grads(False)
            ctx.save_for_backward(*tensors, *found)
            ctx.kept = torch.empty(1000), torch.empty(1000), torch.empty(1000)
            return found

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> tuple[Any, ...]:
            saved = ctx.saved_tensors
            return *(torch.empty_like(tensor) for tensor in saved[: len(leaves)]), None, None

    def differentiate(results: Any) -> Any:
        return torch.autograd.grad(results[0], list(leaves.values()), v_colors)

    def differentiate_kernels(drawn: Any) -> Any:
        return cuda.backward(given, view, drawn, v_colors, None, None, NEEDS)

    return {
        "the call": (lambda: called.rasterize(**leaves, viewmats=views[:1], Ks=intrinsics[:1]), differentiate),
        "kernels' layer": (lambda: cuda.forward_ahead(given, view), differentiate_kernels),
        "torch alone": (lambda: Bare.apply(*leaves.values(), views[:1], intrinsics[:1]), differentiate),
    }


def timed(halves: Halves, samples: int) -> tuple[float, float]:
    """Median microseconds of the forward and of the backward pass."""
    forward, backward = halves
    found: tuple[list[float], list[float]] = ([], [])
    for _ in range(samples):
        begin = time.perf_counter()
        results = forward()
        between = time.perf_counter()
        grads = backward(results)
        end = time.perf_counter()
        found[0].append((between - begin) * 1e6)
        found[1].append((end - between) * 1e6)
        del results, grads
    return statistics.median(found[0]), statistics.median(found[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=3000)
    samples = parser.parse_args().samples
    if "MALLOC_MMAP_THRESHOLD_" not in os.environ:  # read when a process begins
        os.execve(
            sys.executable, [sys.executable, "-m", "benchmarks.splat_host", *sys.argv[1:]], os.environ | QUICK_MALLOC
        )
    import torch

    torch.set_num_threads(1)
    found = ways()
    for halves in found.values():
        timed(halves, 200)
    rows = {name: timed(halves, samples) for name, halves in found.items()}
    whole = sum(rows["the call"])
    print(f"{'':16}{'forward':>10}{'backward':>10}{'both, us':>10}{'share':>8}")
    for name, (forward, backward) in rows.items():
        both = forward + backward
        print(f"{name:16}{forward:10.1f}{backward:10.1f}{both:10.1f}{both / whole:8.0%}")


if __name__ == "__main__":
    main()
