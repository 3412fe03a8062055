"""The story of some records: what was slow, what changed, what it gained, can I trust it, what next.

Each sentence is borne out by one record, which it names. A question that no record answers says which verb would.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hotlap.base.format import (
    format_bytes,
    format_count,
    format_list,
    format_ms,
    format_percent,
    format_rate,
    format_ratio,
    format_s,
)
from hotlap.base.kernel_name import kernel_label
from hotlap.records.measurement import Comparison
from hotlap.records.run import RunRecord
from hotlap.tools.report.document import Answer, Question
from hotlap.tools.report.next_steps import command_for, next_steps
from hotlap.tools.report.profile_pair import analysis_of, profile_pair
from hotlap.tools.report.speed import headline_comparisons, withheld
from hotlap.tools.report.training import device_of, told_score, training_log
from hotlap.tools.report.trust import trust_facts
from hotlap.tools.report.view import ENDS, TRAININGS, badge_of

SHOWN = 3
BIG_CHANGE = 0.05
"""Share of the first profile's step that a category must gain or lose to be told."""


@dataclass(frozen=True, kw_only=True)
class Witness:
    """A record and where the report shows it."""

    record: RunRecord
    place: int

    def says(self, text: str, tone: str = "") -> Answer:
        return Answer(text=text, tone=tone, links=((f"run-{self.place + 1}", f"run {self.place + 1}"),))

    @property
    def analysis(self) -> dict[str, Any]:
        """What a profile found; empty for any other record."""
        return analysis_of(self.record)

    @property
    def step_ms(self) -> float | None:
        """A profiled step without the profiler, or with it where only that is known."""
        measured = (self.record.extra.get("profile") or {}).get("measured") or {}
        return measured.get("step_ms") or self.analysis.get("step_ms")


def tell(records: Sequence[RunRecord]) -> list[Question]:
    """The five questions with what the records answer."""
    seen = [Witness(record=record, place=place) for place, record in enumerate(records)]
    asked: list[tuple[str, Callable[[Sequence[Witness]], Iterator[Answer]], str]] = [
        ("What was slow?", what_was_slow, command_for("profile", records)),
        ("What changed?", what_changed, command_for("tune", records)),
        ("What did it gain?", what_it_gained, command_for("bench", records)),
        ("Can I trust it?", can_i_trust_it, "hotlap doctor"),
    ]
    found = []
    for text, answers, verb in asked:
        missing = Answer(text="These records do not tell. This would:", tone="muted", command=verb)
        found.append(Question(text=text, answers=_merged(answers(seen)) or (missing,)))
    return [*found, Question(text="What next?", answers=tuple(next_steps(records)))]


def _merged(answers: Iterable[Answer]) -> tuple[Answer, ...]:
    """The answers, those of equal words as one that names all its records."""
    found: dict[tuple[str, str], Answer] = {}
    for answer in answers:
        known = found.get((answer.text, answer.tone))
        links = (*known.links, *answer.links) if known else answer.links
        found[answer.text, answer.tone] = replace(answer, links=links)
    return tuple(found.values())


def what_was_slow(seen: Sequence[Witness]) -> Iterator[Answer]:
    """The first profile's largest parts; without one, the time of the baseline."""
    first = next((w for w in seen if w.analysis), None)
    if first is not None:
        yield from _parts_of_the_step(first)
    for w in seen:
        verdict = w.record.verdict
        if w.record.kind == "loader" and verdict is not None:
            yield w.says(verdict.headline, "warn" if "bottleneck" in verdict.outcome else "")
    if first is not None:
        return
    for w in seen:
        for arm in w.record.arms if w.record.kind == "bench" else []:
            summary = arm.summary("wall")
            if arm.role == "baseline" and summary:
                yield w.says(f"{_subject(w.record)}: {format_ms(summary.median)} a step on the baseline, {arm.name}.")
    if any(w.record.kind == "bench" for w in seen):
        yield Answer(text="No profile among these records says why.", tone="muted")


def _subject(record: RunRecord) -> str:
    return f"{record.config.get('target') or record.name} {record.config.get('mode') or ''}".strip()


def _parts_of_the_step(w: Witness) -> Iterator[Answer]:
    analysis = w.analysis
    parts = [f"{part['name']} {format_percent(part['share'])}" for part in analysis["categories"][:SHOWN]]
    arm = w.record.config.get("arm") or "this trace"
    yield w.says(f"A step on {arm} took {format_ms(w.step_ms)}: {format_list(parts)} of it.")
    if analysis["on_device"] and analysis["step_ms"]:
        idle = 1 - analysis["busy_ms"] / analysis["step_ms"]
        if idle >= BIG_CHANGE:
            why = "".join(f", mostly {part['name']}" for part in analysis["idle"][:1])
            yield w.says(f"The device had nothing to do {format_percent(idle)} of it{why}.", "warn")
    longest = (analysis["kernels"] or analysis["ops"])[:1]
    for row in longest:
        yield w.says(
            f"The longest single operation was {_short(kernel_label(row['name']))}, {format_percent(row['share'])}."
        )


