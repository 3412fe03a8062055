"""Splatting's CUDA programs: they compile for cards that are not here, and what they cannot draw is said."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from hotlap.kernels import nvrtc
from hotlap.kernels.nvrtc import compile_cubin
from hotlap.kernels.splat import cuda, cuda_program
from hotlap.kernels.splat.cuda import why_not
from hotlap.kernels.splat.cuda_program import Variant
from hotlap.kernels.splat.frame import View

F32 = torch.float32


@pytest.mark.parametrize(
    ("variant", "way", "architecture"),
    [
        (Variant(channels=3, depth=False, sh_degree=3), "fwd", "sm_90"),
        (Variant(channels=3, depth=True, sh_degree=3, absgrad=True, camera=True), "bwd", "sm_90"),
        (Variant(channels=3, depth=True, sh_degree=3, absgrad=True, pixels=1), "bwd", "sm_90"),  # most shared memory
        (Variant(channels=40, depth=False, sh_degree=None, absgrad=True), "bwd", "sm_80"),
    ],
)
def test_compiles_for_a_card(variant, way, architecture):
    pytest.importorskip("cuda.bindings")
    try:
        cubin = compile_cubin(variant.program(way), architecture)
    except RuntimeError as error:  # the bindings are there and the compiler is not
        pytest.skip(f"no NVRTC: {error}")
    kernels = [*cuda_program.THREADS, "splat_blend_fwd_kernel", "splat_blend_bwd_kernel"]
    assert cubin.startswith(b"\x7fELF")
    assert {name for name in kernels if name.encode() in cubin} == {
        name for name in kernels if ("bwd" in name) == (way == "bwd")
    }


class Shaped:
    """What is asked of a tensor that this machine cannot hold."""

    def __init__(self, num: int, device: str, dtype: torch.dtype) -> None:
        self.shape, self.device, self.dtype = (num, 3), torch.device(device), dtype


@pytest.mark.parametrize(
    ("device", "dtype", "channels", "num_splats", "capability", "reason"),
    [
        ("cpu", F32, 3, 1, (9, 0), "the tensors are on cpu"),
        ("cuda", torch.float64, 3, 1, (9, 0), "float64 is not float32"),
        ("cuda", F32, 41, 1, (9, 0), "41 channels are above 40"),
        ("cuda", F32, 3, 2**28, (9, 0), "268435456 splats are not below 268435456"),
        ("cuda", F32, 3, 1, (7, 5), "the kernels need sm_80 or newer, and the card is sm_75"),
        ("cuda", F32, 40, 1, (8, 0), ""),
    ],
)
def test_says_what_it_cannot_do(device, dtype, channels, num_splats, capability, reason, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(nvrtc, "has_bindings", lambda: True)
    cuda._why_no_card.cache_clear()
    splats = SimpleNamespace(means=Shaped(num_splats, device, dtype), colors=torch.empty(1, channels))
    assert why_not(splats, View(width=1, height=1)) == reason
    cuda._why_no_card.cache_clear()
