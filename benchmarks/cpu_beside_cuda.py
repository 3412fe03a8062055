"""Is a CPU's arm slower in a process that also drives a card? The bench times both in one process, so it must not be.

    python -m benchmarks.cpu_beside_cuda --out cpu_beside_cuda.json [--only bilstm-infer] [--pairs 8]

Two processes take turns, so that the machine's noise falls on both: one steps on the CPU alone, the other steps on the
CPU just after it has stepped on the card. Each turn is timed inside its process by a bare loop.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.overhead import ROWS, bare_loop

SECONDS = 1.5
"""Of a turn on the CPU, after one step to get its threads going again."""
ALLOWED = 0.05


def worker(row: str, beside: str) -> None:
    """Answers each line that is read with milliseconds a step on the CPU."""
    from hotlap.device.precision import set_fp32_precision

    set_fp32_precision("ieee")
    target, _, mode = row.partition("-")
    cpu = bare_loop(target, mode, "cpu", {})
    other = bare_loop(target, mode, beside, {}) if beside else None
    steps = max(1, round(1e3 * SECONDS / min(cpu(1), cpu(1, warm=False))))
    print("ready", flush=True)
    for _ in sys.stdin:
        if other is not None:
            other(10)
        print(cpu(steps), flush=True)


class Turns:
    """A process that steps when it is asked."""

    def __init__(self, row: str, beside: str) -> None:
        command = [sys.executable, "-m", "benchmarks.cpu_beside_cuda", "--worker", row, "--beside", beside]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.read()

    def read(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline().strip()
        if not line:
            raise RuntimeError(f"a worker ended with exit code {self.process.wait()}")
        return line

    def ms(self) -> float:
        assert self.process.stdin is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()
        return float(self.read())

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def one_row(row: str, pairs: int, beside: str) -> dict[str, Any]:
    """Both in turn; the median of the pairs' ratios with its interval."""
    from hotlap.base import stats

    alone, both = Turns(row, ""), Turns(row, beside)
    found: list[tuple[float, float]] = []
    for number in range(pairs):
        if number % 2:
            second = both.ms()
            found.append((alone.ms(), second))
        else:
            first = alone.ms()
            found.append((first, both.ms()))
    alone.close()
    both.close()
    ratio = stats.ratio_interval([[b] for _, b in found], [[a] for a, _ in found], paired=True)
    return {
        "row": row,
        "alone_ms": [a for a, _ in found],
        "beside_ms": [b for _, b in found],
        "slower_by": ratio.value - 1,
        "low": ratio.low - 1,
        "high": ratio.high - 1,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("cpu_beside_cuda.json"))
    parser.add_argument("--only", default="bilstm-infer", help=", ".join(ROWS))
    parser.add_argument("--pairs", type=int, default=8)
    parser.add_argument("--beside", default="cuda")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker:
        worker(given.worker, given.beside)
        return
    from hotlap.records.environment import capture

    rows = [one_row(row, given.pairs, given.beside) for row in given.only.split(",")]
    for row in rows:
        verdict = "ok" if row["low"] <= ALLOWED else "TOO SLOW"
        print(
            f"{row['row']}: a CPU step beside {given.beside} over one alone {row['slower_by']:+.1%} "
            f"[{row['low']:+.1%}, {row['high']:+.1%}] {verdict}"
        )
    result = {"allowed": ALLOWED, "rows": rows, "environment": dataclasses.asdict(capture())}
    given.out.write_text(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
