"""The training loop on a workload of milliseconds: it learns in every precision and layout, and says what it cannot."""

from __future__ import annotations

import math

import pytest
import torch
from killed_trainer import differences
from tiny_workload import Tiny
from torch import nn
from whole_training import column, newest, train, trainer

from hotlap.base.errors import UsageError
from hotlap.engine.config import TrainConfig
from hotlap.engine.journal import read_journal
from hotlap.engine.loop import Trainer
from hotlap.targets import MADE_UP_LOSS, InputSpec, ModuleWorkload
from hotlap.workload import Workload


def test_it_learns_and_says_how_well(tmp_path, device):
    outcome = train(tmp_path, device=device, epochs=12, clip_norm=5.0, monitor="accuracy", warmup=3)
    losses = column(tmp_path, "train", "loss")
    assert outcome.status == "complete"
    assert (outcome.step, outcome.epoch) == (12 * 7, 12)
    assert sum(losses[-7:]) < 0.6 * sum(losses[:7])
    assert outcome.metrics["accuracy"] > 0.8
    assert outcome.best == max(column(tmp_path, "eval", "accuracy"))
    assert outcome.samples_per_s > 0
    assert (outcome.peak_bytes is not None) == (device.type == "cuda")
    assert column(tmp_path, "train", "lr")[:4] == pytest.approx([0.02 / 3, 0.04 / 3, 0.02, 0.02])
    assert all(norm > 0 for norm in column(tmp_path, "train", "grad_norm"))
    assert [row.epoch for row in read_journal(tmp_path) if row.split == "eval"] == list(range(1, 13))


def test_a_training_of_a_plain_module_says_that_its_loss_is_made_up(tmp_path):
    """Of several outputs the first alone is in it, and without a word that would pass for a training."""

    class Two(nn.Linear):
        def forward(self, x):
            return {"first": super().forward(x), "second": x}

    config = TrainConfig(target="net.py:two", input=("4",), steps=1, device="cpu")
    workload = ModuleWorkload("two", lambda: Two(4, 3), [InputSpec((4,))])
    assert Trainer(workload, config, tmp_path, torch.device("cpu")).run().warnings == (MADE_UP_LOSS,)
    assert MADE_UP_LOSS not in train(tmp_path / "own", steps=1).warnings


def test_the_end_may_be_moved_while_it_trains(tmp_path):
    def stop() -> bool:
        if made.progress.step == 4:
            made.end_at(9)
        return False

    made = trainer(tmp_path, epochs=100, schedule="cosine", should_stop=stop)
    outcome = made.run()
    assert (outcome.status, outcome.step) == ("complete", 9)
    rates = column(tmp_path, "train", "lr")
    assert rates[:4] == pytest.approx([0.02] * 4, rel=1e-3)
    assert rates[4:] == pytest.approx([0.01 * (1 + math.cos(math.pi * step / 9)) for step in range(4, 9)])


@pytest.mark.parametrize("precision", ["bf16-mixed", "16-mixed"])
def test_half_precision_learns_and_resumes(tmp_path, device, precision):
    outcome = train(tmp_path / "a", device=device, precision=precision, epochs=4)
    assert outcome.metrics["loss"] < column(tmp_path / "a", "eval", "loss")[0]
    assert bool(newest(tmp_path / "a")["scaler"]) == (precision == "16-mixed")
    train(tmp_path / "b", device=device, precision=precision, epochs=2)
    train(tmp_path / "b", device=device, precision=precision, epochs=4, resume=True)
    if device.type == "cpu":
        assert differences(newest(tmp_path / "a")["model"], newest(tmp_path / "b")["model"]) == []


class Pictures(Tiny):
    """Convolutions that tell in which order their input lay."""

    def __init__(self) -> None:
        super().__init__()
        self.orders: set[bool] = set()

    def build_model(self) -> nn.Module:
        return nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(64, 2))

    def make_batch(self, n, device, generator):
        x = torch.randn(n, 3, 6, 6, generator=generator)
        return x.to(device), (x.mean((1, 2, 3)) > 0).long().to(device)

    def loss(self, model, batch):
        self.orders.add(batch[0].is_contiguous(memory_format=torch.channels_last))
        return super().loss(model, batch)

    def train_data(self):
        return None

    def eval_data(self):
        return None


def test_channels_last_reaches_the_model_and_its_input(tmp_path, device):
    workload = Pictures()
    made = trainer(tmp_path, workload, device, channels_last=True, epochs=1)
    made.run()
    assert workload.orders == {True}
    assert made.parts.model[0].weight.is_contiguous(memory_format=torch.channels_last)


def test_a_workload_without_data_of_its_own_is_trained_on_what_it_draws(tmp_path):
    outcome = train(tmp_path, Pictures(), epochs=2)
    assert (outcome.step, outcome.metrics, outcome.best_checkpoint) == (2 * 16, {}, "")
    assert outcome.last_checkpoint


@pytest.mark.parametrize("settings", [{"patience": 3}, {"schedule": "plateau"}])
def test_settings_that_judge_need_data_to_judge_by(tmp_path, settings):
    ((name, value),) = settings.items()
    with pytest.raises(UsageError, match=rf"{name} = {value!r} goes by evaluations, but the workload has no eval_data"):
        trainer(tmp_path, Pictures(), **settings)


def test_a_batch_larger_than_the_data_is_refused(tmp_path):
    with pytest.raises(UsageError, match="batch = 64 is larger than the 52 samples"):
        trainer(tmp_path, batch=64)


def test_a_compiled_model_is_what_is_trained(tmp_path, monkeypatch):
    asked = []

    def compile_quickly(model, **options):
        asked.append(options)
        return compile_with(model, backend="eager", dynamic=options["dynamic"])

    compile_with = torch.compile
    monkeypatch.setattr(torch, "compile", compile_quickly)
    outcome = train(tmp_path / "a", Tiny(norm=False), compile="max-autotune", epochs=1, steps=3)
    assert asked == [{"mode": "max-autotune", "dynamic": False}]
    assert outcome.metrics == train(tmp_path / "b", Tiny(norm=False), epochs=1, steps=3).metrics


def test_a_workload_that_cannot_build_a_model_says_so(tmp_path):
    with pytest.raises(UsageError, match="does not say how to build its model"):
        trainer(tmp_path, Workload())


def test_kernels_of_our_own_train_the_same():
    from hotlap.engine.config import TrainConfig
    from hotlap.engine.parts import build
    from hotlap.targets import load_target

    losses = []
    for kernels in (False, True):
        workload = load_target("bilstm", {"hidden": 8, "length": 32, "embedding": 8, "train_texts": 16})
        config = TrainConfig(target="bilstm", batch=8, kernels=kernels)
        parts = build(workload, config, torch.device("cpu"), team=None, say=print)
        assert parts.model.recurrence == ("auto" if kernels else "torch")
        losses.append([parts.step(loaded.batch).loss for loaded in parts.loader.epoch(0)])
    torch.testing.assert_close(losses[1], losses[0], rtol=1e-5, atol=0)
