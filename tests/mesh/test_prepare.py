"""A folder of meshes or of rendered ShapeNet becomes views, cameras and points that agree with one another."""

from __future__ import annotations

import itertools
import pickle
import re
import shutil

import numpy as np
import pytest
import torch
from solids import box, sphere

from hotlap.base.errors import ConfigError, DataError
from hotlap.data.mesh_file import Mesh, write_mesh
from hotlap.mesh.cameras import Cameras, project_points
from hotlap.mesh.config import ViewsConfig
from hotlap.mesh.dataset import ViewedObjects, collate_views, prepared_files, split_files, with_variants
from hotlap.mesh.prepare import prepare_views
from hotlap.mesh.sources import find_sources, read_camera_rows, read_ground_truth
from hotlap.mesh.viewed_object import read_object
from hotlap.workload import BadSample

Image = pytest.importorskip("PIL.Image", reason="views are kept as pictures")


def fill(folder, num=5):
    """Boxes of several shapes, one folder each."""
    for number in range(num):
        (folder / f"box_{number}").mkdir(parents=True)
        write_mesh(folder / f"box_{number}" / "model.obj", box((1 + number, 2.0, 3.0)))
    return folder


def settings(folder, **changes):
    given = {"views": 4, "points": 200, "supersample": 1, "workers": 1, "sheet": 0, **changes}
    return ViewsConfig(folder=folder, out=folder.parent / "prepared", **given)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    folder = fill(tmp_path_factory.mktemp("meshes") / "boxes")
    prepare_views(settings(folder))
    return folder.parent / "prepared"


def share_on_object(sample):
    """How many of the points fall on pixels that are not white, in each view of a sample."""
    cameras = Cameras.from_rows(sample["cameras"])
    world = cameras[:1].to_world(sample["points"][None])
    at = project_points(cameras.to_camera(world)).round().long()
    shown = (sample["image"].float().mean(1) < 250).float()
    shown = torch.nn.functional.max_pool2d(shown, 3, stride=1, padding=1).bool()  # the border's pixels, half covered
    return torch.stack([view[p[:, 1], p[:, 0]].float().mean() for view, p in zip(shown, at, strict=True)])


@pytest.mark.parametrize("train", [True, False])
@pytest.mark.parametrize("augment", [True, False])
def test_points_fall_on_the_object_in_every_view(prepared, train, augment):
    data = ViewedObjects(prepared_files(prepared), views=3, points=150, train=train, augment=augment)
    torch.manual_seed(0)
    for sample in [data[1], data[4], data[4], data[4]]:
        assert sample["image"].shape == (3, 3, 224, 224) and sample["image"].dtype == torch.uint8
        assert share_on_object(sample).min() == 1.0
        assert (sample["points"][:, 2] < -0.4).all(), "in the frame of the first camera, in front of it"
        torch.testing.assert_close(sample["normals"].norm(dim=1), torch.ones(150), atol=2e-3, rtol=0)


def test_normals_are_those_of_the_points(prepared):
    thing = read_object(prepared_files(prepared)[0])
    outwards = (thing.points * thing.normals).sum(1)
    assert (outwards > 0).all(), "of a box around the origin"


def test_mirroring_happens_and_keeps_views_and_points_together(prepared):
    data = ViewedObjects(prepared_files(prepared), views=2, points=50, train=True, augment=True)
    azimuths = read_object(data.files[2]).cameras[:, 0]
    mirrored = 0
    for seed in range(8):
        torch.manual_seed(seed)
        sample = data[2]
        mirrored += not torch.isin(sample["cameras"][:, 0], azimuths).all()
        assert share_on_object(sample).min() == 1.0
    assert 0 < mirrored < 8


def test_judging_is_the_same_every_time_and_spreads_its_views(prepared):
    data = ViewedObjects(prepared_files(prepared), views=3, points=50, train=False)
    first, again = data[0], data[0]
    assert all(torch.equal(first[name], again[name]) for name in first)
    azimuth = first["cameras"][:, 0]
    assert azimuth.diff().min() > 0 and azimuth.diff().sum() > 90
    picked = ViewedObjects(data.files, views=2, points=50, train=False, chosen=(0, 3))[0]
    assert torch.equal(picked["cameras"], read_object(data.files[0]).cameras[[0, 3]])


def test_training_draws_views_and_points_anew(prepared):
    data = ViewedObjects(prepared_files(prepared), views=3, points=50, train=True)
    torch.manual_seed(1)
    first, second = data[0], data[0]
    assert not torch.equal(first["cameras"], second["cameras"]) and not torch.equal(first["points"], second["points"])
    torch.manual_seed(1)
    assert torch.equal(data[0]["image"], first["image"])


