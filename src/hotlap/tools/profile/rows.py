"""Tables of an analysis: operators, kernels and modules, largest first."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from hotlap.data.kineto import Trace
from hotlap.tools.profile.categories import ATTENTION, CONVOLUTION, MATMUL, RECURRENT, is_tensor_core
from hotlap.tools.profile.found import ModuleRow, Part, Row
from hotlap.tools.profile.on_device import DeviceWork
from hotlap.tools.profile.on_host import HostWork
from hotlap.tools.profile.spans import BACKWARD, Spans
from hotlap.tools.profile.window import Window

MAX_ROWS = 60
"""Rows kept of each table; what is left out is in the trace."""
PRODUCTS = (CONVOLUTION, MATMUL, ATTENTION, RECURRENT)
"""Categories whose work tensor cores can do."""


def add_up(labels: Iterable[str], times: Iterable[float]) -> dict[str, float]:
    found: dict[str, float] = defaultdict(float)
    for label, time in zip(labels, times, strict=True):
        found[label] += time
    return dict(found)


def parts(times: dict[str, float], window: Window) -> list[Part]:
    """Shares of the step, largest first; what took no time is left out."""
    ranked = sorted(times.items(), key=lambda item: -item[1])
    return [
        Part(name=name, ms=window.per_step_ms(us), share=float(us) / window.length) for name, us in ranked if us > 0
    ]


def op_rows(trace: Trace, spans: Spans, host: HostWork, device: DeviceWork | None, window: Window) -> list[Row]:
    """Operators by name: on a device the time of the work they launched, else their own."""
    names, own = spans.events.name.tolist(), host.own.tolist()
    calls: dict[tuple[int, str], int] = defaultdict(int)
    hosts: dict[tuple[int, str], float] = defaultdict(float)
    times: dict[tuple[int, str], float] = defaultdict(float)
    low, high = window.start, window.end
    for index, (name, time) in enumerate(zip(names, own, strict=True)):
        if not spans.is_op[index] or not low <= spans.events.start[index] < high:
            continue
        key = (name, spans.category[index])
        calls[key] += 1
        hosts[key] += time
    if device is None:
        times = hosts
    else:
        for span, category, time in zip(device.span.tolist(), device.category, device.own.tolist(), strict=True):
            if span >= 0:
                times[(names[span], category)] += time
    ranked = sorted(set(times) | set(hosts), key=lambda key: (-times.get(key, 0.0), -hosts.get(key, 0.0)))
    return [
        Row(
            name=trace.names[key[0]],
            category=key[1],
            calls=calls.get(key, 0) / window.steps,
            ms=window.per_step_ms(times.get(key, 0.0)),
            share=times.get(key, 0.0) / window.length,
            host_ms=window.per_step_ms(hosts.get(key, 0.0)) if device is not None else None,
        )
        for key in ranked[:MAX_ROWS]
    ]


def kernel_rows(trace: Trace, device: DeviceWork, window: Window) -> list[Row]:
    """Kernels and copies by name."""
    times: dict[tuple[int, str], float] = defaultdict(float)
    calls: dict[tuple[int, str], int] = defaultdict(int)
    for name, category, time in zip(device.events.name.tolist(), device.category, device.own.tolist(), strict=True):
        times[(name, category)] += time
        calls[(name, category)] += 1
    ranked = sorted(times, key=lambda key: -times[key])
    return [
        Row(
            name=trace.names[key[0]],
            category=key[1],
            calls=calls[key] / window.steps,
            ms=window.per_step_ms(times[key]),
            share=times[key] / window.length,
            tensor_cores=is_tensor_core(trace.names[key[0]]) if key[1] in PRODUCTS else None,
        )
        for key in ranked[:MAX_ROWS]
    ]


def tensor_core_share(trace: Trace, device: DeviceWork) -> float | None:
    """Of the device's time in products, how much its kernels' names put on tensor cores; None without products."""
    known = {int(index): is_tensor_core(trace.names[index]) for index in set(device.events.name.tolist())}
    total = used = 0.0
    for name, category, time in zip(device.events.name.tolist(), device.category, device.own.tolist(), strict=True):
        if category in PRODUCTS:
            total += time
            used += time if known[name] else 0.0
    return used / total if total > 0 else None


def module_rows(
    modules: Sequence[str], phases: Sequence[str], times: Sequence[float], classes: dict[str, str], window: Window
) -> list[ModuleRow]:
    """Every module with its own time and that of the modules inside it, largest first."""
    own: dict[str, float] = defaultdict(float)
    total: dict[str, float] = defaultdict(float)
    backward: dict[str, float] = defaultdict(float)
    own_backward: dict[str, float] = defaultdict(float)
    for module, phase, time in zip(modules, phases, times, strict=True):
        if not module or not time:
            continue
        own[module] += time
        own_backward[module] += time if phase == BACKWARD else 0.0
        for around in _upwards(module, classes):
            total[around] += time
            backward[around] += time if phase == BACKWARD else 0.0
    ranked = sorted(total, key=lambda name: -total[name])
    return [
        ModuleRow(
            name=name,
            kind=classes.get(name, ""),
            own_ms=window.per_step_ms(own.get(name, 0.0)),
            own_backward_ms=window.per_step_ms(own_backward.get(name, 0.0)),
            total_ms=window.per_step_ms(total[name]),
            forward_ms=window.per_step_ms(total[name] - backward[name]),
            backward_ms=window.per_step_ms(backward[name]),
            share=total[name] / window.length,
        )
        for name in ranked[: 2 * MAX_ROWS]
    ]


def _upwards(module: str, classes: dict[str, str]) -> list[str]:
    """A module and those around it, by its dotted name; 'model' is around all that were marked by us."""
    names = [module]
    while "." in names[-1]:
        names.append(names[-1].rpartition(".")[0])
    if "model" in classes and module != "model":
        names.append("model")
    return [name for name in names if name in classes]
