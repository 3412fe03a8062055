"""The Hugging Face bridge against the real package, offline: same bits unsplit, same training when memory runs out."""

from __future__ import annotations

import pytest
import torch
from injected import RunsOut
from torch import nn

from hotlap.base.errors import OutOfMemory, UsageError
from hotlap.records.run import load_record

transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")
from hotlap.bridges.huggingface import protect  # noqa: E402

SMALL = {"vocab_size": 50, "bos_token_id": 0, "eos_token_id": 0}


@pytest.fixture(autouse=True)
def _offline_and_quiet(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    yield
    torch.set_num_threads(before)


def gpt2(dropout=0.0, attention_dropout=0.0):
    """Divides its loss by ``num_items_in_batch``."""
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        **SMALL, n_positions=16, n_embd=16, n_layer=2, n_head=2, resid_pdrop=dropout, embd_pdrop=dropout,
        attn_pdrop=attention_dropout, loss_type="ForCausalLM",
    )  # fmt: skip
    return transformers.GPT2LMHeadModel(config)


def bert(kind):
    """Takes ``num_items_in_batch`` and ignores it."""
    torch.manual_seed(0)
    config = transformers.BertConfig(
        **SMALL, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32, num_labels=3,
        max_position_embeddings=16, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    return kind(config)


def classifier():
    return bert(transformers.BertForSequenceClassification)


def tagger():
    return bert(transformers.BertForTokenClassification)


class Plain(nn.Module):
    """A model of the user's own: a mean loss, no num_items_in_batch, labels under another name."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.head = nn.Embedding(50, 8), nn.Linear(8, 3)

    def forward(self, input_ids, goals):
        scores = self.head(self.embed(input_ids).mean(1))
        return {"loss": nn.functional.cross_entropy(scores, goals)}


def samples(make):
    """Sequences with different numbers of labels; some taggers' sequences have none at all."""
    generator = torch.Generator().manual_seed(1)
    found = []
    for index in range(20):
        ids = torch.randint(0, 50, (12,), generator=generator)
        labels = ids.clone() if make is gpt2 else torch.randint(0, 3, (12,), generator=generator)
        labels[int(torch.randint(2, 12, (), generator=generator)) :] = -100
        if make is tagger and index % 3 == 0:
            labels[:] = -100
        whole = torch.randint(0, 3, (), generator=generator)
        name = "goals" if make is Plain else "labels"
        found.append({"input_ids": ids, name: whole if make in (classifier, Plain) else labels})
    return found


def train(make, device, tmp_path, *, model=None, prepare=lambda model: None, bridge=None, kind=None, **settings):
    model = make() if model is None else model
    arguments = transformers.TrainingArguments(
        output_dir=str(tmp_path / "out"), per_device_train_batch_size=7, num_train_epochs=2, logging_steps=1,
        save_strategy="no", report_to=[], disable_tqdm=True, use_cpu=device.type == "cpu", optim="sgd",
        learning_rate=0.5, max_grad_norm=settings.pop("max_grad_norm", 0.0), **settings,
    )  # fmt: skip
    kind = kind or transformers.Trainer
    trainer = kind(model, arguments, train_dataset=samples(make), callbacks=[])
    trainer.remove_callback(transformers.PrinterCallback)
    trainer.bridge = None if bridge is None else protect(trainer, runs=tmp_path / "runs", **bridge)
    prepare(model)
    trainer.train()
    return trainer


def weights(trainer):
    return nn.utils.parameters_to_vector(trainer.model.parameters()).detach().cpu()


def losses(trainer):
    return [row["loss"] for row in trainer.state.log_history if "loss" in row]


def assert_same_training(got, want):
    """The losses of these models are float32 inside; 1e-5 is some roundings over six steps of a rate of 0.5."""
    torch.testing.assert_close(weights(got), weights(want), rtol=1e-5, atol=1e-5)
    assert losses(got) == pytest.approx(losses(want), rel=1e-5)


@pytest.mark.parametrize(
    ("make", "settings"),
    [
        (gpt2, {"gradient_accumulation_steps": 3, "max_grad_norm": 0.5}),
        (gpt2, {"bf16": True}),
        (classifier, {"gradient_accumulation_steps": 3}),
        (Plain, {}),
    ],
)
def test_unsplit_it_gives_the_bits_of_a_bare_trainer(device, tmp_path, make, settings):
    bare = train(make, device, tmp_path, **settings)
    ours = train(make, device, tmp_path, bridge={}, **settings)
    assert torch.equal(weights(ours), weights(bare))
    assert losses(ours) == losses(bare)
    start = nn.utils.parameters_to_vector(make().parameters())
    assert (weights(bare) - start).abs().max() > 1e-2  # so that the tolerances of the other tests mean something


@pytest.mark.parametrize(("make", "accumulate"), [(gpt2, 1), (gpt2, 3), (classifier, 3), (tagger, 1), (Plain, 3)])
def test_in_parts_it_is_the_same_training(device, tmp_path, make, accumulate):
    want = train(make, device, tmp_path, gradient_accumulation_steps=accumulate)
    bridge = {"micro": 1 if make is tagger else 3}
    got = train(make, device, tmp_path, bridge=bridge, gradient_accumulation_steps=accumulate)
    assert_same_training(got, want)


@pytest.mark.parametrize(("make", "accumulate"), [(gpt2, 3), (classifier, 1)])
def test_a_training_that_runs_out_of_memory_is_the_undisturbed_one(device, tmp_path, make, accumulate):
    want = train(make, device, tmp_path, gradient_accumulation_steps=accumulate)
    struck = []
    got = train(
        make, device, tmp_path, bridge={"regrow_after": 1}, gradient_accumulation_steps=accumulate,
        prepare=lambda model: struck.append(RunsOut(model.get_input_embeddings(), 4, share=0.3)),
    )  # fmt: skip
    assert got.bridge.record.extra["outcome"]["num_splits"] == struck[0].num_failed > 0
    assert_same_training(got, want)


def test_dropout_is_the_same_in_parts_and_under_checkpointing_and_is_put_back(device, tmp_path):
    model = gpt2(dropout=0.3)
    want = train(gpt2, device, tmp_path, model=gpt2(dropout=0.3), bridge={})
    got = train(gpt2, device, tmp_path, model=model, bridge={"micro": 3}, gradient_checkpointing=True)
    assert_same_training(got, want)
    assert type(model.transformer.drop) is nn.Dropout


def test_dropout_that_no_layer_holds_is_named(tmp_path):
    got = train(gpt2, torch.device("cpu"), tmp_path, model=gpt2(attention_dropout=0.2), bridge={}, max_steps=1)
    assert any("attn_pdrop = 0.2" in note and "not be exact" in note for note in got.bridge.record.notes)


def test_a_count_of_the_users_own_is_used(device, tmp_path):
    want = train(tagger, device, tmp_path, max_steps=2)
    right = {"micro": 2, "count": lambda batch: (batch["labels"] != -100).sum()}
    assert_same_training(train(tagger, device, tmp_path, bridge=right, max_steps=2), want)
    wrong = {"micro": 2, "count": lambda batch: (batch["labels"] != -100).sum() ** 2}
    with pytest.raises(AssertionError):
        assert_same_training(train(tagger, device, tmp_path, bridge=wrong, max_steps=2), want)


class Penalised(transformers.Trainer):
    """A loss that is partly divided by num_items_in_batch, partly not."""

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        loss = super().compute_loss(model, inputs, num_items_in_batch=num_items_in_batch)
        return loss + model.transformer.wte.weight.abs().mean() * 100


def test_a_loss_that_is_neither_sum_nor_mean_is_refused(tmp_path):
    words = r"the loss of GPT2LMHeadModel is \S+ with num_items_in_batch = \d+ and \S+ with twice that"
    with pytest.raises(UsageError, match=words):
        train(gpt2, torch.device("cpu"), tmp_path, bridge={"micro": 3}, kind=Penalised)
    train(gpt2, torch.device("cpu"), tmp_path, bridge={}, kind=Penalised, max_steps=1)  # unsplit it does not matter


class Twice(transformers.Trainer):
    def training_step(self, model, inputs, num_items_in_batch=None):
        super().training_step(model, dict(inputs), num_items_in_batch)
        return super().training_step(model, inputs, num_items_in_batch)


def test_a_training_step_with_two_backward_passes_is_refused(tmp_path):
    with pytest.raises(UsageError, match=r"Twice\.training_step called accelerator\.backward 2 times"):
        train(gpt2, torch.device("cpu"), tmp_path, bridge={}, kind=Twice)


def test_when_not_even_one_sample_fits_it_says_so_and_the_record_too(tmp_path):
    model = gpt2()
    RunsOut(model.get_input_embeddings(), 0, share=1.1, fits=0)
    trainer = []

    class Kept(transformers.Trainer):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            trainer.append(self)

    with pytest.raises(OutOfMemory, match=r"layer 'transformer\.wte'.*with 1 sample at a time.*What would help"):
        train(gpt2, torch.device("cpu"), tmp_path, model=model, bridge={}, kind=Kept)
    record = load_record(trainer[0].bridge.record.path)
    assert record.status == "failed" and "OutOfMemory" in record.notes[-1]


def test_the_record_tells_how_it_went(tmp_path):
    got = train(gpt2, torch.device("cpu"), tmp_path, bridge={"micro": 3, "name": "mine"})
    record = load_record(got.bridge.record.path)
    outcome = record.extra["outcome"]
    assert (record.kind, record.name, record.status) == ("train", "mine", "complete")
    assert (outcome["step"], outcome["epoch"], outcome["num_samples"], outcome["micro"]) == (6, 2, 40, 3)
    assert outcome["samples_per_s"] > 0
    assert outcome["metrics"]["loss"] == losses(got)[-1]
    assert record.extra["trainer"] == f"transformers {transformers.__version__}"


def test_several_devices_a_second_call_and_a_wrong_number_are_refused(tmp_path):
    arguments = transformers.TrainingArguments(output_dir=str(tmp_path), use_cpu=True, report_to=[])
    trainer = transformers.Trainer(gpt2(), arguments)
    with pytest.raises(UsageError, match="micro = 0"):
        protect(trainer, micro=0)
    arguments._n_gpu = 2
    with pytest.raises(UsageError, match=r"n_gpu = 2\. Expected one process on one device"):
        protect(trainer)
    arguments._n_gpu = 0
    protect(trainer, runs=tmp_path)
    with pytest.raises(UsageError, match="this Trainer is already protected"):
        protect(trainer)
