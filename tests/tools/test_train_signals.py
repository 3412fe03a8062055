"""``hotlap train`` as a user runs it: killed, stopped and resumed, it ends as if nothing had happened."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

import hotlap

ENGINE = Path(__file__).parents[1] / "engine"
TARGET = f"{ENGINE / 'troubled_workload.py'}:Troubled"
STEPS = 21


UNDISTURBED = """
import sys
from pathlib import Path

import torch
from tiny_workload import Tiny

from hotlap.engine.config import TrainConfig
from hotlap.engine.loop import Trainer

config = TrainConfig(target="tiny", epochs=3, log_every=1, device="cpu", seed=4, ema=0.9, schedule="cosine")
Trainer(Tiny(dropout=0.1), config, Path(sys.argv[1]), torch.device("cpu")).run()
"""


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """Metrics and weights of the run that nothing happens to.

    In a fresh process, as the others are: what other tests have left in this one, such as a number of threads, changes
    the last digits.
    """
    folder = tmp_path_factory.mktemp("undisturbed")
    paths = [str(ENGINE), str(Path(hotlap.__file__).resolve().parents[1])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    subprocess.run([sys.executable, "-c", UNDISTURBED, str(folder)], check=True, env=environment, timeout=200)
    return folder


class Command:
    """One ``hotlap train`` after another in one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.process: subprocess.Popen[str] | None = None

    def start(self, *arguments: str) -> Command:
        command = [sys.executable, "-m", "hotlap", "train", *arguments, "--json"]
        self.process = subprocess.Popen(
            command,
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            # A shell that runs the tests in the background has its children ignore Ctrl-C; a user's does not.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
        return self

    def begin(self) -> Command:
        fixed = ("--epochs", "3", "--log-every", "1", "--device", "cpu", "--seed", "4", "--ema", "0.9")
        options = ("--schedule", "cosine", "--set", "workload.trouble=slow", "--set", "workload.delay_s=0.15")
        return self.start(TARGET, *fixed, *options)

    @property
    def run(self) -> Path:
        return next(self.folder.glob("runs/Troubled/*"))

    def steps_logged(self) -> int:
        files = list(self.folder.glob("runs/*/*/metrics.jsonl"))
        return sum(line.count(b'"train"') for line in files[0].read_bytes().splitlines()) if files else 0

    def until_step(self, step: int) -> Command:
        deadline = time.monotonic() + 200
        while self.steps_logged() < step and time.monotonic() < deadline and self.process.poll() is None:
            time.sleep(0.01)
        assert self.process.poll() is None, self.process.communicate()
        assert step <= self.steps_logged() < STEPS
        return self

    def child(self) -> psutil.Process:
        (child,) = psutil.Process(self.process.pid).children()
        return child

    def end(self, *signals: signal.Signals) -> tuple[int, dict]:
        for number in signals:
            os.kill(self.process.pid, number)
        out, err = self.process.communicate(timeout=200)
        return self.process.returncode, json.loads(out) if out.strip() else {"stderr": err}

    def checkpoints(self) -> list[Path]:
        return sorted(self.run.glob("checkpoints/step-*.pt"))

    def assert_same_as(self, want: Path) -> None:
        sys.path.insert(0, str(ENGINE))
        from killed_trainer import differences

        from hotlap.engine.checkpoint import CheckpointStore

        assert (self.run / "metrics.jsonl").read_bytes() == (want / "metrics.jsonl").read_bytes()
        assert (self.run / "metrics.csv").read_bytes() == (want / "metrics.csv").read_bytes()
        states = [CheckpointStore(folder / "checkpoints").load().state for folder in (self.run, want)]
        assert differences(*states) == []


@pytest.fixture
def command(tmp_path):
    command = Command(tmp_path)
    yield command
    if command.process is not None and command.process.poll() is None:
        command.process.kill()
        command.process.wait()


@pytest.mark.slow
def test_killed_parent_then_both_then_resumed(command, undisturbed):
    """Its parent gone, a training saves and leaves by itself; with both gone, the last checkpoint is the way on."""
    child = command.begin().until_step(2).child()
    command.process.kill()
    assert command.process.wait() == -signal.SIGKILL
    psutil.wait_procs([child], timeout=100)
    assert not child.is_running()
    (saved,) = command.checkpoints()
    saved_step = int(saved.name.split("-")[1])
    assert saved_step >= 2
    command.start("--resume", "latest").until_step(saved_step + 3)
    child = command.child()
    command.process.kill()
    child.kill()
    psutil.wait_procs([child], timeout=100)
    assert command.checkpoints() == [saved]
    code, record = command.start("--resume", "latest").end()
    assert code == 0, record
    assert record["extra"]["outcome"]["resumed_from"] == saved_step
    assert [start["status"] for start in record["extra"]["earlier"]] == ["interrupted", "interrupted"]
    command.assert_same_as(undisturbed)


@pytest.mark.slow
def test_told_to_stop_it_saves_and_can_be_resumed(command, undisturbed):
    code, record = command.begin().until_step(2).end(signal.SIGINT)
    assert code == 130
    assert record["status"] == "interrupted"
    first = record["extra"]["outcome"]
    assert first["status"] == "interrupted"
    assert Path(command.folder / first["last_checkpoint"]).name == command.checkpoints()[-1].name
    code, record = command.start(TARGET, "--resume").until_step(first["step"] + 2).end(signal.SIGTERM)
    assert code == 130
    assert record["extra"]["outcome"]["resumed_from"] == first["step"]
    assert first["step"] < record["extra"]["outcome"]["step"] < STEPS
    code, record = command.start("--resume").end()
    assert code == 0, record
    assert record["status"] == "complete"
    assert record["verdict"]["headline"].startswith(f"trained {STEPS} steps")
    command.assert_same_as(undisturbed)
