"""Meshes of many pictures by Pixel2Mesh lite: decoded by threads while the device works on those before."""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hotlap.base.errors import DataError, EnvironmentUnusable
from hotlap.measure.graph import GraphedStep
from hotlap.mesh.cameras import SIZE_PX
from hotlap.mesh.pixel2mesh_lite import Pixel2MeshLite

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
        """Pictures are scaled to ``size``. ``workers`` threads decode, 0 for as many as there are cores; ``dtype`` is
        autocast's, None for none.
        """
        self._model, self._batch, self._dtype = model.eval(), batch, dtype
        self._device = model.mesh.vertices.device
        self._pool = ThreadPoolExecutor(workers or os.cpu_count() or 1, thread_name_prefix="hotlap-decode")
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
            if number + 1 < len(starts):
                ahead = self._decode(pictures, number + 1)
            for picture in decoded:
                picture.result()
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
        """The pictures of one batch on their way into its slot."""
        slot, start = number % _SLOTS, number * self._batch
        if self._copied:
            self._copied[slot].synchronize()
        places = self._slots[slot].numpy()
        some = pictures[start : start + self._batch]
        return [
            self._pool.submit(_decode_into, content, start + place, places[place]) for place, content in enumerate(some)
        ]


def _decode_into(content: bytes, number: int, place: np.ndarray) -> None:
    try:
        from PIL import Image
    except ModuleNotFoundError as error:
        raise EnvironmentUnusable(
            "decoding pictures needs pillow, which is not installed", remedy="pip install 'hotlap[images]'"
        ) from error
    try:
        with Image.open(io.BytesIO(content)) as opened:
            opened.load()
            picture = opened if opened.mode == "RGB" else opened.convert("RGB")  # converting copies in any case
    except (OSError, ValueError, SyntaxError) as error:
        raise DataError(
            f"picture {number} cannot be decoded: {error}", expected="a PNG or JPEG file's bytes"
        ) from error
    if picture.size != place.shape[1::-1]:
        picture = picture.resize((place.shape[1], place.shape[0]))
    place[:] = np.asarray(picture)
