"""Pictures of any size as tiles of a few sizes, pooled across pictures into full batches, and put together again.

Tiles overlap, and there their maps are blended with weights that fall towards a tile's edge, so no seam is seen.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from hotlap.base.errors import ConfigError
from hotlap.base.settings import require_least

Predict = Callable[[Tensor], Tensor]
"""Tiles [n, 3, h, w] on the CPU to maps [n, M, h, w] on whatever device; ``pins`` says that a card fetches them."""

MOST_ON_DEVICE = 1 << 26
"""Pixels of a picture whose maps are put together on the device; those of a larger one wait in host memory."""
MOST_PINNED = 1 << 24
"""Numbers of maps that come to the host together while the card goes on; for pictures of more no memory is locked."""


@dataclass(frozen=True, kw_only=True)
class TileConfig:
    """How pictures are cut and batched."""

    tile: int = 1024
    """Longest side of a tile, in pixels."""
    overlap: int = 128
    """Pixels that neighbouring tiles share at least."""
    multiple: int = 64
    """A picture smaller than a tile becomes one whose sides are a multiple of this, so that few shapes occur."""
    batch: int = 8
    """Tiles that go through the network together."""
    small_batch: int = 0
    """So many at most of smaller tiles, which have no more pixels than a batch of whole ones; 0 for ``batch``."""
    most_waiting: int = 256
    """Tiles that may wait for others of their shape; when more do, the fullest shape goes on without them."""

    def __post_init__(self) -> None:
        require_least(self, tile=32, overlap=0, multiple=1, batch=1, most_waiting=1)
        if self.overlap > self.tile // 2:
            raise ConfigError(f"overlap = {self.overlap} is not valid", expected=f"at most half of tile = {self.tile}")
        if self.tile % self.multiple:
            raise ConfigError(f"tile = {self.tile} is not valid", expected=f"a multiple of {self.multiple}")

    def batch_of(self, height: int, width: int) -> int:
        """Tiles of this size that go through the network together."""
        return max(self.batch, min(self.small_batch, self.batch * self.tile**2 // (height * width)))


@dataclass(frozen=True)
class TilePlan:
    """Where the tiles of one picture lie."""

    height: int
    width: int
    tile_height: int
    tile_width: int
    tops: tuple[int, ...]
    lefts: tuple[int, ...]

    @property
    def num(self) -> int:
        return len(self.tops) * len(self.lefts)

    def places(self) -> Iterator[tuple[int, int]]:
        """Top and left of each tile."""
        return itertools.product(self.tops, self.lefts)


def plan_tiles(height: int, width: int, config: TileConfig) -> TilePlan:
    """Evenly spread tiles that cover a picture; a picture that is smaller than a tile is one tile, extended."""
    (tile_height, tops), (tile_width, lefts) = _along(height, config), _along(width, config)
    return TilePlan(height, width, tile_height, tile_width, tops, lefts)


def _along(side: int, config: TileConfig) -> tuple[int, tuple[int, ...]]:
    if side <= config.tile:
        return -(-side // config.multiple) * config.multiple, (0,)
    num = -(-(side - config.overlap) // (config.tile - config.overlap))
    last = side - config.tile
    return config.tile, tuple(round(n * last / (num - 1)) for n in range(num))


def cut(picture: np.ndarray, plan: TilePlan, top: int, left: int) -> np.ndarray:  # [H, W, C] -> [h, w, C]
    """One tile; beyond the picture's edge its mirror image goes on."""
    part = picture[top : top + plan.tile_height, left : left + plan.tile_width]
    missing = plan.tile_height - part.shape[0], plan.tile_width - part.shape[1]
    return np.pad(part, ((0, missing[0]), (0, missing[1]), (0, 0)), mode="symmetric") if any(missing) else part


