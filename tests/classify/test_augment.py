import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hotlap.classify.augment import MEAN, STD, finish_batch, finish_one

N = 7


def pictures(device):
    generator = torch.Generator().manual_seed(0)
    image = torch.randint(256, (N, 3, 13, 17), generator=generator, dtype=torch.uint8)
    flip = torch.tensor([True, False, True, True, False, False, True])
    jitter = 0.6 + 0.8 * torch.rand(N, 3, generator=generator)
    return image.to(device), flip.to(device), jitter.to(device)


def test_plain_pixels_are_only_normalised(device):
    image, _, _ = pictures(device)
    got = finish_batch(image, None, None, torch.float32)
    mean, std = (torch.tensor(v, device=device).view(3, 1, 1) for v in (MEAN, STD))
    torch.testing.assert_close(got, (image / 255 - mean) / std)


@pytest.mark.parametrize("with_jitter", [False, True])
def test_a_batch_comes_out_as_torchvision_makes_it_one_by_one(device, with_jitter):
    """Float32 rounds differently in another order of operations, by some 1e-6 of values of 255, over std 0.22."""
    pytest.importorskip("torchvision", reason="the judge is torchvision")
    image, flip, jitter = pictures(device)
    one_by_one = zip(image.cpu(), flip.cpu(), jitter.cpu(), strict=True)
    want = [finish_one(i, f, j if with_jitter else None) for i, f, j in one_by_one]
    got = finish_batch(image, flip, jitter if with_jitter else None, torch.float32)
    torch.testing.assert_close(got.cpu(), torch.stack(want), rtol=0, atol=1e-4)


@settings(max_examples=25)
@given(cuts=st.sets(st.integers(1, N - 1)))
def test_parts_of_a_batch_give_the_same_bits(cuts):
    check_parts(torch.device("cpu"), sorted(cuts))


@pytest.mark.parametrize("cuts", [[1], [3], [1, 2, 3, 4, 5, 6]])
def test_parts_of_a_batch_give_the_same_bits_on_a_device(device, cuts):
    check_parts(device, cuts)


def check_parts(device, cuts):
    batch = pictures(device)
    whole = finish_batch(*batch, torch.float32)
    parts = [finish_batch(*part, torch.float32) for part in zip(*(t.tensor_split(cuts) for t in batch), strict=True)]
    assert torch.equal(torch.cat(parts), whole)


def test_the_networks_dtype_is_kept(device):
    image, flip, jitter = pictures(device)
    exact = finish_batch(image, flip, jitter.double(), torch.float64)
    assert exact.dtype == torch.float64
    torch.testing.assert_close(finish_batch(image, flip, jitter, torch.float32).double(), exact, rtol=0, atol=1e-4)
    assert finish_batch(image, flip, jitter, torch.bfloat16).dtype == torch.bfloat16
