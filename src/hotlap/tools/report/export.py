"""An export's record: each form with its file, its error and what it costs to load, or why it is not there."""

from __future__ import annotations

from typing import Any

from hotlap.base.format import UNKNOWN, format_bytes, format_error, format_s
from hotlap.records.run import RunRecord
from hotlap.tools.report.document import Block, Cell, Column, Section, Table, Words

TONES = {"right": "good", "wrong": "bad", "failed": "bad", "out of memory": "bad", "skipped": "warn"}
COLUMNS = ("Form", "File", "Size", "Made in", "Loads in", "Error\nof allowed", "")


def export_sections(record: RunRecord) -> list[Section]:
    """The forms that were asked for, as one table; nothing for other kinds of record."""
    found = record.extra.get("export")
    if record.kind != "export" or not isinstance(found, dict):
        return []
    size = "any number of samples" if found.get("dynamic_batch") else f"{record.config.get('batch')} samples"
    where = f"In {found.get('out')}, for {size} at a time." if found.get("delivered") else "Nothing was delivered."
    lead = "Each file was read back in a fresh process and held to the numeric gate; a wrong one is not delivered."
    table = Table(
        columns=tuple(Column(title=title, label=title.replace("\n", " ") or "Outcome") for title in COLUMNS),
        rows=tuple(_cells(row) for row in found.get("forms") or []),
    )
    blocks: tuple[Block, ...] = (Words(text=f"{where} {lead}", style="lead"), table)
    return [Section(title="Forms for use elsewhere", blocks=blocks)]


def _cells(row: dict[str, Any]) -> tuple[Cell, ...]:
    right, judged = row.get("status") == "right", row.get("status") in ("right", "wrong")
    files = [str(file["name"]) for file in row.get("files") or []] if right else []
    return (
        Cell(text=str(row.get("form")), strong=True, more=(str(row.get("arm")),)),
        Cell(text=files[0] if files else UNKNOWN, mono=bool(files), more=tuple(files[1:])),
        Cell(text=format_bytes(row.get("size_bytes")) if right else UNKNOWN, number=True),
        Cell(text=format_s(row.get("make_s")), number=True),
        Cell(text=format_s(row.get("load_s")), number=True),
        Cell(
            text=format_error(row.get("error")) if judged else UNKNOWN,
            more=(format_error(row.get("allowed")),) if judged else (),
            number=True,
        ),
        Cell(
            text="wrong answer" if row.get("status") == "wrong" else str(row.get("status")),
            tone=TONES.get(str(row.get("status")), "muted"),
            more=(str(row["why"]),) if row.get("why") else (),
        ),
    )
