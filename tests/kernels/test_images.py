"""What kernels for images share, and their Triton programs run by its interpreter, all in one process."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from hotlap.kernels.channel_pool.cases import SMALL as POOLED
from hotlap.kernels.enlarge.cases import SMALL as ENLARGED
from hotlap.kernels.images import why_not_triton
from hotlap.kernels.instance_norm.cases import SMALL as NORMED

FILES = ("test_channel_pool.py", "test_enlarge.py", "test_instance_norm.py")
BESIDES = 3 + 2 + 3
"""Tests of these files, beside their cases, in which Triton runs on the CPU."""


@pytest.mark.slow
def test_triton_matches_references_when_interpreted():
    """Triton looks at the variable when it is imported, and some other test may have imported it."""
    pytest.importorskip("triton")
    files = [str(Path(__file__).with_name(name)) for name in FILES]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *files, "-k", "triton and cpu"]
    environ = {**os.environ, "TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    count = len(POOLED) + len(ENLARGED) + len(NORMED) + BESIDES
    assert re.search(rf"{count} passed", done.stdout), done.stdout


def test_where_triton_cannot_run_it_says_why(monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    assert "the tensors are on cpu and TRITON_INTERPRET is not 1" in why_not_triton(torch.device("cpu"), torch.float32)
    assert "float64 is not among" in why_not_triton(torch.device("cuda"), torch.float64)
    monkeypatch.setattr("hotlap.kernels.images.find_spec", lambda name: None)
    assert why_not_triton(torch.device("cuda"), torch.float32) == "triton is not installed"
