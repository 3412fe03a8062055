"""How well a network finds the cells of labelled images: scores of each image and of all, as tables and pictures."""

from __future__ import annotations

import itertools
import json
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from hotlap.base import events
from hotlap.base.errors import ConfigError, DataError, StorageError
from hotlap.base.events import Emit, ignore
from hotlap.base.settings import require_least
from hotlap.data.instance_images import InstanceImage, find_images, split_images
from hotlap.data.micrograph import numbers_in
from hotlap.data.object_table import csv_lines
from hotlap.device.host import read_host
from hotlap.records.run import write_atomic
from hotlap.segment.heads import FOREGROUND
from hotlap.segment.instances import SplitConfig
from hotlap.segment.normalise import normalise

OTSU = "otsu"
"""In place of a network: Otsu's threshold and a watershed of the shapes, nothing learned."""
SCORES, TABLE = "scores.json", "images.csv"

Array = np.ndarray[Any, Any]
Judgement = tuple[Any, bytes] | DataError
"""Scores and objects of an image, these as a label TIFF, for thousands wait to be drawn; or why it has none."""


@dataclass(frozen=True, kw_only=True)
class SegmentEvalConfig:
    """Scores a network on labelled images: AP at 0.5 to 0.95, F1, PQ and Dice."""

    data: Path = Path()
    """Folder with images/ and labels/ of the same stems, or one npz file of them."""
    model: str = OTSU
    """Weights, or the folder of a training; a network's name with weights; otsu for a threshold and a watershed."""
    weights: Path | None = None
    """Trained weights of a network given by name."""
    out: Path = Path("segment-eval")
    """Folder for scores.json, images.csv and pictures/."""
    split: Literal["held-out", "train", "all"] = "held-out"
    """Which images: every fifth by name, the others, or all."""
    device: str = "auto"
    """auto, cpu, cuda or cuda:1."""
    arm: str = ""
    """How the network runs, as cuda:bf16+channels_last; by default plain float32, so that scores can be compared."""
    batch: int | None = None
    """Tiles that go through the network together; by default 8, on a CPU 1 of 1024x1024, or as many pixels."""
    tile: int = 1024
    """Longest side of a tile, in pixels."""
    overlap: int = 128
    """Pixels that neighbouring tiles share."""
    threshold: float = 0.5
    """Probability from which a pixel belongs to a cell."""
    seed_threshold: float = 0.5
    """Height of a core from which it is a cell of its own."""
    merge: float = SplitConfig.merge
    """Cores that meet are one cell where the pass between them reaches this share of the lower one; 1 for never."""
    min_area: int = 10
    """Pixels of the smallest cell."""
    pictures: int = 12
    """Pictures drawn, spread from the worst to the best: truth and finding side by side; 0 for none."""

    def how(self) -> SplitConfig:
        """How maps become objects."""
        return SplitConfig(
            threshold=self.threshold, seed_threshold=self.seed_threshold, merge=self.merge, min_area=self.min_area
        )

    def __post_init__(self) -> None:
        self.how()
        require_least(self, pictures=0, batch=1)


def evaluate(config: SegmentEvalConfig, emit: Emit = ignore) -> dict[str, Any]:
    """The scores of each image and of all; also written, with pictures, to the config's folder.

    An image that cannot be read, or whose label is not for it, is named under ``bad`` and not scored.
    """
    if str(config.data) in ("", "."):
        raise ConfigError("no data was given", remedy="Name a folder, as in 'hotlap segment eval cells --model out'")
    images = _chosen(config)
    predict, maps_seen = _predictor(config, emit)
    _make_folder(config.out)
    began = time.perf_counter()
    judged: dict[int, tuple[Any, bytes]] = {}
    reader = _Reader(images, emit)
    emit(events.start("eval", len(images)))
    for index, judgement in _judged(reader, predict, maps_seen, config):
        if isinstance(judgement, DataError):
            reader.leave_out(images[index], f"{images[index].name}: {judgement}")
            continue
        judged[index] = row, _ = judgement
        said = f"{images[index].name}: AP {row.row()['ap50']:.2f}"
        emit(events.advance("eval", len(judged) + len(reader.bad), len(images), said))
    emit(events.finish("eval"))
    if not judged:
        raise DataError(f"none of the {len(images)} images can be scored: {next(iter(reader.bad.values()))}")
    from hotlap.segment.instance_metrics import summarise

    order = sorted(judged)
    found: dict[str, Any] = {
        "model": config.model,
        "split": config.split,
        "num_images": len(judged),
        "bad": reader.bad,
        "seconds": time.perf_counter() - began,
        "scores": summarise([judged[index][0] for index in order]),
        "images": [{"name": images[index].name, **judged[index][0].row()} for index in order],
    }
    _write(found, config.out)
    _draw([images[index] for index in order], found["images"], [judged[index][1] for index in order], config)
    return found


def _chosen(config: SegmentEvalConfig) -> list[InstanceImage]:
    everything = find_images(config.data)
    train, held_out = split_images(everything)
    return {"held-out": held_out, "train": train, "all": everything}[config.split]


