"""Jobs over HTTP: begun, watched, finished, and finished by the next service when the first one ends."""

from __future__ import annotations

import json
import threading
import time

import pytest

pytest.importorskip("fastapi")
from web_fakes import bright_service, client_of, listening, picture

from hotlap.base.errors import StorageError
from hotlap.measure.servable import Decoded
from hotlap.tools.serve.jobs import JobStore

JOBS = "/api/v1/jobs"


@pytest.fixture
def open_store(tmp_path):
    opened = []

    def make():
        opened.append(JobStore(tmp_path / "jobs.sqlite"))
        return opened[-1]

    yield make
    for store in opened:
        store.close()


def begin(client, *bodies):
    files = [("files", (f"{i}.png", body)) for i, body in enumerate(bodies)]
    return client.post(JOBS, files=files, data={"model": "bright"})


def test_a_job_is_taken_watched_and_its_results_are_kept(open_store, no_hang):
    _, service = bright_service(max_delay_s=0.0)
    with client_of(service, store=open_store()) as client:
        began = begin(client, picture(), b"no picture", picture((0, 0, 0)))
        assert (began.status_code, began.json()["total"]) == (202, 3), began.text
        job = began.json()["id"]
        lines = client.get(f"{JOBS}/{job}/events").text.splitlines()
        last = json.loads([line for line in lines if line.startswith("data: ")][-1][6:])
        assert (last["state"], last["done"], last["failed"]) == ("done", 2, 1)
        first, bad, dark = client.get(f"{JOBS}/{job}/results").json()["results"]
        assert first["answer"]["classes"][0]["class"] == 1 and dark["answer"]["classes"][0]["class"] == 0
        assert "'1.png' cannot be read" in bad["error"]
        assert [known["id"] for known in client.get(JOBS).json()["jobs"]] == [job]
        assert client.post(f"{JOBS}/{job}/retry").json()["failed"] == 0
        assert client.delete(f"{JOBS}/{job}").status_code == 204
        assert client.get(f"{JOBS}/{job}").status_code == 404


def test_what_one_service_did_not_finish_the_next_one_does(open_store, no_hang):
    runner, service = bright_service(max_delay_s=0.0)
    runner.gate, runner.entered = threading.Event(), threading.Event()
    first = open_store()
    with client_of(service, store=first) as client:
        job = begin(client, picture(), picture()).json()["id"]
        assert runner.entered.wait(20)
        threading.Timer(0.3, runner.gate.set).start()
    first.close()
    _, second = bright_service(max_delay_s=0.0)
    with client_of(second, store=open_store()) as client:
        while client.get(f"{JOBS}/{job}").json()["state"] != "done":
            time.sleep(0.01)
        assert client.get(f"{JOBS}/{job}").json()["done"] == 2


def test_a_job_can_be_cancelled_and_bad_ones_are_refused(open_store, no_hang):
    runner, service = bright_service(max_delay_s=0.0, queue_rows=4)
    runner.gate, runner.entered = threading.Event(), threading.Event()
    with client_of(service, store=open_store()) as client:
        job = begin(client, *[picture()] * 6).json()["id"]
        assert runner.entered.wait(20)
        assert client.post(f"{JOBS}/{job}/cancel").status_code == 200
        runner.gate.set()
        while (status := client.get(f"{JOBS}/{job}").json())["state"] == "running":
            time.sleep(0.01)
        assert status["state"] == "cancelled" and status["done"] < 6
        assert client.post(JOBS, content=b"1").status_code == 422
        assert client.post(JOBS, files={"other": b"1"}).status_code == 422
        assert client.get(f"{JOBS}/nothing/events").status_code == 404


def test_a_cancelled_job_takes_its_files_out_of_the_line(open_store, no_hang):
    runner, service = bright_service(max_delay_s=0.0)
    runner.gate, runner.entered = threading.Event(), threading.Event()
    with client_of(service, store=open_store()) as client:
        job = begin(client, *[picture()] * 8).json()["id"]
        assert runner.entered.wait(20)
        client.post(f"{JOBS}/{job}/cancel")
        while (status := client.get(f"{JOBS}/{job}").json())["state"] == "running":
            time.sleep(0.01)
        assert (status["state"], status["done"], status["failed"]) == ("cancelled", 0, 0)
        assert service.line.depth("bright") == 0
        forgotten = begin(client, *[picture()] * 2).json()["id"]
        while service.line.depth("bright") < 2:
            time.sleep(0.01)
        client.delete(f"{JOBS}/{forgotten}")
        while service.line.depth("bright"):
            time.sleep(0.01)
        runner.gate.set()
        client.post(f"{JOBS}/{job}/retry")
        while (status := client.get(f"{JOBS}/{job}").json())["state"] == "running":
            time.sleep(0.01)
    assert (status["state"], status["done"]) == ("done", 8)


def watched(client, job, then):
    """The states that a watcher of a job hears; ``then`` is done once it has heard the first."""
    heard = []
    with client.stream("GET", f"{JOBS}/{job}/events") as stream:
        for line in stream.iter_lines():
            if line.startswith("data: "):
                heard.append(json.loads(line[6:])["state"])
                if len(heard) == 1:
                    then()
    return heard


