"""The stages of a lap: which tool each calls with which settings, and when there is nothing for it to do."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hotlap.base import events
from hotlap.base.errors import EXIT_OK, EXIT_OUT_OF_MEMORY, EnvironmentUnusable, HotlapError
from hotlap.base.events import Emit, ignore
from hotlap.base.format import format_percent, format_ratio
from hotlap.base.stats import CLEAR_GAP
from hotlap.measure.arms import ArmSpec, parse_arm
from hotlap.measure.process import run_job
from hotlap.records.codec import decode
from hotlap.records.run import RunRecord
from hotlap.tools.lap.config import LapConfig

CHECKS = ("host", "torch-import", "cpu-math", "cpu-threads", "cuda-start", "kernel-launch", "cublas", "cudnn")
"""What a measurement stands on; those for a card are skipped at once where there is none."""
STOPPING_GROUPS = ("cpu", "gpu")
"""A check of these that fails ends the lap: what cannot compute cannot be timed. Others are told."""
LEAST_SEARCH = 0.25
"""Share of the whole budget that the search gets, whatever the other stages took."""
VERIFY_GUESS_S = 15.0
ARM_S = 5.0
"""Timed seconds of an arm in a process, at most, and of its warm-up: of the baseline, and of every arm of the bench."""
FURTHER_ARM = 0.5
"""What a further arm adds to a process, as a share of a process with one; on an H200 it was 0.36 for bilstm."""
FEWEST = 5
"""Processes that the bench is cut down to where the budget is short; a difference under 10% may then stay open."""
ROOM = 0.7
"""Share of the device's memory that an arm which the search did not run may be expected to take."""
LEAST_SEEN = 0.05
"""What the search must have seen for --quick to try to prove it: three processes name nothing under 10%."""
LONG_STEP_MS, LONG_STEP_QUICK_MS = 3000.0, 300.0
"""Of a step longer than this the profile traces one instead of several."""


class Skip(Exception):
    """There is nothing for a stage to do; the text says why."""


class StageFailed(HotlapError):
    """A stage could not do its work; it exits as what stopped it would have."""

    def __init__(self, what: str, *, expected: str = "", remedy: str = "", exit_code: int) -> None:
        super().__init__(what, expected=expected, remedy=remedy)
        self.exit_code = exit_code


@dataclass
class Round:
    """A lap under way, as its stages see it."""

    config: LapConfig
    runs: Path
    """Where the stages' records go."""
    emit: Emit = ignore
    records: dict[str, RunRecord] = field(default_factory=dict)
    """Of the stages that are done, by name."""
    seconds: dict[str, float] = field(default_factory=dict)
    """What each of them took."""
    unfinished: RunRecord | None = None
    """What an earlier start of the present stage left before it was cut off."""

    @property
    def spent_s(self) -> float:
        return sum(self.seconds.values())

    @property
    def baseline(self) -> ArmSpec:
        """The arm that the lap begins with, once the baseline was measured."""
        return parse_arm(self.records["baseline"].arms[0].name)

    @property
    def batch(self) -> int:
        """The batch that the lap begins with."""
        return int(self.records["baseline"].config["batch"])

    @property
    def winner(self) -> tuple[ArmSpec, int] | None:
        """The arm and the batch that the search chose; None where it found none, or has not run."""
        record = self.records.get("tune")
        found = record.extra["tune"].get("winner") if record else None
        return (parse_arm(found["arm"]), int(found["batch"])) if found else None

    @property
    def stays(self) -> bool:
        """Whether the search chose what was there before."""
        return self.winner == (self.baseline, self.batch)

    def common(self, name: str) -> dict[str, Any]:
        """Settings that every tool with a target takes."""
        config = self.config
        return {
            "target": config.target,
            "mode": config.mode,
            "input": config.input,
            "workload": config.workload,
            "seed": config.seed,
            "timeout_s": config.timeout_s,
            "runs": self.runs,
            "name": name,
        }


@dataclass(frozen=True, kw_only=True)
class Stage:
    """One stage; ``run`` gives its record, or raises Skip."""

    name: str
    what: str
    run: Callable[[Round], RunRecord]
    essential: bool = True
    """Whether the lap ends where it fails; else the failure is told and the lap goes on."""
    wanted: Callable[[LapConfig], bool] = lambda config: True