class _Reader:
    """Reads images for the network, remembers labels until they are asked for, and leaves out what cannot be scored."""

    def __init__(self, images: list[InstanceImage], emit: Emit) -> None:
        self.images, self.emit = images, emit
        self.bad: dict[str, str] = {}
        """What is wrong with images that were left out, by name."""
        self.read: dict[int, tuple[int, Array]] = {}
        """Place and label of each image that was handed out and not judged yet, by its number among these."""

    def __iter__(self) -> Iterator[Array]:  # [H, W, 3] uint8
        numbers = itertools.count()
        for index, image in enumerate(self.images):
            try:
                pixels, label = image.read()
            except DataError as error:
                self.leave_out(image, str(error))
                continue
            self.read[next(numbers)] = index, label
            yield normalise(pixels)

    def leave_out(self, image: InstanceImage, reason: str) -> None:
        """Notes why an image has no scores, and says so."""
        self.bad[image.name] = reason
        self.emit(events.warn(f"not scored: {reason}"))


Predictor = Callable[[Iterable[Array]], Iterator[tuple[int, Array]]]


def _predictor(config: SegmentEvalConfig, emit: Emit) -> tuple[Predictor, tuple[str, ...]]:
    """What gives the maps [M, H, W] of each picture with its number, in any order; and which maps they are."""
    if config.model == OTSU:
        return _by_threshold, (FOREGROUND,)
    from hotlap.segment.predict_config import SegmentPredictConfig
    from hotlap.segment.predictor import load_predictor
    from hotlap.segment.tiles import predict_maps

    # As prediction does it, so that the objects which are scored are those which it would find.
    how = SegmentPredictConfig(
        folder=config.data,
        model=config.model,
        weights=config.weights,
        device=config.device,
        arm=config.arm,
        tuned=False,
        batch=config.batch,
        tile=config.tile,
        overlap=config.overlap,
    )
    net = load_predictor(how, emit)
    return lambda pictures: predict_maps(pictures, net, how.tiles(net.batch, net.small_batch)), net.names


def _by_threshold(pictures: Iterable[Array]) -> Iterator[tuple[int, Array]]:
    from hotlap.segment.otsu import otsu_foreground

    for number, picture in enumerate(pictures):
        yield number, otsu_foreground(picture)


def _judged(
    reader: _Reader, predict: Predictor, names: tuple[str, ...], config: SegmentEvalConfig
) -> Iterator[tuple[int, Judgement]]:
    """The scores and objects of each image, worked out in threads while the network goes on."""
    workers = read_host().usable_cores
    under_way: deque[tuple[int, Future[Judgement]]] = deque()
    with ThreadPoolExecutor(workers) as pool:
        for handed_out, maps in predict(reader):
            index, truth = reader.read.pop(handed_out)
            under_way.append((index, pool.submit(_judge, truth, maps, names, config)))
            while len(under_way) > 2 * workers:
                number, judged = under_way.popleft()
                yield number, judged.result()
        while under_way:
            number, judged = under_way.popleft()
            yield number, judged.result()


def _judge(truth: Array, maps: Array, names: tuple[str, ...], config: SegmentEvalConfig) -> Judgement:
    from hotlap.segment.exports import label_tiff
    from hotlap.segment.instance_metrics import score_image
    from hotlap.segment.instances import split
    from hotlap.segment.predict import check_maps

    try:
        check_maps(maps)
    except DataError as error:
        return error
    labels = split(maps, names, config.how())
    return score_image(truth, labels), label_tiff(labels)


def _make_folder(folder: Path) -> None:
    try:
        (folder / "pictures").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(
            f"cannot write to out = {str(folder)!r}: {error.strerror or error}", remedy="Choose another --out"
        ) from error


def _write(found: dict[str, Any], folder: Path) -> None:
    """Both files, each whole or as it was before."""
    rows = found["images"]
    write_atomic(folder / TABLE, csv_lines([list(rows[0]), *(list(row.values()) for row in rows)]))
    write_atomic(folder / SCORES, json.dumps(found, indent=1) + "\n")


def _draw(
    images: list[InstanceImage], rows: list[dict[str, Any]], kept: list[bytes], config: SegmentEvalConfig
) -> None:
    """Some pictures, named by their rank, from the worst AP to the best."""
    from hotlap.segment.outline_picture import compared
    from hotlap.segment.overlay import encode_png

    folder = config.out / "pictures"
    for earlier in folder.glob("[0-9][0-9][0-9]-ap*.png"):
        earlier.unlink()
    worst_first = sorted(range(len(rows)), key=lambda index: rows[index]["ap50"])
    count = min(config.pictures, len(worst_first))
    for place in np.unique(np.linspace(0, len(worst_first) - 1, count).round().astype(int)).tolist():
        index = worst_first[place]
        pixels, truth = images[index].read()
        name = f"{place + 1:03d}-ap{round(100 * rows[index]['ap50']):03d}-{images[index].name}.png"
        found = numbers_in(kept[index], Path(name))[..., 0]
        write_atomic(folder / name, encode_png(compared(normalise(pixels), truth, found)))
