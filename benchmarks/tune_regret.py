"""What the tuner gives away: its choice against the best of a whole grid, and the measuring time of both, in one run.

    python -m benchmarks.tune_regret --out tune_regret.json [--only unet,bilstm,resnet50] [--for train]
    python -m benchmarks.tune_regret --minutes 8 --out b.json --known a/   # goes on from what was kept in a/
    python -m benchmarks.tune_regret --cells earlier.json   # a new search beside the cells of an earlier answer
    python -m benchmarks.tune_regret --small      # bilstm, small, on a CPU, at each multiple of 16 up to 192

The grid is every arm of a stated list at every batch of a stated list, and the tuner searches the same space: on a card
TF32, bf16 and fp16, by memory format where there are convolutions, by fused optimizer, by Hotlap's kernels where the
model has them, and by whole steps recorded as a CUDA graph, at batch 16, 64 and 256. ``--compile`` adds torch.compile,
whose cells cost ten times as much. Every cell is one trial as the tuner makes them, in a process forked as the tuner's.
The grid's three fastest right cells and the tuner's winner are then run in turn, 2 x ``--pairs`` rounds: a process of
each, or, on a CPU, one process in which they take turns every thirtieth of a second. Every other round chooses the best
of the three; the rounds between say by how much the winner is slower than it, which is the regret. It may be 3%, at a
quarter of the grid's measuring time: all trials, the last, fresh one included. The numeric gates are told apart: what
is right must be known of the grid's best cell, too; the grid takes over what the tuner had judged. With ``--compile``
the grid finds what the tuner compiled in torch's cache, which makes it a little cheaper than it would be alone.

What was measured is kept beside --out (``*.kept.json``) trial by trial: the same command goes on after a cut, and after
``--minutes``, which ends a call between two trials; the tuner's search, which has its budget, is not cut. A cell is
timed once, for 0.3 s: of many near equals the first is then the luckiest, so the regret comes from the rounds alone.

A grid takes ten times as long as the search. With ``--cells`` its single trials are those of an earlier answer, of the
same arms and batches on a card of the same kind: they choose the three that are timed anew in the rounds, and every
ninth cell is run again, by which the grid's seconds are made those of today's machine.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hotlap.base.stats import ratio_interval
from hotlap.measure.arms import ArmSpec, Precision
from hotlap.measure.jobs import Description
from hotlap.measure.nursery import COMPILERS, Nursery
from hotlap.records.codec import decode, encode
from hotlap.records.environment import capture
from hotlap.tools.tune import TuneConfig, tune
from hotlap.tools.tune.budget import Budget, parse_budget
from hotlap.tools.tune.contest import can_take_turns
from hotlap.tools.tune.lab import ProcessLab
from hotlap.tools.tune.protocol import numeric_class
from hotlap.tools.tune.rows import OK, Config, GateRow, Row, estimates
from hotlap.tools.tune.run import describe
from hotlap.tools.tune.turns import at_one_pace

ALLOWED_REGRET = 0.03
ALLOWED_TIME = 0.25
PAIRS = 4
AGAIN_EVERY = 9
"""Cells of an earlier grid of which one is run again."""
NUM_TOP = 3
"""Cells of the grid that are timed again to find its best: one trial each does not tell them apart."""
TRIAL_S = 10.0
"""What a trial is taken to need before one was run; none is begun that would run past the end."""
HANGS_S = 120.0
"""After which a trial without compilation is given up, so that one that hangs does not take a whole call."""
Round = dict[str, list[float]]
"""Milliseconds a sample by cell, of one process each."""
CARD: tuple[Precision, ...] = ("tf32", "bf16", "fp16")
CPU: tuple[Precision, ...] = ("fp32", "bf16")
TARGETS: dict[str, dict[str, Any]] = {
    "unet": {"target": "unet", "warmup_seconds": 2.0},
    "bilstm": {"target": "bilstm", "warmup_seconds": 2.0},
    "resnet50": {"target": "torchvision.models:resnet50", "input": ("3x224x224",), "warmup_seconds": 2.0},
}
"""Steps that the host paces are never steady: their warm-up ends after two seconds, in the tuner and the grid alike."""
BATCHES = (16, 64, 256)
SMALL_BATCHES = tuple(range(16, 200, 16))
SMALL: dict[str, Any] = {
    "target": "bilstm", "workload": {"hidden": 16, "length": 32, "embedding": 16}, "warmup_seconds": 1.0,
}  # fmt: skip


def grid_arms(about: Description, mode: str, *, on_cpu: bool, threads: bool, compiled: bool) -> list[str]:
    """The arms of the grid: everything combined with everything."""
    axes: list[list[dict[str, Any]]] = [[{"precision": p} for p in (CPU if on_cpu else CARD)]]
    axes += [[{}, {"channels_last": True}]] if about.has_convolutions else []
    axes += [[{}, {"fused": True}]] if mode == "train" else []
    axes += [[{}, {"keep_memory": True}]] if on_cpu and about.can_keep_memory else []
    axes += [[{}, {"threads": 1}]] if on_cpu and threads else []
    axes += [[{}, {"kernels": True}]] if about.has_kernels and not on_cpu else []
    axes += [[{}, *([] if on_cpu else [{"graph": True}]), *([{"compile": "default"}] if compiled else [])]]
    plain = ArmSpec(device="cpu" if on_cpu else "cuda")
    found = [dict(itertools.chain.from_iterable(part.items() for part in parts)) for parts in itertools.product(*axes)]
    return [dataclasses.replace(plain, **changes).name for changes in found]


def tell_progress(text: str) -> None:
    print(f"  {text}", flush=True)


class Kept:
    """What a run of one target has found so far, in a file: a run that was cut goes on from it."""

    def __init__(self, file: Path, known: Path | None, end: float) -> None:
        earlier = [path for path in (file, *([known / file.name] if known else [])) if path.exists()]
        self.file, self.end = file, end
        self.found: dict[str, Any] = json.loads(earlier[0].read_text()) if earlier else {}

    def keep(self, **found: Any) -> None:
        self.found |= found
        whole = self.file.with_suffix(".part")
        whole.write_text(json.dumps(self.found))
        whole.replace(self.file)

    def trial_s(self) -> float:
        """What one more trial may take: as long as the slowest forked one so far, and a little more."""
        rows = [*self.found.get("grid_rows", []), *self.found.get("tuner", {}).get("rows", [])]
        return 2.0 + max((row["seconds"] for row in rows if row["status"] == OK and not row["tail"]), default=TRIAL_S)

    def check_time(self, needed_s: float) -> None:
        """Ends the call where what comes next would not."""
        if time.monotonic() + needed_s <= self.end:
            return
        if not self.found:
            raise SystemExit(f"the tuner's search may take {needed_s:.0f} s, which --minutes does not leave: give more")
        raise SystemExit(f"the minutes are over; the same command goes on from {self.file}")


def laboratory(config: TuneConfig, nursery: Nursery, say: Callable[[str], None] = lambda _: None) -> ProcessLab:
    budget = Budget(seconds=1e9, rung_seconds=config.seconds)
    return ProcessLab(config, budget, saved=lambda: None, say=say, nursery=nursery)


def run_grid(config: TuneConfig, nursery: Nursery, kept: Kept) -> tuple[list[Config], ProcessLab]:
    """The fastest few cells that give the right answer, and the laboratory with every row."""

    def save() -> None:
        kept.keep(grid_rows=encode(lab.all_rows), grid_gates=encode(lab.all_gates))

    rows = [decode(Row, row) for row in kept.found.get("grid_rows", [])]
    # An arm that the tuner had judged is not judged again: the gate would compute the very same numbers.
    judged = [*kept.found["tuner"]["gates"], *kept.found.get("grid_gates", [])]
    gates = list({gate["arm"]: decode(GateRow, gate) for gate in judged}.values())
    budget = Budget(seconds=1e9, rung_seconds=config.seconds)
    lab = ProcessLab(config, budget, saved=save, say=tell_progress, nursery=nursery, rows=rows, gates=gates)
    cells = [Config(arm, batch) for batch in config.batches for arm in config.arms]
    print(f"{config.target}: {len(cells)} cells", flush=True)
    for cell in cells:
        kept.check_time(kept.trial_s())
        lab.trial("grid", cell, rung=0, attempt=0, tail=0)
    right: list[Config] = []
    for one in sorted(estimates(lab.rows).values(), key=lambda found: -found.rate):
        kept.check_time(2 * kept.trial_s())
        lab.gate([one.config.arm])
        right += [one.config] if lab.gates[numeric_class(one.config.arm)].passed else []
        if len(right) == NUM_TOP:
            return right, lab
    if not right:
        raise SystemExit(f"no cell of {config.target} gives the right answer")
    return right, lab


def rounds_in_turn(config: TuneConfig, cells: list[Config], kept: Kept, nursery: Nursery, number: int) -> list[Round]:
    """Milliseconds a sample of every cell in each round; a round is one process of each, in changing order, or of all.

    Rounds that an earlier call kept are taken over: cells are compared within a round only.
    """
    names = [str(cell) for cell in cells]
    rounds: list[Round] = [found for found in kept.found.get("rounds", []) if sorted(found) == sorted(names)]
    while len(rounds) < number:
        kept.check_time(len(cells) * kept.trial_s())
        lab, place = laboratory(config, nursery), len(rounds)
        turned = cells[place % len(cells) :] + cells[: place % len(cells)]
        turned = turned if place % 2 == 0 else turned[::-1]
        if can_take_turns(cells):
            rows = lab.turns("again", turned, rung=1, number=place + 1)
        else:
            rows = [lab.trial("again", cell, rung=1, attempt=0, tail=0) for cell in turned]
        for row in rows:
            if not row.ok:
                raise SystemExit(f"{row.config} ran in the search and not now: {row.why}")
        rounds.append({str(row.config): [ms / row.batch for ms in row.wall_ms] for row in rows})
        kept.keep(rounds=rounds)
    return rounds[:number]


def take_over(kept: Kept, earlier: dict[str, Any], config: TuneConfig) -> None:
    """The single trials of an earlier grid as this one's."""
    (row,) = [row for row in earlier["rows"] if row["target"] == config.target] or [{}]
    asked = (config.mode, list(config.arms), list(config.batches))
    if (row.get("mode"), row.get("arms"), row.get("batches")) != asked:
        raise SystemExit(f"--cells has no grid of {config.target} with these arms and batches: give one, or none")
    kept.keep(grid_rows=[{**cell, "interval_ms": []} for cell in row["grid_rows"]], taken_over=True)


