"""Where a user's files go, also of a user without a folder."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from hotlap.base import homes
from hotlap.base.homes import cache_home, config_home


def test_the_variables_win_over_the_users_own_folder(monkeypatch):
    monkeypatch.setattr(Path, "home", lambda: Path("/h"))
    assert config_home({"XDG_CONFIG_HOME": "/x"}) == Path("/x") and cache_home({"XDG_CACHE_HOME": "/y"}) == Path("/y")
    assert config_home({}) == Path("/h/.config") and cache_home({"XDG_CACHE_HOME": ""}) == Path("/h/.cache")


@pytest.fixture
def place(monkeypatch, tmp_path):
    """Where a user without a folder has one."""

    def none():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", none)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    homes._temporary_home.cache_clear()
    yield tmp_path / f"hotlap-home-{os.getuid()}"
    homes._temporary_home.cache_clear()


def test_a_user_without_a_folder_gets_one_for_temporary_files_alone(place):
    assert config_home({}) == place / ".config" and cache_home({}) == place / ".cache"
    assert place.stat().st_mode & 0o777 == 0o700
    homes._temporary_home.cache_clear()
    assert cache_home({}) == place / ".cache", "the next process finds what this one left"


@pytest.mark.parametrize("made", ["for everybody", "a link", "a file"])
def test_a_folder_that_others_may_have_filled_is_not_read_from(place, tmp_path, made):
    if made == "a link":
        (tmp_path / "theirs").mkdir()
        place.symlink_to(tmp_path / "theirs")
    elif made == "a file":
        place.touch()
    else:
        place.mkdir()
        place.chmod(0o777)
    own = cache_home({}).parent
    assert own != place and own.parent == tmp_path and own.stat().st_mode & 0o777 == 0o700
    assert config_home({}).parent == own, "one for the whole process"
