"""Splats as arrays, and the PLY file that everybody reads."""

from __future__ import annotations

import numpy as np
import pytest

from hotlap.base.errors import DataError, ShapeError
from hotlap.data.splats import FIELDS, Splats, read_splats, write_splats


def make_splats(num=7, coeffs=15, seed=0) -> Splats:
    draw = np.random.default_rng(seed)

    def normal(*shape):
        return draw.normal(size=shape).astype(np.float32)

    return Splats(
        means=normal(num, 3), log_scales=normal(num, 3) - 3, quats=normal(num, 4), logit_opacities=normal(num),
        sh0=normal(num, 3), shN=0.3 * normal(num, coeffs, 3),
    )  # fmt: skip


def assert_same(got: Splats, want: Splats) -> None:
    for name in FIELDS:
        np.testing.assert_array_equal(getattr(got, name), getattr(want, name), err_msg=name)


def rows_of(path):
    """The header's lines and the table of a PLY file of float32, read without the reader under test."""
    head, body = path.read_bytes().split(b"end_header\n", 1)
    return head.decode().splitlines(), np.frombuffer(body, "<f4")


@pytest.mark.parametrize("num", [0, 1, 7])
@pytest.mark.parametrize("coeffs", [0, 3, 8, 15, 24])
def test_a_ply_comes_back_to_the_last_bit(tmp_path, num, coeffs):
    splats = make_splats(num, coeffs)
    write_splats(tmp_path / "a.ply", splats)
    assert_same(read_splats(tmp_path / "a.ply"), splats)


def test_the_order_of_attributes_is_the_one_strict_readers_count_on(tmp_path):
    splats = make_splats(2)
    write_splats(tmp_path / "a.ply", splats)
    lines, values = rows_of(tmp_path / "a.ply")
    names = ["x", "y", "z", "nx", "ny", "nz", "f_dc_0", "f_dc_1", "f_dc_2"]
    names += [f"f_rest_{position}" for position in range(45)]
    names += ["opacity", "scale_0", "scale_1", "scale_2", "rot_0", "rot_1", "rot_2", "rot_3"]
    assert lines[:3] == ["ply", "format binary_little_endian 1.0", "element vertex 2"]
    assert lines[3:] == [f"property float {name}" for name in names]
    row = values.reshape(2, 62)[1]
    np.testing.assert_array_equal(row[:3], splats.means[1])
    np.testing.assert_array_equal(row[3:6], 0)
    np.testing.assert_array_equal(row[9:24], splats.shN[1, :, 0])  # all of red, then green, then blue
    np.testing.assert_array_equal(row[24:39], splats.shN[1, :, 1])
    assert row[54] == splats.logit_opacities[1]
    np.testing.assert_array_equal(row[58:62], splats.quats[1])


def shuffled_ply(splats: Splats, order: str, kind: str, extra: str) -> bytes:
    """The same splats as another program might write them: other order, type and byte order, further attributes."""
    named = {"x": splats.means[:, 0], "y": splats.means[:, 1], "z": splats.means[:, 2]}
    named |= {"opacity": splats.logit_opacities, "confidence": np.zeros(len(splats))}
    named |= {f"rot_{axis}": splats.quats[:, axis] for axis in range(4)}
    named |= {f"scale_{axis}": splats.log_scales[:, axis] for axis in range(3)}
    named |= {f"f_dc_{axis}": splats.sh0[:, axis] for axis in range(3)}
    rest = splats.shN.transpose(0, 2, 1).reshape(len(splats), -1)
    named |= {f"f_rest_{position}": rest[:, position] for position in reversed(range(rest.shape[1]))}
    names = sorted(named, key=lambda name: name[::-1])
    words = {"f4": "float", "f8": "double"}
    form = {"<": "binary_little_endian", ">": "binary_big_endian", "": "ascii"}[order]
    lines = ["ply", f"format {form} 1.0", "comment SplatRenderMode: default", extra, f"element vertex {len(splats)}"]
    lines += [*(f"property {words[kind]} {name}" for name in names), "element face 1"]
    lines += ["property list uchar int vertex_indices", "end_header"]
    head = "\n".join(line for line in lines if line) + "\n"
    if not order:
        rows = [" ".join(repr(float(named[name][row])) for name in names) for row in range(len(splats))]
        return (head + "\n".join(rows) + "\n3 0 1 2\n").encode()
    table = np.empty(len(splats), [(name, order + kind) for name in names])
    for name in names:
        table[name] = named[name]
    return head.encode() + table.tobytes() + b"\x03" + bytes(12)


@pytest.mark.parametrize(("order", "kind"), [("<", "f4"), (">", "f4"), ("<", "f8"), ("", "f4")])
def test_attributes_are_found_by_name(tmp_path, order, kind):
    splats = make_splats(5, 8)
    (tmp_path / "a.ply").write_bytes(shuffled_ply(splats, order, kind, "obj_info made by hand"))
    assert_same(read_splats(tmp_path / "a.ply"), splats)


