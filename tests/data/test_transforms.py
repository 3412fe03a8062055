"""Scenes with a transforms.json: NeRF's synthetic ones and nerfstudio's."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from hotlap.base.errors import ConfigError, DataError
from hotlap.data.scene import load_view, read_scene

Image = pytest.importorskip("PIL.Image", reason="scenes are photographs")


def pose_at(x: float, z: float) -> list:
    """The world from a camera at (x, 0, z) that looks along the world's -z with y up, as OpenGL has it."""
    matrix = np.eye(4)
    matrix[:3, 3] = (x, 0, z)
    return matrix.tolist()


def synthetic(folder, parts=("train", "test"), each=3) -> None:
    for number, part in enumerate(parts):
        (folder / part).mkdir()
        frames = []
        for position in range(each):
            Image.new("RGBA", (20, 10), (100, 0, 0, 0)).save(folder / part / f"r_{position}.png")
            matrix = pose_at(position, 4 + number)
            frames.append({"file_path": f"./{part}/r_{position}", "rotation": 0.01, "transform_matrix": matrix})
        text = {"camera_angle_x": 0.8, "frames": frames}
        (folder / f"transforms_{part}.json").write_text(json.dumps(text))


def nerfstudio(folder, frame=None, **fields) -> None:
    (folder / "images").mkdir(exist_ok=True)
    frames = []
    for position in range(3):
        Image.new("RGB", (20, 10), (position, 0, 0)).save(folder / "images" / f"frame_{position}.png")
        frames.append({"file_path": f"images/frame_{position}.png", "transform_matrix": pose_at(position, 4)})
    frames[1] |= frame or {}
    text = {"fl_x": 30.0, "fl_y": 32.0, "cx": 19.0, "cy": 11.0, "w": 40, "h": 20, "frames": frames}
    (folder / "transforms.json").write_text(json.dumps(text | fields))


def test_a_synthetic_scene(tmp_path):
    synthetic(tmp_path)
    scene = read_scene(tmp_path)
    assert [view.name for view in scene.views] == [f"{part}/r_{n}" for part in ("test", "train") for n in range(3)]
    camera = scene.views[0].camera
    assert camera.fx == camera.fy == pytest.approx(10 / math.tan(0.4)) and (camera.cx, camera.cy) == (10, 5)
    train, held_out = scene.split()
    assert [view.name for view in train] == ["train/r_0", "train/r_1", "train/r_2"]
    assert [view.name for view in held_out] == ["test/r_0", "test/r_1", "test/r_2"]
    assert scene.random_points and scene.points.shape == (100_000, 3)
    assert 1.29 < np.abs(scene.points).max() <= 1.3


def test_our_cameras_look_along_plus_z_with_y_down(tmp_path):
    synthetic(tmp_path)
    view = read_scene(tmp_path).views[4]  # train/r_1, at (1, 0, 4), looking along the world's -z
    np.testing.assert_allclose(view.position(), [1, 0, 4], atol=1e-12)
    ahead, above = view.camera_from_world @ [1, 0, 2, 1], view.camera_from_world @ [1, 1, 4, 1]
    np.testing.assert_allclose(ahead[:3], [0, 0, 2], atol=1e-12)
    np.testing.assert_allclose(above[:3], [0, -1, 0], atol=1e-12)


@pytest.mark.parametrize(("asked", "value"), [(None, 255), (True, 255), (False, 0)])
def test_the_background_is_white_unless_black_is_asked_for(tmp_path, asked, value):
    synthetic(tmp_path)
    scene = read_scene(tmp_path, white_background=asked)
    assert scene.white_background == (value == 255)
    assert (load_view(scene.views[0]).image == value).all()


def test_val_stands_in_for_test_only_if_there_is_none(tmp_path):
    synthetic(tmp_path, ("train", "val", "test"))
    assert {view.name.split("/")[0] for view in read_scene(tmp_path).views} == {"train", "test"}
    (tmp_path / "transforms_test.json").unlink()
    _, held_out = read_scene(tmp_path).split()
    assert {view.name.split("/")[0] for view in held_out} == {"val"}


def test_one_file_may_be_named(tmp_path):
    synthetic(tmp_path)
    assert len(read_scene(tmp_path / "transforms_train.json").views) == 3


def test_another_folder_of_pictures_cannot_be_named(tmp_path):
    synthetic(tmp_path)
    with pytest.raises(ConfigError, match="images = 'images_4' is not for a scene with a transforms file"):
        read_scene(tmp_path, images="images_4")


