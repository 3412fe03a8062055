"""The mixing of neighbours on the CPU, compiled by numba."""

from __future__ import annotations

from importlib.util import find_spec

import numpy as np
import torch
from torch import Tensor

from hotlap.kernels.graph_conv.support import Support
from hotlap.kernels.threads import in_threads


def why_not(device: torch.device, dtype: torch.dtype) -> str:
    """Why this implementation cannot run on such tensors; '' if it can."""
    if device.type != "cpu":
        return f"the tensors are on {device.type}"
    if dtype != torch.float32:
        return f"{str(dtype).removeprefix('torch.')} is not float32"
    return "" if find_spec("numba") is not None else "numba is not installed"


def mix(
    y: Tensor, bias: Tensor, residual: Tensor | None, support: Support, relu: bool, share: float, out: Tensor,
    positive: Tensor,
) -> None:  # fmt: skip
    """Fills ``out`` [R, V, O] from y [R, V, 2 O] and, unless it is empty, ``positive``."""
    from hotlap.kernels.graph_conv.cpu_kernels import mix_fwd_kernel

    more = np.empty((0, 0, 0), np.float32) if residual is None else residual.contiguous().numpy()
    table = support.columns.numpy(), support.values.numpy()
    arrays = (y.contiguous().numpy(), bias.float().contiguous().numpy(), more, *table)
    number = np.float32(share)
    in_threads(mix_fwd_kernel, y.shape[0] * y.shape[1], *arrays, relu, number, out.numpy(), positive.numpy())


def unmix(v_out: Tensor, positive: Tensor, support: Support, share: float, v_y: Tensor) -> None:
    """Fills ``v_y`` [R, V, 2 O], the gradient by y, from that by the result [R, V, O]."""
    from hotlap.kernels.graph_conv.cpu_kernels import mix_bwd_kernel

    arrays = (v_out.contiguous().numpy(), positive.numpy(), support.columns.numpy(), support.values.numpy())
    in_threads(mix_bwd_kernel, len(v_out), *arrays, np.float32(share), v_y.numpy())
