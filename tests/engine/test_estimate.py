"""Memory estimates: equal to what a real forward pass keeps, honest where shapes do not tell, clear when misused."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import hotlap
from hotlap.base.errors import TargetError, UsageError
from hotlap.device.seed import generator
from hotlap.engine.estimate import PRECISIONS, estimate_memory
from hotlap.targets import InputSpec, ModuleWorkload, load_target
from hotlap.workload import Workload


class Reader(nn.Module):
    """A small transformer over tokens."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(32, 2, 64, batch_first=True)
        self.embed = nn.Embedding(50, 32)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(32, 50)

    def forward(self, tokens):
        return self.head(self.encoder(self.embed(tokens)))


def resnet():
    return pytest.importorskip("torchvision").models.resnet18(num_classes=7)


def gru():
    return nn.GRU(8, 16, 2, batch_first=True)


def lstm():
    return nn.LSTM(8, 64, batch_first=True)


MODELS = {
    "resnet18": (resnet, "3x32x32"),
    "transformer": (Reader, "12:int64:50"),
    "gru": (gru, "6x8"),
    "lstm": (lstm, "32x8"),
}


@pytest.fixture(autouse=True)
def _one_thread():
    """Threads that wait for each other on a busy machine would take most of the time."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def make(name):
    if name == "unet":
        return load_target("unet", {"width": 4, "size": 32})
    if name == "bilstm":
        return load_target("bilstm", {"hidden": 16, "length": 32, "embedding": 8})
    factory, spec = MODELS[name]
    return ModuleWorkload(name, factory, [InputSpec.parse(spec)])


def really_kept(workload, batch, dtype):
    """Bytes of distinct memory, other than the model's own, that a real forward pass on the CPU keeps."""
    torch.manual_seed(0)
    model = workload.build_model().train()
    made = workload.make_batch(batch, torch.device("cpu"), generator(0))
    kept = {}

    def keep(tensor):
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t), torch.autocast("cpu", dtype, dtype is not None):
        total, _ = workload.loss(model, made)
    for tensor in torch.utils._pytree.tree_leaves(made):
        keep(tensor)
    for own in (*model.parameters(), *model.buffers()):
        kept.pop(own.untyped_storage().data_ptr(), None)
    assert total.requires_grad
    return sum(storage.nbytes() for storage in kept.values())


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
@pytest.mark.parametrize("name", ["unet", "resnet18", "transformer", "gru"])
def test_activations_are_what_a_real_forward_pass_keeps(name, precision):
    workload = make(name)
    estimate = estimate_memory(workload, batch=5, precision=precision)
    truth = really_kept(workload, 5, PRECISIONS[precision])
    # The CPU's batch norm keeps its statistics in float32 under autocast, and the imitation says bfloat16.
    norms = [m for m in workload.build_model().modules() if isinstance(m, nn.BatchNorm2d)]
    unseen = sum(2 * 2 * m.num_features for m in norms) if precision == "bf16-mixed" else 0
    assert estimate.activations_bytes + unseen == truth
    assert estimate.method == "imitated"


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
@pytest.mark.parametrize("name", ["bilstm", "lstm"])
def test_what_an_lstm_keeps_on_a_cpu_is_extrapolated(name, precision):
    """oneDNN rounds each of its workspaces up to pages, so that a straight line is off by some pages."""
    workload = make(name)
    estimate = estimate_memory(workload, batch=12, precision=precision)
    assert estimate.method == "extrapolated"
    truth = really_kept(workload, 12, PRECISIONS[precision])
    assert estimate.activations_bytes == pytest.approx(truth, rel=0.02)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("name", ["unet", "transformer", "bilstm"])
def test_one_more_sample_adds_what_is_said(name, device):
    one, many = (estimate_memory(make(name), batch=batch, device=device) for batch in (3, 10))
    assert one.device == many.device == ("cpu" if (name, device) == ("bilstm", "cpu") else device)
    assert many.activations_bytes - one.activations_bytes == 7 * one.activations_bytes_per_sample > 0
    assert one.fixed_bytes == many.fixed_bytes


def test_a_card_is_imitated_with_its_own_kernels_whether_or_not_there_is_one():
    """Dropout on a card keeps a byte for each number, on a CPU a whole float."""
    workload = ModuleWorkload("drop", lambda: nn.Sequential(nn.Linear(8, 1000), nn.Dropout(0.5)), [InputSpec((8,))])
    host, card = (estimate_memory(workload, batch=16, device=device) for device in ("cpu", "cuda"))
    assert host.activations_bytes - card.activations_bytes == 16 * 1000 * (4 - 1)
    assert card.method == "imitated" and card.notes == ()


