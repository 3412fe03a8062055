"""Pictures of any depth as bytes."""

from __future__ import annotations

import numpy as np
import pytest

from hotlap.segment.normalise import normalise


def test_normalised_pictures_span_all_bytes_whatever_their_bits():
    ramp = np.linspace(0, 1, 10_000).reshape(100, 100, 1)
    want = np.clip((ramp[..., 0] - 0.01) / 0.988, 0, 1) * 255
    for made in (
        (ramp * 200 + 20).astype(np.uint8),
        (ramp * 60_000).astype(np.uint16),
        ramp.astype(np.float32) * 9 - 5,
    ):
        got = normalise(made)
        assert got.shape == (100, 100, 3) and got.dtype == np.uint8
        np.testing.assert_allclose(got[..., 0], want, atol=3)  # a byte of 200 steps is 1.3 of 255
    assert (normalise(np.full((5, 5, 3), 9, np.uint8)) == 0).all()


def test_a_few_hot_pixels_do_not_darken_the_rest():
    values = np.random.default_rng(0).integers(100, 200, (100, 100, 1)).astype(np.uint16)
    values[0, :5] = 65_535
    assert 100 < normalise(values).mean() < 155


def test_a_few_bright_pixels_on_black_are_seen():
    values = np.full((100, 100, 1), 10, np.uint8)
    values[50, 50:53] = 90
    assert sorted(np.unique(normalise(values))) == [0, 255]


@pytest.mark.parametrize("kind", [np.uint8, np.uint16])
@pytest.mark.parametrize("side", [1, 2, 33, 900])
def test_percentiles_are_those_of_numpy(kind, side):
    pixels = np.random.default_rng(side).integers(0, 3 if side == 2 else 250, (side, side, 1)).astype(kind)
    step = max(1, int(np.sqrt(pixels.size / 500_000)))
    low, high = np.percentile(pixels[::step, ::step], (1.0, 99.8))
    if high <= low:
        low, high = pixels.min(), pixels.max()
    want = np.clip((pixels - float(low)) * (255.0 / (high - low) if high > low else 0.0), 0, 255).astype(np.uint8)
    np.testing.assert_array_equal(normalise(pixels)[..., :1], want)


@pytest.mark.parametrize("size", [(1, 1), (3, 5), (64, 48), (900, 900)])
def test_bytes_are_stretched_by_the_very_percentiles_of_numpy(size):
    draw = np.random.default_rng(size[0])
    pixels = (draw.beta(2, 5, (*size, 3)) * 255).astype(np.uint8)
    step = max(1, int(np.sqrt(pixels.size / 500_000)))
    floor, ceiling = np.percentile(pixels[::step, ::step], (1.0, 99.8))
    if ceiling <= floor:
        floor, ceiling = pixels.min(), pixels.max()
    scale = 255.0 / (ceiling - floor) if ceiling > floor else 0.0
    want = np.clip((pixels.astype(np.float64) - floor) * scale, 0, 255)
    made = normalise(pixels)
    assert np.abs(made - np.floor(want)).max() <= 1 and (made == want.astype(np.uint8)).mean() > 0.999
    made[0, 0, 0] = 7  # the result is the caller's own
