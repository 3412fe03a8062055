"""Bent pictures made straight: against photographs taken without the lens, and against OpenCV where it is installed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from hotlap.base.errors import ConfigError, DataError
from hotlap.data.colmap import quat_of, read_model, write_model
from hotlap.data.colmap_model import ColmapCamera, ColmapModel
from hotlap.data.drawn_scene import DrawnScene, drawn_camera, photograph, write_drawn_scene
from hotlap.data.lens import bend, sources, straight_camera, straighten, straighten_mask
from hotlap.data.pinhole import Lens, Pinhole
from hotlap.data.scene import load_view, read_scene

Image = pytest.importorskip("PIL.Image", reason="scenes are photographs")
CAMERA = Pinhole(width=160, height=120, fx=130.0, fy=128.0, cx=82.5, cy=57.0)
BARREL = Lens(model="opencv", params=(-0.25, 0.08, 0.002, -0.003, 0, 0, 0, 0), camera=CAMERA)
PINCUSHION = Lens(model="opencv", params=(0.15, 0.02, 0, 0, 0, 0, 0, 0), camera=CAMERA)
RATIONAL = Lens(model="opencv", params=(0.1, -0.05, 0.001, 0.001, 0.01, 0.12, -0.02, 0.005), camera=CAMERA)
FISHEYE = Lens(model="fisheye", params=(0.03, -0.01, 0.002, -0.001), camera=CAMERA)
LENSES = {"barrel": BARREL, "pincushion": PINCUSHION, "rational": RATIONAL, "fisheye": FISHEYE}


def noise(camera: Pinhole, seed=0) -> np.ndarray:
    """A picture with detail of some pixels' size."""
    coarse = np.random.default_rng(seed).integers(0, 256, (camera.height // 5, camera.width // 5, 3), dtype=np.uint8)
    return np.array(Image.fromarray(coarse).resize((camera.width, camera.height), Image.Resampling.BICUBIC))


@pytest.mark.parametrize("name", LENSES)
def test_no_pixel_shows_what_was_never_photographed_and_no_more_is_cut_off_than_that(name):
    lens = LENSES[name]
    camera = straight_camera(lens)
    assert (camera.width, camera.height, camera.cx, camera.cy) == (160, 120, 82.5, 57.0)

    def inside(candidate):
        places = sources(lens, candidate)
        return (places >= 0).all() and (places <= [160, 120]).all()

    assert inside(camera)
    zoom = camera.fx / CAMERA.fx
    assert camera.fy == pytest.approx(zoom * CAMERA.fy)
    assert not inside(replace(camera, fx=0.99 * camera.fx, fy=0.99 * camera.fy))
    assert (zoom > 1) == (name == "pincushion")


def test_a_wide_fisheye_keeps_half_the_scale_of_its_middle():
    lens = replace(FISHEYE, params=(0.0, 0.0, 0.0, 0.0), camera=replace(CAMERA, fx=40.0, fy=40.0))
    assert straight_camera(lens).fx == pytest.approx(20.0)


def test_a_lens_that_folds_back_is_cut_before_the_fold():
    lens = replace(BARREL, params=(-0.9, 0, 0, 0, 0, 0, 0, 0))
    camera = straight_camera(lens)
    corner = max(np.hypot((x - camera.cx) / camera.fx, (y - camera.cy) / camera.fy) for x in (0, 160) for y in (0, 120))
    assert corner < 1.02 * np.sqrt(1 / 2.7)  # where r - 0.9 r^3 turns round; the corner is half a pixel further out


def test_a_lens_that_cannot_be_undone_is_named():
    with pytest.raises(DataError, match=r"lens 'opencv' with parameters \(-50000.0, .* cannot be undone"):
        straight_camera(replace(BARREL, params=(-5e4, 0, 0, 0, 0, 0, 0, 0)))


def test_lenses_that_are_none_are_refused():
    with pytest.raises(DataError, match="lens model = 'thick' is not known"):
        replace(BARREL, model="thick")
    with pytest.raises(DataError, match="lens 'fisheye' has 2 parameters. Expected 4".replace(".", r"\.")):
        replace(FISHEYE, params=(0.1, 0.2))


@pytest.mark.parametrize("name", LENSES)
def test_agrees_with_opencv(name):
    cv2 = pytest.importorskip("cv2", reason="OpenCV is not installed")
    lens = LENSES[name]
    camera = straight_camera(lens)
    half = np.array([[0, 0, 0.5], [0, 0, 0.5], [0, 0, 0]])  # OpenCV's first pixel has its centre at 0
    bent, straight, params = lens.camera.matrix() - half, camera.matrix() - half, np.array(lens.params)
    size = (camera.width, camera.height)
    maps = (cv2.fisheye if lens.model == "fisheye" else cv2).initUndistortRectifyMap(
        bent, params, np.eye(3), straight, size, cv2.CV_32FC1
    )
    np.testing.assert_allclose(sources(lens, camera), np.stack(maps, -1) + 0.5, atol=2e-4)  # float32 of some hundreds
    picture = noise(camera)
    want = cv2.remap(picture, *maps, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE).astype(int)
    # OpenCV blends in steps of 1/32 pixel, so the two differ by a 64th of the steepest step between neighbours.
    assert np.abs(straighten(picture, lens, camera).astype(int) - want).max() <= 4


def test_a_straight_lens_changes_nothing():
    lens = replace(BARREL, params=(0.0,) * 8)
    picture = noise(CAMERA)
    np.testing.assert_array_equal(straighten(picture, lens, CAMERA), picture)


def test_masks_bend_like_pictures():
    camera = straight_camera(BARREL)
    mask = np.zeros((120, 160), bool)
    mask[30:90, 40:120] = True
    as_picture = straighten(np.repeat(mask[..., None].astype(np.uint8) * 255, 3, -1), BARREL, camera)[..., 0]
    moved = straighten_mask(mask, BARREL, camera)
    assert moved.sum() != mask.sum()
    sure = (as_picture < 60) | (as_picture > 195)  # away from the edge, where blending and the nearest pixel differ
    np.testing.assert_array_equal(moved[sure], as_picture[sure] > 127)


COLMAP_CAMERAS = {
    # model: parameters for a 192x128 picture, and the lens they mean
    "SIMPLE_RADIAL": (2, (163, 96, 64, -0.3), "opencv", (-0.3, 0)),
    "RADIAL": (3, (163, 96, 64, -0.35, 0.1), "opencv", (-0.35, 0.1)),
    "OPENCV": (4, (163, 160, 94, 66, -0.35, 0.1, 0.004, -0.006), "opencv", (-0.35, 0.1, 0.004, -0.006)),
    "OPENCV_FISHEYE": (5, (163, 160, 94, 66, -0.1, 0.02, -0.01, 0.0), "fisheye", (-0.1, 0.02, -0.01, 0.0)),
    "SIMPLE_RADIAL_FISHEYE": (8, (163, 96, 64, -0.1), "fisheye", (-0.1,)),
}


@pytest.fixture(scope="module")
def one_view(tmp_path_factory):
    """A drawn scene of one view, and what was drawn."""
    drawn = DrawnScene(num_views=1, width=192, height=128, num_points=5)
    folder = tmp_path_factory.mktemp("one_view")
    write_drawn_scene(folder, drawn)
    return folder, drawn, read_scene(folder).views[0].camera_from_world


@pytest.mark.parametrize("name", COLMAP_CAMERAS)
def test_views_are_loaded_as_a_pinhole_would_have_seen_them(one_view, name):
    """A picture ray-cast through a lens and undistorted is the picture ray-cast by the view's own pinhole camera."""
    folder, drawn, pose = one_view
    number, params, kind, coefficients = COLMAP_CAMERAS[name]
    model = read_model(folder / "sparse" / "0")
    camera = ColmapCamera(camera_id=1, model=number, width=192, height=128, params=params)
    lens = camera.lens()
    assert lens.model == kind and lens.params[: len(coefficients)] == coefficients
    write_model(folder / "sparse" / "0", ColmapModel(**vars(model) | {"cameras": {1: camera}}))
    bent = photograph(drawn, lens.camera, pose, lens)
    Image.fromarray(bent).save(folder / "images" / "view_000.png")
    loaded = load_view(read_scene(folder).views[0])
    want = photograph(drawn, loaded.camera, pose).astype(float)
    error, untouched = np.abs(loaded.image - want).mean(), np.abs(bent - want).mean()
    # Blending softens the edges of tiles: 1.7 to 2.2 grey levels were seen, and 8.7 to 10.6 where the lens is left.
    assert error < 3 and error < untouched / 3


@pytest.mark.parametrize(
    ("number", "params", "want"),
    [
        (0, (163, 96, 64), None),
        (1, (163, 160, 94, 66), None),
        (4, (163, 160, 94, 66, 0, 0, 0, 0), None),
        (5, (163, 160, 94, 66, 0, 0, 0, 0), ("fisheye", (0, 0, 0, 0))),  # without coefficients it still bends
        (6, (163, 160, 94, 66, 1, 2, 3, 4, 5, 6, 7, 8), ("opencv", (1, 2, 3, 4, 5, 6, 7, 8))),
        (9, (163, 96, 64, 0.1, 0.2), ("fisheye", (0.1, 0.2, 0, 0))),
    ],
)
def test_what_colmaps_numbers_mean(number, params, want):
    camera = ColmapCamera(camera_id=1, model=number, width=192, height=128, params=params)
    lens, pinhole = camera.lens(), camera.pinhole()
    assert (lens and (lens.model, lens.params)) == want
    assert (pinhole.fx, pinhole.fy, pinhole.cx) == ((163, 163, 96) if len(params) in (3, 5) else (163, 160, 94))


def test_bending_is_what_the_formula_says():
    x, y = np.array([0.3]), np.array([-0.4])
    r2, k1, k2, p1, p2 = 0.25, -0.25, 0.08, 0.002, -0.003
    ratio = 1 + k1 * r2 + k2 * r2**2
    want_x = 0.3 * ratio + 2 * p1 * 0.3 * -0.4 + p2 * (r2 + 2 * 0.09)
    want_y = -0.4 * ratio + p1 * (r2 + 2 * 0.16) + 2 * p2 * 0.3 * -0.4
    np.testing.assert_allclose(bend(BARREL, x, y), [[want_x], [want_y]], rtol=1e-12)
    angle = np.arctan(0.5)
    spread = angle * (1 + 0.03 * angle**2 - 0.01 * angle**4 + 0.002 * angle**6 - 0.001 * angle**8)
    np.testing.assert_allclose(bend(FISHEYE, x, y), [[0.6 * spread], [-0.8 * spread]], rtol=1e-12)


def test_drawn_cameras_look_at_the_scene(tmp_path):
    """Points of the floor, seen by the drawn cameras, have the colours of the pictures there."""
    drawn = DrawnScene(num_views=4, num_points=400, num_balls=0)
    write_drawn_scene(tmp_path, drawn)
    scene = read_scene(tmp_path)
    assert drawn_camera(drawn) == scene.views[0].camera
    for view in scene.views:
        seen = scene.points @ view.camera_from_world[:3, :3].T + view.camera_from_world[:3, 3]
        places = seen @ view.camera.matrix().T
        pixels = np.floor(places[:, :2] / places[:, 2:]).astype(int)
        on = (seen[:, 2] > 0) & (pixels >= 0).all(1) & (pixels < [96, 64]).all(1)
        colors = load_view(view).image[pixels[on, 1], pixels[on, 0]].astype(int)
        same = np.abs(colors - scene.colors[on]).max(1) < 12
        assert on.sum() > 100 and same.mean() > 0.6  # the others lie in pixels that an edge of a tile crosses
        w, *_ = quat_of(view.camera_from_world[:3, :3])
        assert w >= 0


def test_the_same_seed_draws_the_same_scene(tmp_path):
    drawn = DrawnScene(num_views=2, width=24, height=16, num_points=10)
    for name, scene in (("a", drawn), ("b", drawn), ("c", replace(drawn, seed=1))):
        write_drawn_scene(tmp_path / name, scene)
    a, b, c = ((tmp_path / name / "images" / "view_001.png").read_bytes() for name in "abc")
    assert a == b != c
    points = [(tmp_path / name / "sparse" / "0" / "points3D.bin").read_bytes() for name in "abc"]
    assert points[0] == points[1] != points[2]


def test_a_drawn_scene_of_nothing_is_refused():
    with pytest.raises(ConfigError, match="num_views = 0 draws nothing"):
        DrawnScene(num_views=0)
    with pytest.raises(ConfigError, match="num_balls = -1 is no count"):
        DrawnScene(num_balls=-1)
