"""``hotlap report``: run records as one HTML file that needs nothing else, not even a network."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path

import jinja2
from markupsafe import Markup

import hotlap
from hotlap.base.errors import UsageError
from hotlap.base.events import Emit, Event, advance, finish, ignore, start
from hotlap.records.run import RunRecord, load_record, now, resolve_run, write_atomic
from hotlap.tools.report.training import comparison_figures
from hotlap.tools.report.view import page_title, run_view

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
    return (
        _environment()
        .get_template("page.html.j2")
        .render(
            title=page_title(records, title),
            runs=[run_view(record, place) for place, record in enumerate(records)],
            together=comparison_figures(records),
            style=Markup(_template("style.css")),  # our own files, not a record's words
            script=Markup(_template("page.js")),
            version=hotlap.__version__,
            written=now().replace("T", " "),
        )
    )


@cache
def _environment() -> jinja2.Environment:
    """Our templates, compiled once; autoescape is on, so a record's words stay words."""
    return jinja2.Environment(
        loader=jinja2.FunctionLoader(_template),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _template(name: str) -> str:
    return (resources.files(__name__) / "templates" / name).read_text(encoding="utf-8")
