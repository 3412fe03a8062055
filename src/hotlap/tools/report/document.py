"""A report before it has a form: a small tree of headings, words, tables and figures that every writer draws.

What is said, and in which order, is decided where the tree is made; a writer only knows how its format says it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from markupsafe import Markup

from hotlap.tools.report.figures import Figure
from hotlap.tools.report.trust import Fact


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One cell of a table."""

    text: str
    more: tuple[str, ...] = ()
    """Smaller words beneath it."""
    tone: str = ""
    """good, bad, warn or muted; '' for plain words."""
    mono: bool = False
    """Whether it is a name as one types it."""
    number: bool = False
    strong: bool = False
    badge: bool = False
    swatch: str = ""
    """CSS class of the colour that stands for it in the figures."""
    link: str = ""
    """Anchor of the part it leads to."""
    drawing: Markup = field(default_factory=Markup)
    """Drawn in place of the words, on the page alone."""


@dataclass(frozen=True, kw_only=True)
class Column:
    """What a table's column holds."""

    title: str
    """A line break stands where it may be broken."""
    label: str = ""
    """Its name where each row is a card, as on a phone; the title if empty."""
    drawn: bool = False
    """Whether its cells are drawings that only repeat numbers beside them; formats without them leave it out."""

    @property
    def name(self) -> str:
        return self.label or self.title.replace("\n", " ")


@dataclass(frozen=True, kw_only=True)
class Table:
    """Rows of cells under named columns."""

    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    style: str = ""
    """speed or checks: how the page divides its width."""

    def printed(self) -> Table:
        """The same without the columns that only a page can draw."""
        kept = [place for place, column in enumerate(self.columns) if not column.drawn]
        columns = tuple(self.columns[place] for place in kept)
        return Table(columns=columns, rows=tuple(tuple(row[place] for place in kept) for row in self.rows))


@dataclass(frozen=True, kw_only=True)
class Heading:
    """The name of a few blocks within a section."""

    text: str
    mono: bool = False
    badge: tuple[str, str] | None = None
    """A word and its tone."""
    quiet: str = ""


@dataclass(frozen=True, kw_only=True)
class Words:
    """A paragraph."""

    text: str
    style: str = ""
    """quiet or lead; '' for plain."""
    mark: str = ""
    """Tone of a sign before it."""


@dataclass(frozen=True, kw_only=True)
class Items:
    """A list of sentences."""

    texts: tuple[str, ...]
    notes: bool = False
    """Whether they are caveats that must not be overlooked."""


@dataclass(frozen=True, kw_only=True)
class Facts:
    """Reasons for and against trust."""

    facts: tuple[Fact, ...]


@dataclass(frozen=True, kw_only=True)
class Pair:
    """A name, its value, and where it came from."""

    name: str
    value: str
    source: str = ""
    quiet: bool = False


@dataclass(frozen=True, kw_only=True)
class Pairs:
    """Values by name."""

    pairs: tuple[Pair, ...]
    has_source: bool = False


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing that was found, with what to do about it."""

    name: str
    tone: str
    badge: str = ""
    gain: str = ""
    """Follows the name."""
    measured: str = ""
    """What a check of it gave."""
    text: str = ""
    quiet: str = ""
    action: str = ""
    """What the command does: Fix, Check."""
    command: str = ""


@dataclass(frozen=True, kw_only=True)
class Command:
    """A line to copy into a shell."""

    text: str


@dataclass(frozen=True, kw_only=True)
class Code:
    """Lines of a program to copy."""

    text: str
    language: str


@dataclass(frozen=True, kw_only=True)
class Drawing:
    """A figure."""

    figure: Figure


@dataclass(frozen=True, kw_only=True)
class Fold:
    """Blocks behind a line that opens them; paper shows them open."""

    title: str
    blocks: tuple[Block, ...]
    open: bool = False
    mark: str = ""
    quiet: str = ""
    group: bool = False
    """Whether it is one theme of several rather than more of the same."""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """One sentence of the story."""

    text: str
    tone: str = ""
    links: tuple[tuple[str, str], ...] = ()
    """Anchors and names of the parts that bear it out."""
    command: str = ""
    """What to type, for a sentence that says what to do."""


@dataclass(frozen=True, kw_only=True)
class Question:
    """What a reader asks, and what the records answer."""

    text: str
    answers: tuple[Answer, ...]


Block = Heading | Words | Items | Facts | Pairs | Finding | Command | Code | Drawing | Fold | Table | Question


@dataclass(frozen=True, kw_only=True)
class Section:
    """A titled stretch of a part; one without a title continues the one before."""

    title: str
    blocks: tuple[Block, ...]
    anchor: str = ""
    style: str = ""
    """story or index, where the page sets it apart."""


@dataclass(frozen=True, kw_only=True)
class Part:
    """One record: its verdict, then the evidence."""

    anchor: str
    number: int
    name: str
    kind: str
    badge: str
    tone: str
    headline: str
    subject: tuple[tuple[str, str], ...]
    alert: str
    lines: tuple[str, ...]
    sections: tuple[Section, ...]

    @property
    def label(self) -> str:
        """Its kind and its name; stages of a lap are often called by their kind already."""
        return self.name if self.kind in re.split("[ -]", self.name) else f"{self.kind} {self.name}"


@dataclass(frozen=True, kw_only=True)
class Document:
    """A whole report."""

    title: str
    front: tuple[Section, ...]
    """The story, the index and what several records share."""
    parts: tuple[Part, ...]
    version: str
    written: str


def figures_of(blocks: tuple[Block, ...]) -> Iterator[Figure]:
    """The figures among ``blocks``, folded ones too, in the order they stand."""
    for block in blocks:
        if isinstance(block, Drawing):
            yield block.figure
        elif isinstance(block, Fold):
            yield from figures_of(block.blocks)


def named_figures(document: Document) -> dict[int, tuple[str, Figure]]:
    """A file name, without its ending, and the figure, by the figure's identity; names follow the order."""
    places = [("front", section) for section in document.front]
    places += [(part.anchor, section) for part in document.parts for section in part.sections]
    found: dict[int, tuple[str, Figure]] = {}
    taken: set[str] = set()
    for where, section in places:
        for figure in figures_of(section.blocks):
            words = re.sub(r"[^a-z0-9]+", "-", figure.title.lower()).strip("-") or "figure"
            name = f"{where}-{words}"
            while name in taken:
                name += "-more"
            taken.add(name)
            found[id(figure)] = name, figure
    return found
