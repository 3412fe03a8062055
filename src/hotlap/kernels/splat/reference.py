"""What splatting computes, every splat against every pixel in plain torch: the truth that implementations are held to.

Nothing here is tiled, and gradients are autograd's. Which splats are drawn, and where, is decided without gradients.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from hotlap.kernels.splat.frame import (
    CLAMP,
    MAX_ALPHA,
    MIN_ALPHA,
    MIN_TRANSMITTANCE,
    TILE,
    Drawn,
    Facts,
    Splats,
    View,
    or_zeros,
)

CHUNK = 2**20
"""Pairs of a pixel and a splat that are looked at together; memory and nothing else depends on it."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Screen:
    """Some splats as one camera sees them."""

    means2d: Tensor
    """[n, 2]"""
    depths: Tensor
    """[n]"""
    conics: Tensor
    """[n, 3]"""
    determinants: Tensor
    """[n] of the covariance on the screen."""
    variances: Tensor
    """[n, 2] along x and y, in square pixels."""
    opacities: Tensor
    """[n] from 0 to 1, lowered if the view is antialiased."""
    colors: Tensor
    """[n, D], with the depth at the end if the view has it."""


def forward(splats: Splats, view: View) -> Drawn:
    """The frames of all cameras; differentiable in every input where autograd is on."""
    probe = torch.zeros(len(splats.viewmats), len(splats.means), 2).to(splats.means)
    return _draw(splats, view, probe.requires_grad_(view.absgrad and torch.is_grad_enabled()))


def backward(
    splats: Splats,
    view: View,
    drawn: Drawn,
    v_colors: Tensor | None,  # [C, H, W, D(+1)]
    v_alphas: Tensor | None,  # [C, H, W, 1]
    v_means2d: Tensor | None,  # [C, N, 2]
    needs: frozenset[str],
) -> dict[str, Tensor]:
    """The gradients asked for, by name; ``means2d`` is that of the blending alone, without ``v_means2d``."""
    leaves = {field.name: getattr(splats, field.name) for field in fields(Splats)}
    leaves = {n: t if t is None else t.detach().requires_grad_(n in needs) for n, t in leaves.items()}
    leaves["means"].requires_grad_("means" in needs or "means2d" in needs)
    with torch.enable_grad():
        again = forward(replace(splats, **leaves), view)
    wanted = {n: leaf for n, leaf in leaves.items() if leaf is not None and n in needs}
    if "means2d" in needs:
        centers, probe = again.saved
        wanted |= {f"means2d {camera}": read for camera, read in enumerate(centers)}
        wanted |= {"means2d_abs": probe} if view.absgrad else {}
    outputs, grads = [again.colors, again.alphas], list(or_zeros(drawn, v_colors, v_alphas))
    if v_means2d is not None:
        outputs, grads = [*outputs, again.means2d], [*grads, v_means2d]
    alive = [(o, g) for o, g in zip(outputs, grads, strict=True) if o.requires_grad]
    inputs = [tensor for tensor in wanted.values() if tensor.requires_grad]
    found: Sequence[Tensor | None] = [None] * len(inputs)
    if alive and inputs:
        found = torch.autograd.grad([o for o, _ in alive], inputs, [g for _, g in alive], allow_unused=True)
    by_id = {id(tensor): grad for tensor, grad in zip(inputs, found, strict=True)}
    zeros_or = {n: by_id.get(id(tensor)) for n, tensor in wanted.items()}
    named = {n: torch.zeros_like(wanted[n]) if grad is None else grad for n, grad in zeros_or.items()}
    if "means2d" in needs:
        named["means2d"] = torch.stack([named.pop(f"means2d {camera}") for camera in range(len(centers))])
    return named


def _draw(splats: Splats, view: View, probe: Tensor) -> Drawn:
    cameras = []
    for camera in range(len(splats.viewmats)):
        with torch.no_grad():
            everything = project(splats, view, camera, slice(None))
            radii = visible_radii(everything, view)
            seen = radii.amax(dim=1) > 0
            order = torch.where(seen, everything.depths, torch.inf).sort(stable=True).indices[: int(seen.sum())]
        cameras.append(_draw_camera(splats, view, camera, order, radii, probe[camera]))
    *parts, centers = zip(*cameras, strict=True)
    colors, alphas, means2d, radii, depths, conics, tiles = (torch.stack(part) for part in parts)
    return Drawn(
        colors=colors, alphas=alphas, means2d=means2d, saved=(centers, probe),
        facts=Facts(radii=radii, depths=depths, conics=conics, tiles_per_splat=tiles),
    )  # fmt: skip


