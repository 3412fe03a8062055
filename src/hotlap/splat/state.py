"""A model in training: parameters, Adam's means and densification's statistics, one row a splat, with room to grow.

Every array is longer than it must be, and work is done on its first rows. On a card some rows behind the last splat
are worked on too; they hold splats that are never seen. So the arrays' addresses and sizes stay the same from step to
step and mostly over a densification, and a recorded step stays right.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from hotlap.kernels.adam.op import adam_flush
from hotlap.kernels.adam.state import AdamConfig, AdamState, make_adam_state
from hotlap.kernels.densify.stats import Stats
from hotlap.kernels.splat.frame import Splats
from hotlap.splat.config import LEARNABLE

GROWTH = 1.5
"""An array that has become too short is made so much longer than it must be."""
TAIL_SHARE = 1 / 20
"""Of the colours' rate, for all coefficients but the constant ones."""
MIN_GRANULE = 4096
"""On a card rows come in multiples of this, or of about a twelfth of them."""
DEAD = {"means": 0.0, "quats": 1.0, "scales": -20.0, "opacities": -30.0, "colors": 0.0}
"""What rows behind the last splat hold: so faint that no camera draws them, so small that no noise moves them."""
STATS = {"grad": torch.float32, "count": torch.int32, "max_radius": torch.float32, "visible": torch.bool}


