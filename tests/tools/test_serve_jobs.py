"""Jobs in their store: on disk, taken once, kept through a restart, tried again where that makes sense."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from hotlap.base.errors import StorageError, UnknownName
from hotlap.tools.serve.job_runner import JobRunner
from hotlap.tools.serve.jobs import JobStore

FILES = [("a.png", b"one"), ("b.png", b"two"), ("c.png", b"three")]


@pytest.fixture
def store(tmp_path):
    opened = JobStore(tmp_path / "deep" / "jobs.sqlite")
    yield opened
    opened.close()


def states(store, job):
    return [result["state"] for result in store.results(job)]


def test_files_are_taken_once_and_in_order(store):
    first = store.add("bright", {"threshold": 0.5}, FILES)
    store.add("bright", {}, FILES[:1])
    taken = store.take(4)
    assert [(work.name, work.body) for work in taken] == [*FILES, FILES[0]]
    assert (taken[0].job, taken[0].options, taken[0].model) == (first, {"threshold": 0.5}, "bright")
    assert store.take(4) == []


def test_answers_and_errors_are_kept_file_by_file(store):
    job = store.add("bright", {}, FILES)
    good, bad, _ = store.take(3)
    store.finish(good, b'{"classes": [1]}')
    store.fail(bad, "no picture", again=False)
    assert store.results(job)[:2] == [
        {"filename": "a.png", "state": "done", "answer": {"classes": [1]}, "error": None},
        {"filename": "b.png", "state": "failed", "answer": None, "error": "no picture"},
    ]
    status = store.status(job)
    assert (status["state"], status["done"], status["failed"], status["running"]) == ("running", 1, 1, 1)


def test_a_restart_loses_nothing_and_runs_again_what_was_running(tmp_path):
    path = tmp_path / "jobs.sqlite"
    before = JobStore(path)
    job = before.add("bright", {}, FILES)
    done, _ = before.take(2)
    before.finish(done, b'{"classes": []}')
    before.close()
    after = JobStore(path)
    assert states(after, job) == ["done", "waiting", "waiting"]
    assert [work.name for work in after.take(9)] == ["b.png", "c.png"]
    after.close()


def test_what_the_service_did_wrong_is_tried_three_times(store):
    job = store.add("bright", {}, FILES[:1])
    for expected in ("waiting", "waiting", "failed"):
        (work,) = store.take(1)
        store.fail(work, "a worker died", again=True)
        assert states(store, job) == [expected]
    status = store.retry(job)
    assert (status["state"], status["failed"]) == ("running", 0)
    assert states(store, job) == ["waiting"]
    assert store.take(1)[0].body == b"one", "a failed file is still there"


def test_a_cancelled_job_begins_no_more_files_until_it_is_retried(store):
    job = store.add("bright", {}, FILES)
    (running,) = store.take(1)
    store.cancel(job)
    assert store.take(9) == []
    assert store.status(job)["state"] == "running", "one is still on its way"
    store.finish(running, b"{}")
    assert store.status(job)["state"] == "cancelled"
    store.retry(job)
    assert len(store.take(9)) == 2


def test_a_deleted_job_is_gone_and_unknown_ones_are_named(store):
    job = store.add("bright", {}, FILES)
    store.delete(job)
    assert store.jobs() == [] and store.take(9) == []
    for ask in (store.status, store.results, store.cancel, store.retry, store.delete):
        with pytest.raises(UnknownName, match=f"unknown job '{job}'"):
            ask(job)


def test_a_file_that_is_no_database_is_named(tmp_path):
    (tmp_path / "jobs.sqlite").write_bytes(b"not a database, but long enough to be taken for one" * 20)
    with pytest.raises(StorageError, match=r"jobs = .*jobs\.sqlite' cannot be opened"):
        JobStore(tmp_path / "jobs.sqlite")


def test_two_services_cannot_share_the_jobs_of_one_file(tmp_path, monkeypatch):
    monkeypatch.setattr("hotlap.tools.serve.jobs.BUSY_S", 0.05)
    first = JobStore(tmp_path / "jobs.sqlite")
    job = first.add("bright", {}, FILES)
    first.take(1)
    with pytest.raises(StorageError, match=r"jobs = .*jobs\.sqlite' cannot be opened: database is locked.*--jobs"):
        JobStore(tmp_path / "jobs.sqlite")
    assert states(first, job) == ["running", "waiting", "waiting"]
    first.close()
    JobStore(tmp_path / "jobs.sqlite").close()


@pytest.mark.parametrize("turns", [0, 1, 2])
def test_a_runner_that_is_woken_and_told_to_end_at_once_ends(store, turns):
    service = SimpleNamespace(settings=SimpleNamespace(queue_rows=8), is_ready=False)

    async def ends() -> bool:
        runner = JobRunner(service, store, look_s=30.0)
        running = asyncio.create_task(runner.run())
        await asyncio.sleep(0.05)
        runner.wake()
        for _ in range(turns):
            await asyncio.sleep(0)
        running.cancel()
        done, _ = await asyncio.wait({running}, timeout=5)
        running.cancel()
        return bool(done)

    assert asyncio.run(ends())
