"""Pictures and videos of trained splats as files: whole or absent, and of the kind that their name asks for."""

from __future__ import annotations

import json
from dataclasses import replace
from shutil import copytree

import pytest

from hotlap.base.errors import ConfigError, DataError, RecordError, StorageError
from hotlap.splat import render as module
from hotlap.splat.config import SplatEvalConfig, SplatRenderConfig, config_with
from hotlap.splat.evaluate import evaluate
from hotlap.splat.judge import Model
from hotlap.splat.render import render
from hotlap.splat.train import train


@pytest.fixture(scope="module")
def trained(scene_folder, tmp_path_factory):
    """The folder of a short training."""
    out = tmp_path_factory.mktemp("trained") / "run"
    train(config_with(scene=str(scene_folder), out=str(out), device="cpu", steps=2, sh_degree=0, strategy="none"))
    return out


def orbit(trained, out) -> SplatRenderConfig:
    return SplatRenderConfig(model=str(trained), path="orbit", frames=3, out=str(out), device="cpu")


@pytest.mark.parametrize("name", ["flight.gif", "flight.mp4"])
def test_a_film_that_is_ended_halfway_leaves_the_older_one(trained, tmp_path, monkeypatch, name):
    if name.endswith(".mp4"):
        pytest.importorskip("imageio_ffmpeg")
    assert render(orbit(trained, tmp_path / name)) == [tmp_path / name]
    before = (tmp_path / name).read_bytes()
    draw, drawn = Model.draw, []

    def interrupted(*args, **settings):
        if len(drawn) == 2:
            raise KeyboardInterrupt
        drawn.append(draw(*args, **settings))
        return drawn[-1]

    monkeypatch.setattr(Model, "draw", interrupted)
    with pytest.raises(KeyboardInterrupt):
        render(orbit(trained, tmp_path / name))
    assert len(drawn) == 2
    assert [path.name for path in tmp_path.iterdir()] == [name]  # nothing half-written lies beside it
    assert (tmp_path / name).read_bytes() == before


@pytest.mark.parametrize("reads", ["", "cat > /dev/null; "], ids=["at once", "after the last frame"])
def test_a_video_that_ffmpeg_cannot_finish_is_an_error_with_its_words(trained, tmp_path, monkeypatch, reads):
    pytest.importorskip("imageio_ffmpeg")
    program, out = tmp_path / "ffmpeg", tmp_path / "flight.mp4"
    program.write_text(f"#!/bin/sh\n{reads}echo 'No space left on device' >&2\nexit 3\n")
    program.chmod(0o755)
    out.write_bytes(b"an older film")
    monkeypatch.setenv("IMAGEIO_FFMPEG_EXE", str(program))
    want = r"cannot write '.*flight\.mp4': ffmpeg ended with code 3 \(No space left on device\)\. Free some space"
    with pytest.raises(StorageError, match=want):
        render(orbit(trained, out))
    assert out.read_bytes() == b"an older film" and {path.name for path in tmp_path.iterdir()} == {"ffmpeg", out.name}


@pytest.mark.parametrize("name", ["flight.avi", "flight.WEBM", "view.png", "view.jpg"])
def test_a_name_of_another_kind_of_file_is_refused_before_anything_is_drawn(trained, tmp_path, monkeypatch, name):
    monkeypatch.setattr(module, "_frames", None)
    with pytest.raises(ConfigError, match=rf"out = '.*{name}' is no kind of file that is written.*\.mp4 or \.gif"):
        render(orbit(trained, tmp_path / name))
    assert not any(tmp_path.iterdir())


def test_a_folder_may_have_any_name_if_it_is_there(trained, tmp_path):
    (tmp_path / "flight.png").mkdir()
    assert render(orbit(trained, tmp_path / "flight.png"))[0] == tmp_path / "flight.png" / "orbit_0000.png"


def test_a_scene_that_has_moved_is_named_and_can_be_said(scene_folder, tmp_path):
    before, out = tmp_path / "before", tmp_path / "run"
    copytree(scene_folder, before)
    train(config_with(scene=str(before), out=str(out), device="cpu", steps=2, sh_degree=0, strategy="none"))
    before.rename(tmp_path / "after")
    for path in ("views", "orbit"):
        config = replace(orbit(out, tmp_path / path), path=path)
        with pytest.raises(DataError, match=r"scene '.*before' of the training in '.*run' does not exist.*--scene"):
            render(config)
        assert len(render(replace(config, scene=str(tmp_path / "after")))) in (2, 3)
    with pytest.raises(DataError, match=r"scene '.*before' of the training in '.*run' does not exist.*--scene"):
        evaluate(SplatEvalConfig(run=str(out), device="cpu"))
    with pytest.raises(ConfigError, match=r"scene = 'x' with model = '.*model\.ply'"):
        render(replace(orbit(out / "model.ply", tmp_path / "file"), scene="x"))


@pytest.mark.parametrize("written", ["no colour", [1.0, 2.0], [1, 0, "blue"], None])
def test_results_that_were_changed_by_hand_are_refused_by_name(trained, tmp_path, written):
    run = tmp_path / "run"
    copytree(trained, run)
    (run / "results.json").write_text(json.dumps({"background": written}))
    with pytest.raises(RecordError, match=r"results\.json' has background = .*Expected three numbers"):
        render(orbit(run, tmp_path / "out"))
    (run / "results.json").write_text("[]")
    with pytest.raises(RecordError, match=r"results\.json' holds a list"):
        render(orbit(run, tmp_path / "out"))
    (run / "results.json").write_text(json.dumps({"background": [1, 0, 0]}))
    assert len(render(orbit(run, tmp_path / "out"))) == 3  # whole numbers are colours, too