def doctor(lap: Round) -> RunRecord:
    from hotlap.tools.doctor import DoctorConfig
    from hotlap.tools.doctor import doctor as run

    record = run(DoctorConfig(only=CHECKS, runs=lap.runs), lap.emit)
    failed = [check for check in record.checks if check.status == "FAIL" and check.group in STOPPING_GROUPS]
    if failed:
        first = failed[0]
        remedy = f"{first.fix}. " if first.fix else ""
        raise EnvironmentUnusable(
            f"check {first.name} failed: {first.observed}",
            remedy=f"{remedy}--no-doctor measures all the same",
        )
    return record


def baseline(lap: Round) -> RunRecord:
    from hotlap.tools.bench import BenchConfig, bench

    config, quick = lap.config, lap.config.quick
    record = bench(
        BenchConfig(
            **lap.common("baseline"),
            arms=(config.baseline or _plain_device(lap),),
            batch=config.batch,
            processes=1 if quick else 2,
            repeats=3 if quick else 10,
            seconds=0.3,
            max_seconds=1.5 if quick else ARM_S,
            warmup_seconds=1.0 if quick else ARM_S,
            gate=False,  # the search judges the plain arm before anything else, and the last bench every arm
            **_BARE,
        ),
        lap.emit,
    )
    verdict = record.verdict
    if verdict is not None and verdict.exit_code != EXIT_OK:
        if verdict.exit_code != EXIT_OUT_OF_MEMORY:
            # Raises what is wrong with the target itself, with its line, if the gate's small step meets it, too.
            _ask(lap, "gate", arms=[record.arms[0].name], batch=2, steps=1, mode=config.mode, seed=config.seed)
        raise StageFailed(verdict.headline, exit_code=verdict.exit_code)
    return record


_BARE: dict[str, Any] = {
    "memory": False, "transfer": False, "context": False, "break_even": False, "tuned": False,
}  # fmt: skip


def _plain_device(lap: Round) -> str:
    """cuda where torch can use a card: as the doctor saw it, or as a process of its own sees it."""
    seen = lap.records.get("doctor")
    started = next((check for check in seen.checks if check.name == "cuda-start"), None) if seen else None
    if started is not None:
        return "cuda" if started.status in ("PASS", "WARN") else "cpu"
    return "cuda" if _ask(lap, "describe")["num_cuda"] else "cpu"


def _ask(lap: Round, job: str, **more: Any) -> Any:
    """What a measuring process answers about the target."""
    config = lap.config
    common = {"target": config.target, "options": config.workload, "inputs": list(config.input), "job": job}
    return run_job({**common, **more}, timeout_s=config.timeout_s)


def profile_before(lap: Round) -> RunRecord:
    return _profile(lap, "profile-before", lap.baseline, lap.batch)


def profile_after(lap: Round) -> RunRecord:
    arm, batch = _chosen(lap)
    needed = lap.seconds.get("profile-before", 0.0) + FEWEST * a_process_s(lap)
    if not lap.config.quick and lap.spent_s + needed > lap.config.budget_s:
        raise Skip("the bench needs what is left of the budget; 'hotlap lap --resume --budget 20m' makes up for it")
    return _profile(lap, "profile-after", arm, batch)


def _profile(lap: Round, name: str, arm: ArmSpec, batch: int) -> RunRecord:
    from hotlap.tools.profile import ProfileConfig, profile

    quick, wall = lap.config.quick, lap.records["baseline"].arms[0].summary("wall")
    long = wall is not None and wall.median > (LONG_STEP_QUICK_MS if quick else LONG_STEP_MS)
    steps = 1 if long else 3 if quick else 5
    settings = lap.common(name) | ({"warmup_seconds": 1.0} if quick else {})
    return profile(ProfileConfig(**settings, arm=arm.name, batch=batch, steps=steps, detail=not quick), lap.emit)


