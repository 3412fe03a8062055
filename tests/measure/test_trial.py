"""One trial, a target's fingerprint, and what they rest on: tails, recomputation, the layers that matter."""

from __future__ import annotations

import sys
import time

import pytest
import torch
from torch import nn

from hotlap.base.errors import TargetError, UsageError
from hotlap.measure.arms import parse_arm
from hotlap.measure.fingerprint import fingerprint, model_hash, signature
from hotlap.measure.jobs import timing
from hotlap.measure.nursery import COMPILERS, Nursery, can_fork
from hotlap.measure.process import quiet, run_job
from hotlap.measure.session import Session, gradients_by_name, has_attention
from hotlap.measure.timed import ArmTimer, Protocol
from hotlap.measure.trial import LONE, trial
from hotlap.records.codec import encode
from hotlap.targets import load_target
from hotlap.workload import Workload

NET = """
from torch import nn

def net(width=6):
    return nn.Sequential(nn.Linear(4, width), nn.Sequential(nn.Linear(width, width), nn.Tanh()), nn.Linear(width, 3))
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "net.py").write_text(NET)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def job(**changes):
    common = {"target": "net.py:net", "inputs": ["4"], "mode": "train", "seed": 0, "seconds": 0.01}
    return {**common, "warmup_seconds": 0.05, "arm": "cpu", "batch": 6, "tail": 0, **changes}


@pytest.mark.parametrize("mode", ["train", "infer"])
def test_a_trial_times_whole_steps_and_its_tail(folder, device, mode):
    found = trial(job(arm=device.type, mode=mode, tail=4), quiet)
    assert (found.arm, found.batch, found.tail_batch) == (device.type, 6, 4)
    assert 3 <= len(found.wall_ms) <= 5 and min(found.wall_ms) > 0
    assert len(found.interval_ms) >= len(found.wall_ms) and len(found.tail_ms) == 2
    assert (found.num_graphs, found.num_breaks, found.num_recompiles) == (0, 0, 0)
    size = found.memory.host_rss_bytes if device.type == "cpu" else found.memory.reserved_bytes
    assert size is not None and size >= 0


def test_steps_that_turn_slow_after_the_warm_up_do_not_stretch_a_trial(folder, monkeypatch):
    monkeypatch.setattr(ArmTimer, "warm_up", lambda self, protocol: setattr(self, "step_s", 1e-5))
    real = Session.step
    monkeypatch.setattr(Session, "step", lambda self: (time.sleep(0.01), real(self))[1])
    began = time.monotonic()
    found = trial(job(seconds=0.2), quiet)
    assert len(found.wall_ms) == 5 and min(found.wall_ms) > 10
    assert len(found.interval_ms) < 100 and time.monotonic() - began < 60, "20,000 steps were expected to fit"


class Shapes(Workload):
    """Remembers the batches it was asked for."""

    name = "shapes"

    def __init__(self):
        self.worst, self.steps = [], []

    def build_model(self):
        return nn.Linear(2, 2)

    def make_batch(self, n, device, generator):
        return torch.randn(n, 2, generator=generator).to(device)

    def worst_case_batch(self, n, device, generator):
        self.worst.append(n)
        return self.make_batch(n, device, generator)

    def loss(self, model, batch):
        self.steps.append((len(batch), model.training))
        return model(batch).square().sum(), len(batch)


def test_the_worst_case_is_what_is_run_and_the_optimizer_too(monkeypatch):
    workload = Shapes()
    monkeypatch.setattr("hotlap.measure.trial.load_target", lambda *_: workload)
    found = trial(job(batch=5, tail=2), quiet)
    assert set(workload.worst) == {5, 2} and found.tail_batch == 2
    assert (5, True) in workload.steps and workload.steps[-1] == (5, True), "a full step runs after the tail as well"


class Few(Shapes):
    """Has 7 samples, as data in memory that is sliced has."""

    most = 7

    def make_batch(self, n, device, generator):
        return super().make_batch(min(n, self.most), device, generator)


class Packed(Shapes):
    """A list of samples, each with as many rows as it likes: how many samples there are no dimension says."""

    def make_batch(self, n, device, generator):
        return [torch.randn(2 + n % 5, 2, generator=generator) for _ in range(n)]

    def predict(self, model, batch):
        return model(torch.cat(batch))

    def loss(self, model, batch):
        return self.predict(model, batch).square().sum(), len(batch)


@pytest.mark.parametrize("most", [7, 2])
def test_a_batch_without_the_samples_that_were_asked_for_is_refused(monkeypatch, most):
    """It would seem the faster the more are asked for, and the search would end at the largest size there is."""
    workload = Few()
    workload.most = most
    monkeypatch.setattr("hotlap.measure.trial.load_target", lambda *_: workload)
    assert trial(job(batch=most), quiet).wall_ms
    with pytest.raises(TargetError, match=rf"9 samples were asked, and make_batch\(\) gave {most}.*at most {most} "):
        trial(job(batch=9), quiet)


def test_a_bench_fails_an_arm_whose_batch_is_not_whole(monkeypatch):
    """Its rate, and how much faster it is than an arm of another batch, would count samples that there are not."""
    monkeypatch.setattr("hotlap.measure.jobs.load_target", lambda *_: Few())
    settled = Protocol(
        process=0, repeats=1, seconds=0.01, max_seconds=1, warmup_seconds=0.01, transfer=False, began_at=0.0
    )
    found = timing({**job(batch=7), "arms": ["cpu", "cpu:batch=9"], "protocol": encode(settled)}, quiet)
    assert {m.arm for m in found.measurements} == {"cpu"}
    [failed] = found.failures
    assert failed.arm == "cpu:batch=9" and failed.what.startswith("of 'shapes' 9 samples were asked, and make_batch()")


def test_samples_that_are_packed_in_another_way_are_not_counted(monkeypatch):
    monkeypatch.setattr("hotlap.measure.trial.load_target", lambda *_: Packed())
    assert trial(job(batch=9, mode="infer"), quiet).wall_ms


class Normed(Shapes):
    def build_model(self):
        return nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))


def test_a_lone_sample_that_a_norm_refuses_is_told_and_does_not_fail_a_batch_of_two(monkeypatch):
    workload = Normed()
    monkeypatch.setattr("hotlap.measure.trial.load_target", lambda *_: workload)
    found = trial(job(batch=2, tail=1), quiet)
    assert found.tail_ms == [] and LONE in found.notes and found.wall_ms
    assert workload.steps[-2:] == [(1, True), (2, True)], "a full step runs after it as well"
    assert LONE not in trial(job(batch=5, tail=3), quiet).notes
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        trial(job(batch=1, tail=1), quiet)


class Overflows(Shapes):
    """Sums over the batch, in numbers that end at 240: the last run must look, for the gate's batch is small."""

    def predict(self, model, batch):
        total = torch.full((1,), 60.0) * len(batch)
        return model(batch) + torch.where(total > 240.0, torch.inf, 0.0)

    def loss(self, model, batch):
        return self.predict(model, batch).square().sum(), len(batch)


