"""A search that is really killed, and goes on."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

TINY = """
from torch import nn

def mlp():
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
"""
HOTLAP = [sys.executable, "-m", "hotlap", "tune"]
SEARCH = [
    "tiny.py:mlp", "--input", "4", "--for", "infer", "--arms", "cpu,cpu:bf16", "--max-batch", "64", "--budget", "10m",
    "--seconds", "0.02", "--warmup-seconds", "0.1",
]  # fmt: skip


def rows_of(folder: Path) -> list[dict]:
    files = list(folder.glob("runs/*/*/record.json"))
    return (json.loads(files[0].read_text())["extra"].get("tune") or {}).get("rows", []) if files else []


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_search_that_is_killed_outright_goes_on_and_repeats_nothing(tmp_path):
    (tmp_path / "tiny.py").write_text(TINY)
    search = subprocess.Popen([*HOTLAP, *SEARCH], cwd=tmp_path, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 300
    while len(rows_of(tmp_path)) < 3 and search.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    search.send_signal(signal.SIGKILL)
    assert search.wait() == -signal.SIGKILL, "it was to be killed while it searched"
    before = rows_of(tmp_path)
    assert len(before) >= 3
    done = subprocess.run([*HOTLAP, "--resume", "latest"], cwd=tmp_path, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    after = rows_of(tmp_path)
    keys = [(row["arm"], row["batch"], row["rung"], row["attempt"], row["tail"]) for row in after]
    assert len(keys) == len(set(keys)) > len(before) and after[: len(before)] == before
    assert f"Resumed with {len(before)} trials of an earlier start." in " ".join(done.stdout.split())
