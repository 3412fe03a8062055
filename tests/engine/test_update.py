import copy

import pytest
import torch
from fake_memory import FailingOperations, functions_at_work
from tiny_training import assert_same, batches, masked_loss, model_of, sgd, train, weights

from hotlap.base.errors import OutOfMemory
from hotlap.engine.exact import ExactStep, StepLost
from hotlap.engine.undo import Undo

pytestmark = pytest.mark.usefixtures("many_runs")
OPTIMIZERS = {
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.1, foreach=True),
    "fused": lambda p: torch.optim.AdamW(p, lr=0.1, fused=True),
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "tensor lr": lambda p: torch.optim.Adam(p, lr=torch.tensor(0.1), foreach=False),
}


class Recorder(FailingOperations):
    """Remembers which operations belong to the update."""

    def __init__(self):
        super().__init__()
        self.in_update: list[int] = []

    def _run(self, func, args, kwargs):
        if "Update.__call__" in functions_at_work():
            self.in_update.append(self.num_ops)
        return super()._run(func, args, kwargs)


def raise_out_of_memory():
    raise torch.OutOfMemoryError("CUDA out of memory (pretended)")


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("on_host", [False, True])
def test_an_optimizer_step_is_undone_exactly(optimizer, on_host, device):
    if optimizer == "tensor lr" and device.type == "cuda":
        pytest.skip("torch wants capturable=True for it")
    model = model_of().to(device)
    optimizer = OPTIMIZERS[optimizer](model.parameters())
    first, second = batches(2, device=device)
    step = ExactStep(model, optimizer, masked_loss)
    for batch in (first, second):  # state that is created, and state that is updated
        before, state = weights(model), copy.deepcopy(optimizer.state_dict())
        model.zero_grad()
        sum(p.sum() for p in model.parameters()).backward()
        undo = Undo(optimizer, on_host=on_host)
        optimizer.step()
        optimizer.param_groups[0]["lr"] = 7.0
        undo.back()
        undo.back()
        assert_same(weights(model), before)
        assert optimizer.state_dict().keys() == state.keys()
        torch.testing.assert_close(optimizer.state_dict(), state, rtol=0, atol=0)
        step(batch)


@pytest.mark.parametrize("kind", ["adamw", "fused", "sgd"])
@pytest.mark.parametrize("scaled", [False, True])
def test_an_update_that_fails_anywhere_ends_as_if_it_had_not(kind, scaled):
    """Gradients are whole by then, so nothing is split and every bit is the same, the loss scale included."""
    data = batches(2, size=4, dtype=torch.float32)

    def run(memory):
        model = torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.Linear(4, 4, bias=False))
        model.load_state_dict({k: torch.full_like(v, 0.1) for k, v in model.state_dict().items()})
        scaler = torch.amp.GradScaler("cpu", init_scale=256.0, growth_interval=2) if scaled else None
        optimizer = OPTIMIZERS[kind](model.parameters())
        precision = "16-mixed" if scaled else "32-true"
        results, step = train(model, data, memory=memory, optimizer=optimizer, precision=precision, scaler=scaler)
        found = weights(model) | {f"loss {i}": r.loss for i, r in enumerate(results)}
        if scaled:
            found |= {"scale": step.scaler._scale, "tracker": step.scaler._growth_tracker}
        return found, results

    recorder = Recorder()
    calm, _ = run(recorder)
    assert not scaled or calm["scale"].item() == 512  # two good steps have doubled it once
    assert len(recorder.in_update) >= 6
    for number in recorder.in_update:
        memory = FailingOperations({number} if scaled else {number, number + 1})
        found, results = run(memory)
        assert memory.num_failures == (1 if scaled else 2) and [r.num_splits for r in results] == [0, 0]
        assert_same(found, calm)


