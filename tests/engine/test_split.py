from collections import UserDict, namedtuple
from collections.abc import Mapping
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.utils.rnn import pack_sequence

from hotlap.base.errors import UsageError
from hotlap.engine.split import micro_ranges, num_samples, take, to_device

Pair = namedtuple("Pair", ["image", "label"])


class Encoding(UserDict):
    """As a tokenizer gives it: a mapping that is no dict, with its items as attributes too."""

    def __getattr__(self, name):
        if name in self.__dict__.get("data", {}):
            return self.data[name]
        raise AttributeError(name)


class ReadOnly(Mapping):
    def __init__(self, items):
        self._items = items

    def __getitem__(self, name):
        return self._items[name]

    def __iter__(self):
        return iter(self._items)

    def __len__(self):
        return len(self._items)


def rows(num, *rest):
    return torch.arange(num * int(torch.Size(rest).numel())).view(num, *rest)


SHAPES = {
    "tensor": lambda n: rows(n, 2),
    "tuple": lambda n: (rows(n, 2), rows(n)),
    "list": lambda n: [rows(n, 2), rows(n)],
    "dict": lambda n: {"x": rows(n, 2), "y": rows(n)},
    "named tuple": lambda n: Pair(rows(n, 2), rows(n)),
    "nested": lambda n: {"x": [rows(n, 2), (rows(n), {"y": rows(n, 1)})], "z": rows(n)},
    "encoding": lambda n: Encoding(x=rows(n, 2), y=rows(n)),
    "encoding inside": lambda n: (Encoding(x=rows(n, 2)), ReadOnly({"y": rows(n)})),
}


def tensors(batch):
    if isinstance(batch, torch.Tensor):
        return [batch]
    inner = batch.values() if isinstance(batch, Mapping) else batch
    return [tensor for part in inner for tensor in tensors(part)]


@given(kind=st.sampled_from(sorted(SHAPES)), total=st.integers(1, 40), micro=st.integers(1, 50))
def test_the_parts_of_a_batch_are_the_batch(kind, total, micro):
    batch = SHAPES[kind](total)
    assert num_samples(batch) == total
    parts = [take(batch, begin, end) for begin, end in micro_ranges(total, micro)]
    assert max(num_samples(part) for part in parts) <= micro
    assert {type(part) for part in parts} == {type(batch)}
    for whole, *pieces in zip(tensors(batch), *map(tensors, parts), strict=True):
        assert torch.equal(torch.cat(pieces), whole)
        assert {piece.untyped_storage().data_ptr() for piece in pieces} == {whole.untyped_storage().data_ptr()}


@given(total=st.integers(1, 10_000), micro=st.integers(1, 10_000))
def test_parts_are_as_few_and_as_equal_as_can_be(total, micro):
    ranges = micro_ranges(total, micro)
    sizes = [end - begin for begin, end in ranges]
    assert ranges[0][0] == 0 and ranges[-1][1] == total
    assert all(before[1] == after[0] for before, after in pairwise(ranges))
    assert len(sizes) == -(-total // micro) and max(sizes) <= micro and max(sizes) - min(sizes) <= 1


def test_what_is_not_counted_by_sample_stays_whole():
    table, scale, words = rows(3, 4), torch.tensor(2.0), ["a", "b", "c", "d", "e", "f"]
    batch = {"x": rows(6, 2), "table": table, "scale": scale, "name": "all", "words": words, "sizes": [1, 2]}
    part = take(batch, 2, 5)
    assert part["table"] is table and part["scale"] is scale and part["name"] == "all" and part["sizes"] == [1, 2]
    assert part["words"] == ["c", "d", "e"] and len(part["x"]) == 3
    assert take(batch, 0, 6) is batch


def test_an_encoding_keeps_its_attributes_when_it_is_cut():
    batch = Encoding(x=rows(6, 2), name="all")
    part = take(batch, 4, 6)
    assert torch.equal(part.x, batch.x[4:]) and part.name == "all" and len(batch.x) == 6


@pytest.mark.parametrize("batch", ["text", {"scale": torch.tensor(1.0)}, [], Encoding(name="x")])
def test_a_batch_without_samples_is_refused_by_its_type(batch):
    with pytest.raises(UsageError, match=f"a batch of type {type(batch).__name__} has no tensor"):
        num_samples(batch)


def test_packed_sequences_are_refused_since_their_rows_are_not_samples():
    packed = pack_sequence([torch.ones(3, 2), torch.ones(2, 2)])
    with pytest.raises(UsageError, match=r"PackedSequence.*padded sequences with their lengths"):
        num_samples({"x": packed})


def test_every_tensor_goes_to_the_device(device):
    batch = {"x": [rows(2), Encoding(y=rows(2))], "name": "all"}
    moved = to_device(batch, device)
    assert {tensor.device.type for tensor in tensors(moved["x"])} == {device.type} and moved["name"] == "all"
