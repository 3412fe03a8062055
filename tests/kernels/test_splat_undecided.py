"""The pixels that a comparison of large scenes leaves out."""

from __future__ import annotations

import math

import pytest
import torch

from hotlap.kernels.agreement import in_float64
from hotlap.kernels.splat.cases import SplatCase, as_splats, undecided
from hotlap.kernels.splat.frame import Splats, View

pytest.importorskip("numba")
from hotlap.kernels.splat.cpu_undecided import LEAST, find_undecided

CPU = torch.device("cpu")
VIEW = View(width=48, height=32)


@pytest.mark.parametrize(
    ("case", "most"),
    [
        (SplatCase(splats=83, cameras=2, background=True), 0.02),
        (SplatCase(splats=97, size=0.6, opacity=3.0), 0.10),
        (SplatCase(splats=300, width=64, height=48, size=0.3, opacity=-3.5), 0.25),
    ],
    ids=lambda value: getattr(value, "id", None),
)
def test_finds_what_the_cases_find_and_little_more(case, most):
    made = case.make(CPU)
    found = find_undecided(as_splats(made), case.view).pixels
    wanted = undecided(in_float64(made), case.view, LEAST)
    assert wanted.any(), "the case says nothing"
    assert not (wanted & ~found).any()
    assert found.float().mean() < most


def facing(
    depths: list[float], shift: float = 0.0, along: float = 0.0, length: float = 0.3, width: float = 0.3
) -> Splats:
    """Splats one behind the other, the camera ``shift`` from the world's origin, their centres moved ``along`` them."""
    num, turn = len(depths), 0.7
    x, y = along * math.cos(turn) + 0.003, along * math.sin(turn) + 0.002
    means = torch.tensor([[x, y, shift + depth] for depth in depths])
    viewmats = torch.eye(4)[None].clone()
    viewmats[0, 2, 3] = -shift
    return Splats(
        means=means,
        quats=torch.tensor([math.cos(turn / 2), 0.0, 0.0, math.sin(turn / 2)]).repeat(num, 1),
        scales=torch.tensor([length, width, 0.01]).repeat(num, 1),
        opacities=torch.full((num,), 0.6),
        colors=torch.ones(num, 3),
        viewmats=viewmats,
        Ks=torch.tensor([[[40.0, 0.0, 24.0], [0.0, 40.0, 16.0], [0.0, 0.0, 1.0]]]),
        backgrounds=None,
    )


@pytest.mark.parametrize(
    ("depths", "shift", "swapped"),
    [
        ([2.0, 2.0], 0.0, False),  # equal in any arithmetic: the order of the splats decides
        ([2.0, 2.000001], 0.0, True),
        ([2.0, 2.001], 0.0, False),
        ([2.0, 2.001], 5000.0, True),  # two steps of float32 apart, so far from the origin
    ],
)
def test_splats_that_rounding_may_swap_are_undecided(depths, shift, swapped):
    splats = facing([*depths, 9.0], shift=shift)
    alike = find_undecided(splats, VIEW)
    assert alike.splats.tolist() == [swapped, swapped, False]
    assert alike.pixels.float().mean() < 0.02, "the picture is the same in either order"
    splats.colors[0] = 0.5
    unlike = find_undecided(splats, VIEW)
    assert (unlike.pixels.float().mean() > 0.1) == swapped
    assert not unlike.pixels[0, 0, 0], "no splat reaches the corner"


def test_a_needle_is_undecided_where_its_exponent_has_lost_its_digits():
    near, far = (find_undecided(facing([2.0], along=a, length=2000.0, width=0.1), VIEW) for a in (0.0, 1000.0))
    assert near.pixels.sum() <= 2 and not near.splats.any()
    assert far.pixels.sum() > 40, "as many as the needle covers: its centre is 20,000 pixels away"
    assert far.splats.all()
    assert not far.pixels[0, 0, 40:].any(), "it goes through the middle"
