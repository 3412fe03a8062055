"""The one setting of a card we ever change, only when asked, and always put back: its locked clock."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from hotlap.base.errors import EnvironmentUnusable
from hotlap.device.nvml import Nvml


@contextlib.contextmanager
def locked_clocks(mhz: int | None, library: Any = None) -> Iterator[None]:
    """Holds every card's clock at ``mhz`` inside the block; None changes nothing."""
    if mhz is None:
        yield
        return
    with Nvml(library) as nvml:
        if not nvml.available:
            raise EnvironmentUnusable(
                f"lock_clocks_mhz = {mhz} asked for, but no NVIDIA driver answers ({nvml.reason})"
            )
        handles = [nvml.handle(card.uuid) for card in nvml.cards()]
        locked = []
        try:
            for handle in handles:
                locked.append(handle)  # before the call: an interruption may come after the driver has obeyed
                try:
                    nvml.library.nvmlDeviceSetGpuLockedClocks(handle, mhz, mhz)
                except Exception as error:
                    raise EnvironmentUnusable(
                        f"lock_clocks_mhz = {mhz} was refused by the driver: {error}",
                        remedy="It needs administrator rights and a clock of 'nvidia-smi -q -d SUPPORTED_CLOCKS'",
                    ) from error
            yield
        finally:
            for handle in locked:
                nvml.ask("nvmlDeviceResetGpuLockedClocks", handle)
