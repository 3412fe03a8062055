"""Transposed convolutions as matrix products: the same outputs and the same gradients, in the same layout."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from hotlap.base.errors import UsageError
from hotlap.measure.arms import parse_arm
from hotlap.measure.session import Session
from hotlap.measure.shuffled import ShuffledConvTranspose2d, block_convolutions, shuffle_blocks
from hotlap.segment.workload import unet


def one(stride, **more):
    return nn.Sequential(nn.ConvTranspose2d(6, 5, stride, stride=stride, **more))


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("stride", "shape"), [(2, (2, 6, 5, 7)), ((2, 3), (1, 6, 4, 3)), (4, (3, 6, 2, 2))])
def test_outputs_gradients_and_layout_are_those_of_the_plain_layer(stride, shape, bias, layout, device):
    torch.manual_seed(0)
    plain = one(stride, bias=bias).double().to(device, memory_format=layout)
    shuffled = copy.deepcopy(plain)
    shuffle_blocks(shuffled)
    x = torch.randn(shape, device=device, dtype=torch.float64).contiguous(memory_format=layout).requires_grad_()
    got, want = shuffled(x), plain(x)
    torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-12)
    assert got.is_contiguous(memory_format=layout)
    grads = [torch.autograd.grad(out.square().sum(), [x, *model.parameters()]) for out, model in
             ((got, shuffled), (want, plain))]  # fmt: skip
    for mine, theirs in zip(*grads, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize(
    "layer",
    [
        nn.ConvTranspose2d(4, 4, 3, stride=2),
        nn.ConvTranspose2d(4, 4, 2, stride=2, padding=1),
        nn.ConvTranspose2d(4, 4, 2, stride=2, output_padding=1),
        nn.ConvTranspose2d(4, 4, 2, stride=2, dilation=2),
        nn.ConvTranspose2d(4, 4, 2, stride=2, groups=2),
        nn.Conv2d(4, 4, 2, stride=2),
    ],
    ids=["overlaps", "cut", "longer", "dilated", "in groups", "not transposed"],
)
def test_layers_that_are_more_than_blocks_are_left_alone(layer):
    model = nn.Sequential(layer)
    assert block_convolutions(model) == []
    with pytest.raises(UsageError, match="option shuffled: Sequential has no transposed convolution whose stride is"):
        shuffle_blocks(model)


def test_an_output_size_of_the_callers_own_still_counts():
    torch.manual_seed(0)
    model = one(2)
    x = torch.randn(1, 6, 3, 3)
    want = model[0](x, output_size=[7, 7])
    shuffle_blocks(model)
    torch.testing.assert_close(model[0](x, output_size=[7, 7]), want)


@pytest.mark.parametrize(("mode", "options"), [("train", "channels_last"), ("infer", "bf16+folded+padded")])
def test_an_arm_with_shuffled_blocks_answers_as_one_without(mode, options, device, plain_float32):
    def answer(name):
        session = Session(unet(size=16, width=2), parse_arm(name), mode=mode, batch=2, seed=0)
        kinds = [m for m in session.plain_model.modules() if isinstance(m, ShuffledConvTranspose2d)]
        return session.step().float(), [*session.plain_model.state_dict()], len(kinds)

    plain, names, none = answer(f"{device.type}:{options}")
    got, same, num = answer(f"{device.type}:{options}+shuffled")
    assert (none, num) == (0, 4) and same == names
    torch.testing.assert_close(got, plain, rtol=2e-2, atol=2e-2)
