"""The training loop on a workload of milliseconds: it learns, judges, stops, logs, saves, and says what is wrong."""

from __future__ import annotations

import errno
import math

import pytest
import torch
from killed_trainer import differences
from tiny_workload import Tiny
from torch import nn

from hotlap.base.errors import DataError, LoaderDied, OutOfMemory, StorageError, UsageError
from hotlap.engine import checkpoint as checkpoint_module
from hotlap.engine.checkpoint import CheckpointStore
from hotlap.engine.config import TrainConfig
from hotlap.engine.diverged import Diverged, wrong_loss
from hotlap.engine.journal import read_journal
from hotlap.engine.loop import Trainer
from hotlap.engine.pace import read_pace
from hotlap.workload import BadSample, Workload

QUICK = {"epochs": 2, "log_every": 1, "lr": 0.02}


def trainer(folder, workload=None, device="cpu", *, emit=lambda event: None, should_stop=lambda: False, **settings):
    config = TrainConfig(target="tiny", **(QUICK | settings))
    return Trainer(
        workload or Tiny(), config, folder, torch.device(device), emit=emit, should_stop=should_stop
    )  # fmt: skip


def train(folder, workload=None, device="cpu", *, resume=False, **settings):
    """A whole training in this process, from the newest checkpoint if asked; its outcome."""
    made = trainer(folder, workload, device, **settings)
    return made.run(made.store.load() if resume else None)


def column(folder, split: str, name: str) -> list[float]:
    return [row.values[name] for row in read_journal(folder) if row.split == split]


def newest(folder) -> dict:
    return CheckpointStore(folder / "checkpoints").load().state


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


def test_the_steps_may_end_within_an_epoch_and_go_on_from_there(tmp_path):
    train(tmp_path / "a", epochs=3)
    outcome = train(tmp_path / "b", epochs=3, steps=10)
    assert (outcome.step, outcome.epoch) == (10, 1)
    assert [row.step for row in read_journal(tmp_path / "b") if row.split == "eval"] == [7, 10]
    train(tmp_path / "b", epochs=3, resume=True)
    assert differences(newest(tmp_path / "a")["model"], newest(tmp_path / "b")["model"]) == []
    assert column(tmp_path / "a", "train", "loss") == column(tmp_path / "b", "train", "loss")


def test_no_evaluation_but_the_last(tmp_path):
    train(tmp_path, epochs=3, eval_every=0)
    assert [row.step for row in read_journal(tmp_path) if row.split == "eval"] == [21]


def test_a_run_with_more_epochs_goes_on_and_a_finished_one_has_nothing_to_do(tmp_path):
    heard = []
    train(tmp_path / "a", epochs=4)
    train(tmp_path / "b", epochs=2)
    rows = (tmp_path / "b" / "metrics.jsonl").read_bytes()
    finished = train(tmp_path / "b", epochs=2, resume=True, emit=heard.append)
    assert (tmp_path / "b" / "metrics.jsonl").read_bytes() == rows
    assert finished.metrics == train(tmp_path / "c", epochs=2).metrics
    assert any("nothing is left to do: epochs = 2 are done" in event.text for event in heard)
    train(tmp_path / "b", epochs=4, resume=True)
    assert (tmp_path / "a" / "metrics.jsonl").read_bytes() == (tmp_path / "b" / "metrics.jsonl").read_bytes()


def test_a_run_stopped_in_any_place_writes_the_rows_it_would_have_written(tmp_path):
    train(tmp_path / "whole", log_every=4, ema=0.9)
    num_stops = 0

    def every_fifth_time() -> bool:  # an evaluation asks three times, and must get through at some time
        nonlocal num_stops
        num_stops += 1
        return num_stops % 5 == 0

    statuses = []
    while len(statuses) < 30 and "complete" not in statuses:
        settings = {"log_every": 4, "ema": 0.9, "should_stop": every_fifth_time}
        statuses.append(train(tmp_path / "parts", resume=bool(statuses), **settings).status)
    assert len(statuses) > 3
    for name in ("metrics.jsonl", "metrics.csv"):
        assert (tmp_path / "whole" / name).read_bytes() == (tmp_path / "parts" / name).read_bytes()
    assert differences(newest(tmp_path / "whole"), newest(tmp_path / "parts")) == []


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


def test_a_monitor_that_is_not_evaluated_costs_no_epoch(tmp_path):
    with pytest.raises(UsageError, match=r"monitor = 'acuracy' is not evaluated. Did you mean 'accuracy'\? The chec"):
        train(tmp_path, monitor="acuracy")
    outcome = train(tmp_path, monitor="accuracy", resume=True)
    assert (outcome.resumed_from, outcome.status) == (7, "complete")
    assert (tmp_path / "metrics.jsonl").read_bytes() == whole(tmp_path / "whole", monitor="accuracy")


