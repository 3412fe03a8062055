"""The benchmark of a folder runs what was tuned, says so, and sends full batches only."""

from __future__ import annotations

import importlib
import json
from pathlib import Path

import pytest

pytest.importorskip("numba")
ROOT = Path(__file__).parents[2]


@pytest.fixture
def segment_folder(monkeypatch):
    """The benchmark."""
    if not (ROOT / "benchmarks").is_dir():
        pytest.skip("an installation without benchmarks/")
    monkeypatch.syspath_prepend(str(ROOT))
    return importlib.import_module("benchmarks.segment_folder")


@pytest.mark.parametrize(("given", "arm"), [([], "cpu:channels_last"), (["--arm", "cpu:bf16"], "cpu:bf16")])
def test_the_tuned_arm_and_batch_are_run_and_stated(segment_folder, tmp_path, monkeypatch, given, arm):
    note = "cpu:channels_last, infer, run in its final form with a ragged tail of 2"
    tuned = {"batch_configurations": {"unet": {"optimal_batch_size": 3, "note": note}}}
    (tmp_path / "batch_sizes.json").write_text(json.dumps(tuned))
    options = {"models": "unet", "width": 2, "size": 64, "pictures": 13, "steps": 0, "workers": 1, "device": "cpu"}
    files = {"batch-sizes": tmp_path / "batch_sizes.json", "out": tmp_path / "out.json"}
    words = [f"--{name}={value}" for name, value in {**options, **files}.items()]
    words += ["--formats", "labels,csv", "labels,csv,geojson"]
    monkeypatch.setattr("sys.argv", ["segment_folder", *words, *given])
    monkeypatch.setattr(segment_folder, "network_alone", lambda *given: 1.0)
    assert segment_folder.main() == 0
    answers = json.loads((tmp_path / "out.json").read_text())["models"]
    assert list(answers) == ["unet, labels,csv", "unet, labels,csv,geojson"]
    said = answers["unet, labels,csv,geojson"]
    assert said["without_results_s"] > 0 and said["objects"] == answers["unet, labels,csv"]["objects"] > 0
    assert said["results_share"] == max(0.0, 1 - said["without_results_s"] / said["seconds"]["wall"])
    assert said["formats"] == ["labels", "csv", "geojson"]
    assert (said["arm"], said["batch"], said["pictures"]) == (arm, 3, 15)
    assert said["tuned"] == {"arm": "cpu:channels_last", "batch": 3} and said["load_s"] > 0
