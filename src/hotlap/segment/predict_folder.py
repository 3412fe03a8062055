"""``hotlap segment predict``: every picture of a folder, finished one by one, so that an interrupt loses none."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from hotlap.base import events
from hotlap.base.errors import EXIT_CHECK_FAILED, EXIT_OK, DataError
from hotlap.base.events import Emit, ignore
from hotlap.data.object_table import require_openpyxl
from hotlap.kernels.instances.op import choose_impl
from hotlap.records.codec import encode
from hotlap.segment.done import Done, find_files, prepare
from hotlap.segment.exports import picture_entry, picture_files, write_tables
from hotlap.segment.predict import Beside, ManyConfig, segment_maps, timed
from hotlap.segment.predict_config import SegmentPredictConfig
from hotlap.segment.predictor import Predictor, chosen_batch, load_predictor
from hotlap.segment.reading import Bad, Finished, Loaded, Reader
from hotlap.segment.tiles import TileConfig, predict_maps

TASK = "predict"
_MOST_WORKERS = 16
_WORTH_TELLING_S = 1.0
_REMEDY = "pip install 'hotlap[segment]'"


@dataclass(frozen=True, kw_only=True)
class PredictedFolder:
    """What was found, where it lies, and where the time went."""

    num_images: int
    """Pictures finished now."""
    num_before: int
    """Pictures that were finished before."""
    num_objects: int
    """In all of them."""
    bad: dict[str, str]
    """Files that could not be read, or for which the network had no answer, each with the reason."""
    files: tuple[str, ...]
    """Files of all pictures together."""
    out: str
    seconds: dict[str, float]
    """wall, and of it: read (waiting for pictures), network, results (waiting for results); beside it warm_up, in
    which the network was loaded, recorded and compiled."""

    @property
    def exit_code(self) -> int:
        """0 when every file could be read, else 1."""
        return EXIT_CHECK_FAILED if self.bad else EXIT_OK

    def lines(self) -> list[str]:
        """The outcome for a person."""
        wall = self.seconds["wall"]
        shares = ", ".join(f"{name} {self.seconds[name] / wall:.0%}" for name in ("read", "network", "results"))
        speed = f", {self.num_images / wall:.3g} pictures/s ({shares})" if self.num_images and wall else ""
        warm_up = self.seconds["warm_up"]
        speed += f" after {warm_up:.3g} s of warm-up" if warm_up >= _WORTH_TELLING_S else ""
        before = f" ({self.num_before} were finished before)" if self.num_before else ""
        said = [f"{self.num_objects} objects in {self.num_images + self.num_before} pictures{before}{speed}"]
        said += [f"skipped {name}: {reason}" for name, reason in sorted(self.bad.items())]
        return [*said, f"Results: {self.out}", *self.files]


@dataclass
class _Tally:
    """What has happened so far."""

    entries: dict[str, dict[str, Any]] = field(default_factory=dict)
    bad: dict[str, str] = field(default_factory=dict)
    pages: dict[str, int] = field(default_factory=dict)
    """Pictures in each file that has been opened."""
    num_before: int = 0
    num_skipped: int = 0
    read_s: float = 0.0
    results_s: float = 0.0

    def skip(self, file: str, reason: str) -> None:
        """Notes what is wrong with a file, or with one more page of it."""
        self.num_skipped += 1
        self.bad[file] = f"{self.bad[file]}; {reason}" if file in self.bad else reason

    @property
    def num_done(self) -> int:
        """Pictures that are finished or will not be."""
        return len(self.entries) + self.num_skipped

    def expected(self, num_files: int) -> int:
        """Pictures in all files, as far as is known."""
        return num_files + sum(num - 1 for num in self.pages.values())

    def waited(self, seconds: float) -> None:
        """Counts time spent waiting for pictures."""
        self.read_s += seconds


def predict_folder(
    config: SegmentPredictConfig, emit: Emit = ignore, *, predictor: Predictor | None = None
) -> PredictedFolder:
    """Finds the objects in every picture of a folder; bad files are named, finished ones not done again."""
    files = find_files(config.folder)
    prepare(config.out)
    if "xlsx" in config.formats:
        require_openpyxl()
    predictor = predictor or load_predictor(config, emit)
    batch = chosen_batch(config, predictor.name)
    tiles = config.tiles(batch) if batch else config.tiles(predictor.batch, predictor.small_batch)
    done = Done(config.out, _settings(config, predictor))
    for impl, reason in choose_impl().against.items():
        emit(events.warn(f"results take seconds a picture: impl={impl!r} cannot run here ({reason}); {_REMEDY}"))
    emit(events.start(TASK, len(files), f"{len(files)} files on {predictor.arm.name}"))
    began, loaded_before = perf_counter(), predictor.load_s
    tally = _Tally()
    try:
        _run(config, tiles, files, predictor, done, tally, emit)
    except BaseException as error:
        # Tables are of all that is finished, also of what this run has not come to.
        before = {entry["name"]: entry for name in files for entry in done.pages(name)[0]}
        entries = _in_order(before | tally.entries)
        if isinstance(error, KeyboardInterrupt):
            emit(events.warn(f"{len(entries)} pictures are finished in {config.out}; the same command does the rest"))
        if entries:
            write_tables(config.out, entries, config.formats, config.category)
        raise
    finally:
        emit(events.finish(TASK))
    entries, since = _in_order(tally.entries), perf_counter()
    tables = write_tables(config.out, entries, config.formats, config.category)
    tally.results_s += perf_counter() - since
    warm_up = predictor.load_s - loaded_before
    wall = perf_counter() - began - warm_up
    network = max(0.0, wall - tally.read_s - tally.results_s)
    return PredictedFolder(
        num_images=len(entries) - tally.num_before,
        num_before=tally.num_before,
        num_objects=sum(len(entry["rows"]) for entry in entries),
        bad=tally.bad,
        files=tuple(str(path) for path in tables),
        out=str(config.out),
        seconds={
            "wall": wall,
            "read": tally.read_s,
            "network": network,
            "results": tally.results_s,
            "warm_up": warm_up,
        },
    )


def _in_order(entries: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    return [entries[name] for name in sorted(entries)]


def _run(
    config: SegmentPredictConfig, tiles: TileConfig, files: dict[str, Path], predictor: Predictor, done: Done,
    tally: _Tally, emit: Emit,
) -> None:  # fmt: skip
    workers = config.workers or min(os.cpu_count() or 1, _MOST_WORKERS)
    reader = Reader(files, done, workers=workers, most_pixels=config.most_pixels, redo=config.redo)
    beside = Beside(workers)
    waiting: dict[int, Loaded] = {}
    many = ManyConfig(split=config.split(), simplify_px=config.simplify_px, um_per_px=config.um_per_px)
    try:
        pictures = _pictures(reader, waiting, tally, emit)
        for index, maps in predict_maps(pictures, predictor, tiles):
            loaded = waiting.pop(index)
            since = perf_counter()
            beside.submit(_finish_one, loaded, maps, predictor.names, many, config, done, tally)
            tally.results_s += perf_counter() - since
            emit(events.advance(TASK, tally.num_done, tally.expected(len(files)), f"pictures: {loaded.name}"))
    finally:
        reader.stop()
        since = perf_counter()
        beside.finish()
        tally.results_s += perf_counter() - since
    if tally.num_done:
        emit(events.advance(TASK, tally.num_done, tally.expected(len(files)), "pictures"))


def _pictures(reader: Reader, waiting: dict[int, Loaded], tally: _Tally, emit: Emit) -> Iterator[np.ndarray]:
    """Pictures for the network, each remembered under its number."""
    number = 0
    for item in timed(iter(reader), tally.waited):
        if isinstance(item, Bad):
            tally.skip(item.path.name, item.reason)
            emit(events.warn(f"skipped {str(item.path)!r}: {item.reason}"))
        elif isinstance(item, Finished):
            tally.entries |= {entry["name"]: entry for entry in item.entries}
            tally.pages |= {entry["file_name"]: entry["num_pages"] for entry in item.entries}
            tally.num_before += len(item.entries)
        else:
            tally.pages[item.path.name] = item.num_pages
            waiting[number] = item
            number += 1
            yield item.picture


def _finish_one(
    loaded: Loaded, maps: np.ndarray, names: tuple[str, ...], many: ManyConfig, config: SegmentPredictConfig,
    done: Done, tally: _Tally,
) -> None:  # fmt: skip
    """Works out one picture's results and writes them; runs in a thread."""
    try:
        found = segment_maps(maps, names, many)
    except DataError as error:
        tally.skip(loaded.path.name, f"{loaded.name}: {error}" if loaded.num_pages > 1 else str(error))
        return
    made = picture_files(loaded.name, found, loaded.picture, config.formats, config.category)
    page = int(loaded.name.rpartition("_page")[2]) if loaded.num_pages > 1 else None
    entry = picture_entry(loaded.name, loaded.path.name, found, config.formats, page)
    entry |= {"digest": loaded.digest, "num_pages": loaded.num_pages, "page": page or 0}
    done.write(entry, made)
    tally.entries[loaded.name] = entry


def _settings(config: SegmentPredictConfig, predictor: Predictor) -> dict[str, Any]:
    """All that decides what the results are; where they are computed and how fast does not."""
    names = ("formats", "simplify_px", "um_per_px", "category", "tile", "overlap")
    chosen = {name: getattr(config, name) for name in names}
    precision = predictor.arm.precision
    return {**chosen, "precision": precision, "split": encode(config.split()), "network": predictor.digest}
