"""``hotlap tune`` from end to end on a tiny model: record, stored profile, and every way it can be disturbed."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console

import hotlap
from hotlap.base.errors import (
    ConfigError,
    DeviceUnavailable,
    EnvironmentUnusable,
    RecordError,
    StorageError,
    WorkerDied,
)
from hotlap.cli.main import run as command
from hotlap.cli.show import show_record
from hotlap.measure import fingerprint
from hotlap.measure.arms import parse_arm
from hotlap.measure.process import ON_CARD
from hotlap.records import run as records_run
from hotlap.records.codec import decode
from hotlap.records.environment import capture
from hotlap.records.run import load_record
from hotlap.records.tuned import ProfileStore, only_search, only_writer, read_profile, write_profile
from hotlap.tools.tune import TuneConfig, lab, tune
from hotlap.tools.tune import export as tune_export
from hotlap.tools.tune import run as tune_run
from hotlap.tools.tune.budget import Budget
from hotlap.tools.tune.field import Field
from hotlap.tools.tune.rows import Config, GateRow, Row, estimates

TINY = """
from torch import nn

def mlp(width=8):
    return nn.Sequential(nn.Linear(4, width), nn.Tanh(), nn.Linear(width, 3))
"""
SMALL = {
    "input": ("4",), "seconds": 0.002, "warmup_seconds": 0.01, "max_batch": 32, "batch": None, "gate_steps": 2,
    "gate_batch": 2, "arms": ("cpu", "cpu:bf16", "cpu:fused"), "budget": "1h",
}  # fmt: skip


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "tiny.py").write_text(TINY)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def config(**settings):
    return TuneConfig(**{"target": "tiny.py:mlp", **SMALL, **settings})


def found(record):
    return record.extra["tune"]


def shown(record):
    console = Console(width=200, force_terminal=False)
    with console.capture() as text:
        show_record(record, console)
    return text.get()


@pytest.mark.usefixtures("folder")
def test_a_search_leaves_a_winner_that_was_run_a_record_and_a_profile(jobs_in_process):
    heard = []
    record = tune(config(), heard.append)
    winner = found(record)["winner"]
    mine = [row for row in found(record)["rows"] if (row["arm"], row["batch"]) == (winner["arm"], winner["batch"])]
    assert record.status == "complete" and record.verdict.outcome == "tuned" and record.verdict.exit_code == 0
    assert any(row["tail"] and row["status"] == "ok" and len(row["tail_ms"]) == 2 for row in mine)
    assert f"{winner['arm']} at batch {winner['batch']}: " in record.verdict.headline
    assert "of what is allowed" in record.verdict.headline
    profile = read_profile(Path(found(record)["stored"]))
    assert (profile.arm, profile.batch) == (winner["arm"], winner["batch"])
    assert profile == read_profile(Path(record.path).parent / "tuned.json")
    assert profile.key.signature == "4:float32, 1:int64" and profile.key.device == "cpu"
    assert profile.peak_bytes is not None
    assert ProfileStore().find(profile.key).holds
    assert profile.measured_at == found(record)["rows"][-1]["at"] >= record.started_at
    assert load_record(record.path).extra == record.extra
    text = shown(record)
    assert "chosen" in text and winner["arm"] in text and "error of" in text
    known = estimates(decode(Row, row) for row in found(record)["rows"])
    rates = {(one["arm"], one["batch"]): one["samples_per_s"] for one in found(record)["rates"]}
    assert rates == {(one.arm, one.batch): of_one.rate for one, of_one in known.items()}
    jobs = [job for job in jobs_in_process if job["job"] == "trial"]
    assert len(jobs) == len(found(record)["rows"]) and {job["mode"] for job in jobs} == {"train"}
    told = [event.text for event in heard if event.kind == "advance"]
    trials = [f"{row['stage']}: {row['arm']} at batch {row['batch']}" for row in found(record)["rows"]]
    assert [text for text in told if not text.startswith("numeric gate: ")] == trials, "each once, before it is run"
    parts = [text.removeprefix("numeric gate: ") for text in told if text.startswith("numeric gate: ")]
    assert parts[:4] == ["cpu, cpu:bf16", "float64 reference", "cpu", "cpu:bf16"]
    num_gates = sum(job["job"] == "gate" for job in jobs_in_process)
    assert num_gates >= 1 and sum(event.kind == "result" for event in heard) == len(trials) + num_gates


@pytest.mark.usefixtures("folder")
def test_a_batch_above_the_number_of_samples_is_cut_and_told(jobs_in_process, monkeypatch):
    heard, real = [], tune_run.describe
    monkeypatch.setattr(tune_run, "describe", lambda *given: dataclasses.replace(real(*given), num_samples=10))
    record = tune(config(batch=16, arms=("cpu",)), heard.append)
    assert {row["batch"] for row in found(record)["rows"]} == {10}
    told = [event.text for event in heard if event.kind == "warn"]
    cut = "batch = 16 is above the number of training samples: 10 is tried"
    assert cut in told and cut in record.notes
    assert cut in [line.strip() for line in tune_run.preview(config(batch=16, arms=("cpu",)))]


@pytest.mark.parametrize(
    ("given", "can_compile", "told"),
    [
        (
            {"compile": ("default", "max-autotune")},
            True,
            "compile = max-autotune is left out: on a CPU there is default",
        ),
        (
            {"compile": ("default",), "arms": ("cpu",)},
            True,
            "compile = default is left out: the arms given are the only",
        ),
        ({}, False, "compile = default, reduce-overhead, max-autotune is left out: there is no C++ compiler here"),
        ({}, True, ""),
        ({"arms": ("cpu",)}, False, ""),
        ({"compile": ("default",), "arms": ("cpu:compile",)}, True, ""),
        ({"compile": ("none",)}, False, ""),
    ],
)
@pytest.mark.usefixtures("folder", "jobs_in_process")
def test_compilation_that_is_left_out_is_told(monkeypatch, given, can_compile, told):
    real = tune_run.describe
    monkeypatch.setattr(tune_run, "describe", lambda *a: dataclasses.replace(real(*a), can_compile=can_compile))
    lines = tune_run.preview(config(device="cpu", **{"arms": (), **given}))
    assert [told in line for line in lines if "left out" in line] == ([True] if told else [])


@pytest.mark.parametrize(
    ("arm", "processes", "callers", "told"),
    [
        ("cuda", [7, 9], 0, ["2 other processes are on cuda"]),
        ("cuda", [7, 9], 1, ["1 other process is on cuda"]),
        ("cuda", [7], 1, []),
        ("cuda", [], 0, []),
        ("cpu", [7, 9], 0, []),
    ],
)
def test_others_on_the_card_are_told_before_the_first_trial(fake_nvml, monkeypatch, arm, processes, callers, told):
    """Trials that share it with them are no word on what is fastest once they have gone."""
    monkeypatch.setenv(ON_CARD, str(callers))
    monkeypatch.setattr("torch.cuda.is_initialized", lambda: False)
    running = [SimpleNamespace(pid=pid) for pid in processes]
    fake_nvml(1, nvmlDeviceGetComputeRunningProcesses=running)
    said = tune_run._beside(parse_arm(arm), SimpleNamespace(cards=["0000"]))
    assert [text.partition(" on cuda")[0] + " on cuda" for text in said] == told


@pytest.mark.usefixtures("folder")
def test_sizes_of_a_list_that_are_left_out_are_told(jobs_in_process):
    heard = []
    record = tune(config(batches=(4, 64, 128), max_batch=16, arms=("cpu",)), heard.append)
    assert {row["batch"] for row in found(record)["rows"]} == {4}
    assert "batches = 64, 128 are left out: at most 16 is tried" in [e.text for e in heard if e.kind == "warn"]


@pytest.mark.usefixtures("folder")
def test_a_search_that_was_killed_goes_on_and_repeats_nothing(jobs_in_process, monkeypatch):
    calls, real = [], lab.run_job

    def killed_at_the_sixth(job, **options):
        calls.append(job)
        if len(calls) == 6:
            raise KeyboardInterrupt
        return real(job, **options)

    monkeypatch.setattr(lab, "run_job", killed_at_the_sixth)
    told = []
    with pytest.raises(KeyboardInterrupt):
        tune(config(mode="infer"), told.append)
    cut = load_record(next(Path("runs").glob("*/*")))
    assert [event.text for event in told if event.kind == "warn"] == [cut.verdict.headline]
    assert cut.status == "interrupted" and f"--resume {Path(cut.path).parent}" in cut.verdict.headline
    before = found(cut)["rows"]
    monkeypatch.setattr(sys, "argv", ["hotlap", "tune", "--resume"])
    record = tune(hotlap_resolved(resume="latest"))
    assert record.command == cut.command, "what repeats the search is how it began"
    assert found(record)["rows"][: len(before)] == before
    assert record.path == cut.path and record.status == "complete"
    keys = [(r["arm"], r["batch"], r["rung"], r["attempt"], r["tail"]) for r in found(record)["rows"]]
    assert len(keys) == len(set(keys))
    assert f"Resumed with {len(before)} trials of an earlier start." in record.notes


def test_rows_of_an_earlier_life_are_seen_only_when_they_are_asked_for():
    rows = [Row(stage="arms", arm="cpu", batch=b, rung=0, wall_ms=[1.0], seconds=3.0) for b in (4, 8)]
    gates = [GateRow(arm="cpu", passed=True, error=0.1)]
    budget = Budget(seconds=9, rung_seconds=0.1)
    laboratory = lab.ProcessLab(config(), budget, rows=rows, gates=gates, saved=lambda: None, say=pytest.fail)
    assert laboratory.rows == [] and laboratory.gates == {} and budget.spent(laboratory) == 0
    assert laboratory.trial("arms", Config("cpu", 8), rung=0, attempt=0, tail=0) == rows[1]
    laboratory.gate(["cpu:threads=2"])
    assert laboratory.rows == [rows[1]] and budget.spent(laboratory) == 3.0
    assert laboratory.all_rows == [rows[1], rows[0]] and laboratory.all_gates == gates, "none is lost by a save"


def hotlap_resolved(**settings):
    from hotlap.base.settings import Layer, resolve

    return resolve(TuneConfig, [Layer("the call", settings)]).config


@pytest.mark.usefixtures("folder", "jobs_in_process")
def test_a_search_does_not_go_on_under_another_torch(monkeypatch):
    record = tune(config(batch=4, mode="infer"))
    real = fingerprint.run_job
    monkeypatch.setattr(fingerprint, "run_job", lambda job, **options: {**real(job, **options), "torch": "9.9"})
    with pytest.raises(ConfigError, match=r"resume = 'latest' cannot go on: torch was .*, is 9\.9"):
        tune(hotlap_resolved(resume="latest"))
    assert load_record(record.path).status == "complete", "the old record is as it was"


@pytest.mark.usefixtures("folder", "jobs_in_process")
@pytest.mark.parametrize(
    ("setting", "told"),
    [
        ({"mode": "train"}, "--for was 'infer', is 'train'"),
        ({"gate_steps": 9}, "gate_steps was 2, is 9"),
        ({"workload": {"width": 8}}, r"workload was \{\}, is \{'width': 8\}"),
        ({"target": "other.py:none"}, "target was 'tiny.py:mlp', is 'other.py:none'"),
    ],
)
def test_a_search_does_not_go_on_with_trials_of_something_else(setting, told):
    record = tune(config(batch=4, mode="infer", arms=("cpu",)))
    with pytest.raises(ConfigError, match=f"resume = 'latest' cannot go on: {told}"):
        tune(hotlap_resolved(resume="latest", **setting))
    assert load_record(record.path).config["mode"] == "infer", "the old record is as it was"


@pytest.mark.usefixtures("folder", "jobs_in_process")
def test_a_store_that_cannot_be_written_leaves_the_profile_in_the_runs_folder(monkeypatch, tmp_path):
    (tmp_path / "taken").write_text("")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "taken"))
    heard = []
    record = tune(config(batch=4, mode="infer"), heard.append)
    text = next(event.text for event in heard if event.kind == "warn")
    assert text.startswith("The profile could not be stored: cannot write ") and text in record.notes
    assert record.verdict.exit_code == 0 and found(record)["stored"] == ""
    assert read_profile(Path(record.path).parent / "tuned.json").batch == 4


@pytest.mark.usefixtures("jobs_in_process")
def test_a_search_that_still_runs_is_not_resumed_from_beside_it(folder, monkeypatch):
    """Another store, as another user or container has it, does not know of the search; its folder does."""
    record = tune(config(batch=4, mode="infer", arms=("cpu",)))
    before = Path(record.path).read_text()
    monkeypatch.setenv("XDG_CONFIG_HOME", str(folder / "other"))
    with only_writer(Path(record.path).parent):
        with pytest.raises(EnvironmentUnusable, match=r"the search in '.*' is still running"):
            tune(hotlap_resolved(resume=str(Path(record.path).parent)))
        assert Path(record.path).read_text() == before
    assert tune(hotlap_resolved(resume=str(Path(record.path).parent))).status == "complete"


@pytest.mark.usefixtures("folder", "jobs_in_process")
def test_a_profile_for_another_objective_makes_way_and_is_named():
    first = tune(config(batch=4, mode="infer"))
    heard = []
    second = tune(config(batch=4, mode="infer", objective="memory"), heard.append)
    text = next(event.text for event in heard if event.kind == "warn" and "made way" in event.text)
    assert f"{found(first)['winner']['arm']} at batch 4, for throughput" in text and "for memory" in text
    assert text in second.notes and found(second)["stored"] == found(first)["stored"]
    assert not any("made way" in note for note in tune(config(batch=4, mode="infer", objective="memory")).notes)
    third = tune(config(batch=4, mode="infer", objective="memory", p95_ms=1e4))
    assert any("for memory) made way for this one, for memory within 10000 ms" in note for note in third.notes)


@pytest.mark.usefixtures("folder", "jobs_in_process")
def test_a_faster_profile_makes_way_is_named_and_can_be_brought_back():
    first = tune(config(batch=8, mode="infer", arms=("cpu",)))
    place, fast = Path(found(first)["stored"]), read_profile(Path(found(first)["stored"]))
    write_profile(dataclasses.replace(fast, samples_per_s=1e12), place)
    heard = []
    tune(config(batch=4, mode="infer", arms=("cpu",)), heard.append)
    assert read_profile(place).batch == 4
    [text] = [event.text for event in heard if event.kind == "warn"]
    assert text == (
        "The stored profile (cpu at batch 8, 1.00e12 samples/s) was faster and made way for this one. "
        f"'hotlap tune --resume {Path(first.path).parent.absolute()}' brings it back."
    )
    slow = read_profile(place)
    write_profile(dataclasses.replace(slow, samples_per_s=1.0), place)
    tune(hotlap_resolved(resume=str(Path(first.path).parent)))
    assert read_profile(place) == fast


def test_an_export_that_cannot_be_written_is_refused_before_the_search(folder, jobs_in_process):
    (folder / "taken").write_text("")
    (folder / "deploy").mkdir()
    (folder / "deploy" / "batch_sizes.json").write_text("{bad")
    with pytest.raises(StorageError, match=r"cannot write export = '.*taken'"):
        tune(config(export=folder / "taken"))
    with pytest.raises(RecordError, match=r"batch_sizes\.json' is there and cannot be read"):
        tune(config(export=folder / "deploy"))
    assert jobs_in_process == [] and not (folder / "runs").exists()


@pytest.mark.parametrize("mode", ["train", "infer"])
@pytest.mark.usefixtures("jobs_in_process")
def test_what_was_exported_is_said(folder, mode):
    record = tune(config(batch=4, mode=mode, arms=("cpu",), export=Path("deploy")))
    files = {file.name for file in (folder / "deploy").iterdir()}
    [told] = [note for note in record.notes if note.startswith("Exported ")]
    assert {Path(name).name for name in told.removeprefix("Exported ").rstrip(".").split(", ")} == files
    left_out = [
        note for note in record.notes if note.startswith("A Triton config.pbtxt is written of a search --for infer")
    ]
    assert bool(left_out) == ("config.pbtxt" not in files) == (mode == "train")
    assert found(record)["profile"]["record"] == str(folder / Path(record.path)), (
        "which is found from other folders, too"
    )


def test_an_export_that_finds_no_room_does_not_make_the_search_fail(folder, jobs_in_process, monkeypatch):
    def full(path, text):
        raise StorageError(f"cannot write {str(path)!r}: No space left on device")

    monkeypatch.setattr(tune_export, "write_atomic", full)
    with pytest.raises(StorageError, match=r"cannot write 'deploy/batch_sizes\.json': No space left on device"):
        tune(config(batch=4, mode="infer", arms=("cpu",), export=Path("deploy")))
    record = load_record(next((folder / "runs").glob("*/*")))
    assert (record.status, record.verdict.outcome) == ("complete", "tuned") and Path(found(record)["stored"]).is_file()


def test_an_export_without_a_winner_is_told(folder, jobs_in_process, monkeypatch):
    monkeypatch.setattr(Field, "is_right", lambda self, arm: False)
    heard = []
    record = tune(config(batch=4, mode="infer", export=Path("deploy")), heard.append)
    told = "Nothing was written into deploy: there is no winner to export."
    assert told in record.notes and told in [event.text for event in heard if event.kind == "warn"]
    assert list((folder / "deploy").iterdir()) == []


@pytest.mark.usefixtures("jobs_in_process")
def test_a_disk_that_fills_up_ends_the_search_and_spoils_nothing(folder, monkeypatch):
    real, count = records_run.write_atomic, []

    def full(path, text):
        count.append(path)
        if len(count) > 5:
            raise StorageError(f"cannot write {str(path)!r}: No space left on device")
        real(path, text)

    monkeypatch.setattr(records_run, "write_atomic", full)
    with pytest.raises(StorageError, match="No space left on device"):
        tune(config(batch=4, mode="infer"))
    record = load_record(next((folder / "runs").glob("*/*")))
    assert record.kind == "tune" and len(found(record)["rows"]) >= 1, "what was measured until then can be resumed"


@pytest.mark.usefixtures("folder", "jobs_in_process")
def test_two_searches_at_once_are_refused():
    words = "another search is running on cpu"
    with only_search("cpu", "tuning other"), pytest.raises(EnvironmentUnusable, match=words):
        tune(config(batch=4))
    assert not list(Path("runs").glob("*/*")), "nothing was begun"


@pytest.mark.usefixtures("folder", "jobs_in_process")
def test_a_wrong_answer_is_refused_and_told(monkeypatch):
    real = lab.run_job

    def spoilt(job, **options):
        answer = real(job, **options)
        for gate in answer["gates"] if job["job"] == "gate" else []:
            if "bf16" in gate["arm"]:
                gate["passed"] = gate["checks"][0]["passed"] = False
                gate["checks"][0]["error"] = 7.0
        return answer

    monkeypatch.setattr(lab, "run_job", spoilt)
    record = tune(config(batch=4, mode="infer", arms=("cpu", "cpu:bf16")))
    assert found(record)["winner"]["arm"] == "cpu"
    assert "wrong answer: outputs 7, allowed" in found(record)["refused"]["cpu:bf16"]
    assert any(line.startswith("refused cpu:bf16: wrong answer") for line in record.verdict.lines)
    assert "cpu:bf16" not in {row["arm"] for row in found(record)["rows"]}
    assert all(gate.passed for gate in record.gates)


@pytest.mark.usefixtures("folder", "jobs_in_process")
def test_when_nothing_fits_the_verdict_says_so_with_its_exit_code(monkeypatch):
    def starved(job, **options):
        from hotlap.base.errors import OutOfMemory

        if job["job"] == "trial":
            raise OutOfMemory(f"batch = {job['batch']} does not fit in memory")
        return real(job, **options)

    real = lab.run_job
    monkeypatch.setattr(lab, "run_job", starved)
    record = tune(config())
    assert record.verdict.exit_code == 5 and "nothing fits in memory" in record.verdict.headline
    assert {row["batch"] for row in found(record)["rows"]} >= {16, 8, 4, 2, 1}
    assert found(record)["winner"] is None and not list(ProfileStore().folder.glob("*.json"))
    assert "out of memory" in shown(record)


DEATHS = """
import os, signal, time
how = os.environ["HOW"]
if how == "segfault":
    os.kill(os.getpid(), signal.SIGSEGV)
