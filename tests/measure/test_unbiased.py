"""Biases that a norm takes away: left out in training, and yet what is learned and what is judged stay the same."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import nn

from hotlap.base.errors import UsageError
from hotlap.measure.arms import parse_arm
from hotlap.measure.padded import PaddedConv2d, pad_channels
from hotlap.measure.session import Session
from hotlap.measure.unbiased import ShiftedBatchNorm2d, UnbiasedConv2d, biases_lost, drop_biases
from hotlap.segment.workload import unet


def two_layers(kind: int, **norm) -> nn.Sequential:
    conv, after = {1: (nn.Conv1d, nn.BatchNorm1d), 2: (nn.Conv2d, nn.BatchNorm2d), 3: (nn.Conv3d, nn.BatchNorm3d)}[kind]
    return nn.Sequential(
        conv(3, 4, 3, padding=1),
        after(4, **norm),
        nn.ReLU(),
        conv(4, 5, 1),
        after(5, **norm),
        nn.Sequential(conv(5, 2, 1)),
    )


def both(kind: int, device: torch.device, **norm) -> tuple[nn.Sequential, nn.Sequential]:
    """A model in float64 and the same without biases."""
    torch.manual_seed(0)
    plain = two_layers(kind, **norm).double().to(device)
    for parameter in plain.parameters():
        nn.init.normal_(parameter)
    other = copy.deepcopy(plain)
    drop_biases(other)
    return plain, other


@pytest.mark.parametrize(
    "norm", [{}, {"momentum": 0.3}, {"momentum": None}, {"momentum": 1.0}, {"track_running_stats": False}], ids=str
)
@pytest.mark.parametrize("kind", [1, 2, 3])
def test_a_training_learns_the_same_and_is_judged_the_same(kind, norm, device):
    plain, other = both(kind, device, **norm)
    steps = [torch.randn(6, 3, *[5] * kind, dtype=torch.float64, device=device) + n for n in range(4)]
    for model in (plain, other):
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, weight_decay=0.1)
        for x in steps:
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
    got, want = other.state_dict(), plain.state_dict()
    assert list(got) == list(want)
    for name in want:  # weight decay moves the biases; their gradients are 0, and rounding where they are added
        torch.testing.assert_close(got[name], want[name], rtol=1e-9, atol=1e-11, msg=name)
    torch.testing.assert_close(other.eval()(steps[0]), plain.eval()(steps[0]), rtol=1e-9, atol=1e-11)


def test_every_parameter_has_its_gradient_and_those_of_lost_biases_are_0(device):
    plain, other = both(2, device)
    x = torch.randn(4, 3, 6, 6, dtype=torch.float64, device=device)
    for model in (plain, other):
        model(x).square().mean().backward()
    for (name, mine), theirs in zip(other.named_parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-9, atol=1e-12, msg=name)
    assert [bool((other[n].bias.grad == 0).all()) for n in (0, 3)] == [True, True]


def test_a_norm_that_is_frozen_does_not_take_the_bias_away(device):
    plain, other = both(2, device)
    x = torch.randn(4, 3, 6, 6, dtype=torch.float64, device=device)
    for model in (plain, other):
        model[1].eval()
        model(x).square().mean().backward()
    torch.testing.assert_close(other[0].bias.grad, plain[0].bias.grad)
    assert plain[0].bias.grad.abs().max() > 1e-6
    torch.testing.assert_close(other(x), plain(x))


@pytest.mark.parametrize("lost", [math.inf, math.nan])
def test_a_bias_that_is_no_number_is_not_hidden(lost):
    _, other = both(2, torch.device("cpu"))
    with torch.no_grad():
        other[0].bias[1] = lost
    assert not other(torch.randn(4, 3, 6, 6, dtype=torch.float64)).isfinite().all()


def shared() -> nn.Module:
    conv = nn.Conv2d(3, 3, 1)
    return nn.Sequential(nn.Sequential(conv, nn.BatchNorm2d(3)), conv)


class OwnNorm(nn.BatchNorm2d):
    """May do anything."""


@pytest.mark.parametrize(
    "model",
    [
        nn.Sequential(nn.Conv2d(3, 3, 1, bias=False), nn.BatchNorm2d(3)),
        nn.Sequential(nn.Conv2d(3, 3, 1), nn.ReLU(), nn.BatchNorm2d(3)),
        nn.Sequential(nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3, affine=False)),
        nn.Sequential(nn.Conv2d(3, 3, 1), nn.InstanceNorm2d(3, affine=True)),
        nn.Sequential(nn.Conv2d(3, 3, 1), OwnNorm(3)),
        nn.ModuleList([nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3)]),
        shared(),
    ],
    ids=[
        "no bias",
        "ReLU between",
        "no bias of its own",
        "another norm",
        "own class",
        "list",
        "shared",
    ],
)
def test_biases_that_may_matter_are_left_alone(model):
    assert biases_lost(model) == []
    with pytest.raises(
        UsageError, match=r"option unbiased: no Sequential of \w+ has a BatchNorm behind a biased convolution"
    ):
        drop_biases(model)


def test_two_passes_may_go_back_together(device):
    plain, other = both(2, device)
    x, y = (torch.randn(4, 3, 6, 6, dtype=torch.float64, device=device) + n for n in range(2))
    for model in (plain, other):
        (model(x).square().mean() + model(y).pow(3).mean()).backward()
    for (name, mine), theirs in zip(other.named_parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-9, atol=1e-11, msg=name)
    for mine, theirs in zip(other.buffers(), plain.buffers(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("change", [{"momentum": None}, {"momentum": 1.0}, {"track_running_stats": False}], ids=str)
def test_norms_that_are_changed_later_are_heard(change, device):
    plain, other = both(2, device)
    x = torch.randn(4, 3, 6, 6, dtype=torch.float64, device=device)
    for model in (plain, other):
        for place in (1, 4):
            for name, value in change.items():
                setattr(model[place], name, value)
        for n in range(3):
            model(x + n)
    for (name, mine), theirs in zip(other.named_buffers(), plain.buffers(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-11, msg=name)


def test_padded_convolutions_lose_their_biases_too(device):
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 3), nn.BatchNorm2d(4))
    plain = plain.double().to(device)
    other = copy.deepcopy(plain)
    pad_channels(other)
    drop_biases(other)
    assert isinstance(other[0], PaddedConv2d) and isinstance(other[3], PaddedConv2d) and biases_lost(other) == []
    x = torch.randn(4, 3, 9, 9, dtype=torch.float64, device=device)
    torch.testing.assert_close(other(x), plain(x), rtol=1e-9, atol=1e-11)
    torch.testing.assert_close(other.eval()(x), plain.eval()(x), rtol=1e-9, atol=1e-11)


def test_copies_belong_to_one_another():
    _, other = both(2, torch.device("cpu"))
    again = copy.deepcopy(other)
    assert again[0].norm_after[0] is again[1] and again[1].conv_before[0] is again[0]
    assert len(list(again.modules())) == len(list(two_layers(2).modules()))


@pytest.mark.parametrize("options", ["", "channels_last+shuffled", "bf16", "compile"])
def test_an_arm_without_biases_learns_as_one_with(options, device, plain_float32):
    if options == "compile" and device.type == "cpu":
        pytest.skip("compiled on a card")

    def answer(more):
        name = "+".join(word for word in (options, more) if word)
        session = Session(
            unet(size=16, width=4), parse_arm(f"{device.type}:{name}".rstrip(":")), mode="train", batch=4, seed=0
        )
        losses = torch.stack([session.step().float() for _ in range(4)])
        kinds = [m for m in session.plain_model.modules() if isinstance(m, (UnbiasedConv2d, ShiftedBatchNorm2d))]
        return losses, [*session.plain_model.state_dict()], len(kinds)

    plain, names, none = answer("")
    got, same, num = answer("unbiased")
    assert (none, num) == (0, 36) and same == names
    torch.testing.assert_close(got, plain, rtol=5e-2 if "bf16" in options else 1e-3, atol=0)


def test_inference_is_told_that_it_gains_nothing():
    with pytest.raises(UsageError, match=r"arm 'cpu:unbiased': unbiased works in training only"):
        Session(unet(size=16, width=2), parse_arm("cpu:unbiased"), mode="infer", batch=2, seed=0)
