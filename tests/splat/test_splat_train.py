"""A training from a folder to its results: it learns, it resumes bit for bit, it stops when it goes wrong."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
import torch

from hotlap.base.errors import ConfigError, DataError, RecordError, StorageError, UsageError
from hotlap.cli.main import run
from hotlap.data.drawn_scene import DrawnScene, write_drawn_scene
from hotlap.data.splats import read_splats
from hotlap.engine.checkpoint import CheckpointStore
from hotlap.engine.journal import read_journal
from hotlap.records.run import load_record
from hotlap.splat.config import LEARNABLE, SplatEvalConfig, SplatInfoConfig
from hotlap.splat.evaluate import evaluate
from hotlap.splat.judge import Model, psnr
from hotlap.splat.opened import info
from hotlap.splat.outcome import MODEL, RESULTS
from hotlap.splat.team import Alone
from hotlap.splat.train import train, train_model

ARRAYS = ("means", "quats", "scales", "opacities", "colors", "first.means", "second.colors", "stats.grad")


def last_arrays(out: str) -> dict[str, torch.Tensor]:
    found = CheckpointStore(Path(out) / "checkpoints").load("latest")
    return found.state["state"]["arrays"]


def test_a_training_learns_and_leaves_everything_behind(settings):
    config = settings(steps=60, eval_every=20, densify_until=40)
    done = train_model(config)
    folder = Path(config.out)
    assert done.record.status == "complete" and done.record.verdict.exit_code == 0
    rows = [row for row in read_journal(folder) if row.split == "eval"]
    assert [row.step for row in rows] == [0, 20, 40, 60]
    assert rows[-1].values["psnr"] > rows[1].values["psnr"] + 1
    assert rows[-1].values["psnr"] > 15
    needles = [row.values["anisotropy_median"] for row in read_journal(folder) if row.split == "train"]
    assert len(needles) == 6 and max(needles) < 5
    results = json.loads((folder / RESULTS).read_text())
    assert results["held_out"]["psnr"] == pytest.approx(rows[-1].values["psnr"])
    assert [image["name"] for image in results["images"]] == ["view_000.png", "view_008.png"]
    assert all(0 < value < 1 for value in results["background"])
    splats = read_splats(folder / MODEL)
    assert len(splats) == results["splats"] == done.trainer.state.count
    assert len(splats) > 400, "there were 400 points"
    assert np.array_equal(splats.means, done.trainer.state.alive("means").numpy())
    for name in ("scores.csv", "metrics.csv", "curves.png", "cameras.json", "record.json", "pictures/view_000.png"):
        assert (folder / name).stat().st_size > 0, name


@pytest.mark.parametrize("seed", [0, 42, 123])
def test_no_seed_fails_and_none_changes_which_pictures_are_held_out(trainer, seed):
    made = trainer(seed=seed)
    assert made.stage.test_cameras.names == ("view_000.png", "view_008.png")
    before = made.judge()["psnr"]
    made.run(30)
    assert made.judge()["psnr"] > before + 1


@pytest.mark.parametrize("most", [0, 1])
def test_every_picture_is_drawn_once_after_the_last_step(settings, monkeypatch, most):
    drawn, draw = [], Model.draw

    def count(model, pose, *rest):
        drawn.append(pose)
        return draw(model, pose, *rest)

    monkeypatch.setattr(Model, "draw", count)
    config = settings(steps=20, eval_every=10, max_test_views=most)
    outcome = train(config).extra["outcome"]
    on_the_way = most or 2
    assert len(drawn) == 2 * on_the_way + 2, "twice some on the way, and after the last step all"
    found = CheckpointStore(Path(config.out) / "checkpoints").load("best")
    guard = found.state["guard"]
    assert guard["best_step"] == 20
    scores = [image["psnr"] for image in outcome["images"]]
    assert guard["best_psnr"] == sum(scores[:on_the_way]) / on_the_way, "the guard's are those of the results"
    again = evaluate(SplatEvalConfig(run=config.out, device="cpu", lpips=False))
    assert again["images"] == outcome["images"] and again["mean"] == outcome["held_out"]


def test_many_pictures_are_no_harder_than_few(settings, tmp_path):
    folder = tmp_path / "many"
    write_drawn_scene(folder, DrawnScene(num_views=40, width=24, height=16, num_points=300))
    record = train(settings(scene=str(folder), steps=60, eval_every=20, max_test_views=2))
    scores = [row.values["psnr"] for row in read_journal(Path(settings().out)) if row.split == "eval"]
    assert record.status == "complete" and scores[-1] > scores[0]


@pytest.mark.parametrize("strategy", ["adc", "mcmc"])
def test_strategies_learn_within_their_cap(trainer, strategy):
    made = trainer(strategy=strategy, max_splats=450, steps=40, densify_until=35)
    before = made.judge()["psnr"]
    made.run(40)
    assert made.judge()["psnr"] > before + 1
    assert 400 < made.state.count <= 450


def test_a_lazy_adam_is_judged_before_its_first_step(settings):
    done = train_model(settings(adam="lazy", steps=10, eval_every=5, densify_until=8))
    assert done.record.status == "complete"
    assert [row.step for row in read_journal(done.folder) if row.split == "eval"] == [0, 5, 10]


def test_every_picture_is_shown_once_an_epoch_in_an_order_of_its_own(trainer):
    made = trainer()
    orders = [[made.camera_at(place) for place in range(14 * epoch, 14 * epoch + 14)] for epoch in (0, 1, 2)]
    assert all(sorted(order) == list(range(14)) for order in orders) and orders[0] != orders[1]
    assert made.camera_at(3) == orders[0][3], "an earlier place may be asked for again"


def test_small_pictures_first(trainer):
    made = trainer(coarse_first=True, densify_until=20)
    assert [made.level_at(step, (512, 512)) for step in (0, 4, 5, 9, 10, 29)] == [2, 2, 1, 1, 0, 0]
    assert made.level_at(0, (100, 512)) == 0, "100 pixels are not halved below 64"


class Interrupted(Exception):
    pass


@pytest.mark.parametrize(
    "changes",
    [{"adam": "lazy"}, {"strategy": "mcmc", "max_splats": 440}, {"exposure": True, "poses": True, "lr_poses": 1e-3}],
    ids=["adc-lazy", "mcmc", "beside"],
)
def test_an_interrupted_training_ends_bit_for_bit_as_one_that_was_not(settings, tmp_path, changes):
    whole = settings(out=str(tmp_path / "whole"), checkpoint_every=8, **changes)
    train(whole)

    def stop(step, trainer):
        if step == 20:
            raise Interrupted

    config = settings(out=str(tmp_path / "cut"), checkpoint_every=8, **changes)
    with pytest.raises(Interrupted):
        train(config, watch=stop)
    assert CheckpointStore(Path(config.out) / "checkpoints").steps()[-1] == 16
    record = train(settings(out=config.out, checkpoint_every=8, resume=True, **changes))
    assert record.status == "complete"
    want, got = last_arrays(whole.out), last_arrays(config.out)
    for name in ARRAYS:
        assert torch.equal(want[name], got[name]), name
    rows = [[(row.step, row.split, row.values) for row in read_journal(Path(out))] for out in (whole.out, config.out)]
    assert rows[0] == rows[1]


@pytest.mark.slow
def test_a_killed_training_is_resumed_bit_for_bit(settings, tmp_path):
    common = {"checkpoint_every": 5, "log_every": 5, "steps": 25, "pictures": 0}
    whole = settings(out=str(tmp_path / "whole"), **common)
    train(whole)
    config = settings(out=str(tmp_path / "killed"), **common)
    script = Path(__file__).with_name("killed_splat_training.py")
    child = subprocess.Popen(
        [sys.executable, str(script), json.dumps(asdict(config))], stdout=subprocess.PIPE, env=os.environ, text=True
    )
    assert child.stdout is not None and child.stdout.readline() == "saved\n"
    child.send_signal(signal.SIGKILL)
    child.wait()
    train(settings(out=config.out, **common, resume=True))
    want, got = last_arrays(whole.out), last_arrays(config.out)
    for name in ARRAYS:
        assert torch.equal(want[name], got[name]), name


def test_ctrl_c_leaves_a_record_and_the_last_checkpoint(settings):
    def stop(step, trainer):
        if step == 20:
            raise KeyboardInterrupt

    config = settings(checkpoint_every=10)
    with pytest.raises(KeyboardInterrupt):
        train(config, watch=stop)
    record = load_record(config.out)
    assert record.status == "interrupted" and "--resume" in record.notes[0] and record.verdict.exit_code == 130
    assert CheckpointStore(Path(config.out) / "checkpoints").steps() == [10]


def test_no_record_of_a_training_that_failed_says_that_it_runs(settings, monkeypatch):
    def fail(step, trainer):
        raise RuntimeError("a stroke of bad luck")

    config = settings()
    with pytest.raises(RuntimeError, match="bad luck"):
        train(config, watch=fail)
    record = load_record(config.out)
    assert record.status == "failed" and record.notes == ["RuntimeError: a stroke of bad luck"]

    def full(*args, **kwargs):
        raise StorageError("no space is left")

    monkeypatch.setattr("hotlap.splat.train.close_training", full)
    with pytest.raises(StorageError, match="no space is left"):
        train(config)
    assert load_record(config.out).status == "failed"


def test_a_single_picture_is_overfitted_and_its_model_saved(settings):
    config = settings("m7", steps=40, start_splats=300, lr_background=0.05, scale=1.0, sh_degree=0, log_every=40)
    done = train_model(config)
    outcome = done.record.extra["outcome"]
    assert outcome["images"][0]["name"] == "view_000.png" and outcome["trained_on"]["psnr"] > 13
    assert len(read_splats(Path(config.out) / MODEL)) <= 300
    # It holds nothing out, and no score of it may be taken for one of a held-out picture.
    assert "held_out" not in outcome and "; on its own picture PSNR 1" in done.record.verdict.headline
    assert info(SplatInfoConfig(what=config.out))["trained_on"] == outcome["trained_on"]
    assert evaluate(SplatEvalConfig(run=config.out, device="cpu", pictures=0, lpips=False))["views"] == "train"


def test_a_scene_is_the_same_however_it_is_spelt_and_wherever_one_stands(settings, scene_folder, tmp_path, monkeypatch):
    monkeypatch.chdir(scene_folder.parent)
    name = scene_folder.name
    config = settings(scene=f"{name}/", steps=4, strategy="none")
    train(config)
    assert train(replace(config, scene=f"./{name}", resume=True)).status == "complete"
    monkeypatch.chdir(tmp_path)
    evaluate(SplatEvalConfig(run=config.out, device="cpu"))
    assert train(replace(config, scene=str(scene_folder), resume=True)).status == "complete"
    with pytest.raises(ConfigError, match=r"scene = '.*elsewhere' is not what the training in .* was begun with"):
        train(replace(config, scene="elsewhere", resume=True))


def test_a_cap_below_the_number_of_points_is_told(settings):
    heard = []
    record = train(settings(max_splats=50, steps=10), heard.append)
    assert record.extra["outcome"]["splats"] <= 50
    assert any("max_splats = 50" in event.text for event in heard if event.kind == "warn")


def test_the_loss_is_that_of_one_step_however_often_it_is_logged(settings):
    train(settings(steps=30, checkpoint_every=15, log_every=10, keep=9))
    want = {row.step: row.values["loss"] for row in read_journal(Path(settings().out)) if row.split == "train"}
    for path in (Path(settings().out) / "checkpoints").glob("step-00000030*"):
        path.unlink()
    train(settings(steps=30, checkpoint_every=15, log_every=15, resume=True))
    got = {row.step: row.values["loss"] for row in read_journal(Path(settings().out)) if row.split == "train"}
    assert got[30] == pytest.approx(want[30], rel=0.3), "not that of twenty steps over fifteen"


def test_the_training_psnr_is_of_the_pixels_that_count_as_they_are_exposed(trainer):
    made = trainer(strategy="none", exposure=True)
    made.run(1)
    frame = made.train_step.frame_of(made.shown)
    shown = made.beside.exposure.apply(frame.which, frame.image)
    made.beside.exposure.table.fill_(2.0)
    bright = made.beside.exposure.apply(frame.which, frame.image)
    assert not torch.equal(shown, bright)
    assert made.look_after()["psnr"] == pytest.approx(psnr(bright[0].clamp(0, 1), frame.target[0]))


def test_splats_that_are_no_numbers_are_removed_with_a_warning(settings):
    heard = []

    def spoil(step, trainer):
        if step == 10:
            trainer.state.alive("means")[3] = float("nan")

    record = train(settings(strategy="none"), heard.append, watch=spoil)
    assert record.status == "complete" and record.extra["outcome"]["lost_splats"] == 1
    assert any("1 splats with numbers that are not finite" in event.text for event in heard if event.kind == "warn")


@pytest.mark.parametrize("place", ["device", "host", "disk"])
def test_pictures_are_the_same_wherever_they_wait(trainer, place):
    made, want = trainer(images_on=place), trainer()
    for one in (made, want):
        one.run(9)
    assert made.stage.pictures.place == place
    for name in LEARNABLE:
        assert torch.equal(made.state.alive(name), want.state.alive(name))


def test_a_second_training_in_the_folder_of_one_that_runs_is_refused_and_changes_nothing(settings, monkeypatch, held):
    config = settings(steps=10)
    Path(config.out).mkdir()
    with held(config.out):
        monkeypatch.setattr("hotlap.splat.train.LEAVE_S", 0.1)
        with pytest.raises(UsageError, match=r"another process trains in .*Wait until it has ended"):
            train(config)
        assert [path.name for path in Path(config.out).iterdir()] == [".training"]
    assert train(config).status == "complete"


@pytest.mark.parametrize("below", ["", "new/deep"])
def test_a_place_where_no_folder_can_be_is_refused_before_anything_is_read(settings, tmp_path, below):
    (tmp_path / "file").write_text("in the way")
    out, heard = str(tmp_path / "file" / below), []
    with pytest.raises(
        StorageError, match=rf"out = {re.escape(repr(out))} cannot be made: .*file' is no folder\. Free"
    ):
        train(settings(out=out), heard.append)
    assert not heard and (tmp_path / "file").read_text() == "in the way"


def test_a_place_that_may_not_be_written_is_refused_before_anything_is_read(settings, tmp_path, monkeypatch):
    monkeypatch.setattr("os.access", lambda path, mode: Path(path) != tmp_path)
    heard = []
    with pytest.raises(
        StorageError, match=rf"out = .*new' cannot be made: {re.escape(repr(str(tmp_path)))} may not be"
    ):
        train(settings(out=str(tmp_path / "new")), heard.append)
    assert not heard and not (tmp_path / "new").exists()


def test_another_training_in_the_folder_is_not_overwritten(settings):
    config = settings(steps=10)
    train(config)
    with pytest.raises(ConfigError, match=r"out = .* holds a training of 10 steps.*--resume"):
        train(config)


def as_left_open(out: str) -> None:
    """The folder of a training as if it had ended after 10 steps, its Adam written as earlier versions did."""
    CheckpointStore(Path(out) / "checkpoints").rewind(10)
    path = Path(out) / "settings.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "adam": "auto"}))


@pytest.mark.parametrize(("strategy", "adam"), [("adc", "lazy"), ("mcmc", "dense")])
def test_a_training_that_left_its_adam_open_goes_on_with_the_one_it_took(settings, strategy, adam):
    config, told = settings(steps=20, checkpoint_every=10, strategy=strategy, adam=adam), []
    whole = train_model(config).trainer.state
    as_left_open(config.out)
    done = train_model(replace(config, adam="dense", resume=True), told.append)
    assert done.record.status == "complete" and done.record.config["adam"] == adam
    assert any("went on from step 10" in event.text for event in told)
    assert any("adam = 'lazy', as this training was begun" in event.text for event in told) == (adam == "lazy")
    for name in LEARNABLE:
        assert torch.equal(done.trainer.state.alive(name), whole.alive(name)), name


def test_a_training_that_left_its_adam_open_goes_on_with_no_other(settings):
    config = settings(steps=20, checkpoint_every=10, adam="lazy")
    train(config)
    as_left_open(config.out)
    with pytest.raises(ConfigError, match=r"adam = 'selective' is not what the training.*Expected 'lazy'"):
        train(replace(config, adam="selective", resume=True))
    with pytest.raises(ConfigError, match=r"strategy = 'mcmc' is not what the training.*Expected 'adc'"):
        train(replace(config, adam="dense", strategy="mcmc", resume=True))


def test_another_adam_is_another_training(settings):
    train(settings(steps=10, adam="lazy"))
    with pytest.raises(ConfigError, match=r"adam = 'dense' is not what the training.*Expected 'lazy'"):
        train(settings(steps=10, adam="dense", resume=True))


def test_a_resumed_training_has_the_settings_that_it_was_begun_with(settings, capsys):
    config = settings("m9", steps=20, max_splats=500, checkpoint_every=10)
    whole = train_model(config).trainer.state
    CheckpointStore(Path(config.out) / "checkpoints").rewind(10)
    (Path(config.out) / MODEL).unlink()
    assert run(["splat", "train", "--out", config.out, "--resume", "--quiet"]) == 0
    assert np.array_equal(read_splats(Path(config.out) / MODEL).means, whole.alive("means").numpy())
    assert run(["splat", "train", "--out", config.out, "--resume", "--steps", "30", "--quiet"]) == 2
    assert "steps = 30 is not what the training in" in capsys.readouterr().err
    assert run(["splat", "train", "--out", config.out, "--resume", "--preset", "m8", "--quiet"]) == 2
    assert "preset = 'm8' is not what the training in" in capsys.readouterr().err


def test_a_resumed_training_must_be_the_same(settings):
    train(settings(steps=10))
    with pytest.raises(ConfigError, match=r"lr_colors = 0\.5 is not what the training.*Expected 0\.03"):
        train(settings(steps=10, lr_colors=0.5, resume=True))
    assert train(settings(steps=10, resume=True, log_every=5)).status == "complete"


def test_a_scene_that_was_moved_is_gone_on_with_where_it_is_now(settings, scene_folder, tmp_path):
    before, after = tmp_path / "before", tmp_path / "after"
    shutil.copytree(scene_folder, before)
    config = settings(scene=str(before), steps=20, checkpoint_every=10, max_splats=500)
    whole = train_model(config).trainer.state
    CheckpointStore(Path(config.out) / "checkpoints").rewind(10)
    write_drawn_scene(after, DrawnScene(num_views=18, width=48, height=32, num_points=400))
    with pytest.raises(ConfigError, match=r"scene = '.*after' is not what the training in .*Expected '.*before'"):
        train(replace(config, scene=str(after), resume=True))  # the other one is still there
    shutil.rmtree(before)
    with pytest.raises(ConfigError, match=r"after' has 15 pictures to train on, which are not the 14 that .*'view_01"):
        train(replace(config, scene=str(after), resume=True))
    shutil.rmtree(after)
    shutil.copytree(scene_folder, after)
    found = train_model(replace(config, scene=str(after), resume=True)).trainer.state
    assert torch.equal(found.alive("means"), whole.alive("means"))
    assert evaluate(SplatEvalConfig(run=config.out, device="cpu"))["mean"]["psnr"] > 0, "it knows where the scene is"


def test_a_training_of_several_processes_is_not_gone_on_with_by_another_number(settings, monkeypatch):
    monkeypatch.setattr(Alone, "size", 2)
    train(settings(steps=10))
    monkeypatch.undo()
    with pytest.raises(ConfigError, match=r"is of a training in 2 processes, and there are 1 now\. Expected 2"):
        train(settings(steps=10, resume=True))
    record = load_record(Path(settings().out) / "record.json")
    assert record.status == "complete", "what was refused does not run, and what was there is not forgotten"


def test_a_run_has_the_name_of_its_scene_wherever_one_stands(settings, scene_folder, monkeypatch, tmp_path):
    where = tmp_path / "garden"
    shutil.copytree(scene_folder, where)
    monkeypatch.chdir(where)
    train(settings(scene=".", out="", steps=2, strategy="none"))
    assert [path.name for path in (where / "runs").iterdir()] == ["splat-garden"]


def test_what_cannot_be_resumed_is_told(settings, tmp_path):
    with pytest.raises(RecordError, match=r"no training at .*settings\.json"):
        train(settings(resume=True, out=str(tmp_path / "nothing")))
    with pytest.raises(ConfigError, match="resume = True without out"):
        train(settings(resume=True, out=""))


def test_scenes_that_cannot_be_trained_on_are_refused(settings, tmp_path):
    with pytest.raises(ConfigError, match="no scene was given"):
        train(settings(scene=""))
    with pytest.raises(ConfigError, match=r"image_index = 99 is not valid. Expected 0 to 15"):
        train(settings(image_index=99))
    folder = tmp_path / "sparse"
    write_drawn_scene(folder, DrawnScene(num_views=3, width=16, height=16, num_points=2))
    with pytest.raises(DataError, match="has 2 points to begin with"):
        train(settings(scene=str(folder)))
    assert not (Path(settings().out) / "checkpoints").exists()


def test_views_without_pictures_are_an_error_unless_they_are_to_be_left_out(settings, tmp_path):
    folder = tmp_path / "gaps"
    write_drawn_scene(folder, DrawnScene(num_views=9, width=32, height=24, num_points=300))
    pictures = sorted((folder / "images").iterdir())
    for path in pictures[2:7]:
        path.unlink()
    named = ", ".join(repr(path.name) for path in pictures[2:5])
    with pytest.raises(DataError, match=rf"5 of 9 images are not in .*: {re.escape(named)}, \.\.\. Put .*skip_missing"):
        train(settings(scene=str(folder)))
    told = []
    record = train(settings(scene=str(folder), steps=4, skip_missing=True), told.append)
    assert record.status == "complete"
    assert any(f"5 views have no picture, left out: {named}" in event.text for event in told)


def test_one_picture_alone_can_be_trained_on(settings, tmp_path):
    folder = tmp_path / "one"
    write_drawn_scene(folder, DrawnScene(num_views=1, width=32, height=24, num_points=300))
    record = train(settings(scene=str(folder), steps=6))
    assert record.status == "complete" and "held_out" not in record.extra["outcome"]


def test_cameras_that_see_nothing_do_no_harm(trainer):
    made = trainer(strategy="none")
    made.stage.cameras.viewmats[:, 2, 3] = -100.0
    made.run(8)
    values = made.look_after()
    assert np.isfinite(values["loss"]) and all(torch.isfinite(made.state.alive(name)).all() for name in LEARNABLE)
