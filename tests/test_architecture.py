"""The house rules, read from the source itself: which room may import which, who owns what, how long is long."""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "hotlap"
LEVELS = (
    ("base",),
    ("device",),
    ("records",),
    ("kernels", "data"),
    ("workload",),
    ("measure",),
    ("engine",),
    ("segment", "sequence", "classify", "mesh", "splat"),
    ("tools", "bridges"),
    ("api", "cli", "web"),
)
RANK = {room: rank for rank, rooms in enumerate(LEVELS) for room in rooms}
SAME_ROOM = {"targets": "workload"}
DOORS = ("__init__", "__main__")
OWNERS = {
    "argparse": "cli",
    "fastapi": "web", "uvicorn": "web", "starlette": "web",
    "lightning": "bridges", "pytorch_lightning": "bridges", "torchmetrics": "bridges",
    "transformers": "bridges", "accelerate": "bridges",
    "triton": "kernels", "cuda": "kernels", "numba": "kernels", "cupy": "kernels",
}  # fmt: skip
MAX_FILE, MAX_FUNCTION, MAX_KERNEL = 450, 60, 120
DRAWERS = ("utils.py", "helpers.py", "util.py", "misc.py", "common.py")
COMPOSER = "lap"
SWITCHBOARDS = ("__init__", "targets", "measure/jobs", "cli/verbs")
"""Modules that may name code of rooms to their right by import path, as ``hotlap.engine.loader_job:measure_loader``."""
IMPORT_PATH = re.compile(r"(hotlap(?:\.\w+)+):(\w+)")


def room_of(parts: tuple[str, ...]) -> str:
    """The room of a module given as its path below the package, ``()`` being the package itself."""
    first = parts[0] if parts else "__init__"
    return SAME_ROOM.get(first, first)


def imports(tree: ast.AST, package: tuple[str, ...]) -> Iterator[tuple[int, str]]:
    """Every import anywhere in a file, as (line, dotted name); relative ones made absolute."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = list(package[: len(package) - node.level + 1]) if node.level else []
            stem = ".".join([*base, *([node.module] if node.module else [])])
            yield from ((node.lineno, f"{stem}.{alias.name}") for alias in node.names)


def import_paths(tree: ast.AST) -> Iterator[tuple[int, re.Match[str]]]:
    """Every text of a file that is an import path of ours, with its line."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            match = IMPORT_PATH.fullmatch(node.value)
            if match:
                yield node.lineno, match


def arrow_fault(module: tuple[str, ...], target: str, rooms: set[str]) -> str:
    """Why a module may not import ``target``; '' if it may."""
    parts = target.split(".")
    if parts[0] != "hotlap":
        owner = OWNERS.get(parts[0])
        return f"{parts[0]} belongs to {owner}/" if owner and room_of(module) != owner else ""
    mine = room_of(module)
    theirs = room_of(tuple(parts[1:2]))
    if theirs not in rooms or mine in DOORS:
        return ""  # the package itself, for its version; doors only hand names on
    if mine not in RANK or theirs not in RANK:
        return f"room {mine if mine not in RANK else theirs!r} has no place in the order"
    if mine == theirs:
        tools = [module[1], parts[2]] if mine == "tools" and len(module) > 1 and len(parts) > 2 else ["", ""]
        return f"tool {tools[0]} imports tool {tools[1]}" if tools[0] not in (tools[1], COMPOSER) else ""
    return "" if RANK[theirs] < RANK[mine] else f"{mine} may not import {theirs}"


def size_faults(tree: ast.AST, lines: int, where: str, in_kernels: bool) -> Iterator[tuple[int, str]]:
    """Files and functions that are too long, with by how much, to show the worst first."""
    if lines > MAX_FILE:
        yield lines - MAX_FILE, f"{where}: {lines} lines, at most {MAX_FILE}"
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            length = (node.end_lineno or 0) - node.lineno + 1
            most = MAX_KERNEL if in_kernels and node.name.endswith("_kernel") else MAX_FUNCTION
            if length > most:
                yield length - most, f"{where}:{node.lineno}: {node.name} has {length} lines, at most {most}"


def find_faults(source: Path) -> list[str]:
    """Every breach of the house rules under ``source``, the package's folder."""
    faults: list[str] = []
    sizes: list[tuple[int, str]] = []
    files = sorted(source.rglob("*.py"))
    rooms = {room_of(file.relative_to(source).with_suffix("").parts) for file in files} - set(DOORS)
    for file in files:
        where = str(file.relative_to(source))
        module = file.relative_to(source).with_suffix("").parts
        text = file.read_text(encoding="utf-8")
        tree = ast.parse(text)
        package = ("hotlap", *module[:-1])
        for line, target in imports(tree, package):
            why = arrow_fault(module, target, rooms)
            faults += [f"{where}:{line}: {why}"] if why else []
        if "/".join(module) not in SWITCHBOARDS:
            faults += [f"{where}:{line}: an import path outside the switchboards" for line, _ in import_paths(tree)]
        for node in ast.walk(tree):
            if isinstance(node, ast.ExceptHandler) and node.type is None:
                faults.append(f"{where}:{node.lineno}: bare except")
        if file.name in DRAWERS:
            faults.append(f"{where}: a drawer, not a name")
        sizes += size_faults(tree, len(text.splitlines()), where, module[0] == "kernels")
    return faults + [text for _, text in sorted(sizes, reverse=True)[:10]]


