"""The training as a tool: what its record tells, and what becomes of it when something goes wrong."""

from __future__ import annotations

import pytest
from fake_trainings import OUTCOME

from hotlap.base.errors import ConfigError, OutOfMemory, TargetError, UsageError
from hotlap.engine.config import TrainConfig
from hotlap.engine.supervise import Supervised
from hotlap.records.run import load_record
from hotlap.tools.train import run, train


@pytest.fixture
def supervised(monkeypatch, tmp_path):
    """Puts an answer in the place of a training; gives what it was asked for."""
    asked = []

    def train_with(answer, **settings):
        def supervise(config, folder, resume, emit):
            asked.append((folder, resume))
            if isinstance(answer, BaseException):
                raise answer
            return Supervised({**OUTCOME, **answer}, ["it was killed"], config)

        monkeypatch.setattr(run, "supervise", supervise)
        return train(TrainConfig(**({"target": "unet", "runs": tmp_path} | settings)))

    train_with.asked = asked
    return train_with


def test_a_record_tells_what_was_reached_and_what_it_took(supervised):
    record = supervised({"recomputing": True, "resumed_from": 40, "num_replays": 597})
    assert record.verdict.headline == "trained 600 steps; loss 0.21, accuracy 0.93; 1,234 samples/s"
    assert record.verdict.lines == [
        "Went on from step 40.",
        "Memory ran out 2 times; no step was lost, and the longest replay took 400 ms.",
        "Activation checkpointing was switched on: some layers are computed twice.",
        "597 passes replayed as CUDA graphs.",
        "Started again 1 time from the last checkpoint.",
        "3 bad samples left out; bad_samples.txt lists them.",
    ]
    assert record.notes[-1] == "Started again: it was killed."
    assert load_record(record.path).extra["outcome"]["best_checkpoint"].endswith(".pt")


def test_a_run_that_was_stopped_says_how_to_go_on(supervised):
    record = supervised({"status": "interrupted", "samples_per_s": None, "metrics": {"loss": None}})
    assert (record.status, record.verdict.exit_code) == ("interrupted", 130)
    assert record.verdict.headline == "stopped after 600 steps; loss not finite"
    assert record.verdict.lines[-1] == "--resume goes on from the last checkpoint."


@pytest.mark.parametrize("error", [OutOfMemory("it does not fit"), TargetError("it raised")])
def test_a_failure_is_in_the_record(supervised, error):
    with pytest.raises(type(error)):
        supervised(error)
    record = load_record(supervised.asked[0][0])
    assert (record.status, record.verdict.outcome, record.verdict.headline) == ("failed", "failed", str(error))
    assert record.verdict.exit_code == error.exit_code


def test_stopped_at_once_is_in_the_record(supervised):
    with pytest.raises(KeyboardInterrupt):
        supervised(KeyboardInterrupt())
    record = load_record(supervised.asked[0][0])
    assert (record.status, record.verdict.exit_code) == ("interrupted", 130)
    assert "--resume" in record.verdict.headline


def test_a_resumed_run_stays_in_its_folder_and_remembers_its_starts(supervised):
    first = supervised({"status": "interrupted", "step": 7})
    again = supervised({}, resume="latest")
    assert again.path == first.path
    assert [asked[1] for asked in supervised.asked] == ["", "latest"]
    assert [(start["status"], start["step"]) for start in again.extra["earlier"]] == [("interrupted", 7)]


def test_a_setting_that_is_refused_is_not_taken_over_by_the_next_resume(supervised):
    first = supervised({"status": "interrupted"}, batch=8)
    with pytest.raises(UsageError, match="batch = 4"):
        supervised(UsageError("batch = 4, but the run to resume has batch = 8"), resume="latest", batch=4)
    record = load_record(first.path)
    assert (record.config["batch"], record.status) == (8, "interrupted")


def test_no_target_is_said(supervised):
    with pytest.raises(
        ConfigError, match=r"no target was given. Name one, as in 'hotlap train unet', or give --resume"
    ):
        supervised({}, target="")