def test_autocast_copies_of_the_weights_are_counted_where_they_are_kept():
    """The second layer's weight is, for the gradient of its input; the first one's input needs no gradient."""

    def two_layers():
        return nn.Sequential(nn.Linear(10, 100, bias=False), nn.Linear(100, 1000, bias=False))

    workload = ModuleWorkload("wide", two_layers, [InputSpec((10,))])
    plain, mixed = (estimate_memory(workload, batch=1, precision=p, device="cuda") for p in ("32-true", "16-mixed"))
    assert any(owner.bytes == 2 * 100 * 1000 for owner in mixed.largest)
    assert not any(owner.bytes >= 2 * 100 * 1000 for owner in plain.largest)
    assert mixed.fixed_bytes - plain.fixed_bytes == 2 * 100 * 1000


class Tuned(ModuleWorkload):
    """A convolution and a norm with an optimizer of the test's choice."""

    def __init__(self, optimizer):
        super().__init__("tuned", lambda: nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)), [InputSpec((3, 8, 8))])
        self.make_optimizer = optimizer

    def optimizer(self, model, *, fused=None):
        return self.make_optimizer(model.parameters())


WEIGHTS = 4 * (3 * 8 * 9 + 8 + 8 + 8)


@pytest.mark.parametrize(
    ("optimizer", "state"),
    [
        (lambda p: torch.optim.SGD(p, lr=0.1), 0),
        (lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), WEIGHTS),
        (lambda p: torch.optim.Adam(p, fused=True), 2 * WEIGHTS),
        (lambda p: torch.optim.AdamW(p, foreach=True, amsgrad=True), 3 * WEIGHTS),
        (lambda p: torch.optim.RMSprop(p), WEIGHTS),
    ],
)
def test_the_optimizer_state_is_that_of_the_workloads_own_optimizer(device, optimizer, state):
    estimate = estimate_memory(Tuned(optimizer), batch=2, device=device.type)
    assert estimate.parameters_bytes == estimate.gradients_bytes == WEIGHTS
    assert estimate.buffers_bytes == 4 * (8 + 8) + 8
    counters = 4 * 4 if device.type == "cpu" and state else 0  # one number a tensor; on a card most stay on the host
    assert 0 <= estimate.optimizer_bytes - state <= max(counters, 4 * 4 if state else 0)
    assert estimate_memory(Tuned(optimizer), batch=2, optimizer=False).optimizer_bytes == 0


def test_an_optimizer_that_looks_at_numbers_is_stepped_for_real():
    """Adafactor keeps a row and a column for a matrix, and asks for the parameters' norm."""
    workload = ModuleWorkload("wide", lambda: nn.Linear(30, 20, bias=False), [InputSpec((30,))])
    workload.optimizer = lambda model, fused=None: torch.optim.Adafactor(model.parameters())
    estimate = estimate_memory(workload, batch=2)
    assert 4 * (30 + 20) <= estimate.optimizer_bytes <= 4 * (30 + 20 + 1)
    assert any("stepped for real" in note for note in estimate.notes)


class Looks(Workload):
    """Its forward pass depends on the numbers."""

    name = "looks"

    def build_model(self):
        return nn.Linear(4, 4)

    def make_batch(self, n, device, generator):
        return torch.randn(n, 4, generator=generator).to(device)

    def loss(self, model, batch):
        out = model(batch)
        return (out.square() if out.sum().item() > 0 else out.abs()).sum(), len(batch)


def test_a_model_that_looks_at_numbers_is_extrapolated_and_says_so():
    estimate = estimate_memory(Looks(), batch=9, device="cuda")
    assert estimate.method == "extrapolated" and estimate.device == "cpu"
    assert [note.split(" (")[0] for note in estimate.notes[:2]] == [
        "cuda could not be imitated", "cpu could not be imitated",
    ]  # fmt: skip
    assert "real forward passes of 4 and 8 samples" in estimate.notes[-1]
    assert estimate.activations_bytes == really_kept(Looks(), 9, None)


def test_shared_weights_count_once_and_frozen_ones_have_no_gradient():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.out = nn.Embedding(20, 8), nn.Linear(8, 20, bias=False)
            self.out.weight = self.embed.weight
            self.frozen = nn.Linear(8, 8, bias=False).requires_grad_(False)

        def forward(self, x):
            return self.out(self.frozen(self.embed(x)))

    estimate = estimate_memory(ModuleWorkload("tied", Tied, [InputSpec((5,), "int64", 20)]), batch=2)
    assert estimate.parameters_bytes == 4 * (20 * 8 + 8 * 8)
    assert estimate.gradients_bytes == 4 * 20 * 8