def _draw_camera(
    splats: Splats, view: View, camera: int, order: Tensor, radii: Tensor, probe: Tensor
) -> tuple[Tensor, ...]:
    """One camera's tensors of ``Drawn``, and last the centres that the blending alone has read."""
    screen = project(splats, view, camera, order)
    means2d = screen.means2d.new_zeros(len(radii), 2).index_copy(0, order, screen.means2d)
    read = means2d.clone()
    blended = _blend(replace(screen, means2d=read[order]), _background(splats, view, camera), view, probe[order])
    depths = screen.depths.detach().new_zeros(len(radii)).index_copy(0, order, screen.depths.detach())
    conics = screen.conics.detach().new_zeros(len(radii), 3).index_copy(0, order, screen.conics.detach())
    tiles = _tiles_of_box(means2d.detach(), radii, view)
    return *blended, means2d, radii, depths, conics, tiles, read


def _background(splats: Splats, view: View, camera: int) -> Tensor:  # [D]
    num_colors = 3 if view.sh_degree is not None else splats.colors.shape[-1]
    none = splats.means.new_zeros(num_colors)
    behind = none if splats.backgrounds is None else splats.backgrounds[camera]
    return torch.cat([behind, behind.new_zeros(1)]) if view.depth else behind


def project(splats: Splats, view: View, camera: int, index: Any) -> Screen:
    """The splats of ``index`` as one camera sees them, whether they can be seen or not."""
    rotation, shift = splats.viewmats[camera, :3, :3], splats.viewmats[camera, :3, 3]
    fx, fy, cx, cy = (splats.Ks[camera][i, j] for i, j in ((0, 0), (1, 1), (0, 2), (1, 2)))
    means, opacities, scales = (t[index] for t in (splats.means, splats.opacities, splats.scales))
    if view.raw:
        scales, opacities = scales.exp(), opacities.sigmoid()
    x, y, z = (means @ rotation.T + shift).unbind(-1)
    u, v = x / z, y / z
    # Where a splat is far outside, the linearised projection would be wild. The limits, too, depend on Ks.
    u_lim = u.clamp((-CLAMP * view.width - cx) / fx, ((1 + CLAMP) * view.width - cx) / fx)
    v_lim = v.clamp((-CLAMP * view.height - cy) / fy, ((1 + CLAMP) * view.height - cy) / fy)
    zero = torch.zeros_like(z)
    jacobian = torch.stack([fx / z, zero, -fx * u_lim / z, zero, fy / z, -fy * v_lim / z], dim=-1).unflatten(-1, (2, 3))
    axes = jacobian @ rotation @ (rotations(splats.quats[index]) * scales[:, None])  # [n, 2, 3]
    row_x, row_y = axes.unbind(1)
    var_x, cov, var_y = (row_x * row_x).sum(-1), (row_x * row_y).sum(-1), (row_y * row_y).sum(-1)
    # The sum of squares that det(A A^T) is: var_x * var_y - cov^2 would lose a thin splat's digits.
    det_thin = torch.linalg.cross(row_x, row_y).square().sum(-1)
    det = det_thin + view.eps2d * (var_x + var_y + view.eps2d)
    var_x, var_y = var_x + view.eps2d, var_y + view.eps2d
    if view.antialiased:
        opacities = opacities * (det_thin / det).sqrt()
    colors = _colors(splats, view, camera, index, means + shift @ rotation)
    return Screen(
        means2d=torch.stack([fx * u + cx, fy * v + cy], dim=-1),
        depths=z,
        conics=torch.stack([var_y, -cov, var_x], dim=-1) / det[:, None],
        determinants=det,
        variances=torch.stack([var_x, var_y], dim=-1),
        opacities=opacities,
        colors=torch.cat([colors, z[:, None]], dim=-1) if view.depth else colors,
    )


