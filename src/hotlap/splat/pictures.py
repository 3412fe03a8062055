"""The pictures of a training: decoded once and kept as bytes on the device or the host, or read ahead from disk."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from hotlap.data.picture_file import require_pillow
from hotlap.data.scene import LoadedView, Pinhole, View, load_view
from hotlap.device.memory import free_bytes
from hotlap.splat.cameras import Shot

DEVICE_SHARE, HOST_SHARE = 0.5, 0.5
"""Of the free memory that pictures may take."""
AHEAD = 8
"""Pictures that are read ahead from disk."""

Load = Callable[[View], LoadedView]


@dataclass(frozen=True, kw_only=True, eq=False)
class Picture:
    """One picture as bytes."""

    image: Tensor
    """[H, W, 3] uint8."""
    mask: Tensor | None
    """[H, W] float32, 1 where pixels count."""


def load_scaled(view: View, scale: float = 1.0, max_side: int | None = None) -> LoadedView:
    """A view at a share of its size: each pixel the mean of those it stands for."""
    loaded = load_view(view, max_side=max_side)
    if scale == 1.0:
        return loaded
    height, width = loaded.image.shape[:2]
    size = max(1, round(width * scale)), max(1, round(height * scale))
    pillow = require_pillow()
    box = pillow.Resampling.BOX
    mask = loaded.mask
    if mask is not None:
        mask = np.asarray(pillow.fromarray(mask.astype(np.uint8) * 255).resize(size, box)) > 127
    image = np.array(pillow.fromarray(loaded.image).resize(size, box))
    return LoadedView(image=image, mask=mask, camera=loaded.camera.scaled_to(*size))


class Pictures:
    """Pictures by number. All are decoded once at the start, so that a bad one is found before the first step."""

    def __init__(self, views: Sequence[View], load: Load, device: torch.device, place: str) -> None:
        self._views, self._load, self._device = views, load, device
        self._pool = ThreadPoolExecutor(max_workers=max(1, min(8, os.cpu_count() or 1)))
        self._waiting: OrderedDict[int, Future[Picture]] = OrderedDict()
        self._kept: list[Picture] = []
        self.place = place
        pinholes, counts = [], []
        for loaded in self._pool.map(load, views):
            pinholes.append(loaded.camera)
            counts.append(loaded.mask is None or bool(loaded.mask.any()))
            if self.place != "disk":
                self._kept.append(self._keep(loaded))
        self.pinholes: tuple[Pinhole, ...] = tuple(pinholes)
        self.counts: tuple[bool, ...] = tuple(counts)
        """Whether a pixel of each counts."""
        self.has_masks = any(view.mask is not None for view in views)

    def __len__(self) -> int:
        return len(self._views)

    def __getitem__(self, number: int) -> Picture:
        if self._kept:
            return self._kept[number]
        waiting = self._waiting.pop(number, None)
        return waiting.result() if waiting is not None else self._read(number)

    def expect(self, numbers: Iterable[int]) -> None:
        """Begins to read the pictures that will be asked for next."""
        if self._kept:
            return
        for number in numbers:
            if number not in self._waiting and len(self._waiting) < AHEAD:
                self._waiting[number] = self._pool.submit(self._read, number)

    def close(self) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _read(self, number: int) -> Picture:
        return self._keep(self._load(self._views[number]))

    def _keep(self, loaded: LoadedView) -> Picture:
        image = torch.from_numpy(np.ascontiguousarray(loaded.image))
        mask = None if loaded.mask is None else torch.from_numpy(loaded.mask.astype(np.float32))
        if self.place == "device":
            return Picture(image=image.to(self._device), mask=None if mask is None else mask.to(self._device))
        if self._device.type == "cuda":  # copies from pinned memory run beside the kernels
            return Picture(image=image.pin_memory(), mask=None if mask is None else mask.pin_memory())
        return Picture(image=image, mask=mask)


def planned_camera(view: View, scale: float = 1.0, max_side: int | None = None) -> Pinhole:
    """The camera that a view will have when :func:`load_scaled` has loaded it."""
    camera = view.camera
    ratio = 1.0 if max_side is None else min(1.0, max_side / max(camera.width, camera.height))
    sides = [max(1, round(side * ratio)) for side in (camera.width, camera.height)]
    return camera.scaled_to(*(max(1, round(side * scale)) for side in sides))


def planned_shot(view: View, scale: float = 1.0, max_side: int | None = None) -> Shot:
    """A view as a camera to draw from, at that size."""
    return Shot(name=view.name, pose=view.camera_from_world, camera=planned_camera(view, scale, max_side))


def choose_place(views: Sequence[View], device: torch.device, scale: float = 1.0, max_side: int | None = None) -> str:
    """Where these views' pictures, as they are kept, have room: on the device, in the host's memory, or on disk."""
    cameras = [planned_camera(view, scale, max_side) for view in views]
    bytes_each = [7 if view.mask else 3 for view in views]
    needed = sum(one.width * one.height * each for one, each in zip(cameras, bytes_each, strict=True))
    if device.type == "cuda" and needed < DEVICE_SHARE * free_bytes(device):
        return "device"
    if needed < HOST_SHARE * free_bytes(torch.device("cpu")):
        return "host" if device.type == "cuda" else "device"
    return "disk"


def pick_views(views: Sequence[View], most: int) -> tuple[View, ...]:
    """So many views, spread evenly over their order; 0 for all."""
    if not most or most >= len(views):
        return tuple(views)
    return tuple(views[place] for place in np.linspace(0, len(views) - 1, most).round().astype(int))
