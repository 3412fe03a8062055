"""The mesh networks as workloads: batches, losses, training, scores, the numeric gate, settings."""

from __future__ import annotations

import pytest
import torch

from hotlap.base.errors import ConfigError, UsageError
from hotlap.measure.arms import parse_arm
from hotlap.measure.gate import GateKeeper
from hotlap.mesh.cameras import Cameras, project_to_views
from hotlap.mesh.drawn import draw_objects
from hotlap.mesh.presets import MeshConfig, full, small
from hotlap.mesh.workload import Pixel2MeshPPWorkload, is_cnn, pixel2mesh_pp
from hotlap.targets import load_target

CPU = torch.device("cpu")
TINY = {"views": 2, "size": 32, "hidden": 16, "levels": 1, "points": 100, "samples": 50, "batch": 2}


def drawn(seed: int, device: torch.device = CPU) -> dict[str, torch.Tensor]:
    return pixel2mesh_pp(**TINY).make_batch(3, device, torch.Generator().manual_seed(seed))


def test_pictures_and_points_agree():
    made = draw_objects(torch.arange(3), views=2, size=224, points=300, seed=0, device=CPU)
    pixels = project_to_views(made["points"], Cameras.from_rows(made["cameras"])).round().long().clamp(0, 223)
    for n in range(3):
        for view in range(2):
            column, row = pixels[n, view].unbind(1)
            on_object = (made["image"][n, view][:, row, column] != 255).any(0)
            assert on_object.float().mean() > 0.9
    assert ((made["num_points"] >= 150) & (made["num_points"] <= 300)).all()
    torch.testing.assert_close(made["normals"].norm(dim=2), torch.ones(3, 300))
    assert 0.05 < (made["image"] != 255).any(2).float().mean() < 0.5


def test_the_generator_alone_decides_a_batch(device):
    first, again, other = (drawn(seed, device) for seed in (1, 1, 2))
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["image"], other["image"])


def test_items_are_the_same_in_any_batch():
    data = pixel2mesh_pp(**TINY, train_objects=5).train_data()
    pair = data.__getitems__([4, 2])
    assert len(data) == 5 and torch.equal(pair[1]["image"], data[2]["image"])
    torch.testing.assert_close(pair[0]["points"], data[4]["points"])
    with pytest.raises(IndexError, match="position 5 of 5 objects"):
        data[5]


@pytest.mark.parametrize("target", ["pixel2mesh-pp:1", "pixel2mesh-pp:2", "pixel2mesh-lite"])
def test_the_loss_of_a_batch_is_the_sum_of_its_objects(target):
    name, _, stage = target.partition(":")
    options = {**TINY, "stage": int(stage)} if stage else {"size": 32, "subdivisions": 1, "points": 100, "samples": 50}
    workload = load_target(name, options)
    torch.manual_seed(0)
    model = workload.build_model().eval()
    batch = workload.make_batch(2, CPU, torch.Generator().manual_seed(0))
    with torch.no_grad():
        total, count = workload.loss(model, batch)
        parts = [workload.loss(model, {k: v[n : n + 1] for k, v in batch.items()})[0].item() for n in range(2)]
    assert count == 2 and total.item() == pytest.approx(sum(parts), rel=1e-4)


def test_a_short_training_brings_the_mesh_nearer():
    workload = pixel2mesh_pp(**{**TINY, "stage": 1})
    torch.manual_seed(0)
    model = workload.build_model()
    optimizer = workload.optimizer(model)
    batch = workload.make_batch(1, CPU, torch.Generator().manual_seed(0))
    losses = []
    for _ in range(3):
        total, count = workload.loss(model, batch)
        optimizer.zero_grad()
        (total / count).backward()
        optimizer.step()
        losses.append((total / count).item())
    assert losses[-1] < 0.8 * losses[0], losses


def test_scores_of_a_fresh_network():
    workload = pixel2mesh_pp(**{**TINY, "stage": 1, "eval_objects": 3})
    model = workload.build_model()
    scores = workload.metrics(model, workload.eval_data(), CPU)
    assert model.training
    assert set(scores) >= {"chamfer", "f1_tau", "f1_2tau", "normal_consistency"}
    assert 0 < scores["chamfer"] < 0.1 and 0 <= scores["f1_tau"] < 60


def test_published_weight_decay_and_frozen_parts():
    model = pixel2mesh_pp(**TINY).build_model()
    optimizer = pixel2mesh_pp(**TINY).optimizer(model)
    assert [group["weight_decay"] for group in optimizer.param_groups] == [3e-6, 5e-6]
    learnt = {id(p) for group in optimizer.param_groups for p in group["params"]}
    names = {name for name, p in model.named_parameters() if id(p) in learnt}
    assert names and all(name.startswith("refine.") for name in names)
    assert {"refine.cnn.groups.0.0.weight", "refine.rounds.1.layers.5.bias"} <= names
    assert "refine.cnn.groups.3.0.weight" not in names
    assert is_cnn("encoder.conv1.weight") and not is_cnn("blocks.0.first.weight")


def test_the_gate_is_green_for_kernels():
    workload = pixel2mesh_pp(**{**TINY, "stage": 1})
    keeper = GateKeeper(workload, mode="infer", batch=1, steps=1, seed=0)
    gate = keeper.judge(parse_arm("cpu:kernels"))
    assert gate.passed, gate.checks
    assert "vertices in place" in {check.name for check in gate.checks}


@pytest.mark.parametrize(
    ("setting", "value"), [("stage", 3), ("views", 9), ("levels", 0), ("size", 16), ("points", 0), ("subdivisions", 7)]
)
def test_settings_that_are_not_valid(setting, value):
    with pytest.raises(ConfigError, match=f"{setting} = {value} is not valid"):
        MeshConfig(**{setting: value})


def test_presets_and_targets():
    assert full() == MeshConfig() and Pixel2MeshPPWorkload(small()).default_batch == 4
    assert load_target("pixel2mesh-pp").config == full()
    assert "refine stage, 3 views of 224x224" in load_target("pixel2mesh-pp").summary
    assert load_target("pixel2mesh-lite").config.views == 1


def test_weights_of_another_network_are_refused(tmp_path):
    file = tmp_path / "lite.pt"
    torch.save({"encoder.conv1.weight": torch.zeros(64, 3, 7, 7)}, file)
    with pytest.raises(UsageError, match=r"lite.pt' holds weights of another network: '.*' is on one side only"):
        pixel2mesh_pp(**TINY, init=str(file)).build_model()
