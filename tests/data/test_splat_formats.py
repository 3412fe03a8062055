"""The small formats: what their bytes mean, said by hand, and what is lost by writing them."""

from __future__ import annotations

import gzip
import struct

import numpy as np
import pytest
import torch

from hotlap.base.errors import ConfigError, DataError, EnvironmentUnusable
from hotlap.data.splat_spz import FLIP_AXES, FLIP_QUAT, FLIP_REST, write_spz
from hotlap.data.splats import SH_C0, Splats, read_splats, write_splats
from hotlap.kernels.splat.reference import rotations, sh_basis


def make_splats(num=600, coeffs=15, seed=0) -> Splats:
    """Splats in the ranges that trained ones have."""
    draw = np.random.default_rng(seed)

    def normal(*shape):
        return draw.normal(size=shape).astype(np.float32)

    return Splats(
        means=3 * normal(num, 3), log_scales=normal(num, 3) - 4, quats=normal(num, 4), logit_opacities=normal(num),
        sh0=normal(num, 3).clip(-1.5, 1.5), shN=(0.2 * normal(num, coeffs, 3)).clip(-0.95, 0.95),
    )  # fmt: skip


def matched(got: Splats, want: Splats) -> Splats:
    """``got`` in the order of ``want``: by nearest centre, since formats sort their splats."""
    distance = ((want.means[:, None] - got.means[None]) ** 2).sum(-1)
    order = distance.argmin(1)
    assert len(set(order.tolist())) == len(want)
    return got.take(order)


def opacities(splats: Splats) -> np.ndarray:
    return 1 / (1 + np.exp(-splats.logit_opacities.astype(np.float64)))


def turned(quats: np.ndarray) -> np.ndarray:  # [N, 3, 3]
    return rotations(torch.from_numpy(quats.astype(np.float64))).numpy()


LOSS = {
    # name: centre, log scale, entry of the rotation matrix, opacity, colour, coefficient; each half a step of the
    # format, rounded up; of a chunk's extent for compressed PLY, whose chunks span at most 24 here
    "a.splat": (0, 1e-6, 0.05, 0.002, 0.002, None),
    "a.compressed.ply": (0.012, 0.005, 0.004, 0.002, 0.005, 0.0157),
    "a.spz": (0.00013, 0.032, 0.006, 0.002, 0.0038, 0.067),
}


@pytest.mark.parametrize("name", LOSS)
def test_what_is_lost_is_half_a_step(tmp_path, name):
    splats = make_splats()
    write_splats(tmp_path / name, splats)
    got = matched(read_splats(tmp_path / name), splats)
    mean, scale, turn, opacity, color, rest = LOSS[name]
    np.testing.assert_allclose(got.means, splats.means, atol=mean, rtol=0)
    np.testing.assert_allclose(got.log_scales, splats.log_scales, atol=scale, rtol=0)
    np.testing.assert_allclose(turned(got.quats), turned(splats.quats), atol=turn, rtol=0)
    np.testing.assert_allclose(opacities(got), opacities(splats), atol=opacity, rtol=0)
    inside = np.abs(splats.sh0 * SH_C0) < 0.5  # .splat holds colours from 0 to 1 only
    np.testing.assert_allclose((got.sh0 * SH_C0)[inside], (splats.sh0 * SH_C0)[inside], atol=color, rtol=0)
    if rest is None:
        assert got.shN.shape == (600, 0, 3)
    else:
        np.testing.assert_allclose(got.shN, splats.shN, atol=rest, rtol=0)


@pytest.mark.parametrize("name", ["a.splat", "a.compressed.ply", "a.spz"])
@pytest.mark.parametrize(("num", "coeffs"), [(0, 0), (0, 15), (1, 3), (257, 8)])
def test_any_number_and_degree(tmp_path, name, num, coeffs):
    splats = make_splats(num, coeffs)
    write_splats(tmp_path / name, splats)
    got = read_splats(tmp_path / name)
    assert len(got) == num and not got.bad().any()
    assert got.shN.shape[1] == (0 if name == "a.splat" else coeffs)
    np.testing.assert_allclose(np.sort(got.means, 0), np.sort(splats.means, 0), atol=0.02)  # widest step of the three


