"""Memory that a pixel takes: pictures of 1000 million are read, and each byte of a step is a gigabyte then."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from hotlap.segment import evaluate as evaluation
from hotlap.segment.instances import split
from hotlap.segment.normalise import normalise
from hotlap.segment.overlay import draw_overlay
from hotlap.segment.targets import label_maps

pytest.importorskip("numba")
pytest.importorskip("scipy")

SIDE = 1000


@pytest.fixture(scope="module")
def labels():
    """Squares of 45 pixels, 5 apart."""
    made = np.kron(np.arange(1, 401).reshape(20, 20), np.ones((50, 50), int)).astype(np.int32)
    made[np.arange(SIDE) % 50 < 5] = 0
    made[:, np.arange(SIDE) % 50 < 5] = 0
    return made


def bytes_a_pixel(work):
    work()  # what is compiled is no part of it
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1] / SIDE**2
    finally:
        tracemalloc.stop()


def test_maps_to_learn_from_take_little_more_than_themselves(labels):
    """8 bytes of two maps and 4 of numbers; places as np.unique gives them were 45."""
    assert bytes_a_pixel(lambda: label_maps(labels)) < 14
    assert bytes_a_pixel(lambda: label_maps(labels, ("foreground",))) < 6


def test_objects_are_told_apart_without_what_is_used_no_more(labels):
    """Seeds, labels and a mask with its joint one; with cores, levels and seeds kept beside merging it was 15."""
    maps = label_maps(labels)
    assert bytes_a_pixel(lambda: split(maps)) < 13


@pytest.mark.parametrize("kind", [np.float32, np.float64, np.int32])
def test_deep_pictures_are_stretched_a_few_rows_at_a_time(kind):
    """The bytes that are made, and a sample of the pixels; doubles of all of them were 48."""
    pixels = np.random.default_rng(0).integers(0, 9999, (SIDE, SIDE, 3)).astype(kind)
    assert bytes_a_pixel(lambda: normalise(pixels)) < (20 if kind == np.float64 else 12)


def test_an_overlay_takes_its_picture_and_a_mask(labels):
    picture = np.zeros((SIDE, SIDE, 3), np.uint8)
    assert bytes_a_pixel(lambda: draw_overlay(picture, labels)) < 6


def test_an_evaluation_keeps_no_labels_of_the_images_that_it_has_judged(labels, tmp_path, monkeypatch):
    """Of thousands of images: truth and finding of each took 8 bytes a pixel until the last was judged."""
    image = pytest.importorskip("PIL.Image")
    for part, pixels in {"images": ((labels > 0) * 200).astype(np.uint8), "labels": labels.astype(np.uint16)}.items():
        (tmp_path / part).mkdir()
        for number in range(6):
            image.fromarray(pixels).save(tmp_path / part / f"c{number}.png")
    draw, held = evaluation._draw, []
    monkeypatch.setattr(evaluation, "_draw", lambda *g: (held.append(tracemalloc.get_traced_memory()[0]), draw(*g)))
    config = evaluation.SegmentEvalConfig(data=tmp_path, out=tmp_path / "out", split="all", pictures=1)
    bytes_a_pixel(lambda: evaluation.evaluate(config))
    assert held[1] / (6 * SIDE**2) < 1
