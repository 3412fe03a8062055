"""Cells to learn from: crops of labelled images, or of drawn ones, with the maps that a network is to predict."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.data import Dataset

from hotlap.base.errors import DataError
from hotlap.device.host import memory_available
from hotlap.segment.augment import NUM_COLOURS, NUM_TURNS
from hotlap.segment.normalise import normalise
from hotlap.segment.targets import MAPS, label_maps
from hotlap.workload import BadSample

ZOOM = math.log(1.4)
"""Crops show their cells up to 1.4 times larger or smaller."""
PRELOADED_BYTES = 4 << 30
"""Of pictures made ready before workers are started; what is beyond is read by each worker, when it is asked for."""
SPARE_BYTES = 1 << 29
"""Of memory: when no more is available, a picture is not kept, but made ready each time that it is asked for."""

Read = Callable[[int], tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]]
"""Picture ``i`` [H, W, 3] and its label [H, W]."""


class CellImages(Dataset[dict[str, Tensor]]):
    """Whole pictures, normalised, as image [3, H, W] and maps [M, H, W] of bytes and labels [H, W].

    They are kept once read, while there is memory.
    """

    def __init__(self, num_images: int, read: Read, names: tuple[str, ...] = MAPS) -> None:
        self.num_images, self._read, self.names = num_images, read, names
        self._kept: dict[int, dict[str, Tensor]] = {}

    def __len__(self) -> int:
        return self.num_images

    def preload(self, threads: int) -> None:
        """Makes pictures ready, so that workers forked later share them; a bad one is told of when it is asked for."""
        num_bytes = 0

        def ready(position: int) -> None:
            nonlocal num_bytes
            if num_bytes < PRELOADED_BYTES:
                with contextlib.suppress(BadSample):
                    num_bytes += sum(plane.nbytes for plane in self[position].values())

        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(ready, range(self.num_images)))

    def __getitem__(self, position: int) -> dict[str, Tensor]:
        if not 0 <= position < self.num_images:
            raise IndexError(f"position {position} of {self.num_images} pictures")
        if position in self._kept:
            return self._kept[position]
        made = self._made(position)
        room = memory_available()
        if room is None or room > SPARE_BYTES:
            self._kept[position] = made
        return made

    def _made(self, position: int) -> dict[str, Tensor]:
        try:
            image, labels = self._read(position)
        except DataError as error:
            raise BadSample(str(position), error.what) from error
        planes = torch.from_numpy(normalise(image)).permute(2, 0, 1).contiguous()
        del image  # of a scan each of these is gigabytes
        maps = label_maps(labels, self.names)
        maps *= 255
        return {
            "image": planes,
            "maps": torch.from_numpy(np.round(maps, out=maps).astype(np.uint8)),
            "labels": torch.from_numpy(labels.astype(np.int32, copy=False)),
        }


class CellCrops(Dataset[dict[str, Tensor]]):
    """Squares of pictures at random places and scales: image and maps as bytes, and draws for turn and colour."""

    def __init__(self, images: CellImages, *, size: int, crops: int) -> None:
        self.images, self.size, self.crops = images, size, crops

    def __len__(self) -> int:
        return len(self.images) * self.crops

    def __getitem__(self, position: int) -> dict[str, Tensor]:
        if not 0 <= position < len(self):
            raise IndexError(f"position {position} of {len(self)} crops")
        whole = self.images[position % len(self.images)]
        draws = torch.rand(3 + NUM_COLOURS)
        side = max(1, round(self.size * math.exp(ZOOM * (2.0 * float(draws[0]) - 1.0))))
        height, width = whole["labels"].shape
        top = int(float(draws[1]) * (max(0, height - side) + 1))
        left = int(float(draws[2]) * (max(0, width - side) + 1))
        square = torch.cat([mirrored(whole[name], top, left, side) for name in ("image", "maps")])
        if side != self.size:
            wide = square[None].float()
            wide = F.interpolate(wide, (self.size, self.size), mode="bilinear", antialias=side > self.size)
            square = wide[0].round().clamp(0, 255).to(torch.uint8)
        turn = torch.randint(NUM_TURNS, ())
        return {"image": square[:3].contiguous(), "maps": square[3:].contiguous(), "turn": turn, "colour": draws[3:]}


class CellCentres(Dataset[dict[str, Tensor]]):
    """The middle of each picture as a square, with its labels; mirrored beyond its edges where it is too small."""

    def __init__(self, images: CellImages, *, size: int) -> None:
        self.images, self.size = images, size

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, position: int) -> dict[str, Tensor]:
        whole = self.images[position]
        height, width = whole["labels"].shape
        top, left = max(0, height - self.size) // 2, max(0, width - self.size) // 2
        square = {name: mirrored(whole[name], top, left, self.size) for name in ("image", "maps")}
        # Mirrored objects would count twice, and what the mirror joins is no object at all.
        labels = torch.zeros(self.size, self.size, dtype=torch.int32)
        inside = whole["labels"][top : top + self.size, left : left + self.size]
        labels[: inside.shape[0], : inside.shape[1]] = inside
        return {**square, "labels": labels, "extent": torch.tensor(inside.shape)}


def mirrored(planes: Tensor, top: int, left: int, side: int) -> Tensor:  # [C, H, W] -> [C, side, side]
    """A square of a picture that goes on beyond its edges as its mirror image."""
    height, width = planes.shape[-2:]
    rows, columns = _there_and_back(top, side, height), _there_and_back(left, side, width)
    if top + side <= height and left + side <= width:
        return planes[..., top : top + side, left : left + side]
    return planes[..., rows[:, None], columns]


def _there_and_back(first: int, count: int, length: int) -> Tensor:
    place = torch.arange(first, first + count) % (2 * length)
    return torch.minimum(place, 2 * length - 1 - place)
