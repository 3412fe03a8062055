"""Which implementation of a kernel runs, and what speaks against the others."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from hotlap.base.errors import KernelUnavailable, UnknownName, did_you_mean


@dataclass(frozen=True, kw_only=True)
class Choice:
    """The implementation that runs."""

    impl: str
    """Its name."""
    against: dict[str, str]
    """Why those that would have been preferred cannot run, by name."""


def choose(why_not: Mapping[str, Callable[[], str]], wanted: str = "auto") -> Choice:
    """The implementation asked for, or with ``auto`` the first that can run.

    ``why_not`` has the implementations in order of preference, each with a function that says why it cannot run here;
    '' means that it can. What was asked for by name is never replaced by another.
    """
    if wanted != "auto":
        if wanted not in why_not:
            raise UnknownName(f"unknown impl {wanted!r}", remedy=did_you_mean(wanted, ["auto", *why_not]))
        reason = why_not[wanted]()
        if reason:
            raise KernelUnavailable(
                f"impl={wanted!r} cannot run here ({wanted}: {reason})", remedy=f"Known: {', '.join(why_not)}"
            )
        return Choice(impl=wanted, against={})
    against: dict[str, str] = {}
    for name, ask in why_not.items():
        reason = ask()
        if not reason:
            return Choice(impl=name, against=against)
        against[name] = reason
    reasons = "; ".join(f"{name}: {reason}" for name, reason in against.items())
    raise KernelUnavailable(f"impl='auto' finds nothing that can run here ({reasons})")
