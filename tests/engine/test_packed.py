"""Small batches in one piece: the same tensors on the other side; what is more than its bytes is left alone."""

from __future__ import annotations

import pytest
import torch

from hotlap.engine.loader import Loaded, LoaderSettings, TrainLoader
from hotlap.engine.packed import ALIGNMENT, SMALL_BYTES, pack
from hotlap.engine.prefetch import DevicePrefetcher

pytestmark = pytest.mark.usefixtures("no_hang")


def texts():
    return {
        "tokens": torch.arange(15).reshape(5, 3),
        "mask": torch.tensor([True, False, True, True, False]),
        "weight": torch.tensor(0.1, dtype=torch.bfloat16),
        "pixels": torch.arange(20, dtype=torch.uint8).view(5, 2, 2, 1).permute(0, 3, 1, 2),  # channels last as well
        "none": torch.zeros(0, 7),
    }


def same(got, want):
    return (got.dtype, got.shape, got.stride()) == (want.dtype, want.shape, want.stride()) and got.equal(want)


@pytest.mark.parametrize("shared", [False, True])
def test_a_batch_is_the_same_in_one_piece(shared):
    packed, want = pack(texts(), shared=shared), texts()
    got = packed.unpacked()
    assert packed.memory.is_shared() == shared
    assert list(got) == list(want)
    assert all(same(got[name], want[name]) for name in want)
    assert len({tensor.untyped_storage().data_ptr() for tensor in got.values()}) == 1


@pytest.mark.parametrize("kind", [list, tuple])
def test_a_list_and_a_tuple_stay_what_they_are(kind):
    want = kind([torch.rand(3, 2), torch.tensor([4, 5, 6])])
    got = pack(want).unpacked()
    assert type(got) is kind and all(map(same, got, want))


def test_each_tensor_is_aligned_and_its_own():
    got = pack(texts()).unpacked()
    first = got["tokens"].untyped_storage().data_ptr()
    assert all((tensor.data_ptr() - first) % ALIGNMENT == 0 for tensor in got.values() if tensor.numel())
    got["tokens"].fill_(-1)
    assert all(same(got[name], want) for name, want in texts().items() if name != "tokens")


def test_of_a_view_only_its_own_elements_travel():
    many = torch.arange(100_000)
    packed = pack([many[10:20]])
    assert packed.memory.nbytes == ALIGNMENT
    assert packed.unpacked()[0].equal(torch.arange(10, 20))


SHARED = torch.zeros(4, 2)


@pytest.mark.parametrize(
    "batch",
    [
        torch.zeros(3),
        None,
        [],
        {},
        [torch.zeros(0)],
        {"nested": [torch.zeros(3)]},
        {"image": torch.zeros(3), "name": ["a", "b", "c"]},
        [torch.zeros(SMALL_BYTES + 1, dtype=torch.uint8)],
        [torch.zeros(4, 3).T],
        [torch.zeros(2, 3, 4, 4).contiguous(memory_format=torch.channels_last)],
        [torch.zeros(3, dtype=torch.complex64)],
        [torch.nn.Parameter(torch.zeros(3))],
        [torch.eye(3).to_sparse()],
        [torch.zeros(3, device="meta")],
        [SHARED[:2], SHARED[2:]],
    ],
)
def test_what_is_more_than_a_few_bytes_is_left_alone(batch):
    assert pack(batch) is None


class Rows(torch.utils.data.Dataset):
    def __init__(self, width):
        self.width = width

    def __len__(self):
        return 6

    def __getitem__(self, index):
        return {"x": torch.full((self.width,), float(index)), "y": torch.tensor(index)}


@pytest.mark.parametrize(("width", "in_one_piece"), [(5, True), (SMALL_BYTES, False)])
def test_a_worker_sends_small_batches_in_one_piece_and_large_ones_as_ever(width, in_one_piece):
    loader = TrainLoader(Rows(width), batch=3, seed=0, shuffle=False, settings=LoaderSettings(num_workers=1))
    for loaded, first in zip(loader.epoch(0), (0, 3), strict=True):
        assert (loaded.packed is not None) == in_one_piece
        assert loaded.batch["y"].tolist() == [first, first + 1, first + 2]
        assert loaded.batch["x"].eq(loaded.batch["y"][:, None]).all() and loaded.batch["x"].shape == (3, width)


def shares(number):
    for position in range(number):
        packed = pack({"image": torch.full((2, 3, 4, 4), float(position)), "label": torch.tensor([position, 7])})
        slots = {"num_samples": 2, "position": position, "offset": 0, "slots": (0, 1)}
        yield Loaded(batch=packed.unpacked(), packed=packed, **slots)


@pytest.mark.parametrize("channels_last", [False, True])
def test_one_piece_is_placed_as_one(device, channels_last):
    layout = {4: torch.channels_last} if channels_last else None
    got = list(DevicePrefetcher(shares(4), device, layout=layout))
    assert [loaded.position for loaded in got] == [0, 1, 2, 3]
    for position, loaded in enumerate(got):
        image, label = loaded.batch["image"], loaded.batch["label"]
        assert image.device.type == label.device.type == device.type
        assert image.eq(position).all() and label.tolist() == [position, 7]
        memory = loaded.packed.memory.untyped_storage().data_ptr()
        assert label.untyped_storage().data_ptr() == memory
        assert (image.untyped_storage().data_ptr() == memory) != channels_last
        assert image.is_contiguous(memory_format=torch.channels_last) == channels_last


@pytest.mark.gpu
def test_on_a_card_it_is_pinned_with_and_without_workers_and_nothing_waits():
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    device = torch.device("cuda")
    for workers in (0, 1):
        settings = LoaderSettings(num_workers=workers, pin_memory=True)
        loader = TrainLoader(Rows(5), batch=3, seed=0, shuffle=False, settings=settings, device=device)
        pinned = list(loader.epoch(0))
        assert all(loaded.packed.memory.is_pinned() and loaded.batch["x"].is_pinned() for loaded in pinned)
        torch.cuda.synchronize()
        torch.cuda.set_sync_debug_mode("error")
        try:
            placed = list(DevicePrefetcher(pinned, device))
        finally:
            torch.cuda.set_sync_debug_mode("default")
        assert [loaded.batch["y"].tolist() for loaded in placed] == [[0, 1, 2], [3, 4, 5]]
