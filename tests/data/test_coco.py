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
    compress_runs,
    expand_runs,
    label_runs,
    read_coco,
    runs_to_mask,
)
from hotlap.kernels.instances.cases import blobs, nested, noise

PICTURES = [nested(), noise(17, 23), blobs(97, 64, 60), np.ones((5, 3), np.int32), np.zeros((4, 4), np.int32)]


@pytest.mark.parametrize("labels", PICTURES)
def test_run_lengths_lead_back_to_each_mask(labels):
    runs = label_runs(labels)
    assert sorted(runs) == sorted(set(np.unique(labels).tolist()) - {0})
    for label, counts in runs.items():
        np.testing.assert_array_equal(runs_to_mask(counts, *labels.shape), labels == label)
    assert [expand_runs(text) for text in compress_runs(list(runs.values()))] == list(runs.values())


@pytest.mark.parametrize("labels", PICTURES[:4])
def test_the_text_is_that_of_pycocotools(labels):
    mask = pytest.importorskip("pycocotools.mask")
    entry, annotations = coco_image(CocoImage("a.png", labels, [0.5] * 100), 1, 1)
    assert (entry["width"], entry["height"]) == labels.shape[::-1]
    for label, mine in zip(sorted(set(np.unique(labels).tolist()) - {0}), annotations, strict=True):
        theirs = mask.encode(np.asfortranarray(labels == label).astype(np.uint8))
        assert mine["segmentation"]["counts"] == theirs["counts"].decode()
        assert mine["area"] == int(mask.area(theirs)) and mine["bbox"] == mask.toBbox(theirs).tolist()


def test_a_file_comes_back_with_its_holes(tmp_path):
    images, annotations = [], []
    for number, labels in enumerate(PICTURES, start=1):
        entry, found = coco_image(CocoImage(f"{number}.png", labels, [0.25] * 100), number, len(annotations) + 1)
        images.append(entry)
        annotations += found
    assert [a["id"] for a in annotations] == list(range(1, len(annotations) + 1))
    assert {a["iscrowd"] for a in annotations} == {0} and {a["score"] for a in annotations} == {0.25}
    (tmp_path / "a.json").write_text(json.dumps(coco_document(images, annotations, "cell")))
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
