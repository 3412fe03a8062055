"""The quick test: passes where training works, names the step where it does not, and never leaves with a traceback."""

from __future__ import annotations

import json

import pytest
import torch

import hotlap
from hotlap.base.errors import ConfigError, TargetError, UnknownName, WorkerDied
from hotlap.cli.main import run as run_cli
from hotlap.measure import quicktest as steps
from hotlap.measure.jobs import JOBS
from hotlap.records.codec import encode
from hotlap.records.run import load_record
from hotlap.tools import quicktest as tool
from hotlap.tools.quicktest import QuickTestConfig, quicktest

TARGETS = """
import os
import torch
from torch import nn
from hotlap import Workload

def mlp():
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3))

class Base(Workload):
    default_batch = 2
    def build_model(self):
        return mlp()
    def make_batch(self, n, device, generator):
        return torch.randn(n, 8, generator=generator)
    def loss(self, model, batch):
        return model(batch).square().sum(), len(batch)

class BadBuild(Base):
    def build_model(self):
        raise ValueError("no such backbone")

class BadWeights(Base):
    def build_model(self):
        model = mlp()
        with torch.no_grad():
            model[0].weight[0, 0] = float("nan")
        return model

class BadForward(Base):
    def loss(self, model, batch):
        raise ValueError("shapes do not match")

class NanLoss(Base):
    def loss(self, model, batch):
        total, count = super().loss(model, batch)
        return total * float("nan"), count

class TwoOptimizers(Base):
    def optimizer(self, model, *, fused=None):
        return [torch.optim.Adam(part.parameters()) for part in (model[0], model[2])]

class BadGradient(Base):
    def loss(self, model, batch):
        return (model(batch) * 0).abs().sqrt().sum(), len(batch)

class NoGradient(Base):
    def loss(self, model, batch):
        return (batch * torch.ones(8, requires_grad=True)).sum(), len(batch)

class NanLater(Base):
    "Its loss is lost once the parameters have moved."
    def build_model(self):
        model = super().build_model()
        self.first = model[0].weight.detach().clone()
        return model
    def loss(self, model, batch):
        total, count = super().loss(model, batch)
        moved = not torch.equal(self.first, model[0].weight.detach().cpu())
        return total * (float("nan") if moved else 1.0), count

class Still(Base):
    def optimizer(self, model, *, fused=None):
        return torch.optim.SGD(model.parameters(), lr=0.0)

class Dies(Base):
    def loss(self, model, batch):
        os._exit(3)

class TooWide(Base):
    def loss(self, model, batch):
        return model(batch[:, :5]).sum(), len(batch)  # torch raises, and here is why

class Full(Base):
    def loss(self, model, batch):
        torch.empty(2**60, dtype=torch.uint8)
"""
NAMES = ["device", "optimisations", "model", "forward", "backward", "training"]


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "nets.py").write_text(TARGETS)
    return tmp_path


@pytest.fixture
def in_process(monkeypatch):
    """Walks the steps in this process, through the same JSON, and puts the global switches back."""
    before = torch.get_num_threads(), torch.backends.cudnn.benchmark, steps.fp32_precision()

    def run(job, *, timeout_s, listen):
        return json.loads(json.dumps(encode(JOBS[job["job"]](json.loads(json.dumps(job)), listen)), allow_nan=False))

    monkeypatch.setattr(tool, "run_job", run)
    yield
    torch.set_num_threads(before[0])
    torch.backends.cudnn.benchmark = before[1]
    torch.backends.cuda.matmul.fp32_precision = before[2]["matmul"]
    torch.backends.cudnn.conv.fp32_precision = before[2]["conv"]
    torch.backends.cudnn.rnn.fp32_precision = before[2]["rnn"]


def walk(here, name, **settings):
    settings = {"device": "cpu", "steps": 3, "runs": here / "runs", **settings}
    return quicktest(QuickTestConfig(target=f"nets.py:{name}", **settings))


def statuses(record):
    assert [check.name for check in record.checks] == NAMES
    return [check.status for check in record.checks]