def test_the_largest_names_module_shape_and_bytes():
    estimate = estimate_memory(make("unet"), batch=3)
    first = estimate.largest[0]
    assert (
        first.module.startswith("decoders.3") and first.shape == (3, 8, 32, 32) and first.bytes == 3 * 8 * 32 * 32 * 4
    )
    assert [owner.bytes for owner in estimate.largest] == sorted((o.bytes for o in estimate.largest), reverse=True)
    told = str(estimate)
    assert "decoders.3" in told and "a sample, batch 3, 32-true" in told


def test_parts_add_up():
    e = estimate_memory(make("unet"), batch=2)
    parts = e.parameters_bytes + e.gradients_bytes + e.optimizer_bytes + e.buffers_bytes + e.activations_bytes
    assert e.total_bytes == parts == e.fixed_bytes + 2 * e.activations_bytes_per_sample


def test_a_built_module_is_left_as_it_was():
    module = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)).eval()
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    state = torch.get_rng_state()
    estimate = hotlap.estimate_memory(module, batch=4, input="4")
    assert estimate.method == "imitated"
    assert not module.training and all(torch.equal(t, before[name]) for name, t in module.state_dict().items())
    assert torch.equal(torch.get_rng_state(), state)
    assert not torch.is_autocast_enabled("cuda") and not torch.is_autocast_enabled("cpu")


def test_switches_that_others_have_set_do_no_harm_and_stay(plain_float32):
    """torch refuses to read its old TF32 switch once convolutions and recurrent layers differ."""
    torch.backends.cudnn.rnn.fp32_precision = "tf32"
    estimate = estimate_memory(make("bilstm"), batch=2, device="cuda")
    assert estimate.method == "imitated" and estimate.device == "cuda"
    assert torch.backends.cudnn.enabled
    assert (torch.backends.cudnn.conv.fp32_precision, torch.backends.cudnn.rnn.fp32_precision) == ("ieee", "tf32")


def test_a_huge_model_takes_no_memory():
    """512 GiB of weights: only shapes are made."""
    wide = 1 << 18
    workload = ModuleWorkload("huge", lambda: nn.Linear(wide, wide, bias=False), [InputSpec((wide,))])
    estimate = estimate_memory(workload, batch=1 << 16, device="cuda")
    assert estimate.parameters_bytes == 4 * wide * wide
    assert estimate.optimizer_bytes == 8 * wide * wide


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"batch": 0}, r"batch = 0 is not valid\. Expected a whole number from 1"),
        ({"batch": 2, "precision": "bf16-mixd"}, r"precision = 'bf16-mixd' is not known\. Did you mean 'bf16-mixed'"),
        ({"batch": 2, "device": "tpu"}, r"device = 'tpu' cannot be imitated\. Expected cpu or cuda"),
    ],
)
def test_wrong_settings_are_named(settings, words):
    with pytest.raises(UsageError, match=words):
        hotlap.estimate_memory("unet", **settings)


def test_a_model_that_fails_says_where():
    workload = ModuleWorkload("askew", lambda: nn.Linear(4, 4), [InputSpec((5,))])
    with pytest.raises(TargetError, match=r"the loss of 'askew' failed at batch 4: RuntimeError: .*mat1 and mat2"):
        estimate_memory(workload, batch=3)


def test_a_loss_without_a_gradient_is_refused():
    workload = ModuleWorkload("frozen", lambda: nn.Linear(4, 4).requires_grad_(False), [InputSpec((4,))])
    with pytest.raises(TargetError, match="the loss of 'frozen' has no gradient"):
        estimate_memory(workload, batch=3)


def test_an_optimizer_that_needs_a_closure_is_named():
    workload = Tuned(lambda p: torch.optim.LBFGS(p))
    with pytest.raises(TargetError, match=r"the optimizer of 'tuned' cannot take a step: TypeError.*optimizer=False"):
        estimate_memory(workload, batch=2)


class Uneven(Looks):
    name = "uneven"

    def make_batch(self, n, device, generator):
        return [torch.randn(1, 4)] * n


def test_a_batch_whose_parts_change_is_refused():
    with pytest.raises(TargetError, match="a batch of 2 of 'uneven' has 2 parts, one of 3 has 3"):
        estimate_memory(Uneven(), batch=4)
