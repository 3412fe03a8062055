"""The documents keep their word: README's blocks run, named paths exist, links lead somewhere.

A block that cannot run here has ``<!-- not run: reason -->`` on the line before it; one that may end with another exit
code than 0 has ``<!-- exits 0 or 3: reason -->``. Installation lines are not run, but their make targets must exist.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
RUNNABLE = ("bash", "python")
INSTALLATION = ("make", "git clone", "pip install", "python -m pip", "uv", "cd")
FOLDERS = ("src/", "tests/", "docs/", "benchmarks/", "results/", ".github/", ".ci/")
TOP_LEVEL = re.compile(r"Makefile|LICENSE|NOTICE|[A-Z_]+\.md|pyproject\.toml|constraints\.txt|\.gitignore")
FENCE = re.compile(r"^\s*(```+|~~~+)\s*([\w+-]*)")
SKIPPED = re.compile(r"<!--\s*not run:(.*?)-->")
EXITS = re.compile(r"<!--\s*exits ([\d or]+):(.*?)-->")
BLOCK_SECONDS = 240


@dataclass(frozen=True)
class Block:
    """One fenced block of a document."""

    line: int
    language: str
    code: str
    not_run: str | None = None
    """Why it is skipped; None if it is not."""
    exits: tuple[int, ...] = (0,)


def find_blocks(text: str) -> list[Block]:
    """The fenced blocks of a Markdown text, with what the line before each says about it."""
    found: list[Block] = []
    lines = text.splitlines()
    number = 0
    while number < len(lines):
        opened = FENCE.match(lines[number])
        if opened:
            end = number + 1
            while end < len(lines) and not lines[end].strip().startswith(opened[1]):
                end += 1
            before = lines[number - 1] if number else ""
            skipped, exits = SKIPPED.search(before), EXITS.search(before)
            found.append(
                Block(
                    line=number + 1,
                    language=opened[2],
                    code="\n".join(lines[number + 1 : end]) + "\n",
                    not_run=skipped[1].strip() if skipped else None,
                    exits=tuple(int(code) for code in exits[1].split(" or ")) if exits else (0,),
                )
            )
            number = end
        number += 1
    return found


def split_installation(code: str) -> tuple[list[str], str]:
    """The installation lines of a bash block, and the script that is left to run."""
    joined = code.replace("\\\n", " ")
    lines = joined.splitlines()
    special = [line.strip() for line in lines if _installs(line)]
    return special, "\n".join(line for line in lines if not _installs(line)).strip()


def _installs(line: str) -> bool:
    return any(re.match(rf"{re.escape(word)}(\s|$)", line.strip()) for word in INSTALLATION)


def make_targets(makefile: str) -> set[str]:
    return set(re.findall(r"^([A-Za-z][\w-]*):(?!=)", makefile, flags=re.MULTILINE))


def unknown_make_targets(line: str, known: set[str]) -> list[str]:
    """The targets that one command line asks of a Makefile without them."""
    words = [part.split() for part in re.split(r"&&|;", line.partition("#")[0]) if part.split()[:1] == ["make"]]
    wanted = [word for command in words for word in command[1:] if "=" not in word and not word.startswith("-")]
    return [word for word in wanted if word not in known]


@pytest.fixture(scope="module")
def stage(tmp_path_factory) -> Path:
    """A folder that looks like the repository from inside, in which blocks run one after another."""
    folder = tmp_path_factory.mktemp("stage")
    for entry in ROOT.iterdir():
        if not entry.name.startswith(".") and entry.name not in ("runs", "carry", "dist"):
            (folder / entry.name).symlink_to(entry)
    shims = tmp_path_factory.mktemp("bin")
    for name, command in (("hotlap", "-m hotlap"), ("python", "")):
        shim = shims / name
        shim.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {command} "$@"\n')
        shim.chmod(0o755)
    (folder / ".shims").symlink_to(shims)
    return folder


def run_block(block: Block, stage: Path, known_targets: set[str]) -> str:
    """What went wrong when a block was run as its reader would; '' if nothing did."""
    if block.language == "bash":
        special, script = split_installation(block.code)
        unknown = [target for line in special for target in unknown_make_targets(line, known_targets)]
        if unknown:
            return f"the Makefile has no target {unknown[0]!r}"
        if not script:
            return ""
        command = ["bash", "-euo", "pipefail", "-c", script]
    else:
        file = stage / f"block_at_line_{block.line}.py"
        file.write_text(block.code)
        command = [sys.executable, file.name]
    paths = [str(stage / ".shims"), str(Path(sys.executable).parent), os.environ["PATH"]]
    python_path = os.pathsep.join(filter(None, [str(ROOT / "src"), os.environ.get("PYTHONPATH")]))
    environ = {**os.environ, "PATH": os.pathsep.join(paths), "PYTHONPATH": python_path}
    try:
        done = subprocess.run(
            command, cwd=stage, env=environ, capture_output=True, text=True, timeout=BLOCK_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return f"still running after {BLOCK_SECONDS} s"
    if done.returncode in block.exits:
        return ""
    return f"exit code {done.returncode}\n{done.stdout[-2000:]}{done.stderr[-2000:]}"


def check_blocks(text: str, stage: Path, known_targets: set[str]) -> tuple[list[str], int, int]:
    """The faults of a document's blocks, how many were run, and how many were skipped with a reason."""
    faults, num_run, num_skipped = [], 0, 0
    for block in find_blocks(text):
        if block.language not in RUNNABLE:
            continue
        if block.not_run is not None:
            num_skipped += 1
            faults += [] if block.not_run else [f"line {block.line}: 'not run' without a reason"]
            continue
        num_run += 1
        wrong = run_block(block, stage, known_targets)
        faults += [f"line {block.line}: {wrong}\n{block.code}"] if wrong else []
    return faults, num_run, num_skipped


