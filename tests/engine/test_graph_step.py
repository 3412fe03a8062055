"""Recorded passes on a card: the same training as eager ones, for real kernels, real shortage and real refusals."""

import copy
import gc

import pytest
import torch
from tiny_training import assert_same, batches, losses, masked_loss, model_of, train, weights
from torch import nn

from hotlap.engine import graphs
from hotlap.engine.exact import ExactStep
from hotlap.engine.graphs import EAGER_FIRST
from hotlap.measure.graph import Recorder, waits_seen
from hotlap.segment.workload import unet
from hotlap.sequence.workload import bilstm

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.usefixtures("plain_float32"),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]
STEPS = 20


def card():
    return torch.device("cuda", torch.cuda.current_device())


def trained(workload, *, graph, sizes=(8,), kernels=False, **options):
    """The losses of a short training, and its step; ``sizes`` are those of its batches, in turn."""
    torch.manual_seed(0)
    model = workload.build_model()
    if kernels:
        model.use_kernels()
    model = model.to(card()).train()
    data = [
        workload.make_batch(sizes[number % len(sizes)], card(), torch.Generator().manual_seed(number))
        for number in range(STEPS)
    ]
    fused = options.get("precision") == "16-mixed"
    optimizer = workload.optimizer(model, fused=fused or None)
    said = []
    step = ExactStep(model, optimizer, workload.loss, graph=graph, say=said.append, **options)
    torch.manual_seed(5)
    curve = losses([step(batch) for batch in data]).double().cpu()
    assert not [words for words in said if "CUDA graphs" in words], said
    return curve, step


def assert_same_training(workload, rtol, **options):
    eager, _ = trained(workload, graph=False, **options)
    recorded, step = trained(workload, graph=True, **options)
    assert len(set(eager.tolist())) == STEPS
    torch.testing.assert_close(recorded, eager, rtol=rtol, atol=rtol)
    return step


@pytest.mark.parametrize("kind", ["plain", "dropout", "batchnorm"])
def test_float64_gives_the_eager_training_to_the_last_bits(kind):
    data = batches(STEPS, device=card())
    eager_model, model = model_of(kind).to(card()), model_of(kind).to(card())
    eager, _ = train(eager_model, data, clip_norm=1.0)
    recorded, step = train(model, data, clip_norm=1.0, graph=True)
    assert step.num_replays == STEPS - EAGER_FIRST and step.graphs.why_not == ""
    # Libraries may choose other algorithms under a recording; twenty steps of Adam carry the last bits on.
    torch.testing.assert_close(losses(recorded), losses(eager), rtol=1e-9, atol=0)
    assert_same(dict(model.state_dict()), dict(eager_model.state_dict()), rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed", "16-mixed"])
def test_a_convolutional_net_trains_the_same(precision):
    # Convolutions add up atomically, so two eager trainings differ too, in half precision by whole roundings of 2^-8.
    rtol = 1e-3 if precision == "32-true" else 0.05
    step = assert_same_training(unet(width=4, size=32), rtol, precision=precision)
    assert step.num_replays == STEPS - EAGER_FIRST


def test_texts_with_dropout_and_kernels_in_half_precision_train_the_same():
    # Embeddings add up atomically; float16 rounds at 2^-11, over twenty steps of Adam.
    small = bilstm(hidden=64, embedding=32, length=32)
    step = assert_same_training(small, 0.02, precision="16-mixed", kernels=True)
    assert step.num_replays == STEPS - EAGER_FIRST


def test_a_split_step_and_a_ragged_tail_train_the_same():
    small = bilstm(hidden=64, embedding=32, length=32)
    step = assert_same_training(small, 1e-4, sizes=(8, 8, 8, 5), micro=3)
    assert step.num_replays > STEPS and step.graphs.num_shapes == 2  # parts of two and of three


class Noisy(nn.Module):
    """Draws on the card, from its generator."""

    def forward(self, x):
        return x + 0.1 * torch.randn_like(x)


def test_numbers_drawn_on_the_card_go_on_as_without_recordings():
    data = batches(STEPS, device=card())
    found = []
    for graph in (False, True):
        model = nn.Sequential(model_of(), Noisy()).to(card())
        torch.cuda.manual_seed(3)
        results, step = train(model, data, graph=graph)
        found.append((losses(results), torch.cuda.get_rng_state(card())))
    assert step.num_replays == STEPS - EAGER_FIRST
    torch.testing.assert_close(found[1][0], found[0][0], rtol=1e-9, atol=0)
    assert torch.equal(found[1][1], found[0][1])


class Waits(nn.Module):
    def forward(self, x):
        return x * (1 + float(x.detach().mean()))


def test_a_pass_that_waits_for_the_card_is_not_recorded_and_its_line_is_named():
    data, said = batches(6, device=card()), []
    calm, model = (nn.Sequential(model_of(), Waits()).to(card()) for _ in range(2))
    eager, _ = train(calm, data)
    recorded, step = train(model, data, graph=True, say=said.append)
    assert step.num_replays == 0
    assert len(said) == 1 and "because a pass waits for the card, at test_graph_step.py:" in said[0]
    assert torch.equal(losses(recorded), losses(eager))


def test_a_recording_that_breaks_leaves_card_and_generators_usable(monkeypatch):
    """Where the waiting is not seen beforehand, the driver refuses in the middle of the recording."""

    def blind(device):
        return waits_seen(torch.device("cpu"))

    monkeypatch.setattr(graphs, "waits_seen", blind)
    data, said = batches(8, device=card()), []
    calm, model = (nn.Sequential(model_of(), Noisy(), Waits()).to(card()) for _ in range(2))
    torch.cuda.manual_seed(3)
    eager, _ = train(calm, data)
    torch.cuda.manual_seed(3)
    recorded, step = train(model, data, graph=True, say=said.append)
    assert "recording one failed" in said[-1] and step.num_replays == 0
    torch.testing.assert_close(losses(recorded), losses(eager), rtol=1e-9, atol=0)
    # What is freed on one stream while another uses it comes back only if no recording is thought to go on.
    before = torch.cuda.memory_allocated(card())
    for _ in range(4):
        tensor = torch.empty(2**20, device=card())
        tensor.record_stream(torch.cuda.Stream())
        del tensor
    torch.cuda.synchronize()
    torch.empty(1, device=card())
    assert torch.cuda.memory_allocated(card()) <= before + 2**20
    # And another step can be recorded.
    assert train(model_of().to(card()), data, graph=True)[1].num_replays == len(data) - EAGER_FIRST


def wide():
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(64, 1024), nn.GELU(), nn.Dropout(0.1), nn.Linear(1024, 64)) for _ in range(4)]
    return nn.Sequential(*layers).double().to(card())


