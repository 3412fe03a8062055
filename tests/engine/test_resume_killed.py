"""A training that is killed with ``kill -9``, wherever it is, and resumed, is the training that was never killed."""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import chain
from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.mark.slow
@pytest.mark.parametrize(
    ("num_kills", "workers", "phases"), [(50, 0, {"step", "save", "evaluate"}), (6, 2, set())], ids=["50", "workers"]
)
def test_a_run_killed_anywhere_ends_bit_for_bit_as_if_it_had_not_been(
    tmp_path, monkeypatch, num_kills, workers, phases
):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # a process that forks must have no threads of its own
    command = [sys.executable, HERE / "killed_trainer.py", tmp_path, num_kills, 11, workers]
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False, timeout=280)
    assert done.returncode == 0, done.stderr
    rounds = [json.loads(line) for line in done.stdout.splitlines()]
    killed = list(chain.from_iterable(found["killed"] for found in rounds))
    assert len(killed) == num_kills
    assert phases <= set(killed)
    for found in rounds:
        assert found["differences"] == [], found
        assert found["texts"] == [], found
        assert found["steps"] == [42, 42]
        assert found["best"][0] == found["best"][1]
        assert found["warned"] == []
        assert found["leftovers"] == []
