"""``hotlap report``: run records as one HTML file that needs nothing else, not even a network."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from hotlap.base.errors import UsageError
from hotlap.base.events import Emit, Event, advance, finish, ignore, start
from hotlap.records.run import RunRecord, load_record, resolve_run, write_atomic
from hotlap.tools.report.compose import compose
from hotlap.tools.report.page import draw_page

__all__ = ["ReportConfig", "render", "report"]


@dataclass(frozen=True, kw_only=True)
class ReportConfig:
    """What to draw and where to put it."""

    records: tuple[str, ...]
    """Records to draw: a path, a name, name/timestamp or 'latest'."""
    out: Path | None = None
    """The HTML file to write; report.html beside the first record when not given."""
    runs: Path = Path("runs")
    """Where names of runs are looked up."""
    title: str = ""
    """Heading of the page; the target's name when empty."""


def report(config: ReportConfig, emit: Emit = ignore) -> Path:
    """The path of one self-contained HTML page that draws every record asked for, in the order asked."""
    if not config.records:
        raise UsageError(
            "records = () names nothing to draw", remedy="Name at least one; 'hotlap list runs' shows them"
        )
    records = []
    emit(start("report", len(config.records)))
    for place, text in enumerate(config.records):
        records.append(load_record(resolve_run(text, config.runs)))
        emit(advance("report", place + 1, len(config.records), text))
    out = config.out or Path(records[0].path).parent / "report.html"
    write_atomic(out, render(records, config.title))
    emit(finish("report"))
    emit(Event(kind="result", text=f"report: {out}", data={"path": str(out)}))
    return out


def render(records: list[RunRecord], title: str = "") -> str:
    """The page's HTML, with style, script and drawings inside it."""
    return draw_page(compose(records, title))