def _short(name: str, most: int = 60) -> str:
    return name if len(name) <= most else name[: most - 1] + "…"


def what_changed(seen: Sequence[Witness]) -> Iterator[Answer]:
    """What the search chose, what two profiles differ in, and the arms that were set beside each other."""
    tunes = [w for w in seen if w.record.kind == "tune"]
    for w in tunes:
        yield _chosen(w)
    yield from _profile_changes(seen)
    for w in seen:
        if w.record.kind == "export" and w.record.verdict is not None:
            yield w.says(w.record.verdict.headline)
    if tunes:
        return
    for w in seen:
        names = [arm.name for arm in w.record.arms if arm.role == "arm"] if w.record.kind == "bench" else []
        base = [arm.name for arm in w.record.arms if arm.role == "baseline"]
        if names and base:
            yield w.says(f"{format_list(names)} in place of {base[0]}.")


def _chosen(w: Witness) -> Answer:
    found = w.record.extra.get("tune") or {}
    winner, rows = found.get("winner"), found.get("rows") or []
    if not winner:
        return w.says(w.record.verdict.headline if w.record.verdict else "The search found nothing.", "warn")
    text = f"The search chose {winner['arm']} at batch {winner['batch']} in {format_count(len(rows), 'trial')}"
    first = rows[0] if rows else {}
    begun = (first.get("arm"), first.get("batch"))
    if begun == (winner["arm"], winner["batch"]):
        return w.says(f"{text}: what it began with.", "muted")
    return w.says(f"{text}; it began with {begun[0]} at batch {begun[1]}." if first else f"{text}.", "good")


def _profile_changes(seen: Sequence[Witness]) -> Iterator[Answer]:
    """The categories that gained or lost most between the first and the last profile of one target."""
    for w in seen:
        if w.record.kind == "profile" and "diff" in w.record.extra and w.record.verdict is not None:
            yield w.says(w.record.verdict.headline)
    pair = profile_pair([w.record for w in seen])
    if pair is None:
        return
    big = [row for row in pair.rows if abs(row.after_ms - row.before_ms) >= BIG_CHANGE * pair.step_ms]
    told = [f"{row.label} from {format_ms(row.before_ms)} to {format_ms(row.after_ms)}" for row in big[:SHOWN]]
    if told:
        text = f"From the first profile to the last, in {pair.per}: {format_list(told)}."
        yield seen[pair.last].says(text)


def what_it_gained(seen: Sequence[Witness]) -> Iterator[Answer]:
    """The best speed-up that may be shown of each bench, and trainings of one target beside each other."""
    for w in seen:
        if w.record.kind == "lap" and w.record.verdict is not None:
            yield w.says(w.record.verdict.headline, badge_of(w.record)[1])
        if w.record.kind == "bench":
            yield from _gain(w)
        elif w.record.kind == "compare" and w.record.verdict is not None:
            yield w.says(w.record.verdict.headline)
    yield from _trainings(seen)
    if not any(w.record.kind in ("bench", "compare") for w in seen):
        for w in seen:
            if w.record.kind == "tune" and (w.record.extra.get("tune") or {}).get("winner"):
                told = "The search timed its trials one after another, so no speed-up is claimed from it."
                yield w.says(told, "warn")


def _gain(w: Witness) -> Iterator[Answer]:
    record = w.record
    compared = headline_comparisons(record)
    for c in compared:
        if why := withheld(record, c.arm, c.baseline):
            yield w.says(f"{c.arm}: {why}.", "bad")
    allowed = [c for c in compared if not withheld(record, c.arm, c.baseline)]
    if not allowed:
        return
    best = max(allowed, key=lambda c: c.ratio)
    ratio = format_ratio(best.ratio, best.low, best.high)
    where = _subject(record)
    if best.verdict == "faster":
        yield w.says(f"{where}: {best.arm} is {ratio} as fast as {best.baseline}{_costs(record, best)}.", "good")
    elif best.verdict == "slower":
        yield w.says(f"{where}: nothing; the best arm, {best.arm}, is {ratio} as fast as {best.baseline}.", "bad")
    else:
        told = f"no difference could be shown; {best.arm} measured {ratio} as fast as {best.baseline}"
        yield w.says(f"{where}: {told}.", "warn")


