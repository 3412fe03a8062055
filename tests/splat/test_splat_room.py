"""Work that memory has no room for: what is too large and what helps is said, and no record says that it runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from hotlap.base.errors import OutOfMemory
from hotlap.records.run import load_record
from hotlap.splat.config import SplatEvalConfig, SplatRenderConfig
from hotlap.splat.evaluate import evaluate
from hotlap.splat.judge import Model
from hotlap.splat.render import render
from hotlap.splat.room import PIXEL_BYTES, told_of_memory
from hotlap.splat.train import train


def full(*args, **kwargs):
    raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 2880000000 bytes.")


def test_a_training_that_finds_no_memory_says_what_helps(settings):
    config = settings(steps=2, log_every=1)
    said = r"the training has no room in memory: DefaultCPU.*2880000000 bytes.*--max-side 1600.*--max-splats"
    with pytest.raises(OutOfMemory, match=said) as caught:
        train(config, watch=full)
    assert caught.value.exit_code == 5
    record = load_record(config.out)
    assert record.status == "failed" and re.match(said, record.notes[0])


@pytest.mark.parametrize(("where", "said"), [
    ("stage.Pictures", "the scene has no room in memory: .*--images-on disk"),
    ("train.Trainer", "the model has no room in memory: .*--max-splats"),
])  # fmt: skip
def test_what_finds_no_memory_before_the_first_step_is_named(settings, monkeypatch, where, said):
    monkeypatch.setattr(f"hotlap.splat.{where}", full)
    with pytest.raises(OutOfMemory, match=said):
        train(settings())


def test_pictures_that_no_step_has_room_for_are_refused_before_they_are_read(settings, monkeypatch):
    """Linux lends memory that it does not have, and then ends who uses it without a word."""
    monkeypatch.setattr("hotlap.splat.room.free_bytes", lambda device: 48 * 32 * PIXEL_BYTES // 2)
    monkeypatch.setattr("hotlap.splat.stage.Pictures", full)
    config = settings()
    with pytest.raises(OutOfMemory, match=r"48x32 pixels needs more than 150 KiB .* 75.* are free.*--max-side 1600"):
        train(config)
    assert not Path(config.out).exists()


def test_pictures_that_are_made_smaller_have_room(settings, monkeypatch):
    monkeypatch.setattr("hotlap.splat.room.free_bytes", lambda device: 48 * 32 * PIXEL_BYTES // 2)
    assert train(settings(steps=1, max_side=24)).status == "complete"


def test_pictures_that_are_drawn_name_their_size_where_they_find_no_memory(settings, monkeypatch):
    config = settings(steps=1)
    train(config)
    monkeypatch.setattr(Model, "draw", full)
    with pytest.raises(OutOfMemory, match=r"a picture of 64x43 pixels has no room in memory: .*smaller --width"):
        render(SplatRenderConfig(model=config.out, path="orbit", frames=1, width=64, device="cpu"))
    with pytest.raises(OutOfMemory, match=r"the judgement has no room in memory: .*another --device"):
        evaluate(SplatEvalConfig(run=config.out, device="cpu"))


def test_what_is_no_want_of_memory_is_left_as_it_is():
    with pytest.raises(RuntimeError, match=r"^shapes differ$"), told_of_memory("it", "Go on"):
        raise RuntimeError("shapes differ")
