"""A network whose answers are known: what is bright is an object, with its middle where all around is bright."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from hotlap.measure.loaded_workload import arm_on
from hotlap.segment.predictor import Predictor


class Bright(nn.Module):
    """Scores of foreground and core; ``seen`` holds the shapes that reached it."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[int, ...]] = []

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        self.seen.append(tuple(image.shape))
        grey = image.mean(1, keepdim=True)
        return torch.cat([20 * (grey - 0.5), 20 * (F.avg_pool2d(grey, 5, 1, 2) - 0.9)], dim=1)


def bright_predictor(device: str | torch.device = "cpu", arm: str = "", **options) -> Predictor:
    """Warmed up already, so that ``seen`` holds pictures only."""
    made = Predictor(Bright(), arm=arm_on(arm, str(device)), name="bright", digest="bright", **options)
    made.load(made.batch, 64, 64)
    made.model.seen.clear()
    return made


def discs(height: int, width: int, *given: tuple[float, float, float]) -> np.ndarray:
    """A label picture of discs (y, x, radius)."""
    y, x = np.mgrid[:height, :width]
    labels = np.zeros((height, width), np.int32)
    for number, (at_y, at_x, radius) in enumerate(given, start=1):
        labels[np.hypot(y - at_y, x - at_x) <= radius] = number
    return labels


def as_picture(labels: np.ndarray) -> np.ndarray:  # [H, W, 1] uint8
    """A picture in which the objects of a label picture are bright."""
    return np.where(labels > 0, 220, 30).astype(np.uint8)[..., None]
