"""Savers killed with SIGKILL, or two at once: no checkpoint is ever half there, and none that was reported is lost."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="kills with SIGKILL after a fork")
SCRIPT = Path(__file__).with_name("killed_writer.py")


def rounds(*arguments) -> list[dict]:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), *map(str, arguments)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.slow
def test_a_saver_killed_at_random_loses_nothing_that_it_reported(tmp_path):
    found = rounds("random", tmp_path, 36, 20260211)
    assert len(found) == 36
    assert all(one["killed"] for one in found)
    assert all(one["whole"] and one["best_whole"] for one in found)
    assert all((one["step"] or 0) >= one["returned"] for one in found)
    assert not any(one["warned"] or one["temporaries"] for one in found)
    assert found[-1]["step"] > 36, "the savers get on"
    assert any(one["num_unfinished"] for one in found), "some were killed in the middle of a file"
    assert all(one["best"] == one["step"] // 7 * 7 for one in found if one["step"] and one["step"] >= 7)


@pytest.mark.slow
def test_a_saver_killed_at_any_line_leaves_the_old_checkpoint_or_the_new_one(tmp_path):
    *killed, through = rounds("line", tmp_path)
    assert len(killed) > 100, "a save has many lines"
    assert all(one["exit"] == -9 for one in killed)
    assert all(one["whole"] and one["best_whole"] for one in killed)
    assert {(one["step"], one["best"]) for one in killed} == {(3, 2), (7, 7)}, "before the rename, and after it"
    steps = [one["step"] for one in killed]
    assert steps == sorted(steps), "once there, the new one stays"
    assert not any(one["warned"] or one["temporaries"] for one in killed)
    assert any(one["num_unfinished"] for one in killed)
    assert (through["exit"], through["step"], len(through["files"])) == (0, 7, 1), "keep=1, and the newest is the best"


def test_two_processes_saving_at_once_leave_whole_checkpoints(tmp_path):
    (found,) = rounds("two", tmp_path)
    assert found["exits"] == [0, 0]
    assert (found["step"], found["best"]) == (40, 20)
    assert found["whole"]
    assert found["best_whole"]
    assert found["num_unfinished"] == 0
    assert not found["warned"]
