"""Tuned profiles: the fastest right configuration that was found for a model here, and where it no longer holds.

A profile is found again by target, mode and options; whether it still holds is decided by its key: device, driver,
torch, libraries, the model's source and its input. One file a key, so that a profile of another card or torch is never
overwritten.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import platform
import re
import shlex
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hotlap.base.errors import EnvironmentUnusable, RecordError, StorageError
from hotlap.base.format import format_bytes
from hotlap.base.homes import config_home
from hotlap.records.codec import decode, encode
from hotlap.records.run import write_atomic

SCHEMA_VERSION = 1
SAME_MEMORY = 0.01
"""Memory of a machine that differs by less is the same: what a kernel keeps for itself changes with it."""
PROFILE_NAME = "tuned.json"
"""The profile's name in its run's own folder; the store names files by key."""


@dataclass(frozen=True, kw_only=True)
class TunedKey:
    """What a profile was measured on and for; any difference makes it stale."""

    target: str
    """A file of the user's with its whole path."""
    mode: str
    """train or infer."""
    options: dict[str, Any] = field(default_factory=dict)
    """Of the target's factory."""
    inputs: list[str] = field(default_factory=list)
    """Shapes given for a plain module."""
    device: str
    """cpu or cuda."""
    device_name: str
    memory_bytes: int
    """Of the card or the host: with the name, the class of device, not the single one."""
    cores: int = 0
    """Usable CPU cores, for a profile of the CPU."""
    driver: str = ""
    torch: str
    cuda: str = ""
    cudnn: str = ""
    python: str
    model_hash: str
    """Of the source files of the workload and of every module class of the model, and of its parameters' shapes."""
    signature: str
    """Shapes and types of the model's batch, without the number of samples."""

    def digest(self) -> str:
        return hashlib.sha256(json.dumps(encode(self), sort_keys=True).encode()).hexdigest()[:12]

    def names_same_thing(self, other: TunedKey) -> bool:
        """Whether both are about the same target, mode, options and kind of device.

        A file that was moved is the same target as long as it holds the same model.
        """
        mine = (_bare(self.target), self.mode, encode(self.options), self.inputs, self.device)
        theirs = (_bare(other.target), other.mode, encode(other.options), other.inputs, other.device)
        return mine == theirs and (self.target == other.target or self.model_hash == other.model_hash)


@dataclass(frozen=True, kw_only=True)
class TunedProfile:
    """The winner of one search, as it was run last: in its final form."""

    schema_version: int = SCHEMA_VERSION
    key: TunedKey
    arm: str
    """Canonical spelling, as in ``cuda:bf16+channels_last+compile``."""
    batch: int
    objective: str
    p95_limit_ms: float | None = None
    """Milliseconds that 95% of the steps had to keep within, where that was asked for."""
    samples_per_s: float
    samples_ms: list[list[float]]
    """Raw step times of the winner, a list for each process; the last is the final run."""
    p50_ms: float
    p95_ms: float | None
    """None where the steps timed were too few for it."""
    peak_bytes: int | None
    gate_error: float
    """The largest error of the numeric gate relative to what is allowed; below 1 the answer is right."""
    tail_batch: int
    """The ragged tail that was run in the final form; 0 where a lone sample cannot be."""
    max_batch: int
    """The largest batch that was run, and whose last run, where it had one, did not fail."""
    searched_from: str
    """When the search began."""
    measured_at: str
    record: str
    """The search's record."""

    @property
    def goal(self) -> str:
        """The objective, with the limit that was set to it."""
        return self.objective + ("" if self.p95_limit_ms is None else f" within {self.p95_limit_ms:g} ms")


@dataclass(frozen=True)
class Found:
    """What a store knows about a target."""

    profile: TunedProfile | None
    path: Path | None = None
    stale: tuple[str, ...] = ()
    """Why the profile no longer holds; empty for one that does."""
    broken: tuple[str, ...] = ()
    """Files that could not be read, each with the reason."""

    @property
    def holds(self) -> bool:
        return self.profile is not None and not self.stale


