"""Shared by all tests: the device a body runs on, and a machine kept quiet."""

from __future__ import annotations

import pytest


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest):
    """Runs a test body on the CPU, and again on a card where there is one."""
    import torch

    if request.param == "cuda" and not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    return torch.device(request.param)


@pytest.fixture(autouse=True)
def _own_folders(tmp_path, monkeypatch):
    """No test reads or writes the user's cache, or hears settings from the developer's shell."""
    import os

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    for name in list(os.environ):
        if name.startswith("HOTLAP_"):
            monkeypatch.delenv(name)


@pytest.fixture
def plain_float32():
    """Float32 without TF32 for the length of a test, so that devices differ by rounding alone."""
    import torch

    backends = (torch.backends.cuda.matmul, torch.backends.cudnn.conv, torch.backends.cudnn.rnn)
    before = [backend.fp32_precision for backend in backends]
    for backend in backends:
        backend.fp32_precision = "ieee"
    yield
    for backend, precision in zip(backends, before, strict=True):
        backend.fp32_precision = precision
