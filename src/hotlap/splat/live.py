"""A training in the browser while it runs: drawn between two steps, and only when somebody looks elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from hotlap.base import events
from hotlap.base.events import Emit
from hotlap.splat.cameras import Shot
from hotlap.splat.trainer import Trainer
from hotlap.splat.viewer import Viewer, told_psnr

MOST_SHARE = 0.25
"""Of the time that drawing may take while a training runs and somebody looks around; it takes none otherwise."""
REFRESH_S = 5.0
"""A window that stands still is drawn anew so often, to show what was learned."""
PAUSED_S = 0.05
"""Between two looks at what is wanted while the training pauses."""


class Live:
    """The page of one training."""

    def __init__(
        self, viewer: Viewer, trainer: Trainer, emit: Emit, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.viewer, self._trainer, self._emit, self._clock = viewer, trainer, emit, clock
        self._not_before = self._refreshed = clock()

    def between(self, trainer: Trainer) -> float:
        """Called after every step: draws what is due, waits while paused. The seconds that were not the training's."""
        began = self._clock()
        if began - self._refreshed > REFRESH_S:
            self._refreshed = began
            self.viewer.wake()
        if self.viewer.paused:
            self._pause()
        elif began >= self._not_before and self.viewer.is_waiting():
            spent = self.viewer.draw_waiting()
            self._not_before = self._clock() + spent * (1 / MOST_SHARE - 1)
        return self._clock() - began

    def _pause(self) -> None:
        self._emit(events.note(f"step {self._trainer.step}: paused from the browser"))
        self.tell("paused at ")
        while self.viewer.paused and not self._trainer.ends:
            self.viewer.draw_waiting()
            self.viewer.wait(PAUSED_S)
        self._emit(events.note("the training goes on"))
        self.tell()

    def tell(self, before: str = "") -> None:
        """Shows where the training is."""
        trainer = self._trainer
        steps, count = f"step {trainer.step:,} of {trainer.config.steps:,}", f"{trainer.state.count:,} splats"
        figures = [told_psnr(name, *figure, trainer.step) for name, figure in trainer.figures.items()]
        self.viewer.tell(before + ", ".join([steps, count, *figures]))


@contextmanager
def live_view(port: int | None, trainer: Trainer, emit: Emit) -> Iterator[Callable[[], None]]:
    """While it lasts, the training is at a port of this machine; gives what is to be called to show new figures.

    Without a port nothing happens.
    """
    if port is None:
        yield lambda: None
        return
    stage = trainer.stage
    viewer = Viewer(
        lambda: trainer.model(flush=False), [_stand(trainer, number) for number in range(len(stage.cameras))],
        port=port, title="hotlap: training",
    )  # fmt: skip
    live = Live(viewer, trainer, emit)
    viewer.add_pause()
    trainer.between = live.between
    emit(events.note(f"the training is at {viewer.address}"))
    live.tell()
    try:
        yield live.tell
    finally:
        trainer.between = None
        viewer.close()


def _stand(trainer: Trainer, number: int) -> Shot:
    view, pinhole = trainer.stage.views[number], trainer.stage.pictures.pinholes[number]
    return Shot(name=view.name, pose=view.camera_from_world, camera=pinhole)
