"""Seeded pictures to segment: discs (class 1) and cornered shapes (class 2) over a textured, noisy ground (class 0).

A disc is any ellipse, of one colour; a cornered shape is a turned rectangle, or one cut across to about a triangle, in
stripes of two colours. Place, size and every single colour come from the same distributions for both kinds, so no pixel
by itself tells them apart: the outline and the stripes do. Later shapes cover earlier ones, and the mask follows the
visible outline to the pixel.

Parameters are hashed from (seed, index) on the CPU; pixels are made where they are wanted by plain sums, products and
comparisons, which round alike on every device.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor
from torch.utils.data import Dataset

from hotlap.base.errors import ConfigError
from hotlap.data.counter_random import TRAIN, split_index, uniform

GROUND, DISC, CORNERED = 0, 1, 2
MIN_SIZE = 16
MAX_SHAPES = 5
MIN_SHAPES = 3
_REACH = 0.25  # largest distance from a shape's centre to its outline, in picture sides
_BANK_MARGIN = 64
_GRAIN = 0.08
_WAVE = 0.12


@dataclass(frozen=True)
class Scene:
    """The parameters of ``n`` pictures with up to ``K`` shapes each, on the CPU."""

    kind: Tensor  # [n, K] GROUND (absent), DISC or CORNERED
    origin: Tensor  # [n, K, 2] int64: left and top pixel of the shape's window
    offset: Tensor  # [n, K, 2] from the shape's centre to that pixel's centre
    axes: Tensor  # [n, K, 2, 2] takes pixels from the centre to the frame in which the outline has radius 1
    cut: Tensor  # [n, K] how much of a rectangle is kept in that frame, u + v <= cut: all at 2, half at 0
    stripes: Tensor  # [n, K] pairs of stripes per unit of that frame
    palette: Tensor  # [n, 1 + 2 * K, 3] colours under the trough of the waves: the ground's, then two for each shape
    waves: Tensor  # [n, 2, 3] two plane waves: cycles per pixel in x and y, phase
    grain_at: Tensor  # [n, 2] int64: where in the noise bank the picture's grain is cut
    window: int
    """Side in pixels of the square that holds any one shape."""


def draw_shapes(index: Tensor, *, size: int, seed: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Images [n, 3, size, size] in [0, 1] and masks [n, size, size] int64 for ``n`` global indices (on the CPU)."""
    if size < MIN_SIZE:
        raise ConfigError(f"size = {size} is too small to draw shapes in", expected=f"at least {MIN_SIZE}")
    scene = sample_scene(index, size=size, seed=seed)
    place = paint(scene, size=size, device=device)  # [n, size * size]
    n = len(index)
    kinds = torch.cat([torch.zeros(n, 1, dtype=torch.int64), scene.kind.repeat_interleave(2, 1)], 1).to(device)
    mask = kinds.gather(1, place).view(n, size, size)
    palette = scene.palette.transpose(1, 2).contiguous().to(device)  # [n, 3, places]
    image = palette.gather(2, place[:, None].expand(n, 3, size * size)).view(n, 3, size, size)
    image += _texture(scene.waves.to(device), size)
    bank = _grain_bank(size, seed, device)
    for picture, (top, left) in zip(image, scene.grain_at.tolist(), strict=True):
        picture += bank[:, top : top + size, left : left + size]
    return image.clamp_(0.0, 1.0), mask