def test_a_nerfstudio_scene(tmp_path):
    points = "ply\nformat ascii 1.0\nelement vertex 2\nproperty float x\nproperty float y\nproperty float z\n"
    points += "property uchar red\nproperty uchar green\nproperty uchar blue\nend_header\n1 2 3 4 5 6\nnan 0 0 1 1 1\n"
    (tmp_path / "cloud.ply").write_text(points)
    (tmp_path / "mask.png").write_bytes(b"")
    nerfstudio(tmp_path, {"fl_x": 50.0, "mask_path": "mask.png"}, ply_file_path="cloud.ply", camera_model="PINHOLE")
    scene = read_scene(tmp_path)
    first, second, _ = scene.views
    assert (first.camera.width, first.camera.fx, first.camera.fy) == (20, 15.0, 16.0)  # half of what the file claims
    assert (first.camera.cx, first.camera.cy) == (9.5, 5.5)
    assert second.camera.fx == 25.0 and second.mask == tmp_path / "mask.png" and first.mask is None
    np.testing.assert_array_equal(scene.points, [[1, 2, 3]])
    np.testing.assert_array_equal(scene.colors, [[4, 5, 6]])
    assert scene.num_bad_points == 1 and not scene.random_points and scene.white_background is None
    assert [view.name for view in scene.split()[1]] == ["images/frame_0.png"]


def test_point_clouds_of_other_programs(tmp_path):
    """Colours as floats from 0 to 1, or none; and a file without points."""
    nerfstudio(tmp_path)
    head = "ply\nformat ascii 1.0\nelement vertex 1\nproperty double x\nproperty double y\nproperty double z\n"
    colors = "property float red\nproperty float green\nproperty float blue\n"
    for text, want in (
        (head + colors + "end_header\n1 2 3 0 0.5 1\n", [0, 128, 255]),
        (head + "end_header\n1 2 3\n", [128, 128, 128]),
    ):
        (tmp_path / "sparse_pc.ply").write_text(text)
        scene = read_scene(tmp_path)
        assert scene.points.tolist() == [[1, 2, 3]] and scene.colors.tolist() == [want]
    (tmp_path / "sparse_pc.ply").write_text(head.replace("double z", "double w") + "end_header\n1 2 3\n")
    with pytest.raises(DataError, match=r"sparse_pc\.ply' has no points. Expected an element 'vertex' with x, y and z"):
        read_scene(tmp_path)


def test_lists_of_names_say_what_is_held_out(tmp_path):
    nerfstudio(tmp_path, train_filenames=["images/frame_0.png"], test_filenames=["./images/frame_2.png"])
    assert [view.name for view in read_scene(tmp_path).split()[1]] == ["images/frame_2.png"]


@pytest.mark.parametrize(
    ("fields", "kind", "params"),
    [
        ({"k1": 0.1, "k2": 0.2, "p1": 0.01, "p2": 0.02}, "opencv", (0.1, 0.2, 0.01, 0.02, 0, 0, 0, 0)),
        ({"camera_model": "OPENCV_FISHEYE", "k1": 0.1, "k3": 0.05}, "fisheye", (0.1, 0, 0.05, 0)),
        ({"is_fisheye": True}, "fisheye", (0, 0, 0, 0)),
    ],
)
def test_lenses(tmp_path, fields, kind, params):
    nerfstudio(tmp_path, **fields)
    view = read_scene(tmp_path).views[0]
    assert (view.lens.model, view.lens.params) == (kind, params)
    assert view.lens.camera.fx == 15.0 and view.camera.fx != 15.0


def test_no_coefficients_mean_no_lens(tmp_path):
    nerfstudio(tmp_path, camera_model="OPENCV", k1=0.0, p2=0)
    assert read_scene(tmp_path).views[0].lens is None


def test_smaller_pictures(tmp_path):
    nerfstudio(tmp_path)
    view = read_scene(tmp_path, factor=2).views[0]
    assert (view.camera.width, view.camera.fx) == (10, 7.5)
    (tmp_path / "images_2").mkdir()
    for position in range(3):
        Image.new("RGB", (10, 5), (50, 60, 70)).save(tmp_path / "images_2" / f"frame_{position}.png")
    smaller = read_scene(tmp_path, factor=2).views[0]
    assert smaller.image.parent.name == "images_2" and smaller.camera == view.camera


def test_a_scene_with_both_is_read_from_the_model_beside_images_first(tmp_path):
    """nerfstudio keeps its COLMAP model under colmap/, and poses in transforms.json: the latter are meant."""
    from hotlap.data.colmap import write_model
    from hotlap.data.colmap_model import ColmapModel

    nerfstudio(tmp_path)
    empty = ColmapModel(cameras={}, images=(), points=np.zeros((0, 3)), colors=np.zeros((0, 3), np.uint8))
    write_model(tmp_path / "colmap" / "sparse" / "0", empty)
    assert len(read_scene(tmp_path).views) == 3
    write_model(tmp_path / "sparse" / "0", empty)
    with pytest.raises(DataError, match="has no images"):
        read_scene(tmp_path)


