"""How much faster than eager float32 the tuned forms are, in one run: processes that take turns.

    python -m benchmarks.tuned_speed --minutes 9 --out tuned_speed.json              # again: goes on where it stopped
    python -m benchmarks.tuned_speed --minutes 9 --out b.json --known a.json         # goes on from another call's file
    python -m benchmarks.tuned_speed --minutes 9 --only unet-infer --cells 6         # the likeliest forms, to the end
    python -m benchmarks.tuned_speed --only small --out /tmp/small.json              # the script itself, on two cores

Each configuration is one arm at one batch, as ``hotlap tune`` tries it: whole steps, the optimizer's state, the
worst-case shape, in a process of its own that may take ``TIMEOUT_S``. First every form of a group is timed once, in
the order of ``tuned_cells``, beside eager float32 and eager TF32; these times only choose, and are left out where there
is no choice. The best ones are then judged by the numeric gate, with the forms that are fixed, and those that are right
are run again together with both baselines, ``--rounds`` times in changing order. Speed-ups, of samples a second and
with their 95% interval, come from these rounds alone, so that luck in the choice does not count; a red gate gets none.
Everything is written after each process, so that a run that was cut off or whose minutes are over goes on.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import statistics
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.tuned_cells import ENVIRONMENTS, GROUPS, Cell, Group

from hotlap.base.errors import HotlapError
from hotlap.base.stats import ratio_interval
from hotlap.measure.jobs import Gates
from hotlap.measure.nursery import COMPILERS, Nursery
from hotlap.measure.process import Starter, run_job
from hotlap.measure.trial import Trial
from hotlap.records.codec import decode, encode
from hotlap.records.environment import capture
from hotlap.tools.tune.protocol import numeric_class

SECONDS, WARMUP_SECONDS, TIMEOUT_S = 1.0, 2.0, 240.0
GATE_BATCH, GATE_STEPS = 4, 5
EXPECTED_S = {True: 75.0, False: 20.0}
"""What a process of a compiled and of another arm takes; none is begun that would run past the end."""
ROUNDS, FINALISTS = 3, 2


class OutOfTime(Exception):
    """The minutes are over; what was found is kept."""


class Speeds:
    """What was measured so far, in a file that is whole after every process."""

    def __init__(self, file: Path, known: Path | None, minutes: float) -> None:
        source = next((path for path in (file, known) if path is not None and path.exists()), None)
        found = json.loads(source.read_text()) if source is not None else {}
        self.file, self.end = file, time.monotonic() + 60 * minutes
        self.trials: list[dict[str, Any]] = found.get("trials", [])
        self.gates: dict[str, dict[str, Any]] = found.get("gates", {})
        self.answers: dict[str, list[dict[str, Any]]] = found.get("answers", {})
        self.environments: list[dict[str, Any]] = [*found.get("environments", []), encode(capture())]

    def save(self) -> None:
        whole = self.file.with_suffix(".part")
        kept = {"trials": self.trials, "gates": self.gates, "answers": self.answers, "environments": self.environments}
        whole.write_text(json.dumps(kept, indent=1) + "\n")
        whole.replace(self.file)

    def forget_unless_whole(self, group: str, number: int, cells: Sequence[Cell]) -> None:
        """Drops a round that another call left unfinished: baselines and forms are compared within one call."""
        rows = [row for row in self.trials if row["group"] == group and row["round"] == number]
        if not set(cells) <= {Cell(row["arm"], row["batch"], row["env"]) for row in rows}:
            self.trials = [row for row in self.trials if row not in rows]

    def left_for(self, cell: Cell) -> float:
        """Seconds that a process may take; raises where it would not come to its end."""
        left = self.end - time.monotonic()
        if left < EXPECTED_S["compile" in cell.arm]:
            raise OutOfTime
        return min(TIMEOUT_S, left)

    def trial(self, group: str, cell: Cell, number: int, nursery: Starter) -> dict[str, Any]:
        """The trial of a cell in one round, kept or made now; round 0 is the one that chooses."""
        key = {"group": group, "arm": cell.arm, "batch": cell.batch, "env": cell.env, "round": number}
        for kept in self.trials:
            if key.items() <= kept.items():
                return kept
        began = time.monotonic()
        job = job_of(group, "trial", arm=cell.arm, batch=cell.batch, tail=0)
        job |= {"seconds": SECONDS, "warmup_seconds": WARMUP_SECONDS}
        found = self._run(job, cell, nursery)
        row: dict[str, Any] = {**key, "seconds": time.monotonic() - began}
        if "answer" in found:
            trial = decode(Trial, found["answer"])
            row |= {"trial": encode(trial), "ms_a_sample": [ms / cell.batch for ms in trial.wall_ms]}
        else:
            row |= found
        self.trials.append(row)
        self.save()
        told = row.get("why") or f"{statistics.median(row['trial']['wall_ms']):.3f} ms a step"
        print(f"  {group} round {number}: {cell}: {told} ({row['seconds']:.0f} s)", flush=True)
        return row

    def judge(self, group: str, cells: Sequence[Cell], nursery: Starter) -> None:
        """Puts cells' arms to the numeric gate, each once: several in one process, since the reference is dear."""
        for env in ENVIRONMENTS:
            found = {numeric_class(cell.arm): cell for cell in cells if cell.env == env}
            arms = [arm for arm in found if gate_name(group, arm, env) not in self.gates]
            if arms and not self._judge_together(group, arms, found[arms[-1]], nursery):
                for arm in arms:  # one of them took the others with it
                    self._judge_together(group, [arm], found[arm], nursery)

    def _judge_together(self, group: str, arms: list[str], cell: Cell, nursery: Starter) -> bool:
        job = job_of(group, "gate", arms=arms, batch=GATE_BATCH, steps=GATE_STEPS)
        found = self._run(job, cell, nursery)
        if "why" in found and len(arms) > 1:
            return False
        gates = decode(Gates, found["answer"]) if "answer" in found else Gates()
        failed = {one.arm: one.what for one in gates.failures}
        judged = {gate.arm: encode(gate) for gate in gates.gates}
        for arm in arms:
            red = {"passed": False, "why": failed.get(arm) or found.get("why", "not judged")}
            name = gate_name(group, arm, cell.env)
            self.gates[name] = gate = judged.get(arm) or red
            print(f"  gate {name}: {'passed' if gate['passed'] else 'RED: ' + str(gate.get('why'))}", flush=True)
        self.save()
        return True

    def is_right(self, group: str, cell: Cell) -> bool:
        return bool(self.gates[gate_name(group, numeric_class(cell.arm), cell.env)]["passed"])

    def _run(self, job: dict[str, Any], cell: Cell, nursery: Starter) -> dict[str, Any]:
        limit = self.left_for(cell)
        with set_environment(ENVIRONMENTS[cell.env]):
            try:
                return {"answer": run_job(job, timeout_s=limit, nursery=None if cell.env else nursery)}
            except HotlapError as error:
                if limit < TIMEOUT_S and time.monotonic() >= self.end:
                    raise OutOfTime from error  # not its fault
                return {"why": error.what}


