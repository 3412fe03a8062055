"""Objects of pictures in memory: right, in order, and through the network in full batches."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from bright import as_picture, bright_predictor, discs

from hotlap.base.errors import ConfigError, UnknownName, UsageError
from hotlap.engine.checkpoint import CheckpointStore
from hotlap.segment.heads import HEADS
from hotlap.segment.instances import SplitConfig
from hotlap.segment.nets import NETS, build_head, build_net
from hotlap.segment.network import find_weights, load_net, recognise
from hotlap.segment.predict import ManyConfig, predict_many
from hotlap.segment.predict_config import SegmentPredictConfig
from hotlap.segment.predictor import load_predictor
from hotlap.segment.tiles import TileConfig

pytest.importorskip("numba")

TILES = TileConfig(tile=64, overlap=16, multiple=16, batch=4)
MANY = ManyConfig(tiles=TILES, workers=2)


def test_every_object_is_found_in_order_of_the_pictures(device):
    truths = [
        discs(64, 64, (20, 20, 8), (45, 45, 10)),
        discs(150, 200, (30, 40, 12), (100, 150, 20), (75, 60, 9)),  # the second lies across several tiles
        discs(40, 50, (20, 25, 7)),
    ]
    found = predict_many([as_picture(t) for t in truths], bright_predictor(device), MANY)
    assert len(found) == 3
    for got, truth in zip(found, truths, strict=True):
        assert got.labels.shape == truth.shape and got.labels.max() == truth.max()
        np.testing.assert_array_equal(got.labels > 0, truth > 0)
        assert [m.label for m in got.objects] == [o.label for o in got.outlines] == list(range(1, truth.max() + 1))
        assert all(m.confidence > 0.99 for m in got.objects)
        assert sorted(m.area for m in got.objects) == sorted(np.bincount(truth.ravel())[1:])


def test_the_batch_that_reaches_the_network_is_the_one_asked_for():
    predictor = bright_predictor()
    pictures = [as_picture(discs(64, 64, (30, 30, 9))) for _ in range(6)] + [as_picture(discs(112, 64, (30, 30, 9)))]
    predict_many(iter(pictures), predictor, MANY)
    assert predictor.model.seen == [(4, 3, 64, 64), (4, 3, 64, 64)], "six pictures and two tiles of the seventh"


def test_one_pixel_and_grey_of_16_bits_work():
    labels = discs(64, 64, (30, 30, 9))
    deep = (as_picture(labels).astype(np.uint16) * 40) + 500
    small, big = predict_many([np.zeros((1, 1, 1), np.uint8), deep], bright_predictor(), MANY)
    assert small.labels.tolist() == [[0]] and small.objects == []
    np.testing.assert_array_equal(big.labels > 0, labels > 0)


def test_settings_reach_the_results():
    pictures = [as_picture(discs(64, 64, (20, 20, 8), (50, 50, 3)))]
    config = ManyConfig(tiles=TILES, split=SplitConfig(min_area=60), um_per_px=0.5, simplify_px=0)
    (got,) = predict_many(pictures, bright_predictor(), config)
    (m,) = got.objects
    assert m.unit == "um" and m.area == (got.labels > 0).sum() / 4
    (loose,) = predict_many(pictures, bright_predictor(), ManyConfig(tiles=TILES, split=SplitConfig(min_area=60)))
    assert len(loose.outlines[0].parts[0].outer) < len(got.outlines[0].parts[0].outer)


@pytest.mark.parametrize(
    ("name", "width", "maps"), [("hrnet", 9, 2), ("resunet-small", 8, 1), ("ma-resunet", 4, 2), ("unet", 3, 3)]
)
def test_networks_are_recognised_by_their_weights(tmp_path, name, width, maps):
    weights = build_net(name, maps=maps, width=width).state_dict()
    assert recognise(weights, tmp_path / "a.pt") == (name, width, maps)


def test_every_network_has_its_row_above():
    assert set(NETS) == {"hrnet", "resunet-small", "ma-resunet", "unet"}


@pytest.mark.parametrize("head", HEADS)
def test_the_head_is_recognised_by_the_weights(tmp_path, head):
    torch.save(build_head("unet", head, width=3).state_dict(), tmp_path / "weights.pt")
    predictor = load_predictor(SegmentPredictConfig(folder=tmp_path, model=str(tmp_path), device="cpu"))
    assert predictor.names == HEADS[head]
    assert predictor(torch.zeros(1, 3, 32, 32, dtype=torch.uint8)).shape[1] == len(HEADS[head])


def saved(path, name="unet", width=3, maps=2):
    torch.manual_seed(0)
    torch.save(build_net(name, maps=maps, width=width).state_dict(), path)
    return path


def config(**given):
    return SegmentPredictConfig(**{"folder": "pictures", "device": "cpu", **given})


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize(("name", "width"), [("unet", 2), ("resunet-small", 6), ("smp:unet/resnet18", None)])
def test_safetensors_of_a_network_given_by_name_are_read(tmp_path, name, width, head):
    """Their tensors come in another order than the network has them."""
    if name.startswith("smp:"):
        pytest.importorskip("segmentation_models_pytorch")
    save_file = pytest.importorskip("safetensors.torch").save_file
    file = tmp_path / "net.safetensors"
    save_file(build_head(name, head, width=width).state_dict(), file)
    assert load_net(file, name, width).names == HEADS[head]


def test_weights_of_another_network_than_the_one_named_with_its_width(tmp_path):
    torch.save(build_head("unet", "core", width=2).state_dict(), tmp_path / "unet.pt")
    with pytest.raises(
        UsageError, match=r"unet.pt' are not those of hrnet, but of unet.*--model .*unet.pt' and 'hotlap"
    ):
        load_net(tmp_path / "unet.pt", "hrnet", 8)


def test_weights_alone_are_enough(tmp_path):
    path = saved(tmp_path / "a.pt", maps=1)
    for given in (
        {"model": str(path)},
        {"model": "unet", "weights": path},
        {"model": "unet", "weights": path, "width": 3},
    ):
        predictor = load_predictor(config(**given))
        assert predictor.names == ("foreground",) and predictor.digest.startswith("unet ")
    assert load_predictor(config(model=str(saved(tmp_path / "b.pt")))).names == ("foreground", "core")


def test_a_training_folder_gives_its_last_checkpoint(tmp_path):
    (tmp_path / "checkpoints").mkdir()
    for step in (3, 20):
        (tmp_path / "checkpoints" / f"step-{step:08d}-{'0' * 16}.pt").write_bytes(b"")
    assert find_weights(config(model=str(tmp_path))).name.startswith("step-00000020")


def test_the_best_checkpoint_of_a_folder_is_taken_and_said(tmp_path):
    """By images that it would then be judged by."""
    store = CheckpointStore(tmp_path / "checkpoints")
    for step, value in ((3, 0.5), (20, 0.9)):
        store.save({"model": build_net("unet", maps=2, width=3).state_dict()}, step=step, score=value)
    heard = []
    load_predictor(config(model=str(tmp_path), tuned=False), heard.append)
    (said,) = [event.text for event in heard if event.kind == "warn"]
    assert f"weights.pt is not in '{tmp_path}'" in said and "best checkpoint, step-00000003" in said
    assert "Held-out images have chosen it" in said
    saved(tmp_path / "weights.pt")
    heard.clear()
    load_predictor(config(model=str(tmp_path), tuned=False), heard.append)
    assert not heard


def test_a_checkpoint_of_another_model_is_named(tmp_path):
    torch.save({"embedding.weight": torch.zeros(3, 4)}, tmp_path / "lstm.pt")
    with pytest.raises(UsageError, match=r"lstm.pt' are not those of a network known here. Expected weights of hrnet"):
        load_predictor(config(model=str(tmp_path / "lstm.pt")))
    path = saved(tmp_path / "a.pt")
    with pytest.raises(UsageError, match=r"a.pt' are not those of hrnet"):
        load_predictor(config(model="hrnet", weights=path))
    for given in ({"model": str(path)}, {"model": "unet", "weights": path}):
        with pytest.raises(UsageError, match=r"width = 7 is not that of weights = .*a.pt'. Expected 3"):
            load_predictor(config(**given, width=7))
    torch.save(build_net("unet", in_channels=1, maps=2, width=3).state_dict(), tmp_path / "grey.pt")
    with pytest.raises(UsageError, match=r"grey.pt' do not fit the model"):
        load_predictor(config(model=str(tmp_path / "grey.pt")))


def test_a_network_misspelt_beside_its_weights_is_named(tmp_path):
    path = saved(tmp_path / "a.pt")
    with pytest.raises(UnknownName, match=r"unknown model 'unett'.*Did you mean 'unet'"):
        load_predictor(config(model="unett", weights=path))
    with pytest.raises(UnknownName, match=r"unknown model '.*a.pt'. Expected hrnet.* or smp:ARCHITECTURE/ENCODER"):
        load_predictor(config(model=str(path), weights=path))


def test_weights_of_another_encoder_are_named(tmp_path):
    pytest.importorskip("segmentation_models_pytorch")
    torch.save(build_head("smp:unet/resnet18", "core").state_dict(), tmp_path / "a.pt")
    with pytest.raises(UsageError, match=r"a.pt' are not those of smp:unet/resnet34"):
        load_predictor(config(model="smp:unet/resnet34", weights=tmp_path / "a.pt"))


def test_models_that_are_not_there_are_named(tmp_path):
    with pytest.raises(ConfigError, match=r"model = 'hrnet' comes without weights"):
        load_predictor(config(model="hrnet"))
    with pytest.raises(ConfigError, match=r"model = 'no/such.pt' is neither a file nor a network"):
        load_predictor(config(model="no/such.pt"))
    with pytest.raises(UsageError, match=r"weights = 'no.pt' does not exist"):
        load_predictor(config(model="unet", weights=Path("no.pt")))
    with pytest.raises(UsageError, match=r"holds no checkpoint. Expected weights.pt or checkpoints/step-\*.pt in it.$"):
        load_predictor(config(model=str(tmp_path)))
    (tmp_path / "runs").mkdir()
    with pytest.raises(UsageError, match=r"was killed has checkpoints in .*/runs: 'hotlap segment train' .* --resume"):
        load_predictor(config(model=str(tmp_path)))


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [("formats", ("labels", "cocoa"), "formats = 'cocoa' is not known. Did you mean 'coco'"),
     ("um_per_px", -2.0, "um_per_px = -2.0 is not valid"), ("batch", 0, "batch = 0 is not valid"),
     ("tile", 1000, "tile = 1000 is not valid. Expected a multiple of 64"),
     ("overlap", 900, "overlap = 900 is not valid. Expected at most half of tile = 1024"),
     ("threshold", 1.5, "threshold = 1.5 is not valid"), ("simplify_px", -1.0, "simplify_px = -1.0 is not valid")],
)  # fmt: skip
def test_settings_outside_their_range_are_named(name, value, words):
    with pytest.raises(ConfigError, match=words):
        config(**{name: value})
