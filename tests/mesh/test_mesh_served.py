"""Mesh networks, served: the answer is what the network gives, in every format, and wrong cameras are named."""

from __future__ import annotations

import json

import pytest
import torch
from solids import box

from hotlap.base.errors import ConfigError, DataError
from hotlap.data.mesh_file import read_mesh
from hotlap.data.white_picture import encode_png
from hotlap.device.seed import seed_everything
from hotlap.measure.servable import ModelSpec
from hotlap.mesh.cameras import Cameras, make_rows
from hotlap.mesh.render import render_views
from hotlap.mesh.served import MeshServable
from hotlap.targets import load_target

pytest.importorskip("PIL.Image", reason="pictures are decoded")
TINY = {"hidden": 8, "levels": 1, "batch": 2}
CAMERAS = [[30.0, 20.0, 0.8], [150.0, 30.0, 0.8]]


@pytest.fixture(scope="module")
def views():
    rows = make_rows(*torch.tensor(CAMERAS).unbind(1))
    images = render_views(box(), Cameras.from_rows(rows), supersample=1).image
    return images, [(f"{n}.png", encode_png(image)) for n, image in enumerate(images)]


@pytest.fixture(scope="module")
def served():
    servable = MeshServable(ModelSpec(name="pp", target="pixel2mesh-pp", options=TINY))
    return servable, servable.load("cpu")


def ask(served, **options):
    servable, loaded = served
    decoded = servable.decode(b"", options, loaded.signature)
    return servable.finish(loaded.run(decoded.rows), decoded.facts, options)


def test_the_mesh_is_the_networks_in_the_world(served, views):
    images, files = views
    _, loaded = served
    assert [taken.name for taken in loaded.signature.inputs] == ["image", "cameras"]
    assert loaded.signature.inputs[0].shape == (-1, 3, 224, 224) and loaded.signature.outputs[0].shape == (156, 3)
    answer = ask(served, pictures=files, cameras=CAMERAS)
    workload = load_target("pixel2mesh-pp", TINY)
    seed_everything(0)
    model = workload.build_model().eval()
    rows = make_rows(*torch.tensor(CAMERAS).unbind(1))
    with torch.no_grad():
        want = workload.predict(model, {"image": images.permute(0, 3, 1, 2)[None], "cameras": rows[None]})[0]
    in_world = Cameras.from_rows(rows[0]).to_world(want)
    torch.testing.assert_close(torch.tensor(answer["vertices"]), in_world, rtol=1e-4, atol=1e-5)
    assert answer["faces"] == workload.faces(model).tolist()
    assert json.dumps(answer)


@pytest.mark.parametrize("kind", ["obj", "glb", "ply"])
def test_files_of_the_mesh_are_read_back(served, views, kind, tmp_path):
    made = ask(served, pictures=views[1], cameras=CAMERAS, format=kind)
    (tmp_path / made.name).write_bytes(made.content)
    mesh = read_mesh(tmp_path / made.name)
    assert (len(mesh.vertices), len(mesh.faces)) == (156, 308)


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({}, DataError, "cameras are missing"),
        ({"cameras": [[1, 2, 3]]}, DataError, "cameras has 1 rows"),
        ({"cameras": "all"}, DataError, "cameras = 'all'"),
        ({"cameras": [[1, "x", 3]] * 2}, DataError, "cameras = "),
        ({"cameras": [[1, 2, -3]] * 2}, DataError, "distance = -3"),
        ({"cameras": CAMERAS, "format": "stl"}, ConfigError, "format = 'stl'"),
    ],
)
def test_wrong_requests_are_told(served, views, options, error, words):
    with pytest.raises(error, match=words):
        ask(served, pictures=views[1], **options)


def test_bad_pictures_are_named(served, views):
    with pytest.raises(DataError, match=r"'bad\.png' cannot be read"):
        ask(served, pictures=[("bad.png", b"nothing")], cameras=CAMERAS[:1])
    with pytest.raises(DataError, match="9 pictures for model 'pp'"):
        ask(served, pictures=views[1][:1] * 9, cameras=CAMERAS[:1] * 9)


def test_the_small_network_takes_one_picture(views):
    pytest.importorskip("torchvision")
    servable = MeshServable(ModelSpec(name="lite", target="pixel2mesh-lite", options={"subdivisions": 1, "batch": 1}))
    loaded = servable.load("cpu")
    assert loaded.signature.inputs[0].shape == (3, 224, 224)
    decoded = servable.decode(views[1][0][1], {}, loaded.signature)
    answer = servable.finish(loaded.run(decoded.rows), decoded.facts, {})
    assert (len(answer["vertices"]), len(answer["faces"])) == (42, 80)
