"""How much an operator computes and moves, estimated from the shapes it was called with."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from hotlap.data.kineto import Shapes

BYTES = {
    "float": 4, "double": 8, "c10::Half": 2, "c10::BFloat16": 2, "long": 8, "long int": 8, "int": 4, "short": 2,
    "short int": 2, "signed char": 1, "unsigned char": 1, "bool": 1, "c10::complex<float>": 8,
    "c10::Float8_e4m3fn": 1, "c10::Float8_e5m2": 1,
}  # fmt: skip
PRECISIONS = {"float": "fp32", "double": "fp64", "c10::Half": "fp16", "c10::BFloat16": "bf16"}
_NO_WORK = re.compile(
    r"aten::(view|reshape|_reshape_alias|as_strided|t|transpose|permute|expand|select|slice|unsqueeze|squeeze|detach"
    r"|empty\w*|resize_|set_|alias|narrow|split\w*|chunk|unbind|item|_local_scalar_dense|is_nonzero|size|numpy_T)$"
)


@dataclass(frozen=True, kw_only=True)
class Work:
    """One call: multiplications and additions, bytes to and from memory, the precision of its numbers."""

    flops: float
    bytes: float
    precision: str
    """fp64, fp32, bf16, fp16, or '' where no argument is a floating-point tensor."""


def work_of(name: str, shapes: Shapes) -> Work | None:
    """The work of one call; None for operators that only look at tensors, or whose shapes are not known."""
    tensors = list(_tensors(shapes))
    if not tensors or _NO_WORK.match(name):
        return None
    floats = [kind for _, kind in tensors if kind in PRECISIONS]
    precision = PRECISIONS[floats[0]] if floats else ""
    read = sum(math.prod(dims) * BYTES.get(kind, 4) for dims, kind in tensors)
    largest = max(math.prod(dims) * BYTES.get(kind, 4) for dims, kind in tensors)
    formula = FORMULAS.get(name)
    if formula is not None:
        try:
            flops, written = formula(shapes)
        except (IndexError, ValueError, TypeError):
            return None  # another version calls it with other arguments than we know
        return Work(
            flops=flops, bytes=read + written * BYTES.get(floats[0] if floats else "float", 4), precision=precision
        )
    elements = max(math.prod(dims) for dims, _ in tensors)
    return Work(flops=float(elements), bytes=float(read + largest), precision=precision)


def _tensors(shapes: Shapes) -> Iterator[tuple[tuple[int, ...], str]]:
    """Sizes and kind of every tensor among the arguments, those within lists included."""
    for dims, kind in zip(shapes.dims, shapes.kinds, strict=False):
        if dims and isinstance(dims[0], tuple):
            yield from ((inner, "float") for inner in dims if inner)
        elif dims or kind in BYTES:
            yield dims, kind


def _mm(shapes: Shapes, first: int = 0) -> tuple[float, float]:
    (m, k), (_, n) = shapes.dims[first][-2:], shapes.dims[first + 1][-2:]
    batch = math.prod(shapes.dims[first][:-2])
    return 2.0 * batch * m * n * k, float(batch * m * n)


def _linear(shapes: Shapes) -> tuple[float, float]:
    x, w = shapes.dims[0], shapes.dims[1]
    rows = math.prod(x[:-1])
    return 2.0 * rows * x[-1] * w[0], float(rows * w[0])


def _numbers(text: str) -> list[int]:
    return [int(found) for found in re.findall(r"-?\d+", text)]


def _spread(values: list[int], count: int) -> list[int]:
    return values * count if len(values) == 1 else values


def convolved_size(shapes: Shapes) -> tuple[int, ...]:
    """Sizes of what aten::convolution puts out."""
    x, w = shapes.dims[0], shapes.dims[1]
    spatial = len(x) - 2
    stride, pad, dilation = (_spread(_numbers(shapes.values[place]), spatial) for place in (3, 4, 5))
    transposed, out_pad = shapes.values[6] == "True", _spread(_numbers(shapes.values[7]), spatial)
    groups = int(shapes.values[8])
    sizes = []
    for axis in range(spatial):
        reach = dilation[axis] * (w[2 + axis] - 1)
        if transposed:
            sizes.append((x[2 + axis] - 1) * stride[axis] - 2 * pad[axis] + reach + out_pad[axis] + 1)
        else:
            sizes.append((x[2 + axis] + 2 * pad[axis] - reach - 1) // stride[axis] + 1)
    return (x[0], w[1] * groups if transposed else w[0], *sizes)


def _convolution(shapes: Shapes) -> tuple[float, float]:
    x, w, out = shapes.dims[0], shapes.dims[1], convolved_size(shapes)
    # Each weight meets each position of the side that is not spread out: the output's, or a transposed one's input's.
    positions = x if shapes.values[6] == "True" else out
    return 2.0 * math.prod(w) * positions[0] * math.prod(positions[2:]), float(math.prod(out))


def _convolution_backward(shapes: Shapes) -> tuple[float, float]:
    grad, x, w = shapes.dims[0], shapes.dims[1], shapes.dims[2]
    positions = x if shapes.values[7] == "True" else grad
    once = 2.0 * math.prod(w) * positions[0] * math.prod(positions[2:])
    needed = re.findall("True|False", shapes.values[10])
    for_input, for_weight = needed[0] == "True", needed[1] == "True"
    written = math.prod(x) * for_input + math.prod(w) * for_weight
    return once * (for_input + for_weight), float(written)


def _attention(shapes: Shapes, first: int = 0, times: float = 1.0) -> tuple[float, float]:
    q, k, v = shapes.dims[first : first + 3]
    products = 2.0 * math.prod(q[:-2]) * q[-2] * k[-2] * (q[-1] + v[-1])
    return times * products, float(math.prod(q[:-1]) * v[-1])


def _cudnn_rnn(shapes: Shapes) -> tuple[float, float]:
    """Every weight matrix meets every step of every sequence."""
    steps, batch = shapes.dims[0][:2]
    matrices = [inner for inner in shapes.dims[1] if len(inner) == 2]
    hidden = max(inner[1] for inner in matrices)
    return 2.0 * steps * batch * sum(math.prod(inner) for inner in matrices), float(steps * batch * hidden)


def _mkldnn_rnn(shapes: Shapes) -> tuple[float, float]:
    steps, batch = shapes.dims[0][:2]
    weights = math.prod(shapes.dims[1]) + math.prod(shapes.dims[2])
    return 2.0 * steps * batch * weights, float(steps * batch * shapes.dims[2][-1])


def _twice(formula: Callable[[Shapes], tuple[float, float]]) -> Callable[[Shapes], tuple[float, float]]:
    """A backward pass: one product as large as the forward's for the input, one for the weights."""

    def work(shapes: Shapes) -> tuple[float, float]:
        flops, written = formula(shapes)
        return 2 * flops, 2 * written

    return work


