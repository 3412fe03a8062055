"""How torch multiplies float32, set explicitly both ways: TF32 convolutions are on by default and look like bugs."""

from __future__ import annotations

from typing import Literal


def set_fp32_precision(mode: Literal["ieee", "tf32"]) -> None:
    """Full float32, or TF32 on the tensor cores, for matrix products, convolutions and recurrent layers."""
    import torch

    torch.backends.cuda.matmul.fp32_precision = mode
    torch.backends.cudnn.conv.fp32_precision = mode  # type: ignore[attr-defined]
    torch.backends.cudnn.rnn.fp32_precision = mode  # type: ignore[attr-defined]


def fp32_precision() -> dict[str, str]:
    """What is in force now."""
    import torch

    return {
        "matmul": torch.backends.cuda.matmul.fp32_precision,
        "conv": torch.backends.cudnn.conv.fp32_precision,  # type: ignore[attr-defined]
        "rnn": torch.backends.cudnn.rnn.fp32_precision,  # type: ignore[attr-defined]
    }
