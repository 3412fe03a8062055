"""Images with numbered objects: a folder of images/ and labels/, or the same packed into one npz file.

Every fifth image by name is held out, so the split is the same wherever the data is read.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hotlap.base.errors import DataError, StorageError
from hotlap.data.image_folder import HOLD_OUT_EVERY, find_pairs
from hotlap.data.micrograph import Picture, numbers_in, pictures_in, read_pictures
from hotlap.data.npz import UnreadableArrays, read_npz
from hotlap.data.picture_file import UnreadablePicture

LABELS = "label:"
"""Begins the name of a label among a packed file's arrays; "image:" that of its image."""
IMAGES = "image:"
MOST_OBJECTS = 2**31 - 1
"""The highest number that labels can be worked with in memory: two above it could become the same object."""

MOST_PARTS = 3
"""Pieces of an only object, as others that lie on it may cut it into; more of them are a mask's objects."""

Pixels = np.ndarray[Any, np.dtype[Any]]
Numbered = np.ndarray[Any, np.dtype[np.int32]]


@dataclass(frozen=True)
class InstanceImage:
    """One image and its label, not yet decoded."""

    name: str
    image: Path | bytes
    label: Path | bytes

    def read(self) -> tuple[Pixels, Numbered]:  # [H, W, C], C is 1 or 3; [H, W]
        """The pixels, with all of their bits as for prediction, and the number of each one's object, 0 for none."""
        image = _pixels(self.image, f"image of {self.name!r}")
        label = _numbers(self.label, f"label of {self.name!r}")
        if label.shape[2] == 1 or (label[..., :1] == label[..., :3]).all():
            label = label[..., 0]
        if label.ndim != 2:
            raise DataError(
                f"label of {self.name!r} has {label.shape[-1]} channels",
                expected="one channel whose values number the objects",
            )
        if label.shape != image.shape[:2]:
            raise DataError(
                f"label of {self.name!r} is {label.shape[1]}x{label.shape[0]} pixels",
                expected=f"the size of its image, {image.shape[1]}x{image.shape[0]}",
                remedy="Export the label again at the image's size",
            )
        wrong = label[~_is_number(label)]
        if wrong.size:
            raise DataError(
                f"label of {self.name!r} has numbers such as {wrong[0]}",
                expected=f"whole numbers from 0, which is no object, to {MOST_OBJECTS}",
            )
        _check_no_mask(label, self.name)
        return image, label.astype(np.int32)


def _is_number(label: Pixels) -> Pixels:  # [H, W] -> [H, W] bool
    """Where a label's values can be the number of an object, or 0 for none."""
    if label.dtype.kind == "f":
        return np.isfinite(label) & (label == np.round(label)) & (label >= 0) & (label <= MOST_OBJECTS)
    return (label >= 0) & (label <= MOST_OBJECTS)


def _check_no_mask(label: Pixels, name: str) -> None:  # [H, W]
    """Refuses a label in black and white: all of its objects would be learned, and counted, as one."""
    foreground = label != 0
    values = label[foreground]
    if not values.size or (values != values[0]).any():
        return
    from scipy import ndimage

    num_parts = ndimage.label(foreground, np.ones((3, 3)))[1]
    if num_parts > MOST_PARTS:
        raise DataError(
            f"label of {name!r} has the one number {values[0]:g} in {num_parts} separate parts",
            expected="a number of its own for each object, and no mask",
            remedy="Number the parts, as scipy.ndimage.label(mask > 0)[0] does where no two objects touch",
        )


def find_images(source: Path) -> list[InstanceImage]:
    """All images of a folder or of a packed file, by name."""
    if source.suffix == ".npz":
        return _packed(source)
    return [InstanceImage(pair.image.stem, pair.image, pair.label) for pair in find_pairs(source)]


def split_images(images: list[InstanceImage]) -> tuple[list[InstanceImage], list[InstanceImage]]:
    """The images to train on, and those held out: every fifth, starting with the first."""
    kept = [image for number, image in enumerate(images) if number % HOLD_OUT_EVERY]
    return kept, images[::HOLD_OUT_EVERY]


def pack_images(folder: Path, file: Path) -> int:
    """Writes a folder's images and labels, as the bytes they are on disk, into one npz file; how many."""
    pairs = find_pairs(folder)
    arrays = {}
    for pair in pairs:
        for prefix, path in ((IMAGES, pair.image), (LABELS, pair.label)):
            arrays[prefix + pair.image.stem] = np.frombuffer(path.read_bytes(), np.uint8)
    try:
        np.savez(file, **arrays)  # type: ignore[arg-type]
    except OSError as error:
        raise StorageError(f"cannot write {str(file)!r}: {error.strerror or error}") from error
    return len(pairs)


def _packed(file: Path) -> list[InstanceImage]:
    try:
        content = {name: array.tobytes() for name, array in read_npz(file).items()}
    except UnreadableArrays as error:
        raise DataError(
            f"packed images {str(file)!r} cannot be read: {error}", remedy="Pack the folder again, or give the folder"
        ) from error
    names = sorted(name.removeprefix(IMAGES) for name in content if name.startswith(IMAGES))
    missing = [name for name in names if LABELS + name not in content]
    if missing or len(names) < HOLD_OUT_EVERY:
        what = f"holds no label for {missing[0]!r}" if missing else f"holds {len(names)} images"
        raise DataError(
            f"packed images {str(file)!r} {what}",
            expected=f"at least {HOLD_OUT_EVERY} images, as every {HOLD_OUT_EVERY}th is held out, each with its label",
        )
    return [InstanceImage(name, content[IMAGES + name], content[LABELS + name]) for name in names]


def _pixels(source: Path | bytes, what: str) -> Pixels:
    try:
        pictures = pictures_in(source, Path()) if isinstance(source, bytes) else read_pictures(source)
        first: Picture = next(pictures)
    except UnreadablePicture as error:
        raise _unreadable(source, what, error.reason) from error
    if first.num_pages > 1:
        raise _unreadable(source, what, f"it has {first.num_pages} pages, and its label is for one")
    return first.pixels


def _numbers(source: Path | bytes, what: str) -> Pixels:  # [H, W, C]
    try:
        content = source if isinstance(source, bytes) else source.read_bytes()
        return numbers_in(content, Path() if isinstance(source, bytes) else source)
    except UnreadablePicture as error:
        raise _unreadable(source, what, error.reason) from error
    except OSError as error:
        raise _unreadable(source, what, error.strerror or str(error)) from error


def _unreadable(source: Path | bytes, what: str, reason: str) -> DataError:
    where = "" if isinstance(source, bytes) else f" ({source})"
    return DataError(f"{what}{where} cannot be read: {reason}", remedy="Replace the file, or remove it and its partner")
