"""Splats that are added, removed and moved: by the rules, within the cap, and never by explosion."""

from __future__ import annotations

import math

import pytest
import torch

from hotlap.kernels.adam.state import AdamConfig
from hotlap.splat.config import SplatTrainConfig, config_with
from hotlap.splat.guard import Guard, Stopped, health
from hotlap.splat.judge import Model
from hotlap.splat.mcmc import MarkovChain
from hotlap.splat.state import SplatState
from hotlap.splat.strategy import SHRINK, Adaptive, Explosion, turned

CPU = torch.device("cpu")
EXTENT = 2.0
STEP = 600
"""One at which density control is due."""


def make_state(opacities: list[float], extents: list[float], device: torch.device = CPU) -> SplatState:
    num = len(opacities)
    quats = torch.zeros(num, 4)
    quats[:, 0] = 1
    start = {
        "means": torch.arange(3.0 * num).view(num, 3) / num, "quats": quats,
        "scales": torch.tensor(extents).log()[:, None].repeat(1, 3),
        "opacities": torch.logit(torch.tensor(opacities, dtype=torch.float64)).float(),
        "colors": torch.zeros(num, 1, 3),
    }  # fmt: skip
    rates = dict.fromkeys(start, 0.01)
    return SplatState(start, rates, AdamConfig(), device)


def hear(state: SplatState, gradients: list[float], steps: int = 4) -> None:
    """Statistics as if each splat had had this gradient at each step."""
    state.stats.grad[: state.count] = steps * torch.tensor(gradients, device=state.device)
    state.stats.count[: state.count] = steps
    state.stats.max_radius[: state.count] = 0.1


def test_high_gradients_clone_small_splats_and_split_large_ones(device):
    state = make_state([0.5, 0.5, 0.5, 0.001], [0.001, 0.1, 0.1, 0.1], device)
    before = {name: state.alive(name).clone() for name in ("means", "scales", "opacities")}
    for name in ("first.means", "second.means"):
        state.alive(name).fill_(1)
    hear(state, [1e-3, 1e-3, 1e-5, 1e-3])
    changed = Adaptive(SplatTrainConfig(), EXTENT).after(STEP, state)
    assert (changed.cloned, changed.split, changed.pruned) == (1, 1, 1)
    assert state.count == 5, "the faint one is gone, whatever its gradient"
    means, scales = state.alive("means"), state.alive("scales")
    assert torch.equal(means[0], before["means"][0]) and torch.equal(means[1], before["means"][0])
    for child in (2, 3):
        away = (means[child] - before["means"][1]).norm().item()
        assert 0 < away < 5 * 0.1
        assert torch.allclose(scales[child], before["scales"][1] - math.log(SHRINK))
    assert torch.equal(means[4], before["means"][2])
    kept = state.alive("first.means").amax(1).tolist()
    assert kept == [1, 0, 0, 0, 1], "what is new has no moments yet"
    assert not state.stats.grad.any() and not state.stats.count.any()


def test_gradients_count_only_where_a_splat_was_seen(device):
    state = make_state([0.5, 0.5], [0.001, 0.001], device)
    hear(state, [3e-4, 3e-4], steps=1)
    state.stats.count[1] = 0
    assert Adaptive(SplatTrainConfig(), EXTENT).gradient(state).tolist() == pytest.approx([3e-4, 3e-4])
    state.stats.count[1] = 100
    assert Adaptive(SplatTrainConfig(), EXTENT).gradient(state)[1].item() == pytest.approx(3e-6)


@pytest.mark.parametrize(
    ("step", "due"), [(500, False), (600, True), (601, False), (14_900, True), (15_000, False), (20_000, False)]
)
def test_density_is_controlled_in_its_window_alone(step, due):
    state = make_state([0.5] * 3, [0.001] * 3)
    hear(state, [1.0] * 3)
    Adaptive(SplatTrainConfig(reset_every=0, abort_growth=0), EXTENT).after(step, state)
    assert state.count == (6 if due else 3)


