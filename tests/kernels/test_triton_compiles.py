"""Triton programs compiled for a card that is not there: the interpreter lets pass what the compiler refuses."""

from __future__ import annotations

import os

import pytest

compiler = pytest.importorskip("triton.compiler")
backends = pytest.importorskip("triton.backends.compiler")

GRAPH = {
    "y": "*bf16", "bias": "*fp32", "residual": "*bf16", "columns": "*i32", "values": "*fp32", "support": "*fp32",
    "out": "*bf16", "positive": "*i8", "num_rows": "i32", "num_vertices": "i32", "width": "i32", "share": "fp32",
    "v_out": "*bf16", "v_y": "*bf16",
}  # fmt: skip
POOL = {
    "image": "*bf16", "pixels": "*fp32", "out": "*bf16", "v_out": "*bf16", "v_image": "*fp32", "v_pixels": "*fp32",
    **dict.fromkeys(("num_points", "width", "height", "channels", "pitch", "total", "offset"), "i32"),
    **dict.fromkeys(("x_scale", "y_scale", "limit"), "fp32"),
}  # fmt: skip
MIXED = {"RELU": True, "RESIDUAL": True, "SAVE": True}
LOCAL = {"SPLIT": True, "PRECISION": "ieee", "GRAPHS": 8, "BLOCK_V": 64, "BLOCK_O": 64}
VIEWED = {"VIEWS": 3, "DIVISOR": 1, "BLOCK_P": 16, "BLOCK_C": 64}
WANTED = {"WANT_MAP": True, "WANT_PIXELS": True}


@pytest.mark.slow
@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") == "1", reason="Triton interprets here")
@pytest.mark.parametrize(
    ("op", "kernel", "types", "settings"),
    [
        ("graph_conv", "mesh_fwd_kernel", GRAPH, {**MIXED, "K": 9, "BLOCK_V": 32, "BLOCK_O": 64}),
        ("graph_conv", "mesh_bwd_kernel", GRAPH, {"MASKED": True, "K": 9, "BLOCK_V": 32, "BLOCK_O": 64}),
        ("graph_conv", "local_fwd_kernel", GRAPH, {**MIXED, **LOCAL}),
        ("graph_conv", "local_bwd_kernel", GRAPH, {"MASKED": True, **LOCAL}),
        ("view_pool", "view_pool_fwd_kernel", POOL, {**VIEWED, "BILINEAR": True}),
        ("view_pool", "view_pool_fwd_kernel", POOL, {**VIEWED, "BILINEAR": False}),
        ("view_pool", "view_pool_bwd_kernel", POOL, {**VIEWED, **WANTED, "BILINEAR": True}),
        ("view_pool", "view_pool_bwd_kernel", POOL, {**VIEWED, **WANTED, "BILINEAR": False}),
    ],
)
def test_compiles_for_cards(op, kernel, types, settings):
    module = pytest.importorskip(f"hotlap.kernels.{op}.triton_kernels")
    function = getattr(module, kernel)
    names = function.arg_names
    signature = {name: "constexpr" if name in settings else types[name] for name in names}
    constants = {(names.index(name),): value for name, value in settings.items()}
    source = compiler.ASTSource(fn=function, signature=signature, constexprs=constants)
    made = compiler.compile(source, target=backends.GPUTarget("cuda", 90, 32))
    assert kernel in made.asm["ptx"] and ".local" not in made.asm["ptx"]
