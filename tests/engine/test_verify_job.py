"""The observer sees what a model is really given and gives, compiled or not; and what a training really uses."""

from __future__ import annotations

import pytest
import torch
from fake_recorder import use_fake_recorders
from torch import nn

from hotlap.base.errors import UsageError
from hotlap.base.settings import Layer, resolve
from hotlap.engine.config import TrainConfig
from hotlap.engine.graphs import GraphedPasses
from hotlap.engine.parts import allow_attention, allowed_attention
from hotlap.engine.verify_job import Observer, watch
from hotlap.measure.arms import parse_arm
from hotlap.measure.jobs import describe
from hotlap.measure.loaded_workload import LoadedWorkload
from hotlap.measure.process import quiet
from hotlap.records.codec import encode
from hotlap.segment import served

CONV = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, stubborn=False):
        super().__init__()
        self.conv, self.head, self.stubborn = nn.Conv2d(3, 8, 3), nn.Linear(8, 3), stubborn

    def forward(self, x):
        if self.stubborn:
            with torch.autocast(x.device.type, enabled=False):
                return self.head(self.conv(x).mean((2, 3)))
        return self.head(self.conv(x).mean((2, 3)))

def net(stubborn=False):
    return Net(stubborn)
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "conv.py").write_text(CONV)
    monkeypatch.chdir(tmp_path)
    threads = torch.get_num_threads()
    yield tmp_path
    torch.set_num_threads(threads)


def small():
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 2))


@pytest.mark.parametrize("compiled", [False, True])
def test_batch_format_layout_and_compilation_are_seen(device, compiled):
    observer = Observer(training=True)
    model = observer.attach(small().to(device, memory_format=torch.channels_last))
    run = torch.compile(model, backend="eager", dynamic=False) if compiled else model
    x = torch.randn(5, 3, 8, 8, device=device).contiguous(memory_format=torch.channels_last)
    with torch.autocast(device.type, dtype=torch.bfloat16):
        run(x)
        observer.count(x)
    seen = observer.seen(None)
    assert seen.batches[0] == 5 and seen.dtypes == ["bfloat16"]
    assert seen.channels_last is True and seen.compiled is compiled and seen.fused is None


def test_plain_float32_is_seen_and_evaluation_is_not():
    observer = Observer(training=True)
    model = observer.attach(small())

    def run(size):
        model(x := torch.randn(size, 3, 8, 8))
        observer.count(x)

    model.eval()
    run(2)
    assert observer.seen(None).batches == observer.seen(None).dtypes == []
    model.train()
    run(7)
    seen = observer.seen(torch.optim.AdamW(model.parameters(), fused=True))
    assert (seen.batches, seen.dtypes, seen.channels_last) == ([7], ["float32"], False)
    assert seen.fused is True


def train_job(**settings):
    given = {"target": "conv.py:net", "input": ("3x8x8",), "workers": 0, "device": "cpu", **settings}
    return {"mode": "train", "config": encode(resolve(TrainConfig, [Layer("test", given)]).config)}


def test_a_training_is_seen_as_it_is(folder):
    seen = watch(train_job(batch=6, precision="bf16-mixed", channels_last=True, fused=True, threads=1), quiet)
    assert set(seen.batches) == {6} and len(seen.batches) >= 3
    assert seen.dtypes == ["bfloat16"] and seen.channels_last is True
    assert (seen.fused, seen.compiled, seen.threads) == (True, False, 1)


@pytest.fixture
def recorded(monkeypatch):
    """Recorders that need no card, for whatever model a trainer builds."""
    recorders, attach = use_fake_recorders(monkeypatch), Observer.attach

    def attached(self, model):
        recorders.model = attach(self, model)
        return model

    monkeypatch.setattr(Observer, "attach", attached)
    return recorders


def test_replays_are_counted_though_hooks_do_not_see_them(folder, recorded):
    seen = watch(train_job(batch=6, precision="bf16-mixed", channels_last=True, graph=True), quiet)
    assert seen.num_replays == 3 and set(seen.batches) == {6} and not seen.why_not
    assert seen.dtypes == ["bfloat16"] and seen.channels_last is True
    assert watch(train_job(batch=6), quiet).num_replays == 0


def test_replays_are_waited_for_where_each_second_batch_is_a_ragged_one(folder, recorded):
    tiny = {"width": 2, "size": 16, "train_images": 10, "eval_images": 2}
    seen = watch(train_job(target="unet", input=(), workload=tiny, batch=6, graph=True), quiet)
    assert seen.num_replays >= 3 and set(seen.batches) == {6, 4}


