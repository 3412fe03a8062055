"""Which passes are recorded, what they read and write, and what happens where they cannot be; without a card."""

import pytest
import torch
from fake_memory import FailingOperations
from fake_recorder import adam, spoilt, step_of
from tiny_training import EFFECTIVE, assert_same, batches, losses, masked_loss, model_of, sgd, weights
from tiny_workload import Tiny
from torch import nn

from hotlap.engine.config import TrainConfig
from hotlap.engine.evaluate import evaluate
from hotlap.engine.exact import ExactStep
from hotlap.engine.graphs import EAGER_FIRST, MAX_DROPS, MAX_MET, MAX_SHAPES
from hotlap.engine.parts import build

pytestmark = pytest.mark.usefixtures("many_runs")


def both(kind, data, recorders, **options):
    """The same training eager and recorded: results, weights and buffers of each, and the recorded step."""
    found = []
    for recorded in (False, True):
        model = model_of(kind)
        if recorded:
            step, said = step_of(model, recorders, **options)
        else:
            step = ExactStep(model, adam(model), masked_loss, **options)
            torch.manual_seed(5)
        found.append((losses([step(batch) for batch in data]), dict(model.state_dict())))
    assert said == []
    return found, step


@pytest.mark.parametrize("kind", ["plain", "dropout", "batchnorm"])
def test_a_recorded_training_is_the_eager_one(kind, recorders):
    data = batches(EAGER_FIRST + 4)
    (eager, recorded), step = both(kind, data, recorders)
    assert torch.equal(recorded[0], eager[0]) and len(set(eager[0].tolist())) == len(data)
    assert_same(recorded[1], eager[1])
    assert step.num_replays == 4 and sum(r.num_recordings for r in recorders.all) == 1


@pytest.mark.parametrize("kind", ["plain", "dropout"])
@pytest.mark.parametrize("micro", [4, 5])
def test_parts_of_a_split_step_add_up_as_eager_ones_do(kind, micro, recorders):
    data = batches(5, size=13)  # 4 or 5 samples a part, so that there are two shapes
    (eager, recorded), step = both(kind, data, recorders, micro=micro, clip_norm=1.0)
    last_bits = 64 * torch.finfo(torch.float64).eps  # parts are divided by another number until the count is known
    torch.testing.assert_close(recorded[0], eager[0], rtol=last_bits, atol=0)
    assert_same(recorded[1], eager[1], rtol=last_bits, atol=last_bits)
    assert step.num_replays > 0 and step.graphs.num_shapes == 2


def test_a_scaled_loss_follows_the_scale(recorders):
    data = batches(EAGER_FIRST + 3)
    found = []
    for recorded in (False, True):
        model = model_of()
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=1)
        recorders.model = model
        step = ExactStep(model, adam(model), masked_loss, scaler=scaler, graph=recorded)
        torch.manual_seed(5)
        found.append((losses([step(batch) for batch in data]), scaler.get_scale(), weights(model)))
    assert found[1][1] == found[0][1] == 4.0 * 2 ** len(data)
    assert torch.equal(found[1][0], found[0][0])
    assert_same(found[1][2], found[0][2])


def test_results_outlive_the_next_replay(recorders):
    data = batches(EAGER_FIRST + 2)
    step, _ = step_of(model_of(), recorders)
    results = [step(batch) for batch in data]
    kept = [(float(r.loss), int(r.count)) for r in results]
    for shape in step.graphs._shapes.values():
        spoilt(shape.recording.out)
    assert [(float(r.loss), int(r.count)) for r in results] == kept


def test_a_parameter_that_no_pass_uses_stays_without_a_gradient(recorders):
    """With one of zero, weight decay and momentum would move it."""

    class Spare(nn.Module):
        def __init__(self):
            super().__init__()
            self.used, self.spare = nn.Linear(8, 4), nn.Linear(8, 4)

        def forward(self, x):
            return self.used(x)

    for micro in (None, 6):
        model = Spare().double()
        before = model.spare.weight.detach().clone()
        step, _ = step_of(model, recorders, micro=micro)
        for batch in batches(EAGER_FIRST + 3):
            step(batch)
        assert step.num_replays > 0 and model.spare.weight.grad is None
        assert torch.equal(model.spare.weight, before)


