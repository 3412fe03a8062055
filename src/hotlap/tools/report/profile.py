"""A profile's record as the page shows it: what the step is made of, what waits, what to try."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Any

from hotlap.base.format import (
    UNKNOWN,
    format_bytes,
    format_count,
    format_gain,
    format_mean_count,
    format_ms,
    format_number,
    format_percent,
    format_ratio,
)
from hotlap.base.kernel_name import kernel_label
from hotlap.records.run import RunRecord
from hotlap.tools.report.figures import Figure, figure
from hotlap.tools.report.profile_charts import (
    ChangeRow,
    Dot,
    Slice,
    SplitRow,
    changes,
    memory_line,
    roof,
    shares,
    split_bars,
    stacked,
)

COLOURS = {
    "convolution": "a1 solid", "matmul": "a4 solid", "attention": "a5 solid", "recurrent": "a2 solid",
    "normalisation": "a3 solid", "pooling": "a7 solid", "splatting": "a3 soft",
    "elementwise": "a6 solid", "reduction": "a8 solid",
    "indexing": "a7 soft", "loss": "a5 soft", "optimizer": "a2 soft", "memory copy": "a8 soft",
    "communication": "a4 soft", "other": "a0 solid",
}  # fmt: skip
WAITING = "a0 soft"
NUM_ROWS, NUM_MODULES, NUM_CHANGES = 10, 14, 12


@dataclass(frozen=True, kw_only=True)
class TableRow:
    """One operator or kernel, ready to print."""

    name: str
    category: str
    css: str
    calls: str
    time: str
    share: str
    more: str
    """Tensor cores, or the host's time."""


@dataclass(frozen=True, kw_only=True)
class AdviceRow:
    """One thing to try, ready to print."""

    name: str
    gain: str
    measured: str
    tone: str
    why: str
    basis: str
    command: str


@dataclass(frozen=True, kw_only=True)
class ProfileView:
    """The sections that only a profile has."""

    figures: list[Figure] = field(default_factory=list)
    """What the step is made of."""
    idle: Figure | None = None
    waits: list[str] = field(default_factory=list)
    advice: list[AdviceRow] = field(default_factory=list)
    checked: bool = False
    tables: list[tuple[str, list[TableRow]]] = field(default_factory=list)
    modules: Figure | None = None
    memory: list[Figure] = field(default_factory=list)
    owners: list[tuple[str, str]] = field(default_factory=list)
    roofline: Figure | None = None
    farthest: list[list[str]] = field(default_factory=list)
    ranks: list[list[str]] = field(default_factory=list)
    changes: list[Figure] = field(default_factory=list)


def profile_view(record: RunRecord) -> ProfileView | None:
    """What the page says about a profile; None for other records and for one that found nothing."""
    found, compared = record.extra.get("profile"), record.extra.get("diff")
    if record.kind == "profile" and isinstance(compared, dict):
        return ProfileView(changes=_change_figures(compared))
    if record.kind != "profile" or not isinstance(found, dict) or not found.get("analysis"):
        return None
    analysis, roofline = found["analysis"], found.get("roofline") or {}
    advice = [_advice(row) for row in found.get("advice") or []]
    return ProfileView(
        figures=_step_figures(analysis),
        idle=_idle_figure(analysis),
        waits=_waits(found),
        advice=advice,
        checked=any(row.measured for row in advice),
        tables=_tables(analysis),
        modules=_module_figure(analysis),
        memory=[_memory_figure(memory) for memory in analysis.get("memory") or []],
        owners=[
            (owner["what"], f"{format_bytes(owner['bytes'])} in {format_count(owner['count'], 'allocation')}")
            for memory in (analysis.get("memory") or [])[:1]
            for owner in memory["owners"][:10]
        ],
        roofline=_roof_figure(roofline),
        farthest=_farthest(roofline),
        ranks=[_rank(row) for row in found.get("ranks") or []],
    )


def _css(name: str) -> str:
    return COLOURS.get(name, WAITING)


