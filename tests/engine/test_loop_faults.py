"""What goes wrong in a training: bad samples, losses that are no numbers, full disks, memory, dead workers."""

from __future__ import annotations

import errno
import math

import pytest
import torch
from tiny_workload import Tiny
from torch import nn
from whole_training import column, train, trainer, whole

from hotlap.base.errors import DataError, LoaderDied, OutOfMemory, StorageError
from hotlap.engine import checkpoint as checkpoint_module
from hotlap.engine.checkpoint import CheckpointStore
from hotlap.engine.diverged import Diverged, wrong_loss
from hotlap.engine.journal import read_journal
from hotlap.workload import BadSample


def test_bad_samples_are_left_out_counted_and_listed(tmp_path):
    heard = []
    workload = Tiny(bad=(3, 17), bad_eval=(3,), num_train=20)
    outcome = train(tmp_path, workload, on_bad_sample="skip", emit=heard.append, epochs=2)
    assert outcome.num_bad_samples == 3
    assert (tmp_path / "bad_samples.txt").read_text().splitlines() == [
        "eval\t3\trows/3\tits bytes are gone",
        "train\t3\trows/3\tits bytes are gone",
        "train\t17\trows/17\tits bytes are gone",
    ]
    assert sum(event.kind == "warn" and "bad sample" in event.text for event in heard) == 3


def test_the_loss_is_the_mean_over_the_samples_that_are_left(tmp_path):
    workload = Tiny(bad=(1, 4), num_train=6, noise=0.0, dropout=0.0, norm=False)
    made = trainer(tmp_path, workload, batch=6, epochs=1, on_bad_sample="skip")
    model = made.parts.model
    kept = [0, 2, 3, 5]
    want = nn.functional.cross_entropy(model(workload.train_rows.x[kept]), workload.train_rows.y[kept]).item()
    made.run()
    assert column(tmp_path, "train", "loss") == pytest.approx([want], rel=1e-5)


def test_a_batch_of_bad_samples_alone_is_passed_over(tmp_path):
    probe = trainer(tmp_path / "probe", Tiny(num_train=12), batch=4, epochs=1)
    bad = tuple(probe.parts.loader.order(0)[4:8])
    outcome = train(tmp_path, Tiny(num_train=12, bad=bad), batch=4, epochs=1, on_bad_sample="skip")
    assert (outcome.status, outcome.step, outcome.num_bad_samples) == ("complete", 3, 4)
    assert [row.step for row in read_journal(tmp_path) if row.split == "train"] == [1, 3]


def test_bad_data_stops_the_run_unless_told_otherwise(tmp_path):
    with pytest.raises(BadSample, match=r"bad sample 3 \(rows/3\): its bytes are gone.*--on-bad-sample skip"):
        train(tmp_path, Tiny(bad=(3,)))
    with pytest.raises(DataError, match=r"all 12 samples of the training data are bad. bad_samples.txt"):
        train(tmp_path, Tiny(num_train=12, bad=tuple(range(12))), on_bad_sample="skip")


def test_an_evaluation_of_nothing_has_no_scores(tmp_path):
    """They would be those of no picture: a loss of 0, and whatever the metrics make of nothing."""
    with pytest.raises(DataError, match=r"all 20 samples of the evaluation data are bad. bad_samples.txt says why"):
        train(tmp_path, Tiny(bad_eval=tuple(range(20))), epochs=1, on_bad_sample="skip")
    listed = (tmp_path / "bad_samples.txt").read_text().splitlines()
    assert len(listed) == 20 and listed[3] == "eval\t3\trows/3\tits bytes are gone"
    assert not [row for row in read_journal(tmp_path) if row.split == "eval"]


class Explodes(Tiny):
    """Its loss is no number from the given call on."""

    def __init__(self, at: int) -> None:
        super().__init__()
        self.left = at

    def loss(self, model, batch):
        total, count = super().loss(model, batch)
        self.left -= model.training
        return (total * math.nan if self.left < 0 else total), count


def test_a_loss_that_is_no_number_ends_the_run_before_it_spoils_a_checkpoint(tmp_path):
    with pytest.raises(Diverged, match=r"the loss was nan at step 6.*smaller --lr.*the checkpoint of step 4") as caught:
        train(tmp_path, Explodes(5), save_every=2, log_every=50)
    assert caught.value.exit_code == 1
    assert CheckpointStore(tmp_path / "checkpoints").steps() == [2, 4]
    with pytest.raises(Diverged, match=r"the loss was nan at step 3, in epoch 1. Take a smaller --lr.*clip-norm 1.$"):
        train(tmp_path / "b", Explodes(2))


