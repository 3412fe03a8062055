"""A lap's record: before and after in one table, advice as promised and as measured, and what to paste.

A lap is drawn together with the records of its stages, which lie in its folder.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hotlap.base.format import (
    UNKNOWN,
    format_bytes,
    format_ms_interval,
    format_number,
    format_percent,
    format_ratio,
    format_s,
)
from hotlap.records.run import RunRecord, load_record
from hotlap.tools.report.document import Block, Cell, Code, Column, Command, Heading, Section, Table, Words
from hotlap.tools.report.speed import WRONG_ANSWER, tone_of

STAGE_TONES = {"done": "good", "failed": "bad", "interrupted": "warn", "skipped": "muted", "running": "warn"}


def found_of(record: RunRecord) -> dict[str, Any]:
    """What a lap's record says of the lap; empty for any other record."""
    found = record.extra.get("lap")
    return found if record.kind == "lap" and isinstance(found, dict) else {}


def with_stages(records: Sequence[RunRecord]) -> list[RunRecord]:
    """The records, each lap followed by those of its stages that are there and not among them already."""
    found: dict[str, RunRecord] = {}
    for record in records:
        found.setdefault(_key(record), record)
        for stage in found_of(record).get("stages") or []:
            file = Path(record.path).parent / str(stage.get("record") or "")
            if record.path and file.is_file():
                inner = load_record(file)
                found.setdefault(_key(inner), inner)
    return list(found.values())


def _key(record: RunRecord) -> str:
    return str(Path(record.path).resolve()) if record.path else f"unsaved {id(record)}"


def lap_sections(record: RunRecord) -> list[Section]:
    """Before and after, advice put to the test, stages, and what to take home."""
    lap = found_of(record)
    named: list[tuple[str, list[Block]]] = [
        ("Before and after", _before_and_after(lap.get("table") or [])),
        ("What to paste", _paste(lap)),
        ("Advice put to the test", _advice(lap.get("advice") or [])),
        ("The stages", _stages(lap.get("stages") or [])),
    ]
    return [Section(title=title, blocks=tuple(blocks)) for title, blocks in named if blocks]


def _before_and_after(rows: Sequence[dict[str, Any]]) -> list[Block]:
    if not rows:
        return []
    titles = ("Arm", "Batch", "Median\n[95% interval]", "Samples/s", "Speed-up\n[95% interval]", "Verdict",
              "Error\nof allowed", "Peak\nmemory")  # fmt: skip
    lead = "All times are of one bench that ran the arms in turns. A speed-up is of samples a second."
    table = Table(
        columns=tuple(Column(title=title) for title in titles), rows=tuple(_row(r) for r in rows), style="speed"
    )
    return [Words(text=lead, style="lead"), table]


def _row(row: dict[str, Any]) -> tuple[Cell, ...]:
    time, _, interval = format_ms_interval(row.get("ms"), row.get("ms_low"), row.get("ms_high")).partition(" [")
    wrong = row.get("right") is False
    speed, _, between = format_ratio(row.get("ratio"), row.get("low"), row.get("high")).partition(" [")
    verdict = str(row.get("verdict") or "")
    return (
        Cell(text=str(row.get("arm", "")), mono=True, more=(str(row.get("role", "")),)),
        Cell(text=str(row.get("batch", "")), number=True),
        Cell(text=time, number=True, more=(f"[{interval}",) if interval else ()),
        Cell(text=format_number(row.get("samples_per_s")), number=True),
        Cell(text=WRONG_ANSWER, strong=True, tone="bad")
        if wrong
        else Cell(text=speed, number=True, strong=True, more=(f"[{between}",) if between else ()),
        Cell(
            text=verdict, tone="bad" if wrong else tone_of(verdict), more=(str(row["why"]),) if row.get("why") else ()
        ),
        Cell(text=format_percent(row.get("error")), number=True, tone="bad" if wrong else ""),
        Cell(text=format_bytes(row.get("peak_bytes")), number=True),
    )


def _advice(rows: Sequence[dict[str, Any]]) -> list[Block]:
    if not rows:
        return []
    lead = "What the first profile's arithmetic promised, beside what the bench measured."
    found = []
    for row in rows:
        verdict = str(row.get("verdict") or "")
        shown = UNKNOWN if "wrong" in verdict else format_ratio(row.get("measured"), row.get("low"), row.get("high"))
        measured, _, between = shown.partition(" [")
        found.append(
            (
                Cell(text=str(row.get("name", "")), more=(str(row.get("basis") or ""),) if row.get("basis") else ()),
                Cell(text=str(row.get("arm", "")), mono=True),
                Cell(text=_promised(row), number=True),
                Cell(text=measured, number=True, strong=True, more=(f"[{between}",) if between else ()),
                Cell(text=UNKNOWN if "wrong" in verdict else format_percent(row.get("score")), number=True),
                Cell(text=verdict, tone="bad" if "wrong" in verdict else tone_of(verdict)),
            )
        )
    titles = ("Advice", "Arm", "Promised", "Measured\n[95% interval]", "Of the\npromise", "Verdict")
    return [
        Words(text=lead, style="lead"),
        Table(columns=tuple(Column(title=title) for title in titles), rows=tuple(found), style="speed"),
    ]


def _promised(row: dict[str, Any]) -> str:
    return f"{'at most ' if row.get('at_most') else ''}{format_ratio(row.get('predicted'))}"


def _stages(rows: Sequence[dict[str, Any]]) -> list[Block]:
    found = tuple(
        (
            Cell(text=str(row.get("name", "")), more=(str(row.get("what") or ""),)),
            Cell(text=str(row.get("status", "")), tone=STAGE_TONES.get(str(row.get("status")), "muted")),
            Cell(text=format_s(row.get("seconds") or 0.0), number=True),
            Cell(text=str(row.get("headline") or row.get("why") or "")),
        )
        for row in rows
    )
    titles = ("Stage", "Status", "Took", "What came out")
    return [Table(columns=tuple(Column(title=title) for title in titles), rows=found)] if found else []


def _paste(lap: dict[str, Any]) -> list[Block]:
    blocks: list[Block] = []
    if lap.get("paste"):
        words = "Plain PyTorch that does what the chosen arm does, for a loop of your own:"
        blocks += [Words(text=words), Code(text=str(lap["paste"]).strip("\n"), language="python")]
    commands = [str(command) for command in lap.get("commands") or []]
    if commands:
        blocks += [Heading(text="Commands that use it by themselves"), *(Command(text=text) for text in commands)]
    if lap.get("profile"):
        blocks.append(Words(text=f"Tuned profile: {lap['profile']}", style="quiet"))
    return blocks
