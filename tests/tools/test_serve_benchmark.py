"""The benchmark over HTTP, without a model: services end with all their processes, and no arm costs another."""

from __future__ import annotations

import importlib
import json
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from hotlap.device.nvml import CardState

pytest.importorskip("PIL")
ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.usefixtures("no_hang")


@pytest.fixture
def bench(monkeypatch):
    """The modules of the benchmark by name."""
    if not (ROOT / "benchmarks").is_dir():
        pytest.skip("an installation without benchmarks/")
    monkeypatch.syspath_prepend(str(ROOT))
    return lambda name: importlib.import_module(f"benchmarks.{name}")


STUBBORN = """
import signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(100)"])
print("Ready: 1", flush=True)
time.sleep(100)
"""


def python(code):
    return [sys.executable, "-c", code]


def test_nothing_is_left_of_a_service_that_does_not_hear(bench, monkeypatch):
    arms = bench("serve_arms")
    monkeypatch.setattr(arms, "STOP_S", 0.2)
    with arms.process(python(STUBBORN), "Ready:") as started:
        group = started.process.pid
        until = time.monotonic() + 20
        while len(arms.alive_in(group)) < 2 and time.monotonic() < until:
            time.sleep(0.02)
        assert len(arms.alive_in(group)) == 2, "the service and its own process"
    assert arms.alive_in(group) == []


def test_a_service_that_ends_or_never_gets_ready_is_told(bench):
    arms = bench("serve_arms")
    words = r"exit code 3 and said: port 80 is taken"
    ending = arms.process(python("print('port 80 is taken'); raise SystemExit(3)"), "Ready:")
    with pytest.raises(arms.ServiceFailed, match=words), ending:
        raise AssertionError("it never was ready")
    sleeping = arms.process(python("import time; time.sleep(100)"), "Ready:", start_s=0.5)
    with pytest.raises(arms.ServiceFailed, match=r"not ready after 0\.5 s"), sleeping:
        raise AssertionError("it never was ready")


@pytest.fixture
def http(bench, monkeypatch):
    """The benchmark with arms that take no time."""
    module = bench("serve_http")
    alone = {"resident_images_per_s": [10.0], "host_images_per_s": [9.0], "launch_s": [0.01], "card": None,
             "answer": {"objects": 4, "area": 100.0}, "objects": [4]}  # fmt: skip
    monkeypatch.setattr(module, "train", lambda given, file: {"steps": 1, "loss": 0.5})
    monkeypatch.setattr(module, "time_model", lambda given, weights, pictures: alone)
    monkeypatch.setattr(module, "WARM_UP", "")
    monkeypatch.setattr(module, "_has_litserve", lambda: True)
    monkeypatch.setattr(sys, "argv", ["serve_http", "--size", "32", "--out", "served.json"])
    return module


RATE = {"answer": {"status": 200, "objects": 4, "area": 100.0}, "images_per_s": 9.0, "failures": 0, "p50_ms": 1.0,
        "p99_ms": 2.0, "watched": {"cores": {}, "mean_s": {}, "batches": None}}  # fmt: skip


def test_what_was_measured_is_kept_when_a_later_arm_ends_the_run(http, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)

    def serve(given, name, start, weights, picture):
        if name == "litserve":
            sys.exit(143)
        return RATE

    monkeypatch.setattr(http, "serve", serve)
    with pytest.raises(SystemExit, match="143"):
        http.measure(http.parse(), tmp_path, http.saving(http.parse()))
    kept = json.loads((tmp_path / "served.json").read_text())
    assert kept["arms"] == {"hotlap": RATE} and kept["trained"]["steps"] == 1 and kept["settings"]["size"] == 32
    said = capsys.readouterr().out
    assert "s] training hrnet" in said and "hotlap         9.0 images/s,  90.0% of resident" in said


def test_an_arm_that_fails_costs_the_others_nothing(http, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    failing = [sys.executable, "-c", "raise SystemExit('no zmq here')"]

    class Failing:
        def __init__(self, *_):
            self.made = sys.modules["benchmarks.serve_arms"].process(failing)

        def __enter__(self):
            return SimpleNamespace(started=self.made.__enter__(), port=1, path="/predict", form="")

        def __exit__(self, *raised):
            return self.made.__exit__(*raised)

    monkeypatch.setattr(http, "lit_serve", Failing)
    honest = http.serve
    monkeypatch.setattr(http, "serve", lambda *given: RATE if given[1] == "hotlap" else honest(*given))
    found = http.measure(http.parse(), tmp_path, http.saving(http.parse()))
    assert "no zmq here" in found["arms"]["litserve"]["error"] and found["arms"]["hotlap"] == RATE
    assert "litserve  no rate: ServiceFailed: it ended with exit code 1" in capsys.readouterr().out


def state(clock, throttle=()):
    return CardState(sm_clock_mhz=clock, max_sm_clock_mhz=1980.0, memory_clock_mhz=None, power_w=None,
                     temperature_c=60.0, utilisation=99.0, memory_used_bytes=None, throttle=list(throttle),
                     processes=[], energy_mj=None)  # fmt: skip


def test_a_card_that_was_held_down_is_told(bench):
    watch = bench("serve_watch")
    assert watch.card_summary([]) is None and watch.explain_card(None) == []
    found = watch.card_summary([state(1980.0), state(1400.0, ["power cap"]), state(1500.0, ["power cap"])])
    (line,) = watch.explain_card(found)
    assert line == "card: sm_clock_mhz 1500 (lowest 1400), utilisation 99 (lowest 99); held down by power cap"
    with watch.CardWatch("cpu") as seen:
        pass
    assert seen.found() is None
