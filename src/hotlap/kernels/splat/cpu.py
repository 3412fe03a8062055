"""Splatting on the CPU: tiles in threads, compiled by Numba; the same bits for any number of threads.

The kernels let go of Python's lock, and plain threads share the work out. Numba's own threads are not used: some kinds
of them end the process when two threads of a program call them at once.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from hotlap.kernels.splat.frame import TILE, Drawn, Facts, Splats, View, or_zeros

if TYPE_CHECKING:
    from hotlap.kernels.splat.cpu_project import Given, Options

DTYPES = (torch.float32, torch.float64)
CHUNK = 1024
"""Splats that one thread takes at a time; the cameras' gradients are summed in such chunks, so it is not tuned."""
SHARES = 8
"""Parts that tiles are cut into for each thread: some tiles have far more splats than others."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Saved:
    """What the backward pass needs of the forward pass."""

    screen: np.ndarray
    """[C * N, SCREEN] as ``cpu_project`` has it."""
    shades: np.ndarray
    """[C * N, D] colours, with the depth at the end if it is a channel."""
    offsets: np.ndarray
    """[C * N + 1] where each splat's pairs begin."""
    owners: np.ndarray
    """The splat of each pair."""
    begins: np.ndarray
    """Where each tile's list begins, and the end."""
    listed: np.ndarray
    """The pairs of each tile, front to back."""
    light: np.ndarray
    """[C, H, W] what is left behind all splats; alphas in float32 would have lost its digits."""
    reached: np.ndarray
    """[C, H, W] one more than the place of the last pair that counted."""


def why_not(splats: Splats, view: View) -> str:
    """Why this implementation cannot draw such splats; '' if it can."""
    means = splats.means
    if means.device.type != "cpu":
        return f"the tensors are on {means.device.type}"
    if means.dtype not in DTYPES:
        return f"{str(means.dtype).removeprefix('torch.')} is neither float32 nor float64"
    return "" if has_numba() else "numba is not installed: pip install 'hotlap[splat]'"


@functools.cache
def has_numba() -> bool:
    """Whether Numba is installed; asked once, for looking takes as long as a small kernel."""
    return find_spec("numba") is not None


def forward(splats: Splats, view: View) -> Drawn:
    """The frames of all cameras; ``reference.forward`` says of what."""
    from hotlap.kernels.splat.cpu_blend import splat_blend_fwd_kernel

    num_cameras, num = len(splats.viewmats), len(splats.means)
    given, options, behind = _given(splats, view), _options(view), _behind(splats, view)
    with ThreadPoolExecutor(torch.get_num_threads()) as pool:
        screen, shades, radii, num_tiles = _project(pool, given, options, behind.shape[1])
        lists = _list(pool, screen, num_tiles, options, num_cameras)
        shape = (num_cameras, view.height, view.width)
        light, reached = np.empty(shape), np.empty(shape, np.int32)
        colors, alphas = (splats.means.new_empty(*shape, count) for count in (behind.shape[1], 1))
        begins, given_lists = lists["begins"], (lists["begins"], lists["listed"], lists["owners"])
        written = (colors.numpy(), alphas.numpy(), light, reached)
        share(pool, splat_blend_fwd_kernel, len(begins) - 1, *given_lists, screen, shades, behind, *written)
    on_screen = torch.from_numpy(screen).view(num_cameras, num, screen.shape[1]).to(splats.means.dtype)
    return Drawn(
        colors=colors,
        alphas=alphas,
        means2d=on_screen[..., :2].contiguous(),
        facts=Facts(
            radii=torch.from_numpy(radii).view(num_cameras, num, 2),
            depths=on_screen[..., 6].contiguous(),
            conics=on_screen[..., 2:5].contiguous(),
            tiles_per_splat=torch.from_numpy(num_tiles).view(num_cameras, num),
        ),
        saved=Saved(screen=screen, shades=shades, light=light, reached=reached, **lists),
    )


