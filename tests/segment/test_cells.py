"""Networks that see cells: their data, what is random about it, the loss, and that they learn."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch
from PIL import Image

from hotlap.base.errors import ConfigError, DataError, TargetError
from hotlap.segment.augment import recoloured, turned
from hotlap.segment.cell_data import SPARE_BYTES, CellCentres, CellCrops, CellImages, mirrored
from hotlap.segment.cells import LEARNED_BYTES, cells
from hotlap.segment.loss import EDGE_WEIGHT, cell_loss, edge_weights
from hotlap.segment.metrics import map_agreement
from hotlap.targets import load_target
from hotlap.workload import BadSample

CPU = torch.device("cpu")
TINY = {"model": "unet", "width": 4, "size": 64, "batch": 4, "train_images": 8, "eval_images": 4}


def square_cell(position):
    """A picture whose red channel says whether a pixel is in the cell: crops must keep the two together."""
    labels = np.zeros((40, 60), np.int32)
    labels[10 + position : 25, 20:45] = 1
    return np.repeat((labels * 200).astype(np.uint8)[..., None], 3, 2), labels


def test_crops_keep_image_and_maps_together():
    crops = CellCrops(CellImages(2, square_cell), size=48, crops=3)
    assert len(crops) == 6
    torch.manual_seed(0)
    for position in range(6):
        crop = crops[position]
        assert crop["image"].shape == (3, 48, 48) and crop["maps"].shape == (2, 48, 48)
        inside = crop["maps"][0] > 127
        assert torch.equal(inside, crop["image"][0] > 127)
        assert not bool((crop["maps"][1] > 0)[crop["maps"][0] == 0].any())


def test_a_crop_depends_on_its_own_draws_alone():
    crops = CellCrops(CellImages(2, square_cell), size=32, crops=1)
    torch.manual_seed(5)
    first = crops[1]
    torch.manual_seed(5)
    again = crops[1]
    other = crops[1]
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["colour"], other["colour"])


def test_what_is_mirrored_at_an_edge_is_no_object():
    centre = CellCentres(CellImages(1, square_cell), size=64)[0]
    assert centre["extent"].tolist() == [40, 60]
    assert not bool(centre["labels"][40:].any()) and bool(centre["maps"][0, 50:].any())
    assert centre["labels"][:40, :60].numpy().sum() == square_cell(0)[1].sum()


def test_a_mirror_goes_there_and_back():
    row = torch.arange(3)[None, None].expand(1, 3, 3)
    assert mirrored(row, 0, 0, 7)[0, 0].tolist() == [0, 1, 2, 2, 1, 0, 0]
    assert mirrored(row, 0, 1, 2)[0, 0].tolist() == [1, 2]


def test_turns_are_the_eight_of_a_square():
    picture = torch.arange(9.0).view(1, 1, 3, 3).expand(8, 1, 3, 3)
    each = turned(picture, torch.arange(8))
    assert len({tuple(t.flatten().tolist()) for t in each}) == 8
    assert torch.equal(each[0], picture[0]) and torch.equal(each[4, 0], picture[0, 0].T)


def test_colours_change_within_bounds():
    image = torch.rand(4, 3, 8, 8)
    assert torch.allclose(recoloured(image, torch.full((4, 6), 0.5)), image)
    changed = recoloured(image, torch.rand(4, 6))
    assert float(changed.min()) >= 0 and float(changed.max()) <= 1 and not torch.allclose(changed, image)


def test_pictures_are_stretched_as_in_use():
    def dim(position):
        return np.where(square_cell(position)[0] > 0, 110, 100).astype(np.uint8), square_cell(position)[1]

    assert CellImages(1, dim)[0]["image"].unique().tolist() == [0, 255]


def test_edges_weigh_most():
    maps = torch.zeros(1, 2, 20, 20)
    maps[:, 0, 5:15, 5:15] = 1
    maps[:, 1, 8:12, 8:12] = 1
    weight = edge_weights(maps)[0, 0]
    assert weight[0, 0] == weight[10, 10] == 1 and weight[5, 5] == weight[4, 4] == 1 + EDGE_WEIGHT


def test_edges_weigh_most_whatever_is_predicted():
    foreground, boundary = torch.zeros(1, 1, 20, 20), torch.zeros(1, 1, 20, 20)
    foreground[..., 5:15, 5:15] = 1
    boundary[..., 5:15, 5:15] = 1
    boundary[..., 7:13, 7:13] = 0
    for names, maps in (("foreground",), [foreground]), (("foreground", "boundary"), [foreground, boundary]):
        weight = edge_weights(torch.cat(maps, 1), names)[0, 0]
        assert weight[0, 0] == weight[10, 10] == 1 and weight[5, 5] == weight[4, 4] == 1 + EDGE_WEIGHT


@pytest.mark.parametrize("head", ["boundary", "foreground"])
def test_another_head_is_learned_and_scored_by_its_own_maps(head):
    workload = cells(**TINY, head=head)
    model = workload.build_model()
    batch = workload.make_batch(2, CPU, torch.Generator().manual_seed(0))
    assert batch["maps"].shape[1] == len(workload.maps) == workload.predict(model, batch).shape[1]
    total, count = workload.loss(model, batch)
    assert count == 2 and bool(total.isfinite())
    assert "ap50" in workload.metrics(model, workload.eval_data(), CPU)


def test_loss_is_least_at_the_truth_and_a_sum_over_images():
    torch.manual_seed(0)
    maps = torch.rand(3, 2, 8, 8, dtype=torch.float64)
    truth = torch.logit(maps, eps=1e-6)
    at_truth, count = cell_loss(truth, maps)
    assert count == 3
    assert all(float(cell_loss(truth + d, maps)[0]) > float(at_truth) for d in (-0.5, 0.5))
    scores = torch.randn(3, 2, 8, 8, dtype=torch.float64)
    alone = sum(float(cell_loss(s[None], m[None])[0]) for s, m in zip(scores, maps, strict=True))
    assert float(cell_loss(scores, maps)[0]) == pytest.approx(alone)


def test_masks_agree_where_the_reference_decides():
    ref = torch.full((1, 2, 10, 10), -1.0)
    ref[:, :, :5] = 1
    out = ref.clone()
    assert map_agreement(out, ref)[0].value == 1
    out[0, 0, 0, :2] = -1
    (agreement,) = map_agreement(out, ref)
    assert agreement.value == pytest.approx(98 / 100) and not agreement.passed
    near = ref.clone()
    near[0, 0, 0, :2] = 0.01
    assert map_agreement(out, near)[0].passed, "what is not decided is not judged"
    assert map_agreement(-ref.abs(), -ref.abs()) == []


def test_the_generator_alone_decides_a_batch(device):
    workload = cells(**TINY)
    first, again, other = (workload.make_batch(3, device, torch.Generator().manual_seed(seed)) for seed in (1, 1, 2))
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["image"], other["image"])
    assert workload.predict(workload.build_model().to(device), first).shape == (3, 2, 64, 64)


@pytest.mark.parametrize("name", ["hrnet", "resunet-small", "ma-resunet"])
def test_registered_networks_are_those_of_their_name(name):
    workload = load_target(name, {"width": 8, "size": 64})
    assert workload.name == name and load_target(name).config.size == 1024
    model = workload.build_model()
    assert type(model).__name__.lower() == name.replace("-", "")
    total, count = workload.loss(model, workload.make_batch(1, CPU, torch.Generator().manual_seed(0)))
    assert count == 1 and float(total.detach()) == pytest.approx(1.4, abs=1.0)
    with pytest.raises(TargetError, match="no option 'widht'"):
        load_target(name, {"widht": 3})


def test_loaders_in_other_processes_can_have_the_data():
    data = pickle.loads(pickle.dumps(cells(**TINY).train_data()))
    torch.manual_seed(0)
    assert len(data) == 8 and data[7]["image"].shape == (3, 64, 64)


def test_training_finds_the_cells(device):
    """Sizes of a test: before training nothing is found."""
    workload = cells(**TINY)
    torch.manual_seed(0)
    model = workload.build_model().to(device)
    optimizer = workload.optimizer(model)
    for group in optimizer.param_groups:
        group["lr"] = 5e-3
    batch = workload.make_batch(8, device, torch.Generator().manual_seed(3))
    losses = []
    for _ in range(40):
        total, count = workload.loss(model, batch)
        optimizer.zero_grad()
        (total / count).backward()
        optimizer.step()
        losses.append(float(total.detach()) / count)
    assert losses[-1] < 0.8 * losses[0]
    scores = workload.metrics(model, workload.eval_data(), device)
    assert model.training and set(scores) == {"ap50", "map", "f1", "pq", "dice"}
    assert 0.3 < scores["dice"] <= 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"width": -1}, "width = -1"), ({"size": 8}, "size = 8"), ({"crops": 0}, "crops = 0"), ({"lr": 0.0}, "lr = 0.0")
    ],
)  # fmt: skip
def test_bad_settings_are_named(options, message):
    with pytest.raises(ConfigError, match=message):
        cells(**options)


def test_an_image_that_cannot_be_read_is_a_bad_sample():
    def broken(position):
        raise DataError("label of 'x' is 3x4 pixels")

    with pytest.raises(BadSample, match="label of 'x' is 3x4"):
        CellImages(1, broken)[0]


def test_a_picture_for_which_there_is_no_memory_is_a_bad_sample(tmp_path, monkeypatch):
    for kind in ("images", "labels"):
        (tmp_path / kind).mkdir()
        for n in range(5):
            Image.fromarray(np.full((8, 10), n, np.uint8)).save(tmp_path / kind / f"{n}.png")
    data = cells(data=str(tmp_path), model="unet", width=2, size=16).train_data().images
    monkeypatch.setattr("hotlap.segment.cells.memory_available", lambda: LEARNED_BYTES * 80 - 1)
    words = r"image of '1' is 10x8 pixels, which take 1.56 KiB of memory .* and 1.56 KiB are available; cut it"
    assert data[0]["labels"].shape == (8, 10), "it is kept"
    data._kept.clear()
    with pytest.raises(BadSample, match=words):
        data[0]
    monkeypatch.setattr("hotlap.segment.cells.memory_available", lambda: LEARNED_BYTES * 80)
    assert data[0]["labels"].shape == (8, 10)


def test_pictures_are_kept_only_while_there_is_memory(monkeypatch):
    """Each worker that keeps what it reads would have all pictures in the end."""
    asked, room = [], [SPARE_BYTES]

    def read(position):
        asked.append(position)
        return square_cell(position)

    monkeypatch.setattr("hotlap.segment.cell_data.memory_available", lambda: room[0])
    images = CellImages(1, read)
    assert images[0]["labels"].equal(images[0]["labels"]) and asked == [0, 0]
    room[0] += 1
    assert images[0]["labels"].equal(images[0]["labels"]) and asked == [0, 0, 0]


def test_pictures_are_read_once_and_before_workers_ask_for_them():
    asked = []

    def read(position):
        asked.append(position)
        if position == 1:
            raise DataError("image 1 is cut off")
        return square_cell(position)

    images = CellImages(3, read)
    images.preload(2)
    assert sorted(asked) == [0, 1, 2]
    assert images[0]["labels"].shape == images[2]["labels"].shape
    assert sorted(asked) == [0, 1, 2]
    with pytest.raises(BadSample, match="image 1 is cut off"):
        images[1]
