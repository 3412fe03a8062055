"""Operators against the ceilings that were measured on this device."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from hotlap.data.kineto import NONE, Ints
from hotlap.records.ceilings import Ceilings
from hotlap.tools.profile.analyse import Worked
from hotlap.tools.profile.arithmetic import FORMULAS, Work, describe_shapes, work_of
from hotlap.tools.profile.categories import COMMUNICATION, ELEMENTWISE, TF32, is_tensor_core
from hotlap.tools.profile.found import Roofline, RoofRow

MAX_ROWS = 40


@dataclass
class _Sum:
    """The calls of one operator with one set of shapes."""

    category: str
    calls: int = 0
    time: float = 0.0


def ceilings_found(ceilings: Ceilings | None) -> dict[str, float]:
    """TFLOP/s by precision and GB/s as 'copy', the medians that were measured."""
    if ceilings is None:
        return {}
    found = {c.dtype: c.median for c in ceilings.ceilings if c.quantity == "matmul"}
    copy = ceilings.find("copy")
    return found | ({"copy": copy.median} if copy else {})


def roofline(worked: Worked, ceilings: Ceilings | None, *, tf32: bool = False) -> Roofline:
    """Each operator with its shapes, its rates, and its distance from the nearer ceiling."""
    peaks = ceilings_found(ceilings)
    tf32 = tf32 or _uses_tf32(worked)
    rows = []
    for (name, shape), found in _sums(worked).items():
        work = work_of(name, worked.trace.shapes[shape])
        if work is None or found.time <= 0 or found.category == COMMUNICATION:
            continue
        rows.append(_row(worked, name, shape, found, work, peaks, tf32))
    rows.sort(key=lambda row: -row.ms)
    if ceilings is None:
        source = "No ceilings were measured for this device and torch; 'hotlap doctor --measure' does it."
    else:
        source = f"{ceilings.device}, measured {ceilings.measured_at} with torch {ceilings.torch}"
    return Roofline(rows=rows[:MAX_ROWS], ceilings=peaks, memory_share=_memory_share(rows), source=source)


def _memory_share(rows: list[RoofRow]) -> float | None:
    """Time at the copy ceiling over time taken, of elementwise operators; at most 1.

    Norms and reductions go over their input more than once, so that their rates are not those of one pass.
    """
    moving = [(row.ideal_ms, row.ms) for row in rows if row.bound == "memory" and row.category == ELEMENTWISE]
    ideal, spent = sum(ideal or 0.0 for ideal, _ in moving), sum(ms for _, ms in moving)
    return min(ideal / spent, 1.0) if ideal > 0 else None


def _uses_tf32(worked: Worked) -> bool:
    if worked.device is None:
        return False
    names = {worked.trace.names[index] for index in worked.device.events.name.tolist()}
    return any(TF32.search(name) and is_tensor_core(name) for name in names)


def _owner(worked: Worked) -> Ints:
    """For each span, the one whose shapes tell its work: the nearest with a formula around it, else itself."""
    spans, names = worked.spans, worked.trace.names
    with_formula = {index for index in set(spans.events.name.tolist()) if names[index] in FORMULAS}
    owner = list(range(len(spans)))
    for index, (name, above) in enumerate(zip(spans.events.name.tolist(), spans.parent_op.tolist(), strict=True)):
        if above >= 0 and owner[above] != above:
            owner[index] = owner[above]
        elif above >= 0 and spans.events.name[above] in with_formula and name not in with_formula:
            owner[index] = above
    return np.array(owner, dtype=np.int64)


def _sums(worked: Worked) -> dict[tuple[str, int], _Sum]:
    """Time and calls by name and shapes, each instant counted for one operator."""
    spans, trace = worked.spans, worked.trace
    owner = _owner(worked)
    times: dict[int, float] = defaultdict(float)
    if worked.device is None:
        for index, time in enumerate(worked.host.own.tolist()):
            times[int(owner[index])] += time
    else:
        for span, time in zip(worked.device.span.tolist(), worked.device.own.tolist(), strict=True):
            if span >= 0:
                times[int(owner[span])] += time
    found: dict[tuple[str, int], _Sum] = {}
    for index, time in times.items():
        shape = int(spans.events.extra[index])
        if not spans.is_op[index] or shape == NONE:
            continue
        key = (trace.names[spans.events.name[index]], shape)
        row = found.setdefault(key, _Sum(category=spans.category[index]))
        row.calls += 1
        row.time += time
    return found


def _row(
    worked: Worked, name: str, shape: int, found: _Sum, work: Work, peaks: dict[str, float], tf32: bool
) -> RoofRow:
    product = name in FORMULAS
    precision = "tf32" if tf32 and product and work.precision == "fp32" else work.precision
    seconds = found.time / 1e6
    flops, moved = work.flops * found.calls, work.bytes * found.calls
    # Elementwise work is done by the plain units, in float32 or better, whatever the tensors hold.
    peak, copy = peaks.get(precision if product else "fp32"), peaks.get("copy")
    ideal, bound = None, ""
    if peak and copy:
        compute, memory = flops / peak / 1e12, moved / copy / 1e9
        ideal, bound = max(compute, memory), "compute" if compute >= memory else "memory"
    return RoofRow(
        name=name,
        shapes=describe_shapes(worked.trace.shapes[shape]),
        category=found.category,
        precision=precision,
        calls=found.calls / worked.window.steps,
        ms=worked.window.per_step_ms(found.time),
        flops=flops / worked.window.steps,
        bytes=moved / worked.window.steps,
        tflops=flops / seconds / 1e12,
        gbps=moved / seconds / 1e9,
        intensity=work.flops / work.bytes if work.bytes else 0.0,
        ideal_ms=1e3 * ideal / worked.window.steps if ideal is not None else None,
        distance=seconds / ideal if ideal else None,
        bound=bound,
    )