@pytest.mark.parametrize(("mode", "kind"), [("train", "loss"), ("infer", "output")])
def test_a_last_run_whose_answer_is_not_finite_at_its_batch_is_refused(monkeypatch, mode, kind):
    monkeypatch.setattr("hotlap.measure.trial.load_target", lambda *_: Overflows())
    assert trial(job(batch=4, tail=2, mode=mode), quiet).tail_batch == 2
    size = "1 of 1 number" if mode == "train" else "10 of 10 numbers"
    with pytest.raises(TargetError, match=f"the {kind} of arm 'cpu' at batch 5 is not finite, in {size}"):
        trial(job(batch=5, tail=3, mode=mode), quiet)


COMPILED = """
import torch
from torch import nn

class Fine(nn.Linear):
    pass

class Breaks(nn.Linear):
    def forward(self, x):
        print(end="")
        return super().forward(x)

class Again(nn.Linear):
    count = 0

    def forward(self, x):
        self.count += 1
        return super().forward(x) * (1 if self.count < 50 else 1.0)

class GivesUp(nn.Linear):
    def forward(self, x):
        if torch.compiler.is_compiling():
            raise RuntimeError("not this one")
        return super().forward(x)
"""


@pytest.mark.parametrize(
    ("name", "compiles", "breaks", "again"),
    [
        ("Fine", True, False, False),
        ("Breaks", True, True, False),
        ("Again", True, False, True),
        ("GivesUp", False, False, False),
    ],
)
def test_what_the_compiler_does_is_counted(folder, monkeypatch, name, compiles, breaks, again):
    (folder / "compiled.py").write_text(COMPILED + f"\ndef net():\n    return {name}(4, 3)\n")
    real = torch.compile
    monkeypatch.setattr(torch, "compile", lambda model, **_: real(model, backend="eager", dynamic=False))
    found = trial(job(target="compiled.py:net", mode="infer", arm="cpu:compile", seconds=0.2), quiet)
    seen = (found.num_graphs > 0, found.num_breaks > 0, found.num_recompiles > 0)
    assert seen == (compiles, breaks, again)


