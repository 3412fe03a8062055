"""Every case of splatting once on a card, forward and backward: what a sanitizer is to watch.

    python -m benchmarks.splat_cases [--most-splats 5000]

Compares nothing; ``benchmarks/splat_kernels.py`` does. Besides the cases of the op there are a frame that is drawn
again because its pairs did not fit, lists that are sorted by warps and by blocks, and a frame recorded and replayed as
a CUDA graph, which needs torch's cache of memory. The last line says how many were run.
"""

from __future__ import annotations

import argparse
import os

import torch

from hotlap.kernels.splat import cuda, cuda_room
from hotlap.kernels.splat.cases import REAL, SMALL, SplatCase, as_splats
from hotlap.kernels.splat.frame import GRADIENTS

CARD = torch.device("cuda", 0)
LARGE = SplatCase(splats=200, width=300, height=200, size=3.0, opacity=4.0, options={"sh_degree": 1, "raw": True})
"""Every splat in nearly every tile: more pairs than the first guess."""


def step(case: SplatCase) -> None:
    """One frame and all its gradients."""
    inputs = case.make(CARD)
    splats, view = as_splats(inputs), case.view
    needs = frozenset(name for name in GRADIENTS if name != "backgrounds" or inputs["backgrounds"] is not None)
    drawn = cuda.forward_ahead(splats, view)
    given = [torch.randn_like(tensor) for tensor in (drawn.colors, drawn.alphas, drawn.means2d)]
    cuda.backward(splats, view, drawn, *given, needs)
    cuda.backward(splats, view, drawn, given[0], None, None, frozenset({*cuda.PLANES, "colors"}))
    torch.cuda.synchronize()


def replay(case: SplatCase) -> None:
    """The same as a CUDA graph."""
    splats, view = as_splats(case.make(CARD)), case.view
    v_colors = torch.randn_like(cuda.forward(splats, view).colors)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        drawn = cuda.forward_ahead(splats, view)
        cuda.backward(splats, view, drawn, v_colors, None, None, frozenset({*cuda.PLANES, "colors"}))
    graph.replay()
    torch.cuda.synchronize()
    assert not cuda.overflowed(CARD)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--most-splats", type=int, default=5000, help="larger cases are left out")
    given = parser.parse_args()
    cases = [case for case in (*SMALL, *REAL) if case.dtype == torch.float32 and case.splats <= given.most_splats]
    for case in cases:
        print(case.id, flush=True)
        step(case)
    cuda.FEW_TILES = 0  # as many pixels a thread as in large pictures
    for case in cases[2::3]:
        print(case.id, "again", flush=True)
        step(case)  # now the room is known, and short lists are sorted by warps
    print("more pairs than room", flush=True)
    cuda_room.STEP = 1  # else the first guess has room for all
    step(LARGE)
    graphs = "PYTORCH_NO_CUDA_MEMORY_CACHING" not in os.environ
    print("as a graph" if graphs else "no graph: torch's cache of memory is off", flush=True)
    if graphs:
        replay(cases[-1])
    print(f"{len(cases) + 1 + graphs} cases were run")


if __name__ == "__main__":
    main()
