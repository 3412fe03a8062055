"""Runs on disk: whole, or what was there before; and records that are damaged."""

from __future__ import annotations

import dataclasses
import errno
import json
import math
import os
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from hotlap.base.errors import RecordError, StorageError
from hotlap.records import run as run_module
from hotlap.records.environment import Environment, Gpu
from hotlap.records.measurement import (
    Arm,
    Check,
    Comparison,
    Gate,
    GateCheck,
    Measurement,
    Memory,
    Summary,
    Telemetry,
    Verdict,
)
from hotlap.records.run import (
    RECORD_NAME,
    RunRecord,
    begin,
    find_runs,
    folder_name,
    load_record,
    resolve_run,
    run_folder,
    save,
    write_atomic,
)


def environment(**changes):
    about = {
        "hostname": Environment.this_hostname(), "system": "Linux", "python": "3.11", "hotlap": "0", "commit": "abc+",
        "cpu_model": "Some CPU", "usable_cores": 2, "logical_cpus": 4, "memory_bytes": 2**30, "driver": "555",
        "gpus": [Gpu(name="Card", uuid="GPU-1", memory_bytes=2**34)], "packages": {"torch": "2"},
    }  # fmt: skip
    return Environment(**{**about, **changes})


def full_record(**changes):
    summary = Summary(
        quantity="wall", unit="ms", median=1.5, low=1.4, high=1.6, num_processes=2, num_samples=4,
        process_medians=[1.4, 1.6], percentiles={"p50": 1.5}, num_outliers=1,
    )  # fmt: skip
    record = RunRecord(
        kind="bench",
        name="demo",
        status="complete",
        started_at="2026-01-01T00:00:00+00:00",
        finished_at="2026-01-01T00:01:00+00:00",
        command=["hotlap", "bench"],
        pid=os.getpid(),
        config={"target": "demo", "batch": 4},
        config_sources={"target": "the command line"},
        environment=environment(),
        arms=[Arm(name="cpu", settings={"device": "cpu"}, role="baseline", summaries=[summary],
                  memory=Memory(host_rss_bytes=5), first_step_s=0.5, samples_per_s=10.0, notes=["n"])],
        comparisons=[Comparison(arm="b", baseline="cpu", quantity="wall", ratio=1.1, low=1.0, high=1.2, p_value=None,
                                test="none", min_detectable=0.1, verdict="inconclusive", reason="r")],
        gates=[Gate(arm="cpu", passed=True, reference="float64", seconds=1.0,
                    checks=[GateCheck(name="outputs", error=1e-7, allowed=1e-6, passed=True)])],
        measurements=[Measurement(quantity="wall", unit="ms", arm="cpu", process=1, values=[1.6, 1.7]),
                      Measurement(quantity="wall", unit="ms", arm="cpu", process=0, values=[1.4, 1.5], flags=["f"])],
        telemetry=[Telemetry(process=0, arm="cpu", block=0, seconds=0.1, throttle=["sync boost"])],
        checks=[Check(name="c", group="g", status="PASS", observed="o")],
        extra={"break_even": {"batch": 4}},
        notes=["note"],
        verdict=Verdict(outcome="inconclusive", headline="h", exit_code=3, lines=["h"]),
    )  # fmt: skip
    return dataclasses.replace(record, **changes)


def saved(root, name="demo", stamp="20260101-000000", **changes):
    folder = root / name / stamp
    folder.mkdir(parents=True)
    return save(full_record(name=name, **changes), folder)


def test_a_full_record_survives_the_disk(tmp_path):
    record = saved(tmp_path)
    assert load_record(tmp_path / "demo/20260101-000000") == record
    assert load_record(record.path) == record


def test_samples_come_in_the_order_of_the_processes(tmp_path):
    assert full_record().samples("cpu", "wall") == [[1.4, 1.5], [1.6, 1.7]]
    assert full_record().samples("cpu", "device") == []


def test_an_arm_that_is_not_there_is_named():
    with pytest.raises(RecordError, match=r"'demo' has no arm 'cuda'\. Expected cpu"):
        full_record().arm("cuda")


def test_numbers_that_are_not_finite_leave_strict_json(tmp_path):
    comparison = dataclasses.replace(full_record().comparisons[0], min_detectable=math.inf, low=math.nan)
    record = saved(tmp_path, comparisons=[comparison])

    def refuse(constant):
        raise AssertionError(f"{constant} is not JSON")

    data = json.loads(Path(record.path).read_text(), parse_constant=refuse)
    assert data["comparisons"][0]["min_detectable"] is None
    assert "path" not in data
    assert math.isnan(load_record(record.path).comparisons[0].min_detectable)


