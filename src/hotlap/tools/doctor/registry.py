"""The doctor's checks by name: facts read in its own process, and probes that each run in another."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from importlib.metadata import entry_points

from hotlap.base.errors import UnknownName, did_you_mean
from hotlap.tools.doctor.finding import Finding
from hotlap.tools.doctor.machine import Machine

GROUPS = ("driver", "libraries", "container", "card", "host", "cpu", "gpu", "measure")
PLUGIN_GROUP = "hotlap.checks"
_MODULES = (
    "checks.driver", "checks.devices", "checks.libraries", "checks.container", "checks.card", "checks.host",
    "probes.host", "probes.torch_build", "probes.cpu", "probes.gpu_start", "probes.gpu_math", "probes.gpu_train",
    "probes.ceilings",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Spec:
    """One check: what it is called, why it matters, and how it comes to its finding."""

    name: str
    group: str
    why: str
    facts: Callable[[Machine], Finding] | None = None
    """Judges what the doctor's own process can read; imports no torch, opens no CUDA context."""
    probe: Callable[[], Finding] | None = None
    """Runs in a process of its own, which it may hang or kill."""
    needs: tuple[str, ...] = ()
    """Checks without whose PASS or WARN this one is skipped."""
    cuda: bool = False
    """Whether the probe needs a card that torch may use; such probes never run side by side."""
    alone: bool = False
    """Whether the probe measures, so that nothing else may run beside it."""
    patience: float = 1.0
    """How many times the usual time limit it may take."""


_SPECS: dict[str, Spec] = {}


def _register(spec: Spec) -> None:
    assert spec.group in GROUPS, f"group {spec.group!r} of check {spec.name!r} is not one of {GROUPS}"
    _SPECS[spec.name] = spec


def check(name: str, *, group: str, why: str) -> Callable[[Callable[[Machine], Finding]], Callable[[Machine], Finding]]:
    """Registers a function of the machine's facts."""

    def register(function: Callable[[Machine], Finding]) -> Callable[[Machine], Finding]:
        _register(Spec(name=name, group=group, why=why, facts=function))
        return function

    return register


def probe(
    name: str, *, group: str, why: str, needs: tuple[str, ...] = (), alone: bool = False, patience: float = 1.0
) -> Callable[[Callable[[], Finding]], Callable[[], Finding]]:
    """Registers a function that runs in its own process; it imports what it needs inside its body."""

    def register(function: Callable[[], Finding]) -> Callable[[], Finding]:
        cuda = "cuda-start" in needs or name == "cuda-start"
        spec = Spec(name=name, group=group, why=why, probe=function, needs=needs, cuda=cuda)
        _register(replace(spec, alone=alone, patience=patience))
        return function

    return register


def load_checks() -> tuple[dict[str, Spec], dict[str, str]]:
    """Every check by name in the order of the groups, and the plug-ins that failed to load with the reason."""
    for module in _MODULES:
        importlib.import_module(f"hotlap.tools.doctor.{module}")
    broken: dict[str, str] = {}
    for point in entry_points(group=PLUGIN_GROUP):
        try:
            point.load()
        except Exception as error:  # noqa: BLE001 - a plug-in may fail in any way; it is named and left out
            broken[point.name] = f"{point.value}: {type(error).__name__}: {error}"
    ordered = sorted(_SPECS.values(), key=lambda spec: GROUPS.index(spec.group))
    return {spec.name: spec for spec in ordered}, broken


def select(specs: dict[str, Spec], only: Iterable[str], *, measure: bool) -> list[Spec]:
    """The checks to run: those named, alone or by group, with what they need; without names, all of them."""
    wanted: set[str] = set()
    names = list(only)
    for name in names:
        members = [spec.name for spec in specs.values() if name in (spec.name, spec.group)]
        if not members:
            raise UnknownName(f"unknown check {name!r} in only", remedy=did_you_mean(name, [*specs, *GROUPS]))
        wanted.update(members)
    if not names:
        wanted = {spec.name for spec in specs.values() if spec.group != "measure"}
    if measure:
        wanted.update(spec.name for spec in specs.values() if spec.group == "measure")
    pending = list(wanted)
    while pending:
        for need in specs[pending.pop()].needs:
            if need not in wanted:
                wanted.add(need)
                pending.append(need)
    return [spec for spec in specs.values() if spec.name in wanted]
