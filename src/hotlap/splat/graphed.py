"""Steps recorded as CUDA graphs, one for each picture size and degree, and made anew when the arrays have moved."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from hotlap.splat.step import Key, TrainStep

WARM_CAMERAS = 12
"""Cameras that are drawn before a recording, which keeps the room for pairs that such frames have needed."""


class EagerSteps:
    """Steps launched one kernel after another."""

    num_recordings = 0

    def __init__(self, step: TrainStep) -> None:
        self._step = step

    def __call__(self, key: Key, degree: int) -> None:
        self._step.run(self._step.frame_of(key), degree)

    def look_after(self) -> bool:
        """Whether something had to be put right."""
        return False


class GraphedSteps(EagerSteps):
    """Steps replayed from recordings. The first of a size and degree runs eagerly: its kernels are compiled there."""

    def __init__(self, step: TrainStep) -> None:
        super().__init__(step)
        self._version = -1
        self._met: set[tuple[Key, int]] = set()
        self._replays: dict[tuple[Key, int], Callable[[], None]] = {}
        self._pool: Any = None
        self._stream = torch.cuda.Stream(step.state.device)
        self.num_recordings = 0

    def __call__(self, key: Key, degree: int) -> None:
        if self._version != self._step.state.version:
            self._forget()
        what = (key, degree)
        if what not in self._met:
            self._met.add(what)
            super().__call__(key, degree)
            return
        if what not in self._replays:
            self._replays[what] = self._record(key, degree)
        self._replays[what]()

    def look_after(self) -> bool:
        """Makes room if a replayed frame had more pairs of tile and splat than it; waits for the device."""
        from hotlap.kernels.splat.cuda import overflowed

        if not overflowed(self._step.state.device):
            return False
        self._forget()
        return True

    def _forget(self) -> None:
        """Recordings read and write the arrays' old places; their memory goes back to the card."""
        if self._replays:
            torch.cuda.synchronize(self._step.state.device)
            self._replays = {}
            torch.cuda.empty_cache()
        self._version = self._step.state.version
        self._pool = None

    def _record(self, key: Key, degree: int) -> Callable[[], None]:
        step, frame = self._step, self._step.frame_of(key)
        self._draw_some(key, degree)
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

    def _draw_some(self, key: Key, degree: int) -> None:
        """Frames of cameras of this size, so that the recording has room for their pairs."""
        step, frame = self._step, self._step.frame_of(key)
        alike = [n for n, size in enumerate(step.cameras.sizes) if size == key[:2]]
        now = frame.which.clone()
        for number in alike[:: max(1, len(alike) // WARM_CAMERAS)]:
            frame.which.fill_(number)
            step.draw(frame, degree)
        frame.which.copy_(now)

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


def make_steps(step: TrainStep, graph: bool) -> EagerSteps:
    """Steps as they are to be run."""
    return GraphedSteps(step) if graph else EagerSteps(step)
