"""The bench from end to end: one real run, and every way in which one can go wrong."""

from __future__ import annotations

import errno
import json
import os
import re
import signal
import subprocess
import sys
import time
import types
from pathlib import Path

import pytest
import torch

from hotlap.base.errors import (
    DeviceUnavailable,
    EnvironmentUnusable,
    OutOfMemory,
    StorageError,
    TargetError,
    UnknownName,
    WorkerDied,
)
from hotlap.cli.main import run as run_cli
from hotlap.measure.arms import parse_arm
from hotlap.records.measurement import Gate
from hotlap.records.run import RECORD_NAME, RunRecord, find_runs, load_record
from hotlap.targets import MADE_UP_LOSS
from hotlap.tools.bench import BenchConfig, bench, preview
from hotlap.tools.bench import run as run_module
from hotlap.tools.bench.pace import bearable_batch

TARGETS = """
import os, time
import torch
from torch import nn
from hotlap import Workload

def mlp():
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3))

class Base(Workload):
    default_batch = 4
    def build_model(self):
        return mlp()
    def make_batch(self, n, device, generator):
        return torch.randn(n, 8, generator=generator)
    def loss(self, model, batch):
        return self.predict(model, batch).square().sum(), len(batch)

class Double(Base):
    def build_model(self):
        return super().build_model().double()
    def predict(self, model, batch):
        return model(batch.double())

class Big(Base):
    def make_batch(self, n, device, generator):
        if n > 100:
            torch.empty(2**50, dtype=torch.uint8)
        return super().make_batch(n, device, generator)

class WrongInHalf(Base):
    def predict(self, model, batch):
        out = model(batch)
        return out * 1.5 if torch.is_autocast_enabled("cpu") else out

class FailsInHalf(Base):
    def predict(self, model, batch):
        if torch.is_autocast_enabled("cpu"):
            raise ValueError("no half here")
        return model(batch)

class Fails(Base):
    def predict(self, model, batch):
        raise ValueError("eight are not five")

class FailsLate(Base):
    "Its second timing process loses the half-precision arm."
    builds = 0
    def build_model(self):
        FailsLate.builds += 1
        return super().build_model()
    def predict(self, model, batch):
        if torch.is_autocast_enabled("cpu") and os.path.exists("lose_it"):
            raise ValueError("lost it")
        return model(batch)

class Slow(Base):
    "Ten milliseconds a step, long enough to be interrupted."
    def predict(self, model, batch):
        time.sleep(0.01)
        return model(batch)

class Long(Base):
    "A twentieth of a second a sample."
    default_batch = 16
    def predict(self, model, batch):
        time.sleep(0.05 * len(batch))
        return model(batch)

def raises():
    raise RuntimeError("no weights here")
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A user's folder with targets, as the current one."""
    (tmp_path / "bench_targets.py").write_text(TARGETS)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def config(target="Base", **changes):
    small = {"arms": ("cpu", "cpu:bf16"), "processes": 2, "repeats": 3, "seconds": 0.01, "warmup_seconds": 0.1,
             "gate_steps": 2}  # fmt: skip
    return BenchConfig(target=f"bench_targets.py:{target}" if target[0].isupper() else target, **{**small, **changes})


@pytest.fixture
def record(bench_run) -> RunRecord:
    (file,) = find_runs(bench_run.runs)
    return load_record(file)


def test_stdout_is_the_record_and_nothing_else(bench_run, record):
    assert bench_run.done.returncode in (0, 3), bench_run.done.stderr
    told = json.loads(bench_run.done.stdout)
    assert told["status"] == "complete" and told["kind"] == "bench"
    assert told["verdict"]["exit_code"] == bench_run.done.returncode
    assert "process 2 of 2" in bench_run.done.stderr


