"""The settings of an image classifier, and the named choices of them."""

from __future__ import annotations

from dataclasses import dataclass, replace

from hotlap.base.errors import ConfigError
from hotlap.base.settings import require_least
from hotlap.classify.model import check_model

AUGMENTS = ("auto", "cpu", "device", "none")


@dataclass(frozen=True, kw_only=True)
class ClassifyConfig:
    """One image classifier with its data."""

    data: str = ""
    """Folder with a folder of pictures for each class, or with train/ and val/ of such; empty for drawn JPEG files."""
    model: str = "resnet18"
    """tiny, resnet18, resnet50 (torchvision) or a vit_... (timm), as vit_tiny_patch16_224."""
    norm: str = "batch"
    """Normalisation in tiny and the ResNets: "batch", or "group", with which a split batch trains as the whole does."""
    size: int = 224
    """Height and width of the images the network sees, in pixels."""
    batch: int = 64
    """Images per step."""
    classes: int = 0
    """Outputs of the network; 0 for as many as the data has classes, more leaves some unused."""
    augment: str = "auto"
    """Where training images are mirrored, recoloured and normalised after their random crop: "device" (a batch at a
    time, where the model is), "cpu" (one by one, in the loader) or "auto" (device); "none" takes their middle as is."""
    jitter: float = 0.0
    """How far brightness, contrast and saturation of a training image may be turned up or down, as a share."""
    min_crop: float = 0.08
    """The least share of a picture's area that a random crop takes."""
    hold_out: int = 5
    """Every how-manieth picture of a class is held out, where the folder has none to judge by."""
    train_images: int = 2000
    """Drawn JPEG files to train on; a folder gives what it holds."""
    eval_images: int = 500
    """Drawn JPEG files to judge by."""
    lr: float = 1e-3
    """Step size of AdamW."""
    seed: int = 0
    """Which drawn pictures."""

    def __post_init__(self) -> None:
        require_least(self, size=1, batch=1, classes=0, hold_out=2, train_images=1, eval_images=1)
        if self.classes == 1:
            raise ConfigError("classes = 1 is not valid", expected="0 (as many as the data has) or at least 2")
        if self.augment not in AUGMENTS:
            raise ConfigError(f"augment = {self.augment!r} is not valid", expected=f"one of {', '.join(AUGMENTS)}")
        if not 0.0 <= self.jitter < 1.0:
            raise ConfigError(f"jitter = {self.jitter} is not valid", expected="a share from 0 to below 1")
        if not 0.0 < self.min_crop <= 1.0:
            raise ConfigError(f"min_crop = {self.min_crop} is not valid", expected="a share above 0, up to 1")
        check_model(self.model, self.norm)


def full() -> ClassifyConfig:
    """A ResNet-18, 11 M parameters, on 2,000 drawn pictures of 224x224."""
    return ClassifyConfig()


def small() -> ClassifyConfig:
    """0.1 M parameters on 600 drawn pictures of 64x64: trains within a minute on two cores."""
    return replace(
        full(), model="tiny", norm="group", size=64, batch=32, train_images=600, eval_images=200, min_crop=0.4
    )
