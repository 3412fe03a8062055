"""Where a user's files go, also of a user without a folder."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from hotlap.base.homes import cache_home, config_home


def test_the_variables_win_over_the_users_own_folder(monkeypatch):
    monkeypatch.setattr(Path, "home", lambda: Path("/h"))
    assert config_home({"XDG_CONFIG_HOME": "/x"}) == Path("/x") and cache_home({"XDG_CACHE_HOME": "/y"}) == Path("/y")
    assert config_home({}) == Path("/h/.config") and cache_home({"XDG_CACHE_HOME": ""}) == Path("/h/.cache")


def test_a_user_without_a_folder_gets_one_for_temporary_files(monkeypatch):
    def none():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", none)
    place = Path(tempfile.gettempdir()) / f"hotlap-home-{os.getuid()}"
    assert config_home({}) == place / ".config" and cache_home({}) == place / ".cache"
