"""Records to a document: the story first, then what the records share, then each record's evidence."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

import hotlap
from hotlap.records.run import RunRecord, now
from hotlap.tools.report.document import (
    Block,
    Cell,
    Column,
    Document,
    Drawing,
    Fold,
    Pair,
    Pairs,
    Part,
    Question,
    Section,
    Table,
    Words,
)
from hotlap.tools.report.next_steps import next_steps
from hotlap.tools.report.profile_pair import pair_figure
from hotlap.tools.report.sections import MACHINE, part_of
from hotlap.tools.report.speed import speed_rows
from hotlap.tools.report.speed_table import shared_table
from hotlap.tools.report.story import tell
from hotlap.tools.report.training import comparison_figures
from hotlap.tools.report.view import page_title

TRUST_TITLES = ("Can it be trusted?", "What happened on the way")
TELL_THEMSELVES = ("doctor", "quicktest", "profile")
"""Kinds whose own sections say what to do."""


def compose(records: Sequence[RunRecord], title: str = "") -> Document:
    """The whole report on ``records``, in the order given."""
    parts = tuple(part_of(record, place) for place, record in enumerate(records))
    several = len(records) > 1
    parts = (*parts[:1], *(_with_machine_told_once(part, parts[0]) for part in parts[1:]))
    front = [_story(records), _index(records, parts), *_together(records, parts)] if several else []
    return Document(
        title=page_title(list(records), title),
        front=tuple(front),
        parts=parts if several else tuple(map(_with_next_steps, parts, records)),
        version=hotlap.__version__,
        written=now().replace("T", " "),
    )


def _story(records: Sequence[RunRecord]) -> Section:
    return Section(title="The story", blocks=tuple(tell(records)), anchor="story", style="story")


def _with_machine_told_once(part: Part, first: Part) -> Part:
    """Of several records the first shows the machine at once; the others say, a click away, what differs from it."""
    known = {pair.name: pair.value for block in _machines(first) for pair in block.pairs}

    def shorter(block: Block) -> Block:
        if not (isinstance(block, Fold) and block.title == MACHINE):
            return block
        other = [pair for old in block.blocks if isinstance(old, Pairs) for pair in old.pairs]
        other = [pair for pair in other if known.get(pair.name) != pair.value]
        lacking = known.keys() - {pair.name for block in _machines(part) for pair in block.pairs}
        other += [Pair(name=name, value="none") for name in known if name in lacking]
        said = Words(text=f"As in run {first.number}{', but for what follows' if other else ''}.", style="quiet")
        return dataclasses.replace(block, open=False, blocks=(said, *([Pairs(pairs=tuple(other))] if other else [])))

    sections = (dataclasses.replace(s, blocks=tuple(map(shorter, s.blocks))) for s in part.sections)
    return dataclasses.replace(part, sections=tuple(sections))


def _machines(part: Part) -> Iterator[Pairs]:
    for section in part.sections:
        for block in section.blocks:
            if isinstance(block, Fold) and block.title == MACHINE:
                yield from (inner for inner in block.blocks if isinstance(inner, Pairs))


def _with_next_steps(part: Part, record: RunRecord) -> Part:
    """A record alone tells its story by itself, but for what to do next."""
    if record.kind in TELL_THEMSELVES:
        return part
    question = Question(text="", answers=tuple(next_steps([record])))
    steps = Section(title="What next?", blocks=(question,), anchor=f"{part.anchor}-next", style="story")
    place = 1 if part.sections and part.sections[0].title in TRUST_TITLES else 0
    return dataclasses.replace(part, sections=(*part.sections[:place], steps, *part.sections[place:]))


def _together(records: Sequence[RunRecord], parts: Sequence[Part]) -> list[Section]:
    """What several records share: every arm in one table, two profiles and trainings in one frame."""
    runs = [(f"{part.number}. {part.name}", part.anchor, speed_rows(r)) for part, r in zip(parts, records, strict=True)]
    compared = [run for run in runs if run[2]]
    found = [Section(title="Every arm of every run", blocks=(shared_table(compared),))] if compared else []
    changed = pair_figure(records)
    found += [Section(title="The step before and after", blocks=(Drawing(figure=changed),))] if changed else []
    trainings: tuple[Block, ...] = tuple(Drawing(figure=figure) for figure in comparison_figures(records))
    return found + ([Section(title="Trainings side by side", blocks=trainings)] if trainings else [])


def _index(records: Sequence[RunRecord], parts: Sequence[Part]) -> Section:
    """What each record found, in a line; the machine only where there is more than one."""
    machines = [record.environment.device_line() for record in records]
    differ = len(set(machines)) > 1
    columns = [Column(title="Run"), Column(title="Outcome"), Column(title="What was found", label="Found")]
    columns += [Column(title="Machine")] if differ else []
    rows = []
    for part, machine in zip(parts, machines, strict=True):
        cells = [
            Cell(text=f"{part.number}. {part.name}", link=part.anchor, more=(part.kind,)),
            Cell(text=part.badge, tone=part.tone, badge=True),
            Cell(text=part.headline),
        ]
        rows.append((*cells, *((Cell(text=machine),) if differ else ())))
    table = Table(columns=tuple(columns), rows=tuple(rows))
    where = () if differ else (Words(text=f"All on one machine: {machines[0]}.", style="quiet"),)
    return Section(title="All runs", blocks=(table, *where), anchor="index")
