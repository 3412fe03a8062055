"""``hotlap segment predict``: every picture of a folder, finished one by one, so that an interrupt loses none."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from hotlap.base import events
from hotlap.base.errors import EXIT_CHECK_FAILED, EXIT_OK
from hotlap.base.events import Emit, ignore
from hotlap.data.object_table import require_openpyxl
from hotlap.device.host import memory_available, read_host
from hotlap.kernels.instances.op import choose_impl
from hotlap.measure.nursery import can_fork
from hotlap.records.codec import encode
from hotlap.segment.done import Done, find_files, prepare
from hotlap.segment.exports import write_tables
from hotlap.segment.finishing import Facts, Finishing
from hotlap.segment.picture_processes import PictureProcesses
from hotlap.segment.predict import Beside, ManyConfig, timed
from hotlap.segment.predict_config import SegmentPredictConfig
from hotlap.segment.predictor import Predictor, chosen_batch, chosen_device, load_predictor
from hotlap.segment.reading import Bad, Finished, Loaded, Reader, Reading
from hotlap.segment.tiles import TileConfig, predict_maps

TASK = "predict"
_MOST_WORKERS = 16
_WORTH_TELLING_S = 1.0
_REMEDY = "pip install 'hotlap[segment]'"
FEWEST_FILES, FEWEST_BYTES = 64, 1 << 27
"""From either on a folder is read and finished in processes; fewer pictures are done before those are ready. Bytes
count because one file may hold hundreds of pictures."""


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
    stacks: set[str] = field(default_factory=set)
    """Files that have been opened and hold several pictures."""
    num_more: int = 0
    """Pictures in these after the first."""
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
        return num_files + self.num_more

    def opened(self, file: str, num_pages: int) -> None:
        """Notes how many pictures a file holds."""
        if num_pages > 1 and file not in self.stacks:
            self.stacks.add(file)
            self.num_more += num_pages - 1

    def waited(self, seconds: float) -> None:
        """Counts time spent waiting for pictures."""
        self.read_s += seconds


def predict_folder(
    config: SegmentPredictConfig, emit: Emit = ignore, *, predictor: Predictor | None = None,
    processes: bool | None = None,
) -> PredictedFolder:  # fmt: skip
    """Finds the objects in every picture of a folder; bad files are named, finished ones not done again.

    ``processes`` says whether pictures are read and finished in processes or in threads of this one; by default in
    processes where a card has to be fed meanwhile, the folder is large enough and the system can fork.
    """
    files = find_files(config.folder)
    prepare(config.out)
    if "xlsx" in config.formats:
        require_openpyxl()
    if processes is None:
        device = predictor.device.type if predictor is not None else chosen_device(config).partition(":")[0]
        processes = device == "cuda" and can_fork() and _are_many(files.values())
    with _beside(config) if processes else contextlib.nullcontext() as beside:  # ready when the network is
        return _predict(config, emit, files, predictor or load_predictor(config, emit), beside)


def _beside(config: SegmentPredictConfig) -> PictureProcesses:
    # Who asks for more workers than there are CPUs has slow disks, and waits for those.
    return PictureProcesses(max(config.workers, read_host().usable_cpus))


def _are_many(files: Collection[Path]) -> bool:
    # What is gone by now the reader will name.
    return len(files) >= FEWEST_FILES or sum(p.stat().st_size for p in files if p.exists()) >= FEWEST_BYTES


def _predict(
    config: SegmentPredictConfig, emit: Emit, files: dict[str, Path], predictor: Predictor,
    processes: PictureProcesses | None,
) -> PredictedFolder:  # fmt: skip
    batch = chosen_batch(config, predictor.name)
    tiles = config.tiles(batch) if batch else config.tiles(predictor.batch, predictor.small_batch)
    done = Done(config.out, _settings(config, predictor))
    for impl, reason in choose_impl().against.items():
        emit(events.warn(f"results take seconds a picture: impl={impl!r} cannot run here ({reason}); {_REMEDY}"))
    emit(events.start(TASK, len(files), f"{len(files)} files on {predictor.arm.name}"))
    began, loaded_before = perf_counter(), predictor.load_s
    tally = _Tally()
    try:
        _run(config, tiles, files, predictor, done, processes, tally, emit)
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
        num_objects=sum(entry["num_objects"] for entry in entries),
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
    processes: PictureProcesses | None, tally: _Tally, emit: Emit,
) -> None:  # fmt: skip
    workers = config.workers or min(os.cpu_count() or 1, _MOST_WORKERS)
    room_bytes = memory_available() or math.inf
    reading = Reading(done=done, most_pixels=config.most_pixels, redo=config.redo, room_bytes=room_bytes)
    read = partial(processes.read, reading) if processes else reading.items
    # Pictures are asked for and results given away a whole batch at a time; neither shall wait for the other's. Those
    # who work out results have a batch to go on with while the network is given its next.
    waiting_most = max(2 * workers, tiles.batch)
    reader = Reader(files, read, workers=workers, ahead=waiting_most)
    beside = Beside(workers, 2 * waiting_most)
    waiting: dict[int, Loaded] = {}
    many = ManyConfig(split=config.split(), simplify_px=config.simplify_px, um_per_px=config.um_per_px)
    formats, category = config.formats, config.category
    work = Finishing(names=predictor.names, many=many, formats=formats, category=category, done=done)
    try:
        pictures = _pictures(reader, waiting, tally, emit)
        for index, maps in predict_maps(pictures, predictor, tiles):
            loaded = waiting.pop(index)
            since = perf_counter()
            size = maps.nbytes + loaded.picture.nbytes
            beside.submit(size, _finish_one, loaded, [maps], work, processes, tally)
            del maps  # pinned memory: it is given back as soon as a process has its copy
            tally.results_s += perf_counter() - since
            if processes is not None and (trouble := processes.trouble()):
                emit(events.warn(trouble))
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
            for entry in item.entries:
                tally.opened(entry["file_name"], entry["num_pages"])
            tally.num_before += len(item.entries)
        else:
            tally.opened(item.path.name, item.num_pages)
            waiting[number] = item
            number += 1
            yield item.picture


def _finish_one(
    loaded: Loaded, maps: list[np.ndarray], work: Finishing, processes: PictureProcesses | None, tally: _Tally
) -> None:
    """Has one picture's results worked out and written; runs in a thread. ``maps`` holds those of the picture alone."""
    facts = Facts(loaded.name, loaded.path.name, loaded.digest, loaded.num_pages)
    if processes is not None:
        answer = processes.finish(work, facts, maps, loaded.picture)
    else:
        answer = work.one(facts, maps.pop(), loaded.picture)
    if isinstance(answer, str):
        tally.skip(loaded.path.name, f"{loaded.name}: {answer}" if loaded.num_pages > 1 else answer)
    else:
        tally.entries[loaded.name] = answer


def _settings(config: SegmentPredictConfig, predictor: Predictor) -> dict[str, Any]:
    """All that decides what the results are; where they are computed and how fast does not."""
    names = ("formats", "simplify_px", "um_per_px", "category", "tile", "overlap")
    chosen = {name: getattr(config, name) for name in names}
    precision = predictor.arm.precision
    return {**chosen, "precision": precision, "split": encode(config.split()), "network": predictor.digest}