def blend_weights(plan: TilePlan, config: TileConfig) -> Tensor:  # [h, w]
    """How much each pixel of a tile counts where tiles overlap: more in the middle, above 0 everywhere."""
    reach = max(config.overlap, 1)
    lines = []
    for side in (plan.tile_height, plan.tile_width):
        place = torch.arange(side, dtype=torch.float32) + 0.5
        lines.append(torch.minimum(place, side - place).div(reach).clamp(max=1.0))
    return lines[0][:, None] * lines[1]


class _Canvas:
    """The maps of one picture while its tiles come in."""

    def __init__(self, index: int, plan: TilePlan, config: TileConfig) -> None:
        self.index, self.plan, self.config = index, plan, config
        self.left = plan.num
        self.maps: Tensor | None = None
        self.total: Tensor | None = None
        self.ready: torch.cuda.Event | None = None

    def add(self, maps: Tensor, top: int, left: int) -> None:  # [M, h, w]
        """Takes in the maps of one tile."""
        self.left -= 1
        p = self.plan
        if p.num == 1:
            self.maps = maps[:, : p.height, : p.width]
            return
        device = maps.device if p.height * p.width <= MOST_ON_DEVICE else torch.device("cpu")
        if self.maps is None or self.total is None:
            self.maps = torch.zeros(len(maps), p.height, p.width, device=device)
            self.total = torch.zeros(p.height, p.width, device=device)
        part = slice(top, top + p.tile_height), slice(left, left + p.tile_width)
        here = self.maps[:, part[0], part[1]]
        weights = blend_weights(p, self.config).to(device)[: here.shape[1], : here.shape[2]]
        here += maps[:, : here.shape[1], : here.shape[2]].to(device) * weights
        self.total[part] += weights

    def blended(self) -> Tensor:  # [M, H, W]
        """The maps of the picture, all of whose tiles have come in."""
        assert self.maps is not None and not self.left
        if self.total is not None:
            self.maps, self.total = self.maps.div_(self.total), None
        return self.maps

    def finish(self) -> tuple[int, np.ndarray]:  # [M, H, W] float32
        """The picture's number and its maps, once they are there."""
        assert self.maps is not None
        if self.ready is None:
            return self.index, self.maps.cpu().numpy()
        # Each of several pictures that came together asks: those after the first, without letting go of the lock.
        if not self.ready.query():
            self.ready.synchronize()
        return self.index, self.maps.numpy()


def _send(done: Sequence[_Canvas]) -> None:
    """Begins to bring the maps of pictures to the host, behind what the card is still doing.

    Those of one shape come together: the card is given a dozen orders for each copy, and before every one of them the
    threads that read and finish pictures may take the interpreter's lock.
    """
    alike: dict[torch.Size, list[_Canvas]] = {}
    for canvas in done:
        maps = canvas.blended()
        if maps.device.type == "cuda" and maps.numel() <= MOST_PINNED:
            alike.setdefault(maps.shape, []).append(canvas)
        else:
            canvas.maps = maps.float()
    for shape, canvases in alike.items():
        most = MOST_PINNED // shape.numel()
        for start in range(0, len(canvases), most):
            _send_together(canvases[start : start + most])


def _send_together(canvases: Sequence[_Canvas]) -> None:
    """One copy to pinned memory, of which each picture has a part."""
    maps = torch.stack([canvas.blended() for canvas in canvases]).float()
    copies = _copies(maps.device)  # beside the next batch, not in its way
    copies.wait_stream(torch.cuda.current_stream(maps.device))
    with torch.cuda.stream(copies):
        host = torch.empty(maps.shape, dtype=maps.dtype, pin_memory=True)
        host.copy_(maps, non_blocking=True)
        ready = torch.cuda.Event(blocking=True)  # one that spins takes a core from readers and results
        ready.record(copies)
    maps.record_stream(copies)
    for canvas, part in zip(canvases, host.unbind(), strict=True):
        canvas.maps, canvas.ready = part, ready


@functools.cache
def _copies(device: torch.device) -> torch.cuda.Stream:
    """On which maps come to the host."""
    return torch.cuda.Stream(device)


