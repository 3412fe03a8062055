"""``hotlap compare``: two records of the same bench, before and after; made for CI, where the exit code speaks."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hotlap.base import events, stats
from hotlap.base.errors import EXIT_CHECK_FAILED, EXIT_INCONCLUSIVE, EXIT_OK, ConfigError, RecordError, UsageError
from hotlap.base.events import Emit, ignore
from hotlap.base.format import format_error, format_percent, format_ratio
from hotlap.measure.arms import parse_arm
from hotlap.records.environment import capture
from hotlap.records.measurement import Comparison, GateCheck, Verdict
from hotlap.records.run import RunRecord, begin, load_record, now, resolve_run, run_folder, save


@dataclass(frozen=True, kw_only=True)
class CompareConfig:
    """Says whether the second record is slower than the first: exit 0 no, 1 yes, 3 cannot tell."""

    records: tuple[str, ...]
    """Two records, before and after: paths, 'latest', a run's name or name/timestamp."""
    arm: str | None = None
    """Compare only this arm; by default all that both records have."""
    quantity: str = "wall"
    """wall, device, transfer or interval."""
    tolerance: float = 0.05
    """The slow-down that matters, as a fraction. 'No regression' means that a larger one is excluded."""
    force: bool = False
    """Compare even if target, mode or batch differ."""
    runs: Path = Path("runs")
    """Where records lie, and where this comparison's goes."""

    def __post_init__(self) -> None:
        if len(self.records) != 2:
            raise ConfigError(
                f"records = {list(self.records)} names {len(self.records)}", expected="two: before and after"
            )
        if not self.tolerance > 0:
            raise ConfigError(f"tolerance = {self.tolerance} is not valid", expected="a fraction above 0, such as 0.05")


def compare(config: CompareConfig, emit: Emit = ignore, *, sources: dict[str, str] | None = None) -> RunRecord:
    """The comparison of two records, arm by arm."""
    before, after = (load_record(resolve_run(text, config.runs)) for text in config.records)
    if config.arm is not None and config.arm not in {arm.name for arm in before.arms}:
        config = dataclasses.replace(config, arm=parse_arm(config.arm).name)  # as a bench takes it, in any order
    notes = _check_alike(before, after, config.force) + _note_missing(before, after)
    for text in notes:
        emit(events.warn(text))
    broken = _broken(before, after, config.arm)
    arms = _common_arms(before, after, config, may_be_none=bool(broken))
    comparisons = [_compare_arm(before, after, arm, config) for arm in arms]
    record = begin("compare", f"compare-{after.name}", config, sources or {}, capture(import_torch=False))
    record = dataclasses.replace(
        record,
        status="complete",
        finished_at=now(),
        comparisons=comparisons,
        notes=notes,
        extra={"before": before.path, "after": after.path},
        verdict=_verdict(comparisons, config.tolerance, broken),
    )
    return save(record, run_folder(config.runs, record.name))


def _check_alike(before: RunRecord, after: RunRecord, force: bool) -> list[str]:
    """Refuses to compare different work; names what differs in the surroundings."""
    for record in (before, after):
        if record.kind != "bench":
            raise UsageError(f"record {record.path!r} is of kind {record.kind!r}", expected="records of 'hotlap bench'")
        if record.status != "complete" and not force:
            raise UsageError(f"record {record.path!r} is {record.status}", remedy="Repeat that run, or give --force")
    different = [
        f"{key} is {before.config.get(key)!r} and {after.config.get(key)!r}"
        for key in ("target", "mode", "batch", "workload", "input")
        if before.config.get(key) != after.config.get(key)
    ]
    if different and not force:
        raise UsageError(
            f"the records measure different work: {'; '.join(different)}", remedy="Give --force to compare anyway"
        )
    one, two = before.environment, after.environment
    pairs = {
        "machine": (one.device_line(), two.device_line()),
        "driver": (one.driver, two.driver),
        "torch": (one.packages.get("torch", ""), two.packages.get("torch", "")),
        "python": (one.python, two.python),
    }
    changed = [f"{name} changed from {a!r} to {b!r}" for name, (a, b) in pairs.items() if a != b]
    return [f"Not the code alone: {text}." for text in changed] + [f"Different work: {text}." for text in different]


def _note_missing(before: RunRecord, after: RunRecord) -> list[str]:
    """Says which arms cannot be compared, so that one that vanished does not pass for one that is well."""
    alone = sorted({arm.name for arm in before.arms} ^ {arm.name for arm in after.arms})
    return [f"Not compared, because only one record has it: {', '.join(alone)}."] if alone else []


