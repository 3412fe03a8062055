import copy
import hashlib
import math

import pytest
import torch
from torch import nn
from torch._dynamo.testing import CompileCounterWithBackend
from torch.utils.checkpoint import checkpoint

from hotlap.base.errors import UsageError
from hotlap.measure.dropout import KeyedDropout, key_dropout

SIGMAS = 5
"""A fair coin strays further about once in two million times; the masks are fixed, so a test that passes once stays."""


def keyed(*layers, step=12345, first=0, num=0, device="cpu"):
    """A keyed chain of layers and its key, with a step and a part set."""
    model = nn.Sequential(*layers)
    key = key_dropout(model, torch.device(device))
    key.set_step(step)
    key.set_part(first, num)
    return model, key


def kept(p=0.5, shape=(64, 4096), *, step=12345, first=0, salt=0, calls=1, device="cpu"):
    """The mask of one layer, as ones and zeros."""
    model, _ = keyed(*(nn.Dropout(p) for _ in range(salt + 1)), step=step, first=first, num=shape[0], device=device)
    for _ in range(calls):
        out = model[salt](torch.ones(shape, device=device))
    return (out != 0).double()


def correlation(a, b):
    """In standard deviations of what independent masks of this size would show."""
    a, b = (mask.flatten() - mask.mean() for mask in (a, b))
    return ((a * b).mean() / (a.std() * b.std())).item() * math.sqrt(a.numel())


@pytest.mark.parametrize("p", [0.01, 0.1, 0.3, 0.5, 0.9, 0.999])
def test_the_share_that_stays_is_the_one_asked_for(p, device):
    mask = kept(p, device=device)
    spread = math.sqrt(mask.numel() * p * (1 - p))
    assert abs(mask.sum().item() - mask.numel() * (1 - p)) < SIGMAS * spread


def test_what_stays_is_scaled_up_and_gradients_are_too(device):
    model, _ = keyed(nn.Dropout(0.2), num=8, device=device)
    x = torch.randn(8, 100, dtype=torch.float64, device=device).requires_grad_()
    out = model(x)
    mask = (out != 0).double()
    torch.testing.assert_close(out, x * mask / 0.8, rtol=1e-15, atol=0)
    out.sum().backward()
    torch.testing.assert_close(x.grad, mask / 0.8, rtol=1e-15, atol=0)


OTHERS = {
    "the next step": {"step": 12346},
    "a step far away": {"step": -(2**31)},
    "the next sample": {"first": 1},
    "other samples": {"first": 64},
    "the next layer": {"salt": 1},
    "a layer far away": {"salt": 40},
    "the next call": {"calls": 2},
}


@pytest.mark.parametrize("other", OTHERS)
@pytest.mark.parametrize("p", [0.1, 0.5])
def test_masks_of_different_things_are_independent(other, p):
    assert abs(correlation(kept(p), kept(p, **OTHERS[other]))) < SIGMAS


@pytest.mark.parametrize("lag", [1, 2, 3, 7, 16, 64, 255, 256, 1024])
def test_elements_of_one_mask_are_independent(lag):
    mask = kept()
    assert abs(correlation(mask[:, lag:], mask[:, :-lag])) < SIGMAS
    if lag < len(mask):
        assert abs(correlation(mask[lag:], mask[:-lag])) < SIGMAS


def test_no_sample_and_no_element_is_favoured():
    """The sums over rows and columns scatter as those of fair coins: not more, and not less."""
    mask = kept()
    for dim in (0, 1):
        sums = mask.sum(dim)
        expected = mask.shape[dim] / 4
        spread = expected * math.sqrt(2 / sums.numel())
        assert abs(sums.var().item() - expected) < SIGMAS * spread


