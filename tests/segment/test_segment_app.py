"""Training and scores from the command line, on a few drawn cells."""

from __future__ import annotations

import csv
import json
import os
import shutil
import sys

import numpy as np
import pytest
import torch

from hotlap.base.errors import ConfigError, DataError, StorageError
from hotlap.cli.main import run
from hotlap.data.drawn_cells import draw_cells
from hotlap.data.tiff import read_pages
from hotlap.segment import instance_metrics, tuned_net
from hotlap.segment.app import SegmentTrainConfig, keep_weights, training
from hotlap.segment.evaluate import SegmentEvalConfig, evaluate
from hotlap.segment.model import UNet
from hotlap.segment.nets import build_net
from hotlap.segment.otsu import otsu_foreground, otsu_threshold
from hotlap.segment.outline_picture import FOUND_COLOUR, TRUE_COLOUR, compared
from hotlap.segment.predict_config import SegmentPredictConfig
from hotlap.segment.predict_folder import predict_folder

Image = pytest.importorskip("PIL.Image")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    where = tmp_path_factory.mktemp("cells")
    for part in ("images", "labels"):
        (where / part).mkdir()
    for number in range(6):
        image, labels = draw_cells(number, size=64, seed=2)
        Image.fromarray(image).save(where / "images" / f"c{number}.png")
        Image.fromarray(labels.astype(np.uint16)).save(where / "labels" / f"c{number}.png")
    return where


