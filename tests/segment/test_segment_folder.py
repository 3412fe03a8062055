"""A folder of pictures: all results, every bad file named, nothing lost on an interrupt, nothing done twice."""

from __future__ import annotations

import json
import os
import struct
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from bright import as_picture, bright_predictor, discs
from PIL import Image

from hotlap.base.errors import DataError, EnvironmentUnusable, StorageError, UsageError
from hotlap.base.events import ignore
from hotlap.cli.main import run
from hotlap.data.coco import read_coco
from hotlap.data.geojson import read_geojson
from hotlap.data.imagej_roi import read_rois
from hotlap.data.object_table import read_csv
from hotlap.data.tiff import read_pages, write_tiff
from hotlap.kernels.instances import cpu
from hotlap.segment import done, predict
from hotlap.segment.contours import draw_outlines, outlines
from hotlap.segment.exports import TABLES
from hotlap.segment.nets import build_net
from hotlap.segment.predict_config import FORMATS, SegmentPredictConfig
from hotlap.segment.predict_folder import predict_folder

pytest.importorskip("numba")

TRUTH = {
    "a": discs(64, 64, (20, 20, 8), (45, 45, 10)),
    "b": discs(100, 130, (30, 40, 12), (70, 100, 15)),
    "c": discs(40, 50, (20, 25, 7)),
}


@pytest.fixture
def folder(tmp_path):
    """Three good pictures."""
    made = tmp_path / "pictures"
    made.mkdir()
    for name, labels in TRUTH.items():
        Image.fromarray(as_picture(labels)[..., 0]).save(made / f"{name}.png")
    return made


def settings(folder, **given):
    small = {"out": folder.parent / "out", "tile": 64, "overlap": 16, "batch": 2, "workers": 2}
    return SegmentPredictConfig(**{"folder": folder, **small, **given})


def labels_of(out, name):
    (page,) = read_pages(out / "labels" / f"{name}.tif")
    return page.decode()[..., 0]


def contents(out):
    """All results by path."""
    return {str(path.relative_to(out)): path.read_bytes() for path in out.rglob("*") if path.is_file()}


def test_every_format_holds_the_same_objects(folder):
    pytest.importorskip("openpyxl")
    config = settings(folder, formats=FORMATS, simplify_px=0.0)
    answer = predict_folder(config, predictor=bright_predictor())
    out = config.out
    assert (answer.num_images, answer.num_before, answer.num_objects, answer.exit_code) == (3, 0, 5, 0)
    coco = read_coco(out / "coco.json")
    for name, truth in TRUTH.items():
        got = labels_of(out, name)
        assert got.dtype == np.uint16
        np.testing.assert_array_equal(got > 0, truth > 0)
        np.testing.assert_array_equal(draw_outlines(read_geojson(out / "geojson" / f"{name}.geojson"), got.shape), got)
        np.testing.assert_array_equal(draw_outlines(read_rois(out / "roi" / f"{name}.zip"), got.shape), got)
        np.testing.assert_array_equal(coco[f"{name}.png"], got)
        assert len((out / "yolo" / f"{name}.txt").read_text().splitlines()) == truth.max()
        with Image.open(out / "overlays" / f"{name}.jpg") as overlay:
            drawn = np.asarray(overlay)
        coloured = np.ptp(drawn.astype(int), axis=2) > 100  # JPEG tints what is beside a line
        assert coloured.any() and (got[coloured] > 0).all() and drawn.shape == (*truth.shape, 3)
    rows = read_csv(out / "objects.csv")
    assert [(r["image"], r["file"], r["label"]) for r in rows] == [
        ("a", "a.png", "1"), ("a", "a.png", "2"), ("b", "b.png", "1"), ("b", "b.png", "2"), ("c", "c.png", "1")
    ]  # fmt: skip
    assert float(rows[0]["area"]) == (labels_of(out, "a") == 1).sum()
    assert set(answer.files) == {str(out / name) for name in ("objects.csv", "objects.xlsx", "coco.json")}
    assert "5 objects in 3 pictures" in answer.lines()[0]


