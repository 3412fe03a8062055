import torch

from hotlap.data.counter_random import BATCH, EVAL, TRAIN, draw_index, split_index, uniform


def test_a_number_depends_on_seed_index_and_slot_alone():
    index = torch.tensor([5, 0, 99])
    assert torch.equal(uniform(1, index, 4)[2], uniform(1, torch.tensor([99]), 7)[0, :4])
    assert not torch.equal(uniform(1, index, 4), uniform(2, index, 4))


def test_same_numbers_on_every_device(device):
    index = torch.arange(100)
    assert torch.equal(uniform(3, index.to(device), 10).cpu(), uniform(3, index, 10))


def test_numbers_are_uniform_and_unrelated():
    draws = uniform(0, torch.arange(4000), 8)
    assert draws.min() >= 0 and draws.max() < 1
    assert abs(draws.mean().item() - 0.5) < 0.01
    assert abs(draws.std().item() - 12**-0.5) < 0.01
    correlation = torch.corrcoef(torch.cat([draws, uniform(1, torch.arange(4000), 8)], 1).T)
    assert (correlation - torch.eye(16)).abs().max() < 0.08  # 5 sigma of 4000 samples


def test_splits_never_meet():
    furthest = torch.tensor([0, 2**40 - 1])
    ends = [split_index(split, furthest).tolist() for split in (TRAIN, EVAL, BATCH)]
    assert ends[0][1] < ends[1][0] and ends[1][1] < ends[2][0]
    drawn = draw_index(1000, torch.Generator().manual_seed(0))
    assert drawn.min() >= ends[2][0] and drawn.max() <= ends[2][1]
