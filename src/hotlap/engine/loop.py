"""The training loop: steps, evaluations, metrics, checkpoints; stops where it is told to and goes on from there."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import Subset

from hotlap.base import events
from hotlap.base.errors import HotlapError, OutOfMemory, UsageError, did_you_mean
from hotlap.base.events import Emit
from hotlap.base.format import format_bytes, format_rate, format_s
from hotlap.device.nvml import Nvml
from hotlap.device.seed import rng_state, set_rng_state
from hotlap.engine.checkpoint import Checkpoint, CheckpointStore
from hotlap.engine.config import CHECKPOINTS, TrainConfig
from hotlap.engine.journal import Journal
from hotlap.engine.loader import Loaded
from hotlap.engine.parts import Parts, build
from hotlap.engine.prefetch import DevicePrefetcher
from hotlap.engine.split import to_device
from hotlap.engine.window import Window
from hotlap.workload import Workload

if TYPE_CHECKING:
    from hotlap.engine.distributed import ProcessTeam

BAD_SAMPLES = "bad_samples.txt"


class Diverged(HotlapError):
    """The loss is no number any more."""


@dataclass
class Progress:
    """Where a training stands; part of every checkpoint."""

    step: int = 0
    epoch: int = 0
    position: int = 0
    """Batches of the epoch that are done."""
    best: float | None = None
    stale: int = 0
    """Evaluations since the best one."""
    num_splits: int = 0
    recovery_s: float = 0.0
    """Of all times that memory ran out, the longest until the step went on."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a training ended."""

    status: str
    """complete or interrupted."""
    step: int
    epoch: int
    metrics: dict[str, float] = field(default_factory=dict)
    """The last evaluation."""
    best: float | None = None
    best_checkpoint: str = ""
    last_checkpoint: str = ""
    samples_per_s: float | None = None
    micro: int | None = None
    num_splits: int = 0
    recovery_s: float = 0.0
    recomputing: bool = False
    num_bad_samples: int = 0
    peak_bytes: int | None = None
    warnings: tuple[str, ...] = ()