def test_a_small_unet_passes_from_the_command_line_in_a_fresh_process(here, capsys):
    assert run_cli(["quicktest", "--device", "cpu", "--steps", "4", "--json", "--quiet"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert [check["status"] for check in data["checks"]] == ["PASS"] * 6
    assert data["kind"] == "quicktest" and data["status"] == "complete"
    assert data["config"]["target"] == "unet" and data["config"]["workload"] == {"width": 8, "size": 64}
    assert all(check["data"]["memory"]["rss"] > 2**20 and check["seconds"] > 0 for check in data["checks"])
    observed = {check["name"]: check["observed"] for check in data["checks"]}
    assert "cpu (as asked)" in observed["device"]
    assert "487,307 parameters" in observed["model"] and "channels_last; batch 4" in observed["model"]
    assert "59 of 59 layer outputs in bfloat16" in observed["forward"]
    assert "82 gradients finite" in observed["backward"]
    assert "in 4 steps" in observed["training"] and "82 of 82 parameter tensors moved" in observed["training"]

    assert run_cli(["show", "latest"]) == 0
    shown = capsys.readouterr().out
    assert "All 6 steps passed" in shown and "RSS" in shown and "6 training" in shown


def test_a_plain_module_passes(here, in_process, device):
    record = walk(here, "mlp", device=device.type, input=("8",), steps=2)
    assert statuses(record) == ["PASS"] * 6
    assert record.verdict.exit_code == 0
    assert record.extra == {"batch": 4}
    memory = [check.data["memory"] for check in record.checks]
    assert all(("allocated" in m) == (device.type == "cuda") for m in memory)


def test_a_workload_that_asks_for_fewer_samples_gets_them(here, in_process):
    record = walk(here, "Base")
    assert record.extra == {"batch": 2}
    assert statuses(load_record(record.path)) == ["PASS"] * 6


@pytest.mark.parametrize(
    ("name", "step", "words", "fix"),
    [
        ("BadBuild", 3, "ValueError: no such backbone", "whole trace"),
        ("BadWeights", 3, "'0.weight' is not finite before any step", "sets its weights"),
        ("BadForward", 4, "ValueError: shapes do not match", "whole trace"),
        ("NanLoss", 4, "the loss of the first forward pass is nan", "log of 0"),
        ("Full", 4, "RuntimeError", "--batch smaller than 2"),
        ("TwoOptimizers", 5, "optimizer() of 'workload' gave a list, which has no 'zero_grad'", "own-loop.md"),
        ("BadGradient", 5, "the gradient of '0.weight' is not finite at any loss scale", "sqrt or norm of 0"),
        ("NoGradient", 5, "no parameter has a gradient", "depend on the model's parameters"),
        ("NanLater", 6, "the loss of training step 2 is nan", "log of 0"),
        ("Still", 6, "no parameter changed in 3 steps, 0 of them skipped", "learning rate"),
    ],
)
def test_the_step_that_fails_is_named_and_the_rest_is_skipped(here, in_process, name, step, words, fix):
    record = walk(here, name)
    assert statuses(record) == ["PASS"] * (step - 1) + ["FAIL"] + ["SKIP"] * (6 - step)
    failed = record.checks[step - 1]
    assert words in failed.observed and fix in failed.fix
    assert all(c.observed == f"because step {step} ({NAMES[step - 1]}) failed" for c in record.checks[step:])
    assert record.verdict.exit_code == 1
    assert record.verdict.headline.startswith(f"Step {step} of 6 ({NAMES[step - 1]}) failed")


def test_the_users_own_line_is_named_where_torch_raises(here, in_process):
    line = 1 + next(n for n, text in enumerate(TARGETS.splitlines()) if "here is why" in text)
    assert f"({here / 'nets.py'}:{line})" in walk(here, "TooWide").checks[3].observed


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a card")
def test_a_card_that_is_asked_for_and_not_there_ends_with_4(here, in_process, capsys):
    assert run_cli(["quicktest", "nets.py:Base", "--device", "cuda", "--quiet"]) == 4
    shown = " ".join(capsys.readouterr().out.split())
    assert "a CUDA device was asked for" in shown
    assert "--device cpu" in shown and "because step 1 (device) failed" in shown


def test_a_process_that_dies_fails_in_its_step(here):
    record = walk(here, "Dies")
    assert statuses(record) == ["PASS", "PASS", "PASS", "FAIL", "SKIP", "SKIP"]
    assert "ended with exit code 3" in record.checks[3].observed
    assert "195 parameters" in record.checks[2].observed
    assert record.verdict.exit_code == 1


def test_a_process_that_dies_before_its_first_step_is_no_fault_of_the_device(here, capsys):
    (here / "leaves.py").write_text("import os\nos._exit(7)\n")
    assert run_cli(["quicktest", "leaves.py:net", "--device", "cpu"]) == 4
    told = " ".join(capsys.readouterr().err.split())
    assert "for 'leaves.py:net' ended with exit code 7 and no answer, while the target was loaded" in told


def test_a_process_that_hangs_fails_in_its_step(here, monkeypatch):
    def hang(job, *, timeout_s, listen):
        listen("device: cpu", 1, 6)
        raise WorkerDied(f"stopped after timeout_s = {timeout_s:g}", remedy="Give it longer with --timeout-s")

    monkeypatch.setattr(tool, "run_job", hang)
    record = walk(here, "Base", timeout_s=7.0)
    assert statuses(record) == ["PASS", "FAIL", "SKIP", "SKIP", "SKIP", "SKIP"]
    assert record.checks[0].observed == "cpu"
    assert record.checks[1].observed == "stopped after timeout_s = 7" and "--timeout-s" in record.checks[1].fix
    assert record.verdict.exit_code == 1


def test_a_target_that_is_not_there_is_the_users_error(here, in_process, capsys):
    with pytest.raises(UnknownName, match=r"'nets\.py' has no 'Gone'"):
        walk(here, "Gone")
    with pytest.raises(TargetError, match="whose input is not known"):
        walk(here, "mlp")
    assert run_cli(["quicktest", "nosuch", "--quiet"]) == 2
    assert "unknown target 'nosuch'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"steps": 0}, "steps = 0 is too small"),
        ({"batch": -1}, "batch = -1 is too small"),
        ({"device": "tpu"}, "device = 'tpu' is not a device"),
        ({"timeout_s": 0.0}, "timeout_s = 0 is not valid"),
    ],
)
def test_wrong_settings_are_named(settings, words):
    with pytest.raises(ConfigError, match=words):
        QuickTestConfig(**settings)


