"""Bytecode is kept in the user's cache where it would otherwise be lost, and nowhere else."""

import py_compile
import subprocess
import sys

import pytest

from hotlap.base import bytecode


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package that stands in for torch, without bytecode."""
    folder = tmp_path / "site" / "torch"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("answer = 42\n")
    monkeypatch.setattr(bytecode, "torch_folder", lambda: folder)
    return folder


def test_where_python_may_not_write_it_the_cache_gets_it(package, tmp_path):
    environ = {"PYTHONDONTWRITEBYTECODE": "1", "XDG_CACHE_HOME": str(tmp_path / "cache")}
    kept = {**environ, **bytecode.keeping(environ)}
    code = f"import sys; sys.path.insert(0, {str(package.parent)!r}); import torch; print(torch.__cached__)"
    done = subprocess.run([sys.executable, "-c", code], env=kept, capture_output=True, text=True, check=True)
    assert done.stdout.startswith(str(tmp_path / "cache" / "hotlap" / "bytecode"))
    assert list((tmp_path / "cache").rglob("__init__.*.pyc"))
    assert not (package / "__pycache__").exists()


def test_what_is_kept_already_stays_where_it_is(package):
    assert bytecode.keeping({}) == {}, "python writes it beside the source by itself"
    assert bytecode.keeping({"PYTHONDONTWRITEBYTECODE": "1", "PYTHONPYCACHEPREFIX": "/elsewhere"}) == {}
    py_compile.compile(str(package / "__init__.py"))
    assert bytecode.keeping({"PYTHONDONTWRITEBYTECODE": "1"}) == {}


def test_without_torch_there_is_nothing_to_keep(monkeypatch):
    monkeypatch.setattr(bytecode, "torch_folder", lambda: None)
    assert bytecode.keeping({"PYTHONDONTWRITEBYTECODE": "1"}) == {}
