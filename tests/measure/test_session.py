"""One arm, built and ready: what a step does, and what two arms share."""

from __future__ import annotations

import contextlib
from typing import NamedTuple

import pytest
import torch
from torch import nn

from hotlap.base.errors import UsageError
from hotlap.measure.arms import ArmSpec, parse_arm
from hotlap.measure.session import (
    NUM_BATCHES,
    Session,
    as_double,
    gradients_by_name,
    map_tensors,
    zero_dropout,
)
from hotlap.targets import InputSpec, ModuleWorkload, load_target
from hotlap.workload import Workload


def mlp():
    return ModuleWorkload("mlp", lambda: nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)), [InputSpec((4,))])


def conv_net():
    return ModuleWorkload("conv", lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()), [InputSpec((3, 8, 8))])


def session(workload=None, arm="cpu", mode="train", batch=6, seed=0):
    return Session(workload or mlp(), parse_arm(arm), mode=mode, batch=batch, seed=seed)


def weights(made):
    return [p.detach().clone() for p in made.plain_model.parameters()]


def same(first, second):
    return all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_a_training_step_changes_every_weight_and_gives_its_loss(device):
    made = session(arm=device.type)
    before = weights(made)
    loss = made.step()
    assert loss.shape == () and loss.isfinite() and not loss.requires_grad
    assert not any(torch.equal(a, b) for a, b in zip(before, weights(made), strict=True))


def test_training_steps_learn(device):
    made = session(arm=device.type)
    losses = [float(made.step()) for _ in range(60)]
    assert sum(losses[-NUM_BATCHES:]) < sum(losses[:NUM_BATCHES])


def test_an_inference_step_changes_nothing_and_keeps_no_graph(device):
    made = session(arm=device.type, mode="infer")
    before = weights(made)
    out = made.step()
    assert out.shape == (6, 3) and not out.requires_grad
    assert same(before, weights(made))
    assert made.optimizer is None and not made.plain_model.training


@pytest.mark.parametrize("mode", ["train", "infer"])
def test_a_transfer_step_does_the_same_work_from_host_memory(device, mode):
    resident, copied = session(arm=device.type, mode=mode), session(arm=device.type, mode=mode)
    resident.step()
    copied.transfer_step()
    assert same(weights(resident), weights(copied))
    assert all(b[0].device.type == "cpu" for b in copied.host_batches)


def test_steps_take_different_inputs_in_turn():
    seen = []
    made = session(mode="infer")
    made.run = lambda batch: seen.append(batch[0])
    for _ in range(2 * NUM_BATCHES):
        made.step()
    assert len({id(x) for x in seen}) == NUM_BATCHES
    assert not torch.equal(seen[0], seen[1])
    assert seen[0] is seen[NUM_BATCHES]


def test_arms_of_one_seed_share_weights_and_inputs():
    one, two = session(arm="cpu"), session(arm="cpu:bf16+threads=1")
    assert same(weights(one), weights(two))
    assert all(torch.equal(a[0], b[0]) for a, b in zip(one.host_batches, two.host_batches, strict=True))
    other = session(seed=1)
    assert not same(weights(one), weights(other))
    assert not torch.equal(one.host_batches[0][0], other.host_batches[0][0])


def test_each_option_of_an_arm_takes_effect():
    out = session(arm="cpu:bf16", mode="infer").step()
    assert out.dtype == torch.bfloat16
    made = session(conv_net(), arm="cpu:channels_last", mode="infer")
    assert made.batches[0][0].is_contiguous(memory_format=torch.channels_last)
    assert made.plain_model[0].weight.is_contiguous(memory_format=torch.channels_last)
    assert made.place(made.host_batches[0])[0].is_contiguous(memory_format=torch.channels_last)
    session(arm="cpu:threads=1")
    assert torch.get_num_threads() == 1
    assert session(arm="cpu:fused").optimizer.defaults["fused"] is True
    assert session(arm="cpu").optimizer.defaults["fused"] is None


