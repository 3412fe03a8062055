"""Bridges on a machine without the trainer they lead to."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest

from hotlap.base.errors import EnvironmentUnusable


@pytest.mark.parametrize(
    ("bridge", "package", "words"),
    [
        ("lightning", "lightning.pytorch", r"cannot import Lightning.*pip install 'hotlap\[lightning\]'"),
        ("huggingface", "transformers", r"cannot import transformers.*pip install 'hotlap\[huggingface\]'"),
    ],
)
def test_a_missing_trainer_is_named_with_its_remedy(monkeypatch, bridge, package, words):
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.delitem(sys.modules, f"hotlap.bridges.{bridge}", raising=False)
    with pytest.raises(EnvironmentUnusable, match=words):
        importlib.import_module(f"hotlap.bridges.{bridge}")


def test_nothing_else_imports_a_trainer():
    code = (
        "import sys, hotlap; hotlap.ExactStep, hotlap.sum_of_mean; "
        "import hotlap.api, hotlap.bridges.passes, hotlap.bridges.record; "
        "print([m for m in ('lightning', 'transformers', 'accelerate') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
