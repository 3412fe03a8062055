"""The benchmark of splatting on a CPU: what it says of its scene, and one sample of each kind."""

from __future__ import annotations

import importlib
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from hotlap.kernels.splat import reference
from hotlap.kernels.splat.op import splat

pytest.importorskip("numba")
ROOT = Path(__file__).parents[2]


def test_it_describes_and_times_its_scene(monkeypatch):
    if not (ROOT / "benchmarks").is_dir():
        pytest.skip("an installation without benchmarks/")
    monkeypatch.syspath_prepend(str(ROOT))
    bench = importlib.import_module("benchmarks.splat_cpu")
    monkeypatch.setattr(bench, "SCENE", replace(bench.SCENE, splats=200, width=48, height=30, size=0.1))
    found = bench.facts()
    assert 0 < found["drawn_splats"] <= 200 and found["pairs"] >= found["drawn_splats"] and 0 < found["mean_alpha"] < 1
    for draw, band in ((reference.forward, 3), (partial(splat, impl="cpu"), None)):
        assert set(bench.step(draw, band)) == {"forward_s", "total_s", "processor_s"}
