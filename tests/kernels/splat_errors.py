"""How far the CUDA kernels of splatting are from the reference, and frames of which little is known."""

from __future__ import annotations

import ctypes

import torch

from hotlap.kernels.agreement import in_float64, relative_errors
from hotlap.kernels.splat import cuda, cuda_program, reference
from hotlap.kernels.splat.cases import UNDECIDED, SplatCase, as_splats, undecided
from hotlap.kernels.splat.cuda_program import Variant
from hotlap.kernels.splat.frame import GRADIENTS

CPU = torch.device("cpu")
PLAIN = Variant(channels=2, depth=False, sh_degree=None)


def errors_of(case: SplatCase) -> dict[str, float]:
    """The largest relative error of the picture, what is known of the splats, and every gradient."""
    made = case.make(CPU)
    exact, view = in_float64(made), case.view
    decided = ~undecided(exact, view, UNDECIDED[case.dtype])[..., None]
    assert decided.float().mean() >= 1 - case.max_undecided
    needs = frozenset(name for name in GRADIENTS if name != "backgrounds" or made["backgrounds"] is not None)
    generator = torch.Generator().manual_seed(1)
    found, weights = [], []
    for module, inputs in ((reference, exact), (cuda, made)):
        drawn = module.forward(as_splats(inputs), view)
        if not weights:
            pixels = (drawn.colors, drawn.alphas)
            weights = [torch.randn(like.shape, generator=generator) * decided for like in pixels]
            weights.append(torch.randn(drawn.means2d.shape, generator=generator))
        given = [weight.to(drawn.colors.dtype) for weight in weights]
        grads = module.backward(as_splats(inputs), view, drawn, *given, needs)
        known = {"means2d": drawn.means2d} | {n: getattr(drawn.facts, n) for n in ("depths", "conics", "radii")}
        picture = {"colors": drawn.colors * decided, "alphas": drawn.alphas * decided}
        found.append({**picture, **known, **{f"grad {name}": grads[name] for name in sorted(grads)}})
    return relative_errors(found[1], found[0])


def frame_with(**values) -> ctypes.Structure:
    """A frame of which only this is known."""
    frame = cuda_program.frame_type()()
    for name, value in values.items():
        setattr(frame, name, value.data_ptr() if isinstance(value, torch.Tensor) else value)
    return frame
