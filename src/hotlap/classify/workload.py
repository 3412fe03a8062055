"""Image classification as a workload: a folder per class or drawn JPEG files, cross-entropy, accuracy, macro-F1."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from hotlap.base.errors import ConfigError
from hotlap.classify.augment import finish_batch, finish_one
from hotlap.classify.loss import image_cross_entropy
from hotlap.classify.metrics import image_scores
from hotlap.classify.model import build_classifier, import_vision
from hotlap.classify.pictures import AugmentedPictures, CentredPictures
from hotlap.classify.presets import ClassifyConfig
from hotlap.data.class_folder import ClassFolder, read_class_folder
from hotlap.data.counter_random import draw_index, uniform
from hotlap.data.drawn_classes import CLASSES, draw_classes
from hotlap.data.jpeg_folder import JpegRecipe, cached_jpeg_folder
from hotlap.workload import Agreement, BadSample, Batch, Workload, same_class

WEIGHT_DECAY = 0.05
MOST_BAD = 64
"""Bad files met for one batch until they are told."""
DRAWN_SIDE = 1.5
"""Longest side of a drawn JPEG file, in sizes of the network's input: there is something to cut and to scale."""


def classify(
    data: str = "",
    model: str = "resnet18",
    norm: str = "batch",
    size: int = 224,
    batch: int = 64,
    classes: int = 0,
    augment: str = "auto",
    jitter: float = 0.0,
    min_crop: float = 0.08,
    hold_out: int = 5,
    train_images: int = 2000,
    eval_images: int = 500,
    lr: float = 1e-3,
    seed: int = 0,
) -> ClassifyWorkload:
    """The image classifier with these settings; ClassifyConfig says what each means."""
    return ClassifyWorkload(
        ClassifyConfig(
            data=data,
            model=model,
            norm=norm,
            size=size,
            batch=batch,
            classes=classes,
            augment=augment,
            jitter=jitter,
            min_crop=min_crop,
            hold_out=hold_out,
            train_images=train_images,
            eval_images=eval_images,
            lr=lr,
            seed=seed,
        )
    )