def test_a_script_can_call_it_and_hears_each_step(here, in_process):
    heard = []
    record = hotlap.quicktest("nets.py:Base", device="cpu", steps=2, emit=heard.append)
    assert record.verdict.headline == "All 6 steps passed"
    assert [event.text.partition(":")[0] for event in heard if event.kind == "advance"] == NAMES


def test_what_the_user_says_wins_over_the_small_settings(here, capsys):
    assert run_cli(["quicktest", "unet", "--set", "workload.width=4", "--dry-run", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["config"]["workload"] == {"width": 4, "size": 64}
    assert data["sources"]["batch"] == "quicktest's own"
    assert run_cli(["quicktest", "bilstm", "--dry-run", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["config"]["workload"] == {}


def test_a_switch_that_does_not_hold_is_a_fault(monkeypatch, here, in_process):
    monkeypatch.setattr(steps, "set_fp32_precision", lambda mode: None)
    torch.backends.cuda.matmul.fp32_precision = "ieee"
    record = walk(here, "Base")
    assert statuses(record)[:3] == ["PASS", "FAIL", "SKIP"]
    assert "matmul float32 is 'ieee', set to 'tf32'" in record.checks[1].observed


def test_busy_cores_are_left_alone(monkeypatch):
    monkeypatch.setattr(steps.os, "getloadavg", lambda: (2.6, 0.0, 0.0))
    assert [steps.quiet_cores(usable) for usable in (16, 4, 2)] == [13, 1, 1]


def test_an_interrupted_walk_leaves_a_record(here, monkeypatch):
    def interrupt(job, **_):
        raise KeyboardInterrupt

    monkeypatch.setattr(tool, "run_job", interrupt)
    with pytest.raises(KeyboardInterrupt):
        walk(here, "Base")
    (file,) = (here / "runs").glob("*/*/record.json")
    assert load_record(file).status == "interrupted"
