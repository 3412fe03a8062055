"""Tables that fit the terminal: arms are broken between their options, and intervals get a line of their own."""

from __future__ import annotations

import re
from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

ROOMY = 24
"""Columns that the arms should have before intervals have to move."""
LEAST = 16
"""Columns that the arms get in any case: what most options need, with their plus."""

Cell = str | Text


def fitted(
    names: Sequence[str],
    rows: Sequence[Sequence[Cell]],
    *,
    width: int,
    words: Sequence[str],
    title: str = "",
    styles: Sequence[str] = (),
) -> Table:
    """A table without lines in ``width`` columns: ``words`` to the left, numbers to the right, whole in any case."""
    place = names.index("arm")
    longest = max((len(str(row[place])) for row in rows), default=0)
    gap = 2
    if _room(names, rows, place, width, gap) < min(longest, ROOMY):
        rows = [[cell.replace(" [", "\n[") if isinstance(cell, str) else cell for cell in row] for row in rows]
    if _room(names, rows, place, width, gap) < min(longest, LEAST):
        gap = 1
    room = max(LEAST, _room(names, rows, place, width, gap))
    table = Table(
        box=None, pad_edge=False, padding=(0, 1, 0, gap - 1), header_style="bold", title=title or None,
        title_justify="left",
    )  # fmt: skip
    for name in names:  # on a narrow terminal a figure in two lines is better than one cut off
        table.add_column(name, justify="left" if name in words else "right", overflow="fold")
    for number, row in enumerate(rows):
        cells = [Text(cell) if isinstance(cell, str) else cell for cell in row]  # brackets are no markup here
        cells[place] = Text(broken(str(row[place]), room))
        table.add_row(*cells, style=styles[number] if styles else "")
    return table


def _room(names: Sequence[str], rows: Sequence[Sequence[Cell]], place: int, width: int, gap: int) -> int:
    """What the other columns leave to the arms."""
    taken = 0
    for number, name in enumerate(names):
        cells = [name, *(str(row[number]) for row in rows)]
        if number != place:
            taken += gap + max(len(line) for cell in cells for line in cell.split("\n"))
    return width - taken


def broken(arm: str, room: int) -> str:
    """An arm in lines of at most ``room``: broken after a plus; a longer option after its ``=`` and dashes as well."""
    lines = [""]
    for option in re.findall(r"[^+]*\+|[^+]+", arm):
        pieces = [option] if len(option) <= room else re.findall(r"[^=-]*[=-]|[^=-]+", option)
        for piece in pieces:
            if lines[-1] and len(lines[-1]) + len(piece) > room:
                lines.append("")
            lines[-1] += piece
    return "\n".join(lines)