def test_the_house_keeps_its_rules():
    faults = find_faults(SOURCE)
    assert not faults, "\n" + "\n".join(faults)


def test_every_import_path_leads_somewhere():
    paths = [
        match
        for name in SWITCHBOARDS
        for _, match in import_paths(ast.parse((SOURCE / f"{name}.py").read_text(encoding="utf-8")))
    ]
    assert "hotlap.engine.loader_job:measure_loader" in [match[0] for match in paths]
    for match in paths:
        assert callable(getattr(importlib.import_module(match[1]), match[2])), match[0]


def test_every_room_has_its_place_in_the_order():
    there = {room_of(f.relative_to(SOURCE).with_suffix("").parts) for f in SOURCE.rglob("*.py")} - set(DOORS)
    assert there <= set(RANK)
    assert {"base", "device", "records", "measure", "tools", "cli"} <= there, "the walk saw the house"


def fake_house(folder: Path, files: dict[str, str]) -> Path:
    rooms = ("base/a", "device/a", "records/a", "data/a", "workload", "measure/a", "segment/a", "mesh/a", "cli/a",
             "tools/bench/run", "tools/tune/run", "tools/compare")  # fmt: skip
    for name, text in {**{f"{room}.py": "" for room in rooms}, **files}.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return folder


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("base/b.py", "import hotlap.device.a", "base/b.py:1: base may not import device"),
        ("base/b.py", "def f():\n    from hotlap.records import a", "base/b.py:2: base may not import records"),
        ("base/b.py", "from ..device import a", "base may not import device"),
        ("base/b.py", "from hotlap import device", "base may not import device"),
        ("data/b.py", "import hotlap.kernels.x\n", ""),
        ("measure/b.py", "from hotlap.tools.bench import run", "measure may not import tools"),
        ("workload.py", "from hotlap.measure import a", "workload may not import measure"),
        ("targets.py", "from hotlap.measure import a", "workload may not import measure"),
        ("targets.py", "from hotlap.workload import x", ""),
        ("segment/b.py", "from hotlap.mesh.a import x", "segment may not import mesh"),
        ("tools/bench/b.py", "from hotlap.segment.a import x", ""),
        ("tools/bench/b.py", "from hotlap.tools.tune.run import x", "tool bench imports tool tune"),
        ("tools/bench/b.py", "from hotlap.tools.bench.run import x", ""),
        ("tools/bench/b.py", "from . import run", ""),
        ("tools/bench/b.py", "from ..tune import run", "tool bench imports tool tune"),
        ("tools/compare.py", "from hotlap.tools import tune", "tool compare imports tool tune"),
        ("tools/lap/stages.py", "from hotlap.tools.tune.run import x", ""),
        ("tools/bench/b.py", "from hotlap.tools.lap.run import x", "tool bench imports tool lap"),
        ("tools/bench/b.py", "import argparse", "argparse belongs to cli/"),
        ("cli/b.py", "import argparse", ""),
        ("cli/b.py", "import uvicorn", "uvicorn belongs to web/"),
        ("measure/b.py", "def f():\n    import triton.language", "triton belongs to kernels/"),
        ("kernels/blend/triton.py", "def f():\n    import triton", ""),
        ("engine/b.py", "import lightning.pytorch", "lightning belongs to bridges/"),
        ("tools/bench/b.py", "from transformers import Trainer", "transformers belongs to bridges/"),
        ("bridges/b.py", "import lightning\nfrom hotlap.engine import exact", ""),
        ("bridges/b.py", "from hotlap.tools.bench.run import x", "bridges may not import tools"),
        ("device/b.py", "from cuda import nvrtc", "cuda belongs to kernels/"),
        ("device/b.py", "import torch.cuda", ""),
        ("records/b.py", "import hotlap\nfrom hotlap import __version__", ""),
        ("attic/b.py", "import hotlap.base.a", "room 'attic' has no place"),
        ("base/b.py", "try:\n    pass\nexcept:\n    pass", "base/b.py:3: bare except"),
        ("base/b.py", "x = 'hotlap.tools.bench.run:bench'", "base/b.py:1: an import path outside the switchboards"),
        ("measure/jobs.py", "x = 'hotlap.tools.bench.run:bench'", ""),
        ("base/utils.py", "", "a drawer"),
        ("base/b.py", "x = 1\n" * 451, "451 lines, at most 450"),
        ("base/b.py", "x = 1\n" * 450, ""),
        ("base/b.py", "def long():\n" + "    x = 1\n" * 60, "long has 61 lines, at most 60"),
        ("base/b.py", "def long_kernel():\n" + "    x = 1\n" * 60, "at most 60"),
        ("kernels/k/triton.py", "def long_kernel():\n" + "    x = 1\n" * 119, ""),
        ("kernels/k/triton.py", "def long_kernel():\n" + "    x = 1\n" * 120, "121 lines, at most 120"),
    ],
)  # fmt: skip
def test_each_rule_catches_its_breach_and_nothing_else(tmp_path, name, text, words):
    faults = find_faults(fake_house(tmp_path, {name: text}))
    if words:
        assert any(words in fault for fault in faults), faults
    else:
        assert faults == []


def test_the_worst_offender_comes_first(tmp_path):
    short, long = "def short():\n" + "    x = 1\n" * 61, "def long():\n" + "    x = 1\n" * 99
    faults = find_faults(fake_house(tmp_path, {"base/b.py": short, "base/c.py": long}))
    assert ["long" in faults[0], "short" in faults[1]] == [True, True]
