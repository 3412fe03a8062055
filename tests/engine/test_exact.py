import copy
import gc
import random
from collections import Counter

import pytest
import torch
from fake_memory import FailingOperations, FakeMemory
from tiny_training import EFFECTIVE, assert_same, batches, losses, masked_loss, model_of, sgd, train, weights
from torch import nn

from hotlap.base.errors import OutOfMemory
from hotlap.engine.exact import ExactStep

pytestmark = pytest.mark.usefixtures("many_runs")
LAST_BITS = 64 * torch.finfo(torch.float64).eps
"""Two orders of adding up a dozen samples, in layers of at most sixteen: tens of roundings, and a few steps on."""


def gradients(model, batch, **options):
    """Every gradient of one step, and its loss, which nothing has moved yet."""
    [result], step = train(model, [batch], optimizer=sgd(model), **options)
    return {name: p.grad.clone() for name, p in model.named_parameters()} | {"loss": result.loss}, result, step


@pytest.mark.parametrize("kind", ["plain", "dropout"])
@pytest.mark.parametrize("micro", [EFFECTIVE // 2, EFFECTIVE // 3, 5, 1])
def test_gradients_do_not_depend_on_the_split(kind, micro, device):
    [batch] = batches(1, device=device)
    whole, result, _ = gradients(model_of(kind).to(device), batch)
    assert result.num_micro == 1 and result.micro == EFFECTIVE
    split, result, _ = gradients(model_of(kind).to(device), batch, micro=micro)
    assert result.num_micro == -(-EFFECTIVE // micro) and result.micro <= micro
    assert_same(split, whole, rtol=LAST_BITS, atol=LAST_BITS)


@pytest.mark.parametrize("count", ["tensor", "number", "below one"])
def test_the_count_may_be_any_number(count):
    """A weighted mean may divide by less than one; a Python number is as exact as a tensor."""

    def loss(model, batch):
        total, num = masked_loss(model, batch)
        return total, {"tensor": num, "number": int(num), "below one": num * 0.01}[count]

    [batch] = batches(1)
    found = []
    for micro in (None, 5):
        model = model_of()
        result = ExactStep(model, sgd(model), loss, micro=micro)(batch)
        found.append({"grad": model[0].weight.grad, "loss": result.loss})
    total, num = loss(model, batch)
    assert result.loss.item() == pytest.approx((total / num).item(), rel=LAST_BITS)
    # 0.01 * num is rounded to float32 by torch itself, once for the whole batch and once for each part.
    assert_same(found[1], found[0], rtol=3e-7 if count == "below one" else LAST_BITS, atol=LAST_BITS)


def test_a_model_may_be_wrapped_again():
    [batch] = batches(1)
    model = model_of("dropout")
    whole, *_ = gradients(model, batch)
    split, *_ = gradients(model, batch, micro=5)
    assert_same(split, whole, rtol=LAST_BITS, atol=LAST_BITS)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_whole_batch_gives_a_bare_loop_to_the_last_bit(dtype, device):
    [batch] = batches(1, device=device, dtype=dtype)
    model, bare = model_of(dtype=dtype).to(device), model_of(dtype=dtype).to(device)
    optimizer = sgd(bare, lr=0.1)
    total, count = masked_loss(bare, batch)
    (total / count).backward()
    optimizer.step()
    [result], _ = train(model, [batch], optimizer=sgd(model, lr=0.1))
    assert torch.equal(result.loss, total / count)
    assert_same(weights(model), weights(bare))


def test_unequal_counts_are_weighted_not_averaged():
    """The mean of the micro-batches' means is another number; this is the mistake that is made everywhere."""
    x = torch.randn(4, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    y = torch.tensor([1, -1, 2, 3])
    model = model_of()
    means = [(lambda s, c: s / c)(*masked_loss(model, (x[i : i + 2], y[i : i + 2]))).item() for i in (0, 2)]
    total, count = masked_loss(model, (x, y))
    [result], _ = train(model, [(x, y)], optimizer=sgd(model), micro=2)
    assert result.loss.item() == pytest.approx((total / count).item(), rel=LAST_BITS)
    assert result.count.item() == 3
    assert abs(sum(means) / 2 - (total / count).item()) > 1e-3


@pytest.mark.parametrize("micro", [None, 2])
def test_a_batch_without_any_target_moves_nothing(micro):
    model = model_of()
    before = weights(model)
    x, y = batches(1)[0]
    [result], _ = train(model, [(x, torch.full_like(y, -1))], optimizer=sgd(model, lr=1.0), micro=micro)
    assert result.loss.item() == 0
    assert_same(weights(model), before)


def test_parameters_in_half_precision_are_divided_as_well_as_they_can_be():
    """A factor rounded to bfloat16 would be off by up to 2**-9; the gradient itself is one rounding away."""
    [(x, y)] = batches(1, dtype=torch.bfloat16)
    model = nn.Linear(8, 4).bfloat16()
    step = ExactStep(model, sgd(model), lambda m, b: (m(b[0]).float().square().sum(), 3 * len(b[0])), micro=6)
    step((x, y))
    parts = [torch.autograd.grad(model(part).float().square().sum() / 36, model.weight)[0] for part in (x[:6], x[6:])]
    assert "parameters in half precision" in [finding.kind for finding in step.inexact()]
    torch.testing.assert_close(model.weight.grad, parts[0] + parts[1], rtol=2**-7, atol=1e-3)


def test_sparse_gradients_are_divided_too():
    def loss(model, batch):
        return model(batch).square().sum(), len(batch)

    tokens = torch.randint(0, 10, (12, 5), generator=torch.Generator().manual_seed(0))
    found = []
    for micro in (None, 5):
        torch.manual_seed(0)
        model = nn.Embedding(10, 4, sparse=True).double()
        ExactStep(model, sgd(model, lr=0.1), loss, micro=micro)(tokens)
        found.append(weights(model))
    assert_same(found[1], found[0], rtol=LAST_BITS, atol=LAST_BITS)


def places_of_failure(rng, num_ops):
    """One or two places far apart, so that no step fails for good; often with a second failure during the recovery."""
    first = rng.randrange(1, num_ops)
    chosen = (first, first + rng.randrange(250, 400))[: rng.randint(1, 2)]
    return {place + extra for place in chosen for extra in (0, rng.randint(0, 3))}


@pytest.mark.parametrize("kind", ["plain", "dropout"])
def test_memory_that_runs_out_anywhere_costs_no_step(kind):
    """100 runs each: failures at random operations leave the curve and the weights as they were."""
    data = batches(3)
    calm, count = model_of(kind), FailingOperations()
    curve, _ = train(calm, data, memory=count, clip_norm=1.0)
    num_splits = Counter()
    for seed in range(100):
        model = model_of(kind)
        memory = FailingOperations(places_of_failure(random.Random(seed), count.num_ops))
        disturbed, _ = train(model, data, memory=memory, clip_norm=1.0)
        assert memory.num_failures > 0
        num_splits[sum(result.num_splits for result in disturbed)] += 1
        torch.testing.assert_close(
            losses(disturbed), losses(curve), rtol=LAST_BITS, atol=0, msg=lambda m, s=seed: f"seed {s}: {m}"
        )
        assert_same(weights(model), weights(calm), rtol=LAST_BITS, atol=LAST_BITS)
    assert set(num_splits) >= {0, 1, 2}, num_splits  # failures of the optimizer alone split nothing


def test_every_operation_of_a_step_may_fail():
    """One run for each operation of a split step with everything in it, and all parts of it were reached."""
    [batch] = batches(1, size=4)
    reached = Counter()
    parts = (
        "StepStart.remember", "masked_loss", "Tensor.backward", "ExactStep._normalise", "scale_gradients",
        "clip_grad_norm_", "Undo.__init__", "Optimizer.profile_hook_step.<locals>.wrapper",
    )  # fmt: skip

    def run(numbers):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 4), nn.BatchNorm1d(4).eval()).double()
        memory = FailingOperations(numbers)
        [result], _ = train(model, [batch], memory=memory, clip_norm=1.0, micro=2)
        return weights(model) | {"loss": result.loss}, memory

    calm, count = run(())
    for place in range(1, count.num_ops + 1):
        found, memory = run({place})
        assert memory.num_failures == 1
        reached.update(part for part in parts if part in memory.failed_in[0])
        assert_same(found, calm, rtol=LAST_BITS, atol=LAST_BITS)
    assert [part for part in parts if not reached[part]] == [], reached


def peak_of(micro, data):
    model, memory = model_of("blocks", torch.float32), FakeMemory()
    train(model, data, memory=memory, optimizer=sgd(model), micro=micro)
    return memory.peak_bytes


def test_a_limit_of_memory_is_met_by_smaller_micro_batches():
    data = batches(4, size=32, dtype=torch.float32)
    calm = model_of("blocks", torch.float32)
    curve, _ = train(calm, data, optimizer=sgd(calm, lr=0.1))
    peaks = {micro: peak_of(micro, data) for micro in (32, 16, 8)}
    assert peaks[8] < peaks[16] < peaks[32]
    for limit, micro in ((peaks[16], 16), (peaks[8], 8)):
        said: list[str] = []
        model, memory = model_of("blocks", torch.float32), FakeMemory(limit_bytes=limit)
        results, step = train(model, data, memory=memory, optimizer=sgd(model, lr=0.1), say=said.append)
        assert step.micro == micro and memory.num_failures == results[0].num_splits == {16: 1, 8: 2}[micro]
        assert said[0] == "out of memory with 32 samples; the step is replayed in micro-batches of 16"
        assert results[0].recovery_s > 0 == results[1].recovery_s
        # float32: 32 samples in sums over 256 units, in another order.
        torch.testing.assert_close(losses(results), losses(curve), rtol=1e-5, atol=0)


def squared(model, batch):
    return model(batch).square().sum(), len(batch)


def test_recomputation_is_the_last_step_before_giving_up():
    texts = torch.randn(1, 200, 8, generator=torch.Generator().manual_seed(0))  # one sample that fills the memory
    said: list[str] = []

    def run(limit_bytes=None, **options):
        model, memory = model_of("blocks", torch.float32), FakeMemory(limit_bytes)
        step = ExactStep(model, sgd(model, lr=0.1), squared, say=said.append, **options)
        with memory:
            result = step(texts)
        return weights(model) | {"loss": result.loss}, step, memory

    calm, _, off = run(recompute="off")
    _, _, on = run(recompute="on")
    assert on.peak_bytes < 0.5 * off.peak_bytes
    found, step, memory = run(on.peak_bytes)
    assert step.recomputing and memory.num_failures == 1
    assert said == ["out of memory with 1 sample; activation checkpointing is now on, the step is replayed"]
    assert_same(found, calm)  # the same operations on the same numbers
    with pytest.raises(OutOfMemory, match=r"1 sample at a time.*activation checkpointing \(--recompute on\)"):
        run(on.peak_bytes, recompute="off")


def test_giving_up_names_layer_shape_and_what_would_help_and_changes_nothing():
    [batch] = batches(1, dtype=torch.float32)
    model = model_of("dropout", torch.float32)
    before, random_before = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    step = ExactStep(model, sgd(model), masked_loss)
    with FakeMemory(limit_bytes=100), pytest.raises(OutOfMemory) as caught:
        step(batch)
    assert type(caught.value) is OutOfMemory and caught.value.exit_code == 5
    assert "the forward pass of layer '1' (Tanh) on [1, 16] with 1 sample at a time" in str(caught.value)
    assert "half precision (--precision bf16-mixed); a smaller input" in str(caught.value)
    assert_same(model.state_dict(), before)
    assert torch.equal(torch.get_rng_state(), random_before)


def test_batch_norm_that_needs_two_samples_is_not_given_one():
    """A recovery must not end in BatchNorm's own complaint about a micro-batch of one."""
    data = batches(2)
    said: list[str] = []
    memory = FailingOperations(inside="masked_loss", num_times=4)
    with pytest.raises(OutOfMemory, match=r"layer '0'.* with 2 samples at a time: CUDA out of memory"):
        train(model_of("batchnorm"), data, memory=memory, say=said.append)
    assert said[-1] == "out of memory with 2 samples; the step is replayed in micro-batches of 1"
    net = nn.Sequential(nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16)), nn.Linear(16, 4)).double()
    memory = FailingOperations(inside="masked_loss", num_times=4)
    results, step = train(net, data, memory=memory)
    assert step.recomputing and [result.micro for result in results] == [2, 2]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_card_that_really_runs_out_of_memory_loses_nothing():
    card, num = torch.device("cuda", torch.cuda.current_device()), 4096
    total_memory = torch.cuda.get_device_properties(card).total_memory
    rng = torch.Generator().manual_seed(0)
    data = [
        (torch.randn(num, 64, generator=rng, dtype=torch.float64).to(card), torch.randint(0, 64, (num,)).to(card))
        for _ in range(3)
    ]

    def run(micro=None, cap_bytes=None):
        torch.manual_seed(0)
        layers = [nn.Sequential(nn.Linear(64, 1024), nn.GELU(), nn.Dropout(0.1), nn.Linear(1024, 64)) for _ in range(4)]
        model = nn.Sequential(*layers).double().to(card)
        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(card)
        torch.cuda.set_per_process_memory_fraction(1.0 if cap_bytes is None else cap_bytes / total_memory, card)
        try:
            results, _ = train(model, data, optimizer=sgd(model, lr=0.1), micro=micro)
        finally:
            torch.cuda.set_per_process_memory_fraction(1.0, card)
        return results, weights(model), torch.cuda.max_memory_reserved(card)

    curve, calm, whole_bytes = run()
    _, _, quarter_bytes = run(micro=num // 4)
    assert quarter_bytes < 0.6 * whole_bytes
    results, disturbed, held_bytes = run(cap_bytes=(quarter_bytes + whole_bytes) // 2)
    assert results[0].num_splits >= 1 and held_bytes < whole_bytes
    # Sums over thousands of samples in another order, three steps on.
    last_bits = num * torch.finfo(torch.float64).eps
    torch.testing.assert_close(losses(results), losses(curve), rtol=last_bits, atol=0)
    assert_same(disturbed, calm, rtol=last_bits, atol=last_bits)


class Greedy(torch.autograd.Function):
    """Fits forward and never backward."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        raise torch.OutOfMemoryError("CUDA out of memory (pretended)")


class GreedyLayer(nn.Module):
    def forward(self, x):
        return Greedy.apply(x)


@pytest.mark.parametrize("size", [EFFECTIVE, 1])
def test_a_failure_in_the_backward_pass_is_placed_too(size):
    model = nn.Sequential(nn.Linear(8, 4), nn.ReLU(inplace=True), GreedyLayer()).double()
    with pytest.raises(OutOfMemory, match=r"the backward pass of layer '2' \(GreedyLayer\) on \[1, 4\]"):
        train(model, batches(1, size=size))


def test_a_loss_that_couples_samples_is_never_split():
    data = batches(1)
    with pytest.raises(OutOfMemory, match=r"12 samples at a time.*cannot be split"):
        train(model_of(), data, memory=FakeMemory(limit_bytes=100), separable=False)


def test_other_errors_pass_through_untouched():
    def broken(model, batch):
        raise ValueError("not memory")

    model = model_of()
    step = ExactStep(model, sgd(model), broken)
    with pytest.raises(ValueError, match="not memory"):
        step(batches(1)[0])
