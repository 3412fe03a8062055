import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations
from torch.nn.utils import spectral_norm as old_spectral_norm

from hotlap.engine.exactness import find_inexact
from hotlap.measure.dropout import key_dropout


class DropPath(nn.Module):
    """Named as timm's."""

    def __init__(self, drop_prob):
        super().__init__()
        self.drop_prob = drop_prob


class OwnDropout(nn.Dropout):
    """Of a derived type, which may do anything."""


def frozen(module):
    return module.eval()


BATCH_NORM, SYNC = "BatchNorm in training mode", "SyncBatchNorm"
INNER = "dropout inside a recurrent or attention layer"
OTHER = "random layers other than nn.Dropout"
STATE = "running state that every forward pass moves on"
HALF = "parameters in half precision"
LAYERS = [
    (nn.BatchNorm1d(4), BATCH_NORM),
    (nn.BatchNorm2d(4), BATCH_NORM),
    (nn.BatchNorm3d(4, track_running_stats=False), BATCH_NORM),
    (frozen(nn.BatchNorm2d(4)), None),
    (nn.SyncBatchNorm(4), SYNC),
    (frozen(nn.SyncBatchNorm(4)), None),
    (nn.GroupNorm(2, 4), None),
    (nn.LayerNorm(4), None),
    (nn.InstanceNorm2d(4), None),
    (nn.InstanceNorm2d(4, track_running_stats=True), STATE),
    (parametrizations.spectral_norm(nn.Linear(4, 4)), STATE),
    (old_spectral_norm(nn.Linear(4, 4)), STATE),
    (parametrizations.weight_norm(nn.Linear(4, 4)), None),
    (nn.MultiheadAttention(4, 2, dropout=0.1), INNER),
    (nn.MultiheadAttention(4, 2), None),
    (frozen(nn.MultiheadAttention(4, 2, dropout=0.1)), None),
    (nn.LSTM(4, 4, num_layers=2, dropout=0.1), INNER),
    (nn.GRU(4, 4, num_layers=2), None),
    (nn.Dropout(0.5), None),
    (nn.Dropout2d(0.5), None),
    (nn.AlphaDropout(0.5), OTHER),
    (nn.AlphaDropout(0.0), None),
    (nn.FeatureAlphaDropout(0.5), OTHER),
    (OwnDropout(0.5), OTHER),
    (nn.RReLU(), OTHER),
    (nn.FractionalMaxPool2d(2, 2), OTHER),
    (DropPath(0.1), OTHER),
    (DropPath(0.0), None),
    (nn.Linear(4, 4).bfloat16(), HALF),
    (nn.Linear(4, 4).half().requires_grad_(False), None),
]


@pytest.mark.parametrize(("layer", "kind"), LAYERS, ids=lambda value: type(value).__name__)
def test_each_kind_is_found_by_name_and_nothing_else_is(layer, kind):
    training = layer.training
    model = nn.Sequential(nn.Linear(4, 4), nn.ModuleDict({"odd": layer}))
    layer.train(training)
    found = find_inexact(model)
    assert [finding.kind for finding in found] == ([kind] if kind else [])
    for finding in found:
        assert all(name.startswith("1.odd") for name in finding.names)
        assert finding.names[0] in str(finding) and str(finding).endswith(".")


def test_keyed_dropout_is_exact_and_what_cannot_be_keyed_is_not():
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), OwnDropout(0.5))
    key_dropout(model, torch.device("cpu"))
    assert [(f.kind, f.names) for f in find_inexact(model)] == [(OTHER, ("2",))]


def test_a_single_lstm_layer_has_nothing_to_drop():
    with pytest.warns(UserWarning, match="dropout"):
        layer = nn.LSTM(4, 4, dropout=0.5)
    assert find_inexact(nn.Sequential(layer)) == []


def test_many_names_are_counted_and_the_model_itself_has_one():
    model = nn.Sequential(*(nn.BatchNorm1d(4) for _ in range(5)))
    assert str(find_inexact(model)[0]).startswith("BatchNorm in training mode (0, 1, 2 and 2 more): it normalises")
    assert find_inexact(nn.BatchNorm1d(4))[0].names == ("the model itself",)


def test_dropout_that_met_rows_which_are_no_samples_is_told():
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5))
    key = key_dropout(model, torch.device("cpu"))
    key.set_part(0, 4)
    model(torch.randn(8, 3, 4))  # two rows a sample
    assert find_inexact(model) == []
    model(torch.randn(7, 4, 4))  # seven rows of four samples: samples stand elsewhere
    [finding] = find_inexact(model)
    assert finding.kind == "dropout where the first dimension does not go by sample" and finding.names == ("1",)


def test_draws_are_told_unless_a_layer_explains_them():
    assert [f.kind for f in find_inexact(nn.Linear(4, 4), draws=True)] == ["random numbers drawn by the forward pass"]
    assert [f.kind for f in find_inexact(nn.AlphaDropout(0.5), draws=True)] == [OTHER]


def test_a_loss_that_couples_samples_is_told():
    [finding] = find_inexact(nn.Linear(4, 4), loss_is_separable=False)
    assert finding.kind == "a loss that couples samples" and "loss_is_separable = False" in str(finding)
