"""U-Net as a workload: drawn shapes or a folder of images, cross-entropy, Dice and IoU."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, default_collate

from hotlap.data.counter_random import EVAL, TRAIN, draw_index
from hotlap.data.drawn_shapes import DrawnShapes, draw_shapes, merge_classes
from hotlap.data.image_folder import ImageFolder, ImagePair, find_pairs, split_pairs
from hotlap.measure.confusion import total_confusion
from hotlap.segment.loss import IGNORE, pixel_cross_entropy
from hotlap.segment.metrics import mask_agreement, segmentation_scores
from hotlap.segment.model import UNet
from hotlap.segment.presets import SegmentConfig
from hotlap.workload import Agreement, Batch, Workload


def unet(
    classes: int = 3,
    width: int = 64,
    size: int = 128,
    batch: int = 16,
    train_images: int = 500,
    eval_images: int = 100,
    data: str = "",
    label_kind: str = "classes",
    lr: float = 1e-4,
    seed: int = 0,
) -> UNetWorkload:
    """The U-Net workload with these settings; SegmentConfig says what each means."""
    return UNetWorkload(
        SegmentConfig(
            classes=classes,
            width=width,
            size=size,
            batch=batch,
            train_images=train_images,
            eval_images=eval_images,
            data=data,
            label_kind=label_kind,
            lr=lr,
            seed=seed,
        )
    )


class UNetWorkload(Workload):
    """Batches are (image [n, 3, size, size], mask [n, size, size])."""

    name = "unet"

    def __init__(self, config: SegmentConfig) -> None:
        self.config = config
        self.default_batch = config.batch
        source = f"images of {config.data}" if config.data else "drawn shapes"
        self.summary = f"U-Net of width {config.width}, {config.classes} classes, {config.size}x{config.size} {source}"
        self._train_pairs: list[ImagePair] = []
        self._eval_pairs: list[ImagePair] = []
        if config.data:
            self._train_pairs, self._eval_pairs = split_pairs(find_pairs(Path(config.data)))

    def build_model(self) -> nn.Module:
        return UNet(classes=self.config.classes, width=self.config.width)

    def make_batch(self, n: int, device: torch.device, generator: torch.Generator) -> Batch:
        if self.config.data:
            data = self.train_data()
            picked = torch.randint(len(data), (n,), generator=generator).tolist()
            images, masks = default_collate([data[position] for position in picked])
            return images.to(device), masks.to(device)
        index = draw_index(n, generator)
        images, masks = draw_shapes(index, size=self.config.size, seed=self.config.seed, device=device)
        return images, merge_classes(masks, self.config.classes)

    def loss(self, model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor | int]:
        image, mask = batch
        return pixel_cross_entropy(model(image), mask)

    def optimizer(self, model: nn.Module, *, fused: bool | None = None) -> torch.optim.Optimizer:
        return torch.optim.Adam(model.parameters(), lr=self.config.lr, fused=fused)

    def compare(self, out: Tensor, ref: Tensor) -> list[Agreement]:
        return mask_agreement(out, ref)

    def train_data(self) -> Any:
        return self._data(TRAIN, self.config.train_images, self._train_pairs)

    def eval_data(self) -> Any:
        return self._data(EVAL, self.config.eval_images, self._eval_pairs)

    def metrics(self, model: nn.Module, data: Dataset, device: torch.device) -> dict[str, float]:
        was_training = model.training
        model.eval()
        try:
            pairs = self._predicted_pairs(model, data, device)
            return segmentation_scores(total_confusion(pairs, self.config.classes, ignore=IGNORE))
        finally:
            model.train(was_training)

    def _data(self, split: int, num_images: int, pairs: list[ImagePair]) -> Dataset[tuple[Tensor, Tensor]]:
        c = self.config
        if c.data:
            return ImageFolder(pairs, size=c.size, classes=c.classes, label_kind=c.label_kind)
        return DrawnShapes(split=split, num_images=num_images, size=c.size, seed=c.seed, classes=c.classes)

    @torch.no_grad()
    def _predicted_pairs(
        self, model: nn.Module, data: Dataset, device: torch.device
    ) -> Iterator[tuple[Tensor, Tensor]]:
        for image, mask in DataLoader(data, batch_size=self.config.batch, collate_fn=self.collate):
            yield model(image.to(device)).argmax(1), mask.to(device)
