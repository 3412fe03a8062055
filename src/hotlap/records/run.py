"""A run on disk: ``runs/<name>/<timestamp>/record.json``, whole or readable in part, never half a file."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import re
import secrets
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from hotlap.base.errors import ConfigError, RecordError, StorageError
from hotlap.records.codec import decode, encode, to_json
from hotlap.records.environment import Environment
from hotlap.records.measurement import Arm, Check, Comparison, Gate, Measurement, Telemetry, Verdict

SCHEMA_VERSION = 1
RECORD_NAME = "record.json"
STAMP = "%Y%m%d-%H%M%S"
"""How the folder of a run says when it began."""
LONGEST_NAME = 60
"""Letters of a run's name in its folder's: of four bytes each, and with a digest, they fit a file system's 255."""
STAGES = "stages"
"""Folder of a lap's run that holds the runs of its stages, as a ``runs`` folder of its own."""


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """Everything one run knew and found; alone enough to repeat it."""

    schema_version: int = SCHEMA_VERSION
    kind: str
    """The tool: bench, doctor, compare, ..."""
    name: str
    status: str
    """running, complete, interrupted, failed, or stopped: ended by itself because going on would make it worse."""
    started_at: str
    finished_at: str = ""
    command: list[str] = field(default_factory=list)
    pid: int = 0
    config: dict[str, Any] = field(default_factory=dict)
    config_sources: dict[str, str] = field(default_factory=dict)
    environment: Environment
    arms: list[Arm] = field(default_factory=list)
    comparisons: list[Comparison] = field(default_factory=list)
    gates: list[Gate] = field(default_factory=list)
    measurements: list[Measurement] = field(default_factory=list)
    telemetry: list[Telemetry] = field(default_factory=list)
    checks: list[Check] = field(default_factory=list)
    extra: dict[str, Any] = field(default_factory=dict)
    """What only this kind of run has: break-even batches, ceilings, ..."""
    notes: list[str] = field(default_factory=list)
    verdict: Verdict | None = None
    path: str = ""
    """Where the record was read from or written to; not part of the file."""

    def samples(self, arm: str, quantity: str) -> list[list[float]]:
        """The raw samples of one quantity of one arm, a list for each process."""
        found = [m for m in self.measurements if m.arm == arm and m.quantity == quantity]
        return [m.values for m in sorted(found, key=lambda m: m.process)]

    def arm(self, name: str) -> Arm:
        for arm in self.arms:
            if arm.name == name:
                return arm
        raise RecordError(f"record {self.name!r} has no arm {name!r}", expected=", ".join(a.name for a in self.arms))


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def run_folder(root: Path, name: str) -> Path:
    """A new, empty ``root/<name>/<timestamp>``; a suffix keeps two runs of one second apart."""
    safe = folder_name(name)
    stamp = datetime.now(UTC).strftime(STAMP)
    for attempt in range(1000):
        folder = root / safe / (stamp if attempt == 0 else f"{stamp}.{attempt}")
        try:
            folder.mkdir(parents=True, exist_ok=False)
        except FileExistsError:
            continue
        except OSError as error:
            raise StorageError(
                f"cannot create {str(folder)!r}: {error.strerror or error}",
                remedy="Free some space or choose another folder with --runs or --out",
            ) from error
        return folder
    raise StorageError(f"no free name under {str(root / safe)!r}")


def folder_name(name: str) -> str:
    """What a run's name becomes as a folder's; one that cannot be a folder's gets a digest, and so stays apart."""
    safe = re.sub(r"[^\w.-]+", "-", name).strip("-.")[:LONGEST_NAME] or "run"
    return safe if safe == name else f"{safe}-{hashlib.sha256(name.encode(errors='surrogateescape')).hexdigest()[:6]}"


def write_atomic(path: Path, content: str | bytes, *, synced: bool = True) -> None:
    """``path`` holds ``content`` whole, or what it held before; a failure leaves nothing behind.

    Not ``synced``, the disk is not waited for: a power cut soon after, and that alone, may leave less.
    """
    # Not tempfile: its files are for their owner alone, and the umask can be asked for only by changing it for all
    # threads. A name may be as long as a name can be.
    temporary = path.parent / f".{path.name[:32]}.{secrets.token_hex(8)}"
    try:
        with open(temporary, "xb") as file:
            file.write(content.encode("utf-8") if isinstance(content, str) else content)
            file.flush()
            if synced:
                os.fsync(file.fileno())
        temporary.replace(path)
    except FileNotFoundError as error:
        raise StorageError(
            f"cannot write {str(path)!r}: there is no folder {str(path.parent)!r}",
            remedy="Make it first, or choose another folder",
        ) from error
    except OSError as error:
        raise StorageError(
            f"cannot write {str(path)!r}: {error.strerror or error}",
            remedy="Free some space or choose another folder; the file that was there before is untouched",
        ) from error
    finally:
        with contextlib.suppress(OSError):  # mostly it has its name by now
            temporary.unlink()


def save(record: RunRecord, folder: Path) -> RunRecord:
    """Writes ``record.json`` into ``folder``; the record that knows its path."""
    data = encode(record)
    del data["path"]
    write_atomic(folder / RECORD_NAME, to_json(data) + "\n")
    return dataclasses.replace(record, path=str(folder / RECORD_NAME))


