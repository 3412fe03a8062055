"""NVML through a fake driver: cards, states, what is missing, and the one setting we change."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from hotlap.base.errors import EnvironmentUnusable
from hotlap.device.clocks import locked_clocks
from hotlap.device.nvml import SLOWING, Nvml


def full_answers(bits=0):
    return {
        "nvmlDeviceGetPowerUsage": 250_000,
        "nvmlDeviceGetUtilizationRates": SimpleNamespace(gpu=37),
        "nvmlDeviceGetCurrentClocksEventReasons": bits,
        "nvmlDeviceGetComputeRunningProcesses": [SimpleNamespace(pid=9), SimpleNamespace(pid=4)],
        "nvmlDeviceGetClockInfo": lambda handle, kind: {1: 1980, 2: 2619}[kind],
        "nvmlDeviceGetMaxClockInfo": lambda handle, kind: 1990,
        "nvmlDeviceGetTemperature": 55,
        "nvmlDeviceGetTotalEnergyConsumption": 123_456,
    }


def test_cards_are_listed_with_text_whether_the_driver_gives_bytes_or_not(fake_nvml):
    fake_nvml(2)
    with Nvml() as nvml:
        assert nvml.available and nvml.driver_version() == "555.42"
        cards = nvml.cards()
    assert [(c.index, c.name, c.uuid, c.pci_bus) for c in cards] == [
        (0, "Fake H1", "GPU-0000", "0000:00"),
        (1, "Fake H1", "GPU-1111", "0000:01"),
    ]
    assert cards[0].memory_bytes == 80 * 2**30


def test_the_session_is_closed_also_on_error(fake_nvml):
    library = fake_nvml(1)
    with pytest.raises(ZeroDivisionError), Nvml():
        assert library.open
        raise ZeroDivisionError
    assert not library.open


@pytest.mark.parametrize("uuid", ["GPU-1111", "1111"])
def test_cards_are_matched_by_uuid_with_or_without_the_prefix_of_cuda(fake_nvml, uuid):
    fake_nvml(3)
    with Nvml() as nvml:
        assert nvml.handle(uuid) == "card 1"
        assert nvml.handle("GPU-9999") is None


def test_a_full_state(fake_nvml):
    fake_nvml(1, **full_answers(0x4 | 0x40))
    with Nvml() as nvml:
        state = nvml.state("card 0")
    assert (state.sm_clock_mhz, state.memory_clock_mhz, state.max_sm_clock_mhz) == (1980, 2619, 1990)
    assert (state.power_w, state.temperature_c, state.utilisation, state.energy_mj) == (250, 55, 37, 123_456)
    assert state.memory_used_bytes == 3 * 2**30
    assert state.processes == [4, 9]
    assert state.throttle == ["software power cap", "hardware thermal slowdown"]


@pytest.mark.parametrize("bit", SLOWING)
def test_each_slowing_bit_has_its_word(fake_nvml, bit):
    fake_nvml(1, **full_answers(bit))
    with Nvml() as nvml:
        assert nvml.state("card 0").throttle == [SLOWING[bit]]


@pytest.mark.parametrize("bit", [0x1, 0x2, 0x100])
def test_idling_and_clocks_that_the_user_set_are_no_throttling(fake_nvml, bit):
    fake_nvml(1, **full_answers(bit))
    with Nvml() as nvml:
        assert nvml.state("card 0").throttle == []


def test_the_older_name_of_the_throttle_call_serves_too(fake_nvml):
    answers = full_answers()
    del answers["nvmlDeviceGetCurrentClocksEventReasons"]
    fake_nvml(1, nvmlDeviceGetCurrentClocksThrottleReasons=0x8, **answers)
    with Nvml() as nvml:
        assert nvml.state("card 0").throttle == ["hardware slowdown"]


def test_what_a_driver_does_not_say_is_none(fake_nvml):
    fake_nvml(1, nvmlDeviceGetPowerUsage=RuntimeError("Not Supported"))
    with Nvml() as nvml:
        state = nvml.state("card 0")
    assert (state.power_w, state.sm_clock_mhz, state.energy_mj, state.utilisation) == (None, None, None, None)
    assert (state.throttle, state.processes) == ([], [])


def test_without_a_driver_everything_is_empty_and_the_reason_is_kept(fake_nvml, monkeypatch):
    library = fake_nvml(1)

    def refuse():
        raise RuntimeError("Driver Not Loaded")

    monkeypatch.setattr(library, "nvmlInit", refuse, raising=False)
    with Nvml() as nvml:
        assert (nvml.available, nvml.reason) == (False, "Driver Not Loaded")
        assert (nvml.cards(), nvml.driver_version(), nvml.handle("GPU-0000"), nvml.state("card 0")) == (
            [],
            "",
            None,
            None,
        )


def test_without_the_package_the_reason_names_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with Nvml() as nvml:
        assert (nvml.available, nvml.reason) == (False, "the package nvidia-ml-py is not installed")


LOCK, RESET = "nvmlDeviceSetGpuLockedClocks", "nvmlDeviceResetGpuLockedClocks"


def test_clocks_are_locked_inside_and_free_after(fake_nvml):
    library = fake_nvml(2, **{LOCK: None, RESET: None})
    with locked_clocks(1500):
        assert library.calls == [(LOCK, "card 0", 1500, 1500), (LOCK, "card 1", 1500, 1500)]
    assert library.calls[2:] == [(RESET, "card 0"), (RESET, "card 1")]


@pytest.mark.parametrize("error", [ZeroDivisionError, KeyboardInterrupt, SystemExit])
def test_clocks_are_freed_whatever_happens(fake_nvml, error):
    library = fake_nvml(1, **{LOCK: None, RESET: None})
    with pytest.raises(error), locked_clocks(1500):
        raise error
    assert library.calls[-1] == (RESET, "card 0")
    assert not library.open


def test_a_card_that_refuses_leaves_the_others_free(fake_nvml):
    def lock(handle, low, high):
        return RuntimeError("Insufficient Permissions") if handle == "card 1" else None

    library = fake_nvml(2, **{LOCK: lock, RESET: None})
    words = r"lock_clocks_mhz = 1500.*Insufficient Permissions.*administrator"
    with pytest.raises(EnvironmentUnusable, match=words), locked_clocks(1500):
        pytest.fail("nothing is measured with a clock that was not locked")
    assert (RESET, "card 0") in library.calls


def test_an_interruption_while_locking_frees_what_may_be_locked(fake_nvml):
    def lock(handle, low, high):
        raise KeyboardInterrupt

    library = fake_nvml(1, **{LOCK: lock, RESET: None})
    with pytest.raises(KeyboardInterrupt), locked_clocks(1500):
        pytest.fail("not reached")
    assert (RESET, "card 0") in library.calls


def test_without_a_driver_a_lock_is_refused_with_the_reason(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with (
        pytest.raises(EnvironmentUnusable, match=r"lock_clocks_mhz = 1500 asked for.*nvidia-ml-py"),
        locked_clocks(1500),
    ):
        pytest.fail("not reached")


def test_no_lock_asked_for_touches_nothing(fake_nvml):
    library = fake_nvml(1, **{LOCK: None, RESET: None})
    with locked_clocks(None):
        assert library.calls == []
    assert library.calls == []