def test_the_reason_for_no_replays_is_told(folder, recorded, monkeypatch):
    begin = GraphedPasses.__init__

    def refuse(self, *args, **given):
        begin(self, *args, **given)
        self.refuse("the model asks for it")

    monkeypatch.setattr(GraphedPasses, "__init__", refuse)
    seen = watch(train_job(batch=6, graph=True), quiet)
    assert seen.num_replays == 0 and seen.why_not == "the model asks for it"


def test_a_model_that_refuses_the_short_format_is_seen_to(folder):
    seen = watch(train_job(batch=4, precision="bf16-mixed", workload={"stubborn": True}), quiet)
    assert seen.dtypes == ["float32"]


def test_inference_is_seen_as_it_is(folder):
    job = {"mode": "infer", "target": "conv.py:net", "inputs": ["3x8x8"], "arm": "cpu:bf16", "batch": 3, "seed": 0}
    seen = watch(job, quiet)
    assert seen.batches == [3, 3, 3] and seen.dtypes == ["bfloat16"] and seen.fused is None


def test_attention_can_be_held_to_one_implementation():
    backends = torch.backends.cuda
    before = (backends.math_sdp_enabled(), backends.flash_sdp_enabled(), backends.mem_efficient_sdp_enabled(),
              backends.cudnn_sdp_enabled())  # fmt: skip
    try:
        allow_attention("math")
        assert backends.math_sdp_enabled() and not backends.flash_sdp_enabled()
        assert not backends.mem_efficient_sdp_enabled() and not backends.cudnn_sdp_enabled()
    finally:
        for switch, value in zip(("math", "flash", "mem_efficient", "cudnn"), before, strict=True):
            getattr(backends, f"enable_{switch}_sdp")(value)


ODD = '''
import torch
from torch import nn

class Spectrum(nn.Module):
    def forward(self, x):
        return torch.fft.rfft(x.float()).abs()

class Precise(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(4, 3).double()

    def forward(self, x):
        return self.head(x.double())

class Attentive(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True) for _ in range(2))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x.mean(1)

class Normed(nn.Module):
    """The first norm goes into the convolution, the last has none to go into, as in a DenseNet."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.BatchNorm2d(4), nn.Flatten())

    def forward(self, x):
        return self.layers(x)

class Kernelled(nn.Module):
    def __init__(self):
        super().__init__()
        self.head, self.scale = nn.Linear(4, 3), 1.0

    def use_kernels(self):
        self.scale = 2.0

    def forward(self, x):
        return self.head(x) * self.scale

class OfHuggingFace(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(4, 3)

    use_kernels = property(lambda self: False)  # a setting there, which no one else may set

    def forward(self, x):
        return self.head(x)
'''


@pytest.fixture
def odd(folder):
    (folder / "odd.py").write_text(ODD)
    kinds = {"math": "math", "flash": "flash", "efficient": "mem_efficient", "cudnn": "cudnn"}
    before = allowed_attention()
    yield folder
    for kind, word in kinds.items():
        getattr(torch.backends.cuda, f"enable_{word}_sdp")(kind in before)


@pytest.mark.parametrize(("arm", "format"), [("cpu", "float32"), ("cpu:bf16", "bfloat16")])
@pytest.mark.parametrize("name", ["Spectrum", "Precise"])
def test_where_no_layer_can_show_the_format_it_is_what_autocast_was_set_to(odd, name, arm, format):
    """A model without such layers, or in float64, which autocast leaves alone, is no proof against its consumer."""
    job = {"mode": "infer", "target": f"odd.py:{name}", "inputs": ["4"], "arm": arm, "batch": 3, "seed": 0}
    assert watch(job, quiet).dtypes == [format]


def test_a_setting_of_another_library_is_not_taken_for_kernels_of_ours(odd):
    common = {"target": "odd.py:OfHuggingFace", "seed": 0}
    assert not describe({"mode": "train", "inputs": ["4"], **common}, quiet).has_kernels
    assert watch({"mode": "infer", "inputs": ["4"], "arm": "cpu", "batch": 3, **common}, quiet).batches[-1] == 3
    assert watch(train_job(target="odd.py:OfHuggingFace", input=("4",), batch=4), quiet).num_kernels == 0


