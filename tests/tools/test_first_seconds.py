"""Whoever stops a tool in its first seconds finds a record that says so, whatever the tool."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from hotlap.records.run import find_runs, load_record

COMMANDS = {
    "bench": ["bench", "bilstm", "--quick"],
    "tune": ["tune", "bilstm", "--budget", "1m"],
    "profile": ["profile", "bilstm"],
    "export": ["export", "bilstm", "--out", "exported"],
    "loader": ["loader", "bilstm"],
}

HANGS = """
import time
from pathlib import Path

Path("is-loading").touch()
time.sleep(300)
"""

INTERRUPTED = """
from hotlap.cli import main

main._dispatch = lambda words: exec("raise KeyboardInterrupt")
main.main(["loader"])
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
@pytest.mark.parametrize("kind", COMMANDS)
def test_a_tool_that_is_stopped_while_it_loads_leaves_a_record(kind, number, tmp_path):
    running = subprocess.Popen(
        [sys.executable, "-m", "hotlap", *COMMANDS[kind]],
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        deadline = time.monotonic() + 60
        while not list(find_runs(tmp_path / "runs")) and time.monotonic() < deadline and running.poll() is None:
            time.sleep(0.01)
        running.send_signal(number)
        code = running.wait(timeout=60)
    finally:
        running.kill()
        running.wait()
    (file,) = find_runs(tmp_path / "runs")
    record = load_record(file)
    assert (record.kind, record.status) == (kind, "interrupted")
    assert code == (130 if number == signal.SIGTERM else -signal.SIGKILL)
    assert record.notes[0] == "The target was being loaded; nothing was measured yet."
    assert sorted(path.name for path in Path(tmp_path).iterdir()) == ["runs"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_training_that_is_stopped_while_its_target_hangs_leaves_at_once(number, tmp_path):
    """There is no step to end and nothing to save, so neither it nor the process that loads is waited for."""
    (tmp_path / "hangs.py").write_text(HANGS)
    running = subprocess.Popen(
        [sys.executable, "-m", "hotlap", "train", "hangs.py:net", "--input", "3"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # background jobs of a shell ignore it
    )
    try:
        deadline = time.monotonic() + 60
        while not (tmp_path / "is-loading").exists() and time.monotonic() < deadline and running.poll() is None:
            time.sleep(0.01)
        (loads,) = psutil.Process(running.pid).children()
        running.send_signal(number)
        _, said = running.communicate(timeout=20)
        gone, _ = psutil.wait_procs([loads], timeout=20)
    finally:
        running.kill()
        running.wait()
    assert gone == [loads]
    (file,) = find_runs(tmp_path / "runs")
    assert load_record(file).status == "interrupted"
    assert said.splitlines()[0] == "train: loading hangs.py:net"
    assert "checkpoint" not in said
    assert running.returncode == (-signal.SIGKILL if number == signal.SIGKILL else 130)


def test_an_interrupt_while_python_runs_text_has_the_same_exit_code(tmp_path):
    """Libraries make their dataclasses so while they are imported; Python itself then remembers an interrupt."""
    (tmp_path / "interrupted.py").write_text(INTERRUPTED)
    done = subprocess.run(
        [sys.executable, "-m", "interrupted"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (130, "")
    assert done.stderr == "hotlap: interrupted; 'hotlap list runs' shows what was saved until then\n"