def cut_tiles(picture: np.ndarray, config: TileConfig) -> tuple[TilePlan, np.ndarray]:  # [H, W, C] -> [n, h, w, C]
    """All tiles of one picture, and where they lie."""
    plan = plan_tiles(picture.shape[0], picture.shape[1], config)
    if plan.num == 1:
        return plan, cut(picture, plan, 0, 0)[None]
    return plan, np.stack([cut(picture, plan, top, left) for top, left in plan.places()])


def join_tiles(maps: Tensor, plan: TilePlan, config: TileConfig) -> np.ndarray:  # [n, M, h, w] -> [M, H, W] float32
    """The maps of a picture from those of its tiles, in the order in which they were cut."""
    canvas = _Canvas(0, plan, config)
    for (top, left), of_tile in zip(plan.places(), maps, strict=True):
        canvas.add(of_tile, top, left)
    _send([canvas])
    return canvas.finish()[1]


Waiting = tuple[_Canvas, int, int, np.ndarray]


def predict_maps(
    pictures: Iterable[np.ndarray],  # [H, W, 3] each, any sizes
    predict: Predict,
    config: TileConfig,
) -> Iterator[tuple[int, np.ndarray]]:  # [M, H, W] float32
    """The maps of each picture with its number, in the order in which they are done.

    Tiles wait until a batch of their shape is full, whichever pictures they are of; only the last batch of each shape
    is smaller. Pictures are asked for one at a time, so a generator may read them when their turn comes. A card
    begins a batch before the maps of the one before are waited for, and is never idle while they come to the host.
    """
    under_way: list[_Canvas] = []
    for queue in _batches(pictures, config):
        try:
            begun = _begin(queue, predict)
        except Exception:
            yield from (canvas.finish() for canvas in under_way)  # they are done, whatever is wrong with this batch
            raise
        yield from (canvas.finish() for canvas in under_way)
        under_way = [canvas for canvas in begun if canvas.ready is not None]
        yield from (canvas.finish() for canvas in begun if canvas.ready is None)
    yield from (canvas.finish() for canvas in under_way)


def _batches(pictures: Iterable[np.ndarray], config: TileConfig) -> Iterator[list[Waiting]]:
    """Tiles of one shape, as many as a batch takes."""
    waiting: dict[tuple[int, int], list[Waiting]] = {}
    for index, picture in enumerate(pictures):
        height, width = picture.shape[:2]
        plan = plan_tiles(height, width, config)
        canvas = _Canvas(index, plan, config)
        shape = (plan.tile_height, plan.tile_width)
        for top, left in plan.places():
            queue = waiting.setdefault(shape, [])
            queue.append((canvas, top, left, cut(picture, plan, top, left)))
            if len(queue) == config.batch_of(*shape):
                yield waiting.pop(shape)
        while sum(map(len, waiting.values())) > config.most_waiting:
            yield waiting.pop(max(waiting, key=lambda shape: len(waiting[shape])))
    for shape in list(waiting):
        yield waiting.pop(shape)


def _begin(queue: list[Waiting], predict: Predict) -> list[_Canvas]:
    """Puts one batch through the network; the pictures that it completes, whose maps are on their way."""
    tiles = _stacked([tile for *_, tile in queue], pinned=getattr(predict, "pins", False))
    maps = predict(tiles.permute(0, 3, 1, 2))
    done = []
    for (canvas, top, left, _), of_tile in zip(queue, maps, strict=True):
        canvas.add(of_tile, top, left)
        if canvas.left == 0:
            done.append(canvas)
    _send(done)
    return done


def _stacked(tiles: Sequence[np.ndarray], *, pinned: bool) -> Tensor:  # [h, w, C] each -> [n, h, w, C]
    """Tiles put together, for a card where it can fetch them by itself: otherwise they would be copied once more."""
    if not pinned:
        return torch.from_numpy(np.stack(tiles))
    made = torch.empty((len(tiles), *tiles[0].shape), dtype=torch.uint8, pin_memory=True)
    np.stack(tiles, out=made.numpy())
    return made
