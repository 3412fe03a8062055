"""The evidence of one record: its sections, each made where the record has matter for it, in the order of questions.

A kind of record that needs a section of its own adds a function to ``SECTIONS``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from hotlap.records.run import RunRecord
from hotlap.tools.report.doctor import FindingGroup, finding_groups
from hotlap.tools.report.document import (
    Block,
    Cell,
    Column,
    Command,
    Drawing,
    Facts,
    Finding,
    Fold,
    Heading,
    Items,
    Pair,
    Pairs,
    Part,
    Section,
    Table,
    Words,
)
from hotlap.tools.report.export import export_sections
from hotlap.tools.report.figures import (
    Figure,
    batch_figure,
    break_even_figure,
    ceiling_figures,
    distribution_figures,
    forest_figure,
    loader_figure,
    memory_figure,
    timeline_figures,
)
from hotlap.tools.report.lap import lap_sections
from hotlap.tools.report.loader import refusals
from hotlap.tools.report.method import command_line, environment_rows, limits, method_sentences, settings
from hotlap.tools.report.profile_sections import profile_sections
from hotlap.tools.report.speed import speed_rows
from hotlap.tools.report.speed_table import speed_table
from hotlap.tools.report.training import training_figures
from hotlap.tools.report.trust import trust_facts
from hotlap.tools.report.tune import SHOWN_ROWS, TuneRow, tune_facts, tune_refusals, tune_rows
from hotlap.tools.report.view import (
    TRAININGS,
    CheckRow,
    GateView,
    alert_of,
    badge_of,
    gate_views,
    headline_of,
    memory_notes,
    race_rows,
    subject_of,
)

MACHINE = "Machine and software"


def part_of(record: RunRecord, place: int) -> Part:
    """Everything the report says about one record."""
    badge, tone = badge_of(record)
    anchor = f"run-{place + 1}"
    found = [section for make in SECTIONS for section in make(record)]
    return Part(
        anchor=anchor,
        number=place + 1,
        name=f"{record.name} {record.config.get('mode', '')}".strip(),
        kind=record.kind,
        badge=badge,
        tone=tone,
        headline=headline_of(record),
        subject=tuple(subject_of(record)),
        alert=alert_of(record),
        lines=tuple(one for one in record.verdict.lines if one != record.verdict.headline) if record.verdict else (),
        sections=tuple(replace(s, anchor=f"{anchor}-{number}") for number, s in enumerate(found, 1)),
    )


def drawn(*figures: Figure | None) -> tuple[Block, ...]:
    """The figures there are, as blocks."""
    return tuple(Drawing(figure=figure) for figure in figures if figure is not None)


def section(title: str, *blocks: Block) -> list[Section]:
    """One section, or none without blocks."""
    return [Section(title=title, blocks=blocks)] if blocks else []


def trust_sections(record: RunRecord) -> list[Section]:
    facts, blocks = trust_facts(record), []
    if facts:
        blocks.append(Facts(facts=tuple(facts)))
    notes = [Items(texts=tuple(record.notes), notes=True)] if record.notes else []
    title = "What happened on the way" if record.kind in TRAININGS else "Can it be trusted?"
    return section(title, *blocks, *notes)


def finding_sections(record: RunRecord) -> list[Section]:
    return section("Findings", *(_group(group) for group in finding_groups(record.checks)))


def _group(group: FindingGroup) -> Fold:
    found = tuple(
        Finding(
            name=f.name, tone=f.tone, badge=f.status, text=f.observed, quiet=f.why,
            action="Fix" if f.fix else "", command=f.fix,
        )
        for f in group.findings
    )  # fmt: skip
    return Fold(title=group.name, blocks=found, open=group.open, mark=group.tone, quiet=group.counts, group=True)


def training_sections(record: RunRecord) -> list[Section]:
    return section("How it went", *drawn(*training_figures(record)))


def ceiling_sections(record: RunRecord) -> list[Section]:
    return section("What the machine can do", *drawn(*ceiling_figures(record)))


def loader_sections(record: RunRecord) -> list[Section]:
    figure = loader_figure(record)
    return section("Loader", *drawn(figure), *_refused(refusals(record))) if figure else []


def tune_sections(record: RunRecord) -> list[Section]:
    rows = tune_rows(record)
    if not rows:
        return []
    more = len(rows) - SHOWN_ROWS
    folded = [Fold(title=f"{more} more", blocks=(_tune_table(rows[SHOWN_ROWS:]),))] if more > 0 else []
    return section(
        "The search",
        Items(texts=tuple(tune_facts(record))),
        *drawn(batch_figure(record)),
        Heading(text="Every configuration that was tried"),
        _tune_table(rows[:SHOWN_ROWS]),
        *folded,
        *_refused(tune_refusals(record)),
    )


def _refused(texts: Sequence[str]) -> list[Block]:
    return [Heading(text="Refused"), Items(texts=tuple(texts))] if texts else []


def _tune_table(rows: Sequence[TuneRow]) -> Table:
    titles = ("Arm", "Batch", "Samples/s", "Error\nof allowed", "A step", "95% within", "Peak\nmemory")
    return Table(
        columns=(*(Column(title=title) for title in titles), Column(title="", label="Outcome")),
        rows=tuple(
            (
                Cell(text=row.arm, mono=True, more=(row.trials,)),
                Cell(text=row.batch, number=True),
                Cell(text=row.rate, number=True, strong=True),
                *(Cell(text=text, number=True) for text in (row.error, row.step, row.tail, row.peak)),
                Cell(text=row.word, tone=row.tone, more=(row.why,) if row.why else ()),
            )
            for row in rows
        ),
        style="speed",
    )


def speed_sections(record: RunRecord) -> list[Section]:
    rows, figure = speed_rows(record), forest_figure(record)
    has_energy = any(arm.energy_j_per_sample is not None for arm in record.arms)
    table = [speed_table(rows, energy=has_energy)] if rows else []
    return section("Speed beside the baseline", *table, *drawn(figure))


def distribution_sections(record: RunRecord) -> list[Section]:
    return section("Distributions", *drawn(*distribution_figures(record)))


def timeline_sections(record: RunRecord) -> list[Section]:
    return section("Timeline", *drawn(*timeline_figures(record)))


def memory_sections(record: RunRecord) -> list[Section]:
    figure = memory_figure(record)
    notes = (Words(text=text, mark="warn") for text in memory_notes(record))
    return section("Memory", *drawn(figure), *notes) if figure else []


def gate_sections(record: RunRecord) -> list[Section]:
    if not record.gates:
        return []
    lead = (
        "Every arm's answer against the reference, before any timing. The bar is error over what is allowed, on a log "
        "scale; beyond the line the answer is wrong and no speed-up is shown."
    )
    blocks = [block for view in gate_views(record.gates) for block in _gate(view)]
    return section("Numeric gate", Words(text=lead, style="lead"), *blocks)


def _gate(view: GateView) -> list[Block]:
    badge = ("right answer", "good") if view.passed else ("wrong answer", "bad")
    found: list[Block] = [
        Heading(text=view.arm, mono=True, badge=badge, quiet=f"against {view.reference}"),
        _checks(view.shown),
    ]
    if view.folded:
        more = f"{len(view.folded)} more, all further from their limits"
        found.append(Fold(title=more, blocks=(_checks(view.folded),)))
    return found


def _checks(rows: Sequence[CheckRow]) -> Table:
    columns = [Column(title=title) for title in ("Check", "Error", "Allowed")]
    columns += [Column(title="Error / allowed", drawn=True), Column(title="Passed")]
    return Table(
        columns=tuple(columns),
        rows=tuple(
            (
                Cell(text=row.name, more=(row.detail,) if row.detail else ()),
                Cell(text=row.error, number=True),
                Cell(text=row.allowed, number=True),
                Cell(text="", drawing=row.bar),
                Cell(text="passed" if row.passed else "failed", tone="good" if row.passed else "bad"),
            )
            for row in rows
        ),
        style="checks",
    )


def device_sections(record: RunRecord) -> list[Section]:
    """CPU or GPU: from which batch on, and how the CPU's settings were chosen."""
    even, figure = record.extra.get("break_even"), break_even_figure(record)
    told = str(even.get("text") or "") if isinstance(even, dict) else ""
    words = [Words(text=told)] if told and figure is None else []
    race = race_rows(record.extra.get("tuned_cpu"))
    if not race:
        return section("CPU or GPU", *drawn(figure), *words)
    columns = tuple(Column(title=title) for title in ("Candidate", "Median", "Answer"))
    rows = tuple(
        (
            Cell(text=row.arm, mono=True),
            Cell(text=row.time, number=True),
            Cell(text=row.gate, tone=row.tone),
            Cell(text="chosen" if row.chosen else ""),
        )
        for row in race
    )
    table = Table(columns=(*columns, Column(title="", label="Chosen")), rows=rows)
    heading = Heading(text="The race for the CPU baseline")
    return section("CPU or GPU", *drawn(figure), *words, heading, table)