@pytest.mark.parametrize(
    ("one_process_s", "quick", "told"),
    [
        (60.0, False, ["about 7 minutes to go; --quick gives a rougher answer in about one"]),
        (60.0, True, ["about 7 minutes to go"]),
        (5.0, False, []),
    ],
)
def test_a_long_wait_is_announced_once_its_length_is_known(folder, monkeypatch, one_process_s, quick, told):
    ticks = iter(range(100))
    clock = types.SimpleNamespace(monotonic=lambda: one_process_s * next(ticks), time=time.time)
    monkeypatch.setattr(run_module, "time", clock)
    monkeypatch.setattr(run_module, "run_job", lambda job, **_: answers(job))
    heard = []
    given = config(arms=("cpu",), processes=8, gate=False, memory=False, quick=quick)
    bench(given, lambda event: heard.append(event.text) if event.kind == "note" else None)
    assert [text for text in heard if "to go" in text] == told


@pytest.mark.parametrize(("given", "is_told"), [({"input": ("4",)}, True), ({}, False)])
def test_a_bench_of_training_steps_says_of_a_plain_module_that_its_loss_is_made_up(folder, monkeypatch, given, is_told):
    monkeypatch.setattr(run_module, "run_job", lambda job, **_: answers(job))
    short = {"arms": ("cpu",), "processes": 1, "gate": False, "memory": False}
    assert (MADE_UP_LOSS in bench(config(mode="train", **short, **given)).notes) == is_told
    assert MADE_UP_LOSS not in bench(config(mode="infer", **short, **given)).notes


def test_arms_that_keep_memory_have_processes_of_their_own_now_before_and_now_after_the_others(folder, monkeypatch):
    asked = []

    def run(job, **_):
        if job["job"] == "timing":
            asked.append((job["protocol"]["process"], job["arms"]))
        return answers(job)

    monkeypatch.setattr(run_module, "run_job", run)
    heard = []
    arms = ("cpu", "cpu:fused+keep_memory", "cpu:fused", "cpu:keep_memory")
    bench(config(arms=arms, processes=3, gate=False, memory=False), heard.append)
    plain, kept = ["cpu", "cpu:fused"], ["cpu:fused+keep_memory", "cpu:keep_memory"]
    assert [process for process, _ in asked] == [0, 0, 1, 1, 2, 2]
    assert [sorted(names) for _, names in asked] == [plain, kept, kept, plain, plain, kept]
    assert max(event.done / event.total for event in heard if event.kind == "advance") <= 1.0


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["train", "infer"])
def test_long_steps_get_a_smaller_batch_and_it_is_said(folder, mode):
    quick = {"processes": 1, "gate_batch": 2, "step_seconds": 0.35, "memory": False, "mode": mode}
    heard = []
    done = bench(config("Long", arms=("cpu",), **quick), lambda event: heard.append(event.text))
    assert done.config["batch"] == 4 and done.config_sources["batch"] == "step_seconds"
    assert 200 <= done.arms[0].summary("wall").median < 350
    (note,) = [note for note in done.notes if note.startswith("Batch 4 instead of 16")]
    assert "--batch 16" in note and note in heard
    assert load_record(next(find_runs(folder / "runs"))).config == done.config


@pytest.mark.parametrize("changes", [{"batch": 16}, {"arms": ("cpu", "cpu:batch=8")}, {"step_seconds": None}])
def test_a_batch_that_was_asked_for_is_kept(folder, monkeypatch, changes):
    monkeypatch.setattr(run_module, "run_job", lambda job, **_: answers(job, default_batch=16, step_s=5.0))
    done = bench(config(**({"arms": ("cpu",), "memory": False, "step_seconds": 0.35} | changes)))
    assert done.config["batch"] == 16 and not any("instead of" in note for note in done.notes)


