"""``hotlap loader`` from end to end: the search, its record, its table, its drawing, and what it refuses."""

from __future__ import annotations

import dataclasses
import json
import statistics

import pytest
from rich.console import Console

import hotlap
from hotlap.base.errors import EXIT_USAGE, ConfigError, DataError, TargetError
from hotlap.cli.main import run as command
from hotlap.cli.show import show_record
from hotlap.engine.loader_choice import APART, Limits
from hotlap.measure.nursery import Nursery
from hotlap.measure.process import run_job
from hotlap.measure.timed import NOT_STEADY
from hotlap.records.run import load_record
from hotlap.tools.loader import LoaderConfig, loader
from hotlap.tools.loader import run as loader_run
from hotlap.tools.report import render

TARGETS = """
import torch
from hotlap.workload import BadSample, Workload

class Tiny(Workload):
    name = "tiny"
    default_batch = 4

    def __init__(self, size: int = 24, bad: int = -1):
        self.size, self.bad = size, bad

    def build_model(self): return torch.nn.Linear(3, 2)
    def make_batch(self, n, device, generator): return torch.randn(n, 3, generator=generator).to(device)
    def loss(self, model, batch): return model(batch).square().sum(), len(batch)
    def train_data(self): return Data(self.size, self.bad)

class Data:
    def __init__(self, size, bad): self.size, self.bad = size, bad
    def __len__(self): return self.size
    def __getitem__(self, index):
        if index == self.bad:
            raise BadSample(f"{index}.png", "torn")
        return torch.full((3,), float(index))

def bare():
    return torch.nn.Linear(3, 2)
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "tiny.py").write_text(TARGETS)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def two_cpus(monkeypatch):
    monkeypatch.setattr(loader_run, "read_limits", lambda: Limits(cpus=2, shm_bytes=2**30, memory_bytes=2**33))


def quick(**settings):
    given = {"target": "tiny.py:Tiny", "seconds": 0.01, "step_ms": 1e5, **settings}
    return loader(LoaderConfig(**given))


def rows(record):
    return record.extra["loader"]["rows"]


@pytest.mark.usefixtures("jobs_in_process", "two_cpus")
def test_the_record_holds_the_choice_and_every_sample(folder):
    record = quick()
    found = record.extra["loader"]
    assert (record.kind, record.name, record.status) == ("loader", "Tiny-loader", "complete")
    assert record.verdict.outcome == "keeps up" and record.verdict.headline.startswith("no workers: ")
    assert record.verdict.exit_code == 0
    assert (found["batch"], found["step_ms"], found["consumption"], found["headroom"]) == (4, 1e5, 0.04, 1.2)
    assert [row["chosen"] for row in rows(record)] == [True] and rows(record)[0]["label"] == "no workers"
    assert rows(record)[0]["low"] <= rows(record)[0]["rate"] <= rows(record)[0]["high"]
    assert found["arguments"] == {"num_workers": 0, "pin_memory": False}
    assert len(record.samples("no workers", "loader_rate")[0]) == 5
    assert load_record(record.path).extra == record.extra


@pytest.mark.usefixtures("jobs_in_process", "two_cpus", "no_hang")
def test_a_model_that_outruns_every_loader_gets_the_whole_grid(folder):
    record = quick(step_ms=1e-6, prefetch=(2,))
    assert [row["label"] for row in rows(record)] == ["no workers", "2 workers, prefetch 2", "1 worker, prefetch 2"]
    assert record.verdict.outcome == "bottleneck" and record.verdict.exit_code == 0
    assert "the loader is the bottleneck" in record.verdict.headline
    assert record.verdict.lines[0].startswith("With it, training reaches at most about ")
    assert (APART in record.verdict.lines) == bool(record.extra["loader"]["arguments"]["num_workers"])
    assert "It is an upper bound of what a training gets" in render([record])
    assert sum(row["chosen"] for row in rows(record)) == 1


@pytest.mark.usefixtures("jobs_in_process", "two_cpus")
def test_the_step_is_measured_when_it_is_not_given(folder, jobs_in_process, monkeypatch):
    brief = dataclasses.replace(loader_run.BRIEF, repeats=2, seconds=0.01, warmup_seconds=0.1)
    monkeypatch.setattr(loader_run, "BRIEF", brief)
    heard = []
    record = loader(LoaderConfig(target="tiny.py:Tiny", seconds=0.01, workers=(0,)), heard.append)
    told = [event.text for event in heard if event.kind == "advance"]
    assert "step time: warm-up cpu" in told and "step time: timing cpu" in told, "a slow step is no silence"
    step = record.samples("cpu", "step")[0]
    assert record.extra["loader"]["step_ms"] == statistics.median(step)
    assert [job["job"] for job in jobs_in_process] == ["describe", "loader", "timing"]
    assert jobs_in_process[-1]["mode"] == "train" and jobs_in_process[-1]["batch"] == 4


def with_step_samples(monkeypatch, values, flags=()):
    """Lets the timing of the step give these samples; everything else runs as it is."""
    real = loader_run.run_job

    def faked(job, **options):
        if job["job"] != "timing":
            return real(job, **options)
        wall = {"quantity": "wall", "unit": "ms", "arm": "cpu", "process": 0, "values": values, "flags": list(flags)}
        return {"measurements": [wall]}

    monkeypatch.setattr(loader_run, "run_job", faked)


@pytest.mark.usefixtures("jobs_in_process", "two_cpus")
@pytest.mark.parametrize(
    ("values", "flags", "words"),
    [
        ([118.0, 120.0, 114.0, 118.0, 45.0, 1.0], [], "samples from 1.00 ms to 120 ms. The choice rests on"),
        ([100.0, 101.0], [NOT_STEADY], f"samples from 100 ms to 101 ms, and the {NOT_STEADY}."),
    ],
)
def test_an_unsteady_step_is_told_with_its_range(folder, monkeypatch, values, flags, words):
    with_step_samples(monkeypatch, values, flags)
    heard = []
    record = loader(LoaderConfig(target="tiny.py:Tiny", seconds=0.01, workers=(0,)), heard.append)
    (note,) = [event.text for event in heard if event.kind == "warn"]
    assert note.startswith("The step's time is unsteady: ") and words in note and note in record.notes
    found, (step,) = record.extra["loader"], [m for m in record.measurements if m.quantity == "step"]
    assert (found["step_ms"], found["step_low_ms"], found["step_high_ms"]) == (
        statistics.median(values), min(values), max(values)
    )  # fmt: skip
    assert (step.values, step.flags) == (values, flags)
    assert record.status == "complete" and record.verdict.exit_code == 0


@pytest.mark.usefixtures("jobs_in_process", "two_cpus")
def test_a_steady_step_is_shown_with_its_range_and_no_warning(folder, monkeypatch):
    with_step_samples(monkeypatch, [100.0, 110.0, 120.0], ["queue not kept full: device time is an upper bound"])
    record = quick(step_ms=None, workers=(0,))
    assert record.notes == []
    assert "4 in 110 ms (samples from 100 ms to 120 ms), cpu" in shown(record)
    assert "samples from" not in shown(quick()), "a time that was given has none"


def test_a_forked_process_may_start_workers_of_its_own(folder, device):
    job = {"job": "loader", "target": "tiny.py:Tiny", "batch": 4, "device": str(device), "on_bad_sample": "raise"}
    settings = {"num_workers": 1, "pin_memory": device.type == "cuda"}
    with Nursery(loader_run.JOBS) as nursery:
        speed = run_job({**job, "settings": settings, "seed": 0, "seconds": 0.01}, timeout_s=120, nursery=nursery)
        assert nursery.notes == []
    assert len(speed["rates"]) == 5 and speed["num_samples"] == 24


@pytest.mark.usefixtures("jobs_in_process")
def test_a_full_shared_memory_refuses_every_worker(folder, monkeypatch):
    monkeypatch.setattr(loader_run, "read_limits", lambda: Limits(cpus=2, shm_bytes=64))
    record = quick(step_ms=1e-6)
    assert all("free in /dev/shm" in row["refused"] for row in rows(record)[1:]) and len(rows(record)) == 3
    assert record.extra["loader"]["arguments"]["num_workers"] == 0
    assert "refused: 2 batches of 48 B on their way are more than half of the 64 B free" in shown(record)
    assert "1 worker, prefetch 2: 2 batches of 48 B" in render([record])


@pytest.mark.usefixtures("jobs_in_process", "two_cpus")
def test_more_workers_than_cpus_are_tried_with_a_warning(folder):
    heard = []
    config = LoaderConfig(target="tiny.py:Tiny", seconds=0.01, step_ms=1e5, workers=(0, 9))
    record = loader(config, heard.append)
    text = "workers = 9 is more than the 2 CPUs that can be used here; they will take turns."
    assert [event.text for event in heard if event.kind == "warn"] == [text]
    assert text in record.notes


@pytest.mark.usefixtures("jobs_in_process", "two_cpus")
def test_a_target_without_data_is_refused(folder):
    with pytest.raises(TargetError, match=r"target 'tiny\.py:bare' has no train_data"):
        quick(target="tiny.py:bare", input=("3",))


@pytest.mark.usefixtures("jobs_in_process", "two_cpus")
def test_a_batch_beyond_the_dataset_is_refused_and_the_record_says_why(folder):
    with pytest.raises(ConfigError, match="batch = 25 is larger than the dataset of 24 samples"):
        quick(batch=25)
    record = load_record(next((folder / "runs").glob("*/*")))
    assert record.status == "failed" and "batch = 25" in record.verdict.headline


@pytest.mark.usefixtures("jobs_in_process", "two_cpus")
def test_a_bad_sample_stops_the_search_or_is_left_out(folder):
    with pytest.raises(DataError, match=r"bad sample 7 \(7\.png\): torn") as told:
        quick(workload={"bad": 7})
    assert told.value.exit_code == EXIT_USAGE, "even from another process"
    assert quick(workload={"bad": 7}, on_bad_sample="skip").status == "complete"


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"target": ""}, "no target given"),
        ({"batch": 0}, "batch = 0 is not valid"),
        ({"workers": (2, -1)}, "workers = -1 is negative"),
        ({"prefetch": (0,)}, r"prefetch = \(0,\) is too small"),
        ({"prefetch": ()}, r"prefetch = \(\) is too small"),
        ({"step_ms": 0.0}, "step_ms = 0.0 is out of range"),
        ({"headroom": 0.5}, "headroom = 0.5 is out of range"),
        ({"seconds": -1.0}, "seconds = -1.0 is out of range"),
    ],
)
def test_wrong_settings_are_refused(given, words):
    with pytest.raises(ConfigError, match=words):
        LoaderConfig(**{"target": "unet", **given})


def shown(record):
    console = Console(width=200, record=True, force_terminal=False)
    with console.capture() as text:
        show_record(record, console)
    return text.get()


@pytest.mark.usefixtures("jobs_in_process", "two_cpus")
def test_the_command_line_prints_the_table_and_json(folder, capsys):
    arguments = ["loader", "tiny.py:Tiny", "--step-ms", "1e5", "--seconds", "0.01", "--quiet"]
    assert command(arguments) == 0
    text = capsys.readouterr().out
    assert "no workers" in text and "chosen" in text and "what the model consumes" in text
    assert command([*arguments, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["extra"]["loader"]["arguments"]["num_workers"] == 0


@pytest.mark.usefixtures("jobs_in_process", "two_cpus")
def test_the_function_takes_the_same_settings(folder):
    record = hotlap.loader("tiny.py:Tiny", step_ms=1e5, seconds=0.01, batch=6)
    assert record.extra["loader"]["batch"] == 6 and record.config_sources["batch"] == "the call"


def drawn(record, changes):
    """The page of a record whose rows are changed; a row's place decides which."""
    made = [{**rows(record)[0], **change} for change in changes]
    return render([dataclasses.replace(record, extra={"loader": {**record.extra["loader"], "rows": made}})])


