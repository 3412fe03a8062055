"""Maps enlarged and added: every implementation against the reference in float64, by output and gradients."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from hotlap.base.errors import KernelUnavailable, ShapeError
from hotlap.kernels.agreement import disagreements, in_float64, outputs_and_grads
from hotlap.kernels.enlarge.cases import REAL, SMALL, EnlargeCase, run_enlarge
from hotlap.kernels.enlarge.op import IMPLS, enlarge, enlarge_choice
from hotlap.kernels.enlarge.reference import enlarge_ref

CPU = torch.device("cpu")


def skip_unless(impl: str, device: torch.device, dtype: torch.dtype) -> None:
    try:
        enlarge_choice(device, dtype, impl)
    except KernelUnavailable as error:
        pytest.skip(str(error))


def check(case: EnlargeCase, impl: str, device: torch.device) -> None:
    skip_unless(impl, device, case.dtype)
    want = outputs_and_grads(run_enlarge(enlarge_ref, case), in_float64(case.make(CPU)))
    got = outputs_and_grads(run_enlarge(partial(enlarge, impl=impl), case), case.make(device))
    assert {t.dtype for t in got.values()} == {case.dtype}
    assert disagreements(got, want, case.tolerance) == {}


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


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("last", [False, True])
def test_lies_as_the_base_does(impl, last, device):
    skip_unless(impl, device, torch.float32)
    layout = torch.channels_last if last else torch.contiguous_format
    base = torch.randn(2, 6, 8, 4, device=device).contiguous(memory_format=layout)
    out = enlarge(base, [torch.randn(2, 6, 4, 2, device=device)], impl=impl)
    assert out.is_contiguous(memory_format=layout)


def test_a_corner_is_a_corner_and_more_parts_than_kernels_take_are_added_too():
    base, part = torch.zeros(1, 2, 9, 7), torch.randn(1, 2, 4, 3)
    out = enlarge(base, [part])
    for row, column in ((0, 0), (0, -1), (-1, 0), (-1, -1)):
        assert torch.equal(out[..., row, column], part[..., row, column])
    torch.testing.assert_close(enlarge(base, [part] * 5), 5 * out)
    assert torch.equal(enlarge(out, [], relu=True), out.relu())


def test_compiles_whole_with_its_gradients(device):
    case = SMALL[3]
    torch._dynamo.reset()
    compiled = torch.compile(enlarge, fullgraph=True, backend="aot_eager")
    got = outputs_and_grads(run_enlarge(compiled, case), case.make(device))
    torch._dynamo.reset()
    want = outputs_and_grads(run_enlarge(enlarge, case), case.make(device))
    assert disagreements(got, want, 1e-5) == {}


def test_what_does_not_fit():
    base = torch.zeros(1, 3, 4, 4)
    with pytest.raises(ShapeError, match=r"parts\[1\] must be \[1, 3, h, w\], got \[1, 2, 2, 2\]"):
        enlarge(base, [torch.zeros(1, 3, 2, 2), torch.zeros(1, 2, 2, 2)])
