"""Files that are whole or absent, and what dead writers leave."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import time

import pytest

from hotlap.base.errors import StorageError
from hotlap.engine import durable
from hotlap.engine.durable import locked, remove_leftovers, staged, write_durably


def leftover(folder, pid, home=None):
    path = folder / f".step-00000001.{home or durable._home()}-{pid}-0123abcd.tmp"
    path.write_text("half")
    return path


@pytest.fixture
def dead_pid():
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    return child.pid


def test_a_dead_writer_s_file_is_removed(tmp_path, dead_pid):
    path = leftover(tmp_path, dead_pid)
    assert remove_leftovers(tmp_path) == [path]
    assert not list(tmp_path.iterdir())


def test_a_live_writer_s_file_stays(tmp_path):
    path = leftover(tmp_path, os.getppid())
    assert remove_leftovers(tmp_path) == []
    assert path.is_file()


def test_a_file_of_an_earlier_process_with_our_id_is_removed_and_one_in_flight_is_not(tmp_path):
    old = leftover(tmp_path, os.getpid())
    with staged(tmp_path, "step-00000002") as (file, publish):
        file.write(b"new")
        assert remove_leftovers(tmp_path) == [old]
        publish(tmp_path / "new")
    assert [path.name for path in tmp_path.iterdir()] == ["new"]
    assert (tmp_path / "new").read_bytes() == b"new"


def test_a_writer_elsewhere_is_given_an_hour(tmp_path, dead_pid):
    path = leftover(tmp_path, dead_pid, home="00000000")
    assert remove_leftovers(tmp_path) == []
    long_ago = time.time() - durable.ABANDONED_S - 60
    os.utime(path, (long_ago, long_ago))
    assert remove_leftovers(tmp_path) == [path]


def test_files_of_other_names_are_never_touched(tmp_path, dead_pid):
    for name in (".x.tmp", "step-00000001.pt.tmp", f".a.{dead_pid}.tmp", f".notes.zzzzzzzz-{dead_pid}-0123abcd.tmp"):
        (tmp_path / name).write_text("mine")
    assert remove_leftovers(tmp_path) == []
    assert len(list(tmp_path.iterdir())) == 4


def test_what_is_not_published_is_removed(tmp_path):
    with pytest.raises(ValueError, match="no"), staged(tmp_path, "x") as (file, _):
        file.write(b"half")
        raise ValueError("no")
    assert not list(tmp_path.iterdir())


def test_a_durable_file_may_be_read_by_whom_the_umask_lets(tmp_path):
    before = os.umask(0o027)
    try:
        write_durably(tmp_path / "x", b"1", remedy="")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "x").stat().st_mode) == 0o640


def test_a_folder_that_is_gone_is_named(tmp_path):
    with pytest.raises(StorageError, match=r"cannot write '.*gone/x': No such file or directory\. Make room"):
        write_durably(tmp_path / "gone/x", b"1", remedy="Make room")


def test_a_folder_is_held_by_one_at_a_time_and_let_go_by_the_dead(tmp_path):
    code = (
        "import os, sys, signal; from pathlib import Path; from hotlap.engine.durable import locked\n"
        "with locked(Path(sys.argv[1]), print):\n"
        "    print('held', flush=True); sys.stdin.readline(); os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    first = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert first.stdout.readline() == "held\n"
    import fcntl

    with open(tmp_path / ".lock") as handle, pytest.raises(BlockingIOError):
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    first.communicate("now die\n")
    with locked(tmp_path, pytest.fail):
        assert first.returncode == -9


def test_a_file_system_without_locks_is_said(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(37, "No locks available")

    monkeypatch.setattr("fcntl.flock", refuse)
    said = []
    with locked(tmp_path, said.append):
        pass
    assert "cannot be locked (No locks available); let only one run save there" in said[0]
