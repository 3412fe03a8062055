"""Does a profile keep its word? Shares add up, idle time is the gap between two clocks, ceilings are the measured ones.

    python -m benchmarks.profile_check --out profile_check.json [--device cuda] [--only unet,bilstm,resnet50] [--small]
    python -m benchmarks.profile_check --large 500 --out large.json

The first form profiles each workload and checks its record against clocks that are not the profiler's: the host's
around the traced steps, and the device's events with the queue kept full. The second writes a trace of so many
megabytes and measures what reading and analysing it costs, in a process of its own.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROWS: dict[str, dict[str, Any]] = {
    "unet": {"target": "unet"},
    "bilstm": {"target": "bilstm"},
    "resnet50": {"target": "torchvision.models:resnet50", "input": ("3x224x224",), "batch": 32},
}
SMALL: dict[str, dict[str, Any]] = {
    "unet": {"workload": {"width": 8, "size": 64}, "batch": 4},
    "bilstm": {"workload": {"hidden": 64, "length": 32}, "batch": 8},
    "resnet50": {"batch": 2},
}
ALLOWED = 0.05
SUM_ALLOWED = 1e-3
HOST_REASONS = ("launch-bound", "waiting for a sync", "waiting for the loader", "copy prepared by the host")
LARGE_SECONDS, LARGE_BYTES = 60.0, 4 * 2**30


def check_one(name: str, device: str, small: bool, runs: Path) -> dict[str, Any]:
    """One workload's profile, and how far it is from the other clocks."""
    import hotlap

    settings = {**ROWS[name], **(SMALL[name] if small else {})}
    target = settings.pop("target")
    record = hotlap.profile(target, arm=device, steps=10, runs=runs, name=f"{name}-profile", **settings)
    found = record.extra["profile"]
    analysis, measured = found["analysis"], found["measured"]
    step, busy = analysis["step_ms"], analysis["busy_ms"]
    idle = sum(part["ms"] for part in analysis["idle"])
    sums = abs(sum(part["ms"] for part in analysis["categories"]) - step) / step
    gap = measured["traced_ms"] - busy
    row = {
        "workload": name,
        "step_ms": measured["step_ms"],
        "slow_down": measured["slow_down"],
        "traced_ms_by_the_host_clock": measured["traced_ms"],
        "traced_ms_by_the_trace": step,
        "busy_ms": busy,
        "idle_ms": idle,
        "idle": analysis["idle"],
        "categories": analysis["categories"],
        "sum_error": sums,
        "gap_error": abs(idle - gap) / gap if gap > 0 else None,
        "launches": analysis["launches"],
        "steps": analysis["steps"],
        "record": record.path,
        "ceilings": _ceilings_are_measured(found, record),
    }
    if measured.get("device_ms"):
        host = sum(part["ms"] for part in analysis["idle"] if part["name"] in HOST_REASONS)
        by_events = measured["traced_ms"] - measured["device_ms"]
        row |= {
            "device_ms_by_events": measured["device_ms"],
            "host_idle_ms": host,
            "gap_ms_by_events": by_events,
            "gap_error_by_events_of_step": abs(host - by_events) / measured["traced_ms"],
        }
    row["passed"] = bool(
        sums <= SUM_ALLOWED
        and analysis["steps"] == 10
        and (row["gap_error"] is None or row["gap_error"] <= ALLOWED or gap < 0.01 * step)
        and row["ceilings"] is not False
    )
    return row


def _ceilings_are_measured(found: dict[str, Any], record: Any) -> bool | None:
    """Whether the roofline's ceilings are the doctor's medians; None where the doctor has measured none."""
    from hotlap.records.ceilings import ceilings_folder

    used = found["roofline"]["ceilings"]
    if not used:
        return None
    for file in ceilings_folder().glob("*.json"):
        rows = json.loads(file.read_text())["ceilings"]
        medians = {c["dtype"]: statistics.median(c["values"]) for c in rows if c["quantity"] == "matmul"}
        copies = [statistics.median(c["values"]) for c in rows if c["quantity"] == "copy"]
        if {**medians, "copy": copies[0] if copies else None} == used:
            return True
    return False


def write_large(path: Path, megabytes: int) -> int:
    """A trace of a small network's steps, with stacks, shapes and memory, repeated until it is so large."""
    import torch
    from torch import nn
    from torch.profiler import profile

    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(1568, 4))
    optimizer = torch.optim.AdamW(model.parameters())
    with profile(record_shapes=True, profile_memory=True, with_stack=True) as tracer:
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.randn(2, 3, 16, 16)).square().mean().backward()
            optimizer.step()
    tracer.export_chrome_trace(str(path))
    events = [event for event in json.loads(path.read_text())["traceEvents"] if "ts" in event]
    length = max(e["ts"] for e in events) - min(e["ts"] for e in events) + 1000.0
    written, copies = 0, 0
    with path.open("w") as file:
        file.write('{"schemaVersion": 1, "traceEvents": [\n')
        while written < megabytes * 1e6:
            parts = (json.dumps({**e, "ts": e["ts"] + copies * length}, indent=2) for e in events)
            text = (",\n" if copies else "") + ",\n".join(parts)
            written += file.write(text)
            copies += 1
        file.write('\n], "traceName": "large"}\n')
    return path.stat().st_size


def read_large(path: Path) -> dict[str, Any]:
    """What reading and analysing costs; to be called in a fresh process."""
    from hotlap.data.kineto import read_trace
    from hotlap.tools.profile.analyse import analyse

    begin, cpu = time.perf_counter(), time.process_time()
    trace = read_trace(path)
    read_s = time.perf_counter() - begin
    found = analyse(trace)
    return {
        "events": sum(
            len(t) for t in (trace.ops, trace.notes, trace.python, trace.runtime, trace.device, trace.memory)
        ),
        "steps": found.steps,
        "read_s": read_s,
        "total_s": time.perf_counter() - begin,
        "cpu_s": time.process_time() - cpu,
        "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }


def check_large(megabytes: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "large.pt.trace.json"
        size = write_large(path, megabytes)
        script = "import json, sys; from benchmarks.profile_check import read_large as read; print(json.dumps(read("
        command = [sys.executable, "-c", script + "sys.argv[1])))", str(path)]
        answer = subprocess.run(command, capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(answer.stdout.splitlines()[-1])
    passed = found["total_s"] < LARGE_SECONDS and found["peak_bytes"] < LARGE_BYTES
    return {"bytes": size, **found, "passed": passed}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--only", default=",".join(ROWS))
    parser.add_argument("--small", action="store_true", help="shapes for two cores")
    parser.add_argument("--measure", action="store_true", help="let the doctor measure the ceilings first")
    parser.add_argument("--large", type=int, default=0, metavar="MB")
    parser.add_argument("--runs", type=Path, default=Path("runs"))
    given = parser.parse_args()
    import hotlap
    from hotlap.records.codec import encode
    from hotlap.records.environment import capture

    if given.large:
        rows = [check_large(given.large)]
    else:
        if given.measure:
            hotlap.doctor(measure=True)
        rows = [check_one(name, given.device, given.small, given.runs) for name in given.only.split(",")]
    for row in rows:
        print(json.dumps({k: v for k, v in row.items() if k not in ("idle", "categories")}))
    given.out.write_text(json.dumps({"rows": rows, "environment": encode(capture())}, indent=1) + "\n")
    sys.exit(0 if all(row["passed"] for row in rows) else 1)


if __name__ == "__main__":
    main()