def _chosen(lap: Round) -> tuple[ArmSpec, int]:
    """What the search chose, where that is something else than what was there before."""
    if lap.winner is None:
        raise Skip("the search found nothing that runs and gives the right answer")
    if lap.stays:
        raise Skip(f"the search stays with {lap.baseline.name} at batch {lap.batch}")
    return lap.winner


def tune(lap: Round) -> RunRecord:
    """The search; one that was cut off goes on with its trials and its own budget."""
    from hotlap.tools.tune import TuneConfig
    from hotlap.tools.tune import tune as run

    config, before = lap.config, lap.unfinished
    short = {"seconds": 0.2, "warmup_seconds": 1.0, "gate_batch": 2, "gate_steps": 2} if config.quick else {}
    common = lap.common("tune") | {"timeout_s": min(config.timeout_s, max(180.0, config.budget_s))}
    return run(
        TuneConfig(
            **common,
            **short,  # type: ignore[arg-type]
            budget=before.config["budget"] if before else f"{search_budget_s(lap):.0f}s",
            resume=str(Path(before.path).parent) if before else "",
            device="" if config.arms else lap.baseline.torch_device,  # the arms say where they run
            arms=config.arms,
            graphs=config.graphs,
            batch=min(lap.batch, config.max_batch or lap.batch) if config.quick else config.batch,
            max_batch=config.max_batch,
            store=config.store,
        ),
        lap.emit,
    )


def search_budget_s(lap: Round) -> float:
    """What the budget leaves for the search: less what was spent, and what the stages after it may take.

    They are guessed by their likes that ran already: the second profile by the first, the bench by the baseline.
    """
    config = lap.config
    bench_s = a_process_s(lap) * config.processes
    second = lap.seconds.get("profile-before", 0.0) if config.profile_after else 0.0
    later = bench_s + second + (VERIFY_GUESS_S if config.verify else 0.0)
    return max(LEAST_SEARCH * config.budget_s, config.budget_s - lap.spent_s - later)


def a_process_s(lap: Round) -> float:
    """What one process of the bench may take, guessed by the baseline's; its start is paid once for all arms."""
    config = lap.config
    alone = lap.seconds.get("baseline", 0.0) / (1 if config.quick else 2)
    if "tune" in lap.records:
        num_arms = len(bench_arms(lap))
    else:  # the baseline also at the winner's batch, if that may be another one
        num_arms = 2 + config.advice + (config.batch is None and not config.quick)
    return alone * (1 + FURTHER_ARM * (num_arms - 1))


def bench_processes(lap: Round) -> int:
    """As many as were asked for; where the budget is short as many as it leaves time for, but no fewer than five."""
    asked, one = lap.config.processes, a_process_s(lap)
    if asked <= FEWEST or not one:
        return asked
    return min(asked, max(FEWEST, int((lap.config.budget_s - lap.spent_s) / one)))


def verify(lap: Round) -> RunRecord:
    from hotlap.tools.tune import TuneConfig
    from hotlap.tools.tune import tune as run

    if lap.winner is None:
        raise Skip("the search found nothing that runs and gives the right answer")
    if not lap.records["tune"].extra["tune"].get("stored"):
        raise Skip("the profile is not in the store, where its consumers look for it")
    return run(TuneConfig(**lap.common("verify"), verify=True, device=lap.baseline.torch_device), lap.emit)


def bench(lap: Round) -> RunRecord:
    """Before and after, and what else is to be set beside them, in one interleaved run behind the gate."""
    from hotlap.tools.bench import BenchConfig
    from hotlap.tools.bench import bench as run

    config, quick = lap.config, lap.config.quick
    arms = bench_arms(lap)
    if len(arms) == 1:
        _chosen(lap)
    if quick and not tested_advice(lap):
        _refuse_to_prove_little(lap)
    short: dict[str, Any] = {"warmup_seconds": ARM_S, "max_seconds": ARM_S, "repeats": 12, "seconds": 0.3}
    if quick:
        short = {"repeats": 6, "seconds": 0.3, "max_seconds": 1.5, "warmup_seconds": 1.0, "gate_batch": 2}
        short |= {"gate_steps": 2}
    common, processes = lap.common("bench"), bench_processes(lap)
    is_short = processes < config.processes
    if is_short:
        told = f"the budget leaves time for {processes} of {config.processes} processes in the bench"
        lap.emit(events.note(f"{told}; peak memory is that of the search's trials"))
    return run(
        BenchConfig(
            **common, **short, arms=arms, batch=lap.batch, processes=processes,
            **(_BARE | {"memory": not quick and not is_short}),
        ),
        lap.emit,
    )  # fmt: skip


