"""A step of Adam on an NVIDIA card: one kernel for all parameters (``adam.cu``), compiled at run time by NVRTC."""

from __future__ import annotations

import functools
import math
import struct
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from hotlap.kernels import launch as launching
from hotlap.kernels.adam.state import BLOCK, MAX_GROUPS, MODES, AdamConfig, AdamState
from hotlap.kernels.nvrtc import Program, why_no_compiler

THREADS = 256


def why_not(state: AdamState) -> str:
    """Why this implementation cannot step such parameters; '' if it can."""
    like = state.params[0]
    if like.device.type != "cuda":
        return f"the tensors are on {like.device.type}"
    if like.dtype != torch.float32:
        return f"{str(like.dtype).removeprefix('torch.')} is not float32"
    return why_no_compiler()


@functools.cache
def program_for(mode: str, vector: bool) -> Program:
    """The kernel compiled for a mode; ``vector``: all addresses are multiples of 16."""
    source = launching.read_source(Path(__file__).with_name("adam.cu"))
    return Program(name="adam.cu", source=source, macros=(("MODE", MODES.index(mode)), ("VECTOR", int(vector))))


def step(state: AdamState, grads: Sequence[Tensor], config: AdamConfig, visible: Tensor | None = None) -> None:
    """Makes one step in place; ``adam_step_ref`` says which."""
    _launch(state, [grad.contiguous() for grad in grads], config, visible)
    state.step.add_(1)


def flush(state: AdamState, config: AdamConfig) -> None:
    """Brings all rows of a lazy state up to date."""
    if config.mode == "lazy":
        _launch(state, None, config, None)


def _launch(state: AdamState, grads: Sequence[Tensor] | None, config: AdamConfig, visible: Tensor | None) -> None:
    groups = b""
    addresses: list[int] = []
    for n, param in enumerate(state.params):
        gradient = 0 if grads is None else grads[n].data_ptr()
        four = (param.data_ptr(), gradient, state.first[n].data_ptr(), state.second[n].data_ptr())
        addresses += four
        width = math.prod(param.shape[1:])
        groups += struct.pack("PPPPiifi", *four, width, *(state.tails[n] if state.tails else (width, 1.0)), 0)
    groups += bytes(struct.calcsize("PPPPiifi") * (MAX_GROUPS - len(state.params)))
    seen = None if visible is None else visible.contiguous().view(torch.uint8)
    tensors = [state.lrs, state.step, state.last, state.history, seen]
    given = groups + struct.pack(
        "PPPPPiiifffff",
        *(0 if tensor is None else tensor.data_ptr() for tensor in tensors),
        state.num_rows, len(state.params), int(grads is None),
        config.beta1, config.beta2, math.log(config.beta1), math.log(config.beta2), config.eps,
    )  # fmt: skip
    program = program_for(config.mode, all(address % 16 == 0 for address in addresses))
    grid = (-(-state.num_rows // BLOCK), 1, 1)
    launching.launch(program, "adam_step_kernel", grid, THREADS, [given], state.lrs.device)
