"""Networks that find objects, served: the answer is what 'hotlap segment predict' finds, and bad pictures are named."""

from __future__ import annotations

import dataclasses
import io
import json

import numpy as np
import pytest
import torch

from hotlap.base.errors import ConfigError, DataError, UsageError
from hotlap.data.drawn_cells import draw_cells
from hotlap.data.micrograph import read_pictures
from hotlap.measure.servable import ModelSpec
from hotlap.segment import instances, tuned_net
from hotlap.segment.heads import HEADS
from hotlap.segment.nets import build_head, build_net
from hotlap.segment.objects import COLUMNS
from hotlap.segment.predict import ManyConfig, predict_many
from hotlap.segment.predict_config import SegmentPredictConfig
from hotlap.segment.predictor import load_predictor
from hotlap.segment.served import SegmentServable, UNetServable
from hotlap.segment.tiles import TileConfig

pytest.importorskip("PIL")
Image = pytest.importorskip("PIL.Image")
TINY = {"model": "unet", "width": 2, "size": 64, "batch": 2}


def as_file(pixels, kind="PNG", **save):
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, kind, **save)
    return out.getvalue()


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    """A network with fresh weights, whose scores are spread out around 0 so that it finds something."""
    torch.manual_seed(3)
    net = build_net("unet", maps=2, width=2).eval()
    pixels = torch.from_numpy(draw_cells(1, size=96, seed=0)[0]).permute(2, 0, 1)[None] / 255
    with torch.no_grad():
        scores = net(pixels)
        net.head.weight *= 4 / scores.std()
        net.head.bias -= net(pixels).mean((0, 2, 3))
    file = tmp_path_factory.mktemp("net") / "weights.pt"
    torch.save(net.state_dict(), file)
    return file


def ask(servable, loaded, body, **options):
    decoded = servable.decode(body, options, loaded.signature)
    return servable.finish(loaded.run(decoded.rows), decoded.facts, options), decoded


def test_the_answer_is_what_a_folder_of_pictures_would_get(weights, tmp_path, device):
    pixels, _ = draw_cells(1, size=100, seed=0)
    (tmp_path / "a.png").write_bytes(as_file(pixels[:90]))
    spec = ModelSpec(name="cells", target="cells", options=TINY, weights=str(weights))
    servable = SegmentServable(spec)
    answer, decoded = ask(servable, servable.load(str(device)), (tmp_path / "a.png").read_bytes(), um_per_px=0.5)
    assert decoded.rows[0].shape == (4, 3, 64, 64), "two tiles across, two down"
    config = SegmentPredictConfig(folder=tmp_path, model="unet", weights=weights, device=str(device))
    (picture,) = read_pictures(tmp_path / "a.png")
    many = ManyConfig(tiles=TileConfig(tile=64, overlap=16, batch=2), um_per_px=0.5)
    (want,) = predict_many([picture.pixels], load_predictor(config), many)
    assert len(want.objects) > 3
    assert (answer["width"], answer["height"], answer["um_per_px"], answer["model"]) == (100, 90, 0.5, "cells")
    assert [o["metrics"]["area"] for o in answer["objects"]] == [m.area for m in want.objects]
    for given, outline in zip(answer["objects"], want.outlines, strict=True):
        assert given["polygon"] == outline.parts[0].outer.tolist()
        assert given["polygon"][0] != given["polygon"][-1]
        assert [*given["holes"]] == [hole.tolist() for hole in outline.parts[0].holes]
        assert set(given["metrics"]) == set(COLUMNS) - {"label", "confidence"}
    assert json.loads(json.dumps(answer)) == answer


@pytest.mark.parametrize("head", ["core", "boundary", "foreground"])
def test_maps_are_read_as_the_weights_say(head, tmp_path):
    torch.manual_seed(4)
    torch.save(build_head("unet", head, width=2).state_dict(), tmp_path / "weights.pt")
    spec = ModelSpec(name="cells", target="cells", options=TINY, weights=str(tmp_path / "weights.pt"))
    servable = SegmentServable(spec)
    signature = servable.load("cpu").signature
    assert signature.outputs[0].planes == HEADS[head]
    decoded = servable.decode(as_file(draw_cells(1, size=64, seed=0)[0]), {}, signature)
    assert decoded.facts["names"] == HEADS[head]


