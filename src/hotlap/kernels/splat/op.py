"""Splatting with gradients, run by the first implementation, in order of preference, that can run here.

Outside ``torch.compile`` a frame is one node of autograd's graph that keeps what the forward pass has found. Inside, it
is one operator that the compiler leaves whole; operators keep tensors of known sizes only, so its backward pass draws
the frame once more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import astuple, fields
from functools import cache, lru_cache, partial
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
ASKED = ("probe", "probe_abs", *INPUTS)
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
        found = _Frame.apply(splat_choice(splats, view, impl).impl, view, splats, probe, probe_abs, *tensors)
    return _drawn(found)


def splat_choice(splats: Splats, view: View, impl: str = "auto") -> Choice:
    """The implementation that such splats get, and the reasons against those before it."""
    reasons: dict[str, Callable[[], str]] = {name: partial(_why_not, name, splats, view) for name in IMPLS}
    return choose(reasons, impl)


def _why_not(name: str, splats: Splats, view: View) -> str:
    return "" if name == "reference" else _implementation(name).why_not(splats, view)


@cache
def _implementation(name: str) -> Any:
    return reference if name == "reference" else import_module(f"{PACKAGE}.{name}")


def check(splats: Splats, view: View) -> None:
    """Refuses shapes, types, devices and options that do not fit together."""
    _check_view(view)
    tensors = [getattr(splats, name) for name in INPUTS]
    shapes = tuple(None if tensor is None else tensor.shape for tensor in tensors)
    if torch.compiler.is_compiling():
        _check_shapes(shapes, view.sh_degree)
    else:
        _check_shapes_once(shapes, view.sh_degree)
    device, dtype = splats.means.device, splats.means.dtype
    for name, tensor in zip(INPUTS, tensors, strict=True):
        if tensor is not None and (tensor.device != device or tensor.dtype != dtype):
            raise _not_alike(name, tensor, splats.means)
    if not splats.means.is_floating_point():
        raise _not_alike("means", splats.means, splats.means)


def _check_shapes(shapes: tuple[Any, ...], sh_degree: int | None) -> None:
    """Refuses shapes of ``INPUTS`` that do not fit together, None for what is not there."""
    given = dict(zip(INPUTS, shapes, strict=True))
    specs = {"means": "N 3", "quats": "N 4", "scales": "N 3", "opacities": "N", "viewmats": "C 4 4", "Ks": "C 3 3"}
    specs["colors"] = "N K 3" if sh_degree is not None else "C N D" if len(given["colors"]) == 3 else "N D"
    if given["backgrounds"] is not None:
        specs["backgrounds"] = "C 3" if sh_degree is not None else "C D"
    dims = bind_dims(**{name: (given[name], spec) for name, spec in specs.items()})
    if dims["C"] == 0:
        raise ShapeError("viewmats has the shape [0, 4, 4]", expected="at least one camera")
    if sh_degree is not None and dims["K"] < (sh_degree + 1) ** 2:
        raise ShapeError(
            f"colors has {dims['K']} coefficients, too few for sh_degree = {sh_degree}",
            expected=f"at least {(sh_degree + 1) ** 2}",
        )


_check_shapes_once = lru_cache(maxsize=256)(_check_shapes)
"""Frames of one size after another are not looked at again; only what passes is remembered."""


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


def _not_alike(name: str, tensor: Tensor, means: Tensor) -> ConfigError:
    if tensor.device != means.device:
        return ConfigError(f"{name} is on {tensor.device}, means on {means.device}", expected="all on one device")
    kinds = [str(t.dtype).removeprefix("torch.") for t in (tensor, means)]
    return ConfigError(f"{name} is {kinds[0]}, means {kinds[1]}", expected="one floating-point type for all")


def _splats(tensors: Sequence[Any]) -> Splats:
    return Splats(**dict(zip(INPUTS, tensors, strict=True)))


def _drawn(results: Sequence[Tensor], saved: Any = None) -> Drawn:
    return Drawn(**dict(zip(OUTPUTS, results, strict=True)), saved=saved)


class _Frame(torch.autograd.Function):
    """A frame as one node of autograd's graph."""

    @staticmethod
    def forward(
        ctx: Any, impl: str, view: View, splats: Splats, probe: Any, probe_abs: Any, *tensors: Any
    ) -> tuple[Tensor, ...]:
        """The tensors of ``OUTPUTS``; ``tensors`` are those of ``splats``, which autograd looks for among arguments."""
        module = _implementation(impl)
        ahead = getattr(module, "forward_ahead", module.forward) if any(ctx.needs_input_grad) else module.forward
        drawn = ahead(splats, view)
        ctx.impl, ctx.view, ctx.kept = impl, view, drawn.saved
        outputs = tuple(getattr(drawn, name) for name in OUTPUTS)
        ctx.mark_non_differentiable(*outputs[3:])
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*tensors, *outputs)
        return outputs

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        saved = ctx.saved_tensors
        splats, drawn = _splats(saved[: len(INPUTS)]), _drawn(saved[len(INPUTS) :], ctx.kept)
        found = _gradients(ctx.impl, splats, ctx.view, drawn, grads[:3], _asked(ctx.needs_input_grad[3:]))
        return None, None, None, *map(found.get, ASKED)


@cache
def _asked(flags: tuple[bool, ...]) -> tuple[str, ...]:
    """The names of ``ASKED`` whose flags are set."""
    return tuple(name for name, flag in zip(ASKED, flags, strict=True) if flag)


@cache
def _needs(asked: tuple[str, ...]) -> frozenset[str]:
    """What an implementation is asked for: probes have the gradient of the centres on the screen."""
    return frozenset("means2d" if name.startswith("probe") else name for name in asked)


def _gradients(
    impl: str, splats: Splats, view: View, drawn: Drawn, grads: Sequence[Tensor | None], asked: tuple[str, ...]
) -> dict[str, Tensor]:
    """The gradients of the inputs and probes asked for, by name."""
    v_colors, v_alphas, v_means2d = grads
    found = _implementation(impl).backward(splats, view, drawn, v_colors, v_alphas, v_means2d, _needs(asked))
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
    found = _gradients(name, splats, view, drawn, (v_colors, v_alphas, v_means2d), tuple(asked.split()))
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