def without_blocks(text: str) -> str:
    """The text with its fenced blocks blanked, line numbers kept."""
    kept, inside = [], ""
    for line in text.splitlines():
        fence = FENCE.match(line)
        if inside:
            inside = "" if line.strip().startswith(inside) else inside
            kept.append("")
        elif fence:
            inside = fence[1]
            kept.append("")
        else:
            kept.append(line)
    return "\n".join(kept)


def named_paths(text: str) -> Iterator[str]:
    """What stands in backticks and looks like a path of this repository."""
    for span in re.findall(r"(?<!`)`([^`\n]+)`(?!`)", without_blocks(text)):
        path = span.strip().partition("::")[0]
        path = re.sub(r":\d+$", "", path)
        if any(mark in path for mark in (" ", "<", ">", "{", "...", "…", "$")):
            continue
        if path.startswith(FOLDERS) or TOP_LEVEL.fullmatch(path):
            yield path


def dead_paths(text: str, root: Path) -> list[str]:
    return [p for p in named_paths(text) if not (any(root.glob(p)) if "*" in p else (root / p).exists())]


def slugs(text: str) -> set[str]:
    """The anchors of a document's headings, as forges make them."""
    heads = re.findall(r"^#+\s+(.*?)\s*#*$", without_blocks(text), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", re.sub(r"[`*]", "", head).lower()).strip().replace(" ", "-") for head in heads}


def dead_links(file: Path, root: Path) -> list[str]:
    """The relative links of a document that lead nowhere, anchors included."""
    text = file.read_text(encoding="utf-8")
    dead = []
    for link in re.findall(r"\]\(<?([^)\s>]+)>?[^)]*\)", without_blocks(text)):
        if re.match(r"[a-z][a-z0-9+.-]*:", link):
            continue
        path, _, anchor = link.partition("#")
        goal = file if not path else root / path.lstrip("/") if path.startswith("/") else file.parent / path
        wrong_anchor = anchor and goal.suffix == ".md" and goal.is_file() and anchor not in slugs(goal.read_text())
        if not goal.exists() or wrong_anchor:
            dead.append(link)
    return dead


def documents(root: Path) -> list[Path]:
    top = [root / name for name in ("README.md", "CONTRIBUTING.md") if (root / name).is_file()]
    return [*top, *sorted((root / "docs").rglob("*.md"))]


@pytest.mark.timeout(1200)
def test_every_block_of_the_readme_runs(stage):
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    faults, num_run, num_skipped = check_blocks(text, stage, make_targets((ROOT / "Makefile").read_text()))
    print(f"README.md: {num_run} blocks run, {num_skipped} skipped with a reason")
    assert not faults, "\n".join(faults)
    assert num_run + num_skipped == sum(b.language in RUNNABLE for b in find_blocks(text))


def test_every_path_that_a_document_names_exists():
    dead = {str(f.relative_to(ROOT)): dead_paths(f.read_text(encoding="utf-8"), ROOT) for f in documents(ROOT)}
    assert not {name: paths for name, paths in dead.items() if paths}
    assert "README.md" in dead


def test_every_relative_link_resolves():
    dead = {str(f.relative_to(ROOT)): dead_links(f, ROOT) for f in documents(ROOT)}
    assert not {name: links for name, links in dead.items() if links}


RICH = """# Demo

```bash
git clone https://example.org/demo && cd demo
make test   # all of it
hotlap --version
test -f README.md
echo kept > made.txt
```

```python
from pathlib import Path
import hotlap
assert Path("made.txt").read_text() == "kept\\n"
print(hotlap.__version__)
```

<!-- not run: needs a card -->
```bash
hotlap bench unet --arms cuda
```

<!-- exits 0 or 3: a quiet machine can tell, a noisy one cannot -->
```bash
exit 3
```

```text
not code at all
```
"""


def test_a_rich_document_runs_in_order_and_its_skips_are_counted(stage):
    assert check_blocks(RICH, stage, {"test"}) == ([], 4 - 1, 1)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("```bash\nfalse\necho on\n```\n", "line 1: exit code 1"),
        ("```bash\nfalse | cat\n```\n", "exit code 1"),
        ("```bash\necho $NO_SUCH_VARIABLE_HERE\n```\n", "NO_SUCH_VARIABLE_HERE"),
        ("x\n\n```bash\nmake tset\n```\n", "line 3: the Makefile has no target 'tset'"),
        ("```python\nraise SystemExit(4)\n```\n", "exit code 4"),
        ("<!-- not run: -->\n```bash\ntrue\n```\n", "without a reason"),
        ("<!-- exits 3: x -->\n```bash\ntrue\n```\n", "exit code 0"),
        ("```bash\nhotlap no-such-verb\n```\n", "unknown verb 'no-such-verb'"),
    ],
)
def test_a_document_that_does_not_keep_its_word_is_caught(stage, text, words):
    faults, *_ = check_blocks(text, stage, {"test"})
    assert len(faults) == 1
    assert words in faults[0]


def test_a_block_that_hangs_is_caught(stage, monkeypatch):
    monkeypatch.setattr(sys.modules[__name__], "BLOCK_SECONDS", 0.2)
    faults, *_ = check_blocks("```bash\nexec sleep 30\n```\n", stage, set())
    assert "still running after 0.2 s" in faults[0]


def test_installation_lines_are_told_from_others():
    code = "cd demo\npip install \\\n  hotlap\nmakeshift run\nuv pip install x\nhotlap list\nmake\n"
    special, script = split_installation(code)
    assert [line.split()[0] for line in special] == ["cd", "pip", "uv", "make"]
    assert script == "makeshift run\nhotlap list"


def test_make_targets_are_read_from_the_makefile():
    known = make_targets("BIN := x\nPY ?= y\n.PHONY: demo\ndemo: a b\n\trun: it\ntest-gpu:\n")
    assert known == {"demo", "test-gpu"}
    assert unknown_make_targets("make demo test PYTHON=x -j4 && make gone # make fun", known) == ["test", "gone"]


def test_dead_paths_are_found_and_live_ones_are_not(tmp_path):
    (tmp_path / "src/a").mkdir(parents=True)
    (tmp_path / "src/a/b.py").touch()
    (tmp_path / "Makefile").touch()
    text = "`src/a/b.py` `src/a/` `src/a/b.py:12` `src/*/b.py` `Makefile` `results/<card>.md` `a/b` `unet`\n"
    assert dead_paths(text, tmp_path) == []
    assert list(named_paths(text))[:2] == ["src/a/b.py", "src/a/"]
    text = "`src/gone.py` `tests/test_x.py::test_y` `docs/*.md` `LICENSE`\n```bash\n`src/in_a_block.py`\n```\n"
    assert dead_paths(text, tmp_path) == ["src/gone.py", "tests/test_x.py", "docs/*.md", "LICENSE"]


def test_dead_links_are_found_and_live_ones_are_not(tmp_path):
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/a.md").write_text("# The `first` part: why?\n[up](../README.md#top) [me](#the-first-part-why)")
    readme = tmp_path / "README.md"
    readme.write_text("# Top\n[a](docs/a.md) [b](docs/a.md#the-first-part-why 'title') [c](https://x.y/z) ![d](/docs)")
    assert dead_links(readme, tmp_path) == []
    assert dead_links(tmp_path / "docs/a.md", tmp_path) == []
    readme.write_text("[a](docs/b.md) [b](docs/a.md#gone) [c](#gone)\n```text\n[d](in/a/block)\n```\n")
    assert dead_links(readme, tmp_path) == ["docs/b.md", "docs/a.md#gone", "#gone"]
