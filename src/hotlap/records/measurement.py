"""The typed parts of a record: samples, what they were compared with, and what the device did meanwhile."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hotlap.device.memory import Memory as Memory


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """One series of samples: one quantity of one arm in one process. Raw, in the order they were taken."""

    quantity: str
    """wall, interval, device, transfer, first_step, warmup, energy, ..."""
    unit: str
    arm: str
    process: int
    """Which fresh process took the samples; the unit of replication."""
    values: list[float]
    flags: list[str] = field(default_factory=list)
    """What the reader must know: 'throttled', 'queue not kept full', ..."""


@dataclass(frozen=True, kw_only=True)
class Telemetry:
    """The device's state around one timed block."""

    process: int
    arm: str
    block: int
    seconds: float
    """Since the run began."""
    sm_clock_mhz: float | None = None
    memory_clock_mhz: float | None = None
    power_w: float | None = None
    temperature_c: float | None = None
    throttle: list[str] = field(default_factory=list)
    """Reasons other than idling, in the driver's words."""
    other_processes: list[int] = field(default_factory=list)
    """Process ids of other tenants of the device."""
    cpu_clock_mhz: float | None = None
    load_average: float | None = None


@dataclass(frozen=True, kw_only=True)
class Summary:
    """The centre of one quantity with its interval, from all processes of an arm."""

    quantity: str
    unit: str
    median: float
    low: float
    high: float
    """95% hierarchical bootstrap interval of the median."""
    num_processes: int
    num_samples: int
    process_medians: list[float]
    percentiles: dict[str, float] = field(default_factory=dict)
    """Only those the number of samples supports."""
    num_outliers: int = 0
    """Marked, never removed."""


@dataclass(frozen=True, kw_only=True)
class Arm:
    """One configuration that was timed."""

    name: str
    """Canonical spelling, as in ``cuda:bf16+channels_last``."""
    settings: dict[str, Any]
    """device, precision, threads and so on, all of them, resolved."""
    role: str = "arm"
    """baseline, arm, or context (shown beside, timed with fewer samples)."""
    summaries: list[Summary] = field(default_factory=list)
    memory: Memory | None = None
    first_step_s: float | None = None
    """Median over processes: build of kernels, autotuning and compilation included."""
    samples_per_s: float | None = None
    energy_j_per_sample: float | None = None
    notes: list[str] = field(default_factory=list)
    error: str = ""
    """Why the arm gave no time, when it gave none."""

    def summary(self, quantity: str) -> Summary | None:
        return next((s for s in self.summaries if s.quantity == quantity), None)


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """One arm against the baseline."""

    arm: str
    baseline: str
    quantity: str
    ratio: float
    """Baseline time over the arm's time: above 1 the arm is faster."""
    low: float
    high: float
    p_value: float | None
    """Corrected over all arms (Holm); None where the sample cannot reach significance at all."""
    test: str
    min_detectable: float
    """The smallest true change, as a fraction, that this sample would have shown four times in five."""
    verdict: str
    """faster, slower or inconclusive."""
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class GateCheck:
    """One numeric comparison with the float64 reference."""

    name: str
    error: float
    allowed: float
    passed: bool
    detail: str = ""


@dataclass(frozen=True, kw_only=True)
class Gate:
    """Whether an arm still gives the right answer."""

    arm: str
    passed: bool
    checks: list[GateCheck]
    reference: str
    seconds: float = 0.0
    batch: int = 0
    """Samples in the gate's batch; 0 in records from before it was kept."""
    step_s: float = 0.0
    """The arm's fastest step in the gate: its rough pace, for planning, and no measurement."""


@dataclass(frozen=True, kw_only=True)
class Check:
    """One finding of the doctor."""

    name: str
    group: str
    status: str
    """PASS, WARN, FAIL or SKIP."""
    observed: str
    why: str = ""
    fix: str = ""
    """The exact command, or the exact thing to do."""
    seconds: float = 0.0
    data: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The run in one line."""

    outcome: str
    headline: str
    exit_code: int
    lines: list[str] = field(default_factory=list)
