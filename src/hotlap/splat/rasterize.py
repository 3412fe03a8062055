"""Splats drawn as gsplat's ``rasterization`` draws them: the same arguments, conventions and results."""

from __future__ import annotations

import weakref
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from hotlap.base.errors import ConfigError, UnknownName, did_you_mean
from hotlap.kernels.splat.frame import TILE, Drawn, Splats, View
from hotlap.kernels.splat.op import splat

RENDER_MODES = ("RGB", "D", "ED", "RGB+D", "RGB+ED")
RASTERIZE_MODES = ("classic", "antialiased")
ONLY = {
    "camera_model": "pinhole", "sparse_grad": False, "distributed": False, "with_ut": False, "with_eval3d": False,
    "covars": None, "radial_coeffs": None, "tangential_coeffs": None, "thin_prism_coeffs": None,
    "ftheta_coeffs": None, "viewmats_rs": None,
}  # fmt: skip
"""Arguments of gsplat's that are taken with these values only."""
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
) -> tuple[Tensor, Tensor, dict[str, Any]]:
    """Colours [C, H, W, X], alphas [C, H, W, 1] and what is known of each splat on each screen.

    Differentiable in all tensors: the splats, their colours, the cameras' poses and intrinsics and the backgrounds. X
    is D, with a depth in ``render_mode`` one more, or 1 for the depth alone: D is accumulated, ED the expected depth,
    D over alpha. With ``raw``, scales are logarithms and opacities logits. ``packed`` is accepted and has no effect:
    results are never packed. More than ``channel_chunk`` colours are drawn in several passes.

    All is computed in one floating-point type, float32 at least, and the results are of that type, in autocast too. A
    splat with a number that is not finite on the screen, or a quaternion of 0, is not drawn, and its gradients are 0.

    ``meta`` has means2d, radii, depths, conics, tiles_per_gauss and more, as gsplat's when it is not packed. After a
    backward pass ``meta["means2d"].grad`` is the gradient on the screen and, with ``absgrad``, ``.absgrad`` its sum of
    absolute values, but not under ``torch.compile``.
    """
    _check_modes(render_mode, rasterize_mode, channel_chunk, others)
    depth = render_mode != "RGB"
    if render_mode in ("D", "ED"):
        colors, backgrounds, sh_degree = means.new_zeros(len(means), 0), None, None
    tensors = _in_one_type(
        means=means, quats=quats, scales=scales, opacities=opacities, colors=colors, viewmats=viewmats, Ks=Ks,
        backgrounds=backgrounds,
    )  # fmt: skip
    view = View(
        width=width, height=height, near=near_plane, far=far_plane, eps2d=eps2d, radius_clip=radius_clip,
        antialiased=rasterize_mode == "antialiased", sh_degree=sh_degree, raw=raw, depth=depth, absgrad=absgrad,
    )  # fmt: skip
    drawn = _draw(tensors, view, channel_chunk, impl)
    image = drawn.colors
    if render_mode.endswith("ED"):
        expected = image[..., -1:] / drawn.alphas.clamp(min=1e-10)
        image = torch.cat([image[..., :-1], expected], dim=-1)
    return image, drawn.alphas, _meta(drawn, view)


def _check_modes(render_mode: str, rasterize_mode: str, channel_chunk: int, others: dict[str, Any]) -> None:
    for name, value, known in (
        ("render_mode", render_mode, RENDER_MODES),
        ("rasterize_mode", rasterize_mode, RASTERIZE_MODES),
    ):
        if value not in known:
            raise UnknownName(f"unknown {name} {value!r}", remedy=did_you_mean(value, known))
    if channel_chunk < 1:
        raise ConfigError(f"channel_chunk = {channel_chunk} is too small", expected="at least 1")
    for name, value in others.items():
        if name in WITHOUT_EFFECT:
            continue
        if name not in ONLY:
            raise TypeError(f"rasterize() got an unexpected keyword argument {name!r}")
        if value is not ONLY[name] and value != ONLY[name]:
            raise ConfigError(f"{name} = {value!r} is not supported", expected=repr(ONLY[name]))