@pytest.mark.usefixtures("jobs_in_process", "two_cpus")
def test_the_page_draws_rates_lines_and_refusals(folder):
    record = quick(step_ms=40.0)
    page = drawn(
        record,
        [
            {"label": "no workers", "rate": 80.0, "low": 70.0, "high": 90.0, "chosen": False},
            {"label": "2 workers, prefetch 2", "rate": 150.0, "low": 140.0, "high": 160.0, "chosen": True},
            {"label": "4 workers, prefetch 2", "rate": None, "refused": "<b>too big</b>", "chosen": False},
        ],
    )
    assert "What each setting delivers" in page
    assert "2 workers, prefetch 2: 150, 1.50x chosen" in page
    assert "the model&#39;s consumption: 100 samples/s" in page and "asked for: 120 samples/s" in page
    assert "&lt;b&gt;too big" in page and "<b>too big" not in page


@pytest.mark.usefixtures("jobs_in_process", "two_cpus")
def test_an_unfinished_record_can_still_be_shown_and_drawn(folder):
    record = quick()
    bare = dataclasses.replace(record, status="interrupted", verdict=None, extra={})
    assert "interrupted" in shown(bare)
    assert "What each setting delivers" not in render([bare])
    no_step = dataclasses.replace(record, extra={"loader": {"rows": rows(record), "consumption": None}})
    assert "no workers" in shown(no_step) and "What each setting delivers" in render([no_step])
