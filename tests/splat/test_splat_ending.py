"""Ctrl-C and SIGTERM: the step ends and is saved, the second one ends at once, and what goes on is the same."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from hotlap.engine.config import CHECKPOINTS, STOPPED_AT_ONCE
from hotlap.records.run import load_record
from hotlap.splat.train import train, train_model


def told(number, at=10, times=1):
    """A listener that sends this process a signal after a step."""

    def watch(step, trainer):
        for _ in range(times if step == at else 0):
            os.kill(os.getpid(), number)

    return watch


def saved(config):
    return sorted(path.name[:13] for path in (Path(config.out) / CHECKPOINTS).glob("step-*.pt"))


@pytest.fixture
def handlers():
    """As the command line sets them, and as they must be afterwards."""

    def interrupt(number, frame):
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    inner = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    assert signal.getsignal(signal.SIGTERM) is interrupt
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    signal.signal(signal.SIGTERM, before)
    signal.signal(signal.SIGINT, inner)


@pytest.mark.usefixtures("handlers")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_what_was_learned_is_saved_and_goes_on_to_the_same_end(settings, tmp_path, number):
    config = settings(steps=30)
    heard = []
    with pytest.raises(KeyboardInterrupt):
        train(config, heard.append, watch=told(number))
    assert saved(config) == ["step-00000010"]
    record = load_record(Path(config.out) / "record.json")
    assert record.status == "interrupted" and record.notes == ["Stopped after step 10, which is saved."]
    said = " ".join(event.text for event in heard if event.kind == "warn")
    assert f"stopped after step 10, which is saved; 'hotlap splat train --out {config.out} --resume'" in said
    resumed = train_model(replace(config, resume=True))
    whole = train_model(replace(config, out=str(tmp_path / "whole")))
    assert resumed.record.status == whole.record.status == "complete"
    for name in ("means", "colors"):
        assert torch.equal(resumed.trainer.state.alive(name), whole.trainer.state.alive(name))


@pytest.mark.usefixtures("handlers")
def test_the_second_one_ends_at_once(settings):
    config = settings(steps=30)
    with pytest.raises(KeyboardInterrupt):
        train(config, watch=told(signal.SIGINT, times=2))
    assert not saved(config)
    assert load_record(Path(config.out) / "record.json").notes == [STOPPED_AT_ONCE]


@pytest.mark.usefixtures("handlers")
def test_one_that_comes_after_the_last_step_lets_the_training_be_closed(settings):
    config = settings(steps=10)
    assert train(config, watch=told(signal.SIGINT)).status == "complete"
    assert saved(config) == ["step-00000010"] and (Path(config.out) / "model.ply").exists()


def test_a_signal_that_is_ignored_stays_so(settings):
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        assert train(settings(steps=20), watch=told(signal.SIGINT)).status == "complete"
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_the_command_line_says_how_to_go_on(scene_folder, tmp_path):
    out = tmp_path / "run"
    command = [
        sys.executable,
        "-m",
        "hotlap",
        "splat",
        "train",
        str(scene_folder),
        "--out",
        str(out),
        "--device",
        "cpu",
    ]
    words = ["--steps", "100000", "--log-every", "1000", "--eval-every", "0"]
    run = subprocess.Popen(
        [*command, *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )  # fmt: skip
    try:
        deadline = time.monotonic() + 120
        while not (out / "metrics.jsonl").exists() and run.poll() is None and time.monotonic() < deadline:
            time.sleep(0.05)
        time.sleep(0.5)
        run.send_signal(signal.SIGINT)
        text, _ = run.communicate(timeout=60)
    finally:
        run.kill()
    assert run.returncode == 130, text
    assert "which is saved;" in text and "--resume' goes on from there" in " ".join(text.split())
    assert list((out / CHECKPOINTS).glob("step-*.pt"))
