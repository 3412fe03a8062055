"""What ``hotlap splat from-photos`` can be told."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from hotlap.base.settings import require_least

CameraModel = Literal["SIMPLE_PINHOLE", "PINHOLE", "SIMPLE_RADIAL", "RADIAL", "OPENCV", "OPENCV_FISHEYE"]


@dataclass(frozen=True, kw_only=True)
class SplatPhotosConfig:
    """Finds the cameras of plain photographs, then trains splats on them."""

    folder: str = ""
    """Folder with the photographs; folders inside it are not looked into."""
    out: str = ""
    """Folder for the scene, the model and what is kept in between; named again, it goes on where it stopped."""
    preset: str = "default"
    """Preset of the training."""
    steps: int | None = None
    """Training steps; none for the preset's."""
    training: dict[str, Any] = field(default_factory=dict)
    """Any other setting of the training, as --set training.sh_degree=1."""
    train: bool = True
    """Without, it ends when the cameras are known."""
    max_side: int = 1600
    """Pixels of the longer side: larger photographs are made smaller for finding cameras and for training."""
    camera: CameraModel = "SIMPLE_RADIAL"
    """COLMAP's model of the camera; its distortion is undone as pictures are loaded."""
    one_camera: bool | None = None
    """All photographs are from one camera with one zoom; none for yes if they have the same size."""
    matching: Literal["auto", "exhaustive", "sequential"] = "auto"
    """Which pairs are compared: all, or neighbours by name, as of a video; auto goes by exhaustive_limit."""
    exhaustive_limit: int = 200
    """Up to so many photographs all pairs are compared: twice as many take four times as long."""
    overlap: int = 10
    """Neighbours that each photograph is compared with, if it goes by names."""
    max_features: int = 8192
    """Points of interest in a photograph, at most."""
    seed: int = 0
    """Of the search for cameras."""
    device: str = "auto"
    """Of the training: auto, cpu, cuda or cuda:1. Cameras are found on the CPU."""

    def __post_init__(self) -> None:
        require_least(self, max_side=64, exhaustive_limit=0, overlap=1, max_features=64, seed=0)


SHAPING = ("max_side", "camera", "one_camera", "matching", "exhaustive_limit", "overlap", "max_features", "seed")
"""Settings that decide which cameras are found."""
