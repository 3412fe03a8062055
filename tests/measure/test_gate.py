"""The numeric gate: green for what is right, red for every planted fault."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from hotlap.measure.arms import parse_arm
from hotlap.measure.distances import relative_error
from hotlap.measure.gate import PLAIN, GateKeeper, rounded
from hotlap.measure.worker import explain
from hotlap.targets import InputSpec, ModuleWorkload
from hotlap.workload import Agreement


def in_autocast():
    return torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda")


class Faulty(nn.Module):
    """A layer in front of a model that does something wrong in its own way."""

    def __init__(self, inner, fault):
        super().__init__()
        self.inner, self.fault = inner, fault

    def forward(self, x):
        return self.fault(self.inner, x)


class ScaledBackward(torch.autograd.Function):
    """Right forwards; backwards half as much again."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return grad * 1.5


def mlp(dropout=0.0):
    return nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Dropout(dropout), nn.Linear(32, 5))


def conv_net():
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 3, padding=1), nn.Flatten(),
        nn.Linear(4 * 8 * 8, 5),
    )  # fmt: skip


def keeper(build, shape=(16,), mode="train", batch=4, kind=ModuleWorkload, card=None):
    return GateKeeper(kind("w", build, [InputSpec(shape)]), mode=mode, batch=batch, steps=3, seed=0, card=card)


def red(gate):
    return [check.name for check in gate.checks if not check.passed]


def test_every_step_is_a_sign_of_life():
    told = []
    workload = ModuleWorkload("w", mlp, [InputSpec((16,))])
    keeper = GateKeeper(workload, mode="train", batch=4, steps=3, seed=0, tell=lambda: told.append(1))
    assert len(told) == 2 * (1 + 3), "outputs and three steps, in float32 and in float64"
    keeper.judge(parse_arm("cpu:fused"))
    assert len(told) == 3 * (1 + 3)


@pytest.mark.parametrize("mode", ["train", "infer"])
@pytest.mark.parametrize(("build", "shape"), [(mlp, (16,)), (conv_net, (3, 8, 8))], ids=["mlp", "conv"])
@pytest.mark.parametrize("arm", ["cpu", "cpu:bf16", "cpu:channels_last", "cpu:fused", "cpu:threads=1"])
def test_right_answers_are_green(build, shape, arm, mode):
    gate = keeper(build, shape, mode).judge(parse_arm(arm))
    assert gate.passed, red(gate)
    assert gate.arm == arm
    points = ["gradient direction", "gradient size"] * (arm == "cpu:bf16")
    training = ["gradients", "worst gradient", *points, "loss trajectory"]
    names = ["outputs", "same class"] + (training if mode == "train" else [])
    assert [check.name for check in gate.checks] == names
    assert all(0 <= check.error <= check.allowed for check in gate.checks)
    assert "float64 on the CPU, batch 4" in gate.reference


def test_plain_float32_has_the_error_of_the_yardstick_and_more_than_none():
    gate = keeper(conv_net, (3, 8, 8)).judge(parse_arm("cpu"))
    assert 0 < gate.checks[0].error < 1e-5


def test_dropout_is_off_on_all_sides():
    assert keeper(lambda: mlp(0.5)).judge(parse_arm("cpu:bf16")).passed


def test_weights_are_those_of_the_seed_and_the_truth_is_double():
    made = keeper(mlp)
    assert made.truth.outputs.dtype == torch.float64
    assert made.truth.outputs.shape == (4, 5)
    assert not torch.equal(made.truth.outputs, made.yardstick.outputs)