@pytest.mark.parametrize(
    ("batch", "paces", "step_s", "chosen"),
    [
        (16, [(2, 0.1)], 0.35, 4),
        (16, [(2, 0.1)], 0.8, 16),
        (16, [(2, 0.05), (2, 0.15)], 0.4, 4),  # all arms count
        (16, [(2, 9.0)], 0.4, 2),  # no smaller than what the gate ran
        (12, [(2, 0.1)], 0.16, 3),
        (100, [(3, 3.0)], 0.4, 3),
        (1, [(1, 9.0)], 0.4, 1),
        (16, [(0, 0.0)], 0.4, 16),  # a gate that kept no pace
        (16, [], 0.4, 16),
    ],
)
def test_the_batch_is_halved_until_steps_are_bearable(batch, paces, step_s, chosen):
    gates = [Gate(arm="cpu", passed=True, checks=[], reference="", batch=b, step_s=s) for b, s in paces]
    found, expected = bearable_batch(batch, gates, step_s)
    assert found == chosen
    assert expected == pytest.approx(batch * sum(s / b for b, s in paces if b))


def answers(job, *, default_batch=4, step_s=0.0):
    """What processes would answer that find a target and time nothing."""
    if job["job"] == "gate":
        gates = [{"arm": arm, "passed": True, "checks": [], "reference": "", "batch": job["batch"], "step_s": step_s}
                 for arm in job["arms"]]  # fmt: skip
        return {"gates": gates, "failures": []}
    if job["job"] == "describe":
        return {"name": "x", "summary": "", "default_batch": default_batch, "num_parameters": 1,
                "has_convolutions": False, "can_compile": False, "fast_bf16": False, "usable_cores": 2,
                "num_cuda": 0}  # fmt: skip
    return {"measurements": [], "telemetry": [], "failures": [], "notes": {}}


def test_a_record_is_complete_and_typed(record):
    assert record.status == "complete" and record.finished_at >= record.started_at
    assert (record.name, record.config["batch"], record.config["workload"]) == ("mlp", 4, {"width": 12})
    assert record.config_sources["workload.width"] == "the command line (--set)"
    assert record.config_sources["seed"] == "default"
    assert record.environment.packages["torch"] and record.environment.usable_cores >= 1
    assert record.extra["about"]["num_parameters"] == 8 * 12 + 12 + 12 * 3 + 3
    assert "rotate over four batches" in record.extra["regime"]
    assert record.command[-1] == "workload.width=12"


def test_every_arm_has_samples_of_every_process(record):
    assert [(a.name, a.role) for a in record.arms] == [("cpu", "baseline"), ("cpu:bf16", "arm")]
    for arm in record.arms:
        for quantity in ("wall", "interval", "first_step", "warmup"):
            series = record.samples(arm.name, quantity)
            assert len(series) == 2, f"{quantity} of {arm.name}"
            assert all(value > 0 for values in series for value in values)
        assert len(record.samples(arm.name, "interval")[0]) >= 3
        assert arm.summary("wall").num_processes == 2
        assert arm.memory.host_rss_bytes is not None and arm.first_step_s > 0 and arm.samples_per_s > 0
        assert arm.settings["device"] == "cpu" and not arm.error
    blocks = [t for t in record.telemetry if t.arm == "cpu" and t.process == 1]
    assert len(blocks) == len(record.samples("cpu", "wall")[1])


def test_every_arm_has_its_gate_and_the_comparison_is_paired(record):
    assert {g.arm: g.passed for g in record.gates} == {"cpu": True, "cpu:bf16": True}
    assert {c.name for c in record.gates[0].checks} >= {"outputs", "gradients", "worst gradient", "loss trajectory"}
    (found,) = record.comparisons
    base, other = record.arm("cpu").summary("wall"), record.arm("cpu:bf16").summary("wall")
    ratios = sorted(b / o for b, o in zip(base.process_medians, other.process_medians, strict=True))
    assert found.ratio == pytest.approx(sum(ratios) / 2)
    assert found.p_value is None and "too few processes" in found.test
    assert record.verdict.outcome in ("faster", "slower", "inconclusive")


