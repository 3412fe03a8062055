"""Where a run happened."""

from __future__ import annotations

import dataclasses
import subprocess
import sys

import pytest

import hotlap
from hotlap.records.environment import capture, read_commit


@pytest.fixture
def repository(tmp_path):
    def git(*arguments):
        identity = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
        subprocess.run(["git", "-C", str(tmp_path), *identity, *arguments], check=True, capture_output=True)

    git("init", "-q")
    (tmp_path / "a.txt").write_text("one")
    git("add", "a.txt")
    git("commit", "-qm", "first")
    return tmp_path


def test_the_commit_bears_a_plus_when_files_differ_from_it(repository):
    clean = read_commit(repository)
    assert len(clean) == 40
    (repository / "new.txt").write_text("not followed")
    assert read_commit(repository) == clean
    (repository / "a.txt").write_text("two")
    assert read_commit(repository) == clean + "+"


def test_outside_a_repository_or_without_git_there_is_no_commit(tmp_path, monkeypatch):
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    assert read_commit(tmp_path) == ""
    monkeypatch.setenv("PATH", "")
    assert read_commit(tmp_path) == ""


def test_the_machine_is_described_with_versions_and_variables(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    monkeypatch.setenv("SOME_SECRET", "x")
    here = capture(import_torch=False)
    assert here.hotlap == hotlap.__version__
    assert here.packages["torch"]
    assert here.usable_cores >= 1 and here.memory_bytes > 0
    assert here.variables["OMP_NUM_THREADS"] == "3"
    assert "SOME_SECRET" not in here.variables
    assert here.cpu_model in here.device_line()
    assert "1 core" in (one := dataclasses.replace(here, usable_cores=1).device_line()) and "1 cores" not in one


def test_it_can_be_described_without_importing_torch():
    code = "import sys; from hotlap.records.environment import capture; capture(import_torch=False); "
    code += "sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
