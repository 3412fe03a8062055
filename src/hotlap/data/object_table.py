"""Rows of measurements as CSV and as an Excel workbook."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from hotlap.base.errors import DataError, EnvironmentUnusable
from hotlap.data.file_bytes import read_text

Row = Sequence[int | float | str]
MOST_ROWS = 1_048_575
"""What a sheet of Excel holds below its header."""
_UNWRITABLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff]")


def csv_lines(rows: Iterable[Row]) -> str:
    """Rows of a CSV file; floats with six digits after the first, a missing number as nothing."""
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\n").writerows([_cell(value) for value in row] for row in rows)
    return buffer.getvalue()


def _cell(value: int | float | str) -> int | str:
    if isinstance(value, float):
        return f"{value:.7g}" if math.isfinite(value) else ""
    return _plain(value) if isinstance(value, str) else value


def _plain(text: str) -> str:
    """Text that every table can hold: what no Unicode has, and control characters, show as '\N{REPLACEMENT CHARACTER}'.

    Names of files may have both, and one of them must not cost the table of all others.
    """
    return _UNWRITABLE.sub("\N{REPLACEMENT CHARACTER}", text)


def read_csv(path: Path) -> list[dict[str, str]]:
    """The rows of a CSV file by column."""
    return list(csv.DictReader(io.StringIO(read_text(path))))


def require_openpyxl() -> Any:
    """The package that writes workbooks."""
    try:
        import openpyxl
    except ModuleNotFoundError as error:
        raise EnvironmentUnusable(
            "writing Excel files needs openpyxl, which is not installed", remedy="pip install 'hotlap[segment]'"
        ) from error
    return openpyxl


def write_xlsx(columns: Sequence[str], rows: Sequence[Row], sheet: str = "objects") -> bytes:
    """A workbook with one sheet; text is never taken for a formula, and the header stays in sight."""
    if len(rows) > MOST_ROWS:
        raise DataError(
            f"{len(rows)} rows do not fit an Excel sheet", expected=f"at most {MOST_ROWS}", remedy="Use CSV"
        )
    openpyxl = require_openpyxl()
    book = openpyxl.Workbook(write_only=True)
    page = book.create_sheet(sheet)
    page.freeze_panes = "A2"
    page.append([_text_cell(page, column, bold=True) for column in columns])
    for row in rows:
        page.append([_text_cell(page, value) if isinstance(value, str) else _number(value) for value in row])
    buffer = io.BytesIO()
    book.save(buffer)
    return buffer.getvalue()


def _number(value: int | float) -> int | float | None:
    return value if math.isfinite(value) else None


def _text_cell(page: Any, text: str, *, bold: bool = False) -> Any:
    from openpyxl.cell import WriteOnlyCell
    from openpyxl.styles import Font

    cell = WriteOnlyCell(page, value=_plain(text))
    cell.data_type = "s"
    if bold:
        cell.font = Font(bold=True)
    return cell
