"""The one error tree: each error says what is wrong, what was expected, what to do, and how the process exits."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

EXIT_OK = 0
EXIT_CHECK_FAILED = 1
EXIT_USAGE = 2
EXIT_INCONCLUSIVE = 3
EXIT_ENVIRONMENT = 4
EXIT_OUT_OF_MEMORY = 5


class HotlapError(Exception):
    """Base of every error meant for the user's eyes."""

    exit_code = EXIT_CHECK_FAILED

    def __init__(self, what: str, *, expected: str = "", remedy: str = "") -> None:
        self.what = what
        self.expected = expected
        self.remedy = remedy
        super().__init__(self.paragraph())

    def paragraph(self) -> str:
        """One paragraph: what is wrong, what was expected, what to do."""
        parts = [self.what, f"Expected {self.expected}" if self.expected else "", self.remedy]
        return " ".join(part if part.endswith(("?", "...")) else part.rstrip(".") + "." for part in parts if part)


class UsageError(HotlapError):
    """The request itself is wrong: a name, a value, a file."""

    exit_code = EXIT_USAGE


class ConfigError(UsageError):
    """A setting has an unknown name or a value of the wrong kind."""


class UnknownName(UsageError):
    """A name is not among the known ones."""


class TargetError(UsageError):
    """A target was found but cannot be turned into a workload."""


class ShapeError(UsageError):
    """A tensor's shape does not fit its neighbours'."""


class RecordError(UsageError):
    """A record cannot be read: missing, cut short, or of another schema."""


class DataError(UsageError):
    """A data file or folder is missing or malformed."""


class TooLarge(DataError):
    """What was given may be well-formed, and is more than is taken at once."""


class EnvironmentUnusable(HotlapError):
    """This machine cannot do what was asked: no device, no library, a dead worker."""

    exit_code = EXIT_ENVIRONMENT


class DeviceUnavailable(EnvironmentUnusable):
    """The device asked for is not there or does not answer."""


class KernelUnavailable(EnvironmentUnusable):
    """The implementation of a kernel that was asked for cannot run on this machine or these tensors."""


class WorkerDied(EnvironmentUnusable):
    """A measuring process ended without its answer."""


class LoaderDied(WorkerDied):
    """A process that loads samples ended before its batch came."""


class StorageError(EnvironmentUnusable):
    """A result could not be written: full disk, no permission."""


class OutOfMemory(HotlapError):
    """The batch does not fit, and no smaller split was allowed."""

    exit_code = EXIT_OUT_OF_MEMORY


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A sentence for an error's remedy: the nearest known names, or all of them when there are few."""
    names = sorted(set(known))  # a group may have a member of its name
    close = get_close_matches(name, names, n=3, cutoff=0.6)
    if close:
        return f"Did you mean {' or '.join(repr(c) for c in close)}?"
    if not names:
        return "None are known here"
    return f"Known: {', '.join(names)}"