def test_missing_pictures(tmp_path):
    nerfstudio(tmp_path)
    (tmp_path / "images" / "frame_1.png").unlink()
    with pytest.raises(DataError, match=r"1 of 3 pictures are not in .*: 'images/frame_1\.png'"):
        read_scene(tmp_path)
    scene = read_scene(tmp_path, skip_missing=True)
    assert len(scene.views) == 2 and scene.missing == ("images/frame_1.png",)
    for picture in (tmp_path / "images").iterdir():
        picture.unlink()
    with pytest.raises(DataError, match=r"3 of 3 pictures are not in .*or correct the paths in the frames"):
        read_scene(tmp_path, skip_missing=True)  # which would leave no view


MIRROR = np.diag([1.0, 1.0, -1.0, 1.0]).tolist()
STRETCH = np.diag([1.0, 2.0, 1.0, 1.0]).tolist()


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        ({"transform_matrix": MIRROR}, r"'images/frame_1\.png' has a pose that is no rotation"),
        ({"transform_matrix": STRETCH}, "it scales by 2 and 1"),
        ({"transform_matrix": [[1, 2], [3]]}, "no transform_matrix that is a matrix"),
        ({"transform_matrix": [[1, 2], [3, 4]]}, "no matrix of finite numbers"),
        ({"transform_matrix": [[float("nan")] * 4] * 4}, "no matrix of finite numbers"),
        ({"transform_matrix": np.zeros((4, 4)).tolist()}, "no rotation"),
        ({"fl_x": "wide"}, "has fl_x = 'wide'"),
        ({"fl_x": -3}, "fx = -1.5|fx = -3"),
        ({"camera_model": "EQUIRECTANGULAR"}, "camera_model = 'EQUIRECTANGULAR'"),
        ({"file_path": 7}, "frame 1 of .* has no file_path"),
        ({"file_path": "images/frame_0.png"}, r"names the view 'images/frame_0\.png' twice"),
        ({"mask_path": "no.png"}, r"no\.png' of view 'images/frame_1\.png' does not exist"),
        ({"w": 20, "h": 40}, "is 20x10 pixels"),
        ({"k1": 1e400}, "k1 = inf"),
    ],
)
def test_damaged_frames_are_named(tmp_path, frame, message):
    nerfstudio(tmp_path, frame)
    with pytest.raises(DataError, match=message):
        read_scene(tmp_path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is no JSON"),
        ("[]", "has no frames"),
        ('{"frames": []}', "has no frames"),
        ('{"frames": [3]}', "frame 0 of .* has no file_path"),
        ("[" * 100_000, "is no JSON"),
    ],
)
def test_damaged_files_are_named(tmp_path, text, message):
    (tmp_path / "transforms.json").write_text(text)
    with pytest.raises(DataError, match=message):
        read_scene(tmp_path)


def test_angles_and_clouds_that_are_none(tmp_path):
    synthetic(tmp_path, ("train",))
    path = tmp_path / "transforms_train.json"
    path.write_text(path.read_text().replace("0.8", "3.2", 1))
    with pytest.raises(DataError, match=r"'train/r_0' has camera_angle_x = 3\.2"):
        read_scene(tmp_path)
    nerfstudio(tmp_path, ply_file_path="gone.ply")
    with pytest.raises(DataError, match=r"point cloud .*gone\.ply', named as ply_file_path, does not exist"):
        read_scene(tmp_path)


def test_a_dot_in_a_name_without_ending_is_no_ending(tmp_path):
    synthetic(tmp_path, parts=("train",), each=2)
    path = tmp_path / "transforms_train.json"
    path.write_text(path.read_text().replace("/r_", "/r_0."))
    for number in range(2):
        (tmp_path / "train" / f"r_{number}.png").rename(tmp_path / "train" / f"r_0.{number}.png")
    Image.new("RGBA", (20, 10)).save(tmp_path / "train" / "r_0.png")
    assert [view.image.name for view in read_scene(tmp_path).views] == ["r_0.0.png", "r_0.1.png"]


def test_a_name_that_is_a_folder_is_a_missing_picture(tmp_path):
    nerfstudio(tmp_path, frame={"file_path": "/"})
    with pytest.raises(DataError, match=r"1 of 3 pictures are not in .*'/'"):
        read_scene(tmp_path)
