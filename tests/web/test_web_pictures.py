"""Pictures over HTTP: one, many, and those that are none."""

from __future__ import annotations

import io
import threading

import pytest

pytest.importorskip("fastapi")
from web_fakes import DEATH, bright_service, client_of, picture

SEGMENT, BATCH = "/api/v1/segment", "/api/v1/batch-segment"


@pytest.fixture(scope="module")
def house():
    runner, service = bright_service(max_delay_s=0.0)
    with client_of(service, max_body_bytes=1_000_000) as client:
        yield client, runner, service


@pytest.fixture
def client(house):
    return house[0]


def send(client, body, **fields):
    return client.post(SEGMENT, files={"file": ("a.png", body)}, data=fields)


def test_a_picture_as_a_form_and_as_the_body_give_the_same(client):
    form = send(client, picture(), model="bright")
    plain = client.post(SEGMENT, content=picture(), headers={"content-type": "image/png"})
    assert form.status_code == plain.status_code == 200, form.text
    for said in (form.json(), plain.json()):
        assert (said["width"], said["height"]) == (8, 4)
        assert said["classes"] == [{"class": 1, "share": 1.0, "box": [0.0, 0.0, 8.0, 4.0]}]
        assert (said["model"], said["threshold"], said["um_per_px"]) == ("bright", 0.5, None)
        assert set(said["seconds"]) == {"decode", "model", "finish", "all"}
    assert (form.json()["file"], plain.json()["file"]) == ("a.png", "upload")
    assert send(client, picture((0, 0, 0))).json()["classes"][0]["class"] == 0


def animated():
    from PIL import Image

    out = io.BytesIO()
    frames = [Image.new("RGB", (4, 4), colour) for colour in ("red", "blue")]
    frames[0].save(out, "GIF", save_all=True, append_images=frames[1:])
    return out.getvalue()


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        (lambda: b"", 422, "'a.png' cannot be read: the file is empty"),
        (lambda: b"GIF89a but not really", 422, "'a.png' cannot be read"),
        (lambda: picture(size=(200, 200), kind="JPEG")[:200], 422, "'a.png' cannot be read"),
        (animated, 422, "'a.png' has 2 frames"),
        (lambda: picture(1, (60_000, 1_100), mode="1"), 413, "60000x1100 pixels"),
        (lambda: picture(1, (60_000, 3_300), mode="1"), 413, "198000000 pixels"),
        (lambda: b"x" * 2_000_000, 413, "larger than 1000000 bytes"),
    ],
    ids=["empty", "text", "truncated", "animated", "huge", "huger", "body"],
)
def test_what_is_no_picture_is_told_so(client, body, status, words):
    answer = send(client, body())
    assert (answer.status_code, words in answer.json()["error"]) == (status, True), answer.text


def test_cmyk_and_one_pixel_are_pictures(client):
    assert send(client, picture((0, 0, 0, 0), kind="JPEG", mode="CMYK")).status_code == 200
    one = send(client, picture(size=(1, 1))).json()
    assert (one["width"], one["height"]) == (1, 1)


@pytest.mark.parametrize(
    ("fields", "status", "words"),
    [
        ({"model": "dark"}, 404, "unknown model 'dark'"),
        ({"threshold": "7"}, 400, "threshold = 7"),
        ({"threshold": "nan"}, 400, "threshold = nan"),
        ({"threshold": "high"}, 400, "threshold = 'high'"),
        ({"deadline_s": "0"}, 400, "deadline = 0 s"),
        ({"deadline_s": "inf"}, 400, "deadline = inf s"),
    ],
)
def test_wrong_options_are_named(client, fields, status, words):
    answer = send(client, picture(), **fields)
    assert (answer.status_code, words in answer.json()["error"]) == (status, True), answer.text