def backward(
    splats: Splats,
    view: View,
    drawn: Drawn,
    v_colors: Tensor | None,  # [C, H, W, D(+1)]
    v_alphas: Tensor | None,  # [C, H, W, 1]
    v_means2d: Tensor | None,  # [C, N, 2]
    needs: frozenset[str],
) -> dict[str, Tensor]:
    """The gradients asked for, by name; ``reference.backward`` says of what."""
    saved: Saved = drawn.saved
    v_colors, v_alphas = or_zeros(drawn, v_colors, v_alphas)
    behind = _behind(splats, view)
    found = {"backgrounds": _background_grad(saved, v_colors, splats)} if splats.backgrounds is not None else {}
    with ThreadPoolExecutor(torch.get_num_threads()) as pool:
        sums = _blend_backward(pool, saved, behind, v_colors, v_alphas, view)
        channels = behind.shape[1]
        shape = (len(splats.viewmats), len(splats.means), 2)
        found["means2d"] = torch.from_numpy(sums[:, :2].reshape(shape).copy()).to(v_colors.dtype)
        found["means2d_abs"] = torch.from_numpy(sums[:, 6 + channels :].reshape(shape)).to(v_colors.dtype)
        if v_means2d is not None:
            sums[:, :2] += _array(v_means2d).reshape(-1, 2)
        if not needs <= {"backgrounds", "means2d"}:
            found |= _project_backward(
                pool, splats, view, np.ascontiguousarray(sums[:, : 6 + channels]), drawn.facts.radii
            )
    wanted = needs | ({"means2d_abs"} if "means2d" in needs and view.absgrad else frozenset())
    return {name: grad for name, grad in found.items() if name in wanted}


def _given(splats: Splats, view: View) -> Given:
    from hotlap.kernels.splat.cpu_project import Given

    colors = splats.colors if splats.colors.dim() == 3 else splats.colors[None]
    own = (splats.means, splats.quats, splats.scales, splats.opacities, colors)
    return Given(*(_array(tensor) for tensor in (*own, splats.viewmats, splats.Ks)))


def _array(tensor: Tensor) -> np.ndarray:
    """A tensor's numbers in float64: kernels for one type take half the time to compile that those for two would."""
    return tensor.detach().double().contiguous().numpy()


def _options(view: View) -> Options:
    from hotlap.kernels.splat.cpu_project import Options

    return Options(
        view.width, view.height, float(view.near), float(view.far), float(view.eps2d), float(view.radius_clip),
        view.antialiased, -1 if view.sh_degree is None else view.sh_degree, view.raw, view.depth,
    )  # fmt: skip


def _behind(splats: Splats, view: View) -> np.ndarray:
    """The background [C, D] in float64, with a depth of 0 if depth is a channel."""
    num_colors = 3 if view.sh_degree is not None else splats.colors.shape[-1]
    behind = np.zeros((len(splats.viewmats), num_colors + view.depth))
    if splats.backgrounds is not None:
        behind[:, :num_colors] = _array(splats.backgrounds)
    return behind


