"""Prediction and evaluation from end to end, with a small network whose weights are fresh: near its template."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
import torch
from solids import box

from hotlap.base import events
from hotlap.base.errors import ConfigError, DataError, UsageError
from hotlap.data.mesh_file import read_mesh, write_mesh
from hotlap.data.white_picture import encode_png
from hotlap.mesh.cameras import Cameras, make_rows
from hotlap.mesh.config import MeshEvalConfig, MeshPredictConfig, ViewsConfig
from hotlap.mesh.evaluate import eval_mesh
from hotlap.mesh.network import open_workload, template_of
from hotlap.mesh.predict import predict_mesh
from hotlap.mesh.prepare import prepare_views
from hotlap.mesh.render import render_views

Image = pytest.importorskip("PIL.Image", reason="pictures are read and written")

TINY = {"hidden": 8, "levels": 1}


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    """A file with fresh weights of the coarse stage."""
    torch.manual_seed(0)
    file = tmp_path_factory.mktemp("weights") / "coarse.pt"
    torch.save(open_workload("pixel2mesh-pp", "coarse", TINY).build_model().state_dict(), file)
    return file


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """Two views of a box, and their cameras."""
    folder = tmp_path_factory.mktemp("pictures")
    rows = make_rows(torch.tensor([30.0, 150.0]), torch.tensor([20.0, 30.0]), torch.tensor(0.8))
    for number, image in enumerate(render_views(box(), Cameras.from_rows(rows), supersample=1).image):
        (folder / f"{number}.png").write_bytes(encode_png(image))
    (folder / "cameras.txt").write_text("30 20 0.8\n150 30 0.8\n")
    return folder


def settings(pictures, file, out, **changes):
    given = {"stage": "coarse", "workload": TINY, "turntable": 0, "device": "cpu", **changes}
    given = {"images": (pictures,), "cameras": pictures / "cameras.txt", "weights": file, **given}
    return MeshPredictConfig(out=out, **given)


def test_a_mesh_is_written_in_every_format_with_a_turntable(pictures, weights, tmp_path):
    found = predict_mesh(settings(pictures, weights, tmp_path / "out", turntable=3))
    names = {"mesh.obj", "mesh.ply", "mesh.glb", "turntable.png", "turntable.gif"}
    assert {file.name for file in (tmp_path / "out").iterdir()} == names and len(found.files) == 5
    for name in ("mesh.obj", "mesh.ply", "mesh.glb"):
        mesh = read_mesh(tmp_path / "out" / name)
        assert (len(mesh.vertices), len(mesh.faces)) == (156, 308) == (found.num_vertices, found.num_faces)
    assert Image.open(tmp_path / "out" / "turntable.png").size == (3 * 224, 224)
    assert Image.open(tmp_path / "out" / "turntable.gif").n_frames == 3


def test_frames_differ_by_the_first_camera(pictures, weights, tmp_path):
    for frame in ("world", "camera"):
        predict_mesh(settings(pictures, weights, tmp_path / frame, frame=frame, formats=("ply",)))
    world, camera = (torch.from_numpy(read_mesh(tmp_path / f / "mesh.ply").vertices) for f in ("world", "camera"))
    first = Cameras.from_rows(make_rows(*(torch.tensor(v, dtype=torch.float64) for v in (30.0, 20.0, 0.8))))
    torch.testing.assert_close(first.to_camera(world), camera, atol=1e-5, rtol=0)
    assert camera[:, 2].mean() == pytest.approx(-0.8, abs=0.1), "fresh weights leave the template about where it was"


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"weights": None}, ConfigError, "no weights were given"),
        ({"cameras": None}, ConfigError, "no cameras were given.*2 rows"),
        ({"images": ()}, ConfigError, "no images were given"),
        ({"images": ("x.png",) * 9}, ConfigError, "images = 9 files"),
        ({"images": ("one.png",)}, DataError, r"cameras\.txt' has 2 rows\. Expected 1"),
        ({"formats": ("stl",)}, ConfigError, "formats = 'stl'"),
        ({"turntable": -1}, ConfigError, "turntable = -1"),
    ],
)
def test_what_is_missing_is_said(pictures, weights, tmp_path, changes, error, words):
    if "images" in changes:
        changes = {"images": tuple(Path(name) for name in changes["images"])}
    with pytest.raises(error, match=words):
        predict_mesh(settings(pictures, weights, tmp_path, **changes))


def test_a_folder_without_pictures(weights, pictures, tmp_path):
    with pytest.raises(DataError, match="holds no pictures"):
        predict_mesh(settings(pictures, weights, tmp_path, images=(tmp_path,)))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"stage": "refine"},
            r"coarse\.pt' are not those of network = 'pixel2mesh-pp', stage = 'refine'.*--stage coarse",
        ),
        ({"workload": {"hidden": 16, "levels": 1}}, r"coarse\.pt' do not fit the model.*--set workload\.NAME=VALUE"),
    ],
)
def test_weights_of_another_network_are_refused(pictures, weights, tmp_path, changes, words):
    with pytest.raises(UsageError, match=words):
        predict_mesh(settings(pictures, weights, tmp_path, **changes))


def test_weights_that_predict_no_places_are_refused_and_nothing_is_written(pictures, weights, tmp_path):
    state = torch.load(weights, weights_only=True)
    state["blocks.0.last.bias"][1] = torch.nan
    torch.save(state, tmp_path / "nan.pt")
    with pytest.raises(DataError, match=r"156 of 156 predicted vertices are NaN or infinite.*earlier checkpoint"):
        predict_mesh(settings(pictures, tmp_path / "nan.pt", tmp_path / "out"))
    assert not (tmp_path / "out").exists()


def test_the_small_network_takes_one_picture_and_needs_no_camera(pictures, tmp_path):
    pytest.importorskip("torchvision")
    options = {"network": "pixel2mesh-lite", "workload": {"subdivisions": 0}}
    torch.save(
        open_workload("pixel2mesh-lite", "refine", {"subdivisions": 0}).build_model().state_dict(), tmp_path / "w.pt"
    )
    given = {**options, "stage": "refine", "cameras": None, "formats": ("ply",)}
    told: list[events.Event] = []
    one = settings(pictures, tmp_path / "w.pt", tmp_path / "out", images=(pictures / "0.png",), **given)
    assert predict_mesh(one, told.append).num_vertices == 12
    assert "no cameras were given: the picture is taken to be level" in told[0].text
    middle = read_mesh(tmp_path / "out" / "mesh.ply").vertices.mean(0)
    assert middle == pytest.approx((0, 0, 0), abs=0.05), "in the world, not 0.8 before the camera"
    with pytest.raises(ConfigError, match=r"images = 2 files for network = 'pixel2mesh-lite'.*one"):
        predict_mesh(settings(pictures, tmp_path / "w.pt", tmp_path / "two", **given))


@pytest.mark.parametrize(
    ("changes", "num_views"),
    [({}, 3), ({"chosen": (0, 1)}, 2), ({"network": "pixel2mesh-lite"}, 1), ({"views": 1}, 1)],
)
def test_no_more_views_are_asked_of_an_object_than_the_network_sees(tmp_path, changes, num_views):
    assert MeshEvalConfig(data=tmp_path, **changes).num_views == num_views


@pytest.mark.parametrize("chosen", [(0, -1), tuple(range(9))])
def test_views_that_cannot_be_chosen(tmp_path, chosen):
    with pytest.raises(ConfigError, match=f"chosen = {','.join(map(str, chosen))}"):
        MeshEvalConfig(data=tmp_path, chosen=chosen)


def test_evaluation_writes_scores_and_pictures(weights, tmp_path):
    for number in range(5):
        (tmp_path / "boxes" / f"kind_{number % 2}").mkdir(parents=True, exist_ok=True)
        write_mesh(tmp_path / "boxes" / f"kind_{number % 2}" / f"{number}.obj", box((1 + number, 2.0, 3.0)))
    prepare_views(
        ViewsConfig(folder=tmp_path / "boxes", out=tmp_path / "data", views=2, points=100, supersample=1, sheet=0)
    )
    config = MeshEvalConfig(
        data=tmp_path / "data", weights=weights, stage="coarse", workload=TINY, views=2, hold_out=2, batch=2,
        out=tmp_path / "out", pictures=2, device="cpu",
    )  # fmt: skip
    found = eval_mesh(config)
    assert (found.num_objects, list(found.by_category)) == (3, ["kind_0", "kind_1"])
    lines = (tmp_path / "out" / "scores.csv").read_text().splitlines()
    assert "tau = 0.0001 and 2 tau, on squared distances" in lines[0]
    table = list(csv.DictReader(lines[1:]))
    assert [row["object"] for row in table[:3]] == list(found.objects)
    assert [row["object"] for row in table[3:]] == ["mean of category", "mean of category", "mean"]
    chamfer = [float(row["chamfer"]) for row in table]
    assert chamfer[5] == pytest.approx(sum(chamfer[:3]) / 3, rel=1e-4) == pytest.approx(found.mean["chamfer"], rel=1e-4)
    # The template's finest level against 100 points: fresh weights of the coarsest one are near it.
    assert found.mean["chamfer"] == pytest.approx(found.mean["template_chamfer"], rel=0.7)
    assert Image.open(tmp_path / "out" / "pictures.png").size == (4 * 224, 2 * 224)
    told = "\n".join(found.lines())
    assert "3 objects; F-scores at tau = 0.0001" in told and "kind_1" in told and "scores.csv" in told
    heard = []
    bare = MeshEvalConfig(**{**vars(config), "weights": None, "split": "train", "pictures": 0, "chosen": (1, 0)})
    assert eval_mesh(bare, lambda event: heard.append(event.text)).num_objects == 2
    assert any("no weights were given" in text for text in heard)
    for changes, words in (
        ({"views": 5}, "it has 2 views, and views = 5"),
        ({"chosen": (0, 7)}, "view 7 is asked of 2"),
    ):
        with pytest.raises(DataError, match=rf"cannot be scored: {words}.*Ask for views that it has") as caught:
            eval_mesh(MeshEvalConfig(**{**vars(config), **changes, "out": tmp_path / "nothing"}))
        assert "--on-bad-sample" not in str(caught.value), "an evaluation has no such option"
    assert not (tmp_path / "nothing").exists()


def test_the_template_of_each_network_is_its_own():
    pytest.importorskip("torchvision", reason="pixel2mesh-lite is made of it")
    lite = open_workload("pixel2mesh-lite", "refine", {"subdivisions": 1}).build_model()
    sphere = template_of(lite)
    radius = (sphere.vertices - torch.tensor([0.0, 0.0, -0.8])).norm(dim=1)
    assert len(sphere.vertices) == 42 and radius.std() < 1e-6
    whole = template_of(open_workload("pixel2mesh-pp", "coarse", TINY).build_model())
    assert whole.vertices.shape == (2466, 3)