def test_a_batch_that_does_not_fit_ends_with_5_and_the_batch_named(folder, jobs_in_process):
    with pytest.raises(OutOfMemory, match=r"batch = 1000 does not fit in memory on arm 'cpu:bf16'.*--batch") as caught:
        bench(config("Big", batch=1000))
    assert caught.value.exit_code == 5
    (file,) = find_runs(Path("runs"))
    left = load_record(file)
    assert left.status == "failed" and left.verdict.exit_code != 0
    assert all("batch = 1000" in arm.error for arm in left.arms)


def test_a_wrong_answer_gives_no_speed_and_exit_code_1(folder, jobs_in_process, capsys):
    small = ["--processes", "2", "--repeats", "3", "--seconds", "0.01", "--warmup-seconds", "0.1", "--gate-steps", "2"]
    code = run_cli(["bench", "bench_targets.py:WrongInHalf", "--arms", "cpu,cpu:bf16", *small])
    shown = " ".join(capsys.readouterr().out.split())
    assert code == 1
    assert "cpu:bf16 gives a wrong answer: outputs error 0.5" in shown
    assert "FAIL" in shown and "wrong answer" in shown
    (file,) = find_runs(Path("runs"))
    left = load_record(file)
    assert left.comparisons == [] and left.samples("cpu:bf16", "wall") == []
    assert len(left.samples("cpu", "wall")) == 2, "the right arm was timed all the same"
    assert left.verdict.outcome == "gate failed"


def test_one_bad_arm_is_a_row_and_the_others_have_results(folder, jobs_in_process):
    left = bench(config("FailsInHalf", arms=("cpu", "cpu:bf16", "cpu:threads=1")))
    assert left.status == "complete" and left.verdict.exit_code == 4
    error = left.arm("cpu:bf16").error
    assert error.startswith("ValueError at batch 4: no half here (") and error.endswith("bench_targets.py:39)")
    assert left.arm("cpu:bf16").summaries == []
    assert [c.arm for c in left.comparisons] == ["cpu:threads=1"]
    assert "cpu:bf16 gave no time" in left.verdict.headline


def test_a_compiler_that_fails_is_a_row_too(folder, jobs_in_process, monkeypatch):
    def no_compiler(*_, **__):
        raise RuntimeError("InvalidCxxCompiler: no C++ compiler found")

    monkeypatch.setattr(torch, "compile", no_compiler)
    left = bench(config(arms=("cpu", "cpu:compile")))
    assert "InvalidCxxCompiler" in left.arm("cpu:compile").error
    assert len(left.samples("cpu", "wall")) == 2


def test_an_arm_lost_in_a_later_process_keeps_what_it_gave(folder, jobs_in_process, monkeypatch):
    decode = run_module.decode

    def lose_it_after_the_first(kind, data):
        if kind is run_module.Timings:
            Path("lose_it").touch()
        return decode(kind, data)

    monkeypatch.setattr(run_module, "decode", lose_it_after_the_first)
    left = bench(config("FailsLate", processes=3))
    assert left.status == "complete"
    assert [len(left.samples(name, "wall")) for name in ("cpu", "cpu:bf16")] == [3, 1]
    assert "lost it" in left.arm("cpu:bf16").error
    assert len(left.comparisons) == 1


@pytest.mark.parametrize(
    ("target", "changes", "error", "words", "code"),
    [
        ("bench_targets.py:raises", {}, TargetError, "raised RuntimeError: no weights here", 2),
        ("unett", {}, UnknownName, "Did you mean 'unet'", 2),
        ("Base", {"input": ("8",)}, TargetError, "--input 8 is given", 2),
    ],
)
def test_a_target_that_cannot_be_measured_ends_before_anything_is_written(
    folder, jobs_in_process, target, changes, error, words, code
):
    with pytest.raises(error, match=words) as caught:
        bench(config(target, **changes))
    assert caught.value.exit_code == code
    assert not Path("runs").exists()


def test_a_card_asked_for_and_hidden_is_told_with_its_reason(folder, jobs_in_process, fake_nvml, monkeypatch):
    fake_nvml(2)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(DeviceUnavailable, match=r"CUDA_VISIBLE_DEVICES='' hides all 2 card") as caught:
        bench(config(arms=("cuda",)))
    assert caught.value.exit_code == 4
    assert not Path("runs").exists()


