"""A scene, served: the picture is what the scene shows from the camera, and wrong cameras are named."""

from __future__ import annotations

import io
import json

import numpy as np
import pytest
import torch

from hotlap.base.errors import ConfigError, DataError, UsageError
from hotlap.data.splats import Splats, write_splats
from hotlap.measure.servable import ModelSpec
from hotlap.splat.opened import open_splats
from hotlap.splat.served import SplatServable

Image = pytest.importorskip("PIL.Image", reason="pictures are encoded")
CAMERA = {
    "width": 24, "height": 16, "fx": 20.0, "fy": 20.0,
    "camera_from_world": [[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 4], [0, 0, 0, 1]],
}  # fmt: skip


@pytest.fixture(scope="module")
def scene(tmp_path_factory):
    draw = np.random.default_rng(0)
    file = tmp_path_factory.mktemp("scene") / "scene.ply"
    splats = Splats(
        means=draw.normal(0, 0.5, (40, 3)).astype(np.float32),
        log_scales=np.full((40, 3), -1.5, np.float32),
        quats=np.tile(np.float32([1, 0, 0, 0]), (40, 1)),
        logit_opacities=np.full(40, 2.0, np.float32),
        sh0=draw.normal(0, 1, (40, 3)).astype(np.float32),
        shN=np.zeros((40, 0, 3), np.float32),
    )
    write_splats(file, splats)
    return file


def test_the_picture_is_what_the_scene_shows(scene, device):
    servable = SplatServable(ModelSpec(name="scene", target="splat", weights=str(scene)))
    loaded = servable.load(str(device))
    assert servable.answers(loaded.signature) == "picture"
    decoded = servable.decode(json.dumps(CAMERA).encode(), {}, loaded.signature)
    twice = [decoded.rows, decoded.rows]
    out = loaded.begin(twice)()
    assert out[0].shape == (2, 16, 24, 3) and out[0].device.type == "cpu"
    made = servable.finish(tuple(t[:1] for t in out), decoded.facts, {})
    picture = np.asarray(Image.open(io.BytesIO(made.content)))
    model = open_splats(str(scene)).model(device)
    intrinsics = torch.tensor([[20.0, 0, 12], [0, 20, 8], [0, 0, 1]], device=device)
    want = model.draw(torch.tensor(CAMERA["camera_from_world"], device=device).float(), intrinsics, 16, 24)
    np.testing.assert_array_equal(picture, (want.clamp(0, 1) * 255).round().byte().cpu().numpy())
    assert picture.std() > 10, "there is something to see"


@pytest.mark.parametrize(
    ("camera", "words"),
    [
        ("{", "the camera is not JSON"),
        ("[]", "the camera is malformed"),
        (json.dumps({**CAMERA, "width": 0}), "camera size = 0x16"),
        (json.dumps({**CAMERA, "fx": -1}), "camera fx = -1"),
        (json.dumps({**CAMERA, "width": 100_000}), "100000x16"),
        (json.dumps({**CAMERA, "width": 1e400}), "the camera is malformed"),
        (json.dumps({**CAMERA, "camera_from_world": [[1]]}), "the camera is malformed"),
        (json.dumps({**CAMERA, "camera_from_world": [[1e200] * 4] * 4}), "numbers beyond those of 32 bits"),
        (json.dumps({**CAMERA, "fx": 1e200}), "numbers beyond those of 32 bits"),
    ],
)
def test_wrong_cameras_are_named(scene, camera, words, monkeypatch):
    monkeypatch.setattr("hotlap.splat.served.MOST_PIXELS", 1_000_000)
    servable = SplatServable(ModelSpec(name="scene", target="splat", weights=str(scene)))
    with pytest.raises(DataError, match=words):
        servable.decode(camera.encode(), {}, None)


def test_a_scene_is_needed_and_a_canvas_may_not_be_endless(scene):
    with pytest.raises(ConfigError, match="model 'scene' has no scene"):
        SplatServable(ModelSpec(name="scene", target="splat"))
    loaded = SplatServable(ModelSpec(name="scene", target="splat", weights=str(scene))).load("cpu")
    with pytest.raises(UsageError, match="a picture of 9000x9000 pixels"):
        loaded.begin([(torch.eye(4)[None], torch.eye(3)[None], torch.zeros(1, 9000, 9000, 0, dtype=torch.uint8))])
