"""Where a trace keeps a number that it found in a tensor: what was decided by it is decided so for every input."""

from __future__ import annotations

import traceback
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.jit._trace import TracerWarning
from torch.utils._python_dispatch import TorchDispatchMode

Line = tuple[str, int]


def numbers_kept(flat: nn.Module, tensors: Sequence[Tensor]) -> list[str]:
    """The lines of code, as ``file:line``, whose numbers a trace of ``flat`` keeps as they were for these tensors.

    The tracer warns of sizes, too, which need not be wrong elsewhere; and a plain call also reads what code leaves out
    while it is traced. What both name is meant.
    """
    with torch.no_grad():
        warned = _warned(lambda: torch.jit.trace(flat, tuple(tensors), check_trace=False, strict=False))
        with _Reads() as reads:
            flat(*tensors)
    return [f"{file}:{line}" for file, line in sorted(warned & reads.lines)]


def _warned(trace: Callable[[], object]) -> set[Line]:
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        trace()
    return {(one.filename, one.lineno) for one in told if issubclass(one.category, TracerWarning)}


class _Reads(TorchDispatchMode):
    """Notes all lines that are under way when a number is taken out of a tensor, as by ``if x.sum() > 0``."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: set[Line] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten._local_scalar_dense.default:
            self.lines |= {(frame.f_code.co_filename, line) for frame, line in traceback.walk_stack(None)}
        return func(*args, **(kwargs or {}))
