"""Both stages trained for a step each on prepared boxes, by the engine itself."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from solids import box

from hotlap.base.errors import ConfigError, DataError
from hotlap.base.events import ignore
from hotlap.data.mesh_file import write_mesh
from hotlap.engine.loop import Trainer
from hotlap.measure.weights import read_weights
from hotlap.mesh.config import MeshTrainConfig, ViewsConfig
from hotlap.mesh.prepare import prepare_views
from hotlap.mesh.train import train_mesh
from hotlap.records.codec import encode
from hotlap.records.environment import capture
from hotlap.records.run import begin, run_folder, save
from hotlap.targets import load_target

pytest.importorskip("PIL.Image", reason="views are kept as pictures")

TINY = {"hidden": 8, "levels": 1, "samples": 50}


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    folder = tmp_path_factory.mktemp("boxes")
    for number in range(3):
        write_mesh(folder / f"{number}.obj", box((1 + number, 2.0, 3.0)))
    prepare_views(ViewsConfig(folder=folder, out=folder / "data", views=2, points=80, supersample=1, sheet=0))
    return folder / "data"


def train_here(config, emit):
    """What the tool does, without a process of its own."""
    folder = run_folder(config.runs, config.name)
    workload = load_target(config.target, config.workload)
    outcome = Trainer(workload, config, folder, torch.device("cpu")).run()
    record = begin("train", config.name, config, {}, capture(import_torch=False))
    return save(dataclasses.replace(record, status=outcome.status, extra={"outcome": encode(outcome)}), folder)


@pytest.mark.slow
def test_the_refinement_starts_from_the_trained_coarse_stage_and_leaves_it_alone(prepared, tmp_path):
    config = MeshTrainConfig(
        data=prepared, runs=tmp_path, epochs=1, refine_epochs=1, batch=2, views=2, points=60, hold_out=3,
        workload=TINY, train={"tuned": False, "workers": 0},
    )  # fmt: skip
    done = train_mesh(config, ignore, train_here)
    assert done.complete
    (coarse_file,) = (tmp_path / "mesh-coarse").rglob("step-*.pt")
    coarse, whole = (read_weights(file) for file in (coarse_file, type(coarse_file)(done.weights)))
    kept = {name.removeprefix("coarse."): t for name, t in whole.items() if name.startswith("coarse.")}
    assert kept.keys() == coarse.keys()
    assert all(torch.equal(kept[name], coarse[name]) for name in kept)
    torch.manual_seed(config.seed)
    fresh = load_target("pixel2mesh-pp", {**TINY, "stage": 1}).build_model().state_dict()
    assert any(not torch.equal(coarse[name], fresh[name]) for name in coarse), "it was trained"


def test_a_workload_reads_the_prepared_folder(prepared):
    workload = load_target("pixel2mesh-pp", {**TINY, "stage": 1, "data": str(prepared), "views": 2, "hold_out": 2})
    assert (len(workload.train_data()), len(workload.eval_data())) == (1, 2)
    first, again = (workload.make_batch(3, torch.device("cpu"), torch.Generator().manual_seed(5)) for _ in range(2))
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert first["image"].shape == (3, 2, 3, 224, 224) and first["num_points"].tolist() == [80, 80, 80]
    with pytest.raises(ConfigError, match="size = 64 with data ="):
        load_target("pixel2mesh-pp", {"data": str(prepared), "size": 64})
    with pytest.raises(ConfigError, match="hold_out = 1"):
        load_target("pixel2mesh-lite", {"data": str(prepared), "hold_out": 1})
    with pytest.raises(DataError, match="is not a prepared folder"):
        load_target("pixel2mesh-lite", {"data": str(prepared.parent)})
