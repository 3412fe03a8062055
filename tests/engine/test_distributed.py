"""Several processes: they agree with one, whoever runs out of memory, dies or has nothing to do."""

from __future__ import annotations

import os
import signal
import time
from functools import partial

import pytest
import torch
from forked_team import free_port, in_team
from masked_rows import Masked, RunsOut, is_second
from torch import nn

from hotlap.base.errors import ConfigError, LoaderDied
from hotlap.engine import distributed
from hotlap.engine.checkpoint import CheckpointStore
from hotlap.engine.config import TrainConfig
from hotlap.engine.distributed import TeamLost
from hotlap.engine.loop import Trainer
from hotlap.engine.place import Place

CPU = torch.device("cpu")
CLOSE = {"rtol": 1e-11, "atol": 1e-13}
"""Sums of a few terms in float64, taken in another order, over some 20 steps."""


def settings(**changes):
    return TrainConfig(**{"target": "masked", "epochs": 4, "log_every": 1, "probation": 3, "device": "cpu", **changes})


def train(team, folder, config, trouble=None, *, resume=False, stop_after=1000, device=CPU, **samples):
    """Weights, losses and outcome of a training of one process or of one of a team's."""
    seen = []
    stop = lambda: len(seen) >= stop_after and (team is None or is_second())  # noqa: E731
    trainer = Trainer(Masked(trouble, **samples), config, folder, device, team=team, should_stop=stop)
    step = trainer.parts.step

    def spied(batch, **place):
        result = step(batch, **place)
        seen.append((float(result.loss), result.num_splits, getattr(step, "overlaps", False)))
        return result

    trainer.parts.step = Spied(step, spied)
    checkpoint = trainer.store.load("latest") if resume else None
    outcome = trainer.run(checkpoint)
    return {k: v.clone() for k, v in trainer.parts.model.state_dict().items()}, seen, outcome


class Spied:
    def __init__(self, step, call):
        self.__dict__ |= {"_step": step, "_call": call}

    def __call__(self, *args, **kwargs):
        return self._call(*args, **kwargs)

    def __getattr__(self, name):
        return getattr(self._step, name)


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """The same training in one process."""
    return train(None, tmp_path_factory.mktemp("alone"), settings())


def losses(seen):
    return torch.tensor([loss for loss, *_ in seen])


def assert_same_training(got, want):
    torch.testing.assert_close(got[0], want[0], **CLOSE)
    torch.testing.assert_close(losses(got[1]), losses(want[1]), rtol=1e-6, atol=0)  # kept as float32
    assert got[2].step == want[2].step == 16
    assert got[2].metrics == pytest.approx(want[2].metrics, rel=1e-11) and "loss" in got[2].metrics


@pytest.mark.parametrize("probation", [0, 3, 1000], ids=["overlapping", "both", "voting"])
def test_two_processes_equal_one(tmp_path, alone, probation):
    both = in_team(train, tmp_path, settings(probation=probation))
    for got in both:
        assert_same_training(got, alone)
    torch.testing.assert_close(both[0][0], both[1][0], rtol=0, atol=0)
    assert any(overlapped for *_, overlapped in both[0][1]) == (probation < 1000)


@pytest.mark.parametrize(
    ("where", "probation", "at_call"),
    [("forward", 1000, 1), ("forward", 1000, 6), ("backward", 1000, 6), ("forward", 2, 6)],
    ids=["forward-first-step", "forward", "backward", "forward-overlapping"],
)
def test_one_process_out_of_memory_makes_all_split_and_replay(tmp_path, alone, where, probation, at_call):
    both = in_team(train, tmp_path, settings(probation=probation), RunsOut(where, at_call=at_call, fits=2))
    for got in both:
        assert_same_training(got, alone)
        assert [splits for _, splits, _ in got[1]].count(1) == 1
        assert got[2].num_splits == 1 and got[2].micro == 2


def test_out_of_memory_while_gradients_are_shared_asks_for_a_new_start(tmp_path):
    trouble = RunsOut("backward", at_call=8, fits=2)
    first, second = in_team(train, tmp_path, settings(probation=2), trouble)
    assert "SplitWanted: memory ran out while gradients were being shared" in str(second)
    assert "with micro-batches of 2" in str(second)
    assert "process 0 of 2 cannot share gradients" in str(first)


