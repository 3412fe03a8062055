import math

import pytest
import torch

from hotlap.measure.confusion import (
    accuracy,
    confusion_counts,
    dice_per_class,
    iou_per_class,
    mean_over_present,
    total_confusion,
)


def test_counts_by_hand():
    target = torch.tensor([[0, 0, 1], [2, 1, 255]])
    predicted = torch.tensor([[0, 1, 1], [0, 1, 2]])
    got = confusion_counts(predicted, target, 3, ignore=255)
    assert got.tolist() == [[1, 1, 0], [0, 2, 0], [1, 0, 0]]
    assert dice_per_class(got).tolist() == pytest.approx([2 / 4, 4 / 5, 0.0])
    assert iou_per_class(got).tolist() == pytest.approx([1 / 3, 2 / 3, 0.0])
    assert accuracy(got) == pytest.approx(3 / 5)


@pytest.mark.parametrize("seed", range(5))
def test_scores_match_counting_with_sets(seed, device):
    generator = torch.Generator().manual_seed(seed)
    target = torch.randint(4, (3, 50), generator=generator)
    predicted = torch.randint(4, (3, 50), generator=generator)
    pairs = [(p.to(device), t.to(device)) for p, t in zip(predicted, target, strict=True)]
    confusion = total_confusion(pairs, 5)
    for k in range(4):
        there = {i for i, value in enumerate(target.view(-1).tolist()) if value == k}
        said = {i for i, value in enumerate(predicted.view(-1).tolist()) if value == k}
        assert dice_per_class(confusion)[k].item() == pytest.approx(2 * len(there & said) / (len(there) + len(said)))
        assert iou_per_class(confusion)[k].item() == pytest.approx(len(there & said) / len(there | said))
    assert accuracy(confusion) == pytest.approx((target == predicted).double().mean().item())
    assert math.isnan(dice_per_class(confusion)[4]) and math.isnan(iou_per_class(confusion)[4])
    assert mean_over_present(dice_per_class(confusion)) == pytest.approx(dice_per_class(confusion)[:4].mean().item())


def test_no_samples_give_no_score():
    nothing = total_confusion([], 3)
    assert nothing.shape == (3, 3)
    assert math.isnan(accuracy(nothing)) and math.isnan(mean_over_present(dice_per_class(nothing)))
