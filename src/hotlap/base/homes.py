"""Where a user's files go that belong to no run: configuration and caches, as the XDG variables say."""

from __future__ import annotations

import contextlib
import functools
import os
import stat
from collections.abc import Mapping
from pathlib import Path


def config_home(environ: Mapping[str, str] = os.environ) -> Path:
    """The folder of configurations, by default ``~/.config``."""
    return Path(environ.get("XDG_CONFIG_HOME") or _home() / ".config")


def cache_home(environ: Mapping[str, str] = os.environ) -> Path:
    """The folder of what can be made again, by default ``~/.cache``."""
    return Path(environ.get("XDG_CACHE_HOME") or _home() / ".cache")


def _home() -> Path:
    """The user's own folder; one for temporary files where there is none, as for the user of a service."""
    try:
        return Path.home()
    except RuntimeError:
        return _temporary_home()


@functools.cache
def _temporary_home() -> Path:
    """The same in every process, unless somebody else may write there: programs are read from it and run."""
    import tempfile

    uid = os.getuid() if hasattr(os, "getuid") else 0
    place = Path(tempfile.gettempdir()) / f"hotlap-home-{uid}"
    with contextlib.suppress(OSError):
        place.mkdir(mode=0o700)
    found = place.lstat() if os.path.lexists(place) else None
    is_ours = found is not None and stat.S_ISDIR(found.st_mode) and found.st_uid == uid and not found.st_mode & 0o022
    return place if is_ours else Path(tempfile.mkdtemp(prefix="hotlap-home-"))