@pytest.mark.parametrize("settings", [{}, {"sdpa": "math", "recompute": "on"}])
def test_attention_and_recomputation_are_seen_in_a_training(odd, settings):
    seen = watch(train_job(target="odd.py:Attentive", input=("5x8",), batch=4, **settings), quiet)
    assert (seen.sdpa == ["math"]) == bool(settings) and (seen.num_recomputed > 0) == bool(settings)


def test_attention_is_seen_in_a_server(odd):
    job = {"mode": "infer", "target": "odd.py:Attentive", "inputs": ["5x8"], "arm": "cpu:sdpa=math", "batch": 3}
    assert watch({**job, "seed": 0}, quiet).sdpa == ["math"]


OWN_WAYS = """
import torch
from torch import nn

class Work:
    name, default_batch = "own", 4

    def build_model(self):
        return nn.Linear(4, 3)

    def make_batch(self, n, device, generator):
        return {"x": torch.randn(n, 5, 4, generator=generator).to(device)}

    def predict(self, model, batch):
        return model(batch["x"]).mean(1)

    def loss(self, model, batch):
        return self.predict(model, batch).float().square().sum(), len(batch["x"])

class TimeFirst(Work):
    def predict(self, model, batch):
        return model(batch["x"].transpose(0, 1)).mean(0)

class ManyRows(Work):
    def predict(self, model, batch):
        return model(batch["x"].flatten(0, 1)).view(-1, 5, 3).mean(1)

class TableFirst(Work):
    class Net(nn.Linear):
        def forward(self, table, x):
            return super().forward(x + table[0])

    def build_model(self):
        return self.Net(4, 3)

    def predict(self, model, batch):
        return model(torch.ones(7, 4), batch["x"]).mean(1)

class Halves(Work):
    def build_model(self):
        return nn.Linear(4, 3).bfloat16()

    def predict(self, model, batch):
        return model(batch["x"].bfloat16()).mean(1)

class Fused(Work):
    def optimizer(self, model):
        return torch.optim.AdamW(model.parameters(), fused=True)

class Sized:
    def __init__(self, x):
        self.x = x

class NoTensor(Work):
    class Net(nn.Linear):
        def forward(self, sized):
            return super().forward(sized.x)

    def build_model(self):
        return self.Net(4, 3)

    def predict(self, model, batch):
        return model(Sized(batch["x"])).mean(1)

class Part(Work):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.head = nn.Linear(4, 3)

    def build_model(self):
        return self.Net()

    def predict(self, model, batch):
        return model.head(batch["x"]).mean(1)
"""


SERVED = ("Work", "TimeFirst", "ManyRows", "TableFirst", "Halves", "Fused")


@pytest.mark.parametrize(
    ("mode", "name"),
    [*(("infer", name) for name in SERVED), *(("train", name) for name in (*SERVED, "NoTensor", "Part"))],
)
def test_an_honest_consumer_is_seen_to_be_one_whatever_its_model_takes(folder, name, mode):
    """Each is a workload by its shape alone; most do not give their model the samples first, in float32."""
    (folder / "own.py").write_text(OWN_WAYS)
    job = {"mode": "infer", "target": f"own.py:{name}", "arm": "cpu", "batch": 3}
    seen = watch(train_job(target=job["target"], input=(), batch=3) if mode == "train" else job, quiet)
    fused = None if mode == "infer" or name == "Fused" else False
    assert (set(seen.batches), seen.dtypes, seen.fused) == ({3}, ["float32"], fused)


@pytest.mark.parametrize(("built", "seen"), [(torch.float32, "bfloat16"), (torch.bfloat16, "float32")])
def test_a_format_that_the_consumer_gave_the_model_is_told_from_the_models_own(built, seen):
    observer = Observer(training=True)
    model = observer.attach(small().to(built)).bfloat16()
    model(x := torch.randn(2, 3, 8, 8, dtype=torch.bfloat16))
    observer.count(x)
    assert observer.seen(None).dtypes == [seen]


CELLS = {"model": "unet", "width": 2, "size": 64}


@pytest.mark.parametrize(("told", "ran"), [("cpu:bf16", "bfloat16"), ("cpu", "float32")])
def test_what_is_watched_is_what_a_target_of_its_own_kind_is_served_by(monkeypatch, told, ran):
    """Tiles through a workload of their own, which may be loaded as another arm than the profile's."""
    monkeypatch.setattr(served, "arm_on", lambda arm, device: parse_arm(told))
    seen = watch({"mode": "infer", "target": "cells", "options": CELLS, "arm": "cpu:bf16", "batch": 3}, quiet)
    assert seen.batches == [3, 3, 3] and ran in seen.dtypes