@pytest.mark.parametrize("kind", ["adamw", "fused", "sgd"])
def test_an_update_whose_copies_are_kept_is_undone_as_exactly(kind):
    data = batches(7, size=4, dtype=torch.float32)

    def run(memory):
        model = torch.nn.Linear(8, 4, bias=False)
        model.load_state_dict({"weight": torch.full((4, 8), 0.1)})
        train(model, data, memory=memory, optimizer=OPTIMIZERS[kind](model.parameters()))
        return weights(model)

    recorder = Recorder()
    calm = run(recorder)
    for number in recorder.in_update[-2 * len(recorder.in_update) // 7 :]:
        memory = FailingOperations({number})
        assert_same(run(memory), calm)
        assert memory.num_failures == 1


class MadeInUpdates(FailingOperations):
    """Counts the tensors that each update's copies are made in."""

    def __init__(self, **given):
        super().__init__(**given)
        self.num_made = [0]

    def _run(self, func, args, kwargs):
        if "Undo.__init__" in functions_at_work():
            self.num_made[-1] += func is torch.ops.aten.empty_like.default
        return super()._run(func, args, kwargs)


def made(step, data, **given):
    """How many tensors the copies of each of these steps are made in."""
    with MadeInUpdates(**given) as memory:
        for batch in data:
            step(batch)
            memory.num_made.append(0)
    return memory.num_made[:-1]


def test_on_the_cpu_copies_are_made_once_and_again_after_memory_ran_out():
    model = model_of()
    step = ExactStep(model, sgd(model, lr=0.1), masked_loss)
    one, *rest = made(step, batches(7))
    assert one > 0 and rest == [one] * 3 + [0] * 3  # three updates are young, and the fourth one's copies stay
    assert made(step, batches(5), inside="ExactStep._pass") == [one] * 4 + [0]


def test_copies_are_not_kept_where_memory_is_short(monkeypatch):
    monkeypatch.setattr("hotlap.engine.update.memory_available", lambda: 100)
    model = model_of()
    step = ExactStep(model, sgd(model, lr=0.1), masked_loss)
    assert 0 not in made(step, batches(6))


def test_a_step_that_overflows_is_skipped_and_halves_the_scale():
    model = model_of("plain", torch.float32)
    before = weights(model)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**60)
    _, step = train(model, batches(1, dtype=torch.float32), precision="16-mixed", scaler=scaler, micro=5)
    assert step.scaler.get_scale() == 2.0**59
    assert_same(weights(model), before)


def test_half_precision_does_not_depend_on_the_split_but_for_its_rounding(device):
    data = batches(6, device=device, dtype=torch.float32)
    runs = []
    for micro in (None, 5):
        model = model_of("plain", torch.float32).to(device)
        scaler = torch.amp.GradScaler(device.type, init_scale=1024.0)
        results, step = train(model, data, precision="16-mixed", scaler=scaler, micro=micro, clip_norm=1.0)
        assert step.scaler.get_scale() == 1024.0
        runs.append(torch.stack([r.loss for r in results]))
        norms = torch.stack([r.grad_norm for r in results])
        assert (norms > 0).all() and (norms < 100).all()  # of gradients without the scale
    # float16 keeps 11 bits; a handful of such roundings in each of six steps of AdamW.
    torch.testing.assert_close(runs[1], runs[0], rtol=2e-2, atol=0)


def test_an_optimizer_step_that_cannot_be_undone_says_so(monkeypatch):
    model = model_of()
    optimizer = sgd(model, lr=0.1)
    step = ExactStep(model, optimizer, masked_loss)
    monkeypatch.setattr(step._update, "_may_fail", lambda: False)
    monkeypatch.setattr(optimizer, "step", raise_out_of_memory)
    with pytest.raises(StepLost, match=r"not expected to need any: CUDA out of memory.*--resume"):
        step(batches(1)[0])


def test_an_optimizer_that_never_fits_gives_up_with_its_name_and_changes_nothing(monkeypatch):
    model = model_of("batchnorm")
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, foreach=True)
    said: list[str] = []
    step = ExactStep(model, optimizer, masked_loss, say=said.append)
    before = copy.deepcopy(model.state_dict())

    def fail():
        model[0].weight.data.add_(1)
        raise_out_of_memory()

    monkeypatch.setattr(optimizer, "step", fail)
    with pytest.raises(OutOfMemory, match=r"optimizer step of AdamW: CUDA out of memory") as caught:
        step(batches(1)[0])
    assert type(caught.value) is OutOfMemory
    assert said == ["out of memory in the optimizer step; parameters are now updated one by one"]
    assert optimizer.param_groups[0]["foreach"] is False
    assert_same(model.state_dict(), before)  # running statistics too


def test_an_undoing_that_never_fits_is_a_lost_step(monkeypatch):
    model = model_of()
    optimizer = sgd(model, lr=0.1)
    step = ExactStep(model, optimizer, masked_loss)
    monkeypatch.setattr(optimizer, "step", raise_out_of_memory)
    monkeypatch.setattr(Undo, "back", lambda self: raise_out_of_memory())
    with pytest.raises(StepLost, match="while an optimizer step was being undone"):
        step(batches(1)[0])


def test_other_errors_of_an_optimizer_pass_through(monkeypatch):
    model = model_of()
    optimizer = sgd(model, lr=0.1)
    step = ExactStep(model, optimizer, masked_loss)

    def fail():
        raise ValueError("not memory")

    monkeypatch.setattr(optimizer, "step", fail)
    with pytest.raises(ValueError, match="not memory"):
        step(batches(1)[0])
