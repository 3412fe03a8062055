"""The document as Markdown, its figures as SVG files beside it."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from hotlap.tools.report.document import (
    Block,
    Cell,
    Code,
    Command,
    Document,
    Drawing,
    Facts,
    Finding,
    Fold,
    Heading,
    Items,
    Pairs,
    Part,
    Question,
    Section,
    Table,
    Words,
    named_figures,
)

SPECIAL = re.compile(r"([\\`*_{}\[\]<>#|~$])")
MARKS = {"good": "✓", "bad": "✕", "warn": "!"}


def escape(words: str) -> str:
    """``words`` as Markdown shows them, on one line."""
    return SPECIAL.sub(r"\\\1", " ".join(words.split()))


def code(words: str) -> str:
    """``words`` as one types them; a backtick among them is fenced by two."""
    flat = " ".join(words.split())
    fence = "``" if "`" in flat else "`"
    pad = " " if "`" in flat else ""
    return f"{fence}{pad}{flat}{pad}{fence}" if flat else ""


def _fenced(text: str, language: str) -> str:
    """Lines as they are, between fences longer than any among them."""
    fence = "`" * max([3, *(len(run) + 1 for run in re.findall("`+", text))])
    return f"{fence}{language}\n{text}\n{fence}\n\n"


def draw_markdown(document: Document, figures: str) -> str:
    """The report as Markdown; ``figures`` is the folder of its drawings, as it is seen from the file."""
    writer = MarkdownWriter({key: f"{figures}/{name}.svg" for key, (name, _) in named_figures(document).items()})
    parts = [f"# {escape(document.title)}\n\n"]
    parts += [writer.section(section, 2) for section in document.front]
    parts += [writer.part(part, len(document.parts)) for part in document.parts]
    return "".join(parts) + f"---\nDrawn by hotlap {document.version} on {document.written}.\n"


class MarkdownWriter:
    """Blocks to Markdown."""

    def __init__(self, files: dict[int, str]) -> None:
        self.files = files
        self.ways: dict[type, Callable[[Any], str]] = {
            Heading: self.heading, Words: self.words, Items: self.items, Facts: self.facts, Pairs: self.pairs,
            Finding: self.finding, Command: self.command, Code: self.code, Drawing: self.drawing,
            Fold: self.fold, Table: self.table, Question: self.question,
        }  # fmt: skip

    def block(self, block: Block) -> str:
        return self.ways[type(block)](block)

    def section(self, section: Section, level: int) -> str:
        return f"{'#' * level} {escape(section.title)}\n\n" + "".join(self.block(block) for block in section.blocks)

    def part(self, part: Part, of: int) -> str:
        return self.verdict(part, of) + "".join(self.section(section, 3) for section in part.sections)

    def verdict(self, part: Part, of: int) -> str:
        number = f"{part.number}. " if of > 1 else ""
        lines = [f'<a id="{part.anchor}"></a>\n\n## {escape(number + part.label)}\n']
        if part.alert:
            lines.append(f"> **{escape(part.alert)}**\n")
        lines.append(f"**{escape(part.badge)}**: {escape(part.headline)}\n")
        lines.append(", ".join(f"{escape(name)}: {escape(value)}" for name, value in part.subject) + "\n")
        lines += ["".join(f"- {escape(text)}\n" for text in part.lines)] if part.lines else []
        return "\n".join(lines) + "\n"

    def heading(self, it: Heading) -> str:
        name = code(it.text) if it.mono else escape(it.text)
        more = [escape(it.badge[0])] if it.badge else []
        more += [escape(it.quiet)] if it.quiet else []
        return f"#### {name}{': ' if more else ''}{' '.join(more)}\n\n"

    def words(self, it: Words) -> str:
        mark = f"{MARKS.get(it.mark, '·')} " if it.mark else ""
        return f"{mark}{escape(it.text)}\n\n"

    def items(self, it: Items) -> str:
        lead = "> " if it.notes else ""
        return "".join(f"{lead}- {escape(text)}\n" for text in it.texts) + "\n"

    def facts(self, it: Facts) -> str:
        told = (f"- {MARKS.get(f.tone, '·')} **{escape(f.label)}**: {escape(f.text)}\n" for f in it.facts)
        return "".join(told) + "\n"

    def pairs(self, it: Pairs) -> str:
        head = "| | | from |\n| --- | --- | --- |\n" if it.has_source else "| | |\n| --- | --- |\n"
        rows = [[pair.name, pair.value, *([pair.source] if it.has_source else [])] for pair in it.pairs]
        return head + "".join(f"| {' | '.join(escape(text) for text in row)} |\n" for row in rows) + "\n"

    def finding(self, it: Finding) -> str:
        badge = f"{escape(it.badge)} " if it.badge else ""
        gain = f": {escape(it.gain)}" if it.gain else ""
        measured = f", measured {escape(it.measured)}" if it.measured else ""
        lines = [f"- {badge}**{escape(it.name)}**{gain}{measured}", escape(it.text), escape(it.quiet)]
        lines += [f"{escape(it.action)}: {code(it.command)}"] if it.command else []
        return "  \n  ".join(line for line in lines if line) + "\n\n"

    def command(self, it: Command) -> str:
        return _fenced(it.text, "sh")

    def code(self, it: Code) -> str:
        return _fenced(it.text, it.language)

    def drawing(self, it: Drawing) -> str:
        figure = it.figure
        caption = f"*{escape(figure.caption)}*\n\n" if figure.caption else ""
        name = escape(figure.title)
        return f"**{name}**\n\n![{name}]({self.files[id(figure)]})\n\n{caption}"

    def fold(self, it: Fold) -> str:
        quiet = f" ({it.quiet})" if it.quiet else ""
        inner = "".join(self.block(block) for block in it.blocks)
        if it.open:
            return f"#### {escape(it.title + quiet)}\n\n{inner}"
        return f"<details><summary>{escape(it.title + quiet)}</summary>\n\n{inner}</details>\n\n"

    def question(self, it: Question) -> str:
        heading = f"### {escape(it.text)}\n\n" if it.text else ""
        lines = []
        for answer in it.answers:
            links = ", ".join(f"[{escape(name)}](#{anchor})" for anchor, name in answer.links)
            source = f" ({links})" if links else ""
            command = f"  \n  {code(answer.command)}" if answer.command else ""
            mark = f"{MARKS[answer.tone]} " if answer.tone in MARKS else ""
            lines.append(f"- {mark}{escape(answer.text)}{source}{command}\n")
        return heading + "".join(lines) + "\n"

    def table(self, it: Table) -> str:
        shown = it.printed()
        numbers = [any(row[place].number for row in shown.rows) for place in range(len(shown.columns))]
        titles = " | ".join(escape(column.title) for column in shown.columns)
        rules = " | ".join("---:" if number else "---" for number in numbers)
        rows = "".join(f"| {' | '.join(_cell(cell) for cell in row)} |\n" for row in shown.rows)
        return f"| {titles} |\n| {rules} |\n{rows}\n"


def _cell(cell: Cell) -> str:
    words = code(cell.text.replace("|", "/")) if cell.mono else escape(cell.text)
    words = f"[{words}](#{cell.link})" if cell.link else words
    words = f"**{words}**" if cell.strong and words else words
    return "<br>".join([words, *(escape(text) for text in cell.more)])
