"""What finding objects in a folder of pictures can be told."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from hotlap.base.errors import ConfigError, did_you_mean
from hotlap.base.settings import require_least
from hotlap.data.micrograph import MOST_PIXELS
from hotlap.measure.arms import parse_arm
from hotlap.segment.instances import SplitConfig
from hotlap.segment.tiles import TileConfig

FORMATS = ("labels", "csv", "xlsx", "coco", "yolo", "roi", "geojson", "overlay")


@dataclass(frozen=True, kw_only=True)
class SegmentPredictConfig:
    """Finds the objects in every picture of a folder and writes what was asked for."""

    folder: Path
    """Folder with PNG, JPEG, TIFF, BMP or WebP pictures; pages of a TIFF are pictures of their own."""
    model: str = "hrnet"
    """A network's name, given with its weights, or the weights themselves: a checkpoint, a training's folder."""
    weights: Path | None = None
    """Trained weights of a network given by name."""
    width: int | None = None
    """Channels of the network's first level; by default what the weights have."""
    out: Path = Path("segmented")
    """Folder for the results; pictures that were finished there before are not done again."""
    formats: tuple[str, ...] = ("labels", "csv", "overlay")
    """What to write: labels, csv, xlsx, coco, yolo, roi, geojson, overlay."""
    threshold: float = 0.5
    """Probability from which a pixel belongs to an object."""
    seed_threshold: float = 0.5
    """Height of a core from which it starts an object of its own; lower splits less."""
    merge: float = SplitConfig.merge
    """Cores that meet are one object where the pass between them reaches this share of the lower one; 1 for never."""
    min_area: int = 10
    """Pixels of the smallest object that is kept."""
    simplify_px: float = 0.75
    """How far corners left out of YOLO, ROI and GeoJSON outlines may lie from them; 0 keeps every pixel's side."""
    um_per_px: float | None = None
    """Micrometres per pixel; measurements are then in micrometres."""
    category: str = "cell"
    """What the objects are called in COCO and GeoJSON."""
    batch: int | None = None
    """Tiles that go through the network together, of whichever pictures they are; by default the batch of
    --batch-sizes, else of the tuned profile, else 8, on a CPU 1 of 1024x1024, or as many pixels."""
    batch_sizes: Path | None = None
    """A batch_sizes.json of 'hotlap tune --for infer --export', which holds the network's tuned batch."""
    tile: int = 1024
    """Longest side of a tile, in pixels."""
    overlap: int = 128
    """Pixels that neighbouring tiles share."""
    device: str = "auto"
    """auto (that of --arm, else a card that torch can use, else the CPU), cpu, cuda or cuda:1."""
    tuned: bool = True
    """Whether the tuned profile of the network decides its batch, precision and compilation."""
    arm: str = ""
    """How the network runs, as cuda:bf16+channels_last+graph; by default that of the tuned profile, else plain
    float32."""
    workers: int = 0
    """Threads, or processes beside a card, that read pictures, and as many that work on results; 0 for as many as there
    are cores, at most 16."""
    most_pixels: int = MOST_PIXELS
    """Pixels of the largest picture that is read; a larger one is refused before it is decoded."""
    redo: bool = False
    """Do finished pictures again."""

    def __post_init__(self) -> None:
        for name in self.formats:
            if name not in FORMATS:
                raise ConfigError(f"formats = {name!r} is not known", remedy=did_you_mean(name, FORMATS))
        if self.um_per_px is not None and not 0 < self.um_per_px < float("inf"):
            raise ConfigError(f"um_per_px = {self.um_per_px} is not valid", expected="a number above 0")
        require_least(self, simplify_px=0, batch=1, workers=0, most_pixels=1)
        self.split()
        self.tiles(self.batch or 1)
        if self.arm:
            check_arm(self.arm)

    def tiles(self, batch: int, small_batch: int = 0) -> TileConfig:
        """How pictures are cut, with so many tiles to a batch, and so many small ones at most."""
        return TileConfig(tile=self.tile, overlap=self.overlap, batch=batch, small_batch=small_batch)

    def split(self) -> SplitConfig:
        """How maps become objects."""
        return SplitConfig(
            threshold=self.threshold, seed_threshold=self.seed_threshold, merge=self.merge, min_area=self.min_area
        )


def check_arm(text: str) -> None:
    """Refuses arms that a network cannot run tiles of any size on, and those that say what another setting says."""
    arm = parse_arm(text)
    if arm.form or arm.tuned:
        raise ConfigError(
            f"arm = {text!r}: {arm.form or 'tuned'} has no meaning here",
            expected="an arm that runs the network itself, on tiles of any size",
        )
    if arm.batch:
        raise ConfigError(f"arm = {text!r} says the batch", remedy=f"Leave it out, and give --batch {arm.batch}")
