"""Seeded pictures of ten classes: six figures, of which one to three copies are shown, and four all-over patterns.

Place, turn and the two colours come from the same distributions for every class, so the mean colour says little: the
outline or the pattern tells the classes apart. A pattern covers more than a figure, which the spread of the colours
shows. Mirroring does not change a class; a cut that leaves no figure inside may leave nothing to tell it by.

Parameters are hashed from (seed, index); pixels are made by sums, products, roots and comparisons alone, which round
alike wherever a pixel lies in a batch. A picture is therefore the same in any batch.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache

import torch
from torch import Tensor

from hotlap.base.errors import ConfigError
from hotlap.data.counter_random import uniform

MIN_SIDE = 16
_COPIES = 3
_GRAIN = 0.06
_WAVE = 0.06
_BANK_MARGIN = 64
_CHUNK = 32  # pictures drawn at once, so that memory does not grow with the batch
_FIELD = 100.0  # whole periods added to a pattern's coordinates, so that none is negative


def _disc(u: Tensor, v: Tensor) -> Tensor:
    return u * u + v * v < 1.0


def _ring(u: Tensor, v: Tensor) -> Tensor:
    square = u * u + v * v
    return (square < 1.0) & (square > 0.3)


def _square(u: Tensor, v: Tensor) -> Tensor:
    return torch.maximum(u.abs(), v.abs()) < 0.8


def _triangle(u: Tensor, v: Tensor) -> Tensor:
    return (v > -0.55) & (1.7321 * u.abs() + v < 1.1)


def _cross(u: Tensor, v: Tensor) -> Tensor:
    across, along = u.abs(), v.abs()
    return (torch.minimum(across, along) < 0.28) & (torch.maximum(across, along) < 1.0)


def _star(u: Tensor, v: Tensor) -> Tensor:
    return _triangle(u, v) | _triangle(u, -v)


def _stripes(u: Tensor, v: Tensor) -> Tensor:
    del v
    return (u + _FIELD).frac() < 0.5


def _checks(u: Tensor, v: Tensor) -> Tensor:
    return ((u + _FIELD).frac() < 0.5) ^ ((v + _FIELD).frac() < 0.5)


def _dots(u: Tensor, v: Tensor) -> Tensor:
    x, y = (u + _FIELD).frac() - 0.5, (v + _FIELD).frac() - 0.5
    return x * x + y * y < 0.12


def _ripples(u: Tensor, v: Tensor) -> Tensor:
    return (u * u + v * v).sqrt().frac() < 0.5


_FIGURES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "disc": _disc,
    "ring": _ring,
    "square": _square,
    "triangle": _triangle,
    "cross": _cross,
    "star": _star,
}
_PATTERNS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "stripes": _stripes,
    "checks": _checks,
    "dots": _dots,
    "ripples": _ripples,
}
CLASSES = (*_FIGURES, *_PATTERNS)
"""What the pictures show, by the number of the class."""


def draw_classes(index: Tensor, labels: Tensor, *, height: int, width: int, seed: int) -> Tensor:
    """The pictures [n, 3, height, width] uint8 of these classes at ``n`` global indices, on the CPU."""
    if min(height, width) < MIN_SIDE:
        raise ConfigError(f"pictures of {width}x{height} are too small to draw in", expected=f"at least {MIN_SIDE}")
    parts = [
        _draw_chunk(i, c, height, width, seed)
        for i, c in zip(index.split(_CHUNK), labels.split(_CHUNK), strict=True)
        if len(i)
    ]
    return torch.cat(parts) if parts else torch.empty(0, 3, height, width, dtype=torch.uint8)


def _draw_chunk(index: Tensor, labels: Tensor, height: int, width: int, seed: int) -> Tensor:
    draws = uniform(seed, index, 24)
    shown = torch.empty(len(index), height, width, dtype=torch.bool)
    for number, name in enumerate(CLASSES):
        rows = (labels == number).nonzero()[:, 0]
        if len(rows):
            shown[rows] = _shown(name, draws[rows], height, width)
    ground = 0.3 + 0.4 * draws[:, 12:15]
    sign = torch.where(draws[:, 18:19] < 0.5, -1.0, 1.0)
    figure = ground + sign * (0.10 + 0.40 * draws[:, 15:18])  # lighter or darker, and of another hue
    image = torch.where(shown[:, None], figure.float()[..., None, None], ground.float()[..., None, None])
    image += _wave(draws[:, 19:22], height, width)
    bank = _grain_bank(max(height, width), seed)
    for picture, (top, left) in zip(image, (draws[:, 22:24] * _BANK_MARGIN).long().tolist(), strict=True):
        picture += bank[:, top : top + height, left : left + width]
    return image.mul_(255.0).round_().clamp_(0.0, 255.0).to(torch.uint8)


def _shown(name: str, draws: Tensor, height: int, width: int) -> Tensor:  # [m, height, width] bool
    """Where each of ``m`` pictures of one class shows its figure or pattern."""
    side = float(min(height, width))
    y = torch.arange(height, dtype=torch.float32) / side
    x = torch.arange(width, dtype=torch.float32) / side
    if name in _PATTERNS:
        period = 0.12 + 0.14 * draws[:, 0]
        return _PATTERNS[name](*_frame(draws[:, 1:3], period, draws[:, 3], x, y))
    num_copies = 1 + (draws[:, 0] * _COPIES).long()
    shown = torch.zeros(len(draws), height, width, dtype=torch.bool)
    for copy in range(_COPIES):
        place, turn = draws[:, 1 + 3 * copy : 3 + 3 * copy], draws[:, 3 + 3 * copy]
        reach = (0.36 - 0.10 * draws[:, 10]) / num_copies.sqrt()
        figure = _FIGURES[name](*_frame(place, reach, turn, x, y))
        shown |= figure & (num_copies > copy)[:, None, None]
    return shown


def _frame(place: Tensor, unit: Tensor, turn: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """The pixels' coordinates [m, height, width] in turned frames of this unit, their origins well inside."""
    angle = turn * (2 * math.pi)
    cos, sin = ((part / unit).float()[:, None, None] for part in (angle.cos(), angle.sin()))
    centre = (0.2 + 0.6 * place).float()
    dx = (x - centre[:, :1] * (x[-1] + x[1]))[:, None, :]
    dy = (y - centre[:, 1:] * (y[-1] + y[1]))[:, :, None]
    return cos * dx + sin * dy, cos * dy - sin * dx