class SplatState:
    """Parameters by name, raw as they are trained: scales are logarithms, opacities logits, colors coefficients."""

    def __init__(
        self,
        start: Mapping[str, Tensor],
        rates: Mapping[str, float],
        adam: AdamConfig,
        device: torch.device,
        *,
        capacity: int = 0,
    ) -> None:
        """``start`` has all of ``LEARNABLE``; those that ``rates`` names are learned."""
        self.device, self.config = device, adam
        self.learned = tuple(name for name in LEARNABLE if name in rates)
        self.count = len(start["means"])
        self.version = 0
        """Changes when an array has another address or size, so that recorded steps are wrong from then on."""
        shapes = {name: start[name].shape[1:] for name in LEARNABLE}
        lazy = adam.mode == "lazy"
        kinds = {name: (shapes[name], torch.float32) for name in LEARNABLE}
        for name in self.learned:
            kinds |= {f"first.{name}": kinds[name], f"second.{name}": kinds[name]}
        kinds |= {f"stats.{name}": (torch.Size(), kind) for name, kind in STATS.items()}
        kinds |= {"stats.world": (torch.Size(), torch.float32)}
        kinds |= {"last": (torch.Size(), torch.int32)} if lazy else {}
        self.num = torch.zeros((), device=device)
        """The number of splats, for recorded steps."""
        self._kinds, self._arrays = kinds, dict[str, Tensor]()
        one = [torch.zeros(1, *shapes[name], device=device) for name in self.learned]
        width = shapes["colors"].numel()
        tails = {self.learned.index("colors"): (3, TAIL_SHARE)} if "colors" in self.learned and width > 3 else None
        self._adam = make_adam_state(one, [rates[name] for name in self.learned], adam, tails)
        self._reserve(max(capacity, self.count))
        for name in LEARNABLE:
            self._arrays[name][: self.count] = start[name].to(device)
        self.adam: AdamState
        self.stats: Stats
        self._settle()

    def __getitem__(self, name: str) -> Tensor:
        """The rows of one array that are worked on."""
        return self._arrays[name][: self.rows]

    @property
    def rows(self) -> int:
        """Rows that are worked on: the splats and, on a card, some that are never seen."""
        return padded(self.count, self.device)

    @property
    def capacity(self) -> int:
        return len(self._arrays["means"])

    def alive(self, name: str) -> Tensor:
        """One array of the splats themselves."""
        return self._arrays[name][: self.count]

    def splats(self, viewmats: Tensor, Ks: Tensor, backgrounds: Tensor | None) -> Splats:
        """What a kernel draws."""
        own = {name: self[name] for name in LEARNABLE}
        return Splats(**own, viewmats=viewmats, Ks=Ks, backgrounds=backgrounds)

    def flush(self) -> None:
        """Brings all splats up to date: before densification, evaluation and export."""
        adam_flush(self.adam, self.config)

    def take(self, source: Tensor, fresh: Tensor | None = None) -> None:
        """Row n becomes what row ``source[n]`` was, with Adam's means cleared where ``fresh`` says so.

        A lazy state must have been flushed; the statistics move along.
        """
        num, source = len(source), source.long()
        moved = padded(num, self.device) > self.capacity
        if moved:
            self._reserve(int(num * GROWTH))
        for name, array in self._arrays.items():
            array[:num] = array[: self.count].index_select(0, source)
            if fresh is not None and name.startswith(("first.", "second.")):
                array[:num][fresh] = 0
        before, self.count = self.rows, num
        self._bury()
        if moved or self.rows != before:
            self._settle()

    def clear_moments(self, name: str, where: Tensor | None = None) -> None:
        """Adam forgets what it knows of one parameter, of all splats or of some."""
        for kind in ("first", "second"):
            rows = self.alive(f"{kind}.{name}") if f"{kind}.{name}" in self._arrays else None
            if rows is not None and where is None:
                rows.zero_()
            elif rows is not None:
                rows[where] = 0

    def clear_stats(self) -> None:
        """Densification's statistics start anew."""
        for name in self._arrays:
            if name.startswith("stats."):
                self._arrays[name].zero_()

    def state_dict(self, *, drawn_alone: bool = False) -> dict[str, Any]:
        """All that the next step depends on, on the CPU; or, in a third of the room, what drawing does."""
        if drawn_alone:
            arrays = {name: _copied(self.alive(name)) for name in LEARNABLE}
        else:
            arrays = {name: self.alive(name).cpu().clone() for name in self._arrays}
        rest = {"lrs": self._adam.lrs, "step": self._adam.step, "history": self._adam.history}
        return {"arrays": arrays, **{name: tensor.cpu().clone() for name, tensor in rest.items()}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes over a state that was left; of one that can only be drawn, Adam's means and statistics are 0."""
        arrays = state["arrays"]
        drawn_alone = set(arrays) == set(LEARNABLE)
        self.count = len(arrays["means"])
        if self.rows > self.capacity:
            self._reserve(self.count)
        for name, array in self._arrays.items():
            array[: self.count] = 0 if drawn_alone and name not in arrays else arrays[name].to(self.device)
        for name in ("lrs", "step", "history"):
            getattr(self._adam, name).copy_(state[name])
        self._bury()
        self._settle()

    def _reserve(self, capacity: int) -> None:
        """Arrays for at least this many splats, with those there are at their front."""
        capacity = max(padded(capacity, self.device), 1)
        for name, (shape, kind) in self._kinds.items():
            old = self._arrays.get(name)
            self._arrays[name] = torch.zeros(capacity, *shape, dtype=kind, device=self.device)
            if old is not None:
                self._arrays[name][: len(old)] = old
        self._bury()

    def _bury(self) -> None:
        """Fills the rows behind the last splat with what is never seen."""
        self.num.fill_(self.count)
        for name, array in self._arrays.items():
            array[self.count :] = DEAD.get(name, 0)

    def _settle(self) -> None:
        """Adam and statistics look at the arrays as they are now."""
        empty = self._adam.last[:0]
        self.adam = replace(
            self._adam,
            params=tuple(self[name] for name in self.learned),
            first=tuple(self[f"first.{name}"] for name in self.learned),
            second=tuple(self[f"second.{name}"] for name in self.learned),
            last=self["last"] if "last" in self._arrays else empty,
        )
        self.stats = Stats(**{name: self[f"stats.{name}"] for name in STATS})
        self.version += 1


def _copied(tensor: Tensor) -> Tensor:
    """A copy in the host's memory: pinned, where it comes from a card, which then waits a fraction of the time."""
    return torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda).copy_(tensor)


def padded(count: int, device: torch.device) -> int:
    """Rows that are worked on for so many splats: on a card a multiple of a granule, elsewhere their number."""
    if device.type != "cuda":
        return count
    granule = MIN_GRANULE
    while granule * 16 < count:
        granule *= 2
    return -(-max(count, 1) // granule) * granule


def morton_order(means: Tensor) -> Tensor:  # [N, 3] -> [N]
    """The splats along a Z-shaped curve through space: neighbours in memory are neighbours in the scene.

    The curve has 1024 steps along each axis, over the middle 98% of the splats; those outside go to its edges.
    """
    if len(means) < 2:
        return torch.arange(len(means), device=means.device)
    some = means[:: max(1, len(means) // 100_000)].float().nan_to_num()
    low, high = some.quantile(0.01, dim=0), some.quantile(0.99, dim=0)
    cells = ((means.nan_to_num() - low) / (high - low).clamp(min=1e-12) * 1024).clamp(0, 1023).long()
    code = torch.zeros(len(means), dtype=torch.int64, device=means.device)
    for bit in range(10):
        for axis in range(3):
            code |= (cells[:, axis] >> bit & 1) << (3 * bit + axis)
    return torch.argsort(code, stable=True)
