"""From what a scene's files say of a view to the view as it will be loaded; shared by the readers of all formats."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hotlap.base.errors import ConfigError, DataError
from hotlap.data.lens import straight_camera
from hotlap.data.picture_file import SUFFIXES
from hotlap.data.pinhole import Lens, Pinhole
from hotlap.data.view import View
from hotlap.data.view_pixels import PictureHead, same_shape

FACTORS = (1, 2, 4, 8)
WHITE, BLACK = (255, 255, 255), (0, 0, 0)
NUM_RANDOM_POINTS = 100_000
"""As many as the first implementation draws for scenes without points."""
FAR = 1e15
"""No camera is so far away: its numbers would leave the range of float32 when they are squared."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Posed:
    """A view before its picture was looked at."""

    name: str
    image: Path
    mask: Path | None
    camera_from_world: np.ndarray
    camera: Pinhole
    """At the size that the scene's files claim."""
    lens: Lens | None


def check_factor(factor: int | None) -> int:
    """How much smaller pictures are wanted than the files' largest."""
    if factor is not None and factor not in FACTORS:
        raise ConfigError(f"factor = {factor} is not offered", expected=f"one of {', '.join(map(str, FACTORS))}")
    return factor or 1


def finish_view(posed: Posed, head: PictureHead, shrink: int, background: tuple[int, int, int]) -> View:
    """The view with its camera and lens at the size of the loaded picture: the file's, over ``shrink``."""
    _check_aspect(posed, head)
    if not (np.abs(posed.camera_from_world) < FAR).all():
        raise DataError(f"view {posed.name!r} lies too far away", expected=f"a pose with numbers below {FAR:g}")
    size = tuple(max(1, math.floor(side / shrink + 0.5)) for side in (head.width, head.height))
    lens = posed.lens.scaled_to(*size) if posed.lens else None
    camera = straight_camera(lens) if lens else posed.camera.scaled_to(*size)
    return View(
        name=posed.name, image=posed.image, mask=posed.mask, camera_from_world=posed.camera_from_world,
        camera=camera, lens=lens, background=background,
    )  # fmt: skip


def _check_aspect(posed: Posed, head: PictureHead) -> None:
    """Refuses a picture that was cropped or turned since its camera was estimated; scaling is fine."""
    if not same_shape((head.width, head.height), (posed.camera.width, posed.camera.height)):
        raise DataError(
            f"picture {str(posed.image)!r} is {head.width}x{head.height} pixels",
            expected=f"the shape of its camera, {posed.camera.width}x{posed.camera.height}, at any scale",
            remedy="Use the pictures that the cameras were estimated from, neither cropped nor turned",
        )


def rigid(matrix: np.ndarray, name: str) -> np.ndarray:  # [4, 4] -> [4, 4] float64
    """A pose as rotation and shift exactly; text has rounded it a little."""
    if matrix.shape not in ((3, 4), (4, 4)) or not (np.abs(matrix) < FAR).all():
        raise DataError(f"view {name!r} has a pose that is no matrix of finite numbers", expected="4x4 or 3x4")
    left, scale, right = np.linalg.svd(matrix[:3, :3])
    rotation = left @ right
    if scale[0] <= 0 or scale[2] < 0.99 * scale[0] or np.linalg.det(rotation) < 0:
        raise DataError(
            f"view {name!r} has a pose that is no rotation: it scales by {scale.max():.3g} and {scale.min():.3g}",
            expected="three axes at right angles, of one length, right-handed",
        )
    pose = np.eye(4)
    pose[:3, :3], pose[:3, 3] = rotation, matrix[:3, 3]
    return pose


def check_unique(names: Iterable[str], folder: Path) -> None:
    """Refuses a scene that names a view twice."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise DataError(f"scene {str(folder)!r} names the view {name!r} twice", remedy="Remove one of them")
        seen.add(name)


def find_picture(folder: Path, name: str) -> Path | None:
    """The picture of that name below a folder, or one that differs in its ending only; None if there is none."""
    exact = folder / name
    if exact.is_file():
        return exact
    # A name may have no ending, and what follows its last dot is then a part of it, as in frame_0.5.
    bare = [str(exact)] + ([str(exact.with_suffix(""))] if exact.suffix[1:2].isalpha() else [])
    for start in bare:
        for suffix in (*SUFFIXES, *(suffix.upper() for suffix in SUFFIXES)):
            other = Path(start + suffix)
            if other.is_file():
                return other
    return None


def find_mask(folders: Iterable[Path], name: str) -> Path | None:
    """The mask of a picture: ``a.png`` or, as COLMAP names it, ``a.jpg.png`` for ``a.jpg``; None if there is none."""
    for folder in folders:
        longer = folder / f"{name}.png"
        found = longer if longer.is_file() else find_picture(folder, name)
        if found is not None:
            return found
    return None


def finite_points(points: np.ndarray, colors: np.ndarray) -> tuple[np.ndarray, np.ndarray, int]:
    """Points as float32 with their colours, without those that are not finite, and how many those were."""
    with np.errstate(over="ignore"):
        single = points.astype(np.float32)
    good = np.isfinite(single).all(1)
    return single[good], np.ascontiguousarray(colors[good]), int((~good).sum())


def random_points(views: Iterable[View], box: float | None) -> tuple[np.ndarray, np.ndarray]:
    """Points [P, 3] and colours for a scene without any, from a fixed seed: in a cube about the origin of half side
    ``box``, or about the mean of the cameras, three times as far out as the farthest of them.
    """
    draw = np.random.default_rng(0)
    cube = draw.uniform(-1, 1, (NUM_RANDOM_POINTS, 3))
    colors = draw.integers(0, 256, (NUM_RANDOM_POINTS, 3), dtype=np.uint8)
    if box is not None:
        return (cube * box).astype(np.float32), colors
    positions = np.array([view.position() for view in views])
    middle = positions.mean(0)
    reach = float(np.linalg.norm(positions - middle, axis=1).max()) or 1.0
    return (middle + 3 * reach * cube).astype(np.float32), colors


def with_names_of(held_out: set[str], views: tuple[View, ...], folder: Path) -> tuple[str, ...]:
    """The names of views that a list of names or stems sets aside; it must mean some of them, and not all."""
    names = tuple(view.name for view in views if view.name in held_out or Path(view.name).stem in held_out)
    if held_out and len(names) in (0, len(views)):
        raise DataError(
            f"scene {str(folder)!r} sets {len(held_out)} names aside, which are {len(names)} of its {len(views)} views",
            expected="some of its views, but not all",
            remedy="Correct the list of held-out views, or remove it",
        )
    return names
