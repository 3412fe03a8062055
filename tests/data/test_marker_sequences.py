import pytest
import torch
from torch.utils.data import DataLoader

from hotlap.base.errors import ConfigError
from hotlap.data.characters import PAD, VOCABULARY, decode
from hotlap.data.counter_random import EVAL, TRAIN
from hotlap.data.marker_sequences import MarkerSequences, marker_sequences

OWN = ("xyz", "yzx", "zxy")


def make(n, length=128, seed=0):
    return marker_sequences(torch.arange(n), length=length, seed=seed)


@pytest.mark.parametrize("length", [32, 45, 128])
def test_the_class_is_the_word_that_occurs(length):
    tokens, lengths, labels = make(200, length)
    for row, count, label in zip(tokens, lengths.tolist(), labels.tolist(), strict=True):
        text = decode(row.tolist())
        assert len(text) == count
        assert [text.count(word) for word in OWN] == [4 * (label == k) for k in range(3)]


def test_lengths_vary_and_padding_follows_the_text():
    tokens, lengths, labels = make(300)
    assert lengths.min() < 40 and lengths.max() > 120
    past = torch.arange(128) >= lengths[:, None]
    assert (tokens[past] == PAD).all() and (tokens[~past] > PAD).all()
    assert torch.bincount(labels, minlength=3).min() > 70


def test_counting_letters_tells_nothing():
    """Every text has x, y and z eight times each, and a classifier fitted to letter counts stays at chance."""
    tokens, lengths, labels = make(6000)
    counts = torch.nn.functional.one_hot(tokens, VOCABULARY).sum(1).double()
    for letter in "xyz":
        assert (counts[:, ord(letter) - 30] == 8).all()
    shares = counts[:, 1:] / lengths[:, None]
    features = torch.cat([shares, lengths[:, None] / 128.0, torch.ones(6000, 1, dtype=torch.float64)], 1)
    wanted = torch.nn.functional.one_hot(labels, 3).double()
    weights = torch.linalg.lstsq(features[:4000], wanted[:4000], driver="gelsd").solution
    hits = ((features[4000:] @ weights).argmax(1) == labels[4000:]).double().mean().item()
    assert abs(hits - 1 / 3) < 0.04  # 4 sigma of 2000 guesses


def test_an_item_is_the_same_in_any_batch_and_splits_differ():
    train = MarkerSequences(split=TRAIN, num_texts=50, length=64, seed=0)
    evaluation = MarkerSequences(split=EVAL, num_texts=50, length=64, seed=0)
    batch = next(iter(DataLoader(train, 8)))
    for name in ("tokens", "lengths", "labels"):
        assert torch.equal(batch[name][3], train[3][name])
    seen = {train[i]["tokens"].numpy().tobytes() for i in range(50)}
    assert len(seen) == 50 and not seen & {evaluation[i]["tokens"].numpy().tobytes() for i in range(50)}
    with pytest.raises(IndexError, match="position -1 of 50"):
        train[-1]


def test_too_short_a_length_is_named():
    with pytest.raises(ConfigError, match=r"length = 31.*at least 32"):
        make(1, length=31)