def method_sections(record: RunRecord) -> list[Section]:
    """How it was made: method, limits, command, machine, settings, and where the samples lie."""
    blocks: list[Block] = []
    method, command = method_sentences(record), command_line(record)
    if method:
        blocks += [Heading(text="Method"), Items(texts=tuple(method))]
    blocks += [Heading(text="Limits"), Items(texts=tuple(limits(record)))]
    if command:
        blocks += [Heading(text="How to repeat"), Command(text=command)]
    machine = Pairs(pairs=tuple(Pair(name=name, value=value) for name, value in environment_rows(record)))
    blocks.append(Fold(title=MACHINE, blocks=(machine,), open=True))
    values = [Pair(name=s.name, value=s.value, source=s.source, quiet=s.is_default) for s in settings(record)]
    if values:
        pairs = Pairs(pairs=tuple(values), has_source=True)
        blocks.append(Fold(title="Every setting and where it came from", blocks=(pairs,)))
    if record.path:
        what = "Raw record, with every sample" if record.measurements else "Raw record"
        blocks.append(Words(text=f"{what}: {record.path}", style="quiet"))
    return section("How it was made", *blocks)


SECTIONS: tuple[Callable[[RunRecord], list[Section]], ...] = (
    lap_sections,
    trust_sections,
    finding_sections,
    training_sections,
    ceiling_sections,
    profile_sections,
    loader_sections,
    tune_sections,
    export_sections,
    speed_sections,
    distribution_sections,
    timeline_sections,
    memory_sections,
    gate_sections,
    device_sections,
    method_sections,
)
