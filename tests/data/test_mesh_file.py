"""OBJ, PLY and GLB: what is written is read back, what trimesh reads is what we read, what is wrong is said."""

from __future__ import annotations

import io
import json
import pickle
import struct

import numpy as np
import pytest

from hotlap.data.mesh_file import (
    Material,
    Mesh,
    MeshFileError,
    check_mesh,
    face_areas,
    find_faults,
    normalised,
    read_mesh,
    write_mesh,
)

TETRAHEDRON = np.array([[0, 0, 0], [1, 0, 0], [0, 2, 0], [0, 0, 3]], np.float64)
FACES = np.array([[0, 2, 1], [0, 1, 3], [0, 3, 2], [1, 2, 3]])


def png(colour=(200, 30, 60), size=(4, 2)):
    image = pytest.importorskip("PIL.Image", reason="Pillow makes the textures").new("RGB", size, colour)
    out = io.BytesIO()
    image.save(out, "PNG")
    return out.getvalue()


def painted():
    """A mesh with everything: two materials, a texture, colours, texture coordinates that differ at one vertex."""
    uvs = np.random.default_rng(0).random((4, 3, 2)).round(3)
    return Mesh(
        vertices=TETRAHEDRON,
        faces=FACES,
        uvs=uvs,
        colours=np.array([[0, 0, 0], [1, 0, 0], [0, 1, 0], [0.2, 0.4, 0.6]]),
        materials=(
            Material(name="wood", colour=(0.5, 0.25, 1.0)),
            Material(name="paint", colour=(1, 1, 1), texture=png()),
        ),
        face_materials=np.array([0, 1, 1, 0]),
    )


def by_corner(mesh):
    """What is painted where, whatever the order of vertices and faces: a row for each corner, sorted."""
    position = mesh.vertices[mesh.faces].reshape(-1, 3)
    columns = [position]
    if mesh.uvs is not None:
        columns.append(mesh.uvs.reshape(-1, 2))
    if mesh.colours is not None:
        columns.append(mesh.colours[mesh.faces].reshape(-1, 3))
    if mesh.face_materials is not None:
        table = np.array([material.colour for material in mesh.materials])
        columns.append(table[np.repeat(mesh.face_materials, 3)])
    rows = np.hstack(columns).round(4)
    return rows[np.lexsort(rows.T)]


@pytest.mark.parametrize("suffix", [".obj", ".glb"])
def test_what_is_written_is_read_back_with_its_paint(tmp_path, suffix):
    files = write_mesh(tmp_path / f"thing{suffix}", painted())
    assert sorted(file.name for file in files) == sorted(file.name for file in tmp_path.iterdir())
    found = read_mesh(tmp_path / f"thing{suffix}")
    np.testing.assert_allclose(by_corner(found), by_corner(painted()), atol=1e-4)
    assert [material.texture for material in found.materials] == [None, png()]


def test_ply_keeps_shape_and_colours(tmp_path):
    write_mesh(tmp_path / "thing.ply", painted())
    found = read_mesh(tmp_path / "thing.ply")
    np.testing.assert_array_equal(found.faces, FACES)
    np.testing.assert_allclose(found.vertices, TETRAHEDRON)
    np.testing.assert_allclose(found.colours, painted().colours, atol=0.5 / 255)


@pytest.mark.parametrize("suffix", [".obj", ".ply", ".glb"])
def test_trimesh_reads_what_we_write_and_we_read_what_it_writes(tmp_path, suffix):
    trimesh = pytest.importorskip("trimesh", reason="trimesh is what we compare with")
    ours, theirs = tmp_path / f"ours{suffix}", tmp_path / f"theirs{suffix}"
    solid = trimesh.creation.icosphere(subdivisions=1).apply_scale([1, 2, 3])
    solid.export(theirs)
    read = read_mesh(theirs)
    assert face_areas(read).sum() == pytest.approx(solid.area, rel=1e-5)
    write_mesh(ours, read)
    again = trimesh.load(ours, force="mesh")
    assert (again.area, again.volume) == pytest.approx((solid.area, solid.volume), rel=1e-5)


