"""What one check finds, before the doctor adds its name, its reason and its time."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

Status = Literal["PASS", "WARN", "FAIL", "SKIP"]


@dataclass(frozen=True, kw_only=True)
class Fix:
    """How to put one thing right."""

    say: str = ""
    """What to do, in words; needed where no command does it alone."""
    commands: tuple[str, ...] = ()
    """Shell commands, in order, each runnable as it stands."""
    on_host: bool = False
    """Whether the commands belong on the host when this is a container."""

    def text(self) -> str:
        """The fix in one line: words first, then the commands."""
        line = " && ".join(self.commands)
        return f"{self.say}: {line}" if self.say and line else self.say or line


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One verdict with the facts it stands on."""

    status: Status
    observed: str
    fix: Fix = Fix()
    data: dict[str, Any] = field(default_factory=dict)


def passed(observed: str, **data: Any) -> Finding:
    return Finding(status="PASS", observed=observed, data=data)


def skipped(reason: str) -> Finding:
    return Finding(status="SKIP", observed=reason)


def warned(observed: str, fix: Fix, **data: Any) -> Finding:
    return Finding(status="WARN", observed=observed, fix=fix, data=data)


def failed(observed: str, fix: Fix, **data: Any) -> Finding:
    return Finding(status="FAIL", observed=observed, fix=fix, data=data)


def worst(findings: list[Finding]) -> Finding:
    """One finding for several cards or files: the worst status, every observation, the worst one's fix."""
    order = ("FAIL", "WARN", "PASS", "SKIP")
    ranked = sorted(findings, key=lambda finding: order.index(finding.status))
    data: dict[str, Any] = {}
    for finding in reversed(ranked):
        data.update(finding.data)
    observed = "; ".join(dict.fromkeys(finding.observed for finding in findings))
    return Finding(status=ranked[0].status, observed=observed, fix=ranked[0].fix, data=data)
