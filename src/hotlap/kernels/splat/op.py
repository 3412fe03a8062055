"""Splatting with gradients, run by the first implementation, in order of preference, that can run here.

Outside ``torch.compile`` a frame is one node of autograd's graph that keeps what the forward pass has found. Inside, it
is one operator that the compiler leaves whole; operators keep tensors of known sizes only, so its backward pass draws
the frame once more.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from functools import cache, lru_cache, partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from hotlap.base.errors import ConfigError, ShapeError, UsageError
from hotlap.base.shapes import bind_dims
from hotlap.kernels.choose import Choice, choose
from hotlap.kernels.splat import reference
from hotlap.kernels.splat.frame import INPUTS, Drawn, Facts, Splats, View, inputs_of, outputs_of

PACKAGE = __name__.rpartition(".")[0]
IMPLS = tuple(name for name in ("cuda", "cpu", "reference") if find_spec(f"{PACKAGE}.{name}"))
"""The implementations, those that are preferred first."""
MAX_DEGREE = 3


def splat(splats: Splats, view: View, impl: str = "auto", *, centers: Tensor | None = None) -> Drawn:
    """The frames of all cameras, differentiable in every input; of the results, colors, alphas and means2d are.

    After ``means2d.retain_grad()`` and ``backward()``, but not under ``torch.compile``, ``means2d.grad`` is the
    gradient on the screen: what a change of the splats' centres there would do. If the view has ``absgrad``,
    ``means2d.absgrad`` is its sum of absolute values over pixels. Both add up over passes. Where ``centers`` [C, N, 2]
    is given they become attributes of that.
    """
    tensors = inputs_of(splats)
    shapes, learns = _look_at(tensors)
    if torch.compiler.is_compiling():
        _check_sizes(view, shapes)
        colors, alphas, means2d, *others = splat_frame(*tensors, *flat_view(view), impl)
        radii, depths, conics, tiles_per_splat = others
        facts = Facts(radii=radii, depths=depths, conics=conics, tiles_per_splat=tiles_per_splat)
        return Drawn(colors, alphas, means2d, facts)
    _check_sizes_once(view, shapes)
    # The one that is preferred is asked first: to list what speaks against others takes the host longer.
    first = impl == "auto" and not _why_not(IMPLS[0], splats, view)
    module = _implementation(IMPLS[0] if first else splat_choice(splats, view, impl).impl)
    if not learns or not torch.is_grad_enabled():
        drawn: Drawn = module.forward(splats, view)
        drawn.saved = None
        return drawn
    task = _Task(module, view, splats, None if centers is None else weakref.ref(centers))
    colors, alphas, means2d = _Frame.apply(task, *tensors)
    return Drawn(colors, alphas, means2d, task.facts)


def splat_choice(splats: Splats, view: View, impl: str = "auto") -> Choice:
    """The implementation that such splats get, and the reasons against those before it."""
    reasons: dict[str, Callable[[], str]] = {name: partial(_why_not, name, splats, view) for name in IMPLS}
    return choose(reasons, impl)


def _why_not(name: str, splats: Splats, view: View) -> str:
    return "" if name == "reference" else _implementation(name).why_not(splats, view)


@cache
def _implementation(name: str) -> Any:
    return reference if name == "reference" else import_module(f"{PACKAGE}.{name}")


def _look_at(tensors: Sequence[Any]) -> tuple[tuple[Any, ...], bool]:
    """The shapes, None for what is not there, and whether a gradient is wanted; refuses several types or devices."""
    device, dtype, learns = tensors[0].device, tensors[0].dtype, False
    shapes: list[Any] = []
    for tensor in tensors:
        if tensor is None:
            shapes.append(None)
            continue
        if tensor.dtype is not dtype or tensor.device != device:
            raise _not_alike(INPUTS[len(shapes)], tensor, tensors[0])
        shapes.append(tensor.shape)
        learns = learns or tensor.requires_grad
    if not dtype.is_floating_point:
        raise _not_alike("means", tensors[0], tensors[0])
    return tuple(shapes), learns


def _check_sizes(view: View, shapes: Sequence[Any]) -> None:
    """Refuses a view, and shapes of ``INPUTS`` that do not fit together, None for what is not there."""
    _check_view(view)
    _check_shapes(shapes, view.sh_degree)


_check_sizes_once = lru_cache(maxsize=256)(_check_sizes)
"""Frames of one size after another are not looked at again; only what passes is remembered."""


def _check_shapes(shapes: Sequence[Any], sh_degree: int | None) -> None:
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
    if view.radius_clip != view.radius_clip:  # no extent is more than NaN, and nothing would be drawn
        raise ConfigError(f"radius_clip = {view.radius_clip:g} is not valid", expected="a number of pixels")


def _not_alike(name: str, tensor: Tensor, means: Tensor) -> ConfigError:
    if tensor.device != means.device:
        return ConfigError(f"{name} is on {tensor.device}, means on {means.device}", expected="all on one device")
    kinds = [str(t.dtype).removeprefix("torch.") for t in (tensor, means)]
    return ConfigError(f"{name} is {kinds[0]}, means {kinds[1]}", expected="one floating-point type for all")


class _Task:
    """What a frame's node of autograd's graph knows besides the tensors that torch keeps for it."""

    def __init__(self, module: Any, view: View, splats: Splats, centers: weakref.ref[Tensor] | None) -> None:
        self.module, self.view, self.splats = module, view, splats
        self.centers = centers
        """Refers to the tensor whose attributes the gradient on the screen becomes; at first None: the frame's own."""

    def draw(self) -> tuple[Tensor, Tensor, Tensor]:
        """The results that have gradients; the others are kept here, where they cost autograd nothing."""
        drawn = getattr(self.module, "forward_ahead", self.module.forward)(self.splats, self.view)
        del self.splats  # from here on torch keeps the tensors, and sees whether they are changed
        self.kept, self.facts, self.changes = drawn.saved, drawn.facts, drawn.facts.changes()
        # The centres hold the node: more than a weak reference back would keep both until garbage is collected.
        self.centers = self.centers or weakref.ref(drawn.means2d)
        return drawn.colors, drawn.alphas, drawn.means2d

    def check_facts(self) -> None:
        """Refuses to go on where the user has changed them, as torch does for the tensors that it keeps."""
        if self.facts.changes() != self.changes:
            raise UsageError(
                "radii, depths, conics or tiles of a frame were changed in place before its backward pass, which "
                "needs them",
                remedy="Change a clone() instead",
            )


