import os
from pathlib import Path

import pytest
import torch
from torch.nn.utils.rnn import pack_padded_sequence

from hotlap.base.errors import ConfigError, DataError, KernelUnavailable
from hotlap.data.characters import PAD, VOCABULARY
from hotlap.engine.exactness import find_inexact
from hotlap.measure.dropout import key_dropout
from hotlap.sequence.loss import text_cross_entropy
from hotlap.sequence.metrics import text_scores
from hotlap.sequence.model import BiLSTM
from hotlap.sequence.workload import bilstm
from hotlap.targets import load_target
from hotlap.workload import same_class

CPU = torch.device("cpu")
REAL_DATA = Path(os.environ.get("HOTLAP_TEST_DATA", Path(__file__).parents[3] / "shared" / "data")) / "sst2"


def packed_reference(model, tokens, lengths):
    """The scores as ``nn.LSTM`` gives them for packed texts."""
    packed = pack_padded_sequence(model.embedding(tokens), lengths.cpu(), batch_first=True, enforce_sorted=False)
    _, (state, _) = model.lstm(packed)
    return model.head(torch.cat([state[-2], state[-1]], 1))


def ragged_batch(n=7, length=23, seed=0):
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(2, VOCABULARY, (n, length), generator=generator)
    lengths = torch.randint(1, length + 1, (n,), generator=generator)
    lengths[0], lengths[1] = 1, length
    return tokens.masked_fill(torch.arange(length) >= lengths[:, None], PAD), lengths


def small_model(dtype=torch.float64, **settings):
    torch.manual_seed(0)
    return BiLSTM(classes=3, vocabulary=VOCABULARY, embedding=12, hidden=10, **settings).to(dtype).eval()


def train(workload, device, steps, dtype=torch.float32, seed=0):
    """Steps of plain training on ``device``: the loss of each, and the model."""
    torch.manual_seed(seed)
    model = workload.build_model().to(device, dtype)
    optimizer = workload.optimizer(model)
    generator = torch.Generator().manual_seed(seed)
    losses = []
    for _ in range(steps):
        total, count = workload.loss(model, workload.make_batch(workload.default_batch, device, generator))
        optimizer.zero_grad()
        (total / count).backward()
        optimizer.step()
        losses.append((total / count).item())
    return losses, model


def test_full_size_has_2_381_443_parameters_named_as_nn_lstm_does():
    model = load_target("bilstm").build_model()
    assert sum(p.numel() for p in model.parameters()) == 2_381_443
    plain = torch.nn.LSTM(128, 256, 2, bidirectional=True)
    plain.load_state_dict({k.removeprefix("lstm."): v for k, v in model.state_dict().items() if k.startswith("lstm.")})


@pytest.mark.parametrize(("layers", "recurrence"), [(1, "torch"), (2, "torch"), (3, "torch"), (2, "auto")])
def test_same_as_packed_texts_with_every_gradient(layers, recurrence, device):
    model = small_model(layers=layers, recurrence=recurrence).to(device)
    tokens, lengths = (t.to(device) for t in ragged_batch())
    weight = torch.randn(7, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).to(device)
    model.train()
    model.dropout.p = 0.0
    results = []
    for run in (model, lambda *batch: packed_reference(model, *batch)):
        model.zero_grad()
        out = run(tokens, lengths)
        (out * weight).sum().backward()
        results.append((out.detach(), {name: p.grad.clone() for name, p in model.named_parameters()}))
    (got, got_grads), (want, want_grads) = results
    torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-13)
    for name, grad in want_grads.items():
        torch.testing.assert_close(got_grads[name], grad, rtol=1e-11, atol=1e-13, msg=lambda m, n=name: f"{n}: {m}")


@pytest.mark.parametrize("recurrence", ["auto", "cuda", "triton"])
def test_every_recurrence_gives_the_same_loss_and_gradients(recurrence, device, plain_float32):
    """Float32 sums in another order: within 1e-4 of the largest gradient of each parameter."""
    results = []
    for who in ("torch", recurrence):
        workload = bilstm(length=40, batch=12, embedding=16, hidden=48, dropout=0.0, recurrence=who)
        torch.manual_seed(0)
        model = workload.build_model().to(device)
        batch = workload.make_batch(12, device, torch.Generator().manual_seed(3))
        try:
            total, _ = workload.loss(model, batch)
        except KernelUnavailable as error:
            pytest.skip(str(error))
        total.backward()
        results.append((total.item(), {name: p.grad for name, p in model.named_parameters()}))
    (want, want_grads), (got, got_grads) = results
    assert got == pytest.approx(want, rel=1e-5)
    for name, grad in want_grads.items():
        assert (got_grads[name] - grad).abs().max() <= 1e-4 * grad.abs().max(), name


