"""Objects after edits over HTTP, and past runs with their reports."""

from __future__ import annotations

import json
import threading

import pytest

pytest.importorskip("fastapi")
from web_fakes import bright_service, client_of

from hotlap.records.environment import capture
from hotlap.records.run import begin, save
from hotlap.web.editing import DrawnPictures

SQUARE = {"id": 7, "polygon": [[2, 2], [12, 2], [12, 9], [2, 9]], "holes": [], "confidence": 0.9}
PICTURE = {"file": "a.png", "width": 64, "height": 48, "um_per_px": 0.5, "model": "hrnet", "objects": [SQUARE]}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A folder with a run, and a file beside it that nobody may read."""
    root = tmp_path_factory.mktemp("place") / "runs"
    folder = root / "demo" / "20261115-101500"
    folder.mkdir(parents=True)
    record = begin("bench", "demo", {"target": "unet"}, {}, capture(import_torch=False, ask_driver=False))
    save(record, folder)
    (root / "broken" / "20261114-101500").mkdir(parents=True)
    (root / "broken" / "20261114-101500" / "record.json").write_text("{")
    (root.parent / "record.json").write_text("secret")
    return root


@pytest.fixture(scope="module")
def client(runs):
    _, service = bright_service(max_delay_s=0.0)
    with client_of(service, runs=runs) as client:
        yield client


def test_edited_objects_come_back_with_fresh_metrics(client):
    answer = client.post("/api/v1/measure", json=PICTURE)
    assert answer.status_code == 200, answer.text
    (only,) = answer.json()["objects"]
    assert {name: only[name] for name in SQUARE} == SQUARE
    assert (only["metrics"]["area"], only["metrics"]["unit"]) == (70 * 0.25, "um")
    thin = {**PICTURE, "objects": [{"id": 1, "polygon": [[0, 0], [0.1, 0], [0, 0.1]]}]}
    assert client.post("/api/v1/measure", json=thin).json()["objects"][0]["metrics"] == {}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"width": 0}, "body.width"),
        ({"um_per_px": 0}, "body.um_per_px"),
        ({"objects": [{**SQUARE, "polygon": [[1, 2]]}]}, "body.objects.0.polygon"),
        ({"objects": [{**SQUARE, "polygon": [[1, 2, 3]] * 3}]}, "body.objects.0.polygon.0"),
        ({"objects": [{**SQUARE, "polygon": [[1e300, 2], [1, 1], [2, 2]]}]}, "body.objects.0.polygon.0.0"),
        ({"objects": [{**SQUARE, "id": 0}]}, "body.objects.0.id"),
        ({"objects": "all"}, "body.objects"),
    ],
)
def test_wrong_objects_are_named(client, changes, words):
    answer = client.post("/api/v1/measure", json={**PICTURE, **changes})
    assert (answer.status_code, words in answer.json()["error"]) == (422, True), answer.text


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "body: Invalid JSON"),
        (b'{"pictures": [', "body: Invalid JSON"),
        (b"[]", "body: "),
        (b"{}", "body.pictures: Field required"),
        (b'{"pictures": []}', "body.pictures: "),
        (json.dumps({"pictures": [PICTURE, {**PICTURE, "width": 0}]}).encode(), "body.pictures.1.width: "),
        (b'{"pictures": [{"width": 1, "height": 1, "objects": [{"id": 1, "polygon": [[1, NaN]]}]}]}', "body"),
    ],
)
def test_what_cannot_be_exported_is_named(client, body, words):
    answer = client.post("/api/v1/export/csv", content=body, headers={"Content-Type": "application/json"})
    assert (answer.status_code, answer.json()["kind"]) == (422, "ValidationError"), answer.text
    assert answer.json()["error"].startswith(words)


def test_what_is_exported_is_read_once_and_beside_the_loop(client, monkeypatch):
    """FastAPI's own way, by Python's objects, takes seconds for many pictures, in which nobody else is answered."""
    read_by = []
    read = DrawnPictures.model_validate_json
    monkeypatch.setattr(
        DrawnPictures, "model_validate_json", lambda body: read_by.append(threading.current_thread().name) or read(body)
    )
    assert client.post("/api/v1/export/csv", json={"pictures": [PICTURE]}).status_code == 200
    assert read_by and read_by[0].startswith("asyncio_")


def test_more_than_is_measured_at_once_is_told_so(client):
    whole = {"id": 1, "polygon": [[0, 0], [8000, 0], [8000, 8000], [0, 8000]]}
    for changes, words in (
        ({"width": 60_000, "height": 60_000}, "60000x60000 pixels"),
        ({"width": 8000, "height": 8000, "objects": [{**whole, "id": n} for n in (1, 2)]}, "span 1.28e+08 pixels"),
    ):
        answer = client.post("/api/v1/measure", json={**PICTURE, **changes})
        assert (answer.status_code, words in answer.json()["error"]) == (413, True), answer.text


def test_every_format_that_is_listed_is_handed_out(client):
    listed = client.get("/api/v1/export").json()
    assert {one["format"] for one in listed} == {"labels", "coco", "yolo", "roi", "geojson", "csv", "xlsx"}
    for one in listed:
        answer = client.post(f"/api/v1/export/{one['format']}", json={"pictures": [PICTURE]})
        assert answer.status_code == 200, answer.text
        name = answer.headers["Content-Disposition"].partition('filename="')[2].rstrip('"')
        assert name.endswith(one["suffix"]) and answer.content
    many = client.post("/api/v1/export/geojson", json={"pictures": [PICTURE, PICTURE]})
    assert 'filename="geojson.zip"' in many.headers["Content-Disposition"]
    assert client.post("/api/v1/export/psd", json={"pictures": [PICTURE]}).status_code == 404
    assert client.post("/api/v1/export/csv", json={"pictures": []}).status_code == 422


def test_runs_are_listed_newest_first_and_broken_ones_say_so(client):
    first, second = client.get("/api/v1/runs").json()
    assert (first["run"], first["tool"], first["target"], first["report"]) == (
        "demo/20261115-101500", "bench", "unet", False,
    )  # fmt: skip
    assert first["when"] and second["status"] == "unreadable"


def test_a_report_is_drawn_kept_apart_and_nothing_else_is_opened(client, runs):
    answer = client.get("/api/v1/runs/demo/20261115-101500/report")
    assert answer.status_code == 200 and "<html" in answer.text
    assert "sandbox allow-scripts" in answer.headers["Content-Security-Policy"]
    assert "allow-same-origin" not in answer.headers["Content-Security-Policy"]
    (runs / "demo" / "20261115-101500" / "report.html").write_text("<html>kept</html>")
    assert client.get("/api/v1/runs/demo/20261115-101500/report").text == "<html>kept</html>"
    assert client.get("/api/v1/runs").json()[0]["report"] is True
    for path in ("..%2f..", "demo/..", "%2e%2e/%2e%2e", "demo/20261115", "broken/..%2f..%2f.."):
        answer = client.get(f"/api/v1/runs/{path}/report")
        assert answer.status_code == 404 and "secret" not in answer.text
    broken = client.get("/api/v1/runs/broken/20261114-101500/report")
    assert (broken.status_code, json.loads(broken.text)["kind"]) == (400, "RecordError")


def test_models_say_what_they_answer(client):
    (only,) = client.get("/api/v1/models").json()["models"]
    assert (only["name"], only["answers"], only["threshold"]) == ("bright", "classes", 0.5)
