"""L1 and SSIM with their gradient on an NVIDIA card: two kernels (``ssim.cu``), compiled at run time by NVRTC."""

from __future__ import annotations

import functools
import struct
from pathlib import Path

import torch
from torch import Tensor

from hotlap.kernels import launch as launching
from hotlap.kernels.nvrtc import Program, why_no_compiler
from hotlap.kernels.ssim.buffers import Buffers

THREADS = 256
NUMBERS = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2, torch.uint8: 3}
MAX_CHANNELS = 32
"""A block keeps the neighbours of its columns in shared memory, five pixels with all their channels on each side."""
MIN_ROWS, BLOCKS_EACH = 16, 3
"""A block reads ten rows more than it has results, so it has no fewer than 16; 3 blocks share a multiprocessor."""


def why_not(device: torch.device, image: torch.dtype, target: torch.dtype, channels: int) -> str:
    """Why this implementation cannot compare such pictures; '' if it can."""
    if device.type != "cuda":
        return f"the tensors are on {device.type}"
    if image not in NUMBERS or image == torch.uint8:
        return f"an image of {str(image).removeprefix('torch.')} is not among float32, float16 and bfloat16"
    if target not in NUMBERS:
        return f"a target of {str(target).removeprefix('torch.')} is not among float32, float16, bfloat16, uint8"
    if channels > MAX_CHANNELS:
        return f"{channels} channels are above {MAX_CHANNELS}"
    return why_no_compiler()


@functools.cache
def program_for(channels: int, image: torch.dtype, target: torch.dtype, alpha: bool) -> Program:
    """The kernels compiled for such pictures."""
    macros = (("CHANNELS", channels), ("IMAGE", NUMBERS[image]), ("TARGET", NUMBERS[target]), ("ALPHA", int(alpha)))
    source = launching.read_source(Path(__file__).with_name("ssim.cu"))
    return Program(name="ssim.cu", source=source, macros=macros)


@functools.cache
def _multiprocessors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1


def grid_for(shape: torch.Size, device: torch.device) -> tuple[tuple[int, int, int], int]:
    """Blocks by column, row and picture, and the rows of a block: as many as leave no multiprocessor idle."""
    batch, height, width, channels = shape
    strips = -(-width * channels // THREADS)
    wanted = max(1, BLOCKS_EACH * _multiprocessors(device) // max(1, strips * batch))
    rows = max(MIN_ROWS, -(-height // wanted))
    return (strips, -(-height // rows), batch), rows


def num_sums(shape: torch.Size, device: torch.device) -> int:
    """How many pairs of sums the first pass leaves for such images."""
    (strips, segments, batch), _ = grid_for(shape, device)
    return strips * segments * batch


def run(
    image: Tensor,  # [B, H, W, C]
    target: Tensor,  # [B, H, W, C] or [B, H, W, C + 1]
    ssim_weight: float,
    mask: Tensor | None,  # [B, H, W]
    background: Tensor | None,  # [C] or [B, C]
    out: Buffers,
) -> None:
    """Fills ``out.loss`` and, unless it is empty, ``out.grad``."""
    image, target = image.detach().contiguous(), target.contiguous()
    mask = None if mask is None else mask.to(torch.float32).contiguous()
    background = None if background is None else background.to(torch.float32).contiguous()
    batch, height, width, channels = image.shape
    grid, rows = grid_for(image.shape, image.device)
    program = program_for(channels, image.dtype, target.dtype, target.shape[-1] > channels)
    step = channels if background is not None and background.dim() == 2 else 0
    addresses = [0 if t is None else t.data_ptr() for t in (image, target, mask, background)]
    given = struct.pack("PPPPiiii", *addresses, batch, height, width, step)
    num_blocks, count, wanted = grid[0] * grid[1] * grid[2], float(image.numel()), out.grad.numel() > 0
    slopes = out.slopes if wanted else None
    launch = functools.partial(launching.launch, program, threads=THREADS, device=image.device)
    launch("ssim_fwd_kernel", grid, arguments=[given, slopes, out.sums, rows])
    numbers = [num_blocks, ssim_weight, count]
    if wanted:
        arguments = [given, slopes, out.sums, out.grad, out.loss, rows, *numbers]
        launch("ssim_bwd_kernel", grid, arguments=arguments)
    else:
        launch("ssim_sum_kernel", (1, 1, 1), arguments=[out.sums, out.loss, *numbers])
