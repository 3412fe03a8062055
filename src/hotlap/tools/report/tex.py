"""The document as LaTeX sections to ``\\input``, their figures as PDF files, and a main file that compiles as it is."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
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
from hotlap.tools.report.paint import print_share

SPECIAL = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "$": r"\$", "&": r"\&", "#": r"\#", "%": r"\%", "_": r"\_",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}", ">": r"\textgreater{}",
    "|": r"\textbar{}", '"': "''", "`": r"\`{}",
    "–": "--", "—": "---", "…": r"\ldots{}", "×": r"$\times$", "µ": r"$\mu$", "μ": r"$\mu$", "°": r"$^\circ$",
    "−": r"$-$", "±": r"$\pm$", "≤": r"$\le$", "≥": r"$\ge$", "→": r"$\to$", "·": r"$\cdot$", "≈": r"$\approx$",
    "\u2060": "{}", "‘": "`", "’": "'", "“": "``", "”": "''", "\u200b": r"\allowbreak{}", "\u00a0": "~", "\n": " ",
    "\t": " ",
}  # fmt: skip
KNOWN = re.compile(r"[ -~\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u017f]")
"""What plain pdfLaTeX can set: ASCII and Latin letters."""
BREAKS = "+_/:.=,-"
LINE, MOST_MONO = 220, 26
"""Signs that share a table's line before words are broken, and the most of a name."""
MOST_UNBROKEN = 14
"""Rows of a table that is kept on one page."""
MARKS = {"good": r"$\surd$", "bad": r"$\times$", "warn": "!"}
HEAD = r"""% Made by hotlap {version}. For the preamble of a document that takes it in with \input:
%   \usepackage{{graphicx,booktabs,longtable,array,xcolor}}
% Figures are looked for in \hotlapdir; define it before \input when this folder lies elsewhere.
\providecommand{{\hotlapdir}}{{{folder}/}}
\providecommand{{\hotlapneed}}{{\par\penalty-100\vskip 0pt plus 9\baselineskip\penalty-100
  \vskip 0pt plus -9\baselineskip}}
\providecolor{{hotlapgood}}{{HTML}}{{1A7F4B}}\providecolor{{hotlapbad}}{{HTML}}{{B3261E}}
\providecolor{{hotlapwarn}}{{HTML}}{{9A6300}}\providecolor{{hotlapmuted}}{{HTML}}{{626A73}}
"""
MAIN = r"""% Made by hotlap {version}: compile with latexmk -pdf main.tex
\documentclass[10pt,a4paper]{{article}}
\usepackage[margin=20mm]{{geometry}}
\usepackage{{graphicx,booktabs,longtable,array,xcolor}}
\IfFileExists{{lmodern.sty}}{{\usepackage[T1]{{fontenc}}\usepackage{{lmodern}}}}{{}}
\newcommand{{\hotlapdir}}{{}}
\setlength{{\parindent}}{{0pt}}\setlength{{\parskip}}{{4pt plus 2pt}}
\emergencystretch=3em
\title{{{title}}}\author{{hotlap {version}}}\date{{{written}}}
\begin{{document}}
\maketitle
{inputs}
\end{{document}}
"""


def escape(words: str) -> str:
    """``words`` as LaTeX prints them; a sign that pdfLaTeX has no letter for is named by its code."""
    return "".join(
        SPECIAL[sign] if sign in SPECIAL else sign if KNOWN.match(sign) else rf"\texttt{{U+{ord(sign):04X}}}"
        for sign in words.replace("--", "-\u2060-").replace("--", "-\u2060-")
    )


def _typed(words: str) -> str:
    """``words`` as one types them, in a font of fixed pitch: quotes stay straight."""
    return escape(words).replace("''", r"\char34{}")


def tex_files(document: Document, folder: str) -> dict[str, str]:
    """File names and texts: ``main.tex``, ``story.tex`` where several records tell one, and ``run-N.tex``."""
    writer = _Writer({key: name for key, (name, _) in named_figures(document).items()})
    head = HEAD.format(version=document.version, folder=folder)
    found = {}
    if document.front:
        found["story.tex"] = head + "".join(writer.section(section, "section") for section in document.front)
    for part in document.parts:
        found[f"{part.anchor}.tex"] = head + writer.part(part, len(document.parts))
    inputs = "\n".join(rf"\input{{{name.removesuffix('.tex')}}}" for name in found)
    words = {"title": escape(document.title), "version": document.version, "written": escape(document.written)}
    return {**found, "main.tex": MAIN.format(**words, inputs=inputs)}