def sample_scene(index: Tensor, *, size: int, seed: int) -> Scene:
    """What the pictures at ``index`` show, before any pixel is drawn."""
    n, k = len(index), MAX_SHAPES
    draws = uniform(seed, index, 12 * k + 16)
    shape = draws[:, : 12 * k].view(n, k, 12)
    rest = draws[:, 12 * k :]

    num_shapes = MIN_SHAPES + (rest[:, :1] * (MAX_SHAPES - MIN_SHAPES + 1)).floor()
    present = torch.arange(k) < num_shapes
    kind = torch.where(present, torch.where(shape[..., 0] < 0.5, DISC, CORNERED), GROUND)

    centre = (0.08 + 0.84 * shape[..., 1:3]) * size
    long = (_REACH / 2) * (1.0 + shape[..., 3]) * size
    short = long * (0.6 + 0.4 * shape[..., 4])
    # sqrt(1/2) keeps every corner within reach; 3/4 then gives the discs about the same area on average.
    shrink = torch.where(kind == CORNERED, math.sqrt(0.5), 0.75)
    angle = shape[..., 5] * (2 * math.pi)
    cos, sin = angle.cos(), angle.sin()
    across = torch.stack([cos, sin], -1) / (long * shrink)[..., None]
    along = torch.stack([-sin, cos], -1) / (short * shrink)[..., None]
    window = 2 * math.ceil(_REACH * size) + 4
    origin = centre.floor().long() - window // 2

    ground = 0.3 + 0.4 * rest[:, None, 1:4]
    sign = torch.where(shape[..., 6:9] < 0.5, -1.0, 1.0)
    contrast = 0.16 + 0.16 * shape[..., 9:10]
    other_sign = sign * torch.tensor([1.0, -1.0, 1.0])  # the other stripe: the same distribution, another green
    colours = ground[:, :, None] + torch.stack([sign * contrast, other_sign * contrast], 2)  # [n, K, 2, 3]
    stripe_px = ((0.05 + 0.03 * shape[..., 11]) * size).clamp(min=4.0)  # both colours together
    turn = rest[:, 4:6] * math.pi
    cycles = 1.0 / (6.0 + 30.0 * rest[:, 6:8])
    phase = rest[:, 8:10] + size  # so many whole cycles that no pixel's phase is negative
    waves = torch.stack([turn.cos() * cycles, turn.sin() * cycles, phase], -1)
    return Scene(
        kind=kind.long(),
        origin=origin,
        offset=(origin + 0.5 - centre).float(),
        axes=torch.stack([across, along], -2).float(),
        cut=torch.where(shape[..., 10] < 0.5, 2.0, 0.8 * shape[..., 10] - 0.4).float(),
        stripes=(long * shrink / stripe_px).float(),
        palette=(torch.cat([ground, colours.view(n, 2 * k, 3)], 1) - _WAVE / 2).float(),
        waves=waves.float(),
        grain_at=(rest[:, 10:12] * _BANK_MARGIN).long(),
        window=window,
    )


def paint(scene: Scene, *, size: int, device: torch.device) -> Tensor:  # [n, size * size] int64
    """For each pixel its place in the palette: 0 for the ground, then two for each shape."""
    n, k = scene.kind.shape
    w = scene.window
    stamps = torch.zeros(n * k, w * w, dtype=torch.uint8, device=device)
    for kind in (DISC, CORNERED):
        which = (scene.kind.view(-1) == kind).nonzero()[:, 0]  # on the CPU, so no device waits for it
        stamps[which.to(device)] = _stamps(scene, kind, which, device)
    stamps = stamps.view(n, k, w * w)

    side = size + 2 * w  # a margin on each side lets windows hang over the edge
    steps = torch.arange(w, device=device)
    window = (steps[:, None] * side + steps).view(1, w * w)
    corner = ((scene.origin[..., 1] + w) * side + scene.origin[..., 0] + w).to(device)  # [n, K]
    canvas = torch.zeros(n, side * side, dtype=torch.uint8, device=device)
    for number in range(k):
        here = corner[:, number, None] + window
        seen = canvas.gather(1, here)
        canvas.scatter_(1, here, torch.maximum(seen, stamps[:, number]))  # a later shape has the higher number
    return canvas.view(n, side, side)[:, w : w + size, w : w + size].reshape(n, size * size).long()