def test_trimesh_scene_with_a_turned_and_a_mirrored_node_is_read_in_the_scenes_frame(tmp_path):
    trimesh = pytest.importorskip("trimesh", reason="trimesh is what we compare with")
    scene = trimesh.Scene()
    box = trimesh.creation.box((1, 2, 3))
    turned = trimesh.transformations.rotation_matrix(0.7, [1, 2, 3], [0.5, 0, 0])
    scene.add_geometry(box, transform=turned)
    scene.add_geometry(box, transform=np.diag([-1.0, 1, 2, 1]) @ trimesh.transformations.translation_matrix([4, 0, 0]))
    scene.export(tmp_path / "scene.glb")
    found = read_mesh(tmp_path / "scene.glb")
    whole = scene.to_mesh()
    np.testing.assert_allclose(found.vertices.min(axis=0), whole.bounds[0], atol=1e-5)
    np.testing.assert_allclose(found.vertices.max(axis=0), whole.bounds[1], atol=1e-5)
    inside = trimesh.Trimesh(found.vertices, found.faces)
    assert inside.volume == pytest.approx(6 + 12, rel=1e-5)  # negative where triangles were turned inside out


def test_obj_spellings(tmp_path):
    file = tmp_path / "a.obj"
    file.write_text(
        "# a quad, a relative triangle, continued lines\r\n"
        "mtllib none.mtl\nv 0 0 0 1 0 0\nv 1 0 0 \\\n 0 1 0\nv 1 1 0 0 0 1\nv 0 1 0 1 1 1\n"
        "vt 0 0\nvt 1 0\nvt 1 1\nvt 0.5\nvn 0 0 1\ng some\nf 1/1/1 2/2/1 3/3/1 4/4/1\nf -4//1 -3//1 -2//1\nl 1 2\n"
    )
    mesh = read_mesh(file)
    assert mesh.faces.tolist() == [[0, 1, 2], [0, 2, 3], [0, 1, 2]]
    assert mesh.colours.tolist() == [[1, 0, 0], [0, 1, 0], [0, 0, 1], [1, 1, 1]]
    assert mesh.uvs[1].tolist() == [[0, 0], [1, 1], [0.5, 0]]
    assert np.isnan(mesh.uvs[2]).all()


def test_texture_options_are_stepped_over(tmp_path):
    (tmp_path / "my wood.png").write_bytes(b"picture")
    (tmp_path / "a.mtl").write_text("newmtl m\nKd 0.5 0.5 0.5\nmap_Kd -s 1 2 -blendu on my wood.png\n")
    (tmp_path / "a.obj").write_text("mtllib a.mtl\nusemtl m\nv 0 0 0\nv 1 0 0\nv 0 1 0\nf 1 2 3\n")
    material = read_mesh(tmp_path / "a.obj").materials[0]
    assert (material.texture, material.colour) == (b"picture", (0.5, 0.5, 0.5))


HEADER = "element vertex 4\nproperty double x\nproperty double y\nproperty double z\n"


def ply_bytes(order):
    """The tetrahedron with one face as a quad, which a fast path for triangles cannot read."""
    name = {"<": "binary_little_endian", ">": "binary_big_endian", "": "ascii"}[order]
    faces = [[0, 2, 1], [0, 1, 3, 2]]
    head = f"ply\nformat {name} 1.0\ncomment x\n{HEADER}element face 2\nproperty list uchar uint vertex_index\n"
    head += "property uchar flag\nend_header\n"
    if not order:
        rows = [" ".join(map(str, row)) for row in TETRAHEDRON]
        rows += [" ".join(map(str, [len(face), *face, 7])) for face in faces]
        return (head + "\n".join(rows) + "\n").encode()
    body = TETRAHEDRON.astype(order + "f8").tobytes()
    for face in faces:
        body += struct.pack(f"{order}B{len(face)}IB", len(face), *face, 7)
    return head.encode() + body


@pytest.mark.parametrize("order", ["", "<", ">"], ids=["text", "little", "big"])
def test_every_kind_of_ply(tmp_path, order):
    (tmp_path / "a.ply").write_bytes(ply_bytes(order))
    mesh = read_mesh(tmp_path / "a.ply")
    assert mesh.faces.tolist() == [[0, 2, 1], [0, 1, 3], [0, 3, 2]]
    np.testing.assert_array_equal(mesh.vertices, TETRAHEDRON)


@pytest.mark.parametrize("order", ["", "<"], ids=["text", "binary"])
def test_ply_that_is_cut_short(tmp_path, order):
    (tmp_path / "a.ply").write_bytes(ply_bytes(order)[:-8])
    with pytest.raises(MeshFileError, match=r"a\.ply.*cut short: 1 of 2 rows of element 'face'"):
        read_mesh(tmp_path / "a.ply")


