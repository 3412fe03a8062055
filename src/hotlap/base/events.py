"""What a tool tells while it works; a door turns it into bars and lines, a script may ignore it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal


@dataclass(frozen=True, kw_only=True)
class Event:
    """One thing that happened in a running tool."""

    kind: Literal["start", "advance", "finish", "note", "warn", "result"]
    task: str = ""
    """The task a start, advance or finish belongs to."""
    done: float = 0.0
    total: float | None = None
    """None while the amount of work is not known."""
    text: str = ""
    data: dict[str, Any] = field(default_factory=dict)


Emit = Callable[[Event], None]


def ignore(event: Event) -> None:
    """The listener of a caller who does not want to hear."""


def start(task: str, total: float | None, text: str = "") -> Event:
    return Event(kind="start", task=task, total=total, text=text)


def advance(task: str, done: float, total: float | None, text: str = "") -> Event:
    return Event(kind="advance", task=task, done=done, total=total, text=text)


def finish(task: str, text: str = "") -> Event:
    return Event(kind="finish", task=task, text=text)


def note(text: str) -> Event:
    return Event(kind="note", text=text)


def warn(text: str) -> Event:
    return Event(kind="warn", text=text)
