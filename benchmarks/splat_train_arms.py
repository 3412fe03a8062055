"""The trainings that ``splat_train`` compares, each of which can be put aside and gone on with in another process."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from hotlap.base.events import ignore
from hotlap.engine.journal import Row
from hotlap.kernels.splat.op import splat_choice
from hotlap.kernels.ssim.op import l1_ssim
from hotlap.splat.config import LEARNABLE, SplatTrainConfig
from hotlap.splat.judge import Model
from hotlap.splat.stage import Stage
from hotlap.splat.start import start_splats
from hotlap.splat.step import rates_of
from hotlap.splat.trainer import Trainer

REPORT_EVERY, LOOK_EVERY = 500, 100
"""Steps between two lines, and between two looks at the clock where our trainer has no log_every."""
WARM_STEPS = 12
JUDGEMENTS = 10
"""Of a training whose curves are wanted; the clock stands still meanwhile."""
LIKE_M7 = 480
"""Pixels of a picture's width in the preset m7, which was made for photographs of 1920 x 1080."""


class Aside(Exception):
    """The time was up; what is there of the training is kept in a file."""


@dataclasses.dataclass
class Clock:
    """How long a training has taken, over several processes, and when this one has to end."""

    device: torch.device
    give_up: float
    spent: float = 0.0
    points: list[tuple[int, float, int]] = dataclasses.field(default_factory=list)
    """Steps, seconds, splats."""
    began: float = 0.0

    def start(self) -> None:
        self.began = now(self.device)

    def stop(self) -> None:
        self.spent += now(self.device) - self.began

    def is_up(self) -> bool:
        return time.monotonic() > self.give_up


def say(text: str) -> None:
    print(text, flush=True)


def now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def clear_peak(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)


def peak(device: torch.device) -> int:
    return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else 0


def put_aside(path: Path, clock: Clock, step: int, state: dict[str, Any]) -> None:
    """Keeps a training that has to end here."""
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save({"spent": clock.spent, "points": clock.points, "step": step, **state}, path)
    raise Aside(f"put aside at step {step} after {clock.spent:.1f} s")


def taken_up(path: Path, clock: Clock) -> dict[str, Any] | None:
    """A training that was put aside; None if there is none."""
    if not path.is_file():
        return None
    found: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=False)
    clock.spent, clock.points = found["spent"], found["points"]
    say(f"  goes on from step {found['step']}")
    return found


