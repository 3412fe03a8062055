"""The forms of a report: which there are, what each is called on disk, and how it is written."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from hotlap.base.errors import StorageError, UnknownName, UsageError, did_you_mean
from hotlap.base.events import Emit, advance, ignore
from hotlap.records.run import RunRecord, write_atomic
from hotlap.tools.report.compose import compose
from hotlap.tools.report.document import Document, named_figures
from hotlap.tools.report.lap import with_stages
from hotlap.tools.report.latex import find_latex, make_pdf
from hotlap.tools.report.markdown import draw_markdown
from hotlap.tools.report.notebook import draw_notebook
from hotlap.tools.report.page import draw_page
from hotlap.tools.report.pages import picture, require_typst
from hotlap.tools.report.paint import paint
from hotlap.tools.report.tex import tex_files

ENDINGS = {"html": ".html", "pdf": ".pdf", "tex": "-tex", "notebook": ".ipynb", "md": ".md"}
"""What follows the name of the report; the sections of tex lie in a folder."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """One form to write."""

    document: Document
    records: Sequence[RunRecord]
    out: Path
    engine: str
    emit: Emit


def write_report(
    records: Sequence[RunRecord],
    out: str | Path,
    formats: Sequence[str] = ("html",),
    *,
    title: str = "",
    pdf_engine: str = "auto",
    emit: Emit = ignore,
) -> dict[str, Path]:
    """One report on ``records`` in each of ``formats``; the files by format. A lap brings the records of its stages.

    ``out`` names the report: a folder holds report.*, and is made if a slash at its end says that it is one; with one
    format and an ending it is the file; otherwise each format has its own ending.
    """
    check_formats(formats, pdf_engine)
    if not records:
        raise UsageError("records = [] holds nothing to draw", remedy="Give at least one record")
    records = with_stages(records)
    document = compose(records, title)
    if str(out).endswith(("/", os.sep)):
        _make(Path(out))
    out = Path(out)
    found: dict[str, Path] = {}
    for name in dict.fromkeys(formats):
        emit(advance("report", len(found), len(set(formats)), f"writing {name}"))
        path = place_of(out, name, alone=len(set(formats)) == 1)
        _make(path.parent)
        job = Job(document=document, records=records, out=path, engine=pdf_engine, emit=emit)
        found[name] = WRITERS[name](job)
    return found


def check_formats(formats: Sequence[str], pdf_engine: str = "auto") -> None:
    """Refuses what cannot be written here, before anything is."""
    if not formats:
        raise UsageError("formats = () names none", expected=f"some of {', '.join(ENDINGS)}")
    for name in formats:
        if name not in WRITERS:
            raise UnknownName(f"formats: unknown format {name!r}", remedy=did_you_mean(name, WRITERS))
    if pdf_engine not in ("auto", "latex", "typst"):
        raise UnknownName(f"pdf_engine = {pdf_engine!r} is not known", expected="auto, latex or typst")
    if {"pdf", "tex"} & set(formats):
        require_typst()  # sets the pages, and turns figures into what LaTeX takes
    if "pdf" in formats and pdf_engine == "latex":
        find_latex(required=True)


def place_of(out: Path, name: str, *, alone: bool) -> Path:
    """Where one format goes: into a folder, or ``out`` itself where it has an ending and no other format shares it."""
    if out.is_dir():
        out = out / "report"
    if alone and out.suffix and name != "tex":
        return out
    stem = out.with_suffix("") if out.suffix in (*ENDINGS.values(), ".tex") else out
    return stem.with_name(stem.name + ENDINGS[name])


def _html(job: Job) -> Path:
    write_atomic(job.out, draw_page(job.document))
    return job.out


def _markdown(job: Job) -> Path:
    folder = job.out.with_name(f"{job.out.stem}-figures")
    named = named_figures(job.document)
    if named:
        _make(folder)
    for name, figure in named.values():
        write_atomic(folder / f"{name}.svg", paint(figure))
    write_atomic(job.out, draw_markdown(job.document, folder.name))
    return job.out


def _tex(job: Job) -> Path:
    """The folder's main file, written last: where it is, the rest is."""
    write_tex(job.document, job.out)
    return job.out / "main.tex"


def write_tex(document: Document, folder: Path) -> None:
    """``folder`` with the sections, their figures and a main file."""
    _make(folder)
    _make(folder / "figures")
    for name, figure in named_figures(document).values():
        write_atomic(folder / "figures" / f"{name}.pdf", picture(paint(figure)))
    for name, text in tex_files(document, folder.name).items():
        write_atomic(folder / name, text)


def _pdf(job: Job) -> Path:
    write_atomic(job.out, make_pdf(job.document, job.engine, write_tex, job.emit))
    return job.out


def _notebook(job: Job) -> Path:
    write_atomic(job.out, draw_notebook(job.document, job.records, job.out))
    return job.out


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(
            f"cannot create {str(folder)!r}: {error.strerror or error}", remedy="Choose another place with --out"
        ) from error


WRITERS: dict[str, Callable[[Job], Path]] = {
    "html": _html,
    "pdf": _pdf,
    "tex": _tex,
    "notebook": _notebook,
    "md": _markdown,
}