class ClassifyWorkload(Workload):
    """Batches hold image [n, 3, size, size] uint8, label [n] and, for training, flip [n] and jitter [n, 3].

    With augment="cpu" training images are finished: float32, with nothing but their labels beside them.
    """

    name = "classify"

    def __init__(self, config: ClassifyConfig) -> None:
        self.config = config
        self.default_batch = config.batch
        self._folder: ClassFolder | None = None
        if config.data:
            self._folder = self._read_folder(Path(config.data))
            self.class_names = self._folder.classes
        else:
            self.class_names = list(CLASSES[: config.classes or len(CLASSES)])
        self.classes = config.classes or len(self.class_names)
        if self.classes < len(self.class_names):
            raise ConfigError(
                f"classes = {self.classes} is too few for {config.data!r}",
                expected=f"at least {len(self.class_names)}, as it has class folders, or 0",
            )
        source = f"pictures of {config.data}" if config.data else "drawn pictures"
        self.summary = f"{config.model}, {self.classes} classes, {config.size}x{config.size} {source}"

    def build_model(self) -> nn.Module:
        c = self.config
        return build_classifier(c.model, classes=self.classes, size=c.size, norm=c.norm)

    def make_batch(self, n: int, device: torch.device, generator: torch.Generator) -> Batch:
        samples = self._drawn_samples if not self.config.data else self._picked_samples
        return _to(self.collate(samples(n, generator)), device)

    def predict(self, model: nn.Module, batch: Batch) -> Tensor:
        image = batch["image"]
        if not image.is_floating_point():
            image = finish_batch(image, batch.get("flip"), batch.get("jitter"), next(model.parameters()).dtype)
        return model(image)

    def loss(self, model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor | int]:
        return image_cross_entropy(self.predict(model, batch), batch["label"])

    def optimizer(self, model: nn.Module, *, fused: bool | None = None) -> torch.optim.Optimizer:
        """AdamW; biases and the parameters of norms do not decay."""
        parameters = list(model.parameters())
        groups = [
            {"params": [p for p in parameters if p.ndim > 1], "weight_decay": WEIGHT_DECAY},
            {"params": [p for p in parameters if p.ndim <= 1], "weight_decay": 0.0},
        ]
        return torch.optim.AdamW(groups, lr=self.config.lr, fused=fused)

    def compare(self, out: Tensor, ref: Tensor) -> list[Agreement]:
        return same_class(out, ref)

    def train_data(self) -> Any:
        c = self.config
        files = self._files().train
        if c.augment == "none":
            return CentredPictures(files, size=c.size)
        return AugmentedPictures(files, size=c.size, min_crop=c.min_crop, jitter=c.jitter, finished=c.augment == "cpu")

    def eval_data(self) -> Any:
        return CentredPictures(self._files().evaluation, size=self.config.size)

    def metrics(self, model: nn.Module, data: Dataset, device: torch.device) -> dict[str, float]:
        """Accuracy, macro-F1 and, of more than five classes, top-5 accuracy; a bad sample in ``data`` raises."""
        was_training = model.training
        model.eval()
        try:
            return image_scores(self._answers(model, data, device), self.classes)
        finally:
            model.train(was_training)

    @torch.no_grad()
    def _answers(self, model: nn.Module, data: Dataset, device: torch.device) -> Iterator[tuple[Tensor, Tensor]]:
        for samples in DataLoader(data, self.config.batch, collate_fn=self.collate):
            batch = _to(samples, device)
            yield self.predict(model, batch), batch["label"]

    def _read_folder(self, folder: Path) -> ClassFolder:
        return read_class_folder(folder, hold_out=self.config.hold_out)

    def _files(self) -> ClassFolder:
        """The picture files; drawn ones are made when they are first asked for."""
        if self._folder is None:
            c = self.config
            recipe = JpegRecipe(
                classes=len(self.class_names),
                train_images=c.train_images,
                eval_images=c.eval_images,
                side=round(DRAWN_SIDE * c.size),
                seed=c.seed,
            )
            self._folder = self._read_folder(cached_jpeg_folder(recipe))
        return self._folder

    def _picked_samples(self, n: int, generator: torch.Generator) -> list[dict[str, Tensor]]:
        """Samples of files at random; a bad one gives way to another, since a batch to measure with has its size."""
        data = self.train_data()
        picked = torch.randint(len(data), (n,), generator=generator).tolist()
        samples: list[dict[str, Tensor]] = []
        num_bad = 0
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(int(torch.randint(1 << 62, (), generator=generator)))
            while len(samples) < n:
                try:
                    samples.append(data[picked[len(samples)]])
                except BadSample:
                    num_bad += 1
                    if num_bad > MOST_BAD:
                        raise
                    picked[len(samples)] = int(torch.randint(len(data), (), generator=generator))
        return samples

    def _drawn_samples(self, n: int, generator: torch.Generator) -> list[dict[str, Tensor]]:
        """Samples as train_data gives them, drawn straight away instead of decoded."""
        c = self.config
        index = draw_index(n, generator)
        chance = uniform(c.seed + 1, index, 5).float()
        labels = (chance[:, 0] * len(self.class_names)).long()
        images = draw_classes(index, labels, height=c.size, width=c.size, seed=c.seed)
        columns = {"image": images, "label": labels}
        if c.augment != "none":
            columns["flip"] = chance[:, 1] < 0.5
            if c.jitter:
                columns["jitter"] = 1.0 + c.jitter * (2.0 * chance[:, 2:] - 1.0)
        samples = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
        return samples if c.augment != "cpu" else [self._finished(sample) for sample in samples]

    def _finished(self, sample: dict[str, Tensor]) -> dict[str, Tensor]:
        import_vision("torchvision.transforms.v2", "augment = 'cpu'")
        return {"image": finish_one(sample["image"], sample["flip"], sample.get("jitter")), "label": sample["label"]}


def _to(batch: dict[str, Tensor], device: torch.device) -> dict[str, Tensor]:
    return {name: tensor.to(device) for name, tensor in batch.items()}
