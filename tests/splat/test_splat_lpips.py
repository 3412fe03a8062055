"""LPIPS: the distance that a network with given weights sees, and clear words where there are none."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from hotlap.base.errors import ConfigError
from hotlap.splat.cameras import Cameras
from hotlap.splat.config import SplatEvalConfig, config_with
from hotlap.splat.evaluate import evaluate
from hotlap.splat.judge import judged
from hotlap.splat.lpips import ALEXNET, HEADS, LAYERS, LEAST_SIDE, load_lpips, lpips_of, why_no_lpips
from hotlap.splat.pictures import Picture
from hotlap.splat.train import train


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    """A folder with weights drawn at random, in the files' own form."""
    folder, generator = tmp_path_factory.mktemp("weights"), torch.Generator().manual_seed(1)
    convolutions, heads = {}, {}
    for place, (number, (channels, out, size, _, _)) in enumerate(LAYERS.items()):
        shape = (out, channels, size, size)
        scale = (2 / (channels * size * size)) ** 0.5
        convolutions[f"features.{number}.weight"] = torch.randn(shape, generator=generator) * scale
        convolutions[f"features.{number}.bias"] = torch.randn(out, generator=generator) * 0.1
        heads[f"lin{place}.model.1.weight"] = torch.rand(1, out, 1, 1, generator=generator)
    torch.save(convolutions, folder / ALEXNET)
    torch.save(heads, folder / HEADS)
    return folder


def pair(height=64, width=80):
    generator = torch.Generator().manual_seed(2)
    drawn = torch.rand(height, width, 3, generator=generator)
    return drawn, (torch.rand(height, width, 3, generator=generator) * 255).to(torch.uint8)


def test_it_is_the_weighted_distance_of_torchvisions_features(weights):
    models = pytest.importorskip("torchvision.models", reason="the peer is torchvision's AlexNet")
    features = models.alexnet(weights=None).features
    found = torch.load(weights / ALEXNET, weights_only=True)
    features.load_state_dict({name.removeprefix("features."): tensor for name, tensor in found.items()})
    heads = torch.load(weights / HEADS, weights_only=True)
    drawn, photograph = pair()
    want, at = 0.0, []
    for picture in (drawn, photograph / 255):
        mean, deviation = torch.tensor([-0.030, -0.088, -0.188]), torch.tensor([0.458, 0.448, 0.450])
        at.append(((picture * 2 - 1 - mean) / deviation).permute(2, 0, 1)[None])
    with torch.no_grad():
        for number, layer in enumerate(features[:12]):
            at = [layer(one).clone() for one in at]
            if isinstance(layer, torch.nn.ReLU):
                units = [torch.nn.functional.normalize(one, dim=1, eps=1e-10) for one in at]
                weight = heads[f"lin{(1, 4, 7, 9, 11).index(number)}.model.1.weight"]
                want += float(torch.nn.functional.conv2d((units[0] - units[1]) ** 2, weight).mean())
    assert lpips_of(drawn, photograph, str(weights)) == pytest.approx(want, rel=1e-4)
    assert want > 0.01


def test_equal_pictures_are_0_apart_and_small_ones_are_not_judged(weights, device):
    _, photograph = pair()
    photograph = photograph.to(device)
    assert lpips_of(photograph / 255, photograph, str(weights)) == pytest.approx(0, abs=1e-6)
    drawn, photograph = pair(LEAST_SIDE, LEAST_SIDE)
    assert lpips_of(drawn.to(device), photograph.to(device), str(weights)) > 0
    assert lpips_of(*pair(LEAST_SIDE - 1, 80), str(weights)) is None


def test_weights_that_are_not_there_are_named_with_where_to_get_them(weights, tmp_path, monkeypatch):
    assert why_no_lpips(str(weights)) == "" and why_no_lpips(str(weights / ALEXNET)) == ""
    assert f"{tmp_path / ALEXNET}" in why_no_lpips(str(tmp_path)) and "--lpips-weights" in why_no_lpips(str(tmp_path))
    monkeypatch.setattr("hotlap.splat.lpips.find_spec", lambda name: None)
    alone = tmp_path / "alone"
    alone.mkdir()
    (alone / ALEXNET).write_bytes((weights / ALEXNET).read_bytes())
    assert "pip install --no-deps lpips" in why_no_lpips(str(alone))


def test_files_that_hold_something_else_are_named(weights, tmp_path):
    (tmp_path / HEADS).write_bytes((weights / HEADS).read_bytes())
    (tmp_path / ALEXNET).write_bytes(b"no weights")
    assert f"{ALEXNET}' holds no weights" in why_no_lpips(str(tmp_path))
    torch.save({"features.0.weight": torch.zeros(2)}, tmp_path / "other.pth")
    with pytest.raises(ConfigError, match=r"features\.0\.weight in .*other\.pth' is \[2\]. Expected 23232 numbers"):
        load_lpips(str(tmp_path / "other.pth"), "cpu")


def test_pixels_that_a_mask_leaves_out_do_not_count(weights):
    drawn, photograph = pair()
    near = (drawn * 255).round().to(torch.uint8)
    near[:, 40:] = photograph[:, 40:]
    mask = torch.zeros(64, 80)
    mask[:, :40] = 1
    cameras = Cameras(viewmats=torch.eye(4)[None], Ks=torch.eye(3)[None], sizes=((64, 80),), names=("a",))
    model = SimpleNamespace(draw=lambda *camera: drawn)
    found = [
        next(judged(model, cameras, [Picture(image=near, mask=one)], [0], lpips=str(weights)))[0].lpips
        for one in (None, mask)
    ]
    assert found[0] > 0.1 and found[1] < 1e-3


def test_a_judgement_has_it_where_weights_are_named(weights, scene_folder, tmp_path):
    out = str(tmp_path / "run")
    train(config_with(scene=str(scene_folder), out=out, device="cpu", steps=2, sh_degree=0, strategy="none"))
    found = evaluate(SplatEvalConfig(run=out, device="cpu", lpips_weights=str(weights)))
    assert found["lpips"] == "alex" and found["mean"]["lpips"] > 0
    assert [image["lpips"] > 0 for image in found["images"]] == [True, True]
    with pytest.raises(ConfigError, match=r"lpips_weights = '/nowhere' cannot be used: AlexNet"):
        evaluate(SplatEvalConfig(run=out, device="cpu", lpips_weights="/nowhere"))
