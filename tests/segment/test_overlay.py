"""Pictures with their objects outlined, and the files they are looked at in."""

from __future__ import annotations

import io

import numpy as np
import pytest

from hotlap.segment.overlay import draw_overlay, encode_overlay

Image = pytest.importorskip("PIL.Image")


def read(content):
    with Image.open(io.BytesIO(content)) as image:
        return image.format, np.asarray(image).astype(int)


def test_a_line_of_one_pixel_keeps_its_colour():
    picture = np.random.default_rng(0).integers(20, 60, (96, 128, 1), dtype=np.uint8).repeat(3, axis=2)
    labels = np.zeros((96, 128), np.int32)
    for label in range(1, 8):
        labels[10:80, 16 * label - 8 : 16 * label + 4] = label
    drawn = draw_overlay(picture, labels)
    suffix, content = encode_overlay(drawn)
    kind, seen = read(content)
    edge = (drawn != picture).any(2)
    assert (suffix, kind) == (".jpg", "JPEG") and edge.sum() == 7 * 2 * (70 + 10)
    assert abs(seen - drawn)[edge].mean() < 8 and abs(seen - drawn)[~edge].mean() < 4


@pytest.mark.parametrize(("side", "suffix"), [(65_500, ".jpg"), (65_501, ".png")])
@pytest.mark.parametrize("turned", [False, True])
def test_a_side_that_jpeg_does_not_know_makes_a_png(side, suffix, turned):
    drawn = np.zeros((side, 2, 3) if turned else (2, side, 3), np.uint8)
    found, content = encode_overlay(drawn)
    kind, seen = read(content)
    assert (found, kind) == (suffix, {".jpg": "JPEG", ".png": "PNG"}[suffix]) and seen.shape == drawn.shape
