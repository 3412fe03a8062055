"""Damaged files: every reader gives back something sound or one of our errors, and takes no more memory than it may.

``HOTLAP_FUZZ_CASES`` sets the cases of each reader; CI runs the same few every time, a campaign many new ones.
"""

from __future__ import annotations

import gzip
import json
import os
import struct
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
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

ASKED = os.environ.get("HOTLAP_FUZZ_CASES")
CASES = int(ASKED or 20)
FUZZ = settings(
    max_examples=CASES, derandomize=ASKED is None, database=None, deadline=None,
    suppress_health_check=list(HealthCheck),
)  # fmt: skip
ROOM = 24 << 20
"""Bytes that a reader may take whatever the file: the random points of a scene without any are most of it."""
TIMES = 1300
"""Bytes for each byte of the file: gzip unpacks 1,032 to one, and arrays are made of that."""
WORDS = [
    b"nan", b"inf", b"-1", b"0", b"1e400", b"1e200", b"99999999999999999999", b"\r\n", b"\n\n", b"#", b'"', b"{", b"[",
    b"]", b"null", b"\x00", b"\xff\xfe", b"list", b"element vertex 1000000000000", b"property float x", b" ", b"..",
]  # fmt: skip
NUMBERS = [struct.pack("<Q", value) for value in (0, 1, 255, 2**31, 2**32 - 1, 10**18, 2**63, 2**64 - 1)]
NUMBERS += [struct.pack("<d", value) for value in (float("nan"), float("inf"), 0.0, -1.0, 1e308, 1e-308)]
NUMBERS += [struct.pack("<f", value) for value in (float("nan"), float("inf"), 0.0, -1e38)]


@st.composite
def edits(draw):
    """A few changes to a file's bytes: cut, overwritten, put in, taken out or said twice, at places from 0 to 1."""
    place = st.floats(0, 1)
    piece = st.one_of(st.binary(max_size=9), st.sampled_from(WORDS), st.sampled_from(NUMBERS))
    kinds = st.sampled_from(["write", "write", "insert", "cut", "drop", "twice", "front"])
    return draw(st.lists(st.tuples(kinds, place, place, piece), min_size=1, max_size=4))


def damage(content: bytes, changes) -> bytes:
    for kind, first, second, piece in changes:
        start, end = sorted((int(first * len(content)), int(second * len(content))))
        end = min(end, start + 64)
        if kind == "write":
            content = content[:start] + piece + content[start + len(piece) :]
        elif kind == "front":  # headers are short, and most of what can be lied about is there
            content = content[: start % 64] + piece + content[start % 64 + len(piece) :]
        elif kind == "insert":
            content = content[:start] + piece + content[start:]
        elif kind == "cut":
            content = content[:start]
        else:
            content = content[:start] + content[start:end] * (2 if kind == "twice" else 0) + content[end:]
    return content


def sound_or_ours(read, size: int) -> None:
    """Runs a reader; anything but an answer or one of our errors is a failure, and so is too much memory."""
    tracemalloc.start()
    try:
        read()
    except HotlapError as error:
        assert str(error)
    finally:
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert peak < ROOM + TIMES * size


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
