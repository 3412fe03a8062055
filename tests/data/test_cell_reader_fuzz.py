"""Damaged micrographs and files of outlines: an answer or one of our errors, and no more memory than a reader may take.

``damage`` says how many cases there are.
"""

from __future__ import annotations

import io

import numpy as np
import pytest
from damage import FUZZ, damage, edits, sound_or_ours
from hypothesis import given

from hotlap.data.coco import CocoImage, coco_document, coco_image, read_coco
from hotlap.data.geojson import read_geojson, write_geojson
from hotlap.data.imagej_roi import read_rois, write_rois
from hotlap.data.micrograph import read_pictures
from hotlap.data.tiff import write_tiff
from hotlap.data.yolo_seg import read_yolo, write_yolo
from hotlap.kernels.unfilter.op import unfilter

Image = pytest.importorskip("PIL.Image", reason="micrographs are read by Pillow")
pytest.importorskip("numba")
from hotlap.segment.contours import outlines  # noqa: E402 - it needs numba

SIDE = 24
LABELS = np.zeros((SIDE, SIDE), np.int32)
LABELS[2:10, 3:12] = 1
LABELS[5:7, 5:8] = 0
LABELS[14:20, 8:22] = 2


def saved(kind: str, mode: str = "RGB", pages: int = 1, **options) -> bytes:
    draw, out = np.random.default_rng(0), io.BytesIO()
    made = []
    for _ in range(pages):
        if mode == "F":
            made.append(Image.fromarray(draw.normal(size=(SIDE, SIDE)).astype(np.float32)))
        elif mode == "I;16":
            made.append(Image.fromarray(draw.integers(60_000, size=(SIDE, SIDE), dtype=np.uint16)))
        else:
            made.append(Image.fromarray(draw.integers(256, size=(SIDE, SIDE, 3), dtype=np.uint8)).convert(mode))
    more = {"save_all": True, "append_images": made[1:]} if pages > 1 else {}
    made[0].save(out, kind, **more, **options)
    return out.getvalue()


PICTURES = {
    "rgb.png": lambda: saved("PNG"),
    "palette.png": lambda: saved("PNG", "P"),
    "deep.png": lambda: saved("PNG", "I;16"),
    "rgb.jpg": lambda: saved("JPEG"),
    "still.gif": lambda: saved("GIF", "P"),
    "rgb.webp": lambda: saved("WEBP", lossless=True),
    "rgb.bmp": lambda: saved("BMP"),
    "plain.tif": lambda: saved("TIFF"),
    "lzw.tif": lambda: saved("TIFF", compression="tiff_lzw"),
    "deflate.tif": lambda: saved("TIFF", "I;16", compression="tiff_adobe_deflate"),
    "packbits.tif": lambda: saved("TIFF", "L", compression="packbits"),
    "bits.tif": lambda: saved("TIFF", "1", compression="group4"),
    "float.tif": lambda: saved("TIFF", "F"),
    "stack.tif": lambda: saved("TIFF", "L", pages=3),
    "labels.tif": lambda: write_tiff(LABELS.astype(np.uint16)),
}


@pytest.mark.parametrize(("name", "rows"), [*((name, None) for name in PICTURES), ("rgb.png", unfilter)])
def test_damaged_micrographs(name, rows, tmp_path):
    path, content = tmp_path / name, PICTURES[name]()

    @FUZZ
    @given(changes=edits())
    def run(changes):
        path.write_bytes(damage(content, changes))
        pages: list[object] = []
        sound_or_ours(
            lambda: pages.extend(read_pictures(path, most_pixels=1 << 20, hear=pages.append, rows=rows)),
            path.stat().st_size,
        )

    path.write_bytes(content)
    assert list(read_pictures(path)), "the sound file can be read"
    run()


def outline_files() -> dict[str, bytes]:
    found = outlines(LABELS, tolerance=0.5)
    coco = coco_document([coco_image(CocoImage("a.png", LABELS, [0.5, 0.25]))], "cell")
    return {
        "a.zip": write_rois(found),
        "a.geojson": write_geojson(found, {1: {"area": 3.0}, 2: {"area": 4.0}}, "cell").encode(),
        "a.txt": write_yolo(found, SIDE, SIDE).encode(),
        "a.json": coco.encode(),
    }


READERS = {
    "a.zip": read_rois,
    "a.geojson": read_geojson,
    "a.txt": lambda path: read_yolo(path, SIDE, SIDE),
    "a.json": read_coco,
}


@pytest.mark.parametrize("name", READERS)
def test_damaged_outlines(name, tmp_path):
    path, content, read = tmp_path / name, outline_files()[name], READERS[name]

    @FUZZ
    @given(changes=edits())
    def run(changes):
        path.write_bytes(damage(content, changes))
        sound_or_ours(lambda: read(path), path.stat().st_size)

    path.write_bytes(content)
    assert len(read(path)), "the sound file can be read"
    run()
