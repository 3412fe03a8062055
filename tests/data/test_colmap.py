"""COLMAP folders as scenes, sound and damaged."""

from __future__ import annotations

import json
import shutil
import struct
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hotlap.base.errors import ConfigError, DataError
from hotlap.data.colmap import pose_of, quat_of, read_model, write_colmap, write_model
from hotlap.data.colmap_model import ColmapCamera, ColmapImage, ColmapModel
from hotlap.data.drawn_scene import DrawnScene, write_drawn_scene
from hotlap.data.scene import load_view, read_scene

Image = pytest.importorskip("PIL.Image", reason="scenes are photographs")
SMALL = DrawnScene(num_views=9, width=24, height=16, num_points=30)


@pytest.fixture(scope="module")
def drawn(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("drawn")
    write_drawn_scene(folder, SMALL)
    return folder


@pytest.fixture
def folder(drawn, tmp_path) -> Path:
    """A copy of the drawn scene, to be spoiled."""
    shutil.copytree(drawn, tmp_path, dirs_exist_ok=True)
    return tmp_path


def model_of(folder: Path) -> ColmapModel:
    return read_model(folder / "sparse" / "0")


def rewrite(folder: Path, *, text: bool = False, **changes) -> None:
    """The scene's model with some parts replaced."""
    model = model_of(folder)
    parts = {name: getattr(model, name) for name in ("cameras", "images", "points", "colors")} | changes
    shutil.rmtree(folder / "sparse")
    write_model(folder / "sparse" / "0", ColmapModel(**parts), text=text)


def changed(image: ColmapImage, **fields) -> ColmapImage:
    return ColmapImage(**{name: getattr(image, name) for name in image.__dataclass_fields__} | fields)


def camera(model: int, *params: float, width=24, height=16) -> dict[int, ColmapCamera]:
    return {1: ColmapCamera(camera_id=1, model=model, width=width, height=height, params=params)}


def test_text_and_binary_say_the_same(folder):
    binary = model_of(folder)
    rewrite(folder, text=True)
    text = model_of(folder)
    assert text.cameras == binary.cameras and text.images == binary.images
    np.testing.assert_array_equal(text.points, binary.points)
    np.testing.assert_array_equal(text.colors, binary.colors)
    scene = read_scene(folder)
    assert [view.name for view in scene.views] == [f"view_{number:03d}.png" for number in range(9)]
    assert scene.points.dtype == np.float32 and scene.colors.dtype == np.uint8 and len(scene.points) == 30
    assert scene.notes() == () and scene.white_background is None


def test_binary_comes_before_text_and_zero_before_sparse(folder):
    write_model(folder / "sparse" / "0", ColmapModel(**vars(model_of(folder)) | {"images": ()}), text=True)
    write_model(folder / "sparse", ColmapModel(**vars(model_of(folder)) | {"images": ()}))
    assert len(read_scene(folder).views) == 9


def test_files_by_hand(tmp_path):
    """Observations and tracks, which our own writer never writes, are skipped; two cameras with numbers far apart."""
    sparse = tmp_path / "sparse"
    sparse.mkdir()
    cameras = struct.pack("<Q", 2) + struct.pack("<iiQQ4d", 7, 1, 24, 16, 20, 21, 12, 8)
    cameras += struct.pack("<iiQQ3d", 900, 0, 48, 32, 40, 24, 16)
    first = struct.pack("<i7di", 3, 1, 0, 0, 0, 0.5, 0, 2, 900) + b"b.png\0" + struct.pack("<Q", 2) + bytes(48)
    second = struct.pack("<i7di", 1, 0, 0, 2, 0, 0, 0, 0, 7) + b"sub/a.png\0" + struct.pack("<Q", 0)
    points = struct.pack("<Q", 2) + struct.pack("<Q3d3BdQ", 5, 1, 2, 3, 10, 20, 30, 0.5, 2) + bytes(16)
    points += struct.pack("<Q3d3BdQ", 9, -1, -2, -3, 40, 50, 60, 0.5, 0)
    (sparse / "cameras.bin").write_bytes(cameras)
    (sparse / "images.bin").write_bytes(struct.pack("<Q", 2) + first + second)
    (sparse / "points3D.bin").write_bytes(points)
    (tmp_path / "images" / "sub").mkdir(parents=True)
    Image.new("RGB", (24, 16)).save(tmp_path / "images" / "sub" / "a.png")
    Image.new("RGB", (24, 16)).save(tmp_path / "images" / "b.png")
    scene = read_scene(tmp_path)
    b, a = scene.views
    assert (a.name, b.name) == ("sub/a.png", "b.png")
    assert (b.camera.fx, b.camera.fy, b.camera.cx) == (20, 20, 12)  # of a camera twice the size of the picture
    assert (a.camera.fx, a.camera.fy) == (20, 21)
    np.testing.assert_array_equal(b.camera_from_world[:3, 3], [0.5, 0, 2])
    np.testing.assert_allclose(a.camera_from_world[:3, :3], np.diag([-1, 1, -1]), atol=1e-15)  # half a turn about y
    np.testing.assert_allclose(b.position(), [-0.5, 0, -2])
    np.testing.assert_array_equal(scene.points, [[1, 2, 3], [-1, -2, -3]])
    np.testing.assert_array_equal(scene.colors, [[10, 20, 30], [40, 50, 60]])


def test_text_with_carriage_returns_comments_and_empty_lines(folder):
    rewrite(folder, text=True)
    for path in (folder / "sparse" / "0").iterdir():
        path.write_bytes(("# Number of things: 3\n" + path.read_text()).replace("\n", "\r\n").encode())
    images = folder / "sparse" / "0" / "images.txt"
    lines = images.read_bytes().split(b"\r\n")
    lines[3] = b"1.5 2.5 -1 3.5 4.5 7"  # observations of the first image
    lines[2] = lines[2].replace(b"view_000.png", b"view 000.png")
    images.write_bytes(b"\r\n".join(lines))
    (folder / "images" / "view_000.png").rename(folder / "images" / "view 000.png")
    assert [view.name for view in read_scene(folder).views][:2] == ["view 000.png", "view_001.png"]


def test_every_eighth_view_is_held_out(folder):
    train, held_out = read_scene(folder).split()
    assert [view.name for view in held_out] == ["view_000.png", "view_008.png"] and len(train) == 7
    train, held_out = read_scene(folder).split(every=0)
    assert len(train) == 9 and held_out == ()
    with pytest.raises(ConfigError, match="every = 1 leaves no view to train on"):
        read_scene(folder).split(every=1)


@pytest.mark.parametrize("name", ["train_test_split.json", "sparse/0/test.txt"])
def test_a_file_may_say_what_is_held_out(folder, name):
    names = ["view_003.png", "view_005"]
    (folder / name).write_text(json.dumps({"train": [], "test": names}) if name[0] == "t" else "\r\n".join(names))
    train, held_out = read_scene(folder).split()
    assert [view.name for view in held_out] == ["view_003.png", "view_005.png"] and len(train) == 7
    assert len(read_scene(folder).split(every=0)[0]) == 9, "who asks for none gets none"


def test_a_damaged_split_is_named(folder):
    for text, message in (("{", "cannot be read"), ('{"test": 3}', "no list of names"), ("[]", "cannot be read")):
        (folder / "train_test_split.json").write_text(text)
        with pytest.raises(DataError, match=rf"train_test_split\.json' .*{message}"):
            read_scene(folder)


def test_a_split_that_names_no_view_or_all_of_them_is_refused(folder):
    for names, message in (
        (["other.png"], "1 names aside, which are 0 of its 9 views"),
        ([f"view_{n:03d}" for n in range(9)], "9 names aside, which are 9 of its 9 views"),
    ):
        (folder / "train_test_split.json").write_text(json.dumps({"test": names}))
        with pytest.raises(DataError, match=message):
            read_scene(folder)


def test_one_view_is_trained_on(folder):
    rewrite(folder, images=model_of(folder).images[:1])
    train, held_out = read_scene(folder).split()
    assert len(train) == 1 and held_out == ()


def test_missing_and_extra_pictures_are_named(folder):
    (folder / "images" / "view_004.png").unlink()
    with pytest.raises(DataError, match=r"1 of 9 images are not in .*images': 'view_004\.png'.*skip_missing"):
        read_scene(folder)
    (folder / "images" / "zebra.jpg").write_bytes(b"")
    scene = read_scene(folder, skip_missing=True)
    assert len(scene.views) == 8 and scene.missing == ("view_004.png",) and scene.unused == ("zebra.jpg",)
    assert scene.notes() == (
        "1 view has no picture, left out: 'view_004.png'",
        "1 picture belongs to no view: 'zebra.jpg'",
    )
    for path in (folder / "images").iterdir():
        path.unlink()
    with pytest.raises(DataError, match="9 of 9 images are not in"):
        read_scene(folder, skip_missing=True)


def test_another_ending_is_the_same_picture(folder):
    path = folder / "images" / "view_002.png"
    Image.open(path).save(path.with_suffix(".JPG"), format="JPEG")
    path.unlink()
    assert read_scene(folder).views[2].image.name == "view_002.JPG"


def test_smaller_pictures_bring_their_cameras(folder):
    full = read_scene(folder).views[1].camera
    scaled = read_scene(folder, factor=2).views[1]
    assert (scaled.camera.width, scaled.camera.height, scaled.camera.fx) == (12, 8, full.fx / 2)
    assert load_view(scaled).image.shape == (8, 12, 3)
    (folder / "images_2").mkdir()
    for path in (folder / "images").iterdir():
        Image.new("RGB", (12, 8), (1, 2, 3)).save(folder / "images_2" / path.name)
    for views in (read_scene(folder, factor=2).views, read_scene(folder, images="images_2").views):
        assert views[1].image.parent.name == "images_2" and views[1].camera == scaled.camera
        assert load_view(views[1]).image[0, 0].tolist() == [1, 2, 3]
    with pytest.raises(ConfigError, match=r"factor = 3 is not offered. Expected one of 1, 2, 4, 8"):
        read_scene(folder, factor=3)
    with pytest.raises(DataError, match="photos' does not exist"):
        read_scene(folder, images="photos")


def test_a_picture_of_another_shape_is_refused(folder):
    Image.new("RGB", (16, 24)).save(folder / "images" / "view_001.png")
    with pytest.raises(DataError, match=r"view_001\.png' is 16x24 pixels. Expected the shape of its camera, 24x16"):
        read_scene(folder)


def test_no_points_and_points_that_are_not_finite(folder):
    model = model_of(folder)
    points = model.points.copy()
    points[3, 1], points[7] = np.nan, np.inf
    rewrite(folder, points=points)
    scene = read_scene(folder)
    assert len(scene.points) == len(scene.colors) == 28 and np.isfinite(scene.points).all()
    assert scene.notes() == ("2 points with coordinates that are not finite, left out",)
    (folder / "sparse" / "0" / "points3D.bin").unlink()
    first, second = read_scene(folder), read_scene(folder)
    assert first.random_points and len(first.points) == 100_000
    assert first.notes() == ("the scene has no points: 100000 were drawn at random",)
    np.testing.assert_array_equal(first.points, second.points)


@pytest.mark.parametrize(("away", "is_told"), [(1e3, False), (6.4e6, True)])
def test_a_scene_where_float32_is_too_coarse_is_told(folder, away, is_told):
    """Cameras within 3 of each other, and a place on the earth's surface seen from its middle."""
    shift = np.array([0.0, 0.0, away])
    model = model_of(folder)
    images = [
        changed(image, shift=tuple(np.array(image.shift) - pose_of(image)[:3, :3] @ shift)) for image in model.images
    ]
    rewrite(folder, images=tuple(images), points=model.points + shift)
    notes = read_scene(folder).notes()
    assert bool(notes) == is_told
    assert not notes or ("lies 6.4e+06 from the origin" in notes[0] and "placed to 0.5," in notes[0])


def test_poses_that_are_none_are_refused(folder):
    images = model_of(folder).images
    for fields in ({"quat": (0.0, 0.0, 0.0, 0.0)}, {"shift": (0.0, float("nan"), 0.0)}, {"quat": (1.0, 1e400, 0, 0)}):
        rewrite(folder, images=(changed(images[0], **fields), *images[1:]))
        with pytest.raises(DataError, match=r"image 'view_000\.png' has no pose"):
            read_scene(folder)
    rewrite(folder, images=(changed(images[0], shift=(1e20, 0.0, 0.0)), *images[1:]))
    with pytest.raises(DataError, match=r"view 'view_000\.png' lies too far away"):
        read_scene(folder)


def test_names_must_be_unique_and_stay_in_the_folder(folder):
    images = model_of(folder).images
    rewrite(folder, images=(*images, changed(images[0], image_id=99)))
    with pytest.raises(DataError, match=r"names the view 'view_000\.png' twice"):
        read_scene(folder)
    for name in ("../secret.png", "/etc/passwd", "a/../../b.png"):
        rewrite(folder, images=(changed(images[0], name=name),))
        with pytest.raises(DataError, match=f"image 1 is named '{name}'"):
            read_scene(folder)


def test_cameras_that_are_none_are_refused(folder):
    for cameras, message in (
        ({}, "names camera 1, which the model does not have. Expected a model with cameras"),
        (camera(1, 0.0, 20, 12, 8), "fx = 0.0 is no focal length"),
        (camera(1, 20, 20, float("nan"), 8), "cx = nan is no place"),
        (camera(1, 20, 20, 12, 8, width=0), "camera 1 is 0x16 pixels"),
        (camera(1, 20, 20, 12, 8, width=10**18), "camera 1 is 1000000000000000000x16 pixels"),
        (camera(7, 20, 20, 12, 8, 0.1), "camera 1 has the model FOV"),
        (camera(2, 20, 12, 8, float("inf")), "lens parameter 0 = inf"),
        (camera(2, 20, 12, 8, -5e4), "cannot be undone"),
    ):
        rewrite(folder, cameras=cameras)
        with pytest.raises(DataError, match=message):
            read_scene(folder)


def test_a_scene_without_images_is_refused(folder):
    rewrite(folder, images=())
    with pytest.raises(DataError, match="has no images"):
        read_scene(folder)


@pytest.mark.parametrize("name", ["cameras", "images", "points3D"])
def test_binary_headers_that_lie_are_refused(folder, name):
    path = folder / "sparse" / "0" / f"{name}.bin"
    content = path.read_bytes()
    path.write_bytes(struct.pack("<Q", 10**18) + content[8:])
    with pytest.raises(DataError, match=rf"{name}\.bin' is cut short or its header is wrong: 1000000000000000000 x"):
        read_scene(folder)
    path.write_bytes(content[:-1])
    with pytest.raises(DataError, match=rf"{name}\.bin' is cut short"):
        read_scene(folder)
    path.write_bytes(content + b"!")
    with pytest.raises(DataError, match=rf"{name}\.bin' has 1 bytes after its last record"):
        read_scene(folder)
    path.write_bytes(b"")
    with pytest.raises(DataError, match=rf"{name}\.bin' is cut short"):
        read_scene(folder)


def test_other_damage_of_binary_files_is_named(folder):
    sparse = folder / "sparse" / "0"
    cameras, images = (sparse / "cameras.bin").read_bytes(), (sparse / "images.bin").read_bytes()
    (sparse / "cameras.bin").write_bytes(cameras[:12] + struct.pack("<i", 77) + cameras[16:])
    with pytest.raises(DataError, match="gives camera 1 the model 77"):
        read_scene(folder)
    (sparse / "cameras.bin").write_bytes(struct.pack("<Q", 2) + cameras[8:] * 2)
    with pytest.raises(DataError, match="two cameras with the number 1"):
        read_scene(folder)
    (sparse / "cameras.bin").write_bytes(cameras)
    (sparse / "images.bin").write_bytes(images.replace(b"view_003", b"view_\xff\xff\xff"))
    with pytest.raises(DataError, match="a name that is not UTF-8"):
        read_scene(folder)
    (sparse / "images.bin").write_bytes(images.replace(b"\0", b"x"))
    with pytest.raises(DataError, match=r"images\.bin'"):
        read_scene(folder)


@pytest.mark.parametrize(
    ("name", "old", "new", "message"),
    [
        ("cameras", "PINHOLE", "PINHOLES", "the model 'PINHOLES'"),
        ("cameras", "1 PINHOLE 24", "1 PINHOLE", r"cameras\.txt', line 2"),
        ("images", "1 view_000", "one view_000", r"images\.txt', line 2"),
        ("points3D", "1 ", "1 x ", r"points3D\.txt', line 2"),
    ],
)
def test_damaged_text_is_named_with_its_line(folder, name, old, new, message):
    rewrite(folder, text=True)
    path = folder / "sparse" / "0" / f"{name}.txt"
    head, rest = path.read_text().split("\n", 1)
    path.write_text(head + "\n" + rest.replace(old, new, 1))
    with pytest.raises(DataError, match=message):
        read_scene(folder)


@pytest.mark.parametrize("name", ["view_000.png", "my view 000.png"])
def test_text_without_the_empty_lines_is_refused(folder, name):
    """Read in pairs, every other photograph would be taken for the observations of the one before it."""
    rewrite(folder, text=True)
    path = folder / "sparse" / "0" / "images.txt"
    lines = [line for line in path.read_text().split("\n") if line]
    path.write_text("\n".join(lines).replace("view_001.png", name))
    with pytest.raises(DataError, match=r"images\.txt', line 3 cannot be read \(a photograph's second line holds"):
        read_scene(folder)


def test_text_that_is_none_is_refused(folder):
    rewrite(folder, text=True)
    (folder / "sparse" / "0" / "points3D.txt").write_bytes(b"1 2 3 \xff\xff")
    with pytest.raises(DataError, match=r"points3D\.txt' is not text: byte 6"):
        read_scene(folder)


def test_a_folder_that_is_no_scene(tmp_path):
    with pytest.raises(DataError, match=r"is no scene. Expected sparse/0.*alone go to 'hotlap splat from-photos'"):
        read_scene(tmp_path)
    with pytest.raises(DataError, match="nowhere' does not exist"):
        read_scene(tmp_path / "nowhere")
    with pytest.raises(DataError, match=r"test_colmap\.py' is no folder"):
        read_scene(Path(__file__))


def test_rotations_and_quaternions_agree():
    draw = np.random.default_rng(0)
    for quat in [*draw.normal(size=(20, 4)), np.array([0, 1, 0, 0]), np.array([0, 0, 0, -1.0])]:
        image = ColmapImage(image_id=1, quat=tuple(quat), shift=(0, 0, 0), camera_id=1, name="a")
        again = np.array(quat_of(pose_of(image)[:3, :3]))
        unit = quat / np.linalg.norm(quat)
        np.testing.assert_allclose(abs(unit @ again), 1, atol=1e-12)  # either sign is the same rotation
        np.testing.assert_allclose(np.linalg.det(pose_of(image)), 1, atol=1e-12)


def test_views_written_are_views_read(folder):
    scene = read_scene(folder)
    other = replace(scene.views[1], camera=scene.views[1].camera.scaled_to(48, 32))
    shutil.rmtree(folder / "sparse")
    write_colmap(folder, (scene.views[0], other, *scene.views[2:]), scene.points, scene.colors)
    assert len(model_of(folder).cameras) == 2
    again = read_scene(folder)
    np.testing.assert_array_equal(again.points, scene.points)
    np.testing.assert_array_equal(again.colors, scene.colors)
    for new, old in zip(again.views, scene.views, strict=True):
        assert (new.name, new.camera) == (old.name, old.camera)
        np.testing.assert_allclose(new.camera_from_world, old.camera_from_world, atol=1e-12)
    bent = replace(scene.views[0], lens=camera(2, 20, 12, 8, 0.1)[1].lens())
    with pytest.raises(DataError, match=r"view 'view_000\.png' has a lens"):
        write_colmap(folder, [bent], scene.points, scene.colors)


def test_masks_are_found_by_either_name(folder):
    (folder / "masks").mkdir()
    Image.new("L", (24, 16), 255).save(folder / "masks" / "view_000.png")
    Image.new("L", (24, 16), 0).save(folder / "masks" / "view_001.png.png")
    first, second, third, *_ = read_scene(folder).views
    assert load_view(first).mask.all() and not load_view(second).mask.any() and third.mask is None
    (folder / "images").rename(folder / "input")
    assert [view.mask is not None for view in read_scene(folder).views[:3]] == [True, True, False]


def test_masks_that_belong_to_no_view_are_told(folder):
    (folder / "masks").mkdir()
    for number in range(9):
        Image.new("L", (24, 16), 255).save(folder / "masks" / f"mask_{number}.png")
    told = "9 masks have no view's name, not used: 'mask_0.png', 'mask_1.png', 'mask_2.png', ..."
    assert read_scene(folder).notes() == (told,)
    (folder / "masks" / "mask_0.png").rename(folder / "masks" / "view_000.png")
    assert read_scene(folder).notes() == (), "masks of some views, and of pictures without a camera, are usual"


def test_masks_of_names_with_backslashes_are_found(folder):
    images = model_of(folder).images
    for part in ("images", "masks"):
        (folder / part / "left").mkdir(parents=True)
    (folder / "images" / images[0].name).rename(folder / "images" / "left" / images[0].name)
    Image.new("L", (24, 16), 0).save(folder / "masks" / "left" / f"{images[0].name}.png")
    rewrite(folder, images=(changed(images[0], name=f"left\\{images[0].name}"), *images[1:]))
    assert [view.name for view in read_scene(folder).views if view.mask] == [f"left\\{images[0].name}"]


def test_a_mask_of_another_shape_than_its_picture_is_refused(folder):
    (folder / "masks").mkdir()
    for size in ((48, 32), (12, 8)):  # larger and smaller ones are scaled
        Image.new("L", size, 255).save(folder / "masks" / "view_000.png")
        assert load_view(read_scene(folder).views[0], max_side=7).mask.shape == (5, 7)
    Image.new("L", (16, 24), 255).save(folder / "masks" / "view_000.png")
    with pytest.raises(DataError, match=r"mask '.*masks.view_000\.png' is 16x24 pixels.*its picture, 24x16"):
        load_view(read_scene(folder).views[0])


def test_a_scene_is_written_to_a_folder_named_by_text(tmp_path):
    write_drawn_scene(str(tmp_path / "new" / "scene"), SMALL)
    assert len(read_scene(str(tmp_path / "new" / "scene")).views) == 9


@pytest.mark.parametrize("text", [False, True])
def test_colmap_itself_reads_what_we_write_and_we_what_it_writes(tmp_path, text):
    pycolmap = pytest.importorskip("pycolmap", reason="pycolmap is not installed")
    write_drawn_scene(tmp_path, SMALL, text=text)
    ours = read_scene(tmp_path)
    theirs = pycolmap.Reconstruction(str(tmp_path / "sparse" / "0"))
    assert (theirs.num_cameras(), theirs.num_images(), theirs.num_points3D()) == (1, 9, 30)
    shutil.rmtree(tmp_path / "sparse")
    (tmp_path / "sparse").mkdir()
    (theirs.write_text if text else theirs.write_binary)(str(tmp_path / "sparse"))
    again = read_scene(tmp_path)
    for new, old in zip(again.views, ours.views, strict=True):
        assert (new.name, new.camera) == (old.name, old.camera)
        np.testing.assert_allclose(new.camera_from_world, old.camera_from_world, atol=1e-12)
    np.testing.assert_allclose(np.sort(again.points, 0), np.sort(ours.points, 0), rtol=1e-6)
