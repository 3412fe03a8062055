"""What reaches a model's forward pass: found by one call, taken apart, put together again."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import nn

from hotlap.base.errors import TargetError
from hotlap.measure.capture import FlatModel, Pattern, capture, with_dynamic_batch
from hotlap.workload import Workload


class Mixer(nn.Module):
    """Takes one tensor by position, a nest by keyword and a plain number; gives a dict."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x, *, extra, scale=1.0):
        return {"sum": self.linear(x) * scale + extra["shift"][0], "scale": scale, "x": x}


class Mixed(Workload):
    name = "mixed"

    def __init__(self, scale=2.0):
        self.scale = scale

    def build_model(self):
        return Mixer().eval()

    def make_batch(self, n, device, generator):
        return torch.randn(n, 4, generator=generator), torch.randn(3, n, generator=generator)

    def predict(self, model, batch):
        x, shifts = batch
        return model(x, extra={"shift": [shifts[0][:, None], shifts]}, scale=self.scale)["sum"]


def seen(workload, n=5):
    batch = workload.make_batch(n, torch.device("cpu"), torch.Generator().manual_seed(0))
    model = workload.build_model()
    return model, batch, capture(workload, model, batch)


def test_tensors_come_in_order_with_names_and_the_rest_is_kept():
    _, batch, call = seen(Mixed())
    assert call.names == ["x", "extra_shift_0", "extra_shift_1"]
    assert torch.equal(call.tensors[0], batch[0]) and torch.equal(call.tensors[2], batch[1])
    args, kwargs = call.given.fill(call.tensors)
    assert len(args) == 1 and kwargs["scale"] == 2.0 and kwargs["extra"]["shift"][1] is call.tensors[2]
    assert len(call.outputs) == 2 and call.returned.fill(call.outputs)["scale"] == 2.0
    assert call.output_names() == ["output_0", "output_1"]


def test_the_flat_model_computes_what_the_model_does():
    model, batch, call = seen(Mixed())
    flat = FlatModel(model, call, None)
    with torch.no_grad():
        out = call.returned.fill(flat(*call.tensors))["sum"]
        assert torch.equal(out, Mixed().predict(model, batch))
    assert not flat.training


def test_a_short_precision_is_inside_the_flat_model_and_can_be_widened_at_its_end():
    workload = Mixed()
    model, _, call = seen(workload)
    assert FlatModel(model, call, torch.bfloat16)(*call.tensors)[0].dtype == torch.float32  # promoted by the shift
    plain = capture(Plain(), Plain().build_model(), torch.randn(2, 4))
    narrow = FlatModel(nn.Linear(4, 4), plain, torch.bfloat16)(*plain.tensors)
    wide = FlatModel(nn.Linear(4, 4), plain, torch.bfloat16, widen=True)(*plain.tensors)
    assert (narrow.dtype, wide.dtype) == (torch.bfloat16, torch.float32)


class Plain(Workload):
    name = "plain"

    def build_model(self):
        return nn.Linear(4, 4)


def test_plain_calls_are_known_as_such():
    call = capture(Plain(), Plain().build_model(), torch.randn(2, 4))
    assert call.is_plain and call.names == ["input"] and call.output_names() == ["output"]
    assert not seen(Mixed())[2].is_plain


def test_a_model_that_is_only_called_in_parts_is_refused():
    class Parts(Plain):
        name = "parts"

        def build_model(self):
            return nn.ModuleDict({"one": nn.Linear(4, 4)})

        def predict(self, model, batch):
            return model["one"](batch)

    with pytest.raises(TargetError, match=r"predict\(\) of 'parts' never calls ModuleDict itself, only parts of it"):
        capture(Parts(), Parts().build_model(), torch.randn(2, 4))


@dataclasses.dataclass(frozen=True)
class Rows:
    x: torch.Tensor


@dataclasses.dataclass
class Found:
    loss: torch.Tensor | None
    classes: torch.Tensor
    inside: list[Rows]


class Finder(nn.Linear):
    def forward(self, rows):
        out = super().forward(rows.x)
        return Found(None, out, [Rows(out + 1)])


def test_tensors_in_dataclasses_of_the_users_own_are_found():
    class Finding(Plain):
        def predict(self, model, batch):
            return model(Rows(batch)).classes

    x = torch.randn(2, 4)
    call = capture(Finding(), Finder(4, 4), x)
    assert call.names == ["rows_x"] and torch.equal(call.tensors[0], x) and call.predicted == 0
    again = call.returned.fill(call.outputs)
    assert again.loss is None and isinstance(again, Found) and torch.equal(again.inside[0].x, again.classes + 1)


def test_objects_that_no_form_can_hold_are_refused_by_their_type():
    class Odd(nn.Linear):
        def forward(self, x, what):
            return super().forward(x)

    class OddlyCalled(Plain):
        name = "odd"

        def predict(self, model, batch):
            return model(batch, object())

    with pytest.raises(TargetError, match=r"predict\(\) of 'odd' calls its model with a object"):
        capture(OddlyCalled(), Odd(4, 4), torch.randn(2, 4))


def test_dimensions_that_grow_with_the_batch_are_found_wherever_they_are():
    call = with_dynamic_batch(seen(Mixed(), 5)[2], seen(Mixed(), 6)[2])
    assert call.dynamic == ((0,), (0,), (1,))


def test_constants_that_follow_the_batch_are_refused():
    with pytest.raises(TargetError, match=r"other constants.*--no-dynamic-batch"):
        with_dynamic_batch(seen(Mixed(2.0), 5)[2], seen(Mixed(3.0), 6)[2])


def test_a_batch_that_reaches_no_input_is_refused():
    call = seen(Mixed(), 5)[2]
    with pytest.raises(TargetError, match="no input of the model grows with the batch"):
        with_dynamic_batch(call, dataclasses.replace(call))


def test_a_pattern_wants_as_many_tensors_as_it_has_places():
    pattern, tensors = Pattern.of({"a": torch.ones(1), "b": [torch.ones(2), 3]})
    assert pattern.fill(tensors)["b"][1] == 3
    with pytest.raises(ValueError, match=r"shorter|longer"):
        pattern.fill(tensors[:1])