def test_without_a_gate_nothing_is_checked_and_arms_are_compared(folder, jobs_in_process):
    left = bench(config(gate=False))
    assert left.gates == [] and len(left.comparisons) == 1
    assert "gate" not in {job["job"] for job in jobs_in_process}


def test_every_process_times_every_arm_and_memory_is_weighed_alone(folder, jobs_in_process):
    bench(config(processes=3))
    kinds = [job["job"] for job in jobs_in_process]
    assert kinds == ["describe", "gate", "footprint", "footprint", "timing", "timing", "timing"]
    assert {tuple(job["arms"]) for job in jobs_in_process if job["job"] == "timing"} == {("cpu", "cpu:bf16")}
    assert [job["protocol"]["process"] for job in jobs_in_process if job["job"] == "timing"] == [0, 1, 2]


def test_tuned_stands_for_the_fastest_settings_that_pass_the_gate(folder, jobs_in_process, monkeypatch):
    choices = [parse_arm("cpu:threads=1"), parse_arm("cpu:bf16")]
    monkeypatch.setattr(run_module, "cpu_candidates", lambda **_: choices)
    monkeypatch.setattr(run_module, "_by_time", lambda rows: ["cpu:bf16", "cpu:threads=1"])
    left = bench(config("WrongInHalf", arms=("cpu", "cpu:tuned"), processes=1))
    assert left.extra["tuned_cpu"]["chosen"] == "cpu:threads=1", "bf16 gives a wrong answer here"
    assert [a.name for a in left.arms] == ["cpu", "cpu:threads=1"]
    assert "cpu:tuned is cpu:threads=1 here." in left.notes
    [why] = [note for note in left.notes if note.startswith("cpu:bf16 was left out of the tuned CPU: ")]
    assert re.search(r"wrong answer, [a-z ]+ error [\d.e-]+, allowed [\d.e-]+$", why)


@pytest.mark.usefixtures("folder", "jobs_in_process")
@pytest.mark.parametrize("aborts", [False, True])
def test_a_race_that_no_settings_finish_names_what_is_wrong_with_the_target(monkeypatch, aborts):
    """Without --arms it comes first, and all it said was that none of its settings ran."""

    def abort(run, candidates):
        raise WorkerDied("the timing process died of SIGABRT")

    if aborts:  # as compiled code does on a bad index
        monkeypatch.setattr(run_module._Run, "_heat", abort)
    with pytest.raises(TargetError, match=r"target 'bench_targets.py:Fails' raised ValueError .*: eight are not five"):
        bench(config("Fails", arms=("cpu", "cpu:tuned")))


@pytest.mark.usefixtures("folder", "jobs_in_process")
def test_a_race_without_a_gate_names_why_none_of_its_settings_ran():
    words = r"no CPU settings of 'bench_targets.py:Fails' ran .*: cpu gave ValueError at batch 4: eight are not five"
    with pytest.raises(EnvironmentUnusable, match=words):
        bench(config("Fails", arms=("cpu", "cpu:tuned"), gate=False))


@pytest.mark.parametrize(
    ("arms", "chosen", "after"),
    [
        (["cpu", "cpu:threads=1", "cpu:tuned"], "cpu", ["cpu", "cpu:threads=1"]),
        (["cpu:tuned", "cuda", "cpu"], "cpu", ["cpu", "cuda"]),
        (["cpu:tuned", "cuda"], "cpu:bf16", ["cpu:bf16", "cuda"]),
    ],
)
def test_the_winner_of_the_race_keeps_the_baseline_where_it_was(arms, chosen, after):
    class Half:
        notes, context = [], []

    Half.arms = [parse_arm(name) for name in arms]
    run_module._Run._replace_tuned(Half, parse_arm(chosen))
    assert [a.name for a in Half.arms] == after