def run_again(config: TuneConfig, kept: Kept, nursery: Nursery) -> tuple[float, list[dict[str, Any]]]:
    """By what the machine of today takes longer for cells of the grid than the one before did, and their trials."""
    then = {Config(row["arm"], row["batch"]): row["seconds"] for row in kept.found["grid_rows"]}
    lab, cells = laboratory(config, nursery, tell_progress), list(then)[::AGAIN_EVERY]
    for cell in cells:
        kept.check_time(kept.trial_s())
        lab.trial("again", cell, rung=0, attempt=0, tail=0)
    pace = sum(row.seconds for row in lab.rows) / sum(then[cell] for cell in cells)
    return pace, [lean(encode(row)) for row in lab.rows]


def _within_round(found: Round, name: str) -> float:
    """A cell's time beside the others' of its round: the machine may be slow for whole rounds."""
    return statistics.median(found[name]) / statistics.geometric_mean(statistics.median(ms) for ms in found.values())


def judge(rounds: list[Round], top: list[str], winner: str) -> dict[str, Any]:
    """The grid's best by every other round, and by the rounds between what the tuner's winner is slower than it by.

    A cell that leads 96 others in one trial had luck, too: the top few are timed anew to find the best of them, and
    what found it does not judge it, or luck would count again.
    """
    chooses, judges = rounds[::2], rounds[1::2]
    best = min(top, key=lambda name: statistics.median(_within_round(found, name) for found in chooses))
    answer: dict[str, Any] = {"best_cell": best, "regret": 0.0, "low": 0.0, "high": 0.0}
    answer |= {"best_ms": [found[best] for found in judges], "winner_ms": [found[winner] for found in judges]}
    if best != winner:
        ratio = ratio_interval(answer["winner_ms"], answer["best_ms"], paired=True)
        answer |= {"regret": 1 - 1 / ratio.value, "low": 1 - 1 / ratio.low, "high": 1 - 1 / ratio.high}
    return answer


