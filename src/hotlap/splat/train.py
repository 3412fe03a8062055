"""``hotlap splat train``: a folder with checkpoints and metrics while it runs, a model and its scores at the end."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import torch

from hotlap.base import events
from hotlap.base.errors import ConfigError, HotlapError, RecordError
from hotlap.base.events import Emit, ignore
from hotlap.base.format import format_number, format_s
from hotlap.device.probe import get_device
from hotlap.engine.alone import alone_in
from hotlap.engine.checkpoint import CheckpointStore
from hotlap.engine.config import CHECKPOINTS, STOPPED_AT_ONCE
from hotlap.engine.journal import Journal
from hotlap.engine.place import Place, find_place
from hotlap.records.codec import encode
from hotlap.records.environment import capture
from hotlap.records.measurement import Verdict
from hotlap.records.run import RunRecord, begin, now, save
from hotlap.splat.apart import check_apart, scene_folders
from hotlap.splat.begun import as_begun, check_folder, make_folder, note_place, write_settings
from hotlap.splat.config import SplatTrainConfig
from hotlap.splat.ending import ends_after_its_step
from hotlap.splat.guard import Fallen, Stopped
from hotlap.splat.judging import PICTURES, Judging
from hotlap.splat.live import live_view
from hotlap.splat.outcome import MODEL, close_training, last_judging
from hotlap.splat.room import SMALLER, told_of_memory
from hotlap.splat.stage import open_stage
from hotlap.splat.strategy import Refused
from hotlap.splat.team import Together
from hotlap.splat.trainer import Trainer, next_stop
from hotlap.splat.viewer import check_port, require_viser

OWN = "on its own picture"
"""What is told of the scores of a training on one picture, which holds none out."""
SAVE_EVERY_S = 120.0
"""Between checkpoints, where no number of steps is asked for."""
FEWER = f"{SMALLER} or fewer splats (--max-splats), and begin in a new folder"
"""What helps a training that memory has no room for: the settings of one that has begun stand."""
LEAVE_S = 10.0
"""How long another training in the same folder is waited for, which may be about to leave."""

Watch = Callable[[int, Trainer], None]
"""Called after every ``log_every`` steps, as a viewer asks for."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Trained:
    """A training that is over."""

    record: RunRecord
    folder: Path
    trainer: Trainer


def train(
    config: SplatTrainConfig, emit: Emit = ignore, *, sources: dict[str, str] | None = None, watch: Watch | None = None,
    again: str = "",
) -> RunRecord:  # fmt: skip
    """Trains splats; the record's folder holds the model, its scores, pictures of both, checkpoints and metrics.

    ``again`` says what goes on with it after an interruption, where that is not --resume.
    """
    return train_model(config, emit, sources=sources, watch=watch, again=again).record


def train_model(
    config: SplatTrainConfig, emit: Emit = ignore, *, sources: dict[str, str] | None = None, watch: Watch | None = None,
    again: str = "",
) -> Trained:  # fmt: skip
    """The same, with the trained model at hand."""
    place = find_place()
    device = get_device(config.device)
    if place is not None and device.type == "cuda":
        device = torch.device("cuda", place.local_rank)
    if device.type == "cuda":
        device = torch.device("cuda", device.index or 0)
        torch.cuda.set_device(device)
    _check_alone(config, place)
    if config.graph and device.type != "cuda":
        raise ConfigError(f"graph = True with device = {str(device)!r} is not valid", expected="no, or a CUDA device")
    if config.view is not None:
        require_viser()
        check_port(config.view)
    team = Together(place, device) if place is not None else None
    leads = team is None or team.rank == 0
    config = as_begun(config, emit if leads else ignore)
    check_folder(config)
    with told_of_memory("the scene", f"{SMALLER}, or leave them on disk (--images-on disk)"):
        stage = open_stage(config, device, emit if leads else ignore)
    try:
        if config.out:
            check_apart(Path(config.out), scene_folders(stage.scene), (CHECKPOINTS, PICTURES), stage.scene.folder)
        folder = make_folder(config) if leads else Path(config.out or ".")
        with alone_in(folder, wait_s=LEAVE_S, say=lambda text: emit(events.note(text))) if leads else nullcontext():
            if leads and not config.resume:
                check_folder(config)  # again: while the scene was read, another may have run there and ended
                write_settings(config, folder)
            with told_of_memory("the model", FEWER):
                trainer = Trainer(config, stage, device, emit if leads else ignore, team)
                keeper = Keeper(config, folder, trainer, emit, writes=leads)
                keeper.again = again or keeper.again
                keeper.resume()
            if leads and config.resume:
                note_place(config.scene, folder)
            with live_view(config.view, trainer, emit) as show:
                record = keeper.begin(sources or {})  # not before: what cannot begin leaves no record that says it runs
                record = _follow(keeper, record, _all_of(watch, show))
            return Trained(record=record, folder=folder, trainer=trainer)
    finally:
        stage.close()
        if team is not None:
            team.leave()


