"""The settings of a segmentation, and the named choices of them."""

from __future__ import annotations

from dataclasses import dataclass, replace

from hotlap.base.errors import ConfigError
from hotlap.base.settings import require_least
from hotlap.data.image_folder import LABEL_KINDS
from hotlap.segment.heads import head_maps


@dataclass(frozen=True, kw_only=True)
class SegmentConfig:
    """One U-Net with its data."""

    classes: int = 3
    """Classes the network tells apart, the background included."""
    width: int = 64
    """Channels of the first level; each of the four levels below has twice as many as the one above it."""
    size: int = 128
    """Height and width of the images, in pixels; those of a folder are resized to it."""
    batch: int = 16
    """Images per step."""
    train_images: int = 500
    """Drawn images to train on; a folder gives what it holds."""
    eval_images: int = 100
    """Drawn images to judge by; of a folder every fifth is held out."""
    data: str = ""
    """Folder with images/ and labels/ of the same stems; empty for drawn shapes."""
    label_kind: str = "classes"
    """What a label's pixels say: "classes" (the class, 255 for unknown) or "instances" (0 background, else class 1)."""
    lr: float = 1e-4
    """Step size of Adam."""
    seed: int = 0
    """Which drawn images."""

    def __post_init__(self) -> None:
        require_least(self, classes=2, width=1, size=1, batch=1, train_images=1, eval_images=1)
        if self.classes > 255:
            raise ConfigError(
                f"classes = {self.classes} is not valid", expected="at most 255, which marks unknown pixels"
            )
        if self.label_kind not in LABEL_KINDS:
            raise ConfigError(
                f"label_kind = {self.label_kind!r} is not valid", expected=f"one of {', '.join(LABEL_KINDS)}"
            )


@dataclass(frozen=True, kw_only=True)
class CellConfig:
    """One network that sees cells, with its data."""

    model: str = "hrnet"
    """hrnet, resunet-small, ma-resunet, unet or smp:ARCHITECTURE/ENCODER."""
    width: int = 0
    """Channels of the first level, from which the others follow; 0 for the published width."""
    size: int = 1024
    """Height and width of the crops that are learned from, in pixels."""
    batch: int = 4
    """Crops per step."""
    crops: int = 1
    """Crops taken of each image in an epoch."""
    augment: bool = True
    """Random places, scales, turns and colours; otherwise the middle of each image as it is."""
    train_images: int = 64
    """Drawn images to train on; a folder gives what it holds."""
    eval_images: int = 16
    """Drawn images to judge by; of a folder every fifth is held out."""
    data: str = ""
    """Folder with images/ and labels/ of the same stems, or one npz file of them; empty for drawn cells."""
    head: str = "core"
    """What is predicted to tell touching cells apart: core, boundary, or foreground alone."""
    lr: float = 3e-4
    """Step size of AdamW."""
    seed: int = 0
    """Which drawn images."""

    def __post_init__(self) -> None:
        require_least(self, width=0, size=16, batch=1, crops=1, train_images=1, eval_images=1)
        head_maps(self.head)
        if self.lr <= 0:
            raise ConfigError(f"lr = {self.lr} is not valid", expected="a positive number")


def full() -> SegmentConfig:
    """31 M parameters on 500 images of 128x128."""
    return SegmentConfig()


def small() -> SegmentConfig:
    """0.5 M parameters on 200 images of 64x64: trains within a minute on two cores."""
    return replace(full(), width=8, size=64, train_images=200, eval_images=50, lr=1e-3)
