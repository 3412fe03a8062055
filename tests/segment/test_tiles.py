"""Tiles cover, blend without seams, and reach the network in full batches whatever pictures they are of."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from hotlap.base.errors import ConfigError
from hotlap.segment import tiles as tiles_module
from hotlap.segment.tiles import TileConfig, blend_weights, plan_tiles, predict_maps

SMALL = TileConfig(tile=64, overlap=16, multiple=16, batch=4)


def picture(height, width, seed=0):
    return np.random.default_rng(seed).random((height, width, 3), np.float32)


@pytest.mark.parametrize("size", [(1, 1), (64, 64), (65, 40), (300, 64), (129, 1000), (63, 60_000)])
def test_tiles_cover_every_pixel_and_share_enough(size):
    plan = plan_tiles(*size, SMALL)
    for side, tile, starts in [(size[0], plan.tile_height, plan.tops), (size[1], plan.tile_width, plan.lefts)]:
        assert starts[0] == 0 and starts[-1] + tile >= side and tile <= SMALL.tile
        assert (np.diff(starts) <= tile - SMALL.overlap).all()
        assert len(starts) == 1 or starts[-1] + tile == side, "only a picture smaller than a tile is extended"
    assert plan.num == len(list(plan.places()))


@pytest.mark.parametrize("size", [(1, 1), (7, 200), (64, 64), (150, 130)])
def test_what_the_network_says_of_each_pixel_comes_back_in_place(size, device):
    given = picture(*size)
    ((index, maps),) = predict_maps([given], lambda tiles: tiles[:, :2].to(device) * 2, SMALL)
    assert index == 0 and maps.shape == (2, *size) and maps.dtype == np.float32
    np.testing.assert_allclose(maps, given.transpose(2, 0, 1)[:2] * 2, rtol=1e-5)


def test_tiles_of_a_local_network_agree_with_the_whole_picture():
    weights = torch.randn(1, 3, 9, 9, generator=torch.Generator().manual_seed(0))
    given = picture(150, 170)

    def network(tiles):
        return F.conv2d(tiles, weights, padding=4)

    whole = network(torch.from_numpy(given).permute(2, 0, 1)[None])[0].numpy()
    ((_, maps),) = predict_maps([given], network, SMALL)
    plan = plan_tiles(150, 170, SMALL)
    inner = np.ones((150, 170), bool)
    for top in plan.tops:
        inner[max(top - 5, 0) : top + 5] = inner[top + 59 : top + 69] = False
    for left in plan.lefts:
        inner[:, max(left - 5, 0) : left + 5] = inner[:, left + 59 : left + 69] = False
    np.testing.assert_allclose(maps[:, inner], whole[:, inner], rtol=1e-3, atol=1e-3)


def test_blended_steps_between_tiles_are_small():
    """A network that says something else in every tile: the maps ramp from one to the next instead of jumping."""
    calls = iter(range(100))

    def moody(tiles):
        return torch.stack([torch.full((1, *tile.shape[1:]), float(next(calls) % 2)) for tile in tiles])

    ((_, maps),) = predict_maps([picture(64, 112)], moody, SMALL)
    assert maps.min() == 0 and maps.max() == 1
    assert np.abs(np.diff(maps[0], axis=1)).max() < 2.5 / SMALL.overlap


def test_batches_are_full_across_pictures_of_any_size():
    seen = []

    def network(tiles):
        seen.append(tuple(tiles.shape))
        return tiles[:, :1]

    sizes = [(64, 64), (64, 112), (30, 100), (64, 60), (160, 64), (64, 64), (50, 50)]
    pictures = [picture(*size, seed=n) for n, size in enumerate(sizes)]
    done = dict(predict_maps(iter(pictures), network, SMALL))
    assert sorted(done) == list(range(len(sizes)))
    for n, given in enumerate(pictures):
        np.testing.assert_allclose(done[n][0], given[..., 0], rtol=1e-5)
    num_square = sum(plan_tiles(*size, SMALL).num for n, size in enumerate(sizes) if n != 2)
    square = [n for n, *rest in seen if rest == [3, 64, 64]]
    assert square == [4] * (num_square // 4) + [num_square % 4] * (num_square % 4 > 0)
    assert [n for n, _, height, _ in seen if height == 32] == [plan_tiles(30, 100, SMALL).num]


def test_rare_shapes_do_not_pile_up():
    config = TileConfig(tile=64, overlap=16, multiple=16, batch=4, most_waiting=3)
    seen = []

    def network(tiles):
        seen.append(len(tiles))
        return tiles[:, :1]

    sizes = [(16, 16), (16, 32), (16, 48), (16, 64), (32, 16), (32, 32), (16, 16)]
    done = dict(predict_maps((picture(*size) for size in sizes), network, config))
    assert len(done) == len(sizes) and sum(seen) == len(sizes) and len(seen) > 5


def test_maps_of_a_picture_come_as_soon_as_they_can():
    asked = []

    def pictures():
        for n in range(9):
            asked.append(n)
            yield picture(64, 64)

    first = next(iter(predict_maps(pictures(), lambda tiles: tiles[:, :1], SMALL)))
    assert first[0] == 0 and asked == [0, 1, 2, 3], "no picture is read before its batch"


def test_weights_are_above_0_and_highest_inside():
    weights = blend_weights(plan_tiles(200, 200, SMALL), SMALL)
    assert weights.shape == (64, 64) and weights.min() > 0 and weights[32, 32] == 1 and weights[0, 0] < 0.01


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [("tile", 8, "at least 32"), ("batch", 0, "at least 1"), ("overlap", 600, "at most half of tile = 1024"),
     ("tile", 1000, "a multiple of 64")],
)  # fmt: skip
def test_settings_outside_their_range_are_named(name, value, words):
    with pytest.raises(ConfigError, match=f"{name} = {value} is not valid. Expected {words}"):
        TileConfig(**{name: value})


class Later:
    """An event of a card that is not here: what waits for it is given one batch later."""

    def query(self):
        return False

    def synchronize(self):
        pass


@pytest.mark.parametrize("later", [False, True])
def test_what_was_done_before_a_batch_that_fails_is_given(later, monkeypatch):
    asked = []
    if later:
        send = tiles_module._send

        def late(done):
            send(done)
            for canvas in done:
                canvas.ready = Later()

        monkeypatch.setattr(tiles_module, "_send", late)

    def predict(tiles):
        asked.append(len(tiles))
        if len(asked) == 3:
            raise RuntimeError("the third batch")
        return tiles[:, :1].float()

    pictures = [np.full((16, 16, 3), n, np.uint8) for n in range(8)]
    config = TileConfig(tile=32, overlap=0, multiple=16, batch=2)
    got = []
    with pytest.raises(RuntimeError, match="the third batch"):
        for index, maps in predict_maps(pictures, predict, config):
            assert (maps == index).all()
            got.append(index)
    assert got == [0, 1, 2, 3] and asked == [2, 2, 2]


def test_small_tiles_share_a_batch_by_their_pixels():
    config = TileConfig(tile=256, overlap=32, batch=2, small_batch=20)
    sides = {(256, 256): 2, (256, 192): 2, (128, 128): 8, (64, 128): 16, (64, 64): 20}
    assert {shape: config.batch_of(*shape) for shape in sides} == sides
    assert TileConfig(tile=256, overlap=32, batch=2).batch_of(64, 64) == 2


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("most", [1 << 24, 3 * 64 * 64, 64 * 64, 1])
def test_maps_of_a_card_are_those_of_a_cpu_however_many_come_together(most, monkeypatch):
    """All of a shape at once, three, one, and none, for which no memory is locked."""
    monkeypatch.setattr(tiles_module, "MOST_PINNED", most)
    sizes = [(64, 64), (64, 112), (30, 100), (64, 60), (64, 64), (64, 64), (50, 50), (64, 64), (64, 64)]
    pictures = [picture(*size, seed=n) for n, size in enumerate(sizes)]
    config = TileConfig(tile=64, overlap=16, multiple=16, batch=5)
    want = dict(predict_maps(pictures, lambda tiles: tiles[:, :1].half(), config))
    got = dict(predict_maps(pictures, lambda tiles: tiles[:, :1].cuda().half(), config))
    assert sorted(got) == sorted(want) == list(range(len(sizes)))
    for number, maps in want.items():
        assert got[number].dtype == np.float32
        np.testing.assert_allclose(got[number], maps, rtol=1e-6)