@pytest.mark.parametrize(("target", "told"), [("Double", ["'fp32' means float64 for them"]), ("Base", [])])
@pytest.mark.usefixtures("folder", "jobs_in_process")
def test_weights_that_are_not_float32_are_told(target, told):
    record = bench(config(target, arms=("cpu",), processes=1, memory=False))
    found = [note for note in record.notes if "which no arm casts" in note]
    assert len(found) == len(told) and all(words in note for words, note in zip(told, found, strict=True))


def test_a_preview_tells_the_plan_and_writes_nothing(folder, jobs_in_process):
    lines = preview(config(batch=7))
    assert any(line.split() == ["baseline", "cpu"] for line in lines)
    assert "2 processes, each timing 2 arms in turn" in lines[-1] and "batch 7" in lines[-1]
    assert not Path("runs").exists()
    assert [job["job"] for job in jobs_in_process] == ["describe"]


@pytest.mark.parametrize("fitting", [0, 1])
def test_a_full_disk_is_a_storage_error_and_leaves_no_half_file(fitting, folder, jobs_in_process, monkeypatch):
    """From the beginning, where nothing is left, or later, where the record that was written before is."""
    written, sync = [], os.fsync

    def no_space(file):
        written.append(True)
        if len(written) > fitting:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        sync(file)

    monkeypatch.setattr(os, "fsync", no_space)
    with pytest.raises(StorageError, match="No space left on device") as caught:
        bench(config())
    assert caught.value.exit_code == 4 and len(written) > fitting, "it was tried"
    files = [path for path in Path("runs").rglob("*") if path.is_file()]
    assert [path.name for path in files] == [RECORD_NAME] * fitting and all(load_record(path) for path in files)
    assert Path("runs").exists() == bool(fitting)


def test_a_disk_that_is_really_full(folder, jobs_in_process):
    disk = folder / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=16k", "tmpfs", str(disk)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("mounting a tiny disk needs root")
    try:
        with pytest.raises(StorageError, match="No space left on device"):
            bench(config(runs=disk))
        files = [p for p in disk.rglob("*") if p.is_file()]
        assert all(p.name == RECORD_NAME for p in files)
        assert all(load_record(p) for p in files)
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_a_file_in_the_way_of_the_runs_folder(folder, jobs_in_process):
    Path("runs").write_text("")
    with pytest.raises(StorageError, match=r"cannot create 'runs/Base/.*Not a directory.*--runs"):
        bench(config())


def wait_for_a_measuring_run(running: subprocess.Popen, seconds: float) -> None:
    """Until the target is loaded: its batch is known from then on."""
    deadline = time.monotonic() + seconds
    while running.poll() is None and time.monotonic() < deadline:
        if [file for file in find_runs(Path("runs")) if load_record(file).config["batch"]]:
            return
        time.sleep(0.05)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_however_a_run_is_cut_off_its_record_reads_as_interrupted(folder, number):
    command = ["bench", "bench_targets.py:Slow", "--arms", "cpu", "--seconds", "60", "--max-seconds", "60", "--no-gate"]
    with open("stderr.txt", "w") as stderr:
        running = subprocess.Popen(
            [sys.executable, "-m", "hotlap", *command],
            stderr=stderr,
            stdout=subprocess.DEVNULL,
            # A shell starts its background jobs with SIGINT ignored, and that would be inherited from such a test run.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
        try:
            wait_for_a_measuring_run(running, 100)
            running.send_signal(number)
            code = running.wait(timeout=60)
        finally:
            running.kill()
            running.wait()
    (file,) = find_runs(Path("runs"))
    assert load_record(file).status == "interrupted"
    assert list(file.parent.iterdir()) == [file]
    if number == signal.SIGKILL:
        assert code == -signal.SIGKILL
    else:
        assert code == 130, Path("stderr.txt").read_text()
        assert "interrupted; 'hotlap list runs'" in Path("stderr.txt").read_text()
        assert json.loads(file.read_text())["status"] == "interrupted"
