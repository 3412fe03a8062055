"""The document as a PDF: by LaTeX where it is installed, by typst elsewhere."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

from hotlap.base.errors import EnvironmentUnusable
from hotlap.base.events import Emit, warn
from hotlap.tools.report.document import Document
from hotlap.tools.report.pages import typeset

TIMEOUT_S = 300.0
SAFE = ("-interaction=nonstopmode", "-halt-on-error", "-no-shell-escape")
ENGINES: dict[str, tuple[tuple[str, ...], int]] = {
    "latexmk": (("-pdf", *SAFE), 1),
    "tectonic": (("--untrusted",), 1),
    "pdflatex": (SAFE, 3),
}
"""Arguments, and how often it must run until the widths of tables have settled."""


def find_latex(*, required: bool = False) -> str:
    """The name of the LaTeX that is installed; '' without one, which is an error where it is required."""
    found = next((name for name in ENGINES if shutil.which(name)), "")
    if not found and required:
        raise EnvironmentUnusable(
            f"pdf_engine = 'latex', but none of {', '.join(ENGINES)} is installed",
            remedy="Install one, or take pdf_engine = 'typst'",
        )
    return found


def make_pdf(document: Document, engine: str, write_tex: Callable[[Document, Path], None], emit: Emit) -> bytes:
    """The PDF; with ``engine`` auto, a LaTeX that fails is told and typst takes its place."""
    name = "" if engine == "typst" else find_latex(required=engine == "latex")
    if not name:
        return typeset(document)
    try:
        return _run(name, document, write_tex)
    except EnvironmentUnusable as error:
        if engine == "latex":
            raise
        emit(warn(f"{error.what}; the PDF is set by typst instead"))
        return typeset(document)


def _run(name: str, document: Document, write_tex: Callable[[Document, Path], None]) -> bytes:
    arguments, times = ENGINES[name]
    with tempfile.TemporaryDirectory(prefix="hotlap-latex-") as root:
        folder = Path(root, "report-tex")
        write_tex(document, folder)
        for _ in range(times):
            try:
                done = subprocess.run(
                    [name, *arguments, "main.tex"], cwd=folder, capture_output=True, text=True, errors="replace",
                    timeout=TIMEOUT_S, check=False, stdin=subprocess.DEVNULL,
                )  # fmt: skip
            except (OSError, subprocess.TimeoutExpired) as error:
                raise EnvironmentUnusable(f"{name} did not run: {error}") from error
            if done.returncode != 0:
                raise EnvironmentUnusable(f"{name} could not set the report: {_complaint(done.stdout + done.stderr)}")
        return (folder / "main.pdf").read_bytes()


def _complaint(log: str) -> str:
    """The line LaTeX complains in, with the one that names the place."""
    lines = log.splitlines()
    for place, line in enumerate(lines):
        if line.startswith(("!", "error:")):
            return " ".join([line, *(later for later in lines[place + 1 : place + 6] if later.startswith("l."))])
    return " ".join(lines[-3:])
