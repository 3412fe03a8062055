"""COCO's run lengths, compared with its own tools, and whole files there and back."""

from __future__ import annotations

import json

import numpy as np
import pytest

from hotlap.base.errors import DataError
from hotlap.data.coco import (
    CocoImage,
    coco_document,
    coco_image,
    expand_runs,
    label_runs,
    read_coco,
    runs_to_mask,
)
from hotlap.kernels.instances.cases import blobs, nested, noise

PICTURES = [nested(), noise(17, 23), blobs(97, 64, 60), np.ones((5, 3), np.int32), np.zeros((4, 4), np.int32)]


def annotations_of(labels, scores=(0.5,) * 100):
    entry, lines = coco_image(CocoImage("a.png", labels, scores))
    return entry, json.loads(coco_document([(entry, lines)], "cell"))["annotations"]


@pytest.mark.parametrize("labels", PICTURES)
def test_run_lengths_lead_back_to_each_mask(labels):
    numbers = sorted(set(np.unique(labels).tolist()) - {0})
    found = annotations_of(labels)[1]
    assert label_runs(labels).label.tolist() == numbers and len(found) == len(numbers)
    for label, one in zip(numbers, found, strict=True):
        counts = expand_runs(one["segmentation"]["counts"])
        np.testing.assert_array_equal(runs_to_mask(counts, *labels.shape), labels == label)


@pytest.mark.parametrize("labels", PICTURES[:4])
def test_the_text_is_that_of_pycocotools(labels):
    mask = pytest.importorskip("pycocotools.mask")
    entry, annotations = annotations_of(labels)
    assert (entry["width"], entry["height"]) == labels.shape[::-1]
    for label, mine in zip(sorted(set(np.unique(labels).tolist()) - {0}), annotations, strict=True):
        theirs = mask.encode(np.asfortranarray(labels == label).astype(np.uint8))
        assert mine["segmentation"]["counts"] == theirs["counts"].decode()
        assert mine["area"] == int(mask.area(theirs)) and mine["bbox"] == mask.toBbox(theirs).tolist()


@pytest.mark.parametrize("seed", range(20))
def test_areas_and_boxes_are_those_of_the_masks(seed):
    random = np.random.default_rng(seed)
    labels = random.integers(0, 5, random.integers(1, 9, 2)).astype(np.int32)
    for label, one in zip(sorted(set(np.unique(labels).tolist()) - {0}), annotations_of(labels)[1], strict=True):
        rows, columns = np.nonzero(labels == label)
        left, top = int(columns.min()), int(rows.min())
        assert one["bbox"] == [left, top, int(columns.max()) - left + 1, int(rows.max()) - top + 1]
        assert one["area"] == len(rows)
        assert runs_to_mask(expand_runs(one["segmentation"]["counts"]), *labels.shape).sum() == len(rows)


def test_scores_and_names_are_kept():
    labels = np.array([[1, 0, 2, 0, 3]], np.int32)
    name = 'a "b" \\ \u00b5.png'
    entry, lines = coco_image(CocoImage(name, labels, [0.1234567, 1.0], page=3))
    told = json.loads(coco_document([(entry, lines)], 'c"d'))
    assert told["images"] == [{"id": 1, "file_name": name, "width": 5, "height": 1, "page": 3}]
    assert [one["score"] for one in told["annotations"]] == [0.123457, 1.0, None]
    assert told["categories"] == [{"id": 1, "name": 'c"d', "supercategory": ""}]
    with pytest.raises(ValueError, match="not JSON compliant"):
        coco_image(CocoImage(name, labels, [float("nan")] * 3))


def test_a_file_comes_back_with_its_holes(tmp_path):
    parts = [coco_image(CocoImage(f"{n}.png", labels, [0.25] * 100)) for n, labels in enumerate(PICTURES, start=1)]
    (tmp_path / "a.json").write_text(coco_document(parts, "cell"))
    found = json.loads((tmp_path / "a.json").read_text())
    annotations = found["annotations"]
    assert [a["id"] for a in annotations] == list(range(1, len(annotations) + 1))
    assert [image["id"] for image in found["images"]] == list(range(1, len(PICTURES) + 1))
    assert {a["iscrowd"] for a in annotations} == {0} and {a["score"] for a in annotations} == {0.25}
    back = read_coco(tmp_path / "a.json")
    for number, labels in enumerate(PICTURES, start=1):
        got = back[f"{number}.png"]
        pairs = np.unique(np.stack([got.ravel(), labels.ravel()]), axis=1)
        assert pairs.shape[1] == len(np.unique(got)) == len(np.unique(labels))


def test_broken_files_are_named(tmp_path):
    (tmp_path / "a.json").write_text('{"images": []}')
    with pytest.raises(DataError, match=r"a.json' is no COCO file with run lengths: KeyError\('annotations'\)"):
        read_coco(tmp_path / "a.json")
    with pytest.raises(DataError, match=r"run lengths add up to 7.*12 for 3x4"):
        runs_to_mask([3, 4], 3, 4)
    with pytest.raises(DataError, match="run lengths 'a~' are no COCO text"):
        expand_runs("a~")
