"""Steps replayed from CUDA graphs against eager ones, and a card's training against the CPU's."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from hotlap.kernels.splat.cuda_room import Key, Room
from hotlap.splat.config import LEARNABLE
from hotlap.splat.graphed import PEEK_EVERY, EagerSteps, GraphedSteps, make_steps
from hotlap.splat.step import KEPT_FRAMES

CARD_TOLERANCE = 0.02
"""Share of the mean move by which two runs of ten steps may differ on the median splat: a card's sums have no fixed
order, and Adam's first steps depend on the sign of gradients that are nearly 0."""


def moved(made, steps: int) -> dict[str, torch.Tensor]:
    """How far each parameter went in so many steps."""
    start = {name: made.state.alive(name).clone().cpu() for name in LEARNABLE}
    made.run(steps)
    return {name: made.state.alive(name).cpu() - start[name] for name in LEARNABLE}


def assert_alike(got: dict[str, torch.Tensor], want: dict[str, torch.Tensor]) -> None:
    for name in LEARNABLE:
        if name == "quats":  # round splats have no gradient by their rotation but rounding
            continue
        apart = (got[name] - want[name]).abs().flatten(1) if got[name].dim() > 1 else (got[name] - want[name]).abs()
        assert apart.median() <= CARD_TOLERANCE * want[name].abs().mean(), name


@pytest.mark.gpu
@pytest.mark.parametrize("changes", [{}, {"adam": "lazy"}, {"strategy": "mcmc"}, {"exposure": True, "poses": True}])
def test_replayed_steps_are_the_eager_ones(trainer, changes):
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    card, common = torch.device("cuda", 0), {"densify_every": 0, "sh_every": 4, **changes}
    graphed, eager = trainer(card, graph=True, **common), trainer(card, graph=False, **common)
    got, want = moved(graphed, 12), moved(eager, 12)
    assert graphed.steps.num_recordings >= 2, "two degrees"
    assert int(graphed.state.adam.step) == 12
    assert_alike(got, want)


@pytest.mark.gpu
def test_densification_between_replays_keeps_learning(trainer):
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    made = trainer(torch.device("cuda", 0), steps=60, densify_until=50)
    before = made.judge()["psnr"]
    made.run(60)
    assert made.judge()["psnr"] > before + 1
    assert made.state.count > 400 and made.steps.num_recordings >= 1
    values = made.look_after()
    assert values["splats"] == made.state.count


@pytest.mark.gpu
def test_a_card_trains_as_the_cpu_does(trainer):
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    card, cpu = trainer(torch.device("cuda", 0), densify_every=0), trainer(densify_every=0)
    got, want = moved(card, 10), moved(cpu, 10)
    assert_alike(got, want)
    assert abs(card.judge()["psnr"] - cpu.judge()["psnr"]) < 0.1


@pytest.mark.gpu
def test_a_step_on_a_card_never_waits_for_it(trainer):
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    from hotlap.measure.graph import waits_seen

    made = trainer(torch.device("cuda", 0), densify_every=0)
    made.run(9)
    with waits_seen(made.device) as waits:
        for _ in range(3):
            made._one()
    assert waits == []


class FakeGraphs(GraphedSteps):
    """Recordings that are the eager work itself: what is recorded when can be seen without a card."""

    num_forgotten = 0

    def _make_stream(self):
        return None

    def _capture(self, work):
        self.num_recordings += 1
        return work, None

    def _forget(self, *, crowded=False):
        self._replays = {}
        super()._forget(crowded=crowded)
        self.num_forgotten += 1


def test_a_size_and_degree_is_recorded_once_after_an_eager_step_and_anew_when_arrays_move(trainer):
    made, want = trainer(strategy="none", sh_every=4), trainer(strategy="none", sh_every=4)
    made.steps = FakeGraphs(made.train_step)
    made.run(8)
    assert made.steps.num_recordings == 2, "degrees 0 and 1, each after its first step"
    want.run(8)
    for name in LEARNABLE:
        assert torch.equal(made.state.alive(name), want.state.alive(name)), name
    made.state.take(torch.arange(made.state.count - 1))
    made.run(10)
    assert made.steps.num_recordings == 3 and made.steps.num_forgotten == 2


def test_recordings_are_given_up_before_pictures_have_more_pairs_than_room(trainer):
    made = trainer(strategy="none", sh_degree=0, steps=200)
    made.steps = FakeGraphs(made.train_step)
    made.run(5 * PEEK_EVERY)
    assert made.steps.num_recordings == 1, "pictures have no more pairs than those drawn before the recording"
    made.state.alive("scales").add_(1.0)
    made.run(9 * PEEK_EVERY)
    assert made.steps.num_recordings == 2, "splats that grew were seen within some steps, and once is enough"


def test_a_recording_has_room_for_a_quarter_more_pairs_than_the_heaviest_picture(trainer, monkeypatch):
    made = trainer(strategy="none", sh_degree=0, steps=200)
    made.steps = FakeGraphs(made.train_step)
    size = Key(made.state.device, 1, 32, 48)
    room = Room()
    room.learn(size, 1, 400)
    room.known[size].capacity = 1
    monkeypatch.setattr("hotlap.kernels.splat.cuda_room.ROOM", room)
    monkeypatch.setattr("hotlap.kernels.splat.cuda_room.STEP", 1)
    made.run(3)
    counts = []
    for number in range(len(made.stage.cameras)):
        frame = made.train_step.put((32, 48, 0), number, made.stage.pictures[number].image, None)
        counts.append(int(made.train_step.draw(frame, 0).facts.tiles_per_splat.sum()))
    assert made.steps.num_recordings == 1 and room.of(size, 400) >= 1.2 * max(counts) > 1


def test_of_very_many_sizes_no_step_is_recorded(trainer):
    sizes = tuple((32 + number, 48) for number in range(40))
    step = trainer(change=lambda stage: {"cameras": replace(stage.cameras, sizes=sizes)}).train_step
    assert type(make_steps(step, True)) is EagerSteps and step.most_frames == KEPT_FRAMES
    FakeGraphs(step)
    assert step.most_frames is None, "recordings keep what they read and write"


def test_a_cpu_runs_eagerly(trainer):
    made = trainer()
    assert type(made.steps) is EagerSteps and type(make_steps(made.train_step, False)) is EagerSteps
    assert made.steps.look_after() is False
