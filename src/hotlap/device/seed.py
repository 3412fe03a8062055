"""Chance, fixed: one seed decides weights, inputs and dropout."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from hotlap.base.errors import DeviceUnavailable, EnvironmentUnusable

if TYPE_CHECKING:
    import torch


def seed_everything(seed: int) -> None:
    """Seeds Python, numpy and torch on every device."""
    import numpy
    import torch

    random.seed(seed)
    numpy.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def generator(seed: int) -> torch.Generator:
    """A CPU generator of its own, so that a batch does not depend on what was drawn before it."""
    import torch

    return torch.Generator().manual_seed(seed)


def rng_state() -> dict[str, Any]:
    """Where every global generator stands: Python, numpy, torch, and each CUDA device if CUDA is in use.

    Plain numbers and CPU tensors only, so that a checkpoint can hold it. A process that has not touched CUDA is not
    made to; its generators there still stand where the seed put them.
    """
    import numpy
    import torch

    version, words, python_gauss = random.getstate()
    legacy: Any = numpy.random.get_state(legacy=False)
    if legacy["bit_generator"] != "MT19937":
        raise EnvironmentUnusable(
            f"numpy's global generator is {legacy['bit_generator']}", expected="MT19937, numpy's own default"
        )
    return {
        "python": {"version": version, "words": torch.tensor(words, dtype=torch.int64), "gauss": python_gauss},
        "numpy": {
            "keys": torch.tensor(legacy["state"]["key"].astype("int64")),
            "position": int(legacy["state"]["pos"]),
            "has_gauss": int(legacy["has_gauss"]),
            "gauss": float(legacy["gauss"]),
        },
        "torch": torch.get_rng_state(),
        "cuda": [state.cpu() for state in torch.cuda.get_rng_state_all()] if torch.cuda.is_initialized() else [],
    }


def set_rng_state(state: Mapping[str, Any], *, all_devices: bool = True) -> None:
    """Puts every global generator back to where ``rng_state`` found it: the next draws are the same, bit for bit.

    ``all_devices=False`` leaves out CUDA devices that are not here, for a run that moved to a smaller machine.
    """
    import numpy
    import torch

    states, num_here = state["cuda"], torch.cuda.device_count()
    if all_devices and len(states) > num_here:
        raise DeviceUnavailable(
            f"the random state is of {len(states)} CUDA devices, {num_here} are visible",
            expected="at least as many as when it was saved",
            remedy="Make them visible (CUDA_VISIBLE_DEVICES); on fewer the run cannot be repeated bit for bit",
        )
    python, legacy = state["python"], state["numpy"]
    random.setstate((python["version"], tuple(python["words"].tolist()), python["gauss"]))
    keys = legacy["keys"].cpu().numpy().astype("uint32")
    numpy.random.set_state(("MT19937", keys, legacy["position"], legacy["has_gauss"], legacy["gauss"]))
    torch.set_rng_state(state["torch"].cpu())
    for index, device_state in enumerate(states[:num_here]):
        torch.cuda.set_rng_state(device_state.cpu(), index)
