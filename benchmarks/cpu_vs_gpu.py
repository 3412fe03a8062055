"""U-Net and BiLSTM, all CPU cores against the GPU, train and infer, eager; and the bench against a bare loop.

Arm ``cuda`` is true float32. ``cuda:tf32`` is nearer to what torch does by default, where convolutions use TF32.

    python -m benchmarks.cpu_vs_gpu --out results/cpu_vs_gpu.json [--quick] [--only unet-train]

Each row is one ``hotlap bench`` by the full protocol. Beside it stands a bare loop, written here without any part of
the bench, in two fresh processes: the bench's own median must agree with it within 3%.
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

TARGETS = ("unet", "bilstm")
MODES = ("infer", "train")
BARE_PROCESSES = 2
FULL = {"processes": 5, "warmup_seconds": 2.0, "max_seconds": 4.0, "context": False}
QUICK = {"quick": True}


def bare_loop(target: str, mode: str, device: str, seconds: float) -> float:
    """Milliseconds a step, as a user would time it by hand."""
    import torch

    from hotlap.targets import load_target

    torch.backends.cuda.matmul.fp32_precision = "ieee"
    torch.backends.cudnn.conv.fp32_precision = "ieee"
    torch.backends.cudnn.rnn.fp32_precision = "ieee"
    workload = load_target(target)
    torch.manual_seed(0)
    model = workload.build_model().to(device).train(mode == "train")
    optimizer = workload.optimizer(model)
    where = torch.device(device)
    batches = [workload.make_batch(workload.default_batch, where, torch.Generator().manual_seed(i)) for i in range(4)]

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

    def finish() -> None:
        if device == "cuda":
            torch.cuda.synchronize()

    step(0)
    finish()
    begin = time.perf_counter()
    step(1)
    finish()
    iterations = max(3, int(seconds / max(time.perf_counter() - begin, 1e-4)))
    for number in range(min(iterations, 30) if iterations > 3 else 0):
        step(number)
    finish()
    begin = time.perf_counter()
    for number in range(iterations):
        step(number)
    finish()
    return 1e3 * (time.perf_counter() - begin) / iterations


def bare_in_fresh_processes(target: str, mode: str, device: str, seconds: float, processes: int) -> list[float]:
    command = [sys.executable, "-m", "benchmarks.cpu_vs_gpu", "--bare", target, mode, device, str(seconds)]
    return [
        float(subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()[-1])
        for _ in range(processes)
    ]


def one_row(target: str, mode: str, quick: bool, runs: Path) -> dict[str, Any]:
    """One bench with its bare loops."""
    import hotlap
    from hotlap.records.codec import encode

    before = {d: bare_in_fresh_processes(target, mode, d, 2.0, BARE_PROCESSES) for d in ("cpu", "cuda")}
    arms = ("cpu", "cuda", "cuda:tf32")
    record = hotlap.bench(target, mode=mode, arms=arms, runs=runs, emit=_say, **(QUICK if quick else FULL))
    row: dict[str, Any] = {"target": target, "mode": mode, "record": encode(record), "bare_ms": before, "agreement": {}}
    for device, samples in before.items():
        wall = record.arm(device).summary("wall")
        assert wall is not None, record.verdict
        row["agreement"][device] = wall.median / statistics.median(samples) - 1
    return row


def _say(event: Any) -> None:
    if event.kind in ("note", "warn"):
        print("   ", event.text, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("cpu_vs_gpu.json"))
    parser.add_argument("--runs", type=Path, default=Path("runs"))
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", default="")
    parser.add_argument("--bare", nargs=4, metavar=("TARGET", "MODE", "DEVICE", "SECONDS"))
    given = parser.parse_args()
    if given.bare:
        target, mode, device, seconds = given.bare
        print(bare_loop(target, mode, device, float(seconds)))
        return
    rows = []
    for target in TARGETS:
        for mode in MODES:
            if given.only and f"{target}-{mode}" not in given.only.split(","):
                continue
            began = time.time()
            row = one_row(target, mode, given.quick, given.runs)
            rows.append(row)
            given.out.write_text(json.dumps({"rows": rows}, allow_nan=False))
            verdict = row["record"]["verdict"]
            shares = ", ".join(f"{d} {share:+.2%}" for d, share in row["agreement"].items())
            print(
                f"{target} {mode}: {verdict['headline']} | against a bare loop: {shares} | {time.time() - began:.0f} s"
            )


if __name__ == "__main__":
    main()