@pytest.mark.parametrize("name", ["a.splat", "a.compressed.ply", "a.spz"])
def test_writing_what_was_read_changes_nothing_more(tmp_path, name):
    write_splats(tmp_path / name, make_splats(40, 3))
    once = read_splats(tmp_path / name)
    write_splats(tmp_path / f"again_{name}", once)
    twice = matched(read_splats(tmp_path / f"again_{name}"), once)
    np.testing.assert_allclose(opacities(twice), opacities(once), atol=1e-6)  # the byte came back to itself
    np.testing.assert_allclose(twice.sh0, once.sh0, atol=1e-5)
    np.testing.assert_allclose(twice.log_scales, once.log_scales, atol=1e-5)


def test_a_splat_by_hand(tmp_path):
    row = struct.pack("<6f8B", 1.0, -2.0, 3.5, 0.5, 0.25, 1.0, 255, 0, 128, 255, 128, 255, 128, 0)
    (tmp_path / "a.splat").write_bytes(row)
    got = read_splats(tmp_path / "a.splat")
    np.testing.assert_array_equal(got.means, [[1, -2, 3.5]])
    np.testing.assert_allclose(np.exp(got.log_scales), [[0.5, 0.25, 1.0]], rtol=1e-6)
    np.testing.assert_allclose(0.5 + SH_C0 * got.sh0, [[1, 0, 128 / 255]], atol=1e-6)
    np.testing.assert_allclose(got.quats, [[0, 127 / 128, 0, -1]])
    assert opacities(got)[0] > 0.998 and np.isfinite(got.logit_opacities).all()


def test_the_splat_that_covers_most_comes_first(tmp_path):
    splats = make_splats(20, 0)
    write_splats(tmp_path / "a.splat", splats)
    weight = np.exp(splats.log_scales.sum(1)) * opacities(splats)
    np.testing.assert_array_equal(read_splats(tmp_path / "a.splat").means[0], splats.means[weight.argmax()])


def test_a_splat_without_size_or_rotation_can_still_be_drawn(tmp_path):
    (tmp_path / "a.splat").write_bytes(struct.pack("<6f8B", 0, 0, 0, 0, 0, 0, 9, 9, 9, 0, 128, 128, 128, 128))
    got = read_splats(tmp_path / "a.splat")
    assert not got.bad().any()
    np.testing.assert_array_equal(got.quats, [[1, 0, 0, 0]])


def test_a_splat_file_of_odd_length_is_refused(tmp_path):
    (tmp_path / "a.splat").write_bytes(bytes(33))
    with pytest.raises(DataError, match=r"a\.splat' has 33 bytes. Expected a multiple of 32"):
        read_splats(tmp_path / "a.splat")


def packed_ply(chunk, words, colors=True) -> bytes:
    names = ["min_x", "min_y", "min_z", "max_x", "max_y", "max_z"]
    names += ["min_scale_x", "min_scale_y", "min_scale_z", "max_scale_x", "max_scale_y", "max_scale_z"]
    names += ["min_r", "min_g", "min_b", "max_r", "max_g", "max_b"] if colors else []
    lines = ["ply", "format binary_little_endian 1.0", "element chunk 1", *(f"property float {name}" for name in names)]
    lines += ["element vertex 1", "property uint packed_position", "property uint packed_rotation"]
    lines += ["property uint packed_scale", "property uint packed_color", "end_header", ""]
    return "\n".join(lines).encode() + struct.pack(f"<{len(names)}f", *chunk[: len(names)]) + struct.pack("<4I", *words)


CHUNK = (0, 0, 0, 2047, 1023, 2047, -8, -8, -8, -4, -4, -4, 0, 0, 0, 1, 0.5, 0.25)


