"""The settings of a text classifier, and the named choices of them."""

from __future__ import annotations

from dataclasses import dataclass, replace

from hotlap.base.errors import ConfigError
from hotlap.base.settings import require_least

RECURRENCES = ("torch", "auto", "cuda", "triton")


@dataclass(frozen=True, kw_only=True)
class SequenceConfig:
    """One bidirectional LSTM with its data."""

    length: int = 128
    """Characters of a text, with padding; longer texts are cut."""
    batch: int = 64
    """Texts per step."""
    embedding: int = 128
    """Numbers per character."""
    hidden: int = 256
    """Size of the state in each direction."""
    layers: int = 2
    """LSTM layers, each reading both ways."""
    dropout: float = 0.5
    """Share of the numbers between two layers that training leaves out."""
    recurrence: str = "torch"
    """Who runs the LSTM layers: torch (cuDNN on a card), auto (the first kernel that can run), cuda or triton."""
    train_texts: int = 2000
    """Made-up texts to train on; a folder gives what it holds."""
    eval_texts: int = 400
    """Made-up texts to judge by."""
    data: str = ""
    """Folder with train.txt and dev.txt (or test.txt) of 'label text' lines; empty for made-up texts."""
    lr: float = 1e-3
    """Step size of Adam."""
    seed: int = 0
    """Which made-up texts."""

    def __post_init__(self) -> None:
        require_least(self, length=1, batch=1, embedding=1, hidden=1, layers=1, train_texts=1, eval_texts=1)
        if not 0.0 <= self.dropout < 1.0:
            raise ConfigError(f"dropout = {self.dropout} is not valid", expected="a share from 0 to below 1")
        if self.recurrence not in RECURRENCES:
            raise ConfigError(f"recurrence = {self.recurrence!r} is not valid", expected=", ".join(RECURRENCES))


def full() -> SequenceConfig:
    """2.4 M parameters on 2,000 texts of up to 128 characters."""
    return SequenceConfig()


def small() -> SequenceConfig:
    """0.1 M parameters on 1,000 texts of up to 64 characters: trains within a minute on two cores."""
    return replace(full(), length=64, embedding=32, hidden=48, train_texts=1000, eval_texts=200, lr=5e-3)
