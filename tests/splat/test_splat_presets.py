"""Presets: the seed's numbers as they were tabled, beneath what the user says."""

from __future__ import annotations

import pytest

from hotlap.base.errors import ConfigError, UnknownName
from hotlap.base.settings import Layer, resolve
from hotlap.records.codec import encode
from hotlap.splat.config import LEARNABLE, SplatTrainConfig, config_with
from hotlap.splat.presets import PRESETS

COLOUR, ALL = ("colors",), LEARNABLE
TABLE = {
    # steps, rate, scale, splats, learns, loss, views, hold_out, judged every, by, densify (every/cap/grad/prune/split)
    "m7": (1000, 0.05, 0.25, 20_000, COLOUR, "l2", 0, 0, 0, 0, None, 0),
    "m8-smoke": (50, 0.01, 0.125, 2000, COLOUR, "l2", 5, 5, 10, 1, None, 0),
    "m8": (500, 0.01, 0.25, 10_000, COLOUR, "l2", 0, 5, 50, 0, None, 0),
    "m9": (1000, 0.01, 0.25, 10_000, ("opacities", "colors"), "l2", 0, 5, 50, 0, (100, 80_000, 0.1, 0.01, 0.05), 0),
    "m10": (2000, 0.002, 0.25, 20_000, ALL, "l1-ssim", 0, 5, 50, 0, (100, 80_000, 0.1, 0.01, 0.05), 0),
    "m10-quick": (2000, 0.002, 0.25, 20_000, ALL, "l1-ssim", 0, 5, 50, 0, (100, 80_000, 0.1, 0.01, 0.05), 0),
    "micro": (2000, None, 0.4, 8000, ALL, "l2", 20, 4, 500, 3, (500, 15_000, 0.0002, 0.005, 0.1), 123),
    "onehour": (10_000, None, 0.4, 25_000, ALL, "l1-ssim", 75, 5, 500, 5, (500, 50_000, 0.0002, 0.005, 0.1), 123),
    "full": (30_000, None, 0.4, 50_000, ALL, "l1-ssim", 0, 5, 1000, 10, (500, 150_000, 0.0002, 0.005, 0.1), 123),
}
RATES = ("lr_means", "lr_quats", "lr_scales", "lr_opacities", "lr_colors", "lr_background")


@pytest.mark.parametrize("name", TABLE)
def test_the_seeds_presets_are_as_they_were_tabled(name):
    steps, rate, scale, splats, learns, loss, views, hold_out, every, judged, densify, seed = TABLE[name]
    c = config_with(name)
    assert (c.steps, c.scale, c.start_splats, c.learn, c.loss) == (steps, scale, splats, learns, loss)
    assert (c.max_images, c.hold_out, c.eval_every, c.max_test_views, c.seed) == (views, hold_out, every, judged, seed)
    assert c.background == "learn" and c.image_index == (0 if name == "m7" else None)
    if rate is None:
        background = 1e-4 if name == "full" else 1e-3
        assert [getattr(c, n) for n in RATES] == [1.6e-4, 1e-3, 5e-3, 0.05, 2.5e-3, background]
        assert (c.lr_decay, c.lr_decay_all) == (0.1, True)
    else:
        assert [getattr(c, n) for n in RATES] == [rate] * 6 and c.lr_decay == 1
    if densify is None:
        assert c.strategy == "none"
    else:
        found = (c.densify_every, c.max_splats, c.densify_grad, c.prune_opacity, c.split_sigma)
        assert c.strategy == "adc" and found == densify and c.densify_signal == "world"


def test_fast_is_the_default_in_fewer_steps_without_resets_and_with_small_pictures_first():
    fast, default = (encode(config_with(name)) for name in ("fast", "default"))
    changed = {name: fast[name] for name in fast if fast[name] != default[name] and name != "preset"}
    expected = {"steps": 20_000, "densify_until": 12_000, "reset_every": 0, "coarse_first": True, "sh_every": 500}
    assert changed == expected and fast["strategy"] == "adc" and fast["adam"] == "dense"


def test_every_preset_can_be_taken_and_is_named_in_the_help():
    from hotlap.base.settings import field_docs

    for name in PRESETS:
        assert config_with(name).preset == name
        assert name in field_docs(SplatTrainConfig)["preset"]


def test_what_the_user_says_wins_over_the_preset_and_that_over_the_defaults():
    resolved = resolve(SplatTrainConfig, [Layer("the command line", {"preset": "m8", "steps": "77"})])
    assert resolved.config.steps == 77 and resolved.sources["steps"] == "the command line"
    assert resolved.config.start_splats == 10_000 and resolved.sources["start_splats"] == "preset m8"
    assert resolved.config.keep == 2 and resolved.sources["keep"] == "default"


def test_an_unknown_preset_is_refused():
    with pytest.raises(UnknownName, match="unknown preset 'm99'"):
        config_with("m99")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"steps": 0}, "steps = 0 is not valid. Expected at least 1"),
        ({"sh_degree": 4}, "sh_degree = 4 is not valid. Expected at most 3"),
        ({"lr_colors": float("inf")}, "lr_colors = inf is not valid. Expected at least 0, and finite"),
        ({"ssim_weight": 1.5}, "ssim_weight = 1.5 is not valid"),
        ({"ssim_weight": -0.5}, "ssim_weight = -0.5 is not valid. Expected at least 0"),
        ({"scale": 2.0}, "scale = 2 is not valid. Expected at most 1"),
        ({"hold_out": 1}, "hold_out = 1 leaves no picture to train on. Expected 0"),
        ({"start_opacity": 1.0}, "start_opacity = 1 is not valid"),
        ({"strategy": "mcmc", "adam": "lazy"}, "adam = 'lazy' with strategy = 'mcmc' is not valid"),
        ({"strategy": "budget"}, "strategy = 'budget' in the caller is not valid. Expected one of adc, mcmc, none"),
        ({"adam": "auto"}, "adam = 'auto' in the caller is not valid. Expected one of dense, selective, lazy"),
        ({"strategy": "none", "loss": "l3"}, "loss = 'l3'"),
    ],
)
def test_settings_that_make_no_sense_are_refused(changes, message):
    with pytest.raises(ConfigError, match=message):
        config_with(**changes)


def test_only_what_a_splat_has_can_be_learned():
    with pytest.raises(ConfigError, match=r"learn names nothing. Expected some of means, quats"):
        config_with(learn=())
    with pytest.raises(UnknownName, match=r"learn names 'color'.*Did you mean 'colors'"):
        config_with(learn=("color",))
