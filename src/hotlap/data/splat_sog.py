"""Splats from SOG of version 2, PlayCanvas's format: numbers as lossless WebP pictures, and a meta.json. Read only.

It comes as one ``.sog`` file, which is a zip archive, or as a folder with the same files.
"""

from __future__ import annotations

import io
import json
import math
import zipfile
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from hotlap.base.errors import DataError
from hotlap.data.file_bytes import ZIP_FAULTS, read_whole, unreadable
from hotlap.data.picture_file import require_pillow
from hotlap.data.splat_bytes import from_three, logit
from hotlap.data.splats import SH_COEFFS, Splats

MOST_RATIO = 1100
"""Splats or bytes for each byte of the file, at most; real ones take a byte or more."""
_SPARE_PIXELS = 1 << 16
_FIRST_TAG = 252
_PALETTE_ROW = 64
_MOST_LOG = 80.0
"""exp of more leaves the range of float32."""
_CODES = 256

Read = Callable[[str], bytes]


def read_sog(path: Path) -> Splats:
    """The splats of a ``.sog`` file, of a folder, or of the folder that a meta.json lies in."""
    folder = path.parent if path.name == "meta.json" else path
    if folder.is_dir():
        files = sum(file.stat().st_size for file in folder.iterdir() if file.is_file())
        return _Sog(path, lambda name: read_whole(folder / name), files).splats()
    with _opened(path) as archive:
        size = path.stat().st_size
        return _Sog(path, lambda name: _from_zip(path, archive, name, size), size).splats()


def _opened(path: Path) -> zipfile.ZipFile:
    try:
        return zipfile.ZipFile(path)
    except ZIP_FAULTS as error:
        raise _damaged(path, error) from error
    except OSError as error:
        raise unreadable(path, error) from error


def _from_zip(path: Path, archive: zipfile.ZipFile, name: str, size: int) -> bytes:
    try:
        entry = archive.getinfo(name)
    except KeyError as error:
        raise DataError(f"file {str(path)!r} has no part {name!r}") from error
    if entry.file_size > MOST_RATIO * size:
        raise DataError(f"file {str(path)!r}: part {name!r} claims {entry.file_size} bytes in a file of {size}")
    try:
        return archive.read(entry)
    except (*ZIP_FAULTS, OSError) as error:
        raise _damaged(path, error) from error


def _damaged(path: Path, error: Exception) -> DataError:
    return DataError(f"file {str(path)!r} is damaged: {error}", remedy="Copy or export the file again")


