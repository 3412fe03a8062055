"""From raw samples to summaries of arms and comparisons between them. Nothing here measures."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from hotlap.base import stats
from hotlap.base.format import format_percent, format_ratio
from hotlap.base.stats import Samples
from hotlap.measure.arms import ArmSpec
from hotlap.measure.jobs import ArmFailure, Footprint
from hotlap.records.measurement import Arm, Comparison, Gate, Measurement, Summary, Telemetry

QUANTITIES = {"wall": "ms", "interval": "ms", "device": "ms", "transfer": "ms", "energy": "J"}


def samples_of(measurements: Sequence[Measurement], arm: str, quantity: str) -> list[list[float]]:
    """Raw samples of one quantity of one arm, a list for each process."""
    found = [m for m in measurements if m.arm == arm and m.quantity == quantity and m.values]
    return [m.values for m in sorted(found, key=lambda m: m.process)]


def summarise(samples: Samples, quantity: str, unit: str) -> Summary:
    """The centre and interval of one quantity."""
    middle = stats.interval(samples)
    every = [value for process in samples for value in process]
    return Summary(
        quantity=quantity,
        unit=unit,
        median=middle.value,
        low=middle.low,
        high=middle.high,
        num_processes=len(samples),
        num_samples=len(every),
        process_medians=[float(m) for m in stats.process_medians(samples)],
        percentiles=stats.percentiles(every) if quantity == "interval" else {},
        num_outliers=stats.count_outliers(samples),
    )


def build_arm(
    spec: ArmSpec,
    role: str,
    batch: int,
    measurements: Sequence[Measurement],
    telemetry: Sequence[Telemetry],
    footprint: Footprint | None,
    failure: ArmFailure | None,
) -> Arm:
    """One arm's row: all its summaries, its memory, its speed; ``batch`` is the run's, an arm may have its own."""
    name, batch = spec.name, spec.batch or batch
    summaries = []
    for quantity, unit in QUANTITIES.items():
        samples = samples_of(measurements, name, quantity)
        if samples:
            summaries.append(summarise(samples, quantity, unit))
    cycles = _cycles(name, measurements, telemetry)
    if cycles:
        summaries.append(summarise(cycles, "cycles", "Mcycle"))
    wall = next((s for s in summaries if s.quantity == "wall"), None)
    energy = next((s for s in summaries if s.quantity == "energy"), None)
    first = [m.values[0] for m in measurements if m.arm == name and m.quantity == "first_step"]
    flags = sorted({flag for m in measurements if m.arm == name for flag in m.flags})
    return Arm(
        name=name,
        settings={**spec.settings(), "batch": batch},
        role=role,
        summaries=summaries,
        memory=footprint.memory if footprint else None,
        first_step_s=statistics.median(first) if first else None,
        samples_per_s=1e3 * batch / wall.median if wall else None,
        energy_j_per_sample=energy.median / batch if energy else None,
        notes=[*flags, *_device_notes(name, telemetry)],
        error=failure.what if failure else "",
    )


def _cycles(arm: str, measurements: Sequence[Measurement], telemetry: Sequence[Telemetry]) -> list[list[float]]:
    """Device time in clock cycles, a second axis on which a change of clock does not show."""
    found = []
    for m in measurements:
        if m.arm == arm and m.quantity == "device":
            clocks = [t.sm_clock_mhz for t in telemetry if t.arm == arm and t.process == m.process and t.sm_clock_mhz]
            if clocks:
                found.append([value * statistics.fmean(clocks) / 1e3 for value in m.values])
    return found


def _device_notes(arm: str, telemetry: Sequence[Telemetry]) -> list[str]:
    mine = [t for t in telemetry if t.arm == arm]
    notes = []
    throttled = [t for t in mine if t.throttle]
    if throttled:
        reasons = sorted({reason for t in throttled for reason in t.throttle})
        notes.append(f"clock held back in {len(throttled)} of {len(mine)} blocks ({', '.join(reasons)})")
    if any(t.other_processes for t in mine):
        notes.append("another process was on the device")
    return notes


def compare_arms(
    arms: Sequence[Arm],
    gates: Mapping[str, Gate],
    measurements: Sequence[Measurement],
    min_effect: float,
) -> list[Comparison]:
    """Every timed arm against the baseline, on wall time a sample; p-values corrected over all of them.

    An arm whose gate is red is not compared at all: a wrong answer has no speed.
    """
    base = next((a for a in arms if a.role == "baseline"), None)
    if base is None or base.summary("wall") is None or not _green(gates, base.name):
        return []
    rivals = [a for a in arms if a.role == "arm" and a.summary("wall") is not None and _green(gates, a.name)]
    reference = _per_sample(measurements, base, "wall")
    decisions = [_paired(reference, _per_sample(measurements, a, "wall"), min_effect) for a in rivals]
    corrected = stats.holm([d.p_value for d in decisions])
    found = []
    for arm, decision, p_value in zip(rivals, decisions, corrected, strict=True):
        verdict, reason = stats.decide(
            decision.ratio, decision.p_value, p_value, min_effect=min_effect, unanimous=decision.unanimous
        )
        if verdict != "inconclusive" and any("another process" in note for note in (*arm.notes, *base.notes)):
            verdict, reason = "inconclusive", "another process was on the device while it was timed"
        found.append(_comparison(arm.name, base.name, "wall", decision, p_value, verdict, reason))
    found += _side_ratios(arms, base, gates, measurements, min_effect)
    return found


def _per_sample(measurements: Sequence[Measurement], arm: Arm, quantity: str) -> list[list[float]]:
    """Times of one arm over its batch: what arms of different batches can be compared by."""
    return [[value / arm.settings["batch"] for value in s] for s in samples_of(measurements, arm.name, quantity)]


def _paired(base: Samples, other: Samples, min_effect: float) -> stats.Decision:
    """The comparison of arms timed in the same processes; an arm that failed midway is compared as far as it came."""
    common = min(len(base), len(other))
    return stats.compare(base[:common], other[:common], paired=True, min_effect=min_effect)


def _green(gates: Mapping[str, Gate], arm: str) -> bool:
    return gates[arm].passed if arm in gates else True


def _comparison(
    arm: str, base: str, quantity: str, decision: stats.Decision, p_value: float | None, verdict: str, reason: str
) -> Comparison:
    return Comparison(
        arm=arm,
        baseline=base,
        quantity=quantity,
        ratio=decision.ratio.value,
        low=decision.ratio.low,
        high=decision.ratio.high,
        p_value=p_value,
        test=decision.test,
        min_detectable=decision.min_detectable,
        verdict=verdict,
        reason=reason,
    )


def _side_ratios(
    arms: Sequence[Arm],
    base: Arm,
    gates: Mapping[str, Gate],
    measurements: Sequence[Measurement],
    min_effect: float,
) -> list[Comparison]:
    """Ratios to be shown beside the headline: copies included, and against the context arms."""
    found = []
    context = [a for a in arms if a.role == "context" and a.summary("wall") is not None and _green(gates, a.name)]
    for arm in arms:
        if arm.role != "arm" or arm.settings["device"] != "cuda" or not _green(gates, arm.name):
            continue
        mine = _per_sample(measurements, arm, "wall")
        if not mine:
            continue
        transfer = _per_sample(measurements, arm, "transfer")
        if transfer and base.settings["device"] == "cpu":
            reference = _per_sample(measurements, base, "wall")
            decision = _paired(reference, transfer, min_effect)
            found.append(
                _comparison(
                    arm.name, base.name, "transfer", decision, decision.p_value, decision.verdict, "copies included"
                )
            )
        for other in context:
            beside = _per_sample(measurements, other, "wall")
            decision = stats.compare(beside, mine, paired=False, min_effect=min_effect)
            found.append(
                _comparison(arm.name, other.name, "wall", decision, decision.p_value, decision.verdict, "context arm")
            )
    return found


def describe_red_gate(gate: Gate) -> str:
    """What a red gate found, as a sentence."""
    red = next(check for check in gate.checks if not check.passed)
    detail = f" ({red.detail})" if red.detail else ""
    return f"{gate.arm} gives a wrong answer: {red.name} error {red.error:.3g}, allowed {red.allowed:.3g}{detail}"


def describe_comparison(c: Comparison) -> str:
    """One comparison as a sentence."""
    figure = format_ratio(c.ratio, c.low, c.high)
    if c.verdict == "inconclusive":
        shows = format_percent(c.min_detectable)
        return f"{c.arm} against {c.baseline}: inconclusive, {figure}; {c.reason}; could show {shows}"
    return f"{c.arm} is {c.verdict} than {c.baseline}: {figure} the speed"
