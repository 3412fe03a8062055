"""The bookkeeping of densification: every implementation against the reference."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal, localcontext
from math import comb

import pytest
import torch
from block_host import Host, check_compiles

from hotlap.base.errors import KernelUnavailable, ShapeError
from hotlap.kernels import launch as launching
from hotlap.kernels.agreement import disagreements, in_float64
from hotlap.kernels.densify import cpu, cuda, reference
from hotlap.kernels.densify.cases import CASES, REAL, TOLERANCE, DensifyCase
from hotlap.kernels.densify.op import (
    IMPLS,
    densify_accumulate,
    densify_choice,
    densify_noise,
    densify_plan,
    densify_relocate,
)
from hotlap.kernels.densify.stats import CHILD_A, CHILD_B, COPY, KEPT, make_plan, make_stats

CPU = torch.device("cpu")


def skip_unless(impl: str, device: torch.device) -> None:
    try:
        densify_choice(torch.zeros(1, device=device), impl)
    except KernelUnavailable as error:
        pytest.skip(str(error))


def all_parts(parts, case: DensifyCase, made: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """What each part makes of a case; statistics are of two steps, the second without the first camera."""
    accumulate, fill_plan, relocate, add_noise = parts
    stats = make_stats(case.splats, made["radii"].device)
    for first in (0, 1):
        accumulate(stats, made["v_means2d"][first:], made["radii"][first:], case.width, case.height)
    plan = make_plan(2 * case.splats, made["radii"].device)
    fill_plan(made["clone"], made["split"], made["prune"], plan)
    opacities, scales = relocate(made["opacities"], made["scales"], made["ratios"])
    means = made["means"].clone()
    names = ("quats", "log_scales", "logits", "lr", "step")
    add_noise(means, *(made[name] for name in names), 2**40 + 7, 5e5)
    return {
        "grad": stats.grad, "count": stats.count, "max_radius": stats.max_radius, "visible": stats.visible.int(),
        "source": plan.source, "kind": plan.kind, "rows": plan.count,
        "opacities": opacities, "scales": scales, "means": means,
    }  # fmt: skip


REFERENCE = (reference.accumulate_ref, reference.plan_ref, reference.relocate_ref, reference.add_noise_ref)


def check(parts, case: DensifyCase, device: torch.device) -> None:
    want = all_parts(REFERENCE, case, in_float64(case.make(CPU)))
    got = all_parts(parts, case, case.make(device))
    assert disagreements(got, want, TOLERANCE) == {}
    for name in ("count", "visible", "source", "kind", "rows"):
        assert torch.equal(got[name].cpu(), want[name]), name


def parts_by(impl: str):
    def accumulate(stats, v_means2d, radii, width, height):
        densify_accumulate(stats, v_means2d, radii, width, height, impl=impl)

    def fill_plan(clone, split, prune, plan):
        made = densify_plan(clone, split, prune, capacity=len(plan.source), impl=impl)
        for name in ("source", "kind", "count"):
            getattr(plan, name).copy_(getattr(made, name))

    def relocate(opacities, scales, ratios):
        return densify_relocate(opacities, scales, ratios, impl=impl)

    def add_noise(*given):
        densify_noise(*given[:6], seed=given[6], strength=given[7], impl=impl)

    return accumulate, fill_plan, relocate, add_noise


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_matches_reference(case, impl, device):
    skip_unless(impl, device)
    check(parts_by(impl), case, device)


@pytest.mark.gpu
@pytest.mark.parametrize("case", REAL, ids=lambda case: case.id)
def test_matches_the_cpu_at_real_sizes(case):
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    skip_unless("cpu", CPU)
    want = all_parts(parts_by("cpu"), case, case.make(CPU))
    got = all_parts(parts_by("cuda"), case, case.make(torch.device("cuda")))
    assert disagreements(got, want, 2 * TOLERANCE) == {} and torch.equal(got["source"].cpu(), want["source"])


@pytest.fixture(scope="module")
def host(tmp_path_factory):
    return Host(tmp_path_factory.mktemp("densify"))


@pytest.mark.parametrize("case", CASES[1:], ids=lambda case: case.id)
def test_the_cuda_kernels_thread_by_thread(case, host, monkeypatch):
    monkeypatch.setattr(launching, "launch", host)
    check((cuda.accumulate, cuda.fill_plan, cuda.relocate, cuda.add_noise), case, CPU)


def test_the_cuda_scan_carries_from_round_to_round(host, monkeypatch):
    monkeypatch.setattr(launching, "launch", host)
    sums = torch.arange(700, dtype=torch.int32)
    want, count = sums.cumsum(0) - sums, torch.zeros((), dtype=torch.int32)
    host(cuda.program(), "densify_scan_kernel", (1, 1, 1), cuda.THREADS, [sums, count, 700], CPU)
    assert torch.equal(sums.long(), want) and count.item() == 699 * 700 // 2


def test_compiles_for_cards():
    check_compiles(cuda.program(), "sm_80")
    check_compiles(cuda.program(), "sm_90")


@pytest.mark.parametrize("impl", IMPLS)
def test_a_plan_by_hand(impl, device):
    skip_unless(impl, device)
    clone, split, prune = (
        torch.tensor([letter in word for word in ("", "c", "s", "cs", "p", "cp", "sp")], device=device)
        for letter in ("c", "s", "p")
    )
    plan = densify_plan(clone, split, prune, impl=impl)
    assert plan.source.tolist() == [0, 1, 1, 2, 2, 3, 3]
    assert plan.kind.tolist() == [KEPT, KEPT, COPY, CHILD_A, CHILD_B, CHILD_A, CHILD_B]
    small = densify_plan(clone, split, prune, capacity=4, impl=impl)
    assert small.count.item() == 7 and small.source.tolist() == [0, 1, 1, 2]
    large = densify_plan(clone, split, prune, capacity=9, impl=impl)
    assert large.source.tolist() == [0, 1, 1, 2, 2, 3, 3, -1, -1] and large.kind.tolist()[7:] == [KEPT, KEPT]


def relocated_exactly(opacity: float, ratio: int) -> tuple[float, float]:
    """The method's double sum in 80 digits."""
    with localcontext() as context:
        context.prec = 80
        whole = Decimal(opacity)
        part = 1 - (1 - whole) ** (Decimal(1) / ratio)
        below = sum(
            Decimal((-1) ** k * comb(i - 1, k)) / Decimal(k + 1).sqrt() * part ** (k + 1)
            for i in range(1, ratio + 1)
            for k in range(i)
        )
        return float(part), float(whole / below)