def test_weights_that_are_no_numbers_are_not_saved(tmp_path):
    made = trainer(tmp_path, save_every=1, log_every=50)
    made.parts.optimizer.step = spoiling(made.parts.optimizer.step, made.parts.model)
    with pytest.raises(Diverged, match="a weight was nan at step 1"):
        made.run()
    assert CheckpointStore(tmp_path / "checkpoints").steps() == []


def spoiling(step, model):
    def spoil():
        step()
        with torch.no_grad():
            next(model.parameters()).fill_(math.nan)

    return spoil


def test_one_step_that_overflows_under_a_loss_scale_is_no_divergence():
    assert wrong_loss([math.inf, 1.0], is_scaled=True) == ""
    assert wrong_loss([math.inf, 1.0], is_scaled=False) == "the loss was inf"
    assert wrong_loss([math.nan, math.inf], is_scaled=True) == "the loss was nan"
    assert wrong_loss([], is_scaled=True) == wrong_loss([], is_scaled=False) == ""


def test_a_full_disk_ends_the_run_and_leaves_its_checkpoints(tmp_path, monkeypatch):
    dump, saves = checkpoint_module._dump, []

    def fill_up(data, file):
        saves.append(1)
        if len(saves) > 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        return dump(data, file)

    monkeypatch.setattr(checkpoint_module, "_dump", fill_up)
    with pytest.raises(StorageError, match=r"cannot write the checkpoint of step 6.*No space left on device"):
        train(tmp_path, save_every=2)
    monkeypatch.undo()
    store = CheckpointStore(tmp_path / "checkpoints")
    assert (store.steps(), store.load().step) == ([2, 4], 4)
    train(tmp_path, save_every=2, resume=True)
    assert (tmp_path / "metrics.jsonl").read_bytes() == whole(tmp_path / "whole", save_every=2)


class NeedsMemory(nn.Module):
    """A layer that fits so many samples; then less and less from the given call on."""

    fits = 10**6

    def forward(self, x):
        if self.training and len(x) > self.fits:
            raise torch.OutOfMemoryError(f"out of memory: {len(x)} samples")
        return x


class Big(Tiny):
    def __init__(self, fits: int) -> None:
        super().__init__(norm=False)
        self.layer = NeedsMemory()
        self.layer.fits = fits

    def build_model(self) -> nn.Module:
        model = super().build_model()
        return nn.Sequential(*model[:3], self.layer, *model[3:])


def test_memory_that_runs_out_is_counted_and_said(tmp_path):
    heard = []
    outcome = train(tmp_path, Big(3), emit=heard.append, epochs=1)
    assert (outcome.num_splits, outcome.micro, outcome.status) == (2, 2, "complete")
    assert outcome.recovery_s > 0
    assert column(tmp_path, "train", "micro") == [2.0] * 7
    assert any("micro-batches of 4" in text for text in outcome.warnings)


def test_a_run_given_up_for_memory_goes_on_where_there_is_more(tmp_path):
    workload = Big(10**6)
    made = trainer(tmp_path / "b", workload, recompute="off")
    made.parts.schedule.apply = short_of_memory(made.parts.schedule.apply, workload.layer, at=5)
    with pytest.raises(OutOfMemory, match=r"layer '3' \(NeedsMemory\) on \[1, 16\].*The checkpoint of step 5 is saved"):
        made.run()
    outcome = train(tmp_path / "b", Big(10**6), resume=True, recompute="off")
    assert (outcome.resumed_from, outcome.micro) == (5, 1)
    train(tmp_path / "a", Big(10**6))
    losses = [column(tmp_path / name, "train", "loss") for name in "ab"]
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)  # the same dropout, summed in another order


def short_of_memory(apply, layer, at: int):
    def count(step):
        layer.fits = 0 if step == at else layer.fits
        return apply(step)

    return count


def test_a_workers_death_heard_of_within_a_step_is_no_fault_of_the_model(tmp_path):
    class Interrupted(Tiny):
        def loss(self, model, batch):
            raise RuntimeError("DataLoader worker (pid 123) is killed by signal: Killed. ")

    with pytest.raises(LoaderDied, match=r"worker \(pid 123\) died of Killed"):
        train(tmp_path, Interrupted())


def test_a_connection_that_the_model_itself_loses_is_its_own_error(tmp_path):
    class Remote(Tiny):
        def loss(self, model, batch):
            raise ConnectionResetError(104, "Connection reset by peer")

    with pytest.raises(ConnectionResetError):
        train(tmp_path, Remote(), workers=1)