def stale_reasons(key: TunedKey, now: TunedKey) -> tuple[str, ...]:
    """How the present differs from what a profile was measured on, in words."""
    words = {
        "device_name": "device", "cores": "usable cores", "driver": "driver", "torch": "torch", "cuda": "CUDA",
        "cudnn": "cuDNN", "python": "Python",
    }  # fmt: skip
    found = [
        f"{word} was {getattr(key, name) or 'none'!s}, is {getattr(now, name) or 'none'!s}"
        for name, word in words.items()
        if getattr(key, name) != getattr(now, name)
    ]
    if abs(key.memory_bytes - now.memory_bytes) > SAME_MEMORY * max(key.memory_bytes, now.memory_bytes):
        found.insert(1, f"its memory was {format_bytes(key.memory_bytes)}, is {format_bytes(now.memory_bytes)}")
    if key.signature != now.signature:
        found.append(f"input was {key.signature}, is {now.signature}")
    if key.model_hash != now.model_hash:
        found.append(f"the model's source changed ({key.model_hash} then, {now.model_hash} now)")
    return tuple(found)


class ProfileStore:
    """The profiles of one user, a file each."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder or default_folder()

    def candidates(self, target: str, mode: str) -> list[Path]:
        """Files that may be about ``target``, by their names alone: cheap, and empty for most users."""
        return sorted(self.folder.glob(f"{_slug(_bare(target))}.{mode}.*.json"))

    def path_of(self, key: TunedKey) -> Path:
        return self.folder / f"{_slug(_bare(key.target))}.{key.mode}.{key.digest()}.json"

    def find(self, now: TunedKey) -> Found:
        """The profile that holds for ``now``; failing that, the nearest stale one with the reasons."""
        broken: list[str] = []
        nearest: Found | None = None
        for path in self.candidates(now.target, now.mode):
            try:
                profile = read_profile(path)
            except RecordError as error:
                broken.append(error.what)
                continue
            if not profile.key.names_same_thing(now):
                continue
            found = Found(profile, path, stale_reasons(profile.key, now))
            if nearest is None or _rank(found) < _rank(nearest):
                nearest = found
        return dataclasses.replace(nearest or Found(None), broken=tuple(broken))

    def save(self, profile: TunedProfile) -> tuple[Path, str]:
        """Where the profile lies, and what kept it from being stored as asked; '' when nothing did.

        A profile of the same key is replaced, unless another search stored a faster one while this one was running.
        """
        path = self.path_of(profile.key)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with _locked(self.folder / ".lock"):
                other = _readable(path)
                if other is not None and _beaten_meanwhile(profile, other):
                    return path, (
                        f"another search stored a faster profile meanwhile ({other.arm} at batch {other.batch}, "
                        f"{other.samples_per_s:.4g} samples/s against {profile.samples_per_s:.4g}); it stays"
                    )
                write_profile(profile, path)
        except OSError as error:
            raise StorageError(
                f"cannot write {str(path)!r}: {error.strerror or error}",
                remedy="Make it writable, or choose another folder with XDG_CONFIG_HOME",
            ) from error
        return path, ""


def command_for(target: str, mode: str, options: Mapping[str, Any], inputs: Sequence[str]) -> str:
    """The command that makes a profile, whole: without its inputs a plain module is refused."""
    given = [word for text in inputs for word in ("--input", text)]
    given += [word for name, value in options.items() for word in ("--set", f"workload.{name}={value}")]
    return shlex.join(["hotlap", "tune", target, "--for", mode, *given])


def default_folder(environ: Mapping[str, str] = os.environ) -> Path:
    return config_home(environ) / "hotlap" / "tuned"


def write_profile(profile: TunedProfile, path: Path) -> None:
    """The profile as JSON, whole or not at all."""
    write_atomic(path, json.dumps(encode(profile), indent=1, allow_nan=False) + "\n")


def read_profile(path: Path) -> TunedProfile:
    """The profile in a file; one that is torn, foreign or of another schema is an error that names it."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        version = data.get("schema_version") if isinstance(data, dict) else None
        if version != SCHEMA_VERSION:
            raise ValueError(f"schema_version = {version!r}, expected {SCHEMA_VERSION}")
        profile: TunedProfile = decode(TunedProfile, data)
        if profile.batch < 1:
            raise ValueError(f"batch = {profile.batch}, expected at least 1")
    except (ValueError, OSError) as error:
        raise RecordError(
            f"tuned profile {str(path)!r} cannot be read: {error}", remedy="Delete it and run 'hotlap tune' again"
        ) from error
    return profile


