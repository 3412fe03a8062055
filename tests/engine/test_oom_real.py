"""The benchmark of real failures, with a pretended card: its caps bind, and it notices what it is there to notice."""

import importlib.util
import sys
from pathlib import Path

import pytest
import torch
from fake_memory import FakeMemory

from hotlap.engine import exact
from hotlap.engine.split import micro_ranges
from hotlap.segment.workload import unet
from hotlap.sequence.workload import bilstm

pytestmark = pytest.mark.usefixtures("many_runs")
FILE = Path(__file__).parents[2] / "benchmarks" / "oom_real.py"


@pytest.fixture(scope="module")
def oom_real():
    if not FILE.is_file():
        pytest.skip("an installation without benchmarks/")
    spec = importlib.util.spec_from_file_location("oom_real", FILE)
    module = importlib.util.module_from_spec(spec)
    sys.modules["oom_real"] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["oom_real"]


class FakeMachine:
    device = torch.device("cpu")

    def run(self, work, cap_bytes):
        with FakeMemory(cap_bytes) as memory:
            return work(), memory.peak_bytes


@pytest.fixture
def small_cases(oom_real):
    pictures = {"workload": unet(width=1, size=32, lr=1e-3), "batch": 8, "dtype": torch.float64}
    pictures["prepare"] = oom_real.ignore_some_pixels
    texts = bilstm(hidden=4, embedding=4, length=32)
    return {
        "unet": oom_real.Case(name="unet", exact=False, **pictures),
        "norm": oom_real.Case(name="norm", exact=True, change=oom_real.use_group_norm, **pictures),
        "bilstm": oom_real.Case(name="bilstm", workload=texts, batch=8, dtype=torch.float64, exact=True),
    }


@pytest.mark.parametrize("name", ["unet", "norm", "bilstm"])
def test_capped_trainings_repeat_the_undisturbed_ones(oom_real, small_cases, name, capsys):
    steps = 1 if name == "bilstm" else 2  # one operation for each character is slow to count
    outcome = oom_real.run_all([small_cases[name]], FakeMachine(), steps=steps, seed=0)[name]
    assert outcome["wrong"] == []
    assert all(sum(run["num_splits"]) > 0 and run["peak_bytes"] <= run["cap_bytes"] for run in outcome["capped"])
    assert len({run["micros"][-1] for run in outcome["capped"]}) > 1  # tighter caps, smaller parts
    assert "splits to parts of" in capsys.readouterr().out


def test_a_lost_sample_is_noticed(oom_real, small_cases, monkeypatch):
    def careless(total, micro):
        first, *others = micro_ranges(total, micro)
        return [first, *((begin + 1, end) for begin, end in others)]

    monkeypatch.setattr(exact, "micro_ranges", careless)
    outcome = oom_real.run_all([small_cases["norm"]], FakeMachine(), steps=2, seed=0)["norm"]
    assert any("losses differ by" in words for words in outcome["wrong"])


def test_batch_norm_is_noticed_where_exactness_is_claimed(oom_real, small_cases):
    claimed = oom_real.dataclasses.replace(small_cases["unet"], exact=True)
    outcome = oom_real.run_all([claimed], FakeMachine(), steps=2, seed=0)["unet"]
    assert any("BatchNorm in training mode" in words for words in outcome["wrong"])


def test_a_case_that_breaks_down_does_not_hide_the_others(oom_real, small_cases):
    class Broken(FakeMachine):
        def run(self, work, cap_bytes):
            raise RuntimeError("no such card")

    outcomes = oom_real.run_all(list(small_cases.values()), Broken(), steps=1, seed=0)
    assert [outcome["wrong"] for outcome in outcomes.values()] == [
        [f"{name}: RuntimeError: no such card"] for name in small_cases
    ]


def test_slow_recoveries_and_caps_without_effect_are_faults(oom_real, small_cases):
    run = {"num_splits": [0], "largest_difference": 0.0, "recovery_s": [2.5], "peak_bytes": 2, "cap_bytes": 1,
           "inexact": []}  # fmt: skip
    words = " ".join(oom_real.faults(small_cases["norm"], run))
    assert "never ran out" in words and "took 2.50 s" in words and "2 bytes were held" in words