@pytest.mark.parametrize("impl", ["cuda", "cpu"])
def test_any_number_of_splats_may_share_a_place(impl, device):
    skip_unless(impl, device)
    opacities = torch.tensor([0.0, 0.005, 0.5, 0.995, 0.5], device=device)
    ratios = torch.tensor([3, 51, 51, 100, 1], dtype=torch.int32, device=device)
    got = densify_relocate(opacities, torch.ones(5, 3, device=device), ratios, impl=impl)
    exact = [relocated_exactly(o, n) for o, n in zip(opacities.tolist()[1:], ratios.tolist()[1:], strict=True)]
    want = torch.tensor([(0.0, 1.0), *exact], dtype=torch.float64)
    torch.testing.assert_close(got[0].cpu().double(), want[:, 0], rtol=2e-6, atol=0)
    torch.testing.assert_close(got[1].cpu().double(), want[:, 1:].expand(-1, 3), rtol=5e-6, atol=0)


def test_the_generator_is_philox():
    zeros, ones = torch.zeros(1, dtype=torch.int64), torch.full((1,), 0xFFFFFFFF)
    words = [f"{int(word):08x}" for word in reference.philox_ref((zeros,) * 4, (0, 0))]
    assert words == ["6627e8d5", "e169c58d", "bc57ac4c", "9b00dbd8"]
    words = [f"{int(word):08x}" for word in reference.philox_ref((ones,) * 4, (0xFFFFFFFF, 0xFFFFFFFF))]
    assert words == ["408f276d", "41c83b0e", "a20bc7c6", "6d5451fd"]


