"""One process at a time in a folder."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from hotlap.base.errors import StorageError, UsageError
from hotlap.engine.alone import alone_in

HOLD = """
import os, sys, time
from pathlib import Path
from hotlap.engine.alone import alone_in
with alone_in(Path(sys.argv[1])):
    if os.fork() == 0:
        time.sleep(60)  # a worker that outlives its trainer
        os._exit(0)
    print("held", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def holder(tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True, process_group=0
    )
    assert process.stdout.readline() == "held\n"
    yield process
    subprocess.run(["kill", "-9", "--", f"-{process.pid}"], check=False)
    process.stdout.close()
    process.wait()


def test_another_process_is_waited_for_and_then_named(tmp_path, holder):
    said = []
    held = pytest.raises(UsageError, match=r"another process trains in .*--resume")
    with held, alone_in(tmp_path, wait_s=0.2, say=said.append):
        pytest.fail("two at a time")
    assert said == [f"another process still trains in {str(tmp_path)!r}; waiting for it to leave"]


def test_a_killed_process_lets_go_though_its_forks_live_on(tmp_path, holder):
    holder.kill()
    holder.wait()
    begun = time.monotonic()
    with alone_in(tmp_path, wait_s=30):
        assert time.monotonic() - begun < 30


def test_it_is_free_again_afterwards_and_a_folder_that_is_not_there_is_named(tmp_path):
    for _ in range(2):
        with alone_in(tmp_path):
            assert (tmp_path / ".training").exists()
    with pytest.raises(StorageError, match="gone"), alone_in(tmp_path / "gone"):
        pytest.fail("there is no such folder")
