"""Many pictures: the same meshes as one by one, whatever the batch."""

from __future__ import annotations

import io

import numpy as np
import pytest
import torch

from hotlap.base.errors import DataError
from hotlap.data.white_picture import decode_white_picture
from hotlap.mesh import many as many_module
from hotlap.mesh.drawn import draw_objects
from hotlap.mesh.many import ManyPictures
from hotlap.mesh.pixel2mesh_lite import Pixel2MeshLite

Image = pytest.importorskip("PIL.Image")


def encoded(count: int) -> tuple[list[bytes], torch.Tensor]:
    made = draw_objects(torch.arange(count), views=1, size=64, points=4, seed=0, device=torch.device("cpu"))
    images = made["image"][:, 0]
    blobs = []
    for image in images:
        stream = io.BytesIO()
        Image.fromarray(image.permute(1, 2, 0).numpy()).save(stream, "PNG")
        blobs.append(stream.getvalue())
    return blobs, images


def test_batches_with_a_ragged_end_give_every_pictures_mesh(device, plain_float32):
    torch.manual_seed(0)
    model = Pixel2MeshLite(subdivisions=0).to(device).eval()
    blobs, images = encoded(3)
    many = ManyPictures(model, batch=2, size=64, workers=2, dtype=None)
    got = many(blobs)
    assert many([]).shape == (0, 12, 3)
    with pytest.raises(DataError, match="picture 1 cannot be decoded"):
        many([blobs[0], b"no picture"])
    many.close()
    with torch.no_grad():
        want = model(images.to(device)).cpu()
    assert got.device.type == "cpu"
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("mode", "options"),
    [("RGB", {"quality": 95}), ("RGB", {"quality": 60, "progressive": True}), ("L", {}), ("CMYK", {})],
)
def test_either_library_gives_the_same_pixels_of_a_jpeg(monkeypatch, mode, options):
    pytest.importorskip("torchvision")
    rng = torch.Generator().manual_seed(0)
    coarse = torch.randint(0, 256, (7, 9, 3), generator=rng, dtype=torch.uint8).numpy()
    stream = io.BytesIO()
    Image.fromarray(coarse).resize((72, 56), Image.Resampling.BICUBIC).convert(mode).save(stream, "JPEG", **options)
    quick = many_module._pixels(stream.getvalue())
    monkeypatch.setattr(many_module, "_jpeg_decoder", lambda: None)
    plain = many_module._pixels(stream.getvalue())
    assert quick.shape == plain.shape == (56, 72, 3)
    assert (quick == plain).all()


def odd_pictures() -> dict[str, bytes]:
    """A dark corner on white as files that say more than their colours."""
    grey = np.full((64, 64), 255, np.uint8)
    grey[:20, :40] = 60
    exif = Image.Exif()
    exif[0x0112] = 6
    made = {
        "alpha": (Image.fromarray(np.dstack([np.zeros((64, 64, 3), np.uint8), 255 - grey])), "PNG", {}),
        "grey": (Image.fromarray(grey), "PNG", {}),
        "16-bit": (Image.fromarray(grey.astype(np.uint16) * 257), "PNG", {}),
        "exif": (Image.fromarray(grey).convert("RGB"), "JPEG", {"exif": exif, "quality": 95}),
        "wide": (Image.fromarray(grey[:30]).convert("RGB"), "JPEG", {"quality": 95}),
    }
    files = {}
    for name, (image, kind, options) in made.items():
        stream = io.BytesIO()
        image.save(stream, kind, **options)
        files[name] = stream.getvalue()
    return files


@pytest.mark.parametrize("name", ["alpha", "grey", "16-bit", "exif", "wide"])
def test_pictures_are_read_as_a_prediction_reads_them(name):
    content = odd_pictures()[name]
    place = np.zeros((64, 64, 3), np.uint8)
    many_module._decode_into(content, 0, place)
    wanted = decode_white_picture(content, 64, name).permute(1, 2, 0).numpy()
    assert np.abs(place.astype(int) - wanted).max() <= 1
    assert place[63, 0].min() > 240, "white stays white"


def test_jpegs_of_any_size_and_in_any_number_of_threads(device):
    model = Pixel2MeshLite(subdivisions=0).to(device).eval()
    blobs = []
    for image in encoded(5)[1]:
        stream = io.BytesIO()
        Image.fromarray(image.permute(1, 2, 0).numpy()).resize((40, 90)).save(stream, "JPEG")
        blobs.append(stream.getvalue())
    found = []
    for workers in (1, 3, 8):
        many = ManyPictures(model, batch=4, size=64, workers=workers, dtype=None)
        found.append(many(blobs))
        with pytest.raises(DataError, match="picture 4 cannot be decoded"):
            many([*blobs[:4], blobs[4][:200]])
        assert torch.equal(many(blobs), found[-1]), "nothing of the call that failed is left"
        many.close()
    assert torch.equal(found[0], found[1]) and torch.equal(found[0], found[2])