class Trainer:
    """One training in one process, or one process's part of it."""

    def __init__(
        self,
        workload: Workload,
        config: TrainConfig,
        folder: Path,
        device: torch.device,
        *,
        team: ProcessTeam | None = None,
        emit: Emit = events.ignore,
        should_stop: Callable[[], bool] = lambda: False,
    ) -> None:
        self.config, self.folder, self.team, self._emit = config, Path(folder), team, emit
        self.leads = team is None or team.rank == 0
        self._should_stop = should_stop
        self.warnings: list[str] = []
        self.parts: Parts = build(workload, config, device, team=team, say=self._warn)
        self.progress = Progress()
        self.store = CheckpointStore(self.folder / CHECKPOINTS, keep=config.keep, warn=self._warn)
        self.journal: Journal | None = None
        self._metrics: dict[str, float] = {}
        self._window = Window(1 if team is None else team.size)
        self._saved_step, self._saved_at = -1, time.monotonic()
        self._nvml = Nvml() if device.type == "cuda" and self.leads else None
        for finding in self.parts.step.inexact():
            self._warn(f"a split step would not be exact: {finding}")

    def run(self, resume: Checkpoint | None = None) -> Outcome:
        """Trains to the end, or until told to stop; the last checkpoint holds all of it."""
        if resume is not None:
            self._load(resume)
        if self.leads:
            resumed = self.progress.step if resume is not None else None
            self.journal = Journal(self.folder, tensorboard=self.config.tensorboard, resume_step=resumed)
        try:
            finished = self._train()
        except OutOfMemory as error:
            self._save_after(error)
            raise
        finally:
            self.parts.loader.close()
            if self.journal is not None:
                self.journal.close()
        return self._outcome("complete" if finished else "interrupted")

    def _train(self) -> bool:
        """True when the training came to its end."""
        progress, parts = self.progress, self.parts
        self._emit(events.start("train", parts.num_steps, "loading"))
        while progress.epoch < self.config.epochs and progress.step < parts.num_steps:
            if not self._epoch():
                self._save()
                return False
            self._end_epoch()
            if self._patience_is_over():
                self._emit(events.note(f"no better {self.config.monitor} in {progress.stale} evaluations: stopped"))
                break
        if not self._metrics:
            self._evaluate()
        self._save()
        return True

    def _epoch(self) -> bool:
        """The rest of an epoch; False when told to stop."""
        progress, parts = self.progress, self.parts
        parts.model.train()
        batches = DevicePrefetcher(
            parts.loader.epoch(progress.epoch, progress.position),
            parts.device,
            channels_last=self.config.channels_last,
        )
        for loaded in batches:
            self._one(loaded)
            progress.position += 1
            progress.step += 1
            if progress.step % self.config.log_every == 0 or progress.step == parts.num_steps:
                self._log()
            if self._told_to_stop():
                return False
            if self._is_time_to_save():
                self._save()
            if progress.step >= parts.num_steps:
                break
        return True

    def _told_to_stop(self) -> bool:
        stop = self._should_stop()
        return self.team.any_stops(stop) if self.team is not None else stop

    def _one(self, loaded: Loaded) -> None:
        parts = self.parts
        self._window.rate = parts.schedule.apply(self.progress.step)
        if loaded.bad:
            self._list_bad_samples(loaded)
        if loaded.batch is None and self.team is None:
            return
        result = parts.step(loaded.batch, first_sample=loaded.offset)
        if parts.ema is not None:
            parts.ema.update_parameters(parts.model)
        self._window.add(result)
        if result.num_splits:
            self.progress.num_splits += result.num_splits
            self.progress.recovery_s = max(self.progress.recovery_s, result.recovery_s)

    def _log(self) -> None:
        """One row of metrics; reading the loss waits for the device, so it is not done every step."""
        window, progress = self._window, self.progress
        values = window.values()
        if values is None:
            return
        if not math.isfinite(values["loss"]):
            raise Diverged(
                f"the loss was {values['loss']} at step {progress.step}, in epoch {progress.epoch}",
                remedy="Take a smaller --lr, a --warmup or --clip-norm 1, and go on with --resume from the checkpoint "
                f"of step {self._saved_step}"
                if self._saved_step >= 0
                else "Take a smaller --lr, a --warmup or --clip-norm 1",
            )
        told = {"loss": values["loss"], "lr": window.rate, "micro": values["micro"]}
        told |= {"grad_norm": values["grad_norm"]} if "grad_norm" in values else {}
        if self.journal is not None:
            self.journal.log(progress.step, progress.epoch, "train", told)
        text = f"epoch {progress.epoch + 1}, loss {values['loss']:.4g}, {format_rate(values['samples_per_s'])}"
        left = (self.parts.num_steps - progress.step) * values["seconds_a_step"]
        data = {"samples_per_s": values["samples_per_s"], "eta_s": left, **self._device_state()}
        text += "".join(f", {word}" for word in data.pop("words", [])) + f", {format_s(left)} left"
        self._emit(events.Event(kind="advance", task="train", done=progress.step, total=self.parts.num_steps,
                                text=text, data=data))  # fmt: skip
        self._window.clear()

    def _device_state(self) -> dict[str, Any]:
        device = self.parts.device
        if self._nvml is None:
            return {}
        used = torch.cuda.max_memory_allocated(device)
        found: dict[str, Any] = {"peak_bytes": used, "words": [format_bytes(used)]}
        state = self._nvml.state(self._nvml.handle(str(torch.cuda.get_device_properties(device).uuid)))
        if state is not None and state.utilisation is not None:
            found["utilisation"] = state.utilisation
            found["words"].insert(0, f"GPU {state.utilisation:.0f}%")
        return found

    def _end_epoch(self) -> None:
        progress, config = self.progress, self.config
        progress.epoch, progress.position = progress.epoch + 1, 0
        done = progress.epoch >= config.epochs or progress.step >= self.parts.num_steps
        self._metrics = {}
        if done or (config.eval_every and progress.epoch % config.eval_every == 0):
            self._evaluate()
        elif self._is_time_to_save():
            self._save()

    def _evaluate(self) -> None:
        """Loss and metrics on the held-out data; a better one is saved as the best."""
        parts, progress = self.parts, self.progress
        if parts.evaluation is None:
            return
        random = rng_state()
        if self.leads or parts.sharded:  # a sharded model runs on all processes or on none
            self._metrics = self._scores()
        if self.team is not None:
            self._metrics = self.team.same(self._metrics)
        set_rng_state(random)
        score = self._metrics.get(self.config.monitor)
        if score is None:
            raise UsageError(
                f"monitor = {self.config.monitor!r} is not evaluated",
                remedy=did_you_mean(self.config.monitor, self._metrics),
            )
        better = math.isfinite(score) and (progress.best is None or self._is_better(score, progress.best))
        progress.best, progress.stale = (score, 0) if better else (progress.best, progress.stale + 1)
        if parts.schedule.evaluated(better=better):
            self._emit(events.note(f"the learning rate is now {parts.schedule.apply(progress.step):.3g}"))
        if self.journal is not None:
            self.journal.log(progress.step, progress.epoch, "eval", self._metrics)
            shown = ", ".join(f"{name} {value:.4g}" for name, value in self._metrics.items())
            self._emit(events.note(f"epoch {progress.epoch}, step {progress.step}: {shown}"))
        if better or self._is_time_to_save():
            self._save(score)

    def _is_better(self, score: float, best: float) -> bool:
        return score < best if self.config.monitor == "loss" else score > best

    @torch.no_grad()
    def _scores(self) -> dict[str, float]:
        parts = self.parts
        model = parts.ema.module if parts.ema is not None else parts.model
        model.eval()
        total, count = 0.0, 0.0
        assert parts.evaluation is not None
        for loaded in parts.evaluation.epoch(0):
            if loaded.batch is not None:
                part, num = parts.workload.loss(model, to_device(loaded.batch, parts.device))
                total, count = total + float(part), count + float(num)
        scores = {"loss": total / max(count, 1.0)}
        data: Any = parts.workload.eval_data()
        if parts.evaluation.bad_samples:
            self._write_bad_samples()
            data = Subset(data, [i for i in range(len(data)) if i not in parts.evaluation.bad_samples])
        scores |= parts.workload.metrics(model, data, parts.device)
        parts.model.train()
        return scores

    def _patience_is_over(self) -> bool:
        return self.config.patience is not None and self.progress.stale >= self.config.patience

    def _is_time_to_save(self) -> bool:
        """The same answer on every process: seconds are the leader's."""
        if self.config.save_every is not None:
            return self.progress.step - max(0, self._saved_step) >= self.config.save_every
        if self.team is not None and self.progress.step % self.config.log_every:
            return False  # asking the others costs a message
        late = time.monotonic() - self._saved_at >= self.config.save_every_s
        return bool(self.team.same(late)) if self.team is not None else late

    def _save(self, score: float | None = None) -> None:
        if self.progress.step == self._saved_step and score is None:
            return
        random = [rng_state()] if self.team is None else self.team.gather(rng_state())
        self._collect_bad_samples()
        weights = self.parts.weights(keep=self.leads)
        if self.leads:
            assert self.journal is not None
            self.journal.sync()
            higher = self.config.monitor != "loss"
            self.store.save(self._state(random, weights), step=self.progress.step, score=score, higher_is_better=higher)
        if self.team is not None:
            self.team.same(None)  # saving may take longer than the next vote would wait
        self._saved_step, self._saved_at = self.progress.step, time.monotonic()

    def _save_after(self, error: OutOfMemory) -> None:
        """A step that never fitted leaves everything as it was before it: worth a checkpoint before leaving."""
        if type(error) is OutOfMemory:
            self._save()
            error.remedy += f". The checkpoint of step {self.progress.step} is saved"
            error.args = (error.paragraph(),)

    def _state(self, random: list[dict[str, Any]], weights: dict[str, Any]) -> dict[str, Any]:
        parts = self.parts
        return {
            **weights,
            "schedule": parts.schedule.state_dict(),
            "scaler": parts.step.scaler.state_dict() if parts.step.scaler is not None else {},
            "ema": parts.ema.state_dict() if parts.ema is not None else {},
            "split": parts.step.state_dict(),
            "random": random,
            "progress": vars(self.progress).copy(),
            "window": self._window.state_dict(),
            "batch": parts.loader.batch,
            "seed": self.config.seed,
        }

    def _load(self, checkpoint: Checkpoint) -> None:
        state, parts = checkpoint.state, self.parts
        for name, now in (("batch", parts.loader.batch), ("seed", self.config.seed)):
            if state[name] != now:
                raise UsageError(
                    f"{name} = {now}, but the run to resume has {name} = {state[name]}",
                    remedy=f"Leave --{name} as it was; a run with another one is a new run",
                )
        parts.load_weights(state)
        parts.schedule.load_state_dict(state["schedule"])
        if parts.step.scaler is not None and state["scaler"]:
            parts.step.scaler.load_state_dict(state["scaler"])
        if parts.ema is not None and state["ema"]:
            parts.ema.load_state_dict(state["ema"])
        parts.step.load_state_dict(state["split"])
        self.progress = Progress(**state["progress"])
        self._window.load_state_dict(state["window"])
        self._saved_step = checkpoint.step
        rank = self.team.rank if self.team is not None else 0
        # A process that was not there takes up the first one's numbers: the steps' keys come from them.
        set_rng_state(state["random"][rank if rank < len(state["random"]) else 0], all_devices=False)
        self._emit(events.note(f"goes on from step {checkpoint.step} ({checkpoint.path.name})"))

    def _list_bad_samples(self, loaded: Loaded) -> None:
        for bad in loaded.bad:
            self._warn(f"a bad sample was left out: {bad}")
        self._write_bad_samples()

    def _collect_bad_samples(self) -> None:
        """The leader's list gets those that other processes met since the last checkpoint."""
        if self.team is None:
            return
        before = len(self.parts.loader.bad_samples)
        for theirs in self.team.gather(self.parts.loader.bad_samples):
            self.parts.loader.bad_samples.update(theirs)
        if len(self.parts.loader.bad_samples) > before:
            self._write_bad_samples()

    def _write_bad_samples(self) -> None:
        if not self.leads:
            return
        found = {**self.parts.loader.bad_samples}
        if self.parts.evaluation is not None:
            found |= self.parts.evaluation.bad_samples
        text = "".join(f"{bad}\n" for bad in found.values())
        (self.folder / BAD_SAMPLES).write_text(text, encoding="utf-8")

    def _warn(self, text: str) -> None:
        if text not in self.warnings:
            self.warnings.append(text)
            self._emit(events.warn(text))

    def _outcome(self, status: str) -> Outcome:
        parts, progress = self.parts, self.progress
        on_card = parts.device.type == "cuda"
        best = self.store.folder / "best.json"
        newest = f"step-{self._saved_step:08d}-*.pt"
        bad = len(parts.loader.bad_samples)
        if parts.evaluation is not None:
            bad += len(parts.evaluation.bad_samples)
        return Outcome(
            status=status,
            step=progress.step,
            epoch=progress.epoch,
            metrics=self._metrics,
            best=progress.best,
            best_checkpoint=str(best) if best.is_file() else "",
            last_checkpoint=next((str(p) for p in self.store.folder.glob(newest)), ""),
            samples_per_s=self._window.mean_rate(),
            micro=parts.step.micro,
            num_splits=progress.num_splits,
            recovery_s=progress.recovery_s,
            recomputing=parts.step.recomputing,
            num_bad_samples=bad,
            peak_bytes=torch.cuda.max_memory_allocated(parts.device) if on_card else None,
            warnings=tuple(self.warnings),
        )
