"""The document as a notebook that reads the records again and draws them, executed before it is written."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hotlap.base.errors import EnvironmentUnusable, UsageError
from hotlap.records.run import RunRecord
from hotlap.tools.report.document import Block, Document, Drawing, Fold, Section, Table, figures_of
from hotlap.tools.report.markdown import MarkdownWriter, escape
from hotlap.tools.report.speed import headline_comparisons, withheld

TIMEOUT_S = 600.0
FIRST = """\
from statistics import median

from hotlap.base.stats import ratio_interval
from hotlap.tools.report import open_report

# Paths from this notebook's folder; change them when it or the records move.
records = {paths}
page = open_report(records, title={title!r})"""
SAMPLES = """\
record = page.records[{place}]
before, after = (record.samples(arm, "wall") for arm in ({baseline!r}, {arm!r}))
both = min(len(before), len(after))
print(f"{{both}} processes; medians in ms:", [round(median(values), 3) for values in after])
# Each process timed both arms: its own ratio counts, and processes are drawn first, iterations second.
ratio_interval(before[:both], after[:both], paired=True)"""


def draw_notebook(document: Document, records: Sequence[RunRecord], out: Path) -> str:
    """The notebook's JSON with real outputs: its cells were run, in their order, in a process of their own."""
    missing = [record.name for record in records if not record.path]
    if missing:
        raise UsageError(
            f"records = {missing!r} are not on disk, and a notebook reads its records from there",
            remedy="Save them first, or choose another format",
        )
    cells = [_words(f"# {escape(document.title)}"), _code(_first(document, records, out))]
    for section in document.front:
        cells += _section_cells(section, "front", 2)
    writer = MarkdownWriter({})
    for part, record in zip(document.parts, records, strict=True):
        cells.append(_words(writer.verdict(part, len(document.parts))))
        cells += _sample_cells(record, part.number - 1)
        for section in part.sections:
            cells += _section_cells(section, part.anchor, 3)
    return json.dumps(execute(_joined(cells), out.parent), indent=1, ensure_ascii=False) + "\n"


def _first(document: Document, records: Sequence[RunRecord], out: Path) -> str:
    folder = out.resolve().parent
    paths = [Path(os.path.relpath(Path(record.path).resolve(), folder)).as_posix() for record in records]
    listed = "".join(f"    {json.dumps(path, ensure_ascii=False)},\n" for path in paths)
    return FIRST.format(paths=f"[\n{listed}]", title=document.title)


def _words(text: str) -> dict[str, Any]:
    return {"cell_type": "markdown", "metadata": {}, "source": text.strip()}


def _code(text: str) -> dict[str, Any]:
    return {"cell_type": "code", "metadata": {}, "execution_count": None, "outputs": [], "source": text}


def _section_cells(section: Section, where: str, level: int) -> list[dict[str, Any]]:
    return [_words(f"{'#' * level} {escape(section.title)}"), *_block_cells(section.blocks, where, section.title)]


def _block_cells(blocks: Sequence[Block], where: str, title: str) -> list[dict[str, Any]]:
    """Words as words; a figure or a table as the line that draws it."""
    found, tables = [], 0
    for block in blocks:
        if isinstance(block, Drawing):
            found.append(_code(f"page.figure({where!r}, {block.figure.title!r})"))
            found += [_words(escape(block.figure.caption))] if block.figure.caption else []
        elif isinstance(block, Table):
            found.append(_code(f"page.table({where!r}, {title!r}, {tables})"))
            tables += 1
        elif isinstance(block, Fold) and any(figures_of(block.blocks)):
            found += _block_cells(block.blocks, where, title)
        else:
            found.append(_words(MarkdownWriter({}).block(block)))
    return found


def _sample_cells(record: RunRecord, place: int) -> list[dict[str, Any]]:
    """One comparison computed again from its raw samples, where the record holds them."""
    timed = {arm.name for arm in record.arms if arm.role != "context"}
    shown = [
        c
        for c in headline_comparisons(record)
        if record.kind == "bench" and {c.arm, c.baseline} <= timed and not withheld(record, c.arm, c.baseline)
        if all((timed_ms := record.samples(arm, "wall")) and all(timed_ms) for arm in (c.arm, c.baseline))
    ]
    if not shown:
        return []
    best = max(shown, key=lambda c: c.ratio)
    text = f"The speed-up of {escape(best.arm)} over {escape(best.baseline)}, computed again from the raw samples:"
    return [_words(text), _code(SAMPLES.format(place=place, baseline=best.baseline, arm=best.arm))]


def _joined(cells: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The notebook, words that follow each other in one cell."""
    found: list[dict[str, Any]] = []
    for cell in cells:
        if found and cell["cell_type"] == found[-1]["cell_type"] == "markdown":
            found[-1] = _words(found[-1]["source"] + "\n\n" + cell["source"])
        else:
            found.append(cell)
    for place, cell in enumerate(found):
        cell["id"] = f"cell-{place}"
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    language = {"name": "python", "version": ".".join(map(str, sys.version_info[:3]))}
    metadata = {"kernelspec": kernel, "language_info": language}
    return {"cells": found, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}


def _environment() -> dict[str, str]:
    """Ours, with the places of modules spelled so that they hold in another folder."""
    places = [str(Path(place).resolve()) for place in os.environ.get("PYTHONPATH", "").split(os.pathsep) if place]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(places), "PYTHONIOENCODING": "utf-8"}


def execute(notebook: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The notebook with the outputs of its cells, run in a fresh process whose folder is the notebook's."""
    done = subprocess.run(
        [sys.executable, "-m", "hotlap.tools.report.run_cells"],
        input=json.dumps(notebook),
        capture_output=True,
        text=True,
        encoding="utf-8",
        cwd=folder,
        env=_environment(),
        timeout=TIMEOUT_S,
        check=False,
    )
    if done.returncode != 0:
        raise EnvironmentUnusable(
            f"the notebook's cells did not run: {done.stderr.strip()[-600:]}",
            remedy="Write the report as HTML; the records can be drawn without a notebook",
        )
    made: dict[str, Any] = json.loads(done.stdout)
    return made