@pytest.mark.slow
@pytest.mark.skipif(not can_fork(), reason="fresh processes only")
def test_the_last_run_in_a_fresh_process_counts_the_memory_that_a_forked_trial_does(folder):
    """Modules that torch imports late were a hundred megabytes, and stood in the curve as what a batch takes."""
    with Nursery(COMPILERS) as nursery:
        forked = run_job({"job": "trial", **job()}, timeout_s=120.0, nursery=nursery)
        assert not nursery.notes
    fresh = run_job({"job": "trial", **job()}, timeout_s=120.0)
    grown = [answer["memory"]["host_rss_bytes"] for answer in (forked, fresh)]
    assert abs(grown[1] - grown[0]) < 64 * 2**20, "what code and allocator take once more is less than this"


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("mode", ["train", "infer"])
def test_a_recorded_arm_survives_its_tail(folder, mode):
    found = trial(job(arm="cuda:graph", mode=mode, tail=4), quiet)
    assert len(found.tail_ms) == 2 and found.wall_ms


def test_a_fingerprint_knows_the_model_the_input_and_the_machine(folder):
    key = fingerprint({"target": "net.py:net", "inputs": ["4"], "options": {"width": 5}, "mode": "infer",
                       "device": "cpu"}, quiet)  # fmt: skip
    place = (folder / "net.py").resolve()
    assert (key.target, key.mode, key.options, key.inputs) == (f"{place}:net", "infer", {"width": 5}, ["4"])
    assert key.signature == "4:float32, 1:int64" and key.device == "cpu" and key.cores >= 1
    assert key.torch == torch.__version__ and key.device_name and key.memory_bytes > 2**28
    assert (key.driver, key.cuda, key.cudnn) == ("", "", ""), "a card's facts do not make a CPU's profile stale"


def test_a_fingerprint_is_the_same_however_the_file_is_spelt(folder):
    job = {"inputs": ["4"], "mode": "infer", "device": "cpu"}
    spelt = ("net.py:net", "./net.py:net", f"{folder / 'net.py'}:net")
    assert len({fingerprint({"target": target, **job}, quiet).digest() for target in spelt}) == 1


def hashed(**options):
    workload = load_target("net.py:net", options, ["4"])
    return model_hash("net.py:net", workload, workload.build_model())


def test_the_hash_follows_the_source_and_the_sizes(folder):
    first = hashed()
    assert hashed() == first
    assert hashed(width=7) != first
    (folder / "net.py").write_text(NET + "\n# a change\n")
    assert hashed() != first