def _refuse_to_prove_little(lap: Round) -> None:
    """Skips a bench that could only say that it cannot tell."""
    seen = seen_gain(lap)
    if seen is not None and seen < 1 + LEAST_SEEN:
        raise Skip(
            f"the search saw {format_ratio(seen)}, and with --quick the bench names no difference under "
            f"{format_percent(CLEAR_GAP)}; without --quick it would be measured"
        )


def seen_gain(lap: Round) -> float | None:
    """Samples a second of what the search chose over those of the baseline, both as its trials had them.

    They were run one after another: good for deciding whether a comparison is worth its time, and not one itself.
    """
    from hotlap.tools.tune.rows import Config, Row, estimates

    known = estimates(decode(Row, row) for row in lap.records["tune"].extra["tune"]["rows"])
    if lap.winner is None:
        return None
    arm, batch = lap.winner
    before, after = known.get(Config(lap.baseline.name, lap.batch)), known.get(Config(arm.name, batch))
    return after.rate / before.rate if before and after and before.rate else None


def bench_arms(lap: Round) -> tuple[str, ...]:
    """The baseline, its arm at the winner's batch, the winner, and the arms of the advice that is put to the test."""
    arms = [lap.baseline.name]
    if lap.winner is not None and not lap.stays:
        arm, batch = lap.winner
        if batch != lap.batch and arm != lap.baseline and _likely_fits(lap, batch):
            arms.append(dataclasses.replace(lap.baseline, batch=batch).name)
        arms.append(at_batch(arm, batch, lap.batch))
    return tuple(dict.fromkeys([*arms, *(piece["arm"] for piece in tested_advice(lap))]))


def _likely_fits(lap: Round, batch: int) -> bool:
    """Whether the baseline's arm may be run at the winner's batch: one that runs out of memory disturbs the others.

    It did so in the search, or its peak, taken to grow with the batch, leaves room.
    """
    found = lap.records["tune"].extra["tune"]
    rows = [row for row in found["rows"] if row["arm"] == lap.baseline.name]
    same = [row for row in rows if row["batch"] == batch]
    if same:
        return any(row["status"] == "ok" for row in same)
    peaks = [row["peak_bytes"] / row["batch"] for row in rows if row["peak_bytes"]]
    return not peaks or max(peaks) * batch < ROOM * found["key"]["memory_bytes"]


def at_batch(arm: ArmSpec, batch: int, own: int) -> str:
    """The arm's name in a bench at batch ``own``."""
    return dataclasses.replace(arm, batch=batch if batch != own else 0).name


def tested_advice(lap: Round) -> list[dict[str, Any]]:
    """The first pieces of the first profile's advice that an arm can check."""
    record = lap.records.get("profile-before")
    found = record.extra.get("profile", {}).get("advice", []) if record else []
    return [piece for piece in found if piece["arm"]][: lap.config.advice]


STAGES = (
    Stage(name="doctor", what="does this machine compute?", run=doctor, wanted=lambda config: config.doctor),
    Stage(name="baseline", what="how fast is it today?", run=baseline),
    Stage(
        name="profile-before", what="where does the time go?", run=profile_before, essential=False,
        wanted=lambda config: config.profile,
    ),
    Stage(name="tune", what="the fastest way that is still right", run=tune),
    Stage(
        name="verify", what="does the consumer do it?", run=verify, essential=False,
        wanted=lambda config: config.verify,
    ),
    Stage(
        name="profile-after", what="where does the time go now?", run=profile_after, essential=False,
        wanted=lambda config: config.profile and config.profile_after,
    ),
    Stage(name="bench", what="before against after, in one interleaved run", run=bench),
)  # fmt: skip
