"""Forked workers: the same answers and the same deaths as in fresh processes, and nothing goes over to the next job."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from hotlap.base.errors import OutOfMemory, TargetError, WorkerDied
from hotlap.measure import nursery as nursery_module
from hotlap.measure.nursery import COMPILERS, Nursery, can_fork, own_or_lent
from hotlap.measure.nursery_main import unfit
from hotlap.measure.process import NurseryGone, lent, run_job, worker_environment

pytestmark = pytest.mark.skipif(not can_fork(), reason="fresh processes only")
LINEAR = """
from torch import nn
def make():
    return nn.Linear(4, 3)
"""


@pytest.fixture(scope="module")
def nest():
    """One nursery for all tests that leave it alive; every test has another environment, so it is held still."""
    with pytest.MonkeyPatch.context() as patch:
        environment = worker_environment()
        patch.setattr(nursery_module, "worker_environment", lambda: dict(environment))
        with Nursery(COMPILERS[:1]) as nursery:
            yield nursery


@pytest.fixture
def describe(tmp_path):
    """Describes a target given as source, by a nursery."""

    def run(source, nursery, *, timeout_s=120.0):
        file = tmp_path / "target_under_test.py"
        file.write_text(source)
        job = {"job": "describe", "target": f"{file}:make", "options": {}, "inputs": ["4"], "seed": 0, "mode": "train"}
        return run_job(job, timeout_s=timeout_s, nursery=nursery)

    return run


def pids_of(nursery):
    return {child.pid for child in psutil.Process(nursery._process.pid).children(recursive=True)}


def test_a_forked_worker_answers_what_a_fresh_one_does(describe, nest):
    forked = [describe(LINEAR, nest) for _ in range(2)]
    fresh = describe(LINEAR, None)
    assert forked == [fresh, fresh] and nest.notes == []


def test_a_nursery_that_is_lent_is_used_and_left_open(nest):
    with lent(nest), own_or_lent() as used:
        assert used is nest
    assert nest._process is not None, "it is its owner's to close"


def test_without_a_lent_nursery_the_own_one_is_closed(monkeypatch):
    monkeypatch.setattr(nursery_module, "can_fork", lambda: False)
    with own_or_lent() as used:
        assert not used._last_words.closed
    assert used._last_words.closed


def test_every_forked_worker_has_the_device_for_itself(device, nest, tmp_path):
    (tmp_path / "net.py").write_text(LINEAR)
    arm = "cuda" if device.type == "cuda" else "cpu:threads=1"
    job = {"job": "trial", "target": f"{tmp_path / 'net.py'}:make", "inputs": ["4"], "seed": 0, "mode": "train",
           "arm": arm, "batch": 4, "seconds": 0.01, "warmup_seconds": 0.01, "tail": 0}  # fmt: skip
    found = [run_job(job, timeout_s=120, nursery=nest) for _ in range(2)]
    assert all(min(one["wall_ms"]) > 0 for one in found) and nest.notes == []


@pytest.mark.parametrize(
    ("source", "kind", "words"),
    [
        ("import ctypes, os\nos.write(2, b'about to fall')\nctypes.string_at(0)", WorkerDied, "SIGSEGV.*about to fall"),
        ("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)", OutOfMemory, r"was killed \(SIGKILL\).*--batch"),
        ("import os\nos._exit(7)", WorkerDied, "ended with exit code 7 and no answer"),
        ("raise RuntimeError('no weights')", TargetError, "raised RuntimeError on import: no weights"),
    ],
)  # fmt: skip
def test_deaths_are_told_as_those_of_fresh_processes_and_the_nursery_goes_on(describe, nest, source, kind, words):
    with pytest.raises(kind, match=words):
        describe(source, nest)
    assert describe(LINEAR, nest)["num_parameters"] == 15 and nest.notes == []


def test_a_worker_that_hangs_is_stopped_and_the_next_one_is_not(describe, nest):
    with pytest.raises(WorkerDied, match="stopped after timeout_s = 1"):
        describe("import time\ntime.sleep(600)", nest, timeout_s=1)
    late = nursery_module.Fledgling(nest, nest._number, *os.pipe()[::-1])
    late.kill()  # an alarm that rings after its worker has ended must not hit the next
    assert describe(LINEAR, nest)["num_parameters"] == 15
    assert pids_of(nest) == set() and nest.notes == []
    late.stdin.close()
    late.stdout.close()


FORKS = """
import os, pathlib, signal, time
pid = os.fork()
if pid == 0:
    time.sleep(600)
pathlib.Path(__file__).with_name("left").write_text(str(pid))
"""


@pytest.mark.parametrize(
    ("source", "kind", "words"),
    [
        ("os.kill(os.getpid(), signal.SIGKILL)", OutOfMemory, r"was killed \(SIGKILL\)"),
        ("time.sleep(600)", WorkerDied, "stopped after timeout_s = 20"),
    ],
)
def test_what_a_worker_has_forked_neither_delays_its_death_nor_outlives_it(
    describe, nest, tmp_path, source, kind, words
):
    began = time.monotonic()
    with pytest.raises(kind, match=words):
        describe(FORKS + source, nest, timeout_s=20)
    assert time.monotonic() - began < (15 if kind is OutOfMemory else 40)
    assert gone(int((tmp_path / "left").read_text()))
    assert describe(LINEAR, nest)["num_parameters"] == 15 and nest.notes == []


def test_what_a_job_changes_is_gone_with_it(describe, nest):
    source = """