def test_the_noise_is_normal_and_other_at_every_step_and_seed():
    noise = reference.normal_ref(20000, 3, 5, CPU)
    assert noise.mean(0).abs().max() < 0.03 and (noise.T.cov() - torch.eye(3)).abs().max() < 0.04
    assert (noise.abs() < 1).double().mean(0).sub(0.6827).abs().max() < 0.02
    for other in (reference.normal_ref(20000, 4, 5, CPU), reference.normal_ref(20000, 3, 6, CPU)):
        assert (torch.cat([noise, other], dim=1).T.corrcoef()[:3, 3:]).abs().max() < 0.04


def test_only_faint_splats_get_noise(device):
    made = replace(CASES[2], splats=2).make(device)
    made["logits"] = torch.tensor([-10.0, 0.0], device=device)
    names = ("quats", "log_scales", "logits", "lr", "step")
    densify_noise(made["means"], *(made[name] for name in names))
    moved = made["means"].abs().amax(1).tolist()
    assert moved[0] > 1e-3 and moved[1] < 1e-15


def test_a_splat_that_was_not_drawn_keeps_its_sums(device):
    stats = make_stats(2, device)
    radii = torch.tensor([[[3, 4], [5, 0]]], dtype=torch.int32, device=device)
    v_means2d = torch.tensor([[[3.0, 4.0], [1.0, 1.0]]], device=device)
    densify_accumulate(stats, v_means2d, radii, 2, 2)
    densify_accumulate(stats, v_means2d, torch.zeros_like(radii), 2, 2)
    assert stats.grad.tolist() == [5, 0] and stats.count.tolist() == [1, 0]
    assert stats.max_radius.tolist() == [2, 0] and stats.visible.tolist() == [False, False]
    stats.clear()
    assert not stats.grad.any() and not stats.count.any() and not stats.max_radius.any()


def test_wrong_tensors_are_named():
    stats, mask = make_stats(4), torch.zeros(4, dtype=torch.bool)
    with pytest.raises(ShapeError, match=r"v_means2d must be \[C, N, 2\], got \[1, 3, 2\] \(bound: N=4\)"):
        densify_accumulate(stats, torch.zeros(1, 3, 2), torch.zeros(1, 3, 2, dtype=torch.int32), 8, 8)
    with pytest.raises(ShapeError, match=r"split is torch\.uint8\. Expected torch\.bool"):
        densify_plan(mask, mask.byte(), mask)
    with pytest.raises(ShapeError, match=r"ratios is torch\.int64\. Expected torch\.int32"):
        densify_relocate(torch.ones(4), torch.ones(4, 3), torch.ones(4, dtype=torch.int64))
    means = torch.zeros(3, 4).T
    with pytest.raises(ShapeError, match=r"means has strides \[1, 4\]"):
        densify_noise(
            means, torch.ones(4, 4), torch.ones(4, 3), torch.ones(4), torch.ones(()), torch.ones((), dtype=torch.int32)
        )
    with pytest.raises(KernelUnavailable, match=r"impl='cuda' cannot run here \(cuda: the tensors are on cpu\)"):
        densify_plan(mask, mask, mask, impl="cuda")


def test_without_numba_the_reference_steps_in(monkeypatch):
    monkeypatch.setattr(cpu, "find_spec", lambda name: None)
    choice = densify_choice(torch.zeros(1))
    assert choice.impl == "reference" and choice.against["cpu"] == "numba is not installed"