def test_a_target_that_is_served_without_arms_has_none_to_watch():
    with pytest.raises(UsageError, match="'hotlap serve splat' runs it in one way, whatever a profile says"):
        watch({"mode": "infer", "target": "splat", "arm": "cpu", "batch": 2}, quiet)


def test_a_target_that_is_loaded_in_a_way_of_its_own_cannot_be_watched(monkeypatch):
    class Own(served.SegmentServable):
        def load(self, device):
            return object()

    monkeypatch.setattr(served, "SegmentServable", Own)
    with pytest.raises(UsageError, match="'hotlap serve cells' loads it in a way of its own, which cannot be watched"):
        watch({"mode": "infer", "target": "cells", "options": CELLS, "arm": "cpu", "batch": 2}, quiet)


SELF_MADE = """
import torch
from torch import nn

class Net(nn.Sequential):
    def forward(self, x):
        return super().forward(x.contiguous(memory_format=torch.channels_last))

def own():
    return Net(nn.Conv2d(3, 8, 3), nn.Flatten(), nn.Linear(288, 3))

def plain():
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.Flatten(), nn.Linear(288, 3))
"""


@pytest.mark.parametrize("mode", ["train", "infer"])
@pytest.mark.parametrize(
    ("name", "laid_out", "seen"), [("own", False, None), ("own", True, True), ("plain", True, True)]
)
def test_a_layout_that_the_model_takes_by_itself_is_no_fault_of_its_consumer(folder, mode, name, laid_out, seen):
    (folder / "self_made.py").write_text(SELF_MADE)
    target = {"target": f"self_made.py:{name}"}
    job = {"mode": "infer", **target, "inputs": ["3x8x8"], "arm": "cpu" + ":channels_last" * laid_out, "batch": 3}
    job = train_job(**target, channels_last=laid_out, batch=3) if mode == "train" else job
    assert watch(job, quiet).channels_last is seen


def test_a_consumer_that_lays_out_what_it_should_not_is_caught(folder, monkeypatch):
    (folder / "self_made.py").write_text(SELF_MADE)
    build = LoadedWorkload.__init__
    wrong = {"cpu": "cpu:channels_last"}
    monkeypatch.setattr(
        LoadedWorkload, "__init__", lambda self, w, arm, rows: build(self, w, parse_arm(wrong[arm.name]), rows)
    )
    job = {"mode": "infer", "target": "self_made.py:plain", "inputs": ["3x8x8"], "arm": "cpu", "batch": 3}
    assert watch(job, quiet).channels_last is True


SHORT = """
import torch
from torch import nn

class Net(nn.Linear):
    def forward(self, x):
        if len(x) > 4:
            raise torch.OutOfMemoryError("out of memory, as far as a test goes")
        return super().forward(x)

def net():
    return Net(4, 3)
"""


@pytest.mark.parametrize("mode", ["train", "infer"])
def test_a_batch_that_does_not_fit_is_not_counted(folder, mode):
    (folder / "short.py").write_text(SHORT)
    job = {"mode": "infer", "target": "short.py:net", "inputs": ["4"], "arm": "cpu", "batch": 8}
    seen = watch(train_job(target="short.py:net", input=("4",), batch=8) if mode == "train" else job, quiet)
    assert set(seen.batches) == {4} and seen.micro == (4 if mode == "train" else None)


def test_a_batch_that_a_compiled_server_could_not_hold_is_not_counted(folder, monkeypatch):
    """Its first passes are kept, for hooks see nothing of later ones."""
    monkeypatch.setattr(torch, "compile", lambda model, **_: model)
    (folder / "short.py").write_text(SHORT)
    job = {"mode": "infer", "target": "short.py:net", "inputs": ["4"], "arm": "cpu:compile", "batch": 8}
    assert max(watch(job, quiet).batches) == 4


@pytest.mark.parametrize("kernels", [False, True])
def test_kernels_of_ours_are_seen(odd, kernels):
    seen = watch(train_job(target="odd.py:Kernelled", input=("4",), batch=4, kernels=kernels), quiet)
    assert (seen.num_kernels > 0) == kernels


@pytest.mark.parametrize(("arm", "count"), [("cpu", 0), ("cpu:folded", 1)])
def test_norms_that_are_gone_are_counted_though_others_stay(odd, arm, count):
    job = {"mode": "infer", "target": "odd.py:Normed", "inputs": ["3x8x8"], "arm": arm, "batch": 3, "seed": 0}
    assert watch(job, quiet).num_folded == count