def _slices(parts: list[dict[str, Any]]) -> list[Slice]:
    return [Slice(name=p["name"], ms=p["ms"], share=p["share"], css=_css(p["name"])) for p in parts]


def _step_figures(analysis: dict[str, Any]) -> list[Figure]:
    slices = _slices(analysis["categories"])
    shown = [piece for piece in slices if piece.share >= 0.005]
    under = "device's streams" if analysis["on_device"] else "host's operators"
    caption = (
        f"The {under}, {format_count(analysis['steps'], 'step')} traced, {format_ms(analysis['step_ms'])} each under "
        "the profiler. Every instant belongs to one part, so the parts add up to the step; pale grey is time without "
        "work."
    )
    legend = [(piece.css, piece.name) for piece in shown]
    return [
        figure("What a step is made of", lambda width: stacked(slices, width), legend=legend),
        figure("The same as times", lambda width: shares(shown, width), caption),
        figure("By phase", lambda width: shares(_phases(analysis), width)),
    ]


def _phases(analysis: dict[str, Any]) -> list[Slice]:
    css = {"forward": "a1 solid", "backward": "a1 medium", "optimizer": "a2 soft"}
    return [
        Slice(name=p["name"], ms=p["ms"], share=p["share"], css=css.get(p["name"], WAITING)) for p in analysis["phases"]
    ]


def _idle_figure(analysis: dict[str, Any]) -> Figure | None:
    if not analysis["idle"]:
        return None
    if not analysis["on_device"]:
        return figure(
            "Between operators",
            lambda width: shares(_slices(analysis["idle"]), width),
            "Time in which no operator ran: Python, the optimizer's own loop, and what the profiler adds to both.",
        )
    caption = (
        "Why the device had nothing to do. Launch-bound: the host was still preparing the work. Waiting for a sync: "
        "the host had waited for a result, so that the queue ran empty. Between queued kernels: the device's own gaps."
    )
    return figure("Why the device was idle", lambda width: shares(_slices(analysis["idle"]), width), caption)


def _waits(found: dict[str, Any]) -> list[str]:
    lines = [
        f"{sync['where'] or sync['op'] or 'An unknown place'}: {format_ms(sync['ms'])} a step in "
        f"{format_number(sync['count'])} {sync['call']}"
        + (f" for {sync['op']}" if sync["op"] and sync["where"] else "")
        for sync in found["analysis"].get("syncs") or []
    ]
    word = "waits" if found["analysis"]["on_device"] else "on a card, would wait"
    lines += [
        f"{wait['where']}: {word}, it {wait['why']}, {format_count(wait['count'], 'time')} a step"
        for wait in (found.get("measured") or {}).get("waits") or []
    ]
    return lines[:12]


def _advice(row: dict[str, Any]) -> AdviceRow:
    measured, right = row.get("measured"), row.get("right")
    near = measured is not None and measured >= 1 + 0.5 * (row["gain"] - 1)
    return AdviceRow(
        name=row["name"],
        gain=format_gain(row["gain"], bool(row.get("at_most"))),
        measured="" if measured is None else "wrong answer" if right is False else format_ratio(measured),
        tone="muted" if measured is None else "bad" if right is False or measured < 1 else "good" if near else "warn",
        why=row["why"],
        basis=row["basis"],
        command=row.get("command") or "",
    )


def _tables(analysis: dict[str, Any]) -> list[tuple[str, list[TableRow]]]:
    named = [("Longest kernels", analysis["kernels"]), ("Longest operators", analysis["ops"])]
    return [(title, [_row(row) for row in rows[:NUM_ROWS] if row["ms"] > 0]) for title, rows in named if rows]


def _row(row: dict[str, Any]) -> TableRow:
    cores = {True: "tensor cores", False: "no tensor cores"}.get(row.get("tensor_cores"), "")  # type: ignore[arg-type]
    host = f"host {format_ms(row['host_ms'])}" if row.get("host_ms") else ""
    return TableRow(
        name=kernel_label(row["name"]),
        category=row["category"],
        css=_css(row["category"]),
        calls=format_mean_count(row["calls"]),
        time=format_ms(row["ms"]),
        share=format_percent(row["share"]),
        more=cores or host,
    )


