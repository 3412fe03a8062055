"""How far answers are from the truth: known cases, and what is not finite."""

from __future__ import annotations

import math

import pytest
import torch

from hotlap.measure.distances import relative_error, trajectory_error, worst_error


def test_relative_error_of_known_tensors():
    truth = torch.tensor([3.0, 4.0], dtype=torch.float64)
    assert relative_error(truth * 1.1, truth) == pytest.approx(0.1)
    assert relative_error(torch.tensor([math.nan, 1.0]), truth) == math.inf
    assert relative_error(torch.ones(3), truth) == math.inf
    assert relative_error(torch.full((2,), 0.5), torch.zeros(2)) == pytest.approx(math.sqrt(0.5))


def test_a_true_gradient_of_zero_is_measured_against_its_share_of_the_whole():
    truth = {"weight": torch.ones(100, dtype=torch.float64), "bias": torch.zeros(1, dtype=torch.float64)}
    got = {"weight": truth["weight"], "bias": torch.full((1,), 1e-6, dtype=torch.float64)}
    error, name = worst_error(got, truth)
    assert name == "bias" and error == pytest.approx(1e-6, rel=0.01)
    got["bias"] = torch.tensor([math.nan])
    assert worst_error(got, truth) == (math.inf, "bias is not finite")


def test_losses_are_compared_step_by_step():
    assert trajectory_error([1.0, 2.2], [1.0, 2.0]) == pytest.approx(0.1)
    assert trajectory_error([8.0, 1.4, 1.0], [8.0, 1.0, 1.0]) == pytest.approx(0.05)  # after a steep step, over the 8
    assert trajectory_error([8.0, 1.0, 1.4], [8.0, 1.0, 1.0]) == pytest.approx(0.4)  # the step behind it counts in full
    assert trajectory_error([1.0, math.inf], [1.0, 2.0]) == math.inf
