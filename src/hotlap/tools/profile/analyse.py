"""A trace in, an Analysis out."""

from __future__ import annotations

import numpy as np

from hotlap.data.kineto import Trace
from hotlap.tools.profile.categories import CATEGORIES, LAYOUT_CHANGE
from hotlap.tools.profile.found import Analysis
from hotlap.tools.profile.memory import memory_found
from hotlap.tools.profile.on_device import DeviceWork, device_work, idle_reasons
from hotlap.tools.profile.on_host import HostWork, host_idle, host_work
from hotlap.tools.profile.rows import add_up, kernel_rows, module_rows, op_rows, parts, tensor_core_share
from hotlap.tools.profile.spans import Spans, nest
from hotlap.tools.profile.syncs import syncs_found
from hotlap.tools.profile.window import Window, find_window


class Worked:
    """A trace with its spans and work resolved, for those who need more than the Analysis."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.window: Window = find_window(trace)
        self.spans: Spans = nest(trace)
        self.host: HostWork = host_work(self.spans, self.window)
        self.device: DeviceWork | None = None
        self.warnings = [*trace.warnings, *self.window.warnings]
        if trace.cut:
            self.warnings.append("The trace was cut, so shares may be wrong: later kinds of events are missing.")
        if len(trace.device):
            self.device, more = device_work(trace, self.spans, self.window)
            self.warnings += [*more, *_dropped(trace, self.window)]


def _dropped(trace: Trace, window: Window) -> list[str]:
    """Launches whose kernel is not in the trace: Kineto drops work without a word when its buffers are late."""
    calls = trace.runtime.take(trace.mask(trace.runtime, lambda name: "LaunchKernel" in name))
    calls = calls.take((calls.start >= window.start) & (calls.end <= window.end))
    lost = int((~np.isin(calls.correlation, trace.device.correlation)).sum())
    if not lost:
        return []
    return [
        f"{lost} of {len(calls)} launches have no kernel in the trace: the profiler lost them, and idle is too long."
    ]


def analyse(trace: Trace, detail: Trace | None = None) -> Analysis:
    """Where the time of one step went; memory and source lines come from ``detail`` when it is given."""
    worked = Worked(trace)
    return analysis_of(worked, Worked(detail) if detail is not None else worked)


def analysis_of(worked: Worked, detail: Worked) -> Analysis:
    trace, window, device = worked.trace, worked.window, worked.device
    spans, host = worked.spans, worked.host
    if device is not None:
        labels, own = (device.category, device.phase, device.module), device.own
        idle = idle_reasons(trace, device, window)
    else:
        labels, own = (spans.category, spans.phase, spans.module), host.own
        idle = host_idle(trace, host, window)
    categories, phases, modules = labels
    times = own.tolist()
    by_category = add_up(categories, times)
    busy = {name: by_category[name] for name in CATEGORIES if name in by_category}
    name = trace.devices[0].get("name", "") if device is not None and trace.devices else ""
    return Analysis(
        trace=trace.path,
        on_device=device is not None,
        device=str(name) or ("" if device is not None else "host"),
        steps=window.steps,
        step_ms=window.per_step_ms(window.length),
        busy_ms=window.per_step_ms(float(np.sum(own))),
        categories=parts(busy | _prefixed(idle, device is not None), window),
        phases=parts(
            add_up(phases, times) | {"idle" if device is not None else "between operators": sum(idle.values())}, window
        ),
        idle=parts(idle, window),
        ops=op_rows(trace, spans, host, device, window),
        kernels=kernel_rows(trace, device, window) if device is not None else [],
        modules=module_rows(modules, phases, times, spans.classes, window),
        syncs=syncs_found(detail.trace, detail.spans, detail.window),
        memory=memory_found(detail.trace, detail.spans, detail.window),
        tensor_core_share=tensor_core_share(trace, device) if device is not None else None,
        layout_ms=_layout_ms(worked),
        launches=len(device.events) / window.steps if device is not None else 0.0,
        warnings=worked.warnings,
    )


def _prefixed(idle: dict[str, float], on_device: bool) -> dict[str, float]:
    """Idle time as categories, told apart from the device's work."""
    return {(f"idle: {name}" if on_device else name): time for name, time in idle.items()}


def _layout_ms(worked: Worked) -> float:
    if worked.device is None:
        return 0.0
    changes = worked.trace.mask(worked.device.events, lambda name: bool(LAYOUT_CHANGE.search(name)))
    return worked.window.per_step_ms(float(worked.device.own[changes].sum()))
