"""Gradients of problems that rounding moves by more than themselves: right programs are green, planted faults red."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from hotlap.measure.arms import parse_arm
from hotlap.measure.directions import Allowed, direction_checks
from hotlap.measure.gate import PLAIN, GateKeeper, _settled
from hotlap.measure.session import Session
from hotlap.targets import InputSpec, ModuleWorkload

NUM_BLOCKS = 24
CHANNELS = 48


class Backwards(torch.autograd.Function):
    """Right forwards; what comes back is changed."""

    @staticmethod
    def forward(ctx, x, change):
        ctx.change = change
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return ctx.change(grad), None


class Spoiled(nn.Module):
    """Hands gradients back changed, in half precision alone."""

    def __init__(self, change):
        super().__init__()
        self.change = change

    def forward(self, x):
        return Backwards.apply(x, self.change) if torch.is_autocast_enabled("cpu") else x


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1, bias=False), nn.BatchNorm2d(CHANNELS)

    def forward(self, x):
        return torch.relu(self.norm(self.conv(x)))


def half(grad):
    return torch.cat([grad[: len(grad) // 2] * 2, torch.zeros_like(grad[len(grad) // 2 :])])


def deep(change=None, at=NUM_BLOCKS):
    """A deep network before training; the fault stands before block ``at``."""
    blocks = [Block() for _ in range(NUM_BLOCKS)]
    spoiled = [] if change is None else [Spoiled(change)]
    ends = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(CHANNELS, 10)]
    return nn.Sequential(nn.Conv2d(3, CHANNELS, 1), *blocks[:at], *spoiled, *blocks[at:], *ends)


def judged(build):
    workload = ModuleWorkload("w", build, [InputSpec((3, 8, 8))])
    gate = GateKeeper(workload, mode="train", batch=8, steps=2, seed=0).judge(parse_arm("cpu:bf16"))
    return gate, {check.name: check for check in gate.checks}


def test_a_fresh_deep_network_is_not_refused_in_half_precision():
    gate, checks = judged(deep)
    assert gate.passed, [check for check in gate.checks if not check.passed]
    assert checks["gradients"].error > 0.9, "rounding moves gradients by about as much as there is of them"
    assert "rounding every layer to bf16" in checks["gradients"].detail
    assert "rounding every layer to bf16 leaves" in checks["gradient direction"].detail


@pytest.mark.parametrize(("times", "error"), [(1.0, 0.0), (1.2, 0.2), (1 / 1.2, 0.2)])
def test_a_gradient_of_the_right_size_has_no_error(times, error):
    truth = {"weight": torch.linspace(-1, 1, 64, dtype=torch.float64)}
    got = {"weight": times * truth["weight"]}
    way, size = direction_checks(got, truth, truth, truth, Allowed(by=3, share=0.1, size=1.5), "float32")
    assert way.passed and size.passed
    assert (size.error, size.allowed) == (pytest.approx(error), pytest.approx(0.5))


@pytest.mark.parametrize(
    ("change", "at", "check"),
    [
        (lambda grad: 0 * grad, NUM_BLOCKS, "gradient size"),
        (lambda grad: -grad, NUM_BLOCKS, "gradient direction"),
        (half, NUM_BLOCKS, "gradient direction"),
        (lambda grad: grad.flip(0), NUM_BLOCKS, "gradient direction"),
        (lambda grad: grad.flip(-1), NUM_BLOCKS // 2, "gradient direction"),
        (lambda grad: 0.3 * grad, NUM_BLOCKS, "gradient size"),
        (lambda grad: 4 * grad, NUM_BLOCKS // 2, "gradient size"),
    ],
    ids=["none", "negative", "half the samples", "of other samples", "mirrored", "too small", "too large"],
)
def test_wrong_gradients_of_a_network_that_rounding_moves_far_are_red(change, at, check):
    gate, checks = judged(lambda: deep(change, at))
    assert not gate.passed
    assert not checks[check].passed, checks


class Scaled(nn.Module):
    """Two layers, one of which has a gradient so small that nothing of it is seen among the others."""

    def __init__(self, change):
        super().__init__()
        self.small, self.large, self.last = nn.Linear(192, 64), nn.Linear(192, 64), nn.Linear(64, 10)
        self.spoiled = Spoiled(change)

    def forward(self, x):
        x = x.flatten(1)
        return self.last(self.spoiled(1e-3 * self.small(x)) + self.large(x))


@pytest.mark.parametrize(("change", "passed"), [(lambda grad: grad, True), (lambda grad: grad.roll(1, 1), False)])
def test_a_small_gradient_among_large_ones_must_point_where_it_should(change, passed):
    gate, checks = judged(lambda: Scaled(change))
    assert checks["gradients"].passed and checks["worst gradient"].passed
    assert gate.passed == checks["gradient direction"].passed == passed
    assert passed or checks["gradient direction"].detail.startswith("small.")


def made(**of):
    return {name: torch.tensor(values, dtype=torch.float64) for name, values in of.items()}


def test_where_rounding_leaves_no_direction_at_all_nothing_is_right():
    truth, away = made(a=[1.0, 0.0], b=[0.0, 2.0]), made(a=[-1.0, 0.0], b=[0.0, -2.0])
    direction, _ = direction_checks(away, truth, truth, away, Allowed(1.5, 0.1, size=1.5), "beside")
    assert not direction.passed and "all together" in direction.detail


def test_a_gradient_that_float32_does_not_know_either_is_not_asked_for_its_direction():
    truth = made(weight=[[3.0] * 64] * 64, bias=[1e-9, -1e-9] * 32)
    noise = made(weight=[[3.0] * 64] * 64, bias=[1e-9, 2e-9] * 32)
    turned = {**truth, "bias": -truth["bias"]}
    assert all(
        check.passed for check in direction_checks(turned, truth, noise, truth, Allowed(1.5, 0.01, size=1.5), "beside")
    )
    clear = direction_checks(turned, truth, truth, truth, Allowed(1.5, 0.01, size=1.5), "beside")
    assert [check.passed for check in clear] == [False, True] and clear[0].detail.startswith("bias: cosine -1")


def test_the_angle_may_be_as_many_times_as_wide_by_its_tangent():
    allowed = Allowed(1.5, 0.1, size=1.5)
    assert allowed.least(math.cos(math.atan(0.4))) == pytest.approx(math.cos(math.atan(0.6)))
    assert allowed.least(1.0) == pytest.approx(math.cos(math.atan(0.1))), "the format's own share"


def test_a_step_that_overflows_is_made_anew_at_half_the_loss_scale():
    class Large(ModuleWorkload):
        def loss(self, model, batch):
            return 2.0**12 * self.predict(model, batch).square().sum(), 1

    workload = Large("w", lambda: nn.Linear(4, 3), [InputSpec((4,))])
    session = Session(workload, PLAIN, mode="train", batch=2, seed=0)
    plain = Session(workload, PLAIN, mode="train", batch=2, seed=0)
    session.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**120)
    loss = _settled(session, 0)
    assert session.scaler.get_scale() < 2.0**119, "it overflowed more than once"
    assert loss == _settled(plain, 0)
    for got, want in zip(session.plain_model.parameters(), plain.plain_model.parameters(), strict=True):
        torch.testing.assert_close(got.grad, want.grad, rtol=1e-6, atol=0)
        torch.testing.assert_close(got, want, rtol=1e-6, atol=0)


def test_gradients_that_overflow_at_any_scale_are_red():
    session = Session(
        ModuleWorkload("w", lambda: nn.Linear(4, 3), [InputSpec((4,))]), PLAIN, mode="train", batch=2, seed=0
    )
    session.scaler = torch.amp.GradScaler("cpu", init_scale=float("inf"))
    _settled(session, 0)
    assert not any(p.grad.isfinite().all() for p in session.plain_model.parameters())
