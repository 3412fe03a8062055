"""Networks that see cells as workloads: labelled images or drawn ones, cross-entropy and Dice, AP of the objects."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from hotlap.base.errors import DataError
from hotlap.base.format import format_bytes
from hotlap.data.counter_random import EVAL, TRAIN, draw_index, split_index
from hotlap.data.drawn_cells import draw_cells
from hotlap.data.instance_images import InstanceImage, find_images, split_images
from hotlap.device.host import memory_available, read_host
from hotlap.segment.augment import NUM_COLOURS, NUM_TURNS, recoloured, turned
from hotlap.segment.cell_data import CellCentres, CellCrops, CellImages
from hotlap.segment.heads import head_maps
from hotlap.segment.instance_metrics import score_image, summarise
from hotlap.segment.instances import split
from hotlap.segment.loss import cell_loss
from hotlap.segment.metrics import map_agreement
from hotlap.segment.nets import build_head
from hotlap.segment.presets import CellConfig
from hotlap.workload import Agreement, Batch, Workload

WEIGHT_DECAY = 0.01
LEARNED_BYTES = 20
"""Of memory that a pixel takes while its picture is made ready to be learned from; less than half of it stays."""
DISTINCT = 4
"""Drawing is slow: a batch made for measuring repeats so many pictures."""


def cells(
    model: str = "hrnet",
    width: int = 0,
    size: int = 1024,
    batch: int = 4,
    crops: int = 1,
    augment: bool = True,
    train_images: int = 64,
    eval_images: int = 16,
    data: str = "",
    head: str = "core",
    lr: float = 3e-4,
    seed: int = 0,
) -> CellWorkload:
    """The workload of a network that sees cells, with these settings; CellConfig says what each means."""
    return CellWorkload(
        CellConfig(
            model=model,
            width=width,
            size=size,
            batch=batch,
            crops=crops,
            augment=augment,
            train_images=train_images,
            eval_images=eval_images,
            data=data,
            head=head,
            lr=lr,
            seed=seed,
        )
    )


Factory = Callable[..., "CellWorkload"]
hrnet: Factory = partial(cells, model="hrnet")
resunet_small: Factory = partial(cells, model="resunet-small")
ma_resunet: Factory = partial(cells, model="ma-resunet")


class CellWorkload(Workload):
    """Batches hold image [n, 3, size, size] and maps [n, M, size, size] as bytes, and with augment turn [n] and
    colour [n, 6]; those to judge by hold labels [n, size, size] too.
    """

    def __init__(self, config: CellConfig) -> None:
        self.config = config
        self.name = config.model
        self.maps = head_maps(config.head)
        self.default_batch = config.batch
        source = f"images of {config.data}" if config.data else "drawn cells"
        width = f" of width {config.width}" if config.width else ""
        self.summary = f"{config.model}{width}, {' and '.join(self.maps)} of {config.size}x{config.size} {source}"
        self._train: list[InstanceImage] = []
        self._held_out: list[InstanceImage] = []
        self._ready: dict[int, CellImages] = {}
        if config.data:
            self._train, self._held_out = split_images(find_images(Path(config.data)))

    def build_model(self) -> nn.Module:
        return build_head(self.config.model, self.config.head, width=self.config.width or None)

    def make_batch(self, n: int, device: torch.device, generator: torch.Generator) -> Batch:
        c = self.config
        if c.data:
            images = self._images(TRAIN)
            picked = torch.randint(len(images), (n,), generator=generator).tolist()
        else:
            picked = list(range(min(n, DISTINCT)))
            index = draw_index(len(picked), generator).tolist()
            images = _drawn_images(tuple(index), c.size, c.seed, self.maps)
            picked = [picked[i % len(picked)] for i in range(n)]
        centres = [CellCentres(images, size=c.size)[position] for position in picked]
        batch = self.collate([{name: sample[name] for name in ("image", "maps")} for sample in centres])
        if c.augment:
            batch["turn"] = torch.randint(NUM_TURNS, (n,), generator=generator)
            batch["colour"] = torch.rand(n, NUM_COLOURS, generator=generator)
        return _to(batch, device)

    def predict(self, model: nn.Module, batch: Batch) -> Tensor:
        """The scores of the images as they are; only the loss turns and recolours them."""
        return model(_unit(batch["image"], next(model.parameters()).dtype))

    def loss(self, model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor | int]:
        image, maps = (_unit(batch[name], next(model.parameters()).dtype) for name in ("image", "maps"))
        if "turn" in batch:
            image = recoloured(turned(image, batch["turn"]), batch["colour"].to(image.dtype))
            maps = turned(maps, batch["turn"])
        return cell_loss(model(image), maps, self.maps)

    def optimizer(self, model: nn.Module, *, fused: bool | None = None) -> torch.optim.Optimizer:
        """AdamW; biases and the parameters of norms do not decay."""
        parameters = [p for p in model.parameters() if p.requires_grad]
        groups = [
            {"params": [p for p in parameters if p.ndim > 1], "weight_decay": WEIGHT_DECAY},
            {"params": [p for p in parameters if p.ndim <= 1], "weight_decay": 0.0},
        ]
        return torch.optim.AdamW(groups, lr=self.config.lr, fused=fused)

    def compare(self, out: Tensor, ref: Tensor) -> list[Agreement]:
        return map_agreement(out, ref)

    def train_data(self) -> Any:
        c = self.config
        images = self._images(TRAIN)
        return CellCrops(images, size=c.size, crops=c.crops) if c.augment else CellCentres(images, size=c.size)

    def eval_data(self) -> Any:
        return CellCentres(self._images(EVAL), size=self.config.size)

    def metrics(self, model: nn.Module, data: Dataset, device: torch.device) -> dict[str, float]:
        """AP, F1, PQ and Dice of the objects in the middle of each image."""
        was_training = model.training
        model.eval()
        try:
            found = self._answers(model, data, device)
            scores = [score_image(truth, split(maps, self.maps)) for truth, maps in found]
        finally:
            model.train(was_training)
        summary = summarise(scores)
        return {name: summary[name] for name in ("ap50", "map", "f1", "pq", "dice")}

    @torch.no_grad()
    def _answers(
        self, model: nn.Module, data: Dataset, device: torch.device
    ) -> Iterator[tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]]:
        """The true labels and the predicted maps of each image, without what was mirrored at its edges."""
        for batch in DataLoader(data, self.config.batch, collate_fn=self.collate):
            likely = torch.sigmoid(self.predict(model, _to(batch, device)).float()).cpu().numpy()
            for maps, labels, (height, width) in zip(
                likely, batch["labels"].numpy(), batch["extent"].tolist(), strict=True
            ):
                yield labels[:height, :width], maps[:, :height, :width]

    def _images(self, which: int) -> CellImages:
        c = self.config
        if c.data:
            return self._read_images(which)
        count = c.train_images if which == TRAIN else c.eval_images
        index = split_index(which, torch.arange(count)).tolist()
        return CellImages(count, partial(_draw, index, c.size, c.seed), self.maps)

    def _read_images(self, which: int) -> CellImages:
        """Pictures of files, each decoded once: before the loader's workers are forked, which then share them."""
        if which not in self._ready:
            found = self._train if which == TRAIN else self._held_out
            self._ready[which] = CellImages(len(found), partial(_read, found), self.maps)
            self._ready[which].preload(read_host().usable_cores)
        return self._ready[which]


