"""Meshes of many pictures by Pixel2Mesh lite: decoded by threads while the device works on those before."""

from __future__ import annotations

import functools
import io
import os
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hotlap.base.errors import DataError, EnvironmentUnusable
from hotlap.data.picture_file import UnreadablePicture
from hotlap.data.white_picture import decode_white_picture, squared
from hotlap.measure.graph import GraphedStep
from hotlap.mesh.cameras import SIZE_PX
from hotlap.mesh.pixel2mesh_lite import Pixel2MeshLite

JPEG = b"\xff\xd8"
"""The first bytes of such a file."""
MOST_WORKERS = 6
"""Threads that decode: they share the interpreter's lock, and on 16 cores more of them only waited for one another."""
EXIF, EXIF_WITHIN = b"Exif\0", 4096
"""What begins notes on how a picture is to be turned, and how far into a file it may stand."""
_SLOTS = 2
"""Batches in host memory: one is being copied while the next is being decoded."""


class ManyPictures:
    """Runs a network on encoded pictures in batches of one size; on a card each batch is one recorded CUDA graph."""

    def __init__(
        self,
        model: Pixel2MeshLite,
        *,
        batch: int = 128,
        size: int = SIZE_PX,
        workers: int = 0,
        dtype: torch.dtype | None = torch.bfloat16,
    ) -> None:
        """Pictures are read as 'hotlap mesh predict' reads them, at ``size``. ``workers`` threads decode, 0 for as many
        as there are cores, up to 6; ``dtype`` is autocast's, None for none.
        """
        self._model, self._batch, self._dtype = model.eval(), batch, dtype
        self._device = model.mesh.vertices.device
        self._workers = workers or min(os.cpu_count() or 1, MOST_WORKERS)
        self._pool = ThreadPoolExecutor(self._workers, thread_name_prefix="hotlap-decode")
        on_card = self._device.type == "cuda"
        shape = (batch, size, size, 3)
        self._slots = [torch.zeros(shape, dtype=torch.uint8, pin_memory=on_card) for _ in range(_SLOTS)]
        self._copied = [torch.cuda.Event() for _ in range(_SLOTS)] if on_card else []
        self._step: Any = self._plain_step
        if on_card:
            example = self._slots[0].to(self._device)
            self._step = GraphedStep(self._plain_step, example, model=model, optimizer=None)

    def __call__(self, pictures: Sequence[bytes]) -> Tensor:
        """The vertices [N, 2562, 3] of each picture, in host memory."""
        count = len(pictures)
        shape = (count, *self._model.mesh.vertices.shape)
        out = torch.empty(shape, pin_memory=self._device.type == "cuda")
        starts = range(0, count, self._batch)
        ahead = self._decode(pictures, 0) if count else []
        for number, start in enumerate(starts):
            decoded = ahead
            ahead = self._decode(pictures, number + 1) if number + 1 < len(starts) else []
            _finish(decoded, ahead)
            slot = number % _SLOTS
            image = self._slots[slot].to(self._device, non_blocking=True)
            if self._copied:
                self._copied[slot].record()
            found = self._step(image)
            size = min(self._batch, count - start)
            out[start : start + size].copy_(found[:size], non_blocking=True)
        if self._device.type == "cuda":
            torch.cuda.current_stream(self._device).synchronize()
        return out

    def close(self) -> None:
        """Ends the threads."""
        self._pool.shutdown()

    def _plain_step(self, image: Tensor) -> Tensor:  # [B, 224, 224, 3] uint8
        kind = self._device.type
        with torch.inference_mode(), torch.autocast(kind, dtype=self._dtype, enabled=self._dtype is not None):
            return self._model(image.permute(0, 3, 1, 2))

    def _decode(self, pictures: Sequence[bytes], number: int) -> list[Future[None]]:
        """The pictures of one batch on their way into its slot, a share for each thread."""
        slot, start = number % _SLOTS, number * self._batch
        if self._copied:
            self._copied[slot].synchronize()
        places, some = self._slots[slot].numpy(), pictures[start : start + self._batch]
        shares = [range(first, len(some), self._workers) for first in range(min(self._workers, len(some)))]
        return [self._pool.submit(_decode_share, some, start, share, places) for share in shares]


def _finish(decoded: Sequence[Future[None]], ahead: Sequence[Future[None]]) -> None:
    """Waits for the pictures of a batch; one that fails ends the call when no thread writes into a slot any more."""
    try:
        for share in decoded:
            share.result()
    except BaseException:
        wait([*decoded, *ahead])
        raise


def _decode_share(pictures: Sequence[bytes], start: int, share: range, places: np.ndarray) -> None:
    for place in share:
        _decode_into(pictures[place], start + place, places[place])


def _decode_into(content: bytes, number: int, place: np.ndarray) -> None:
    size = len(place)
    try:
        if not _is_plain(content):
            place[:] = decode_white_picture(content, size, str(number)).permute(1, 2, 0).numpy()
            return
        pixels = _pixels(content)
    except (OSError, ValueError, SyntaxError, RuntimeError, UnreadablePicture) as error:
        reason = error.reason if isinstance(error, UnreadablePicture) else error
        raise DataError(
            f"picture {number} cannot be decoded: {reason}", expected="a PNG or JPEG file's bytes"
        ) from error
    if pixels.shape != place.shape:
        pixels = squared(_pillow().fromarray(pixels), size).permute(1, 2, 0).numpy()
    place[:] = pixels


def _is_plain(content: bytes) -> bool:
    """Whether a picture is its pixels and no more: others may be transparent, deep, or turned by EXIF."""
    return content.startswith(JPEG) and content.find(EXIF, 0, EXIF_WITHIN) < 0


def _pixels(content: bytes) -> np.ndarray:  # [H, W, 3] uint8
    """The colours of a picture.

    Both libraries give the same pixels of a JPEG; Pillow holds the interpreter's lock for a good part of the time, so
    that threads wait for one another.
    """
    decode = _jpeg_decoder() if content.startswith(JPEG) else None
    if decode is not None:
        found: np.ndarray = decode(torch.frombuffer(bytearray(content), dtype=torch.uint8)).numpy()
        return found.transpose(1, 2, 0)
    with _pillow().open(io.BytesIO(content)) as opened:
        opened.load()
        # Converting copies in any case.
        return np.asarray(opened if opened.mode == "RGB" else opened.convert("RGB"))


@functools.cache
def _jpeg_decoder() -> Callable[[Tensor], Tensor] | None:
    """torchvision's, where it is installed and still has one: it is to move to TorchCodec.

    It is the operator itself, for what its function in Python does beside is a fifth of the time, and is done under the
    lock that all threads share.
    """
    try:
        from torchvision.io import ImageReadMode

        decode = torch.ops.image.decode_jpeg.default
    except (ImportError, RuntimeError, AttributeError):  # of another torch, it says so by a RuntimeError
        return None
    return lambda content: decode(content, ImageReadMode.RGB.value, False)


def _pillow() -> Any:
    try:
        from PIL import Image
    except ModuleNotFoundError as error:
        raise EnvironmentUnusable(
            "decoding pictures needs pillow, which is not installed", remedy="pip install 'hotlap[images]'"
        ) from error
    return Image
