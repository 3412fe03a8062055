"""The BiLSTM as a workload: made-up texts or files of 'label text', cross-entropy, accuracy and macro-F1."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, default_collate

from hotlap.data.characters import VOCABULARY
from hotlap.data.counter_random import EVAL, TRAIN, draw_index
from hotlap.data.label_text import EncodedTexts, read_text_folder
from hotlap.data.marker_sequences import CLASSES, MarkerSequences, marker_sequences
from hotlap.measure.confusion import total_confusion
from hotlap.sequence.loss import text_cross_entropy
from hotlap.sequence.metrics import text_scores
from hotlap.sequence.model import BiLSTM
from hotlap.sequence.presets import SequenceConfig
from hotlap.workload import Agreement, Batch, Workload, same_class


def bilstm(
    length: int = 128,
    batch: int = 64,
    embedding: int = 128,
    hidden: int = 256,
    layers: int = 2,
    dropout: float = 0.5,
    recurrence: str = "torch",
    train_texts: int = 2000,
    eval_texts: int = 400,
    data: str = "",
    lr: float = 1e-3,
    seed: int = 0,
) -> BiLSTMWorkload:
    """The BiLSTM workload with these settings; SequenceConfig says what each means."""
    return BiLSTMWorkload(
        SequenceConfig(
            length=length,
            batch=batch,
            embedding=embedding,
            hidden=hidden,
            layers=layers,
            dropout=dropout,
            recurrence=recurrence,
            train_texts=train_texts,
            eval_texts=eval_texts,
            data=data,
            lr=lr,
            seed=seed,
        )
    )


class BiLSTMWorkload(Workload):
    """Batches hold tokens [n, length] int64 (0 is padding), lengths [n] and labels [n]."""

    name = "bilstm"

    def __init__(self, config: SequenceConfig) -> None:
        self.config = config
        self.default_batch = config.batch
        self._train: Any
        self._eval: Any
        if config.data:
            train, evaluation, self.label_names = read_text_folder(Path(config.data))
            self._train = EncodedTexts(train, self.label_names, length=config.length)
            self._eval = EncodedTexts(evaluation, self.label_names, length=config.length)
        else:
            self.label_names = [str(number) for number in range(CLASSES)]
            self._train = self._made_up(TRAIN, config.train_texts)
            self._eval = self._made_up(EVAL, config.eval_texts)
        source = f"texts of {config.data}" if config.data else "made-up texts"
        self.summary = f"{config.layers}-layer BiLSTM, {len(self.label_names)} classes, {source} of {config.length}"

    def _made_up(self, split: int, num_texts: int) -> MarkerSequences:
        return MarkerSequences(split=split, num_texts=num_texts, length=self.config.length, seed=self.config.seed)

    def build_model(self) -> nn.Module:
        c = self.config
        return BiLSTM(
            classes=len(self.label_names),
            vocabulary=VOCABULARY,
            embedding=c.embedding,
            hidden=c.hidden,
            layers=c.layers,
            dropout=c.dropout,
            recurrence=c.recurrence,
        )

    def make_batch(self, n: int, device: torch.device, generator: torch.Generator) -> Batch:
        if self.config.data:
            picked = torch.randint(len(self._train), (n,), generator=generator).tolist()
            return _to(default_collate([self._train[position] for position in picked]), device)
        index = draw_index(n, generator)
        tokens, lengths, labels = marker_sequences(index, length=self.config.length, seed=self.config.seed)
        return _to({"tokens": tokens, "lengths": lengths, "labels": labels}, device)

    def predict(self, model: nn.Module, batch: Batch) -> Tensor:
        return model(batch["tokens"], batch["lengths"])

    def loss(self, model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor | int]:
        return text_cross_entropy(self.predict(model, batch), batch["labels"])

    def optimizer(self, model: nn.Module, *, fused: bool | None = None) -> torch.optim.Optimizer:
        return torch.optim.Adam(model.parameters(), lr=self.config.lr, fused=fused)

    def compare(self, out: Tensor, ref: Tensor) -> list[Agreement]:
        return same_class(out, ref)

    def train_data(self) -> Any:
        return self._train

    def eval_data(self) -> Any:
        return self._eval

    def metrics(self, model: nn.Module, data: Dataset, device: torch.device) -> dict[str, float]:
        was_training = model.training
        model.eval()
        try:
            return text_scores(total_confusion(self._predicted_pairs(model, data, device), len(self.label_names)))
        finally:
            model.train(was_training)

    @torch.no_grad()
    def _predicted_pairs(
        self, model: nn.Module, data: Dataset, device: torch.device
    ) -> Iterator[tuple[Tensor, Tensor]]:
        for samples in DataLoader(data, batch_size=self.config.batch, collate_fn=self.collate):
            batch = _to(samples, device)
            yield self.predict(model, batch).argmax(1), batch["labels"]


def _to(batch: dict[str, Tensor], device: torch.device) -> dict[str, Tensor]:
    return {name: tensor.to(device) for name, tensor in batch.items()}
