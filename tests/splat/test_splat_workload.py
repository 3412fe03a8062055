"""Splatting as a workload: the protocol's promises, and that a tool can measure it."""

from __future__ import annotations

import pytest
import torch

from hotlap.base.errors import ConfigError
from hotlap.device.seed import generator
from hotlap.kernels.ssim.op import l1_ssim
from hotlap.splat.workload import splat
from hotlap.targets import load_target
from hotlap.tools.profile.categories import SPLATTING, category_of
from hotlap.tools.report.profile import COLOURS

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def tiny(scene_folder):
    return load_target("splat", {"scene": str(scene_folder), "splats": 200, "batch": 2})


def test_batches_are_decided_by_the_generator_alone(tiny):
    first, second = (tiny.make_batch(3, CPU, generator(7)) for _ in range(2))
    assert first["image"].shape == (3, 32, 48, 3) and first["image"].dtype == torch.uint8
    for name, tensor in first.items():
        assert torch.equal(tensor, second[name]), name


def test_the_loss_of_a_batch_is_the_sum_over_its_samples(tiny):
    model = tiny.build_model()
    batch = tiny.make_batch(2, CPU, generator(0))
    total, count = tiny.loss(model, batch)
    parts = [tiny.loss(model, {name: tensor[n : n + 1] for name, tensor in batch.items()})[0] for n in range(2)]
    assert count == 2 and total.item() == pytest.approx(sum(part.item() for part in parts), rel=1e-5)
    image = tiny.predict(model, batch)
    assert total.item() == pytest.approx(2 * l1_ssim(image, batch["image"]).item(), rel=1e-5)


def test_its_model_learns(tiny):
    model = tiny.build_model()
    assert sum(p.numel() for p in model.parameters()) == 59 * len(model.means) + 3
    optimizer = tiny.optimizer(model)
    before = tiny.metrics(model, tiny.eval_data(), CPU)["psnr"]
    for step in range(15):
        loss, count = tiny.loss(model, tiny.make_batch(2, CPU, generator(step)))
        optimizer.zero_grad()
        (loss / count).backward()
        optimizer.step()
    assert tiny.metrics(model, tiny.eval_data(), CPU)["psnr"] > before + 0.3


def test_presets_say_what_learns(scene_folder):
    made = splat(preset="m7", scene=str(scene_folder), splats=100, scale=1.0)
    assert [name for name, _ in made.build_model().named_parameters()] == ["colors", "background"]
    assert "learning colors" in made.summary


def test_a_drawn_scene_needs_no_files():
    made = splat(views=3, width=24, height=16, splats=30)
    assert (made.width, made.height) == (24, 16) and len(made.build_model().means) == 30
    alone = splat(preset="m7", views=3, width=24, height=16, splats=300)
    assert len(alone.build_model().means) == 300, "though one picture does not see all that is drawn"
    with pytest.raises(ConfigError, match="batch = 0 is not valid"):
        splat(views=3, width=24, height=16, splats=30, batch=0)


def test_outputs_agree_pixel_by_pixel(tiny):
    picture = torch.rand(1, 10, 10, 3, generator=generator(0))
    other = picture.clone()
    assert tiny.compare(picture, other)[0].passed
    other[0, 0, 0, 0] += 0.1
    found = tiny.compare(picture, other)[0]
    assert found.value == pytest.approx(0.99) and not found.passed


def test_a_profile_has_a_name_for_the_drawing_forwards_and_backwards(tiny):
    model, batch = tiny.build_model(), tiny.make_batch(1, CPU, generator(0))
    with torch.profiler.profile() as traced:
        tiny.loss(model, batch)[0].backward()
    drawn = {event.name for event in traced.events() if category_of(event.name) == SPLATTING}
    assert {"_Frame", "_FrameBackward"} <= drawn and SPLATTING in COLOURS
    assert category_of("MyFrameBackward") == category_of("hotlap::l1_ssim_frame") == ""


def test_a_preset_is_an_option_of_every_verb_that_measures(monkeypatch):
    from hotlap.cli.options import parse
    from hotlap.cli.verbs import VERBS

    for verb in ("bench", "tune", "profile", "lap"):
        request = parse(verb, VERBS[verb], ["splat", "--preset", "m7", "--set", "workload.splats=5"])
        assert request.resolved.config.workload == {"preset": "m7", "splats": 5}, verb


def test_the_numeric_gate_passes(tiny):
    from hotlap.measure.arms import parse_arm
    from hotlap.measure.gate import GateKeeper

    keeper = GateKeeper(tiny, mode="train", batch=1, steps=2, seed=0)
    gate = keeper.judge(parse_arm("cpu"))
    assert gate.passed, gate
