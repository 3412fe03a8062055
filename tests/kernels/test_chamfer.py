"""Nearest points of two clouds: every implementation against the reference in float64, by distances and gradients."""

from __future__ import annotations

from functools import cache, partial

import pytest
import torch
from block_host import Host, check_compiles

from hotlap.base.errors import KernelUnavailable, ShapeError
from hotlap.kernels import launch as launching
from hotlap.kernels.agreement import disagreements, in_float64, outputs_and_grads
from hotlap.kernels.chamfer import cuda
from hotlap.kernels.chamfer.cases import REAL, SMALL, TOLERANCE, ChamferCase, run_chamfer
from hotlap.kernels.chamfer.op import IMPLS, chamfer, chamfer_choice
from hotlap.kernels.chamfer.reference import chamfer_ref

CPU = torch.device("cpu")


def skip_unless(impl: str, device: torch.device, dtype: torch.dtype = torch.float32) -> None:
    try:
        chamfer_choice(device, dtype, impl)
    except KernelUnavailable as error:
        pytest.skip(str(error))


@cache
def truth(case: ChamferCase) -> dict[str, torch.Tensor]:
    return outputs_and_grads(run_chamfer(chamfer_ref), in_float64(case.make(CPU)))


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("case", SMALL, ids=lambda case: case.id)
def test_matches_reference(case, impl, device):
    skip_unless(impl, device)
    got = outputs_and_grads(run_chamfer(partial(chamfer, impl=impl)), case.make(device))
    assert disagreements(got, truth(case), case.tolerance) == {}


@pytest.mark.gpu
@pytest.mark.parametrize("case", REAL, ids=lambda case: case.id)
def test_matches_reference_at_real_sizes(case):
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    card = torch.device("cuda")
    want = outputs_and_grads(run_chamfer(chamfer_ref), in_float64(case.make(card)))
    got = outputs_and_grads(run_chamfer(partial(chamfer, impl="cuda")), case.make(card))
    assert disagreements(got, want, case.tolerance) == {}


@pytest.fixture(scope="module")
def host(tmp_path_factory):
    return Host(tmp_path_factory.mktemp("chamfer"))


def gradients_by_reference(made, v_x, v_y) -> dict[str, torch.Tensor]:
    x, y = (made[name].double().detach().requires_grad_() for name in ("x", "y"))
    found = chamfer_ref(x, y, made["x_lengths"], made["y_lengths"])
    grads = torch.autograd.grad([found.x_distance, found.y_distance], [x, y], [v_x, v_y])
    return dict(zip(("grad x", "grad y"), grads, strict=True))


@pytest.mark.parametrize("layout", ["one number", "by object", "by point", "transposed"])
def test_gradients_by_distances_are_read_where_they_lie(layout, host, monkeypatch):
    monkeypatch.setattr(launching, "launch", host)
    made = SMALL[4].make(CPU)
    found = cuda.search(made["x"], made["y"], made["x_lengths"], made["y_lengths"])
    generator = torch.Generator().manual_seed(2)

    def slope(like: torch.Tensor) -> torch.Tensor:
        objects, points = like.shape
        shape = {"one number": (1, 1), "by object": (objects, 1), "by point": (1, points)}.get(layout)
        if shape is None:
            return torch.randn(points, objects, generator=generator).t()
        return torch.randn(shape, generator=generator).expand(objects, points)

    v_x, v_y = slope(found.x_distance), slope(found.y_distance)
    grads = cuda.gradients(made["x"], made["y"], found, v_x, v_y)
    got = dict(zip(("grad x", "grad y"), grads, strict=True))
    assert disagreements(got, gradients_by_reference(made, v_x.double(), v_y.double()), TOLERANCE) == {}


@pytest.mark.parametrize("shares", [1, 3])
@pytest.mark.parametrize("case", [SMALL[n] for n in (0, 2, 4)], ids=lambda case: case.id)
def test_the_cuda_kernels_thread_by_thread(case, shares, host, monkeypatch):
    monkeypatch.setattr(launching, "launch", host)
    monkeypatch.setattr(cuda, "num_shares", lambda *sizes: shares)
    monkeypatch.setattr(torch, "empty", partial(torch.full, fill_value=-7))
    made = case.make(CPU)
    found = cuda.search(made["x"], made["y"], made["x_lengths"], made["y_lengths"])
    got = run_chamfer(lambda *inputs: found)(made)
    generator = torch.Generator().manual_seed(1)
    v_x, v_y = (torch.randn(t.shape, generator=generator, dtype=torch.float64) for t in found[:2])
    grads = cuda.gradients(made["x"], made["y"], found, v_x, v_y)
    got |= {"grad x": grads[0], "grad y": grads[1]}
    assert disagreements(got, truth(case), case.tolerance) == {}


def test_compiles_for_cards():
    check_compiles(cuda.program(), "sm_90")
    check_compiles(cuda.program(), "sm_80")


