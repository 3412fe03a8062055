"""Models that are served from recordings: outputs of batches in flight stay theirs, and memory is shared."""

from __future__ import annotations

import pytest
import torch

from hotlap.device.seed import generator
from hotlap.measure import loaded_workload
from hotlap.measure.arms import ArmSpec, parse_arm
from hotlap.measure.loaded_workload import RECORD_FROM, LoadedWorkload
from hotlap.measure.servable import ModelSpec
from hotlap.segment.served import SegmentServable
from hotlap.targets import load_target

TINY = {"width": 2, "size": 32, "batch": 3}
on_card = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]


class FakeRecorder:
    """Counts what it recorded and whether it was closed."""

    made: list[FakeRecorder] = []  # noqa: RUF012 - emptied by the fixture

    def __init__(self, device):
        self.sizes, self.closed = [], False
        FakeRecorder.made.append(self)

    def close(self):
        self.closed = True


class FakeStep:
    """Writes every result to the same place, as a replay does; batches of ``too_large`` rows run out of memory."""

    too_large = 0

    def __init__(self, step, example, *, model, optimizer, recorder):
        self._step, self._size = step, example[0].shape[0]
        if self._size == FakeStep.too_large:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        recorder.sizes.append(self._size)
        self._out = step(example).clone()

    def __call__(self, batch):
        assert batch[0].shape[0] == self._size
        result = self._step(batch)
        with torch.inference_mode():
            return self._out.copy_(result)


@pytest.fixture
def recorded(monkeypatch):
    """The call that loads a tiny network as if the CPU could record."""
    monkeypatch.setattr(loaded_workload, "GraphedStep", FakeStep)
    monkeypatch.setattr(loaded_workload, "Recorder", FakeRecorder)
    monkeypatch.setattr(FakeRecorder, "made", [])
    return lambda rows: LoadedWorkload(load_target("unet", TINY), ArmSpec(device="cpu", graph=True), rows)


def images(rows, seed=0):
    return load_target("unet", TINY).make_batch(rows, torch.device("cpu"), generator(seed))[0]


def test_every_batch_in_flight_keeps_its_own_outputs(recorded):
    loaded, plain = recorded(4), LoadedWorkload(load_target("unet", TINY), ArmSpec(device="cpu"), 4)
    asked = [images(rows, seed) for seed, rows in enumerate((4, 4, 3, 4, 1))]
    waiting = [loaded.begin([(x,)]) for x in asked]
    for x, wait in zip(asked, waiting, strict=True):
        torch.testing.assert_close(wait()[0], plain.run((x,))[0])


def test_every_size_is_recorded_at_the_start_by_one_recorder(recorded):
    loaded = recorded(6)
    for rows in (1, 2, 3, 5, 6):
        loaded.run((images(rows),))
    (recorder,) = FakeRecorder.made
    assert sorted(recorder.sizes) == [1, 2, 4, 6] and not recorder.closed


def test_a_shape_that_nobody_expected_is_recorded_when_it_comes_often(recorded):
    loaded, plain = recorded(2), LoadedWorkload(load_target("unet", TINY), ArmSpec(device="cpu"), 2)
    (recorder,), wide = FakeRecorder.made, torch.rand(2, 3, 32, 64, generator=generator(1))
    for _ in range(RECORD_FROM - 1):
        loaded.run((wide,))
    assert recorder.sizes == [2, 1]
    torch.testing.assert_close(loaded.run((wide,))[0], plain.run((wide,))[0])
    assert recorder.sizes == [2, 1, 2]


def test_a_shape_that_nobody_expected_is_not_compiled_for(monkeypatch):
    """It can take minutes, for which every client would wait."""
    compiled, seen = torch.nn.Identity(), []
    monkeypatch.setattr("hotlap.measure.session.Session._compiled", lambda self, model: compiled)
    workload = load_target("unet", TINY)
    monkeypatch.setattr(workload, "predict", lambda model, batch: seen.append(model is compiled) or model(batch[0]))
    loaded = LoadedWorkload(workload, ArmSpec(device="cpu", compile="default"), 2)
    before = len(seen)
    for side in (32, 64, 32):
        loaded.run((torch.rand(2, 3, 32, side, generator=generator(1)),))
    assert seen[before:] == [True, False, True]


def test_recordings_of_a_batch_that_does_not_fit_make_room_for_smaller_ones(recorded, monkeypatch):
    monkeypatch.setattr(FakeStep, "too_large", 2)  # beside the recording of four rows
    loaded = recorded(4)
    assert loaded.signature.rows == 1
    first, *_, last = FakeRecorder.made
    assert first.closed and first.sizes == [4]
    assert not last.closed and last.sizes == [1]


@pytest.mark.parametrize("arm", ["cuda", "cuda:bf16+channels_last"])
class TestOnACard:
    pytestmark = on_card

    def loaded(self, arm):
        options = {"model": "hrnet", "width": 8, "size": 64, "batch": 4}
        spec = ModelSpec(name="m", target="cells", options=options, arm=arm, rows=4)
        return SegmentServable(spec).load("cuda:0")

    def recorded(self, arm):
        return self.loaded(f"{arm}+graph" if ":" in arm else f"{arm}:graph")

    def tiles(self, rows, seed):
        drawn = torch.randint(256, (rows, 64, 64, 3), generator=generator(seed), dtype=torch.uint8)
        return drawn.permute(0, 3, 1, 2)

    def test_batches_in_flight_are_answered_as_without_recordings(self, arm):
        plain, mine = self.loaded(arm), self.recorded(arm)
        assert parse_arm(mine.signature.arm).graph and not parse_arm(plain.signature.arm).graph
        asked = [self.tiles(rows, seed) for seed, rows in enumerate((4, 4, 3, 1, 2, 4, 4))]
        want = [plain.run((x,))[0].float() for x in asked]
        apart = (want[0] - want[1]).abs().mean()  # what answers of other batches would show
        waiting = [mine.begin([(row[None],) for row in x]) for x in asked]
        for number, wait in enumerate(waiting):
            assert (wait()[0].float() - want[number]).abs().mean() < apart / 4, f"batch {number}"

    def test_no_size_of_batch_is_recorded_while_clients_wait(self, arm, monkeypatch):
        mine = self.recorded(arm)
        monkeypatch.setattr(loaded_workload, "GraphedStep", None)
        for rows in (1, 2, 3, 4, 4, 3):
            (out,) = mine.run((self.tiles(rows, rows),))
            assert out.device.type == "cpu" and out.shape[0] == rows
