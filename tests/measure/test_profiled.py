"""One arm under torch.profiler: traces that can be read, marks of modules, lines that wait, and the slow-down."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

from hotlap.data.kineto import LOSS_MARK, MODULE_MARK, read_trace
from hotlap.device.kept_memory import can_keep_memory
from hotlap.measure.arms import parse_arm
from hotlap.measure.marks import WaitWatcher, marked_modules
from hotlap.measure.process import quiet
from hotlap.measure.profiled import _time_few, profile_arm
from hotlap.measure.session import Session
from hotlap.targets import InputSpec, ModuleWorkload

MODEL = """
from torch import nn

def net():
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 2))
"""


def job(tmp_path, device, **more):
    (tmp_path / "net.py").write_text(MODEL)
    arm = "cpu:threads=1" if device.type == "cpu" else "cuda"
    common = {"target": f"{tmp_path / 'net.py'}:net", "inputs": ["3x8x8"], "arm": arm, "mode": "train", "batch": 2}
    return {**common, "seed": 0, "steps": 2, "folder": str(tmp_path), "stem": "net.arm", **more}


@pytest.fixture
def brief(monkeypatch):
    """A warm-up that takes no seconds; nothing here is about times."""
    import dataclasses

    from hotlap.measure import profiled

    monkeypatch.setattr(profiled, "WARM_UP", dataclasses.replace(profiled.WARM_UP, warmup_seconds=0.0))


def test_steps_with_few_samples_tell_the_host_s_time_and_nothing_where_a_model_refuses_them(device):
    class Picky(nn.Module):
        def __init__(self, least):
            super().__init__()
            self.layer, self.least = nn.Linear(4, 3), least

        def forward(self, x):
            if len(x) < self.least:
                raise ValueError("too few")
            return self.layer(x)

    for least, number in ((1, 5), (3, 0)):
        workload = ModuleWorkload("w", lambda least=least: Picky(least), [InputSpec((4,))])
        session = Session(workload, parse_arm(device.type), mode="train", batch=8, seed=0)
        wall, alone = _time_few(session, 2)
        assert len(wall) == number and all(ms > 0 for ms in wall)
        assert len(alone) == (3 if number and device.type == "cuda" else 0) and all(ms > 0 for ms in alone)
        session.step()


def test_a_profile_leaves_two_traces_and_the_step_without_the_profiler(tmp_path, device, brief):
    found = profile_arm(job(tmp_path, device), quiet)
    lean, rich = read_trace(found.trace), read_trace(found.detail)
    assert found.trace.endswith("net.arm.pt.trace.json.gz")
    assert (len(lean.memory), len(lean.python)) == (0, 0), "what slows a step is not in the trace for times"
    assert len(rich.memory) > 0 and len(rich.python) > 0
    assert lean.rank == 0 and lean.world_size == 1
    names = lean.names_of(lean.notes)
    assert sum(name.startswith("ProfilerStep#") for name in names) == 2
    assert sum(name == f"{MODULE_MARK}0 (Conv2d)" for name in names) == 2
    assert sum(name == LOSS_MARK for name in names) == 2
    assert bool(len(lean.device)) == (device.type == "cuda")
    assert all(value > 0 for value in found.step_ms) and found.traced_ms > 0 and found.detail_ms > 0
    assert bool(found.device_ms) == bool(found.host_ms) == (device.type == "cuda")
    assert found.system_ms >= 0 and found.num_pages >= 0 and found.can_keep_memory == can_keep_memory()
    assert (found.num_weights, found.num_weight_tensors) == (4 * 27 + 4 + 144 * 2 + 2, 4)
    # Two samples: the convolution's 36 positions of 4x27 weights and the layer's 144x2, forward and for the weights;
    # the layer also for its input.
    assert found.flops == 2 * 2 * (2 * 36 * 108 + 3 * 288)
    assert found.has_convolutions and not found.has_kernels
    assert found.ceilings_key.endswith(f"torch-{torch.__version__}")


def test_a_forward_pass_is_profiled_without_a_loss(tmp_path, brief):
    found = profile_arm(job(tmp_path, torch.device("cpu"), mode="infer", detail=False), quiet)
    trace = read_trace(found.trace)
    assert found.detail == "" and found.detail_ms is None
    assert LOSS_MARK not in trace.names and f"{MODULE_MARK}3 (Linear)" in trace.names


def test_module_marks_go_away_again():
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    with marked_modules(model), profile(activities=[ProfilerActivity.CPU]) as inside:
        model(torch.ones(1, 2))
    with profile(activities=[ProfilerActivity.CPU]) as outside:
        model(torch.ones(1, 2))
    marks = [[e.key for e in p.key_averages() if e.key.startswith(MODULE_MARK)] for p in (inside, outside)]
    assert sorted(marks[0]) == [
        f"{MODULE_MARK}0 (Linear)",
        f"{MODULE_MARK}1 (ReLU)",
        f"{MODULE_MARK}model (Sequential)",
    ]
    assert marks[1] == []


def test_a_mark_is_closed_when_its_module_raises():
    class Broken(nn.Module):
        def forward(self, x):
            raise ValueError("broken")

    model = nn.Sequential(Broken())
    with marked_modules(model), profile(activities=[ProfilerActivity.CPU]) as tracer:
        with pytest.raises(ValueError, match="broken"):
            model(torch.ones(1))
        torch.ones(2).sum()
    spans = {e.name: (e.time_range.start, e.time_range.end) for e in tracer.events()}
    assert spans["aten::sum"][0] >= spans[f"{MODULE_MARK}0 (Broken)"][1]


def test_waits_are_counted_by_the_line_that_causes_them(device):
    x = torch.arange(4.0, device=device)
    watcher = WaitWatcher()
    with watcher:
        for _ in range(3):
            x.sum().item()
        if bool((x > 2).any()):
            x[x > 1].sum()
    found = {(Path(where).name, why.partition(" (")[0]): count for (where, why), count in watcher.found.items()}
    first = test_waits_are_counted_by_the_line_that_causes_them.__code__.co_firstlineno
    assert found == {
        (f"test_profiled.py:{first + 5}", "reads a number"): 3,
        (f"test_profiled.py:{first + 6}", "reads a number"): 1,
        (f"test_profiled.py:{first + 7}", "makes a result whose size depends on the values"): 1,
    }


def test_the_counters_of_an_optimizer_are_no_waits():
    model = nn.Linear(2, 2)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    watcher = WaitWatcher()
    model(torch.ones(1, 2)).sum().backward()
    with watcher:
        optimizer.step()
    assert not watcher.found


def test_a_copy_to_the_host_is_a_wait(device):
    watcher = WaitWatcher()
    with watcher:
        torch.ones(3, device=device).cpu()
    assert len(watcher.found) == (1 if device.type == "cuda" else 0)