def _in_one_type(**tensors: Tensor | None) -> dict[str, Tensor | None]:
    """The tensors in the widest floating-point type among them, float32 at least."""
    dtype = torch.float32
    for name, tensor in tensors.items():
        if tensor is None or tensor.dtype == torch.float32:
            continue
        if not tensor.is_floating_point():
            raise ConfigError(
                f"{name} is {str(tensor.dtype).removeprefix('torch.')}", expected="floating-point numbers"
            )
        if tensor.dtype == torch.float64:
            dtype = torch.float64
    return {name: t if t is None or t.dtype == dtype else t.to(dtype) for name, t in tensors.items()}


def _draw(tensors: dict[str, Any], view: View, channel_chunk: int, impl: str) -> Drawn:
    """The frames, in several passes if there are more colours than one pass takes."""
    learns = torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors.values())
    probes: list[Tensor | None] = [None, None]
    if learns and not torch.compiler.is_compiling():
        probes = [_probe(tensors), _probe(tensors) if view.absgrad else None]
    num_colors = tensors["colors"].shape[-1]
    if view.sh_degree is not None or num_colors <= channel_chunk:
        drawn = splat(Splats(**tensors), view, impl, probe=probes[0], probe_abs=probes[1])
    else:
        drawn = _draw_chunks(tensors, view, channel_chunk, impl, probes)
    for name, probe in zip(("grad", "absgrad"), probes, strict=True):
        if probe is not None:
            _hand_over(probe, drawn.means2d, name)
    return drawn


def _probe(tensors: dict[str, Any]) -> Tensor:  # [C, N, 2]
    """A tensor that has a gradient and, as nobody reads it, a single number."""
    means, num_cameras = tensors["means"], tensors["viewmats"].shape[0]
    return means.new_empty_strided((num_cameras, means.shape[0], 2), (0, 0, 0), requires_grad=True)


def _draw_chunks(
    tensors: dict[str, Any], view: View, channel_chunk: int, impl: str, probes: list[Tensor | None]
) -> Drawn:
    passes = []
    starts = range(0, tensors["colors"].shape[-1], channel_chunk)
    for start in starts:
        some = {
            name: tensors[name] if tensors[name] is None else tensors[name][..., start : start + channel_chunk]
            for name in ("colors", "backgrounds")
        }
        one = replace(view, depth=view.depth and start == starts[-1])
        passes.append(splat(Splats(**(tensors | some)), one, impl, probe=probes[0], probe_abs=probes[1]))
    return replace(passes[0], colors=torch.cat([drawn.colors for drawn in passes], dim=-1))


def _hand_over(probe: Tensor, means2d: Tensor, name: str) -> None:
    """Lets the gradient of ``probe`` become an attribute of ``means2d``, where gsplat's users look for it."""
    if name == "grad":
        means2d.retain_grad()
    target = weakref.ref(means2d)

    def hand_over(leaf: Tensor) -> None:
        centers = target()
        if centers is not None:
            setattr(centers, name, leaf.grad)
        leaf.grad = None

    probe.register_post_accumulate_grad_hook(hand_over)


def _meta(drawn: Drawn, view: View) -> dict[str, Any]:
    return {
        "means2d": drawn.means2d,
        "radii": drawn.radii,
        "depths": drawn.depths,
        "conics": drawn.conics,
        "tiles_per_gauss": drawn.tiles_per_splat,
        "gaussian_ids": None,
        "camera_ids": None,
        "width": view.width,
        "height": view.height,
        "tile_size": TILE,
        "tile_width": -(-view.width // TILE),
        "tile_height": -(-view.height // TILE),
        "n_cameras": drawn.radii.shape[0],
    }
