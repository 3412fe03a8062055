"""A picture with its objects outlined, as a file."""

from __future__ import annotations

import io

import numpy as np

from hotlap.data.picture_file import require_pillow

_JPEG_SIDE = 65_500
"""Pixels of the longest side that JPEG files are written with."""
_COLOURS = np.array(
    [[255, 214, 0], [0, 229, 255], [255, 64, 129], [118, 255, 3], [255, 145, 0], [124, 77, 255], [29, 233, 182]],
    np.uint8,
)


def draw_overlay(picture: np.ndarray, labels: np.ndarray) -> np.ndarray:  # [H, W, 3] uint8, [H, W] -> as the picture
    """The picture with the border pixels of each object in a colour of its own, neighbours mostly in others."""
    edge = np.flatnonzero(edges(labels))
    drawn = picture.copy()
    drawn.reshape(-1, 3)[edge] = _COLOURS[labels.ravel()[edge] % len(_COLOURS)]
    return drawn


def edges(labels: np.ndarray) -> np.ndarray:  # [H, W] -> [H, W] bool
    """The pixels of objects that have another object or none beside, above or below them."""
    edge = np.zeros(labels.shape, bool)
    _mark(edge[1:], edge[:-1], labels[1:] != labels[:-1])
    _mark(edge[:, 1:], edge[:, :-1], labels[:, 1:] != labels[:, :-1])
    edge &= labels > 0
    return edge


def _mark(some: np.ndarray, others: np.ndarray, differ: np.ndarray) -> None:
    some |= differ
    others |= differ


def encode_overlay(drawn: np.ndarray) -> tuple[str, bytes]:  # [H, W, 3] uint8
    """How its file ends, and the file's content.

    A JPEG with colours at full size, for lines of one pixel: of a micrograph with its noise it takes a tenth of a PNG's
    time, which would be most of what a picture's results cost.
    """
    if max(drawn.shape) > _JPEG_SIDE:
        return ".png", encode_png(drawn)
    buffer = io.BytesIO()
    require_pillow().fromarray(drawn).save(buffer, "JPEG", quality=90, subsampling=0)
    return ".jpg", buffer.getvalue()


def encode_png(pixels: np.ndarray) -> bytes:  # [H, W, 3] uint8
    """The picture as a PNG file, compressed a little and quickly."""
    buffer = io.BytesIO()
    require_pillow().fromarray(pixels).save(buffer, "PNG", compress_level=1)
    return buffer.getvalue()
