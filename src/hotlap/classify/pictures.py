"""Picture files as samples: decoded, cut and scaled in the loader; a file that cannot be read is a bad sample."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.utils.data import Dataset

from hotlap.classify.augment import finish_one
from hotlap.classify.model import import_vision
from hotlap.data.class_folder import LabelledFiles
from hotlap.data.picture_file import Box, UnreadablePicture, read_square
from hotlap.workload import BadSample

CENTRE = 224 / 256
"""The share of the shorter side that is judged by: the middle of the picture."""


def centre_box(width: int, height: int) -> Box:
    """The middle square of a picture."""
    side = CENTRE * min(width, height)
    left, top = (width - side) / 2, (height - side) / 2
    return left, top, left + side, top + side


class CentredPictures(Dataset[dict[str, Tensor]]):
    """The middles of pictures: item ``i`` holds image [3, size, size] uint8 and label []."""

    def __init__(self, files: LabelledFiles, *, size: int) -> None:
        self.files, self.size = files, size

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, position: int) -> dict[str, Tensor]:
        image = _read(self.files.paths[position], centre_box, self.size)
        return {"image": image, "label": torch.tensor(self.files.labels[position])}


class AugmentedPictures(Dataset[dict[str, Tensor]]):
    """Random crops of pictures, with what else is random about them, all drawn from torch's global generator.

    Item ``i`` holds image [3, size, size] uint8, label [], flip [] and, where ``jitter`` is not 0, jitter [3]: the
    factors of brightness, contrast and saturation. With ``finished`` it holds the finished image in float32 and label.
    """

    def __init__(
        self, files: LabelledFiles, *, size: int, min_crop: float, jitter: float, finished: bool = False
    ) -> None:
        v2 = import_vision("torchvision.transforms.v2", "augmentation")
        self.files, self.size, self.jitter, self.finished = files, size, jitter, finished
        self._crop = v2.RandomResizedCrop(size, scale=(min_crop, 1.0))

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, position: int) -> dict[str, Tensor]:
        image = _read(self.files.paths[position], self._random_box, self.size)
        label = torch.tensor(self.files.labels[position])
        flip = torch.rand(()) < 0.5
        jitter = 1.0 + self.jitter * (2.0 * torch.rand(3) - 1.0) if self.jitter else None
        if self.finished:
            return {"image": finish_one(image, flip, jitter), "label": label}
        sample = {"image": image, "label": label, "flip": flip}
        return sample if jitter is None else {**sample, "jitter": jitter}

    def _random_box(self, width: int, height: int) -> Box:
        box = self._crop.make_params([torch.empty(3, height, width, device="meta")])
        left, top = box["left"], box["top"]
        return left, top, left + box["width"], top + box["height"]


def _read(path: str, choose_box: Callable[[int, int], Box], size: int) -> Tensor:
    try:
        return read_square(path, choose_box, size)
    except UnreadablePicture as error:
        raise BadSample(error.path, error.reason) from error