if how == "kill":
    os.kill(os.getpid(), signal.SIGKILL)
if how == "hang":
    time.sleep(60)
if how == "raise":
    raise RuntimeError("CUDA out of memory. Tried to allocate")
"""


@pytest.mark.parametrize(
    ("how", "status", "words"),
    [
        ("segfault", "crashed", "died of SIGSEGV"),
        ("kill", "killed", "was killed"),
        ("hang", "timed out", "timeout_s = 3"),
        ("raise", "failed", "raised RuntimeError"),
    ],
)
def test_a_trial_that_dies_is_a_row(folder, monkeypatch, how, status, words):
    (folder / "deadly.py").write_text(DEATHS)
    monkeypatch.setenv("HOW", how)
    saved = []
    settings = config(target="deadly.py:f", timeout_s=3.0 if how == "hang" else 60.0)
    laboratory = lab.ProcessLab(
        settings, Budget(seconds=1, rung_seconds=0.1), saved=lambda: saved.append(1), say=lambda text: None
    )
    row = laboratory.trial("arms", Config("cpu", 4), rung=0, attempt=0, tail=0)
    assert row.status == status and words in row.why and not row.ok
    assert laboratory.rows == [row] and saved == [1]


def test_a_batch_whose_final_form_fails_is_not_called_safe(folder, jobs_in_process):
    """Its trials ran; the ragged tail of its last run, of 21 samples, does not."""
    (folder / "tail.py").write_text(
        "from torch import nn\n\n"
        "class Net(nn.Linear):\n"
        "    def forward(self, x):\n"
        "        if len(x) == 21:\n"
        "            raise ValueError('not of 21')\n"
        "        return super().forward(x)\n\n"
        "def net():\n"
        "    return Net(4, 3)\n"
    )
    record = tune(config(target="tail.py:net", arms=("cpu",), batches=(8, 32), export=folder / "out"))
    assert found(record)["winner"] == {"arm": "cpu", "batch": 8} and "cpu at batch 32" in found(record)["refused"]
    assert any(row["batch"] == 32 and row["status"] == "ok" for row in found(record)["rows"])
    sizes = json.loads((folder / "out/batch_sizes.json").read_text())
    assert sizes["batch_configurations"]["net"]["max_safe_batch_size"] == 8
    line = next(line for line in shown(record).splitlines() if line.startswith("cpu ") and " 32 " in line)
    assert line.rstrip().endswith("refused")


def test_trials_that_rank_are_forked_and_the_one_that_confirms_is_not(monkeypatch):
    asked = []

    def note(job, *, nursery, **options):
        asked.append((job["job"], job.get("tail"), nursery))
        raise WorkerDied("it died")

    monkeypatch.setattr(lab, "run_job", note)
    budget = Budget(seconds=9, rung_seconds=0.1)
    nursery = object()
    laboratory = lab.ProcessLab(config(), budget, saved=lambda: None, say=lambda text: None, nursery=nursery)
    laboratory.trial("arms", Config("cpu", 4), rung=0, attempt=0, tail=0)
    laboratory.trial("confirm", Config("cpu", 4), rung=2, attempt=0, tail=3)
    laboratory.gate(["cpu"])
    assert asked == [("trial", 0, nursery), ("trial", 3, None), ("gate", None, nursery)]


@pytest.mark.usefixtures("folder")
def test_a_device_that_is_not_there_ends_the_search(monkeypatch, jobs_in_process):
    def gone(job, **options):
        raise DeviceUnavailable("a CUDA device was asked for, but there is none")

    monkeypatch.setattr(lab, "run_job", gone)
    with pytest.raises(DeviceUnavailable, match="a CUDA device was asked for"):
        tune(config(batch=4))
    assert load_record(next(Path("runs").glob("*/*"))).status == "failed"


@pytest.mark.usefixtures("folder", "jobs_in_process")
@pytest.mark.parametrize(
    "given",
    [
        ("--device", "cuda:97"),
        ("--arms", "cuda:97"),
        ("--device", "cuda:97", "--dry-run"),
        ("--device", "cuda:97", "--verify"),
    ],
)
def test_a_card_that_is_not_there_is_exit_code_4_and_leaves_nothing(given, capsys):
    assert command(["tune", "tiny.py:mlp", "--input", "4", "--budget", "30s", *given]) == 4
    told = capsys.readouterr()
    assert "a CUDA device was asked for" in told.err or "device cuda:97 does not exist" in told.err
    assert told.out == "" and not Path("runs").exists()


@pytest.mark.usefixtures("folder")
def test_a_gate_that_takes_its_process_with_it_refuses_that_arm_alone(monkeypatch, jobs_in_process):
    real = lab.run_job

    def fragile(job, **options):
        if job["job"] == "gate" and any("bf16" in arm for arm in job["arms"]):
            raise WorkerDied("the gate process died of SIGSEGV")
        return real(job, **options)

    monkeypatch.setattr(lab, "run_job", fragile)
    record = tune(config(batch=4, mode="infer", arms=("cpu", "cpu:bf16")))
    assert found(record)["winner"]["arm"] == "cpu"
    assert found(record)["refused"]["cpu:bf16"] == "could not be judged: the gate process died of SIGSEGV"


@pytest.mark.usefixtures("folder", "jobs_in_process")
def test_the_command_line_and_the_function(capsys, monkeypatch):
    arguments = ["tune", "tiny.py:mlp", "--input", "4", "--for", "infer", "--batch", "4", "--arms", "cpu"]
    arguments += ["--seconds", "0.002", "--warmup-seconds", "0.01", "--budget", "90s", "--no-store"]
    assert command([*arguments, "--json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["extra"]["tune"]["winner"] == {"arm": "cpu", "batch": 4}
    assert json.loads(out)["config"]["mode"] == "infer"
    assert "confirm: cpu at batch 4 (best so far cpu at batch 4," in err
    assert not list(ProfileStore().folder.glob("*.json"))
    record = hotlap.tune("tiny.py:mlp", mode="infer", **{**SMALL, "batch": 4, "arms": ("cpu",)})
    assert record.config_sources["mode"] == "the call" and found(record)["stored"]


@pytest.mark.usefixtures("jobs_in_process")
def test_a_model_without_anything_to_train_is_told_what_can_be_done_with_it(folder, capsys):
    (folder / "fixed.py").write_text(TINY + "\ndef fixed():\n    return mlp().requires_grad_(False)\n")
    assert command(["tune", "fixed.py:fixed", "--input", "4", "--for", "train", "--batch", "4", "--arms", "cpu"]) == 2
    err = capsys.readouterr().err
    assert "the model of 'fixed' has no parameters that can be trained" in err and "'hotlap tune --for infer'" in err


@pytest.mark.usefixtures("folder", "jobs_in_process")
def test_a_dry_run_tells_what_would_be_tried(capsys):
    assert command(["tune", "tiny.py:mlp", "--input", "4", "--dry-run"]) == 0
    text = capsys.readouterr().out
    assert "objective  the highest throughput" in text and "arm        cpu" in text
    assert "batch      from 16, at most 65536" in text and not Path("runs").exists()


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"target": ""}, "no target given"),
        ({"batch": 0}, "batch = 0 is not valid"),
        ({"p95_ms": 0.0}, r"p95_ms = 0.0 is out of range"),
        ({"seconds": -1.0}, r"seconds = -1.0 is out of range"),
        ({"budget": "soon"}, "budget = 'soon' is not a time"),
        ({"batch": 9, "max_batch": 8}, "batch = 9 is above max_batch = 8"),
        ({"batches": (4, 0)}, "batches = 0 is too small"),
        ({"batch": 8, "batches": (16, 32)}, "batch = 8 and batches = 16, 32 cannot both hold"),
        ({"compile": ("fast",)}, "compile = 'fast' is not a mode"),
        ({"device": "cpu:bf16"}, "device = 'cpu:bf16' is not a device"),
        ({"device": "gpu"}, "device = 'gpu' is not a device"),
        ({"verify": True, "export": Path("deploy")}, "verify and export cannot both hold"),
    ],
)
def test_wrong_settings_are_refused(given, words):
    with pytest.raises(ConfigError, match=words):
        config(**given)


def test_only_a_search_can_be_resumed(tmp_path):
    environment = capture(import_torch=False, ask_driver=False)
    record = records_run.begin("bench", "x", TuneConfig(target="x"), {}, environment)
    folder = records_run.run_folder(tmp_path, "x")
    records_run.save(record, folder)
    with pytest.raises(ConfigError, match="is the record of a bench"):
        hotlap_resolved(resume=str(folder), runs=tmp_path)
    with pytest.raises(ConfigError, match="resume = 'latest', but no search lies under"):
        hotlap_resolved(resume="latest", runs=tmp_path)


def test_the_lab_tells_the_ends_apart():
    from hotlap.base.errors import OutOfMemory, TargetError

    assert [
        lab.status_of(error)
        for error in (
            OutOfMemory("batch = 8 does not fit in memory"),
            OutOfMemory("the trial process was killed (SIGKILL)"),
            WorkerDied("the trial process was stopped after timeout_s = 3"),
            WorkerDied("the trial process died of SIGSEGV"),
            TargetError("target raised BackendCompilerFailed"),
        )
    ] == ["out of memory", "killed", "timed out", "crashed", "failed"]


def test_the_gates_worst_check_stands_for_an_arm():
    from hotlap.records.measurement import Gate, GateCheck

    checks = [
        GateCheck(name="outputs", error=1e-3, allowed=1e-2, passed=True),
        GateCheck(name="losses", error=4e-3, allowed=5e-3, passed=True),
    ]
    gate = Gate(arm="cpu", passed=True, checks=checks, reference="float64")
    row = lab.gate_row("cpu", gate, None, 1.0)
    assert row.error == pytest.approx(0.8) and row.check == "losses 0.004, allowed 0.005"
    broken = dataclasses.replace(checks[0], error=float("nan"), passed=False, detail="two builds of it differ")
    red = dataclasses.replace(gate, passed=False, checks=[broken])
    refused = lab.gate_row("cpu", red, None, 1.0)
    assert refused.error == float("inf")
    assert refused.why == "wrong answer: outputs nan, allowed 0.01 (two builds of it differ)"