@contextlib.contextmanager
def only_search(device: str, about: str, folder: Path | None = None, *, card: str = "") -> Iterator[None]:
    """Holds ``device`` for one search at a time, for two would time each other; the second is told who has it.

    ``card`` says which one it really is: each of several processes that see one card alone calls its own cuda:0.
    Without it the device is this machine's, for machines may share a home folder.
    """
    handle = _search_file(card or f"{device}-{platform.node()}", folder or default_folder())
    if handle is None:
        yield
        return
    try:
        if not _try_lock(handle):
            holder = os.pread(handle, 500, 0).decode(errors="replace").strip()
            raise EnvironmentUnusable(
                f"another search is running on {device}" + (f" ({holder})" if holder else ""),
                remedy="Wait for it: two searches at once would time each other",
            )
        with contextlib.suppress(OSError):  # a full disk has no room for a name; the lock holds without
            os.ftruncate(handle, 0)
            os.pwrite(handle, f"process {os.getpid()}, {about}".encode(), 0)
        yield
    finally:
        os.close(handle)


@contextlib.contextmanager
def only_writer(folder: Path) -> Iterator[None]:
    """Holds a run's folder for one search at a time: two that go on with one record would write over each other.

    It is the folder itself that is locked, so nothing is left in it, and whoever dies lets go.
    """
    handle = None
    with contextlib.suppress(OSError):  # where folders cannot be opened there is nothing to lock
        handle = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if handle is not None and not _try_lock(handle):
            raise EnvironmentUnusable(
                f"the search in {str(folder)!r} is still running", remedy="Wait for it, or end it before it goes on"
            )
        yield
    finally:
        if handle is not None:
            os.close(handle)


def _search_file(name: str, folder: Path) -> int | None:
    """A file to lock, open: beside the profiles, or with temporary files where those can only be read; None if neither.

    That the folder cannot be written is said when the profile is saved; its searches still must not time each other.
    """
    uid = os.getuid() if hasattr(os, "getuid") else 0
    place = hashlib.sha256(str(folder.absolute()).encode()).hexdigest()[:8]
    for where in (folder, Path(tempfile.gettempdir()) / f"hotlap-{uid}-{place}"):
        with contextlib.suppress(OSError):
            where.mkdir(parents=True, exist_ok=True)
            return os.open(where / f".search-{_slug(name)}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    return None


def _try_lock(handle: int) -> bool:
    if os.name != "posix":
        return True
    import fcntl

    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    if os.name != "posix":
        yield
        return
    import fcntl

    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _readable(path: Path) -> TunedProfile | None:
    """The profile that lies at ``path``; one that cannot be read may be replaced."""
    try:
        return read_profile(path)
    except RecordError:
        return None


def _beaten_meanwhile(mine: TunedProfile, other: TunedProfile) -> bool:
    if other.goal != mine.goal or other.measured_at <= mine.searched_from:
        return False
    return other.record != mine.record and other.samples_per_s > mine.samples_per_s


def _rank(found: Found) -> tuple[int, str]:
    """Fewer reasons first, then the newer one."""
    assert found.profile is not None
    return len(found.stale), "".join(chr(0x10FFFF - ord(c)) for c in found.profile.measured_at)


def _bare(target: str) -> str:
    """``file.py:factory`` without the path to the file; any other target as it is."""
    place, _, factory = target.rpartition(":")
    return f"{Path(place).name}:{factory}" if place.endswith(".py") else target


def _slug(text: str) -> str:
    """A file name from a target, with a digest where its spelling had to be changed."""
    plain = re.sub(r"[^A-Za-z0-9_-]+", "-", text).strip("-") or "target"
    return plain if plain == text else f"{plain[-60:]}-{hashlib.sha256(text.encode()).hexdigest()[:6]}"