@pytest.mark.parametrize("micro", [None, 6])
def test_a_parameter_of_the_loss_is_trained_too(micro, recorders):
    data, found = batches(EAGER_FIRST + 4), []
    for recorded in (False, True):
        model, weight = model_of(), nn.Parameter(torch.ones((), dtype=torch.float64))

        def loss(model, batch, weight=weight):
            total, num = masked_loss(model, batch)
            return total * weight.exp(), num

        recorders.model = nn.ParameterList([weight, *model.parameters()])
        optimizer = torch.optim.AdamW([*model.parameters(), weight], lr=1e-2)
        step = ExactStep(model, optimizer, loss, graph=recorded, micro=micro)
        for batch in data:
            step(batch)
        found.append(weight.item())
    assert step.num_replays > 0 and found[1] == pytest.approx(found[0], rel=1e-12)


def test_a_whole_batch_after_split_ones_has_its_own_mean(recorders):
    """Split steps divide by a number of their own, which must not outlive them, recorded or refused."""
    data, tail = batches(EAGER_FIRST + 1), batches(1, size=5)[0]
    model = model_of()
    step, _ = step_of(model, recorders, micro=6, optimizer=sgd(model))
    for batch in data:
        step(batch)
    total, num = masked_loss(model, tail)
    mean = total / num
    [gradient] = torch.autograd.grad(mean, model[0].weight)
    for _ in range(2):
        found = {"loss": step(tail).loss, "gradient": model[0].weight.grad}
        assert_same(found, {"loss": mean.detach(), "gradient": gradient}, rtol=1e-12, atol=1e-14)
        step.graphs.refuse("the test says so")


def test_a_ragged_tail_runs_eagerly_until_it_is_known(recorders):
    whole, tail = batches(1)[0], batches(1, size=5)[0]
    step, said = step_of(model_of(), recorders)
    for batch in [whole] * 5 + [tail]:
        step(batch)
    assert (step.num_replays, step.graphs.num_shapes, said) == (2, 1, [])
    for _ in range(EAGER_FIRST):
        step(tail)
    assert (step.num_replays, step.graphs.num_shapes) == (3, 2)


def test_there_is_a_limit_to_shapes_and_it_is_said_once(recorders):
    step, said = step_of(model_of(), recorders)
    for size in range(1, MAX_SHAPES + 3):
        for _ in range(EAGER_FIRST + 1):
            step(batches(1, size=size)[0])
    assert step.graphs.num_shapes == MAX_SHAPES == step.num_replays
    assert said == [f"parts come in many shapes, of which the first {MAX_SHAPES} are recorded"]


def test_batches_that_are_never_alike_are_not_counted_forever(recorders):
    def loss(model, batch):
        return masked_loss(model, batch["data"])

    [data] = batches(1, size=2)
    step, said = step_of(model_of(), recorders, loss=loss)
    for number in range(MAX_MET + 2):
        step({"data": data, "file": f"{number}.png"})
    assert said == ["parts come in many shapes, of which none are recorded"]
    assert len(step.graphs._met) == MAX_MET


def test_words_in_a_batch_are_part_of_its_shape(recorders):
    """What a pass reads on the host is fixed in a recording, so another value needs another one."""

    def loss(model, batch):
        total, num = masked_loss(model, batch["data"])
        return total * batch["weight"], num

    [data] = batches(1)
    model = model_of()
    step, _ = step_of(model, recorders, loss=loss, optimizer=sgd(model))
    once = [float(step({"data": data, "weight": 1.0}).loss) for _ in range(EAGER_FIRST + 2)]
    assert len(set(once)) == 1 and step.num_replays == 2
    assert float(step({"data": data, "weight": 2.0}).loss) == pytest.approx(2 * once[0])


def test_layers_that_are_frozen_later_are_no_longer_trained(recorders):
    data = batches(2 * EAGER_FIRST + 4)
    model = model_of()
    step, _ = step_of(model, recorders)
    for number, batch in enumerate(data):
        if number == EAGER_FIRST + 2:
            model[0].requires_grad_(False)
            before = model[0].weight.detach().clone()
        step(batch)
    assert torch.equal(model[0].weight, before) and step.num_replays == 4


