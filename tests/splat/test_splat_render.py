"""Pictures and videos of trained splats as files: whole or absent, and of the kind that their name asks for."""

from __future__ import annotations

import pytest

from hotlap.base.errors import ConfigError
from hotlap.splat import render as module
from hotlap.splat.config import SplatRenderConfig, config_with
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


@pytest.mark.parametrize("name", ["flight.avi", "flight.WEBM", "view.png", "view.jpg"])
def test_a_name_of_another_kind_of_file_is_refused_before_anything_is_drawn(trained, tmp_path, monkeypatch, name):
    monkeypatch.setattr(module, "_frames", None)
    with pytest.raises(ConfigError, match=rf"out = '.*{name}' is no kind of file that is written.*\.mp4 or \.gif"):
        render(orbit(trained, tmp_path / name))
    assert not any(tmp_path.iterdir())


def test_a_folder_may_have_any_name_if_it_is_there(trained, tmp_path):
    (tmp_path / "flight.png").mkdir()
    assert render(orbit(trained, tmp_path / "flight.png"))[0] == tmp_path / "flight.png" / "orbit_0000.png"