@pytest.mark.parametrize(
    ("fault", "checks"),
    [
        (lambda inner, x: inner(x) * (1.2 if in_autocast() else 1.0), {"outputs"}),
        (
            lambda inner, x: inner(x) + (float("nan") if in_autocast() else 0.0),
            {"outputs", "gradients", "loss trajectory"},
        ),
        (lambda inner, x: inner(x) * (float("inf") if in_autocast() else 1.0), {"outputs"}),
        (lambda inner, x: inner(x).flip(1) if in_autocast() else inner(x), {"outputs", "same class"}),
        (lambda inner, x: ScaledBackward.apply(inner(x)) if in_autocast() else inner(x), {"gradients"}),
        (lambda inner, x: inner[3](inner[:3](x).detach()) if in_autocast() else inner(x), {"gradients"}),
        (lambda inner, x: inner(x)[:2] if in_autocast() else inner(x), {"outputs"}),
        (lambda inner, x: inner(x[:, torch.randperm(16)]) if in_autocast() else inner(x), {"outputs", "gradients"}),
    ],
    ids=["scaled", "nan", "inf", "flipped", "gradient", "cut", "shape", "shuffled"],
)
def test_a_fault_that_shows_only_in_half_precision_is_red_there_and_green_elsewhere(fault, checks):
    made = keeper(lambda: Faulty(mlp(), fault))
    assert made.judge(parse_arm("cpu")).passed
    gate = made.judge(parse_arm("cpu:bf16"))
    assert not gate.passed
    assert checks <= set(red(gate))


@pytest.mark.parametrize("number", [math.nan, math.inf])
@pytest.mark.parametrize("mode", ["train", "infer"])
def test_numbers_that_are_never_finite_are_red_for_nothing_was_compared(number, mode):
    gate = keeper(lambda: Faulty(mlp(), lambda inner, x: inner(x) * number), mode=mode).judge(parse_arm("cpu"))
    assert "outputs" in red(gate)
    assert all(math.isfinite(check.allowed) for check in gate.checks)
    assert "plain float32 is not finite there" in gate.checks[0].detail


@pytest.mark.parametrize("arm", ["cpu", "cpu:bf16"])
def test_plain_float32_that_is_far_from_float64_excuses_no_other_arm(arm):
    """Noise of the seeded generator: the same in two builds, and other numbers in float64."""

    def noisy(inner, x):
        found = inner(x).repeat(1, 8)
        return (found + torch.randn_like(found)) * (0.0 if in_autocast() else 1.0)

    gate = keeper(lambda: Faulty(mlp(), noisy), mode="infer").judge(parse_arm(arm))
    assert red(gate) == ["outputs"], "zeros passed; and the class of noise is not worth a word"
    assert gate.checks[0].allowed == pytest.approx(0.1)
    assert "plain float32 itself is" in gate.checks[0].detail and "make_batch()" in gate.checks[0].detail


def test_plain_float32_that_overflows_excuses_no_other_arm():
    """Rounded to float64's range all is well, and the yardstick of float32 is not."""

    def overflow(inner, x):
        return inner(x) + (0.0 if x.dtype == torch.float64 else math.inf)

    made = keeper(lambda: Faulty(mlp(), overflow), mode="infer")
    assert red(made.judge(parse_arm("cpu"))) == ["outputs"]
    assert red(made.judge(parse_arm("cpu:bf16"))) == ["outputs"]


def test_a_wrong_gradient_alone_is_red_though_outputs_are_right():
    gate = keeper(lambda: Faulty(mlp(), lambda inner, x: ScaledBackward.apply(inner(x)) if in_autocast() else inner(x)))
    found = gate.judge(parse_arm("cpu:bf16"))
    by_name = {check.name: check for check in found.checks}
    assert by_name["outputs"].passed
    assert by_name["gradients"].error == pytest.approx(0.5, abs=0.05)
    assert not by_name["gradients"].passed


def test_a_gradient_that_is_missing_is_named():
    def cut(inner, x):
        return inner[3](inner[:3](x).detach()) if in_autocast() else inner(x)

    gate = keeper(lambda: Faulty(mlp(), cut)).judge(parse_arm("cpu:bf16"))
    check = next(c for c in gate.checks if c.name == "gradients")
    assert "on one side only: inner.0.bias, inner.0.weight" in check.detail


def test_a_fault_of_the_memory_format_is_red():
    def fault(inner, x):
        return inner(x) + (0.1 if not x.is_contiguous() else 0.0)

    made = keeper(lambda: Faulty(conv_net(), fault), (3, 8, 8))
    assert made.judge(parse_arm("cpu")).passed
    assert "outputs" in red(made.judge(parse_arm("cpu:channels_last")))


