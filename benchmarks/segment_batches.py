"""Single points of a network's batch curve: a trial for each batch of one arm, as ``hotlap tune`` makes them.

    PYTHONPATH=src:. python -m benchmarks.segment_batches --models hrnet --arm ARM --batches 1,2 --out points.json

For sizes that a search did not come to within its budget. The arm is one that the search has put to the numeric gate:
nothing is judged here. Later calls add to the same file.
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path

from benchmarks.timed_training import add_result

from hotlap.measure.process import run_job
from hotlap.records.codec import encode
from hotlap.records.environment import capture

SECONDS, WARMUP_SECONDS, TIMEOUT_S = 0.5, 2.0, 120.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="hrnet,resunet-small,ma-resunet")
    parser.add_argument("--arm", default="cuda:fp16+channels_last+cudnn_benchmark+graph+kernels")
    parser.add_argument("--batches", default="1,2")
    parser.add_argument("--out", type=Path, default=Path("segment_batches.json"))
    args = parser.parse_args()
    environment = encode(capture())
    for model in args.models.split(","):
        for batch in map(int, args.batches.split(",")):
            job = {"job": "trial", "target": model, "mode": "infer", "options": {}, "inputs": [], "seed": 0}
            job |= {"arm": args.arm, "batch": batch, "tail": 0, "seconds": SECONDS, "warmup_seconds": WARMUP_SECONDS}
            trial = run_job(job, timeout_s=TIMEOUT_S)
            rate = 1e3 * batch / statistics.median(trial["wall_ms"])
            print(f"{model} {args.arm} at batch {batch}: {rate:.1f} images/s", flush=True)
            row = {"arm": args.arm, "batch": batch, "images_per_s": rate, "trial": trial, "environment": environment}
            add_result(args.out, "points", f"{model} at batch {batch}", row)


if __name__ == "__main__":
    main()
