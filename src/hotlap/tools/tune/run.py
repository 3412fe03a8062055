"""The tool itself: describe, search, confirm, store. The record on disk is never behind, so a kill costs one trial."""

from __future__ import annotations

import dataclasses
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from hotlap.base import events
from hotlap.base.errors import ConfigError, HotlapError, StorageError
from hotlap.base.events import Emit, Event, ignore
from hotlap.base.format import format_count, format_rate, format_target
from hotlap.device.nvml import Nvml
from hotlap.device.probe import require_cuda
from hotlap.measure.arms import COMPILE_MODES, ArmSpec, parse_arm
from hotlap.measure.fingerprint import Question, ask_key
from hotlap.measure.jobs import Description
from hotlap.measure.nursery import COMPILERS, Nursery, own_or_lent
from hotlap.measure.process import Starter, num_on_card, run_job
from hotlap.records.codec import decode, encode
from hotlap.records.environment import Environment, capture
from hotlap.records.loading import Claim, loading
from hotlap.records.measurement import Gate
from hotlap.records.run import RECORD_NAME, RunRecord, begin, now, save
from hotlap.records.tuned import (
    PROFILE_NAME,
    ProfileStore,
    TunedKey,
    TunedProfile,
    only_search,
    only_writer,
    stale_reasons,
    write_profile,
)
from hotlap.targets import short_name, told_of_loss
from hotlap.tools.tune.budget import Budget, spent
from hotlap.tools.tune.config import TuneConfig, changed_settings, cut_short, find_search
from hotlap.tools.tune.contest import CLOSE
from hotlap.tools.tune.export import check_folder, write_exports
from hotlap.tools.tune.goal import Goal
from hotlap.tools.tune.lab import ProcessLab
from hotlap.tools.tune.protocol import numeric_class
from hotlap.tools.tune.rows import GateRow, Outcome, Row, died_at_last, estimates
from hotlap.tools.tune.search import Search
from hotlap.tools.tune.space import Space, make_space
from hotlap.tools.tune.verdict import give_verdict, headline_rows
from hotlap.tools.tune.verify import preview as preview_verify
from hotlap.tools.tune.verify import verify


def tune(config: TuneConfig, emit: Emit = ignore, *, sources: dict[str, str] | None = None) -> RunRecord:
    """Searches for one target, or verifies its stored profile; the record holds every trial."""
    if config.verify:
        return verify(config, emit, sources=sources)
    if config.export is not None:
        check_folder(config.export)  # not after minutes of search
    if config.resume:  # not after the target was loaded, which may not know the other one's options
        before = find_search(config.resume, config.runs)
        _refuse(config, changed_settings(before, config) if before.extra.get("tune") else ())
    emit(events.start("tune", None, f"loading {config.target}"))
    try:
        with own_or_lent(_imported_first(config)) as nursery:
            return _tune(config, emit, nursery, sources or {})
    finally:
        emit(events.finish("tune"))


def _imported_first(config: TuneConfig) -> tuple[str, ...]:
    """What trials need beside torch, and a budget too short to compile in does not: importing it takes seconds."""
    if config.budget_s > Budget.compiled_guess_s and set(config.compile) != {"none"}:
        return COMPILERS
    return COMPILERS[:1] if config.mode == "train" else ()


def _tune(config: TuneConfig, emit: Emit, nursery: Nursery, sources: dict[str, str]) -> RunRecord:
    name = config.name or f"{short_name(config.target)}-tune"
    # A search that goes on has its record.
    with nullcontext() if config.resume else loading("tune", name, config, sources) as claim:
        environment = capture()  # imports torch here while the nursery does it there
        about = describe(config, nursery)
        space = space_of(config, about)
        first = space.firsts[0]
        card = about.cards[first.index] if first.device == "cuda" else ""
        with only_search(first.torch_device, f"tuning {config.target}", card=card):
            folder = claim.folder if claim is not None else _folder_of(config)
            with only_writer(folder):
                return _search(_Run(config, emit, about, space, sources, environment, nursery, claim))


def _refuse(config: TuneConfig, changed: tuple[str, ...]) -> None:
    """Refuses to go on with a search where anything changed."""
    if changed:
        raise ConfigError(
            f"resume = {config.resume!r} cannot go on: {'; '.join(changed)}",
            remedy="Its trials were run under other conditions; start a new search",
        )


