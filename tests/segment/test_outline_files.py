"""Outlines in files of other programs: written, read back, and filled to the very pixels they came from."""

from __future__ import annotations

import io
import json
import struct
import zipfile

import numpy as np
import pytest

from hotlap.base.errors import DataError, EnvironmentUnusable
from hotlap.data import object_table
from hotlap.data.geojson import read_geojson, write_geojson
from hotlap.data.imagej_roi import read_rois, write_rois
from hotlap.data.object_table import csv_lines, read_csv, write_xlsx
from hotlap.data.outline import Outline, Polygon, corner_texts, keyhole
from hotlap.data.yolo_seg import read_yolo, write_yolo
from hotlap.kernels.instances.cases import blobs, nested
from hotlap.kernels.instances.op import regions
from hotlap.segment.contours import draw_outlines, filled, outlines

pytest.importorskip("numba")


def apart():
    labels = np.zeros((12, 30), np.int32)
    labels[1:5, 1:5] = labels[6:11, 20:28] = 1
    labels[8, 22] = 0
    return labels


PICTURES = [nested(), blobs(97, 64, 25), apart(), np.zeros((4, 4), np.int32)]


def same_objects(got, want):
    pairs = np.unique(np.stack([got.ravel(), want.ravel()]), axis=1)
    return pairs.shape[1] == len(np.unique(got)) == len(np.unique(want))


def test_a_keyhole_fills_as_the_polygon_with_its_hole():
    square = np.array([[0.0, 0], [9, 0], [9, 9], [0, 9]])
    holes = (square[::-1] / 3 + 1, square[::-1] / 9 + 6)
    mask = filled(keyhole(Polygon(square, holes)), (9, 9))
    assert mask.sum() == 81 - 9 - 1 and not mask[1:4, 1:4].any() and not mask[6, 6]


def test_thousands_of_holes_are_joined_in_a_moment(tmp_path, no_hang):
    """One object of noise, as a network that has learned little finds it, took hours."""
    labels = regions(np.random.default_rng(0).random((384, 384)) > 0.3)[0]
    found = [outline for outline in outlines(labels) if outline.label == np.bincount(labels[labels > 0]).argmax()]
    assert len(found[0].parts[0].holes) > 10_000
    (tmp_path / "a.txt").write_text(write_yolo(found, *labels.shape))
    back = draw_outlines(read_yolo(tmp_path / "a.txt", *labels.shape), labels.shape)
    np.testing.assert_array_equal(back > 0, labels == found[0].label)


@pytest.mark.parametrize("labels", PICTURES)
def test_yolo_leads_back_to_the_pixels(tmp_path, labels):
    (tmp_path / "a.txt").write_text(write_yolo(outlines(labels), *labels.shape))
    for line in (tmp_path / "a.txt").read_text().splitlines():
        kind, *values = line.split()
        assert kind == "0" and all(0 <= float(value) <= 1 for value in values)
    back = draw_outlines(read_yolo(tmp_path / "a.txt", *labels.shape), labels.shape)
    np.testing.assert_array_equal(back > 0, labels > 0)
    pairs = np.unique(np.stack([back.ravel(), labels.ravel()]), axis=1)
    assert pairs.shape[1] == len(np.unique(back)), "parts of one object are lines of their own, objects never share one"


@pytest.mark.parametrize("labels", PICTURES)
def test_geojson_leads_back_to_the_labels(tmp_path, labels):
    measured = {1: {"area": 5.0, "unit": "px", "confidence": float("nan")}}
    (tmp_path / "a.geojson").write_text(write_geojson(outlines(labels), measured, "cell"))
    back = read_geojson(tmp_path / "a.geojson")
    np.testing.assert_array_equal(draw_outlines(back, labels.shape), labels)
    assert [(o.label, o.inside) for o in back] == [(o.label, o.inside) for o in outlines(labels)]
    for feature in json.loads((tmp_path / "a.geojson").read_text())["features"]:
        rings = feature["geometry"]["coordinates"]
        for ring in rings if feature["geometry"]["type"] == "Polygon" else rings[0]:
            assert ring[0] == ring[-1] and len(ring) >= 4
        about = feature["properties"]
        assert about["classification"] == {"name": "cell"}
        assert about["measurements"] == ({"area": 5.0} if about["label"] == 1 else {})


