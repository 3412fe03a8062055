"""One process's part of a training that torchrun started, also when it is started again."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from hotlap.base import events
from hotlap.base.errors import HotlapError, LoaderDied, UsageError
from hotlap.base.events import Emit
from hotlap.engine.child import explain
from hotlap.engine.config import TrainConfig, find_training
from hotlap.engine.place import Place
from hotlap.measure.process import freeze_error, revive_error
from hotlap.records.codec import encode
from hotlap.records.environment import capture
from hotlap.records.run import RunRecord, begin, load_record, run_folder, save, write_atomic
from hotlap.targets import short_name

REQUEST = "restart.json"
"""In the run's folder: what a process wants to be different after the next start, and since which step."""
POINTERS = ".torchrun"
"""Under the runs' folder: where each torchrun's training lies, for the processes that it starts again."""
Close = Callable[..., RunRecord]


def train_in_team(config: TrainConfig, emit: Emit, sources: dict[str, str], place: Place, close: Close) -> RunRecord:
    """The record, on every process. ``close(record, folder, outcome)`` finishes it on the first one."""
    emit = emit if place.rank == 0 else events.ignore
    pointer = Pointer(config, place)
    if (ended := pointer.ended()) is not None:
        return ended
    from hotlap.engine.distributed import joined_team

    try:
        team = joined_team(config)
        assert team is not None
        member = Member(config, emit, pointer, team)
        with stop_signals() as stop:
            return member.train(sources, stop.is_set, close)
    except HotlapError as error:
        pointer.failed(error)
        raise
    except Exception as error:
        told = explain(error, config.target)
        pointer.failed(told)
        raise told from error


class Pointer:
    """A file that tells processes started again by torchrun where their training lies, or that it is over."""

    def __init__(self, config: TrainConfig, place: Place) -> None:
        self.file = config.runs / POINTERS / f"{place.key}.json"
        self._config = encode(config)
        self._restarted = place.num_restarts > 0
        self._told: dict[str, Any] | None = None
        self.found: Path | None = None
        """The training's folder, once the first process has told it."""
        with contextlib.suppress(FileNotFoundError, ValueError):
            told = json.loads(self.file.read_text(encoding="utf-8"))
            # Machines that come and go start a named run again without counting it as a restart.
            same = place.has_name and told["config"] == self._config and told["status"] == "running"
            self._told = told if self._restarted or same else None

    def ended(self) -> RunRecord | None:
        """The record, if the training was over and only a process failed to leave; raises what ended it for good."""
        if self._told is None or not self._restarted:
            return None
        if self._told["error"]:
            raise revive_error(self._told["error"])
        return load_record(self._told["folder"]) if self._told["status"] == "complete" else None

    def folder(self) -> Path | None:
        """Where to go on; None for a new training."""
        return Path(self._told["folder"]) if self._told else None

    def restarts(self) -> list[str]:
        return list(self._told["restarts"]) if self._told else []

    def write(self, folder: Path, status: str, restarts: list[str], error: dict[str, str] | None = None) -> None:
        self._told = {"folder": str(folder.resolve()), "status": status, "restarts": restarts, "error": error,
                      "config": self._config}  # fmt: skip
        self.file.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(self.file, json.dumps(self._told) + "\n")

    def failed(self, error: HotlapError) -> None:
        """Notes an error that would come back: torchrun starts processes again whatever they died of."""
        from hotlap.engine.distributed import TeamLost
        from hotlap.engine.exact import StepLost
        from hotlap.engine.team_step import SplitWanted

        if not isinstance(error, (LoaderDied, StepLost, SplitWanted, TeamLost)):
            self.write(self.found or self.file.parent, "failed", self.restarts(), freeze_error(error))