def glb(document, binary=b"", version=2):
    text = json.dumps(document).encode()
    text += b" " * (-len(text) % 4)
    chunks = struct.pack("<II", len(text), 0x4E4F534A) + text + struct.pack("<II", len(binary), 0x004E4942) + binary
    return struct.pack("<III", 0x46546C67, version, 12 + len(chunks)) + chunks


def glb_strip(mode=5):
    positions = np.array([[0, 0, 0], [1, 0, 0], [0, 1, 0], [1, 1, 0]], "<f4").tobytes()
    return {
        "nodes": [{"mesh": 0}],
        "meshes": [{"primitives": [{"attributes": {"POSITION": 0}, "mode": mode}]}],
        "accessors": [{"bufferView": 0, "componentType": 5126, "count": 4, "type": "VEC3"}],
        "bufferViews": [{"buffer": 0, "byteLength": len(positions)}],
        "buffers": [{"byteLength": len(positions)}],
    }, positions


def test_glb_strips_keep_their_side(tmp_path):
    (tmp_path / "a.glb").write_bytes(glb(*glb_strip()))
    mesh = read_mesh(tmp_path / "a.glb")
    assert mesh.faces.tolist() == [[0, 1, 2], [2, 1, 3]]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda d: d.update(extensionsRequired=["KHR_draco_mesh_compression"]), "KHR_draco_mesh_compression"),
        (lambda d: d["accessors"][0].update(count=400), "accessor 0 reaches past the end of its buffer of 48 bytes"),
        (lambda d: d["accessors"][0].update(sparse={}), "accessor 0 is sparse"),
        (lambda d: d["accessors"][0].pop("bufferView"), "accessor 0 has no data"),
        (lambda d: d["nodes"][0].update(children=[0]), "node 0 lies more than 64 deep"),
        (lambda d: d["buffers"][0].update(uri="../secret.bin"), "'../secret.bin', outside its own folder"),
        (lambda d: d["meshes"][0]["primitives"][0].update(mode=1), "it has no vertices"),
        (lambda d: d.pop("accessors"), "accessors"),
        (lambda d: d["nodes"].insert(0, "a"), "its scene is not as glTF describes one"),
        (lambda d: d.update(buffers=["a"]), "its scene is not as glTF describes one"),
        (lambda d: d["meshes"][0]["primitives"][0].update(material=10**30), "its scene is not as glTF describes one"),
    ],
)
def test_glb_that_cannot_be_read(tmp_path, change, words):
    document, binary = glb_strip()
    change(document)
    (tmp_path / "a.glb").write_bytes(glb(document, binary))
    with pytest.raises(MeshFileError, match=words) as caught:
        read_mesh(tmp_path / "a.glb")
    assert "a.glb" in str(caught.value)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.obj", b"", "the file is empty"),
        ("a.obj", b"# nothing\n", "it has no vertices"),
        ("a.obj", b"v 0 0 0\nv 1 0 0\n", "it has 2 vertices but no faces"),
        ("a.obj", b"v 0 0 0\nv 1 0 0\nv 0 1 nan\nf 1 2 3\n", r"vertex 2 is \[0.0, 1.0, nan\]"),
        ("a.obj", b"v 0 0 0\nv 1 0 0\nv 0 1 0\nf 1 2 9\n", "a face names vertex 8, but there are 3"),
        ("a.obj", b"v 0 0 0\nv 1 0 0\nv 0 1 0\nf 0 1 2\n", "line 4, 'f 0 1 2': index 0 where there are 3"),
        ("a.obj", b"v 0 0 0\nv 1 0 0\nv 0 1 0\nf 1 2\n", "line 4, 'f 1 2': 2 corners are no face"),
        ("a.obj", b"v 0 0\n", "line 1, 'v 0 0': 2 numbers are no vertex"),
        ("a.obj", b"v a b c\n", "line 1"),
        ("a.obj", b"v 0 0 0\nv 1 0 0\nv 2 0 0\nf 1 2 3\n", "none of its 1 faces has an area"),
        ("a.obj", b"v 0 0 0\nv 1 0 0\nv 0 1 0\nvt 0 0\nf 1/1 2/5 3/1\n", "texture coordinate 5 of 1"),
        ("a.obj", b"v 0 0 0\nv 1 0 0\nv 0 1 0\nvt 0 0\nf 1/1 2/2 3/1\n", "texture coordinate 2 of 1"),
        ("a.ply", b"solid", "does not begin with a PLY header"),
        ("a.ply", b"ply\nformat odd 1.0\nend_header\n", "its format is neither"),
        ("a.ply", b"ply\nformat ascii 1.0\nend_header\n", "no element 'vertex'"),
        ("a.glb", b"glTF", "it is cut short: 4 bytes are less than a GLB header"),
        ("a.glb", glb([]), "its scene is not as glTF describes one"),
        ("a.glb", glb({}, version=1), "glTF version is 1"),
        ("a.glb", glb({})[:-3] + b"", "cut short"),
        ("a.stl", b"solid", r"\.stl is not read"),
    ],
)
def test_what_is_wrong_is_said_with_the_file(tmp_path, name, content, words):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(MeshFileError, match=words) as caught:
        read_mesh(tmp_path / name)
    assert name in str(caught.value)
    again = pickle.loads(pickle.dumps(caught.value))
    assert str(again) == str(caught.value)


