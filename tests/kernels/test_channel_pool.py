"""Mean and maximum over channels: every implementation against the reference in float64, by output and gradient."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from hotlap.base.errors import KernelUnavailable, ShapeError
from hotlap.kernels.agreement import Inputs, disagreements, in_float64, outputs_and_grads
from hotlap.kernels.channel_pool.cases import REAL, SMALL, ChannelPoolCase
from hotlap.kernels.channel_pool.op import IMPLS, channel_pool, channel_pool_choice
from hotlap.kernels.channel_pool.reference import channel_pool_ref

CPU = torch.device("cpu")


def skip_unless(impl: str, device: torch.device, dtype: torch.dtype) -> None:
    try:
        channel_pool_choice(device, dtype, impl)
    except KernelUnavailable as error:
        pytest.skip(str(error))


def run_with(pool, inputs: Inputs) -> dict[str, torch.Tensor]:
    return {"out": pool(inputs["x"])}


def check(case: ChannelPoolCase, impl: str, device: torch.device) -> None:
    skip_unless(impl, device, case.dtype)
    want = outputs_and_grads(partial(run_with, channel_pool_ref), in_float64(case.make(CPU)))
    got = outputs_and_grads(partial(run_with, partial(channel_pool, impl=impl)), case.make(device))
    assert {t.dtype for t in got.values()} == {case.dtype}
    assert disagreements(got, want, case.tolerance) == {}
    assert torch.equal(got["out"][:, 1].cpu().double(), want["out"][:, 1])


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("case", SMALL, ids=lambda case: case.id)
def test_matches_reference(case, impl, device, plain_float32, nan_filled):
    check(case, impl, device)


@pytest.mark.gpu
@pytest.mark.parametrize("case", REAL, ids=lambda case: case.id)
def test_matches_reference_at_real_sizes(case, plain_float32, nan_filled):
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    check(case, "triton", torch.device("cuda"))


@pytest.mark.parametrize("impl", ["triton"])
@pytest.mark.parametrize("last", [False, True])
def test_lies_as_the_images_do(impl, last, device):
    skip_unless(impl, device, torch.float32)
    layout = torch.channels_last if last else torch.contiguous_format
    x = torch.randn(2, 6, 5, 4, device=device).contiguous(memory_format=layout)
    assert channel_pool(x, impl=impl).is_contiguous(memory_format=layout)


@pytest.mark.parametrize("impl", IMPLS)
def test_what_is_no_number_is_the_largest(impl, device):
    skip_unless(impl, device, torch.float32)
    x = torch.randn(1, 5, 2, 3, device=device)
    x[0, 3, 1, 2], x[0, 1, 0, 0] = torch.nan, -torch.inf
    out = channel_pool(x, impl=impl)
    assert out[0, :, 1, 2].isnan().all() and out[0, 0, 0, 0] == -torch.inf
    assert out.isnan().sum() == 2 and out[0, 1, 0, 0] == x[0, :, 0, 0].max()


def test_compiles_whole_with_its_gradient(device):
    case = SMALL[2]
    torch._dynamo.reset()
    compiled = torch.compile(channel_pool, fullgraph=True, backend="aot_eager")
    got = outputs_and_grads(partial(run_with, compiled), case.make(device))
    torch._dynamo.reset()
    want = outputs_and_grads(partial(run_with, channel_pool), case.make(device))
    assert disagreements(got, want, 1e-6) == {}


def test_what_does_not_fit():
    with pytest.raises(ShapeError, match=r"x must be \[n, C, H, W\], got \[3, 4, 4\]"):
        channel_pool(torch.zeros(3, 4, 4))
