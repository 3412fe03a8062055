"""Dropout by samples: every implementation against the reference, by output, mask and gradient."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from hotlap.base.errors import KernelUnavailable, ShapeError, UnknownName, UsageError
from hotlap.kernels.agreement import disagreements, in_float64, outputs_and_grads
from hotlap.kernels.dropout import cuda
from hotlap.kernels.dropout.cases import BF16, F16, F32, F64, REAL, SMALL, DropoutCase, run_dropout
from hotlap.kernels.dropout.op import IMPLS, keyed_dropout, keyed_dropout_choice
from hotlap.kernels.dropout.reference import keyed_dropout_ref

CPU = torch.device("cpu")
ONE = DropoutCase(shape=(4, 33), samples=4)


def check(case: DropoutCase, impl: str, device: torch.device) -> None:
    inputs = case.make(device)
    try:
        keyed_dropout_choice(inputs["x"], inputs["seeds"], impl)
    except KernelUnavailable as error:
        pytest.skip(str(error))
    want = outputs_and_grads(run_dropout(keyed_dropout_ref, case), in_float64(case.make(CPU)))
    got = outputs_and_grads(run_dropout(partial(keyed_dropout, impl=impl), case), inputs)
    assert {t.dtype for t in got.values()} == {case.dtype}
    assert disagreements(got, want, case.tolerance) == {}
    assert all(torch.equal(got[name].cpu() != 0, want[name] != 0) for name in want)


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("case", SMALL, ids=lambda case: case.id)
def test_matches_reference(case, impl, device):
    check(case, impl, device)


@pytest.mark.gpu
@pytest.mark.parametrize("case", REAL, ids=lambda case: case.id)
def test_matches_reference_at_sizes_of_real_use(case):
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    check(case, "cuda", torch.device("cuda"))


def on_a_card(case: DropoutCase) -> dict[str, torch.Tensor]:
    """The inputs of a case that the kernel takes."""
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    inputs = case.make(torch.device("cuda"))
    reason = cuda.why_not(inputs["x"], inputs["seeds"])
    if reason:
        pytest.skip(reason)
    return inputs


@pytest.mark.gpu
@pytest.mark.parametrize("case", [case for case in SMALL if case.samples], ids=lambda case: case.id)
def test_a_card_gives_the_very_bits_that_its_own_torch_gives(case):
    inputs = on_a_card(case)
    want = outputs_and_grads(run_dropout(keyed_dropout_ref, case), inputs)
    got = outputs_and_grads(run_dropout(partial(keyed_dropout, impl="cuda"), case), inputs)
    assert all(torch.equal(got[name], want[name]) for name in want)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [F32, F16, BF16, F64], ids=str)
def test_on_a_card_too_what_is_not_finite_stays_so(dtype):
    case = DropoutCase(shape=(2, 600), samples=2, dtype=dtype)
    inputs = on_a_card(case)
    inputs["x"][:, ::3], inputs["x"][:, 1::3] = torch.nan, -torch.inf
    got = run_dropout(partial(keyed_dropout, impl="cuda"), case)(inputs)["out"]
    want = run_dropout(keyed_dropout_ref, case)(inputs)["out"]
    assert torch.equal(got.nan_to_num(9, 8, 7), want.nan_to_num(9, 8, 7))


@pytest.mark.gpu
def test_a_captured_pass_reads_the_seeds_of_each_replay():
    case = DropoutCase(shape=(8, 40), samples=8)
    inputs = on_a_card(case)
    x, seeds = inputs["x"].requires_grad_(), inputs["seeds"]

    def work(layer):
        out = layer(x, seeds, case.start, case.p)
        return [out.detach(), *torch.autograd.grad(out.square().sum(), x)]

    side = torch.cuda.Stream()
    kernel = partial(keyed_dropout, impl="cuda")
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        work(kernel)
    side.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        got = work(kernel)
    for shift in (1, 2):
        seeds.add_(shift)
        graph.replay()
        assert all(torch.equal(*pair) for pair in zip(got, work(keyed_dropout_ref), strict=True))


@pytest.mark.gpu
def test_a_stream_of_ones_own_is_used():
    case = DropoutCase(shape=(256, 4096), samples=256)
    inputs = on_a_card(case)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        x = inputs["x"]
        for _ in range(20):
            x = x * 1.0  # the kernel must wait for these
        out = keyed_dropout(x, inputs["seeds"], case.start, case.p, impl="cuda")
    side.synchronize()
    assert torch.equal(out, keyed_dropout_ref(inputs["x"], inputs["seeds"], case.start, case.p))


def test_autocast_leaves_the_number_format_alone(device):
    inputs = ONE.make(device)
    run = run_dropout(keyed_dropout, ONE)
    plain = outputs_and_grads(run, inputs)
    with torch.autocast(device.type, dtype=BF16):
        cast = outputs_and_grads(run, inputs)
    assert cast["out"].dtype == F32 and all(torch.equal(cast[name], plain[name]) for name in plain)


@pytest.mark.parametrize("by_channel", [False, True])
def test_the_mask_of_a_sample_does_not_depend_on_its_batch(by_channel, device):
    x, seeds = torch.ones(6, 8, 5, device=device), torch.arange(6, dtype=torch.int32, device=device)
    whole = keyed_dropout(x, seeds, 3, 0.5, by_channel=by_channel)
    parts = [keyed_dropout(x[n : n + 2], seeds[n : n + 2], 3, 0.5, by_channel=by_channel) for n in (0, 2, 4)]
    assert torch.equal(torch.cat(parts), whole) and set(whole.unique().tolist()) == {0.0, 2.0}
    folded = keyed_dropout(x.view(12, 4, 5), seeds, 3, 0.5)
    assert torch.equal(folded.view_as(x), keyed_dropout(x, seeds, 3, 0.5))


def test_compiled_it_is_the_reference_and_has_the_same_masks(device):
    torch.compiler.reset()
    inputs = ONE.make(device)
    run = torch.compile(partial(keyed_dropout, start=ONE.start, p=ONE.p), backend="aot_eager", fullgraph=True)
    assert torch.equal(run(inputs["x"], inputs["seeds"]), run_dropout(keyed_dropout, ONE)(inputs)["out"])


def test_an_explicit_request_that_cannot_run_says_why():
    inputs = ONE.make(CPU)
    with pytest.raises(KernelUnavailable, match=r"impl='cuda' cannot run here \(cuda: the tensors are on cpu\)"):
        run_dropout(partial(keyed_dropout, impl="cuda"), ONE)(inputs)
    with pytest.raises(UnknownName, match="unknown impl 'cud'"):
        run_dropout(partial(keyed_dropout, impl="cud"), ONE)(inputs)
    choice = keyed_dropout_choice(inputs["x"], inputs["seeds"])
    assert choice.impl == "reference" and choice.against == {"cuda": "the tensors are on cpu"}


@pytest.mark.parametrize("p", [1.0, -0.1])
def test_a_share_that_is_none_is_named(p):
    with pytest.raises(UsageError, match=rf"p = {p} is not valid\. Expected at least 0 and below 1"):
        keyed_dropout(torch.ones(2, 3), torch.zeros(2, dtype=torch.int32), 0, p)


@pytest.mark.parametrize(("rows", "num_seeds"), [(5, 2), (3, 0), (2, 3)])
def test_rows_that_do_not_go_by_sample_are_named(rows, num_seeds):
    with pytest.raises(ShapeError, match=f"x has {rows} rows for {num_seeds} seeds"):
        keyed_dropout(torch.ones(rows, 3), torch.zeros(num_seeds, dtype=torch.int32), 0, 0.5)
