"""Splatting with gradients, run by the first implementation, in order of preference, that can run here.

Outside ``torch.compile`` a frame is one node of autograd's graph that keeps what the forward pass has found. Inside, it
is one operator that the compiler leaves whole; operators keep tensors of known sizes only, so its backward pass draws
the frame once more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import astuple, fields
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from hotlap.base.errors import ConfigError, ShapeError
from hotlap.base.shapes import bind_dims
from hotlap.kernels.choose import Choice, choose
from hotlap.kernels.splat import reference
from hotlap.kernels.splat.frame import Drawn, Splats, View

PACKAGE = __name__.rpartition(".")[0]
IMPLS = tuple(name for name in ("cuda", "cpu", "reference") if find_spec(f"{PACKAGE}.{name}"))
"""The implementations, those that are preferred first."""
INPUTS = tuple(field.name for field in fields(Splats))
OUTPUTS = ("colors", "alphas", "means2d", "radii", "depths", "conics", "tiles_per_splat")
MAX_DEGREE = 3


def splat(
    splats: Splats,
    view: View,
    impl: str = "auto",
    *,
    probe: Tensor | None = None,  # [C, N, 2]
    probe_abs: Tensor | None = None,  # [C, N, 2]
) -> Drawn:
    """The frames of all cameras, differentiable in every input; of the results, colors, alphas and means2d are.

    ``probe`` is a tensor whose values are not read and whose gradient becomes that of ``means2d``: what a change of the
    splats' centres on the screen would do. That of ``probe_abs``, if the view has ``absgrad``, is its sum of absolute
    values over pixels.
    """
    check(splats, view)
    tensors = [getattr(splats, name) for name in INPUTS]
    if torch.compiler.is_compiling():
        sizes, numbers = flat_view(view)
        found: Sequence[Tensor] = splat_frame(*tensors, probe, probe_abs, sizes, numbers, impl)
    else:
        found = _Frame.apply(splat_choice(splats, view, impl).impl, view, probe, probe_abs, *tensors)
    return Drawn(**dict(zip(OUTPUTS, found, strict=True)))


def splat_choice(splats: Splats, view: View, impl: str = "auto") -> Choice:
    """The implementation that such splats get, and the reasons against those before it."""
    reasons: dict[str, Callable[[], str]] = {name: partial(_why_not, name, splats, view) for name in IMPLS}
    return choose(reasons, impl)


def _why_not(name: str, splats: Splats, view: View) -> str:
    return "" if name == "reference" else _implementation(name).why_not(splats, view)


def _implementation(name: str) -> Any:
    return reference if name == "reference" else import_module(f"{PACKAGE}.{name}")


def check(splats: Splats, view: View) -> None:
    """Refuses shapes, types, devices and options that do not fit together."""
    named: dict[str, tuple[Any, str]] = {
        "means": (splats.means, "N 3"), "quats": (splats.quats, "N 4"), "scales": (splats.scales, "N 3"),
        "opacities": (splats.opacities, "N"), "viewmats": (splats.viewmats, "C 4 4"), "Ks": (splats.Ks, "C 3 3"),
    }  # fmt: skip
    if view.sh_degree is not None:
        named["colors"] = (splats.colors, "N K 3")
    else:
        named["colors"] = (splats.colors, "C N D" if splats.colors.dim() == 3 else "N D")
    if splats.backgrounds is not None:
        named["backgrounds"] = (splats.backgrounds, "C 3" if view.sh_degree is not None else "C D")
    dims = bind_dims(**named)
    if dims["C"] == 0:
        raise ShapeError("viewmats has the shape [0, 4, 4]", expected="at least one camera")
    _check_view(view)
    if view.sh_degree is not None and dims["K"] < (view.sh_degree + 1) ** 2:
        raise ShapeError(
            f"colors has {dims['K']} coefficients, too few for sh_degree = {view.sh_degree}",
            expected=f"at least {(view.sh_degree + 1) ** 2}",
        )
    for name in INPUTS:
        _check_alike(name, getattr(splats, name), splats.means)


def _check_view(view: View) -> None:
    for name, size in (("width", view.width), ("height", view.height)):
        if size < 1:
            raise ConfigError(f"{name} = {size} is too small", expected="at least 1")
    if view.sh_degree is not None and not 0 <= view.sh_degree <= MAX_DEGREE:
        raise ConfigError(f"sh_degree = {view.sh_degree} is not valid", expected=f"None or 0 to {MAX_DEGREE}")
    if not 0 < view.near < view.far:
        raise ConfigError(f"near = {view.near:g} and far = {view.far:g} are not valid", expected="0 < near < far")
    if not 0 <= view.eps2d < float("inf"):
        raise ConfigError(f"eps2d = {view.eps2d:g} is not valid", expected="0 or more")


def _check_alike(name: str, tensor: Tensor | None, means: Tensor) -> None:
    if tensor is None:
        return
    if tensor.device != means.device:
        raise ConfigError(f"{name} is on {tensor.device}, means on {means.device}", expected="all on one device")
    if tensor.dtype != means.dtype or not means.is_floating_point():
        kinds = [str(t.dtype).removeprefix("torch.") for t in (tensor, means)]
        raise ConfigError(f"{name} is {kinds[0]}, means {kinds[1]}", expected="one floating-point type for all")


def _splats(tensors: Sequence[Any]) -> Splats:
    return Splats(**dict(zip(INPUTS, tensors, strict=True)))


class _Frame(torch.autograd.Function):
    """A frame as one node of autograd's graph."""

    @staticmethod
    def forward(ctx: Any, impl: str, view: View, probe: Any, probe_abs: Any, *tensors: Any) -> tuple[Tensor, ...]:
        module = _implementation(impl)
        ahead = getattr(module, "forward_ahead", module.forward) if any(ctx.needs_input_grad) else module.forward
        drawn = ahead(_splats(tensors), view)
        ctx.impl, ctx.view, ctx.kept = impl, view, drawn.saved
        outputs = tuple(getattr(drawn, name).detach() for name in OUTPUTS)
        ctx.mark_non_differentiable(*outputs[3:])
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*tensors, *outputs)
        return outputs

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        tensors, outputs = ctx.saved_tensors[: len(INPUTS)], ctx.saved_tensors[len(INPUTS) :]
        splats = _splats(tensors)
        drawn = Drawn(**dict(zip(OUTPUTS, outputs, strict=True)), saved=ctx.kept)
        asked = dict(zip(("probe", "probe_abs", *INPUTS), ctx.needs_input_grad[2:], strict=True))
        found = _gradients(ctx.impl, splats, ctx.view, drawn, grads[:3], [n for n, need in asked.items() if need])
        return None, None, *(found.get(name) for name in asked)