def test_what_is_preloaded_needs_its_file_no_more(prepared, tmp_path):
    shutil.copytree(prepared, tmp_path / "copy")
    data = ViewedObjects(prepared_files(tmp_path / "copy"), views=2, points=50, train=False)
    before = data[3]
    data.preload(threads=2)
    shutil.rmtree(tmp_path / "copy")
    assert torch.equal(data[3]["image"], before["image"]) and len(data[0]["points"]) == 50


def test_batches_are_filled_up_to_the_longest(prepared):
    data = ViewedObjects(prepared_files(prepared), views=2, points=50, train=False)
    short = {**data[1], "points": data[1]["points"][:20], "normals": data[1]["normals"][:20]}
    batch = collate_views([data[0], {**short, "num_points": torch.tensor(20)}])
    assert batch["points"].shape == (2, 50, 3) and batch["num_points"].tolist() == [50, 20]
    assert torch.equal(batch["points"][1, :20], short["points"]) and (batch["points"][1, 20:] == 0).all()


def test_every_nth_object_is_held_out(prepared):
    train, held_out = split_files(prepared_files(prepared), 3)
    assert [file.stem for file in held_out] == ["box_0", "box_3"]
    assert [file.stem for file in train] == ["box_1", "box_2", "box_4"]
    with pytest.raises(DataError, match="hold_out = 1 leaves none of 5 objects"):
        split_files(prepared_files(prepared), 1)


def test_what_is_there_is_kept_and_what_changed_is_made_again(tmp_path):
    folder = fill(tmp_path / "boxes", 3)
    first = prepare_views(settings(folder, sheet=2))
    assert (first.num_made, first.names) == (3, ("box_0", "box_1", "box_2"))
    assert Image.open(first.folder / "sheet.png").size == (4 * 224, 2 * 224), "each of the four views once"
    files = prepared_files(first.folder)
    before = [file.read_bytes() for file in files]
    (folder / "box_1" / "model.obj").write_bytes((folder / "box_2" / "model.obj").read_bytes())
    files[2].write_bytes(b"cut short")
    assert prepare_views(settings(folder)).num_made == 2
    after = [file.read_bytes() for file in files]
    assert [old == new for old, new in zip(before, after, strict=True)] == [True, False, True]
    assert prepare_views(settings(folder)).num_made == 0
    assert prepare_views(settings(folder, seed=1)).num_made == 3


def test_a_run_that_is_stopped_leaves_whole_files_and_is_completed_later(tmp_path):
    folder = fill(tmp_path / "boxes", 6)

    def stop_early(event):
        if event.kind == "advance":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepare_views(settings(folder), stop_early)
    made = sorted((tmp_path / "prepared").glob("*.npz"))
    assert 1 <= len(made) < 6 and not (tmp_path / "prepared" / "index.json").exists()
    assert all(len(read_object(file).points) == 200 for file in made)
    assert prepare_views(settings(folder)).num_made == 6 - len(made)


def test_objects_that_cannot_be_used_are_left_out_by_name(tmp_path):
    folder = fill(tmp_path / "boxes", 2)
    (folder / "bad.obj").write_text("v 0 0 nan\nv 1 0 0\nv 0 1 0\nf 1 2 3\n")
    heard = []
    found = prepare_views(settings(folder), lambda event: heard.append(event.text))
    assert found.names == ("box_0", "box_1")
    assert "vertex 0 is" in found.failed["bad"] and any("bad is left out" in text for text in heard)
    assert "left out: bad" in "\n".join(found.lines())
    shutil.rmtree(folder / "box_0")
    shutil.rmtree(folder / "box_1")
    with pytest.raises(DataError, match=r"none of the 1 objects.*bad"):
        prepare_views(settings(folder))


def test_variants_are_other_shapes_and_only_trained_on(tmp_path):
    folder = fill(tmp_path / "boxes", 3)
    assert prepare_views(settings(folder, variants=2)).num_made == 3
    assert prepare_views(settings(folder, variants=2)).num_made == 0
    files = prepared_files(tmp_path / "prepared")
    train, held_out = split_files(files, 3)
    assert [file.name for file in held_out] == ["box_0.npz"]
    chosen = with_variants(train)
    assert [file.name for file in chosen[:4]] == ["box_1.npz", "box_1~1.npz", "box_1~2.npz", "box_2.npz"]
    extents = [read_object(file).points.abs().amax(0) for file in chosen[:3]]
    assert all((one / other - 1).abs().max() > 0.05 for one, other in itertools.combinations(extents, 2))
    data = ViewedObjects(chosen, views=2, points=50, train=True)
    assert share_on_object(data[1]).min() == 1.0
    (tmp_path / "prepared" / "box_2~2.npz").unlink()
    assert prepare_views(settings(folder, variants=2)).num_made == 1
    shapenet(tmp_path / "shapenet")
    with pytest.raises(ConfigError, match="variants = 1 of rendered pictures"):
        prepare_views(settings(tmp_path / "shapenet", variants=1))