class Member:
    """This process in a team that trains."""

    def __init__(self, config: TrainConfig, emit: Emit, pointer: Pointer, team: Any) -> None:
        self._config, self._emit, self._pointer, self._team = config, emit, pointer, team
        self._leads = team.rank == 0

    def train(self, sources: dict[str, str], should_stop: Callable[[], bool], close: Close) -> RunRecord:
        folder, which = self._team.same(self._begin() if self._leads else None)
        self._pointer.found = folder
        if not folder.is_dir():
            raise UsageError(
                f"runs = {str(self._config.runs)!r}: process {self._team.rank} does not see {str(folder)!r}",
                expected="a folder that all machines share",
            )
        record = None
        if self._leads:
            name = self._config.name or short_name(self._config.target)
            record = save(begin("train", name, self._config, sources, capture(import_torch=False)), folder)
        try:
            outcome = self._run(folder, which, should_stop)
        except HotlapError as error:
            if record is not None:
                close(record, folder, error, self._pointer.restarts())
            raise
        finally:
            self._emit(events.finish("train"))
        if record is not None:
            self._pointer.write(folder, outcome["status"], self._pointer.restarts())
            record = close(record, folder, outcome, self._pointer.restarts())
            if record.status == "interrupted":
                self._emit(events.warn(tell_interruption(outcome["last_checkpoint"])))
        record = self._team.same(record)
        self._team.destroy()
        return record

    def _begin(self) -> tuple[Path, str]:
        """The folder, and what to load there: nothing, latest or a file. Only the first process decides."""
        config, folder = self._config, self._pointer.folder()
        restarts = self._pointer.restarts()
        which = config.resume if Path(config.resume).is_file() else ("latest" if config.resume else "")
        if folder is not None:
            why = (read_request(folder) or {}).get("why") or "a process ended"
            restarts.append(why)
            which = "latest"
            self._emit(events.warn(f"{why}; all processes were started again"))
        elif config.resume:
            folder = Path(find_training(config.resume, config.runs, config.target).path).parent
        else:
            folder = run_folder(config.runs, config.name or short_name(config.target))
        self._pointer.write(folder, "running", restarts)
        return folder.resolve(), which

    def _run(self, folder: Path, which: str, should_stop: Callable[[], bool]) -> dict[str, Any]:
        from hotlap.engine.loop import Trainer
        from hotlap.targets import load_target

        request = self._team.same(read_request(folder) if self._leads else None) or {}
        config = self._config
        if "workers" in request:
            config = dataclasses.replace(config, workers=request["workers"], prefetch=1)
        workload = load_target(config.target, config.workload, config.input)
        trainer = Trainer(
            workload, config, folder, self._team.device, team=self._team, emit=self._emit, should_stop=should_stop
        )
        checkpoint = self._team.same(self._load(trainer, which) if self._leads else None)
        self._split(trainer, checkpoint, request)
        try:
            return encode(trainer.run(checkpoint))
        except HotlapError as error:
            ask_for_less(folder, trainer.progress.step, config.workers or 0, error)
            raise

    def _load(self, trainer: Any, which: str) -> Any:
        checkpoint = trainer.store.load(which) if which else None
        if checkpoint is not None:
            trainer.store.rewind(checkpoint.step)
        return checkpoint

    def _split(self, trainer: Any, checkpoint: Any, request: dict[str, Any]) -> None:
        """Puts a request for smaller micro-batches in force, unless a checkpoint since then has it already."""
        since = checkpoint.step if checkpoint is not None else 0
        if "micro" not in request or request["step"] < since:
            return
        if checkpoint is not None:
            trainer.parts.step.load_state_dict(checkpoint.state["split"])
        trainer.parts.step.split_to(request["micro"], recompute=request["recompute"])
        if checkpoint is not None:
            checkpoint.state["split"] = trainer.parts.step.state_dict()


def tell_interruption(checkpoint: str) -> str:
    """What whoever stopped a training wants to know; before its first step there is nothing to save."""
    saved = "a checkpoint was saved, and --resume goes on from it" if checkpoint else "there was nothing to save yet"
    return f"interrupted; {saved}"


def read_request(folder: Path) -> dict[str, Any] | None:
    """What a process wanted to be different; None when none did."""
    try:
        found: dict[str, Any] = json.loads((folder / REQUEST).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    return found


def ask_for_less(folder: Path, step: int, workers: int, error: HotlapError) -> None:
    """Leaves a request for the next start, if ``error`` is of a kind that less would help against."""
    from hotlap.engine.team_step import SplitWanted

    wanted: dict[str, Any] = {}
    if isinstance(error, SplitWanted):
        wanted = {"micro": error.micro, "recompute": error.recompute}
    elif isinstance(error, LoaderDied):
        wanted = {"workers": workers // 2}
    if wanted:
        asked = {**(read_request(folder) or {}), **wanted, "step": step, "why": error.what}
        write_atomic(folder / REQUEST, json.dumps(asked) + "\n")


@contextlib.contextmanager
def stop_signals() -> Iterator[threading.Event]:
    """SIGTERM and Ctrl-C set a flag, which the processes agree on at the next step."""
    stop = threading.Event()
    numbers = (signal.SIGTERM, signal.SIGINT)
    before = [signal.signal(number, lambda *_: stop.set()) for number in numbers]
    try:
        yield stop
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
