"""Objects that a person has changed: measured as a network's would be, and read back from every format."""

from __future__ import annotations

import io
import json
import zipfile

import numpy as np
import pytest

from hotlap.base.errors import DataError, UnknownName
from hotlap.data.coco import read_coco
from hotlap.data.geojson import read_geojson
from hotlap.data.imagej_roi import read_rois
from hotlap.data.object_table import read_csv
from hotlap.data.tiff import read_pages
from hotlap.data.yolo_seg import read_yolo
from hotlap.segment import edited
from hotlap.segment.contours import draw_outlines, outlines
from hotlap.segment.edited import EditedObject, EditedPicture, export_edited, make_polygon, measure_edited
from hotlap.segment.objects import COLUMNS, measure_objects

LABELS = np.zeros((20, 30), np.int32)
LABELS[2:12, 3:13], LABELS[5:8, 6:9] = 1, 0
LABELS[10:18, 20:28] = 2


def picture(file="cells/a.tif", **changes):
    objects = tuple(EditedObject(id=10 * o.label, part=o.parts[0], confidence=0.5) for o in outlines(LABELS))
    return EditedPicture(**{"file": file, "width": 30, "height": 20, "objects": objects, **changes})


def test_polygons_are_measured_as_the_pixels_they_enclose():
    got = measure_edited(picture(um_per_px=0.5))
    want = measure_objects(LABELS, um_per_px=0.5)
    for one, other in zip(got, want, strict=True):
        assert one.label == 10 * other.label and one.confidence == 0.5
        for name in set(COLUMNS) - {"label", "confidence"}:
            assert getattr(one, name) == pytest.approx(getattr(other, name)), name


def test_overlapping_objects_keep_their_own_pixels_and_an_empty_one_has_no_metrics():
    square = make_polygon([[2, 2], [2, 12], [12, 12], [12, 2]], [])
    over = make_polygon([[2, 2], [22, 2], [22, 12], [2, 12]], [])
    sliver = make_polygon([[1.1, 1.1], [1.2, 1.1], [1.2, 1.2]], [])
    objects = tuple(EditedObject(id=n, part=part) for n, part in enumerate((square, over, sliver), start=1))
    first, second, nothing = measure_edited(picture(objects=objects))
    assert (first.area, second.area, nothing) == (100, 200, None)


def test_corners_may_come_in_either_direction_and_outside_of_the_picture():
    for corners in ([[-5, -5], [4, -5], [4, 4], [-5, 4]], [[-5, 4], [4, 4], [4, -5], [-5, -5]]):
        (found,) = measure_edited(picture(objects=(EditedObject(id=1, part=make_polygon(corners, [])),)))
        assert (found.area, found.left_px, found.top_px) == (16, 0, 0)


def labels_of(kind, made, tmp_path):
    path = tmp_path / made.name
    path.write_bytes(made.content)
    if kind == "labels":
        (page,) = read_pages(path)
        return page.decode()[..., 0]
    if kind == "coco":
        (labels,) = read_coco(path).values()
        return labels
    read = {"yolo": lambda p: read_yolo(p, *LABELS.shape), "roi": read_rois, "geojson": read_geojson}[kind]
    return draw_outlines(read(path), LABELS.shape)


@pytest.mark.parametrize("kind", ["labels", "coco", "yolo", "roi", "geojson"])
def test_every_format_of_objects_holds_the_same_pixels(kind, tmp_path):
    made = export_edited([picture()], kind)
    np.testing.assert_array_equal(labels_of(kind, made, tmp_path), LABELS)


def test_tables_hold_all_pictures(tmp_path):
    made = export_edited([picture(), picture("b.png")], "csv")
    (tmp_path / made.name).write_bytes(made.content)
    rows = read_csv(tmp_path / made.name)
    assert [(row["image"], row["label"], row["area"]) for row in rows] == [
        ("a", "1", "91"), ("a", "2", "64"), ("b", "1", "91"), ("b", "2", "64"),
    ]  # fmt: skip
    pytest.importorskip("openpyxl")
    assert export_edited([picture()], "xlsx").content[:2] == b"PK"


def test_several_pictures_become_a_zip_in_which_no_name_leads_elsewhere():
    names = ("../../etc/a.png", "a.tif", "C:\\x\\a.tif", "..")
    made = export_edited([picture(name) for name in names], "yolo")
    with zipfile.ZipFile(io.BytesIO(made.content)) as archive:
        assert archive.namelist() == ["a.txt", "a_2.txt", "a_3.txt", "picture.txt"]


def test_fractions_survive_where_the_format_has_them(tmp_path):
    ring = [[1.25, 1.5], [9.75, 1.5], [9.75, 8.5]]
    shown = picture(objects=(EditedObject(id=3, part=make_polygon(ring, [])),))
    (feature,) = json.loads(export_edited([shown], "geojson").content)["features"]
    assert feature["geometry"]["coordinates"][0][:3] == ring
    (tmp_path / "a.zip").write_bytes(export_edited([shown], "roi").content)
    (back,) = read_rois(tmp_path / "a.zip")
    np.testing.assert_allclose(back.parts[0].outer, ring)


def test_what_cannot_be_exported_is_told(monkeypatch):
    with pytest.raises(UnknownName, match="unknown format 'cocoo'"):
        export_edited([picture()], "cocoo")
    with pytest.raises(DataError, match=r"pictures = \[\]"):
        export_edited([], "csv")
    monkeypatch.setattr(edited, "MOST_DRAWN", 100)
    with pytest.raises(DataError, match=r"'cells/a\.tif' span 202 pixels"):
        measure_edited(picture())
