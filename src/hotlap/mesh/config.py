"""What the verbs of meshes can be told."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from hotlap.base.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class ViewsConfig:
    """Renders views of every mesh of a folder, with cameras and surface points, ready for 'hotlap mesh train'."""

    folder: Path
    """Folder with OBJ, PLY or GLB files anywhere below it, or rendered ShapeNet with .dat ground truth."""
    out: Path
    """Folder to fill: a file for each object, and index.json."""
    views: int = 24
    """Pictures of each object, from all around."""
    points: int = 10_000
    """Points on each object's surface."""
    variants: int = 0
    """Stretched copies of each object to train on beside it, for small collections; they are never judged by."""
    up: Literal["y", "z"] = "y"
    """Which axis of the files points up."""
    min_elevation: float = 5.0
    """Lowest view, in degrees above the horizon."""
    max_elevation: float = 45.0
    """Highest view."""
    min_distance: float = 0.75
    """Nearest view; objects are made 0.57 long from corner to corner."""
    max_distance: float = 0.9
    """Farthest view."""
    supersample: int = 3
    """Samples of a pixel, across and down."""
    format: Literal["jpeg", "png"] = "jpeg"
    """How pictures are kept: jpeg at quality 95, or png without loss and about three times as large."""
    sheet: int = 8
    """Objects shown in sheet.png, 8 views each; 0 for no sheet."""
    seed: int = 0
    """Decides cameras and points."""
    workers: int | None = None
    """Objects worked on at once; by default as many as torch has threads."""
    device: str = "cpu"
    """Where to render: cpu or cuda."""

    def __post_init__(self) -> None:
        for name, least in (("views", 1), ("points", 1), ("supersample", 1), ("variants", 0), ("sheet", 0)):
            if getattr(self, name) < least:
                raise ConfigError(f"{name} = {getattr(self, name)}", expected=f"at least {least}")
        for name, least_value, most in (("elevation", -89.0, 89.0), ("distance", 0.4, 10.0)):
            low, high = getattr(self, f"min_{name}"), getattr(self, f"max_{name}")
            if not least_value <= low <= high <= most:
                raise ConfigError(
                    f"min_{name} = {low:g} and max_{name} = {high:g}",
                    expected=f"{least_value:g} to {most:g}, the smaller first",
                )
        if self.workers is not None and self.workers < 1:
            raise ConfigError(f"workers = {self.workers}", expected="at least 1, or none")