def whole(folder, **settings) -> bytes:
    train(folder, **settings)
    return (folder / "metrics.jsonl").read_bytes()


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


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"batch": 4}, "batch = 4, but the run to resume has batch = 8. Leave --batch"),
        ({"seed": 5}, "seed = 5, but the run to resume has seed = 0. Leave --seed"),
        ({"workload": Tiny(num_train=40)}, "the training data holds 40 samples, but .* held 52"),
        ({"workload": Tiny(norm=False)}, "does not fit the model: Error.* in loading state_dict .*workload options"),
    ],
)
def test_a_checkpoint_of_another_run_is_refused(tmp_path, changed, words):
    train(tmp_path, epochs=1)
    with pytest.raises(UsageError, match=words):
        train(tmp_path, changed.pop("workload", None), epochs=2, resume=True, **changed)


def test_settings_given_to_a_resumed_run_are_heeded(tmp_path):
    train(tmp_path, epochs=1, micro=4)
    train(tmp_path, epochs=2, resume=True, lr=0.001, micro=2)
    assert column(tmp_path, "train", "lr") == [0.02] * 7 + [0.001] * 7
    assert column(tmp_path, "train", "micro")[-2:] == [2.0, 2.0]


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


def test_a_batch_that_does_not_fit_the_evaluation_is_judged_in_parts(tmp_path):
    class BigEvaluation(Tiny):
        def loss(self, model, batch):
            if not model.training and len(batch[0]) > 3:
                raise torch.OutOfMemoryError("out of memory")
            return super().loss(model, batch)

    whole_loss = train(tmp_path / "a", epochs=1).metrics["loss"]
    assert train(tmp_path / "b", BigEvaluation(), epochs=1).metrics["loss"] == pytest.approx(whole_loss, rel=1e-6)


def test_a_workers_death_heard_of_within_a_step_is_no_fault_of_the_model(tmp_path):
    class Interrupted(Tiny):
        def loss(self, model, batch):
            raise RuntimeError("DataLoader worker (pid 123) is killed by signal: Killed. ")

    with pytest.raises(LoaderDied, match=r"worker \(pid 123\) died of Killed"):
        train(tmp_path, Interrupted())


def test_workers_that_were_stopped_with_the_trainer_do_not_spoil_its_checkpoint(tmp_path):
    stopping = []
    made = trainer(tmp_path / "b", should_stop=lambda: bool(stopping))
    batches = made.parts.loader.epoch

    def die_after_three(*position):
        for count, loaded in enumerate(batches(*position)):
            if count == 3:
                stopping.append(True)
                raise LoaderDied("a loader's worker (pid 1) died of SIGTERM")
            yield loaded

    made.parts.loader.epoch = die_after_three
    outcome = made.run()
    assert (outcome.status, outcome.step) == ("interrupted", 3)
    train(tmp_path / "b", resume=True)
    assert (tmp_path / "b" / "metrics.jsonl").read_bytes() == whole(tmp_path / "a")


def test_one_step_that_overflows_under_a_loss_scale_is_no_divergence():
    assert wrong_loss([math.inf, 1.0], is_scaled=True) == ""
    assert wrong_loss([math.inf, 1.0], is_scaled=False) == "the loss was inf"
    assert wrong_loss([math.nan, math.inf], is_scaled=True) == "the loss was nan"
    assert wrong_loss([], is_scaled=True) == wrong_loss([], is_scaled=False) == ""


def test_the_pace_goes_on_after_a_resume_and_has_no_step_twice(tmp_path):
    train(tmp_path, epochs=2, save_every=5, steps=9)
    train(tmp_path, epochs=2, resume=True)
    rows = read_pace(tmp_path)
    assert [row.step for row in rows] == list(range(1, 15))
    assert [row.seconds for row in rows] == sorted(row.seconds for row in rows)
    assert all(row.values["samples_per_s"] > 0 for row in rows)
    (tmp_path / "pace.jsonl").write_text('{"step": 1, "seconds": 2.0, "values": {}}\n{"step": 2, "sec')
    assert [row.step for row in read_pace(tmp_path)] == [1]


def test_a_batch_larger_than_the_data_is_refused(tmp_path):
    with pytest.raises(UsageError, match="batch = 64 is larger than the 52 samples"):
        trainer(tmp_path, batch=64)


def test_a_new_run_in_an_old_folder_does_not_keep_its_rows(tmp_path):
    first = whole(tmp_path)
    assert whole(tmp_path) == first


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