def _wave(draws: Tensor, height: int, width: int) -> Tensor:  # [n, 3] -> [n, 1, height, width]
    """A soft triangle wave across each picture, of zero mean."""
    angle = draws[:, 0] * math.pi
    cycles = (1.0 + 4.0 * draws[:, 1]) / min(height, width)
    across, down = (t.float()[:, None, None] for t in (angle.cos() * cycles, angle.sin() * cycles))
    rows = torch.arange(height, dtype=torch.float32)[:, None]
    columns = torch.arange(width, dtype=torch.float32)
    cycle = across * columns + down * rows + (draws[:, 2].float() + _FIELD)[:, None, None]
    return (cycle.frac().sub_(0.5).abs_().sub_(0.25) * (2 * _WAVE))[:, None]


@lru_cache(maxsize=8)
def _grain_bank(side: int, seed: int) -> Tensor:  # [3, side + margin, side + margin]
    """One sheet of noise from which each picture cuts its own piece: far cheaper than fresh noise for every pixel."""
    rows = torch.arange(3 * (side + _BANK_MARGIN)) + (1 << 62)
    noise = uniform(seed, rows, 2 * (side + _BANK_MARGIN)).float().view(3, side + _BANK_MARGIN, 2, side + _BANK_MARGIN)
    return (noise.sum(2) - 1.0) * (2 * _GRAIN)
