"""How a training judges itself: which checkpoint is the best, when it stops, what is evaluated."""

from __future__ import annotations

import math

import pytest
import torch
from tiny_workload import Tiny
from torch import nn
from whole_training import column, train, trainer, whole

from hotlap.base.errors import TargetError, UsageError
from hotlap.engine.exactness import find_inexact
from hotlap.engine.journal import read_journal


def test_the_best_checkpoint_is_that_of_the_best_evaluation(tmp_path):
    outcome = train(tmp_path, epochs=5, lr=0.5, monitor="accuracy", keep=1)
    scores = {row.step: row.values["accuracy"] for row in read_journal(tmp_path) if row.split == "eval"}
    best_step = max(scores, key=lambda step: (scores[step], -step))
    assert outcome.best_checkpoint.endswith(".pt")
    assert f"step-{best_step:08d}-" in outcome.best_checkpoint
    assert torch.load(outcome.best_checkpoint, weights_only=True)["progress"]["best"] == scores[best_step]
    assert "step-00000035-" in outcome.last_checkpoint


@pytest.mark.parametrize(("goal", "want"), [("auto", max), ("min", min), ("max", max)])
def test_the_goal_says_which_figure_is_better(tmp_path, goal, want):
    outcome = train(tmp_path, epochs=4, monitor="accuracy", goal=goal)
    assert outcome.best == want(column(tmp_path, "eval", "accuracy"))


class Given(Tiny):
    """Evaluations that come out as a test says."""

    def __init__(self, *scores: float, **options) -> None:
        super().__init__(**options)
        self.scores = list(scores)

    def metrics(self, model, data, device):
        return {"score": self.scores.pop(0)}


@pytest.mark.parametrize("score", ["good", [0.5], None])
def test_scores_that_are_no_numbers_are_refused_by_what_they_are(tmp_path, score):
    with pytest.raises(TargetError, match=r"metrics\(\) of 'tiny' returned \"\{'score': .*\. Expected a dict"):
        train(tmp_path, Given(score), epochs=1)


class Thawed(nn.Sequential):
    """As the remedy for BatchNorm says: a train() that leaves the norm as it is."""

    def train(self, mode=True):
        super().train(mode)
        self[1].eval()
        return self


class Freezing(Tiny):
    def build_model(self):
        return Thawed(*super().build_model())


def test_a_norm_that_the_models_own_train_leaves_alone_stays_frozen_over_evaluations(tmp_path):
    made = trainer(tmp_path, Freezing(), epochs=2)
    made.run()
    norm = made.parts.model[1]
    assert int(norm.num_batches_tracked) == 0 and not norm.training
    (told,) = find_inexact(nn.BatchNorm1d(4))
    assert "give the model a train() that leaves it in eval()" in told.remedy


def test_patience_stops_after_so_many_evaluations_without_a_better_one(tmp_path):
    heard = []
    outcome = train(
        tmp_path, Given(1, 3, 2, math.nan, 9), epochs=9, patience=2, monitor="score", emit=heard.append
    )  # fmt: skip
    assert (outcome.epoch, outcome.best) == (4, 3)
    assert any(event.text == "no better score in 2 evaluations: stopped" for event in heard)
    heard.clear()
    again = train(tmp_path, Given(9), epochs=9, patience=2, monitor="score", resume=True, emit=heard.append)
    assert (again.epoch, again.step) == (4, 28)
    assert any("nothing is left to do: no better score in 2 evaluations" in event.text for event in heard)


def test_a_plateau_lowers_the_learning_rate(tmp_path):
    train(tmp_path, Given(5, 4, 4, 4, 4, 4), epochs=6, schedule="plateau", monitor="score", log_every=7)
    assert column(tmp_path, "train", "lr") == pytest.approx([0.02] * 4 + [0.002] * 2)


def test_the_average_of_the_weights_is_what_is_evaluated(tmp_path):
    made = trainer(tmp_path, ema=0.95, epochs=1)
    outcome = made.run()
    parts = made.parts
    x, y = (torch.stack(column) for column in zip(*(parts.held_out[i] for i in range(20)), strict=True))
    with torch.no_grad():
        losses = [nn.functional.cross_entropy(m.eval()(x), y).item() for m in (parts.ema.module, parts.model)]
    assert outcome.metrics["loss"] == pytest.approx(losses[0], rel=1e-5)
    assert abs(losses[0] - losses[1]) > 1e-3


def test_no_evaluation_but_the_last(tmp_path):
    train(tmp_path, epochs=3, eval_every=0)
    assert [row.step for row in read_journal(tmp_path) if row.split == "eval"] == [21]


def test_a_monitor_that_is_not_evaluated_costs_no_epoch(tmp_path):
    with pytest.raises(UsageError, match=r"monitor = 'acuracy' is not evaluated. Did you mean 'accuracy'\? The chec"):
        train(tmp_path, monitor="acuracy")
    outcome = train(tmp_path, monitor="accuracy", resume=True)
    assert (outcome.resumed_from, outcome.status) == (7, "complete")
    assert (tmp_path / "metrics.jsonl").read_bytes() == whole(tmp_path / "whole", monitor="accuracy")


def test_a_batch_that_does_not_fit_the_evaluation_is_judged_in_parts(tmp_path):
    class BigEvaluation(Tiny):
        def loss(self, model, batch):
            if not model.training and len(batch[0]) > 3:
                raise torch.OutOfMemoryError("out of memory")
            return super().loss(model, batch)

    whole_loss = train(tmp_path / "a", epochs=1).metrics["loss"]
    assert train(tmp_path / "b", BigEvaluation(), epochs=1).metrics["loss"] == pytest.approx(whole_loss, rel=1e-6)
