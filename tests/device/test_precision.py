"""Torch's older TF32 switches can be read where the newer ones were used, and nothing stays changed."""

from __future__ import annotations

import pytest
import torch

from hotlap.device.precision import fp32_precision, older_switches_agree, set_fp32_precision


@pytest.mark.usefixtures("plain_float32")
@pytest.mark.parametrize("mode", ["ieee", "tf32"])
def test_older_switches_answer_inside_and_the_newer_ones_hold_afterwards(mode):
    set_fp32_precision(mode)
    with older_switches_agree():
        assert torch.backends.cudnn.allow_tf32 is (mode == "tf32")
        assert torch.backends.cuda.matmul.allow_tf32 is (mode == "tf32")
        torch.backends.cudnn.allow_tf32 = True
    assert set(fp32_precision().values()) == {mode}