def test_corners_between_pixels_and_measurements_of_any_name_are_written_as_they_are(tmp_path):
    ring, hole = np.array([[0, 0.5], [1 / 3, 0.5], [7, 2.25]]), np.array([[1.0, 1], [2, 1], [1, 2]])
    found = [Outline(3, (Polygon(ring, (hole,)), Polygon(hole))), Outline(5, ())]
    measured = {3: {'50% "width"': 0.1, "n": 2, "unit": "um", "far": float("inf")}, 5: {"n": 3}}
    (tmp_path / "a.geojson").write_text(write_geojson(found, measured, 'a "cell"'))
    (back, nothing) = read_geojson(tmp_path / "a.geojson")
    np.testing.assert_array_equal(back.parts[0].outer, ring)
    np.testing.assert_array_equal(back.parts[0].holes[0], hole)
    np.testing.assert_array_equal(back.parts[1].outer, hole)
    assert nothing.parts == ()
    features = json.loads((tmp_path / "a.geojson").read_text())["features"]
    told = [feature["properties"]["measurements"] for feature in features]
    assert told == [{'50% "width"': 0.1, "n": 2}, {"n": 3}] and type(told[0]["n"]) is int
    assert write_yolo([Outline(1, (Polygon(ring),))], 4, 8) == f"0 0 0.125 {1 / 24:.8g} 0.125 0.875 0.5625\n"
    assert (write_yolo([], 4, 8), corner_texts([], str, str)) == ("", [])


@pytest.mark.parametrize("labels", PICTURES)
def test_imagej_regions_lead_back_to_the_labels(tmp_path, labels):
    content = write_rois(outlines(labels))
    (tmp_path / "a.zip").write_bytes(content)
    assert content == write_rois(outlines(labels)), "the same each time"
    back = draw_outlines(read_rois(tmp_path / "a.zip"), labels.shape)
    assert same_objects(back, labels)


def test_imagej_regions_are_those_that_roifile_reads():
    roifile = pytest.importorskip("roifile")
    found = outlines(nested())
    with zipfile.ZipFile(io.BytesIO(write_rois(found))) as archive:
        regions = {name: roifile.ImagejRoi.frombytes(archive.read(name)) for name in archive.namelist()}
    assert sorted(regions) == ["00001.roi", "00002.roi", "00003.roi", "00004.roi"]
    plain, holed = regions["00004.roi"], regions["00001.roi"]
    assert sorted(map(tuple, plain.coordinates().tolist())) == [(6, 6), (6, 7), (7, 6), (7, 7)]
    assert (plain.left, plain.top, plain.right, plain.bottom) == (6, 6, 7, 7)
    assert plain.roitype == roifile.ROI_TYPE.TRACED
    simplified = outlines(np.tri(20, dtype=np.int32), tolerance=1.0)
    with zipfile.ZipFile(io.BytesIO(write_rois(simplified))) as archive:
        assert roifile.ImagejRoi.frombytes(archive.read("00001.roi")).roitype == roifile.ROI_TYPE.POLYGON
    rings = holed.coordinates(multi=True)
    assert len(rings) == 2
    assert {tuple(corner) for corner in rings[1].tolist()} == {(1, 1), (12, 1), (1, 12), (12, 12)}


def test_every_imagej_region_has_its_second_header():
    """As ImageJ writes it; read-roi, which looks for channel, slice and frame there, failed without."""
    with zipfile.ZipFile(io.BytesIO(write_rois(outlines(nested())))) as archive:
        regions = [archive.read(name) for name in archive.namelist()]
    for content in regions:
        (at,) = struct.unpack_from(">I", content, 60)
        assert at == len(content) - 64 and struct.unpack_from(">3I", content, at + 4) == (0, 0, 0)


