"""Choosing an implementation: the first that can run, or the one asked for and no other."""

from __future__ import annotations

import pytest

from hotlap.base.errors import KernelUnavailable, UnknownName
from hotlap.kernels.choose import Choice, choose

REASONS = {"cuda": lambda: "no CUDA device", "triton": lambda: "", "cpu": lambda: ""}


def test_auto_takes_the_first_that_can_run_and_keeps_the_reasons():
    assert choose(REASONS) == Choice(impl="triton", against={"cuda": "no CUDA device"})


def test_what_is_asked_for_is_taken():
    assert choose(REASONS, "cpu") == Choice(impl="cpu", against={})


def test_what_cannot_run_is_refused_and_not_replaced():
    message = r"impl='cuda' cannot run here \(cuda: no CUDA device\)\. Known: cuda, triton, cpu"
    with pytest.raises(KernelUnavailable, match=message):
        choose(REASONS, "cuda")


def test_an_unknown_name_gets_the_nearest():
    with pytest.raises(UnknownName, match=r"unknown impl 'cude'\. Did you mean 'cuda'"):
        choose(REASONS, "cude")


def test_auto_with_nothing_left_names_every_reason():
    message = r"impl='auto' finds nothing that can run here \(a: no a; b: no b\)"
    with pytest.raises(KernelUnavailable, match=message):
        choose({"a": lambda: "no a", "b": lambda: "no b"})


def test_what_is_not_needed_is_not_asked():
    assert choose({"cpu": lambda: "", "slow": lambda: pytest.fail("asked")}).impl == "cpu"