def test_faults_are_told(tmp_path):
    shape = box()
    odd = Mesh(vertices=shape.vertices, faces=np.vstack([shape.faces, [[0, 0, 1]], shape.faces[:1]]))
    (tmp_path / "odd").mkdir()
    write_mesh(tmp_path / "odd" / "odd.ply", odd)
    heard = []
    prepare_views(settings(tmp_path / "odd"), lambda event: heard.append(event.text))
    assert "odd: 1 face without an area, left out" in heard
    assert any(text.startswith("odd: ") and "not a manifold" in text for text in heard)


def test_z_may_be_up(tmp_path):
    (tmp_path / "tall").mkdir()
    write_mesh(tmp_path / "tall" / "tall.glb", box((1.0, 2.0, 6.0)))
    prepare_views(settings(tmp_path / "tall", up="z"))
    extent = read_object(tmp_path / "prepared" / "tall.npz").points.abs().amax(0)
    assert extent.argmax() == 1 and extent[0] < extent[2] < extent[1]


def test_names_and_categories(tmp_path):
    for name in ("chairs/a/model.obj", "chairs/b.ply", "chairs/c.ply", "lone.glb", "odd~1.obj", ".hidden/x.obj"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        write_mesh(tmp_path / name, sphere(rings=3))
    found = {source.name: source.category for source in find_sources(tmp_path)}
    assert found == {"chairs-a": "chairs", "chairs-b": "chairs", "chairs-c": "chairs", "lone": "", "odd-1": ""}
    write_mesh(tmp_path / "chairs-b.obj", sphere(rings=3))
    with pytest.raises(DataError, match="would both be named 'chairs-b'"):
        find_sources(tmp_path)


def shapenet(folder, num_views=3, num_points=40):
    """One chair in the layout of 3D-R2N2 with the ground truth of Pixel2Mesh, and its points in the world."""
    rendering = folder / "ShapeNetRendering" / "03001627" / "abc" / "rendering"
    rendering.mkdir(parents=True)
    rows = [[40.0 * n, 20.0, 0.0, 0.8, 25.0] for n in range(num_views)]
    (rendering / "rendering_metadata.txt").write_text("\n".join(" ".join(map(str, row)) for row in rows))
    for number in range(num_views):
        Image.new("RGBA", (137, 137), (0, 0, 0, 0)).save(rendering / f"{number:02d}.png")
    world = torch.randn(num_points, 3, generator=torch.Generator().manual_seed(0)) * 0.1
    camera = Cameras.from_rows(torch.tensor(rows[0]))
    normals = torch.nn.functional.normalize(world, dim=1)
    values = torch.cat([camera.to_camera(world), normals @ camera.camera_from_world.T], 1).numpy()
    (folder / "data").mkdir()
    (folder / "data" / "03001627_abc_00.dat").write_bytes(pickle.dumps((None, values), 2))
    return world, normals


def test_rendered_shapenet_with_its_ground_truth(tmp_path):
    world, normals = shapenet(tmp_path / "shapenet")
    prepare_views(settings(tmp_path / "shapenet"))
    (file,) = prepared_files(tmp_path / "prepared")
    thing = read_object(file)
    assert (thing.name, thing.category, len(thing.pictures)) == ("03001627_abc", "chair", 3)
    torch.testing.assert_close(thing.points, world, atol=1e-6, rtol=0)
    torch.testing.assert_close(thing.normals, normals, atol=1e-3, rtol=0)
    sample = ViewedObjects([file], views=3, points=99, train=False)[0]
    assert (sample["image"] == 255).all() and sample["num_points"] == 40
    with pytest.raises(BadSample, match="3 views, and views = 4 are asked"):
        ViewedObjects([file], views=4, points=9, train=True)[0]


def test_shapenet_without_ground_truth_or_pictures(tmp_path):
    shapenet(tmp_path / "shapenet")
    (picture,) = (tmp_path / "shapenet").rglob("02.png")
    picture.unlink()
    with pytest.raises(DataError, match=r"has 2 pictures\. Expected 3"):
        prepare_views(settings(tmp_path / "shapenet"))
    (truth,) = (tmp_path / "shapenet").rglob("*.dat")
    truth.rename(truth.with_name("another.dat"))
    with pytest.raises(DataError, match=r"03001627_abc: .*no ground truth.*03001627_abc_00\.dat"):
        prepare_views(settings(tmp_path / "shapenet"))
    truth.with_name("another.dat").unlink()
    with pytest.raises(DataError, match=r"shapenet' has renderings but no ground truth.*_00\.dat"):
        find_sources(tmp_path / "shapenet")


@pytest.mark.parametrize(("damaged", "words"), [("*.dat", "no ground truth"), ("01.png", r"01\.png' cannot be read")])
def test_a_damaged_object_of_shapenet_is_left_out_and_the_others_made(tmp_path, damaged, words):
    for name in ("good", "bad"):
        shapenet(tmp_path / "shapenet" / name)
    moved = tmp_path / "shapenet" / "bad" / "ShapeNetRendering" / "03001627"
    (moved / "abc").rename(moved / "def")
    (truth,) = (tmp_path / "shapenet" / "bad").rglob("*.dat")
    truth = truth.rename(truth.with_name("03001627_def_00.dat"))
    file = truth if damaged == "*.dat" else moved / "def" / "rendering" / damaged
    file.unlink()
    if damaged != "*.dat":
        file.write_bytes(b"no picture")
    done = prepare_views(settings(tmp_path / "shapenet", sheet=2))
    assert done.names == ("03001627_abc",) and re.search(words, done.failed["03001627_def"])
    assert not list((tmp_path / "prepared").glob("*def*")) and (tmp_path / "prepared" / "sheet.png").is_file()


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (np.zeros((0, 6)), "has 0 points"),
        (np.zeros((4, 3)), r"shape \(4, 3\)"),
        (np.full((2, 6), np.nan), "holds NaN"),
        ("text", r"shape \(0, 0\)"),
    ],
)
def test_useless_ground_truth_is_refused(tmp_path, value, words):
    (tmp_path / "x.dat").write_bytes(pickle.dumps(value))
    with pytest.raises(DataError, match=rf"x\.dat.*{words}"):
        read_ground_truth(tmp_path / "x.dat")


