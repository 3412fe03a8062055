"""The training loop: steps, evaluations, metrics, checkpoints; stops where it is told to and goes on from there."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from hotlap.base import events
from hotlap.base.errors import DataError, LoaderDied, OutOfMemory, UsageError, did_you_mean
from hotlap.base.events import Emit
from hotlap.base.format import format_rate, format_s
from hotlap.device.layout import channels_last_for
from hotlap.device.memory import peak_rss_bytes
from hotlap.device.seed import rng_state, set_rng_state
from hotlap.engine.bad_samples import BadSamples
from hotlap.engine.card_watch import CardWatch, in_words
from hotlap.engine.checkpoint import Checkpoint, CheckpointStore
from hotlap.engine.config import CHECKPOINTS, TrainConfig
from hotlap.engine.diverged import Diverged, wrong_loss, wrong_weight
from hotlap.engine.evaluate import evaluate, never
from hotlap.engine.journal import Journal
from hotlap.engine.loader import Loaded
from hotlap.engine.loader_death import explain_death
from hotlap.engine.pace import Pace
from hotlap.engine.parts import Parts, build
from hotlap.engine.prefetch import DevicePrefetcher
from hotlap.engine.progress import Outcome, Progress
from hotlap.engine.resume import load_parts, state_of
from hotlap.engine.settle import Settling
from hotlap.engine.window import Window
from hotlap.targets import told_of_loss
from hotlap.workload import Workload

if TYPE_CHECKING:
    from hotlap.engine.distributed import ProcessTeam


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
        self._pace: Pace | None = None
        self.bad_samples = BadSamples(self.folder)
        self._metrics: dict[str, float] = {}
        self._window = Window(1 if team is None else team.size)
        self._resumed_from: int | None = None
        self._is_saved = True
        self._saved_step, self._saved_at, self._saved_path = -1, time.monotonic(), ""
        self._random = torch.get_rng_state()
        self._card = CardWatch(device)
        alone = team is None and config.workers is None
        self._settling = Settling(device, config.prefetch) if alone else None
        for text in told_of_loss(config.input, "train"):
            self._warn(text)
        for finding in self.parts.step.inexact():
            self._warn(f"a split step would not be exact: {finding}")

    def run(self, resume: Checkpoint | None = None) -> Outcome:
        """Trains to the end, or until told to stop; the last checkpoint holds all of it."""
        rows = 0
        if resume is not None:
            rows = resume.state["num_rows"]
            self._load(resume)
        if self.leads:
            self.bad_samples.write()
            board = self.config.tensorboard
            self.journal = Journal(self.folder, tensorboard=board, resume_step=self.progress.step, resume_rows=rows)
            self._pace = Pace(self.folder, resume_step=self.progress.step)
        try:
            finished = self._train()
        except OutOfMemory as error:
            self._save_after(error)
            raise
        except RuntimeError as error:  # torch tells of a dead loader's worker wherever this process happens to be
            died = explain_death(error)
            if died is None:
                raise
            raise died from error
        finally:
            self.parts.loader.close()
            self._card.close()
            if self.journal is not None:
                self.journal.close()
        return self._outcome("complete" if finished else "interrupted")

    def end_at(self, step: int) -> None:
        """The training now ends at another step, its schedule along with it; for one process, between two steps."""
        self.parts.num_steps = step
        self.parts.schedule.end_at(step)

    def _train(self) -> bool:
        """True when the training came to its end."""
        self._emit(events.start("train", self.parts.num_steps, "loading"))
        self._window.clear_clock()
        if not self._end_epoch():  # the checkpoint may be of the end of an epoch, not yet evaluated
            self._save()
            return False
        if self._is_over() and self.progress.evaluated_step == self.progress.step:
            self._emit(events.note(f"nothing is left to do: {self._why_over()}"))
        while not self._is_over():
            if self._told_to_stop() or not self._epoch() or not self._end_epoch():
                self._save()
                return False
        if self.progress.evaluated_step != self.progress.step and not self._evaluate():
            self._save()
            return False
        self._save()
        return True

    def _is_over(self) -> bool:
        return bool(self._why_over())

    def _why_over(self) -> str:
        """What brings the training to its end; '' while it goes on."""
        progress, config = self.progress, self.config
        if progress.epoch >= config.epochs:
            return f"epochs = {config.epochs} are done"
        if progress.step >= self.parts.num_steps:
            return f"steps = {self.parts.num_steps} are done"
        if config.patience is not None and progress.stale >= config.patience:
            return f"no better {config.monitor} in {progress.stale} evaluations"
        return ""

    def _epoch(self) -> bool:
        """The rest of an epoch; False when told to stop."""
        progress, parts = self.progress, self.parts
        parts.model.train()
        for loaded in self._batches():
            self._one(loaded)
            progress.position += 1
            progress.step += 1
            self._is_saved = False
            if progress.step % self.config.log_every == 0 or progress.step == parts.num_steps:
                self._log()
            if progress.step >= parts.num_steps:
                break
            if self._told_to_stop():
                return False
            if self._is_time_to_save():
                self._save()
            if self._settles():
                return self._epoch()
        if len(parts.loader.bad_samples) == parts.loader.num_samples:
            raise DataError(
                f"all {parts.loader.num_samples} samples of the training data are bad",
                remedy="bad_samples.txt says why",
            )
        return progress.position >= parts.loader.num_batches or progress.step >= parts.num_steps

    def _settles(self) -> bool:
        """Whether the loader now goes on with other settings, from the next batch on."""
        if self._settling is None or not self._settling.is_over:
            return False
        settings, why = self._settling.settings()
        self._settling = None
        if settings.num_workers == 0:
            return False
        self._emit(events.note(why))
        self.parts.loader.go_on_with(settings)
        return True

    def _batches(self) -> Iterator[Loaded]:
        """The rest of the epoch; fewer when the loader's workers were told to stop together with this process."""
        loaded = self.parts.loader.epoch(self.progress.epoch, self.progress.position)
        try:
            layout = channels_last_for(self.parts.model) if self.config.channels_last else None
            batches = DevicePrefetcher(loaded, self.parts.device, layout=layout)
            yield from batches if self._settling is None else self._settling.watched(batches)
        except LoaderDied:
            if self.team is not None or not self._should_stop():
                raise

    def _told_to_stop(self) -> bool:
        stop = self._should_stop()
        return self.team.any_stops(stop) if self.team is not None else stop

    def _one(self, loaded: Loaded) -> None:
        parts = self.parts
        self._window.rate = parts.schedule.apply(self.progress.step)
        if loaded.bad:
            self._note_bad_samples()
        if loaded.batch is None and self.team is None:
            return
        self._random = torch.get_rng_state()
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
        self._check()
        micro = self.parts.step.micro or self.parts.loader.batch
        told = {"loss": values["loss"], "lr": window.rate, "micro": float(micro)}
        told |= {"grad_norm": values["grad_norm"]} if "grad_norm" in values else {}
        if self.journal is not None:
            self.journal.log(progress.step, self._epoch_number(), "train", told)
        left = (self.parts.num_steps - progress.step) * values["seconds_a_step"]
        card = self._card.read()
        pace = {"samples_per_s": values["samples_per_s"], **card}
        if self._pace is not None:
            self._pace.log(progress.step, pace)
        words = [f"loss {values['loss']:.4g}", format_rate(values["samples_per_s"]), *in_words(card)]
        self._emit(
            events.Event(
                kind="advance",
                task="train",
                done=progress.step,
                total=self.parts.num_steps,
                text=f"epoch {self._epoch_number()}: " + ", ".join([*words, f"{format_s(left)} left"]),
                data={**pace, "eta_s": left},
            )
        )
        window.clear()

    def _epoch_number(self) -> int:
        """The epoch that is being trained or was just ended, from 1."""
        return self.progress.epoch + (self.progress.position > 0)

    def _check(self, *, weights: bool = False) -> None:
        """Raises when the training has diverged; ``weights`` are looked at where they are about to be saved."""
        wrong = wrong_loss(self._window.losses(), is_scaled=self.parts.step.scaler is not None)
        wrong = wrong or (wrong_weight(self.parts.model) if weights else "")
        if weights and self.team is not None and self.team.any_failed(bool(wrong)):
            wrong = wrong or "a weight of another process was nan"
        if not wrong:
            return
        remedy = "Take a smaller --lr, a --warmup or --clip-norm 1"
        if self._saved_path:
            remedy += f", and go on with --resume from the checkpoint of step {self._saved_step}"
        raise Diverged(f"{wrong} at step {self.progress.step}, in epoch {self._epoch_number()}", remedy=remedy)

    def _end_epoch(self) -> bool:
        """Evaluates if it is time to; False when told to stop meanwhile."""
        progress, every = self.progress, self.config.eval_every
        if progress.position < self.parts.loader.num_batches:
            return True  # it has not ended: the steps have, or it is only resumed
        is_due = every > 0 and (progress.epoch + 1) % every == 0
        if is_due and progress.evaluated_step != progress.step and not self._evaluate():
            return False
        progress.epoch, progress.position = progress.epoch + 1, 0  # to a resumed run the same place: nothing to save
        if not self._is_over() and self._is_time_to_save():
            self._save()
        if self._why_over().startswith("no better"):
            self._emit(events.note(f"{self._why_over()}: stopped"))
        return True

    def _evaluate(self) -> bool:
        """Loss and metrics on the held-out data; a better one is saved as the best. False when told to stop."""
        parts, progress = self.parts, self.progress
        if parts.evaluation is None:
            progress.evaluated_step = progress.step
            return True
        random = rng_state()
        with self._window.paused():
            # A sharded model runs on all processes or on none, and then none may leave before the others.
            takes_part, should_stop = self.leads or parts.sharded, never if parts.sharded else self._should_stop
            try:
                scores = evaluate(parts, should_stop=should_stop) if takes_part else None
            finally:
                self._note_bad_samples()  # an error may point to their list
            scores = self.team.same(scores) if self.team is not None else scores
        set_rng_state(random)
        if scores is None:
            return False
        self._metrics, progress.evaluated_step, self._is_saved = scores, progress.step, False
        better = self._judge(scores)
        if self.journal is not None:
            self.journal.log(progress.step, self._epoch_number(), "eval", scores)
            shown = ", ".join(f"{name} {value:.4g}" for name, value in scores.items())
            self._emit(events.note(f"epoch {self._epoch_number()}, step {progress.step}: {shown}"))
        if better:
            self._save(scores[self.config.monitor])
        return True

    def _judge(self, scores: dict[str, float]) -> bool:
        """Whether this evaluation is the best so far; the schedule hears of it."""
        progress, monitor = self.progress, self.config.monitor
        if monitor not in scores:
            progress.evaluated_step = -1  # with another name the run goes on, and judges this step again
            self._save()
            hint = did_you_mean(monitor, scores)
            raise UsageError(
                f"monitor = {monitor!r} is not evaluated",
                remedy=hint
                + ("" if hint.endswith("?") else ".")
                + f" The checkpoint of step {progress.step} is saved; "
                "go on with --resume and another --monitor",
            )
        score, best = scores[monitor], progress.best
        better = math.isfinite(score) and (best is None or (score < best if not self._higher() else score > best))
        progress.best, progress.stale = (score, 0) if better else (best, progress.stale + 1)
        if self.parts.schedule.evaluated(better=better):
            self._emit(events.note(f"the learning rate is now {self.parts.schedule.apply(progress.step):.3g}"))
        return better

    def _higher(self) -> bool:
        goal = self.config.goal
        return goal == "max" or (goal == "auto" and self.config.monitor != "loss")

    def _is_time_to_save(self) -> bool:
        """The same answer on every process: seconds are the leader's."""
        if self.config.save_every is not None:
            return self.progress.step - max(0, self._saved_step) >= self.config.save_every
        if self.team is not None and self.progress.step % self.config.log_every:
            return False  # asking the others costs a message
        late = time.monotonic() - self._saved_at >= self.config.save_every_s
        return bool(self.team.same(late)) if self.team is not None else late

    def _save(self, score: float | None = None) -> None:
        if self._is_saved:
            return
        with self._window.paused():
            self._check(weights=True)
            mine: dict[str, Any] = {"random": rng_state(), "bad": self.parts.loader.bad_samples}
            all_of_them: list[dict[str, Any]] = [mine] if self.team is None else self.team.gather(mine)
            weights = self.parts.weights(keep=self.leads)
            if self.leads:
                assert self.journal is not None
                added = [self.bad_samples.add("train", process["bad"].values()) for process in all_of_them]
                if any(added):
                    self.bad_samples.write()
                self.journal.sync()
                state = self._state([process["random"] for process in all_of_them], weights)
                path = self.store.save(state, step=self.progress.step, score=score, higher_is_better=self._higher())
                self._saved_path = str(path)
            if self.team is not None:
                self._saved_path = self.team.same(self._saved_path)  # and waits here: saving may take long
        self._is_saved = True
        self._saved_step, self._saved_at = self.progress.step, time.monotonic()

    def _save_after(self, error: OutOfMemory) -> None:
        """A step that never fitted leaves everything as it was before it: worth a checkpoint before leaving."""
        if type(error) is not OutOfMemory:
            return
        torch.set_rng_state(self._random)  # the step has drawn its key, which it will draw again
        self._save()
        error.remedy += f". The checkpoint of step {self.progress.step} is saved" if self._saved_path else ""
        error.args = (error.paragraph(),)

    def _state(self, random: list[dict[str, Any]], weights: dict[str, Any]) -> dict[str, Any]:
        assert self.journal is not None
        return {
            **weights,
            **state_of(self.parts),
            "random": random,
            "progress": vars(self.progress).copy(),
            "metrics": dict(self._metrics),
            "window": self._window.state_dict(),
            "bad_samples": self.bad_samples.state(),
            "num_rows": self.journal.num_rows,
            "seed": self.config.seed,
        }

    def _load(self, checkpoint: Checkpoint) -> None:
        state, parts = checkpoint.state, self.parts
        load_parts(parts, checkpoint, seed=self.config.seed, micro=self.config.micro)
        self.progress = Progress(**state["progress"])
        self._metrics = dict(state["metrics"])
        self._window.load_state_dict(state["window"])
        self.bad_samples.load(state["bad_samples"])
        self._resumed_from = self._saved_step = checkpoint.step
        self._saved_path = str(checkpoint.path)
        rank = self.team.rank if self.team is not None else 0
        # A process that was not there takes up the first one's numbers: the steps' keys come from them.
        set_rng_state(state["random"][rank if rank < len(state["random"]) else 0], all_devices=False)
        self._emit(events.note(f"goes on from step {checkpoint.step} ({checkpoint.path.name})"))

    def _note_bad_samples(self) -> None:
        """Says and lists those that are new; other processes' are listed with the next checkpoint."""
        parts = self.parts
        new = [f"training data, {bad}" for bad in self.bad_samples.add("train", parts.loader.bad_samples.values())]
        if parts.evaluation is not None:
            found = self.bad_samples.add("eval", parts.evaluation.bad_samples.values())
            new += [f"evaluation data, {bad}" for bad in found]
        for bad in new:
            self._warn(f"a bad sample was left out: {bad}")
        if new and self.leads:
            self.bad_samples.write()

    def _warn(self, text: str) -> None:
        if text not in self.warnings:
            self.warnings.append(text)
            self._emit(events.warn(text))

    def _outcome(self, status: str) -> Outcome:
        parts, progress = self.parts, self.progress
        on_card = parts.device.type == "cuda"
        return Outcome(
            status=status,
            step=progress.step,
            epoch=progress.epoch,
            resumed_from=self._resumed_from,
            metrics=self._metrics,
            best=progress.best,
            best_checkpoint=str(self.store.best_path() or ""),
            last_checkpoint=self._saved_path,
            samples_per_s=self._window.mean_rate(),
            micro=parts.step.micro,
            workers=parts.loader.settings.num_workers,
            num_splits=progress.num_splits,
            recovery_s=progress.recovery_s,
            recomputing=parts.step.recomputing,
            num_replays=parts.step.num_replays,
            num_bad_samples=len(self.bad_samples),
            peak_bytes=torch.cuda.max_memory_allocated(parts.device) if on_card else None,
            host_peak_bytes=peak_rss_bytes(),
            warnings=tuple(self.warnings),
        )