def test_the_cap_keeps_the_largest_gradients():
    state = make_state([0.5] * 10, [0.001] * 10)
    hear(state, [(n + 1) * 1e-3 for n in range(10)])
    means = state.alive("means").clone()
    changed = Adaptive(SplatTrainConfig(max_splats=13), EXTENT).after(STEP, state)
    assert changed.cloned == 3 and state.count == 13
    rows, counts = state.alive("means").unique(dim=0, return_counts=True)
    doubled = rows[counts == 2]
    assert torch.equal(doubled, means[7:])


def test_an_explosion_stops_before_anything_changes():
    state = make_state([0.5] * 1000, [0.001] * 1000)
    hear(state, [1.0] * 1000)
    with pytest.raises(Explosion, match=r"2000 splats of 1000.*abort_growth = 1\.5 times.*--densify-grad"):
        Adaptive(SplatTrainConfig(abort_growth=1.5), EXTENT).after(STEP, state)
    assert state.count == 1000


def test_the_gate_that_is_always_there_can_be_reached():
    state = make_state([0.5] * 1000, [0.001] * 1000)
    hear(state, [1.0] * 950 + [0.0] * 50)
    with pytest.raises(Explosion, match=r"1950 splats of 1000.*abort_growth = 1\.9 times"):
        Adaptive(SplatTrainConfig(), EXTENT).after(STEP, state)
    hear(state, [1.0] * 600 + [0.0] * 400)  # what few points of a real scene begin with
    assert Adaptive(SplatTrainConfig(), EXTENT).after(STEP, state).cloned == 600
    seeds = make_state([0.5] * 1000, [0.001] * 1000)
    seeds["stats.world"].fill_(1e6)
    assert Adaptive(config_with("micro"), EXTENT).after(500, seeds).cloned == 1000, "its limit is what holds it"


def test_health_of_giants_and_needles_is_a_number():
    state = make_state([0.5] * 3, [0.001] * 3)
    state.alive("scales")[:, 0] = 1e30
    state.alive("scales")[:, 1] = 1e30
    assert all(math.isfinite(value) for value in health(state).values())


def test_huge_splats_go_once_opacities_were_reset():
    for step, left in ((2900, 3), (3100, 1)):
        state = make_state([0.5] * 3, [0.01, 0.3, 0.25])
        hear(state, [0.0] * 3)
        Adaptive(SplatTrainConfig(), EXTENT).after(step, state)
        assert state.count == left


def test_a_reset_lowers_opacities_and_forgets_their_moments(device):
    state = make_state([0.9, 0.5, 0.008], [0.01] * 3, device)
    state.alive("first.opacities").fill_(3)
    changed = Adaptive(SplatTrainConfig(), EXTENT).after(3000, state)
    assert changed.reset
    assert torch.sigmoid(state.alive("opacities")).tolist() == pytest.approx([0.01, 0.01, 0.008], rel=1e-4)
    assert not state.alive("first.opacities").any()


def test_world_space_gradients_are_those_of_the_seed():
    state = make_state([0.5] * 2, [0.2, 0.01])
    state.alive("stats.world")[:] = torch.tensor([30.0, 5.0])
    config = config_with("m9", scene="unused")
    assert Adaptive(config, EXTENT).gradient(state).tolist() == pytest.approx([0.3, 0.05])
    changed = Adaptive(config, EXTENT).after(100, state)
    assert (changed.cloned, changed.split) == (0, 1), "over 0.1 in the mean of 100 steps, and larger than 0.05"


def test_vectors_turn_as_matrices_would():
    quats = torch.tensor([[2.0, 0, 0, 2.0], [1.0, 1.0, 0, 0]])  # a quarter turn about z, and about x, any length
    found = turned(quats, torch.tensor([[1.0, 0, 0], [0, 1.0, 0]]))
    assert torch.allclose(found, torch.tensor([[0, 1.0, 0], [0, 0, 1.0]]), atol=1e-6)


