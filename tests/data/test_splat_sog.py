"""SOG files by hand: what their pictures mean, as a zip archive and as a folder."""

from __future__ import annotations

import zipfile

import numpy as np
import pytest

from hotlap.base.errors import DataError
from hotlap.data.splats import read_splats

features = pytest.importorskip("PIL.features", reason="SOG is made of pictures")
if not features.check("webp"):
    pytest.skip("this Pillow has no WebP", allow_module_level=True)

from sog_files import sog, webp, zipped  # noqa: E402 - it needs Pillow


def test_what_the_pictures_mean(tmp_path):
    got = read_splats(zipped(tmp_path / "a.sog", sog()))
    ends = np.expm1([1.0, 0.0, 0.0]), [-np.expm1(1.0), np.expm1(2 * 128 * 256 / 65535), 0]
    np.testing.assert_allclose(got.means, ends, rtol=1e-6)
    np.testing.assert_allclose(got.log_scales, [[-0.1, -0.2, -0.3], [0, 0, -4.0]], rtol=1e-6)
    step = 1 / 255  # 128 of 255 is half a step off the middle
    np.testing.assert_allclose(got.quats, [[1, 0, 0, 0], [0, 0, 0.7071, 0.7071]], atol=step)
    np.testing.assert_allclose(got.sh0[0], [-1, 1, -0.6], rtol=1e-5)
    np.testing.assert_allclose(1 / (1 + np.exp(-got.logit_opacities[0])), 0.2, rtol=1e-5)
    codes = np.linspace(-1, 1, 256)
    np.testing.assert_allclose(got.shN, codes[[np.arange(9).reshape(3, 3), np.zeros((3, 3), int)]], rtol=1e-6)
    assert not got.bad().any()


@pytest.mark.parametrize("degree", [0, 2, 3])
def test_every_degree_as_a_folder_and_packed(tmp_path, degree):
    parts = sog(degree)
    (tmp_path / "sog").mkdir()
    for name, content in parts.items():
        (tmp_path / "sog" / name).write_bytes(content)
    zipped(tmp_path / "a.sog", parts, zipfile.ZIP_DEFLATED)
    for path in (tmp_path / "a.sog", tmp_path / "sog", tmp_path / "sog" / "meta.json"):
        got = read_splats(path)
        assert len(got) == 2 and got.sh_degree == degree


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"version": 3}, "it is of version 3, not 2"),
        ({"version": None}, "version = None in its meta.json is no int"),
        ({"count": 10**12}, "it claims 1000000000000 splats"),
        ({"count": -1}, "it claims -1 splats"),
        ({"count": 17}, "has 16 pixels for 17 splats"),
        ({"quats": {"files": ["../quats.webp"]}}, "is no name of a file"),
        ({"quats": {"files": ["none.webp"]}}, "has no part 'none.webp'"),
        ({"quats": {"files": ["meta.json"]}}, "'meta.json' is no picture"),
        ({"quats": {"files": []}}, r"part 0 of \[\] is no name"),
        ({"scales": {"codebook": ["a"], "files": ["scales.webp"]}}, "codebook in its meta.json is no list of 256"),
        ({"means": {"mins": [0, 1], "maxs": [1, 1, 1], "files": ["means_l.webp", "means_u.webp"]}}, "mins in its"),
        ({"shN": {"bands": 4}}, "bands = 4"),
        ({"shN": {"bands": 1, "codebook": [], "files": ["sh0.webp", "sh0.webp"]}}, "is 4 pixels wide, not 192"),
        ({"shN": {"bands": 1, "codebook": [], "files": ["shN_centroids.webp", "sh0.webp"]}}, "names colour 65280"),
    ],
)
def test_damage_is_named(tmp_path, changes, message):
    with pytest.raises(DataError, match=message):
        read_splats(zipped(tmp_path / "a.sog", sog(**changes)))


def test_archives_that_are_none(tmp_path):
    path = zipped(tmp_path / "a.sog", sog())
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(DataError, match=r"a\.sog' is damaged"):
        read_splats(path)
    with pytest.raises(DataError, match=r"has no part 'meta\.json'"):
        read_splats(zipped(tmp_path / "b.sog", {"other": b""}))
    with pytest.raises(DataError, match=r"its meta\.json is no JSON"):
        read_splats(zipped(tmp_path / "c.sog", {"meta.json": b"{"}))
    bomb = sog() | {"quats.webp": bytes(8_000_000)}
    with pytest.raises(DataError, match=r"'quats\.webp' claims 8000000 bytes in a file of"):
        read_splats(zipped(tmp_path / "d.sog", bomb, zipfile.ZIP_BZIP2))


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [(6, b"\x63\x00", "zip file version 9.9"), (46, b"\xff", "codec can't decode"), (42, b"\xff" * 4, "")],
    ids=["version", "name", "offset"],
)
def test_a_table_of_contents_that_lies_is_named(tmp_path, place, value, message):
    """A version that nobody knows, a name that is no text, a part that begins after the end."""
    path = zipped(tmp_path / "a.sog", sog())
    content = bytearray(path.read_bytes())
    entry = content.index(b"PK\x01\x02")
    content[entry + 9] |= 8  # names are UTF-8
    content[entry + place : entry + place + len(value)] = value
    path.write_bytes(content)
    with pytest.raises(DataError, match=rf"a\.sog' is damaged: .*{message}"):
        read_splats(path)


def test_a_picture_far_larger_than_its_splats_is_not_decoded(tmp_path):
    parts = sog() | {"quats.webp": webp([], 2000, 2000)}
    with pytest.raises(DataError, match=r"'quats\.webp' is 2000x2000 pixels for 2 splats"):
        read_splats(zipped(tmp_path / "a.sog", parts))


def test_a_folder_is_described_and_exported_as_a_file_is(tmp_path):
    from hotlap.splat.config import SplatExportConfig, SplatInfoConfig
    from hotlap.splat.opened import export, info

    folder = tmp_path / "sog"
    folder.mkdir()
    for name, content in sog().items():
        (folder / name).write_bytes(content)
    for path in (folder, folder / "meta.json"):
        assert info(SplatInfoConfig(what=str(path)))["splats"] == 2
        made = export(SplatExportConfig(model=str(path), out=str(tmp_path / "a.ply")))
        np.testing.assert_array_equal(read_splats(made).means, read_splats(folder).means)
    (folder / "transforms.json").write_text("{}")
    with pytest.raises(DataError, match=r"transforms\.json' has no frames"):
        info(SplatInfoConfig(what=str(folder)))
