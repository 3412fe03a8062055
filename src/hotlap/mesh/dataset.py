"""Prepared objects as samples: a few views, their cameras, and surface points in the frame of the first view."""

from __future__ import annotations

import glob
import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset

from hotlap.base.errors import DataError
from hotlap.mesh.cameras import SIZE_PX, Cameras
from hotlap.mesh.prepare import INDEX, VERSION, object_file
from hotlap.mesh.viewed_object import SUFFIX, ViewedObject, read_object
from hotlap.workload import BadSample

KEEP_BYTES = 1 << 30
"""Decoded pictures that are kept in memory; larger collections are decoded again for every sample."""
BACKGROUND = 255

Sample = dict[str, Tensor]


def prepared_files(folder: Path) -> list[Path]:
    """The objects of a prepared folder, by name."""
    index = folder / INDEX
    if not index.is_file():
        raise DataError(
            f"data = {str(folder)!r} is not a prepared folder: it has no {INDEX}",
            remedy=f"Run 'hotlap mesh views {folder} --out PREPARED' first, and give PREPARED",
        )
    try:
        found = json.loads(index.read_text(encoding="utf-8"))
        version, names = found["version"], list(found["objects"])
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(f"{str(index)!r} cannot be read: {error}", remedy="Run 'hotlap mesh views' again") from error
    if version != VERSION:
        raise DataError(
            f"{str(folder)!r} was prepared as version {version}",
            expected=str(VERSION),
            remedy="Run 'hotlap mesh views' again",
        )
    return [object_file(folder, name) for name in names]


def split_files(files: Sequence[Path], hold_out: int) -> tuple[list[Path], list[Path]]:
    """Those to train on, and those held out: every ``hold_out``-th by name, from the first on."""
    held_out = list(files[::hold_out])
    train = [file for number, file in enumerate(files) if number % hold_out]
    if not train:
        raise DataError(
            f"hold_out = {hold_out} leaves none of {len(files)} objects to train on",
            expected="at least 2, and more objects than one",
        )
    return train, held_out


def with_variants(files: Sequence[Path]) -> list[Path]:
    """Objects to train on, each followed by its stretched copies."""
    return [file for first in files for file in (first, *_variants(first))]


def _variants(file: Path) -> list[Path]:
    return sorted(file.parent.glob(f"{glob.escape(file.stem)}~*{SUFFIX}"))


class ViewedObjects(Dataset[Sample]):
    """Item ``i`` holds image [V, 3, 224, 224] uint8, cameras [V, 5], points and normals [P, 3], num_points [].

    Points and normals are in the frame of the first view. To train, views, their order and the points are drawn from
    torch's global generator, and ``augment`` mirrors half of the samples and exchanges their colours. To judge, views
    are spread evenly from the first on, or are those that ``chosen`` names, and points are the same every time.
    """

    def __init__(
        self,
        files: Sequence[Path],
        *,
        views: int,
        points: int,
        train: bool,
        augment: bool = False,
        chosen: Sequence[int] = (),
    ) -> None:
        self.files, self.views, self.points = list(files), views, points
        self.train, self.augment, self.chosen = train, augment and train, tuple(chosen)
        self._objects: dict[int, ViewedObject] = {}
        self._pictures: dict[int, Tensor] = {}

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, position: int) -> Sample:
        thing = self.thing(position)
        numbers = self._view_numbers(thing)
        images = self._images(position, thing, numbers)
        index = self._point_numbers(len(thing.points))
        rows, points, normals = thing.cameras[numbers], thing.points[index], thing.normals[index]
        if self.augment:
            if torch.rand(()) < 0.5:
                images, rows, points, normals = mirrored(images, rows, points, normals)
            images = images[:, torch.randperm(3)]
        camera = Cameras.from_rows(rows[0])
        return {
            "image": images,
            "cameras": rows,
            "points": camera.to_camera(points),
            "normals": normals @ camera.camera_from_world.T,
            "num_points": torch.tensor(len(points)),
        }

    def preload(self, threads: int = 1) -> None:
        """Reads and decodes all that is kept in memory now: processes that are forked later share it."""

        def ready(position: int) -> None:
            self._images(position, self.thing(position), [0])

        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(ready, range(len(self.files))))

    def thing(self, position: int) -> ViewedObject:
        """The object itself; kept, since its file is small."""
        if position not in self._objects:
            try:
                thing = read_object(self.files[position])
            except DataError as error:
                raise BadSample(str(self.files[position]), str(error)) from error
            if len(thing.points) == 0:
                raise BadSample(str(self.files[position]), "it has 0 ground-truth points")
            if len(thing.pictures) < self.views:
                raise BadSample(
                    str(self.files[position]), f"it has {len(thing.pictures)} views, and views = {self.views} are asked"
                )
            self._objects[position] = thing
        return self._objects[position]

    def _view_numbers(self, thing: ViewedObject) -> list[int]:
        count = len(thing.pictures)
        if self.train:
            return torch.randperm(count)[: self.views].tolist()
        if self.chosen:
            if max(self.chosen) >= count:
                raise BadSample(thing.name, f"view {max(self.chosen)} is asked of {count}")
            return list(self.chosen)
        return [number * count // self.views for number in range(self.views)]

    def _images(self, position: int, thing: ViewedObject, numbers: list[int]) -> Tensor:  # [V, 3, 224, 224]
        if len(self.files) * len(thing.pictures) * 3 * SIZE_PX**2 > KEEP_BYTES:
            return torch.stack([thing.picture(number) for number in numbers])
        if position not in self._pictures:
            self._pictures[position] = torch.stack([thing.picture(n) for n in range(len(thing.pictures))])
        return self._pictures[position][numbers]

    def _point_numbers(self, count: int) -> Tensor:
        if self.points >= count:
            return torch.arange(count)
        if self.train:
            return torch.randperm(count)[: self.points]
        return torch.arange(self.points) * count // self.points


def mirrored(
    images: Tensor, rows: Tensor, points: Tensor, normals: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # [V, 3, S, S], [V, 5], [P, 3], [P, 3]
    """The same views of the mirrored object: world z is turned round, so cameras go round the other way.

    The axis meets the middle of pixel 112, not the middle of the picture: column 0 would mirror column 224, which is
    not there, and is left white.
    """
    flipped = torch.full_like(images, BACKGROUND)
    flipped[..., 1:] = images[..., 1:].flip(-1)
    sign = torch.tensor([1.0, 1.0, -1.0])
    turned = rows.clone()
    turned[:, 0] = -turned[:, 0]
    return flipped, turned, points * sign, normals * sign


def collate_views(samples: Sequence[Sample]) -> dict[str, Any]:
    """Samples as one batch; points are filled up with zeros to the longest, ``num_points`` [B] says how many count."""
    most = max(len(sample["points"]) for sample in samples)
    batch: dict[str, Any] = {name: torch.stack([s[name] for s in samples]) for name in ("image", "cameras")}
    for name in ("points", "normals"):
        padded = samples[0][name].new_zeros(len(samples), most, 3)
        for row, sample in enumerate(samples):
            padded[row, : len(sample[name])] = sample[name]
        batch[name] = padded
    batch["num_points"] = torch.stack([sample["num_points"] for sample in samples])
    return batch
