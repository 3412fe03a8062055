"""The named settings of a training: the seed's, whose numbers are kept, and today's methods."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hotlap.base.errors import UnknownName, did_you_mean

SEED_RATES = {"lr_means": 1.6e-4, "lr_quats": 1e-3, "lr_scales": 5e-3, "lr_opacities": 0.05, "lr_colors": 2.5e-3}

START_PIXELS = 1.5
"""The seed's splats begin as large as this on the screen."""


def default() -> dict[str, Any]:
    """The method as it was published, 30,000 steps: the defaults themselves."""
    return {}


def mcmc() -> dict[str, Any]:
    """Splats as samples of a Markov chain, at most a million of them."""
    return {
        "strategy": "mcmc", "max_splats": 1_000_000, "densify_until": 25_000, "start_opacity": 0.5, "start_scale": 0.1,
        "reset_every": 0,
    }  # fmt: skip


def fast() -> dict[str, Any]:
    """The default's density control in less time: small pictures first, no resets of opacities, 20,000 steps."""
    return {"steps": 20_000, "densify_until": 12_000, "reset_every": 0, "coarse_first": True, "sh_every": 500}


def _one_rate(rate: float) -> dict[str, Any]:
    """The early presets have one rate for everything, that does not fall and knows no extent."""
    rates = {f"lr_{name}": rate for name in ("means", "quats", "scales", "opacities", "colors", "background")}
    return {
        **rates, "lr_decay": 1.0, "lr_by_extent": False, "background": "learn", "start_opacity": 0.9,
        "start_pixels": START_PIXELS,
    }  # fmt: skip


def _density(every: int, most: int, grad: float, prune: float, sigma: float) -> dict[str, Any]:
    """Density control as the seed had it: world-space gradients, no window, no reset of opacities.

    All splats may want to split at once, and the limit on their number is what holds them.
    """
    return {
        "strategy": "adc", "densify_signal": "world", "densify_every": every, "max_splats": most, "densify_grad": grad,
        "prune_opacity": prune, "split_sigma": sigma, "densify_from": 0, "reset_every": 0, "prune_scale": 0.0,
        "abort_growth": 0.0,
    }  # fmt: skip


def m7() -> dict[str, Any]:
    """One picture overfitted by the colours of 20,000 splats."""
    return {
        **_one_rate(0.05), "image_index": 0, "steps": 1000, "scale": 0.25, "start_splats": 20_000, "learn": ("colors",),
        "sh_degree": 0, "loss": "l2", "strategy": "none", "hold_out": 0, "eval_every": 0, "max_test_views": 0,
    }  # fmt: skip


def m8_smoke() -> dict[str, Any]:
    """Five pictures, 2,000 splats, 50 steps: does it work at all?"""
    return {
        **_one_rate(0.01), "steps": 50, "scale": 0.125, "start_splats": 2000, "learn": ("colors",), "sh_degree": 0,
        "loss": "l2", "strategy": "none", "max_images": 5, "hold_out": 5, "eval_every": 10, "max_test_views": 1,
        "log_every": 10,
    }  # fmt: skip


def m8() -> dict[str, Any]:
    """All pictures, the colours of 10,000 splats."""
    return {
        **_one_rate(0.01), "steps": 500, "scale": 0.25, "start_splats": 10_000, "learn": ("colors",), "sh_degree": 0,
        "loss": "l2", "strategy": "none", "hold_out": 5, "eval_every": 50, "max_test_views": 0, "log_every": 50,
    }  # fmt: skip


def m9() -> dict[str, Any]:
    """Opacities and density control too."""
    return {
        **m8(), **_density(100, 80_000, 0.1, 0.01, 0.05), "steps": 1000, "learn": ("opacities", "colors"),
        "densify_until": 1000,
    }  # fmt: skip


def m10() -> dict[str, Any]:
    """Everything learns, by L1 and SSIM."""
    return {
        **m9(), **_one_rate(0.002), "steps": 2000, "start_splats": 20_000, "loss": "l1-ssim", "densify_until": 2000,
        "learn": ("means", "quats", "scales", "opacities", "colors"), "sh_degree": 3,
    }  # fmt: skip


def _later(steps: int, start: int, most: int, every: int, views: int) -> dict[str, Any]:
    """The later presets: a rate for each parameter, all falling to a tenth, and a seed of their own."""
    return {
        **_density(500, most, 0.0002, 0.005, 0.1), **SEED_RATES, "lr_background": 1e-3, "lr_by_extent": False,
        "lr_decay": 0.1, "lr_decay_all": True, "steps": steps, "densify_until": steps, "scale": 0.4,
        "start_splats": start, "eval_every": every, "max_test_views": views, "background": "learn", "hold_out": 5,
        "seed": 123, "start_opacity": 0.9, "start_pixels": START_PIXELS,
    }  # fmt: skip


def micro() -> dict[str, Any]:
    """Twenty pictures, 8,000 to 15,000 splats, 2,000 steps."""
    return {**_later(2000, 8000, 15_000, 500, 3), "loss": "l2", "max_images": 20, "hold_out": 4}


def onehour() -> dict[str, Any]:
    """75 pictures, 25,000 to 50,000 splats, 10,000 steps: an hour where it was made."""
    return {**_later(10_000, 25_000, 50_000, 500, 5), "max_images": 75}


def full() -> dict[str, Any]:
    """All pictures, 50,000 to 150,000 splats, 30,000 steps."""
    return {**_later(30_000, 50_000, 150_000, 1000, 10), "lr_background": 1e-4}


PRESETS: dict[str, Callable[[], dict[str, Any]]] = {
    "default": default, "mcmc": mcmc, "fast": fast, "m7": m7, "m8-smoke": m8_smoke, "m8": m8, "m9": m9, "m10": m10,
    "m10-quick": m10, "micro": micro, "onehour": onehour, "full": full,
}  # fmt: skip


def find_preset(name: str) -> dict[str, Any]:
    """The settings that a preset's name stands for."""
    if name not in PRESETS:
        raise UnknownName(f"unknown preset {name!r}", remedy=did_you_mean(name, PRESETS))
    return PRESETS[name]()
