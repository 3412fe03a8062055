"""The stages of a training, with a trainer that only remembers what it was asked."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from hotlap.base.errors import ConfigError, DataError
from hotlap.base.events import ignore
from hotlap.mesh.config import MeshTrainConfig
from hotlap.mesh.train import train_mesh
from hotlap.records.environment import capture
from hotlap.records.measurement import Verdict
from hotlap.records.run import begin, run_folder, save


@pytest.fixture
def prepared(tmp_path):
    folder = tmp_path / "prepared"
    folder.mkdir()
    names = [f"thing_{number}" for number in range(4)]
    (folder / "index.json").write_text(json.dumps({"version": 1, "objects": names}))
    return folder


class FakeTrainer:
    """Leaves records as the real one does."""

    def __init__(self, *statuses):
        self.asked, self.statuses = [], list(statuses)

    def __call__(self, config, emit):
        self.asked.append(config)
        status = self.statuses.pop(0) if self.statuses else "complete"
        folder = run_folder(config.runs, config.name)
        record = begin("train", config.name, config, {}, capture(import_torch=False))
        verdict = Verdict(
            outcome=status, headline=f"trained {config.name}", exit_code=0 if status == "complete" else 130
        )
        extra = {"outcome": {"last_checkpoint": str(folder / "last.pt")}}
        return save(dataclasses.replace(record, status=status, verdict=verdict, extra=extra), folder)


def settings(prepared, **changes):
    return MeshTrainConfig(data=prepared, runs=prepared.parent / "runs", **{"hold_out": 2, **changes})


def test_the_second_stage_begins_with_the_weights_of_the_first(prepared):
    trainer = FakeTrainer()
    config = settings(prepared, epochs=7, refine_epochs=3, lr=1e-4, refine_lr=1e-5, batch=2, train={"clip_norm": "1"})
    done = train_mesh(config, ignore, trainer)
    coarse, refine = trainer.asked
    assert (coarse.target, coarse.name, coarse.epochs, coarse.lr) == ("pixel2mesh-pp", "mesh-coarse", 7, 1e-4)
    assert (refine.name, refine.epochs, refine.lr, refine.clip_norm) == ("mesh-refine", 3, 1e-5, 1.0)
    assert coarse.workload["stage"] == 1 and "init" not in coarse.workload
    first = next((prepared.parent / "runs" / "mesh-coarse").iterdir())
    assert (refine.workload["stage"], refine.workload["init"]) == (2, str(first / "last.pt"))
    assert done.complete and done.weights.endswith("last.pt") and "mesh-refine" in done.weights
    assert done.lines()[0] == "coarse: trained mesh-coarse"


def test_objects_that_cannot_be_read_may_be_left_out(prepared):
    trainer = FakeTrainer()
    train_mesh(settings(prepared, on_bad_sample="skip"), ignore, trainer)
    assert [config.on_bad_sample for config in trainer.asked] == ["skip", "skip"]


def test_a_stage_alone(prepared):
    trainer = FakeTrainer()
    train_mesh(settings(prepared, stage="refine", init=prepared / "coarse.pt"), ignore, trainer)
    (only,) = trainer.asked
    assert (only.workload["stage"], only.workload["init"]) == (2, str(prepared / "coarse.pt"))
    lite = FakeTrainer()
    train_mesh(settings(prepared, network="pixel2mesh-lite"), ignore, lite)
    assert [c.target for c in lite.asked] == ["pixel2mesh-lite"] and "stage" not in lite.asked[0].workload


def test_a_training_that_was_stopped_goes_on_where_it_was(prepared):
    stopped = FakeTrainer("complete", "interrupted")
    done = train_mesh(settings(prepared), ignore, stopped)
    assert (done.complete, done.exit_code, done.lines()[-1]) == (False, 130, "--resume goes on with it")
    going_on = FakeTrainer()
    assert train_mesh(settings(prepared, resume=True), ignore, going_on).complete
    (only,) = going_on.asked
    assert (only.name, only.resume) == ("mesh-refine", "mesh-refine")
    again = FakeTrainer()
    train_mesh(settings(prepared, resume=True), ignore, again)
    assert again.asked == [], "both stages are done"
    longer = FakeTrainer()
    train_mesh(settings(prepared, resume=True, refine_epochs=99), ignore, longer)
    assert [c.name for c in longer.asked] == ["mesh-refine"]


def test_a_refinement_of_other_coarse_weights_is_neither_kept_nor_gone_on_with(prepared):
    train_mesh(settings(prepared), ignore, FakeTrainer())
    train_mesh(settings(prepared), ignore, FakeTrainer("interrupted"))  # a second training, stopped in its first stage
    trainer = FakeTrainer()
    done = train_mesh(settings(prepared, resume=True), ignore, trainer)
    coarse, refine = trainer.asked
    assert (coarse.resume, refine.resume) == ("mesh-coarse", ""), "the refinement belongs to the first training"
    newest = max((prepared.parent / "runs" / "mesh-coarse").iterdir())
    assert refine.workload["init"] == str(newest / "last.pt") and done.weights.endswith("last.pt")


def test_a_stage_that_was_stopped_is_not_followed_by_the_next(prepared):
    trainer = FakeTrainer("interrupted")
    train_mesh(settings(prepared), ignore, trainer)
    assert len(trainer.asked) == 1


def test_a_training_that_never_began_is_begun_by_resume(prepared):
    trainer = FakeTrainer()
    train_mesh(settings(prepared, resume=True), ignore, trainer)
    assert [c.resume for c in trainer.asked] == ["", ""]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"views": 9}, "views = 9"),
        ({"hold_out": 1}, "hold_out = 1"),
        ({"stage": "refine"}, "stage = 'refine' without init"),
        ({"init": Path("a.pt")}, "init = 'a.pt' with stage = 'both'.*stage = 'refine'"),
        ({"network": "pixel2mesh-lite", "stage": "coarse"}, "stage = 'coarse' of network = 'pixel2mesh-lite'"),
        ({"train": {"epochs": 3}}, "train.epochs is decided"),
        ({"train": {"clip_normm": 3}}, "unknown setting 'clip_normm'.*clip_norm"),
        ({"train": {"clip_norm": "much"}}, "clip_norm = 'much'"),
    ],
)
def test_senseless_settings(prepared, changes, words):
    with pytest.raises(ConfigError, match=words):
        train_mesh(settings(prepared, **changes), ignore, FakeTrainer())


def test_a_folder_that_is_not_prepared_is_refused_before_anything_runs(tmp_path):
    trainer = FakeTrainer()
    with pytest.raises(DataError, match="is not a prepared folder"):
        train_mesh(settings(tmp_path), ignore, trainer)
    assert trainer.asked == []
