"""Fresh processes: answers, garbage, deaths of every kind, and no orphans."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from hotlap.base.errors import DataError, HotlapError, OutOfMemory, TargetError, UsageError, WorkerDied
from hotlap.measure import process
from hotlap.measure.process import _death, _read_answer, freeze_error, revive_error, run_job
from hotlap.workload import BadSample

LINEAR = """
from torch import nn
def make():
    return nn.Linear(4, 3)
"""


@pytest.fixture
def describe(tmp_path):
    """Describes a target given as source, in a fresh process."""

    def run(source, *, timeout_s=120.0, listen=process.quiet):
        file = tmp_path / "target_under_test.py"
        file.write_text(source)
        job = {"job": "describe", "target": f"{file}:make", "options": {}, "inputs": ["4"], "seed": 0, "mode": "train"}
        return run_job(job, timeout_s=timeout_s, listen=listen)

    return run


def test_a_target_that_prints_still_gets_its_answer_through(describe):
    heard = []
    noise = """
import os, subprocess, sys
print("hello"); print('{"result": "forged"}'); sys.stdout.flush()
os.write(1, b'{"result": "forged"}\\n')
subprocess.run(["echo", '{"result": "forged"}'])
sys.stderr.write("x" * 200_000)
"""
    answer = describe(noise + LINEAR, listen=lambda *told: heard.append(told))
    assert answer["num_parameters"] == 15
    assert answer["has_convolutions"] is False
    assert heard[0] == ("loading the target", 0, 1)


def test_the_error_of_a_target_comes_back_as_it_was_raised(describe):
    with pytest.raises(TargetError, match=r"raised RuntimeError: no weights .*target_under_test\.py:3") as caught:
        describe("def make():\n    'fails'\n    raise RuntimeError('no weights')\n")
    assert caught.value.exit_code == 2


def test_a_worker_killed_in_its_factory_means_that_memory_ran_out(describe):
    with pytest.raises(
        OutOfMemory, match=r"the describe process for '.*make' was killed \(SIGKILL\).*--batch"
    ) as caught:
        describe("import os, signal\ndef make():\n    os.kill(os.getpid(), signal.SIGKILL)\n")
    assert caught.value.exit_code == 5


def test_a_segmentation_fault_is_named_with_the_last_words(describe):
    source = "import ctypes, sys\nsys.stderr.write('about to fall\\n'); sys.stderr.flush()\nctypes.string_at(0)\n"
    with pytest.raises(WorkerDied, match=r"died of SIGSEGV.*'hotlap doctor'.*about to fall") as caught:
        describe(source)
    assert caught.value.exit_code == 4


def test_a_worker_that_leaves_without_a_word_is_told_with_its_exit_code(describe):
    with pytest.raises(WorkerDied, match="ended with exit code 7 and no answer"):
        describe("import os\nos._exit(7)\n")


def test_a_worker_that_hangs_is_stopped_and_the_limit_named(describe):
    began = time.monotonic()
    with pytest.raises(WorkerDied, match=r"stopped after timeout_s = 3\. Give it longer with --timeout-s") as caught:
        describe("import time\ntime.sleep(600)", timeout_s=3)
    assert caught.value.exit_code == 4
    assert time.monotonic() - began < 60
    assert psutil.Process().children() == []


SPEAKS = """
import json, sys, time
sys.stdin.readline()
for _ in range(8):
    time.sleep(0.5)
    print(json.dumps({"progress": "a step", "done": 0, "total": 1}), flush=True)
if sys.argv[1] == "hangs":
    time.sleep(600)