@pytest.mark.parametrize(
    "optimizer",
    [
        lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
        lambda model, fused=None: torch.optim.RMSprop(model.parameters(), lr=0.1),
    ],
    ids=["without the keyword", "that leaves it aside"],
)
def test_an_optimizer_need_not_be_fused_and_is_not_called_so(optimizer):
    workload = mlp()
    workload.optimizer = optimizer
    assert session(workload).step().isfinite()
    name = type(session(workload).optimizer).__name__
    with pytest.raises(UsageError, match=f"arm 'cpu:fused': fused would do nothing, for the {name} of 'mlp'"):
        session(workload, arm="cpu:fused")


def test_activate_puts_the_switches_of_the_arm_whose_turn_it_is_in_force(monkeypatch):
    one, two = session(arm="cpu:threads=1"), session(arm="cpu:threads=2")
    assert torch.get_num_threads() == 2
    one.activate()
    assert torch.get_num_threads() == 1
    two.activate()
    assert torch.get_num_threads() == 2


@pytest.mark.parametrize(("arm", "mode"), [("cpu:compile", None), ("cpu:compile=max-autotune", "max-autotune")])
def test_compile_hands_its_mode_on(monkeypatch, arm, mode):
    asked = []
    monkeypatch.setattr(torch, "compile", lambda model, **given: asked.append(given) or model)
    session(arm=arm)
    assert asked == [{"mode": mode, "dynamic": False}]


def test_worst_case_batches_are_used_where_memory_is_weighed():
    class Ragged(Workload):
        def build_model(self):
            return nn.Linear(1, 1)

        def make_batch(self, n, device, generator):
            return torch.zeros(n, 2, 1)

        def worst_case_batch(self, n, device, generator):
            return torch.zeros(n, 9, 1)

        def loss(self, model, batch):
            return model(batch).sum(), len(batch)

    usual = Session(Ragged(), ArmSpec(device="cpu"), mode="train", batch=2, seed=0)
    worst = Session(Ragged(), ArmSpec(device="cpu"), mode="train", batch=2, seed=0, worst_case=True)
    assert usual.batches[0].shape == (2, 2, 1)
    assert worst.batches[0].shape == (2, 9, 1)


def test_the_loss_is_the_mean_over_the_count_that_the_workload_gives():
    class Counted(Workload):
        def build_model(self):
            return nn.Linear(1, 1, bias=False)

        def make_batch(self, n, device, generator):
            return torch.ones(n, 1)

        def loss(self, model, batch):
            return model(batch).sum(), torch.tensor(2 * len(batch))

    made = Session(Counted(), ArmSpec(device="cpu"), mode="train", batch=4, seed=0)
    made.backward_on(made.batches[0])
    assert gradients_by_name(made.plain_model)["weight"].item() == pytest.approx(0.5)


def test_batches_of_any_structure_are_mapped():
    batch = {"x": torch.ones(2), "y": (torch.ones(1, dtype=torch.int64), ["text", torch.ones(3)])}
    doubled = as_double(batch)
    assert doubled["x"].dtype == doubled["y"][1][1].dtype == torch.float64
    assert doubled["y"][0].dtype == torch.int64 and doubled["y"][1][0] == "text"
    assert map_tensors(torch.ones(2), lambda t: t + 1).tolist() == [2, 2]


class Pair(NamedTuple):
    x: torch.Tensor
    y: torch.Tensor


@pytest.mark.parametrize(
    "kind", [tuple, list, lambda ones: Pair(*ones), lambda ones: dict(zip("yx", ones, strict=True))]
)
def test_a_batch_of_tensors_alone_keeps_its_kind_and_order(kind):
    batch = kind([torch.ones(2), torch.ones(3)])
    mapped = map_tensors(batch, lambda t: t + 1)
    assert type(mapped) is type(batch) and len(mapped) == 2
    values = mapped.values() if isinstance(mapped, dict) else mapped
    assert [value.tolist() for value in values] == [[2, 2], [2, 2, 2]]
    assert not isinstance(mapped, dict) or list(mapped) == ["y", "x"]


def test_dropout_is_switched_off_wherever_it_hides():
    model = nn.ModuleList([nn.Dropout(0.5), nn.Dropout2d(0.5), nn.AlphaDropout(0.5),
                           nn.LSTM(2, 2, 2, dropout=0.5), nn.MultiheadAttention(2, 1, dropout=0.5)])  # fmt: skip
    zero_dropout(model)
    assert [m.p for m in model[:3]] == [0, 0, 0]
    assert [model[3].dropout, model[4].dropout] == [0, 0]