def _mono(words: str) -> str:
    """A name as one types it, which may be broken where a reader would break it."""
    marked = re.sub(rf"([{re.escape(BREAKS)}])", "\\1\u200b", words)
    return rf"{{\ttfamily\small {_typed(marked)}}}"


def _coloured(words: str, tone: str) -> str:
    return rf"\textcolor{{hotlap{tone}}}{{{words}}}" if tone else words


def _quiet(words: str) -> str:
    return rf"{{\small\textcolor{{hotlapmuted}}{{{words}}}}}"


def _mark(tone: str) -> str:
    return _coloured(MARKS.get(tone, r"$\cdot$"), tone)


def _listed(entries: Sequence[str]) -> str:
    return "\\begin{itemize}\n" + "".join(f"\\item {entry}\n" for entry in entries) + "\\end{itemize}\n"


class _Writer:
    """Blocks to LaTeX."""

    def __init__(self, files: dict[int, str]) -> None:
        self.files = files
        self.ways: dict[type, Callable[[Any], str]] = {
            Heading: self.heading, Words: self.words, Items: self.items, Facts: self.facts, Pairs: self.pairs,
            Finding: self.finding, Command: self.command, Code: self.code, Drawing: self.drawing,
            Fold: self.fold, Table: self.table, Question: self.question,
        }  # fmt: skip

    def block(self, block: Block) -> str:
        return self.ways[type(block)](block)

    def section(self, section: Section, level: str) -> str:
        return f"\n\\hotlapneed\\{level}{{{escape(section.title)}}}\n" + "".join(
            self.block(block) for block in section.blocks
        )

    def part(self, part: Part, of: int) -> str:
        number = f"Run {part.number}: " if of > 1 else ""
        badge = _coloured(rf"\textbf{{{escape(part.badge)}}}", part.tone)
        lines = [f"\n\\section{{{escape(number + part.label)}}}\n"]
        if part.alert:
            lines.append(f"{_coloured(escape(part.alert), part.tone)}\n\n")
        lines.append(f"{badge}\\quad \\textbf{{{escape(part.headline)}}}\n\n")
        lines.append(_quiet(r"\quad ".join(escape(f"{name}: {value}") for name, value in part.subject)) + "\n\n")
        lines += [_listed([escape(text) for text in part.lines])] if part.lines else []
        return "".join(lines) + "".join(self.section(section, "subsection") for section in part.sections)

    def heading(self, it: Heading) -> str:
        name = _mono(it.text) if it.mono else escape(it.text)
        badge = " " + _coloured(escape(it.badge[0]), it.badge[1]) if it.badge else ""
        quiet = " " + _quiet(escape(it.quiet)) if it.quiet else ""
        return f"\n\\subsubsection*{{{name}{badge}{quiet}}}\n"

    def words(self, it: Words) -> str:
        mark = _mark(it.mark) + "~" if it.mark else ""
        return f"\n{mark}{_quiet(escape(it.text)) if it.style else escape(it.text)}\n\n"

    def items(self, it: Items) -> str:
        return _listed([_coloured(escape(text), "warn") if it.notes else escape(text) for text in it.texts])

    def facts(self, it: Facts) -> str:
        told = (rf"\textbf{{{escape(fact.label)}}}: {escape(fact.text)}" for fact in it.facts)
        entries = (f"[{_mark(fact.tone)}] {text}" for fact, text in zip(it.facts, told, strict=True))
        return "\\begin{itemize}\n" + "".join(f"\\item{entry}\n" for entry in entries) + "\\end{itemize}\n"

    def pairs(self, it: Pairs) -> str:
        rows = [
            [_quiet(_breakable(pair.name)), _breakable(pair.value), *([escape(pair.source)] if it.has_source else [])]
            for pair in it.pairs
        ]
        return _longtable([0.25, 0.5, 0.25] if it.has_source else [0.25, 0.75], [], rows)

    def finding(self, it: Finding) -> str:
        badge = _coloured(escape(it.badge), it.tone) + "~" if it.badge else ""
        gain = f": {escape(it.gain)}" if it.gain else ""
        measured = f", measured {_coloured(escape(it.measured), it.tone)}" if it.measured else ""
        lines = [rf"{badge}\textbf{{{escape(it.name)}}}{gain}{measured}", escape(it.text), _quiet(escape(it.quiet))]
        lines += [f"{_quiet(escape(it.action))} {_mono(it.command)}"] if it.command else []
        body = "\n\n".join(line for line in lines if line)
        return f"\\begin{{quote}}\n{body}\n\\end{{quote}}\n"

    def command(self, it: Command) -> str:
        return f"\\begin{{quote}}{_mono(it.text)}\\end{{quote}}\n"

    def code(self, it: Code) -> str:
        """Line by line: ``verbatim`` would end at a record's own words."""
        lines = (_typed(line).replace(" ", "~") for line in it.text.splitlines())
        body = "".join(f"{line or '~'}\\par\n" for line in lines)
        return f"{{\\ttfamily\\footnotesize\\parskip=0pt\\raggedright\n{body}}}\n"

    def drawing(self, it: Drawing) -> str:
        figure = it.figure
        caption = f"\n\n{_quiet(escape(figure.caption))}" if figure.caption else ""
        file = rf"\hotlapdir figures/{self.files[id(figure)]}.pdf"
        return (
            f"\n\\begin{{minipage}}{{\\linewidth}}\\vspace{{6pt}}\\textbf{{{escape(figure.title)}}}\n\n"
            rf"\includegraphics[width={print_share(figure):.2f}\linewidth]{{{file}}}{caption}"
            "\\vspace{6pt}\\end{minipage}\n\n"
        )

    def fold(self, it: Fold) -> str:
        quiet = f" ({it.quiet})" if it.quiet else ""
        return f"\n\\subsubsection*{{{escape(it.title + quiet)}}}\n" + "".join(map(self.block, it.blocks))

    def question(self, it: Question) -> str:
        heading = f"\n\\subsection*{{{escape(it.text)}}}\n" if it.text else ""
        entries = []
        for answer in it.answers:
            names = escape(", ".join(name for _, name in answer.links))
            source = " " + _quiet(f"({names})") if names else ""
            command = rf"\\{_mono(answer.command)}" if answer.command else ""
            entries.append(f"\\item[{_mark(answer.tone)}] {escape(answer.text)}{source}{command}\n")
        return heading + "\\begin{itemize}\n" + "".join(entries) + "\\end{itemize}\n"

    def table(self, it: Table) -> str:
        shown = it.printed()
        weights = []
        for place, column in enumerate(shown.columns):
            cells = [row[place] for row in shown.rows]
            title = max(map(len, column.name.split()), default=0) + 2
            longest = max([title, *(len(text) for cell in cells for text in (cell.text, *cell.more))])
            most = MOST_MONO if any(cell.mono for cell in cells) else LINE // len(shown.columns)
            weights.append(longest + 1 if any(cell.number for cell in cells) else min(longest, most))
        shares = [weight / sum(weights) for weight in weights]
        titles = [escape(column.name) for column in shown.columns]
        return _longtable(shares, titles, [[_cell(cell) for cell in row] for row in shown.rows])


