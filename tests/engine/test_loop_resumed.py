"""Trainings that go on from a checkpoint: the rows and weights are those of a run that was never stopped."""

from __future__ import annotations

import pytest
import torch
from killed_trainer import differences
from tiny_workload import Tiny
from whole_training import column, newest, train, trainer, whole

from hotlap.base.errors import LoaderDied, UsageError
from hotlap.engine.journal import read_journal
from hotlap.engine.pace import read_pace


def test_the_steps_may_end_within_an_epoch_and_go_on_from_there(tmp_path):
    train(tmp_path / "a", epochs=3)
    outcome = train(tmp_path / "b", epochs=3, steps=10)
    assert (outcome.step, outcome.epoch) == (10, 1)
    assert [row.step for row in read_journal(tmp_path / "b") if row.split == "eval"] == [7, 10]
    train(tmp_path / "b", epochs=3, resume=True)
    assert differences(newest(tmp_path / "a")["model"], newest(tmp_path / "b")["model"]) == []
    assert column(tmp_path / "a", "train", "loss") == column(tmp_path / "b", "train", "loss")


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


def test_a_checkpoint_of_another_model_is_refused_in_few_words(tmp_path):
    """Torch names every tensor: of a network with hundreds, screens full."""

    class Deep(Tiny):
        def build_model(self):
            return torch.nn.Sequential(super().build_model(), *(torch.nn.Linear(2, 2) for _ in range(200)))

    train(tmp_path, epochs=1)
    with pytest.raises(UsageError, match=r"does not fit the model: Error.* \.\.\. Leave the target") as caught:
        train(tmp_path, Deep(), epochs=2, resume=True)
    assert len(str(caught.value)) < 800


def test_settings_given_to_a_resumed_run_are_heeded(tmp_path):
    train(tmp_path, epochs=1, micro=4)
    train(tmp_path, epochs=2, resume=True, lr=0.001, micro=2)
    assert column(tmp_path, "train", "lr") == [0.02] * 7 + [0.001] * 7
    assert column(tmp_path, "train", "micro")[-2:] == [2.0, 2.0]


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


def test_the_pace_goes_on_after_a_resume_and_has_no_step_twice(tmp_path):
    train(tmp_path, epochs=2, save_every=5, steps=9)
    train(tmp_path, epochs=2, resume=True)
    rows = read_pace(tmp_path)
    assert [row.step for row in rows] == list(range(1, 15))
    assert [row.seconds for row in rows] == sorted(row.seconds for row in rows)
    assert all(row.values["samples_per_s"] > 0 for row in rows)
    (tmp_path / "pace.jsonl").write_text('{"step": 1, "seconds": 2.0, "values": {}}\n{"step": 2, "sec')
    assert [row.step for row in read_pace(tmp_path)] == [1]


def test_a_new_run_in_an_old_folder_does_not_keep_its_rows(tmp_path):
    first = whole(tmp_path)
    assert whole(tmp_path) == first
