"""The document as PDF pages, set by the typst package: no LaTeX, no browser, no system library."""

from __future__ import annotations

import dataclasses
import json
import tempfile
from pathlib import Path
from typing import Any

from hotlap.base.errors import EnvironmentUnusable
from hotlap.tools.report.document import Document, Drawing, named_figures
from hotlap.tools.report.figures import Figure
from hotlap.tools.report.page import read_template
from hotlap.tools.report.paint import colour_of, paint, print_share

INSTALL = "pip install 'hotlap[report]'"


def typeset(document: Document) -> bytes:
    """The document as PDF pages."""
    named = named_figures(document)
    data = _plain(document, {key: f"{name}.svg" for key, (name, _) in named.items()})
    data["palette"] = {css: colour_of(css) for css in _swatches(data)}
    files = {"report.typ": read_template("report.typ"), "document.json": json.dumps(data)}
    files |= {f"{name}.svg": paint(figure) for name, figure in named.values()}
    return compile_typst(files, "report.typ")


def picture(drawing: str) -> bytes:
    """An SVG file as a PDF of its size, for documents that take no SVG."""
    source = '#set page(width: auto, height: auto, margin: 0pt)\n#image("drawing.svg")\n'
    return compile_typst({"report.typ": source, "drawing.svg": drawing}, "report.typ")


def compile_typst(files: dict[str, str], main: str) -> bytes:
    """The PDF that typst makes of ``main`` with the other files beside it."""
    typst = require_typst()
    with tempfile.TemporaryDirectory(prefix="hotlap-report-") as folder:
        for name, text in files.items():
            Path(folder, name).write_text(text, encoding="utf-8")
        try:
            made: bytes = typst.compile(str(Path(folder, main)), root=folder, ignore_system_fonts=True)
        except typst.TypstError as error:
            raise EnvironmentUnusable(
                f"typst could not set the report: {error}", remedy="Write it as HTML and print that"
            ) from error
    return made


def require_typst() -> Any:
    """The typst package, or the command that installs it."""
    try:
        import typst
    except ImportError as error:
        raise EnvironmentUnusable(
            "formats = 'pdf' or 'tex' needs the package typst, which is not installed", remedy=f"Run: {INSTALL}"
        ) from error
    return typst


def _plain(node: Any, files: dict[int, str]) -> Any:
    """Dataclasses as mappings that name their kind, figures by their files, drawings of cells left out."""
    if isinstance(node, Figure):
        share = print_share(node)
        return {"file": files[id(node)], "title": node.title, "caption": node.caption, "share": share}
    if isinstance(node, Drawing):
        return {"is": "Drawing", **_plain(node.figure, files)}
    if hasattr(node, "printed"):
        node = node.printed()
    if dataclasses.is_dataclass(node):
        fields = {f.name: _plain(getattr(node, f.name), files) for f in dataclasses.fields(node) if f.name != "drawing"}
        return {"is": type(node).__name__, **fields}
    if isinstance(node, (list, tuple)):
        return [_plain(item, files) for item in node]
    return node


def _swatches(node: Any) -> set[str]:
    if isinstance(node, dict):
        own = {node["swatch"]} if node.get("swatch") else set()
        return own.union(*(_swatches(value) for value in node.values()))
    return set().union(*(_swatches(item) for item in node)) if isinstance(node, list) else set()
