"""Tests of the pictures that a training leaves: curves that can be read, whatever was measured."""

from __future__ import annotations

import numpy as np
import pytest

from hotlap.data.picture_file import require_pillow
from hotlap.engine.journal import Row
from hotlap.splat.album import COLORS, PANEL_HEIGHT, PANEL_WIDTH, draw_curves


def drawn(path, rows):
    draw_curves(path, rows)
    return np.asarray(require_pillow().open(path)).astype(int)


def has(image, split):
    return bool((np.abs(image - np.array(COLORS[split])).max(axis=-1) < 12).any())


@pytest.mark.parametrize(
    ("steps", "scale"),
    [((0,), 1.0), ((0, 7), 1.0), (range(0, 30001, 100), 1.0), (range(9), 3e6), (range(9), 2e-7), (range(3), 0.0)],
    ids=["one row", "two rows", "a long training", "millions", "tiny", "all the same"],
)
def test_no_label_is_cut_off_and_every_line_is_there(tmp_path, steps, scale):
    rows = [Row(step=step, epoch=0, split="train", values={"loss": scale * (1 + step)}) for step in steps]
    rows += [Row(step=step, epoch=0, split="eval", values={"psnr": -20.123456 + step, "splats": 2e6}) for step in steps]
    image = drawn(tmp_path / "curves.png", rows)
    assert image.shape == (2 * PANEL_HEIGHT, 2 * PANEL_WIDTH, 3)
    for edge in (image[:2], image[-2:], image[:, :2], image[:, -2:]):
        assert (edge == 255).all(), "something reaches the edge of the picture"
    gap = image[:, PANEL_WIDTH - 2 : PANEL_WIDTH + 2]
    assert (gap == 255).all(), "a panel reaches into the one beside it"
    left, right = image[:PANEL_HEIGHT, :PANEL_WIDTH], image[:PANEL_HEIGHT, PANEL_WIDTH:]
    assert has(left, "train") and not has(left, "eval")
    assert has(right, "eval") and not has(right, "train")
    assert has(image[PANEL_HEIGHT:], "eval")


def test_numbers_that_are_none_are_left_out_and_nothing_is_drawn_of_nothing(tmp_path):
    path = tmp_path / "curves.png"
    draw_curves(path, [Row(step=1, epoch=0, split="train", values={"loss": float("nan"), "anisotropy_median": 2.0})])
    assert not path.exists()
    image = drawn(
        path, [Row(step=s, epoch=0, split="train", values={"loss": float("inf") if s else 1.0}) for s in range(3)]
    )
    assert image.shape == (PANEL_HEIGHT, PANEL_WIDTH, 3) and has(image, "train")