FORMULAS: dict[str, Callable[[Shapes], tuple[float, float]]] = {
    "aten::mm": _mm,
    "aten::bmm": _mm,
    "aten::addmm": lambda shapes: _mm(shapes, 1),
    "aten::baddbmm": lambda shapes: _mm(shapes, 1),
    "aten::mkldnn_linear": _linear,
    "aten::convolution": _convolution,
    "aten::convolution_backward": _convolution_backward,
    "aten::_scaled_dot_product_flash_attention": _attention,
    "aten::_scaled_dot_product_flash_attention_for_cpu": _attention,
    "aten::_scaled_dot_product_efficient_attention": _attention,
    "aten::_scaled_dot_product_cudnn_attention": _attention,
    "aten::_scaled_dot_product_flash_attention_for_cpu_backward": lambda shapes: _attention(shapes, 1, 2.5),
    "aten::_scaled_dot_product_flash_attention_backward": lambda shapes: _attention(shapes, 1, 2.5),
    "aten::_scaled_dot_product_efficient_attention_backward": lambda shapes: _attention(shapes, 1, 2.5),
    "aten::_scaled_dot_product_cudnn_attention_backward": lambda shapes: _attention(shapes, 1, 2.5),
    "aten::_cudnn_rnn": _cudnn_rnn,
    "aten::_cudnn_rnn_backward": _twice(_cudnn_rnn),
    "aten::mkldnn_rnn_layer": _mkldnn_rnn,
    "aten::mkldnn_rnn_layer_backward": _twice(_mkldnn_rnn),
}
"""Multiplications and additions, and numbers written, of the operators that do most of the arithmetic.

A backward attention computes the scores again and then four products, five to the forward's two.
"""


def describe_shapes(shapes: Shapes) -> str:
    """``16x64x128x128, 64x64x3x3``: the first tensors' sizes."""
    shown: list[Any] = [dims for dims, _ in _tensors(shapes) if dims][:3]
    return ", ".join("x".join(str(size) for size in dims) for dims in shown)
