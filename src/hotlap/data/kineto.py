"""Traces of torch.profiler (Kineto's Chrome JSON) as columns of numbers: operators, annotations, Python calls, runtime
calls, work of the device, memory. A trace of half a gigabyte becomes some hundred megabytes of numpy arrays.

Times are microseconds since the trace's first event.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hotlap.base.errors import DataError
from hotlap.data.json_events import EventStream

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
NONE = -1
"""In a column of links or ids: there is none."""
MODULE_MARK = "hotlap.module: "
"""Begins the annotation of a module's call in traces of our own, followed by its full name and class."""
LOSS_MARK = "hotlap.loss"
"""The annotation around the workload's loss, the model's call included."""
SETTLE_MARK = "hotlap.settle"
"""The annotation around the wait for the device after the last step, which is the tracing's and not the step's."""
HEARD_EVERY_BYTES = 1 << 26
_TABLES = {
    "cpu_op": "ops",
    "user_annotation": "notes",
    "python_function": "python",
    "cuda_runtime": "runtime",
    "cuda_driver": "runtime",
    "kernel": "device",
    "gpu_memcpy": "device",
    "gpu_memset": "device",
    "cpu_instant_event": "memory",
}
_RANK = re.compile(r"rank[_-]?(\d+)", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class Shapes:
    """The arguments an operator was called with, as far as the trace tells."""

    dims: tuple[Any, ...] = ()
    """Sizes of each argument; () for what is not a tensor, tuples within for a list of tensors."""
    kinds: tuple[str, ...] = ()
    """'float', 'c10::BFloat16', 'Scalar', ... of each argument."""
    values: tuple[str, ...] = ()
    """Arguments that are not tensors, as text; '' for tensors."""
    strides: tuple[Any, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Events:
    """Events of one kind in the order they began; one that contains another comes first."""

    name: Ints
    """Index into the trace's names."""
    start: Floats
    end: Floats
    thread: Ints
    """Index into the trace's threads; of the device's work, into its streams."""
    link: Ints
    """Kineto's 'External id': work of the device and runtime calls carry that of the operator they belong to."""
    correlation: Ints
    """Joins a runtime call with the work it launched."""
    extra: Ints
    """Of operators: index into shapes. Of Python calls: name of the calling line. Of device work: bytes it moved."""
    sequence: Ints
    """Of operators: autograd's sequence number, which a backward operator shares with its forward one."""

    def __len__(self) -> int:
        return len(self.start)

    @property
    def duration(self) -> Floats:
        return self.end - self.start

    def take(self, which: NDArray[Any]) -> Events:
        """Some of the events, by mask or by index."""
        return Events(**{name: getattr(self, name)[which] for name in _COLUMNS})


@dataclass(frozen=True, kw_only=True)
class MemoryEvents:
    """Every allocation (positive bytes) and release (negative), in the order of time."""

    time: Floats
    thread: Ints
    address: Ints
    size: Ints
    allocated: Ints
    """Bytes the allocator had given out after the event."""
    device: Ints
    """The device's index, or NONE for the host."""

    def __len__(self) -> int:
        return len(self.time)


@dataclass(frozen=True, kw_only=True)
class Trace:
    """One trace file: one process of one rank."""

    path: str
    names: list[str]
    threads: list[str]
    shapes: list[Shapes]
    ops: Events
    notes: Events
    python: Events
    runtime: Events
    device: Events
    memory: MemoryEvents
    rank: int | None
    world_size: int | None
    devices: list[dict[str, Any]] = field(default_factory=list)
    """Properties of the cards, as Kineto wrote them."""
    warnings: list[str] = field(default_factory=list)
    """What a reader must know: the file was cut, events were damaged."""
    cut: bool = False

    def names_of(self, events: Events) -> list[str]:
        return [self.names[index] for index in events.name]

    def mask(self, events: Events, wanted: Callable[[str], bool]) -> NDArray[np.bool_]:
        """Which events have a name that ``wanted`` accepts; each distinct name is asked about once."""
        if not len(events):
            return np.zeros(0, dtype=bool)
        distinct, inverse = np.unique(events.name, return_inverse=True)
        return np.array([wanted(self.names[index]) for index in distinct], dtype=bool)[inverse]


_COLUMNS = ("name", "start", "end", "thread", "link", "correlation", "extra", "sequence")
_INTEGERS = tuple(name for name in _COLUMNS if name not in ("start", "end"))


class _Interned:
    """Distinct values in the order they were first seen, each known by its place."""

    def __init__(self) -> None:
        self.places: dict[Any, int] = {}

    def __call__(self, value: Any) -> int:
        return self.places.setdefault(value, len(self.places))


class _Columns:
    """Rows that become an array a window at a time, so that no list grows with the file."""

    def __init__(self, width: int) -> None:
        self.width, self.rows = width, list[tuple[float, ...]]()
        self.blocks: list[Floats] = []

    def flush(self) -> None:
        if self.rows:
            self.blocks.append(np.array(self.rows, dtype=np.float64))
            self.rows = []

    def table(self) -> Floats:
        self.flush()
        return np.concatenate(self.blocks) if self.blocks else np.zeros((0, self.width))


class _Reader:
    """Turns events into rows."""

    def __init__(self) -> None:
        self.names, self.threads, self.shapes = _Interned(), _Interned(), _Interned()
        self.shape_values: list[Shapes] = []
        self.base: float | None = None
        self.tables = {name: _Columns(len(_COLUMNS)) for name in set(_TABLES.values()) - {"memory"}}
        self.memory = _Columns(6)

    def add(self, events: Sequence[dict[str, Any]]) -> None:
        for event in events:
            table = _TABLES.get(event.get("cat", ""))
            if table is None:
                continue
            if table == "memory":
                self._add_memory(event)
            elif event.get("ph") == "X":
                self._add_span(table, event)
        for columns in (*self.tables.values(), self.memory):
            columns.flush()

    def _time(self, event: dict[str, Any]) -> float:
        time = float(event["ts"])
        if self.base is None:
            self.base = time
        return time - self.base

    def _add_span(self, table: str, event: dict[str, Any]) -> None:
        args = event.get("args") or {}
        start = self._time(event)
        name = event["name"]
        extra = sequence = link = correlation = NONE
        if table == "python":
            name = name.partition(" object at 0x")[0]
            extra = self.names(args.get("CallFrom", ""))
        else:
            link = args.get("External id", args.get("external id", NONE))
            if table == "ops":
                sequence = args.get("Sequence number", NONE)
                if "Input Dims" in args:
                    extra = self._shape(args)
            elif table != "notes":
                correlation = args.get("correlation", NONE)
                extra = args.get("bytes", NONE)
        if table == "device":
            thread = self.threads((args.get("device", event.get("pid")), args.get("stream", event.get("tid"))))
        else:
            thread = self.threads((event.get("pid"), event.get("tid")))
        end = start + float(event.get("dur", 0.0))
        row = (self.names(name), start, end, thread, link, correlation, extra, sequence)
        self.tables[table].rows.append(row)

    def _shape(self, args: dict[str, Any]) -> int:
        parts = [args.get(key) or [] for key in ("Input Dims", "Input type", "Concrete Inputs", "Input Strides")]
        key = repr(parts)
        if key not in self.shapes.places:
            dims, kinds, values, strides = (_frozen(part) for part in parts)
            self.shape_values.append(Shapes(dims=dims, kinds=kinds, values=values, strides=strides))
        return self.shapes(key)

    def _add_memory(self, event: dict[str, Any]) -> None:
        args = event.get("args") or {}
        if event.get("name") != "[memory]" or "Bytes" not in args:
            return
        on_card = args.get("Device Type", 0) != 0
        thread = self.threads((event.get("pid"), event.get("tid")))
        self.memory.rows.append(
            (
                self._time(event),
                thread,
                args.get("Addr", NONE),
                args["Bytes"],
                args.get("Total Allocated", 0),
                args.get("Device Id", 0) if on_card else NONE,
            )
        )

    def events(self, table: str) -> Events:
        data = self.tables[table].table()
        data = data[np.lexsort((-data[:, 2], data[:, 1]))]
        columns: dict[str, Any] = {name: data[:, place].copy() for place, name in enumerate(_COLUMNS)}
        return Events(**{name: c.astype(np.int64) if name in _INTEGERS else c for name, c in columns.items()})

    def memory_events(self) -> MemoryEvents:
        data = self.memory.table()
        data = data[np.argsort(data[:, 0], kind="stable")]
        time, *rest = (data[:, place] for place in range(6))
        thread, address, size, allocated, device = (column.astype(np.int64) for column in rest)
        return MemoryEvents(
            time=time.copy(), thread=thread, address=address, size=size, allocated=allocated, device=device
        )


def _frozen(value: Any) -> tuple[Any, ...]:
    return tuple(_frozen(item) if isinstance(item, list) else item for item in value)


def read_trace(path: Path | str, heard: Callable[[int], None] = lambda done: None) -> Trace:
    """The trace in a .json or .json.gz file, as far as it goes; ``heard`` is told the bytes of text read so far."""
    path = Path(path)
    stream, reader, told = EventStream(path), _Reader(), 0
    for events in stream:
        try:
            reader.add(events)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise DataError(
                f"trace {str(path)!r} has an event that is not one: {type(error).__name__}: {error}",
                expected="events with name, ts and dur, as torch.profiler writes them",
            ) from error
        if stream.bytes_read - told >= HEARD_EVERY_BYTES:
            told = stream.bytes_read
            heard(told)
    return _finish(path, stream, reader)


def _finish(path: Path, stream: EventStream, reader: _Reader) -> Trace:
    tables = {name: reader.events(name) for name in ("ops", "notes", "python", "runtime", "device")}
    if not any(len(tables[name]) for name in ("ops", "runtime", "device")):
        raise DataError(
            f"trace {str(path)!r} holds no operator and no kernel" + (", and it was cut" if stream.cut else ""),
            expected="a trace of torch.profiler",
            remedy=" ".join(stream.warnings) or "Export it with profile.export_chrome_trace()",
        )
    info = stream.head.get("distributedInfo") or stream.tail.get("distributedInfo") or {}
    named = _RANK.search(path.name)
    rank = info.get("rank", int(named[1]) if named else None)
    names = list(reader.names.places)
    return Trace(
        path=str(path),
        names=names,
        threads=[f"{pid}/{tid}" for pid, tid in reader.threads.places],
        shapes=reader.shape_values,
        memory=reader.memory_events(),
        rank=rank,
        world_size=info.get("world_size"),
        devices=list(stream.head.get("deviceProperties") or []),
        warnings=list(stream.warnings),
        cut=stream.cut,
        **tables,
    )