def train_ours(
    config: SplatTrainConfig, stage: Stage, clock: Clock, kept: Path, *, judge: bool
) -> tuple[Model, dict[str, Any], list[Row]]:
    """Our trainer, without its files; rows for curves if it is judged on the way."""
    warm = Trainer(dataclasses.replace(config, sh_every=2, densify_every=0), stage, clock.device, ignore)
    warm.run(WARM_STEPS)
    del warm
    trainer, rows = Trainer(config, stage, clock.device, ignore), list[Row]()
    if (found := taken_up(kept, clock)) is not None:
        trainer.load_state_dict(found["trainer"])
        rows = found["rows"]
    clear_peak(clock.device)
    while trainer.step < config.steps:
        clock.start()
        trainer.run(min((trainer.step // config.log_every + 1) * config.log_every, config.steps))
        values = trainer.look_after()
        clock.stop()
        if clock.is_up() and trainer.step < config.steps:
            put_aside(kept, clock, trainer.step, {"trainer": trainer.state_dict(), "rows": rows})
        if trainer.step % REPORT_EVERY and trainer.step < config.steps:
            continue
        clock.points.append((trainer.step, clock.spent, trainer.state.count))
        say(f"  ours step {trainer.step}: {clock.spent:.1f} s, {trainer.state.count} splats, loss {values['loss']:.4f}")
        rows.append(Row(step=trainer.step, epoch=0, split="train", values=values))
        if judge and trainer.step % max(REPORT_EVERY, config.steps // JUDGEMENTS) == 0:
            rows.append(Row(step=trainer.step, epoch=0, split="eval", values=trainer.judge()))
    found = {"seconds": clock.spent, "splats": trainer.state.count, "points": clock.points}
    found |= {"recordings": trainer.steps.num_recordings, "peak_bytes": peak(clock.device)}
    return trainer.model(), found, rows


def train_gsplat(
    config: SplatTrainConfig, stage: Stage, clock: Clock, kept: Path, adam: str
) -> tuple[Model, dict[str, Any]]:
    """gsplat's rasterization and default strategy in a loop of our own: its example is another task."""
    import gsplat

    GsplatTraining(dataclasses.replace(config, sh_every=2), stage, clock.device, adam).run(WARM_STEPS)
    training = GsplatTraining(config, stage, clock.device, adam)
    if (found := taken_up(kept, clock)) is not None:
        training.load(found)
    clear_peak(clock.device)
    while training.step < config.steps:
        clock.start()
        loss = training.run(min((training.step // LOOK_EVERY + 1) * LOOK_EVERY, config.steps))
        clock.stop()
        if clock.is_up() and training.step < config.steps:
            put_aside(kept, clock, training.step, training.state())
        if training.step % REPORT_EVERY and training.step < config.steps:
            continue
        clock.points.append((training.step, clock.spent, len(training.params["means"])))
        say(f"  gsplat step {training.step}: {clock.spent:.1f} s, {clock.points[-1][2]} splats, loss {loss:.4f}")
    params = training.params
    colors = torch.cat([params["sh0"], params["shN"]], 1)
    drawable = {name: params[name].detach() for name in LEARNABLE if name != "colors"} | {"colors": colors.detach()}
    found = {"seconds": clock.spent, "splats": len(params["means"]), "points": clock.points}
    return Model(params=drawable, background=None), {
        **found, "gsplat": gsplat.__version__, "peak_bytes": peak(clock.device)
    }  # fmt: skip


class GsplatTraining:
    """gsplat's side: the same start, pictures, order, rates and loss as ours.

    ``rasterization`` takes the place of gsplat's own, which needs a card. ``late`` is by how many steps the strategy
    comes later than ours: it counts from 0, so it is 1 unless it is told the number of steps that were made.
    """

    def __init__(
        self, config: SplatTrainConfig, stage: Stage, device: torch.device, adam: str,
        rasterization: Callable[..., Any] | None = None, late: int = 1,
    ) -> None:  # fmt: skip
        import gsplat
        from gsplat import DefaultStrategy

        self.config, self.stage, self.device, self.adam, self.step = config, stage, device, adam, 0
        self.rasterization, self.late = rasterization or gsplat.rasterization, late
        start = start_splats(stage.scene, stage.views, config, stage.extent)
        colors = start.pop("colors")
        self._make(start | {"sh0": colors[:, :1], "shN": colors[:, 1:]})
        self.strategy = DefaultStrategy(
            verbose=False, refine_start_iter=config.densify_from, refine_stop_iter=config.densify_until,
            refine_every=config.densify_every, reset_every=config.prune_scale_from, grow_grad2d=config.densify_grad,
            prune_opa=config.prune_opacity, grow_scale3d=config.split_scale, prune_scale3d=config.prune_scale,
        )  # fmt: skip
        self.strategy.check_sanity(self.params, self.optimizers)
        self.stats = self.strategy.initialize_state(scene_scale=stage.extent)
        self._orders: dict[int, list[int]] = {}

    def _make(self, start: dict[str, torch.Tensor]) -> None:
        """Parameters, an optimizer for each, and the fall of the centres' rate."""
        self.params = torch.nn.ParameterDict(
            {name: torch.nn.Parameter(tensor.contiguous().to(self.device)) for name, tensor in start.items()}
        )
        rates = rates_of(self.config, self.stage.extent)
        rates |= {"sh0": rates["colors"], "shN": rates["colors"] / 20}
        self.optimizers: dict[str, torch.optim.Optimizer] = {}
        for name, param in self.params.items():
            group = [{"params": [param], "lr": rates[name], "name": name}]
            if self.adam == "selective":
                from gsplat.optimizers import SelectiveAdam

                self.optimizers[name] = SelectiveAdam(group, eps=1e-15, betas=(0.9, 0.999))
            else:
                self.optimizers[name] = torch.optim.Adam(group, eps=1e-15, betas=(0.9, 0.999), fused=True)
        gamma = self.config.lr_decay ** (1 / self.config.steps)
        self.decay = torch.optim.lr_scheduler.ExponentialLR(self.optimizers["means"], gamma=gamma)

    def run(self, until: int) -> float:
        """Makes steps up to a number of them; the mean loss of these."""
        total, first = torch.zeros((), device=self.device), self.step
        while self.step < until:
            total += self._one()
        return total.item() / max(1, until - first)

    def _one(self) -> torch.Tensor:
        params, config, cameras = self.params, self.config, self.stage.cameras
        number = self._camera()
        height, width = cameras.sizes[number]
        image, _, info = self.rasterization(
            params["means"], params["quats"], torch.exp(params["scales"]), torch.sigmoid(params["opacities"]),
            torch.cat([params["sh0"], params["shN"]], 1), cameras.viewmats[number][None], cameras.Ks[number][None],
            width, height, packed=False, sh_degree=min(self.step // config.sh_every, config.sh_degree), absgrad=False,
        )  # fmt: skip
        self.strategy.step_pre_backward(params, self.optimizers, self.stats, self.step, info)
        loss = l1_ssim(image, self.stage.pictures[number].image[None], ssim_weight=config.ssim_weight)
        loss.backward()
        for optimizer in self.optimizers.values():
            if self.adam == "selective":
                optimizer.step((info["radii"] > 0).all(-1).any(0))
            else:
                optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        self.decay.step()
        self.step += 1
        self.strategy.step_post_backward(params, self.optimizers, self.stats, self.step - self.late, info, packed=False)
        return loss.detach()

    def _camera(self) -> int:
        """The order of pictures that our trainer has."""
        num = len(self.stage.cameras)
        epoch, at = divmod(self.step, num)
        if epoch not in self._orders:
            generator = torch.Generator().manual_seed((self.config.seed * 1_000_003 + epoch) % 2**63)
            self._orders = {epoch: torch.randperm(num, generator=generator).tolist()}
        return self._orders[epoch][at]

    def state(self) -> dict[str, Any]:
        """All that the next step depends on."""
        return {
            "params": {name: param.detach().cpu() for name, param in self.params.items()},
            "optimizers": {name: optimizer.state_dict() for name, optimizer in self.optimizers.items()},
            "decay": self.decay.state_dict(), "stats": self.stats,
        }  # fmt: skip

    def load(self, found: dict[str, Any]) -> None:
        """Goes on where another process stood."""
        self._make(found["params"])
        for name, optimizer in self.optimizers.items():
            optimizer.load_state_dict(found["optimizers"][name])
        self.decay.load_state_dict(found["decay"])
        self.stats = {
            name: value.to(self.device) if isinstance(value, torch.Tensor) else value
            for name, value in found["stats"].items()
        }
        self.step = found["step"]


def time_m7(config: SplatTrainConfig, stage: Stage, device: torch.device, steps: int) -> dict[str, Any]:
    """The preset's first steps end to end, then forward and backward of single eager steps, in ms."""
    Trainer(config, stage, device, ignore).run(WARM_STEPS)
    trainer = Trainer(config, stage, device, ignore)
    began = now(device)
    trainer.run(steps)
    found: dict[str, Any] = {"seconds": now(device) - began, "timed_steps": steps, "splats": trainer.state.count}
    say(f"  {steps} steps in {found['seconds']:.2f} s")
    found["psnr"] = trainer.look_after()["psnr"]
    key = (*stage.cameras.sizes[0], 0)
    step = trainer.train_step
    frame = step.put(key, 0, stage.pictures[0].image, None)
    _, splats, view = step._drawing(frame, 0)
    kernels = import_module(f"hotlap.kernels.splat.{splat_choice(splats, view).impl}")
    found |= {"forward_ms": [], "backward_ms": [], "size": list(key[:2])}
    needs = frozenset({*LEARNABLE, "means2d"})
    for _ in range(20):
        clock = [now(device)]
        drawn = kernels.forward(splats, view)
        clock.append(now(device))
        kernels.backward(splats, view, drawn, torch.ones_like(drawn.colors), frame.no_alphas, None, needs)
        clock.append(now(device))
        found["forward_ms"].append(1e3 * (clock[1] - clock[0]))
        found["backward_ms"].append(1e3 * (clock[2] - clock[1]))
    return found