def test_cells_without_a_name_are_the_network_that_their_weights_are_of(tmp_path):
    """It was taken for hrnet, and 'segment train' leaves weights of any."""
    torch.save(build_head("resunet-small", "core", width=6).state_dict(), tmp_path / "a.pt")
    spec = ModelSpec(name="m", target="cells", options={"size": 64}, weights=str(tmp_path / "a.pt"))
    loaded = SegmentServable(spec).load("cpu")
    assert loaded.signature.outputs[0].planes == HEADS["core"]
    assert ask(SegmentServable(spec), loaded, as_file(draw_cells(1, size=64, seed=0)[0]))[0]["width"] == 64
    told = []
    SegmentServable(spec).tuned("cpu", told.append, None)
    assert "'hotlap tune resunet-small --for infer --set workload.width=6 --set workload.size=64'" in told[0].text
    named = dataclasses.replace(spec, options={"size": 64, "model": "hrnet"})
    with pytest.raises(UsageError, match=r"a.pt' are not those of hrnet, but of resunet-small.*hotlap serve cells"):
        SegmentServable(named).load("cpu")


@pytest.mark.parametrize(("rows", "served"), [(0, 1), (3, 3)])
def test_a_cpu_is_given_one_large_tile_at_once_unless_more_was_asked_for(weights, monkeypatch, rows, served):
    """A unet's 16 of 1024x1024 would take 24 GiB while it warms up."""
    monkeypatch.setattr(tuned_net, "CPU_PIXELS", 64**2)
    options = {**TINY, "batch": 4}
    spec = ModelSpec(name="m", target="cells", options=options, weights=str(weights), rows=rows)
    assert SegmentServable(spec).load("cpu").signature.rows == served


def test_a_threshold_changes_what_is_found_and_pictures_of_any_kind_are_taken(weights):
    servable = SegmentServable(ModelSpec(name="cells", target="cells", options=TINY, weights=str(weights)))
    loaded = servable.load("cpu")
    assert servable.answers(loaded.signature) == "objects"
    assert loaded.signature.inputs[0].shape == (3, -1, -1)
    pixels, _ = draw_cells(2, size=64, seed=0)
    area = {}
    for threshold in (0.3, 0.5, 0.7):
        answer, _ = ask(servable, loaded, as_file(pixels), threshold=threshold)
        area[threshold] = sum(o["metrics"]["area"] for o in answer["objects"])
    assert area[0.3] >= area[0.5] >= area[0.7] and area[0.3] > area[0.7]
    deep = (pixels[..., 0].astype(np.uint16) * 257)[:20, :33]
    for body in (as_file(deep, "TIFF"), as_file(pixels[:20, :33], "JPEG"), as_file(pixels[:1, :1])):
        answer, decoded = ask(servable, loaded, body)
        assert decoded.rows[0].shape == (1, 3, 64, 64) and answer["width"] in (33, 1)


def two_pages():
    out = io.BytesIO()
    pages = [Image.new("L", (4, 4), value) for value in (1, 2)]
    pages[0].save(out, "TIFF", save_all=True, append_images=pages[1:])
    return out.getvalue()


def not_finite():
    out = io.BytesIO()
    Image.fromarray(np.full((4, 4), np.nan, np.float32)).save(out, "TIFF")
    return out.getvalue()


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (lambda: b"", "'a.png' cannot be read: the file is empty"),
        (lambda: b"no picture", "'a.png' cannot be read: no known picture format"),
        (lambda: as_file(np.zeros((99, 99, 3), np.uint8), "JPEG")[:300], "'a.png' cannot be read"),
        (two_pages, "'a.png' has 2 pages"),
        (not_finite, "16 of its 16 numbers are NaN"),
        (lambda: as_file(np.zeros((1100, 60_000), bool)), "60000x1100 pixels are more than"),
    ],
    ids=["empty", "text", "truncated", "pages", "nan", "huge"],
)
def test_what_is_no_picture_is_told_so(body, words):
    servable = SegmentServable(ModelSpec(name="cells", target="cells", options=TINY))
    with pytest.raises(DataError, match=words):
        servable.decode(body(), {"filename": "a.png"}, None)


@pytest.mark.parametrize(
    ("options", "words"), [({"threshold": 0.0}, "threshold = 0.0"), ({"um_per_px": -1.0}, "um_per_px = -1.0")]
)
def test_wrong_options_are_told_before_the_work(options, words):
    servable = SegmentServable(ModelSpec(name="cells", target="cells", options=TINY))
    with pytest.raises(ConfigError, match=words):
        servable.decode(as_file(np.zeros((4, 4), np.uint8)), options, None)


