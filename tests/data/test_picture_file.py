import errno
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch

from hotlap.data.picture_file import UnreadablePicture, read_square

Image = pytest.importorskip("PIL.Image", reason="reading images needs Pillow")
ImageOps = pytest.importorskip("PIL.ImageOps")


def whole(width, height):
    return 0, 0, width, height


def smooth(width, height):
    """A picture without fine detail, so that JPEG and scaling change little; no two of its turns look alike."""
    x, y = np.meshgrid(np.linspace(0, 1, width), np.linspace(0, 1, height))
    return np.stack([255 * x, 255 * y, 120 + 60 * x * y], -1).astype(np.uint8)


def pixels(image):
    return torch.from_numpy(np.array(image)).permute(2, 0, 1)


def test_pixels_are_kept_at_the_files_own_size(tmp_path):
    values = np.random.default_rng(0).integers(0, 256, (16, 16, 3), dtype=np.uint8)
    Image.fromarray(values).save(tmp_path / "a.png")
    got = read_square(str(tmp_path / "a.png"), whole, 16)
    assert got.dtype == torch.uint8 and torch.equal(got, pixels(values))


def test_the_box_is_cut_out(tmp_path):
    values = np.random.default_rng(0).integers(0, 256, (30, 40, 3), dtype=np.uint8)
    Image.fromarray(values).save(tmp_path / "a.png")
    got = read_square(
        str(tmp_path / "a.png"), lambda width, height: (width - 20, height - 12, width - 12, height - 4), 8
    )
    assert torch.equal(got, pixels(values[18:26, 20:28]))


@pytest.mark.parametrize(
    ("mode", "suffix"),
    [("L", ".jpg"), ("CMYK", ".jpg"), ("RGBA", ".png"), ("LA", ".png"), ("P", ".png"), ("1", ".png"), ("P", ".webp")],
)
def test_every_mode_becomes_rgb(tmp_path, mode, suffix):
    path = tmp_path / f"a{suffix}"
    flat = Image.new("RGB", (20, 20), (255, 255, 255)).convert(mode)
    if mode == "P" and suffix == ".png":
        flat.info["transparency"] = bytes(256)
        flat.save(path, transparency=bytes(256))
    else:
        (flat.convert("RGB") if suffix == ".webp" else flat).save(path)
    assert read_square(str(path), whole, 8).float().mean().item() == pytest.approx(255, abs=2)


def test_sixteen_bit_grey_keeps_its_brightness(tmp_path):
    Image.fromarray(np.full((20, 20), 32768, dtype=np.uint16)).save(tmp_path / "a.png")
    assert read_square(str(tmp_path / "a.png"), whole, 8).float().mean().item() == pytest.approx(128, abs=1)


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("size", [30, 6])  # at 6 the decoder shrinks the picture first
def test_a_turned_photo_is_cut_as_it_is_meant_to_be_seen(tmp_path, orientation, size):
    exif = Image.Exif()
    exif[0x0112] = orientation
    Image.fromarray(smooth(80, 48)).save(tmp_path / "a.jpg", quality=95, exif=exif)
    seen = ImageOps.exif_transpose(Image.open(tmp_path / "a.jpg"))
    sizes = []

    def corner(width, height):
        sizes.append((width, height))
        return 0, 0, width / 2, height / 2

    got = read_square(str(tmp_path / "a.jpg"), corner, size)
    want = seen.resize((size, size), Image.Resampling.BILINEAR, box=(0, 0, seen.width / 2, seen.height / 2))
    assert sizes == [seen.size]
    # Shrinking while decoding averages other pixels than scaling does; a wrong turn would be off by 50 and more.
    assert (got.float() - pixels(want).float()).abs().max() < 16


def test_a_large_jpeg_is_shrunk_while_it_is_decoded(tmp_path, monkeypatch):
    Image.fromarray(smooth(640, 480)).save(tmp_path / "a.jpg", quality=95)
    loaded = []
    resize = Image.Image.resize
    monkeypatch.setattr(
        Image.Image, "resize", lambda self, *a, **k: (loaded.append(self.size), resize(self, *a, **k))[1]
    )
    read_square(str(tmp_path / "a.jpg"), whole, 50)
    read_square(str(tmp_path / "a.jpg"), lambda width, height: (10, 10, 60, 60), 50)
    assert loaded[0] == (80, 60), "an eighth is still enough for 50 pixels"
    assert loaded[-1] == (640, 480), "a small crop needs every pixel"


def spoiled(folder: Path, kind: str) -> Path:
    path = folder / "a.jpg"
    Image.fromarray(smooth(64, 64)).save(path, quality=95)
    content = path.read_bytes()
    if kind == "empty":
        path.write_bytes(b"")
    elif kind == "cut":
        path.write_bytes(content[: len(content) - 100])
    elif kind == "header only":
        path.write_bytes(content[:20])
    elif kind == "text":
        path.write_text("<html>not found</html>")
    elif kind == "missing":
        path.unlink()
    elif kind == "broken png":
        Image.fromarray(np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)).save(path, "PNG")
        content = bytearray(path.read_bytes())
        content[200:260] = bytes(60)
        path.write_bytes(bytes(content))
    return path


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("empty", "the file is empty"),
        ("cut", "truncated"),
        ("header only", ""),
        ("text", "no known picture format"),
        ("missing", "No such file"),
        ("broken png", ""),
    ],
)
def test_a_bad_file_is_named_with_its_reason(tmp_path, kind, reason):
    path = spoiled(tmp_path, kind)
    with pytest.raises(UnreadablePicture, match=rf"a.jpg' cannot be read: .*{reason}") as caught:
        read_square(str(path), whole, 16)
    assert caught.value.path == str(path) and caught.value.reason
    assert pickle.loads(pickle.dumps(caught.value)).reason == caught.value.reason


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
def test_a_decompression_bomb_is_refused_before_it_goes_off(tmp_path, monkeypatch):
    Image.new("L", (64, 64)).save(tmp_path / "a.png")
    for most in (4095, 100):  # above once, and above twice, where Pillow itself refuses
        monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", most)
        with pytest.raises(UnreadablePicture, match=r"a.png' cannot be read: .*(64x64 pixels|decompression bomb)"):
            read_square(str(tmp_path / "a.png"), whole, 16)


def test_trouble_of_the_machine_is_not_the_pictures_fault(tmp_path, monkeypatch):
    def too_many(self):
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(Path, "read_bytes", too_many)
    with pytest.raises(OSError, match="Too many open files") as caught:
        read_square(str(tmp_path / "a.jpg"), whole, 16)
    assert not isinstance(caught.value, UnreadablePicture)
