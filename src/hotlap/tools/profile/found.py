"""What an analysis finds, as it stands in a record: all times in ms for one step, all shares of the step."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class Part:
    """One share of the step; the parts of a list add up to what the list is of."""

    name: str
    ms: float
    share: float


@dataclass(frozen=True, kw_only=True)
class Row:
    """One operator or kernel, all its calls together."""

    name: str
    category: str
    calls: float
    """For one step."""
    ms: float
    """Its own time, without that of others inside it or before it on another stream."""
    share: float
    host_ms: float | None = None
    """Of an operator on a device: the host's time for it, without operators inside it."""
    tensor_cores: bool | None = None
    """Of a kernel: whether its name says so; None for other work."""


@dataclass(frozen=True, kw_only=True)
class ModuleRow:
    """One module of the model."""

    name: str
    kind: str
    """Its class."""
    own_ms: float
    """Forward and backward, without the modules inside it."""
    own_backward_ms: float
    """Of ``own_ms``."""
    total_ms: float
    forward_ms: float
    backward_ms: float
    """Of ``total_ms``; an optimizer's work belongs to no module."""
    share: float


@dataclass(frozen=True, kw_only=True)
class Sync:
    """Calls at which the host waited for the device, from one place."""

    call: str
    op: str
    where: str
    """Source line, where the trace has stacks; else ''."""
    count: float
    ms: float
    """The host's time in them, for one step; the device may have been busy meanwhile."""


@dataclass(frozen=True, kw_only=True)
class Owner:
    """Allocations alive at the peak that came from one place."""

    what: str
    """Operator, with its module in brackets."""
    bytes: int
    count: int


@dataclass(frozen=True, kw_only=True)
class MemoryFound:
    """The memory of one device over the trace."""

    device: str
    peak_bytes: int
    peak_at_ms: float
    base_bytes: int
    """Given out before the trace began: weights, optimizer state, inputs."""
    times_ms: list[float]
    allocated_bytes: list[int]
    owners: list[Owner]


@dataclass(frozen=True, kw_only=True)
class RoofRow:
    """One operator with one set of shapes against the measured ceilings."""

    name: str
    shapes: str
    category: str
    precision: str
    calls: float
    ms: float
    flops: float
    bytes: float
    """Estimates from the shapes: each input read once, the output written once."""
    tflops: float
    gbps: float
    intensity: float
    ideal_ms: float | None = None
    """At the nearer of the two measured ceilings; None where none was measured."""
    distance: float | None = None
    """Times the ideal time."""
    bound: str = ""
    """compute or memory: the nearer ceiling."""


@dataclass(frozen=True, kw_only=True)
class Roofline:
    """Operators against ceilings that were measured on this device, never those of a data sheet."""

    rows: list[RoofRow]
    ceilings: dict[str, float] = field(default_factory=dict)
    """TFLOP/s by precision, and GB/s as 'copy'."""
    memory_share: float | None = None
    """Of the copy ceiling, what elementwise operators reach together; None where it is not known."""
    source: str = ""
    """Device and time of the measurement, or why there is none."""


@dataclass(frozen=True, kw_only=True)
class RankFound:
    """One rank of several."""

    rank: int
    trace: str
    step_ms: float
    busy_ms: float
    idle_ms: float
    communication_ms: float
    """On the device while nothing else ran there."""
    waits_ms: float
    """Behind the slowest rank: what it would wait at the next exchange."""


@dataclass(frozen=True, kw_only=True)
class Advice:
    """One change with what it may gain, and how to find out."""

    name: str
    gain: float
    """Estimated times as fast, for the whole step."""
    saved_ms: float
    why: str
    basis: str
    """What the estimate rests on: measured here, or assumed."""
    arm: str = ""
    """The arm that checks it; '' where no arm can."""
    command: str = ""
    measured: float | None = None
    """Times as fast, where it was checked."""
    at_most: bool = False
    """The gain is a bound: what could make it less is not known."""
    right: bool | None = None
    """Whether the arm passed the numeric gate, where it was checked."""


@dataclass(frozen=True, kw_only=True)
class Analysis:
    """Where the time of one step went."""

    trace: str
    on_device: bool
    """Whether the step's time is that of a device's streams; else that of the host's operators."""
    device: str
    steps: int
    step_ms: float
    """Wall time of one traced step."""
    busy_ms: float
    categories: list[Part]
    """Adds up to the step, idle or host code between operators included."""
    phases: list[Part]
    """Forward, backward, optimizer and the rest; adds up to the step."""
    idle: list[Part]
    """Adds up to step minus busy."""
    ops: list[Row]
    kernels: list[Row]
    modules: list[ModuleRow]
    syncs: list[Sync]
    memory: list[MemoryFound]
    tensor_core_share: float | None = None
    """Of the time in matrix products, convolutions and attention on a device."""
    layout_ms: float = 0.0
    """In kernels that only change a convolution's memory format."""
    launches: float = 0.0
    """Pieces of work given to the device in one step."""
    warnings: list[str] = field(default_factory=list)
