"""What a checkpoint may hold: what comes back, and where the rest is."""

from __future__ import annotations

import collections
import datetime
import io

import numpy
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hotlap.engine.plain_state import UnstorableState, check_plain

Point = collections.namedtuple("Point", "x y")
numbers = st.integers(-(2**80), 2**80) | st.floats(allow_nan=False)
leaves = st.none() | st.booleans() | numbers | st.text() | st.sampled_from([torch.float16, torch.device("cpu")])
keys = st.text() | st.integers()
trees = st.recursive(
    leaves,
    lambda inner: st.lists(inner) | st.dictionaries(keys, inner) | st.lists(inner).map(tuple)
    | st.dictionaries(keys, inner).map(collections.OrderedDict),
    max_leaves=12,
)  # fmt: skip


def reloaded(state):
    buffer = io.BytesIO()
    torch.save(state, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=True)


@settings(max_examples=60)
@given(st.dictionaries(st.text(), trees))
def test_what_is_accepted_comes_back_equal_and_of_the_same_types(state):
    check_plain(state)
    back = reloaded(state)
    assert repr(back) == repr(state)
    assert back == state


TENSORS = {
    "empty": torch.empty(0), "scalar": torch.tensor(3), "transposed": torch.ones(2, 3).t(),
    "bf16": torch.ones(2).bfloat16(),
    "float8": torch.ones(2).to(torch.float8_e4m3fn), "bool": torch.tensor([True]), "complex": torch.ones(2) * 1j,
    "parameter": torch.nn.Parameter(torch.ones(2)), "attributed": torch.nn.Parameter(torch.ones(3)),
}  # fmt: skip
TENSORS["attributed"].note = [1, "two"]


@pytest.mark.parametrize("name", TENSORS)
def test_tensors_of_every_kind_come_back(name):
    tensor = TENSORS[name]
    check_plain({"t": tensor})
    back = reloaded({"t": tensor})["t"]
    assert (type(back), back.dtype, back.stride()) == (type(tensor), tensor.dtype, tensor.stride())
    assert torch.equal(back, tensor)
    assert vars(back) == vars(tensor)


def trained(make_optimizer, make_schedule):
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    optimizer = make_optimizer(model.parameters())
    schedule = make_schedule(optimizer)
    model(torch.ones(2, 3)).sum().backward()
    optimizer.step()
    schedule.step()
    ema = torch.optim.swa_utils.AveragedModel(model)
    return {"model": model, "optimizer": optimizer, "schedule": schedule, "ema": ema}


SCHEDULES = {
    "one-cycle": lambda o: torch.optim.lr_scheduler.OneCycleLR(o, max_lr=1, total_steps=10),
    "milestones": lambda o: torch.optim.lr_scheduler.MultiStepLR(o, [1, 2]),
    "cosine": lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, 3),
    "lambda": lambda o: torch.optim.lr_scheduler.LambdaLR(o, lambda step: 0.5),
}


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("optimizer", [torch.optim.AdamW, torch.optim.SGD, torch.optim.RMSprop])
def test_the_state_of_a_real_training_is_accepted_and_loads(optimizer, schedule):
    parts = trained(lambda p: optimizer(p, lr=0.1), SCHEDULES[schedule])
    state = {name: part.state_dict() for name, part in parts.items()}
    state["scaler"] = torch.amp.GradScaler("cpu").state_dict()
    check_plain(state)
    back = reloaded(state)
    for name, part in parts.items():
        part.load_state_dict(back[name])
    assert str(back) == str(state)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (numpy.ones(2), r"is a numpy\.ndarray"),
        (numpy.float64(1), r"is a numpy\.float64"),
        (numpy.int64(1), r"is a numpy\.int64"),
        (datetime.date(2026, 1, 1), r"is a datetime\.date"),
        (Point(1, 2), r"is a .*Point"),
        (collections.defaultdict(list), r"is a collections\.defaultdict"),
        ({1, 2}, "is a set"),
        (b"", "is a bytes"),
        (len, "is a builtin_function_or_method"),
        (torch.nn.Linear(1, 1), r"is a torch\.nn\.modules\.linear\.Linear"),
        (torch.Generator(), r"is a torch\._C\.Generator"),
        (2**3000, "is an int of 3001 bits. Expected at most 2039"),
        (torch.ones(1, device="meta"), "is a tensor on the meta device"),
    ],
)
def test_what_would_not_come_back_is_refused_with_its_place(value, words):
    with pytest.raises(UnstorableState, match=rf"^state\['optimizer'\]\['state'\]\[0\]\[1\] {words}"):
        check_plain({"optimizer": {"state": {0: (1.0, value)}}})


def test_attributes_keys_and_loops_are_looked_at_too():
    tensor = torch.ones(1)
    tensor.origin = numpy.ones(1)
    with pytest.raises(UnstorableState, match=r"state\['w'\]\.origin is a numpy\.ndarray.*into a tensor"):
        check_plain({"w": tensor})
    with pytest.raises(UnstorableState, match=r"the key np.int64\(3\) of state\['seen'\] is a numpy\.int64"):
        check_plain({"seen": {numpy.int64(3): 1}})
    loop: list = [1]
    loop.append({"again": loop})
    with pytest.raises(UnstorableState, match=r"state\['loop'\]\[1\]\['again'\] contains itself"):
        check_plain({"loop": loop})
    shared = [1]
    check_plain({"a": shared, "b": shared})