import os, sys, torch
from torch import nn
clean = torch.get_default_dtype() == torch.float32 and "LEFT" not in os.environ and not hasattr(sys, "left")
torch.set_default_dtype(torch.float64); torch.set_num_threads(1); os.environ["LEFT"] = "1"; sys.left = 1
def make():
    return nn.Linear(4, 3 if clean else 7)
"""
    assert [describe(source, nest)["num_parameters"] for _ in range(3)] == [15, 15, 15]


def test_no_handles_are_left_in_the_caller(describe, nest):
    describe(LINEAR, nest)
    before = psutil.Process().num_fds()
    for _ in range(3):
        describe(LINEAR, nest)
    assert psutil.Process().num_fds() == before


def test_a_nursery_that_dies_with_its_worker_leaves_the_job_to_a_fresh_process_and_says_so(describe, tmp_path):
    source = f"""
import os, pathlib, signal, time
mark = pathlib.Path({str(tmp_path / "once")!r})
if not mark.exists():
    mark.touch()
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(600)
"""
    with Nursery() as nursery:
        assert describe(source + LINEAR, nursery)["num_parameters"] == 15
        told = list(nursery.notes)
        assert len(told) == 1 and "trials start in fresh processes" in told[0] and "(it died" in told[0]
        with pytest.raises(NurseryGone), (tmp_path / "e").open("w+") as stderr:
            nursery.start(stderr)
        assert nursery.notes == told, "once is enough"


def test_modules_that_make_forking_unsafe_are_left_out(describe, tmp_path, monkeypatch):
    (tmp_path / "restless.py").write_text(
        "import threading, time\nthreading.Thread(target=time.sleep, args=(9,), daemon=True).start()\n"
    )
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ['PYTHONPATH']}")
    with Nursery(["restless"]) as nursery:
        assert describe(LINEAR, nursery)["num_parameters"] == 15 and nursery.notes == []
        assert "restless" not in psutil.Process(nursery._process.pid).cmdline()


def test_another_environment_or_folder_needs_a_fresh_process(tmp_path, monkeypatch, nest):
    with (tmp_path / "e").open("w+") as stderr:
        monkeypatch.chdir(tmp_path)
        with pytest.raises(NurseryGone):
            nest.start(stderr)
        assert "the environment or the folder is another" in nest.notes.pop()
        monkeypatch.undo()
        monkeypatch.setattr(nursery_module, "worker_environment", lambda: {"OMP_NUM_THREADS": "1"})
        with pytest.raises(NurseryGone):
            nest.start(stderr)
        assert "the environment or the folder is another" in nest.notes.pop()


def test_where_nothing_can_be_forked_nothing_is_started(tmp_path, monkeypatch):
    monkeypatch.setattr(nursery_module, "can_fork", lambda: False)
    with Nursery() as nursery, (tmp_path / "e").open("w+") as stderr:
        with pytest.raises(NurseryGone):
            nursery.start(stderr)
        assert f"{sys.platform} cannot fork safely" in nursery.notes[0]


def test_a_process_that_a_fork_would_break_is_told(tmp_path, monkeypatch):
    done = threading.Event()
    thread = threading.Thread(target=done.wait)
    thread.start()
    assert "Python threads run" in unfit()
    done.set()
    thread.join()
    monkeypatch.setattr(threading, "active_count", lambda: 1)  # whatever runs these tests may have threads of its own
    (tmp_path / "fd").mkdir()
    for number in ("1", "2"):
        (tmp_path / "task" / number).mkdir(parents=True)
    assert unfit(tmp_path) == "2 threads run"
    (tmp_path / "task" / "2").rmdir()
    assert unfit(tmp_path) == ""
    (tmp_path / "fd" / "9").symlink_to("/dev/nvidiactl")
    assert unfit(tmp_path) == "/dev/nvidiactl is open"


def gone(pid, within_s=20.0):
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        if not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
            return True
        time.sleep(0.05)
    return False


def test_nursery_and_worker_end_when_their_parent_is_killed(tmp_path):
    pids = tmp_path / "pids"
    target = tmp_path / "slow_target.py"
    target.write_text(
        f"import os, pathlib, time\nnew = pathlib.Path({str(pids)!r} + '.new')\n"
        "new.write_text(f'{os.getpid()} {os.getppid()}')\n"
        f"new.rename({str(pids)!r})\ntime.sleep(600)\n"
    )
    job = json.dumps({"job": "describe", "target": f"{target}:make"})
    code = (
        "from hotlap.measure.nursery import Nursery\nfrom hotlap.measure.process import run_job\n"
        f"run_job({job}, timeout_s=500, nursery=Nursery())"
    )
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    parent = subprocess.Popen([sys.executable, "-c", code], env={**os.environ, "TMPDIR": str(temporary)})
    try:
        deadline = time.monotonic() + 50
        while not pids.exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        worker, nest = map(int, Path(pids).read_text().split())
        assert nest not in (parent.pid, os.getpid()), "the worker was forked by a nursery"
        assert list(temporary.glob("hotlap-*")), "what its workers keep for each other"
    finally:
        parent.send_signal(signal.SIGKILL)
        parent.wait()
    assert gone(worker) and gone(nest)
    assert not list(temporary.glob("hotlap-*"))