def _colors(splats: Splats, view: View, camera: int, index: Any, from_camera: Tensor) -> Tensor:  # [n, D]
    """``from_camera`` is from the camera's centre, -R^T t, to the splats': R is taken to be a rotation."""
    if view.sh_degree is None:
        return (splats.colors[camera] if splats.colors.dim() == 3 else splats.colors)[index]
    directions = from_camera / from_camera.norm(dim=-1, keepdim=True)
    basis = sh_basis(directions, view.sh_degree)
    coefficients = splats.colors[index][:, : basis.shape[-1]]
    colors = (basis[..., None] * coefficients).sum(1) + 0.5
    # Not clamp: whether that has a gradient at exactly 0, where black points begin, depends on torch's version.
    return torch.where(colors < 0, 0.0, colors)


def rotations(quats: Tensor) -> Tensor:  # [n, 4] -> [n, 3, 3]
    """Rotation matrices of quaternions of any length; not numbers where the length is 0."""
    w, x, y, z = (quats / quats.norm(dim=-1, keepdim=True)).unbind(-1)
    rows = [
        1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y),
        2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x),
        2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y),
    ]  # fmt: skip
    return torch.stack(rows, dim=-1).unflatten(-1, (3, 3))


def sh_basis(directions: Tensor, degree: int) -> Tensor:  # [n, 3] unit vectors -> [n, (degree + 1)^2]
    """The real spherical harmonics, in the order and with the signs of splat files."""
    x, y, z = directions.unbind(-1)
    found = [torch.full_like(x, 0.28209479177387814)]
    if degree >= 1:
        found += [-0.4886025119029199 * y, 0.4886025119029199 * z, -0.4886025119029199 * x]
    if degree >= 2:
        found += [
            1.0925484305920792 * x * y,
            -1.0925484305920792 * y * z,
            0.9461746957575601 * z * z - 0.3153915652525200,
            -1.0925484305920792 * x * z,
            0.5462742152960396 * (x * x - y * y),
        ]
    if degree >= 3:
        found += [
            0.5900435899266435 * y * (y * y - 3 * x * x),
            2.890611442640554 * x * y * z,
            0.4570457994644658 * y * (1 - 5 * z * z),
            0.3731763325901154 * z * (5 * z * z - 3),
            0.4570457994644658 * x * (1 - 5 * z * z),
            1.445305721320277 * z * (x * x - y * y),
            0.5900435899266435 * x * (3 * y * y - x * x),
        ]
    return torch.stack(found, dim=-1)


def visible_radii(screen: Screen, view: View) -> Tensor:  # [n, 2] int32
    """Half extents of what is at least ``MIN_ALPHA``, in pixels, rounded up; 0 for splats that are not drawn.

    Those are too near, too far, too small, too faint, outside the picture, or have something that is not finite.
    """
    numbers = (screen.means2d, screen.depths[:, None], screen.conics, screen.determinants[:, None], screen.colors)
    finite = torch.cat([*numbers, screen.opacities[:, None]], dim=1).isfinite().all(dim=1)
    reach = 2 * (screen.opacities / MIN_ALPHA).log()
    extents = (reach[:, None] * screen.variances).sqrt().ceil()
    seen = finite & (screen.opacities > MIN_ALPHA) & (screen.determinants > 0)
    seen &= (screen.depths >= view.near) & (screen.depths <= view.far) & (extents > view.radius_clip).any(dim=1)
    size = screen.means2d.new_tensor([view.width, view.height])
    seen &= ((screen.means2d + extents > 0) & (screen.means2d - extents < size)).all(dim=1)
    return torch.where(seen[:, None], extents, 0).clamp(max=2**30).to(torch.int32)


