"""Which device is used, and why one is not."""

from __future__ import annotations

import pytest
import torch

from hotlap.base.errors import DeviceUnavailable, UsageError
from hotlap.device.probe import device_summary, get_device, require_cuda, why_no_cuda


@pytest.fixture
def blind(monkeypatch):
    """A torch built with CUDA that sees no card."""
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


def test_auto_takes_what_is_there():
    assert get_device().type == ("cuda" if torch.cuda.is_available() else "cpu")
    assert get_device("cpu") == torch.device("cpu")


@pytest.mark.parametrize(("name", "words"), [("gpu", "device = 'gpu' is not a device"),
                                             ("mps", "device = 'mps' is not supported")])  # fmt: skip
def test_a_device_that_is_none_is_named(name, words):
    with pytest.raises(UsageError, match=words + r"\. Expected auto, cpu, cuda or cuda:1"):
        get_device(name)


def test_no_card_is_told_with_reason_and_remedy(blind, fake_nvml, monkeypatch):
    fake_nvml(0)
    with pytest.raises(DeviceUnavailable, match=r"lists no card.*'hotlap doctor'.*--arms cpu, --device cpu") as caught:
        get_device("cuda")
    assert caught.value.exit_code == 4


@pytest.mark.parametrize("value", ["", " ", "-1", "-1,0"])
def test_a_variable_that_hides_the_cards_is_named(blind, fake_nvml, monkeypatch, value):
    fake_nvml(2)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", value)
    assert why_no_cuda() == f"CUDA_VISIBLE_DEVICES={value!r} hides all 2 card(s)"


def test_cards_that_torch_cannot_use_are_counted(blind, fake_nvml, monkeypatch):
    fake_nvml(2)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
    assert why_no_cuda() == "torch cannot use the 2 card(s) the driver lists (CUDA_VISIBLE_DEVICES='7')"


def test_a_torch_without_cuda_is_the_first_reason(monkeypatch):
    monkeypatch.setattr(torch.version, "cuda", None)
    assert why_no_cuda() == "this torch was built without CUDA"


def test_no_driver_is_a_reason(blind, monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert why_no_cuda() == "no NVIDIA driver answers (the package nvidia-ml-py is not installed)"


def test_an_index_too_high_is_named(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    require_cuda(1)
    with pytest.raises(DeviceUnavailable, match=r"cuda:2 does not exist\. Expected an index below 2\. .*'0,1'"):
        require_cuda(2)


def test_the_summary_names_processor_cards_and_torch(fake_nvml):
    fake_nvml(1)
    text = device_summary()
    assert "Fake H1, 80.0 GiB, driver 555.42" in text
    assert torch.__version__ in text
    assert "usable cores" in text


def test_the_summary_says_why_there_is_no_card(fake_nvml):
    fake_nvml(0)
    assert "GPU     none (the driver lists no card)" in device_summary()