@contextlib.contextmanager
def set_environment(values: dict[str, str]) -> Iterator[None]:
    os.environ.update(values)
    try:
        yield
    finally:
        for name in values:
            del os.environ[name]


def gate_name(group: str, arm: str, env: str) -> str:
    return f"{group} {arm} {env}".strip()


def job_of(group: str, job: str, **extra: Any) -> dict[str, Any]:
    about = GROUPS[group]
    common = {"target": about.target, "mode": about.mode, "options": about.options, "inputs": [], "seed": 0}
    return {"job": job, **common, **extra}


def finalists(speeds: Speeds, group: str, about: Group, nursery: Starter, number: int) -> list[Cell]:
    """The best forms that are right, by the trials that choose; all of so many, without such trials."""
    if len(about.cells) <= number:
        return right_ones(speeds, group, about, about.cells, nursery)
    timed = {cell: speeds.trial(group, cell, 0, nursery) for cell in (*about.baselines, *about.cells)}
    ran = {cell: statistics.median(row["ms_a_sample"]) for cell, row in timed.items() if "ms_a_sample" in row}
    ranked = sorted((cell for cell in about.cells if cell in ran), key=lambda cell: ran[cell])
    best: list[Cell] = []
    while ranked and len(best) < number:
        some = ranked[: number - len(best)]
        best += right_ones(speeds, group, about, some, nursery)
        ranked = ranked[len(some) :]
    return best


