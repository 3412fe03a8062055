"""The pixels of a view: decoded, put on its background, scaled, and freed of the lens, in this order.

A picture of more pixels than Pillow's ``MAX_IMAGE_PIXELS`` (89 million) is refused before it is decoded. A JPEG that is
wanted much smaller is shrunk while it is decoded.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hotlap.base.errors import ConfigError, DataError
from hotlap.data.lens import straighten, straighten_mask
from hotlap.data.picture_file import UnreadablePicture, opened_picture, require_pillow, to_rgb
from hotlap.data.view import LoadedView, View

_LOSSY_THRESHOLD = 128
_DAMAGE = (OSError, SyntaxError, ValueError, EOFError, struct.error, zlib.error, IndexError, KeyError)
_LOSSY = ("JPEG", "WEBP")
_ASPECT_TOLERANCE = 0.01


@dataclass(frozen=True)
class PictureHead:
    """What a picture file's header says."""

    width: int
    height: int
    transparent: bool


def same_shape(size: tuple[int, int], other: tuple[int, int]) -> bool:
    """Whether a picture of the first size may be the other at another scale; its sides are rounded to pixels."""
    slack = _ASPECT_TOLERANCE + 1.5 / min(size)
    return abs(size[0] / other[0] / (size[1] / other[1]) - 1) <= slack


def read_head(path: Path) -> PictureHead:
    """Size and transparency of a picture, without decoding it."""
    with _opened(path) as image:
        return PictureHead(image.width, image.height, _transparent(image))


def load_view(view: View, max_side: int | None = None) -> LoadedView:
    """A view's pixels with the camera that belongs to them, at most ``max_side`` pixels wide and high."""
    camera = view.camera
    if max_side is not None:
        if max_side < 1:
            raise ConfigError(f"max_side = {max_side} leaves no pixel", expected="at least 1")
        ratio = min(1.0, max_side / max(camera.width, camera.height))
        camera = camera.scaled_to(max(1, round(camera.width * ratio)), max(1, round(camera.height * ratio)))
    size = (camera.width, camera.height)
    image = _read_image(view.image, size, view.background)
    mask = _read_mask(view.mask, size) if view.mask is not None else None
    if view.lens is not None:
        lens = view.lens.scaled_to(*size)
        image = straighten(image, lens, camera)
        mask = straighten_mask(mask, lens, camera) if mask is not None else None
    return LoadedView(image=image, mask=mask, camera=camera)


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """A picture opened by Pillow; what damaged files make Pillow raise within the block is ``UnreadablePicture``."""
    image_module = require_pillow()
    try:
        with opened_picture(path) as image:
            most = image_module.MAX_IMAGE_PIXELS
            if most is not None and image.width * image.height > most:
                size = f"{image.width}x{image.height}"
                raise UnreadablePicture(str(path), f"{size} pixels are more than PIL.Image.MAX_IMAGE_PIXELS = {most}")
            yield image
    except image_module.UnidentifiedImageError as error:
        raise UnreadablePicture(str(path), "no known picture format") from error
    except image_module.DecompressionBombError as error:  # of twice our limit, which is not the one to go by
        said = str(error).partition(" exceeds")[0]
        reason = f"{said} is more than PIL.Image.MAX_IMAGE_PIXELS = {image_module.MAX_IMAGE_PIXELS}"
        raise UnreadablePicture(str(path), reason) from error
    except _DAMAGE as error:
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise UnreadablePicture(str(path), reason) from error


def _transparent(image: Any) -> bool:
    return image.mode in ("RGBA", "LA", "PA", "La", "RGBa") or "transparency" in image.info


def _read_image(path: Path, size: tuple[int, int], background: tuple[int, int, int]) -> np.ndarray:  # [H, W, 3]
    from PIL import Image

    with _opened(path) as image:
        if image.format == "JPEG":
            image.draft(None, size)
        image.load()
        flat = _on_background(image, background) if _transparent(image) else to_rgb(image)
        if flat.size != size:
            flat = flat.resize(size, Image.Resampling.BICUBIC, reducing_gap=3.0)
        return np.array(flat, dtype=np.uint8)


def _on_background(image: Any, background: tuple[int, int, int]) -> Any:
    from PIL import Image

    values = np.asarray(image.convert("RGBA")).astype(np.uint32)
    alpha = values[..., 3:]
    mixed = (values[..., :3] * alpha + np.array(background, np.uint32) * (255 - alpha) + 127) // 255
    return Image.fromarray(mixed.astype(np.uint8))


def _read_mask(path: Path, size: tuple[int, int]) -> np.ndarray:  # [H, W] bool
    """Not black is True; a lossy file, whose black is not quite black, is cut at the middle."""
    from PIL import Image

    with _opened(path) as image:
        if not same_shape(min(image.size, size), max(image.size, size)):
            raise DataError(
                f"mask {str(path)!r} is {image.width}x{image.height} pixels",
                expected=f"the shape of its picture, {size[0]}x{size[1]}, at any scale",
                remedy="Make the mask from that picture, neither cropped nor turned",
            )
        lossy = image.format in _LOSSY
        values = np.asarray(image.convert("L") if not image.mode.startswith("I") else image)
        mask = values >= _LOSSY_THRESHOLD if lossy else values != 0
    if mask.shape != (size[1], size[0]):
        mask = np.asarray(Image.fromarray(mask.astype(np.uint8)).resize(size, Image.Resampling.NEAREST)) != 0
    return mask