@pytest.mark.parametrize("sizes", [(12,), (6, 6), (4, 4, 4), (5, 4, 3), (1,) * 12])
@pytest.mark.parametrize("rows_per_sample", [1, 3])
@pytest.mark.parametrize("kind", [nn.Dropout, nn.Dropout1d, nn.Dropout2d])
def test_a_mask_is_the_same_however_the_batch_is_split(sizes, rows_per_sample, kind, device):
    model, key = keyed(nn.Identity(), kind(0.5), device=device)
    x = torch.ones(12 * rows_per_sample, 8, 5, 5, device=device)[..., : 1 if kind is nn.Dropout1d else 5]
    key.set_part(100, 12)
    whole, parts, begin = model(x), [], 0
    for size in sizes:
        key.set_part(100 + begin, size)
        parts.append(model(x[begin * rows_per_sample : (begin + size) * rows_per_sample]))
        begin += size
    assert torch.equal(torch.cat(parts), whole)
    assert 0 < (whole != 0).double().mean() < 1


@pytest.mark.parametrize(("kind", "dims"), [(nn.Dropout1d, 1), (nn.Dropout2d, 2), (nn.Dropout3d, 3)])
def test_channels_are_lost_as_a_whole(kind, dims):
    model, _ = keyed(kind(0.5), num=32)
    out = model(torch.ones(32, 64, *[3] * dims)).flatten(2)
    assert torch.equal(out.amin(2), out.amax(2))
    assert set(out.unique().tolist()) == {0.0, 2.0}


def test_nothing_is_lost_in_evaluation_or_with_a_share_of_zero():
    x = torch.randn(4, 5)
    model, _ = keyed(nn.Dropout(0.5))
    assert model.eval()(x) is x
    assert model.train()(x) is not x
    model, _ = keyed(nn.Dropout(0.0))
    assert model(x) is x


@pytest.mark.parametrize("p", [1.0, 1 - 1e-12])
def test_a_share_of_one_leaves_nothing_and_gradients_of_zero(p):
    model, _ = keyed(nn.Linear(5, 6), nn.Dropout(p))
    out = model(torch.randn(4, 5))
    assert not out.any()
    out.sum().backward()
    assert not model[0].weight.grad.any()


def test_a_layer_made_for_evaluation_stays_so():
    model, _ = keyed(nn.Dropout(0.5).eval(), nn.Dropout(0.5))
    assert [layer.training for layer in model] == [False, True]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_has_the_same_masks(dtype):
    model, key = keyed(nn.Dropout(0.3), num=16)
    x = torch.ones(16, 50)
    full = model(x)
    key.set_part(0, 16)
    half = model(x.to(dtype))
    assert half.dtype == dtype and torch.equal(half != 0, full != 0)


def test_nothing_is_drawn_and_the_state_dict_does_not_change():
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.Sequential(nn.Dropout2d(0.5)))
    names = list(model.state_dict())
    key = key_dropout(model, torch.device("cpu"))
    assert list(model.state_dict()) == names and len(key.layers) == 2
    before = torch.get_rng_state()
    model(torch.randn(3, 4, 2, 4, generator=torch.Generator().manual_seed(0)))
    assert torch.equal(torch.get_rng_state(), before)


def test_a_model_without_dropout_has_no_key():
    assert key_dropout(nn.Sequential(nn.Linear(4, 4), nn.AlphaDropout(0.5)), torch.device("cpu")) is None


