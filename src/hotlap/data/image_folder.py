"""Images with label images of the same stem: ``images/cell.png`` and ``labels/cell.png``.

Every fifth pair by name is held out, so the split is the same wherever the folder is read.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils.data import Dataset

from hotlap.base.errors import DataError
from hotlap.data.picture_file import SUFFIXES, opened_picture, require_pillow, to_rgb

if TYPE_CHECKING:
    import numpy as np

LABEL_KINDS = ("classes", "instances")
HOLD_OUT_EVERY = 5
UNKNOWN = 255


@dataclass(frozen=True)
class ImagePair:
    """An image and its label, as files."""

    image: Path
    label: Path


def find_pairs(folder: Path) -> list[ImagePair]:
    """All pairs of a folder, by name."""
    images = _by_stem(folder, "images")
    labels = _by_stem(folder, "labels")
    for stem, path in images.items():
        if stem not in labels:
            raise DataError(
                f"image {str(path)!r} has no label",
                remedy=f"Add {stem}.png to {folder / 'labels'}, or remove the image",
            )
    for stem, path in labels.items():
        if stem not in images:
            raise DataError(
                f"label {str(path)!r} has no image",
                remedy=f"Add {stem}.png to {folder / 'images'}, or remove the label",
            )
    if len(images) < HOLD_OUT_EVERY:
        raise DataError(
            f"folder {str(folder)!r} holds {len(images)} images",
            expected=f"at least {HOLD_OUT_EVERY}, since every {HOLD_OUT_EVERY}th is held out",
        )
    return [ImagePair(images[stem], labels[stem]) for stem in sorted(images)]


def split_pairs(pairs: list[ImagePair]) -> tuple[list[ImagePair], list[ImagePair]]:
    """The pairs to train on, and those held out: every fifth, starting with the first."""
    held_out = pairs[::HOLD_OUT_EVERY]
    return [pair for number, pair in enumerate(pairs) if number % HOLD_OUT_EVERY], held_out


def _by_stem(folder: Path, part: str) -> dict[str, Path]:
    where = folder / part
    if not where.is_dir():
        raise DataError(
            f"folder {str(where)!r} does not exist", expected="images/ and labels/ with files of the same stem"
        )
    found: dict[str, Path] = {}
    for path in sorted(where.iterdir()):
        if path.suffix.lower() not in SUFFIXES or path.name.startswith("."):
            continue
        if path.stem in found:
            raise DataError(
                f"{str(path)!r} and {found[path.stem].name!r} have the same stem", remedy="Rename or remove one of them"
            )
        found[path.stem] = path
    return found


class ImageFolder(Dataset[tuple[Tensor, Tensor]]):
    """Pairs of files as (image [3, size, size] in [0, 1], mask [size, size]), resized to a square."""

    def __init__(self, pairs: list[ImagePair], *, size: int, classes: int, label_kind: str) -> None:
        self.pairs, self.size, self.classes, self.label_kind = pairs, size, classes, label_kind

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitem__(self, position: int) -> tuple[Tensor, Tensor]:
        pair = self.pairs[position]
        image, label = _open(pair.image), _open(pair.label)
        if image.size != label.size:
            raise DataError(
                f"label {str(pair.label)!r} is {label.width}x{label.height} pixels",
                expected=f"the size of its image, {image.width}x{image.height}",
                remedy="Export the label again at the image's size",
            )
        return self._pixels(image), self._mask(label, pair.label)

    def _pixels(self, image: Any) -> Tensor:  # [3, size, size]
        import numpy as np
        from PIL import Image

        scaled = to_rgb(image).resize((self.size, self.size), Image.Resampling.BILINEAR)
        return torch.from_numpy(np.array(scaled, dtype=np.uint8)).permute(2, 0, 1).contiguous().float() / 255

    def _mask(self, label: Any, path: Path) -> Tensor:  # [size, size] int64
        values = _label_values(label, path)
        if self.label_kind == "instances":
            values = (values != 0).astype(values.dtype)
        else:
            bad = values[(values >= self.classes) & (values != UNKNOWN)]
            if bad.size:
                raise DataError(
                    f"label {str(path)!r} holds the value {int(bad.max())}",
                    expected=f"classes below {self.classes}, or {UNKNOWN} for unknown",
                    remedy="Give more classes, or label_kind=instances if the values number objects",
                )
        height, width = values.shape
        rows = (torch.arange(self.size) * 2 + 1) * height // (2 * self.size)  # the pixel under each new pixel's centre
        columns = (torch.arange(self.size) * 2 + 1) * width // (2 * self.size)
        return torch.from_numpy(values.astype("int64"))[rows[:, None], columns]


def _open(path: Path) -> Any:
    image_module = require_pillow()
    try:
        with opened_picture(path) as image:
            image.load()
    except (OSError, SyntaxError, ValueError, image_module.DecompressionBombError) as error:
        raise DataError(
            f"image file {str(path)!r} cannot be read: {error}", remedy="Replace the file, or remove it and its partner"
        ) from error
    return image


def _label_values(label: Any, path: Path) -> np.ndarray:  # [H, W]
    import numpy as np

    values = np.asarray(label)
    if values.ndim == 3 and (values == values[..., :1])[..., :3].all():
        values = values[..., 0]
    if values.ndim != 2:
        raise DataError(
            f"label {str(path)!r} is a colour image ({label.mode})",
            expected="one channel whose values are the classes or object numbers",
            remedy="Save it as 8-bit or 16-bit grey, or with a palette",
        )
    return values
