"""Compiled Python, kept: without it every process compiles thousands of modules anew before it does anything.

Containers often set PYTHONDONTWRITEBYTECODE, and some installers leave no bytecode behind. Together they make each
``import torch`` several times as slow, which a tool that measures in fresh processes pays dozens of times.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

from hotlap.base.homes import cache_home


def torch_folder() -> Path | None:
    """Where torch lies, found without importing it."""
    found = find_spec("torch")
    return Path(found.origin).parent if found is not None and found.origin else None


def has_bytecode(package: Path) -> bool:
    """Whether this Python finds the package compiled."""
    return (package / "__pycache__" / f"__init__.{sys.implementation.cache_tag}.pyc").is_file()


def is_lost(package: Path, environ: Mapping[str, str]) -> bool:
    """Whether every process with these variables compiles the package anew."""
    if environ.get("PYTHONPYCACHEPREFIX") or has_bytecode(package):
        return False
    return bool(environ.get("PYTHONDONTWRITEBYTECODE")) or not os.access(package, os.W_OK)


def keeping(environ: Mapping[str, str]) -> dict[str, str]:
    """Variables with which a new process keeps bytecode in the user's cache; none where it is kept already."""
    package = torch_folder()
    if package is None or not is_lost(package, environ):
        return {}
    cache = cache_home(environ) / "hotlap" / "bytecode"
    return {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": str(cache)}