def _broken(before: RunRecord, after: RunRecord, only: str | None) -> list[str]:
    """Arms that were right and timed before, and now give a wrong answer or none at all, with the reason."""
    found = []
    for arm in after.arms:
        was_well = before.samples(arm.name, "wall") and not _wrong(before, arm.name)
        if not was_well or only not in (None, arm.name):
            continue
        wrong = _wrong(after, arm.name)
        if wrong is not None:
            figures = f"error {format_error(wrong.error)}, allowed {format_error(wrong.allowed)}"
            found.append(f"{arm.name} gives a wrong answer now: {wrong.name} {figures}")
        elif arm.error:
            found.append(f"{arm.name} gives no time now: {arm.error}")
    return found


def _wrong(record: RunRecord, arm: str) -> GateCheck | None:
    checks = [check for gate in record.gates if gate.arm == arm for check in gate.checks]
    return next((check for check in checks if not check.passed), None)


def _common_arms(before: RunRecord, after: RunRecord, config: CompareConfig, *, may_be_none: bool) -> list[str]:
    def timed(record: RunRecord) -> list[str]:
        return [arm.name for arm in record.arms if record.samples(arm.name, config.quantity)]

    arms = [name for name in timed(before) if name in timed(after)]
    if config.arm is not None:
        arms = [name for name in arms if name == config.arm]
        if not arms and not may_be_none:
            raise RecordError(
                f"arm {config.arm!r} was not timed in both records",
                expected=", ".join(name for name in timed(before) if name in timed(after)) or "a common arm",
            )
    elif not arms and not may_be_none:
        one, two = ({sample.quantity for sample in record.measurements} for record in (before, after))
        names = [", ".join(arm.name for arm in record.arms) or "none" for record in (before, after)]
        raise RecordError(
            f"the records share no arm with {config.quantity!r} samples: one has {names[0]}, the other {names[1]}",
            expected=f"an arm that both have, and one of the quantities {', '.join(sorted(one & two)) or '(none)'}",
        )
    return arms


def _compare_arm(before: RunRecord, after: RunRecord, arm: str, config: CompareConfig) -> Comparison:
    base, other = before.samples(arm, config.quantity), after.samples(arm, config.quantity)
    decision = stats.compare(base, other, paired=False, min_effect=0.01)
    excluded = decision.ratio.low >= 1 / (1 + config.tolerance)
    slower = decision.verdict == "slower" and not excluded
    reason = decision.reason
    if decision.verdict == "slower" and excluded:
        reason = f"slower, but within the tolerance of {format_percent(config.tolerance)}"
    if not slower and not excluded:
        reason = f"a slow-down of {format_percent(config.tolerance)} is not excluded; repeat with more processes"
    verdict = decision.verdict if slower or decision.verdict == "faster" else "same" if excluded else "inconclusive"
    return Comparison(
        arm=arm,
        baseline=arm,
        quantity=config.quantity,
        ratio=decision.ratio.value,
        low=decision.ratio.low,
        high=decision.ratio.high,
        p_value=decision.p_value,
        test=decision.test,
        min_detectable=decision.min_detectable,
        verdict=verdict,
        reason=reason,
    )


def _verdict(comparisons: Sequence[Comparison], tolerance: float, broken: Sequence[str]) -> Verdict:
    lines = [f"{c.arm}: {c.verdict}, {format_ratio(c.ratio, c.low, c.high)} the speed; {c.reason}" for c in comparisons]
    if broken:
        headline = f"Regression: {broken[0]}"
        return Verdict(
            outcome="regression", headline=headline, exit_code=EXIT_CHECK_FAILED, lines=[*broken[1:], *lines]
        )
    kinds = {c.verdict for c in comparisons}
    if "slower" in kinds:
        worst = min((c for c in comparisons if c.verdict == "slower"), key=lambda c: c.ratio)
        headline = (
            f"Regression: {worst.arm} runs at {format_ratio(worst.ratio, worst.low, worst.high)} its former speed"
        )
        return Verdict(outcome="regression", headline=headline, exit_code=EXIT_CHECK_FAILED, lines=lines)
    if "inconclusive" in kinds:
        worst = min((c for c in comparisons if c.verdict == "inconclusive"), key=lambda c: c.low)
        headline = f"Cannot tell: a slow-down of {format_percent(tolerance)} is not excluded for {worst.arm}"
        return Verdict(outcome="inconclusive", headline=headline, exit_code=EXIT_INCONCLUSIVE, lines=lines)
    headline = f"No regression: slow-downs of {format_percent(tolerance)} or more are excluded"
    return Verdict(outcome="no regression", headline=headline, exit_code=EXIT_OK, lines=lines)