def test_a_compressed_splat_by_hand(tmp_path):
    position = 5 << 21 | 7 << 11 | 9
    rotation = 2 << 30 | 512 << 20 | 512 << 10 | 1023  # the third, y, is left out; z is as large as it may be
    scale, color = 2047 << 21 | 1023 << 11 | 0, 255 << 24 | 255 << 16 | 0 << 8 | 51
    (tmp_path / "a.ply").write_bytes(packed_ply(CHUNK, (position, rotation, scale, color)))
    got = read_splats(tmp_path / "a.ply")
    np.testing.assert_allclose(got.means, [[5, 7, 9]], rtol=1e-6)
    np.testing.assert_allclose(got.log_scales, [[-4, -4, -8]])
    np.testing.assert_allclose(0.5 + SH_C0 * got.sh0, [[1, 0.5, 0]], atol=1e-6)
    np.testing.assert_allclose(got.quats, [[0, 0, 0.7071, 0.7071]], atol=0.001)
    np.testing.assert_allclose(opacities(got), [51 / 255], rtol=1e-5)


def test_a_compressed_splat_of_an_older_writer_has_no_limits_of_colour(tmp_path):
    words = (0, 0, 0, 255 << 24 | 51 << 16 | 0 << 8 | 51)
    (tmp_path / "a.ply").write_bytes(packed_ply(CHUNK, words, colors=False))
    np.testing.assert_allclose(0.5 + SH_C0 * read_splats(tmp_path / "a.ply").sh0, [[1, 0.2, 0]], atol=1e-6)


def test_damaged_compressed_splats_are_named(tmp_path):
    sound = packed_ply(CHUNK, (0, 0, 0, 0))
    for change, message in (
        (sound.replace(b"chunk 1\n", b"chunk 0\n"), "has 0 chunks for 1 splats"),
        (sound.replace(b"max_scale_y", b"most_scale_"), "'max_scale_y' is missing"),
        (sound.replace(b"packed_scale", b"packed_skale"), "'packed_scale' is missing"),
    ):
        (tmp_path / "a.ply").write_bytes(change)
        with pytest.raises(DataError, match=message):
            read_splats(tmp_path / "a.ply")


def test_coefficients_of_another_number_of_splats_are_refused(tmp_path):
    write_splats(tmp_path / "a.compressed.ply", make_splats(3, 3))
    content = (tmp_path / "a.compressed.ply").read_bytes()
    (tmp_path / "a.compressed.ply").write_bytes(content.replace(b"element sh 3", b"element sh 2"))
    with pytest.raises(DataError, match="has 2 rows of sh for 3 splats"):
        read_splats(tmp_path / "a.compressed.ply")


def spz_3(version=3, num=1, degree=0, turn=b"\x00\x00\x00\xc0", places=None, rest=b"", magic=b"NGSP", flags=0) -> bytes:
    places = places or b"".join(value.to_bytes(3, "little", signed=True) for value in (4096, -8192, 2048))
    head = struct.pack("<4sIIBBBB", magic, version, num, degree, 12, flags, 0)
    return gzip.compress(head + places + b"\x80" + bytes([255, 0, 128]) + bytes([160, 0, 255]) + turn + rest, mtime=0)


def test_an_spz_by_hand(tmp_path):
    rest = bytes([255, 128, 0] * 3)
    (tmp_path / "a.spz").write_bytes(spz_3(degree=1, rest=rest))
    got = read_splats(tmp_path / "a.spz")
    np.testing.assert_allclose(got.means, [[1, 2, -0.5]])  # y and z point the other way in the file
    np.testing.assert_allclose(got.log_scales, [[0, -10, 5.9375]])
    np.testing.assert_allclose(got.quats, [[1, 0, 0, 0]], atol=1e-7)
    np.testing.assert_allclose(got.sh0, [[0.5 / 0.15, -0.5 / 0.15, (128 / 255 - 0.5) / 0.15]], atol=1e-6)
    np.testing.assert_allclose(opacities(got), [128 / 255], rtol=1e-5)
    want = np.array([[127 / 128, 0, -1]] * 3) * [[-1], [-1], [1]]  # y, z and x of degree 1
    np.testing.assert_allclose(got.shN[0], want)


