"""How samples are loaded, as settings; kept apart from the loader so that naming them does not import torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hotlap.base.errors import ConfigError

DEFAULT_PREFETCH = 2
"""Batches that torch's DataLoader keeps in the making for each worker when nothing is said."""


@dataclass(frozen=True, kw_only=True)
class LoaderSettings:
    """How samples are loaded; none of it changes what is loaded."""

    num_workers: int = 0
    """Processes that load; with 0 the trainer's own process does."""
    prefetch_factor: int | None = None
    """Batches in the making for each worker; torch's default of 2 when not given. Only with workers."""
    pin_memory: bool = False
    """Puts batches into page-locked memory, from which a CUDA device copies without holding the host up."""
    persistent_workers: bool = False
    """Keeps the workers from one epoch to the next. Only with workers."""

    def __post_init__(self) -> None:
        if self.num_workers < 0:
            raise ConfigError(f"num_workers = {self.num_workers} is negative", expected="0 or more")
        if self.prefetch_factor is not None and self.prefetch_factor < 1:
            raise ConfigError(f"prefetch_factor = {self.prefetch_factor} is too small", expected="at least 1")
        for name in ("prefetch_factor", "persistent_workers"):
            if self.num_workers == 0 and getattr(self, name):
                raise ConfigError(
                    f"{name} = {getattr(self, name)} with num_workers = 0",
                    expected="workers to apply it to",
                    remedy="Leave it out, or take num_workers = 1 or more",
                )

    def dataloader_arguments(self) -> dict[str, Any]:
        """What torch's DataLoader takes, by keyword."""
        given: dict[str, Any] = {"num_workers": self.num_workers, "pin_memory": self.pin_memory}
        if self.num_workers:
            given |= {"prefetch_factor": self.in_flight // self.num_workers}
            given |= {"persistent_workers": self.persistent_workers}
        return given

    @property
    def in_flight(self) -> int:
        """Batches that may be in the making or waiting at once."""
        return self.num_workers * (self.prefetch_factor or DEFAULT_PREFETCH) or 1
