"""The Lightning bridge against the real package: same bits unsplit, same training when memory runs out."""

from __future__ import annotations

import logging

import pytest
import torch
from injected import RunsOut
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

from hotlap.base.errors import OutOfMemory, UsageError
from hotlap.cli.main import run as run_cli
from hotlap.records.run import load_record

L = pytest.importorskip("lightning")
torchmetrics = pytest.importorskip("torchmetrics")
from hotlap.bridges.lightning import HotlapCallback  # noqa: E402


@pytest.fixture(autouse=True)
def _quiet():
    """One thread is the fastest for such sizes, and Lightning's greetings are long."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    yield
    torch.set_num_threads(before)


class Module(L.LightningModule):
    """Logs its loss in several ways, keeps a metric, returns more than a loss, remembers what callbacks would see."""

    def __init__(self, dropout=0.0, again=False):
        super().__init__()
        torch.manual_seed(3)
        self.net = nn.Sequential(
            nn.Sequential(nn.Linear(6, 16), nn.GELU()), nn.Dropout(dropout), nn.LayerNorm(16), nn.Linear(16, 3)
        )
        self.accuracy = torchmetrics.MeanMetric()
        self.again = again
        self.seen = []

    def forward(self, x):
        return checkpoint(self.net, x, use_reentrant=False) if self.again else self.net(x)

    def training_step(self, batch, batch_idx):
        x, y = batch
        scores = self(x)
        loss = nn.functional.cross_entropy(scores, y)
        self.accuracy.update((scores.argmax(1) == y).double())
        self.log("loss", loss, on_step=True, on_epoch=True)
        self.log_dict({"size": float(len(x))}, on_step=True, reduce_fx="sum")
        self.log("accuracy", self.accuracy, on_step=False, on_epoch=True)
        return {"loss": loss, "scores": scores}

    def on_train_batch_end(self, outputs, batch, batch_idx):
        logged = {name: float(value) for name, value in self.trainer.logged_metrics.items()}
        self.seen.append((outputs["loss"].clone(), outputs["scores"].detach(), logged))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.3, momentum=0.9)


def data(device):
    generator = torch.Generator().manual_seed(5)
    x, y = torch.randn(60, 6, generator=generator), torch.randint(0, 3, (60,), generator=generator)
    return DataLoader(TensorDataset(x, y), batch_size=13)


def fit(module, device, callback=None, **settings):
    trainer = L.Trainer(
        max_epochs=2, accelerator="gpu" if device.type == "cuda" else "cpu", devices=1, logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False, log_every_n_steps=1,
        callbacks=[callback] if callback else [], **settings,
    )  # fmt: skip
    torch.manual_seed(11)
    trainer.fit(module, data(device))
    return trainer


def weights(module):
    return nn.utils.parameters_to_vector(module.parameters()).detach().cpu()


def half(device):
    """Float16 with a loss scale, which Lightning itself refuses to choose on a CPU."""
    from lightning.pytorch.plugins.precision import MixedPrecision

    return {"plugins": [MixedPrecision("16-mixed", device.type, torch.amp.GradScaler(device.type, growth_interval=3))]}


SETTINGS = {
    "plain": lambda device: {},
    "accumulated and clipped": lambda device: {"accumulate_grad_batches": 3, "gradient_clip_val": 0.1},
    "bf16": lambda device: {"precision": "bf16-mixed"},
    "fp16": half,
}


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_unsplit_it_gives_the_bits_of_a_bare_trainer(device, tmp_path, settings):
    bare, ours = Module(), Module()
    fit(bare, device, **settings(device))
    fit(ours, device, HotlapCallback(runs=tmp_path), **settings(device))
    assert torch.equal(weights(ours), weights(bare))
    assert not torch.equal(weights(bare), weights(Module()))
    for (loss, scores, logged), (want_loss, want_scores, want_logged) in zip(ours.seen, bare.seen, strict=True):
        assert torch.equal(loss, want_loss) and torch.equal(scores, want_scores)
        assert logged == want_logged


def assert_same_training(got, want, got_trainer, want_trainer):
    """Only the order of additions may differ, in float64; logged values pass through float32."""
    torch.testing.assert_close(weights(got), weights(want), rtol=1e-9, atol=1e-12)
    for (loss, scores, logged), (want_loss, want_scores, want_logged) in zip(got.seen, want.seen, strict=True):
        torch.testing.assert_close(loss, want_loss, rtol=1e-9, atol=0)
        torch.testing.assert_close(scores, want_scores, rtol=1e-9, atol=1e-12)
        assert logged == pytest.approx(want_logged, rel=1e-6)
    final = {name: float(value) for name, value in got_trainer.callback_metrics.items()}
    assert final == pytest.approx({name: float(v) for name, v in want_trainer.callback_metrics.items()}, rel=1e-6)


@pytest.mark.parametrize("accumulate", [1, 3])
def test_in_parts_everything_a_trainer_sees_is_the_same(device, tmp_path, accumulate):
    want, got = Module(), Module()
    settings = {"precision": "64-true", "accumulate_grad_batches": accumulate}
    want_trainer = fit(want, device, **settings)
    callback = HotlapCallback(micro=3, runs=tmp_path)
    got_trainer = fit(got, device, callback, **settings)
    assert callback.record.extra["outcome"]["micro"] == 3
    assert_same_training(got, want, got_trainer, want_trainer)


@pytest.mark.parametrize(("seed", "accumulate"), [(1, 1), (2, 3)])
def test_a_training_that_runs_out_of_memory_is_the_undisturbed_one(device, tmp_path, seed, accumulate):
    want, got = Module(dropout=0.3), Module(dropout=0.3)
    settings = {"precision": "64-true", "accumulate_grad_batches": accumulate}
    want_trainer = fit(want, device, HotlapCallback(runs=tmp_path), **settings)
    runs_out = RunsOut(got.net[0], seed)
    callback = HotlapCallback(regrow_after=1, runs=tmp_path)
    got_trainer = fit(got, device, callback, **settings)
    assert callback.record.extra["outcome"]["num_splits"] == runs_out.num_failed > 0
    assert_same_training(got, want, got_trainer, want_trainer)


def test_a_models_own_checkpointing_keeps_its_masks(device, tmp_path):
    want, got = Module(dropout=0.3), Module(dropout=0.3, again=True)
    for module in (want, got):
        fit(module, device, HotlapCallback(runs=tmp_path), precision="64-true")
    torch.testing.assert_close(weights(got), weights(want), rtol=1e-9, atol=1e-12)


def test_a_dropout_layer_called_twice_under_checkpointing_is_refused(tmp_path):
    module = Module(dropout=0.3, again=True)
    module.net.insert(3, module.net[1])
    with pytest.raises(UsageError, match=r"dropout layer \(p = 0.3\) is called 2 times"):
        fit(module, torch.device("cpu"), HotlapCallback(runs=tmp_path))


def test_the_model_gets_its_own_dropout_back(tmp_path):
    module = Module(dropout=0.3)
    layer = module.net[1]
    fit(module, torch.device("cpu"), HotlapCallback(runs=tmp_path))
    assert module.net[1] is layer and type(layer) is nn.Dropout


class Tokens(Module):
    """A mean over unmasked targets, of which samples have different numbers, or none."""

    def training_step(self, batch, batch_idx):
        x, y = batch
        y = torch.where(x[:, 0] > 0.5, y, -100)
        return {"loss": nn.functional.cross_entropy(self(x), y), "scores": x}


def test_a_mean_over_something_else_is_weighed_by_its_count(device, tmp_path):
    want, got = Tokens(), Tokens()
    fit(want, device, precision="64-true")
    callback = HotlapCallback(1, count=lambda batch: (batch[0][:, 0] > 0.5).sum(), runs=tmp_path)
    fit(got, device, callback, precision="64-true")
    torch.testing.assert_close(weights(got), weights(want), rtol=1e-9, atol=1e-12)


class Skips(Module):
    def training_step(self, batch, batch_idx):
        return None if batch_idx == 1 else super().training_step(batch, batch_idx)

    def on_train_batch_end(self, outputs, batch, batch_idx):
        self.seen.append(outputs)


@pytest.mark.parametrize("micro", [None, 4])
def test_a_step_that_returns_nothing_is_skipped_as_before(device, tmp_path, micro):
    want, got = Skips(), Skips()
    fit(want, device, precision="64-true")
    fit(got, device, HotlapCallback(micro, runs=tmp_path), precision="64-true")
    assert not got.seen[1]
    torch.testing.assert_close(weights(got), weights(want), rtol=1e-9, atol=1e-12)


def test_when_not_even_one_sample_fits_it_says_where_and_leaves_all_as_it_was(device, tmp_path):
    module = Module()
    RunsOut(module.net[0], 0, share=1.1, fits=0)
    callback = HotlapCallback(runs=tmp_path)
    with pytest.raises(OutOfMemory, match=r"layer 'net\.0.*with 1 sample at a time.*What would help: half precision"):
        fit(module, device, callback)
    assert torch.equal(weights(module), weights(Module()))
    record = load_record(callback.record.path)
    assert record.status == "failed" and "OutOfMemory" in record.notes[-1]


def test_the_trainer_is_itself_again_afterwards(tmp_path):
    trainer = fit(Module(), torch.device("cpu"), HotlapCallback(runs=tmp_path))
    assert {"training_step", "backward"}.isdisjoint(vars(trainer.strategy))


def test_the_record_tells_how_it_went(tmp_path, capsys):
    module, callback = Module(), HotlapCallback(runs=tmp_path, name="mine")
    RunsOut(module.net[0], 0)
    fit(module, torch.device("cpu"), callback)
    record = load_record(callback.record.path)
    outcome = record.extra["outcome"]
    assert (record.kind, record.name, record.status) == ("train", "mine", "complete")
    assert (outcome["step"], outcome["epoch"], outcome["num_samples"]) == (10, 2, 120)
    assert outcome["samples_per_s"] > 0 and len(record.measurements[0].values) == 9
    assert outcome["metrics"]["loss_epoch"] == pytest.approx(float(module.trainer.callback_metrics["loss_epoch"]))
    assert record.environment.packages["torch"] and record.extra["trainer"] == f"lightning {L.__version__}"
    assert any("replayed in micro-batches of" in note for note in record.notes)
    assert run_cli(["show", record.path]) == 0
    assert "trained 10 steps" in capsys.readouterr().out


def test_what_makes_a_split_inexact_is_said(tmp_path):
    module, callback = Module(), HotlapCallback(runs=tmp_path)
    module.net[2] = nn.BatchNorm1d(16)
    fit(module, torch.device("cpu"), callback)
    assert any("BatchNorm" in note and "net.2" in note for note in callback.record.notes)


def test_manual_optimization_is_refused(tmp_path):
    module = Module()
    module.automatic_optimization = False
    with pytest.raises(UsageError, match=r"automatic_optimization = False in Module.*hotlap.ExactStep"):
        fit(module, torch.device("cpu"), HotlapCallback(runs=tmp_path))


def test_several_processes_are_refused(tmp_path):
    trainer = L.Trainer(strategy="ddp", accelerator="cpu", devices=1, logger=False, enable_checkpointing=False)
    with pytest.raises(UsageError, match=r"strategy = DDPStrategy. Expected SingleDeviceStrategy"):
        HotlapCallback(runs=tmp_path).setup(trainer, Module(), "fit")


def test_a_micro_batch_of_nothing_is_refused():
    with pytest.raises(UsageError, match="micro = 0"):
        HotlapCallback(0)
