"""The document as one HTML page that needs nothing else, not even a network."""

from __future__ import annotations

from functools import cache
from importlib import resources

import jinja2
from markupsafe import Markup

from hotlap.tools.report.document import Document


def draw_page(document: Document) -> str:
    """The page's HTML, with style, script and drawings inside it."""
    return (
        _environment()
        .get_template("page.html.j2")
        .render(
            page=document,
            style=Markup(read_template("style.css")),  # our own files, not a record's words
            script=Markup(read_template("page.js")),
        )
    )


@cache
def _environment() -> jinja2.Environment:
    """Our templates, compiled once; autoescape is on, so a record's words stay words."""
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(read_template),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals["kind_of"] = lambda block: type(block).__name__
    environment.globals["line_break"] = Markup("<br>")
    return environment


def read_template(name: str) -> str:
    return (resources.files("hotlap.tools.report") / "templates" / name).read_text(encoding="utf-8")
