"""Splats drawn as gsplat's ``rasterization`` draws them: the same arguments, conventions and results."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from dataclasses import replace
from functools import lru_cache
from operator import index
from typing import Any

import torch
from torch import Tensor

from hotlap.base.errors import ConfigError, UnknownName, did_you_mean
from hotlap.kernels.splat.frame import INPUTS, TILE, Drawn, Splats, View, inputs_of
from hotlap.kernels.splat.op import splat

FLOAT32 = torch.float32
RENDER_MODES = ("RGB", "D", "ED", "RGB+D", "RGB+ED")
RASTERIZE_MODES = ("classic", "antialiased")
ONLY = {
    "camera_model": "pinhole", "sparse_grad": False, "distributed": False, "with_ut": False, "with_eval3d": False,
    "covars": None, "radial_coeffs": None, "tangential_coeffs": None, "thin_prism_coeffs": None,
    "ftheta_coeffs": None, "viewmats_rs": None, "rolling_shutter": "GLOBAL",
}  # fmt: skip
"""Arguments of gsplat's that are taken with these values only; that of an enumeration by its name."""
FACTS = {"radii": "radii", "depths": "depths", "conics": "conics", "tiles_per_gauss": "tiles_per_splat"}
"""The tensors without gradients of a frame's meta, and what they are called here."""
LATER = object()
"""In place of what nobody has asked for."""
META: dict[str, Any] = {
    "means2d": LATER, **dict.fromkeys(FACTS, LATER), "gaussian_ids": None, "camera_ids": None, "width": LATER,
    "height": LATER, "tile_size": LATER, "tile_width": LATER, "tile_height": LATER, "n_cameras": LATER,
}  # fmt: skip
"""A frame's meta when nobody has asked for anything."""
WITHOUT_EFFECT = ("tile_size", "segmented")
"""Arguments of gsplat's that change how it works but not what comes out."""


def rasterize(
    means: Tensor,  # [N, 3]
    quats: Tensor,  # [N, 4] w, x, y, z, of any length but 0
    scales: Tensor,  # [N, 3]
    opacities: Tensor,  # [N]
    colors: Tensor,  # [N, D], [C, N, D] or, with sh_degree, [N, K, 3]
    viewmats: Tensor,  # [C, 4, 4] camera from world
    Ks: Tensor,  # [C, 3, 3]
    width: int,
    height: int,
    *,
    near_plane: float = 0.01,
    far_plane: float = 1e10,
    radius_clip: float = 0.0,
    eps2d: float = 0.3,
    sh_degree: int | None = None,
    packed: bool = True,
    backgrounds: Tensor | None = None,  # [C, D]
    render_mode: str = "RGB",
    rasterize_mode: str = "classic",
    absgrad: bool = False,
    channel_chunk: int = 32,
    raw: bool = False,
    impl: str = "auto",
    **others: Any,
) -> tuple[Tensor, Tensor, MutableMapping[str, Any]]:
    """Colours [C, H, W, X], alphas [C, H, W, 1] and what is known of each splat on each screen.

    Differentiable in all tensors: the splats, their colours, the cameras' poses and intrinsics and the backgrounds. X
    is D, with a depth in ``render_mode`` one more, or 1 for the depth alone: D is accumulated, ED the expected depth,
    D over alpha. With ``raw``, scales are logarithms and opacities logits. ``packed`` is accepted and has no effect:
    results are never packed. More than ``channel_chunk`` colours are drawn in several passes.

    All is computed in one floating-point type, float32 at least, and the results are of that type, in autocast too. A
    splat with a number that is not finite on the screen, or a quaternion of 0, is not drawn, and its gradients are 0.

    ``meta`` has means2d, radii, depths, conics, tiles_per_gauss and more, as gsplat's when it is not packed. After
    ``meta["means2d"].retain_grad()`` and a ``backward()`` ``meta["means2d"].grad`` is the gradient on the screen, and
    with ``absgrad`` ``.absgrad`` is its sum of absolute values, but not under ``torch.compile``.
    """
    _check_others(channel_chunk, others)
    if render_mode in ("D", "ED"):
        colors, backgrounds, sh_degree = means.new_zeros(len(means), 0), None, None
    compiling = torch.compiler.is_compiling()
    view = (_view if compiling else _view_once)(
        render_mode, rasterize_mode, index(width), index(height), float(near_plane), float(far_plane), float(eps2d),
        float(radius_clip), None if sh_degree is None else index(sh_degree), raw, absgrad,
    )  # fmt: skip
    splats = Splats(means, quats, scales, opacities, colors, viewmats, Ks, backgrounds)
    # Spelled out, for a loop would take the host three times as long.
    alike = (
        means.dtype is quats.dtype is scales.dtype is opacities.dtype is colors.dtype is viewmats.dtype is Ks.dtype
        is FLOAT32 and (backgrounds is None or backgrounds.dtype is FLOAT32)
    )  # fmt: skip
    if not alike:
        splats = _in_one_type(splats)
    whole = sh_degree is not None or colors.shape[-1] <= channel_chunk
    drawn = splat(splats, view, impl) if whole else _draw_chunks(splats, view, channel_chunk, impl)
    image = _with_expected_depth(drawn) if render_mode.endswith("ED") else drawn.colors
    return image, drawn.alphas, _whole_meta(drawn, view) if compiling else Meta(drawn, view)