def test_the_older_versions_of_spz(tmp_path):
    turn = bytes([255, 128, 128])  # x = 1: half a turn about x
    half = np.array([1, -2, 0.5], "<f2").tobytes()
    for version, places in ((1, half), (2, None)):
        (tmp_path / "a.spz").write_bytes(spz_3(version, turn=turn, places=places))
        got = read_splats(tmp_path / "a.spz")
        np.testing.assert_allclose(got.means, [[1, 2, -0.5]])
        np.testing.assert_allclose(np.abs(turned(got.quats)[0]), np.eye(3), atol=0.02)  # a byte's step is 1/128
        assert turned(got.quats)[0, 1, 1] < 0 < turned(got.quats)[0, 0, 0]


def test_more_bits_of_spz_lose_less(tmp_path):
    splats = make_splats(50)
    write_spz(str(tmp_path / "a.spz"), splats, sh_bits=(8, 8))
    np.testing.assert_allclose(read_splats(tmp_path / "a.spz").shN, splats.shN, atol=1 / 255)  # half a step of 1/128
    with pytest.raises(ConfigError, match=r"sh_bits = \(9, 4\) cannot be kept of a byte"):
        write_spz(tmp_path / "a.spz", splats, sh_bits=(9, 4))


def test_spz_of_version_4_comes_back_like_version_3(tmp_path):
    pytest.importorskip("zstandard", reason="version 4 is packed with Zstandard")
    for num, coeffs in ((30, 15), (5, 0), (0, 0)):
        splats = make_splats(num, coeffs)
        write_spz(tmp_path / "a.spz", splats)
        write_spz(tmp_path / "b.spz", splats, version=4)
        assert (tmp_path / "b.spz").read_bytes()[:8] == b"NGSP\x04\x00\x00\x00"
        old, new = read_splats(tmp_path / "a.spz"), read_splats(tmp_path / "b.spz")
        np.testing.assert_array_equal(old.means, new.means)
        np.testing.assert_array_equal(old.quats, new.quats)
        np.testing.assert_array_equal(old.shN, new.shN)


def test_damaged_streams_of_version_4_are_named(tmp_path):
    zstandard = pytest.importorskip("zstandard", reason="version 4 is packed with Zstandard")
    write_spz(tmp_path / "a.spz", make_splats(40, 0), version=4)
    content = (tmp_path / "a.spz").read_bytes()
    (tmp_path / "a.spz").write_bytes(content[:112] + bytes(4) + content[116:])  # the mark of the first stream
    with pytest.raises(DataError, match=r"a\.spz' is damaged"):
        read_splats(tmp_path / "a.spz")
    short = [zstandard.ZstdCompressor().compress(bytes(size)) for size in (8, 1, 3, 3, 4)]
    head = struct.pack("<4sIIBBBBI12x", b"NGSP", 4, 1, 0, 12, 0, 5, 32)
    table = b"".join(struct.pack("<QQ", len(part), size) for part, size in zip(short, (9, 1, 3, 3, 4), strict=True))
    (tmp_path / "a.spz").write_bytes(head + table + b"".join(short))
    with pytest.raises(DataError, match="a stream unpacks to 8 bytes, not 9"):
        read_splats(tmp_path / "a.spz")


def test_bytes_after_the_streams_of_spz_are_refused_unless_they_are_announced(tmp_path):
    file = tmp_path / "a.spz"
    file.write_bytes(spz_3(rest=b"records of others", flags=2))
    assert len(read_splats(file)) == 1
    pytest.importorskip("zstandard", reason="version 4 is packed with Zstandard")
    write_spz(file, make_splats(5), version=4)
    content = file.read_bytes()
    file.write_bytes(content + b"more")
    with pytest.raises(DataError, match=r"a\.spz' goes on after its 5 splats"):
        read_splats(file)
    file.write_bytes(content[:14] + b"\x02" + content[15:] + b"more")
    assert len(read_splats(file)) == 5


