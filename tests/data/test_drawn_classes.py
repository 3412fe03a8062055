import pytest
import torch

from hotlap.base.errors import ConfigError
from hotlap.data.drawn_classes import CLASSES, draw_classes


def draw(index, height=40, width=40, seed=0):
    index = torch.as_tensor(index)
    return draw_classes(index, index % len(CLASSES), height=height, width=width, seed=seed)


def test_pictures_have_the_asked_shape():
    assert draw(range(3), 30, 50).shape == (3, 3, 30, 50) and draw([1]).dtype == torch.uint8
    assert draw([]).shape == (0, 3, 40, 40)


def test_a_picture_is_the_same_in_any_batch():
    """37 x 41 pixels, so that a picture's ends do not fall on a vector's."""
    together = draw(range(45), 37, 41)
    for position in (0, 7, 36, 44):
        assert torch.equal(draw([position], 37, 41)[0], together[position])


def test_seeds_and_indices_give_other_pictures():
    assert not torch.equal(draw([3], seed=0), draw([3], seed=1))
    assert not torch.equal(draw([3]), draw([13])), "the same class"


def test_the_mean_colour_does_not_tell_the_class():
    """What a trivial classifier scores: the nearest mean colour of the training pictures, against a chance of 0.1."""
    index = torch.arange(800)
    colour = draw(index, 24, 24).float().mean((2, 3))
    label = index % len(CLASSES)
    means = torch.stack([colour[:400][label[:400] == c].mean(0) for c in range(len(CLASSES))])
    hits = torch.cdist(colour[400:], means).argmin(1) == label[400:]
    assert hits.float().mean() < 0.2


def test_too_small_a_picture_is_named():
    with pytest.raises(ConfigError, match=r"pictures of 40x15 are too small.*at least 16"):
        draw([0], 15, 40)
