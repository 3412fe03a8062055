"""``hotlap report``: run records as one report, a story first and then the evidence, in every form it is asked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from hotlap.base.errors import UsageError
from hotlap.base.events import Emit, Event, advance, finish, ignore, start
from hotlap.records.run import RunRecord, load_record, resolve_run
from hotlap.tools.report.compose import compose
from hotlap.tools.report.formats import check_formats, write_report
from hotlap.tools.report.opened import OpenedReport, open_report
from hotlap.tools.report.page import draw_page

__all__ = [
    "OpenedReport",
    "ReportConfig",
    "compose",
    "open_report",
    "render",
    "report",
    "report_files",
    "write_report",
]


@dataclass(frozen=True, kw_only=True)
class ReportConfig:
    """What to draw, in which forms, and where to put it."""

    records: tuple[str, ...]
    """Records to draw: a path, a name, name/timestamp or 'latest'."""
    formats: tuple[str, ...] = field(default=("html",), metadata={"flag": "format"})
    """html, pdf, tex, notebook, md; several separated by commas."""
    out: str = ""
    """The file to write, or a folder for report.*, made if its name ends in a slash; several formats replace a file's
    ending. Beside the first record if not given."""
    runs: Path = Path("runs")
    """Where names of runs are looked up."""
    title: str = ""
    """Heading of the report; the target's name when empty."""
    pdf_engine: Literal["auto", "latex", "typst"] = "auto"
    """What sets the PDF: latex, typst (it comes with hotlap[report]), or auto: LaTeX where it is installed."""


def report(config: ReportConfig, emit: Emit = ignore) -> Path:
    """The path of the first form asked for, all of them written, from every record asked for."""
    return next(iter(report_files(config, emit).values()))


def report_files(config: ReportConfig, emit: Emit = ignore) -> dict[str, Path]:
    """The files of a report on every record asked for, in the order asked, by format."""
    if not config.records:
        raise UsageError(
            "records = () names nothing to draw", remedy="Name at least one; 'hotlap list runs' shows them"
        )
    check_formats(config.formats, config.pdf_engine)
    records: list[RunRecord] = []
    emit(start("report", None))
    for text in config.records:
        emit(advance("report", len(records), None, f"reading {text}"))
        records.append(load_record(resolve_run(text, config.runs)))
    out = config.out or Path(records[0].path).parent / "report"
    files = write_report(records, out, config.formats, title=config.title, pdf_engine=config.pdf_engine, emit=emit)
    emit(finish("report"))
    for path in files.values():
        emit(Event(kind="result", text=f"report: {path}", data={"path": str(path)}))
    return files


def render(records: Sequence[RunRecord], title: str = "") -> str:
    """The page's HTML, with style, script and drawings inside it."""
    return draw_page(compose(records, title))