def test_nothing_fits_is_told_by_all_after_a_checkpoint(tmp_path):
    both = in_team(train, tmp_path, settings(), RunsOut("forward", at_call=4, fits=0))
    for error in both:
        assert "with 1 sample at a time" in str(error) and "The checkpoint of step 3 is saved" in str(error)
    assert [path.name.split("-")[1] for path in (tmp_path / "checkpoints").glob("step-*.pt")] == ["00000003"]


def test_a_killed_loader_worker_ends_both_processes_with_its_cause(tmp_path):
    body = partial(train, deadly_sample=5)
    first, second = in_team(body, tmp_path, settings(workers=1))
    assert isinstance(second, LoaderDied) and "SIGKILL" in str(second)
    assert isinstance(first, TeamLost) and "process 0 of 2 cannot vote" in str(first)


def test_a_killed_process_ends_the_other(tmp_path):
    first, second = in_team(train, tmp_path, settings(), die)
    assert second == -signal.SIGKILL
    assert isinstance(first, TeamLost) and "Another process ended or hangs" in str(first)


def die(out):
    if is_second():
        os.kill(os.getpid(), signal.SIGKILL)
    return out


def test_a_training_goes_on_in_another_number_of_processes(tmp_path, alone):
    assert train(None, tmp_path, settings(), stop_after=5)[2].step == 5
    for got in in_team(partial(train, resume=True, stop_after=6), tmp_path, settings()):
        assert got[2].status == "interrupted" and got[2].step == 12, "told in one process, agreed on in the next step"
    got = train(None, tmp_path, settings(), resume=True)
    torch.testing.assert_close(got[0], alone[0], **CLOSE)


def whole_weights(team, folder, config, *arguments, **more):
    """As ``train``, with the weights as the last checkpoint holds them: put together, where they were sharded."""
    _, seen, outcome = train(team, folder, config, *arguments, **more)
    return CheckpointStore(folder / "checkpoints").load("latest").state["model"], seen, outcome


@pytest.mark.parametrize(("micro", "recompute"), [(None, "off"), (2, "on")])
def test_sharded_equals_one_process(tmp_path, alone, micro, recompute):
    config = settings(fsdp=True, micro=micro, recompute=recompute, clip_norm=1e9)
    for got in in_team(whole_weights, tmp_path, config):
        assert_same_training(got, alone)


def test_sharded_and_whole_go_on_from_one_another(tmp_path, alone):
    assert train(None, tmp_path, settings(), stop_after=5)[2].step == 5
    sharded = settings(fsdp=True)
    for got in in_team(partial(train, resume=True, stop_after=5), tmp_path, sharded):
        assert got[2].step == 11
    got = train(None, tmp_path, settings(), resume=True)
    torch.testing.assert_close(got[0], alone[0], **CLOSE)


@pytest.mark.parametrize(("fits", "words"), [(2, "with micro-batches of 2"), (0, "with 1 sample at a time")])
def test_sharded_and_out_of_memory_asks_for_a_new_start_or_gives_up(tmp_path, fits, words):
    config = settings(fsdp=True, micro=None if fits else 1, recompute="off")
    first, second = in_team(train, tmp_path, config, RunsOut("forward", at_call=3, fits=fits))
    assert words in str(second)
    assert isinstance(first, TeamLost) and "process 0 of 2 cannot" in str(first)


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ({"ema": 0.9}, "ema = 0.9 with fsdp = True"),
        ({"channels_last": True}, "channels_last = True with fsdp = True"),
        ({"precision": "16-mixed"}, "precision = '16-mixed' with fsdp = True"),
        ({"timeout_s": 0.0}, "timeout_s = 0.0"),
        ({"probation": -1}, "probation = -1"),
    ],
)
def test_settings_that_cannot_be_are_refused_by_name(setting, words):
    with pytest.raises(ConfigError, match=words):
        settings(fsdp=True, **setting)


