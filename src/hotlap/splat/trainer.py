"""A training from its first step, or a checkpoint, to its last: steps, densification, judgements, checkpoints."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from hotlap.base import events
from hotlap.base.errors import ConfigError
from hotlap.base.events import Emit
from hotlap.data.scene import Scene
from hotlap.data.view import first_few
from hotlap.kernels.adam.state import AdamConfig
from hotlap.splat.config import LEARNABLE, SplatTrainConfig
from hotlap.splat.graphed import make_steps
from hotlap.splat.guard import Guard, health
from hotlap.splat.judge import Model, judged, mean_scores, psnr
from hotlap.splat.judging import Judging
from hotlap.splat.mcmc import MarkovChain
from hotlap.splat.small_adam import Background, Exposure, Poses
from hotlap.splat.stage import Stage
from hotlap.splat.start import start_splats
from hotlap.splat.state import SplatState, morton_order
from hotlap.splat.step import Beside, TrainStep, rates_of
from hotlap.splat.strategy import Adaptive, Changed, Fixed, Strategy
from hotlap.splat.team import SHARED, Alone, Team

REORDER_GROWTH = 1.2
"""Splats are put in Morton order again when there are so many times more."""
LEAST_SIDE = 64
"""Pictures are not halved to fewer pixels than this."""


class Trainer:
    """One model on one stage; ``step`` steps are done."""

    def __init__(
        self, config: SplatTrainConfig, stage: Stage, device: torch.device, emit: Emit, team: Team | None = None
    ) -> None:
        self.config, self.stage, self.device, self.emit = config, stage, device, emit
        self.team = team or Alone()
        start = start_splats(stage.scene, stage.views, config, stage.extent)
        if len(start["means"]) == config.most_splats < (config.start_splats or len(stage.scene.points)):
            emit(events.warn(f"max_splats = {config.most_splats}: no more of the scene's points become splats"))
        rates = rates_of(config, stage.extent)
        room = min(config.most_splats, 2 * len(start["means"])) if config.strategy != "none" else 0
        self.state = SplatState(start, rates, AdamConfig(mode=config.adam), device, capacity=room)
        self.state.take(morton_order(self.state.alive("means")))
        self.beside = make_beside(config, stage, device)
        self.train_step = TrainStep(
            self.state, stage.cameras, config, stage.extent, self.beside,
            with_masks=config.masks and stage.pictures.has_masks, keep_small=stage.pictures.place == "device",
            reduce=self.team.reduce if self.team.size > 1 else None,
        )  # fmt: skip
        wants_graph = device.type == "cuda" if config.graph is None else config.graph
        self.steps = make_steps(self.train_step, wants_graph)
        self.strategy = make_strategy(config, stage.extent)
        self.guard = Guard(config)
        self.step = 0
        self.seconds = 0.0
        """Spent in steps and densification, without judgements and checkpoints."""
        self.between: Callable[[Trainer], float] | None = None
        """Called after every step; gives the seconds it took, which are not the training's."""
        self.ends = False
        """Whether somebody wants it to end: no further step is begun."""
        self.figures: dict[str, tuple[float, int]] = {}
        """The newest PSNR, of a training picture and of those held out, with its step, for who watches."""
        self._ordered = self.state.count
        self._looked = 0
        """The step at which the losses were last read: their sum is that of the steps since."""
        self._orders: dict[int, list[int]] = {}

    def run(self, until: int) -> None:
        """Makes steps up to a number of them, or until it shall end."""
        began = time.perf_counter()
        try:
            while self.step < until and not self.ends:
                self._one()
                changed = self._densify()
                if changed is not None and changed.reset:
                    self.guard.last_reset = self.step
                if self.between is not None:
                    began += self.between(self)
            if self.device.type == "cuda":
                torch.cuda.synchronize(self.device)
        finally:  # a densification that is refused ends a training that has taken its time
            self.seconds += time.perf_counter() - began

    def _one(self) -> None:
        place = self.step * self.team.size + self.team.rank
        number = self.camera_at(place)
        picture = self.stage.pictures[number]
        self.stage.pictures.expect(self.camera_at(place + n * self.team.size) for n in range(1, 9))
        key = (*self.stage.cameras.sizes[number], self.level_at(self.step, self.stage.cameras.sizes[number]))
        self.train_step.put(key, number, picture.image, picture.mask)
        self.steps(key, self.train_step.degree_at(self.step), number)
        if self.team.size > 1:
            numbers = [self.camera_at(place - self.team.rank + n) for n in range(self.team.size)]
            self.team.share_views(self.beside.by_view(), numbers)
        self.shown = key
        self.step += 1

    def camera_at(self, place: int) -> int:
        """The picture at a place in the order of all: every epoch shuffled by seed and number alone."""
        num = len(self.stage.cameras)
        epoch, at = divmod(place, num)
        if epoch not in self._orders:
            generator = torch.Generator().manual_seed((self.config.seed * 1_000_003 + epoch) % 2**63)
            self._orders = {n: order for n, order in self._orders.items() if n >= epoch - 1}
            self._orders[epoch] = torch.randperm(num, generator=generator).tolist()
        return self._orders[epoch][at]

    def level_at(self, step: int, size: tuple[int, int]) -> int:
        """How often pictures are halved after so many steps."""
        if not self.config.coarse_first:
            return 0
        until = min(self.config.densify_until, self.config.steps) / 2
        level = 2 if step < until / 2 else 1 if step < until else 0
        while level and min(size) / 2**level < LEAST_SIDE:
            level -= 1
        return level

    def _densify(self) -> Changed | None:
        if self.team.size > 1 and self._is_densification_due():
            self.team.share_stats(self.state)
        changed = self.strategy.after(self.step, self.state)
        if changed is not None and self.state.count > REORDER_GROWTH * self._ordered:
            self.state.take(morton_order(self.state.alive("means")))
            self._ordered = self.state.count
        return changed

    def _is_densification_due(self) -> bool:
        c = self.config
        if not c.densify_every or self.step % c.densify_every:
            return False
        return c.densify_from < self.step < min(c.densify_until, c.steps)

    def look_after(self) -> dict[str, float]:
        """What is worth logging; puts right what can be, and stops what cannot. Waits for the device."""
        loss = self.team.mean(self.train_step.read_loss() / max(1, self.step - self._looked))
        self._looked = self.step
        self.guard.check_loss(loss, self.step)
        lost = self.guard.remove_lost(self.state, self.step)
        if lost:
            self.emit(events.warn(f"step {self.step}: {lost} splats with numbers that are not finite were removed"))
        if self.steps.look_after():
            self.emit(events.note(f"step {self.step}: some frames had too little room, and were recorded anew"))
        frame = self.train_step.frame_of(self.shown)
        shown = frame.image if self.beside.exposure is None else self.beside.exposure.apply(frame.which, frame.image)
        mask = None if frame.mask is None else frame.mask[0]
        values = {"loss": loss, "psnr": psnr(shown[0].clamp(0, 1), frame.target[0], mask)}
        self.figures["training PSNR"] = values["psnr"], self.step
        if self.beside.color is not None:
            red, green, blue = self.beside.color[0].tolist()
            values |= {"background_r": red, "background_g": green, "background_b": blue}
        return values | {"splats": float(self.state.count), **health(self.state)}

    def model(self, *, flush: bool = True) -> Model:
        """The splats as they are now, to be drawn; without ``flush`` the training goes on as if nobody had looked."""
        if flush and self.step:  # before the first step nothing lags behind, and Adam has no rate to move it by
            self.state.flush()
        return Model(
            params={name: self.state.alive(name) for name in LEARNABLE},
            background=self.beside.color,
            antialiased=self.config.antialiased,
            sh_degree=self.train_step.degree_at(max(0, self.step - 1)),
        )

    def judge(self, most: int = 0, judging: Judging | None = None) -> dict[str, float]:
        """Mean scores on the held-out pictures; empty where there are none. ``judging`` keeps what it finds."""
        if self.stage.test_cameras is None or self.stage.test_pictures is None:
            return {}
        num = len(self.stage.test_cameras)
        which = range(num) if not most else sorted({round(n * (num - 1) / max(1, most - 1)) for n in range(most)})
        if judging is None:
            found = judged(self.model(), self.stage.test_cameras, self.stage.test_pictures, list(which))
            scores = mean_scores([score for score, _, _ in found])
        else:
            scores = mean_scores(judging.scores(which))
        if scores:
            self.figures[self.config.judged_psnr] = scores["psnr"], self.step
        return scores

    def state_dict(self, *, drawn_alone: bool = False) -> dict[str, Any]:
        """All that the next step depends on; or, in a third of the room, what the model does.

        Several processes must ask for the first together.
        """
        return {
            "state": self.state.state_dict(drawn_alone=drawn_alone),
            "beside": {name: part.state_dict() for name, part in self.beside.parts().items()},
            "guard": self.guard.state_dict(),
            "loss_sum": self.train_step.loss_sum.cpu().clone(),
            "step": self.step,
            "seconds": self.seconds,
            "ordered": self._ordered,
            "looked": self._looked,
            "processes": self.team.size,
            "views": self._views(),
            "own": [] if drawn_alone else self.team.each(self._own()),
        }

    def _views(self) -> list[str]:
        return [view.name for view in self.stage.views]

    def _own(self) -> dict[str, Tensor]:
        """What each of several processes has heard from its views alone, until they next tell each other."""
        return {"loss_sum": self.train_step.loss_sum, **{name: self.state.alive(name) for name in SHARED}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on where another training stood."""
        before = state.get("processes", self.team.size)
        if before != self.team.size:  # each step sees a picture a process: it would be another training
            raise ConfigError(
                f"the checkpoint is of a training in {before} processes, and there are {self.team.size} now",
                expected=f"{before}", remedy="Start it with as many as before, or give another --out",
            )  # fmt: skip
        views, were = self._views(), state.get("views")
        if were not in (None, views):  # what is learned of each lies in their order
            other = first_few(sorted(set(views) ^ set(were)) or views)
            raise ConfigError(
                f"the scene {self.config.scene!r} has {len(views)} pictures to train on, which are not the {len(were)} "
                f"that this training was begun with: {other}",
                remedy="Bring back those it had, or begin a new training in another folder",
            )
        self.state.load_state_dict(state["state"])
        for name, part in self.beside.parts().items():
            part.load_state_dict(state["beside"][name])
        self.guard.load_state_dict(state["guard"])
        self.train_step.loss_sum.copy_(state["loss_sum"])
        if found := state.get("own"):  # checkpoints of before this was kept have what the first process heard
            for name, tensor in self._own().items():
                tensor.copy_(found[self.team.rank][name])
        self.step, self.seconds, self._ordered = state["step"], state["seconds"], state["ordered"]
        # Checkpoints of before this was kept were looked after at every multiple of log_every.
        self._looked = state.get("looked", self.step // self.config.log_every * self.config.log_every)


def make_strategy(config: SplatTrainConfig, extent: float) -> Strategy:
    """What changes the number of splats."""
    if config.strategy == "adc":
        return Adaptive(config, extent)
    return MarkovChain(config) if config.strategy == "mcmc" else Fixed()


def make_beside(config: SplatTrainConfig, stage: Stage, device: torch.device) -> Beside:
    """What is learned beside the splats."""
    background = None
    if config.background == "learn":
        start = stage.pictures[0].image.float().mean((0, 1)) / 255
        background = Background(start, config.lr_background, device)
    color = (
        background.color if background else torch.ones(1, 3, device=device) if is_white(config, stage.scene) else None
    )
    exposure = Exposure(len(stage.cameras), config.lr_exposure, device) if config.exposure else None
    poses = Poses(stage.cameras.viewmats, config.lr_poses, stage.extent) if config.poses else None
    return Beside(color=color, background=background, exposure=exposure, poses=poses)


def is_white(config: SplatTrainConfig, scene: Scene) -> bool:
    """Whether white is behind all splats: asked for, or what the scene's transparent pixels were put on."""
    return config.background == "white" or (config.background == "auto" and scene.white_background is True)


def next_stop(step: int, config: SplatTrainConfig) -> int:
    """The step at which the training next pauses to log, judge or save."""
    every = [config.log_every, config.eval_every, config.checkpoint_every]
    return min([config.steps, *(math.floor(step / n + 1) * n for n in every if n)])