def no_space(*_):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("broken", ["os.fsync", "builtins.open", "pathlib.Path.replace"])
def test_a_full_disk_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch, broken):
    file = tmp_path / RECORD_NAME
    file.write_text("old")
    with monkeypatch.context() as patch:
        patch.setattr(broken, lambda *_, **__: no_space())
        with pytest.raises(StorageError, match=r"record\.json': No space left on device") as caught:
            write_atomic(file, "new")
    assert caught.value.exit_code == 4
    assert file.read_text() == "old"
    assert list(tmp_path.iterdir()) == [file]


def test_a_file_may_be_read_by_whom_the_umask_allows_and_that_is_not_changed(tmp_path, monkeypatch):
    """Not for a moment either: it is that of all threads, and another one's file would be for everybody to write."""
    before = os.umask(0o027)
    try:
        with monkeypatch.context() as patch:
            patch.setattr(os, "umask", lambda mask: pytest.fail("the umask was changed"))
            write_atomic(tmp_path / "file", "new")
    finally:
        os.umask(before)
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o640


def test_a_name_may_be_as_long_as_names_can_be(tmp_path):
    write_atomic(tmp_path / ("x" * 255), "new")
    assert [path.name for path in tmp_path.iterdir()] == ["x" * 255]


@pytest.mark.parametrize(("where", "words"), [("none", "there is no folder"), ("file", "Not a directory")])
def test_a_folder_that_is_none_is_said(tmp_path, where, words):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StorageError, match=rf"cannot write .*new': {words}"):
        write_atomic(tmp_path / where / "new", "new")


def test_an_interruption_while_writing_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    def interrupt(_):
        raise KeyboardInterrupt

    file = tmp_path / RECORD_NAME
    file.write_text("old")
    monkeypatch.setattr(os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_atomic(file, "new")
    assert file.read_text() == "old"
    assert list(tmp_path.iterdir()) == [file]


def test_a_folder_that_cannot_be_made_is_a_storage_error(tmp_path):
    (tmp_path / "runs").write_text("a file in the way")
    with pytest.raises(StorageError, match=r"cannot create .*Not a directory.*--runs or --out"):
        run_folder(tmp_path / "runs", "demo")


def test_two_runs_of_one_second_get_two_folders(tmp_path):
    folders = [run_folder(tmp_path, "demo") for _ in range(3)]
    assert len(set(folders)) == 3
    assert all(folder.is_dir() and not any(folder.iterdir()) for folder in folders)
    assert sorted(folders) == folders, "later runs sort later"


@pytest.mark.parametrize(
    ("name", "folder"),
    [("my run/../x", "my-run-..-x-"), ("pkg.mod:make", "pkg.mod-make-"), ("..", "run-"), ("", "run-"), ("run", "run")],
)
def test_a_run_name_cannot_leave_the_runs_folder(tmp_path, name, folder):
    made = run_folder(tmp_path, name).parent
    assert made.parent == tmp_path
    assert made.name.startswith(folder) and len(made.name) == len(folder) + 6 * (folder != name)


def broken(tmp_path, change):
    file = Path(saved(tmp_path).path)
    file.write_bytes(change(file.read_bytes()))
    return file


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda data: data[: len(data) // 2], "is not whole JSON"),
        (lambda data: b"", "is not whole JSON"),
        (lambda data: b"hello", "is not whole JSON"),
        (lambda data: b"\xff\xfe\x00binary", "is not whole JSON"),
        (lambda data: b"[1, 2]", r"schema_version = None\. Expected schema_version = 1"),
        (lambda data: data.replace(b'"schema_version": 1', b'"schema_version": 99'), "schema_version = 99"),
        (lambda data: data.replace(b'"kind"', b'"kid"'), "is malformed: kind is missing"),
        (lambda data: data.replace(b'"ratio": 1.1', b'"ratio": "fast"'), "malformed: comparisons: ratio: float was"),
    ],
    ids=["half", "empty", "text", "binary", "list", "future", "missing", "mistyped"],
)
def test_a_damaged_record_is_an_error_that_names_the_file_and_the_fault(tmp_path, change, words):
    file = broken(tmp_path, change)
    with pytest.raises(RecordError, match=words) as caught:
        load_record(file)
    assert str(file) in str(caught.value)


def test_no_record_at_all(tmp_path):
    with pytest.raises(RecordError, match=r"no record at .*nowhere.*'hotlap list runs'"):
        load_record(tmp_path / "nowhere")


def dead_pid():
    done = subprocess.Popen([sys.executable, "-S", "-c", ""])
    done.wait()
    return done.pid


def test_a_run_whose_process_is_gone_reads_as_interrupted(tmp_path):
    record = load_record(saved(tmp_path, status="running", pid=dead_pid()).path)
    assert record.status == "interrupted"
    assert "The run was cut off." in record.notes


@pytest.mark.parametrize("pid", [0, -1, 2**70])
def test_a_pid_that_cannot_be_a_process_reads_as_interrupted(tmp_path, pid):
    assert load_record(saved(tmp_path, status="running", pid=pid).path).status == "interrupted"


