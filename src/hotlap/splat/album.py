"""Pictures of a training: what was drawn beside what was photographed, and curves of its metrics, as PNG files."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hotlap.data.file_bytes import write_whole
from hotlap.data.picture_file import require_pillow
from hotlap.engine.journal import Row

GAP = 4
"""Pixels between two pictures."""
SHEET_WIDTH = 1200
"""Pixels of a sheet of several pictures."""
PANEL_WIDTH, PANEL_HEIGHT, MARGIN = 420, 240, 56
COLORS = {"train": (31, 119, 180), "eval": (214, 39, 40)}
CURVES = {"loss": "loss", "psnr": "PSNR, dB", "ssim": "SSIM", "splats": "splats"}


def as_bytes(picture: Tensor) -> np.ndarray:  # [H, W, 3] -> [H, W, 3] uint8
    """A picture of floating-point numbers, or of bytes, as bytes."""
    if picture.dtype == torch.uint8:
        return picture.cpu().numpy()
    return (picture.detach().clamp(0, 1) * 255).round().to(torch.uint8).cpu().numpy()


def side_by_side(photograph: Tensor, drawn: Tensor) -> np.ndarray:  # [H, W, 3] each
    """The photograph, the picture drawn, and how far they are apart, three times enlarged."""
    left, middle = as_bytes(photograph), as_bytes(drawn)
    apart = np.clip(np.abs(left.astype(int) - middle.astype(int)) * 3, 0, 255).astype(np.uint8)
    gap = np.full((left.shape[0], GAP, 3), 255, np.uint8)
    return np.concatenate([left, gap, middle, gap, apart], axis=1)


def sheet_of(rows: Sequence[np.ndarray]) -> np.ndarray:  # [H, W, 3] uint8 each
    """Some pictures one below the other, all of one width that pages have."""
    pillow = require_pillow()
    parts: list[np.ndarray] = []
    for row in rows:
        height = max(1, round(row.shape[0] * SHEET_WIDTH / row.shape[1]))
        parts += [np.asarray(pillow.fromarray(row).resize((SHEET_WIDTH, height), pillow.Resampling.LANCZOS))]
        parts += [np.full((GAP, SHEET_WIDTH, 3), 255, np.uint8)]
    return np.concatenate(parts[:-1])


def file_names(names: Sequence[str]) -> list[str]:
    """A PNG file's name for each view, no two alike: views in several folders may have the same name there."""
    stems = [PurePosixPath(name).stem for name in names]
    if len(set(stems)) == len(stems):
        return [f"{stem}.png" for stem in stems]
    return [f"{number:04d}_{stem}.png" for number, stem in enumerate(stems)]


def save_picture(path: Path, picture: np.ndarray) -> None:
    """Writes a PNG or JPEG file, as its name says; its folder is made."""
    made = io.BytesIO()
    require_pillow().fromarray(picture).save(made, "JPEG" if path.suffix == ".jpg" else "PNG", quality=85)
    write_whole(path, made.getvalue())


def draw_curves(path: Path, rows: Sequence[Row], judged: str = "held out") -> None:
    """Loss, PSNR, SSIM and number of splats over the steps, as a PNG file; training blue, what was ``judged`` red."""
    series: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for row in rows:
        for name, value in row.values.items():
            if name in CURVES and math.isfinite(value):
                series.setdefault(name, {}).setdefault(row.split, []).append((row.step, value))
    shown = [name for name in CURVES if name in series]
    if not shown:
        return
    pillow = require_pillow()
    from PIL import ImageDraw

    columns = min(2, len(shown))
    size = (columns * PANEL_WIDTH, -(-len(shown) // columns) * PANEL_HEIGHT)
    image = pillow.new("RGB", size, (255, 255, 255))
    draw = ImageDraw.Draw(image)
    for place, name in enumerate(shown):
        corner = (place % columns * PANEL_WIDTH, place // columns * PANEL_HEIGHT)
        _draw_panel(draw, corner, name, series[name], {"train": "training", "eval": judged})
    save_picture(path, np.asarray(image))


def _draw_panel(
    draw: Any, corner: tuple[int, int], name: str, lines: dict[str, list[tuple[float, float]]], words: dict[str, str]
) -> None:
    points = [point for line in lines.values() for point in line]
    (x0, x1), (y0, y1) = ((min(axis), max(axis)) for axis in zip(*points, strict=True))
    x1, y1 = (x1 if x1 > x0 else x0 + 1), (y1 if y1 > y0 else y0 + max(1e-6, abs(y0) * 0.1))
    left, top = corner[0] + MARGIN, corner[1] + 24
    right, bottom = corner[0] + PANEL_WIDTH - 12, corner[1] + PANEL_HEIGHT - 28
    draw.rectangle([left, top, right, bottom], outline=(200, 200, 200))
    draw.text((left, corner[1] + 6), CURVES[name], fill=(0, 0, 0))
    for place, split in enumerate(lines):
        draw.text((left + 100 + 80 * place, corner[1] + 6), words[split], fill=COLORS[split])
    for share in (0.0, 0.5, 1.0):
        y = bottom + (top - bottom) * share
        value = y0 + (y1 - y0) * share
        draw.text((corner[0] + 4, y - 6), f"{value:,.0f}" if value >= 1e4 else f"{value:.4g}", fill=(90, 90, 90))
        x = left + (right - left) * share
        draw.text((x - 14 * share, bottom + 6), f"{x0 + (x1 - x0) * share:.0f}", fill=(90, 90, 90))
    for split, line in lines.items():
        spots = [
            (left + (right - left) * (x - x0) / (x1 - x0), bottom + (top - bottom) * (y - y0) / (y1 - y0))
            for x, y in line
        ]
        if len(spots) > 1:
            draw.line(spots, fill=COLORS[split], width=2)
        for x, y in spots if split == "eval" or len(spots) == 1 else []:
            draw.ellipse([x - 3, y - 3, x + 3, y + 3], fill=COLORS[split])
