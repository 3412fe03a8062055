import pytest
import torch
from torch import nn

from hotlap.engine.trace import Place, Tracer, place_of


class Failing(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        raise RuntimeError("backward")


class Middle(nn.Module):
    """Fails where it is told to, in its own code or on the way back."""

    def __init__(self, where):
        super().__init__()
        self.inner, self.where = nn.Linear(4, 4), where

    def forward(self, x):
        x = self.inner(x)
        if self.where == "forward":
            raise RuntimeError("forward")
        return Failing.apply(x) if self.where == "backward" else x


def net(where):
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(inplace=True), Middle(where), nn.Linear(4, 2))


def failure(model, loss=torch.sum):
    with pytest.raises(RuntimeError) as caught, Tracer(model):
        for _ in range(2):
            loss(model(torch.randn(5, 3))).backward()
    return caught.value


def test_the_innermost_layer_of_a_forward_pass_is_named_with_its_input():
    model = net("forward")
    place = place_of(failure(model), model)
    assert place == Place("3", "Middle", (5, 4), "forward")
    assert str(place) == "the forward pass of layer '3' (Middle) on [5, 4]"
    wrong = nn.Sequential(nn.Linear(3, 4), nn.Linear(5, 2))
    assert place_of(failure(wrong), wrong) == Place("1", "Linear", (5, 4), "forward")


def test_the_last_layer_that_a_backward_pass_came_to_is_named():
    model = net("backward")
    place = place_of(failure(model), model)
    assert place == Place("3", "Middle", (5, 4), "backward")
    assert str(place) == "the backward pass of layer '3' (Middle) on [5, 4]"


def test_of_modules_with_one_result_the_innermost_is_named():
    model = nn.Sequential(nn.Sequential(nn.Linear(3, 4)), nn.Sequential(nn.Sequential(nn.ReLU(inplace=True))))

    def loss(out):
        out.register_hook(lambda grad: 1 / 0)
        return out.sum()

    with pytest.raises(ZeroDivisionError) as caught, Tracer(model):
        loss(model(torch.randn(5, 3))).backward()
    assert place_of(caught.value, model) == Place("1.0.0", "ReLU", (5, 4), "backward")


def test_a_failure_in_the_loss_has_no_layer():
    def loss(out):
        raise RuntimeError("in the loss")

    model = net("nowhere")
    assert place_of(failure(model, loss), model) is None


def test_the_loss_of_a_later_part_is_not_blamed_on_the_backward_pass_of_an_earlier():
    calls = []

    def loss(out):
        calls.append(1)
        if len(calls) == 2:
            raise RuntimeError("in the second loss")
        return out.sum()

    model = net("nowhere")
    assert place_of(failure(model, loss), model) is None and len(calls) == 2


def test_a_model_that_is_one_layer_is_called_the_model_itself():
    model = nn.Linear(4, 2)
    assert str(place_of(failure(model), model)) == "the forward pass of the model itself (Linear) on [5, 3]"


def test_no_hook_stays_behind():
    model = net("nowhere")
    with Tracer(model):
        model(torch.randn(5, 3)).sum().backward()
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


def test_an_exception_from_elsewhere_has_no_layer():
    with pytest.raises(ValueError, match="x") as caught:
        raise ValueError("x")
    assert place_of(caught.value, net("nowhere")) is None
    assert place_of(ValueError("never raised"), net("nowhere")) is None