def _view(
    render_mode: str, rasterize_mode: str, width: int, height: int, near: float, far: float, eps2d: float,
    radius_clip: float, sh_degree: int | None, raw: bool, absgrad: bool,
) -> View:  # fmt: skip
    for name, value, known in (
        ("render_mode", render_mode, RENDER_MODES),
        ("rasterize_mode", rasterize_mode, RASTERIZE_MODES),
    ):
        if value not in known:
            raise UnknownName(f"unknown {name} {value!r}", remedy=did_you_mean(value, known))
    return View(
        width=width, height=height, near=near, far=far, eps2d=eps2d, radius_clip=radius_clip, sh_degree=sh_degree,
        antialiased=rasterize_mode == "antialiased", raw=raw, depth=render_mode != "RGB", absgrad=absgrad,
    )  # fmt: skip


_view_once = lru_cache(maxsize=64)(_view)
"""Frames of one kind after another have the same view; only what passes is remembered."""


def _check_others(channel_chunk: int, others: dict[str, Any]) -> None:
    if channel_chunk < 1:
        raise ConfigError(f"channel_chunk = {channel_chunk} is too small", expected="at least 1")
    for name, value in others.items():
        if name in WITHOUT_EFFECT:
            continue
        if name not in ONLY:
            raise TypeError(f"rasterize() got an unexpected keyword argument {name!r}")
        only = ONLY[name]
        if hasattr(value, "shape"):  # all of its numbers would be printed
            raise ConfigError(f"{name} of shape {list(value.shape)} is not supported", expected=repr(only))
        if getattr(value, "name", value) != only:
            raise ConfigError(f"{name} = {value!r} is not supported", expected=repr(only))


def _in_one_type(splats: Splats) -> Splats:
    """The tensors in the widest floating-point type among them, float32 at least."""
    tensors = dict(zip(INPUTS, inputs_of(splats), strict=True))
    dtype = FLOAT32
    for name, tensor in tensors.items():
        if tensor is None:
            continue
        if not tensor.is_floating_point():
            raise ConfigError(
                f"{name} is {str(tensor.dtype).removeprefix('torch.')}", expected="floating-point numbers"
            )
        if tensor.dtype == torch.float64:
            dtype = torch.float64
    found: dict[str, Any] = {name: t if t is None else t.to(dtype) for name, t in tensors.items()}
    return Splats(**found)


def _draw_chunks(splats: Splats, view: View, channel_chunk: int, impl: str) -> Drawn:
    """The frames in several passes, whose gradients on the screen are added up."""
    passes: list[Drawn] = []
    starts = range(0, splats.colors.shape[-1], channel_chunk)
    for start in starts:
        some: dict[str, Any] = {
            name: tensor if tensor is None else tensor[..., start : start + channel_chunk]
            for name, tensor in (("colors", splats.colors), ("backgrounds", splats.backgrounds))
        }
        one = replace(view, depth=view.depth and start == starts[-1])
        centers = passes[0].means2d if passes else None
        passes.append(splat(replace(splats, **some), one, impl, centers=centers))
    return replace(passes[0], colors=torch.cat([drawn.colors for drawn in passes], dim=-1))


def _with_expected_depth(drawn: Drawn) -> Tensor:
    """The colours with the depth, their last channel, over alpha."""
    expected = drawn.colors[..., -1:] / drawn.alphas.clamp(min=1e-10)
    return torch.cat([drawn.colors[..., :-1], expected], dim=-1)


def _whole_meta(drawn: Drawn, view: View) -> dict[str, Any]:
    """A plain dictionary, which a compiler understands; what is compiled makes all tensors anyway."""
    facts = {name: getattr(drawn.facts, here) for name, here in FACTS.items()}
    return META | {"means2d": drawn.means2d, **facts, **_sizes(view), "n_cameras": drawn.means2d.shape[0]}


def _sizes(view: View) -> dict[str, int]:
    return {
        "width": view.width,
        "height": view.height,
        "tile_size": TILE,
        "tile_width": -(-view.width // TILE),
        "tile_height": -(-view.height // TILE),
    }


class Meta(MutableMapping[str, Any]):
    """What is known of a frame, by gsplat's names. What nobody asks for is not made."""

    def __init__(self, drawn: Drawn, view: View) -> None:
        self._known, self._facts, self._view = META.copy(), drawn.facts, view
        self._known["means2d"] = drawn.means2d
        self._known["n_cameras"] = drawn.means2d.shape[0]

    def __getitem__(self, name: str) -> Any:
        value = self._known[name]
        if value is not LATER:
            return value
        return getattr(self._facts, FACTS[name]) if name in FACTS else _sizes(self._view)[name]

    def __setitem__(self, name: str, value: Any) -> None:
        self._known[name] = value

    def __delitem__(self, name: str) -> None:
        del self._known[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._known)

    def __len__(self) -> int:
        return len(self._known)

    def __repr__(self) -> str:
        return repr(dict(self))