def test_a_recurrence_that_cannot_run_is_refused():
    workload = load_target("bilstm", {"recurrence": "cuda", "length": 32, "hidden": 8})
    batch = workload.make_batch(2, CPU, torch.Generator().manual_seed(0))
    with pytest.raises(KernelUnavailable, match="impl='cuda' cannot run here"):
        workload.predict(workload.build_model(), batch)


def test_appended_padding_and_what_it_holds_change_nothing():
    model = small_model()
    tokens, lengths = ragged_batch()
    want = model(tokens, lengths)
    longer = torch.cat([tokens, torch.full((7, 40), PAD)], 1)
    torch.testing.assert_close(model(longer, lengths), want, rtol=0, atol=1e-15)
    noise = torch.where(longer == PAD, torch.randint(1, VOCABULARY, longer.shape), longer)
    torch.testing.assert_close(model(noise, lengths), want, rtol=0, atol=1e-15)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_padding_changes_nothing_in_short_floats_either(dtype):
    model = small_model(dtype)
    tokens, lengths = ragged_batch()
    longer = torch.cat([tokens, torch.full((7, 40), PAD)], 1)
    torch.testing.assert_close(model(longer, lengths), model(tokens, lengths), rtol=0, atol=torch.finfo(dtype).eps)


def test_float16_padding_changes_nothing_on_a_card(device):
    if device.type == "cpu":
        pytest.skip("float16 is for cards")
    model = small_model(torch.float16).to(device)
    tokens, lengths = (t.to(device) for t in ragged_batch())
    longer = torch.cat([tokens, torch.full((7, 40), PAD, device=device)], 1)
    torch.testing.assert_close(model(longer, lengths), model(tokens, lengths), rtol=0, atol=1e-3)


def test_compiling_leaves_the_recurrence_whole():
    """The compiler must not unroll the LSTM, one copy of its graph for every character."""
    model = small_model(torch.float32)
    tokens, lengths = ragged_batch()
    graphs = []

    def count_nodes(graph, _):
        graphs.append(len(graph.graph.nodes))
        return graph.forward

    torch._dynamo.reset()
    got = torch.compile(model, backend=count_nodes)(tokens, lengths)
    torch._dynamo.reset()
    torch.testing.assert_close(got, model(tokens, lengths))
    assert sum(graphs) < 60


def test_loss_is_a_sum_over_texts():
    logits, labels = torch.randn(5, 3, dtype=torch.float64), torch.tensor([0, 2, 1, 1, 0])
    total, count = text_cross_entropy(logits, labels)
    want = -sum(row.log_softmax(0)[label].item() for row, label in zip(logits, labels, strict=True))
    assert total.item() == pytest.approx(want) and count == 5


def test_scores_by_hand():
    scores = text_scores(torch.tensor([[8, 2, 0], [1, 4, 0], [3, 2, 0]]))
    assert scores["accuracy"] == pytest.approx(12 / 20)
    assert scores["macro_f1"] == pytest.approx((16 / 22 + 8 / 13 + 0) / 3)


def test_agreement_is_the_share_of_same_classes_among_clear_choices():
    ref = torch.eye(3).repeat(34, 1)[:100]
    out = ref.clone()
    assert same_class(out, ref)[0].passed
    out[:2] = out[:2].roll(1, 1)
    (agreement,) = same_class(out, ref)
    assert agreement.value == pytest.approx(0.98) and not agreement.passed
    ref[:2] = torch.tensor([1.0, 0.99, 0.0])
    assert same_class(out, ref)[0].value == 1.0, "a tie of the reference must not count against the output"
    assert same_class(out, torch.zeros(100, 3)) == []


def test_the_generator_alone_decides_a_batch(device):
    workload = bilstm()
    first, again, other = (workload.make_batch(8, device, torch.Generator().manual_seed(seed)) for seed in (1, 1, 2))
    assert first["tokens"].shape == (8, 128) and first["lengths"].shape == first["labels"].shape == (8,)
    assert torch.equal(first["tokens"], again["tokens"]) and not torch.equal(first["tokens"], other["tokens"])


