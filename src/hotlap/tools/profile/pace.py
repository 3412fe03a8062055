"""Who sets the pace of a step: the host that launches or the device that works; and the step after a change to either.

Both work at the same time, so the longer one counts; idle time that neither explains stays as it is::

    step = max(host, device) + waits + rest
"""

from __future__ import annotations

from dataclasses import dataclass

from hotlap.base.format import format_ms
from hotlap.tools.profile.found import Analysis
from hotlap.tools.profile.on_device import BETWEEN, HOST_COPY, LAUNCH, LOADER_WAIT, SYNC

HOST_PACES = 0.1
"""Without a measured host time: the launch-bound share of a step from which the host is taken to set its pace.

A host that is ahead leaves no such gap; a tenth is more than the first launches after a wait take.
"""


@dataclass(frozen=True, kw_only=True)
class Pace:
    """The parts of a step in ms, without the profiler's own time."""

    step_ms: float
    host_ms: float
    """The host's own time, without its waits for the device; 0 where it is only known not to be the longer one."""
    device_ms: float
    """The device's work with the latency between its kernels. Without a device, all that is no wait."""
    waits_ms: float
    """The device idle for a result that the host waited for, for the loader, for copies that the host prepared."""
    knows_host: bool
    """Whether the host's time was measured, or follows from its being the longer one."""
    fixed_ms: float = 0.0
    """Of the device's work, what does not grow with the samples."""

    @property
    def rest_ms(self) -> float:
        """Launch-bound time though the host is the faster one: the first launches after a wait."""
        return self.step_ms - self.waits_ms - max(self.host_ms, self.device_ms)

    @property
    def host_paces(self) -> bool:
        return self.host_ms > self.device_ms

    def device_at(self, work: float) -> float:
        """The device's work with so many times the samples."""
        return self.fixed_ms + work * (self.device_ms - self.fixed_ms)

    def after(
        self, *, device_saved_ms: float = 0.0, host_saves: float = 0.0, waits_saved_ms: float = 0.0, work: float = 1.0
    ) -> float:
        """The step's ms after a change.

        ``host_saves`` is a share of the host's time, less than 0 where the change adds launches. ``work`` is how many
        times as many samples a step has, with no more launches.
        """
        host, device = self.host_ms * (1 - host_saves), self.device_at(work) - device_saved_ms
        rest = self.rest_ms * (1 - max(host_saves, 0.0))
        return max(host, device) + work * self.waits_ms - waits_saved_ms + rest


def pace_of(
    analysis: Analysis, step_ms: float, host_ms: float | None, *, few_ms: float | None = None,
    device_ms: float | None = None, few_device_ms: float | None = None, few_share: float = 0.0,
) -> Pace:  # fmt: skip
    """The step as it was traced, less what the profiler added; as far as measured, ``host_ms`` until its call returned,
    ``few_ms`` of a step with next to no work for the device, and ``device_ms`` and ``few_device_ms`` of the device in
    each of the two, with its queue kept full. ``few_share`` of the samples are in the step with few.
    """
    idle = {part.name: part.ms for part in analysis.idle}
    if not analysis.on_device:
        waits = min(idle.get(LOADER_WAIT, 0.0) * min(step_ms / analysis.step_ms, 1.0), step_ms)
        return Pace(step_ms=step_ms, host_ms=0.0, device_ms=step_ms - waits, waits_ms=waits, knows_host=True)
    waits = min(sum(idle.get(name, 0.0) for name in (SYNC, LOADER_WAIT, HOST_COPY)), step_ms)
    longest = step_ms - waits
    # Kernels of several streams run side by side only where they are all there in time.
    device = min(analysis.busy_ms + idle.get(BETWEEN, 0.0), longest, device_ms or longest)
    known = host_ms is not None or launch_ms(analysis, step_ms) >= HOST_PACES * step_ms
    if host_ms is not None:
        # A call that reads a result returns only when the device is done: that was waiting, not work.
        host = min(max(host_ms - sum(sync.ms for sync in analysis.syncs), 0.0), longest)
        if few_ms is not None:
            # Both are upper bounds, unless waiting had to be taken off the first.
            host = min(few_ms, longest) if analysis.syncs else min(host, few_ms)
    else:
        host = longest if known else 0.0
    # The line through two batches; what it begins with is the same for any.
    slope = (device - min(few_device_ms or 0.0, device)) / (1 - few_share)
    fixed = max(device - slope, 0.0)
    return Pace(
        step_ms=step_ms, host_ms=host, device_ms=device, waits_ms=waits, knows_host=known, fixed_ms=fixed
    )  # fmt: skip


def launch_ms(analysis: Analysis, step_ms: float) -> float:
    """Launch-bound time without the profiler's share of it: the profiler slows the host, hardly the device."""
    slowed = max(analysis.step_ms - step_ms, 0.0)
    return max(sum(part.ms for part in analysis.idle if part.name == LAUNCH) - slowed, 0.0)


def pace_told(pace: Pace) -> str:
    """Why faster kernels would not help, where they would not; else ''."""
    if not pace.host_paces:
        return ""
    return (
        f"The host sets the pace: it needs {format_ms(pace.host_ms)} for what the device does in "
        f"{format_ms(pace.device_ms)}, so faster kernels alone do not shorten the step."
    )
