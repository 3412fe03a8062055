import pytest
import torch
from torch.utils.data import DataLoader

from hotlap.base.errors import ConfigError
from hotlap.data.counter_random import EVAL, TRAIN
from hotlap.data.drawn_shapes import CORNERED, DISC, DrawnShapes, draw_shapes, merge_classes, sample_scene

CPU = torch.device("cpu")


def draw(index, size=64, seed=0, device=CPU):
    return draw_shapes(torch.as_tensor(index), size=size, seed=seed, device=device)


def test_shapes_types_and_range():
    images, masks = draw(range(8))
    assert images.shape == (8, 3, 64, 64) and images.dtype == torch.float32
    assert masks.shape == (8, 64, 64) and masks.dtype == torch.int64
    assert images.min() >= 0 and images.max() <= 1
    assert masks.unique().tolist() == [0, 1, 2]


def test_an_item_is_the_same_in_any_batch():
    images, masks = draw(range(12))
    image, mask = draw([7])
    assert torch.equal(image[0], images[7]) and torch.equal(mask[0], masks[7])


def test_an_item_is_the_same_on_any_device(device):
    images, masks = draw(range(16), device=device)
    want_images, want_masks = draw(range(16))
    assert torch.equal(masks.cpu(), want_masks)
    torch.testing.assert_close(images.cpu(), want_images, rtol=0, atol=1e-6)


def test_seeds_give_other_pictures():
    assert not torch.equal(draw([3], seed=0)[1], draw([3], seed=1)[1])


def test_masks_match_a_pixel_by_pixel_drawing():
    size, index = 40, torch.arange(4)
    scene = sample_scene(index, size=size, seed=4)
    _, masks = draw(index, size=size, seed=4)
    for n in range(len(index)):
        want = torch.zeros(size, size, dtype=torch.int64)
        for k in range(scene.kind.shape[1]):
            kind = scene.kind[n, k].item()
            (left, top), (off_x, off_y) = scene.origin[n, k].tolist(), scene.offset[n, k].tolist()
            (a, b), (c, d) = scene.axes[n, k].tolist()
            for y in range(size):
                for x in range(size):
                    u = a * (x - left + off_x) + b * (y - top + off_y)
                    v = c * (x - left + off_x) + d * (y - top + off_y)
                    disc = u * u + v * v <= 1
                    cornered = max(abs(u), abs(v)) <= 1 and u + v <= scene.cut[n, k].item()
                    if (kind == DISC and disc) or (kind == CORNERED and cornered):
                        want[y, x] = kind
        assert (masks[n] != want).sum() <= 1  # float32 may round a pixel on the very outline the other way


def test_both_kinds_cover_about_the_same_area():
    _, masks = draw(range(500))
    shares = torch.bincount(masks.view(-1), minlength=3) / masks.numel()
    assert 0.7 < shares[0] < 0.92
    assert 0.8 < shares[1] / shares[2] < 1.25


def test_colour_does_not_tell_the_class():
    images, masks = draw(range(400))
    pixels = images.permute(0, 2, 3, 1)
    for moment in (lambda x: x.mean(0), lambda x: x.std(0)):
        assert (moment(pixels[masks == DISC]) - moment(pixels[masks == CORNERED])).abs().max() < 0.03


def test_datasets_of_two_splits_are_disjoint_and_repeatable():
    train = DrawnShapes(split=TRAIN, num_images=20, size=32, seed=0)
    evaluation = DrawnShapes(split=EVAL, num_images=20, size=32, seed=0)
    seen = {train[i][0].numpy().tobytes() for i in range(20)}
    assert len(seen) == 20
    assert not seen & {evaluation[i][0].numpy().tobytes() for i in range(20)}
    batch_images, batch_masks = next(iter(DataLoader(train, 5)))
    assert torch.equal(batch_images[4], train[4][0]) and torch.equal(batch_masks[4], train[4][1])
    with pytest.raises(IndexError, match="position 20 of 20"):
        train[20]


def test_fewer_classes_merge_the_shapes():
    _, masks = draw(range(8))
    assert torch.equal(merge_classes(masks, 2), (masks > 0).long())
    assert torch.equal(merge_classes(masks, 5), masks)


def test_too_small_a_size_is_named():
    with pytest.raises(ConfigError, match="size = 8"):
        draw([0], size=8)
