"""Every form of a report says the same, is whole, and what cannot be made here is refused by name."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import fake_records
import pytest
from fake_trainings import training

from hotlap.base.errors import EnvironmentUnusable, RecordError, StorageError, UnknownName, UsageError
from hotlap.base.stats import ratio_interval
from hotlap.cli.main import run
from hotlap.records.run import save
from hotlap.tools.report import ReportConfig, compose, formats, open_report, report, write_report
from hotlap.tools.report.document import named_figures
from hotlap.tools.report.latex import ENGINES
from hotlap.tools.report.notebook import execute
from hotlap.tools.report.paint import colour_of, paint
from hotlap.tools.report.run_cells import run_cells

EVIL = '100% of $x_1$ & {a}\\b #2 ~ ^ <i>|</i> "q" `tick` é 中 ] end{itemize}'


def stored(record, folder: Path):
    folder.mkdir(parents=True)
    return save(record, folder)


def wrongly_fast():
    """A bench whose one wrong arm measured a ratio that stands nowhere else."""
    red = fake_records.red_bench()
    found = [
        dataclasses.replace(c, ratio=7.77, low=7.7, high=7.8) if c.arm == "cuda:bf16+channels_last" else c
        for c in red.comparisons
    ]
    return dataclasses.replace(red, comparisons=found)


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """One report on several kinds of records, in every form that needs no LaTeX, with its files by format."""
    pytest.importorskip("typst")
    root = tmp_path_factory.mktemp("forms")
    records = [
        stored(fake_records.doctor(), root / "doctor"), stored(fake_records.gpu_bench(), root / "bench"),
        stored(wrongly_fast(), root / "red"), training(root / "gpu"), training(root / "cpu", device="cpu"),
    ]  # fmt: skip
    files = write_report(records, root / "r.html", tuple(formats.WRITERS), title="One report", pdf_engine="typst")
    return records, files


def cells_of(notebook: Path, kind: str) -> list[dict]:
    return [cell for cell in json.loads(notebook.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == kind]


def test_every_form_has_its_own_ending(written):
    _, files = written
    root = files["html"].parent
    names = {name: path.relative_to(root).as_posix() for name, path in files.items()}
    assert names == {"html": "r.html", "pdf": "r.pdf", "tex": "r-tex/main.tex", "notebook": "r.ipynb", "md": "r.md"}
    assert files["pdf"].read_bytes().startswith(b"%PDF-")


def test_every_form_tells_the_story_and_the_same_numbers(written):
    _, files = written
    notebook = json.loads(files["notebook"].read_text(encoding="utf-8"))
    shown = [c["source"] for c in notebook["cells"]]
    shown += [str(o.get("data", {}).get("text/markdown", "")) for c in notebook["cells"] for o in c.get("outputs", [])]
    tex = "".join(file.read_text(encoding="utf-8") for file in files["tex"].parent.glob("*.tex"))
    texts = {"html": files["html"].read_text(encoding="utf-8"), "md": files["md"].read_text(encoding="utf-8"),
             "notebook": "\n".join(shown), "tex": tex}  # fmt: skip
    for name, text in texts.items():
        text = text.replace("\\[", "[").replace("\\]", "]")
        for words in ("What was slow?", "3.27x", "[3.21, 3.34]", "20 checks passed", "How it was made", "580.82.07"):
            assert words in text, (name, words)
        assert "no speed-up: wrong answer" in text and "7.77" not in text, name


@pytest.mark.skipif(not shutil.which("pdftotext"), reason="no pdftotext to read the PDF with")
def test_the_pages_hold_the_same_words(written):
    told = subprocess.run(["pdftotext", "-layout", written[1]["pdf"], "-"], capture_output=True, text=True, check=True)
    for words in ("One report", "What was slow?", "3.27x", "no speed-up: wrong answer", "Loss over time"):
        assert words in told.stdout


def test_markdown_is_whole(written):
    _, files = written
    text = files["md"].read_text(encoding="utf-8")
    pictures = re.findall(r"!\[[^\]]*\]\(([^)]+)\)", text)
    assert len(pictures) == len(set(pictures)) > 10
    assert all((files["md"].parent / picture).is_file() for picture in pictures)
    tables = re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE)
    for table in tables:
        assert len({len(re.findall(r"(?<!\\)\|", row)) for row in table.splitlines()}) == 1, table
    targets, anchors = set(re.findall(r"\]\(#([\w-]+)\)", text)), set(re.findall(r'<a id="([\w-]+)">', text))
    assert targets and targets <= anchors
    assert text.count("<details>") == text.count("</details>")


def test_figures_stand_alone_in_the_colours_of_the_page(written):
    document = compose(written[0])
    for name, figure in named_figures(document).values():
        drawing = ET.fromstring(paint(figure))
        marks = list(drawing.iter())
        assert not any("class" in mark.attrib for mark in marks), name
        assert "var(" not in "".join(value for mark in marks for value in mark.attrib.values())
        for mark in marks:
            if mark.tag.endswith("path"):
                assert mark.attrib.get("stroke", "").startswith("#"), (name, mark.attrib)
    loss = next(f for _, f in named_figures(document).values() if f.title == "Loss over time")
    words = "".join(ET.fromstring(paint(loss)).itertext())
    assert "4. unet cuda" in words and "5. unet cpu" in words, "the legend is part of the drawing"
    sheet = (Path(formats.__file__).parent / "templates" / "style.css").read_text(encoding="utf-8")
    light = dict(re.findall(r"--(a\d): (#[0-9a-f]{6})", sheet.partition("@media")[0]))
    assert {css: colour_of(css) for css in light} == light
    assert colour_of("a1 soft") != colour_of("a1 solid") == light["a1"]


def test_sections_of_latex_are_balanced(written):
    for file in written[1]["tex"].parent.glob("*.tex"):
        assert_balanced(file.read_text(encoding="utf-8"))
    story = (written[1]["tex"].parent / "story.tex").read_text(encoding="utf-8")
    used = re.findall(r"\\hotlapdir (figures/[^}]+)}", story)
    assert used and all((written[1]["tex"].parent / figure).read_bytes().startswith(b"%PDF-") for figure in used)


def assert_balanced(text: str) -> None:
    """Groups and environments close in the order they open, and no special sign stands bare."""
    bare = re.sub(r"(?m)^%.*$", "", text)
    open_environments: list[str] = []
    for what, name in re.findall(r"\\(begin|end)\{(\w+)\}", bare):
        if what == "begin":
            open_environments.append(name)
        else:
            assert open_environments.pop() == name
    assert open_environments == []
    signs = re.sub(r"\\[\\{}%&#_$]", "", bare)
    assert signs.count("{") == signs.count("}")
    assert signs.count("$") % 2 == 0 and "#" not in signs and "%" not in signs
    outside = re.sub(r"\$[^$]*\$", "", signs)
    assert "_" not in re.sub(r"\\(?:hotlapdir figures/|input\{)[^}]*", "", outside) and "^" not in outside


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    """Every form of a report whose names, notes and settings are made of signs that formats take for their own."""
    pytest.importorskip("typst")
    root = tmp_path_factory.mktemp("hostile")
    record = fake_records.gpu_bench()
    record = dataclasses.replace(
        record, name=EVIL, notes=[EVIL], command=["hotlap", EVIL], config={**record.config, "target": EVIL, EVIL: EVIL},
        arms=[dataclasses.replace(a, notes=[EVIL]) for a in record.arms], extra={}, measurements=[], telemetry=[],
    )  # fmt: skip
    record = stored(record, root / "evil")
    return write_report([record], root / "r", tuple(formats.WRITERS), title=EVIL, pdf_engine="typst")


def test_hostile_words_stay_words_in_every_form(hostile):
    for file in hostile["tex"].parent.glob("*.tex"):
        assert_balanced(file.read_text(encoding="utf-8"))
    assert r"\texttt{U+4E2D}" in hostile["tex"].read_text(encoding="utf-8"), "a sign without a letter is named"
    fenced = re.sub(r"(?s)```.*?```", "", hostile["md"].read_text(encoding="utf-8").replace("\\`", ""))
    text = re.sub(r"(`+)[^\n]*?\1", "", fenced)
    assert "\\<i\\>" in text and "<i>" not in text.replace("\\<", "")
    assert cells_of(hostile["notebook"], "code")[0]["execution_count"] == 1
    assert hostile["pdf"].read_bytes().startswith(b"%PDF-")


@pytest.mark.skipif(not shutil.which("pdflatex"), reason="no pdflatex here")
def test_sections_compile_when_a_document_takes_them_in(hostile):
    folder = hostile["md"].parent
    packages = r"\usepackage{graphicx,booktabs,longtable,array,xcolor}"
    (folder / "own.tex").write_text(
        rf"\documentclass{{article}}{packages}\begin{{document}}\input{{r-tex/run-1}}\end{{document}}", encoding="utf-8"
    )
    call = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "own.tex"]
    done = subprocess.run(call, cwd=folder, capture_output=True, text=True, errors="replace", timeout=200, check=False)
    assert done.returncode == 0, done.stdout[-1500:]
    assert (folder / "own.pdf").is_file()


@pytest.mark.skipif(not any(map(shutil.which, ENGINES)), reason="no LaTeX here")
def test_latex_sets_the_pages_where_it_is_installed(tmp_path):
    pytest.importorskip("typst")
    out = write_report([fake_records.doctor()], tmp_path / "r.pdf", ("pdf",), pdf_engine="latex")["pdf"]
    assert b"TeX" in out.read_bytes()


def test_a_latex_that_fails_is_told_and_typst_takes_its_place(tmp_path, monkeypatch):
    pytest.importorskip("typst")
    broken = tmp_path / "bin" / "latexmk"
    broken.parent.mkdir()
    broken.write_text("#!/bin/sh\necho '! LaTeX Error: File longtable.sty not found.'\nexit 12\n")
    broken.chmod(0o755)
    monkeypatch.setenv("PATH", str(broken.parent), prepend=os.pathsep)
    told = []
    out = write_report([fake_records.doctor()], tmp_path / "r.pdf", ("pdf",), emit=told.append)["pdf"]
    warnings = [event.text for event in told if event.kind == "warn"]
    assert len(warnings) == 1 and "longtable.sty not found" in warnings[0] and "typst instead" in warnings[0]
    assert out.read_bytes().startswith(b"%PDF-")
    with pytest.raises(EnvironmentUnusable, match=r"latexmk could not set the report: ! LaTeX Error: File longtable"):
        write_report([fake_records.doctor()], tmp_path / "r.pdf", ("pdf",), pdf_engine="latex")


def test_without_latex_typst_sets_the_pages(tmp_path, monkeypatch):
    pytest.importorskip("typst")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert write_report([fake_records.doctor()], tmp_path / "r", ("pdf",))["pdf"].read_bytes().startswith(b"%PDF-")
    with pytest.raises(EnvironmentUnusable, match=r"pdf_engine = 'latex', but none of latexmk, tectonic, pdflatex"):
        write_report([fake_records.doctor()], tmp_path / "r", ("pdf",), pdf_engine="latex")


def test_without_typst_pdf_and_tex_are_refused_before_anything_is_written(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "typst", None)
    for name in ("pdf", "tex"):
        with pytest.raises(EnvironmentUnusable, match=r"needs the package typst.*pip install 'hotlap\[report\]'"):
            write_report([fake_records.doctor()], tmp_path / "r", ("html", name))
    assert list(tmp_path.iterdir()) == []
    assert set(write_report([fake_records.doctor()], tmp_path / "r", ("html", "md"))) == {"html", "md"}


def test_the_notebook_was_run_and_draws_from_the_records(written):
    records, files = written
    code = cells_of(files["notebook"], "code")
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    drawn = [cell for cell in code if ".figure(" in cell["source"]]
    assert len(drawn) == len(named_figures(compose(records)))
    assert all(cell["outputs"][0]["data"]["image/svg+xml"].startswith("<svg") for cell in drawn)
    again = [cell for cell in code if "ratio_interval(before" in cell["source"]]
    bench = records[1]
    want = ratio_interval(bench.samples("cuda:fp32", "wall"), bench.samples("cuda:bf16+channels_last+compile", "wall"),
                          paired=True)  # fmt: skip
    assert again[0]["outputs"][-1]["data"]["text/plain"] == repr(want)
    assert "'cuda:tf32'" in again[1]["source"], "of the red bench, an arm that is right"


def test_a_notebook_whose_records_moved_says_which(written, tmp_path):
    first = cells_of(written[1]["notebook"], "code")[:1]
    with pytest.raises(EnvironmentUnusable, match=r"cells did not run: (?s:.*)no record at 'doctor/record.json'"):
        execute({"cells": first}, tmp_path)


def test_a_notebook_needs_records_on_disk(tmp_path):
    with pytest.raises(UsageError, match=r"records = \['doctor'\] are not on disk"):
        write_report([dataclasses.replace(fake_records.doctor(), path="")], tmp_path / "r", ("notebook",))


def test_cells_share_names_and_keep_what_they_print_and_end_with():
    cells = [{"cell_type": "code", "source": text} for text in ("x = 2\nprint('a', x)", "y = x + 1\ny", "", "x = 3")]
    made = run_cells({"cells": [{"cell_type": "markdown", "source": "words"}, *cells]})["cells"]
    assert made[0] == {"cell_type": "markdown", "source": "words"}
    assert made[1]["outputs"] == [{"output_type": "stream", "name": "stdout", "text": "a 2\n"}]
    assert made[2]["outputs"][0]["data"] == {"text/plain": "3"}
    assert made[3]["outputs"] == made[4]["outputs"] == []


def test_pieces_of_an_opened_report_are_found_by_name(written):
    page = open_report([written[0][1].path])
    assert page.figure("run-1", "Two clocks")._repr_svg_().startswith("<svg")
    assert "3.27x" in page.table("run-1", "Speed beside the baseline")._repr_markdown_()
    with pytest.raises(UnknownName, match=r"'run-1' has no figure 'Two clock'.*Did you mean 'Two clocks'"):
        page.figure("run-1", "Two clock")
    with pytest.raises(UnknownName, match=r"there is no part 'run-9'"):
        page.table("run-9", "Memory")
    with pytest.raises(UnknownName, match=r"'run-1' has no section 'Nosuch'"):
        page.table("run-1", "Nosuch")
    with pytest.raises(UnknownName, match=r"number = 7: section 'Speed beside the baseline' of 'run-1' has 1 tables"):
        page.table("run-1", "Speed beside the baseline", 7)


def test_a_record_without_samples_is_drawn_and_nothing_is_computed_from_it(hostile, tmp_path):
    assert not any("ratio_interval(before" in cell["source"] for cell in cells_of(hostile["notebook"], "code"))
    bare = fake_records.bench([("cpu", "baseline", 5.0, 1.0)], gpu=False, measurements=[], telemetry=[], verdict=None)
    text = write_report([bare], tmp_path / "r", ("md",))["md"].read_text(encoding="utf-8")
    assert "nothing was compared" in text and "cpu takes 5.0" in text
    assert f"Raw record: {bare.path}" in text and "with every sample" not in text


def test_a_notebook_of_processes_that_timed_nothing_computes_no_ratio(tmp_path):
    bench = fake_records.gpu_bench()
    empty = dataclasses.replace(bench, measurements=[dataclasses.replace(m, values=[]) for m in bench.measurements])
    files = write_report([stored(empty, tmp_path / "bench")], tmp_path / "r", ("notebook",))
    assert not any("ratio_interval(before" in cell["source"] for cell in cells_of(files["notebook"], "code"))


@pytest.mark.parametrize(
    ("out", "form", "alone", "want"),
    [
        ("r.html", "html", True, "r.html"), ("r.page", "html", True, "r.page"), ("r", "html", True, "r.html"),
        ("r.html", "pdf", False, "r.pdf"), ("v1.2", "md", False, "v1.2.md"), ("r.tex", "tex", True, "r-tex"),
        (".", "notebook", True, "report.ipynb"),
    ],
)  # fmt: skip
def test_where_a_form_is_put(tmp_path, monkeypatch, out, form, alone, want):
    monkeypatch.chdir(tmp_path)
    assert formats.place_of(Path(out), form, alone=alone) == Path(want)


def test_forms_and_engines_that_are_not_known(tmp_path):
    with pytest.raises(UnknownName, match=r"unknown format 'htm'.*Did you mean 'html'"):
        write_report([fake_records.doctor()], tmp_path / "r", ("htm",))
    with pytest.raises(UsageError, match=r"formats = \(\) names none"):
        write_report([fake_records.doctor()], tmp_path / "r", ())
    with pytest.raises(UsageError, match=r"records = \[\] holds nothing"):
        write_report([], tmp_path / "r")
    with pytest.raises(UnknownName, match=r"pdf_engine = 'word' is not known"):
        write_report([fake_records.doctor()], tmp_path / "r", ("pdf",), pdf_engine="word")
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match=r"cannot create '.*file'"):
        write_report([fake_records.gpu_bench()], tmp_path / "file" / "r", ("md",))
    with pytest.raises(RecordError, match="no run 'nosuch'"):
        report(ReportConfig(records=("nosuch",), formats=("md",), runs=tmp_path))


def test_the_command_prints_every_file(tmp_path, capsys):
    record = stored(fake_records.doctor(), tmp_path / "doctor")
    assert run(["report", record.path, "--format", "md,html", "--out", str(tmp_path / "r"), "--quiet"]) == 0
    assert capsys.readouterr().out.split() == [str(tmp_path / "r.md"), str(tmp_path / "r.html")]
    assert run(["report", record.path, "--format", "md", "--json", "--quiet"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["files"] == {"md": str(tmp_path / "doctor" / "report.md")} and told["report"] == told["files"]["md"]
