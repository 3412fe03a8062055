"""What a kernel of CUDA C++ is given, without a card."""

from __future__ import annotations

import contextlib
import ctypes
import struct
import threading

import pytest
import torch

from hotlap.base.errors import KernelUnavailable
from hotlap.kernels import launch as launching
from hotlap.kernels.launch import Packed, launch
from hotlap.kernels.nvrtc import Program

SOURCE = Program(name="some.cu", source="")


def test_arguments_lie_where_the_driver_looks_for_them():
    tensor = torch.arange(3)
    packed = Packed([tensor, None, 7, -1, 0.5, struct.pack("Pi", 9, 4), 2**32 - 1])
    places = (ctypes.c_void_p * 7).from_address(packed.address)

    def read(place: int, layout: str):
        return struct.unpack(layout, ctypes.string_at(places[place], struct.calcsize(layout)))

    assert read(0, "P") == (tensor.data_ptr(),) and read(1, "P") == (0,)
    assert read(2, "i") == (7,) and read(3, "i") == (-1,) and read(4, "f") == (0.5,)
    assert read(5, "Pi") == (9, 4) and read(6, "I") == (2**32 - 1,)


def test_nothing_to_do_is_no_launch():
    broken = Program(name="broken.cu", source="no CUDA C++")
    launch(broken, "broken_kernel", (4, 0, 1), 256, [], torch.device("cuda"))


@pytest.fixture
def card(monkeypatch):
    """A machine whose card 0 is current: what the driver is asked for, in order."""
    asked, current = [], [0]
    contexts = {threading.get_ident()}

    @contextlib.contextmanager
    def device(index):
        before, current[0] = current[0], index
        yield
        current[0] = before

    def cu_launch_kernel(function, *numbers):
        if threading.get_ident() not in contexts:
            return (201,)  # invalid context
        *sizes, stream, address, _ = numbers
        (place,) = (ctypes.c_void_p * 1).from_address(address)
        asked.append((function, sizes, int(stream), ctypes.c_int.from_address(place).value))
        return (0,)

    def ensure_context(index):
        asked.append(f"context of {index}")
        contexts.add(threading.get_ident())

    def load_function(index, program, name, shared_bytes):
        return f"{name} on {index} with {shared_bytes} bytes"

    monkeypatch.setattr(torch.cuda, "current_device", lambda: current[0])
    monkeypatch.setattr(torch.cuda, "device", device)
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda index: 1000 + index, raising=False)
    monkeypatch.setattr(launching, "load_function", load_function)
    monkeypatch.setattr(launching, "ensure_context", ensure_context)
    monkeypatch.setattr(launching, "_driver_launch", lambda: cu_launch_kernel)
    return asked


def test_a_launch_is_on_the_stream_of_the_tensors_card_with_its_shared_memory(card):
    launch(SOURCE, "a_kernel", (4, 2, 1), 256, [7], torch.device("cuda", 0))
    launch(SOURCE, "b_kernel", (1, 1, 1), 32, [8], torch.device("cuda", 1), shared_bytes=48)
    first = ("a_kernel on 0 with 0 bytes", [4, 2, 1, 256, 1, 1, 0], 1000, 7)
    second = ("b_kernel on 1 with 48 bytes", [1, 1, 1, 32, 1, 1, 48], 1001, 8)
    assert card == [first, second]


def test_a_loaded_kernel_goes_to_its_own_card_whichever_is_current(card):
    packed = Packed([5])
    launching.enqueue("a function", (1, 1, 1), 32, packed.address, 1)
    assert card == [("a function", [1, 1, 1, 32, 1, 1, 0], 1001, 5)] and torch.cuda.current_device() == 0


def test_a_thread_without_a_context_gets_one_and_a_launch_that_fails_all_the_same_says_so(card, monkeypatch):
    arguments = (SOURCE, "k", (1, 1, 1), 32, [1], torch.device("cuda", 0))
    thread = threading.Thread(target=launch, args=arguments)
    thread.start()
    thread.join()
    assert card == ["context of 0", ("k on 0 with 0 bytes", [1, 1, 1, 32, 1, 1, 0], 1000, 1)]
    monkeypatch.setattr(launching, "_driver_launch", lambda: lambda *given: (701,))
    with pytest.raises(KernelUnavailable, match="a CUDA call of a kernel failed: 701"):
        launch(*arguments)