print(json.dumps({"result": 7}), flush=True)
"""


@pytest.mark.parametrize(("end", "each_word"), [("ends", True), ("ends", False), ("hangs", True)])
def test_a_worker_that_gets_on_is_not_one_that_hangs(monkeypatch, end, each_word):
    def start(stderr):
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": stderr}
        return subprocess.Popen([sys.executable, "-c", SPEAKS, end], **pipes, text=True)

    monkeypatch.setattr(process, "_start_fresh", start)
    job, heard = {"job": "gate"}, []

    def ask():
        return run_job(job, timeout_s=3, each_word=each_word, listen=lambda *word: heard.append(word))

    if (end, each_word) == ("ends", True):
        assert ask() == 7
    else:
        with pytest.raises(WorkerDied, match="stopped after timeout_s = 3"):
            ask()
    assert (len(heard) == 8) == each_word


def test_a_timeout_is_no_memory_shortage_even_when_death_is_noticed_first(describe, monkeypatch):
    """The thread that kills may still be winding down when the worker's end is seen."""

    class SlowTimer(process.threading.Timer):
        def is_alive(self):
            return True

    monkeypatch.setattr(process.threading, "Timer", SlowTimer)
    with pytest.raises(WorkerDied, match="timeout_s = 1"):
        describe("import time\ntime.sleep(600)", timeout_s=1)


def test_an_interruption_while_the_alarm_starts_leaves_no_worker_and_no_thread_to_wait_for(describe, monkeypatch):
    class Interrupted(process.threading.Timer):
        def start(self):
            super().start()
            raise KeyboardInterrupt

    monkeypatch.setattr(process.threading, "Timer", Interrupted)
    with pytest.raises(KeyboardInterrupt):
        describe("import time\ntime.sleep(600)", timeout_s=500)
    assert psutil.Process().children() == []
    assert [t for t in process.threading.enumerate() if isinstance(t, Interrupted) and not t.daemon] == []