def _all_of(watch: Watch | None, show: Callable[[], None]) -> Watch:
    """Tells the caller's listener and the page in the browser."""

    def tell(step: int, trainer: Trainer) -> None:
        show()
        if watch is not None:
            watch(step, trainer)

    return tell


def _check_alone(config: SplatTrainConfig, place: Place | None) -> None:
    """Refuses what only one process can do: a pause in the browser would leave the others waiting."""
    if config.view is not None and place is not None and place.size > 1:
        raise ConfigError(
            f"view = {config.view} with {place.size} processes is not supported",
            remedy="Train in one process, or look at its checkpoints with 'hotlap splat view'",
        )


def _follow(keeper: Keeper, record: RunRecord, watch: Watch | None) -> RunRecord:
    """The record of a training that has been brought to its end, whatever that is."""
    try:
        with told_of_memory("the training", FEWER):
            status, why = _fit(keeper, watch)
            outcome = keeper.close_training(status, why) if keeper.writes else {}
    except KeyboardInterrupt:  # unless it was asked to end, perhaps in the midst of a step, which must not be saved
        keeper.close(record, "interrupted", keeper.left or STOPPED_AT_ONCE, {})
        raise
    except Exception as error:  # also a card without memory: no record may say that it still runs
        told = str(error) if isinstance(error, HotlapError) else f"{type(error).__name__}: {error}"
        keeper.close(record, "failed", told, {})
        raise
    return keeper.close(record, status, why, outcome)


def _fit(keeper: Keeper, watch: Watch | None) -> tuple[str, str]:
    """How the training ended, and why if it was stopped; the model is then the best there was."""
    try:
        with ends_after_its_step(keeper.trainer):
            keeper.fit(watch)
    except (Stopped, Refused) as error:
        keeper.emit(events.warn(f"stopped: {error}"))
        keeper.stopped_at = (keeper.trainer.step, keeper.trainer.seconds)
        if isinstance(error, Stopped) and keeper.writes:  # a densification is refused before anything is changed
            keeper.take_best(has_fallen=isinstance(error, Fallen))
        return "stopped", str(error)
    return "complete", ""