def test_a_run_that_still_runs_reads_as_running(tmp_path):
    assert load_record(saved(tmp_path, status="running").path).status == "running"


def test_another_machine_s_run_is_not_declared_dead(tmp_path):
    elsewhere = environment(hostname="another-machine")
    record = load_record(saved(tmp_path, status="running", pid=dead_pid(), environment=elsewhere).path)
    assert record.status == "running"


@pytest.fixture
def three_runs(tmp_path):
    saved(tmp_path, "demo", "20260101-000000")
    saved(tmp_path, "demo", "20260103-000000")
    saved(tmp_path, "other", "20260102-000000")
    saved(tmp_path, folder_name("wide net, 2"), "20260101-000001")
    return tmp_path


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("до", "после"), ("größe 1", "grüße 1"), ("前", "後"), ("a/b", "a b"), ("a b", "a+b"), ("a-b", "a b"),
        ("x.", "x"), (80 * "é" + "1", 80 * "é" + "2"), ("a", "../a"),
    ],
)  # fmt: skip
def test_names_that_differ_stay_apart(tmp_path, before, after):
    for name, stamp in ((before, "20260101-000000"), (after, "20260102-000000")):
        saved(tmp_path, folder_name(name), stamp)
    assert resolve_run(before, tmp_path).parent.name == "20260101-000000"
    assert resolve_run(after, tmp_path).parent.name == "20260102-000000"


def test_runs_are_found_newest_first(three_runs):
    (three_runs / "demo/empty").mkdir()
    assert [str(p.parent.relative_to(three_runs)) for p in find_runs(three_runs)] == [
        "demo/20260103-000000",
        "other/20260102-000000",
        f"{folder_name('wide net, 2')}/20260101-000001",
        "demo/20260101-000000",
    ]
    assert list(find_runs(three_runs / "nowhere")) == []


def test_a_run_in_a_folder_that_its_user_named_lies_among_the_others(three_runs):
    saved(three_runs, ".", "mine")
    wrote = datetime(2026, 1, 2, 12, tzinfo=UTC).timestamp()
    os.utime(three_runs / "mine" / RECORD_NAME, (wrote, wrote))
    found = [p.parent.relative_to(three_runs).as_posix() for p in find_runs(three_runs)]
    assert found[:3] == ["demo/20260103-000000", "mine", "other/20260102-000000"]
    assert resolve_run("mine", three_runs) == three_runs / "mine" / RECORD_NAME


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("latest", "demo/20260103-000000"),
        ("other", "other/20260102-000000"),
        ("demo", "demo/20260103-000000"),
        ("demo/20260101-000000", "demo/20260101-000000"),
        ("20260101-000000", "demo/20260101-000000"),
        ("wide net, 2", f"{folder_name('wide net, 2')}/20260101-000001"),
    ],
)
def test_a_run_is_found_as_users_name_it(three_runs, text, found):
    assert resolve_run(text, three_runs) == three_runs / found / RECORD_NAME


def test_a_path_is_taken_as_it_is(three_runs):
    folder = three_runs / "demo/20260101-000000"
    assert load_record(resolve_run(str(folder), three_runs / "nowhere")).name == "demo"


def test_the_folder_of_a_name_is_its_newest_run(three_runs):
    """As a shell completes it."""
    for text in (str(three_runs / "demo"), f"{three_runs / 'demo'}/"):
        assert resolve_run(text, three_runs / "nowhere") == three_runs / "demo/20260103-000000" / RECORD_NAME
        assert load_record(text).path == str(three_runs / "demo/20260103-000000" / RECORD_NAME)


def test_a_folder_that_only_shares_a_run_s_name_is_not_taken_for_it(three_runs, tmp_path, monkeypatch):
    work = tmp_path / "work"
    (work / "other").mkdir(parents=True)
    monkeypatch.chdir(work)
    assert resolve_run("other", three_runs) == three_runs / "other/20260102-000000" / RECORD_NAME


def test_an_unknown_run_is_named(three_runs):
    with pytest.raises(RecordError, match=r"no run 'unet' under .*Expected a path.*'hotlap list runs'"):
        resolve_run("unet", three_runs)


def test_a_begun_run_knows_its_command_process_and_settings(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["hotlap", "bench", "x"])
    record = begin("bench", "x", {"runs": Path("runs")}, {"runs": "default"}, environment())
    assert (record.status, record.pid, record.command) == ("running", os.getpid(), ["hotlap", "bench", "x"])
    assert record.config == {"runs": "runs"}


def test_the_schema_version_is_written(tmp_path):
    data = json.loads(Path(saved(tmp_path).path).read_text())
    assert data["schema_version"] == run_module.SCHEMA_VERSION
