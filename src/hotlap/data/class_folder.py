"""Pictures sorted into one folder per class: ``data/<class>/...`` or ``data/train/<class>/...`` beside ``data/val/``.

Classes are numbered by the order of their names, pictures stand in the order of their paths, and where there is no
folder to judge by, every n-th picture of each class is held out: the same numbers and the same split wherever the
folder is read.
"""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from hotlap.base.errors import DataError
from hotlap.data.picture_file import SUFFIXES

TRAIN_FOLDER = "train"
EVAL_FOLDERS = ("val", "valid", "validation", "eval", "test")
"""The first of these that is there is judged by."""
LAYOUT = "a folder for each class, or train/ and val/ with a folder for each class"


@dataclass(frozen=True)
class LabelledFiles:
    """Picture files and the numbers of their classes."""

    paths: list[str]  # not Path: a million of those would be ten times the memory, copied by every loader process
    labels: list[int]

    def __len__(self) -> int:
        return len(self.paths)


@dataclass(frozen=True)
class ClassFolder:
    """What a folder holds: its classes in order, the pictures to train on and those to judge by."""

    classes: list[str]
    train: LabelledFiles
    evaluation: LabelledFiles


def read_class_folder(folder: Path, *, hold_out: int) -> ClassFolder:
    """The classes and pictures of a folder; of each class every ``hold_out``-th, from the first on, is held out.

    Nothing is held out where the folder has pictures to judge by of its own.
    """
    if not folder.is_dir():
        raise DataError(f"folder {str(folder)!r} does not exist", expected=LAYOUT)
    there = _subfolders(folder)
    judged_by = next((folder / name for name in EVAL_FOLDERS if name in there), None)
    if TRAIN_FOLDER not in there or (judged_by is None and len(there) > 1):
        return _split(_pictures_by_class(folder), hold_out)
    train = _pictures_by_class(folder / TRAIN_FOLDER)
    if judged_by is None:
        return _split(train, hold_out)
    evaluation = _pictures_by_class(judged_by)
    for one, other, where in ((train, evaluation, judged_by), (evaluation, train, folder / TRAIN_FOLDER)):
        missing = sorted(set(one) - set(other))
        if missing:
            raise DataError(
                f"{str(where)!r} has no class {missing[0]!r}",
                expected=f"the same classes in {TRAIN_FOLDER}/ and {judged_by.name}/",
                remedy="Add a folder of that name with pictures, or remove the other one",
            )
    return ClassFolder(list(train), _number(train), _number(evaluation))


def _split(pictures: dict[str, list[str]], hold_out: int) -> ClassFolder:
    for name, paths in pictures.items():
        if len(paths) < 2:
            raise DataError(
                f"class {name!r} has 1 picture, {paths[0]!r}",
                expected="at least 2, one to train on and one to judge by",
                remedy="Add pictures, or give train/ and val/ folders",
            )
    train = {name: [p for i, p in enumerate(paths) if i % hold_out] for name, paths in pictures.items()}
    held_out = {name: paths[::hold_out] for name, paths in pictures.items()}
    return ClassFolder(list(pictures), _number(train), _number(held_out))


def _number(pictures: dict[str, list[str]]) -> LabelledFiles:
    paths = [path for group in pictures.values() for path in group]
    return LabelledFiles(paths, [number for number, group in enumerate(pictures.values()) for _ in group])


def _pictures_by_class(folder: Path) -> dict[str, list[str]]:
    """The sorted picture files of every class folder, classes in order."""
    names = _subfolders(folder)
    if not names:
        raise DataError(f"folder {str(folder)!r} has no class folders", expected=LAYOUT)
    if len(names) == 1:
        raise DataError(
            f"folder {str(folder)!r} has only the class {names[0]!r}", expected="at least two class folders"
        )
    return {name: _pictures_below(folder / name) for name in names}


def _pictures_below(folder: Path) -> list[str]:
    """All picture files of a folder and the folders in it, by path."""
    found: list[str] = []
    others: Counter[str] = Counter()
    seen: set[str] = set()
    for where, inner, files in os.walk(folder, onerror=_refuse, followlinks=True):
        real = os.path.realpath(where)
        if real in seen:  # a link that leads back up
            inner.clear()
            continue
        seen.add(real)
        inner[:] = [name for name in inner if not name.startswith(".")]
        for name in files:
            suffix = os.path.splitext(name)[1].lower()  # noqa: PTH122 - a Path for each of a million files is slow
            if name.startswith("."):
                continue
            if suffix in SUFFIXES:
                found.append(f"{where}{os.sep}{name}")
            else:
                others[suffix or "no suffix"] += 1
    if not found:
        seen_there = ", ".join(f"{num} of {suffix}" for suffix, num in others.most_common(5))
        raise DataError(
            f"class folder {str(folder)!r} has no pictures" + (f" but {seen_there}" if seen_there else ""),
            expected=f"files of {', '.join(SUFFIXES)}",
        )
    return sorted(found)


def _subfolders(folder: Path) -> list[str]:
    try:
        return sorted(entry.name for entry in os.scandir(folder) if entry.is_dir() and not entry.name.startswith("."))
    except OSError as error:
        _refuse(error)


def _refuse(error: OSError) -> NoReturn:
    raise DataError(
        f"folder {str(error.filename)!r} cannot be read: {error.strerror}", remedy="Check its permissions"
    ) from error
