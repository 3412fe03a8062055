"""Runs a notebook's cells as a notebook does: ``python -m hotlap.tools.report.run_cells < in.ipynb > out.ipynb``.

One namespace for all cells; what a cell prints, and the value of its last line, become its outputs.
"""

from __future__ import annotations

import ast
import contextlib
import io
import json
import sys
from typing import Any

FORMS = (
    ("image/svg+xml", "_repr_svg_"),
    ("text/html", "_repr_html_"),
    ("text/markdown", "_repr_markdown_"),
)


def run_cells(notebook: dict[str, Any]) -> dict[str, Any]:
    """``notebook`` with the outputs of its code cells; an error of a cell is raised."""
    names: dict[str, Any] = {"__name__": "__main__"}
    count = 0
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            count += 1
            cell["execution_count"] = count
            cell["outputs"] = _outputs(cell["source"], names, count)
    return notebook


def _outputs(source: str, names: dict[str, Any], count: int) -> list[dict[str, Any]]:
    body = ast.parse(source, f"cell {count}")
    last = body.body.pop() if body.body and isinstance(body.body[-1], ast.Expr) else None
    printed, value = io.StringIO(), None
    with contextlib.redirect_stdout(printed):
        exec(compile(body, f"<cell {count}>", "exec"), names)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), f"<cell {count}>", "eval"), names)
    found: list[dict[str, Any]] = []
    if printed.getvalue():
        found.append({"output_type": "stream", "name": "stdout", "text": printed.getvalue()})
    if value is not None:
        data = {form: getattr(value, method)() for form, method in FORMS if hasattr(value, method)}
        data["text/plain"] = repr(value)
        found.append({"output_type": "execute_result", "execution_count": count, "data": data, "metadata": {}})
    return found


if __name__ == "__main__":
    json.dump(run_cells(json.load(sys.stdin)), sys.stdout)
