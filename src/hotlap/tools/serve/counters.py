"""What the service has done, as numbers that Prometheus can read."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
HISTOGRAMS: dict[str, tuple[str, Sequence[float]]] = {
    "batch_rows": ("Rows of the batches that went through a model", ROWS),
    "queue_seconds": ("How long requests waited for a batch", SECONDS),
    "batch_seconds": ("How long a model took for a batch", SECONDS),
    "launch_seconds": ("How long a device's process took to put a batch together and launch it", SECONDS),
    "desk_wait_seconds": ("How long requests waited for a desk, to be decoded or finished", SECONDS),
    "decode_seconds": ("How long decoding took, once begun", SECONDS),
    "finish_seconds": ("How long finishing took, once begun", SECONDS),
    "request_seconds": ("From a request's arrival to its answer", SECONDS),
}
COUNTERS: dict[str, str] = {
    "requests_total": "Requests, by how they ended",
    "shed_total": "Requests refused because the queue was full",
    "expired_total": "Requests whose deadline passed",
    "oom_splits_total": "Batches split because memory ran out",
    "worker_deaths_total": "Workers that died and were started again",
    "retried_total": "Requests tried again after a worker died",
}
Labels = tuple[tuple[str, str], ...]


@dataclass
class _Histogram:
    edges: Sequence[float]
    counts: list[int] = field(default_factory=list)
    total: float = 0.0

    def add(self, value: float) -> None:
        self.counts = self.counts or [0] * (len(self.edges) + 1)
        self.counts[bisect_left(self.edges, value)] += 1
        self.total += value


class Counters:
    """Counts and histograms by label; safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[tuple[str, Labels], float] = {}
        self._histograms: dict[tuple[str, Labels], _Histogram] = {}

    def count(self, name: str, amount: float = 1.0, **labels: str) -> None:
        assert name in COUNTERS, name
        with self._lock:
            key = (name, tuple(sorted(labels.items())))
            self._counts[key] = self._counts.get(key, 0.0) + amount

    def observe(self, name: str, value: float, **labels: str) -> None:
        with self._lock:
            key = (name, tuple(sorted(labels.items())))
            self._histograms.setdefault(key, _Histogram(HISTOGRAMS[name][1])).add(value)

    def value(self, name: str, **labels: str) -> float:
        """A count, or how often a histogram was fed; over all labels that are not given."""
        wanted = set(labels.items())
        with self._lock:
            if name in HISTOGRAMS:
                found = [(key, float(sum(h.counts))) for key, h in self._histograms.items()]
            else:
                found = list(self._counts.items())
        return sum(value for (known, has), value in found if known == name and wanted <= set(has))

    def mean(self, name: str, **labels: str) -> float | None:
        """The mean of what a histogram was fed; None before the first."""
        wanted = set(labels.items())
        with self._lock:
            fed = [h for (known, has), h in self._histograms.items() if known == name and wanted <= set(has)]
            total, times = sum(h.total for h in fed), sum(sum(h.counts) for h in fed)
        return total / times if times else None

    def text(self, gauges: Sequence[tuple[str, str, Labels, float]] = ()) -> str:
        """Everything in Prometheus' text format; ``gauges`` are name, help, labels and value as they are now."""
        lines: list[str] = []
        with self._lock:
            for name, said in COUNTERS.items():
                rows = [(has, v) for (known, has), v in sorted(self._counts.items()) if known == name]
                lines += _family(name, said, "counter", [(name, has, v) for has, v in rows])
            for name, (said, _) in HISTOGRAMS.items():
                fed = [(has, h) for (known, has), h in sorted(self._histograms.items()) if known == name]
                lines += _family(name, said, "histogram", [row for has, h in fed for row in _buckets(name, has, h)])
        for name in dict.fromkeys(gauge[0] for gauge in gauges):
            rows_of = [g for g in gauges if g[0] == name]
            lines += _family(name, rows_of[0][1], "gauge", [(name, has, v) for _, _, has, v in rows_of])
        return "\n".join(lines) + "\n"


def _buckets(name: str, has: Labels, histogram: _Histogram) -> list[tuple[str, Labels, float]]:
    rows: list[tuple[str, Labels, float]] = []
    so_far = 0
    for edge, count in zip((*histogram.edges, "+Inf"), histogram.counts, strict=True):
        so_far += count
        rows.append((f"{name}_bucket", (*has, ("le", str(edge))), so_far))
    return [*rows, (f"{name}_sum", has, histogram.total), (f"{name}_count", has, so_far)]


def _family(name: str, said: str, kind: str, rows: Sequence[tuple[str, Labels, float]]) -> list[str]:
    lines = [f"# HELP hotlap_{name} {said}", f"# TYPE hotlap_{name} {kind}"]
    for row, labels, value in rows:
        inner = ",".join(f'{key}="{_escaped(text)}"' for key, text in labels)
        lines.append(f"hotlap_{row}{{{inner}}} {value:.10g}" if inner else f"hotlap_{row} {value:.10g}")
    return lines


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
