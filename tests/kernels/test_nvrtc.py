"""CUDA C++ compiled at run time, without a card."""

from __future__ import annotations

import pytest

from hotlap.base.errors import KernelUnavailable
from hotlap.kernels import nvrtc
from hotlap.kernels.nvrtc import Program, compile_cubin, done


def test_a_source_that_does_not_compile_says_where():
    pytest.importorskip("cuda.bindings")
    program = Program(name="broken.cu", source="int x = y;", macros=(("HIDDEN", 64),))
    message = r"(?s)broken\.cu does not compile .*--define-macro=HIDDEN=64.*\"y\" is undefined"
    with pytest.raises(KernelUnavailable, match=message):
        compile_cubin(program, "sm_90")


def test_another_value_of_a_macro_is_another_program(tmp_path):
    pytest.importorskip("cuda.bindings")
    source = 'extern "C" __global__ void fill_kernel(int* at) { *at = VALUE; }'
    try:
        for value in (1, 2, 2):
            compile_cubin(Program(name="fill.cu", source=source, macros=(("VALUE", value),)), "sm_80")
    except RuntimeError as error:  # the bindings are there and the compiler is not
        pytest.skip(f"no NVRTC: {error}")
    cached = list((tmp_path / "cache" / "hotlap" / "kernels").iterdir())
    assert len(cached) == 2 and all(file.name.startswith("fill-") for file in cached)


def test_a_failed_call_is_named():
    with pytest.raises(KernelUnavailable, match="a CUDA call of a kernel failed: 700"):
        done((700,))


def test_the_bindings_are_looked_for_once_however_often_a_kernel_asks(monkeypatch):
    asked = []
    monkeypatch.setattr(nvrtc, "find_spec", asked.append)  # which returns None: they are not there
    nvrtc.has_bindings.cache_clear()
    try:
        for _ in range(3):
            assert nvrtc.why_no_compiler() == "cuda-bindings is not installed"
    finally:
        nvrtc.has_bindings.cache_clear()
    assert asked == ["cuda"]
