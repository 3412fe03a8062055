"""A report as a notebook holds it: the records, and each figure and table by its name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hotlap.base.errors import UnknownName, did_you_mean
from hotlap.records.run import RunRecord, load_record
from hotlap.tools.report.compose import compose
from hotlap.tools.report.document import Document, Section, Table, figures_of
from hotlap.tools.report.figures import Figure
from hotlap.tools.report.markdown import MarkdownWriter
from hotlap.tools.report.paint import paint


@dataclass(frozen=True)
class ShownFigure:
    """A figure that draws itself in a notebook."""

    figure: Figure

    def _repr_svg_(self) -> str:
        return paint(self.figure)

    def __repr__(self) -> str:
        return f"{self.figure.title}. {self.figure.caption}".strip()


@dataclass(frozen=True)
class ShownTable:
    """A table that draws itself in a notebook."""

    table: Table

    def _repr_markdown_(self) -> str:
        return MarkdownWriter({}).table(self.table).rstrip()

    def __repr__(self) -> str:
        return self._repr_markdown_()


@dataclass(frozen=True)
class OpenedReport:
    """A report with its records, to look at piece by piece."""

    records: tuple[RunRecord, ...]
    document: Document

    def figure(self, where: str, title: str) -> ShownFigure:
        """The figure of that title in a part: 'run-1', 'run-2', or 'front' for what the records share."""
        known = {figure.title: figure for section in self._sections(where) for figure in figures_of(section.blocks)}
        if title not in known:
            raise UnknownName(f"{where!r} has no figure {title!r}", remedy=did_you_mean(title, known))
        return ShownFigure(known[title])

    def table(self, where: str, section: str, number: int = 0) -> ShownTable:
        """The ``number``-th table, from 0, of a section of a part."""
        titles = {found.title: found for found in self._sections(where)}
        if section not in titles:
            raise UnknownName(f"{where!r} has no section {section!r}", remedy=did_you_mean(section, titles))
        tables = [block for block in titles[section].blocks if isinstance(block, Table)]
        if number >= len(tables):
            raise UnknownName(
                f"number = {number}: section {section!r} of {where!r} has {len(tables)} tables", expected="one of those"
            )
        return ShownTable(tables[number])

    def _sections(self, where: str) -> Sequence[Section]:
        parts = {"front": self.document.front, **{part.anchor: part.sections for part in self.document.parts}}
        if where not in parts:
            raise UnknownName(f"there is no part {where!r}", remedy=did_you_mean(where, parts))
        return parts[where]


def open_report(paths: Sequence[str | Path], title: str = "") -> OpenedReport:
    """The report on the records at ``paths``, read now."""
    records = tuple(load_record(path) for path in paths)
    return OpenedReport(records, compose(records, title))
