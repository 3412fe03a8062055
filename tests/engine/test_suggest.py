"""Settings to begin with: as large as the estimate allows, never called tested, each with its reason."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import nn

import hotlap
from hotlap.base.errors import DeviceUnavailable, OutOfMemory, TargetError, UnknownName, UsageError
from hotlap.device.host import read_host
from hotlap.engine import suggest as suggest_module
from hotlap.engine.estimate import estimate_memory
from hotlap.engine.suggest import SHARE, rounded_batch, suggest_for
from hotlap.targets import as_workload
from hotlap.workload import Workload

MIB = 2**20


class Small(Workload):
    """A convolution, so that a sample takes a known and notable amount."""

    name = "small"

    def build_model(self):
        return nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 16 * 16, 4))

    def make_batch(self, n, device, generator):
        return torch.randn(n, 3, 16, 16, generator=generator).to(device)

    def loss(self, model, batch):
        return model(batch).square().sum(), len(batch)


def test_the_batch_is_the_largest_whose_estimate_fits():
    said = suggest_for(Small(), vram_bytes=8 * MIB)
    assert said.tested is False
    assert said.budget_bytes == int(SHARE * 8 * MIB)
    assert said.memory == estimate_memory(Small(), batch=said.estimated_batch, precision="bf16-mixed", device="cuda")
    assert said.memory.total_bytes <= said.budget_bytes
    more = estimate_memory(Small(), batch=said.estimated_batch + 8, precision="bf16-mixed", device="cuda")
    assert more.total_bytes > said.budget_bytes
    assert said.estimated_batch % 8 == 0


def test_no_more_is_suggested_than_is_wanted():
    said = suggest_for(Small(), vram_bytes=2**34, batch=100)
    assert said.estimated_batch == 96 and "no more was wanted" in said.reasons["estimated_batch"]


def test_a_model_that_barely_grows_has_an_end_too():
    said = hotlap.suggest(nn.Linear(1, 1), input="1", vram_bytes=2**40)
    assert said.estimated_batch == 65536


@pytest.mark.parametrize(("size", "want"), [(-3, 0), (0, 0), (1, 1), (3, 2), (7, 4), (8, 8), (15, 8), (1001, 1000)])
def test_batches_are_multiples_of_eight_or_powers_of_two(size, want):
    assert rounded_batch(size) == want


def test_a_card_that_is_not_here_can_be_planned_for():
    said = suggest_for(Small(), device="cuda", vram_bytes=8 * MIB)
    assert said.device == "a card with 8.00 MiB free"
    assert said.precision == "bf16-mixed" and "assumed" in said.reasons["precision"]
    asked = suggest_for(Small(), vram_bytes=8 * MIB, precision="32-true")
    assert asked.precision == "32-true" and asked.reasons["precision"] == "as asked"
    assert asked.estimated_batch < said.estimated_batch


def test_this_device_is_described_with_reasons(device):
    said = suggest_for(Small(), device=device.type, batch=16)
    assert said.estimated_batch == 16
    assert said.memory.device == device.type
    assert said.channels_last and "convolutions" in said.reasons["channels_last"]
    assert "usable cores" in said.reasons["workers"]
    assert 0 < said.budget_bytes < said.free_bytes
    told = str(said)
    assert "an estimate, not tested; 'hotlap tune' measures" in told
    assert all(f"  {name} " in told for name in ("estimated_batch", "precision", "channels_last", "workers"))


@pytest.mark.parametrize(("flag", "want"), [("amx_bf16", "bf16-mixed"), ("avx2", "32-true")])
def test_the_processor_decides_the_precision_on_a_cpu(monkeypatch, flag, want):
    host = dataclasses.replace(read_host(), flags=frozenset({flag}))
    monkeypatch.setattr(suggest_module, "read_host", lambda: host)
    assert suggest_for(Small(), device="cpu", batch=8).precision == want


@pytest.mark.parametrize(("capability", "want"), [((9, 0), "bf16-mixed"), ((7, 5), "16-mixed")])
def test_the_card_decides_the_precision_on_a_card(monkeypatch, capability, want):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda place: capability)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda place: "Fake H1")
    monkeypatch.setattr(suggest_module, "get_device", lambda prefer: torch.device("cuda"))
    monkeypatch.setattr(suggest_module, "free_bytes", lambda place: 2**30)
    said = suggest_for(Small(), batch=8)
    assert (said.device, said.precision) == ("Fake H1", want)
    assert f"compute capability {capability[0]}.{capability[1]}" in said.reasons["precision"]


@pytest.mark.parametrize(
    ("cores", "quota", "device", "want"), [(64, None, "cuda", 8), (64, 3.5, "cuda", 2), (2, None, "cpu", 0)]
)
def test_workers_follow_the_cores_this_process_may_use(monkeypatch, cores, quota, device, want):
    host = dataclasses.replace(read_host(), physical_cores=cores, logical_cpus=cores, quota_cpus=quota)
    monkeypatch.setattr(suggest_module, "read_host", lambda: host)
    said = suggest_for(Small(), device=device, batch=8, vram_bytes=2**30 if device == "cuda" else None)
    assert said.workers == want
    assert f"{host.usable_cores} usable cores" in said.reasons["workers"]
    assert ("3.5 CPUs of quota" in said.reasons["workers"]) == (quota == 3.5)


def test_names_factories_modules_and_workloads_are_all_targets():
    options = {"hidden": 8, "length": 32, "embedding": 8}
    assert hotlap.suggest("bilstm", workload=options, vram_bytes=2**30, batch=8).channels_last is False
    assert hotlap.suggest(Small, vram_bytes=2**30, batch=8).target == "small"
    assert hotlap.suggest(Small(), vram_bytes=2**30, batch=8).estimated_batch == 8
    assert as_workload(nn.Linear(4, 2), inputs=["4"]).name == "Linear"


def test_what_does_not_fit_at_all_is_an_error_with_the_numbers():
    with pytest.raises(
        OutOfMemory, match=r"batch = 1 of 'small' is estimated at .* KiB, and 85\.0 KiB \(85% of 100 KiB"
    ):
        suggest_for(Small(), vram_bytes=100 * 1024)


@pytest.mark.parametrize(
    ("settings", "error", "words"),
    [
        ({"batch": 0}, UsageError, r"batch = 0 is not valid\. Expected a whole number from 1"),
        ({"vram_bytes": -1}, UsageError, r"vram_bytes = -1 is not valid"),
        ({"vram_bytes": 9, "device": "cpu"}, UsageError, r"vram_bytes = 9 with device = 'cpu'"),
        ({"device": "abacus"}, UsageError, r"device = 'abacus' is not a device"),
        ({"precision": "8-bit", "device": "cpu"}, UsageError, r"precision = '8-bit' is not known"),
    ],
)
def test_wrong_settings_are_named(settings, error, words):
    with pytest.raises(error, match=words):
        suggest_for(Small(), **settings)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a card")
def test_a_card_that_is_asked_for_and_not_there_is_an_error():
    with pytest.raises(DeviceUnavailable, match="a CUDA device was asked for"):
        suggest_for(Small(), device="cuda")


def test_wrong_targets_are_named():
    with pytest.raises(UnknownName, match=r"unknown target 'unett'.*Did you mean 'unet'"):
        hotlap.suggest("unett")
    with pytest.raises(TargetError, match=r"'Linear' gives a plain Linear, whose input is not known\. .*--input"):
        hotlap.suggest(nn.Linear(4, 2))
    with pytest.raises(TargetError, match="'int' gave an object of type int"):
        hotlap.suggest(int)