def right_ones(speeds: Speeds, group: str, about: Group, cells: Sequence[Cell], nursery: Starter) -> list[Cell]:
    """Those that pass the numeric gate; the fixed forms are judged beside them, for the reference is dear."""
    speeds.judge(group, [*about.baselines, *cells, *about.fixed], nursery)
    return [cell for cell in cells if speeds.is_right(group, cell)]


def one_group(speeds: Speeds, group: str, nursery: Starter, given: argparse.Namespace) -> None:
    """Chooses the best forms of a group, runs them beside the baselines, and says what they gain."""
    about, rounds, number = GROUPS[group], given.rounds, given.finalists
    about = dataclasses.replace(about, cells=about.cells[: given.cells])
    best = finalists(speeds, group, about, nursery, number)
    chosen = [*about.baselines, *best, *(cell for cell in about.fixed if speeds.is_right(group, cell))]
    for one in range(rounds):
        speeds.forget_unless_whole(group, one + 1, chosen)
        for cell in chosen[one % len(chosen) :] + chosen[: one % len(chosen)]:
            speeds.trial(group, cell, one + 1, nursery)
    rows = {cell: [speeds.trial(group, cell, one + 1, nursery) for one in range(rounds)] for cell in chosen}
    a_sample = {cell: [row["ms_a_sample"] for row in rows[cell] if "ms_a_sample" in row] for cell in chosen}
    speeds.answers[group] = []
    for cell in chosen:
        if len(a_sample[cell]) < rounds:
            continue
        gains = {}
        for base in about.baselines:
            if base != cell and len(a_sample[base]) == rounds:
                ratio = ratio_interval(a_sample[base], a_sample[cell], paired=True)
                gains[str(base)] = {"value": ratio.value, "low": ratio.low, "high": ratio.high}
        step = statistics.median(ms * cell.batch for values in a_sample[cell] for ms in values)
        answer = {"cell": str(cell), "ms_a_step": step, "times_the_samples_of": gains}
        speeds.answers[group].append(answer)
        asked = about.asked_fixed if cell in about.fixed else about.asked
        tell(group, answer, None if cell in about.baselines else asked)
    speeds.save()


def tell(group: str, answer: dict[str, Any], asked: float | None) -> None:
    print(f"{group} {answer['cell']}: {answer['ms_a_step']:.3f} ms a step", flush=True)
    for base, gain in answer["times_the_samples_of"].items():
        text = f"    {gain['value']:.2f}x [{gain['low']:.2f}, {gain['high']:.2f}] the samples/s of {base}"
        if asked is not None:
            text += f"; {asked:g}x asked: {'reached' if gain['low'] >= asked else 'not reached'}"
        print(text, flush=True)


def tell_choice(speeds: Speeds, group: str) -> None:
    """Prints what chose, best first: times only, for nothing of it was judged or repeated."""
    rows = [row for row in speeds.trials if row["group"] == group and row["round"] == 0]
    ran = sorted((row for row in rows if "ms_a_sample" in row), key=lambda row: statistics.median(row["ms_a_sample"]))
    for row in ran:
        cell = Cell(row["arm"], row["batch"], row["env"])
        print(f"  {1000 * statistics.median(row['ms_a_sample']):9.1f} us a sample  {cell}", flush=True)
    tried = {Cell(row["arm"], row["batch"], row["env"]) for row in rows}
    for cell in (*GROUPS[group].baselines, *GROUPS[group].cells) if tried else ():
        if cell not in tried:
            print(f"  not tried yet          {cell}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("tuned_speed.json"))
    parser.add_argument("--known", type=Path, help="the file of an earlier call, where --out is not there yet")
    parser.add_argument("--only", default="unet-infer,unet-train", help=f"of {', '.join(GROUPS)}")
    parser.add_argument("--minutes", type=float, default=60.0, help="for this call")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--cells", type=int, help="try so many forms of a group only, the likeliest first")
    parser.add_argument("--finalists", type=int, default=FINALISTS)
    given = parser.parse_args()
    speeds = Speeds(given.out, given.known, given.minutes)
    with Nursery(COMPILERS) as nursery:
        for group in given.only.split(","):
            try:
                one_group(speeds, group, nursery, given)
            except OutOfTime:
                print(f"{group}: {given.minutes:g} minutes are over; the same command goes on from here", flush=True)
            tell_choice(speeds, group)


if __name__ == "__main__":
    main()