def capped(data, cap_bytes=None, **options):
    """Losses, the step and the most memory held, with a cap on what the allocator may hold.

    Bytes are beyond what other tests have left in this process.
    """
    gc.collect()
    torch.cuda.empty_cache()
    others = torch.cuda.memory_reserved(card())
    model = wide()
    torch.cuda.reset_peak_memory_stats(card())
    total = torch.cuda.get_device_properties(card()).total_memory
    share = 1.0 if cap_bytes is None else (others + cap_bytes) / total
    torch.cuda.set_per_process_memory_fraction(share, card())
    try:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        results, step = train(model, data, optimizer=optimizer, **options)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0, card())
    return losses(results), step, torch.cuda.max_memory_reserved(card()) - others, results


def test_a_card_that_runs_out_of_memory_loses_nothing_and_records_again():
    rng = torch.Generator().manual_seed(0)
    data = [
        (torch.randn(4096, 64, generator=rng, dtype=torch.float64).to(card()), torch.randint(0, 64, (4096,)).to(card()))
        for _ in range(10)
    ]
    curve, _, whole_bytes, _ = capped(data)
    _, _, quarter_bytes, _ = capped(data, micro=1024, graph=True)
    assert quarter_bytes < 0.7 * whole_bytes
    found, step, held_bytes, results = capped(data, cap_bytes=(quarter_bytes + whole_bytes) // 2, graph=True)
    assert sum(result.num_splits for result in results) >= 1 and step.num_replays > 0
    assert held_bytes < whole_bytes
    torch.testing.assert_close(found, curve, rtol=1e-10, atol=0)


def test_recordings_given_up_give_their_memory_back():
    data = [(torch.randn(2048, 64, dtype=torch.float64, device=card()), torch.randint(0, 64, (2048,), device=card()))]
    model = wide()
    step = ExactStep(model, torch.optim.SGD(model.parameters(), lr=0.1), masked_loss, graph=True)
    for batch in data * (EAGER_FIRST + 2):
        step(batch)
    assert step.num_replays == 2
    for batch in data * 4:
        step(batch)
    assert step._update._roomy, "updates need not be copied, though the passes' memory is not theirs"
    step.optimizer.zero_grad(set_to_none=True)
    held = torch.cuda.memory_reserved(card())
    assert step.graphs.release()
    gc.collect()
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved(card()) < 0.5 * held


def test_a_resumed_training_records_again_and_goes_on_the_same():
    data = batches(12, device=card())
    model = model_of("dropout").to(card())
    results, step = train(model, data[:6], graph=True)
    state = copy.deepcopy((model.state_dict(), step.optimizer.state_dict(), step.state_dict()))
    chance = torch.get_rng_state()
    want = losses([step(batch) for batch in data[6:]])
    other = model_of("dropout").to(card())
    resumed = ExactStep(other, torch.optim.AdamW(other.parameters(), lr=1e-2), masked_loss, graph=True)
    other.load_state_dict(state[0])
    resumed.optimizer.load_state_dict(state[1])
    resumed.load_state_dict(state[2])
    torch.set_rng_state(chance)
    found = losses([resumed(batch) for batch in data[6:]])
    torch.testing.assert_close(found, want, rtol=1e-9, atol=0)
    assert resumed.num_replays == 3 and len(results) == 6
    torch.testing.assert_close(weights(other)["0.weight"], weights(model)["0.weight"], rtol=1e-7, atol=1e-9)


def test_a_recording_does_nothing_until_it_is_replayed():
    x = torch.zeros(4, device=card())
    recording = Recorder(card()).record(lambda: x.add_(1))
    torch.cuda.synchronize()
    assert x.tolist() == [0.0] * 4
    recording.replay()
    recording.replay()
    assert x.tolist() == [2.0] * 4