def test_forms_that_are_none_are_refused(client):
    assert client.post(SEGMENT, data={"model": "bright"}, files={"other": b"1"}).status_code == 422
    assert client.post(BATCH, content=b"1").status_code == 422
    broken = client.post(SEGMENT, content=b"--nothing", headers={"content-type": "multipart/form-data"})
    assert broken.status_code == 400
    two = [("file", ("a.png", picture())), ("file", ("b.png", picture()))]
    answer = client.post(SEGMENT, files=two)
    assert (answer.status_code, "at most 1 in one request" in answer.json()["error"]) == (413, True), answer.text
    many = client.post(SEGMENT, files=two[:1], data={f"field {n}": "1" for n in range(17)})
    assert (many.status_code, "16" in many.json()["error"]) == (400, True), many.text


def test_many_pictures_each_get_their_own_answer(client):
    files = [("files", ("a.png", picture())), ("files", ("b.png", b"no")), ("files", ("c.png", picture((0, 0, 0))))]
    said = client.post(BATCH, files=files).json()
    assert (said["total"], said["succeeded"], said["failed"]) == (3, 2, 1)
    first, bad, last = said["results"]
    assert (first["classes"][0]["class"], last["classes"][0]["class"]) == (1, 0)
    assert (bad["success"], bad["status"]) == (False, 422) and "'b.png'" in bad["error"]


def test_too_many_files_are_refused(client):
    for num in (9, 30):
        answer = client.post(BATCH, files=[("files", (f"{i}.png", picture())) for i in range(num)])
        assert (answer.status_code, answer.json()["kind"]) == (413, "TooLarge"), answer.text
        assert "at most 8 in one request" in answer.json()["error"]


def test_a_photograph_with_its_preview_is_one_picture(client):
    from PIL import Image

    out = io.BytesIO()
    Image.new("RGB", (8, 4), "white").save(out, "MPO", save_all=True, append_images=[Image.new("RGB", (4, 2))])
    said = send(client, out.getvalue())
    assert (said.status_code, said.json()["width"]) == (200, 8), said.text


def test_a_file_name_is_never_opened(client, tmp_path):
    there = tmp_path / "there.png"
    there.write_bytes(picture())
    answer = client.post(SEGMENT, files={"file": (str(there), b"not a picture")})
    assert answer.status_code == 422


def test_a_full_queue_says_when_to_come_back_and_a_deadline_ends_the_waiting(no_hang):
    runner, service = bright_service(max_delay_s=0.0, queue_rows=4)
    with client_of(service) as client:
        assert 'hotlap_shed_total{model="bright"} 0' in client.get("/metrics").text
        runner.gate, runner.entered = threading.Event(), threading.Event()
        busy = threading.Thread(target=send, args=(client, picture()))
        busy.start()
        assert runner.entered.wait(10)
        late = send(client, picture(), deadline_s="0.05")
        assert (late.status_code, late.json()["kind"]) == (504, "DeadlineExceeded")
        fillers = [threading.Thread(target=send, args=(client, picture())) for _ in range(4)]
        for thread in fillers:
            thread.start()
        while service.line.depth("bright") < 4:
            pass
        shed = send(client, picture())
        assert (shed.status_code, shed.headers["Retry-After"]) == (429, "1")
        batch = client.post(BATCH, files=[("files", ("a.png", picture()))])
        assert (batch.status_code, batch.headers["Retry-After"]) == (429, "1")
        runner.gate.set()
        for thread in (busy, *fillers):
            thread.join(10)
        assert 'hotlap_shed_total{model="bright"} 2' in client.get("/metrics").text
        status = client.get("/api/v1/status").json()
        assert status["models"]["bright"]["shed"] == 2 and status["workers"] == [{"device": "fake:0", "state": "ready"}]


def test_a_lost_device_is_unavailable_and_not_ready(no_hang):
    runner, service = bright_service(max_delay_s=0.0)
    with client_of(service) as client:
        runner.failing = DEATH
        answer = send(client, picture())
        assert (answer.status_code, answer.headers["Retry-After"]) == (503, "1")
        runner.failing = None
        assert send(client, picture()).status_code == 200
        service.draining = True
        assert client.get("/v2/health/ready").status_code == 503
        refused = send(client, picture())
        assert (refused.status_code, refused.json()["kind"]) == (503, "ShuttingDown")
        assert client.get("/v2/health/live").status_code == 200
