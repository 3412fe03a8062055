"""What a training asks of the processes that share each effective batch."""

from __future__ import annotations

from typing import Any, Protocol

from torch import Tensor, nn


class Team(Protocol):
    """Processes that share each effective batch. Their CPU generators stand alike, so that they agree on dropout."""

    rank: int
    size: int

    def any_failed(self, failed: bool) -> bool:
        """Whether it is true of any process; every process gets the same answer."""

    def any_stops(self, stop: bool) -> bool:
        """Whether any process had been told to stop at the last vote; ``stop`` goes along with the next one."""

    def same(self, value: Any) -> Any:
        """The first process's value, everywhere."""

    def gather(self, value: Any) -> list[Any]:
        """Every process's value, in order; only the first process gets them, the others get an empty list."""

    def smallest(self, value: int) -> int:
        """The smallest of all processes' values."""

    def total(self, value: Tensor) -> Tensor:
        """The sum over all processes."""

    def sum_gradients(self, parameters: list[nn.Parameter]) -> None:
        """Adds up every gradient over all processes."""