def _breakable(words: str) -> str:
    return escape(re.sub(r"([+/:=,.])(?=\S)", "\\1\u200b", words))


def _cell(cell: Cell) -> str:
    words = _mono(cell.text) if cell.mono else escape(cell.text)
    words = rf"\textbf{{{words}}}" if cell.strong and words else words
    more = "".join(rf"\newline {_quiet(escape(text))}" for text in cell.more)
    return _coloured(words, cell.tone) + more


def _longtable(shares: Sequence[float], titles: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table whose columns share the line's width; one that is long may run over pages."""
    columns = "".join(
        rf">{{\raggedright\arraybackslash}}p{{\dimexpr {share:.3f}\linewidth-6pt\relax}}" for share in shares
    )
    long = len(rows) > MOST_UNBROKEN
    repeat = r" \endhead" if long else ""
    head = " & ".join(_quiet(title) for title in titles) + rf" \\ \midrule{repeat}" + "\n" if titles else ""
    body = "".join(" & ".join(row) + " \\\\\n" for row in rows)
    kind = "longtable" if long else "tabular"
    rules = ("\\toprule\n", "\\bottomrule\n") if titles else ("", "")
    return (
        "\n{\\footnotesize\\setlength{\\tabcolsep}{3pt}\\renewcommand{\\arraystretch}{1.15}\n"
        f"\\begin{{{kind}}}{{@{{}}{columns}@{{}}}}\n{rules[0]}{head}{body}{rules[1]}\\end{{{kind}}}\\par}}\n"
    )
