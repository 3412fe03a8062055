"""Norms folded into convolutions: the same function, and no further than it holds."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from hotlap.base.errors import UsageError
from hotlap.measure.arms import parse_arm
from hotlap.measure.folded import ConvRelu2d, Folded, conv_add_relu, conv_relu, fold_norms, has_one_kernel, layer_relu
from hotlap.measure.session import Session
from hotlap.segment.workload import unet
from hotlap.sequence.workload import bilstm


def trained(model):
    """The model with statistics and weights that a training might leave in its norms."""
    torch.manual_seed(0)
    for norm in model.modules():
        if isinstance(norm, nn.modules.batchnorm._BatchNorm):
            norm.running_mean.normal_()
            norm.running_var.uniform_(0.5, 2.0)
            nn.init.normal_(norm.weight)
            nn.init.normal_(norm.bias)
    return model.eval()


class Chains(nn.Module):
    """Norms that follow a convolution alone, or not alone, or none, or one that is used twice."""

    def __init__(self, kind):
        super().__init__()
        self.kind = kind
        turned = nn.ConvTranspose2d(3, 4, 2, bias=False)
        self.conv = turned if kind == "transposed" else nn.Conv2d(3, 4, 3, bias=kind != "no bias")
        self.norm, self.relu = nn.BatchNorm2d(4), nn.ReLU(inplace=kind == "in place")

    def forward(self, x):
        y = self.conv(x)
        if self.kind == "shape asked":
            assert y.dim() == 4 and y.shape[1] == 4
        out = self.norm(y)
        if self.kind == "read twice":
            return self.relu(out) + y
        if self.kind == "norm twice":
            return self.relu(out) + self.norm(y)
        if self.kind == "conv twice":
            return self.relu(out).sum() + self.conv(2 * x)
        if self.kind == "before the relu":
            return out.sum() + self.relu(out)
        return self.relu(out)


@pytest.mark.parametrize(
    ("kind", "num_norms"),
    [
        ("plain", 1), ("no bias", 1), ("in place", 1), ("transposed", 1), ("shape asked", 1), ("before the relu", 1),
        ("read twice", 0), ("norm twice", 0), ("conv twice", 0),
    ],
)  # fmt: skip
def test_a_norm_is_folded_only_where_nothing_else_reads_its_convolution(kind, num_norms, device, plain_float32):
    model = trained(Chains(kind)).to(device)
    x = torch.randn(2, 3, 8, 8, device=device)
    with torch.no_grad():
        before = model(x).clone()
        found = fold_norms(model, lambda: model(x))
        torch.testing.assert_close(model(x), before, rtol=1e-4, atol=1e-5)
    assert found.num_norms == num_norms == 1 - sum(isinstance(m, nn.BatchNorm2d) for m in model.modules())


def test_a_norm_that_does_more_than_a_norm_stays():
    class Louder(nn.BatchNorm2d):
        def forward(self, x):
            return 2 * super().forward(x)

    model = nn.Sequential(nn.Conv2d(3, 4, 3), Louder(4)).eval()
    x = torch.randn(2, 3, 8, 8)
    want = model(x)
    assert fold_norms(model, lambda: model(x)).num_norms == 0
    assert torch.equal(model(x), want)


def test_every_norm_of_a_unet_goes_and_the_outputs_stay(device, plain_float32):
    workload = unet(width=8, size=32)
    model = trained(workload.build_model()).to(device, memory_format=torch.channels_last)
    batch = workload.make_batch(2, device, torch.Generator().manual_seed(0))
    with torch.inference_mode():
        before = workload.predict(model, batch)
        found = fold_norms(model, lambda: workload.predict(model, batch))
        torch.testing.assert_close(workload.predict(model, batch), before, rtol=1e-3, atol=1e-3)
    assert found.num_norms == 18
    if device.type == "cpu":
        assert found == Folded(18, 0), "only cuDNN takes the ReLU along"


def test_an_arm_that_folds_has_its_convolutions_in_its_format(device):
    session = Session(unet(width=8, size=32), parse_arm(f"{device.type}:bf16+folded"), mode="infer", batch=2, seed=0)
    assert {p.dtype for p in session.plain_model.parameters()} == {torch.bfloat16}
    assert session.step().shape == (2, 3, 32, 32)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_convolution_and_relu_at_once_are_what_they_are_one_after_the_other(dtype, device, plain_float32):
    if dtype == torch.bfloat16 and device.type == "cuda":
        tolerance = {"rtol": 2e-2, "atol": 2e-2}
    else:
        tolerance = {"rtol": 1e-4, "atol": 1e-4}
    torch.manual_seed(0)
    layer = nn.Conv2d(8, 16, 3, padding=1, stride=2).to(device, dtype, memory_format=torch.channels_last)
    x = torch.randn(2, 8, 9, 9, device=device, dtype=dtype).contiguous(memory_format=torch.channels_last)
    want = F.relu(layer(x))
    layer.__class__ = ConvRelu2d
    with torch.no_grad():
        got = layer(x)
    torch.testing.assert_close(got, want.detach(), **tolerance)
    assert got.stride() == want.stride(), "the layout stays"


@pytest.mark.parametrize("in_channels", [3, 16])
def test_what_is_added_goes_along_with_convolution_and_relu(in_channels, device):
    torch.manual_seed(0)
    layer = nn.Conv2d(in_channels, 16, 3, padding=1).to(device, memory_format=torch.channels_last)
    x, plus = (torch.randn(2, c, 8, 8, device=device).bfloat16() for c in (in_channels, 16))
    x, plus = (t.contiguous(memory_format=torch.channels_last) for t in (x, plus))
    with torch.no_grad():
        want = F.conv2d(x.float(), layer.weight.bfloat16().float(), layer.bias, padding=1)
        if device.type == "cuda" and not has_one_kernel(layer, x, torch.bfloat16):
            assert in_channels == 3, "cuDNN has one for channels that fill 16 bytes"
            pytest.skip("cuDNN has no such kernel for three channels")
        for added, wanted in ((None, F.relu(want)), (plus, F.relu(want + plus))):
            got = layer_relu(layer, x, added, torch.bfloat16)
            assert got.dtype == torch.bfloat16
            torch.testing.assert_close(got.float(), wanted, rtol=2e-2, atol=2e-2)


def test_the_operators_are_ones_that_torch_compile_can_take(device):
    x, weight, bias = (torch.randn(*shape, device=device) for shape in ((2, 8, 6, 6), (4, 8, 3, 3), (4,)))
    given = ([1, 1], [1, 1], [1, 1], 1)
    torch.library.opcheck(conv_relu, (x, weight, bias, *given), test_utils=("test_schema", "test_faketensor"))
    plus = torch.randn(2, 4, 6, 6, device=device)
    torch.library.opcheck(conv_add_relu, (x, weight, plus, bias, *given), test_utils=("test_schema", "test_faketensor"))


def test_an_arm_with_nothing_to_fold_is_refused():
    with pytest.raises(UsageError, match="arm 'cpu:folded': folded would do nothing, for no BatchNorm of"):
        Session(bilstm(hidden=4, embedding=4, length=32), parse_arm("cpu:folded"), mode="infer", batch=2, seed=0)


def test_an_arm_that_folds_cannot_be_trained():
    with pytest.raises(UsageError, match="arm 'cpu:folded' cannot be trained: folded puts the norms' statistics"):
        Session(unet(width=8, size=32), parse_arm("cpu:folded"), mode="train", batch=2, seed=0)
