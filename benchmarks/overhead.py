"""Does the bench agree with a bare loop? Both in one process, in turn, so that the machine's noise falls on both.

    python -m benchmarks.overhead --out overhead.json [--devices cpu,cuda] [--only unet-infer] [--small]

The bare loop is written here without any part of the bench: its own model, its own clock, one synchronisation before
and one after. The bench must not be further from it than 3%.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROWS = ("unet-infer", "unet-train", "bilstm-infer", "bilstm-train")
SMALL: dict[str, dict[str, Any]] = {"unet": {"width": 8, "size": 64}, "bilstm": {"hidden": 64, "length": 32}}
PAIRS = {"cpu": 8, "cuda": 32}
"""Where the host sets the pace of a card, a pair differs by a tenth, and only many tell 3% from none."""
CHUNK_SECONDS = 0.25
ALLOWED = 0.03


def bare_loop(target: str, mode: str, device: str, options: dict[str, Any]) -> Callable[..., float]:
    """A function that runs so many steps and says how many milliseconds each took."""
    import torch

    from hotlap.targets import load_target

    workload = load_target(target, options)
    torch.manual_seed(0)
    model = workload.build_model().to(device).train(mode == "train")
    optimizer = workload.optimizer(model)
    where = torch.device(device)
    size = workload.default_batch
    batches = [workload.make_batch(size, where, torch.Generator().manual_seed(i)) for i in range(4)]

    def step(number: int) -> None:
        batch = batches[number % 4]
        if mode == "infer":
            with torch.inference_mode():
                workload.predict(model, batch)
            return
        optimizer.zero_grad(set_to_none=True)
        total, count = workload.loss(model, batch)
        (total / count).backward()
        optimizer.step()

    def run(iterations: int, warm: bool = True) -> float:
        if warm:
            step(0)
        if device == "cuda":
            torch.cuda.synchronize()
        begin = time.perf_counter()
        for number in range(iterations):
            step(number)
        if device == "cuda":
            torch.cuda.synchronize()
        return 1e3 * (time.perf_counter() - begin) / iterations

    return run


def bench_loop(target: str, mode: str, device: str, options: dict[str, Any]) -> Callable[..., float]:
    """The same through the bench's own session and timer."""
    from hotlap.measure.arms import parse_arm
    from hotlap.measure.session import Session
    from hotlap.measure.timed import ArmTimer
    from hotlap.targets import load_target

    workload = load_target(target, options)
    session = Session(workload, parse_arm(device), mode=mode, batch=workload.default_batch, seed=0)
    timer = ArmTimer(session, seed=0)

    def run(iterations: int, warm: bool = True) -> float:
        timer.step_s = 0.0 if warm else 1.0  # the timer itself takes an untimed step first only where steps are short
        timer.time_wall(iterations)
        return timer.samples["wall"][-1]

    return run


def one_row(row: str, device: str, options: dict[str, Any]) -> dict[str, Any]:
    """Both loops in turn; the median of the pairs' ratios with its interval."""
    from hotlap.base import stats

    target, _, mode = row.partition("-")
    bench, bare = bench_loop(target, mode, device, options), bare_loop(target, mode, device, options)
    step_ms = min(bare(1), bench(1))
    iterations = max(1, min(500, math.ceil(1e3 * CHUNK_SECONDS / step_ms)))
    warm = step_ms < 200
    pairs: list[tuple[float, float]] = []
    for number in range(PAIRS[device]):
        if number % 2:
            first = bench(iterations, warm)
            pairs.append((first, bare(iterations, warm)))
        else:
            second = bare(iterations, warm)
            pairs.append((bench(iterations, warm), second))
    ratio = stats.ratio_interval([[b] for b, _ in pairs], [[w] for _, w in pairs], paired=True)
    return {
        "row": row,
        "device": device,
        "iterations": iterations,
        "bench_ms": [b for b, _ in pairs],
        "bare_ms": [w for _, w in pairs],
        "difference": ratio.value - 1,
        "low": ratio.low - 1,
        "high": ratio.high - 1,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("overhead.json"))
    parser.add_argument("--devices", default="cpu,cuda")
    parser.add_argument("--only", default=",".join(ROWS))
    parser.add_argument("--small", action="store_true", help="small models, for a laptop")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker:
        options = SMALL[given.worker.partition("-")[0]] if given.small else {}
        print(json.dumps([one_row(given.worker, device, options) for device in given.devices.split(",")]))
        return
    from hotlap.records.environment import capture

    rows: list[dict[str, Any]] = []
    for row in given.only.split(","):
        command = [sys.executable, "-m", "benchmarks.overhead", "--worker", row, "--devices", given.devices]
        done = subprocess.run([*command, *(["--small"] * given.small)], check=True, stdout=subprocess.PIPE, text=True)
        for found in json.loads(done.stdout.splitlines()[-1]):
            rows.append(found)
            figures = f"{found['difference']:+.2%} [{found['low']:+.2%}, {found['high']:+.2%}]"
            verdict = "ok" if abs(found["difference"]) <= ALLOWED else "TOO FAR"
            print(f"{row} {found['device']}: bench against bare loop {figures} {verdict}", flush=True)
        answer = {"allowed": ALLOWED, "rows": rows, "environment": dataclasses.asdict(capture())}
        given.out.write_text(json.dumps(answer, indent=1) + "\n")


if __name__ == "__main__":
    main()