@lru_cache(maxsize=8)
def _drawn_images(index: tuple[int, ...], size: int, seed: int, maps: tuple[str, ...]) -> CellImages:
    """Pictures made for measuring; arms and batch sizes ask for the same ones again and again."""
    return CellImages(len(index), partial(_draw, list(index), size, seed), maps)


def _read(found: list[InstanceImage], position: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    image, labels = found[position].read()
    need, room = LEARNED_BYTES * labels.size, memory_available()
    if room is not None and need > room:
        height, width = labels.shape
        raise DataError(
            f"image of {found[position].name!r} is {width}x{height} pixels, which take {format_bytes(need)} of memory "
            f"to be made ready, and {format_bytes(room)} are available; cut it and its label into parts"
        )
    return image, labels


def _draw(index: list[int], size: int, seed: int, position: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    return draw_cells(index[position], size=size, seed=seed)


def _unit(pixels: Tensor, dtype: torch.dtype) -> Tensor:
    """Bytes as numbers from 0 to 1, in no less than float32 until autocast decides."""
    return pixels.to(torch.float64 if dtype == torch.float64 else torch.float32) / 255


def _to(batch: dict[str, Tensor], device: torch.device) -> dict[str, Tensor]:
    return {name: tensor.to(device) for name, tensor in batch.items()}
