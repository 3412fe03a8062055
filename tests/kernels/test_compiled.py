"""Whether a process that compiles a kernel gets the numbers of one that finds it compiled."""

from __future__ import annotations

import os
import pkgutil
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import hotlap.kernels

NUMBERS = Path(__file__).with_name("compiled_numbers.py")
KERNELS = ("adam", "chamfer", "graph_conv", "ssim", "view_pool")
"""Those with liberties in floating point."""


@pytest.mark.slow
def test_numbers_do_not_depend_on_who_compiled(tmp_path):
    def run() -> list[str]:
        environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
        done = subprocess.run(
            [sys.executable, str(NUMBERS)], env=environment, capture_output=True, text=True, timeout=300, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    compiled = run()
    assert {line.split()[0] for line in compiled} == set(KERNELS)
    assert list(tmp_path.rglob("*.nbc")), "nothing was kept: both would compile"
    assert run() == compiled


def test_what_fast_kernels_call_is_compiled_within_them_alone():
    found = set()
    for package in pkgutil.iter_modules(hotlap.kernels.__path__):
        if not package.ispkg:
            continue
        for part in pkgutil.iter_modules([str(Path(hotlap.kernels.__path__[0]) / package.name)]):
            if not part.name.startswith("cpu_"):
                continue
            module = import_module(f"hotlap.kernels.{package.name}.{part.name}")
            for name, one in vars(module).items():
                if getattr(one, "targetoptions", {}).get("fastmath"):
                    found.add(package.name)
                    assert one.targetoptions.get("forceinline", False) == name.startswith("_"), f"{package.name}.{name}"
    assert found == set(KERNELS)
