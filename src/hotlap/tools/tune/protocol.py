"""What a search asks of its laboratory, and which arms it takes for one there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from hotlap.measure.arms import parse_arm
from hotlap.tools.tune.rows import Config, GateRow, Row


class Lab(Protocol):
    """Where configurations are run; it remembers everything."""

    rows: list[Row]
    gates: dict[str, GateRow]
    """By numeric class, see :func:`numeric_class`."""

    def trial(self, stage: str, config: Config, *, rung: int, attempt: int, tail: int) -> Row:
        """The row of one trial; one that was run before is not run again."""
        ...

    def turns(self, stage: str, configs: Sequence[Config], *, rung: int, number: int) -> list[Row]:
        """A row for each of some configurations that take turns in one process, the ``number``-th of the search."""
        ...

    def gate(self, arms: Sequence[str]) -> None:
        """Judges the numeric classes of these arms that were not judged yet."""
        ...

    def note(self, text: str) -> None: ...


def numeric_class(arm: str) -> str:
    """What an arm's gate is filed under: all arms of one class give the same answer."""
    return parse_arm(arm).numeric_class


def is_compiled(arm: str) -> bool:
    """Whether its steps are compiled or recorded."""
    spec = parse_arm(arm)
    return bool(spec.compile) or spec.graph
