"""Trained weights in a workload's models: from each kind of file, or refused by name."""

from __future__ import annotations

import os
import pickle
import sys

import pytest
import torch
from torch import nn

from hotlap.base.errors import EnvironmentUnusable, RecordError, UsageError
from hotlap.engine.checkpoint import CheckpointStore
from hotlap.measure.weights import read_weights, with_weights
from hotlap.targets import InputSpec, ModuleWorkload


def workload():
    return ModuleWorkload("line", lambda: nn.Linear(3, 2), [InputSpec((3,))])


TRAINED = {"weight": torch.arange(6.0).reshape(2, 3), "bias": torch.ones(2)}


def built(file):
    return with_weights(workload(), file).build_model().state_dict()


def same(one, two):
    return one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)


def test_a_state_dict_takes_the_place_of_fresh_weights(tmp_path):
    torch.save(TRAINED, tmp_path / "w.pt")
    made = with_weights(workload(), tmp_path / "w.pt")
    assert same(built(tmp_path / "w.pt"), TRAINED)
    assert made.name == "line" and made.make_batch(2, torch.device("cpu"), torch.Generator())[0].shape == (2, 3)


def test_safetensors_are_read(tmp_path):
    safetensors = pytest.importorskip("safetensors.torch")
    safetensors.save_file(TRAINED, tmp_path / "w.safetensors")
    assert same(built(tmp_path / "w.safetensors"), TRAINED)


def test_safetensors_without_their_package_are_refused_with_the_command(tmp_path, monkeypatch):
    (tmp_path / "w.safetensors").touch()
    monkeypatch.setitem(sys.modules, "safetensors.torch", None)
    with pytest.raises(EnvironmentUnusable, match=r"w\.safetensors' needs safetensors.* pip install safetensors"):
        read_weights(tmp_path / "w.safetensors")


def test_a_checkpoint_of_a_training_gives_its_model(tmp_path):
    file = CheckpointStore(tmp_path).save({"model": TRAINED, "ema": {}, "optimizer": {}}, step=3)
    assert same(built(file), TRAINED)


def test_averaged_weights_come_before_the_last_ones(tmp_path):
    averaged = {f"module.{name}": value + 1 for name, value in TRAINED.items()}
    state = {"model": TRAINED, "ema": {"n_averaged": torch.tensor(4), **averaged}}
    file = CheckpointStore(tmp_path).save(state, step=3)
    assert same(built(file), {name: value + 1 for name, value in TRAINED.items()})


def test_a_checkpoint_whose_bytes_changed_is_refused(tmp_path):
    file = CheckpointStore(tmp_path).save({"model": TRAINED}, step=3)
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    with pytest.raises(RecordError, match=r"step-00000003-.* has the digest [0-9a-f]{16}, not that of its name"):
        read_weights(file)


def test_weights_of_another_model_are_refused_not_left_out(tmp_path):
    torch.save({**TRAINED, "more": torch.ones(1)}, tmp_path / "w.pt")
    with pytest.raises(UsageError, match=r"w\.pt' do not fit the model: .*more"):
        built(tmp_path / "w.pt")


@pytest.mark.parametrize("what", [{"step": 3}, [1, 2], {}])
def test_a_file_without_weights_is_refused(tmp_path, what):
    torch.save(what, tmp_path / "w.pt")
    with pytest.raises(RecordError, match=r"w\.pt' holds no state dict"):
        read_weights(tmp_path / "w.pt")


def test_a_file_that_is_no_archive_is_refused(tmp_path):
    (tmp_path / "w.pt").write_bytes(b"not a checkpoint")
    with pytest.raises(RecordError, match=r"w\.pt' cannot be read"):
        read_weights(tmp_path / "w.pt")


@pytest.mark.parametrize("content", [b"", b"hello\n", b"\x80\x02", b"PK\x03\x04 cut short"])
@pytest.mark.parametrize("name", ["w.pt", "w.safetensors"])
def test_damaged_files_are_refused_by_name(tmp_path, name, content):
    if name.endswith("safetensors"):
        pytest.importorskip("safetensors.torch")
    (tmp_path / name).write_bytes(content)
    with pytest.raises(RecordError, match=rf"weights = '.*{name}' cannot be read: .* Copy or save it again"):
        read_weights(tmp_path / name)


@pytest.mark.parametrize("size", [3000, 9000, 100_000])
def test_an_archive_without_its_end_is_said_to_be_cut_short(tmp_path, size):
    """Of torch's search for it, "Invalid argument" was all that was said, or words on an internal error."""
    torch.save({"weight": torch.ones(30_000)}, tmp_path / "w.pt")
    (tmp_path / "w.pt").write_bytes((tmp_path / "w.pt").read_bytes()[:size])
    with pytest.raises(RecordError, match=r"w\.pt' cannot be read: it is damaged or cut short\. "):
        read_weights(tmp_path / "w.pt")


class Hostile:
    def __init__(self, command):
        self.command = command

    def __reduce__(self):
        return os.system, (self.command,)


@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_a_hostile_pickle_is_not_executed_and_no_word_advises_to(tmp_path, protocol):
    (tmp_path / "w.pt").write_bytes(pickle.dumps({"weight": Hostile(f"touch {tmp_path / 'trace'}")}, protocol))
    with pytest.raises(
        RecordError, match=r"w\.pt' cannot be read: it (asks for (posix|nt)\.system|is damaged)"
    ) as caught:
        read_weights(tmp_path / "w.pt")
    assert not (tmp_path / "trace").exists() and "weights_only" not in str(caught.value)


def test_what_does_not_fit_is_said_in_a_few_words(tmp_path):
    torch.save({f"other.{number}": torch.ones(1) for number in range(999)}, tmp_path / "w.pt")
    with pytest.raises(UsageError, match=r"w\.pt' do not fit the model: .*--set workload\.NAME=VALUE") as caught:
        built(tmp_path / "w.pt")
    assert len(str(caught.value)) < 700


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(UsageError, match=r"weights = '.*gone\.pt' does not exist"):
        read_weights(tmp_path / "gone.pt")
    with pytest.raises(UsageError, match=r"weights = '.*' is no file\. Expected a \.safetensors file or a checkpoint"):
        read_weights(tmp_path)
    (tmp_path / "weights.pt").write_bytes(b"")
    with pytest.raises(UsageError, match=r"is no file.*Give a file of the folder, such as '.*weights\.pt'"):
        read_weights(tmp_path)
