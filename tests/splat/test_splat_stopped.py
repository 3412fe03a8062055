"""Trainings that go wrong: they stop with a diagnosis, and leave the best model that there was."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hotlap.base.errors import ConfigError, RecordError
from hotlap.cli.main import run
from hotlap.data.drawn_scene import DrawnScene, write_drawn_scene
from hotlap.data.scene import read_scene
from hotlap.data.splats import read_splats
from hotlap.engine.journal import read_journal
from hotlap.splat.outcome import MODEL, RESULTS
from hotlap.splat.train import train, train_model


def spoiled_at(wrong, value=30.0):
    """A listener that ruins all colours after a step, and keeps what they were after ten."""

    def watch(step, trainer):
        if step == 10:
            watch.colors = trainer.state.alive("colors").clone()
        if step == wrong:
            trainer.state.alive("colors").fill_(value)

    return watch


def test_a_training_that_falls_stops_with_a_diagnosis_and_its_best_model(settings):
    def spoil(step, trainer):
        if step == 20:
            trainer.state.alive("colors").fill_(30)

    config = settings(eval_every=10, checkpoint_every=10, abort_psnr_drop=2, strategy="none")
    record = train(config, watch=spoil)
    assert record.status == "stopped" and record.verdict.exit_code == 1
    assert "fell to" in record.notes[0] and "its best at step 10" in record.notes[0]
    assert record.extra["outcome"]["steps"] == 10, "the model is the best that was saved"
    assert "stopped after 20 steps" in record.verdict.headline
    assert "the model is that of step 10" in record.verdict.headline
    assert record.extra["outcome"]["held_out"]["psnr"] > 10


def test_a_model_that_ends_below_its_best_is_told_of_with_what_would_have_kept_that(settings):
    config = settings(steps=28, log_every=2, eval_every=10, abort_psnr_drop=50, strategy="none")
    heard = []
    record = train(config, heard.append, watch=spoiled_at(24))
    assert record.status == "complete" and record.verdict.exit_code == 0
    [note] = record.notes
    assert note.startswith("the held-out PSNR was ") and " dB higher at step 20; --abort-psnr-drop 1 would" in note
    assert note in [event.text for event in heard if event.kind == "warn"]
    other = replace(config, out=config.out + "-again", abort_psnr_drop=1)
    again = train(other, watch=spoiled_at(24))
    assert again.status == "stopped" and again.extra["outcome"]["steps"] == 20


def test_a_fall_after_the_last_judgement_that_was_due_is_seen_at_the_end(settings):
    watch = spoiled_at(24)
    config = settings(steps=28, log_every=2, eval_every=10, abort_psnr_drop=2, strategy="none")
    record = train(config, watch=watch)
    assert record.status == "stopped" and record.verdict.exit_code == 1
    assert "at step 28" in record.notes[0] and "its best at step 20" in record.notes[0]
    assert record.extra["outcome"]["steps"] == 20 and record.extra["outcome"]["held_out"]["psnr"] > 10


def test_rates_that_ruin_a_scene_from_the_first_step_on_are_seen(settings):
    """The scene before the first step is what no step may fall far below."""
    config = settings(steps=40, eval_every=10, strategy="none", lr_colors=1e3, lr_opacities=1e3)
    record = train(config)
    assert record.status == "stopped" and "its best at step 0" in record.notes[0]
    assert "Lower the rates" in record.notes[0]
    assert "stopped after 10 steps" in record.verdict.headline and record.extra["outcome"]["steps"] == 0
    points = read_scene(config.scene).points
    found = read_splats(Path(config.out) / MODEL).means
    assert np.array_equal(np.sort(found, axis=0), np.sort(points, axis=0)), "the best is where it began"


def test_a_training_on_one_picture_is_told_what_fell(settings):
    record = train(settings(steps=20, eval_every=10, strategy="none", lr_colors=1e3, lr_opacities=1e3, image_index=0))
    assert record.status == "stopped" and "the PSNR on its own picture fell to" in record.notes[0]


def test_a_diagnosis_is_printed_once_and_what_it_left_is_not_called_broken(scene_folder, tmp_path, capsys):
    rates = ["--lr-colors", "1000", "--lr-opacities", "1000", "--strategy", "none", "--background", "learn"]
    asked = ["splat", "train", str(scene_folder), "--out", str(tmp_path / "run"), "--steps", "40", "--eval-every", "10"]
    assert run([*asked, *rates, "--device", "cpu", "--quiet"]) == 1
    told = " ".join(capsys.readouterr().out.split())
    assert told.count("the held-out PSNR fell to") == 1 and "stopped after 10 steps" in told
    assert "not whole" not in told


@pytest.mark.parametrize("adam", ["dense", "lazy"])
def test_the_best_that_was_judged_is_there_without_a_checkpoint(settings, adam):
    watch = spoiled_at(20)
    config = settings(eval_every=10, abort_psnr_drop=2, strategy="none", poses=True, adam=adam)
    done = train_model(config, watch=watch)
    folder, outcome = Path(config.out), done.record.extra["outcome"]
    assert outcome["steps"] == done.trainer.step == 10
    splats = read_splats(folder / MODEL)
    found = np.concatenate([splats.sh0[:, None], splats.shN], axis=1)
    if adam == "dense":  # what lags behind is brought up to date to be judged
        assert np.array_equal(found, watch.colors.numpy())
    rows = {row.step: row.values["psnr"] for row in read_journal(folder) if row.split == "eval"}
    assert outcome["held_out"]["psnr"] == pytest.approx(rows[10], abs=1e-6)
    assert rows[20] < rows[10] - 2, "the metrics still show the fall"
    assert not list((folder / "checkpoints").glob("*")), "nothing was written for it"


def test_without_the_gate_nothing_is_kept_for_it(settings, monkeypatch):
    kept = []
    monkeypatch.setattr("hotlap.splat.state._copied", lambda tensor: kept.append(tensor))
    assert train(settings(eval_every=10, abort_psnr_drop=0, strategy="none")).status == "complete"
    assert not kept


def test_a_best_that_was_lost_is_told_with_how_to_keep_it(settings):
    def leave(step, trainer):
        if step == 20:
            raise KeyboardInterrupt

    config = settings(eval_every=10, checkpoint_every=15, abort_psnr_drop=2, strategy="none")
    with pytest.raises(KeyboardInterrupt):
        train(config, watch=leave)
    heard = []
    record = train(replace(config, resume=True), heard.append, watch=spoiled_at(20))
    assert record.status == "stopped" and record.extra["outcome"]["steps"] == 15
    said = " ".join(event.text for event in heard if event.kind == "warn")
    assert "dB at step 10, is lost since the training was resumed" in said and "--checkpoint-every 10" in said
    rows = [row.step for row in read_journal(Path(config.out)) if row.split == "eval"]
    assert rows == [0, 10, 20], "the fall is not forgotten"


def test_what_is_judged_after_a_resume_does_not_displace_a_better_checkpoint(settings):
    def leave(step, trainer):
        if step == 30:
            raise KeyboardInterrupt

    def spoil(step, trainer):
        if step == 30:
            trainer.state.alive("colors")[:, 0] += 1.5
        if step == 40:
            trainer.state.alive("colors").fill_(30.0)

    config = settings(eval_every=10, checkpoint_every=20, steps=50, abort_psnr_drop=4, strategy="none")
    with pytest.raises(KeyboardInterrupt):
        train(config, watch=leave)
    record = train(replace(config, resume=True), watch=spoil)
    rows = {row.step: row.values["psnr"] for row in read_journal(Path(config.out)) if row.split == "eval"}
    assert rows[20] - 4 < rows[30] < rows[20] and rows[40] < rows[20] - 4
    assert record.status == "stopped" and record.extra["outcome"]["steps"] == 20
    assert record.extra["outcome"]["held_out"]["psnr"] == pytest.approx(rows[20], abs=1e-6)


def test_a_model_that_was_left_is_not_overwritten(settings):
    config = settings(steps=20, eval_every=10, strategy="none", abort_psnr_drop=2)
    assert train(config, watch=spoiled_at(10)).status == "stopped"
    left = (Path(config.out) / MODEL).read_bytes()
    with pytest.raises(ConfigError, match=r"out = '.*' holds the model\.ply of another training"):
        train(replace(config, seed=1))
    with pytest.raises(RecordError, match=r"no checkpoint in .* to begin anew, in another folder if this one holds a"):
        train(replace(config, resume=True))
    assert (Path(config.out) / MODEL).read_bytes() == left


def test_a_training_begun_anew_in_the_folder_of_one_that_was_ended_has_metrics_of_its_own(settings):
    def leave(step, trainer):
        raise KeyboardInterrupt

    config = settings(steps=20, eval_every=10, strategy="none")
    with pytest.raises(KeyboardInterrupt):
        train(config, watch=leave)
    assert train(config).status == "complete"
    rows = [(row.step, row.split) for row in read_journal(Path(config.out))]
    assert rows == [(0, "eval"), (10, "train"), (10, "eval"), (20, "train"), (20, "eval")]


def test_numbers_that_are_none_leave_the_best_that_was_judged(settings):
    config = settings(eval_every=15, steps=40, strategy="none")
    record = train(config, watch=spoiled_at(20, float("nan")))
    outcome = record.extra["outcome"]
    assert record.status == "stopped" and "not finite" in record.notes[0] and outcome["steps"] == 15
    rows = {row.step: row.values["psnr"] for row in read_journal(Path(config.out)) if row.split == "eval"}
    assert outcome["held_out"]["psnr"] == pytest.approx(rows[15], abs=1e-6)


@pytest.mark.parametrize("checkpoint_every", [0, 5])
def test_an_explosion_of_splats_stops_with_a_diagnosis(settings, tmp_path, checkpoint_every):
    folder = tmp_path / "dense"
    write_drawn_scene(folder, DrawnScene(num_views=4, width=32, height=24, num_points=1500))
    config = settings(scene=str(folder), densify_grad=0.0, abort_growth=1.2, checkpoint_every=checkpoint_every)
    record = train(config)
    assert record.extra["outcome"]["seconds"] > 0
    assert record.status == "stopped" and "abort_growth = 1.2 times" in record.notes[0]
    assert record.extra["outcome"]["steps"] == 10, "nothing was wrong with what was there"


def test_a_training_that_would_lose_all_splats_stops_with_those_it_has(settings):
    config = settings(prune_opacity=0.98, reset_every=0)
    record = train(config)
    assert record.status == "stopped" and record.verdict.exit_code == 1
    assert "after 10 steps would remove all 400 splats" in record.notes[0]
    assert "Lower --prune-opacity = 0.98" in record.notes[0]
    assert len(read_splats(Path(config.out) / MODEL)) == 400


def test_a_last_splat_without_numbers_ends_a_training(settings):
    def spoil(step, trainer):
        trainer.state.alive("means").fill_(float("nan"))

    record = train(settings(strategy="none", start_splats=1), watch=spoil)
    assert record.status == "stopped" and "1 of 1 splats had numbers that are not finite" in record.notes[0]


def test_a_training_that_stops_before_its_first_checkpoint_leaves_what_can_be_drawn(settings):
    heard = []

    def spoil(step, trainer):
        if step == 10:
            trainer.state.alive("colors")[:100] = float("nan")

    config = settings(strategy="none")
    record = train(config, heard.append, watch=spoil)
    assert record.status == "stopped" and record.verdict.exit_code == 1 and "after 20 steps" in record.notes[0]
    said = [event.text for event in heard if event.kind == "warn"]
    assert any("no checkpoint was saved" in text for text in said)
    assert "checkpoint" not in record.notes[0], "the diagnosis does not promise one"
    assert any("100 splats that cannot be drawn are not in model.ply" in text for text in said)
    results = json.loads((Path(config.out) / RESULTS).read_text())
    assert len(read_splats(Path(config.out) / MODEL)) == results["splats"] == 300
    assert "; 300 splats" in record.verdict.headline
    assert "nan" not in str(results["held_out"])