def _folder_of(config: TuneConfig) -> Path:
    """The folder of the search that goes on."""
    return Path(find_search(config.resume, config.runs).path).parent


def cuts(config: TuneConfig, space: Space, about: Description) -> list[str]:
    """What was asked for and is not tried."""
    found = _uncompiled(config, space, about)
    if config.batch is not None and space.batch < config.batch:
        found.append(f"batch = {config.batch} is above the number of training samples: {space.batch} is tried")
    dropped = ", ".join(str(size) for size in config.batches if size > space.max_batch)
    return [*found, *([f"batches = {dropped} are left out: at most {space.max_batch} is tried"] if dropped else [])]


def _uncompiled(config: TuneConfig, space: Space, about: Description) -> list[str]:
    """Modes of torch.compile that are left out; of those that nobody asked for nothing is said where one is tried."""
    tried = {str(change.get("compile", "")) for change in space.compiled} | {parse_arm(a).compile for a in config.arms}
    left = [mode for mode in config.compile if mode not in ("none", *tried)]
    if not left or (config.compile == COMPILE_MODES[:3] and (config.arms or about.can_compile)):
        return []
    if config.arms:
        why = "the arms given are the only ones tried"
    elif not about.can_compile:
        why = "there is no C++ compiler here: none of g++, c++ and clang++"
    else:
        why = "on a CPU there is default alone"
    return [f"compile = {', '.join(left)} is left out: {why}"]


def _beside(first: ArmSpec, about: Description) -> list[str]:
    """What else is at work on the card before the first trial is, and so beside all of them."""
    if first.device != "cuda":
        return []
    with Nvml() as nvml:
        state = nvml.state(nvml.handle(about.cards[first.index]))
    num = len(state.processes) - num_on_card() if state is not None else 0
    if num < 1:
        return []
    others = format_count(num, "other process is", "other processes are")
    return [f"{others} on {first.torch_device}: trials share it with them, each as it happens; best search alone"]


def _search(run: _Run) -> RunRecord:
    try:
        run.search()
    except KeyboardInterrupt:
        how = f"Interrupted; 'hotlap tune --resume {run.folder}' goes on without repeating a trial."
        run.close("interrupted", how)
        run.emit(events.warn(how))
        raise
    except HotlapError as error:
        run.close("failed", str(error))
        raise
    record = run.close("complete")
    # Only now: a search that found its winner is whole, also where the exports have no room.
    return run.export(run.config.export) if run.config.export is not None else record


def space_of(config: TuneConfig, about: Description) -> Space:
    """What a search with this config may try; a card that is not there is refused before anything is planned."""
    space = make_space(
        about,
        mode=config.mode,
        device=config.device,
        arms=config.arms,
        graphs=config.graphs,
        batch=config.batch,
        max_batch=config.max_batch,
        batches=config.batches,
        compile_modes=tuple(mode for mode in config.compile if mode != "none"),
    )
    first = space.firsts[0]
    if first.device == "cuda" and first.index >= about.num_cuda:
        require_cuda(first.index)
    return space


def describe(config: TuneConfig, nursery: Starter | None = None) -> Description:
    """What there is to know of the target, learnt in a process of its own."""
    job = {
        "job": "describe",
        "target": config.target,
        "options": config.workload,
        "inputs": list(config.input),
        "count_samples": config.mode == "train",
    }
    about: Description = decode(Description, run_job(job, timeout_s=max(600.0, config.timeout_s), nursery=nursery))
    return about


def preview(config: TuneConfig) -> list[str]:
    """What a search with this config would try, or what would be verified; loads the target, measures nothing."""
    if config.verify:
        return preview_verify(config)
    about = describe(config)
    space = space_of(config, about)
    leader = space.firsts[-1]
    sizes = f"{space.batch}" if space.fixed else f"from {space.batch}, at most {space.max_batch}"
    sizes = ", ".join(map(str, space.sizes)) or sizes
    return [
        f"target     {format_target(about.name, about.summary)}, {about.num_parameters:,} parameters",
        f"objective  {Goal(config.objective, config.p95_ms).says()}",
        *(f"arm        {arm.name}" for arm in space.firsts),
        *(f"then       {arm.name}, and the like for the leader" for arm in space.switched(leader)),
        *(f"finalist   {arm.name}, and the like for the leader" for arm in space.compile_forms(leader)),
        f"batch      {sizes}",
        *(f"           {text}" for text in cuts(config, space, about)),
        f"budget     {config.budget}, every trial in a process of its own",
    ]