class _Frame(torch.autograd.Function):
    """A frame as one node of autograd's graph."""

    @staticmethod
    def forward(ctx: Any, task: _Task, *tensors: Any) -> tuple[Tensor, Tensor, Tensor]:
        """The tensors that are drawn; ``tensors`` are those of the splats, which autograd looks for among arguments."""
        ctx.task, outputs = task, task.draw()
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*tensors, *outputs)
        return outputs

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        # Nothing is recorded unless the graph of this pass is asked for, and torch's guard takes its time.
        return (_gradients_once if torch.is_grad_enabled() else _gradients)(ctx, *grads)


def _gradients(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
    """None for the task, and those of ``INPUTS``; that on the screen is handed over where gsplat's users look for it.

    It is made for who has asked for it, and by ``backward()`` alone, as the gradients of leaves are: a pass that is
    asked for certain gradients makes no others. Torch knows of that for its checkpoints, which work in passes for all
    leaves only.
    """
    task = ctx.task
    *tensors, colors, alphas, means2d = ctx.saved_tensors
    task.check_facts()
    splats, drawn = Splats(*tensors), Drawn(colors, alphas, means2d, task.facts, task.kept)
    centers = task.centers()
    if centers is not None and not (
        (centers.retains_grad or task.view.absgrad) and torch.autograd._is_checkpoint_valid()
    ):
        centers = None
    needs = _needs(ctx.needs_input_grad, centers is not None)
    found = task.module.backward(splats, task.view, drawn, *grads, needs)
    if centers is not None:
        if centers.retains_grad:
            _add(centers, "grad", found["means2d"])
        if task.view.absgrad:
            _add(centers, "absgrad", found["means2d_abs"])
    return None, *map(found.get, INPUTS)


_gradients_once = once_differentiable(_gradients)


@cache
def _needs(flags: tuple[bool, ...], on_screen: bool) -> frozenset[str]:
    """What an implementation is asked for: the ``INPUTS`` whose flags, behind the task's, are set, and the gradient on
    the screen."""
    names = [name for name, flag in zip(INPUTS, flags[1:], strict=True) if flag]
    return frozenset([*names, "means2d"] if on_screen else names)


def _add(centers: Tensor, name: str, given: Tensor) -> None:
    """Adds to the attribute ``name``, as torch does to the gradients of leaves."""
    before = getattr(centers, name, None)
    setattr(centers, name, given if before is None else before + given)


def flat_view(view: View) -> tuple[list[int], list[float]]:
    """A view as whole numbers and others, for operators that take nothing else."""
    degree = -1 if view.sh_degree is None else view.sh_degree
    sizes = view.width, view.height, view.antialiased, degree, view.raw, view.depth, view.absgrad
    return [int(v) for v in sizes], [float(v) for v in (view.near, view.far, view.eps2d, view.radius_clip)]


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
    backgrounds: Tensor | None,
    sizes: Sequence[int], numbers: Sequence[float], impl: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """The tensors that are drawn."""
    tensors = (means, quats, scales, opacities, colors, viewmats, Ks, backgrounds)
    splats, view = Splats(*tensors), _view(sizes, numbers)
    drawn = _implementation(splat_choice(splats, view, impl).impl).forward(splats, view)
    colors, alphas, means2d, radii, depths, conics, tiles_per_splat = map(_alone, outputs_of(drawn))
    return colors, alphas, means2d, radii, depths, conics, tiles_per_splat


@splat_frame.register_fake
def _(
    means: Tensor, quats: Tensor, scales: Tensor, opacities: Tensor, colors: Tensor, viewmats: Tensor, Ks: Tensor,
    backgrounds: Tensor | None,
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
    """The gradients of the inputs that ``asked`` names, in its order; the frame is drawn once more."""
    tensors = (means, quats, scales, opacities, colors, viewmats, Ks, backgrounds)
    splats, view = Splats(*tensors), _view(sizes, numbers)
    module = _implementation(splat_choice(splats, view, impl).impl)
    with torch.no_grad():
        drawn = module.forward(splats, view)
    found = module.backward(splats, view, drawn, v_colors, v_alphas, v_means2d, frozenset(asked.split()))
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
    return [means.new_empty(shapes[one]) for one in asked.split()]


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.sizes, ctx.numbers, ctx.impl = inputs[-3:]
    ctx.mark_non_differentiable(*output[3:])
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*inputs[: len(INPUTS)])


def _differentiate(ctx: Any, *grads: Any) -> tuple[Any, ...]:
    asked = [name for name, need in zip(INPUTS, ctx.needs_input_grad, strict=False) if need]
    found = splat_frame_backward(*ctx.saved_tensors, *grads[:3], ctx.sizes, ctx.numbers, ctx.impl, " ".join(asked))
    by_name = dict(zip(asked, found, strict=True))
    return *map(by_name.get, INPUTS), None, None, None


splat_frame.register_autograd(_differentiate, setup_context=_keep)