def search(config: TuneConfig, folder: str) -> dict[str, Any]:
    """What the tuner found, and its notes."""
    record = tune(config, lambda event: tell_progress(event.text) if event.kind == "advance" else None)
    found: dict[str, Any] = record.extra["tune"]
    if not found["winner"]:
        raise SystemExit(f"the tuner found nothing: {record.verdict.headline if record.verdict else ''}")
    rows = [lean(row) for row in found["rows"]]
    return {
        "winner": found["winner"],
        "rows": rows,
        "gates": found["gates"],
        "notes": [n for n in record.notes if folder not in n],
    }


def one_target(
    given: dict[str, Any], batches: tuple[int, ...], budget: str, kept: Kept, earlier: dict[str, Any] | None,
    *, small: bool, compiled: bool, pairs: int,
) -> dict[str, Any]:  # fmt: skip
    """The tuner, the grid, and both choices in turn."""
    began = time.monotonic()
    if kept.found.get("answer", {}).get("pairs") == pairs:
        done: dict[str, Any] = kept.found["answer"]
        return done
    with tempfile.TemporaryDirectory() as folder, Nursery(COMPILERS) as nursery:
        common = {**given, "batches": batches, "budget": budget, "store": False, "runs": Path(folder)}
        about = describe(TuneConfig(**common), nursery)
        on_cpu = small or not about.num_cuda
        arms = grid_arms(about, given["mode"], on_cpu=on_cpu, threads=not small, compiled=compiled)
        config = TuneConfig(**common, arms=tuple(arms), timeout_s=600.0 if compiled else HANGS_S)
        if "tuner" not in kept.found:
            kept.check_time(parse_budget(budget) + kept.trial_s())
            kept.keep(tuner=search(config, folder))
        if earlier is not None and "grid_rows" not in kept.found:
            take_over(kept, earlier, config)
        found = kept.found["tuner"]
        winner = Config(found["winner"]["arm"], found["winner"]["batch"])
        top, lab = run_grid(config, nursery, kept)
        cells = list(dict.fromkeys([*top, winner]))
        rounds = rounds_in_turn(config, cells, kept, nursery, 2 * pairs)
        pace, again = run_again(config, kept, nursery) if kept.found.get("taken_over") else (1.0, [])
        fair = [at_one_pace(found) for found in rounds] if can_take_turns(cells) else rounds
        answer = {**judge(fair, [str(cell) for cell in top], str(winner)), "rounds": rounds}
        chosen = answer.pop("best_cell")
        best = next(cell for cell in top if str(cell) == chosen)
        row = {
            "target": config.target,
            "mode": config.mode,
            "options": config.workload,
            "arms": arms,
            "batches": list(batches),
            "winner": encode(winner),
            "best": encode(best),
            "tuner_s": sum(row["seconds"] for row in found["rows"]),
            "grid_s": pace * sum(row.seconds for row in lab.rows),
            "pace": pace,
            "again": again,
            "tuner_gates_s": sum(gate["seconds"] for gate in found["gates"]),
            "grid_gates_s": sum(gate.seconds for gate in lab.gates.values()),
            "tuner_trials": len(found["rows"]),
            "grid_trials": len(lab.rows),
            "grid_rows": [lean(encode(row)) for row in lab.rows],
            "tuner_rows": found["rows"],
            "pairs": pairs,
            "top": encode(top),
            **answer,
        }
        notes = nursery.notes + found["notes"]
    row |= {"share": row["tuner_s"] / row["grid_s"], "whole_s": time.monotonic() - began, "notes": notes}
    kept.keep(answer=row)
    return row


