"""Small SOG files by hand, for the tests of their reader."""

from __future__ import annotations

import io
import json
import zipfile

import numpy as np
from PIL import Image


def webp(pixels, width=4, height=4) -> bytes:
    """A lossless picture of these pixels, filled up with opaque black."""
    table = np.zeros((width * height, 4), np.uint8)
    table[:, 3] = 255
    table[: len(pixels)] = np.reshape(pixels, (-1, 4))
    file = io.BytesIO()
    Image.fromarray(table.reshape(height, width, 4)).save(file, "WEBP", lossless=True, exact=True)
    return file.getvalue()


def sog(degree=1, **changes) -> dict[str, bytes]:
    """The parts of a file of two splats."""
    coeffs = (0, 3, 8, 15)[degree]
    codes = np.linspace(-1, 1, 256).tolist()
    meta = {
        "version": 2,
        "count": 2,
        "means": {"mins": [-1.0, 0.0, 0.0], "maxs": [1.0, 2.0, 0.0], "files": ["means_l.webp", "means_u.webp"]},
        "scales": {"codebook": [-float(code) / 10 for code in range(256)], "files": ["scales.webp"]},
        "quats": {"files": ["quats.webp"]},
        "sh0": {"codebook": codes, "files": ["sh0.webp"]},
    }
    palette = np.zeros((64 * coeffs, 4), np.uint8)
    palette[coeffs : 2 * coeffs, :3] = np.arange(3 * coeffs).reshape(coeffs, 3)  # the second colour of the palette
    parts = {
        "means_l.webp": webp([(255, 0, 0, 255), (0, 0, 0, 255)]),
        "means_u.webp": webp([(255, 0, 0, 255), (0, 128, 0, 255)]),
        "scales.webp": webp([(1, 2, 3, 255), (0, 0, 40, 255)]),
        "quats.webp": webp([(128, 128, 128, 252), (128, 128, 255, 254)]),
        "sh0.webp": webp([(0, 255, 51, 51), (0, 0, 0, 255)]),
    }
    if degree:
        names = ["shN_centroids.webp", "shN_labels.webp"]
        meta["shN"] = {"count": 64, "bands": degree, "codebook": codes, "files": names}
        parts |= {names[0]: webp(palette, 64 * coeffs, 1), names[1]: webp([(1, 0, 0, 255), (0, 0, 0, 255)])}
    return {"meta.json": json.dumps(meta | changes).encode()} | parts


def zipped(path, parts, method=zipfile.ZIP_STORED):
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, content in parts.items():
            archive.writestr(name, content)
    return path
