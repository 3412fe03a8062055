"""``hotlap splat view``: trained splats, or those of a training that still runs, in the browser."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from pathlib import Path

import torch

from hotlap.base import events
from hotlap.base.errors import RecordError
from hotlap.base.events import Emit, ignore
from hotlap.device.probe import get_device
from hotlap.engine.checkpoint import CheckpointStore
from hotlap.engine.config import CHECKPOINTS
from hotlap.engine.journal import read_journal
from hotlap.splat.begun import SETTINGS
from hotlap.splat.cameras import Shot
from hotlap.splat.config import SplatRenderConfig, SplatViewConfig
from hotlap.splat.judge import Model
from hotlap.splat.opened import checkpoint_model, open_splats, read_config
from hotlap.splat.outcome import CAMERAS, MODEL
from hotlap.splat.pictures import planned_shot
from hotlap.splat.render import find_shots, read_named
from hotlap.splat.stage import open_scene, split_views
from hotlap.splat.trainer import is_white
from hotlap.splat.viewer import Viewer, told_psnr

IDLE_S = 0.05
"""Between two looks at what windows want, where none says so itself: a camera that has come to rest does not."""
RELOAD_S = 2.0
"""Between two looks for a newer checkpoint."""


def view(config: SplatViewConfig, emit: Emit = ignore, *, until: Callable[[], bool] = lambda: False) -> None:
    """Shows a model until Ctrl-C, or until ``until`` says so."""
    device = get_device(config.device)
    shown = open_shown(config.model, device)
    viewer = Viewer(shown.now, shown.stands(), port=config.port, title=f"hotlap: {config.model}")
    try:
        emit(events.note(f"{config.model} is at {viewer.address} (Ctrl-C ends)"))
        viewer.tell(shown.told())
        looked = time.monotonic()
        while not until():
            viewer.draw_waiting()
            viewer.wait(IDLE_S)
            if time.monotonic() - looked > RELOAD_S:
                looked = time.monotonic()
                if shown.reload():
                    viewer.tell(shown.told())
                    viewer.wake()
    except KeyboardInterrupt:
        emit(events.note("the page is closed"))
    finally:
        viewer.close()


def open_shown(where: str, device: torch.device) -> Finished | Running:
    """A model on disk: finished, or as a running training's newest checkpoint has it."""
    folder = Path(where)
    if where and (folder / SETTINGS).is_file() and not (folder / MODEL).is_file():
        return Running(folder, device)
    return Finished(where, device)


class Finished:
    """A file of splats or the folder of a training that is over."""

    def __init__(self, where: str, device: torch.device) -> None:
        self._where, self._opened = where, open_splats(where)
        self._model = self._opened.model(device)

    def now(self) -> Model:
        return self._model

    def told(self) -> str:
        splats, config = f"{len(self._opened.splats):,} splats", self._opened.config
        scores = self._opened.results.get(config.judged_by, {}) if config is not None else {}
        return f"{splats}, {config.judged_psnr} {scores['psnr']:.2f} dB" if config and "psnr" in scores else splats

    def stands(self) -> list[Shot]:
        """The training's cameras; those around a file are on an orbit."""
        if self._opened.folder is not None and (self._opened.folder / CAMERAS).is_file():
            return list(read_named(self._opened.folder / CAMERAS).values())
        orbit = SplatRenderConfig(model=self._where, path="orbit", frames=8)
        return find_shots(orbit, dataclasses.replace(self._opened, config=None))

    def reload(self) -> bool:
        """A finished model does not change."""
        return False


class Running:
    """The newest checkpoint of a training whose model is not written yet."""

    def __init__(self, folder: Path, device: torch.device) -> None:
        self._folder, self._device = folder, device
        self._config = read_config(folder)
        self._store = CheckpointStore(folder / CHECKPOINTS, warn=lambda text: None)
        self._scene = open_scene(self._config)
        self._step = -1
        self._model: Model
        if not self.reload():
            raise RecordError(
                f"the training in {str(folder)!r} has neither {MODEL} nor a checkpoint",
                remedy="Wait for its first checkpoint, or train with --view",
            )

    def now(self) -> Model:
        return self._model

    def told(self) -> str:
        return f"step {self._step:,} of {self._config.steps:,}, {len(self._model.params['means']):,} splats" + (
            _last_psnr(self._folder, self._config.judged_psnr, self._step)
        )

    def stands(self) -> list[Shot]:
        train, _ = split_views(self._scene, self._config)
        return [planned_shot(one, self._config.scale, self._config.max_side) for one in train]

    def reload(self) -> bool:
        """Whether there was a newer checkpoint, which was taken."""
        there = self._store.steps()
        if not there or there[-1] <= self._step:
            return False
        found = self._store.load("latest")
        if found is None:  # removed between the two looks, as newer ones push out older ones
            return False
        white = is_white(self._config, self._scene)
        self._model, self._step = checkpoint_model(found.state, self._config, self._device, white), found.step
        return True


def _last_psnr(folder: Path, judged: str, step: int) -> str:
    """The newest PSNR that a training was judged by, or that of its last training picture; ``step`` is the model's."""
    rows = [row for row in read_journal(folder) if "psnr" in row.values]
    for split, name in (("eval", judged), ("train", "training PSNR")):
        found = [row for row in rows if row.split == split]
        if found:
            return f", {told_psnr(name, found[-1].values['psnr'], found[-1].step, step)}"
    return ""
