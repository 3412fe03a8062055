"""What explains a service's rate: its own counters, the processor time that its processes took, the card's clock."""

from __future__ import annotations

import os
import statistics
import threading
import time
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from hotlap.device.nvml import CardState, Nvml

TICKS = os.sysconf("SC_CLK_TCK")
HISTOGRAMS = ("desk_wait", "decode", "queue", "launch", "batch", "finish", "request")
"""Of seconds, in a request's order; a launch and a batch are those of all its rows."""
EVERY_S = 0.25
"""How often a card is looked at."""


@dataclass(frozen=True)
class Moment:
    """How much had been done by then."""

    at: float
    cpu_s: dict[int, tuple[str, float]]
    """Of each process: what it is, and the processor seconds that it has taken."""
    metrics: dict[str, float]
    """The service's own page, by name and, of buckets, upper edge; all models together."""


def look(root: int, port: int | None = None) -> Moment:
    """The processes from ``root`` down, and the metrics of a service that has some on that port."""
    return Moment(time.perf_counter(), _processor_seconds(root), _metrics(port) if port is not None else {})


def _processor_seconds(root: int) -> dict[int, tuple[str, float]]:
    stats: dict[int, list[str]] = {}
    for file in Path("/proc").glob("[0-9]*/stat"):
        try:
            stats[int(file.parent.name)] = file.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it has ended
    family = {root}
    while grown := {pid for pid, said in stats.items() if int(said[1]) in family} - family:
        family |= grown
    nice = int(stats[root][16])
    return {pid: (_role(pid, root, stats[pid], nice), sum(map(int, stats[pid][11:13])) / TICKS) for pid in family}


def _role(pid: int, root: int, stat: list[str], nice: int) -> str:
    """Desks stand back behind the others, which tells them from the processes of devices."""
    if pid == root:
        return "door"
    try:
        said = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        said = b""  # it has ended meanwhile
    if b"resource_tracker" in said:  # multiprocessing's own
        return "tracker"
    return "desks" if int(stat[16]) > nice else "device"


def _metrics(port: int) -> dict[str, float]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
        text = answer.read().decode()
    found: dict[str, float] = {}
    for line in text.splitlines():
        if line.startswith("#"):
            continue
        name, _, value = line.rpartition(" ")
        name, _, labels = name.partition("{")
        edge = labels.partition('le="')[2].partition('"')[0]
        key = f"{name} {edge}" if edge else name
        found[key] = found.get(key, 0.0) + float(value)
    return found


def between(before: Moment, after: Moment) -> dict[str, Any]:
    """What was done from one moment to the other: cores in use by role, mean seconds of each step, rows of batches."""
    wall_s = after.at - before.at
    cpu_s: dict[str, float] = {}
    for pid, (role, seconds) in after.cpu_s.items():
        cpu_s[role] = cpu_s.get(role, 0.0) + seconds - before.cpu_s.get(pid, (role, 0.0))[1]
    done = {name: value - before.metrics.get(name, 0.0) for name, value in after.metrics.items()}
    means = {name: mean for name in HISTOGRAMS if (mean := _mean(done, f"hotlap_{name}_seconds")) is not None}
    return {
        "wall_s": wall_s,
        "cpu_s": cpu_s,
        "cores": {role: seconds / wall_s for role, seconds in cpu_s.items()},
        "processes": {role: sum(role == one for one, _ in after.cpu_s.values()) for role in cpu_s},
        "mean_s": means,
        "device_busy": done["hotlap_batch_seconds_sum"] / wall_s if "hotlap_batch_seconds_sum" in done else None,
        "batches": done.get("hotlap_batch_rows_count"),
        "mean_batch_rows": _mean(done, "hotlap_batch_rows"),
        "metrics": done,
    }


def _mean(done: dict[str, float], name: str) -> float | None:
    times = done.get(f"{name}_count", 0.0)
    return done[f"{name}_sum"] / times if times else None


class CardWatch:
    """Looks at a card while a block runs; on the CPU, or without NVML, it sees nothing."""

    def __init__(self, device: str) -> None:
        self._device, self._seen = device, list[CardState]()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> CardWatch:
        if self._device.startswith("cuda"):
            self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._done.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _watch(self) -> None:
        import torch

        index = torch.device(self._device).index or 0
        with Nvml() as nvml:
            handle = nvml.handle(str(torch.cuda.get_device_properties(index).uuid))
            while not self._done.wait(EVERY_S) and (state := nvml.state(handle)) is not None:
                self._seen.append(state)

    def found(self) -> dict[str, Any] | None:
        return card_summary(self._seen)


def card_summary(seen: Sequence[CardState]) -> dict[str, Any] | None:
    """Clock, power and utilisation, lowest and median, and what held the clock down; None if nothing was seen."""
    if not seen:
        return None
    names = ("sm_clock_mhz", "power_w", "utilisation", "temperature_c")
    columns = {name: [v for one in seen if (v := getattr(one, name)) is not None] for name in names}
    spread = {name: {"min": min(c), "median": statistics.median(c)} for name, c in columns.items() if c}
    return {"looks": len(seen), **spread, "held_down_by": sorted({word for one in seen for word in one.throttle})}


def explain_card(found: dict[str, Any] | None) -> list[str]:
    """The same in a line, or in none."""
    if found is None:
        return []
    parts = [
        f"{name} {found[name]['median']:.0f} (lowest {found[name]['min']:.0f})"
        for name in ("sm_clock_mhz", "power_w", "utilisation")
        if name in found
    ]
    return [f"card: {', '.join(parts)}; held down by {', '.join(found['held_down_by']) or 'nothing'}"]


def explain(found: dict[str, Any]) -> list[str]:
    """The same in a few lines."""
    cores = [f"{role} {found['cores'][role]:.2f} (of {found['processes'][role]})" for role in sorted(found["cores"])]
    lines = [f"cores in use: {', '.join(cores)}"]
    if found["mean_s"]:
        lines.append("mean ms: " + ", ".join(f"{name} {1e3 * mean:.1f}" for name, mean in found["mean_s"].items()))
    if found["batches"]:
        rows, busy = found["mean_batch_rows"], 100 * found["device_busy"]
        lines.append(
            f"{found['batches']:.0f} batches of {rows:.2f} rows; one was with the device {busy:.1f}% of the time"
        )
    return lines + explain_card(found.get("card"))
