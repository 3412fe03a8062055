"""Instance norms: every implementation against the reference in float64, by output and gradients."""

from __future__ import annotations

from functools import partial

import pytest
import torch
import torch.nn.functional as F

from hotlap.base.errors import KernelUnavailable, ShapeError
from hotlap.kernels.agreement import disagreements, in_float64, outputs_and_grads
from hotlap.kernels.instance_norm.cases import REAL, SMALL, InstanceNormCase, run_norm
from hotlap.kernels.instance_norm.op import IMPLS, instance_norm, instance_norm_choice
from hotlap.kernels.instance_norm.reference import instance_norm_ref
from hotlap.kernels.instance_norm.triton import MOST_PARTS, plan_of

CPU = torch.device("cpu")


def skip_unless(impl: str, device: torch.device, dtype: torch.dtype) -> None:
    try:
        instance_norm_choice(device, dtype, impl)
    except KernelUnavailable as error:
        pytest.skip(str(error))


def check(case: InstanceNormCase, impl: str, device: torch.device) -> None:
    skip_unless(impl, device, case.dtype)
    want = outputs_and_grads(run_norm(instance_norm_ref, case), in_float64(case.make(CPU)))
    got = outputs_and_grads(run_norm(partial(instance_norm, impl=impl), case), case.make(device))
    assert got["out"].dtype == got["grad x"].dtype == case.dtype and got["grad weight"].dtype == torch.float32
    assert disagreements(got, want, case.tolerance, case.typical) == {}


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


def test_the_reference_is_torchs_norm_with_what_follows():
    x, more = torch.randn(2, 3, 5, 4).double(), torch.randn(2, 3, 5, 4).double()
    weight, bias = torch.randn(3).double(), torch.randn(3).double()
    want = F.relu(F.instance_norm(x, weight=weight, bias=bias, eps=1e-5) + more)
    torch.testing.assert_close(instance_norm_ref(x, weight, bias, residual=more, relu=True), want)


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("last", [False, True])
def test_keeps_the_layout_and_nothing_without_gradients(impl, last, device):
    skip_unless(impl, device, torch.float32)
    layout = torch.channels_last if last else torch.contiguous_format
    x = torch.randn(2, 6, 5, 4, device=device).contiguous(memory_format=layout)
    weight, bias = torch.ones(6, device=device, requires_grad=True), torch.zeros(6, device=device)
    with torch.inference_mode():
        out = instance_norm(x, weight, bias, impl=impl)
    assert out.is_contiguous(memory_format=layout) and not out.requires_grad
    assert instance_norm(x, weight, bias, impl=impl).requires_grad


@pytest.mark.parametrize("last", [False, True])
def test_an_image_is_the_same_in_any_batch(last, device):
    skip_unless("triton", device, torch.float32)
    layout = torch.channels_last if last else torch.contiguous_format
    x = torch.randn(5, 6, 40, 30, device=device).contiguous(memory_format=layout)
    weight, bias = torch.randn(6, device=device), torch.randn(6, device=device)
    whole = instance_norm(x, weight, bias, impl="triton")
    alone = [instance_norm(one[None].contiguous(memory_format=layout), weight, bias, impl="triton") for one in x]
    assert torch.equal(whole, torch.cat(alone))


@pytest.mark.parametrize("impl", IMPLS)
def test_a_number_that_is_none_stays_one_behind_the_cut(impl, device):
    skip_unless(impl, device, torch.float32)
    x = torch.randn(1, 2, 4, 4, device=device)
    x[0, 1, 2, 2] = torch.nan
    out = instance_norm(x, torch.ones(2, device=device), torch.zeros(2, device=device), relu=True, impl=impl)
    assert out[0, 0].isfinite().all() and out[0, 1].isnan().all()


def test_compiles_whole_with_its_gradients(device):
    case = SMALL[3]
    torch._dynamo.reset()
    compiled = torch.compile(instance_norm, fullgraph=True, backend="aot_eager")
    got = outputs_and_grads(run_norm(compiled, case), case.make(device))
    torch._dynamo.reset()
    want = outputs_and_grads(run_norm(instance_norm, case), case.make(device))
    assert disagreements(got, want, 1e-6) == {}


@pytest.mark.parametrize(
    "shape", [(8, 48, 256, 256), (1, 384, 32, 32), (64, 720, 256, 256), (1, 3, 1, 1), (1, 1, 1, 7)]
)
@pytest.mark.parametrize("last", [False, True])
def test_plans_cover_every_pixel_once_and_add_up_few_parts(shape, last):
    layout = torch.channels_last if last else torch.contiguous_format
    x = torch.empty(shape, device="meta").contiguous(memory_format=layout)
    plan = plan_of(x)
    pixels = shape[2] * shape[3]
    assert plan.part * (plan.parts - 1) < pixels <= plan.part * plan.parts
    assert plan.written * (plan.writing[0] - 1) < pixels <= plan.written * plan.writing[0]
    assert plan.groups[0] * plan.settings["BLOCK_C"] >= shape[1] and plan.groups[1] == shape[0]
    assert plan.parts <= MOST_PARTS and plan.write_settings["BLOCK_S"] >= plan.parts
    assert (plan.part, plan.written) == (plan_of(x[:1]).part, plan_of(x[:1]).written)


def test_what_does_not_fit():
    x = torch.zeros(1, 3, 4, 4)
    with pytest.raises(ShapeError, match=r"weight must be \[C\], got \[4\] \(bound: n=1, C=3, H=4, W=4\)"):
        instance_norm(x, torch.zeros(4), torch.zeros(3))
    with pytest.raises(ShapeError, match=r"residual must be \[n, C, H, W\], got \[1, 3, 4, 5\]"):
        instance_norm(x, torch.zeros(3), torch.zeros(3), residual=torch.zeros(1, 3, 4, 5))
    with pytest.raises(KernelUnavailable, match=r"float64 is not among|the tensors are on cpu"):
        instance_norm(x.double(), torch.zeros(3), torch.zeros(3), impl="triton")
