"""Trainings that are not over, as they can be drawn, judged and exported; and exports that leave splats out."""

from __future__ import annotations

import json
import re
from pathlib import Path
from shutil import copytree, rmtree

import numpy as np
import pytest
import torch

from hotlap.base.errors import DataError, StorageError
from hotlap.base.events import ignore
from hotlap.cli.main import run
from hotlap.data.splats import FORMATS, read_splats, write_splats
from hotlap.engine.checkpoint import CheckpointStore
from hotlap.engine.config import CHECKPOINTS
from hotlap.splat.config import LEARNABLE, SplatEvalConfig, SplatExportConfig, SplatInfoConfig, SplatRenderConfig
from hotlap.splat.evaluate import evaluate
from hotlap.splat.opened import export, info, open_splats
from hotlap.splat.render import render
from hotlap.splat.train import train

CPU = torch.device("cpu")


@pytest.fixture
def cut(settings):
    """Makes a training that was interrupted after ten of its steps; its settings."""

    def make(**changes):
        config = settings(**changes)

        def interrupt(step, trainer):
            if step == 10:
                trainer.ends = True

        with pytest.raises(KeyboardInterrupt):
            train(config, watch=interrupt)
        return config

    return make


def told_of(work, config):
    """What came of it, and the warnings on the way."""
    heard = []
    return work(config, heard.append), [event.text for event in heard if event.kind == "warn"]


def test_a_training_that_was_interrupted_is_exported_drawn_and_judged(cut, tmp_path):
    config = cut(checkpoint_every=10, eval_every=0)
    out, file = config.out, str(tmp_path / "early.ply")
    saved = CheckpointStore(Path(out) / CHECKPOINTS).load("latest").state
    assert saved["step"] == 10
    written, warnings = told_of(export, SplatExportConfig(model=out, out=file))
    assert warnings == [f"the training in {out!r} is not over: its splats are those of step 10"]
    splats = read_splats(written)
    for name, array in (("means", splats.means), ("scales", splats.log_scales), ("opacities", splats.logit_opacities)):
        assert np.array_equal(array, saved["state"]["arrays"][name].numpy()), name
    assert np.array_equal(splats.sh0, saved["state"]["arrays"]["colors"][:, 0].numpy())
    found = info(SplatInfoConfig(what=out))
    assert (found["status"], found["steps"], found["splats"]) == ("not over", 10, len(splats))
    learned = torch.sigmoid(saved["beside"]["background"]["logits"])[0].tolist()
    assert found["background"] == pytest.approx(learned)
    scores, warnings = told_of(evaluate, SplatEvalConfig(run=out, device="cpu", pictures=0, lpips=False))
    assert "step 10" in warnings[0] and scores["mean"]["psnr"] > 5
    files, warnings = told_of(render, SplatRenderConfig(model=out, device="cpu"))
    assert "step 10" in warnings[0] and [path.name for path in files] == ["view_000.png", "view_008.png"]


def test_what_is_behind_a_training_that_is_not_over(cut, tmp_path):
    """Its own colour, white if it was asked for, or what the scene's transparent pixels were put on."""
    for background, want in (("black", None), ("white", 1.0), ("auto", None)):
        out = cut(background=background, out=str(tmp_path / background), eval_every=0).out
        behind = open_splats(out).model(CPU).background
        assert (behind is None) if want is None else bool((behind == want).all())


def test_the_scene_of_a_training_that_is_not_over_may_have_moved(cut, scene_folder, tmp_path):
    moved = tmp_path / "moved"
    copytree(scene_folder, moved)
    config = cut(scene=str(moved), background="auto", eval_every=0)
    rmtree(moved)
    opened = open_splats(config.out)
    with pytest.raises(DataError, match=r"the scene .*moved' of the training .* does not exist.*--scene"):
        opened.model(CPU)
    assert opened.model(CPU, str(scene_folder)).background is None
    assert len(read_splats(export(SplatExportConfig(model=config.out, out=str(tmp_path / "m.ply"))))) == len(
        opened.splats
    )


def test_both_ways_to_a_models_splats_draw_the_same(cut):
    """A training's checkpoint, read as a file's splats and as the trainer has it."""
    config = cut(eval_every=0)
    state = CheckpointStore(Path(config.out) / CHECKPOINTS).load("latest").state
    params = open_splats(config.out, "model", ignore).model(CPU).params
    for name in LEARNABLE:
        assert torch.equal(params[name], state["state"]["arrays"][name]), name


@pytest.fixture
def floaters(settings, tmp_path):
    """A file of splats of which two are far away, and one of those has no rotation."""
    config = settings(steps=1, eval_every=0, pictures=0)
    train(config)
    splats = read_splats(Path(config.out) / "model.ply")
    splats.means[3, 1], splats.means[7, 2] = -2048.5, 1e5
    path = tmp_path / "floaters.ply"
    write_splats(path, splats)
    return path, splats


def test_splats_that_spz_does_not_reach_are_refused_or_left_out_and_counted(floaters, tmp_path, capsys):
    path, splats = floaters
    out = str(tmp_path / "new" / "deep" / "scene.spz")
    with pytest.raises(DataError, match=r"2 of 400 splats lie too far out, one at 100000 .*2048.*--drop-bad"):
        export(SplatExportConfig(model=str(path), out=out))
    assert not Path(out).parent.exists(), "what is refused leaves no folder behind"
    assert run(["splat", "export", str(path), "--out", out, "--drop-bad", "--json"]) == 0
    said = capsys.readouterr()
    assert "2 of 400 splats, which lie farther out than the file reaches, are left out" in " ".join(said.err.split())
    assert json.loads(said.out)["files"] == [out]
    kept = np.delete(splats.means, [3, 7], axis=0)
    assert np.abs(read_splats(out).means - kept).max() <= 1 / 8192
    written, warnings = told_of(export, SplatExportConfig(model=str(path), out=str(tmp_path / "m.ply"), drop_bad=True))
    assert len(read_splats(written)) == 400 and not warnings, "a PLY file holds them all"


@pytest.mark.parametrize("ending", FORMATS)
def test_a_file_is_exported_into_a_folder_that_is_not_there_yet(floaters, tmp_path, ending):
    out = tmp_path / "new" / "deep" / f"scene{ending}"
    assert export(SplatExportConfig(model=str(floaters[0]), out=str(out), drop_bad=True)) == out
    assert [path.name for path in out.parent.iterdir()] == [out.name] and len(read_splats(out)) >= 398


@pytest.mark.parametrize("below", ["a.ply", "deep/a.ply"])
def test_an_export_below_a_file_is_refused_by_its_name(floaters, tmp_path, below):
    (tmp_path / "file").write_text("in the way")
    out = str(tmp_path / "file" / below)
    want = rf"cannot write {re.escape(repr(out))}: its folder cannot be made: Not a directory. Choose another place"
    with pytest.raises(StorageError, match=want):
        export(SplatExportConfig(model=str(floaters[0]), out=out))
    assert (tmp_path / "file").read_text() == "in the way"


def test_bad_splats_that_are_left_out_are_counted_once(floaters, tmp_path):
    path, _ = floaters
    raw = bytearray(path.read_bytes())
    raw[-16:] = bytes(16)  # the last splat's rotation
    path.write_bytes(raw)
    config = SplatExportConfig(model=str(path), out=str(tmp_path / "m.spz"), drop_bad=True)
    written, warnings = told_of(export, config)
    assert len(read_splats(written)) == 397
    assert warnings == [
        "1 of 400 splats, which cannot be drawn, are left out",
        "2 of 400 splats, which lie farther out than the file reaches, are left out",
    ]