def test_a_header_with_carriage_returns_is_read(tmp_path):
    splats = make_splats(2, 0)
    head, body = shuffled_ply(splats, "<", "f4", "").split(b"end_header\n", 1)
    (tmp_path / "a.ply").write_bytes((head + b"end_header\n").replace(b"\n", b"\r\n") + body)
    assert_same(read_splats(tmp_path / "a.ply"), splats)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda content: content.replace(b"vertex 3", b"vertex 1000000000000000000"), "1000000000000000000 x vertex"),
        (lambda content: content[:-1], "a.ply' is cut short"),
        (lambda content: content.replace(b"property float opacity\n", b"property float other\n"), "no 'opacity'"),
        (lambda content: content.replace(b"f_rest_8\n", b"f_rest_80\n"), r"9 attributes f_rest_\*"),
        (lambda content: content.replace(b"float y\n", b"float x\n"), "the property 'x' of 'vertex' twice"),
        (lambda content: content.replace(b"float y\n", b"quad y\n"), "not understood: 'property quad y'"),
        (lambda content: content.replace(b"binary_little_endian", b"binary_middle_endian"), "binary_middle_endian"),
        (lambda content: content.replace(b"format binary_little_endian 1.0\n", b""), "does not name its format"),
        (lambda content: content.replace(b"end_header", b"end_heads"), "no end of its header"),
        (lambda content: content.replace(b"element vertex", b"element points"), "no element 'vertex'"),
        (lambda content: content.replace(b"vertex 3\n", b"vertex 3\nproperty list uchar int a\n"), "no fixed size"),
        (lambda content: b"oh" + content, "begins with b'ohpl'"),
        (lambda content: b"", "begins with b''"),
    ],
)
def test_damage_is_named(tmp_path, change, message):
    write_splats(tmp_path / "a.ply", make_splats(3, 3))
    content = change((tmp_path / "a.ply").read_bytes())
    (tmp_path / "a.ply").write_bytes(content)
    with pytest.raises(DataError, match=message):
        read_splats(tmp_path / "a.ply")


def test_splats_that_the_header_does_not_count_are_not_lost_without_a_word(tmp_path):
    path = tmp_path / "a.ply"
    write_splats(path, make_splats(10, 3))
    content = path.read_bytes()
    path.write_bytes(content.replace(b"element vertex 10\n", b"element vertex 7\n"))
    with pytest.raises(DataError, match=r"a\.ply' has \d+ bytes after its last row, or its header is wrong"):
        read_splats(path)
    path.write_bytes(content + b"\n")
    assert len(read_splats(path)) == 10, "an empty line more is no damage"


def test_a_short_row_of_text_is_named(tmp_path):
    content = shuffled_ply(make_splats(2, 0), "", "f4", "")
    lines = content.split(b"\n")
    at = lines.index(b"end_header") + 2
    lines[at] = lines[at].rsplit(b" ", 1)[0]
    (tmp_path / "a.ply").write_bytes(b"\n".join(lines))
    with pytest.raises(DataError, match="row 1 of 'vertex': 14 numbers, not 15"):
        read_splats(tmp_path / "a.ply")


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(DataError, match=r"none\.ply' cannot be read: No such file"):
        read_splats(tmp_path / "none.ply")


def test_rows_that_cannot_be_drawn_are_read_found_and_not_written(tmp_path):
    splats = make_splats(5, 0)
    write_splats(tmp_path / "a.ply", splats)
    lines, values = rows_of(tmp_path / "a.ply")
    table = values.reshape(5, 17).copy()
    table[1, 0], table[3, -4:] = np.nan, 0
    (tmp_path / "a.ply").write_bytes(("\n".join(lines) + "\nend_header\n").encode() + table.tobytes())
    got = read_splats(tmp_path / "a.ply")
    assert got.bad().tolist() == [False, True, False, True, False]
    with pytest.raises(DataError, match="splat 1 of 5, and 1 others"):
        write_splats(tmp_path / "b.ply", got)
    assert not (tmp_path / "b.ply").exists()
    write_splats(tmp_path / "b.ply", got.take(~got.bad()))
    assert_same(read_splats(tmp_path / "b.ply"), splats.take(np.array([0, 2, 4])))


def test_a_name_without_a_known_ending_is_not_written(tmp_path):
    with pytest.raises(DataError, match=r"a\.obj' is of no kind that is written. Expected a name that ends in \.ply, "):
        write_splats(tmp_path / "a.obj", make_splats())


def test_arrays_that_do_not_fit_are_refused():
    good = {name: getattr(make_splats(4, 3), name) for name in FIELDS}
    with pytest.raises(ShapeError, match=r"quats must be \[N, 4\], got \[3, 4\] \(bound: N=4\)"):
        Splats(**good | {"quats": good["quats"][:3]})
    with pytest.raises(ShapeError, match="means is of type float64"):
        Splats(**good | {"means": good["means"].astype(np.float64)})
    with pytest.raises(ShapeError, match="shN has 2 coefficients"):
        Splats(**good | {"shN": good["shN"][:, :2]})


def test_degrees_are_cut_and_filled():
    splats = make_splats(3, 8)
    assert splats.sh_degree == 2
    assert splats.with_degree(1).shN.shape == (3, 3, 3)
    more = splats.with_degree(3)
    np.testing.assert_array_equal(more.shN[:, :8], splats.shN)
    np.testing.assert_array_equal(more.shN[:, 8:], 0)
    with pytest.raises(ShapeError, match="degree = 5 is out of range"):
        splats.with_degree(5)