def _stamps(scene: Scene, kind: int, which: Tensor, device: torch.device) -> Tensor:  # which [m] -> [m, w * w] uint8
    """The palette places of single shapes, each in its window; 0 outside the shape."""
    offset = scene.offset.view(-1, 2)[which].to(device)
    axes = scene.axes.view(-1, 2, 2)[which].to(device)
    first = (1 + 2 * (which % scene.kind.shape[1])).to(torch.uint8).to(device)[:, None, None]
    steps = torch.arange(scene.window, dtype=torch.float32, device=device)
    x, y = offset[:, :1] + steps, offset[:, 1:] + steps  # [m, w]
    u = (axes[:, 0, :1] * x)[:, None, :] + (axes[:, 0, 1:] * y)[:, :, None]  # [m, w, w]
    v = (axes[:, 1, :1] * x)[:, None, :] + (axes[:, 1, 1:] * y)[:, :, None]
    if kind == DISC:
        place = first
        level = u.square_().add_(v.square_())
    else:
        cut, stripes = (t.view(-1)[which].to(device)[:, None, None] for t in (scene.cut, scene.stripes))
        place = first + ((u * stripes).add_(64.0).frac_() < 0.5)  # 64 whole stripes more, so that none is negative
        past_cut = (u + v).add_(1.0 - cut)  # past 1 where u + v is past the cut
        level = torch.maximum(torch.maximum(u.abs_(), v.abs_()), past_cut)
    return ((level <= 1.0) * place).flatten(1)


def _texture(waves: Tensor, size: int) -> Tensor:  # waves [n, 2, 3] -> [n, 1, size, size]
    """The sum of triangle waves, each from 0 to half of _WAVE."""
    steps = torch.arange(size, dtype=torch.float32, device=waves.device)
    parts = []
    for wave in waves.unbind(1):
        x, y, phase = wave.unbind(1)
        cycle = (x[:, None] * steps + phase[:, None])[:, None, :] + (y[:, None] * steps)[:, :, None]
        parts.append(cycle.frac_().sub_(0.5).abs_())
    return parts[0].add_(parts[1]).mul_(_WAVE)[:, None]


@lru_cache(maxsize=4)
def _grain_bank(size: int, seed: int, device: torch.device) -> Tensor:  # [3, size + margin, size + margin]
    """One sheet of noise from which each picture cuts its own piece: far cheaper than fresh noise for every pixel."""
    side = size + _BANK_MARGIN
    rows = split_index(TRAIN, torch.arange(3 * side)) + (1 << 62)
    noise = uniform(seed, rows, 2 * side).float().view(3, side, 2, side)
    return ((noise.sum(2) - 1.0) * (2 * _GRAIN)).to(device)


class DrawnShapes(Dataset[tuple[Tensor, Tensor]]):
    """A fixed number of pictures of one split; item ``i`` is (image [3, size, size], mask [size, size])."""

    def __init__(self, *, split: int, num_images: int, size: int, seed: int, classes: int = 3) -> None:
        self.split, self.num_images, self.size, self.seed, self.classes = split, num_images, size, seed, classes

    def __len__(self) -> int:
        return self.num_images

    def __getitem__(self, position: int) -> tuple[Tensor, Tensor]:
        return self.__getitems__([position])[0]

    def __getitems__(self, positions: Sequence[int]) -> list[tuple[Tensor, Tensor]]:
        """Many items at once; loaders that know this method call it, which is several times cheaper."""
        for position in positions:
            if not 0 <= position < self.num_images:
                raise IndexError(f"position {position} of {self.num_images} pictures")
        index = split_index(self.split, torch.tensor(positions))
        images, masks = draw_shapes(index, size=self.size, seed=self.seed, device=torch.device("cpu"))
        return list(zip(images, merge_classes(masks, self.classes), strict=True))


def merge_classes(masks: Tensor, classes: int) -> Tensor:
    """The masks with every class past the last one counted as the last one."""
    return masks if classes > CORNERED else masks.clamp(max=classes - 1)
