"""Damaged files: every reader gives back something sound or one of our errors, and takes no more memory than it may.

``damage`` says how many cases there are.
"""

from __future__ import annotations

import gzip
import json
import struct
from pathlib import Path

import numpy as np
import pytest
from damage import FUZZ, damage, edits, sound_or_ours
from hypothesis import given
from hypothesis import strategies as st

from hotlap.base.errors import HotlapError
from hotlap.data.drawn_scene import DrawnScene, write_drawn_scene
from hotlap.data.ply import read_points
from hotlap.data.scene import load_view, read_scene
from hotlap.data.splat_packed_ply import write_packed
from hotlap.data.splat_spz import write_spz
from hotlap.data.splats import Splats, read_splats, write_splats

Image = pytest.importorskip("PIL.Image", reason="scenes are photographs")
from sog_files import sog, zipped  # noqa: E402 - it needs Pillow


def some_splats(num=40, coeffs=3) -> Splats:
    draw = np.random.default_rng(0)

    def normal(*shape):
        return draw.normal(size=shape).astype(np.float32)

    return Splats(
        means=normal(num, 3), log_scales=normal(num, 3), quats=normal(num, 4), logit_opacities=normal(num),
        sh0=normal(num, 3), shN=normal(num, coeffs, 3),
    )  # fmt: skip


def ascii_ply() -> bytes:
    lines = ["ply", "format ascii 1.0", "element vertex 3", *(f"property float {name}" for name in "xyz")]
    lines += ["property uchar red", "property uchar green", "property uchar blue", "end_header"]
    return "\n".join([*lines, *(f"{row} 0.5 -2e-3 {row} 20 255" for row in range(3)), ""]).encode()


@pytest.fixture(scope="module")
def valid(tmp_path_factory) -> dict[str, bytes]:
    """One sound file of each kind, by name."""
    folder = tmp_path_factory.mktemp("valid")
    splats = some_splats()
    for name in ("a.ply", "a.splat", "a.compressed.ply", "a.spz"):
        write_splats(folder / name, splats)
    write_packed(folder / "b.compressed.ply", some_splats(300, 15))
    try:
        write_spz(folder / "v4.spz", splats, version=4)
    except HotlapError:  # no zstandard: the reader's refusal is what is tested then
        (folder / "v4.spz").write_bytes(struct.pack("<4sIIBBBBI12x", b"NGSP", 4, 1, 0, 12, 0, 5, 32) + bytes(80))
    (folder / "text.ply").write_bytes(ascii_ply())
    zipped(folder / "a.sog", sog())
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("name", ["a.ply", "a.splat", "b.compressed.ply", "a.spz", "v4.spz", "text.ply", "a.sog"])
def test_damaged_splats(name, valid, tmp_path):
    path = tmp_path / name

    @FUZZ
    @given(changes=edits())
    def run(changes):
        path.write_bytes(damage(valid[name], changes))
        sound_or_ours(lambda: read_splats(path), path.stat().st_size)

    run()


def test_damage_inside_an_spz(valid, tmp_path):
    """Changes before packing: gzip's own checksum would hide the reader from those after it."""
    path, inner = tmp_path / "a.spz", gzip.decompress(valid["a.spz"])

    @FUZZ
    @given(changes=edits())
    def run(changes):
        path.write_bytes(gzip.compress(damage(inner, changes), 1))
        sound_or_ours(lambda: read_splats(path), path.stat().st_size)

    run()


@pytest.mark.parametrize("part", ["meta.json", "quats.webp"])
def test_damage_inside_a_sog(part, tmp_path):
    path, parts = tmp_path / "a.sog", sog()

    @FUZZ
    @given(changes=edits())
    def run(changes):
        zipped(path, parts | {part: damage(parts[part], changes)})
        sound_or_ours(lambda: read_splats(path), path.stat().st_size)

    run()


def test_damaged_point_clouds(valid, tmp_path):
    path = tmp_path / "points.ply"

    @FUZZ
    @given(changes=edits())
    def run(changes):
        path.write_bytes(damage(valid["text.ply"], changes))
        sound_or_ours(lambda: read_points(path), path.stat().st_size)

    run()


@FUZZ
@given(content=st.one_of(st.binary(max_size=200), st.binary(max_size=100).map(lambda rest: b"ply\n" + rest)))
def test_random_bytes_as_splats(content, tmp_path_factory):
    for name in ("a.ply", "a.splat", "a.spz"):
        path = tmp_path_factory.getbasetemp() / name
        path.write_bytes(content)
        sound_or_ours(lambda path=path: read_splats(path), len(content))


def read_all(folder: Path) -> None:
    """A scene with the pixels of its views; what was read must be usable, not just free of errors."""
    scene = read_scene(folder, skip_missing=True)
    assert scene.views and np.isfinite(scene.points).all() and len(scene.points) == len(scene.colors)
    for view in scene.views:
        assert np.isfinite(view.camera_from_world).all() and np.isfinite(view.camera.matrix()).all()
        rotation = view.camera_from_world[:3, :3]
        np.testing.assert_allclose(rotation @ rotation.T, np.eye(3), atol=1e-6)  # rounding of a unit quaternion
    loaded = load_view(scene.views[0])
    assert loaded.image.shape == (loaded.camera.height, loaded.camera.width, 3)


@pytest.mark.parametrize("kind", ["bin", "txt"])
@pytest.mark.parametrize("part", ["cameras", "images", "points3D"])
def test_damaged_colmap(part, kind, tmp_path):
    write_drawn_scene(tmp_path, DrawnScene(num_views=3, width=12, height=8, num_points=20), text=kind == "txt")
    path = tmp_path / "sparse" / "0" / f"{part}.{kind}"
    content = path.read_bytes()
    size = sum(file.stat().st_size for file in path.parent.iterdir())

    @FUZZ
    @given(changes=edits())
    def run(changes):
        path.write_bytes(damage(content, changes))
        sound_or_ours(lambda: read_all(tmp_path), size)

    run()


def test_damaged_transforms(tmp_path):
    (tmp_path / "images").mkdir()
    Image.new("RGBA", (12, 8), (200, 100, 50, 128)).save(tmp_path / "images" / "a.png")
    frame = {"file_path": "images/a", "transform_matrix": np.eye(4).tolist(), "fl_x": 10.0}
    text = {"w": 12, "h": 8, "camera_model": "OPENCV", "cx": 6.0, "cy": 4.0, "k1": -0.1, "k2": 0.01, "frames": [frame]}
    path = tmp_path / "transforms.json"
    content = json.dumps(text).encode()

    @FUZZ
    @given(changes=edits())
    def run(changes):
        path.write_bytes(damage(content, changes))
        sound_or_ours(lambda: read_all(tmp_path), path.stat().st_size)

    run()


def test_damaged_pictures(tmp_path):
    write_drawn_scene(tmp_path, DrawnScene(num_views=1, width=24, height=16, num_points=5))
    path = tmp_path / "images" / "view_000.png"
    content = path.read_bytes()

    @FUZZ
    @given(changes=edits())
    def run(changes):
        path.write_bytes(damage(content, changes))
        sound_or_ours(lambda: read_all(tmp_path), path.stat().st_size)

    run()