class Shared(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = self.second = nn.Dropout(0.5)

    def forward(self, x):
        return self.first(x), self.second(x)


def test_a_layer_in_two_places_stays_one_layer_with_a_mask_for_each_call():
    model = Shared()
    key = key_dropout(model, torch.device("cpu"))
    key.set_part(0, 32)
    assert model.first is model.second and len(key.layers) == 1
    first, second = model(torch.ones(32, 1000))
    assert abs(correlation(first, second)) < SIGMAS
    key.set_part(0, 32)
    assert torch.equal(model(torch.ones(32, 1000))[0], first)


def test_keyed_again_the_layers_follow_the_new_key():
    model, old = keyed(nn.Dropout(0.5))
    new = key_dropout(model, torch.device("cpu"))
    assert new is not old and new.layers == [model[0]] and isinstance(model[0], KeyedDropout)


def test_a_copy_of_a_model_has_masks_of_its_own_key():
    model, key = keyed(nn.Dropout(0.5), num=16)
    twin = copy.deepcopy(model)
    key.set_step(99)
    x = torch.ones(16, 50)
    assert not torch.equal(model(x), twin(x))


def test_compiled_the_masks_are_the_same_and_steps_do_not_compile_anew():
    torch.compiler.reset()
    model, key = keyed(nn.Linear(6, 32), nn.Dropout(0.5), nn.Tanh(), nn.Dropout2d(0.2))
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(model, backend=counter, fullgraph=True, dynamic=False)
    x = torch.randn(4, 6)
    seen = []
    for step in range(5):
        for first in (0, 4):
            outs = []
            for run in (model, compiled):
                key.set_step(step)
                key.set_part(first, 4)
                outs.append(run(x))
            assert torch.equal(outs[0] != 0, outs[1] != 0)
            seen.append(outs[1])
    assert counter.frame_count == 1
    assert len({tuple((out != 0).flatten().tolist()) for out in seen}) == len(seen)
    outs[1].sum().backward()
    assert model[0].weight.grad is not None


@pytest.mark.parametrize(
    ("kind", "p", "shape", "num", "calls", "digest"),
    [
        (nn.Dropout, 0.3, (6, 7, 11), 3, 1, "2f4b7223e2d72544"),
        (nn.Dropout, 0.5, (4, 1000), 4, 2, "e7ce940ee379ae09"),
        (nn.Dropout2d, 0.5, (4, 33, 3, 5), 4, 1, "723bb45e0cd96735"),
        (nn.Dropout, 0.9, (5, 64), 3, 1, "79f0db2f65a7b339"),
    ],
)
def test_masks_never_change(kind, p, shape, num, calls, digest, device):
    """A training that is resumed, elsewhere or by a later version, goes on with the masks it began with."""
    model, _ = keyed(nn.Dropout(0.3), kind(p), step=-77, first=5, num=num, device=device)
    for _ in range(calls):
        out = model[1](torch.ones(shape, device=device))
    assert hashlib.sha256((out != 0).cpu().numpy().tobytes()).hexdigest()[:16] == digest


def test_its_settings_are_shown():
    model, _ = keyed(nn.Dropout2d(0.25))
    assert repr(model[0]) == "KeyedDropout(p=0.25, by_channel=True)"


def test_a_models_own_checkpointing_meets_the_same_masks():
    """Such a model calls its layers again in the backward pass; other masks there would spoil gradients silently."""

    class Block(nn.Module):
        def __init__(self, *, own_checkpoint):
            super().__init__()
            self.lin, self.drop, self.own = nn.Linear(6, 6).double(), nn.Dropout(0.5), own_checkpoint

        def body(self, x):
            return self.drop(torch.tanh(self.lin(x)))

        def forward(self, x):
            return checkpoint(self.body, x, use_reentrant=False) if self.own else self.body(x)

    x = torch.randn(5, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    found = []
    for own in (False, True):
        torch.manual_seed(0)
        block = Block(own_checkpoint=own)
        key = key_dropout(block, torch.device("cpu"))
        key.set_step(3)
        key.set_part(0, 5)
        block(x).square().sum().backward()
        found.append(block.lin.weight.grad)
    assert torch.equal(found[0], found[1])


def test_calls_that_cannot_be_told_apart_are_refused():
    drop = nn.Sequential(nn.Dropout(0.5))
    key = key_dropout(drop, torch.device("cpu"))
    key.set_part(0, 4)
    x = torch.ones(4, 8, requires_grad=True)
    out = checkpoint(lambda x: drop(drop(x)), x, use_reentrant=False)
    with pytest.raises(UsageError, match=r"called 2 times in one forward pass"):
        out.sum().backward()