def _module_figure(analysis: dict[str, Any]) -> Figure | None:
    rows = [row for row in analysis["modules"] if row["own_ms"] > 0]
    rows = sorted(rows, key=lambda row: -row["own_ms"])[:NUM_MODULES]
    if not rows:
        return None
    split = [
        SplitRow(
            label=f"{row['name']} {row['kind']}".strip(),
            first_ms=row["own_ms"] - row["own_backward_ms"],
            second_ms=row["own_backward_ms"],
        )
        for row in rows
    ]
    caption = "Each module's own time, without the modules inside it; a backward operator counts for its forward one's."
    return figure(
        "By module",
        lambda width: split_bars(split, ("forward", "backward"), width),
        caption,
        legend=[("a1 solid", "forward"), ("a1 soft", "backward")],
    )


def _memory_figure(memory: dict[str, Any]) -> Figure:
    draw = partial(
        memory_line, memory["times_ms"], memory["allocated_bytes"], memory["peak_at_ms"], memory["peak_bytes"]
    )
    base = f"; {format_bytes(memory['base_bytes'])} of it were given out before" if memory["base_bytes"] else ""
    caption = f"Bytes the allocator had given out on {memory['device']} while the second trace was taken{base}."
    return figure(f"Memory of {memory['device']}", draw, caption)


def _roof_figure(roofline: dict[str, Any]) -> Figure | None:
    rows = roofline.get("rows") or []
    dots = [
        Dot(
            label=f"{row['name']} on {row['shapes']}",
            intensity=row["intensity"],
            tflops=row["tflops"],
            ms=row["ms"],
            distance=row.get("distance"),
            css=_css(row["category"]).partition(" ")[0],
        )
        for row in rows
    ]
    if not dots:
        return None
    caption = (
        f"{roofline.get('source', '').rstrip('.')}. A circle is an operator with its shapes, its area the time it "
        "takes; work and bytes are estimates from the shapes. What lies under the slope is limited by memory, under a "
        "flat line by arithmetic."
    )
    legend = list({_css(row["category"]): row["category"] for row in rows}.items())
    return figure("Roofline", lambda width: roof(dots, roofline.get("ceilings") or {}, width), caption, legend=legend)


def _farthest(roofline: dict[str, Any]) -> list[list[str]]:
    """Longest operators with their distance from the ceiling."""
    return [
        [
            f"{row['name']} {row['shapes']}",
            row["precision"] or UNKNOWN,
            format_ms(row["ms"]),
            f"{format_number(row['tflops'])} TFLOP/s",
            f"{format_number(row['gbps'])} GB/s",
            f"{format_ratio(row['distance'])} ({row['bound']})" if row.get("distance") else UNKNOWN,
        ]
        for row in (roofline.get("rows") or [])[:10]
    ]


def _rank(row: dict[str, Any]) -> list[str]:
    keys = ("step_ms", "busy_ms", "idle_ms", "communication_ms", "waits_ms")
    return [str(row["rank"]), *(format_ms(row[key]) for key in keys)]


def _change_figures(diff: dict[str, Any]) -> list[Figure]:
    titles = {"categories": "By category", "phases": "By phase", "modules": "By module", "kernels": "By kernel",
              "ops": "By operator"}  # fmt: skip
    found = []
    for kind, title in titles.items():
        rows = [
            ChangeRow(label=kernel_label(row["name"]), before_ms=row["before_ms"], after_ms=row["after_ms"])
            for row in (diff.get(kind) or [])[:NUM_CHANGES]
            if row["before_ms"] != row["after_ms"]
        ]
        if rows:
            caption = "Grey: before. Coloured: after, green where it takes less." if kind == "categories" else ""
            found.append(figure(title, partial(changes, rows), caption))
    return found