def test_otsu_scores_are_written_with_pictures(folder, tmp_path):
    out = tmp_path / "scores"
    found = evaluate(SegmentEvalConfig(data=folder, out=out, split="all", pictures=3))
    assert found["num_images"] == 6 and 0.2 < found["scores"]["dice"] <= 1
    assert json.loads((out / "scores.json").read_text())["scores"] == found["scores"]
    with (out / "images.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["name"] for row in rows] == [f"c{n}" for n in range(6)]
    assert np.mean([float(row["ap50"]) for row in rows]) == pytest.approx(found["scores"]["ap50"])
    pictures = sorted((out / "pictures").iterdir())
    shares = [int(picture.name.split("-")[1].removeprefix("ap")) for picture in pictures]
    assert len(shares) == 3 and shares == sorted(shares), "from the worst to the best"


@pytest.mark.skipif(sys.platform != "linux", reason="names are text elsewhere")
def test_a_name_that_is_no_text_costs_no_scores(folder, tmp_path):
    data = tmp_path / "cells"
    shutil.copytree(folder, data)
    for part in ("images", "labels"):
        (data / part / "c1.png").rename(data / part / os.fsdecode(b"c\xff1.png"))
    whole = evaluate(SegmentEvalConfig(data=folder, out=tmp_path / "whole", split="all"))
    found = evaluate(SegmentEvalConfig(data=data, out=tmp_path / "scores", split="all"))
    assert found["scores"] == pytest.approx(whole["scores"])
    assert "c\N{REPLACEMENT CHARACTER}1" in (tmp_path / "scores" / "images.csv").read_text("utf-8")


def test_images_that_cannot_be_scored_are_named_and_the_rest_is(folder, tmp_path, capsys):
    data = tmp_path / "cells"
    shutil.copytree(folder, data)
    Image.new("L", (7, 9)).save(data / "labels" / "c1.png")
    (data / "images" / "c3.png").write_bytes(b"")
    command = ["segment", "eval", str(data), "--model", "otsu", "--split", "all", "--out", str(tmp_path / "scores")]
    assert run([*command, "--pictures", "6", "--quiet"]) == 1
    said = capsys.readouterr().out
    assert "otsu on 4 images" in said
    assert "not scored: label of 'c1' is 7x9 pixels" in said and "c3.png) cannot be read: the file is empty" in said
    whole = evaluate(SegmentEvalConfig(data=folder, out=tmp_path / "whole", split="all"))
    found = json.loads((tmp_path / "scores" / "scores.json").read_text())
    assert set(found["bad"]) == {"c1", "c3"}
    assert found["images"] == [row for row in whole["images"] if row["name"] not in found["bad"]]
    names = {path.name.split("-")[2] for path in (tmp_path / "scores" / "pictures").iterdir()}
    assert names == {f"c{n}.png" for n in (0, 2, 4, 5)}


def test_an_image_without_an_answer_is_named_and_the_rest_is_scored(folder, tmp_path, monkeypatch):
    """A single one that came out as NaN, as fp16 can, was nameless and took the scores of all others with it."""

    def nan_for_the_second(pictures):
        for number, picture in enumerate(pictures):
            yield number, otsu_foreground(picture) * (np.nan if number == 1 else 1)

    monkeypatch.setattr("hotlap.segment.evaluate._by_threshold", nan_for_the_second)
    found = evaluate(SegmentEvalConfig(data=folder, out=tmp_path, split="all"))
    assert found["num_images"] == 5 and list(found["bad"]) == ["c1"]
    assert "c1: the network's answer is NaN at 4096 of 4096 places" in found["bad"]["c1"]


def test_scores_of_before_stay_until_the_new_ones_are_written(folder, tmp_path, monkeypatch):
    config = SegmentEvalConfig(data=folder, out=tmp_path, split="all", pictures=2)
    evaluate(config)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(StorageError, match=r"images\.csv': No space left"):
        evaluate(config)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_an_interrupted_evaluation_points_to_no_runs(folder, tmp_path, monkeypatch, capsys):
    def interrupted(picture):
        raise KeyboardInterrupt

    monkeypatch.setattr("hotlap.segment.otsu.otsu_foreground", interrupted)
    assert run(["segment", "eval", str(folder), "--out", str(tmp_path / "scores"), "--quiet"]) == 130
    assert capsys.readouterr().err.strip().endswith("interrupted; the same command begins anew")
    assert not [path for path in (tmp_path / "scores").rglob("*") if path.is_file()]


def test_nothing_to_score_is_an_error_with_the_reason(folder, tmp_path):
    data = tmp_path / "cells"
    shutil.copytree(folder, data)
    for path in (data / "images").iterdir():
        path.write_bytes(b"")
    with pytest.raises(DataError, match=r"none of the 2 images can be scored: image of 'c0' .* the file is empty"):
        evaluate(SegmentEvalConfig(data=data, out=tmp_path / "scores"))


def test_a_network_is_trained_and_scored(folder, tmp_path, capsys):
    out = tmp_path / "trained"
    train = ["segment", "train", str(folder), "--model", "unet", "--width", "2", "--size", "32", "--batch", "4"]
    train += ["--crops", "1", "--device", "cpu", "--workers", "0", "--out", str(out), "--quiet"]
    assert run([*train, "--epochs", "1"]) == 0
    assert "weights.pt" in capsys.readouterr().out
    build_net("unet", maps=2, width=2).load_state_dict(torch.load(out / "weights.pt", weights_only=True))
    score = ["segment", "eval", str(folder), "--model", str(out), "--device", "cpu", "--out", str(tmp_path / "scores")]
    assert run([*score, "--quiet", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["num_images"] == 2 and set(found["images"][0]) >= {"name", "ap50", "pq"}


@pytest.mark.parametrize("tile", [64, 128])
def test_the_objects_that_are_scored_are_those_of_prediction(tmp_path, monkeypatch, tile):
    """Its norms see the whole of a tile, so that other objects are found where more or less of a mirror image is."""
    data, weights, scored = tmp_path / "cells", tmp_path / "net.pt", []
    for part in ("images", "labels"):
        (data / part).mkdir(parents=True)
    for number in range(5):
        image, labels = draw_cells(number, size=100, seed=2)
        Image.fromarray(image[:90]).save(data / "images" / f"c{number}.png")
        Image.fromarray(labels[:90].astype(np.uint16)).save(data / "labels" / f"c{number}.png")
    torch.manual_seed(0)
    torch.save(build_net("resunet-small", maps=1, width=6).state_dict(), weights)
    score = instance_metrics.score_image
    monkeypatch.setattr(
        instance_metrics, "score_image", lambda truth, found: scored.append(found) or score(truth, found)
    )
    how = {"model": str(weights), "device": "cpu", "tile": tile, "overlap": 24, "batch": 2}
    evaluate(SegmentEvalConfig(data=data, split="all", out=tmp_path / "scores", pictures=0, **how))
    how |= {"tuned": False, "formats": ("labels",)}
    predict_folder(SegmentPredictConfig(folder=data / "images", out=tmp_path / "out", **how))
    found = [next(read_pages(tmp_path / "out" / "labels" / f"c{n}.tif")).decode()[..., 0] for n in range(5)]
    assert max(labels.max() for labels in found) > 1, "more than one object"
    assert sorted(labels.tolist() for labels in scored) == sorted(labels.tolist() for labels in found)


def test_an_evaluation_sends_as_many_tiles_together_as_prediction(folder, tmp_path, monkeypatch):
    weights, batches = tmp_path / "net.pt", []
    torch.save(build_net("unet", maps=2, width=2).state_dict(), weights)
    forward = UNet.forward
    monkeypatch.setattr(UNet, "forward", lambda net, image: batches.append(len(image)) or forward(net, image))
    monkeypatch.setattr(tuned_net, "CPU_PIXELS", 2 * 64**2)
    how = {"data": folder, "split": "all", "model": str(weights), "device": "cpu", "tile": 64, "overlap": 16}
    evaluate(SegmentEvalConfig(out=tmp_path / "scores", **how))
    assert batches[1:] == [2, 2, 2]  # after the one that tries the network out
    batches.clear()
    evaluate(SegmentEvalConfig(out=tmp_path / "again", batch=3, **how))
    assert batches[1:] == [3, 3]


def test_a_training_goes_on_without_images_that_cannot_serve(folder, tmp_path, capsys):
    data = tmp_path / "cells"
    shutil.copytree(folder, data)
    Image.new("L", (7, 9)).save(data / "labels" / "c1.png")
    (data / "images" / "c5.png").write_bytes(b"")
    train = ["segment", "train", str(data), "--model", "unet", "--width", "2", "--size", "32", "--batch", "2"]
    train += ["--crops", "1", "--device", "cpu", "--workers", "0", "--out", str(tmp_path / "out"), "--epochs", "1"]
    assert run([*train, "--eval-every", "1", "--quiet"]) == 0
    (listed,) = (tmp_path / "out").rglob("bad_samples.txt")
    said = listed.read_text()
    assert "label of 'c1' is 7x9 pixels" in said and "c5.png) cannot be read: the file is empty" in said
    assert "bad samples" in capsys.readouterr().out and (tmp_path / "out" / "weights.pt").is_file()
    assert run([*train, "--on-bad-sample", "raise", "--quiet"]) == 2
    assert "label of 'c1' is 7x9 pixels" in capsys.readouterr().err


def test_the_engine_is_told_what_was_asked(tmp_path):
    config = training(
        SegmentTrainConfig(data=tmp_path, model="smp:unet/resnet18", out=tmp_path / "o", lr=1e-3, steps=7)
    )
    assert (config.target, config.name, config.steps) == ("cells", "smp-unet-resnet18", 7)
    assert config.workload["model"] == "smp:unet/resnet18" and config.workload["data"] == str(tmp_path)
    assert config.runs == tmp_path / "o" / "runs" and config.resume == ""
    assert training(SegmentTrainConfig(data=tmp_path, resume=True)).resume == "latest"
    recorded = training(SegmentTrainConfig(data=tmp_path, graph=True))
    assert (config.graph, config.fused) == (False, False) and (recorded.graph, recorded.fused) == (True, True)
    assert training(SegmentTrainConfig(data=tmp_path, kernels=True)).kernels and not config.kernels


def test_a_weight_file_comes_from_a_checkpoint(tmp_path):
    with pytest.raises(DataError, match="empty' has left no checkpoint"):
        keep_weights(tmp_path / "empty", tmp_path)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["train"], "no data was given"),
        (["eval"], "no data was given"),
        (["train", "nowhere"], "nowhere/images' does not exist"),
        (["eval", "nowhere"], "nowhere/images' does not exist"),
        (["train", "nowhere", "--size", "8"], "size = 8"),
        (["eval", "nowhere", "--pictures", "-1"], "pictures = -1"),
    ],
)
def test_bad_requests_are_named(words, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run(["segment", *words]) == 2
    assert message in capsys.readouterr().err


def test_scores_that_cannot_be_had_are_refused(folder, tmp_path):
    with pytest.raises(ConfigError, match="model = 'hrnet' comes without weights"):
        evaluate(SegmentEvalConfig(data=folder, model="hrnet", out=tmp_path))
    with pytest.raises(ConfigError, match="batch = 0"):
        SegmentEvalConfig(data=folder, batch=0)
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StorageError, match=r"out = .*file"):
        evaluate(SegmentEvalConfig(data=folder, out=tmp_path / "file"))


def test_otsu_splits_two_groups():
    grey = np.concatenate([np.full(900, 0.2), np.full(100, 0.8)])
    assert 0.2 < otsu_threshold(grey) <= 0.8
    picture = np.full((20, 20, 3), 230, np.uint8)
    picture[5:12, 5:12] = 20
    foreground = otsu_foreground(picture)
    assert foreground.shape == (1, 20, 20) and foreground[0, 8, 8] == 1 and foreground[0, 0, 0] == 0


def test_truth_and_finding_are_outlined_side_by_side():
    picture = np.zeros((64, 64, 3), np.uint8)
    truth, found = np.zeros((64, 64), int), np.zeros((64, 64), int)
    truth[10:20, 10:20] = 1
    found[40:50, 40:50] = 3
    drawn = compared(picture, truth, found)
    assert drawn.shape == (256, 2 * 256 + 4, 3)
    left, right = drawn[:, :256], drawn[:, 260:]
    assert tuple(left[40, 40]) == TRUE_COLOUR and tuple(right[160, 160]) == FOUND_COLOUR
    assert not left[100:].any() and not right[:100].any()