def test_an_optimizer_that_steps_wrongly_is_red_by_its_losses():
    class Hasty(ModuleWorkload):
        def optimizer(self, model, *, fused=None):
            return torch.optim.AdamW(model.parameters(), lr=0.1 if fused else 1e-3, fused=fused)

    made = keeper(mlp, kind=Hasty)
    assert made.judge(parse_arm("cpu")).passed
    gate = made.judge(parse_arm("cpu:fused"))
    assert red(gate) == ["loss trajectory"]
    assert "loss after 3 steps" in gate.checks[-1].detail


def test_the_task_s_own_metric_can_turn_the_gate_red():
    class Picky(ModuleWorkload):
        def compare(self, out, ref):
            return [Agreement(name="mask IoU", value=0.9, at_least=0.99)]

    gate = keeper(mlp, kind=Picky).judge(parse_arm("cpu"))
    assert red(gate) == ["mask IoU"]
    check = next(c for c in gate.checks if c.name == "mask IoU")
    assert (check.error, check.allowed) == (pytest.approx(0.1), pytest.approx(0.01))
    assert "0.90000, at least 0.99" in check.detail


@pytest.mark.parametrize("mode", ["train", "infer"])
def test_a_model_that_is_not_the_same_twice_is_red_everywhere(mode):
    builds = []

    def build():
        builds.append(1)
        noise = torch.Generator().manual_seed(len(builds))
        size = 0.0 if len(builds) == 1 else 0.3
        return Faulty(mlp(), lambda inner, x: inner(x) + size * torch.randn(5, generator=noise).to(x.dtype))

    made = keeper(build, mode=mode)
    for arm in ("cpu", "cpu:bf16"):
        gate = made.judge(parse_arm(arm))
        assert "same twice" in red(gate)
        assert "two builds of it differ" in next(c for c in gate.checks if c.name == "same twice").detail


class Wavy(nn.Module):
    """Changes by ``waves`` times what its inputs do; with a ``fault``, too much in half precision."""

    def __init__(self, waves, fault=0.0):
        super().__init__()
        self.first, self.last = nn.Linear(64, 64), nn.Linear(64, 5)
        self.waves, self.fault = waves, fault

    def forward(self, x):
        found = self.last(torch.sin(self.waves * self.first(x)))
        return found * (1 + self.fault) if in_autocast() else found


@pytest.mark.parametrize(
    ("waves", "fault", "passed"), [(40, 0.0, True), (40, 0.12, False), (4, 0.08, False), (400, 0.0, False)]
)
def test_what_rounding_does_to_the_truth_itself_is_allowed_within_bounds(waves, fault, passed):
    gate = keeper(lambda: Wavy(waves, fault), (64,), "infer", batch=16).judge(parse_arm("cpu:bf16"))
    outputs = next(check for check in gate.checks if check.name == "outputs")
    assert outputs.error > 0.06, "the format's own share is not enough"
    assert "rounding every layer to bf16 alone moves it by" in outputs.detail
    assert outputs.passed == passed and outputs.allowed <= 0.1


class Residual(nn.Module):
    """A block of a deep network, whose sums are rounded anew at every block."""

    def __init__(self, width):
        super().__init__()
        self.inner = nn.Sequential(nn.Conv2d(width, width, 3, padding=1), nn.InstanceNorm2d(width), nn.ReLU())
        self.last = nn.Sequential(nn.Conv2d(width, width, 3, padding=1), nn.InstanceNorm2d(width))
        self.relu = nn.ReLU()

    def forward(self, x):
        return self.relu(x + self.last(self.inner(x)))


@pytest.mark.parametrize(("fault", "passed"), [(0.0, True), (0.1, False)])
def test_a_deep_network_is_not_refused_for_what_rounding_every_layer_costs(fault, passed):
    def faulty(inner, x):
        return inner(x) * (1 + (fault if in_autocast() else 0))

    def build():
        return Faulty(
            nn.Sequential(nn.Conv2d(3, 16, 1), *(Residual(16) for _ in range(60)), nn.Conv2d(16, 2, 1)), faulty
        )

    gate = keeper(build, (3, 16, 16), "infer", batch=2).judge(parse_arm("cpu:bf16"))
    outputs = next(check for check in gate.checks if check.name == "outputs")
    assert outputs.passed == passed, outputs


