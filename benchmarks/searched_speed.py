"""What does a search find by itself, and how much faster is it than eager float32? A search, then a bench.

    python -m benchmarks.searched_speed unet --budget 7m --out searched.json
    python -m benchmarks.searched_speed unet --for infer --budget 90s --compile none --out searched.json
    python -m benchmarks.searched_speed bilstm --budget 40s --batches 16,32 --compile none --out /tmp/searched.json

Options of ``hotlap tune``, which finds arm and batch, may be added. The bench then times eager float32 and eager TF32
at the workload's own batch and the choice at its own, in turns, in fresh processes, each judged by the gate first;
ratios are of samples a second. The file holds the search's rows and gates, the bench's samples and the environment, by
target, mode and goal; the records of both lie under ``--runs``.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks.timed_training import add_result

from hotlap.cli.main import run as hotlap
from hotlap.measure.arms import parse_arm
from hotlap.records.codec import encode
from hotlap.records.run import RunRecord, find_runs, load_record

BENCH = ("--repeats", "12", "--seconds", "0.3", "--no-memory", "--no-transfer")


def record_of(runs: Path, words: Sequence[str]) -> RunRecord:
    """The record of one command, which is there whatever its exit code says, unless it was refused."""
    before = set(find_runs(runs))
    code = hotlap([*words, "--runs", str(runs)])
    made = [file for file in find_runs(runs) if file not in before]
    if not made:
        raise SystemExit(code)
    return load_record(made[0])


def plain_arms(chosen: str) -> list[str]:
    """What the choice is set beside: eager float32, and eager TF32 where the device has it."""
    device = chosen.partition(":")[0]
    return [device, f"{device}:tf32"] if device != "cpu" else [device]


def searched(target: str, mode: str, tune: Sequence[str], runs: Path, processes: int) -> dict[str, Any]:
    """The search and the bench of its choice; the search alone where there is none, or no processes."""
    search = record_of(runs, ["tune", target, "--for", mode, "--no-store", *tune])
    found = search.extra["tune"]
    answer = {"tune": found, "notes": search.notes, "config": search.config, "environment": encode(search.environment)}
    if found["winner"] is None or not processes:
        return answer
    chosen = dataclasses.replace(parse_arm(found["winner"]["arm"]), batch=found["winner"]["batch"]).name
    given = dict(pairwise(tune))
    same = [word for key in ("--input", "--seed") if key in given for word in (key, given[key])]
    arms = ",".join([*plain_arms(chosen), chosen])
    bench = record_of(
        runs, ["bench", target, "--mode", mode, "--arms", arms, *BENCH, "--processes", str(processes), *same]
    )
    for one in bench.comparisons:
        told = f"{one.ratio:.3g}x [{one.low:.3g}, {one.high:.3g}]"
        print(f"{target} {mode}: {one.arm} against {one.baseline}, {one.quantity}: {told}", flush=True)
    return {**answer, "bench": encode(bench)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target")
    parser.add_argument("--for", dest="mode", choices=("train", "infer"), default="train")
    parser.add_argument("--runs", type=Path, default=Path("runs"))
    parser.add_argument("--processes", type=int, default=5, help="of the bench; 0 leaves it out")
    parser.add_argument("--out", type=Path, default=Path("searched_speed.json"))
    args, tune = parser.parse_known_args()
    answer = searched(args.target, args.mode, tune, args.runs, args.processes)
    add_result(args.out, "searches", f"{args.target}, {args.mode}, {answer['tune']['goal']}", answer)
    return 0


if __name__ == "__main__":
    sys.exit(main())
