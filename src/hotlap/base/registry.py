"""Names to things: built-in ones as import paths, plug-ins from entry points, both loaded only when asked for."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from importlib.metadata import entry_points
from typing import Any

from hotlap.base.errors import TargetError, UnknownName, did_you_mean


@dataclass(frozen=True)
class Entry:
    """One registered name."""

    name: str
    path: str
    """``module:attribute``, imported by :meth:`load`."""
    summary: str
    source: str = "hotlap"
    """The distribution that registered it."""

    def load(self) -> Any:
        module, _, attribute = self.path.partition(":")
        thing: Any = importlib.import_module(module)
        for part in attribute.split("."):
            thing = getattr(thing, part)
        return thing


class Registry:
    """The known names of one kind of thing."""

    def __init__(self, kind: str, group: str, builtin: Mapping[str, tuple[str, str]]) -> None:
        self.kind = kind
        self.group = group
        self._entries = {name: Entry(name, path, summary) for name, (path, summary) in builtin.items()}
        self._scanned = False
        self.broken: dict[str, str] = {}
        """Plug-ins that could not be used, by name, with the reason."""

    def _scan(self) -> None:
        if self._scanned:
            return
        self._scanned = True
        for point in entry_points(group=self.group):
            dist = point.dist.name if point.dist else "unknown distribution"
            if point.name in self._entries:
                if self._entries[point.name].path != point.value:
                    self.broken[f"{point.name} of {dist}"] = f"{dist} registers the name {point.name!r}, which is taken"
                continue
            self._entries[point.name] = Entry(point.name, point.value, f"plug-in from {dist}", dist)

    def names(self) -> list[str]:
        self._scan()
        return sorted(self._entries)

    def __iter__(self) -> Iterator[Entry]:
        self._scan()
        return iter(self._entries[name] for name in self.names())

    def __contains__(self, name: str) -> bool:
        self._scan()
        return name in self._entries

    def get(self, name: str) -> Callable[..., Any]:
        """The thing registered under ``name``, imported now."""
        self._scan()
        if name not in self._entries:
            raise UnknownName(f"unknown {self.kind} {name!r}", remedy=did_you_mean(name, self._entries))
        entry = self._entries[name]
        try:
            return entry.load()
        except (Exception, SystemExit) as error:  # a module may leave on import, as a script without a main guard does
            self.broken[name] = f"{type(error).__name__}: {error}"
            raise TargetError(
                f"{self.kind} {name!r} ({entry.path}, from {entry.source}) cannot be loaded: "
                f"{type(error).__name__}: {error}",
                remedy=f"Reinstall or remove {entry.source}",
            ) from error

    def check_plugins(self) -> dict[str, str]:
        """Tries to import every plug-in; the broken ones by name, with the reason. One failure stops no other.

        Those that load are listed from then on with what they say of themselves.
        """
        for entry in self:
            if entry.source == "hotlap":
                continue
            try:
                said = _own_summary(entry.load())
                self._entries[entry.name] = replace(entry, summary=said or entry.summary)
            except (Exception, SystemExit) as error:  # noqa: BLE001 - a plug-in may fail in any way; it is named and skipped
                self.broken[entry.name] = f"{entry.path} from {entry.source}: {type(error).__name__}: {error}"
        return self.broken


def _own_summary(thing: Any) -> str:
    """A thing's ``summary``, or its docstring's first line; not a docstring that a class has from its base."""
    summary = getattr(thing, "summary", "")
    doc = vars(thing).get("__doc__") if isinstance(thing, type) else getattr(thing, "__doc__", "")
    said = summary if isinstance(summary, str) and summary else doc
    return said.strip().partition("\n")[0] if isinstance(said, str) else ""