def test_the_hash_does_not_follow_where_a_function_lies_that_a_layer_prints(folder):
    class Prints(nn.Module):
        def __init__(self):
            super().__init__()
            self.call = lambda x: x  # lies elsewhere for each layer, as it does in each process

        def extra_repr(self):
            return repr(self.call)

    workload, layers = load_target("net.py:net", {}, ["4"]), [Prints(), Prints()]
    assert str(layers[0]) != str(layers[1])
    first, second = (model_hash("net.py:net", workload, layer) for layer in layers)
    assert first == second


@pytest.fixture
def house(folder):
    """A package of the user's own, beside the target."""
    (folder / "house").mkdir()
    yield folder / "house"
    for name in [name for name in sys.modules if name.partition(".")[0] == "house"]:
        del sys.modules[name]


def test_the_hash_follows_functions_that_the_model_uses_and_not_what_it_does_not(folder, house):
    (house / "__init__.py").write_text("")
    (house / "ops.py").write_text("from house import deep\ndef act(x):\n    return deep.same(x)\n")
    (house / "deep.py").write_text("def same(x):\n    return x\n")
    (house / "other.py").write_text("def unused(x):\n    return x\n")
    (folder / "net.py").write_text("import json\nfrom house.ops import act\n" + NET)
    first = hashed()
    assert hashed() == first
    (house / "other.py").write_text("# a change\n")
    assert hashed() == first
    (house / "deep.py").write_text("def same(x):\n    return x + 0\n")
    assert hashed() != first


@pytest.mark.parametrize(
    "source", ["from house.sizes import DEPTH", "from house.sizes import *", "from house import DEPTH"]
)
def test_the_hash_follows_numbers_that_the_model_imports(folder, house, source):
    (house / "__init__.py").write_text("from .sizes import DEPTH\n")
    (house / "sizes.py").write_text("DEPTH = 2\n")
    (folder / "net.py").write_text(f"{source}\n{NET}")
    first = hashed()
    assert hashed() == first
    (house / "sizes.py").write_text("DEPTH = 20\n")
    assert hashed() != first


def test_the_signature_has_every_tensor_but_not_the_batch():
    class Two(Shapes):
        def make_batch(self, n, device, generator):
            return {"x": torch.zeros(n, 3, 8), "y": torch.zeros(n, dtype=torch.int64)}

    assert signature(Two()) == "3x8:float32, 1:int64"


def test_attention_is_seen_in_layers_and_in_source():
    class Own(nn.Module):
        def forward(self, q):
            return torch.nn.functional.scaled_dot_product_attention(q, q, q)

    assert has_attention(nn.Sequential(nn.MultiheadAttention(4, 2)))
    assert has_attention(nn.Sequential(Own()))
    assert not has_attention(nn.Sequential(nn.Linear(2, 2)))


def test_recomputation_gives_the_same_gradients(folder, device):
    found = {}
    for options in ("", "recompute"):
        workload = load_target("net.py:net", {}, ["4"])
        spec = parse_arm(device.type + (f":{options}" if options else ""))
        session = Session(workload, spec, mode="train", batch=5, seed=0)
        session.backward_on(session.batches[0])
        found[options] = gradients_by_name(session.plain_model)
    assert found[""].keys() == found["recompute"].keys()
    for name, want in found[""].items():
        torch.testing.assert_close(found["recompute"][name], want)


@pytest.mark.parametrize(("mode", "why"), [("infer", "only training keeps activations"), ("train", "has no blocks")])
def test_recomputation_that_would_do_nothing_is_refused(mode, why):
    with pytest.raises(UsageError, match=rf"arm 'cpu:recompute': recompute would do nothing, for .*{why}"):
        Session(Shapes(), parse_arm("cpu:recompute"), mode=mode, batch=2, seed=0)
