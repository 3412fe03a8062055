"""Cameras as numbers: an ideal pinhole in pixels, and the lens that a picture's pixels were bent by."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hotlap.base.errors import DataError

if TYPE_CHECKING:
    import numpy as np

LENS_MODELS = ("opencv", "fisheye")
NUM_PARAMS = {"opencv": 8, "fisheye": 4}
"""How many numbers each model has: k1 k2 p1 p2 k3 k4 k5 k6 as OpenCV orders them, and k1 k2 k3 k4 of the angle."""


@dataclass(frozen=True, kw_only=True)
class Pinhole:
    """An ideal camera that looks along +z, with x to the right and y down; the first pixel's centre is at 0.5."""

    width: int
    """Pixels of a row."""
    height: int
    """Rows."""
    fx: float
    """Focal length in pixels, across."""
    fy: float
    """Focal length in pixels, down."""
    cx: float
    """Where the axis meets the picture, across."""
    cy: float
    """Where the axis meets the picture, down."""

    def __post_init__(self) -> None:
        if self.width < 1 or self.height < 1:
            raise DataError(f"camera size = {self.width}x{self.height} is empty", expected="at least 1x1 pixel")
        for name in ("fx", "fy"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value > 0):
                raise DataError(f"camera {name} = {value} is no focal length", expected="a finite number above 0")
        for name in ("cx", "cy"):
            if not math.isfinite(getattr(self, name)):
                raise DataError(f"camera {name} = {getattr(self, name)} is no place", expected="a finite number")

    def scaled_to(self, width: int, height: int) -> Pinhole:
        """The camera of the same picture at another size; each axis by its own ratio."""
        x, y = width / self.width, height / self.height
        return Pinhole(width=width, height=height, fx=self.fx * x, fy=self.fy * y, cx=self.cx * x, cy=self.cy * y)

    def matrix(self) -> np.ndarray:  # [3, 3] float64
        """Pixels from camera coordinates."""
        import numpy as np

        return np.array([[self.fx, 0.0, self.cx], [0.0, self.fy, self.cy], [0.0, 0.0, 1.0]])


@dataclass(frozen=True, kw_only=True)
class Lens:
    """How a picture was bent, and what camera its pixels belong to; loading the view undoes it."""

    model: str
    """``opencv``, by distance from the axis and tangentially, or ``fisheye``, by the angle from the axis."""
    params: tuple[float, ...]
    """The model's coefficients, in the order of ``NUM_PARAMS``."""
    camera: Pinhole
    """Of the bent picture, at the size that the view is loaded at."""

    def __post_init__(self) -> None:
        if self.model not in LENS_MODELS:
            raise DataError(f"lens model = {self.model!r} is not known", expected=" or ".join(LENS_MODELS))
        if len(self.params) != NUM_PARAMS[self.model]:
            raise DataError(
                f"lens {self.model!r} has {len(self.params)} parameters", expected=str(NUM_PARAMS[self.model])
            )
        for position, value in enumerate(self.params):
            if not math.isfinite(value):
                raise DataError(f"lens parameter {position} = {value}", expected="a finite number")

    def scaled_to(self, width: int, height: int) -> Lens:
        """The same lens before a picture of another size: its coefficients do not depend on pixels."""
        return Lens(model=self.model, params=self.params, camera=self.camera.scaled_to(width, height))
