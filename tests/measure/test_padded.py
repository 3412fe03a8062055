"""Convolutions with zero channels beside their own: the same outputs and the same gradients."""

from __future__ import annotations

import copy
import itertools

import pytest
import torch
from torch import nn

from hotlap.base.errors import UsageError
from hotlap.measure.padded import PaddedConv2d, odd_convolutions, pad_channels


def net(*channels):
    layers = [nn.Conv2d(a, b, 3, padding=1, bias=b != 5) for a, b in itertools.pairwise(channels)]
    return nn.Sequential(*layers)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_outputs_and_gradients_are_those_of_the_plain_layers(layout, device, plain_float32):
    torch.manual_seed(0)
    plain = net(3, 16, 5, 8).to(device, memory_format=layout)
    padded = copy.deepcopy(plain)
    pad_channels(padded)
    x = torch.randn(2, 3, 6, 7, device=device).contiguous(memory_format=layout).requires_grad_()
    got, want = padded(x), plain(x)
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
    grads = [torch.autograd.grad(out.square().sum(), [x, *model.parameters()]) for out, model in
             ((got, padded), (want, plain))]  # fmt: skip
    for mine, theirs in zip(*grads, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-4)


def test_only_odd_layers_change_and_weights_keep_their_names_and_shapes():
    model = net(3, 16, 8)
    before = {name: value.shape for name, value in model.state_dict().items()}
    assert odd_convolutions(model) == [model[0]]
    pad_channels(model)
    assert [type(layer) for layer in model] == [PaddedConv2d, nn.Conv2d]
    assert {name: value.shape for name, value in model.state_dict().items()} == before


def test_a_model_without_odd_channels_is_refused():
    with pytest.raises(UsageError, match="option padded: every convolution of Sequential has channels by the eight"):
        pad_channels(net(8, 16))
