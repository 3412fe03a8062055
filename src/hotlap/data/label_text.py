"""Texts with a class: one per line, the label, then a space or a tab, then the text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.utils.data import Dataset

from hotlap.base.errors import DataError
from hotlap.data.characters import PAD, encode

TRAIN_FILE = "train.txt"
EVAL_FILES = ("dev.txt", "test.txt")


@dataclass(frozen=True)
class LabelledTexts:
    """Texts and their labels, as written."""

    texts: list[str]
    labels: list[str]


def read_label_text(path: Path) -> LabelledTexts:
    """The labelled texts of a UTF-8 file; blank lines are passed over, any other bad line is an error."""
    if not path.is_file():
        raise DataError(f"text file {str(path)!r} does not exist", expected="lines of 'label text'")
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise DataError(f"text file {str(path)!r} cannot be read: {error}") from error
    texts, labels = [], []
    for number, line in enumerate(raw.removeprefix(b"\xef\xbb\xbf").split(b"\n"), start=1):
        if not line.strip():
            continue
        label, text = _parse_line(line, f"{path}, line {number}")
        labels.append(label)
        texts.append(text)
    if not texts:
        raise DataError(f"text file {str(path)!r} holds no texts", expected="lines of 'label text'")
    return LabelledTexts(texts, labels)


def _parse_line(line: bytes, where: str) -> tuple[str, str]:
    try:
        decoded = line.decode("utf-8").strip()
    except UnicodeDecodeError as error:
        raise DataError(
            f"{where}: byte {error.start + 1} is {line[error.start]:#04x}, which is not UTF-8",
            remedy="Save the file as UTF-8",
        ) from error
    parts = decoded.split(maxsplit=1)
    if len(parts) < 2:
        raise DataError(
            f"{where}: {decoded[:40]!r} is not 'label text'", expected="a label, a space or tab, and a text"
        )
    return parts[0], parts[1]


def read_text_folder(folder: Path) -> tuple[LabelledTexts, LabelledTexts, list[str]]:
    """The texts to train on (train.txt), those to judge by (dev.txt, or else test.txt), and the labels in order.

    Labels are numbered in the order of their numbers where all are numbers, of their names otherwise.
    """
    if not folder.is_dir():
        raise DataError(f"folder {str(folder)!r} does not exist", expected=f"a folder with {TRAIN_FILE} and dev.txt")
    judged_by = next((folder / name for name in EVAL_FILES if (folder / name).is_file()), None)
    if judged_by is None:
        raise DataError(f"folder {str(folder)!r} has neither {' nor '.join(EVAL_FILES)}", remedy="Add one of them")
    train, evaluation = read_label_text(folder / TRAIN_FILE), read_label_text(judged_by)
    names = sorted(set(train.labels), key=lambda name: (not _is_number(name), int(name) if _is_number(name) else name))
    if len(names) < 2:
        raise DataError(
            f"{str(folder / TRAIN_FILE)!r} has only the label {names[0]!r}", expected="at least two different labels"
        )
    unseen = sorted(set(evaluation.labels) - set(names))
    if unseen:
        raise DataError(
            f"{str(judged_by)!r} has the label {unseen[0]!r}, which {TRAIN_FILE} does not",
            expected=f"one of {', '.join(names[:20])}",
        )
    return train, evaluation, names


def _is_number(name: str) -> bool:
    return name.removeprefix("-").isdecimal()


class EncodedTexts(Dataset[dict[str, Tensor]]):
    """Labelled texts cut or padded to one length; item ``i`` holds tokens [length], lengths [] and labels []."""

    def __init__(self, texts: LabelledTexts, names: Sequence[str], *, length: int) -> None:
        number = {name: i for i, name in enumerate(names)}
        self.tokens = torch.full((len(texts.texts), length), PAD)
        self.lengths = torch.tensor([min(len(text), length) for text in texts.texts])
        self.labels = torch.tensor([number[label] for label in texts.labels])
        for row, text in zip(self.tokens, texts.texts, strict=True):
            row[: len(text)] = torch.tensor(encode(text[:length]))

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, position: int) -> dict[str, Tensor]:
        return {
            "tokens": self.tokens[position],
            "lengths": self.lengths[position],
            "labels": self.labels[position],
        }