def lean(row: dict[str, Any]) -> dict[str, Any]:
    """A trial without its single steps, which only percentiles need."""
    return {key: value for key, value in row.items() if key != "interval_ms"}


def tell(row: dict[str, Any]) -> str:
    verdict = "ok" if row["regret"] <= ALLOWED_REGRET else "REGRET TOO LARGE"
    time = "ok" if row["share"] <= ALLOWED_TIME else "TOO MUCH TIME"
    per_sample = statistics.median(ms for values in row["winner_ms"] for ms in values)
    return (
        f"{row['target']} {row['mode']}: tuner {row['winner']['arm']} at batch {row['winner']['batch']} "
        f"({per_sample:.4g} ms a sample), grid {row['best']['arm']} at batch {row['best']['batch']}; regret "
        f"{row['regret']:+.1%} [{row['low']:+.1%}, {row['high']:+.1%}] {verdict}; {row['tuner_s']:.0f} s against "
        f"{row['grid_s']:.0f} s, {row['share']:.0%} {time} ({row['tuner_trials']} trials against "
        f"{row['grid_trials']}); gates {row['tuner_gates_s']:.0f} s against {row['grid_gates_s']:.0f} s; all of it "
        f"{row['whole_s']:.0f} s"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("tune_regret.json"))
    parser.add_argument("--only", default=",".join(TARGETS))
    parser.add_argument("--for", dest="mode", choices=("train", "infer"), default="train")
    parser.add_argument("--budget", default="90s", help="the tuner's")
    parser.add_argument(
        "--pairs", type=int, default=PAIRS, help="rounds that choose the grid's best, and as many that judge"
    )
    parser.add_argument("--batches", default="", help="as 16,64,256")
    parser.add_argument("--minutes", type=float, default=600.0, help="for this call")
    parser.add_argument("--known", type=Path, help="a folder with what an earlier call kept")
    parser.add_argument("--cells", type=Path, help="an earlier answer, whose grid is taken over")
    parser.add_argument("--seconds", type=float, default=0.3, help="timed in each trial")
    parser.add_argument("--compile", action="store_true", help="torch.compile as well, in both")
    parser.add_argument("--small", action="store_true", help="a small bilstm on the CPU, for two cores")
    given = parser.parse_args()
    chosen = [SMALL] if given.small else [TARGETS[name] for name in given.only.split(",")]
    sizes = SMALL_BATCHES if given.small else BATCHES
    batches = tuple(int(size) for size in given.batches.split(",")) if given.batches else sizes
    rows, end = [], time.monotonic() + 60 * given.minutes
    earlier = json.loads(given.cells.read_text()) if given.cells else None
    for settings in chosen:
        common = {"mode": given.mode, "seconds": given.seconds, **settings}
        how = {"small": given.small, "compiled": given.compile, "pairs": given.pairs}
        name = f"{given.out.stem}_{settings['target'].rpartition(':')[2]}.kept.json"
        kept = Kept(given.out.with_name(name), given.known, end)
        rows.append(one_target(common, batches, given.budget, kept, earlier, **how))
        print(tell(rows[-1]), flush=True)
        answer = {"allowed_regret": ALLOWED_REGRET, "allowed_time": ALLOWED_TIME, "rows": rows}
        given.out.write_text(json.dumps({**answer, "environment": encode(capture())}, indent=1) + "\n")


if __name__ == "__main__":
    main()
