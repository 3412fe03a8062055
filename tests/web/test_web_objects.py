"""Objects over HTTP, from a small network in this process: the shape of every answer, a word for each bad picture."""

from __future__ import annotations

import io
import time

import numpy as np
import pytest

pytest.importorskip("fastapi")
from web_fakes import client_of, picture

from hotlap.data.drawn_cells import draw_cells
from hotlap.data.tiff import write_tiff
from hotlap.measure.servable import ModelSpec
from hotlap.segment.objects import COLUMNS
from hotlap.segment.served import SegmentServable
from hotlap.tools.serve import Service, ServiceSettings
from hotlap.tools.serve.jobs import JobStore
from hotlap.tools.serve.runner import LocalRunner

Image = pytest.importorskip("PIL.Image")
SEGMENT = "/api/v1/segment"
OPTIONS = {"model": "unet", "width": 2, "size": 64, "batch": 2}


class Bright(SegmentServable):
    """A network that takes what is bright for objects, so that what is found is known."""

    def finish(self, out, facts, options):
        assert out[0].shape[1] == 2
        return super().finish((self._seen[:, :2].float() / 255,), facts, options)

    def decode(self, body, options, signature):
        decoded = super().decode(body, options, signature)
        self._seen = decoded.rows[0]
        return decoded


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    servables = {"cells": Bright(ModelSpec(name="cells", target="cells", options=OPTIONS))}
    service = Service(servables, [LocalRunner("cpu", servables)], ServiceSettings(max_delay_s=0.0))
    store = JobStore(tmp_path_factory.mktemp("jobs") / "jobs.sqlite")
    with client_of(service, store=store) as client:
        yield client
    store.close()


def two_squares():
    pixels = np.zeros((40, 50), np.uint8)
    pixels[4:14, 5:15] = pixels[20:36, 24:44] = 255
    pixels[24:30, 30:36] = 0
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, "PNG")
    return out.getvalue()


def check(said):
    """What every answer with objects must hold."""
    assert (said["model"], said["width"], said["height"], said["threshold"]) == ("cells", 50, 40, 0.5)
    small, large = said["objects"]
    assert sorted(small["polygon"]) == [[5, 4], [5, 14], [15, 4], [15, 14]] and small["holes"] == []
    assert len(large["holes"]) == 1 and sorted(large["holes"][0]) == [[30, 24], [30, 30], [36, 24], [36, 30]]
    assert set(small["metrics"]) == set(COLUMNS) - {"label", "confidence"}
    assert (small["id"], large["id"]) == (1, 2) and 0 <= small["confidence"] <= 1
    assert set(said["seconds"]) == {"decode", "model", "finish", "all"}
    return small, large


def test_a_picture_is_answered_with_its_objects(client):
    answer = client.post(SEGMENT, files={"file": ("a.png", two_squares())}, data={"um_per_px": "0.5"})
    assert (answer.status_code, answer.headers["content-type"]) == (200, "application/json"), answer.text
    said = answer.json()
    small, large = check(said)
    assert (said["file"], said["um_per_px"]) == ("a.png", 0.5)
    assert (small["metrics"]["area"], large["metrics"]["area"], large["metrics"]["unit"]) == (25.0, 71.0, "um")
    (only,) = client.get("/api/v1/models").json()["models"]
    assert (only["answers"], only["threshold"]) == ("objects", 0.5)


def test_many_pictures_and_jobs_hold_the_same(client, no_hang):
    files = [("files", ("a.png", two_squares())), ("files", ("b.png", b"no"))]
    good, bad = client.post("/api/v1/batch-segment", files=files).json()["results"]
    check(good)
    assert (good["success"], good["file"], bad["success"], bad["status"]) == (True, "a.png", False, 422)
    job = client.post("/api/v1/jobs", files=files, data={"um_per_px": "0.5"}).json()["id"]
    while client.get(f"/api/v1/jobs/{job}").json()["state"] == "running":
        time.sleep(0.01)
    first, second = client.get(f"/api/v1/jobs/{job}/results").json()["results"]
    check(first["answer"])
    assert first["answer"]["um_per_px"] == 0.5 and "'b.png' cannot be read" in second["error"]


def animated():
    out = io.BytesIO()
    frames = [Image.new("RGB", (4, 4), colour) for colour in ("red", "blue")]
    frames[0].save(out, "GIF", save_all=True, append_images=frames[1:])
    return out.getvalue()


def half_floats():
    pixels = np.ones((6, 6), np.float16)
    pixels[2, 3] = np.nan
    return write_tiff(pixels)


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        (lambda: b"", 422, "the file is empty"),
        (lambda: b"%PDF-1.7 is no picture", 422, "no known picture format"),
        (lambda: picture(size=(200, 200), kind="JPEG")[:200], 422, "'a.png' cannot be read"),
        (animated, 422, "it is animated: 2 frames"),
        (lambda: picture((0, 0, 0, 0), kind="JPEG", mode="CMYK"), 422, "its colours are CMYK"),
        (lambda: picture(1, (60_000, 1_100), mode="1"), 413, "60000x1100 pixels"),
        (half_floats, 422, "1 of its 36 numbers are NaN or infinite"),
    ],
    ids=["empty", "pdf", "truncated", "animated", "cmyk", "wide", "nan"],
)
def test_what_cannot_be_read_is_told(client, body, status, words):
    answer = client.post(SEGMENT, files={"file": ("a.png", body())})
    assert (answer.status_code, words in answer.json()["error"]) == (status, True), answer.text


@pytest.mark.parametrize(
    ("fields", "status", "words"),
    [
        ({"threshold": "7"}, 400, "threshold = 7"),
        ({"threshold": "0"}, 400, "threshold = 0.0"),
        ({"um_per_px": "-2"}, 400, "um_per_px = -2"),
        ({"um_per_px": "wide"}, 400, "um_per_px = 'wide'"),
        ({"class": "1.5"}, 400, "class = 1.5"),
        ({"model": "hrnte"}, 404, "unknown model 'hrnte'"),
    ],
)
def test_wrong_options_are_named(client, fields, status, words):
    answer = client.post(SEGMENT, files={"file": ("a.png", picture())}, data=fields)
    assert (answer.status_code, words in answer.json()["error"]) == (status, True), answer.text


def test_pictures_of_any_size_and_depth_are_taken(client):
    long = np.zeros((3, 700), np.uint8)
    sixteen = (draw_cells(0, size=32, seed=0)[0][..., 0].astype(np.uint16)) * 200
    for body, size in ((picture(size=(1, 1)), (1, 1)), (write_tiff(long), (700, 3)), (write_tiff(sixteen), (32, 32))):
        answer = client.post(SEGMENT, files={"file": ("a", body)})
        assert (answer.status_code, (answer.json()["width"], answer.json()["height"])) == (200, size), answer.text