def load_record(path: Path | str) -> RunRecord:
    """The record in a file, a run's folder or the folder of a name."""
    path = Path(path)
    file = record_at(path) or path / RECORD_NAME
    try:
        text = file.read_text(encoding="utf-8")
    except OSError as error:
        raise RecordError(
            f"no record at {str(path)!r}: {error.strerror or error}",
            remedy="'hotlap list runs' shows the runs that are here",
        ) from error
    except UnicodeDecodeError as error:
        raise RecordError(f"record {str(file)!r} is not whole JSON ({error})") from error
    try:
        data = json.loads(text)
    except ValueError as error:
        raise RecordError(
            f"record {str(file)!r} is not whole JSON ({error})",
            remedy="It was cut or edited; repeat the run that made it",
        ) from error
    version = data.get("schema_version") if isinstance(data, dict) else None
    if version != SCHEMA_VERSION:
        raise RecordError(
            f"record {str(file)!r} has schema_version = {version!r}",
            expected=f"schema_version = {SCHEMA_VERSION}",
            remedy="Read it with the hotlap that wrote it, or repeat the run with this one",
        )
    try:
        record: RunRecord = decode(RunRecord, data)
    except ValueError as error:
        raise RecordError(
            f"record {str(file)!r} is malformed: {error}", remedy="Repeat the run that made it"
        ) from error
    if record.status == "running" and not _alive(record):
        record = dataclasses.replace(record, status="interrupted", notes=[*record.notes, "The run was cut off."])
    return dataclasses.replace(record, path=str(file))


def _alive(record: RunRecord) -> bool:
    """Whether the process that writes this record still runs on this machine."""
    if record.environment.hostname != Environment.this_hostname():
        return True
    try:
        os.kill(record.pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return record.pid > 0


def find_runs(root: Path) -> Iterator[Path]:
    """Every record under ``root``, newest first: of runs in ``<name>/<timestamp>``, and in folders that users named."""
    files = [p for depth in ("*", "*/*") for p in root.glob(f"{depth}/{RECORD_NAME}") if p.is_file()]
    return iter(sorted(files, key=lambda p: (_stamp(p), p.parent.parent.name), reverse=True))


def _stamp(file: Path) -> str:
    """When the run began, by its folder's name; where a user named that, when its record was last written."""
    if re.match(r"\d{8}-\d{6}", file.parent.name):
        return file.parent.name
    return datetime.fromtimestamp(file.stat().st_mtime, UTC).strftime(STAMP)


def record_at(path: Path) -> Path | None:
    """The record that a path leads to: a file, that of a run's folder, or the newest in the folder of a name."""
    if path.is_file():
        return path
    of_name = sorted(path.glob(f"*/{RECORD_NAME}"), key=lambda file: file.parent.name)
    return next((file for file in [path / RECORD_NAME, *reversed(of_name)] if file.is_file()), None)


def is_called(text: str, file: Path) -> bool:
    """Whether ``text`` is the name of the record's run, as it was given or as its folder's, its timestamp, or both."""
    name, stamp = file.parent.parent.name, file.parent.name
    return text in (name, stamp, f"{name}/{stamp}") or folder_name(text) == name


def find_of_kind(text: str, root: Path, kind: str, called: str) -> RunRecord:
    """The record of that kind which a user resumes; 'latest' is the newest of them, whatever else ran since."""
    if text == "latest":
        for file in find_runs(root):
            with contextlib.suppress(RecordError):  # a torn record of another run is not in the way
                record = load_record(file)
                if record.kind == kind:
                    return record
        raise ConfigError(f"resume = 'latest', but no {called} lies under {str(root)!r}")
    record = load_record(resolve_run(text, root))
    if record.kind != kind:
        raise ConfigError(f"resume = {text!r} is the record of a {record.kind}", expected=f"that of a {called}")
    return record


def resolve_run(text: str, root: Path) -> Path:
    """The record a user means: a path, ``latest``, a name (its newest), ``<name>/<timestamp>`` or ``<lap>/<stage>``."""
    if (there := record_at(Path(text))) is not None:
        return there
    runs = list(find_runs(root))
    if text == "latest" and runs:
        return runs[0]
    for file in runs:
        if is_called(text, file):
            return file
    head, _, stage = text.rpartition("/")
    if head:
        for file in runs:
            if head == "latest" or is_called(head, file):
                inside = sorted((file.parent / STAGES / stage).glob(f"*/{RECORD_NAME}"))
                if inside:
                    return inside[-1]
    raise RecordError(
        f"no run {text!r} under {str(root)!r}",
        expected="a path to a record or its folder, 'latest', a name, name/timestamp, or lap/stage",
        remedy="'hotlap list runs' shows the runs that are here",
    )


def begin(kind: str, name: str, config: Any, sources: dict[str, str], environment: Environment) -> RunRecord:
    """The record of a run that has just started."""
    return RunRecord(
        kind=kind,
        name=name,
        status="running",
        started_at=now(),
        command=list(sys.argv),
        pid=os.getpid(),
        config=encode(config),
        config_sources=dict(sources),
        environment=environment,
    )