def test_agrees_with_float64_on_the_cpu(device, plain_float32):
    """Fresh outputs within 1e-5, as short float32 sums are; the losses of six steps, fed back by Adam, within 1e-3.

    Without dropout, whose draws differ between devices.
    """
    workload = bilstm(length=48, batch=16, embedding=16, hidden=24, dropout=0.0, lr=5e-3)
    batch = workload.make_batch(16, CPU, torch.Generator().manual_seed(9))
    on_device = {name: tensor.to(device) for name, tensor in batch.items()}
    out = workload.predict(train(workload, device, 0)[1], on_device)
    ref = workload.predict(train(workload, CPU, 0, torch.float64)[1], batch)
    torch.testing.assert_close(out.cpu().double(), ref, rtol=1e-5, atol=1e-5)
    got, want = train(workload, device, 6)[0], train(workload, CPU, 6, torch.float64)[0]
    assert got == pytest.approx(want, rel=1e-3)


def test_training_learns_the_order(device):
    """Sizes of a test; the full size and its scores are in docs/bilstm.md."""
    workload = bilstm(length=32, embedding=32, hidden=32, eval_texts=200, dropout=0.1, lr=1e-2)
    losses, model = train(workload, device, 90)
    scores = workload.metrics(model, workload.eval_data(), device)
    assert losses[0] == pytest.approx(1.0986, abs=0.1)
    assert scores["accuracy"] > 0.9 and scores["macro_f1"] > 0.9


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"hidden": 0}, "hidden = 0"),
        ({"dropout": 1.0}, "dropout = 1.0"),
        ({"batch": -1}, "= -1"),
        ({"recurrence": "cudnn"}, "recurrence = 'cudnn' is not valid. Expected torch, auto, cuda, triton"),
    ],
)
def test_bad_settings_are_named(options, message):
    with pytest.raises(ConfigError, match=message):
        bilstm(**options)


def test_own_files_decide_the_classes(tmp_path):
    (tmp_path / "train.txt").write_text("good nice film\nbad dull film\nmixed so so\nnone -\n")
    (tmp_path / "dev.txt").write_text("bad awful\n")
    workload = load_target("bilstm", {"data": str(tmp_path), "length": 12, "hidden": 4})
    assert workload.label_names == ["bad", "good", "mixed", "none"]
    batch = workload.make_batch(5, CPU, torch.Generator().manual_seed(0))
    assert workload.predict(workload.build_model(), batch).shape == (5, 4)
    with pytest.raises(DataError, match="does not exist"):
        load_target("bilstm", {"data": str(tmp_path / "gone")})


def test_real_texts():
    if not REAL_DATA.is_dir():
        pytest.skip(f"no real data at {REAL_DATA}")
    workload = bilstm(data=str(REAL_DATA), hidden=8, embedding=8)
    assert (len(workload.train_data()), len(workload.eval_data())) == (6920, 872)
    assert workload.label_names == ["0", "1"]
    scores = workload.metrics(workload.build_model(), workload.eval_data(), CPU)
    assert 0.3 < scores["accuracy"] < 0.7


def test_its_dropout_can_be_keyed_by_sample_so_that_a_split_step_is_exact():
    model = small_model(layers=3, dropout=0.5).train()
    names = list(model.state_dict())
    key = key_dropout(model, torch.device("cpu"))
    assert key is not None and find_inexact(model, loss_is_separable=True) == []
    assert list(model.state_dict()) == names
    tokens, lengths = ragged_batch()
    key.set_step(3)
    whole = split(model, key, tokens, lengths, [(0, len(tokens))])
    assert torch.allclose(split(model, key, tokens, lengths, [(0, 3), (3, len(tokens))]), whole)
    key.set_step(4)
    assert not torch.allclose(split(model, key, tokens, lengths, [(0, len(tokens))]), whole)


def split(model, key, tokens, lengths, ranges):
    """Class scores with the batch in parts, as a training step runs them."""
    found = []
    for begin, end in ranges:
        key.set_part(begin, end - begin)
        found.append(model(tokens[begin:end], lengths[begin:end]))
    return torch.cat(found)