def _costs(record: RunRecord, best: Comparison) -> str:
    """Time and memory of both arms, where both are known."""
    arms = {arm.name: arm for arm in record.arms}
    if best.arm not in arms or best.baseline not in arms:
        return ""
    new, old = arms[best.arm], arms[best.baseline]
    after, before = new.summary("wall"), old.summary("wall")
    told = f": {format_ms(after.median)} in place of {format_ms(before.median)} a step" if after and before else ""
    if new.settings.get("batch") != old.settings.get("batch"):
        told = f": {format_rate(new.samples_per_s)} in place of {format_rate(old.samples_per_s)}"
    if new.memory and old.memory and new.memory.allocated_bytes and old.memory.allocated_bytes:
        sizes = f"{format_bytes(new.memory.allocated_bytes)} in place of {format_bytes(old.memory.allocated_bytes)}"
        told += f", peak memory {sizes}"
    return told


def _trainings(seen: Sequence[Witness]) -> Iterator[Answer]:
    """Trainings of one target on several devices, or each on its own."""
    groups: dict[str, list[Witness]] = {}
    for w in seen:
        if w.record.kind in TRAININGS:
            groups.setdefault(str(w.record.config.get("target") or w.record.name), []).append(w)
    for target, group in groups.items():
        told = [text for w in group if (text := _trained(w.record))]
        if told:
            yield group[-1].says(f"Training {target}: {'; '.join(told)}.")


def _trained(record: RunRecord) -> str:
    outcome, log = record.extra.get("outcome") or {}, training_log(record)
    if not outcome:
        return ""
    text = f"on {device_of(record)} {format_count(int(outcome.get('step') or outcome.get('steps') or 0), 'step')}"
    seconds = log.pace[-1].seconds if log is not None and log.pace else outcome.get("seconds")
    if seconds:
        text += f" in {format_s(seconds)}"
    if outcome.get("samples_per_s"):
        text += f" at {format_rate(outcome['samples_per_s'])}"
    found = outcome.get("metrics") or outcome.get("held_out") or outcome.get("trained_on") or {}
    scores = [told_score(name, value) for name, value in found.items()]
    return f"{text}, {', '.join(scores[:2])}" if scores else text


def can_i_trust_it(seen: Sequence[Witness]) -> Iterator[Answer]:
    """Unfinished runs first, then each bench's facts, the search's gate, the doctor's findings."""
    for w in seen:
        if w.record.status != "complete":
            how = ENDS.get(w.record.status, f"is {w.record.status}")
            yield w.says(f"{w.record.kind} {w.record.name} {how}: not a result.", "bad")
    machines = {w.record.environment.device_line() for w in seen}
    if len(machines) > 1:
        yield Answer(text=f"The records are of {len(machines)} machines: {format_list(sorted(machines))}.", tone="warn")
    benches = [w for w in seen if w.record.kind == "bench"]
    # A bench without a comparison claims nothing that another could not be trusted for.
    claiming = [w for w in benches if w.record.comparisons] or benches
    for w in seen:
        if w in claiming or w.record.kind != "bench":
            yield from _facts(w, brief=len(claiming) > 1)
        if w.record.kind == "tune":
            yield from _search_gate(w)
        if w.record.kind in ("doctor", "quicktest", "verify"):
            word, tone = badge_of(w.record)
            counted = sum(check.status == "PASS" for check in w.record.checks)
            told = f"{format_count(counted, 'check')} passed" if counted else ""
            bad = [check.name for check in w.record.checks if check.status in ("FAIL", "WARN")]
            told += f"; see {format_list(bad[:SHOWN])}" if bad else ""
            yield w.says(f"{w.record.kind}: {word}. {told}".rstrip(". ") + ".", tone)


def _facts(w: Witness, *, brief: bool) -> Iterator[Answer]:
    """What speaks for and against a bench; in brief, what speaks for it is one sentence."""
    facts = trust_facts(w.record)
    good = [fact for fact in facts if fact.tone == "good"] if brief else []
    for fact in facts:
        if fact not in good:
            yield w.says(f"{fact.label}: {fact.text}", fact.tone)
    if good:
        yield w.says(f"In order: {format_list([fact.label.lower() for fact in good])}.", "good")


def _search_gate(w: Witness) -> Iterator[Answer]:
    gates = (w.record.extra.get("tune") or {}).get("gates") or []
    wrong = [str(gate["arm"]) for gate in gates if not gate.get("passed")]
    if gates:
        told = f"; {format_list(wrong)} left out for a wrong answer" if wrong else ""
        text = f"Search: {format_count(len(gates), 'numeric class', 'numeric classes')} judged against float64{told}."
        yield w.says(text, "good")
