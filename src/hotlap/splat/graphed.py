"""Steps recorded as CUDA graphs, one for each picture size and degree, and made anew when the arrays have moved."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from hotlap.kernels.splat import cuda_room
from hotlap.splat.step import Key, TrainStep

WARM_CAMERAS = 8
"""Cameras, spread over all, that are drawn before a recording, which keeps the room that such frames have needed for
pairs; so many of the heaviest known are drawn too, and the latest if one of them is why it is made."""
SPARE, ROOM = 1.15, 1.25
"""A recording is made anew when a picture has had SPARE times the pairs of those drawn before it; it has room for ROOM
times as many."""
MOST_SIZES = 32
"""Of a scene with pictures of more sizes no step is recorded: each recording keeps its memory, and few would be
replayed before the splats have changed."""
PEEK_EVERY = 16
"""Steps after which the host looks, without waiting, how many pairs there were."""


class EagerSteps:
    """Steps launched one kernel after another."""

    num_recordings = 0

    def __init__(self, step: TrainStep) -> None:
        self._step = step

    def __call__(self, key: Key, degree: int, number: int) -> None:
        """Makes a step with what the frame of this size holds, the picture of this number."""
        self._step.run(self._step.frame_of(key), degree)

    def look_after(self) -> bool:
        """Whether something had to be put right."""
        return False


class GraphedSteps(EagerSteps):
    """Steps replayed from recordings. The first of a size and degree runs eagerly: its kernels are compiled there."""

    def __init__(self, step: TrainStep) -> None:
        super().__init__(step)
        step.most_frames = None
        self._version = -1
        self._met: set[tuple[Key, int]] = set()
        self._replays: dict[tuple[Key, int], Callable[[], None]] = {}
        self._most: dict[Key, int] = {}
        self._heavy: dict[Key, list[int]] = {}
        self._recent: deque[tuple[Key, int]] = deque(maxlen=PEEK_EVERY + PEEK_EVERY // 2)
        self._peeks: dict[Key, Peek] = {}
        self._crowded = True
        self._pool: Any = None
        self._stream = self._make_stream()
        self.num_recordings = 0

    def __call__(self, key: Key, degree: int, number: int) -> None:
        if self._version != self._step.state.version:
            self._forget()
        what = (key, degree)
        self._recent.append((key, number))
        if what not in self._met:
            self._met.add(what)
            super().__call__(key, degree, number)
            return
        if what not in self._replays:
            self._replays[what] = self._record(key, degree)
        self._replays[what]()
        self._peek(key)

    def look_after(self) -> bool:
        """Makes room if a replayed frame had more pairs of tile and splat than it; waits for the device."""
        from hotlap.kernels.splat.cuda import overflowed

        if not overflowed(self._step.state.device):
            return False
        self._forget(crowded=True)
        return True

    def _peek(self, key: Key) -> None:
        """Gives up the recordings before a picture has more pairs than they have room for."""
        peek = self._peeks.setdefault(key, Peek())
        if peek.value(self._step.frame_of(key).pairs) > SPARE * self._most[key]:
            self._forget(crowded=True)

    def _make_stream(self) -> Any:
        return torch.cuda.Stream(self._step.state.device)

    def _forget(self, *, crowded: bool = False) -> None:
        """Recordings read and write the arrays' old places, or have too little room; their memory goes back."""
        self._crowded = crowded
        if self._replays:
            torch.cuda.synchronize(self._step.state.device)
            self._replays = {}
            torch.cuda.empty_cache()
        self._version = self._step.state.version
        self._pool, self._peeks, self._most = None, {}, {}

    def _record(self, key: Key, degree: int) -> Callable[[], None]:
        step, frame = self._step, self._step.frame_of(key)
        self._most[key] = max(self._most.get(key, 0), self._draw_some(key, degree))
        size = cuda_room.Key(frame.which.device, 1, frame.height, frame.width)
        cuda_room.ROOM.reserve(size, int(ROOM * self._most[key]))
        frame.pairs.zero_()
        if step.reduce is None:
            return self._capture(lambda: step.run(frame, degree))[0]
        first, grads = self._capture(lambda: step.differentiate(frame, degree))
        second, _ = self._capture(lambda: step.update(frame, grads))

        def both() -> None:
            first()
            assert step.reduce is not None
            step.reduce(grads, step.state.stats.visible)
            second()

        return both

    def _draw_some(self, key: Key, degree: int) -> int:
        """The most pairs of some pictures of this size, so that the recording has room for them."""
        step, frame = self._step, self._step.frame_of(key)
        alike = [number for number, size in enumerate(step.cameras.sizes) if size == key[:2]]
        chosen = {*alike[:: max(1, len(alike) // WARM_CAMERAS)], *self._heavy.get(key, []), self._recent[-1][1]}
        if self._crowded or key not in self._heavy:
            chosen |= {number for size, number in self._recent if size == key}
        numbers = sorted(chosen)
        now, pairs = frame.which.clone(), []
        for number in numbers:
            frame.which.fill_(number)
            pairs.append(step.draw(frame, degree).facts.tiles_per_splat.sum())
        frame.which.copy_(now)
        found = sorted(zip(torch.stack(pairs).tolist(), numbers, strict=True), reverse=True)
        self._heavy[key] = [number for _, number in found[:WARM_CAMERAS]]
        return int(found[0][0])

    def _capture(self, work: Callable[[], Any]) -> tuple[Callable[[], None], Any]:
        """What ``work`` would do, without doing it, and the tensors that it would give back."""
        device = self._step.state.device
        if self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize(device)
        with torch.cuda.stream(self._stream):
            graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
            try:
                found = work()
            finally:
                graph.capture_end()
        torch.cuda.current_stream(device).wait_stream(self._stream)
        self.num_recordings += 1
        return graph.replay, found


class Peek:
    """A number on the card, looked at now and then and never waited for."""

    def __init__(self) -> None:
        self._steps = 0
        self._there: Tensor | None = None
        self._event: Any = None

    def value(self, number: Tensor) -> int:
        """The number as it was some steps ago; 0 while that is not known."""
        self._steps += 1
        if self._steps % PEEK_EVERY:
            return 0
        if self._there is None:
            card = number.device.type == "cuda"
            self._there = torch.zeros((), dtype=number.dtype, pin_memory=card)
            self._event = torch.cuda.Event() if card else None
        elif self._event is not None and not self._event.query():
            return 0
        found = int(self._there)
        self._there.copy_(number, non_blocking=True)
        if self._event is not None:
            self._event.record()
        return found


def make_steps(step: TrainStep, graph: bool) -> EagerSteps:
    """Steps as they are to be run."""
    return GraphedSteps(step) if graph and len(set(step.cameras.sizes)) <= MOST_SIZES else EagerSteps(step)
