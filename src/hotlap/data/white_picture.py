"""Pictures of objects over white: white shines through, and borders it gets to be square are white."""

from __future__ import annotations

import io
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hotlap.data.picture_file import PictureTooLarge, UnreadablePicture, require_pillow, to_rgb

ALPHA_MODES = ("RGBA", "LA", "PA", "La", "RGBa")


def read_white_picture(path: Path, size: int) -> Tensor:  # [3, size, size] uint8
    """A picture of any mode (grey, 16-bit, palette, with alpha), turned as EXIF says, over white, scaled to a square.

    White borders keep the middle in the middle, so that a camera's axis still goes through it.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UnreadablePicture(str(path), error.strerror or str(error)) from error
    return decode_white_picture(content, size, str(path))


def decode_white_picture(
    content: bytes, size: int, where: str, most_pixels: int | None = None
) -> Tensor:  # [3, size, size] uint8
    """The same of a file's content; ``where`` names it in errors. Nothing is unpacked of a picture that has more than
    ``most_pixels``, or whose square would: a line of a few bytes may be 60,000 pixels long.
    """
    image_module = require_pillow()
    if not content:
        raise UnreadablePicture(where, "the file is empty")
    try:
        image = image_module.open(io.BytesIO(content))
        side = max(image.size)
        if most_pixels is not None and side * side > most_pixels:
            why = f"{image.width}x{image.height} pixels need a square of more than {most_pixels}"
            raise PictureTooLarge(where, why)
        if getattr(image, "n_frames", 1) > 1 and image.format != "MPO":  # a photograph with its preview
            raise ValueError(f"it is animated: {image.n_frames} frames")
        image.load()
        if image.mode == "F" and not np.isfinite(np.asarray(image)).all():
            raise ValueError("it holds NaN or infinite pixels")
        return squared(image, size)
    except image_module.UnidentifiedImageError as error:
        raise UnreadablePicture(where, "no known picture format") from error
    except image_module.DecompressionBombError as error:  # Pillow's own limit, met before ours can be asked
        raise PictureTooLarge(where, str(error)) from error
    except (
        OSError,
        SyntaxError,
        ValueError,
        EOFError,
        struct.error,
        zlib.error,
    ) as error:
        raise UnreadablePicture(where, str(error) or type(error).__name__) from error


def squared(image: Any, size: int) -> Tensor:  # [3, size, size] uint8
    """A loaded picture turned as EXIF says, over white, with white borders, scaled."""
    from PIL import Image, ImageOps

    image = over_white(ImageOps.exif_transpose(image))
    side = max(image.size)
    if image.size != (side, side):
        square = Image.new("RGB", (side, side), (255, 255, 255))
        square.paste(image, ((side - image.width) // 2, (side - image.height) // 2))
        image = square
    if side != size:
        image = image.resize((size, size), Image.Resampling.BILINEAR, reducing_gap=2.0)
    return torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous()


def over_white(image: Any) -> Any:
    """A loaded picture in RGB, white shining through where it is transparent."""
    from PIL import Image

    if image.mode not in ALPHA_MODES and "transparency" not in image.info:
        return to_rgb(image)
    coloured = image.convert("RGBA") if not image.mode.startswith("I") else _deep_grey(image)
    white = Image.new("RGBA", coloured.size, (255, 255, 255, 255))
    return Image.alpha_composite(white, coloured).convert("RGB")


def _deep_grey(image: Any) -> Any:
    """A 16-bit grey picture, one of whose values is transparent, in RGBA; Pillow would cut its values off at 255."""
    from PIL import Image

    clear = np.asarray(image).astype(np.int64) == image.info["transparency"]
    coloured = to_rgb(image).convert("RGBA")
    coloured.putalpha(Image.fromarray(np.where(clear, 0, 255).astype(np.uint8)))
    return coloured


def encode_jpeg(picture: Tensor, quality: int = 95) -> bytes:  # [H, W, 3] uint8
    """A JPEG file's content, colours at full size: halved ones bleed into white at an object's border."""
    image_module = require_pillow()
    out = io.BytesIO()
    image_module.fromarray(picture.cpu().numpy()).save(out, "JPEG", quality=quality, subsampling=0)
    return out.getvalue()


def encode_png(picture: Tensor) -> bytes:  # [H, W, 3] uint8
    """A PNG file's content."""
    image_module = require_pillow()
    out = io.BytesIO()
    image_module.fromarray(picture.cpu().numpy()).save(out, "PNG", optimize=True)
    return out.getvalue()


def encode_gif(pictures: Tensor, ms_a_picture: int = 100) -> bytes:  # [n, H, W, 3] uint8
    """The content of a GIF file that shows pictures for ever."""
    image_module = require_pillow()
    frames = [image_module.fromarray(picture.cpu().numpy()) for picture in pictures]
    out = io.BytesIO()
    frames[0].save(out, "GIF", save_all=True, append_images=frames[1:], duration=ms_a_picture, loop=0)
    return out.getvalue()
