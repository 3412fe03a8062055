"""U-Net and BiLSTM, all CPU cores against the GPU, train and infer, eager; and the bench against a bare loop.

Arm ``cuda`` is true float32. ``cuda:tf32`` is nearer to what torch does by default, where convolutions use TF32.

    python -m benchmarks.cpu_vs_gpu --out results/cpu_vs_gpu.json [--quick] [--only unet-train]

Each row is one ``hotlap bench``; a bare loop runs before and after it in a fresh process, to be shown beside it.
Processes differ, so whether the bench's clock is right is judged by ``benchmarks/overhead.py``, in one process.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.overhead import bare_loop

DEVICES = ("cuda", "cpu")
ROWS = {
    "unet-infer": ("cpu", "cuda"),
    "unet-train": ("cpu", "cuda", "cuda:tf32"),
    "bilstm-infer": ("cpu", "cuda"),
    "bilstm-train": ("cpu", "cuda"),
}
"""Arms of each row; TF32 stands beside float32 where convolutions dominate."""
FULL = {"processes": 5, "seconds": 0.5, "warmup_seconds": 1.5, "max_seconds": 3.5, "context": False}
QUICK = {"quick": True}


def bare_ms(target: str, mode: str, device: str, seconds: float) -> float:
    """Milliseconds a step, as a user would time it by hand."""
    from hotlap.device.precision import set_fp32_precision

    set_fp32_precision("ieee")
    loop = bare_loop(target, mode, device, {})
    estimate = min(loop(1), loop(1, warm=False))
    return loop(max(3, int(1e3 * seconds / estimate)))


def bare_in_fresh_process(target: str, mode: str) -> dict[str, float]:
    """One bare loop on each device, in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.cpu_vs_gpu", "--bare", target, mode]
    answer: dict[str, float] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return answer


def one_row(row: str, quick: bool, runs: Path) -> dict[str, Any]:
    """One bench, with a bare loop before and another after it."""
    import hotlap
    from hotlap.records.codec import encode

    target, _, mode = row.partition("-")
    settings = QUICK if quick else {**FULL, "break_even": mode == "infer"}
    bare = [bare_in_fresh_process(target, mode)]
    record = hotlap.bench(target, mode=mode, arms=ROWS[row], runs=runs, emit=_say, **settings)
    bare.append(bare_in_fresh_process(target, mode))
    bare_ms = {device: [loop[device] for loop in bare] for device in DEVICES}
    agreement = {}
    for device, times in bare_ms.items():
        wall = record.arm(device).summary("wall")
        assert wall is not None, record.verdict
        agreement[device] = wall.median / statistics.median(times) - 1
    return {"row": row, "record": encode(record), "bare_ms": bare_ms, "agreement": agreement}


def _say(event: Any) -> None:
    if event.kind in ("note", "warn"):
        print("   ", event.text, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("cpu_vs_gpu.json"))
    parser.add_argument("--runs", type=Path, default=Path("runs"))
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", default=",".join(ROWS), help="rows, separated by commas")
    parser.add_argument("--bare", nargs=2, metavar=("TARGET", "MODE"))
    given = parser.parse_args()
    if given.bare:
        target, mode = given.bare
        print(json.dumps({d: bare_ms(target, mode, d, 1.0 if d == "cuda" else 5.0) for d in DEVICES}))
        return
    rows = []
    for name in given.only.split(","):
        began = time.time()
        row = one_row(name, given.quick, given.runs)
        rows.append(row)
        given.out.write_text(json.dumps({"rows": rows}, allow_nan=False))
        shares = ", ".join(f"{d} {share:+.2%}" for d, share in row["agreement"].items())
        print(f"{name}: {row['record']['verdict']['headline']}", flush=True)
        print(f"    against a bare loop: {shares}; {time.time() - began:.0f} s in all", flush=True)


if __name__ == "__main__":
    main()