def test_memory_that_runs_out_in_a_recording_splits_further_and_records_again(recorders):
    data = batches(8)
    model, calm = model_of("dropout"), model_of("dropout")
    step, said = step_of(model, recorders)
    for batch in data[:EAGER_FIRST]:
        step(batch)
    recorders.all[-1].fails.append(torch.OutOfMemoryError("CUDA out of memory (pretended)"))
    results = [step(batch) for batch in data[EAGER_FIRST:]]
    assert said == [f"out of memory with {EFFECTIVE} samples; the step is replayed in micro-batches of 6"]
    assert step.micro == 6 and step.num_replays > 0 and results[0].num_splits == 1
    step = ExactStep(calm, adam(calm), masked_loss)
    torch.manual_seed(5)
    for batch in data:
        step(batch)
    last_bits = 64 * torch.finfo(torch.float64).eps
    assert_same(weights(model), weights(calm), rtol=last_bits, atol=last_bits)


def test_recordings_that_never_fit_are_not_paid_for_with_ever_smaller_parts(recorders):
    step, said = step_of(model_of(), recorders)
    [batch] = batches(1, size=64)
    for _ in range(30):
        recorders.all[-1].fails = [torch.OutOfMemoryError("CUDA out of memory (pretended)")]
        step(batch)
    assert step.micro == 64 // 2**MAX_DROPS and step.num_replays == 0
    assert said[-1].endswith("because recording one failed: CUDA out of memory (pretended)")


def test_memory_that_runs_out_beside_recordings_costs_them_and_no_split(recorders):
    """A tail that does not fit beside them fits without them; after a few times they are not made again."""
    whole, tail = batches(1)[0], batches(1, size=5)[0]
    step, said = step_of(model_of(), recorders)

    for number in range(MAX_DROPS + 1):
        for _ in range(EAGER_FIRST + 1):
            step(whole)
        assert step.num_replays == number + 1
        with FailingOperations(inside="masked_loss"):
            result = step(tail)
        assert (result.num_splits, result.num_micro, step.micro) == (1, 1, None)
        assert step.graphs.num_shapes == 0
    beside = "out of memory beside recorded passes; they are given up, and the step is replayed"
    assert said.count(beside) == MAX_DROPS + 1
    assert "passes run one by one, not as CUDA graphs, because memory ran out beside them 4 times" in said


def test_a_resumed_run_records_again_and_goes_on_the_same(recorders):
    data = batches(10)
    model = model_of("dropout")
    step, _ = step_of(model, recorders)
    for batch in data[:6]:
        step(batch)
    saved = (model.state_dict(), step.optimizer.state_dict(), step.state_dict(), torch.get_rng_state())
    saved = torch.utils._pytree.tree_map_only(torch.Tensor, torch.clone, saved)
    want = losses([step(batch) for batch in data[6:]])
    other = model_of("dropout")
    resumed, _ = step_of(other, recorders)
    other.load_state_dict(saved[0])
    resumed.optimizer.load_state_dict(saved[1])
    resumed.load_state_dict(saved[2])
    torch.set_rng_state(saved[3])
    assert torch.equal(losses([resumed(batch) for batch in data[6:]]), want)
    assert resumed.num_replays == 1


def test_an_evaluation_that_does_not_fit_beside_recordings_is_done_without_them(recorders, monkeypatch):
    workload, build_model = Tiny(norm=False), Tiny.build_model

    def built(self):
        recorders.model = build_model(self)
        return recorders.model

    monkeypatch.setattr(Tiny, "build_model", built)
    cpu = torch.device("cpu")
    parts = build(workload, TrainConfig(target="tiny", graph=True), cpu, team=None, say=lambda text: None)
    batch = workload.make_batch(8, cpu, torch.Generator().manual_seed(0))
    for _ in range(EAGER_FIRST + 1):
        parts.step(batch)
    want = evaluate(parts)
    assert parts.step.graphs.num_shapes == 1
    metrics, trouble = workload.metrics, [torch.OutOfMemoryError("CUDA out of memory (pretended)")]

    def tight(*given):
        if trouble:
            raise trouble.pop()
        return metrics(*given)

    monkeypatch.setattr(workload, "metrics", tight)
    assert evaluate(parts) == want and trouble == []
    assert parts.step.graphs.num_shapes == 0
    trouble.append(torch.OutOfMemoryError("CUDA out of memory (pretended)"))
    with pytest.raises(torch.OutOfMemoryError):
        evaluate(parts)


def test_memory_that_only_recordings_may_use_is_not_free(recorders):
    step, _ = step_of(model_of(), recorders)
    for batch in batches(EAGER_FIRST + 2):
        step(batch)
    assert step._update._aside_bytes == step.graphs.aside_bytes == 1000
