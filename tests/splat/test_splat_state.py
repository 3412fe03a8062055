"""Arrays with room to grow: rows stay what they were, and the rows behind them are never seen."""

from __future__ import annotations

import pytest
import torch

from hotlap.kernels.adam.op import adam_step
from hotlap.kernels.adam.state import AdamConfig
from hotlap.kernels.splat.frame import View
from hotlap.kernels.splat.op import splat
from hotlap.splat.config import LEARNABLE
from hotlap.splat.state import DEAD, MIN_GRANULE, SplatState, morton_order, padded

RATES = {"means": 1e-3, "opacities": 0.1, "colors": 0.01}


def make_state(num: int, device: torch.device, mode: str = "dense") -> SplatState:
    generator = torch.Generator().manual_seed(0)
    shapes = {"means": (3,), "quats": (4,), "scales": (3,), "opacities": (), "colors": (4, 3)}
    start = {name: torch.randn(num, *shape, generator=generator) for name, shape in shapes.items()}
    return SplatState(start, RATES, AdamConfig(mode=mode), device)


def make_steps(state: SplatState, num: int) -> None:
    for _ in range(num):
        grads = [torch.ones_like(state[name]) for name in state.learned]
        visible = torch.arange(state.rows, device=state.device) < state.count
        adam_step(state.adam, grads, state.config, visible)


def test_rows_move_with_their_moments_and_the_count_of_steps_goes_on(device):
    state = make_state(10, device)
    make_steps(state, 3)
    before = {name: state.alive(name).clone() for name in (*LEARNABLE, "first.means", "second.colors")}
    source = torch.tensor([7, 7, 0, *range(10), 3], device=device)
    fresh = torch.tensor([False, True, *[False] * 12], device=device)
    state.take(source, fresh)
    assert state.count == 14 and int(state.adam.step) == 3, "the counter of steps must not start anew"
    for name in LEARNABLE:
        assert torch.equal(state.alive(name), before[name][source])
    want = before["first.means"][source]
    want[1] = 0
    assert torch.equal(state.alive("first.means"), want)
    make_steps(state, 1)
    assert int(state.adam.step) == 4 and state.adam.params[0].data_ptr() == state["means"].data_ptr()


def test_growing_over_and_over_keeps_every_row(device):
    state = make_state(7, device)
    first = state.alive("means").clone()
    for _ in range(6):
        every = torch.arange(state.count, device=device)
        state.take(torch.cat([every, every]))
    assert state.count == 7 * 64 and torch.equal(state.alive("means"), first.repeat(64, 1))
    state.take(torch.arange(7, device=device))
    assert state.count == 7 and torch.equal(state.alive("means"), first)


@pytest.mark.parametrize("mode", ["dense", "lazy"])
def test_what_is_drawn_can_be_kept_alone_and_put_back(device, mode):
    state = make_state(10, device, mode)
    make_steps(state, 3)
    state.flush()
    want = {name: state.alive(name).clone() for name in LEARNABLE}
    kept = state.state_dict(drawn_alone=True)
    assert set(kept["arrays"]) == set(LEARNABLE) and all(one.device.type == "cpu" for one in kept["arrays"].values())
    make_steps(state, 2)
    state.take(torch.arange(6, device=device))
    state.load_state_dict(kept)
    state.flush()
    assert state.count == 10 and int(state.adam.step) == 3
    assert all(torch.equal(state.alive(name), want[name]) for name in LEARNABLE)
    assert not state.alive("first.means").any() and not state.alive("second.colors").any()
    del kept["arrays"]["quats"]
    with pytest.raises(KeyError):  # half of what a file should hold is no model
        state.load_state_dict(kept)


def test_rows_behind_the_last_splat_hold_what_no_camera_draws():
    one = {name: torch.full((1, 4 if name == "quats" else 3), DEAD[name]) for name in ("means", "quats", "scales")}
    from hotlap.kernels.splat.frame import Splats

    pose = torch.eye(4)[None].clone()
    pose[0, 2, 3] = 2
    splats = Splats(
        **one, opacities=torch.full((1,), DEAD["opacities"]), colors=torch.zeros(1, 1, 3), viewmats=pose,
        Ks=torch.tensor([[[20.0, 0, 8], [0, 20, 8], [0, 0, 1]]]), backgrounds=None,
    )  # fmt: skip
    drawn = splat(splats, View(width=16, height=16, sh_degree=0, raw=True))
    assert not drawn.facts.radii.any() and not drawn.colors.any()


def test_on_a_card_rows_come_in_granules_of_at_most_an_eighth():
    card = torch.device("cuda")
    for count in (0, 1, 4096, 4097, 65_537, 1_000_000, 3_333_333):
        rows = padded(count, card)
        assert rows >= count and rows % MIN_GRANULE == 0 and rows <= count * 9 / 8 + MIN_GRANULE
        assert padded(count, torch.device("cpu")) == count


@pytest.mark.parametrize("mode", ["dense", "lazy"])
def test_a_state_that_was_saved_goes_on_bit_for_bit(mode):
    cpu = torch.device("cpu")
    state, other = make_state(20, cpu, mode), make_state(3, cpu, mode)
    make_steps(state, 4)
    state.take(torch.arange(15)) if mode == "dense" else None
    other.load_state_dict(state.state_dict())
    for one in (state, other):
        make_steps(one, 3)
        one.flush()
    assert other.count == state.count
    for name in (*LEARNABLE, *(f"first.{n}" for n in state.learned), *(f"second.{n}" for n in state.learned)):
        assert torch.equal(state.alive(name), other.alive(name)), name


def test_a_change_of_sizes_or_places_is_told_to_recorded_steps():
    state = make_state(10, torch.device("cpu"))
    before = state.version
    state.take(torch.arange(10).flip(0))
    assert state.version == before, "the same rows at the same places"
    state.take(torch.arange(9))
    assert state.version > before


def test_morton_order_brings_neighbours_together():
    means = torch.rand(4000, 3, generator=torch.Generator().manual_seed(0))
    means[0] = torch.tensor([1e6, 0, 0])
    means[1] = float("nan")
    order = morton_order(means)
    assert torch.equal(order.sort().values, torch.arange(4000))
    good = means[order][(means[order].abs() < 2).all(1)]
    apart = (good[1:] - good[:-1]).norm(dim=1).median()
    unordered = (means[3:] - means[2:-1]).norm(dim=1).median()
    assert apart < unordered / 5


def test_morton_order_of_nothing_one_and_equal_splats():
    assert morton_order(torch.zeros(0, 3)).tolist() == []
    assert morton_order(torch.ones(1, 3)).tolist() == [0]
    assert morton_order(torch.ones(5, 3)).tolist() == [0, 1, 2, 3, 4]