def test_gradients_are_added_up_in_pieces(monkeypatch):
    monkeypatch.setattr(distributed, "BUCKET_BYTES", 64)
    for sums in in_team(add_up_odd_gradients):
        for got, want in zip(sums, [3.0, 3.0, 2.0, None, 3.0], strict=True):
            assert got is None if want is None else bool((got == want).all())


def add_up_odd_gradients(team):
    """Larger than a piece, not contiguous, on one process only, on none, and of another type."""
    shapes = [(40,), (2, 3, 4), (3,), (2,), (5,)]
    parameters = [nn.Parameter(torch.zeros(shape)) for shape in shapes]
    parameters[4].data = parameters[4].data.double()
    team.reserve(parameters)
    mine = team.rank + 1.0
    for number in (0, 4):
        parameters[number].grad = torch.full_like(parameters[number], mine)
    parameters[1].grad = torch.full((4, 3, 2), mine).permute(2, 1, 0)
    if team.rank == 1:
        parameters[2].grad = torch.full((3,), mine)
    team.sum_gradients(parameters)
    return [p.grad for p in parameters]


def test_sparse_gradients_are_refused_by_shape():
    for error in in_team(add_up_sparse):
        assert "a gradient of shape [4, 2] is sparse" in str(error)


def add_up_sparse(team):
    layer = nn.Embedding(4, 2, sparse=True)
    layer(torch.tensor([1])).sum().backward()
    team.sum_gradients(list(layer.parameters()))


def test_bad_samples_of_all_processes_are_listed_once(tmp_path):
    bad = (1, 2, 3, 4, 5, 6, 7, 8, 9, 20)
    body = partial(train, bad_samples=bad)
    first, second = in_team(body, tmp_path, settings(on_bad_sample="skip", probation=2))
    torch.testing.assert_close(first[0], second[0], rtol=0, atol=0)
    assert first[2].num_bad_samples == len(bad)
    listed = (tmp_path / "bad_samples.txt").read_text()
    assert all(listed.count(f"\trow {index}\t") == 1 for index in bad), listed


def test_a_process_that_hangs_is_given_up():
    first, second = in_team(vote_or_hang, wait_s=1.0)
    assert isinstance(first, TeamLost) and "process 0 of 2 cannot vote" in str(first)
    assert second == "woke up"


def vote_or_hang(team):
    if team.rank == 1:
        time.sleep(4)
        return "woke up"
    return team.any_failed(False)


def test_three_processes_agree(tmp_path, alone):
    for got in in_team(train, tmp_path, settings(probation=4), size=3):
        assert_same_training(got, alone)


@pytest.mark.parametrize("changes", [{"probation": 2}, {"fsdp": True}], ids=["overlapping", "sharded"])
def test_a_team_of_one_equals_none(tmp_path, monkeypatch, device, changes):
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", str(free_port()))
    want, *_ = whole_weights(None, tmp_path / "none", settings(), device=device)
    team = distributed.ProcessTeam(Place(rank=0, size=1, local_rank=0, local_size=1), device)
    try:
        got, *_ = whole_weights(team, tmp_path / "one", settings(**changes), device=device)
    finally:
        team.destroy()
    torch.testing.assert_close(got, want, **CLOSE)


@pytest.mark.parametrize(
    ("rank", "telling", "reporting"),
    [(0, "tell the others", "hear from the others"), (1, "hear from process 0", "report to process 0")],
)
def test_a_lost_connection_is_told_from_where_the_process_stands(monkeypatch, rank, telling, reporting):
    def reset(*_, **__):
        raise RuntimeError(
            "[/build/gloo/transport/tcp/pair.cc:545] Read error [127.0.0.1]:1958: Connection reset by peer. "
            "This is typically caused by a remote worker hanging. Good luck!"
        )

    team = object.__new__(distributed.ProcessTeam)
    team.rank, team.size, team._objects = rank, 2, None
    monkeypatch.setattr(distributed.dist, "broadcast_object_list", reset)
    monkeypatch.setattr(distributed.dist, "gather_object", reset)
    for call, doing in ((team.same, telling), (team.gather, reporting)):
        with pytest.raises(TeamLost) as lost:
            call(1)
        assert lost.value.what == (
            f"process {rank} of 2 cannot {doing}: Read error [127.0.0.1]:1958: Connection reset by peer"
        )