def test_who_watches_a_job_is_let_go_when_it_is_deleted_or_the_service_stops(open_store, no_hang, caplog):
    import httpx2

    runner, service = bright_service(max_delay_s=0.0)
    runner.gate, runner.entered = threading.Event(), threading.Event()
    with listening(service, store=open_store()) as (host, port):
        with httpx2.Client(base_url=f"http://{host}:{port}") as client:
            kept, deleted = (begin(client, picture()).json()["id"] for _ in range(2))
            assert set(watched(client, deleted, lambda: client.delete(f"{JOBS}/{deleted}"))) == {"running"}
            assert client.get("/v2/health/ready").status_code == 200
            assert set(watched(client, kept, lambda: setattr(service, "leaving", True))) == {"running"}
            assert client.get("/v2/health/ready").status_code == 503
        runner.gate.set()
    assert not [record for record in caplog.records if record.exc_info], caplog.text


def test_files_of_a_job_may_stand_in_line_for_longer_than_a_client_would_wait(open_store, no_hang):
    runner, service = bright_service(max_delay_s=0.0, deadline_s=0.2)
    runner.gate, runner.entered = threading.Event(), threading.Event()
    with client_of(service, store=open_store()) as client:
        job = begin(client, *[picture()] * 6).json()["id"]
        assert runner.entered.wait(20)
        threading.Timer(0.5, runner.gate.set).start()
        while (status := client.get(f"{JOBS}/{job}").json())["state"] == "running":
            time.sleep(0.01)
    assert (status["done"], status["failed"]) == (6, 0)
    assert service.counters.value("expired_total") == 0


def test_progress_passes_proxies_at_once_and_head_does_not_wait_for_its_end(open_store, no_hang):
    import httpx2

    runner, service = bright_service(max_delay_s=0.0)
    runner.gate, runner.entered = threading.Event(), threading.Event()
    with listening(service, store=open_store()) as (host, port):
        with httpx2.Client(base_url=f"http://{host}:{port}", timeout=20) as client:
            job = begin(client, picture()).json()["id"]
            assert runner.entered.wait(20)
            asked = client.head(f"{JOBS}/{job}/events")
            assert (asked.status_code, asked.headers["X-Accel-Buffering"]) == (200, "no")
            assert asked.headers["Cache-Control"] == "no-store"
            assert client.get(f"{JOBS}/{job}").json()["state"] == "running"
        runner.gate.set()


def test_a_full_disk_is_told(open_store, no_hang):
    _, service = bright_service(max_delay_s=0.0)
    store = open_store()
    with client_of(service, store=store) as client:
        store._rows("PRAGMA max_page_count = 1")  # as many as there are
        full = begin(client, b"x" * 100_000)
        assert (full.status_code, full.json()["kind"]) == (507, "StorageError"), full.text
        assert "database or disk is full" in full.json()["error"]
        store._rows("PRAGMA max_page_count = 1000000")
        assert begin(client, b"x" * 100_000).status_code == 202


@pytest.mark.parametrize("name", ["take", "finish"])
def test_a_job_outlives_a_disk_that_was_full_for_a_while(open_store, no_hang, name, monkeypatch, caplog):
    _, service = bright_service(max_delay_s=0.0)
    store, refused = open_store(), []
    change = getattr(store, name)

    def full_at_first(*arguments):
        if not refused:
            refused.append(name)
            raise StorageError("jobs cannot be kept: database or disk is full")
        return change(*arguments)

    monkeypatch.setattr(store, name, full_at_first)
    with client_of(service, store=store) as client:
        job = begin(client, picture()).json()["id"]
        while client.get(f"{JOBS}/{job}").json()["state"] != "done":
            time.sleep(0.01)
        assert client.get(f"{JOBS}/{job}").json()["done"] == 1
    assert refused == [name] and "database or disk is full" in caplog.text


def test_the_files_of_a_job_leave_half_of_the_line_to_clients(open_store, no_hang):
    runner, service = bright_service(max_delay_s=0.0, queue_rows=8)
    runner.gate, runner.entered = threading.Event(), threading.Event()

    class Tiles(type(service.servable("bright"))):
        """Cuts each picture into three rows, as a large one is."""

        def decode(self, body, options, signature):
            decoded = super().decode(body, options, signature)
            return Decoded(tuple(rows.repeat(3, 1, 1, 1) for rows in decoded.rows), decoded.facts)

    service.servable("bright").__class__ = Tiles
    deepest = 0
    with client_of(service, store=open_store()) as client:
        job = begin(client, *[picture()] * 8).json()["id"]
        assert runner.entered.wait(20)
        until = time.monotonic() + 1.0
        while time.monotonic() < until:
            deepest = max(deepest, service.line.depth("bright"))
            time.sleep(0.01)
        waiting = threading.Thread(target=client.post, args=("/api/v1/segment",), kwargs={"content": picture()})
        waiting.start()
        while service.line.depth("bright") <= deepest:
            time.sleep(0.001)
        runner.gate.set()
        waiting.join(20)
        while client.get(f"{JOBS}/{job}").json()["state"] != "done":
            time.sleep(0.01)
    assert 0 < deepest <= 4
    assert service.counters.value("shed_total") == 0
    assert service.counters.value("requests_total", ended="ok") == 9