def damaged(content, chance):
    """The content with some bytes changed, removed or added."""
    content = bytearray(content)
    for _ in range(chance.integers(1, 6)):
        at = int(chance.integers(len(content)))
        kind = chance.integers(3)
        if kind == 0:
            content[at] = int(chance.integers(256))
        elif kind == 1:
            del content[at : at + int(chance.integers(1, 8))]
        else:
            content[at:at] = bytes(chance.integers(48, 58, 3, dtype=np.uint8))
    return bytes(content)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("suffix", [".obj", ".ply", ".glb"])
def test_damaged_files_are_read_or_refused_and_nothing_else(tmp_path, suffix):
    write_mesh(tmp_path / f"a{suffix}", painted())
    contents = [(tmp_path / f"a{suffix}").read_bytes()] + (
        [ply_bytes(o) for o in ("", ">")] if suffix == ".ply" else []
    )
    chance, refused = np.random.default_rng(0), 0
    for number in range(150):
        (tmp_path / f"b{suffix}").write_bytes(damaged(contents[number % len(contents)], chance))
        try:
            assert len(read_mesh(tmp_path / f"b{suffix}").faces) > 0
        except MeshFileError:
            refused += 1
    assert 0 < refused < 150


def test_a_missing_file_and_a_missing_texture_are_named(tmp_path):
    with pytest.raises(MeshFileError, match=r"gone\.obj.*No such file"):
        read_mesh(tmp_path / "gone.obj")
    (tmp_path / "a.mtl").write_text("newmtl m\nmap_Kd gone.png\n")
    (tmp_path / "a.obj").write_text("mtllib a.mtl\nv 0 0 0\nv 1 0 0\nv 0 1 0\nf 1 2 3\n")
    with pytest.raises(MeshFileError, match=r"a\.mtl.*gone\.png"):
        read_mesh(tmp_path / "a.obj")


def test_other_suffixes_are_not_written(tmp_path):
    with pytest.raises(MeshFileError, match=r"\.stl is not written"):
        write_mesh(tmp_path / "a.stl", painted())


def test_faults_are_counted():
    vertices = np.vstack([TETRAHEDRON, [[5, 5, 5]]])
    fine = find_faults(Mesh(vertices=vertices, faces=FACES))
    assert (fine.num_degenerate, fine.num_open_edges, fine.num_crowded_edges) == (0, 0, 0)
    assert fine.in_words() == []
    odd = Mesh(vertices=vertices, faces=np.vstack([FACES, [[0, 1, 4], [2, 2, 1]]]))
    check_mesh(odd, "odd")
    found = find_faults(odd)
    assert (found.num_degenerate, found.num_crowded_edges) == (1, 2)
    assert found.in_words() == ["1 face without an area, left out", "2 edges of more than two faces (not a manifold)"]


def test_normalised_by_what_faces_use():
    mesh = normalised(Mesh(vertices=np.vstack([TETRAHEDRON, [[99, 0, 0]]]), faces=FACES), 0.5)
    used = mesh.vertices[:4]
    np.testing.assert_allclose(used.min(axis=0) + used.max(axis=0), 0, atol=1e-12)
    assert np.linalg.norm(np.ptp(used, axis=0)) == pytest.approx(0.5)