def _tiles_of_box(means2d: Tensor, radii: Tensor, view: View) -> Tensor:  # [N] int32
    """Tiles that the box around each splat touches."""
    last = means2d.new_tensor([(view.width - 1) // TILE, (view.height - 1) // TILE])
    low = ((means2d - radii) / TILE).floor().clamp(min=0)
    high = ((means2d + radii) / TILE).floor().minimum(last)
    return torch.where(radii.amax(1) > 0, (high - low + 1).clamp(min=0).prod(1), 0).to(torch.int32)


class _ToPixels(torch.autograd.Function):
    """The centres, for every pixel; the gradient of ``probe`` is the sum of absolute gradients."""

    @staticmethod
    def forward(ctx: Any, means2d: Tensor, probe: Tensor, num_pixels: int) -> Tensor:
        return means2d.expand(num_pixels, *means2d.shape)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None]:
        return grads[0].sum(0), grads[0].abs().sum(0), None


def _blend(screen: Screen, background: Tensor, view: View, probe: Tensor) -> tuple[Tensor, Tensor]:
    """The colours [H, W, D] and alphas [H, W, 1] of splats that lie in order of depth."""
    pixels = pixel_centers(view, screen.means2d)
    colors, alphas = [], []
    for some in pixels.split(max(1, CHUNK // max(1, len(probe)))):
        arguments = (some, screen.means2d, screen.conics, screen.opacities, screen.colors, background, probe)
        found = blend_pixels(*arguments) if len(some) == len(pixels) else _Recomputed.apply(*arguments)
        colors.append(found[0])
        alphas.append(found[1])
    shape = (view.height, view.width, -1)
    return torch.cat(colors).view(view.height, view.width, len(background)), torch.cat(alphas).view(shape)


class _Recomputed(torch.autograd.Function):
    """``blend_pixels``, which keeps nothing but its inputs: what it computes on the way is computed again."""

    @staticmethod
    def forward(ctx: Any, *arguments: Tensor) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(*arguments)
        return blend_pixels(*arguments)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        leaves = [t.detach().requires_grad_(n) for t, n in zip(ctx.saved_tensors, ctx.needs_input_grad, strict=True)]
        with torch.enable_grad():
            outputs = blend_pixels(*leaves)
        wanted = [leaf for leaf in leaves if leaf.requires_grad]
        found = iter(torch.autograd.grad(outputs, wanted, grads, allow_unused=True) if wanted else ())
        return tuple(next(found) if leaf.requires_grad else None for leaf in leaves)


def pixel_centers(view: View, like: Tensor) -> Tensor:  # [H * W, 2]
    """The centres of all pixels, row by row, x first."""
    x = torch.arange(view.width, device=like.device, dtype=like.dtype) + 0.5
    y = torch.arange(view.height, device=like.device, dtype=like.dtype) + 0.5
    return torch.stack(torch.meshgrid(x, y, indexing="xy"), dim=-1).flatten(0, 1)


def coverage(
    pixels: Tensor, means2d: Tensor, conics: Tensor, opacities: Tensor, probe: Tensor
) -> tuple[Tensor, Tensor]:
    """The exponent, and what each splat alone covers of each pixel, at most ``MAX_ALPHA``: both [P, n]."""
    dx, dy = (_ToPixels.apply(means2d, probe, len(pixels)) - pixels[:, None]).unbind(-1)
    xx, xy, yy = conics.unbind(-1)
    sigma = 0.5 * (xx * dx * dx + yy * dy * dy) + xy * dx * dy
    return sigma, (opacities * (-sigma.clamp(min=0)).exp()).clamp(max=MAX_ALPHA)


def blend_pixels(
    pixels: Tensor,  # [P, 2]
    means2d: Tensor,  # [n, 2]
    conics: Tensor,  # [n, 3]
    opacities: Tensor,  # [n]
    colors: Tensor,  # [n, D]
    background: Tensor,  # [D]
    probe: Tensor,  # [n, 2]
) -> tuple[Tensor, Tensor]:
    """The colours [P, D] and alphas [P, 1] of some pixels, of splats that lie in order of depth."""
    sigma, alphas = coverage(pixels, means2d, conics, opacities, probe)
    with torch.no_grad():
        kept = (sigma >= 0) & (alphas >= MIN_ALPHA)
        # Once too little light is left it stays so: all that follow fail the same test.
        kept &= (1 - alphas * kept).cumprod(dim=1) > MIN_TRANSMITTANCE
    alphas = torch.where(kept, alphas, 0)
    light = torch.cat([torch.ones_like(pixels[:, :1]), (1 - alphas).cumprod(dim=1)], dim=1)
    weights = alphas * light[:, :-1]
    return weights @ colors + light[:, -1:] * background, 1 - light[:, -1:]
