"""How torch multiplies float32, set explicitly both ways: TF32 convolutions are on by default and look like bugs."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
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


@contextlib.contextmanager
def older_switches_agree() -> Iterator[None]:
    """Lets code run that reads and writes torch's older TF32 switches, as its exporter does.

    Those refuse to answer once the newer ones were used and differ from them. What was in force is so again afterwards.
    """
    import torch

    before = fp32_precision()
    torch.backends.cudnn.allow_tf32 = before["conv"] == "tf32"
    torch.backends.cuda.matmul.allow_tf32 = before["matmul"] == "tf32"
    try:
        yield
    finally:
        torch.backends.cuda.matmul.fp32_precision = before["matmul"]
        torch.backends.cudnn.conv.fp32_precision = before["conv"]  # type: ignore[attr-defined]
        torch.backends.cudnn.rnn.fp32_precision = before["rnn"]  # type: ignore[attr-defined]
