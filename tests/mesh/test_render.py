"""Rendered views against geometry done by hand: silhouettes, what hides what, where a texture lands."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from solids import box, png, quad, sphere

from hotlap.base.errors import ConfigError, DataError
from hotlap.data.mesh_file import Mesh
from hotlap.mesh.cameras import FOCAL_PX, Cameras, make_rows, project_points
from hotlap.mesh.render import render_views

RED, GREEN, BLUE, GREY = (255, 0, 0), (0, 255, 0), (0, 0, 255), (90, 90, 90)


def cameras(azimuth=0.0, elevation=0.0, distance=0.8):
    return Cameras.from_rows(make_rows(torch.tensor([azimuth]), torch.tensor([elevation]), torch.tensor([distance])))


def joined(*meshes):
    """Several meshes as one, painted by their materials' colours."""
    start, vertices, faces, colours = 0, [], [], []
    for mesh in meshes:
        vertices.append(mesh.vertices)
        faces.append(mesh.faces + start)
        colours.append(np.tile(mesh.materials[0].colour, (len(mesh.vertices), 1)))
        start += len(mesh.vertices)
    return Mesh(vertices=np.vstack(vertices), faces=np.vstack(faces), colours=np.vstack(colours))


def facing(half, x=0.0, **paint):
    """A square that a camera at azimuth 0 sees upright, ``x`` nearer to it than the origin."""
    corners = [(x, -half, half), (x, -half, -half), (x, half, -half), (x, half, half)]
    return quad(corners, **paint)


def test_the_silhouette_of_a_sphere(device):
    views = render_views(sphere(0.2, rings=48), cameras(33.0, 21.0), supersample=3, device=device)
    radius = FOCAL_PX * 0.2 / math.sqrt(0.8**2 - 0.2**2)
    covered = views.alpha[0].double().cpu() / 255
    # The mesh lies inside the sphere: a polygon of 96 sides has 0.07% less area than its circle.
    assert covered.sum().item() == pytest.approx(math.pi * radius**2, rel=4e-3)
    places = torch.arange(224, dtype=torch.float64)
    assert (covered.sum(0) @ places / covered.sum()).item() == pytest.approx(112, abs=0.05)
    assert (covered.sum(1) @ places / covered.sum()).item() == pytest.approx(112, abs=0.05)
    assert (views.image[0][views.alpha[0] == 0] == 255).all()


@pytest.mark.parametrize("swap", [False, True])
def test_what_is_nearer_hides_what_is_behind(device, swap):
    near, far = facing(0.05, x=0.1, colour=(1, 0, 0)), facing(0.1, x=-0.1, colour=(0, 0, 1))
    image = render_views(joined(*((far, near) if swap else (near, far))), cameras(), device=device).image[0].cpu()
    assert (image[112, 112] > 0).tolist() == [True, False, False]
    assert (image[112, 112 + 22] > 0).tolist() == [False, False, True]
    behind = render_views(joined(near, far), cameras(180.0), device=device).image[0].cpu()
    assert (behind[112, 112] > 0).tolist() == [False, False, True]


def test_a_texture_lands_upright(device):
    texture = png(np.kron([[RED, GREEN], [BLUE, GREY]], np.ones((8, 8, 1))))
    image = render_views(facing(0.1, texture=texture), cameras(), device=device).image[0].int().cpu()
    corners = {(96, 96): 0, (96, 128): 1, (128, 96): 2}
    for (row, column), channel in corners.items():
        pixel = image[row, column]
        assert pixel.argmax() == channel and pixel.sum() == pixel.max(), (row, column)
    grey = image[128, 128]
    assert grey.max() - grey.min() <= 1 and 60 < grey[0] < 100


def test_a_texture_is_divided_where_the_surface_is_not_its_picture(device):
    texture = png(np.kron([[RED, BLUE]], np.ones((16, 32, 1))))
    corners = [(-0.2, -0.1, 0.1), (0.3, -0.1, -0.1), (0.3, 0.1, -0.1), (-0.2, 0.1, 0.1)]  # the right side comes near
    views = render_views(quad(corners, texture=texture), cameras(), device=device)
    row = views.image[0, 112].int().cpu()
    seam = int((row[:, 2] > row[:, 0]).int().argmax())
    middle = cameras().to_camera(torch.tensor([[[0.05, 0.0, 0.0]]]))
    assert seam == pytest.approx(project_points(middle)[0, 0, 0].item(), abs=1.0)
    edges = project_points(cameras().to_camera(torch.tensor([[[-0.2, 0.0, 0.1], [0.3, 0.0, -0.1]]])))[0, :, 0]
    assert abs(seam - edges.mean().item()) > 4, "the picture's own middle lies elsewhere"


def test_a_large_texture_is_averaged_not_picked(device):
    noise = np.random.default_rng(0).integers(0, 2, (1024, 1024, 1)).repeat(3, 2) * 255
    image = render_views(facing(0.1, texture=png(noise)), cameras(), device=device).image[0].float().cpu()
    inside = image[92:132, 92:132]
    assert inside.std() < 35 < 127, "each pixel stands for about 270 texels of which half are white"


def test_more_samples_smooth_the_edges():
    coarse, fine = (render_views(sphere(), cameras(), supersample=n).alpha for n in (1, 4))
    assert set(coarse.unique().tolist()) == {0, 255}
    assert len(fine.unique()) > 10


def test_another_size_shows_the_same(device):
    whole = render_views(box(), cameras(30.0, 20.0), size=224, device=device).alpha.float().cpu()
    half = render_views(box(), cameras(30.0, 20.0), size=112, supersample=4, device=device).alpha.float().cpu()
    together = torch.nn.functional.avg_pool2d(whole[None], 2)[0]
    torch.testing.assert_close(half, together, atol=1.0, rtol=0)  # the same samples, rounded to 1/255 once or twice


def test_light_comes_from_above(device):
    image = render_views(box(), cameras(10.0, 40.0), device=device).image[0].int().cpu()
    top, front = image[105, 112], image[125, 112]
    assert top[0] > front[0] + 20
    assert top.max() == top.min(), "no paint is grey"


def test_faces_behind_the_camera_are_left_out():
    views = render_views(facing(0.1, x=0.9), cameras())
    assert views.alpha.max() == 0 and views.image.min() == 255


def test_faces_without_texture_coordinates_show_their_material():
    mesh = facing(0.1, texture=png([[BLUE, BLUE], [BLUE, BLUE]]))
    uvs = mesh.uvs.copy()
    uvs[0] = np.nan
    bare = Mesh(**{**vars(mesh), "uvs": uvs})
    image = render_views(bare, cameras()).image[0].int()
    assert image[125, 125].min() > 60 and image[100, 100].argmax() == 2 and image[100, 100, 0] == 0


@pytest.mark.parametrize(("name", "value"), [("size", 0), ("supersample", -1)])
def test_senseless_sizes_are_refused(name, value):
    with pytest.raises(ConfigError, match=f"{name} = {value}"):
        render_views(box(), cameras(), **{name: value})


def test_a_broken_texture_is_named():
    pytest.importorskip("PIL", reason="Pillow reads textures")
    with pytest.raises(DataError, match="texture of material 'm'"):
        render_views(facing(0.1, texture=b"no picture"), cameras())
