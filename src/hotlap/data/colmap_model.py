"""What COLMAP's three files say, as they say it; ``colmap.py`` makes a scene of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hotlap.base.errors import DataError
from hotlap.data.pinhole import NUM_PARAMS, Lens, Pinhole

if TYPE_CHECKING:
    import numpy as np

MODELS = {
    0: ("SIMPLE_PINHOLE", 3), 1: ("PINHOLE", 4), 2: ("SIMPLE_RADIAL", 4), 3: ("RADIAL", 5), 4: ("OPENCV", 8),
    5: ("OPENCV_FISHEYE", 8), 6: ("FULL_OPENCV", 12), 7: ("FOV", 5), 8: ("SIMPLE_RADIAL_FISHEYE", 4),
    9: ("RADIAL_FISHEYE", 5), 10: ("THIN_PRISM_FISHEYE", 12),
}  # fmt: skip
"""COLMAP's camera models by number: name and how many parameters."""
MODEL_NUMBERS = {name: number for number, (name, _) in MODELS.items()}
ONE_FOCAL = (0, 2, 3, 8, 9)
"""Models whose first parameter is the focal length of both axes."""
FISHEYE = (5, 8, 9)
MAX_SIDE = 1_000_000
"""Wider pictures than any camera's: a number of this size in a file is damage."""


@dataclass(frozen=True, kw_only=True)
class ColmapCamera:
    """One camera that images share."""

    camera_id: int
    """What images name it by; any number, not a position in a list."""
    model: int
    """Of ``MODELS``."""
    width: int
    """Pixels of a row."""
    height: int
    """Rows."""
    params: tuple[float, ...]
    """In COLMAP's order: focal lengths, centre, distortion."""

    def pinhole(self) -> Pinhole:
        """The camera without its distortion."""
        if not (0 < self.width <= MAX_SIDE and 0 < self.height <= MAX_SIDE):
            raise DataError(
                f"camera {self.camera_id} is {self.width}x{self.height} pixels", expected=f"1 to {MAX_SIDE} a side"
            )
        focal = self.params[:1] * 2 if self.model in ONE_FOCAL else self.params[:2]
        cx, cy = self.params[1:3] if self.model in ONE_FOCAL else self.params[2:4]
        return Pinhole(width=self.width, height=self.height, fx=focal[0], fy=focal[1], cx=cx, cy=cy)

    def lens(self) -> Lens | None:
        """Its distortion; None where there is none."""
        rest = self.params[3:] if self.model in ONE_FOCAL else self.params[4:]
        if self.model in (7, 10):
            raise DataError(
                f"camera {self.camera_id} has the model {MODELS[self.model][0]}, which is not undone here",
                expected="one of " + ", ".join(name for number, (name, _) in MODELS.items() if number not in (7, 10)),
                remedy="Run COLMAP's image_undistorter and read its output",
            )
        if not any(rest):
            # A fisheye lens without coefficients still bends, since angles are spread evenly.
            return self._lens("fisheye", ()) if self.model in FISHEYE else None
        return self._lens("fisheye" if self.model in FISHEYE else "opencv", rest)

    def _lens(self, model: str, params: tuple[float, ...]) -> Lens:
        filled = (*params, *([0.0] * (NUM_PARAMS[model] - len(params))))
        return Lens(model=model, params=filled, camera=self.pinhole())


@dataclass(frozen=True, kw_only=True)
class ColmapImage:
    """One registered photograph."""

    image_id: int
    """Unique in the model."""
    quat: tuple[float, float, float, float]
    """Rotation of the camera from the world: w, x, y, z."""
    shift: tuple[float, float, float]
    """The world's origin in the camera's axes."""
    camera_id: int
    """Whose camera it is."""
    name: str
    """Of the file, below the folder of images."""


@dataclass(frozen=True, kw_only=True, eq=False)
class ColmapModel:
    """Cameras, photographs and points of one reconstruction."""

    cameras: dict[int, ColmapCamera]
    """By camera_id."""
    images: tuple[ColmapImage, ...]
    """As the file orders them."""
    points: np.ndarray
    """[P, 3] float64; may hold numbers that are not finite."""
    colors: np.ndarray
    """[P, 3] uint8."""


def by_id(cameras: list[ColmapCamera], where: str) -> dict[int, ColmapCamera]:
    """Cameras by their number, which must be unique."""
    found: dict[int, ColmapCamera] = {}
    for camera in cameras:
        if camera.camera_id in found:
            raise DataError(f"file {where!r} has two cameras with the number {camera.camera_id}")
        found[camera.camera_id] = camera
    return found
