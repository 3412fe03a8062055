"""What is said when a user's model raises, while it is measured or trained."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from hotlap.base.errors import OutOfMemory, TargetError
from hotlap.base.raised import first_line, their_line
from hotlap.engine import child
from hotlap.measure import worker


def raised(call):
    try:
        call()
    except Exception as error:
        return error
    pytest.fail("nothing was raised")


def test_the_line_that_is_named_is_the_user_s_and_not_torch_s():
    error = raised(lambda: nn.Linear(3, 2)(torch.randn(1, 4)))
    assert __file__ in their_line(error)
    assert str(worker.explain(error, {"target": "mine.py:net"})).count(f"({__file__}:") == 1


@pytest.mark.parametrize(
    ("said", "line"),
    [
        ("one\ntwo", "one"),
        ("", "RuntimeError"),
        (
            "backend='inductor' raised:\nCppCompileError: C++ compile error\n\nSet X=1",
            "CppCompileError: C++ compile error",
        ),
        (
            "RuntimeError when making fake tensor call\n  Explanation: no fake impl\n  Hint: x",
            "Explanation: no fake impl",
        ),
    ],
)
def test_what_torch_says_beneath_a_heading_is_told(said, line):
    """Of a compilation that failed the first line alone does not tell why."""
    told = first_line(RuntimeError(said))
    assert told.endswith(line) and "Set X" not in told and "Hint" not in told and "two" not in told


def test_inputs_that_may_not_fit_are_asked_about():
    error = raised(lambda: nn.Embedding(9, 2)(torch.randn(1, 4)))
    told = worker.explain(error, {"target": "mine.py:net", "inputs": ["4", "3x8"]})
    assert isinstance(told, TargetError)
    for words in ("target 'mine.py:net' raised RuntimeError", "--input 4 --input 3x8", "128:int64:32000"):
        assert words in str(told)
    assert "--input" not in str(worker.explain(error, {"target": "unet"}))


@pytest.mark.parametrize(
    ("job", "words"),
    [
        ({"job": "trial", "batch": 32, "tail": 0}, "), with a batch of 32. "),
        ({"job": "trial", "batch": 32, "tail": 21}, "), with a batch of 32 and a ragged tail of 21. "),
        ({"job": "gate", "batch": 4}, "), with a batch of 4, the numeric gate's (bench and tune have --gate-batch). "),
        ({"job": "describe"}, "). Does --input 16 fit it"),
    ],
)
def test_the_batch_that_a_model_refused_is_named(job, words):
    """A model of windows by the eight runs at 16 samples, and not at the gate's 4; its input is none the worse."""
    error = raised(lambda: torch.randn(4, 16).view(-1, 8, 16))
    told = str(worker.explain(error, {"target": "mine.py:net", "inputs": ["16"], **job}))
    assert words in told


def test_a_single_value_for_a_batch_norm_is_told_with_what_helps():
    error = raised(lambda: nn.BatchNorm1d(2)(torch.randn(1, 2)))
    told = str(child.explain(error, "mine.py:net"))
    assert str(worker.explain(error, {"target": "mine.py:net", "inputs": ["2"]})) == told
    assert "'mine.py:net' has a BatchNorm" in told and "torch.Size([1, 2])" in told
    assert "a --batch that leaves no single sample" in told


def run_out():
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")


def test_memory_that_ran_out_elsewhere_is_an_out_of_memory():
    told = child.explain(raised(run_out), "unet")
    assert isinstance(told, OutOfMemory) and told.exit_code == 5
    assert "outside the training step of 'unet'" in str(told)