def test_the_rounded_truth_keeps_few_digits_of_every_layer_and_of_every_gradient():
    made = keeper(lambda: nn.Sequential(nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 5)), (64,), "train", batch=16)
    session, kept, back = made._short(8), [], []

    def watch(_layer, _asked, given):
        kept.append(given)
        given.register_hook(back.append)

    for layer in session.plain_model:
        layer.register_forward_hook(watch)
    float(session.run(session.batches[0]))
    assert len(kept) == 3 and len(back) == 3
    for tensor in (*kept, *back):
        torch.testing.assert_close(rounded(tensor, 8), tensor, rtol=1e-12, atol=0)


def test_parameters_that_are_whole_numbers_are_not_rounded():
    def build():
        made = Wavy(40)
        made.register_parameter("order", nn.Parameter(torch.arange(64), requires_grad=False))
        return made

    gate = keeper(build, (64,), "infer", batch=16).judge(parse_arm("cpu:bf16"))
    assert gate.passed and "rounding every layer to bf16" in gate.checks[0].detail


@pytest.mark.parametrize(("fault", "passed"), [(0.0, True), (0.05, False)])
def test_one_lucky_float32_program_does_not_condemn_the_others(fault, passed):
    def in_layout(inner, x):
        return inner(x.flatten(1)) * (1 + (0 if x.is_contiguous() else fault))

    made = keeper(lambda: Faulty(Wavy(2e4), in_layout), (4, 4, 4), "infer", batch=16)
    made.yardstick = made.truth
    gate = made.judge(parse_arm("cpu:channels_last"))
    outputs = next(check for check in gate.checks if check.name == "outputs")
    assert outputs.error > 1e-4, "more than a float32 program with other last digits is allowed at once"
    assert "weights with other last digits alone move float32 by" in outputs.detail
    assert outputs.passed == passed and outputs.allowed < 0.05


def test_numbers_rounded_to_few_digits():
    x = torch.tensor([1.0, 1 + 2**-7, 1 + 2**-9, -3.0e-5, 0.0, 1e30], dtype=torch.float64)
    assert torch.equal(rounded(x, 8), x.to(torch.bfloat16).double())
    assert torch.equal(rounded(x.float(), 8), x.to(torch.bfloat16).float())


@pytest.mark.parametrize("odd", [0, 1, 2], ids=["float64", "float32", "float32 again"])
def test_one_build_that_is_not_like_the_others_is_seen(odd):
    builds = []

    def build():
        builds.append(1)
        shift = 0.5 if len(builds) == 1 + odd else 0.0
        return Faulty(mlp(), lambda inner, x: inner(x) + shift)

    gate = keeper(build, mode="infer").judge(parse_arm("cpu:bf16"))
    assert "same twice" in red(gate)


@pytest.mark.parametrize(("long_s", "passes"), [(0.0, [1, 2, 1]), (1e9, [2, 3, 2])], ids=["slow", "fast"])
def test_a_slow_pass_in_float64_is_run_once(monkeypatch, long_s, passes):
    """Truth, yardstick and the same again, and the arm: each once more to be timed where that takes no time."""
    monkeypatch.setattr("hotlap.measure.gate.LONG_PASS_S", long_s)
    ran = []

    def noted(inner, x):
        ran.append("bf16" if in_autocast() else str(x.dtype))
        return inner(x)

    gate = keeper(lambda: Faulty(mlp(), noted), mode="infer").judge(parse_arm("cpu:bf16"))
    assert gate.passed and gate.step_s > 0
    assert [ran.count(kind) for kind in ("torch.float64", "torch.float32", "bf16")] == [*passes[:2], 2]


def test_a_model_that_works_in_float32_alone_is_told_so_and_not_asked_for_its_input():
    def with_zeros(inner, x):
        return inner(x) + torch.zeros(4, 5) @ torch.eye(5, dtype=x.dtype)

    with pytest.raises(RuntimeError) as caught:
        keeper(lambda: Faulty(mlp(), with_zeros), mode="infer")
    told = str(explain(caught.value, {"target": "mine.py:net", "inputs": ["16"]}))
    assert "target 'mine.py:net' raised RuntimeError while it was measured in float64" in told
    assert "In float32 it runs" in told and "dtype=x.dtype" in told and "--no-gate" in told
    assert "--input" not in told


