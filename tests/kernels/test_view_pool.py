"""Pooling of several views: every implementation against the reference in float64, by output and gradients."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from functools import cache, partial

import pytest
import torch

from hotlap.base.errors import KernelUnavailable, ShapeError
from hotlap.kernels.agreement import disagreements, in_float64, outputs_and_grads
from hotlap.kernels.view_pool.cases import REAL, SMALL, ViewPoolCase, run_pool
from hotlap.kernels.view_pool.op import IMPLS, view_pool, view_pool_choice
from hotlap.kernels.view_pool.reference import view_pool_ref

CPU = torch.device("cpu")


def skip_unless(impl: str, device: torch.device, dtype: torch.dtype) -> None:
    try:
        view_pool_choice(device, dtype, impl)
    except KernelUnavailable as error:
        pytest.skip(str(error))


@cache
def truth(case: ViewPoolCase) -> dict[str, torch.Tensor]:
    return outputs_and_grads(run_pool(view_pool_ref, case), in_float64(case.make(CPU)))


def check(case: ViewPoolCase, impl: str, device: torch.device) -> None:
    skip_unless(impl, device, case.dtype)
    got = outputs_and_grads(run_pool(partial(view_pool, impl=impl), case), case.make(device))
    assert got["out"].dtype == got["grad map 0"].dtype == case.dtype
    assert disagreements(got, truth(case), case.tolerance) == {}


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("case", SMALL, ids=lambda case: case.id)
def test_matches_reference(case, impl, device, nan_filled):
    check(case, impl, device)


@pytest.mark.gpu
@pytest.mark.parametrize("case", REAL, ids=lambda case: case.id)
def test_matches_reference_at_real_sizes(case, nan_filled):
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    check(case, "triton", torch.device("cuda"))


@pytest.mark.slow
def test_triton_matches_reference_when_interpreted():
    """Triton looks at the variable when it is imported, and some other test may have imported it."""
    pytest.importorskip("triton")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", __file__, "-k", "triton and cpu"]
    environ = {**os.environ, "TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert re.search(rf"{len(SMALL) + 2} passed", done.stdout), done.stdout


def test_the_reference_by_hand():
    """Two views of one map with a ramp: 4 pixels of the picture are one of the map."""
    ramp = torch.arange(4.0).expand(1, 4, 4)
    maps = [torch.stack([ramp, 10 + 2 * ramp]).double()]
    pixels = torch.tensor([[[[6.0, 3.0]], [[100.0, -5.0]]]]).double()
    out = view_pool_ref(maps, pixels, torch.tensor([[[1.0, 2, 3]]]).double(), size=16)
    first, second = 1.5, 16.0  # between pixels 1 and 2; at the right border
    mean = (first + second) / 2
    want = [second, mean, ((second - mean) ** 2 + 1e-6) ** 0.5, 1, 2, 3, 0, 0, 0, 0, 0]
    assert out[0, 0].tolist() == pytest.approx(want)
    nearest = view_pool_ref(maps, pixels, size=16, bilinear=False)
    assert nearest[0, 0, :2].tolist() == [16, 8.5]


def test_the_published_mistake_reads_the_first_view_in_place_of_others():
    maps = [torch.stack([torch.full((1, 4, 4), float(view)) for view in range(6)])]
    pixels = torch.full((1, 6, 1, 2), 3.0)
    right = view_pool_ref(maps, pixels, size=16, bilinear=False)
    wrong = view_pool_ref(maps, pixels, size=16, bilinear=False, compat=True)
    assert right[0, 0, :2].tolist() == [5, 2.5]
    assert wrong[0, 0, :2].tolist() == pytest.approx([1, 2 / 6])  # views 0 to 3 read 0, views 4 and 5 read 1


@pytest.mark.parametrize("impl", IMPLS)
def test_one_view_has_no_deviation(impl, device):
    skip_unless(impl, device, torch.float32)
    image = 1000 + torch.randn(1, 3, 8, 8, generator=torch.Generator().manual_seed(0)).to(device)
    out = view_pool([image], torch.rand(1, 1, 50, 2, device=device) * 32, size=32, impl=impl)
    assert torch.allclose(out[..., 6:], torch.tensor(1e-3, device=device))


@pytest.mark.parametrize("impl", IMPLS)
def test_pixels_that_are_not_numbers_read_nothing_outside(impl, device):
    skip_unless(impl, device, torch.float32)
    pixels = torch.tensor([float("nan"), float("inf"), -1e30, 1e30], device=device)[None, None, :, None].repeat(
        1, 1, 1, 2
    )
    out = view_pool([torch.ones(1, 2, 4, 4, device=device)], pixels, size=32, impl=impl)
    assert torch.equal(out[..., :4], torch.ones(1, 4, 4, device=device))


def test_compiles_whole_with_its_gradients(device):
    case = SMALL[1]
    torch._dynamo.reset()
    compiled = torch.compile(view_pool, fullgraph=True, backend="aot_eager")
    got = outputs_and_grads(run_pool(compiled, case), case.make(device))
    torch._dynamo.reset()
    assert disagreements(got, truth(case), case.tolerance) == {}


def test_shapes_that_do_not_fit():
    with pytest.raises(ShapeError, match="maps is empty"):
        view_pool([], torch.zeros(1, 1, 1, 2))
    with pytest.raises(ShapeError, match=r"maps\[1\] must be \[6, C, H, W\], got \[4, 3, 8, 8\]"):
        view_pool([torch.zeros(6, 3, 8, 8), torch.zeros(4, 3, 8, 8)], torch.zeros(2, 3, 5, 2))
    with pytest.raises(ShapeError, match=r"points must be \[B, N, 3\], got \[2, 4, 3\]"):
        view_pool([torch.zeros(6, 3, 8, 8)], torch.zeros(2, 3, 5, 2), torch.zeros(2, 4, 3))
