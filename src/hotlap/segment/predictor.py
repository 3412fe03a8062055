"""A trained network on a device, run as an arm of the workbench: tiles go in, their maps stay where they were computed.

It is loaded as the service loads it, so it runs as it was measured: padded, recorded, compiled. That happens when the
first tiles come, with their very shape, so a folder with nothing left to do costs no minutes of compiling.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any

import torch
from torch import Tensor, nn

from hotlap.base import events
from hotlap.base.errors import OutOfMemory, UsageError
from hotlap.base.events import Emit, ignore
from hotlap.data.batch_sizes import read_batch_size
from hotlap.device.memory import is_out_of_memory, release_memory
from hotlap.device.seed import rng_state, set_rng_state
from hotlap.engine.parts import pick_device
from hotlap.measure.arms import ArmSpec, parse_arm
from hotlap.measure.loaded_workload import LoadedWorkload, arm_on
from hotlap.measure.servable import Rows
from hotlap.records.tuned import ProfileStore
from hotlap.segment.network import find_weights, load_net
from hotlap.segment.predict_config import SegmentPredictConfig
from hotlap.segment.served import TileWorkload
from hotlap.segment.targets import MAPS
from hotlap.segment.tuned_net import tiles_together, tuned_net, untuned_batch

BATCH = 8
"""Tiles that go through a network of which nothing better is known."""
_SMALL = 64
"""Side of the tile that tries out a network of which nothing is recorded or compiled for a shape."""


class Predictor:
    """Tiles [n, 3, h, w] of bytes, on the CPU, become probabilities [n, M, h, w] of the maps ``names`` on its device.

    They have 16 bits where the arm computes with 16. Larger batches than ``batch`` are taken, too, as they are.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        arm: ArmSpec,
        batch: int = BATCH,
        small_batch: int = 0,
        names: tuple[str, ...] = MAPS,
        name: str = "",
        digest: str = "",
        emit: Emit = ignore,
    ) -> None:
        self.model, self.arm, self.names, self.name = model.eval(), arm, names, name
        self.device = torch.device(arm.torch_device)
        self.batch = batch
        """Tiles that should go through together; less after :meth:`load` has found that they do not fit."""
        self.small_batch = small_batch
        """Of smaller tiles, so many at most: the batch that was measured, with images smaller than a tile."""
        self.digest = digest
        """Of the weights: results of other weights are other results."""
        self.load_s = 0.0
        """Seconds that loading and warming up took, once that has happened."""
        self._emit = emit
        self._loaded: _Loaded | None = None
        self._most_pixels: int | None = None
        """Of tiles that go through together, once more of them have not fitted."""

    @property
    def is_loaded(self) -> bool:
        """Whether the network is on its device."""
        return self._loaded is not None

    @property
    def pins(self) -> bool:
        """Whether tiles in pinned memory are fetched from there by a card."""
        return self._loaded is not None and self._loaded.pins

    def load(self, num: int, height: int, width: int) -> _Loaded:
        """Puts the network on its device and warms it up for so many tiles of this size, with half where it must."""
        began = perf_counter()
        # Such an arm does nothing for a shape beforehand, and on a CPU a full batch takes seconds.
        plain = self.arm.device == "cpu" and not self.arm.compile
        shape, first = ((_SMALL, _SMALL), 1) if plain else ((height, width), num)
        rows = max(self.batch, num)
        if not plain:
            wait = "; compiling may take minutes" if self.arm.compile else ""
            self._emit(events.note(f"Warming up {self.arm.name} at batch {rows}{wait}."))
        chance = rng_state()  # what is loaded seeds everything, which is not for a caller to notice
        try:
            tiles = TileWorkload(self.name, lambda: self.model, self.arm, shape)
            loaded = _Loaded(tiles, self.arm, rows, first)
            if self.device.type == "cuda":
                torch.cuda.synchronize(self.device)
        except (RuntimeError, MemoryError, OutOfMemory) as error:
            if not isinstance(error, OutOfMemory) and not is_out_of_memory(error):
                raise
            raise OutOfMemory(
                f"the network does not fit the memory of {self.device} with a tile of {height}x{width}",
                remedy="Give a smaller --tile, or another --device",
            ) from error
        finally:
            set_rng_state(chance)
        if loaded.signature.rows < rows:
            self.batch = loaded.signature.rows
            self._go_on_with(self.batch, rows, height, width)
        self._loaded = loaded
        self.load_s = perf_counter() - began
        return loaded

    def __call__(self, tiles: Tensor) -> Tensor:
        """Scores always go through the sigmoid, whatever their values are."""
        if tiles.dtype != torch.uint8:
            raise UsageError(f"tiles are {tiles.dtype}", expected="bytes, torch.uint8 from 0 to 255")
        num, _, height, width = tiles.shape
        loaded = self._loaded or self.load(num, height, width)
        if self._most_pixels is not None:
            num = min(num, max(1, self._most_pixels // (height * width)))
        while True:
            try:
                found = [loaded.begin([(part,)])()[0] for part in tiles.split(num)]
                return found[0] if len(found) == 1 else torch.cat(found)
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
                if num == 1:
                    raise OutOfMemory(
                        f"batch = 1 tile of {height}x{width} does not fit the memory of {self.device}",
                        remedy="Give a smaller --tile; what was finished is kept",
                    ) from error
            loaded.make_room()  # only now: the error has held on to what was computed
            self._go_on_with(num // 2, num, height, width)
            num //= 2

    def _go_on_with(self, num: int, tried: int, height: int, width: int) -> None:
        """Sends fewer tiles through together from now on, and says so."""
        self._most_pixels = num * height * width
        self._emit(
            events.warn(
                f"batch = {tried} tiles of {height}x{width} do not fit the memory of {self.device}: "
                f"{num} go through the network together. --batch {num} spares the attempt."
            )
        )


class _Loaded(LoadedWorkload):
    """A network whose maps stay on the device, where those of a picture's tiles are blended."""

    def __init__(self, workload: TileWorkload, arm: ArmSpec, rows: int, first: int) -> None:
        self._first = first
        self._whole: tuple[int, tuple[Any, ...]] = 0, ()
        """The batch that was compiled or recorded, and the shapes of its tiles."""
        super().__init__(workload, arm, rows, widen=False)

    @property
    def pins(self) -> bool:
        return self._copies is not None

    def _column(self, tensors: Sequence[Tensor], size: int) -> Tensor:
        """Tiles that lie in pinned memory already are not copied there once more."""
        is_there = self.pins and len(tensors) == 1 and len(tensors[0]) == size and tensors[0].is_pinned()
        return tensors[0] if is_there else super()._column(tensors, size)

    def _find_inputs(self, example: Any, tensors: list[Tensor]) -> tuple[list[int], list[str]]:
        """Known, and so nothing is run for it: that would be two tiles, where there may be room for one."""
        return [0], ["image"]

    def _warm(self, example: Rows, rows: int) -> tuple[int, Tensor]:
        """Up to the first batch only: it is small where few pictures are left, for which no more need be compiled."""
        asked = min(rows, 1 << (self._first - 1).bit_length() if self._pads else self._first)
        fits, out = super()._warm(example, asked)
        if self._pads:
            self._whole = fits, tuple(tuple(t.shape[1:]) for t in example)
        return rows if fits == asked else fits, out

    def _sizes(self, rows: int) -> set[int]:
        return {rows} if self._pads else super()._sizes(rows)

    def _padded(self, num_rows: int, shapes: tuple[Any, ...]) -> int:
        """A smaller batch, as the last, is filled up to the one that is ready: to make another takes longer."""
        whole, of_shapes = self._whole
        return whole if num_rows <= whole and shapes == of_shapes else super()._padded(num_rows, shapes)

    def make_room(self) -> None:
        """Gives back the memory of recordings; what comes often is recorded again, and nothing is filled up to them."""
        self._whole = 0, ()
        self._forget_recordings()
        release_memory()

    def _returning(self, out: Tensor) -> Callable[[], Rows]:
        return lambda: (out,)


def load_predictor(config: SegmentPredictConfig, emit: Emit = ignore, store: ProfileStore | None = None) -> Predictor:
    """The network that the settings name, with its trained weights, to run as its tuned profile or the settings say."""
    device = chosen_device(config)
    file = find_weights(config, emit)
    net = load_net(file, config.model if config.weights is not None else None, config.width)
    arm, batch, small_batch = config.arm, chosen_batch(config, net.name), 0
    if config.tuned and not arm:
        profile = tuned_net(net.name, net.width, config.tile, device, emit, store)
        if profile is not None:
            arm = profile.arm
            if batch is None:
                batch, small_batch = tiles_together(profile, config.tile, emit), profile.batch
    spec = arm_on(arm, device)
    if batch is None:
        batch, small_batch = untuned_batch(spec.device, config.tile, BATCH), BATCH
    return Predictor(
        net.model,
        arm=spec,
        batch=batch,
        small_batch=small_batch,
        names=net.names,
        name=net.name,
        digest=net.digest,
        emit=emit,
    )


def chosen_batch(config: SegmentPredictConfig, name: str) -> int | None:
    """The batch that the user has chosen for a network, here or in a file; None where it was left open."""
    if config.batch is None and config.batch_sizes is not None:
        return read_batch_size(config.batch_sizes, name)
    return config.batch


def chosen_device(config: SegmentPredictConfig) -> str:
    """The device that is meant; where it is left open, that of the arm."""
    if not config.arm:
        return str(pick_device(config.device))
    arm = parse_arm(config.arm)
    if config.device in ("auto", arm.device):
        return str(pick_device(arm.torch_device))
    kind, _, index = config.device.partition(":")
    said = re.match(r"cuda:(\d+)", config.arm.strip())  # cuda alone leaves open which card
    if kind in ("cpu", "cuda") and (kind != arm.device or (said and said[1] != index)):
        raise UsageError(
            f"arm = {config.arm!r} cannot run on device = {config.device!r}",
            expected=f"an arm of {config.device}",
            remedy="Or leave --device out: the arm says where",
        )
    return str(pick_device(config.device))