def test_regions_beyond_32767_pixels_are_kept(tmp_path):
    labels = np.zeros((4, 40_000), np.int32)
    labels[1:3, 39_000:39_005] = 1
    (tmp_path / "a.zip").write_bytes(write_rois(outlines(labels)))
    np.testing.assert_array_equal(draw_outlines(read_rois(tmp_path / "a.zip"), labels.shape), labels)


def test_csv_keeps_names_and_numbers(tmp_path):
    rows = [("a, b.png", 1, 0.1234567891), ('say "x"', 2, float("nan"))]
    (tmp_path / "a.csv").write_text(csv_lines([("image", "label", "area"), *rows]))
    back = read_csv(tmp_path / "a.csv")
    assert back[0] == {"image": "a, b.png", "label": "1", "area": "0.1234568"}
    assert back[1] == {"image": 'say "x"', "label": "2", "area": ""}


def test_a_workbook_holds_numbers_and_no_formulas(tmp_path):
    openpyxl = pytest.importorskip("openpyxl")
    rows = [("=1+1", 7, 0.25), ("a.png", 8, float("nan"))]
    book = openpyxl.load_workbook(io.BytesIO(write_xlsx(("image", "label", "area"), rows)))
    cells = list(book["objects"].iter_rows())
    assert [c.value for c in cells[0]] == ["image", "label", "area"] and cells[0][0].font.bold
    assert [c.value for c in cells[1]] == ["=1+1", 7, 0.25] and cells[1][0].data_type == "s"
    assert cells[2][2].value is None


def test_what_cannot_be_written_or_read_is_named(tmp_path, monkeypatch):
    (tmp_path / "a.txt").write_text("0 0.1 0.2 0.3\n")
    with pytest.raises(DataError, match=r"a.txt', line 1 has 3 numbers"):
        read_yolo(tmp_path / "a.txt", 4, 4)
    (tmp_path / "b.txt").write_text("0 0 0 1 1 1 x\n")
    with pytest.raises(DataError, match=r"b.txt', line 1: could not convert string to float: 'x'"):
        read_yolo(tmp_path / "b.txt", 4, 4)
    (tmp_path / "a.json").write_text('{"features": [{"geometry": {"type": "Point"}}]}')
    with pytest.raises(DataError, match=r"a.json' is no GeoJSON with polygons"):
        read_geojson(tmp_path / "a.json")
    (tmp_path / "a.zip").write_bytes(b"PK no")
    with pytest.raises(DataError, match=r"a.zip' is no zip of ImageJ regions"):
        read_rois(tmp_path / "a.zip")
    sound = write_rois(outlines(np.pad(np.ones((5, 5), np.int32), 3)))
    table = sound.index(b"PK\x01\x02")
    (tmp_path / "b.zip").write_bytes(sound[: table + 6] + b"\x63\x00" + sound[table + 8 :])
    with pytest.raises(DataError, match=r"b.zip' is no zip of ImageJ regions: zip file version 9.9"):
        read_rois(tmp_path / "b.zip")
    begin = 30 + sound[26]  # behind the first part's head and name
    (tmp_path / "c.zip").write_bytes(sound[:begin] + b"\xff" * 8 + sound[begin + 8 :])
    with pytest.raises(DataError, match=r"c.zip' is no zip of ImageJ regions: "):
        read_rois(tmp_path / "c.zip")
    monkeypatch.setattr(object_table, "MOST_ROWS", 1)
    with pytest.raises(DataError, match="2 rows do not fit an Excel sheet"):
        write_xlsx(("a",), [(1,), (2,)])
    monkeypatch.setitem(__import__("sys").modules, "openpyxl", None)
    with pytest.raises(EnvironmentUnusable, match=r"openpyxl, which is not installed.*hotlap\[segment\]"):
        write_xlsx(("a",), [])