class Keeper:
    """Runs a trainer and keeps what it leaves behind; of several processes one writes."""

    def __init__(self, config: SplatTrainConfig, folder: Path, trainer: Trainer, emit: Emit, *, writes: bool) -> None:
        self.config, self.folder, self.trainer, self.writes = config, folder, trainer, writes
        self.emit = emit if writes else ignore
        self.store = CheckpointStore(folder / CHECKPOINTS, keep=config.keep, warn=lambda text: emit(events.warn(text)))
        self._saved_at = time.monotonic()
        self.again = f"'hotlap splat train --out {folder} --resume'"
        """What goes on with an interrupted training."""
        self.left = ""
        """What is said of a training that was interrupted, and saved for that."""
        self.notes: list[str] = []
        """What is to be known of a training that was brought to its end."""
        self.stopped_at: tuple[int, float] | None = None
        """Steps and seconds of a training that was ended; the model may be of an earlier step."""
        self._best_score = -math.inf
        """The highest PSNR of a model that can be had again."""
        self._best: dict[str, Any] | None = None
        """That model; None if it is in a checkpoint."""
        self._judging: Judging | None = None
        """What is known of the model after the last step."""

    def begin(self, sources: dict[str, str]) -> RunRecord:
        name = Path(self.config.scene).resolve().name or self.config.scene
        record = begin("splat", name, self.config, sources, capture(import_torch=False))
        return save(record, self.folder) if self.writes else record

    def resume(self) -> None:
        """Takes the newest checkpoint, if there should be one."""
        if not self.config.resume:
            return
        found = self.store.load("latest", map_location="cpu")
        if found is None:
            raise RecordError(
                f"no checkpoint in {str(self.store.folder)!r}",
                remedy=f"Leave --resume out to begin anew, in another folder if this one holds a {MODEL}",
            )
        self.trainer.load_state_dict(found.state)
        score = self.store.best_score()
        self._best_score = -math.inf if score is None else score
        self.emit(events.note(f"went on from step {found.step}"))

    def fit(self, watch: Watch | None) -> None:
        """Makes all steps that are left."""
        trainer, config = self.trainer, self.config
        # One that begins anew drops all rows: those of a training that ended here before its first checkpoint.
        journal = Journal(self.folder, resume_step=trainer.step if config.resume else -1) if self.writes else None
        self.emit(events.start("train", config.steps))
        try:
            if trainer.step == 0 and 0 < config.eval_every < config.steps:
                self._keep_best(self._judge(journal, 0))  # what no step may fall far below
            while trainer.step < config.steps:
                trainer.run(next_stop(trainer.step, config))
                if trainer.ends and trainer.step < config.steps:
                    self._leave(journal)
                self._pause(journal, watch)
        finally:
            if journal is not None:
                journal.close()
            self.emit(events.finish("train"))

    def _leave(self, journal: Journal | None) -> NoReturn:
        """Saves what was learned when somebody asked the training to end."""
        if journal is not None:
            journal.sync()
        self.save(None)
        self.left = f"Stopped after step {self.trainer.step}, which is saved."
        told = f"stopped after step {self.trainer.step}, which is saved; {self.again} goes on from there"
        self.emit(events.warn(told))
        raise KeyboardInterrupt

    def _pause(self, journal: Journal | None, watch: Watch | None) -> None:
        """What is due after this step: a row of metrics, a judgement, a checkpoint."""
        trainer, config, step = self.trainer, self.config, self.trainer.step
        epoch = step * trainer.team.size // len(trainer.stage.cameras)
        if step % config.log_every == 0 or step == config.steps:
            values = trainer.look_after()
            if journal is not None:
                journal.log(step, epoch, "train", values)
            told = f"{trainer.state.count} splats, loss {values['loss']:.4f}, {step / trainer.seconds:.1f} steps/s"
            self.emit(events.advance("train", step, config.steps, told))
            if watch is not None:
                watch(step, trainer)
        scores: dict[str, float] = {}
        if config.eval_every and (step % config.eval_every == 0 or step == config.steps):
            # After the last step the journal is told of all pictures; these are the guard's, which knows no others.
            scores = self._judge(journal if step < config.steps else None, epoch)
        if self._is_save_due(step):
            if journal is not None:
                journal.sync()
            self.save(scores.get("psnr"))
        else:
            self._keep_best(scores)

    def _judge(self, journal: Journal | None, epoch: int) -> dict[str, float]:
        """Scores on some held-out pictures, for the journal and for the guard."""
        trainer, step = self.trainer, self.trainer.step
        if self.writes and step == self.config.steps:
            self._judging = last_judging(trainer, self.folder)
        scores = trainer.judge(self.config.max_test_views, self._judging)
        if journal is not None and scores:
            journal.log(step, epoch, "eval", scores)
        if scores:
            whose = "held-out" if self.config.judged_by == "held_out" else OWN
            self.emit(events.note(f"step {step}: {whose} {_figures(scores)}"))
            trainer.guard.check_psnr(scores["psnr"], step)
            told = trainer.guard.told_of_end(scores["psnr"], step) if step == self.config.steps else ""
            if told:
                self.notes.append(told)
                self.emit(events.warn(told))
        return scores

    def _is_save_due(self, step: int) -> bool:
        every = self.config.checkpoint_every
        due = step % every == 0 if every else time.monotonic() - self._saved_at > SAVE_EVERY_S
        if self.trainer.team.size > 1:  # the clock is that of the one which writes
            due = self.trainer.team.mean(float(due and self.writes)) > 0
        return due or step == self.config.steps

    def save(self, score: float | None) -> None:
        state = self.trainer.state_dict()
        if self.writes:
            self.store.save(state, step=self.trainer.step, score=score, higher_is_better=True)
            self._saved_at = time.monotonic()
            if score is not None and score > self._best_score:
                self._best_score, self._best = score, None

    def _keep_best(self, scores: dict[str, float]) -> None:
        """Keeps what was judged in the host's memory if it is the best so far: the PSNR may fall from here on."""
        score = scores.get("psnr", -math.inf)
        if self.writes and self.config.abort_psnr_drop and score > self._best_score:
            self._best = None  # the new one may take its room
            self._best_score, self._best = score, self.trainer.state_dict(drawn_alone=True)

    def take_best(self, *, has_fallen: bool) -> None:
        """After a training went wrong: the best that was judged, or else the last that was saved, in place of what it
        came to. Where the PSNR did not fall, what was judged before the first step is no model.
        """
        guard, state = self.trainer.guard, self._best
        if state is None or not (state["step"] or has_fallen):
            which = "best" if self.store.best_path() else "latest"
            found = self.store.load(which, map_location="cpu")
            if found is None:
                self.emit(events.warn("no checkpoint was saved before: the model is what the training came to"))
                return
            state = found.state
        best_psnr, best_step = guard.best_psnr, guard.best_step
        self.trainer.load_state_dict(state)
        self._judging = None
        step = self.trainer.step
        self.emit(events.note(f"the model is that of step {step}"))
        if has_fallen and self._best_score < best_psnr:  # who judged it ended before it was saved
            self.emit(
                events.warn(
                    f"the best, {best_psnr:.2f} dB at step {best_step}, is lost since the training was resumed; "
                    f"--checkpoint-every {self.config.eval_every} saves every one that is judged"
                )
            )

    def close_training(self, status: str, why: str) -> dict[str, Any]:
        """Writes what the training leaves; what came of it, by name."""
        return close_training(self.trainer, self.folder, self.emit, status, why, self._judging)

    def close(self, record: RunRecord, status: str, why: str, outcome: dict[str, Any]) -> RunRecord:
        if not self.writes:
            return dataclasses.replace(record, status=status)
        verdict = _verdict(self.trainer, status, outcome, self.stopped_at)
        changes = {"status": status, "finished_at": now(), "extra": {"outcome": encode(outcome)}}
        notes = [why] if why else self.notes
        return save(dataclasses.replace(record, **changes, notes=notes, verdict=verdict), self.folder)  # type: ignore[arg-type]


def _verdict(trainer: Trainer, status: str, outcome: dict[str, Any], stopped_at: tuple[int, float] | None) -> Verdict:
    steps, seconds = stopped_at or (trainer.step, trainer.seconds)
    parts = [f"{steps} steps in {format_s(seconds)}"]
    parts += [f"the model is that of step {trainer.step}"] if trainer.step < steps else []
    parts += [_figures(outcome.get("held_out", {}))]
    parts += [f"{OWN} {_figures(outcome['trained_on'])}"] if outcome.get("trained_on") else []
    parts += [f"{outcome.get('splats', trainer.state.count)} splats"]
    done = {"complete": "trained "}.get(status, f"{status} after ")
    headline = done + "; ".join(part for part in parts if part)
    code = {"complete": 0, "interrupted": 130}.get(status, 1)
    return Verdict(outcome=status, headline=headline, exit_code=code)


def _figures(scores: dict[str, float]) -> str:
    units = {"psnr": "PSNR {} dB", "ssim": "SSIM {}", "lpips": "LPIPS {}"}
    return ", ".join(units[name].format(format_number(value, 4)) for name, value in scores.items() if name in units)
