"""How much faster than eager float32 the tuned forms are, in one run: fresh processes that take turns.

    python -m benchmarks.tuned_speed --out tuned_speed.json [--only unet-train,bilstm-train] [--rounds 3]
    python -m benchmarks.tuned_speed --forked --rounds 1 --only unet-infer-folded   # which of several forms wins

Each configuration is one arm at one batch, as ``hotlap tune`` tries it: whole steps, the optimizer's state, the
worst-case shape. Every arm passes the numeric gate first, or gets no figure. Ratios are samples a second against
``cuda``, true float32 at the workload's own batch, and against ``cuda:tf32``, nearer to what torch does by default.

Beside the rows that are asked for there are some that compare forms: larger batches with cuDNN's own search, padded
channels, folded norms, convolutions by Triton. ``--forked`` starts trials from one process that has imported torch,
as the tuner does, which saves some eight seconds for each.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
from pathlib import Path
from typing import Any

from hotlap.base.errors import HotlapError
from hotlap.base.stats import ratio_interval
from hotlap.measure.jobs import Gates
from hotlap.measure.nursery import COMPILERS, Nursery
from hotlap.measure.process import Starter, run_job
from hotlap.measure.trial import Trial
from hotlap.records.codec import decode, encode
from hotlap.records.environment import capture
from hotlap.tools.tune.search import numeric_class

UNET_FAST = "cuda:bf16+channels_last+compile+fused+graph"
UNET_INFER = "cuda:bf16+channels_last+compile+graph"
BILSTM_FAST = "cuda:fp16+fused+graph+kernels"
EAGER, EAGER_INFER = "cuda:bf16+channels_last+fused+graph", "cuda:bf16+channels_last+graph"
AUTOTUNE = "cuda:bf16+channels_last+compile=max-autotune-no-cudagraphs+cudnn_benchmark+graph"
ROWS: dict[str, tuple[str, str, tuple[tuple[str, int], ...]]] = {
    "unet-train": ("unet", "train", (("cuda", 16), ("cuda:tf32", 16), (UNET_FAST, 16), (UNET_FAST, 64))),
    "unet-infer": ("unet", "infer", (("cuda", 16), ("cuda:tf32", 16), (UNET_INFER, 16), (UNET_INFER, 64))),
    "bilstm-train": ("bilstm", "train", (("cuda", 64), ("cuda:tf32", 64), ("cuda:fp16+graph", 64), (BILSTM_FAST, 64))),
    "unet-train-batch": (
        "unet",
        "train",
        (("cuda:tf32", 16), (UNET_FAST, 64), *((f"{UNET_FAST}+cudnn_benchmark", size) for size in (64, 128, 256))),
    ),
    "unet-train-eager": (
        "unet",
        "train",
        (
            ("cuda:tf32", 16),
            *((EAGER + more, 64) for more in ("", "+cudnn_benchmark", "+padded", "+cudnn_benchmark+padded")),
        ),
    ),
    "unet-train-padded": (
        "unet",
        "train",
        (("cuda:tf32", 16), *((f"{UNET_FAST}+cudnn_benchmark{more}", 64) for more in ("", "+padded"))),
    ),
    "unet-train-autotune": ("unet", "train", (("cuda:tf32", 16), (UNET_FAST, 64), (f"{AUTOTUNE}+fused", 64))),
    "unet-infer-eager": (
        "unet",
        "infer",
        (
            ("cuda:tf32", 16),
            *((EAGER_INFER + more, 64) for more in ("", "+cudnn_benchmark", "+folded", "+padded")),
            *((f"{EAGER_INFER}+cudnn_benchmark+folded{more}", size) for more in ("", "+padded") for size in (64, 256)),
        ),
    ),
    "unet-infer-folded": (
        "unet",
        "infer",
        (
            ("cuda:tf32", 16),
            (UNET_INFER, 64),
            *((f"{UNET_INFER}+cudnn_benchmark{more}", 64) for more in ("", "+folded", "+folded+padded")),
            *((f"{UNET_INFER}+cudnn_benchmark+folded", size) for size in (128, 256)),
        ),
    ),
    "unet-infer-autotune": ("unet", "infer", (("cuda:tf32", 16), (UNET_INFER, 64), (AUTOTUNE, 64))),
}
"""Target, mode and configurations; the first two are what the others are compared with."""
ASKED_ROWS = ("unet-train", "unet-infer", "bilstm-train")
ASKED = {("unet-train", 16): 3.0, ("unet-train", 64): 5.0, ("unet-infer", 64): 5.0, ("bilstm-train", 64): 5.0}
"""Times the samples a second of ``cuda``, by row and batch."""
SECONDS, WARMUP_SECONDS, TIMEOUT_S = 1.0, 2.0, 300.0
GATE_BATCH, GATE_STEPS = 4, 5


def job_of(row: str, job: str, **extra: Any) -> dict[str, Any]:
    target, mode, _ = ROWS[row]
    return {"job": job, "target": target, "mode": mode, "options": {}, "inputs": [], "seed": 0, **extra}


def gates_of(row: str, nursery: Starter | None) -> dict[str, dict[str, Any]]:
    """What the numeric gate says of each arm of a row, by its numeric class."""
    arms = list(dict.fromkeys(numeric_class(arm) for arm, _ in ROWS[row][2]))
    job = job_of(row, "gate", arms=arms, batch=GATE_BATCH, steps=GATE_STEPS)
    found: Gates = decode(Gates, run_job(job, timeout_s=4 * TIMEOUT_S, nursery=nursery))
    failed = {one.arm: {"passed": False, "why": one.what} for one in found.failures}
    return failed | {gate.arm: encode(gate) for gate in found.gates}


def one_row(row: str, rounds: int, nursery: Starter | None) -> dict[str, Any]:
    """Milliseconds a sample of every right configuration of a row that runs, and ratios to the first two."""
    gates = gates_of(row, nursery)
    right = [(arm, batch) for arm, batch in ROWS[row][2] if gates[numeric_class(arm)]["passed"]]
    trials: dict[tuple[str, int], list[Trial]] = {one: [] for one in right}
    for number in range(rounds):
        for arm, batch in right[number % len(right) :] + right[: number % len(right)]:
            job = job_of(row, "trial", arm=arm, batch=batch, tail=0, seconds=SECONDS, warmup_seconds=WARMUP_SECONDS)
            try:
                trials[arm, batch].append(decode(Trial, run_job(job, timeout_s=TIMEOUT_S, nursery=nursery)))
            except HotlapError as error:
                print(f"  {row} {arm} at batch {batch}: {error.what}", flush=True)
                continue
            print(
                f"  {row} {arm} at batch {batch}: {statistics.median(trials[arm, batch][-1].wall_ms):.3f} ms",
                flush=True,
            )
    right = [one for one in right if len(trials[one]) == rounds]
    a_sample = {one: [[ms / one[1] for ms in found.wall_ms] for found in trials[one]] for one in right}
    answer: dict[str, Any] = {"row": row, "gates": gates, "configurations": []}
    for one in right:
        ratios = {}
        for base in right[:2]:
            if base != one:
                ratio = ratio_interval(a_sample[base], a_sample[one], paired=True)
                ratios[base[0]] = {"value": ratio.value, "low": ratio.low, "high": ratio.high}
        answer["configurations"].append(
            {"arm": one[0], "batch": one[1], "times_faster_than": ratios, "trials": encode(trials[one])}
        )
    return answer


def tell(row: dict[str, Any]) -> None:
    """Prints each configuration with its ratios and what was asked of it."""
    for arm, gate in row["gates"].items():
        if not gate["passed"]:
            print(f"{row['row']} {arm}: RED GATE, no figure: {gate.get('why') or gate['checks']}", flush=True)
    for one in row["configurations"]:
        step = statistics.median(ms for trial in one["trials"] for ms in trial["wall_ms"])
        text = f"{row['row']} {one['arm']} at batch {one['batch']}: {step:.3f} ms a step"
        for base, r in one["times_faster_than"].items():
            text += f", {r['value']:.2f}x [{r['low']:.2f}, {r['high']:.2f}] the samples/s of {base}"
        asked = ASKED.get((row["row"], one["batch"]))
        gained = one["times_faster_than"].get("cuda", {}).get("value", 0.0)
        if asked and ("compile" in one["arm"] or "kernels" in one["arm"]):
            text += f"; {asked:g}x asked: {'reached' if gained >= asked else 'MISSED'}"
        print(text, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("tuned_speed.json"))
    parser.add_argument("--only", default=",".join(ASKED_ROWS), help=f"of {', '.join(ROWS)}")
    parser.add_argument("--forked", action="store_true", help="trials are forked from a process that has torch already")
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    rows = []
    with Nursery(COMPILERS) if given.forked else contextlib.nullcontext() as nursery:
        for name in given.only.split(","):
            rows.append(one_row(name, given.rounds, nursery))
            tell(rows[-1])
            given.out.write_text(json.dumps({"rows": rows, "environment": encode(capture())}, indent=1) + "\n")


if __name__ == "__main__":
    main()
