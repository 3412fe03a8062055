"""The benchmark of trainings: what is cut off is gone on with, and what was found is kept whatever comes after."""

from __future__ import annotations

import importlib
import json
import sys
import time
from pathlib import Path

import pytest
import torch

from hotlap.base.errors import ConfigError, UnknownName
from hotlap.splat.config import LEARNABLE

ROOT = Path(__file__).parents[2]


@pytest.fixture
def bench(monkeypatch):
    """Gives a module of ``benchmarks/`` by its name."""
    if not (ROOT / "benchmarks").is_dir():
        pytest.skip("an installation without benchmarks/")
    monkeypatch.syspath_prepend(str(ROOT))
    return lambda name: importlib.import_module(f"benchmarks.{name}")


def test_a_training_that_is_put_aside_ends_as_if_it_had_not_been(bench, trainer, tmp_path):
    arms = bench("splat_train_arms")
    made = trainer()
    kept, cpu = tmp_path / "aside" / "a.pt", torch.device("cpu")
    for _ in range(2):  # log_every is 10, and there are 30 steps
        with pytest.raises(arms.Aside, match=r"put aside at step \d0 after"):
            arms.train_ours(made.config, made.stage, arms.Clock(cpu, 0.0), kept, judge=False)
    model, found, _ = arms.train_ours(made.config, made.stage, arms.Clock(cpu, 1e18), kept, judge=False)
    whole, want, _ = arms.train_ours(made.config, made.stage, arms.Clock(cpu, 1e18), tmp_path / "no", judge=False)
    assert found["splats"] == want["splats"] and found["seconds"] > 0
    for name in LEARNABLE:
        assert torch.equal(model.params[name], whole.params[name]), name


def test_a_process_that_hangs_is_ended_in_time(bench, tmp_path, monkeypatch):
    module = bench("splat_train")
    script = tmp_path / "python"
    script.write_text("#!/bin/sh\necho begun\nexec sleep 60\n")
    script.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(script))
    began = time.monotonic()
    found = module.run_job("ours", 0, "a", 1.0, pictures=False)
    assert time.monotonic() - began < 20
    assert found == {"error": "stopped after 1 s", "tail": ["begun"]}


def test_pictures_are_of_our_first_training_whoever_begins(bench, tmp_path, monkeypatch):
    module = bench("splat_train")
    asked = []

    def run_job(name, seed, label, left, *, pictures):
        asked.append((name, seed, pictures))
        return {"error": "none"}

    out = tmp_path / "a.json"
    words = ["x", "scene", "--who", "gsplat,ours", "--seeds", "1,2", "--pictures", "p", "--out", str(out)]
    monkeypatch.setattr(module, "run_job", run_job)
    monkeypatch.setattr(sys, "argv", words)
    module.main()
    assert asked == [("gsplat", 1, False), ("ours", 1, True), ("gsplat", 2, False), ("ours", 2, False)]
    assert len(json.loads(out.read_text())["jobs"]) == 4


def call_variants(module, monkeypatch, out: Path, *more: str, taken: float = 0.0, fails: str = "") -> list[str]:
    """Names of the variants that were begun."""
    begun, clock = [], [0.0]

    def run_one(arguments, stage, name, seed):
        begun.append(name)
        clock[0] += taken
        if name == fails:
            raise ConfigError("it went wrong")
        mean = {"psnr": 20.0, "ssim": 0.8}
        return {"stage": "open", "job": {"name": name, "seed": seed, "mean": mean, "seconds": taken, "splats": 9}}

    monkeypatch.setattr(module, "run_one", run_one)
    monkeypatch.setattr(module.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(sys, "argv", ["x", "scene", "--out", str(out), *more])
    module.main()
    return begun


def test_a_variant_that_fails_is_kept_and_tried_again_and_does_not_end_the_others(bench, tmp_path, monkeypatch, capsys):
    module, out = bench("splat_variants"), tmp_path / "a.json"
    words = ("--only", "10k steps,fast,absgrad")
    assert call_variants(module, monkeypatch, out, *words, fails="fast") == ["10k steps", "fast", "absgrad"]
    jobs = json.loads(out.read_text())["jobs"]
    assert [job.get("error", "") for job in jobs] == ["", "ConfigError: it went wrong.", ""]
    assert "| absgrad | 0 | 20.000 | 0.8000 |" in capsys.readouterr().out
    assert call_variants(module, monkeypatch, out, *words) == ["fast"]
    assert len(json.loads(out.read_text())["jobs"]) == 3


def test_a_variant_is_begun_only_if_its_steps_end_in_time(bench, tmp_path, monkeypatch):
    words = ("--only", "10k steps,fast,mcmc 500k", "--timeout", "150")  # 10,000, 20,000 and 10,000 steps
    begun = call_variants(bench("splat_variants"), monkeypatch, tmp_path / "a.json", *words, taken=60.0)
    assert begun == ["10k steps", "mcmc 500k"]


def test_every_variant_can_be_trained(bench):
    from argparse import Namespace

    module = bench("splat_variants")
    given = Namespace(scene="a", images="images", scale=1.0, steps=0, device="cpu")
    for name, (preset, changes) in module.VARIANTS.items():
        config = module.config_of(given, name, 1)
        assert config.preset == preset and {key: getattr(config, key) for key in changes} == changes


def test_an_unknown_variant_is_refused_before_anything_runs(bench, tmp_path, monkeypatch):
    with pytest.raises(UnknownName, match=r"unknown variant 'fats'.*fast"):
        call_variants(bench("splat_variants"), monkeypatch, tmp_path / "a.json", "--only", "fast,fats")
