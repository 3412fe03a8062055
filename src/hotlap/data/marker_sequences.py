"""Seeded texts whose class lies in the order of their letters alone.

A text is random small letters and spaces in which eight words are set, each made of x, y and z once. Four are the
class's own word (xyz, yzx or zxy); four are decoys in the opposite turn (xzy, zyx, yxz), which any class may hold. So
every text has each of x, y and z exactly eight times, and the other letters do not depend on the class: what letters
occur, and how often, says nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.utils.data import Dataset

from hotlap.base.errors import ConfigError
from hotlap.data.characters import PAD, encode
from hotlap.data.counter_random import split_index, uniform

CLASSES = 3
OWN_WORDS, DECOY_WORDS = 4, 4
_NUM_WORDS = OWN_WORDS + DECOY_WORDS
_SLOT = 4  # a word and at least one other letter after it, so that no word arises where two meet
MIN_LENGTH = _NUM_WORDS * _SLOT

_WORDS = torch.tensor([encode(word) for word in ("xyz", "yzx", "zxy", "xzy", "zyx", "yxz")])  # [6, 3]
_FILL = torch.tensor(encode("abcdefghijklmnopqrstuvw "))


def marker_sequences(index: Tensor, *, length: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Tokens [n, length] (PAD after the end), lengths [n] and labels [n] of the texts at ``n`` global indices.

    A text is between a quarter of ``length`` and all of it, but never shorter than its words need.
    """
    if length < MIN_LENGTH:
        raise ConfigError(f"length = {length} is too short for the words", expected=f"at least {MIN_LENGTH}")
    n = len(index)
    draws = uniform(seed, index, length + 2 + 3 * _NUM_WORDS)
    fill, (which, long), words = draws[:, :length], draws[:, length : length + 2].unbind(1), draws[:, length + 2 :]
    order, place, decoy = words.view(n, 3, _NUM_WORDS).unbind(1)

    labels = (which * CLASSES).long()
    least = max(MIN_LENGTH, length // 4)
    lengths = least + (long * (length - least + 1)).long()
    tokens = _FILL[(fill * len(_FILL)).long()]

    own = order.argsort(1) < OWN_WORDS  # which four of the eight places hold the class's word
    word = torch.where(own, labels[:, None], CLASSES + (decoy * CLASSES).long())  # [n, words]
    slot = lengths[:, None] // _NUM_WORDS
    start = torch.arange(_NUM_WORDS) * slot + (place * (slot - _SLOT + 1)).long()
    at = start[:, :, None] + torch.arange(3)
    tokens.scatter_(1, at.view(n, -1), _WORDS[word].view(n, -1))
    tokens.masked_fill_(torch.arange(length) >= lengths[:, None], PAD)
    return tokens, lengths, labels


class MarkerSequences(Dataset[dict[str, Tensor]]):
    """A fixed number of texts of one split; item ``i`` holds tokens [length], lengths [] and labels []."""

    def __init__(self, *, split: int, num_texts: int, length: int, seed: int) -> None:
        self.split, self.num_texts, self.length, self.seed = split, num_texts, length, seed

    def __len__(self) -> int:
        return self.num_texts

    def __getitem__(self, position: int) -> dict[str, Tensor]:
        return self.__getitems__([position])[0]

    def __getitems__(self, positions: Sequence[int]) -> list[dict[str, Tensor]]:
        """Many items at once; loaders that know this method call it, which is many times cheaper."""
        for position in positions:
            if not 0 <= position < self.num_texts:
                raise IndexError(f"position {position} of {self.num_texts} texts")
        index = split_index(self.split, torch.tensor(positions))
        columns = marker_sequences(index, length=self.length, seed=self.seed)
        return [
            {"tokens": tokens, "lengths": length, "labels": label}
            for tokens, length, label in zip(*columns, strict=True)
        ]
