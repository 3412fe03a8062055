"""Scores of found objects, on pictures that can be counted by hand."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from hotlap.base.errors import ShapeError
from hotlap.segment.instance_metrics import THRESHOLDS, match, overlaps, score_image, summarise


def strip(*runs):
    """A picture of one row: (value, how many pixels) each."""
    return np.concatenate([np.full(count, value, np.uint16) for value, count in runs])[None]


TRUTH = strip((0, 5), (3, 10), (900, 10), (0, 5), (7, 20))


def test_the_truth_itself_is_perfect_under_other_numbers():
    scores = score_image(TRUTH, np.where(TRUTH > 0, 1000 - TRUTH.astype(int), 0))
    assert scores.row() == {
        **dict.fromkeys(("ap50", "map", "f1", "pq", "dice"), 1.0), "truths": 3, "found": 3, "missed": 0, "wrong": 0
    }  # fmt: skip


def test_merged_objects_count_once_at_most():
    found = strip((0, 5), (1, 20), (0, 5), (2, 20))  # the first two as one: IoU 10 / 20 with each of them
    pairs = overlaps(TRUTH, found)
    assert sorted(pairs.iou.tolist()) == [0.5, 0.5, 1.0]
    half = match(pairs, 0.5)
    assert (half.tp, half.fp, half.fn) == (2, 0, 1)
    above = match(pairs, 0.55)
    assert (above.tp, above.fp, above.fn) == (1, 1, 2)
    assert above.ap == 0.25 and above.f1 == pytest.approx(2 / 5) and above.pq == pytest.approx(1 / 2.5)


def test_a_shifted_object_passes_up_to_its_overlap():
    truth, found = strip((0, 10), (1, 10), (0, 10)), strip((0, 12), (1, 10), (0, 8))
    scores = score_image(truth, found)  # 8 of 12 pixels
    assert [t for t in THRESHOLDS if scores.at[t].tp] == [0.5, 0.55, 0.6, 0.65]
    assert scores.mean_ap == pytest.approx(0.4)
    assert scores.at[0.5].pq == pytest.approx(8 / 12)
    assert scores.dice == pytest.approx(16 / 20)


def test_as_many_pairs_as_possible_are_matched():
    """Of a chain of overlaps, taking the best pair first would leave two objects without a partner."""
    truth = strip((1, 6), (2, 6))
    found = strip((5, 3), (6, 6), (7, 3))
    assert match(overlaps(truth, found), 0.3).tp == 2


def test_nothing_to_find():
    empty = np.zeros((4, 4), int)
    assert score_image(empty, empty).row()["ap50"] == 1.0
    lost = score_image(empty, np.eye(4, dtype=int))
    assert lost.at[0.5].ap == 0.0 and lost.at[0.5].fp == 1 and lost.dice == 0.0
    assert score_image(np.eye(4, dtype=int), empty).at[0.5].fn == 1


def test_a_data_set_averages_pictures_and_counts_objects():
    """AP of each picture weighs the same; F1 and PQ weigh each object the same."""
    one = score_image(TRUTH, TRUTH)
    none = score_image(strip((1, 10), (0, 40)), np.zeros((1, 50), int))
    scores = summarise([one, none])
    assert scores["ap50"] == scores["map"] == 0.5
    assert scores["f1"] == pytest.approx(6 / 7) and scores["pq"] == pytest.approx(3 / 3.5)
    assert set(scores) == {"map", "f1", "pq", "dice", *(f"ap{n}" for n in range(50, 100, 5))}


def test_sizes_must_be_the_same():
    with pytest.raises(ShapeError, match=r"\[1, 50\].*\[2, 50\]"):
        score_image(np.zeros((2, 50)), TRUTH)


def test_tens_of_thousands_of_objects_need_no_table_of_all_pairs():
    """One of 40,000 by 40,000 would be 12 GiB."""
    truth = np.arange(1, 40_001).reshape(200, 200).repeat(3, 0).repeat(3, 1)
    tracemalloc.start()
    scores = score_image(truth, np.where(truth % 4, truth + 7, 0))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert scores.at[0.95].tp == 30_000 and scores.at[0.95].fn == 10_000 and scores.at[0.5].fp == 0
    assert scores.dice == pytest.approx(6 / 7)
    assert peak < 1 << 28