class _Sog:
    """One file's parts, and how to get at them."""

    def __init__(self, path: Path, read: Read, size: int) -> None:
        self.path, self.read = path, read
        try:
            self.meta = json.loads(read("meta.json"))
        except (ValueError, RecursionError) as error:
            raise self.fault(f"its meta.json is no JSON: {error}") from error
        version = self.get(self.meta, "version", int)
        if version != 2:
            raise self.fault(f"it is of version {version}, not 2")
        self.num = self.get(self.meta, "count", int)
        if not 0 <= self.num <= MOST_RATIO * size:
            raise self.fault(f"it claims {self.num} splats in {size} bytes")

    def fault(self, what: str) -> DataError:
        """The error for what is wrong with this file."""
        return DataError(f"file {str(self.path)!r} is no SOG file that can be read: {what}")

    def get(self, table: Any, key: str, kind: type) -> Any:
        """A value of meta.json of the kind that it must have."""
        value = table.get(key) if isinstance(table, dict) else None
        if not isinstance(value, kind) or isinstance(value, bool):
            raise self.fault(f"{key} = {str(value)[:40]} in its meta.json is no {kind.__name__}")
        return value

    def numbers(self, table: Any, key: str, count: int) -> np.ndarray:  # [count] float64
        """A list of numbers of meta.json; a code that is not listed stands for 0."""
        values = self.get(table, key, list)
        good = all(isinstance(value, (int, float)) and math.isfinite(value) for value in values[:count])
        if not good or (len(values) != count and count != _CODES):
            raise self.fault(f"{key} in its meta.json is no list of {count} finite numbers")
        made = np.zeros(count)
        made[: len(values)] = values[:count]
        return made

    def picture(self, table: Any, number: int) -> np.ndarray:  # [H, W, 4] uint8
        """One of the pictures that a part of meta.json lists."""
        files = self.get(table, "files", list)
        name = files[number] if number < len(files) else None
        if not isinstance(name, str) or not name or PurePosixPath(name).name != name or "\0" in name or "\\" in name:
            raise self.fault(f"part {number} of {files} is no name of a file beside its meta.json")
        image_module = require_pillow()
        try:
            with image_module.open(io.BytesIO(self.read(name)), formats=["WEBP", "PNG"]) as image:
                if image.width * image.height > 4 * self.num + _SPARE_PIXELS:
                    raise self.fault(f"{name!r} is {image.width}x{image.height} pixels for {self.num} splats")
                return np.array(image.convert("RGBA"))
        except (OSError, ValueError, SyntaxError, EOFError, image_module.DecompressionBombError) as error:
            raise self.fault(f"{name!r} is no picture: {error}") from error

    def rows(self, table: Any, number: int) -> np.ndarray:  # [N, 4] uint8
        """A pixel of a picture for each splat."""
        pixels = self.picture(table, number).reshape(-1, 4)
        if len(pixels) < self.num:
            raise self.fault(f"part {number} of {table['files']} has {len(pixels)} pixels for {self.num} splats")
        return pixels[: self.num]

    def splats(self) -> Splats:
        """All of its parts together."""
        means, scales = self.get(self.meta, "means", dict), self.get(self.meta, "scales", dict)
        quats, colors = self.get(self.meta, "quats", dict), self.get(self.meta, "sh0", dict)
        color, turn = self.rows(colors, 0), self.rows(quats, 0)
        three = (turn[:, :3] / 255 * 2 - 1) * np.sqrt(0.5)
        turned = from_three((turn[:, 3].astype(np.int64) - _FIRST_TAG).clip(0), three)
        turned[turn[:, 3] < _FIRST_TAG] = (1, 0, 0, 0)  # what other readers make of a rotation without its mark
        return Splats(
            means=self.means(means),
            log_scales=self.numbers(scales, "codebook", _CODES)[self.rows(scales, 0)[:, :3]].astype(np.float32),
            quats=turned,
            logit_opacities=logit(color[:, 3] / 255),
            sh0=self.numbers(colors, "codebook", _CODES)[color[:, :3]].astype(np.float32),
            shN=self.rest(),
        )

    def means(self, table: Any) -> np.ndarray:  # [N, 3] float32
        """Centres: 16 bits between limits of sign(x) log(|x| + 1)."""
        low, high = self.numbers(table, "mins", 3), self.numbers(table, "maxs", 3)
        steps = self.rows(table, 0)[:, :3].astype(np.int64) | self.rows(table, 1)[:, :3].astype(np.int64) << 8
        bent = low + (high - low) * (steps / 65535)
        return (np.sign(bent) * np.expm1(np.abs(bent).clip(0, _MOST_LOG))).astype(np.float32)

    def rest(self) -> np.ndarray:  # [N, K, 3] float32
        """The coefficients beside the constant one, of which splats share a palette."""
        if self.meta.get("shN") is None:
            return np.zeros((self.num, 0, 3), np.float32)
        table = self.get(self.meta, "shN", dict)
        bands = self.get(table, "bands", int)
        if not 0 <= bands <= 3:
            raise self.fault(f"bands = {bands} in its meta.json is not from 0 to 3")
        coeffs = SH_COEFFS[bands]
        if not coeffs:
            return np.zeros((self.num, 0, 3), np.float32)
        palette, marks = self.picture(table, 0), self.rows(table, 1)
        if palette.shape[1] != _PALETTE_ROW * coeffs:
            raise self.fault(f"its palette is {palette.shape[1]} pixels wide, not {_PALETTE_ROW * coeffs}")
        codes = palette[..., :3].reshape(-1, coeffs, 3)
        which = marks[:, 0].astype(np.int64) | marks[:, 1].astype(np.int64) << 8
        if self.num and which.max() >= len(codes):
            raise self.fault(f"a splat names colour {which.max()} of a palette of {len(codes)}")
        return self.numbers(table, "codebook", _CODES)[codes[which]].astype(np.float32)