def _gradients(
    impl: str, splats: Splats, view: View, drawn: Drawn, grads: Sequence[Tensor | None], asked: Sequence[str]
) -> dict[str, Tensor]:
    """The gradients of the inputs and probes asked for, by name."""
    v_colors, v_alphas, v_means2d = grads
    needs = frozenset("means2d" if name.startswith("probe") else name for name in asked)
    found = _implementation(impl).backward(splats, view, drawn, v_colors, v_alphas, v_means2d, needs)
    if "probe" in asked:
        found["probe"] = found["means2d"] if v_means2d is None else found["means2d"] + v_means2d
    if "probe_abs" in asked:
        found["probe_abs"] = found["means2d_abs"]
    return found


def flat_view(view: View) -> tuple[list[int], list[float]]:
    """A view as whole numbers and others, for operators that take nothing else."""
    values = [-1 if value is None else value for value in astuple(view)]
    return [int(v) for v in values[:2] + values[6:]], [float(v) for v in values[2:6]]


def _view(sizes: Sequence[int], numbers: Sequence[float]) -> View:
    width, height, antialiased, degree, raw, depth, absgrad = sizes
    near, far, eps2d, radius_clip = numbers
    return View(
        width=width, height=height, near=near, far=far, eps2d=eps2d, radius_clip=radius_clip, raw=bool(raw),
        antialiased=bool(antialiased), sh_degree=degree if degree >= 0 else None, depth=bool(depth),
        absgrad=bool(absgrad),
    )  # fmt: skip