@pytest.mark.parametrize("kind", FORMATS)
def test_objects_are_outlined_only_for_formats_that_hold_outlines(folder, kind, monkeypatch):
    if kind == "xlsx":
        pytest.importorskip("openpyxl")
    whole, alone = (settings(folder, formats=of, out=folder.parent / "-".join(of)) for of in (FORMATS, (kind,)))
    predict_folder(whole, predictor=bright_predictor())
    asked = []
    monkeypatch.setattr(predict, "outlines", lambda *a, **b: asked.append(1) or outlines(*a, **b))
    predict_folder(alone, predictor=bright_predictor())
    assert bool(asked) == (kind in ("yolo", "roi", "geojson"))
    got = {name: content for name, content in contents(alone.out).items() if not name.startswith(done.FOLDER)}
    want = contents(whole.out)
    assert got and all(content == want[name] for name, content in got.items() if not name.endswith((".xlsx", ".zip")))


@pytest.mark.parametrize("had_lines", [False, True])
def test_what_an_earlier_version_finished_is_in_the_tables(folder, had_lines):
    """Its notes hold rows and annotations, first no lines made of them, and the names of files alone."""
    config = settings(folder, formats=("labels", "csv", "coco"))
    predict_folder(config, predictor=bright_predictor())
    tables = {path: path.read_bytes() for path in (config.out / "objects.csv", config.out / "coco.json")}
    told = json.loads(tables[config.out / "coco.json"])
    for number, note in enumerate(sorted((config.out / "done").glob("*.json")), start=1):
        entry = json.loads(note.read_text())
        rows = [line.split(",")[2:] for line in entry["csv"].splitlines()]
        assert len(rows) == entry.pop("num_objects") > 0
        entry |= {"rows": [[_number(word) for word in row] for row in rows], "files": list(entry["files"])}
        if not had_lines:
            del entry["csv"]
        of_image = [one for one in told["annotations"] if one["image_id"] == number]
        entry["coco"] = [{"id": 0, **entry["coco"][0]}, [{**one, "id": 7, "image_id": 0} for one in of_image]]
        note.write_text(json.dumps(entry))
    for table in tables:
        table.unlink()
    answer = predict_folder(config, predictor=bright_predictor())
    assert answer.num_before == 3 and {table: table.read_bytes() for table in tables} == tables


def _number(word):
    try:
        return int(word)
    except ValueError:
        return word if word == "px" else float(word)


@pytest.mark.parametrize(("size", "later", "again"), [(0, False, 1), (0, True, 0), (50, False, 1), (None, False, 1)])
def test_a_file_that_a_power_cut_left_unfinished_is_written_again(folder, size, later, again):
    """Results are not waited for until they are on the disk; what somebody has changed since stays."""
    config = settings(folder, formats=("labels", "yolo"))
    predict_folder(config, predictor=bright_predictor())
    victim, note = config.out / "labels" / "b.tif", config.out / "done" / "b.json"
    whole = victim.read_bytes()
    if size is None:
        victim.unlink()
    else:
        victim.write_bytes(whole[:size])
        when = note.stat().st_mtime_ns + (10**9 if later else 0)
        os.utime(victim, ns=(when, when))
    assert predict_folder(config, predictor=bright_predictor()).num_images == again
    assert victim.read_bytes() == (whole if again else b"")