CARD = parse_arm("cpu:threads=1")
"""Stands for a card: an arm of its own, which can be told from plain float32 on the CPU."""


@pytest.fixture
def doubles(monkeypatch):
    """The arms that computed in float64, where any step is called slow."""
    monkeypatch.setattr("hotlap.measure.gate.SLOW_STEP_S", 0.0)
    asked, real = [], GateKeeper._session

    def noted(self, spec, *, double=False):
        asked.extend([spec] * double)
        return real(self, spec, double=double)

    monkeypatch.setattr(GateKeeper, "_session", noted)
    return asked


@pytest.mark.parametrize("mode", ["train", "infer"])
def test_what_takes_the_cpu_long_is_left_to_the_card_that_is_judged(doubles, monkeypatch, mode):
    plain = keeper(mlp, mode=mode, card=CARD)
    assert doubles == [CARD] and plain.judge(parse_arm("cpu:bf16")).passed
    monkeypatch.setattr("hotlap.measure.gate.SLOW_STEP_S", 1e9)
    doubles.clear()
    assert keeper(mlp, mode=mode, card=CARD).judge(parse_arm("cpu:bf16")).reference.startswith("float64 on the CPU")
    assert doubles == [PLAIN], "a fast step stays where the card has no say"


@pytest.mark.parametrize("fault", ["wrong", "raises"])
def test_a_card_that_cannot_be_believed_is_no_judge(doubles, fault):
    def on_card(inner, x):
        if x.dtype == torch.float64 and doubles[-1] == CARD:
            if fault == "raises":
                raise torch.OutOfMemoryError("CUDA out of memory")
            return inner(x) + 0.01
        return inner(x)

    made = keeper(lambda: Faulty(mlp(), on_card), mode="infer", card=CARD)
    assert doubles == [CARD, PLAIN]
    assert made.judge(parse_arm("cpu")).passed


@pytest.mark.parametrize("fault", ["backward", "cut", "near"])
def test_a_card_whose_every_arm_errs_in_the_same_way_is_not_its_own_witness(doubles, monkeypatch, fault):
    """A kernel for cards alone, whose backward pass is wrong in any number format, or whose answer is a little off."""
    on_card, real = [], GateKeeper._session

    def placed(self, spec, *, double=False):
        on_card[:] = [spec.threads == 1]
        return real(self, spec, double=double)

    def kernel(inner, x):
        if not on_card[0]:
            return inner(x)
        if fault == "cut":
            return inner[3](inner[:3](x).detach())
        return ScaledBackward.apply(inner(x)) if fault == "backward" else inner(x) * (1 + 8e-4)

    monkeypatch.setattr(GateKeeper, "_session", placed)
    made = keeper(lambda: Faulty(mlp(), kernel), card=CARD)
    assert doubles == [CARD, PLAIN]
    assert ("outputs" if fault == "near" else "gradients") in red(made.judge(CARD))


@pytest.mark.gpu
@pytest.mark.parametrize("mode", ["train", "infer"])
def test_a_card_judges_as_the_cpu_does(monkeypatch, mode):
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    by_cpu = keeper(conv_net, (3, 8, 8), mode)
    monkeypatch.setattr("hotlap.measure.gate.SLOW_STEP_S", 0.0)
    by_card = keeper(conv_net, (3, 8, 8), mode, card=parse_arm("cuda"))
    assert relative_error(by_card.truth.outputs, by_cpu.truth.outputs) < 1e-12
    for arm in ("cuda", "cuda:bf16", "cuda:bf16+channels_last"):
        mine, other = by_card.judge(parse_arm(arm)), by_cpu.judge(parse_arm(arm))
        assert mine.passed and other.passed and mine.reference.startswith("float64 on the card")
        assert [c.error for c in mine.checks] == pytest.approx([c.error for c in other.checks], rel=0.05, abs=1e-6)