class Volumes(Workload):
    name, summary = "volumes", "a convolution of volumes, and one of pictures"

    def build_model(self):
        flat = nn.Sequential(nn.Flatten(1, 2), nn.Conv2d(12, 2, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        return nn.Sequential(nn.Conv3d(2, 4, 3, padding=1), nn.BatchNorm3d(4), nn.MaxPool3d((2, 1, 1)), *flat)

    def make_batch(self, n, device, generator):
        return torch.randn(n, 2, 6, 5, 7, generator=generator).to(device), torch.ones(n, 2).to(device)

    def predict(self, model, batch):
        return model(batch[0])

    def loss(self, model, batch):
        return (self.predict(model, batch) - batch[1]).square().sum(), batch[0].shape[0]

    def optimizer(self, model, fused=None):
        return torch.optim.SGD(model.parameters(), lr=0.1, fused=fused)


def test_volumes_have_a_memory_format_of_their_own(device, plain_float32):
    plain, turned = (
        Session(Volumes(), parse_arm(f"{device.type}{more}"), mode="train", batch=3, seed=0)
        for more in ("", ":channels_last")
    )
    weight, flat = turned.plain_model[0].weight, turned.plain_model[4].weight
    assert weight.is_contiguous(memory_format=torch.channels_last_3d) and not weight.is_contiguous()
    assert flat.is_contiguous(memory_format=torch.channels_last)
    assert turned.batches[0][0].is_contiguous(memory_format=torch.channels_last_3d)
    for number in range(3):
        losses = [float(one.train_on(one.batches[number])) for one in (plain, turned)]
        assert losses[0] == pytest.approx(losses[1], rel=1e-4)


def test_kernels_are_used_where_a_layer_has_them_and_refused_where_none_does():
    workload = load_target("bilstm", {"hidden": 16, "length": 32, "embedding": 8, "dropout": 0.0})
    plain, kernels = (session(workload, arm, batch=4) for arm in ("cpu", "cpu:kernels"))
    assert kernels.plain_model.recurrence == "auto"
    torch.testing.assert_close(kernels.step(), plain.step(), rtol=1e-5, atol=0)
    with pytest.raises(UsageError, match="no layer of Sequential has a kernel"):
        session(arm="cpu:kernels")


def test_attention_is_held_to_one_implementation():
    class Attends(nn.Module):
        def __init__(self):
            super().__init__()
            self.lin = nn.Linear(8, 8)

        def forward(self, x):
            seen.append((torch.backends.cuda.math_sdp_enabled(), torch.backends.cuda.flash_sdp_enabled()))
            return nn.functional.scaled_dot_product_attention(x, x, self.lin(x))

    seen = []
    workload = ModuleWorkload("attends", Attends, [InputSpec((4, 8))])
    session(workload, "cpu:sdpa=math", "infer").step()
    session(workload, "cpu", "infer").step()
    assert seen == [(True, False), (True, True)]


def test_gradients_of_complex_weights_keep_their_imaginary_part():
    layer = nn.Linear(2, 1, bias=False, dtype=torch.complex64)
    layer.weight.grad = torch.tensor([[1 + 2j, 3 - 4j]])
    assert gradients_by_name(layer)["weight"].tolist() == [[[1.0, 2.0], [3.0, -4.0]]]


def test_what_overflowed_before_a_recording_leaves_the_loss_scale_alone(monkeypatch):
    """Else the gate takes the first replay for a step that did not count, and judges the gradients of the second."""

    class Recorded:
        def __init__(self, step, example, **_):
            made.scaler.scale(torch.ones(()))
            made.scaler.update(2.0)  # as after overflows of the warm-up
            self.step = step

        def __call__(self, batch):
            seen.append(made.scaler.get_scale())
            return self.step(batch)

    made, seen = session(), []
    made.spec = parse_arm("cuda:fp16+graph")
    made.scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
    monkeypatch.setattr("hotlap.measure.session.GraphedStep", Recorded)
    monkeypatch.setattr(made, "autocast", contextlib.nullcontext)
    made.step(), made.step()
    assert seen == [64.0, 64.0]