def test_a_lone_object_is_shared_between_blocks_and_a_full_card_is_not():
    assert cuda.num_shares(10_000, 10_000, 1, 132) > 4
    assert cuda.num_shares(10_000, 10_000, 64, 132) == 1
    assert cuda.num_shares(100, 100, 1, 132) == 1


@pytest.mark.parametrize("impl", IMPLS)
def test_a_cloud_without_points_is_infinitely_far(impl, device):
    skip_unless(impl, device)
    x = torch.randn(2, 3, 3, device=device, requires_grad=True)
    y, lengths = torch.randn(2, 4, 3, device=device), torch.tensor([0, 4], device=device)
    found = chamfer(x, y, None, lengths, impl=impl)
    assert found.x_distance[0].isinf().all() and (found.x_index[0] == -1).all()
    assert (found.y_distance[0] == 0).all() and found.x_distance[1].isfinite().all()
    (grad,) = torch.autograd.grad(found.x_distance[1].sum(), x)
    assert grad.isfinite().all() and (grad[0] == 0).all() and (grad[1] != 0).any()
    nothing = chamfer(x, y[:, :0], impl=impl)
    assert nothing.x_distance.isinf().all() and nothing.y_distance.shape == (2, 0)


@pytest.mark.parametrize("impl", IMPLS)
def test_close_points_keep_their_distance(impl, device):
    """|x|^2 + |y|^2 - 2 xy would be 0 or worse."""
    skip_unless(impl, device)
    x = torch.tensor([[[100.0, 100.0, 100.0]]], device=device)
    found = chamfer(x, x + 2**-10, impl=impl)
    assert found.x_distance.item() == pytest.approx(3 * 2**-20, rel=1e-6)


def test_half_precision_points_are_searched_in_float32(device):
    x = torch.randn(1, 50, 3, device=device).bfloat16().requires_grad_()
    y = torch.randn(1, 40, 3, device=device)
    found = chamfer(x, y)
    want = chamfer_ref(x.detach().double(), y.double())
    assert found.x_distance.dtype == torch.float32
    torch.testing.assert_close(found.x_distance.double(), want.x_distance, rtol=1e-5, atol=1e-7)
    assert torch.autograd.grad(found.x_distance.sum(), x)[0].dtype == torch.bfloat16


def test_the_same_result_every_time(device):
    made = SMALL[4].make(device)
    first, second = (chamfer(made["x"], made["y"], made["x_lengths"], made["y_lengths"]) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_compiles_whole_with_its_gradients(device):
    made = SMALL[2].make(device)
    torch._dynamo.reset()
    compiled = torch.compile(chamfer, fullgraph=True, backend="aot_eager")
    got = outputs_and_grads(run_chamfer(compiled), made)
    torch._dynamo.reset()
    assert disagreements(got, truth(SMALL[2]), 1e-5) == {}


def test_fake_tensors_get_fake_results_without_a_search(device):
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        x, y = torch.empty(2, 5, 3, device=device, requires_grad=True), torch.empty(2, 7, 3, device=device)
        found = chamfer(x, y)
        assert found.x_distance.shape == (2, 5) and found.y_index.dtype == torch.int64
        assert torch.autograd.grad(found.y_distance.sum(), x)[0].shape == (2, 5, 3)


def test_second_derivatives_are_refused_where_they_would_be_wrong(device):
    impl = "cuda" if device.type == "cuda" else "cpu"
    skip_unless(impl, device)
    x = torch.randn(1, 4, 3, device=device, requires_grad=True)
    found = chamfer(x, torch.randn(1, 5, 3, device=device), impl=impl)
    (slope,) = torch.autograd.grad(found.x_distance.square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match=r"once_differentiable|not have been used in the graph"):
        torch.autograd.grad(slope.sum(), x)


@pytest.mark.gpu
def test_a_cuda_graph_repeats_it_and_memory_grows_with_the_points():
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    made = ChamferCase(batch=8, num_x=10_000, num_y=10_000).make(torch.device("cuda"))
    x, y = made["x"].requires_grad_(), made["y"]

    def step() -> torch.Tensor:
        found = chamfer(x, y)
        return torch.autograd.grad(found.x_distance.sum() + found.y_distance.sum(), x)[0]

    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        want = step()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    step()
    assert torch.cuda.max_memory_allocated() - before < 64e6
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got = step()
    got.fill_(float("nan"))
    graph.replay()
    torch.testing.assert_close(got, want)


def test_shapes_that_do_not_fit():
    with pytest.raises(ShapeError, match=r"y must be \[B, M, 3\], got \[1, 5, 2\]"):
        chamfer(torch.zeros(1, 4, 3), torch.zeros(1, 5, 2))
    with pytest.raises(ShapeError, match=r"x_lengths must be \[B\], got \[2\]"):
        chamfer(torch.zeros(1, 4, 3), torch.zeros(1, 5, 3), torch.tensor([1, 2]))
    with pytest.raises(KernelUnavailable, match=r"impl='cpu' cannot run here .*float32"):
        chamfer(torch.zeros(1, 4, 3).double(), torch.zeros(1, 5, 3).double(), impl="cpu")
