"""A folder of drawn JPEG files, one folder per class, so that a loader has real files to decode without a download."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from hotlap.base.errors import ConfigError, StorageError
from hotlap.base.homes import cache_home
from hotlap.data.counter_random import EVAL, TRAIN, split_index
from hotlap.data.drawn_classes import CLASSES, draw_classes
from hotlap.data.picture_file import require_pillow

VERSION = 1
"""Raised when the same recipe would give other files."""
_SHAPES = ((1.0, 1.0), (0.75, 1.0), (1.0, 0.75), (0.667, 1.0))
"""Height and width in longest sides; pictures take them in turn, since those of a real folder differ."""
_CHUNK = 32


@dataclass(frozen=True, kw_only=True)
class JpegRecipe:
    """All that decides what a drawn folder holds."""

    classes: int = len(CLASSES)
    """How many of the drawn classes, from the first on."""
    train_images: int = 2000
    """Files below train/, shared out evenly among the classes."""
    eval_images: int = 500
    """Files below val/."""
    side: int = 336
    """The longest side of a picture, in pixels."""
    quality: int = 88
    """Of the JPEG encoder, up to 95."""
    seed: int = 0
    """Which pictures."""

    def __post_init__(self) -> None:
        if not 2 <= self.classes <= len(CLASSES):
            raise ConfigError(f"classes = {self.classes} cannot be drawn", expected=f"2 to {len(CLASSES)}")
        for name in ("train_images", "eval_images"):
            if getattr(self, name) < self.classes:
                raise ConfigError(
                    f"{name} = {getattr(self, name)} is too few",
                    expected=f"at least {self.classes}, one for each class",
                )

    @property
    def key(self) -> str:
        """A folder's name that no other recipe has."""
        numbers = (self.classes, self.train_images, self.eval_images, self.side, self.quality, self.seed)
        return "-".join(["drawn", f"v{VERSION}", *map(str, numbers)])


def write_jpeg_folder(folder: Path, recipe: JpegRecipe) -> None:
    """Draws ``train/<class>/*.jpg`` and ``val/<class>/*.jpg`` into a folder, which is made."""
    require_pillow()
    with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
        for split, name, num in ((TRAIN, "train", recipe.train_images), (EVAL, "val", recipe.eval_images)):
            for class_name in CLASSES[: recipe.classes]:
                (folder / name / class_name).mkdir(parents=True, exist_ok=True)
            for shape in range(len(_SHAPES)):
                positions = torch.arange(num)
                # A class has every shape, whatever the number of classes.
                positions = positions[(positions // recipe.classes) % len(_SHAPES) == shape]
                for chunk in positions.split(_CHUNK):
                    list(pool.map(_save, *zip(*_drawn(chunk, shape, split, folder / name, recipe), strict=True)))


def _drawn(
    positions: torch.Tensor, shape: int, split: int, folder: Path, recipe: JpegRecipe
) -> Iterator[tuple[torch.Tensor, Path, int]]:
    height, width = (max(1, round(part * recipe.side)) for part in _SHAPES[shape])
    labels = positions % recipe.classes
    images = draw_classes(split_index(split, positions), labels, height=height, width=width, seed=recipe.seed)
    for position, label, image in zip(positions.tolist(), labels.tolist(), images, strict=True):
        yield image, folder / CLASSES[label] / f"{position:06d}.jpg", recipe.quality


def _save(image: torch.Tensor, path: Path, quality: int) -> None:
    from PIL import Image

    Image.fromarray(image.permute(1, 2, 0).contiguous().numpy()).save(path, "JPEG", quality=quality)


def jpeg_cache(environ: Mapping[str, str] = os.environ) -> Path:
    """Where drawn folders are kept."""
    return cache_home(environ) / "hotlap" / "jpeg"


def cached_jpeg_folder(recipe: JpegRecipe, cache: Path | None = None) -> Path:
    """The drawn folder of a recipe; made on first use, whole or not at all, by one process while others wait."""
    cache = cache or jpeg_cache()
    folder = cache / recipe.key
    if folder.is_dir():
        return folder
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with _alone(cache / f"{recipe.key}.lock"):
            if not folder.is_dir():
                building = cache / f"{recipe.key}.building"
                if building.exists():  # of a process that was killed
                    shutil.rmtree(building)
                write_jpeg_folder(building, recipe)
                building.rename(folder)
    except OSError as error:
        raise StorageError(
            f"drawn pictures cannot be kept in {str(cache)!r}: {error}",
            remedy="Free some space, or set XDG_CACHE_HOME to a folder that can be written",
        ) from error
    return folder


@contextmanager
def _alone(lock: Path) -> Iterator[None]:
    """Lets one process in at a time; the kernel frees the lock of one that dies."""
    import fcntl

    with lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield
