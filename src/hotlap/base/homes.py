"""Where a user's files go that belong to no run: configuration and caches, as the XDG variables say."""

from __future__ import annotations

import os
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
        import tempfile

        uid = os.getuid() if hasattr(os, "getuid") else 0
        return Path(tempfile.gettempdir()) / f"hotlap-home-{uid}"