def test_camera_files(tmp_path):
    file = tmp_path / "cameras.txt"
    file.write_text("# azimuth elevation distance\n10, 20, 0.8\n\n30 40 0 0.9 25\n")
    assert torch.equal(read_camera_rows(file)[:, [0, 1, 3]], torch.tensor([[10, 20, 0.8], [30, 40, 0.9]]))
    file.write_text("10 x 3\n")
    with pytest.raises(DataError, match=r"line 1 of .*'10 x 3'"):
        read_camera_rows(file)
    with pytest.raises(DataError, match=r"cameras = .*gone\.txt.* does not exist"):
        read_camera_rows(tmp_path / "gone.txt")
    with pytest.raises(DataError, match=r"cameras = .* is no file"):
        read_camera_rows(tmp_path)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"views": 0}, "views = 0"),
        ({"workers": 0}, "workers = 0"),
        ({"min_elevation": 50.0, "max_elevation": 10.0}, "min_elevation = 50 and max_elevation = 10"),
        ({"min_distance": 0.1}, "min_distance = 0.1"),
    ],
)
def test_senseless_settings(tmp_path, changes, words):
    with pytest.raises(ConfigError, match=words):
        settings(tmp_path, **changes)


def test_folders_that_are_not_what_is_wanted(tmp_path):
    with pytest.raises(DataError, match=r"gone' does not exist"):
        find_sources(tmp_path / "gone")
    with pytest.raises(DataError, match="holds no objects"):
        find_sources(tmp_path)
    with pytest.raises(DataError, match=r"is not a prepared folder.*hotlap mesh views"):
        prepared_files(tmp_path)
    (tmp_path / "index.json").write_text('{"version": 99, "objects": []}')
    with pytest.raises(DataError, match="prepared as version 99"):
        prepared_files(tmp_path)
    (tmp_path / "index.json").write_text("{")
    with pytest.raises(DataError, match=r"index\.json' cannot be read"):
        prepared_files(tmp_path)


def test_a_damaged_object_is_a_bad_sample(tmp_path):
    (tmp_path / "a.npz").write_bytes(b"nothing")
    with pytest.raises(BadSample, match=r"a\.npz"):
        ViewedObjects([tmp_path / "a.npz"], views=1, points=1, train=True)[0]
