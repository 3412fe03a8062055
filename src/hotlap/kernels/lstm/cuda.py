"""One LSTM layer whose recurrence is one cluster of thread blocks for each direction and 8 or 16 sequences.

The blocks keep the recurrent weights in registers for the whole sequence (``lstm.cu``), so a step costs one exchange
inside the cluster instead of a launch. The source is compiled at run time by NVRTC and kept in the user's cache.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from hotlap.kernels import launch as launching
from hotlap.kernels.launch import Argument
from hotlap.kernels.lstm.scan import Scan, scan_layer
from hotlap.kernels.nvrtc import Program, done, ensure_context, load_function, why_no_compiler

MAX_HIDDEN = 256
"""Eight blocks, the most a cluster may always have, hold the weights of so many units in their registers."""
UNITS, THREADS, WARPS = 32, 256, 8
DTYPES = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2}
SOURCES = tuple(Path(__file__).with_name(name) for name in ("cluster.cuh", "lstm.cu"))


def why_not(device: torch.device, dtype: torch.dtype, hidden: int) -> str:
    """Why this implementation cannot run on such tensors; '' if it can."""
    if device.type != "cuda":
        return f"the tensors are on {device.type}"
    if dtype not in DTYPES:
        return f"{str(dtype).removeprefix('torch.')} is not among float32, float16 and bfloat16"
    if hidden > MAX_HIDDEN:
        return f"hidden = {hidden} is above {MAX_HIDDEN}"
    if reason := why_no_compiler():
        return reason
    major, minor = torch.cuda.get_device_capability(device)
    return "" if major >= 9 else f"clusters of blocks need sm_90 or newer, and the card is sm_{major}{minor}"


def lstm_cuda(
    x: Tensor,  # [B, T, F]
    weights: Sequence[Tensor],
    lengths: Tensor | None = None,  # [B]
    h0: Tensor | None = None,  # [D, B, H]
    c0: Tensor | None = None,  # [D, B, H]
) -> tuple[Tensor, Tensor, Tensor]:
    """The outputs and last states of one layer; ``lstm_ref`` says of what."""
    return scan_layer("cuda", x, weights, lengths, h0, c0)


@dataclass(frozen=True, kw_only=True)
class Variant:
    """What the source is compiled for."""

    dtype: int
    """As in ``DTYPES``."""
    hidden: int
    """64, 128 or 256: the hidden size rounded up."""
    tiles: int
    """Of 8 sequences a cluster: 1 or 2."""
    products: int
    """3: float32 from three TF32 products, as good as float32; 1: one product."""

    @property
    def cluster(self) -> int:
        return self.hidden // UNITS

    @property
    def shared_bytes(self) -> dict[str, int]:
        """Shared memory of a block, by kernel; the same sums as in ``lstm.cu``."""
        size, rows = 4 if self.dtype == 0 else 2, 8 * self.tiles
        slots = self.cluster * (2 if self.hidden < 128 else 1)
        return {
            "lstm_fwd_kernel": 2 * rows * (self.hidden * size + 64) + WARPS * self.tiles * 32 * 16,
            "lstm_bwd_kernel": 2 * slots * self.tiles * UNITS * 8 * 4 + rows * (4 * UNITS * size + 64),
        }

    @property
    def program(self) -> Program:
        """The source compiled for this variant."""
        macros = (("DTYPE", self.dtype), ("HIDDEN", self.hidden), ("TILES", self.tiles), ("PRODUCTS", self.products))
        return Program(name="lstm.cu", source=launching.read_source(*SOURCES), macros=macros)


def variant_for(dtype: torch.dtype, hidden: int, tiles: int) -> Variant:
    """The variant for such tensors; one TF32 product only where torch may use TF32 for recurrent layers."""
    rounded = next(size for size in (64, 128, 256) if hidden <= size)
    one = dtype != torch.float32 or torch.backends.cudnn.rnn.fp32_precision == "tf32"  # type: ignore[attr-defined]
    return Variant(dtype=DTYPES[dtype], hidden=rounded, tiles=tiles, products=1 if one else 3)


@functools.cache
def _clusters_at_once(device: int, variant: Variant, name: str) -> int:
    """How many clusters the whole card can run at the same time."""
    from cuda.bindings import driver

    size = driver.CUlaunchAttribute()
    size.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
    size.value.clusterDim.x, size.value.clusterDim.y, size.value.clusterDim.z = variant.cluster, 1, 1
    config = driver.CUlaunchConfig()
    config.gridDimX, config.gridDimY, config.gridDimZ = variant.cluster, 1, 1
    config.blockDimX, config.blockDimY, config.blockDimZ = THREADS, 1, 1
    config.sharedMemBytes = shared = variant.shared_bytes[name]
    config.attrs, config.numAttrs = [size], 1
    with torch.cuda.device(device):
        ensure_context(device)
        function = load_function(device, variant.program, name, shared)
        return done(driver.cuOccupancyMaxActiveClusters(function, config))


def _tiles(name: str, like: Tensor) -> int:
    """Tiles of 8 sequences a cluster: one while all clusters can run at once, and otherwise two."""
    num_batch, _, num_directions, hidden, _ = like.shape
    at_once = _clusters_at_once(like.device.index, variant_for(like.dtype, hidden, tiles=1), name)
    return 1 if -(-num_batch // 8) * num_directions <= at_once else 2


def _launch(name: str, like: Tensor, tensors: Sequence[Tensor], flags: Sequence[int] = ()) -> None:
    """Runs one kernel on torch's stream."""
    num_batch, num_steps, num_directions, hidden, _ = like.shape
    variant = variant_for(like.dtype, hidden, _tiles(name, like))
    clusters = -(-num_batch // (8 * variant.tiles))
    grid = (clusters * variant.cluster, num_directions, 1)
    arguments: list[Argument] = [*tensors, num_batch, num_steps, num_directions, hidden, *flags]
    shared = variant.shared_bytes[name]
    launching.launch(variant.program, name, grid, THREADS, arguments, like.device, shared_bytes=shared)


def _forward(
    gates: Tensor, w_hh: Tensor, h0: Tensor, c0: Tensor, lengths: Tensor,
    out: Tensor, h_n: Tensor, c_n: Tensor, acts: Tensor, cells: Tensor,
) -> None:  # fmt: skip
    tensors = [gates.contiguous(), w_hh.contiguous(), h0, c0, lengths, out, h_n, c_n, acts, cells]
    _launch("lstm_fwd_kernel", gates, tensors, [int(acts.numel() > 0)])


def _backward(
    d_out: Tensor, d_h_n: Tensor, d_c_n: Tensor, acts: Tensor, cells: Tensor, w_hh: Tensor, c0: Tensor, lengths: Tensor,
    d_gates: Tensor, d_h0: Tensor, d_c0: Tensor,
) -> None:  # fmt: skip
    tensors = [d_out, d_h_n, d_c_n, acts, cells, w_hh.contiguous(), c0, lengths, d_gates, d_h0, d_c0]
    _launch("lstm_bwd_kernel", acts, tensors)


SCAN = Scan(forward=_forward, backward=_backward)
