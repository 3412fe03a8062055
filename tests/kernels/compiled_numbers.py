"""Prints a digest of what each kernel of the CPU computes in one of its cases; for ``test_compiled``."""

from __future__ import annotations

import hashlib
from functools import partial

import torch

from hotlap.kernels.adam.cases import AdamCase, results
from hotlap.kernels.adam.op import adam_step
from hotlap.kernels.agreement import outputs_and_grads
from hotlap.kernels.chamfer.cases import SMALL as CLOUDS
from hotlap.kernels.chamfer.cases import run_chamfer
from hotlap.kernels.chamfer.op import chamfer
from hotlap.kernels.graph_conv.cases import SMALL as GRAPHS
from hotlap.kernels.graph_conv.cases import run_conv
from hotlap.kernels.graph_conv.op import graph_conv
from hotlap.kernels.ssim.cases import SMALL as PICTURES
from hotlap.kernels.ssim.cases import run_loss
from hotlap.kernels.ssim.op import l1_ssim
from hotlap.kernels.view_pool.cases import SMALL as VIEWS
from hotlap.kernels.view_pool.cases import run_pool
from hotlap.kernels.view_pool.op import view_pool

CPU = torch.device("cpu")


def stepped() -> dict[str, torch.Tensor]:
    case = AdamCase(rows=37, steps=6, mode="lazy", chance=0.5)
    state, before = case.make(CPU), case.make(CPU)
    for grads, visible, _ in case.make_steps(CPU):
        adam_step(state, grads, case.config, visible, impl="cpu")
    return results(state, before)


def largest(cases):
    """The case in float32 with the most numbers."""
    return max(
        (case for case in cases if getattr(case, "dtype", torch.float32) == torch.float32),
        key=lambda case: sum(t.numel() for t in case.make(CPU).values() if t is not None),
    )


def main() -> None:
    graph, picture, cloud, view = largest(GRAPHS), largest(PICTURES), largest(CLOUDS), largest(VIEWS)
    conv = run_conv(partial(graph_conv, impl="cpu"), graph, graph.support(CPU))
    found = {
        "adam": stepped(),
        "chamfer": outputs_and_grads(run_chamfer(partial(chamfer, impl="cpu")), cloud.make(CPU)),
        "graph_conv": outputs_and_grads(conv, graph.make(CPU)),
        "ssim": outputs_and_grads(run_loss(partial(l1_ssim, impl="cpu"), picture), picture.make(CPU)),
        "view_pool": outputs_and_grads(run_pool(partial(view_pool, impl="cpu"), view), view.make(CPU)),
    }
    for kernel, tensors in found.items():
        for name, tensor in sorted(tensors.items()):
            print(kernel, name, hashlib.sha256(tensor.detach().contiguous().numpy().tobytes()).hexdigest()[:16])


if __name__ == "__main__":
    main()
