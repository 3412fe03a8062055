"""Cameras: the published convention, there and back, and what a user may give."""

from __future__ import annotations

import math

import pytest
import torch

from hotlap.base.errors import DataError, ShapeError
from hotlap.mesh.cameras import Cameras, checked_rows, make_rows, project_around, project_points, project_to_views

ROWS = [[0, 0, 0, 1.0, 25], [90, 0, 0, 2.0, 25], [37, 25, 0, 1.3, 25], [200, -40, 0, 0.7, 25], [10, 90, 0, 1.5, 25]]


def test_a_camera_stands_at_its_distance_and_sees_the_origin_in_the_middle(device):
    rows = torch.tensor(ROWS, device=device)
    cameras = Cameras.from_rows(rows)
    seen = cameras.to_camera(torch.zeros(5, 1, 3, device=device))[:, 0]
    torch.testing.assert_close(seen, torch.stack([0 * rows[:, 3], 0 * rows[:, 3], -rows[:, 3]], 1), atol=1e-6, rtol=0)
    assert torch.allclose(project_points(seen[:, None]), torch.tensor(112.0, device=device), atol=1e-4)
    turned = cameras.camera_from_world @ cameras.camera_from_world.mT
    torch.testing.assert_close(turned, torch.eye(3, device=device).expand(5, 3, 3), atol=1e-6, rtol=0)
    assert torch.allclose(torch.linalg.det(cameras.camera_from_world), torch.ones(5, device=device))


def test_the_published_example_by_hand():
    """Azimuth 90, elevation 30, distance 2: the camera stands at 2 * (0, 0.5, 0.866) and looks down at the origin."""
    camera = Cameras.from_rows(torch.tensor([90.0, 30.0, 0, 2.0, 25], dtype=torch.float64))
    high, far = math.sin(math.pi / 6), math.cos(math.pi / 6)
    torch.testing.assert_close(camera.origin, torch.tensor([0.0, 2 * high, 2 * far], dtype=torch.float64))
    axes = torch.tensor([[1.0, 0, 0], [0, far, -high], [0, high, far]], dtype=torch.float64)
    torch.testing.assert_close(camera.camera_from_world, axes)


def test_up_is_up_and_right_is_right():
    column, row = project_points(torch.tensor([[0.1, 0.2, -0.8]]))[0].tolist()
    assert column == pytest.approx(112 + 248 * 0.1 / 0.8) and row == pytest.approx(112 - 248 * 0.2 / 0.8)


def test_there_and_back(device):
    cameras = Cameras.from_rows(torch.tensor(ROWS, device=device, dtype=torch.float64))
    points = torch.randn(5, 7, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(device)
    torch.testing.assert_close(cameras.to_world(cameras.to_camera(points)), points)


def test_views_of_an_object_share_the_frame_of_the_first():
    rows = torch.tensor(ROWS[:3], dtype=torch.float64)[None]
    cameras = Cameras.from_rows(rows)
    world = torch.randn(1, 6, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64) * 0.2
    seen = project_to_views(cameras[:, 0].to_camera(world), cameras)
    for view in range(3):
        want = project_points(cameras[:, view].to_camera(world))
        torch.testing.assert_close(seen[:, view], want)
    offsets = 0.02 * torch.randn(4, 3, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    points = cameras[:, 0].to_camera(world)
    around = project_to_views((points[:, :, None] + offsets).flatten(1, 2), cameras)
    torch.testing.assert_close(project_around(points, offsets, cameras), around)


def test_points_behind_a_camera_stay_finite():
    assert project_points(torch.tensor([[0.1, 0.1, 0.0], [0.1, 0.1, 5.0]])).isfinite().all()


def test_rows_of_three_numbers():
    rows = checked_rows([[10, 20, 1.5]])
    assert rows.tolist() == [[10, 20, 0, 1.5, 25]]
    assert torch.equal(make_rows(*torch.tensor([10.0, 20, 1.5])), rows[0])


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], "cameras.txt has no rows"),
        ([[1, 2]], r"row 0 of cameras.txt is \[1, 2\]"),
        ([[1, 2, 3], [0, float("nan"), 1]], r"row 1 of cameras.txt is \[0, nan, 1\]"),
        ([[1, 2, -3]], "row 0 of cameras.txt has distance = -3"),
        ([[1, 2, 5, 1, 25]], "row 0 of cameras.txt has rotation = 5"),
    ],
)
def test_rows_that_are_no_cameras(rows, message):
    with pytest.raises(DataError, match=message):
        checked_rows(rows, "cameras.txt")


def test_rows_of_the_wrong_shape():
    with pytest.raises(ShapeError, match=r"rows must be \[..., 5\], got \[2, 3\]"):
        Cameras.from_rows(torch.zeros(2, 3))