def test_dead_splats_are_moved_and_the_picture_stays(device):
    state = make_state([0.9, 0.001, 0.001, 0.6], [0.2] * 4, device)
    state.alive("means").copy_(torch.tensor([[-0.3, 0, 0], [5.0, 5, 5], [6.0, 6, 6], [0.3, 0, 0]]))
    state.alive("colors").copy_(torch.tensor([1.0, -1.0, 0.5])[None, None].to(device).expand(4, 1, 3))
    state.alive("first.means").fill_(1)
    pose = torch.eye(4, device=device)
    pose[2, 3] = 3
    intrinsics = torch.tensor([[40.0, 0, 24], [0, 40, 16], [0, 0, 1]], device=device)

    def picture() -> torch.Tensor:
        params = {name: state.alive(name) for name in ("means", "quats", "scales", "opacities", "colors")}
        return Model(params=params, background=None).draw(pose, intrinsics, 32, 48)

    before = picture()
    config = SplatTrainConfig(strategy="mcmc", max_splats=4)
    changed = MarkovChain(config).after(STEP, state)
    assert changed.moved == 2 and state.count == 4
    assert (state.alive("means").abs().amax(1) < 1).all(), "all are at living ones' places now"
    assert (torch.sigmoid(state.alive("opacities")) > 0.005).all()
    assert (picture() - before).abs().max() < 0.06
    assert not state.alive("first.means")[1:3].any()


def test_a_chain_grows_by_a_twentieth_up_to_its_cap():
    state = make_state([0.5] * 100, [0.01] * 100)
    chain = MarkovChain(SplatTrainConfig(strategy="mcmc", max_splats=107))
    counts = []
    for step in (600, 700, 800):
        chain.after(step, state)
        counts.append(state.count)
    assert counts == [105, 107, 107]
    assert chain.after(650, state) is None and chain.after(500, state) is None


@pytest.mark.parametrize("lost", [1, 100])
def test_a_chain_grows_beside_splats_that_are_no_numbers(lost):
    state = make_state([0.5] * 100, [0.01] * 100)
    state.alive("opacities")[:lost] = float("nan")
    changed = MarkovChain(SplatTrainConfig(strategy="mcmc")).after(600, state)
    assert (changed.moved, changed.cloned) == (0, 5 if lost == 1 else 0)
    assert int(state.alive("opacities").isnan().sum()) == lost, "none was copied"


def test_lost_splats_are_removed_and_many_of_them_stop_the_training():
    state = make_state([0.5] * 300, [0.01] * 300)
    guard = Guard(SplatTrainConfig())
    assert guard.remove_lost(state, 100) == 0 and state.count == 300
    state.alive("means")[7] = float("nan")
    state.alive("second.scales")[9] = float("inf")
    assert guard.remove_lost(state, 100) == 2 and state.count == 298 and guard.num_lost == 2
    assert torch.isfinite(state.alive("means")).all() and torch.isfinite(state.alive("second.scales")).all()
    state.alive("opacities")[:50] = float("nan")
    with pytest.raises(Stopped, match=r"50 of 298 splats.*not finite after 200 steps"):
        guard.remove_lost(state, 200)


def test_a_loss_that_is_no_number_stops_the_training():
    guard = Guard(SplatTrainConfig())
    guard.check_loss(0.3, 10)
    with pytest.raises(Stopped, match="loss was nan after 20 steps"):
        guard.check_loss(float("nan"), 20)


def test_a_training_that_was_better_before_its_end_is_told_of_but_not_after_a_reset():
    guard = Guard(SplatTrainConfig())
    guard.check_psnr(20.0, 1000)
    assert guard.told_of_end(19.1, 2000) == "" and "1.50 dB higher at step 1000" in guard.told_of_end(18.5, 2000)
    guard.last_reset = 1500
    assert guard.told_of_end(18.5, 2000) == ""


def test_falling_quality_stops_the_training_but_not_after_a_reset():
    guard = Guard(SplatTrainConfig(abort_psnr_drop=2))
    guard.check_psnr(20.0, 1000)
    guard.check_psnr(18.5, 2000)
    guard.last_reset = 3000
    guard.check_psnr(10.0, 3500)
    with pytest.raises(Stopped, match=r"fell to 17\.00 dB at step 5000, 3\.00 dB below its best at step 1000"):
        guard.check_psnr(17.0, 5000)
