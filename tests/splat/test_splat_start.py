"""The splats that a training begins with, the extent of a scene, and the cameras that are looked from."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from hotlap.base.errors import ConfigError, DataError
from hotlap.data.scene import Pinhole, Scene, View
from hotlap.splat.cameras import look_at, orbit, pack_cameras, scene_extent
from hotlap.splat.config import config_with
from hotlap.splat.pictures import pick_views, planned_camera
from hotlap.splat.start import start_splats
from hotlap.splat.train import train

CAMERA = Pinhole(width=40, height=30, fx=50.0, fy=50.0, cx=20.0, cy=15.0)
UP = np.array([0.0, -1.0, 0.0])


def view_from(x: float, y: float, z: float, name: str = "a.png") -> View:
    pose = look_at(np.array([x, y, z]), np.zeros(3), UP)
    return View(name=name, image=Path(name), camera_from_world=pose, camera=CAMERA)


def grid_scene(step: float = 0.5, colors: int = 255) -> Scene:
    """Points on a grid with a constant gap, seen by two cameras."""
    axis = step * np.arange(4)
    points = np.stack(np.meshgrid(axis, axis, axis), -1).reshape(-1, 3).astype(np.float32)
    views = (view_from(0, 0, -4), view_from(3, 0, -3, "b.png"))
    return Scene(folder=Path("grid"), views=views, points=points, colors=np.full((64, 3), colors, np.uint8))


def test_splats_are_as_large_as_the_gaps_between_points():
    start = start_splats(grid_scene(), grid_scene().views, config_with(start_scale=2.0), extent=10.0)
    assert torch.allclose(start["scales"].exp(), torch.ones(64, 3))
    assert torch.allclose(torch.sigmoid(start["opacities"]), torch.full((64,), 0.1))
    assert torch.allclose(0.5 + 0.28209479 * start["colors"][:, 0], torch.ones(64, 3), atol=1e-5)
    assert start["colors"].shape == (64, 16, 3) and not start["colors"][:, 1:].any()


def test_splats_may_begin_as_some_pixels_of_the_nearest_camera():
    scene = grid_scene()
    start = start_splats(scene, scene.views[:1], config_with(start_pixels=1.5, scale=0.5), extent=100.0)
    distances = np.linalg.norm(scene.points - np.array([0, 0, -4]), axis=1)
    assert np.allclose(start["scales"].exp().numpy(), 1.5 * distances[:, None] / 25.0, rtol=1e-5)


def test_equal_points_have_splats_of_a_size():
    scene = replace(grid_scene(), points=np.zeros((64, 3), np.float32))
    start = start_splats(scene, scene.views, config_with(), extent=10.0)
    assert torch.isfinite(start["scales"]).all() and torch.allclose(start["scales"].exp(), torch.full((64, 3), 1e-4))


@pytest.mark.parametrize("shift", [(0.0, 0.0, -90.0), (0.0, 500.0, 0.0)], ids=["behind", "beside"])
def test_points_that_no_picture_shows_are_refused(shift):
    """A training would draw nothing, learn nothing, and end as if all were well."""
    scene = replace(grid_scene(), points=grid_scene().points + np.array(shift, np.float32))
    with pytest.raises(DataError, match=r"none of the 64 points of the scene 'grid' lies within any of its 2 pictures"):
        start_splats(scene, scene.views, config_with(), extent=10.0)


def test_a_graph_without_a_card_is_refused(settings):
    with pytest.raises(ConfigError, match="graph = True with device = 'cpu' is not valid"):
        train(settings(graph=True))


@pytest.mark.parametrize("strategy", ["adc", "mcmc", "none"])
def test_there_are_never_more_splats_than_the_cap_not_at_the_start_either(strategy):
    scene = grid_scene()
    for start, num in ((0, 20), (30, 20), (10, 10)):
        config = config_with(strategy=strategy, max_splats=20, start_splats=start)
        assert len(start_splats(scene, scene.views, config, 10.0)["means"]) == num


def test_a_part_of_the_points_is_drawn_by_the_seed():
    scene = grid_scene()
    first, again, other = (
        start_splats(scene, scene.views, config_with(start_splats=10, seed=seed), 10.0)["means"] for seed in (1, 1, 2)
    )
    assert len(first) == 10 and torch.equal(first, again) and not torch.equal(first, other)


def test_a_single_picture_begins_with_the_points_it_sees():
    scene = grid_scene()
    behind = np.array([[0, 0, -9], [0, 0, -4.001], [50, 0, 0]], np.float32)
    scene = replace(scene, points=np.concatenate([scene.points, behind]), colors=np.zeros((67, 3), np.uint8))
    start = start_splats(scene, scene.views[:1], config_with(image_index=0), 10.0)
    local = (
        start["means"].numpy() @ scene.views[0].camera_from_world[:3, :3].T + scene.views[0].camera_from_world[:3, 3]
    )
    assert 0 < len(local) <= 64 and (local[:, 2] > 0).all()
    assert (np.abs(local[:, 0] / local[:, 2]) <= 20 / 50 + 1e-6).all()


def test_a_scene_without_points_is_refused():
    scene = replace(grid_scene(), points=np.zeros((3, 3), np.float32), colors=np.zeros((3, 3), np.uint8))
    with pytest.raises(DataError, match=r"'grid' has 3 points to begin with. Expected at least 4"):
        start_splats(scene, scene.views, config_with(), 10.0)
    scene = replace(grid_scene(), points=np.tile(np.float32([0, 0, -9]), (64, 1)))
    with pytest.raises(DataError, match=r"has 64 points to begin with, of which the picture '.*' shows 0\. Expected"):
        start_splats(scene, scene.views[:1], config_with(image_index=0), 10.0)


def test_the_extent_is_the_cameras_distance_from_their_middle_and_of_one_the_points():
    views = (view_from(1, 0, -4), view_from(-1, 0, -4, "b.png"))
    assert scene_extent(views, np.zeros((5, 3))) == pytest.approx(1.1)
    assert scene_extent(views[:1], np.tile([[1.0, 0, 0]], (5, 1))) == pytest.approx(1.1 * 4)


def test_cameras_are_packed_in_the_order_of_their_views_whatever_their_names():
    views = [view_from(n, 0, -4, f"{name}.png") for n, name in enumerate("zqa")]
    cameras = pack_cameras(views, [view.camera for view in views], torch.device("cpu"))
    places = [-(pose[:3, :3].T @ pose[:3, 3]) for pose in cameras.viewmats]
    assert [round(float(place[0]), 4) for place in places] == [0, 1, 2] and cameras.names == ("z.png", "q.png", "a.png")
    assert cameras.sizes == ((30, 40),) * 3 and cameras.Ks[0].tolist() == [[50, 0, 20], [0, 50, 15], [0, 0, 1]]


def test_an_orbit_looks_at_the_middle_from_the_cameras_distance():
    views = [view_from(4 * np.cos(a), -1, 4 * np.sin(a), f"{a}.png") for a in np.linspace(0, 6, 9)]
    poses = orbit(views, np.zeros((3, 3)), frames=8)
    for pose in poses:
        assert np.allclose(pose[:3, :3] @ pose[:3, :3].T, np.eye(3)) and np.linalg.det(pose[:3, :3]) > 0
        place = -pose[:3, :3].T @ pose[:3, 3]
        assert np.linalg.norm(place) == pytest.approx(np.sqrt(17), rel=0.05)
        seen = pose[:3, :3] @ np.zeros(3) + pose[:3, 3]
        assert seen[2] > 0 and abs(seen[0]) < 0.2 and abs(seen[1]) < 0.2
        assert pose[1, 1] > 0, "y stays down"


def test_an_orbit_keeps_the_distance_that_the_cameras_of_each_side_have():
    turns = np.linspace(0, 2 * np.pi, 60, endpoint=False)
    views = [view_from((6 if np.cos(a) > 0 else 3) * np.cos(a), 0, 3 * np.sin(a), f"{a}.png") for a in turns]
    poses = orbit(views, np.zeros((3, 3)), frames=40)
    places = np.stack([-pose[:3, :3].T @ pose[:3, 3] for pose in poses])
    assert places[:, 0].max() == pytest.approx(6, rel=0.15) and places[:, 0].min() == pytest.approx(-3, rel=0.15)


def test_parallel_cameras_have_an_orbit_too():
    pose = np.eye(4)
    views = [View(name=n, image=Path(n), camera_from_world=pose, camera=CAMERA) for n in ("a", "b")]
    poses = orbit(views, np.array([[0, 0, 3.0]] * 3), frames=4)
    assert np.isfinite(poses).all() and np.allclose(-poses[0][:3, :3].T @ poses[0][:3, 3], np.zeros(3), atol=4)


def test_views_are_spread_over_their_names():
    views = [view_from(n, 0, -4, f"{n}.png") for n in range(11)]
    assert [view.name for view in pick_views(views, 3)] == ["0.png", "5.png", "10.png"]
    assert len(pick_views(views, 0)) == len(pick_views(views, 99)) == 11


def test_a_planned_camera_is_that_of_the_loaded_picture(scene_folder):
    from hotlap.data.scene import read_scene
    from hotlap.splat.pictures import load_scaled

    view = read_scene(scene_folder).views[0]
    for scale, side in ((1.0, None), (0.4, None), (1.0, 20), (0.5, 31)):
        loaded, planned = load_scaled(view, scale, side), planned_camera(view, scale, side)
        assert loaded.image.shape[:2] == (planned.height, planned.width)
        assert np.allclose(loaded.camera.matrix(), planned.matrix())