@torch.library.custom_op("hotlap::splat_frame", mutates_args=())
def splat_frame(
    means: Tensor, quats: Tensor, scales: Tensor, opacities: Tensor, colors: Tensor, viewmats: Tensor, Ks: Tensor,
    backgrounds: Tensor | None, probe: Tensor | None, probe_abs: Tensor | None,
    sizes: Sequence[int], numbers: Sequence[float], impl: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """The tensors of ``OUTPUTS``."""
    tensors = (means, quats, scales, opacities, colors, viewmats, Ks, backgrounds)
    splats, view = _splats(tensors), _view(sizes, numbers)
    drawn = _implementation(splat_choice(splats, view, impl).impl).forward(splats, view)
    return (
        drawn.colors, drawn.alphas, drawn.means2d, drawn.radii, drawn.depths, drawn.conics, drawn.tiles_per_splat
    )  # fmt: skip


@splat_frame.register_fake
def _(
    means: Tensor, quats: Tensor, scales: Tensor, opacities: Tensor, colors: Tensor, viewmats: Tensor, Ks: Tensor,
    backgrounds: Tensor | None, probe: Tensor | None, probe_abs: Tensor | None,
    sizes: Sequence[int], numbers: Sequence[float], impl: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    view = _view(sizes, numbers)
    screen, num = (viewmats.shape[0], view.height, view.width), (viewmats.shape[0], means.shape[0])
    channels = (colors.shape[-1] if view.sh_degree is None else 3) + int(view.depth)
    return (
        means.new_empty(*screen, channels), means.new_empty(*screen, 1), means.new_empty(*num, 2),
        means.new_empty(*num, 2, dtype=torch.int32), means.new_empty(num), means.new_empty(*num, 3),
        means.new_empty(num, dtype=torch.int32),
    )  # fmt: skip


@torch.library.custom_op("hotlap::splat_frame_backward", mutates_args=())
def splat_frame_backward(
    means: Tensor, quats: Tensor, scales: Tensor, opacities: Tensor, colors: Tensor, viewmats: Tensor, Ks: Tensor,
    backgrounds: Tensor | None, v_colors: Tensor | None, v_alphas: Tensor | None, v_means2d: Tensor | None,
    sizes: Sequence[int], numbers: Sequence[float], impl: str, asked: str,
) -> list[Tensor]:  # fmt: skip
    """The gradients of the inputs and probes that ``asked`` names, in its order; the frame is drawn once more."""
    tensors = (means, quats, scales, opacities, colors, viewmats, Ks, backgrounds)
    splats, view = _splats(tensors), _view(sizes, numbers)
    name = splat_choice(splats, view, impl).impl
    with torch.no_grad():
        drawn = _implementation(name).forward(splats, view)
    found = _gradients(name, splats, view, drawn, (v_colors, v_alphas, v_means2d), asked.split())
    return [_alone(found[one]) for one in asked.split()]


def _alone(tensor: Tensor) -> Tensor:
    """The same numbers in memory that no other tensor shares, as torch wants it of an operation's results."""
    shares = tensor.untyped_storage().nbytes() != tensor.numel() * tensor.element_size()
    return tensor.clone() if shares else tensor.contiguous()


@splat_frame_backward.register_fake
def _(
    means: Tensor, quats: Tensor, scales: Tensor, opacities: Tensor, colors: Tensor, viewmats: Tensor, Ks: Tensor,
    backgrounds: Tensor | None, v_colors: Tensor | None, v_alphas: Tensor | None, v_means2d: Tensor | None,
    sizes: Sequence[int], numbers: Sequence[float], impl: str, asked: str,
) -> list[Tensor]:  # fmt: skip
    tensors = (means, quats, scales, opacities, colors, viewmats, Ks, backgrounds)
    shapes = {n: t.shape for n, t in zip(INPUTS, tensors, strict=True) if t is not None}
    screen = (viewmats.shape[0], means.shape[0], 2)
    return [means.new_empty(shapes.get(one, screen)) for one in asked.split()]


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.sizes, ctx.numbers, ctx.impl = inputs[-3:]
    ctx.mark_non_differentiable(*output[3:])
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*inputs[: len(INPUTS)])


def _differentiate(ctx: Any, *grads: Any) -> tuple[Any, ...]:
    names = (*INPUTS, "probe", "probe_abs")
    asked = [name for name, need in zip(names, ctx.needs_input_grad, strict=False) if need]
    found = splat_frame_backward(*ctx.saved_tensors, *grads[:3], ctx.sizes, ctx.numbers, ctx.impl, " ".join(asked))
    by_name = dict(zip(asked, found, strict=True))
    return *(by_name.get(name) for name in names), None, None, None


splat_frame.register_autograd(_differentiate, setup_context=_keep)