def test_a_script_that_benches_itself_without_a_guard_is_told_so(tmp_path):
    file = tmp_path / "careless.py"
    file.write_text(f"import hotlap\n{LINEAR}\nhotlap.bench(make, input='4')\n")
    done = subprocess.run(
        [sys.executable, str(file)], cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 1
    assert "hotlap was called while hotlap was loading it" in done.stderr
    assert 'if __name__ == "__main__":' in done.stderr
    assert not (tmp_path / "runs").exists()


def ended(pid, within_s=20.0):
    """Whether a process is gone, or will be soon; one that only waits to be reaped is gone."""
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        try:
            if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
                return True
        except psutil.NoSuchProcess:
            return True
        time.sleep(0.05)
    return False


FORKS = """
import os, pathlib, signal, sys, time
pid = os.fork()
if pid == 0:
    time.sleep(600)
pathlib.Path(__file__).with_name("left").write_text(str(pid))
"""
STARTS = """
import os, pathlib, signal, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
pathlib.Path(__file__).with_name("left").write_text(str(child.pid))
"""
FALLS = "os.kill(os.getpid(), signal.SIGKILL)\n"


@pytest.mark.parametrize("leaves", [FORKS, STARTS])
def test_a_death_is_told_at_once_though_children_of_the_dead_live_and_they_end_with_it(describe, tmp_path, leaves):
    """A child that was forked, such as a loader's worker, must not stand for the one that should answer."""
    began = time.monotonic()
    with pytest.raises(OutOfMemory, match=r"was killed \(SIGKILL\)"):
        describe(leaves + FALLS, timeout_s=100)
    assert time.monotonic() - began < 50
    assert ended(int((tmp_path / "left").read_text()))


def test_a_worker_that_hangs_is_stopped_with_what_it_forked(describe, tmp_path):
    with pytest.raises(WorkerDied, match=r"stopped after timeout_s = 5"):
        describe(FORKS + "time.sleep(600)", timeout_s=5)
    assert ended(int((tmp_path / "left").read_text()))


def test_what_a_worker_has_started_ends_with_it_though_all_went_well(describe, tmp_path):
    assert describe(STARTS + LINEAR)["num_parameters"] == 15
    assert ended(int((tmp_path / "left").read_text()))


def test_a_worker_ends_when_its_parent_is_killed(tmp_path):
    pid_file = tmp_path / "pid"
    target = tmp_path / "slow_target.py"
    target.write_text(
        "import os, pathlib, subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        f"pathlib.Path({str(pid_file)!r} + '.new').write_text(f'{{os.getpid()}} {{child.pid}}')\n"
        f"os.rename({str(pid_file)!r} + '.new', {str(pid_file)!r})\ntime.sleep(600)\n"
    )
    job = {"job": "describe", "target": f"{target}:make"}
    code = f"from hotlap.measure.process import run_job; run_job({json.dumps(job)}, timeout_s=500)"
    parent = subprocess.Popen([sys.executable, "-c", code])
    try:
        deadline = time.monotonic() + 60
        while not pid_file.exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        worker, child = map(int, pid_file.read_text().split())
        assert psutil.pid_exists(worker) and psutil.pid_exists(child)
    finally:
        parent.send_signal(signal.SIGKILL)
        parent.wait()
    assert ended(worker) and ended(child)


@pytest.mark.parametrize("line", ["5", '"progress"', "null", "[]", "not json", ""])
def test_lines_that_are_no_messages_are_passed_over(line):
    stream = io.StringIO(f'{line}\n{{"result": 1}}\n')
    assert _read_answer(stream, process.quiet) == {"result": 1}


def test_progress_is_heard_and_the_end_without_an_answer_is_none():
    heard = []
    stream = io.StringIO('{"progress": "x", "done": 1, "total": 2}\n')
    assert _read_answer(stream, lambda *told: heard.append(told)) is None
    assert heard == [("x", 1, 2)]


@pytest.mark.parametrize("code", [-signal.SIGKILL, 137])
def test_a_kill_passed_on_by_a_shell_is_recognised_too(code):
    assert isinstance(_death({"job": "timing", "target": "t"}, code, "", None), OutOfMemory)


def test_errors_survive_the_way_to_the_parent():
    for error in (UsageError("a", expected="b", remedy="c"), OutOfMemory("x"), HotlapError("y")):
        again = revive_error(json.loads(json.dumps(freeze_error(error))))
        assert type(again) is type(error)
        assert str(again) == str(error)
    lost = type("StepLost", (OutOfMemory,), {})("gone", remedy="resume")
    assert type(revive_error(freeze_error(lost))) is OutOfMemory
    assert freeze_error(lost)["type"] == "StepLost"
    assert type(revive_error({"type": "Strange", "what": "a", "expected": "", "remedy": ""})) is HotlapError


def test_an_error_from_outside_the_tree_keeps_its_exit_code():
    again = revive_error(json.loads(json.dumps(freeze_error(BadSample("7.png", "torn")))))
    assert type(again) is DataError and again.exit_code == BadSample.exit_code
    assert "bad sample 7.png: torn" in str(again)


def test_the_worker_imports_the_very_hotlap_that_started_it(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", "/somewhere/else")
    first, second = process.worker_environment()["PYTHONPATH"].split(os.pathsep)
    assert (Path(first) / "hotlap" / "__init__.py").samefile(sys.modules["hotlap"].__file__)
    assert second == "/somewhere/else"


@pytest.mark.parametrize(
    ("job", "is_forked"), [("describe", True), ("gate", True), ("timing", False), ("trial", False)]
)
def test_a_nursery_that_is_lent_forks_what_times_nothing_and_nothing_else(job, is_forked, monkeypatch):
    class Forked(Exception):
        pass

    class Fresh(Exception):
        pass

    class Nest:
        def start(self, stderr):
            raise Forked

    def start_fresh(stderr):
        raise Fresh

    monkeypatch.setattr(process, "_start_fresh", start_fresh)
    with process.lent(Nest()), pytest.raises(Forked if is_forked else Fresh):
        process.run_job({"job": job}, timeout_s=1)
    with pytest.raises(Fresh):  # what was lent is given back
        process.run_job({"job": job}, timeout_s=1)