class _Run:
    """One search under way."""

    def __init__(
        self,
        config: TuneConfig,
        emit: Emit,
        about: Description,
        space: Space,
        sources: dict[str, str],
        environment: Environment,
        nursery: Nursery,
        claim: Claim | None,
    ) -> None:
        self.config, self.emit, self.about, self.space = config, emit, about, space
        self.environment, self.nursery = environment, nursery
        self.goal = Goal(config.objective, config.p95_ms)
        self.budget = Budget(seconds=config.budget_s, rung_seconds=config.seconds)
        question = Question(
            target=config.target,
            mode=config.mode,
            options=config.workload,
            inputs=list(config.input),
            device=space.firsts[0].torch_device,
        )
        self.key: TunedKey = ask_key(question, nursery)
        self.outcome: Outcome | None = None
        self.profile: TunedProfile | None = None
        self.stored = ""
        self.notes = told_of_loss(config.input, config.mode)
        for text in [*cuts(config, space, about), *_beside(space.firsts[0], about)]:
            self._warn(text)
        rows, gates, full = self._begin(sources, claim)
        self.lab = ProcessLab(
            config, self.budget, rows=rows, gates=gates, saved=self._saved, say=self._say, nursery=nursery
        )
        self.lab.full_gates += full

    def _begin(self, sources: dict[str, str], claim: Claim | None) -> tuple[list[Row], list[GateRow], list[Gate]]:
        """A new record, or that of the search that goes on with its rows."""
        if claim is not None:
            self.folder: Path = claim.take()
            self.record = begin("tune", claim.name, self.config, sources, self.environment)
            return [], [], []
        before = find_search(self.config.resume, self.config.runs)
        found = before.extra.get("tune") or {}
        _refuse(self.config, stale_reasons(decode(TunedKey, found["key"]), self.key) if "key" in found else ())
        self.folder = Path(before.path).parent
        fresh = begin("tune", before.name, self.config, sources, self.environment)
        self.record = dataclasses.replace(fresh, started_at=before.started_at, command=before.command)
        again = cut_short(before, self.config)
        rows = [row for row in (decode(Row, row) for row in found.get("rows", [])) if row.status not in again]
        gates = [decode(GateRow, gate) for gate in found.get("gates", [])]
        self.notes.append(f"Resumed with {len(rows)} trials of an earlier start.")
        return rows, [gate for gate in gates if gate.is_judged or not again], list(before.gates)

    def search(self) -> None:
        self._save()
        outcome = Search(self.space, self.lab, self.goal, self.budget).run()
        if outcome.winner is not None:
            self.profile = self._make_profile(outcome)
            write_profile(self.profile, self.folder / PROFILE_NAME)
            self._store(self.profile)
        self.outcome = outcome

    def export(self, folder: Path) -> RunRecord:
        """The record of the search, with a word on what was written into ``folder``."""
        if self.profile is None:
            self._warn(f"Nothing was written into {folder}: there is no winner to export.")
            return self.close("complete")
        files = write_exports(self.profile, self.lab.rows, self.about, folder)
        self.notes.append(f"Exported {', '.join(str(file) for file in files)}.")
        if self.config.mode == "train":
            self.notes.append(
                "A Triton config.pbtxt is written of a search --for infer: training steps say nothing of it."
            )
        return self.close("complete")

    def _make_profile(self, outcome: Outcome) -> TunedProfile:
        assert outcome.winner is not None and outcome.confirmed is not None
        config, found = outcome.winner, estimates(self.lab.rows)[outcome.winner]
        mine = [row for row in self.lab.rows if row.config == config and row.ok]
        died = died_at_last(self.lab.rows)
        ran = [row.batch for row in self.lab.rows if row.ok and row.arm == config.arm and row.config not in died]
        return TunedProfile(
            key=self.key,
            arm=config.arm,
            batch=config.batch,
            objective=self.config.objective,
            p95_limit_ms=self.config.p95_ms,
            samples_per_s=found.rate,
            samples_ms=[row.wall_ms for row in mine],
            p50_ms=found.p50_ms,
            p95_ms=found.p95_ms if found.supports_p95 else None,
            peak_bytes=found.peak_bytes,
            gate_error=self.lab.gates[numeric_class(config.arm)].error,
            tail_batch=outcome.confirmed.tail if outcome.confirmed.tail_ms else 0,
            max_batch=max(ran),
            searched_from=self.record.started_at,
            measured_at=outcome.confirmed.at,
            record=str((self.folder / RECORD_NAME).absolute()),
        )

    def _store(self, profile: TunedProfile) -> None:
        if not self.config.store:
            self.notes.append(f"Not stored, as asked; the profile lies in {self.folder / PROFILE_NAME}.")
            return
        earlier = ProfileStore().find(profile.key)
        try:
            path, why_not = ProfileStore().save(profile)
        except StorageError as error:
            self._warn(f"The profile could not be stored: {error.what}. It lies in {self.folder / PROFILE_NAME}.")
            return
        if why_not:
            self._warn(f"Not stored in {path}: {why_not}. This one lies in {self.folder / PROFILE_NAME}.")
            return
        self.stored = str(path)
        if earlier.profile is not None and earlier.holds:
            self._tell_of(earlier.profile, profile)

    def _tell_of(self, was: TunedProfile, now: TunedProfile) -> None:
        """Names a profile that made way for one of another objective, or for a slower one."""
        one, made_way = f"{was.arm} at batch {was.batch}", "made way for this one"
        if was.goal != now.goal:
            said = f"({one}, for {was.goal}) {made_way}, for {now.goal}: there is one of a kind"
            self._warn(f"The stored profile {said}.")
        elif now.objective == "throughput" and was.samples_per_s > (1 + CLOSE) * now.samples_per_s:
            said = f"({one}, {format_rate(was.samples_per_s)}) was faster and {made_way}"
            self._warn(f"The stored profile {said}. 'hotlap tune --resume {Path(was.record).parent}' brings it back.")

    def _warn(self, text: str) -> None:
        self.emit(events.warn(text))
        self.notes.append(text)

    def _say(self, text: str) -> None:
        """Tells what is done next, once, and with it what was spent until now."""
        used = min(spent(self.lab.rows, self.lab.gates), self.budget.seconds)
        self.emit(events.advance("tune", used, self.budget.seconds, text))

    def _saved(self) -> None:
        self._save()
        self.emit(Event(kind="result", task="tune", data={"rows": self._table()}))

    def _table(self) -> list[dict[str, Any]]:
        return headline_rows(self.lab.rows, self.lab.gates, self.goal)

    def _snapshot(self) -> RunRecord:
        lab = self.lab
        winner = encode(self.outcome.winner) if self.outcome else None
        found: dict[str, Any] = {
            "key": encode(self.key),
            "about": encode(self.about),
            "goal": self.goal.says(),
            "start": encode({"arm": self.space.firsts[0].name, "batch": self.space.batch}),
            "rows": encode(lab.all_rows),
            "rates": [{**encode(one.config), "samples_per_s": one.rate} for one in estimates(lab.all_rows).values()],
            "gates": encode(lab.all_gates),
            "winner": winner,
            "refused": dict(self.outcome.refused) if self.outcome else {},
            "spent_s": spent(lab.rows, lab.gates),
            "budget_s": self.budget.seconds,
            "profile": encode(self.profile) if self.profile else None,
            "stored": self.stored,
        }
        green = [gate for gate in lab.full_gates if gate.passed]
        notes = [*self.notes, *(f"{text[0].upper()}{text[1:]}." for text in (*lab.notes, *self.nursery.notes))]
        return dataclasses.replace(self.record, extra={"tune": found}, gates=green, notes=notes)

    def _save(self) -> None:
        self.record = save(self._snapshot(), self.folder)

    def close(self, status: str, why: str = "") -> RunRecord:
        """The finished record, with its verdict, on disk."""
        record = self._snapshot()
        verdict = give_verdict(self.config, self.goal, self.lab.rows, self.lab.gates, self.outcome, status, why)
        notes = [*record.notes, *([why] if why else [])]
        record = dataclasses.replace(record, status=status, finished_at=now(), verdict=verdict, notes=notes)
        self.record = save(record, self.folder)
        return self.record
