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

from hotlap.base.format import linear_ticks
from hotlap.data.file_bytes import write_whole
from hotlap.data.picture_file import require_pillow
from hotlap.engine.journal import Row

GAP = 4
"""Pixels between two pictures."""
SHEET_WIDTH = 1200
"""Pixels of a sheet of several pictures."""
PANEL_WIDTH, PANEL_HEIGHT, MARGIN = 480, 260, 76
FONT_PX = 12
FINER = 2
"""Curves are drawn this many times larger and made smaller again, which smooths their lines."""
COLORS = {"train": (31, 119, 180), "eval": (214, 39, 40)}
PALE, GREY = (225, 225, 225), (90, 90, 90)
Line = list[tuple[float, float]]
"""Steps, and what was measured there."""
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
    series: dict[str, dict[str, Line]] = {}
    for split in COLORS:
        for row in rows:
            for name, value in row.values.items():
                if row.split == split and name in CURVES and math.isfinite(value):
                    series.setdefault(name, {}).setdefault(split, []).append((row.step, value))
    shown = [name for name in CURVES if name in series]
    if not shown:
        return
    steps = _span([step for lines in series.values() for line in lines.values() for step, _ in line], least=1.0)
    words = {"train": "training", "eval": judged}
    pillow = require_pillow()
    from PIL import ImageDraw, ImageFont

    columns = min(2, len(shown))
    size = (columns * PANEL_WIDTH, -(-len(shown) // columns) * PANEL_HEIGHT)
    image = pillow.new("RGB", (FINER * size[0], FINER * size[1]), (255, 255, 255))
    draw, font = ImageDraw.Draw(image), ImageFont.load_default(FINER * FONT_PX)
    for place, name in enumerate(shown):
        corner = (place % columns * PANEL_WIDTH, place // columns * PANEL_HEIGHT)
        _draw_panel(draw, font, corner, CURVES[name], series[name], words, steps)
    save_picture(path, np.asarray(image.resize(size, pillow.Resampling.LANCZOS)))


def _draw_panel(
    draw: Any, font: Any, corner: tuple[int, int], title: str, lines: dict[str, Line], words: dict[str, str],
    steps: tuple[float, float],
) -> None:  # fmt: skip
    """One quantity in its frame, both axes with round numbers."""
    (x0, x1), (y0, y1) = steps, _span([value for line in lines.values() for _, value in line])
    left, top = corner[0] + MARGIN, corner[1] + 28
    right, bottom = corner[0] + PANEL_WIDTH - 24, corner[1] + PANEL_HEIGHT - 28

    def spot(x: float, y: float) -> tuple[float, float]:
        return (
            FINER * (left + (right - left) * (x - x0) / (x1 - x0)),
            FINER * (bottom + (top - bottom) * (y - y0) / (y1 - y0)),
        )

    def write(x: float, y: float, text: str, anchor: str, color: tuple[int, int, int]) -> None:
        draw.text((x, y), text, fill=color, font=font, anchor=anchor)

    for value in linear_ticks(y0, y1, 5):
        y = spot(x0, value)[1]
        draw.line([FINER * left, y, FINER * right, y], fill=PALE, width=FINER)
        write(FINER * (left - 6), y, f"{value:,.10g}", "rm", GREY)
    for value in linear_ticks(x0, x1, 5):
        write(spot(value, y0)[0], FINER * (bottom + 6), f"{value:,.10g}", "ma", GREY)
    draw.rectangle([FINER * left, FINER * top, FINER * right, FINER * bottom], outline=PALE, width=FINER)
    write(FINER * left, FINER * (top - 8), title, "ls", (0, 0, 0))
    for place, split in enumerate(lines):
        write(FINER * (left + 110 + 90 * place), FINER * (top - 8), words[split], "ls", COLORS[split])
    for split, line in lines.items():
        spots = [spot(x, y) for x, y in line]
        if len(spots) > 1:
            draw.line(spots, fill=COLORS[split], width=3, joint="curve")
        for x, y in spots if split == "eval" or len(spots) == 1 else []:
            draw.ellipse([x - 6, y - 6, x + 6, y + 6], fill=COLORS[split])


def _span(values: Sequence[float], least: float = 1e-6) -> tuple[float, float]:
    """Where an axis begins and ends; around the value, if there is only one."""
    low, high = min(values), max(values)
    around = 0.0 if high > low else max(least, abs(low) * 0.1)
    return low - around, high + around
