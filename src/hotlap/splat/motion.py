"""Cameras from photographs by COLMAP's incremental structure from motion, on the CPU, through pycolmap."""

from __future__ import annotations

import shutil
import sqlite3
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

from hotlap.base import events
from hotlap.base.errors import DataError, EnvironmentUnusable, StorageError
from hotlap.base.events import Emit
from hotlap.base.format import format_s
from hotlap.data.view_pixels import read_head
from hotlap.splat.begun import REMEDY
from hotlap.splat.photos_config import SplatPhotosConfig

THREAD = "hotlap-colmap"
"""Name of the thread that COLMAP works on."""
LOOK_S = 0.5
"""Between two looks at how far COLMAP is."""
QUIET = 3
"""COLMAP's level of what it says: only what ends the process."""


def require_pycolmap() -> Any:
    """The package."""
    try:
        import pycolmap
    except ImportError as error:
        raise EnvironmentUnusable(
            "finding the cameras of photographs needs pycolmap, which is not installed",
            remedy="pip install 'hotlap[photos]'",
        ) from error
    pycolmap.logging.minloglevel = QUIET
    return pycolmap


class Mapper:
    """Structure from motion in three stages."""

    def __init__(self, pycolmap: Any, config: SplatPhotosConfig) -> None:
        self._colmap, self._config = pycolmap, config

    def extract(self, images: Path, database: Path, emit: Emit) -> None:
        """Writes a database with the points of interest of every picture in a folder."""
        colmap, config = self._colmap, self._config
        paths = sorted(images.iterdir())
        alike = config.one_camera if config.one_camera is not None else len({_size(path) for path in paths}) == 1
        options = colmap.FeatureExtractionOptions()
        options.use_gpu = False
        options.max_image_size = config.max_side
        options.sift.max_num_features = config.max_features
        reader = colmap.ImageReaderOptions()
        reader.camera_model = config.camera

        def work() -> None:
            colmap.extract_features(
                database, images, image_names=[path.name for path in paths],
                camera_mode=colmap.CameraMode.SINGLE if alike else colmap.CameraMode.PER_IMAGE,
                reader_options=reader, extraction_options=options, device=colmap.Device.cpu,
            )  # fmt: skip

        _follow("features", work, emit)
        _in_one_file(database)

    def match(self, features: Path, database: Path, photos: int, emit: Emit) -> None:
        """Writes a database with what pairs of pictures have in common, too."""
        colmap, config = self._colmap, self._config
        shutil.copyfile(features, database)
        options = colmap.FeatureMatchingOptions()
        options.use_gpu = False
        every = config.matching == "exhaustive" or (config.matching == "auto" and photos <= config.exhaustive_limit)
        if every:

            def work() -> None:
                colmap.match_exhaustive(database, matching_options=options, device=colmap.Device.cpu)

        else:
            pairing = colmap.SequentialPairingOptions()
            pairing.overlap, pairing.quadratic_overlap = config.overlap, False

            def work() -> None:
                colmap.match_sequential(
                    database, matching_options=options, pairing_options=pairing, device=colmap.Device.cpu
                )

        _follow("matches", work, emit)
        _in_one_file(database)

    def map(self, matches: Path, images: Path, to: Path, photos: int, emit: Emit) -> int:
        """Writes the model with the most pictures; their number, 0 where none could be begun."""
        colmap, config = self._colmap, self._config
        options = colmap.IncrementalPipelineOptions()
        options.random_seed = config.seed
        options.ba_use_gpu = False
        # Fewer than its ten pictures would be thrown away, and a dozen photographs are all there may be.
        options.min_model_size = 3
        work_folder = to.parent / "models"
        work_folder.mkdir(parents=True)
        database = work_folder / "database.db"
        shutil.copyfile(matches, database)  # it is opened for writing
        found: dict[int, Any] = {}
        placed = [2]

        def work() -> None:
            found.update(
                colmap.incremental_mapping(
                    database, images, work_folder, options=options,
                    next_image_callback=lambda: placed.__setitem__(0, placed[0] + 1),
                )
            )  # fmt: skip

        _follow("cameras", work, emit, lambda: min(placed[0], photos), photos)
        best = max(found.values(), key=lambda one: (one.num_reg_images(), one.num_points3D()), default=None)
        shutil.rmtree(work_folder)
        if best is None:
            return 0
        to.mkdir(parents=True)
        best.write_binary(str(to))
        return int(best.num_reg_images())


def _size(path: Path) -> tuple[int, int]:
    head = read_head(path)
    return head.width, head.height


def _follow(
    task: str, work: Callable[[], None], emit: Emit, done: Callable[[], int] = lambda: 0, total: int | None = None
) -> None:
    """Does the work on a thread, tells how far it is, and raises what it raised; Ctrl-C does not wait for it.

    Without ``total`` only the time is told. The database must not be looked into meanwhile: Python and COLMAP each have
    a SQLite of their own, and two of them in one process undo each other's locks.
    """
    failed: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except Exception as error:  # noqa: BLE001 - COLMAP raises whatever it likes; it is told below
            failed.append(error)

    thread = threading.Thread(target=run, daemon=True, name=THREAD)
    emit(events.start(task, total))
    began = time.monotonic()
    thread.start()
    while thread.is_alive():
        thread.join(LOOK_S)
        emit(events.advance(task, done(), total, f"looking for them: {format_s(time.monotonic() - began)}"))
    emit(events.finish(task))
    if failed:
        raise DataError(
            f"COLMAP could not find {task}: {failed[0]}",
            remedy="Look whether all files are photographs, and whether the disk has room",
        ) from failed[0]


def is_colmap_working() -> bool:
    """Whether COLMAP still works on what was interrupted: nothing but the process's end stops it."""
    return any(thread.name == THREAD for thread in threading.enumerate())


def _in_one_file(database: Path) -> None:
    """Brings into the database what may still lie in the log beside it, which is not moved along."""
    try:
        with closing(sqlite3.connect(database)) as opened:
            opened.execute("PRAGMA journal_mode = DELETE").fetchone()
    except sqlite3.Error as error:
        raise StorageError(f"{str(database)!r} cannot be written: {error}", remedy=REMEDY) from error