def test_spz_of_version_4_without_zstandard_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "zstandard", None)
    with pytest.raises(EnvironmentUnusable, match=r"zstandard, which is not installed. pip install 'hotlap\[splat\]'"):
        write_spz(tmp_path / "b.spz", make_splats(2), version=4)


def test_turning_the_axes_leaves_what_is_seen_alone():
    """A splat's shape and colours after y and z changed sign are those from before, seen from the changed direction."""
    draw = np.random.default_rng(0)
    quats = draw.normal(size=(20, 4))
    flip = np.diag(FLIP_AXES.astype(np.float64))
    np.testing.assert_allclose(turned(quats * FLIP_QUAT), flip @ turned(quats) @ flip, atol=1e-12)
    directions = torch.from_numpy(draw.normal(size=(50, 3)))
    directions /= directions.norm(dim=1, keepdim=True)
    rest = draw.normal(size=15)
    before = sh_basis(directions, 3)[:, 1:].numpy() @ rest
    after = sh_basis(directions * torch.from_numpy(FLIP_AXES), 3)[:, 1:].numpy() @ (rest * FLIP_REST[:15])
    np.testing.assert_allclose(after, before, atol=1e-12)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (spz_3(num=10**9), "claims 1000000000 splats in"),
        (spz_3(num=2), "cut short: 2 splats need 40 bytes, 20 are there"),
        (spz_3(rest=b"more"), "goes on after its 1 splats"),
        (spz_3() + b"more", "goes on after its 1 splats"),
        (spz_3()[:-3], "cut short: its end is missing"),
        (spz_3(degree=9), "degree 9"),
        (spz_3(version=7), "version 7 in gzip"),
        (spz_3(magic=b"ABCD"), "marked b'ABCD'"),
        (gzip.compress(b"NGSP", mtime=0), "unpacks to 4 bytes"),
        (spz_3()[:12] + b"\xff\xff" + spz_3()[14:], "damaged"),
        (b"NGSP\x04", "cut short: 5 bytes"),
        (struct.pack("<4sIIBBBBI12x", b"NGSP", 3, 1, 0, 12, 0, 5, 32), "version 3 without gzip"),
        (struct.pack("<4sIIBBBBI12x", b"NGSP", 4, 1, 0, 12, 0, 4, 32) + bytes(96), "has 4 streams"),
        (struct.pack("<4sIIBBBBI12x", b"NGSP", 4, 1, 0, 12, 0, 5, 9000), "table at byte 9000"),
        (struct.pack("<4sIIBBBBI12x", b"NGSP", 4, 1, 0, 12, 0, 5, 32) + struct.pack("<QQ", 4, 9) * 5, "4 bytes for 9"),
    ],
)
def test_damaged_spz_is_named(tmp_path, content, message):
    (tmp_path / "a.spz").write_bytes(content)
    with pytest.raises(DataError, match=message):
        read_splats(tmp_path / "a.spz")


def test_what_spz_cannot_hold_is_refused(tmp_path):
    splats = make_splats(3)
    splats.means[1, 2] = 3000
    with pytest.raises(DataError, match="1 of 3 splats lie too far out, one at 3000 from the origin"):
        write_splats(tmp_path / "a.spz", splats)
    with pytest.raises(DataError, match="degrees up to 3, not 4"):
        write_splats(tmp_path / "a.spz", make_splats(3, 24))
    with pytest.raises(DataError, match="no room for degree 4"):
        write_splats(tmp_path / "a.compressed.ply", make_splats(3, 24))
    with pytest.raises(ConfigError, match="version = 2 of spz is not written"):
        write_spz(tmp_path / "a.spz", make_splats(3), version=2)
