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
IMAGE = {
    **dict.fromkeys(("x", "residual", "out", "v_out", "cut", "v_x", "v_residual"), "*bf16"),
    **dict.fromkeys(("base", "part0", "part1", "part2"), "*bf16"),
    **dict.fromkeys(("weight", "bias", "parts", "kept"), "*fp32"), "eps": "fp32",
    **dict.fromkeys(("num_pixels", "channels", "part", "num_parts", "written", "height", "width", "groups"), "i32"),
    **dict.fromkeys(("high0", "wide0", "high1", "wide1", "high2", "wide2"), "i32"),
}  # fmt: skip
LYING = {"LAST": True, "BY_EIGHT": True, "BLOCK_P": 64, "BLOCK_C": 64}
STANDING = {"LAST": False, "BY_EIGHT": False, "BLOCK_P": 4096, "BLOCK_C": 1}
BEHIND = {"RELU": True, "RESIDUAL": True}
ROWS = {"BLOCK_W": 32, "BLOCK_C": 64, "LAST": True, "BY_EIGHT": True}
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
        *[
            ("instance_norm", f"instance_norm_{name}_kernel", IMAGE, {**layout, **more})
            for layout in (LYING, STANDING)
            for name, more in (
                ("sums", {}),
                ("fwd", {**BEHIND, "KEEP": True, "BLOCK_S": 64}),
                ("bwd_sums", {"RELU": True}),
                ("bwd", {**BEHIND, "BLOCK_S": 64}),
            )
        ],
        ("channel_pool", "channel_pool_fwd_kernel", IMAGE, LYING),
        ("channel_pool", "channel_pool_fwd_kernel", IMAGE, STANDING),
        ("enlarge", "enlarge_fwd_kernel", IMAGE, {**ROWS, "PARTS": 3, "RELU": True}),
        ("enlarge", "enlarge_fwd_kernel", IMAGE, {**ROWS, "LAST": False, "BLOCK_C": 1, "PARTS": 1, "RELU": False}),
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
