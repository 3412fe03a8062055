"""Channels side by side: images, volumes, films that are neither, and how a tensor lies."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from hotlap.device.layout import channels_last_for, format_of, has_convolutions, is_channels_last, laid_out, lay_out

IMAGES, VOLUMES = torch.channels_last, torch.channels_last_3d


def test_convolutions_are_seen():
    assert has_convolutions(nn.Sequential(nn.ReLU(), nn.Sequential(nn.Conv2d(1, 1, 1))))
    assert has_convolutions(nn.ConvTranspose3d(1, 1, 1))
    assert not has_convolutions(nn.Sequential(nn.Linear(1, 1), nn.Conv1d(1, 1, 1)))


def test_five_dimensions_are_a_volume_only_where_there_are_3d_convolutions():
    film = torch.randn(2, 3, 4, 5, 6)
    assert channels_last_for(nn.Conv2d(1, 1, 1)) == {4: IMAGES}
    assert laid_out(film, channels_last_for(nn.Conv2d(4, 1, 1))).is_contiguous()
    assert laid_out(film, channels_last_for(nn.Conv3d(3, 1, 1))).is_contiguous(memory_format=VOLUMES)


def test_only_floating_point_images_are_turned():
    layout = {4: IMAGES}
    image = torch.randn(2, 3, 4, 5)
    assert laid_out(image, layout).is_contiguous(memory_format=IMAGES)
    for other in (torch.ones(2, 3, 4, 5, dtype=torch.int64), torch.randn(2, 3, 4), torch.randn(2, 3)):
        assert laid_out(other, layout) is other


def test_a_model_with_both_kinds_is_laid_out_in_place_and_keeps_its_parameters():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Conv3d(3, 4, 3), nn.Linear(2, 2))
    before = dict(model.named_parameters())
    numbers = {name: value.clone() for name, value in model.state_dict().items()}
    assert lay_out(model) is model
    assert model[0].weight.is_contiguous(memory_format=IMAGES) and model[1].weight.is_contiguous(memory_format=VOLUMES)
    assert all(before[name] is parameter for name, parameter in model.named_parameters())
    assert all(torch.equal(value, numbers[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize(
    ("tensor", "last", "found"),
    [
        (torch.randn(2, 3, 4, 5), False, torch.contiguous_format),
        (torch.randn(2, 3, 4, 5).contiguous(memory_format=IMAGES), True, IMAGES),
        (torch.randn(2, 3, 4, 5, 6).contiguous(memory_format=VOLUMES), True, VOLUMES),
        (torch.randn(2, 1, 4, 5), None, torch.contiguous_format),
        (torch.randn(2, 3, 4, 10)[..., ::2], None, torch.contiguous_format),
        (torch.randn(2, 3), None, torch.contiguous_format),
    ],
)
def test_how_a_tensor_lies(tensor, last, found):
    assert is_channels_last(tensor) is last and format_of(tensor) == found