def share(pool: ThreadPoolExecutor, kernel: Callable[..., Any], total: int, *arguments: Any, step: int = 0) -> None:
    """Runs a kernel over ``total`` tiles or splats, in parts of ``step``."""
    step = step or max(1, -(-total // (SHARES * torch.get_num_threads())))
    parts = [(first, min(first + step, total)) for first in range(0, total, step)]
    for _ in pool.map(lambda part: kernel(*part, *arguments), parts):
        pass


def _project(
    pool: ThreadPoolExecutor, given: Given, options: Options, channels: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    from hotlap.kernels.splat.cpu_project import SCREEN, splat_project_fwd_kernel

    rows = len(given.viewmats) * len(given.means)
    screen, shades = np.zeros((rows, SCREEN)), np.zeros((rows, channels))
    radii, num_tiles = np.zeros((rows, 2), np.int32), np.zeros(rows, np.int32)
    outputs = (screen, shades, radii, num_tiles)
    share(pool, splat_project_fwd_kernel, len(given.means), given, options, *outputs, step=CHUNK)
    return outputs


def _list(
    pool: ThreadPoolExecutor, screen: np.ndarray, num_tiles: np.ndarray, options: Options, num_cameras: int
) -> dict[str, np.ndarray]:
    """The pairs of a tile and a splat, and for each tile its pairs, front to back."""
    from hotlap.kernels.splat.cpu_project import DEPTH, splat_list_kernel, splat_pair_kernel

    offsets = np.concatenate([np.zeros(1, np.int64), num_tiles.cumsum(dtype=np.int64)])
    tiles, owners = np.empty(offsets[-1], np.int32), np.empty(offsets[-1], np.int64)
    share(pool, splat_pair_kernel, len(screen), screen, options, num_cameras, offsets, tiles, owners, step=CHUNK)
    all_tiles = num_cameras * -(-options.width // TILE) * -(-options.height // TILE)
    begins = np.concatenate([np.zeros(1, np.int64), np.bincount(tiles, minlength=all_tiles).cumsum()])
    # Cameras have tiles of their own, so one order by depth serves them all; equal depths stay in order of number.
    order = np.argsort(screen[:, DEPTH], kind="stable")
    listed = np.empty(offsets[-1], np.int64)
    splat_list_kernel(order[num_tiles[order] > 0], offsets, tiles, begins[:-1].copy(), listed)
    return {"offsets": offsets, "owners": owners, "begins": begins, "listed": listed}


def _blend_backward(
    pool: ThreadPoolExecutor, saved: Saved, behind: np.ndarray, v_colors: Tensor, v_alphas: Tensor, view: View
) -> np.ndarray:
    """The gradients of each splat on each screen: centre, conic and opacity, channels, absolute ones of the centre."""
    from hotlap.kernels.splat.cpu_blend import splat_blend_bwd_kernel, splat_sum_kernel

    partial = np.zeros((len(saved.owners), 8 + behind.shape[1]))
    given = (saved.begins, saved.listed, saved.owners, saved.screen, saved.shades, behind, saved.light, saved.reached)
    grads = (_array(v_colors), _array(v_alphas), view.absgrad, partial)
    share(pool, splat_blend_bwd_kernel, len(saved.begins) - 1, *given, *grads)
    sums = np.zeros((len(saved.screen), partial.shape[1]))
    share(pool, splat_sum_kernel, len(sums), saved.offsets, partial, sums, step=CHUNK)
    return sums


def _project_backward(
    pool: ThreadPoolExecutor, splats: Splats, view: View, v_screen: np.ndarray, radii: Tensor
) -> dict[str, Tensor]:
    from hotlap.kernels.splat.cpu_backward import Gradients, splat_project_bwd_kernel
    from hotlap.kernels.splat.cpu_project import POSE

    given, num_cameras, num = _given(splats, view), len(splats.viewmats), len(splats.means)
    chunks = [(first, min(first + CHUNK, num)) for first in range(0, num, CHUNK)]
    own = [np.zeros_like(array) for array in given[:5]]
    grads = Gradients(own[0], own[1], own[2], own[3], own[4], np.zeros((len(chunks), num_cameras, POSE)))
    arguments = (given, _options(view), v_screen, radii.reshape(-1, 2).numpy())

    def run(numbered: tuple[int, tuple[int, int]]) -> None:
        splat_project_bwd_kernel(*numbered[1], *arguments, numbered[0], grads)

    for _ in pool.map(run, enumerate(chunks)):
        pass
    names = ("means", "quats", "scales", "opacities", "colors")
    found = {n: torch.from_numpy(getattr(grads, n)).to(splats.means.dtype).view_as(getattr(splats, n)) for n in names}
    return found | _camera_grads(torch.from_numpy(grads.pose.sum(axis=0)), splats)


def _camera_grads(pose: Tensor, splats: Splats) -> dict[str, Tensor]:
    """The gradients of viewmats and Ks from rows of ``POSE`` numbers."""
    viewmats, intrinsics = torch.zeros_like(splats.viewmats), torch.zeros_like(splats.Ks)
    viewmats[:, :3, :3] = pose[:, :9].unflatten(1, (3, 3)).to(viewmats.dtype)
    viewmats[:, :3, 3] = pose[:, 9:12].to(viewmats.dtype)
    for column, (i, j) in enumerate(((0, 0), (1, 1), (0, 2), (1, 2))):
        intrinsics[:, i, j] = pose[:, 12 + column].to(intrinsics.dtype)
    return {"viewmats": viewmats, "Ks": intrinsics}


def _background_grad(saved: Saved, v_colors: Tensor, splats: Splats) -> Tensor:
    assert splats.backgrounds is not None
    light = torch.from_numpy(saved.light)[..., None]
    return (light * v_colors[..., : splats.backgrounds.shape[1]]).sum(dim=(1, 2)).to(v_colors.dtype)
