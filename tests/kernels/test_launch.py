"""What a kernel of CUDA C++ is given, without a card."""

from __future__ import annotations

import ctypes
import struct

import torch

from hotlap.kernels.launch import Packed, launch
from hotlap.kernels.nvrtc import Program


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
