"""A stand-in for pycolmap: databases are SQLite files, models those of the drawn scene, and every call is noted."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from dataclasses import replace
from enum import Enum
from pathlib import Path
from types import SimpleNamespace

from hotlap.data.colmap import read_model, write_model

CameraMode = Enum("CameraMode", ["SINGLE", "PER_IMAGE"])
Device = Enum("Device", ["cpu", "auto"])
logging = SimpleNamespace(minloglevel=0)

calls: list[tuple[str, dict]] = []
models: list[int] = []
"""How many pictures each model of the next mapping has."""
truth = Path()
"""Folder of the model that parts are taken from."""
failures: dict[str, Exception] = {}


def begin(model: Path, sizes: list[int]) -> None:
    """Forgets what was, and says what the next mapping finds."""
    global truth
    truth = model
    calls.clear()
    failures.clear()
    models[:] = sizes


def FeatureExtractionOptions():
    return SimpleNamespace(sift=SimpleNamespace())


ImageReaderOptions = FeatureMatchingOptions = SequentialPairingOptions = IncrementalPipelineOptions = SimpleNamespace


def _note(name, **given):
    calls.append((name, given))
    if name in failures:
        raise failures[name]


def _add(database, table, rows):
    with closing(sqlite3.connect(database)) as opened:
        opened.execute(f"CREATE TABLE IF NOT EXISTS {table} (number INTEGER)")
        opened.executemany(f"INSERT INTO {table} VALUES (?)", [(n,) for n in range(rows)])
        opened.commit()


def extract_features(database, images, **options):
    _add(database, "keypoints", len(options["image_names"]))
    _note("extract", **options)


def match_exhaustive(database, **options):
    _add(database, "two_view_geometries", 1)
    _note("exhaustive", **options)


def match_sequential(database, **options):
    _add(database, "two_view_geometries", 1)
    _note("sequential", **options)


class Reconstruction:
    def __init__(self, size):
        whole = read_model(truth)
        self.model = replace(whole, images=whole.images[:size])

    def num_reg_images(self):
        return len(self.model.images)

    def num_points3D(self):
        return len(self.model.points)

    def write_binary(self, folder):
        write_model(Path(folder), self.model)


def incremental_mapping(database, images, output, *, options, next_image_callback):
    with closing(sqlite3.connect(database)) as opened:
        assert opened.execute("SELECT count(*) FROM two_view_geometries").fetchone()[0] == 1
    _note("map", options=options)
    next_image_callback()
    shutil.copyfile(database, Path(output) / "left_behind")
    return {number: Reconstruction(size) for number, size in enumerate(models)}
