"""Adam over splats: every implementation and mode against dense or selective Adam in float64."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
import torch
from block_host import Host, check_compiles

from hotlap.base.errors import ConfigError, KernelUnavailable, ShapeError
from hotlap.kernels import launch as launching
from hotlap.kernels.adam import cpu, cuda
from hotlap.kernels.adam.cases import CASES, TOLERANCE, AdamCase, results
from hotlap.kernels.adam.op import IMPLS, adam_choice, adam_flush, adam_step
from hotlap.kernels.adam.reference import adam_flush_ref, adam_step_ref
from hotlap.kernels.adam.state import WINDOW, AdamConfig, make_adam_state, take_rows
from hotlap.kernels.agreement import disagreements

CPU = torch.device("cpu")
LONG = AdamCase(rows=9, steps=WINDOW + 6, mode="lazy", chance=0.3, widths=((3,),))
"""The only block is due at one step, and the last row is behind by nearly all others."""


def train(case: AdamCase, step, flush, device: torch.device = CPU) -> dict[str, torch.Tensor]:
    """What all steps of a case have changed."""
    state, before = case.make(device), case.make(device)
    lrs = state.lrs.clone()
    for grads, visible, factor in case.make_steps(device):
        state.lrs.copy_(lrs * factor)
        step(state, grads, case.config, visible)
    flush(state, case.config)
    assert state.step.item() == case.steps
    return results(state, before)


@cache
def truth(case: AdamCase) -> dict[str, torch.Tensor]:
    return train(replace(case, dtype=torch.float64), adam_step_ref, adam_flush_ref)


def by(impl: str):
    def step(state, grads, config, visible):
        adam_step(state, grads, config, visible, impl=impl)

    def flush(state, config):
        adam_flush(state, config, impl=impl)

    return step, flush


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_matches_reference(case, impl, device):
    try:
        adam_choice(case.make(device), impl)
    except KernelUnavailable as error:
        pytest.skip(str(error))
    assert disagreements(train(case, *by(impl), device), truth(case), TOLERANCE) == {}


@pytest.fixture(scope="module")
def host(tmp_path_factory):
    return Host(tmp_path_factory.mktemp("adam"))


@pytest.mark.parametrize("case", [*CASES[2:7], CASES[-1], LONG], ids=lambda case: case.id)
def test_the_cuda_kernel_thread_by_thread(case, host, monkeypatch):
    monkeypatch.setattr(launching, "launch", host)
    assert disagreements(train(case, cuda.step, cuda.flush), truth(case), TOLERANCE) == {}


def test_the_cuda_kernel_leaves_visible_rows_without_a_gradient_alone_until_they_are_due(host, monkeypatch):
    monkeypatch.setattr(launching, "launch", host)
    case = AdamCase(rows=130, mode="lazy", widths=((2,), (3,)))
    state = case.make(CPU)
    grads = [torch.zeros_like(param) for param in state.params]
    grads[1][7, 2] = 1e-3
    grads[0][9, 0] = torch.nan
    for _ in range(2):
        cuda.step(state, grads, case.config, torch.ones(case.rows, dtype=torch.bool))
    assert state.last.nonzero().flatten().tolist() == [7, 9, 128, 129], "the second block is due at step 1"


def test_the_cuda_kernel_takes_parameters_at_any_address(host, monkeypatch):
    monkeypatch.setattr(launching, "launch", host)
    case = AdamCase(rows=33, steps=3, widths=((3,),), mode="selective", chance=0.5)

    def shifted(state, grads, config, visible):
        param = torch.zeros(state.params[0].numel() + 1)[1:].view(-1, 3)
        param.copy_(state.params[0])
        cuda.step(replace(state, params=(param,)), grads, config, visible)
        state.params[0].copy_(param)

    assert disagreements(train(case, shifted, cuda.flush), truth(case), TOLERANCE) == {}


def test_compiles_for_cards():
    check_compiles(cuda.program_for("lazy", True), "sm_90")
    check_compiles(cuda.program_for("dense", False), "sm_80")


def test_the_reference_is_torch_optim_adam():
    case = AdamCase(rows=7, steps=9, eps=1e-8, dtype=torch.float64)
    state, before = case.make(CPU), case.make(CPU)
    params = [torch.nn.Parameter(param.clone()) for param in before.params]
    groups = [{"params": [p], "lr": lr.item()} for p, lr in zip(params, before.lrs, strict=True)]
    optimizer = torch.optim.Adam(groups, eps=1e-8)
    for grads, _, _ in case.make_steps(CPU):
        adam_step_ref(state, grads, case.config)
        for param, grad in zip(params, grads, strict=True):
            param.grad = grad
        optimizer.step()
    want = {str(n): p.detach() - b for n, (p, b) in enumerate(zip(params, before.params, strict=True))}
    got = {str(n): p - b for n, (p, b) in enumerate(zip(state.params, before.params, strict=True))}
    assert disagreements(got, want, 1e-12) == {}


def test_lazy_adam_leaves_rows_alone_until_they_are_seen_or_due(device):
    case = AdamCase(rows=2 * 128 + 5, steps=WINDOW + 3, widths=((1,),), mode="lazy")
    state = case.make(device)
    all_seen, none_seen = (
        torch.ones(case.rows, dtype=torch.bool, device=device),
        torch.zeros(case.rows, dtype=torch.bool, device=device),
    )
    grads = [torch.ones_like(state.params[0])]
    try:
        adam_choice(state, "cuda" if device.type == "cuda" else "cpu")
    except KernelUnavailable as error:
        pytest.skip(str(error))
    adam_step(state, grads, case.config, all_seen)
    after_one = state.params[0].clone()
    for _ in range(2, WINDOW):
        adam_step(state, grads, case.config, none_seen)
    moved = (state.params[0] != after_one).flatten().cpu()
    assert moved[256:].all() and not moved[:256].any(), "the third block is due at step 2, the first two at 256 and 257"
    lag = (state.step - state.last).max().item()
    assert lag == WINDOW - 2
    adam_step(state, grads, case.config, none_seen)
    adam_step(state, grads, case.config, none_seen)
    assert (state.params[0] != after_one).all() and (state.step - state.last).max().item() < WINDOW


def test_what_lazy_adam_neglects_shows_where_eps_matters():
    case = AdamCase(rows=131, steps=300, mode="lazy", chance=0.3, widths=((3,), (2,)), eps=1e-8)
    if reason := adam_reason("cpu", case):
        pytest.skip(reason)
    off = disagreements(train(case, *by("cpu")), truth(case), TOLERANCE)
    assert set(off) == {"moved[0]", "moved[1]"} and max(off.values()) < 0.02


def adam_reason(impl: str, case: AdamCase) -> str:
    try:
        adam_choice(case.make(CPU), impl)
    except KernelUnavailable as error:
        return str(error)
    return ""


def test_rows_keep_their_means_when_they_are_moved_and_new_ones_start_afresh(device):
    case = AdamCase(rows=10, steps=4, mode="lazy", chance=0.5)
    state = case.make(device)
    steps = list(case.make_steps(device))
    for grads, visible, _ in steps:
        adam_step(state, grads, case.config, visible)
    adam_flush(state, case.config)
    source = torch.tensor([9, 3, -1, 3], device=device)
    moved = take_rows(state, [param[source] for param in state.params], source)
    for old, new in ((state.first, moved.first), (state.second, moved.second)):
        for before, after in zip(old, new, strict=True):
            assert torch.equal(after[[0, 1, 3]], before[[9, 3, 3]]) and not after[2].any()
    alone = make_adam_state([p[3:4].clone() for p in state.params], state.lrs.tolist(), case.config)
    alone = replace(
        alone,
        first=tuple(t[3:4].clone() for t in state.first),
        second=tuple(t[3:4].clone() for t in state.second),
        step=state.step.clone(),
        last=state.last[3:4].clone(),
        history=state.history.clone(),
    )
    grads = [torch.ones_like(param) for param in moved.params]
    adam_step(moved, grads, case.config)
    adam_step(alone, [torch.ones_like(param) for param in alone.params], case.config)
    for whole, one in zip(moved.params, alone.params, strict=True):
        torch.testing.assert_close(whole[1:2], one)


@pytest.mark.gpu
@pytest.mark.parametrize("mode", ["dense", "lazy"])
def test_a_cuda_graph_repeats_it(mode):
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    card = torch.device("cuda")
    case = AdamCase(rows=300, steps=6, mode=mode, chance=0.5)
    state, want = case.make(card), case.make(card)
    steps = list(case.make_steps(card))
    grads, visible = [grad.clone() for grad in steps[0][0]], steps[0][1].clone()
    adam_step(case.make(card), grads, case.config, visible, impl="cuda")  # compiles and loads
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        adam_step(state, grads, case.config, visible, impl="cuda")
    for new_grads, new_visible, factor in steps:
        for old, new in zip(grads, new_grads, strict=True):
            old.copy_(new)
        visible.copy_(new_visible)
        state.lrs.mul_(factor)
        graph.replay()
        want.lrs.mul_(factor)
        adam_step(want, new_grads, case.config, new_visible, impl="cuda")
    for got, expected in zip(state.params, want.params, strict=True):
        assert torch.equal(got, expected)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"mode": "lasy"}, r"mode = 'lasy' is not known\. Did you mean 'lazy'\?"),
        ({"beta2": 1.0}, r"beta2 = 1 is not valid\. Expected a number between 0 and 1"),
        ({"eps": -1e-8}, r"eps = -1e-08 is not valid"),
    ],
)
def test_wrong_settings_are_named(change, message):
    with pytest.raises(ConfigError, match=message):
        AdamConfig(**change)


def test_wrong_tensors_are_named():
    config, param = AdamConfig(), torch.zeros(5, 3)
    with pytest.raises(ShapeError, match=r"len\(params\) = 9 is not valid\. Expected 1 to 8"):
        make_adam_state([param] * 9, [0.1] * 9, config)
    with pytest.raises(ShapeError, match=r"len\(lrs\) = 2 is not valid"):
        make_adam_state([param], [0.1, 0.2], config)
    with pytest.raises(
        ShapeError, match=r"params\[1\] is torch\.float32 \[4\] .*Expected torch\.float32 \[5, \.\.\.\]"
    ):
        make_adam_state([param, torch.zeros(4)], [0.1, 0.2], config)
    state = make_adam_state([param], [0.1], config)
    with pytest.raises(ShapeError, match=r"len\(grads\) = 0 is not valid"):
        adam_step(state, [], config)
    with pytest.raises(ShapeError, match=r"grads\[0\] is torch\.float32 \[5, 2\]\. Expected torch\.float32 \[5, 3\]"):
        adam_step(state, [torch.zeros(5, 2)], config)
    with pytest.raises(ShapeError, match=r"visible is torch\.float32 \[5\]\. Expected torch\.bool \[5\]"):
        adam_step(state, [param], config, torch.ones(5))
    with pytest.raises(ShapeError, match=r"params have \[5\] rows\. Expected 1 parameters of 2 rows"):
        take_rows(state, [param], torch.tensor([0, 1]))
    with pytest.raises(KernelUnavailable, match=r"impl='cpu' cannot run here \(cpu: float64 is not float32\)"):
        adam_choice(make_adam_state([param.double()], [0.1], config), "cpu")


def test_without_numba_the_reference_steps_in(monkeypatch):
    monkeypatch.setattr(cpu, "find_spec", lambda name: None)
    choice = adam_choice(AdamCase(rows=1).make(CPU))
    assert choice.impl == "reference" and choice.against["cpu"] == "numba is not installed"


def test_tails_that_do_not_fit_are_refused():
    params = [torch.zeros(4, 3), torch.zeros(4, 2, 3)]
    with pytest.raises(ShapeError, match=r"tails\[1\] = \(7, 0.05\).*at most the numbers of its row"):
        make_adam_state(params, [0.1, 0.1], AdamConfig(), {1: (7, 0.05)})
