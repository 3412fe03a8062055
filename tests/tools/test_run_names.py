"""Every verb names a run after what was typed, whatever the workload calls itself, so that it is found again."""

from __future__ import annotations

import contextlib
import importlib
from pathlib import Path

import pytest

import hotlap
from hotlap.records.run import find_runs, load_record, resolve_run
from hotlap.tools.bench import run as bench_tool
from hotlap.tools.train import run as train_tool

OWN = """
import torch
from torch import nn

class Work:
    name, default_batch = "my wide net", 2

    def build_model(self):
        return nn.Linear(4, 3)

    def make_batch(self, n, device, generator):
        return (torch.randn(n, 4, generator=generator).to(device),)

    def loss(self, model, batch):
        return model(batch[0]).square().sum(), len(batch[0])

def make():
    return Work()
"""
NAMES = {
    "bench": "make",
    "train": "make",
    "tune": "make-tune",
    "loader": "make-loader",
    "profile": "make-profile",
    "export": "make-export",
    "lap": "make-lap",
}


@pytest.mark.parametrize("verb", NAMES)
def test_a_run_is_named_after_what_was_typed(verb, tmp_path, monkeypatch, jobs_in_process):
    (tmp_path / "own.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    begun = []

    def stop(*given):
        begun.append(given)
        raise KeyboardInterrupt

    monkeypatch.setattr(train_tool, "supervise", stop)
    profile_tool = importlib.import_module("hotlap.tools.profile.run")
    monkeypatch.setattr(profile_tool, "run_job", bench_tool.run_job)
    monkeypatch.setattr(profile_tool._Target, "find", stop)

    def listen(event):
        # Before its target is described, a tool only says that it loads it; a lap does not load it itself.
        if event.kind == "advance" and (jobs_in_process or verb == "lap"):
            stop(event)

    out = ["exported"] if verb == "export" else []
    with contextlib.suppress(KeyboardInterrupt):
        getattr(hotlap, verb)("own.py:make", *out, emit=listen)
    assert begun, "the run was stopped when it knew its target"
    (file,) = find_runs(Path("runs"))
    record = load_record(file)
    assert (record.kind, record.name, file.parent.parent.name) == (verb, NAMES[verb], NAMES[verb])
    assert resolve_run(NAMES[verb], Path("runs")) == file