def test_a_unet_tells_classes_or_the_objects_of_one_of_them():
    servable = UNetServable(ModelSpec(name="unet", target="unet", options={"width": 2, "size": 32, "batch": 2}))
    loaded = servable.load("cpu")
    assert servable.answers(loaded.signature) == "classes"
    body = as_file(draw_cells(1, size=64, seed=0)[0][:48])
    assert "classes" in ask(servable, loaded, body)[0]
    decoded = servable.decode(body, {"class": 1}, loaded.signature)
    scores = torch.zeros(1, 3, 32, 32)
    scores[0, 1, 8:24, 4:16] = 9.0
    answer = servable.finish((scores,), decoded.facts, {"class": 1})
    (only,) = answer["objects"]
    assert only["metrics"]["area"] == pytest.approx(24 * 24, rel=0.1), "16 x 12 of 32 x 32, in 64 x 48 pixels"
    with pytest.raises(ConfigError, match="class = 7"):
        servable.decode(body, {"class": 7}, loaded.signature)


def test_a_unet_with_weights_of_one_map_finds_objects(tmp_path):
    torch.save(build_net("unet", maps=1, width=2).state_dict(), tmp_path / "one.pt")
    spec = ModelSpec(name="u", target="unet", options={"size": 64, "batch": 1}, weights=str(tmp_path / "one.pt"))
    servable = UNetServable(spec)
    loaded = servable.load("cpu")
    assert servable.answers(loaded.signature) == "objects"
    answer, _ = ask(servable, loaded, as_file(np.zeros((30, 40), np.uint8)))
    assert (answer["width"], answer["height"]) == (40, 30) and "objects" in answer


def test_a_warm_service_has_compiled_what_every_head_needs(monkeypatch):
    asked = []
    steps = instances.depth, instances.merge
    for step in steps:
        monkeypatch.setattr(instances, step.__name__, lambda *a, run=step: asked.append(run.__name__) or run(*a))
    SegmentServable(ModelSpec(name="m", target="cells")).warm_up()
    assert set(asked) == {"depth", "merge"}


@pytest.mark.parametrize("arm", ["cpu", "cpu:channels_last"])
def test_tiles_reach_the_network_in_the_layout_of_its_arm(weights, arm):
    """Pictures have their channels last, and an arm that was measured without runs without."""
    servable = SegmentServable(ModelSpec(name="cells", target="cells", options=TINY, weights=str(weights), arm=arm))
    loaded = servable.load("cpu")
    assert [taken.name for taken in loaded.signature.inputs] == ["image"]
    seen = []
    loaded._session.plain_model.register_forward_pre_hook(lambda module, args: seen.append(args[0]))
    ask(servable, loaded, as_file(draw_cells(1, size=64, seed=0)[0]))
    assert [tensor.is_contiguous() for tensor in seen] == [arm == "cpu"]


def test_an_arm_whose_norms_are_folded_in_16_bits_is_served(weights):
    """Its layers take nothing but 16 bits, also while the inputs are found out."""
    body, maps = as_file(draw_cells(1, size=64, seed=0)[0]), []
    for arm in ("cpu", "cpu:bf16+folded"):
        spec = ModelSpec(name="cells", target="cells", options=TINY, weights=str(weights), arm=arm)
        servable = SegmentServable(spec)
        loaded = servable.load("cpu")
        maps += loaded.run(servable.decode(body, {}, loaded.signature).rows)
        assert [taken.name for taken in loaded.signature.inputs] == ["image"]
    torch.testing.assert_close(maps[1].float(), maps[0], atol=0.05, rtol=0)


def test_a_unet_of_two_maps_says_how_it_is_served(tmp_path):
    """It is what a training of cells leaves; it was told to fit a model of three classes."""
    file = tmp_path / "cells.pt"
    torch.save(build_net("unet", maps=2, width=2).state_dict(), file)
    spec = ModelSpec(name="m", target="unet", options={"width": 2}, weights=str(file), rows=1)
    with pytest.raises(UsageError, match=r"predict 2 maps.*'hotlap serve cells'.*classes=2"):
        UNetServable(spec).load("cpu")
    cells = {"width": 2, "size": 64}
    assert SegmentServable(ModelSpec(name="m", target="cells", options=cells, weights=str(file), rows=1)).load("cpu")
    classes = {"width": 2, "classes": 2, "size": 64}
    assert UNetServable(ModelSpec(name="m", target="unet", options=classes, weights=str(file), rows=1)).load("cpu")