def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def test_bad_files_are_named_and_the_rest_goes_on(folder):
    frames = [Image.new("RGB", (8, 8), (n, n, n)) for n in (1, 99)]
    good = (folder / "a.png").read_bytes()
    (folder / "text.png").write_text("no picture")
    (folder / "cut.png").write_bytes(good[: len(good) // 2])
    (folder / "empty.jpg").write_bytes(b"")
    for name in ("moving.png", "moving.gif"):
        frames[0].save(folder / name, save_all=True, append_images=frames[1:])
    (folder / "scope.czi").write_bytes(b"ZISRAWFILE")
    (folder / "slide.svs").write_bytes(write_tiff(np.zeros((8, 8), np.uint8)))
    frames[1].save(folder / "still.webp", lossless=True)
    Image.new("CMYK", (8, 8)).save(folder / "print.jpg")
    (folder / "nan.tif").write_bytes(write_tiff(np.array([[1, np.nan]], np.float32)))
    huge = struct.pack(">IIBBBBB", 60_000, 60_000, 8, 2, 0, 0, 0)
    (folder / "huge.png").write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", huge) + chunk(b"IDAT", b""))
    (folder / "notes.txt").write_text("not looked at")
    (folder / "one.png").write_bytes(b"")
    Image.new("L", (1, 1)).save(folder / "one.png")
    Image.fromarray(as_picture(TRUTH["c"])[..., 0].astype(np.uint16) * 100).save(folder / "deep.tif")
    heard = []
    answer = predict_folder(settings(folder), heard.append, predictor=bright_predictor())
    reasons = {
        "text.png": "no known picture format", "cut.png": "", "empty.jpg": "the file is empty",
        "moving.png": "animated: 2 frames", "moving.gif": "animated: 2 frames", "print.jpg": "CMYK",
        "scope.czi": "no known picture format", "nan.tif": "1 of its 2 numbers are NaN", "slide.svs": "kind of TIFF",
        "huge.png": "60000x60000 pixels are more than most_pixels",
    }  # fmt: skip
    assert set(answer.bad) == set(reasons) and answer.exit_code == 1
    for name, words in reasons.items():
        assert words in answer.bad[name] and answer.bad[name]
        assert any(e.kind == "warn" and name in e.text for e in heard)
        assert any(f"skipped {name}: " in line for line in answer.lines())
    assert answer.num_images == 6 and answer.num_objects == 6
    np.testing.assert_array_equal(labels_of(folder.parent / "out", "deep") > 0, TRUTH["c"] > 0)


def test_a_very_wide_picture_is_cut_and_put_together(tmp_path):
    (tmp_path / "wide").mkdir()
    labels = discs(24, 60_000, (12, 30, 9), (12, 30_000, 9), (12, 59_980, 9))
    Image.fromarray(as_picture(labels)[..., 0]).save(tmp_path / "wide" / "a.png")
    config = settings(tmp_path / "wide", tile=1024, overlap=64, batch=8, formats=("labels",))
    predictor = bright_predictor()
    assert predict_folder(config, predictor=predictor).num_objects == 3
    assert {shape[0] for shape in predictor.model.seen[:-1]} == {8}
    np.testing.assert_array_equal(labels_of(config.out, "a") > 0, labels > 0)


def test_finished_pictures_are_not_done_again_unless_something_changed(folder):
    config = settings(folder)
    predict_folder(config, predictor=bright_predictor())
    before = contents(config.out)
    os.utime(folder / "a.png", (1, 1))
    again = bright_predictor()
    answer = predict_folder(config, predictor=again)
    assert again.model.seen == [] and (answer.num_images, answer.num_before, answer.num_objects) == (0, 3, 5)
    assert contents(config.out) == before

    (folder / "a.png").write_bytes((folder / "c.png").read_bytes())
    answer = predict_folder(config, predictor=bright_predictor())
    assert (answer.num_images, answer.num_before, answer.num_objects) == (1, 2, 4)
    (config.out / "labels" / "b.tif").unlink()
    assert predict_folder(config, predictor=bright_predictor()).num_images == 1
    assert predict_folder(settings(folder, threshold=0.6), predictor=bright_predictor()).num_images == 3
    other = bright_predictor()
    other.digest = "other weights"
    assert predict_folder(settings(folder, threshold=0.6), predictor=other).num_images == 3
    assert predict_folder(settings(folder, redo=True), predictor=bright_predictor()).num_images == 3


def test_an_interrupt_loses_nothing_and_the_rest_is_done_later(folder):
    for n in range(12):
        Image.fromarray(as_picture(TRUTH["a"])[..., 0]).save(folder / f"more{n:02d}.png")
    whole = settings(folder, out=folder.parent / "whole")
    predict_folder(whole, predictor=bright_predictor())

    heard = []

    def impatient(event):
        heard.append(event)
        if event.kind == "advance":
            impatient.count += 1
            if impatient.count == 4:
                raise KeyboardInterrupt

    impatient.count = 0
    config = settings(folder)
    with pytest.raises(KeyboardInterrupt):
        predict_folder(config, impatient, predictor=bright_predictor())
    finished = sorted(p.stem for p in (config.out / "done").glob("*.json"))
    assert 4 <= len(finished) < 15
    assert f"{len(finished)} pictures are finished in {config.out}" in next(e.text for e in heard if e.kind == "warn")
    assert {r["image"] for r in read_csv(config.out / "objects.csv")} == set(finished)
    assert not list(config.out.rglob(".*")), "no half-written file is left"
    answer = predict_folder(config, predictor=bright_predictor())
    assert answer.num_before == len(finished) and answer.num_images == 15 - len(finished)
    assert contents(config.out) == contents(whole.out)


def test_tables_keep_what_was_finished_before_when_a_later_run_fails(folder):
    config = settings(folder)
    predict_folder(config, predictor=bright_predictor())
    table = (config.out / "objects.csv").read_bytes()
    sizes = folder.parent / "none.json"
    with pytest.raises(DataError, match=r"none\.json' cannot be read"):
        predict_folder(settings(folder, batch=None, batch_sizes=sizes), predictor=bright_predictor())
    assert (config.out / "objects.csv").read_bytes() == table
    Image.fromarray(as_picture(TRUTH["a"])[..., 0]).save(folder / "0.png")  # comes before the finished ones
    failing = bright_predictor()
    failing.model.forward = lambda image: 1 / 0
    with pytest.raises(ZeroDivisionError):
        predict_folder(settings(folder, workers=1), predictor=failing)
    assert (config.out / "objects.csv").read_bytes() == table
    with pytest.raises(ZeroDivisionError):
        predict_folder(settings(folder, threshold=0.6), predictor=failing)
    assert (config.out / "objects.csv").read_bytes() == table, "nothing finished: nothing to write"


def test_without_openpyxl_no_work_is_done(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "openpyxl", None)
    predictor = bright_predictor()
    with pytest.raises(EnvironmentUnusable, match="openpyxl"):
        predict_folder(settings(folder, formats=("csv", "xlsx")), predictor=predictor)
    assert not predictor.model.seen


def test_a_result_that_cannot_be_written_ends_the_run_with_its_name(folder):
    config = settings(folder)
    config.out.mkdir()
    (config.out / "labels").write_text("in the way")
    with pytest.raises(StorageError, match=r"cannot write .*labels': File exists"):
        predict_folder(config, predictor=bright_predictor())
    assert not list((config.out / "done").glob("*.json"))


@pytest.mark.parametrize(("length", "fits"), [(247, True), (248, False), (251, False)])
def test_a_name_too_long_for_results_is_named_and_the_rest_goes_on(folder, length, fits):
    """Of 255 letters at most, outlines' names end with eight and notes' with five."""
    name = "x" * length
    (folder / "a.png").rename(folder / f"{name}.png")
    answer = predict_folder(settings(folder, formats=("csv", "geojson")), predictor=bright_predictor())
    reason = f"its results cannot be written: the name '{name}' is too long. Rename the file."
    assert (answer.num_images, answer.bad) == ((3, {}) if fits else (2, {f"{name}.png": reason}))


def test_results_of_other_settings_are_never_taken_for_finished_ones(folder, monkeypatch):
    """A disk is full, or a run killed, when some of a picture's files are new and others not."""
    few, many = (settings(folder, min_area=area, formats=("labels", "yolo"), workers=1) for area in (200, 10))
    predict_folder(few, predictor=bright_predictor())
    whole, write = contents(few.out), done.write_atomic

    def full(path, content, **given):
        if path.name == "a.txt":
            raise StorageError(f"cannot write {path}: No space left on device")
        write(path, content, **given)

    monkeypatch.setattr(done, "write_atomic", full)
    with pytest.raises(StorageError, match="No space left"):
        predict_folder(many, predictor=bright_predictor())
    monkeypatch.undo()
    assert predict_folder(few, predictor=bright_predictor()).num_images >= 1
    assert contents(few.out) == whole


def test_pages_are_pictures_and_only_missing_ones_are_done_again(folder):
    pages = [Image.fromarray(as_picture(TRUTH["a"])[..., 0]) for _ in range(3)]
    pages[0].save(folder / "stack.tif", save_all=True, append_images=pages[1:])
    config = settings(folder)
    assert predict_folder(config, predictor=bright_predictor()).num_images == 6
    names = [f"stack_page{n:04d}" for n in range(3)]
    for name in names:
        np.testing.assert_array_equal(labels_of(config.out, name) > 0, TRUTH["a"] > 0)
    (config.out / "done" / "stack_page0001.json").unlink()
    again = bright_predictor()
    answer = predict_folder(config, predictor=again)
    assert (answer.num_images, answer.num_before) == (1, 5) and sum(shape[0] for shape in again.model.seen) == 1


def test_what_is_finished_is_listed_once_however_many_files_there_are(folder, monkeypatch):
    listed = []
    for name in ("listdir", "scandir"):
        ways = getattr(os, name)
        monkeypatch.setattr(os, name, lambda path=".", ways=ways: listed.append(Path(path).name) or ways(path))
    assert predict_folder(settings(folder, workers=1), predictor=bright_predictor()).num_images == 3
    assert listed.count("done") == 1


def test_files_of_one_stem_keep_results_apart(folder):
    Image.fromarray(as_picture(TRUTH["c"])[..., 0]).save(folder / "a.tif")
    config = settings(folder)
    predict_folder(config, predictor=bright_predictor())
    assert labels_of(config.out, "a_png").shape == (64, 64) and labels_of(config.out, "a_tif").shape == (40, 50)


def test_no_two_pictures_share_a_name_whatever_they_are_called(folder):
    """Each of these is a different size, and once overwrote another's results."""
    sizes = {"x.png": 20, "x.bmp": 21, "x_png.bmp": 22, "x_bmp.png": 23, "s_page0001.png": 24}
    for name, size in sizes.items():
        Image.fromarray(as_picture(discs(size, size, (9, 9, 6)))[..., 0]).save(folder / name)
    pages = [Image.fromarray(as_picture(TRUTH["a"])[..., 0]) for _ in range(2)]
    pages[0].save(folder / "s.tif", save_all=True, append_images=pages[1:])
    config = settings(folder)
    answer = predict_folder(config, predictor=bright_predictor())
    assert answer.num_images == 3 + len(sizes) + 2
    shown = {row["file"]: row["image"] for row in read_csv(config.out / "objects.csv")}
    for name, size in sizes.items():
        assert labels_of(config.out, shown[name]).shape == (size, size)
    for n in range(2):
        assert labels_of(config.out, f"s_page{n:04d}").shape == (64, 64)
    assert predict_folder(config, predictor=bright_predictor()).num_images == 0


def test_pages_of_a_copy_are_not_counted_as_those_of_a_stack(folder):
    pages = [Image.fromarray(as_picture(TRUTH["a"])[..., 0]) for _ in range(2)]
    for name in ("s.tif", "s_page7.tif"):
        pages[0].save(folder / name, save_all=True, append_images=pages[1:])
    config = settings(folder)
    first, again = (predict_folder(config, predictor=bright_predictor()) for _ in range(2))
    assert (first.num_images, again.num_images, again.num_before) == (7, 0, 7)


def test_a_bad_page_is_named_and_the_others_go_on(folder):
    page = as_picture(TRUTH["a"])[..., 0].astype(np.float32)
    bad = page.copy()
    bad[3, 4] = np.nan
    pytest.importorskip("tifffile").imwrite(folder / "s.tif", np.stack([page, bad, page, bad, page]))
    config = settings(folder)
    answer = predict_folder(config, predictor=bright_predictor())
    one = "of its 4096 numbers are NaN or infinite"
    assert answer.bad == {"s.tif": f"page 1: 1 {one}; page 3: 1 {one}"} and answer.exit_code == 1
    assert answer.num_images == 6
    for n in (0, 2, 4):
        np.testing.assert_array_equal(labels_of(config.out, f"s_page{n:04d}") > 0, TRUTH["a"] > 0)
    again = predict_folder(config, predictor=bright_predictor())
    assert (again.num_images, again.num_before, again.bad) == (0, 6, answer.bad)


def test_pages_can_be_told_apart_in_coco(folder):
    pages = [Image.fromarray(as_picture(TRUTH[name])[..., 0]) for name in ("a", "b")]
    pages[0].save(folder / "stack.tif", save_all=True, append_images=pages[1:])
    config = settings(folder, formats=("labels", "coco"))
    predict_folder(config, predictor=bright_predictor())
    found = read_coco(config.out / "coco.json")
    assert set(found) == {"a.png", "b.png", "c.png", "stack.tif:0", "stack.tif:1"}
    for n in range(2):
        np.testing.assert_array_equal(found[f"stack.tif:{n}"], labels_of(config.out, f"stack_page{n:04d}"))


@pytest.mark.parametrize("name", [b"caf\xe9.png", b"a\x01b.png"])
def test_a_name_that_no_table_can_hold_costs_no_table(folder, name):
    pytest.importorskip("openpyxl")
    with open(os.fsencode(folder) + b"/" + name, "wb") as file:
        Image.fromarray(as_picture(TRUTH["a"])[..., 0]).save(file, "PNG")
    config = settings(folder, formats=FORMATS)
    assert predict_folder(config, predictor=bright_predictor()).num_images == 4
    rows = read_csv(config.out / "objects.csv")
    assert len(rows) == 7 and sum("\N{REPLACEMENT CHARACTER}" in row["file"] for row in rows) == 2
    assert set(TABLES.values()) <= {path.name for path in config.out.iterdir()}


def test_an_answer_that_is_no_number_is_not_taken_for_an_empty_picture(folder):
    """As scores beyond the range of 16 bits have it."""
    predictor = bright_predictor()
    right = predictor.model.forward
    predictor.model.forward = lambda image: right(image) * (torch.nan if len(predictor.model.seen) == 1 else 1)
    config = settings(folder, batch=1, workers=1)
    answer = predict_folder(config, predictor=predictor)
    ((file, reason),) = answer.bad.items()
    assert "the network's answer is NaN at " in reason and "an arm of fp32" in reason
    assert answer.num_images == 2 and answer.exit_code == 1
    assert f"{Path(file).stem}.json" not in {path.name for path in (config.out / "done").iterdir()}
    assert predict_folder(config, predictor=bright_predictor()).num_images == 1


def test_progress_counts_pages_and_ends_where_it_should(folder):
    pages = [Image.fromarray(as_picture(TRUTH["a"])[..., 0]) for _ in range(9)]
    pages[0].save(folder / "stack.tif", save_all=True, append_images=pages[1:])
    (folder / "bad.png").write_bytes(b"")
    for _ in range(2):
        heard = []
        predict_folder(settings(folder), heard.append, predictor=bright_predictor())
        told = [(event.done, event.total) for event in heard if event.kind == "advance"]
        assert all(done <= total for done, total in told) and told[-1] == (13, 13)


def test_the_tuned_batch_reaches_the_network(folder):
    for n in range(5):
        Image.fromarray(as_picture(TRUTH["a"])[..., 0]).save(folder / f"more{n}.png")
    sizes = folder.parent / "batch_sizes.json"
    sizes.write_text(json.dumps({"batch_configurations": {"bright": {"optimal_batch_size": 5}}}))
    predictor = bright_predictor()
    predict_folder(settings(folder, batch=None, batch_sizes=sizes), predictor=predictor)
    assert (5, 3, 64, 64) in predictor.model.seen and max(shape[0] for shape in predictor.model.seen) == 5
    predictor.model.seen.clear()
    predict_folder(settings(folder, batch=4, batch_sizes=sizes, redo=True), predictor=predictor)
    assert max(shape[0] for shape in predictor.model.seen) == 4, "the user's own wins"


@pytest.mark.parametrize(
    ("content", "words"),
    [('{"a": 1}', r"batch_sizes.json' holds no batch sizes: KeyError\('batch_configurations'\)"),
     ('{"batch_configurations": {"brigth": {}}}', r"has no batch size for 'bright'. Did you mean 'brigth'"),
     ('{"batch_configurations": {"bright": {"optimal_batch_size": 0}}}', "optimal_batch_size of 'bright' is 0")],
)  # fmt: skip
def test_batch_sizes_that_will_not_do_are_named(folder, content, words):
    sizes = folder.parent / "batch_sizes.json"
    sizes.write_text(content)
    with pytest.raises(UsageError, match=words):
        predict_folder(settings(folder, batch=None, batch_sizes=sizes), predictor=bright_predictor())


def test_without_numba_the_results_are_the_same_and_the_user_is_told(folder, monkeypatch):
    for name in ("a", "b"):
        (folder / f"{name}.png").unlink()
    config = settings(folder)
    predict_folder(config, predictor=bright_predictor())
    fast = labels_of(config.out, "c")
    monkeypatch.setattr(cpu, "find_spec", lambda name: None)
    heard = []
    predict_folder(settings(folder, redo=True), heard.append, predictor=bright_predictor())
    np.testing.assert_array_equal(labels_of(config.out, "c"), fast)
    assert any(e.kind == "warn" and "numba is not installed" in e.text and "hotlap[segment]" in e.text for e in heard)


def test_folders_that_will_not_do_are_named(tmp_path, folder):
    (tmp_path / "nothing").mkdir()
    with pytest.raises(DataError, match=r"nothing' holds no pictures"):
        predict_folder(settings(tmp_path / "nothing"), ignore, predictor=bright_predictor())
    (tmp_path / "nothing" / "week 1").mkdir()
    with pytest.raises(DataError, match=r"Folders in it are not looked into.*such as '.*/nothing/week 1'"):
        predict_folder(settings(tmp_path / "nothing"), ignore, predictor=bright_predictor())
    with pytest.raises(DataError, match=r"folder 'no/where' does not exist"):
        predict_folder(settings(Path("no/where")), predictor=bright_predictor())
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match=r"folder '.*/file' is a file\. Expected a folder"):
        predict_folder(settings(tmp_path / "file"), predictor=bright_predictor())
    with pytest.raises(StorageError, match=r"out = .*file/out' cannot be written: Not a directory"):
        predict_folder(settings(folder, out=tmp_path / "file" / "out"), predictor=bright_predictor())


def test_the_command_line_answers_with_json_and_its_exit_code(folder, capsys):
    torch.manual_seed(0)
    weights = folder.parent / "unet.pt"
    torch.save(build_net("unet", maps=2, width=2).state_dict(), weights)
    (folder / "text.png").write_text("no picture")
    out = folder.parent / "out"
    arguments = ["segment", "predict", folder, "--model", weights, "--out", out, "--device", "cpu", "--workers", "1"]
    assert run([*map(str, arguments), "--json", "--formats", "labels,coco"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert told["num_images"] == 3 and told["bad"] == {"text.png": "no known picture format"}
    assert labels_of(out, "b").shape == (100, 130) and len(read_coco(out / "coco.json")) == 3
    (folder / "text.png").unlink()
    assert run([str(a) for a in arguments] + ["--formats", "labels,coco"]) == 0
    assert "(3 were finished before)" in capsys.readouterr().out
    assert run([*map(str, arguments), "--tile", "1000"]) == 2
    assert "tile = 1000 is not valid" in capsys.readouterr().err
