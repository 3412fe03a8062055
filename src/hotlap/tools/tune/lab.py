"""The laboratory: every trial in a process of its own, every answer and every death a row that is saved at once.

Trials that only rank are forked by a nursery; one with a tail, which confirms a winner, gets a fresh interpreter. Where
noise leaves doubt on a CPU, one process holds several configurations, and they take turns.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Sequence
from typing import Any

from hotlap.base.errors import DeviceUnavailable, HotlapError, OutOfMemory, WorkerDied
from hotlap.base.format import format_bytes, format_count
from hotlap.device.host import read_host
from hotlap.measure.arms import parse_arm
from hotlap.measure.jobs import ArmFailure, Gates, Timings
from hotlap.measure.process import Starter, run_job
from hotlap.measure.timed import NOT_COMPILED, Protocol
from hotlap.measure.trial import MIN_STEPS, Trial
from hotlap.records.codec import decode, encode
from hotlap.records.measurement import Gate, Memory
from hotlap.records.run import now
from hotlap.tools.tune.budget import Budget
from hotlap.tools.tune.config import TuneConfig
from hotlap.tools.tune.protocol import numeric_class
from hotlap.tools.tune.rows import OK, OUT_OF_BUDGET, OUT_OF_MEMORY, TIMED_OUT, Config, GateRow, Row, estimates

MEMORY_IN_TURNS = 0.5
"""Of the host's memory, what those that take turns may fill together, by the peaks that each had alone."""


class ProcessLab:
    """Runs what a search asks for; what an earlier life has run it takes from there, when it is asked for again.

    Until then a search does not see it, so that it decides as it did then.
    """

    def __init__(
        self,
        config: TuneConfig,
        budget: Budget,
        *,
        rows: Sequence[Row] = (),
        gates: Sequence[GateRow] = (),
        saved: Callable[[], None],
        say: Callable[[str], None],
        nursery: Starter | None = None,
    ) -> None:
        self.config, self.budget, self.nursery = config, budget, nursery
        self.rows: list[Row] = []
        self.gates: dict[str, GateRow] = {}
        self._earlier_rows, self._earlier_gates = list(rows), {gate.arm: gate for gate in gates}
        self.full_gates: list[Gate] = []
        self.notes: list[str] = []
        self.doing: Callable[[str], None] = say
        self._saved = saved
        self._judging = ""
        """What the gate's process has said last that it does."""

    def trial(self, stage: str, config: Config, *, rung: int, attempt: int, tail: int) -> Row:
        known = [row for row in self.rows if row.is_for(config.arm, config.batch, rung, attempt, tail)]
        if known:
            return known[0]
        earlier = [row for row in self._earlier_rows if row.is_for(config.arm, config.batch, rung, attempt, tail)]
        if earlier:
            self._earlier_rows.remove(earlier[0])
            self.rows.append(earlier[0])
            return earlier[0]
        self.doing(f"{stage}: {config}")
        began = time.monotonic()
        found = self._run(config, rung, tail)
        row = Row(
            stage=stage,
            arm=config.arm,
            batch=config.batch,
            rung=rung,
            attempt=attempt,
            tail=tail,
            seconds=time.monotonic() - began,
            at=now(),
            **found,
        )
        self.rows.append(row)
        self._saved()
        return row

    def turns(self, stage: str, configs: Sequence[Config], *, rung: int, number: int) -> list[Row]:
        found = self._known_turns(configs, number)
        if not found:
            self.doing(f"{stage}: {' and '.join(map(str, configs))} take turns")
            began = time.monotonic()
            answers = self._run_turns(configs, rung)
            seconds = (time.monotonic() - began) / len(configs)
            common: dict[str, Any] = {"stage": stage, "rung": rung, "together": number, "seconds": seconds, "at": now()}
            pairs = zip(configs, answers, strict=True)
            found = [Row(arm=config.arm, batch=config.batch, **common, **answer) for config, answer in pairs]
        self.rows += found
        self._saved()
        return found

    def _known_turns(self, configs: Sequence[Config], number: int) -> list[Row]:
        """The rows of an earlier life, if it let just these take turns then; they are taken out of it."""
        found = [row for row in self._earlier_rows if row.together == number and row.config in configs]
        if {row.config for row in found} != set(configs):
            return []
        self._earlier_rows = [row for row in self._earlier_rows if row not in found]
        return found

    def _run_turns(self, configs: Sequence[Config], rung: int) -> list[dict[str, Any]]:
        """What to put into the row of each; where one cannot take part, nobody can."""
        costs = [self.budget.cost(self.rows, config, rung) for config in configs]
        life = self.budget.life(self, sum(costs))
        try:
            self._check_room(configs)
            job = self._turns_job(configs, rung)
            answer = run_job(job, timeout_s=min(self.config.timeout_s, life), nursery=self.nursery)
            timings: Timings = decode(Timings, answer)
            return [_turns_of(str(config), timings) for config in configs]
        except HotlapError as error:
            return [{"status": "failed", "why": f"in turns with others: {error.what}"}] * len(configs)

    def _check_room(self, configs: Sequence[Config]) -> None:
        """Refuses to let configurations take turns that together may fill the host's memory."""
        known = estimates(self.rows)
        peaks = sum(known[config].peak_bytes or 0 for config in configs if config in known)
        host = read_host()
        room = int(MEMORY_IN_TURNS * min(host.memory_bytes, host.memory_limit_bytes or host.memory_bytes))
        if peaks > room:
            raise OutOfMemory(f"together they would fill {format_bytes(peaks)} of memory, and may {format_bytes(room)}")

    def _turns_job(self, configs: Sequence[Config], rung: int) -> dict[str, Any]:
        seconds = self.budget.timed(rung)
        protocol = Protocol(
            process=0,
            repeats=MIN_STEPS,
            seconds=seconds,
            max_seconds=seconds,
            warmup_seconds=self.budget.warm_up(self.config.warmup_seconds),
            transfer=False,
            began_at=time.time(),
        )
        arms = [dataclasses.replace(parse_arm(config.arm), batch=config.batch).name for config in configs]
        labels = [str(config) for config in configs]
        return self._job("timing", arms=arms, labels=labels, worst_case=True, protocol=encode(protocol))

    @property
    def all_rows(self) -> list[Row]:
        """With those of an earlier life that were not asked for yet."""
        return [*self.rows, *self._earlier_rows]

    @property
    def all_gates(self) -> list[GateRow]:
        return [*self.gates.values(), *self._earlier_gates.values()]

    def _job(self, job: str, **extra: Any) -> dict[str, Any]:
        c = self.config
        common = {"target": c.target, "options": c.workload, "inputs": list(c.input), "seed": c.seed, "mode": c.mode}
        return {"job": job, **common, **extra}

    def _run(self, config: Config, rung: int, tail: int) -> dict[str, Any]:
        job = self._job(
            "trial",
            arm=config.arm,
            batch=config.batch,
            seconds=self.budget.timed(rung),
            warmup_seconds=self.budget.warm_up(self.config.warmup_seconds),
            tail=tail,
        )
        nursery = None if tail else self.nursery
        life = self.budget.trial_life(self, config, rung, gate_batch=self._gate_batch, last=bool(tail))
        try:
            answer: Trial = decode(Trial, run_job(job, timeout_s=min(self.config.timeout_s, life), nursery=nursery))
        except DeviceUnavailable:
            raise  # no other trial would fare better
        except HotlapError as error:
            status = status_of(error)
            if status == TIMED_OUT and life < self.config.timeout_s:
                return {"status": OUT_OF_BUDGET, "why": self._ended(f"{life:.0f} s")}
            return {"status": status, "why": error.what}
        return _measured(answer)

    def _ended(self, after: str) -> str:
        return f"the budget of {self.budget.seconds:g} s ended it after {after}; --budget gives it longer"

    def gate(self, arms: Sequence[str]) -> None:
        asked = [name for name in dict.fromkeys(map(numeric_class, arms)) if name not in self.gates]
        self.gates |= {name: self._earlier_gates.pop(name) for name in asked if name in self._earlier_gates}
        asked = [name for name in asked if name not in self.gates]
        if not asked:
            return
        self.doing(f"numeric gate: {', '.join(asked)}")
        began = time.monotonic()
        found = self._gates(asked, began)
        share = (time.monotonic() - began) / len(asked)
        failures = {failure.arm: dataclasses.replace(failure, what=self._told(failure)) for failure in found.failures}
        self.full_gates += found.gates
        judged = {gate.arm: gate for gate in found.gates}
        for name in asked:
            self.gates[name] = gate_row(name, judged.get(name), failures.get(name), share)
        self._saved()

    @property
    def _gate_batch(self) -> int:
        """A model may take no more samples at once than the user lets the search try."""
        c = self.config
        caps = [c.gate_batch, c.batch, c.max_batch, max(c.batches, default=None)]
        return min(cap for cap in caps if cap is not None)

    def _gates(self, asked: list[str], began: float) -> Gates:
        """The judgements of these arms; one that hangs is left out, and where one crashes each is judged alone."""
        job = self._job("gate", arms=asked, batch=self._gate_batch, steps=self.config.gate_steps)
        silence = self.budget.gate_silence(self, asked, time.monotonic() - began)
        timeout_s = min(self.config.timeout_s, silence)
        self._judging = ""
        try:
            answer = run_job(job, timeout_s=timeout_s, each_word=True, listen=self._at_the_gate, nursery=self.nursery)
            found: Gates = decode(Gates, answer)
            return found
        except (WorkerDied, OutOfMemory) as error:
            hangs, starved = status_of(error) == TIMED_OUT, isinstance(error, OutOfMemory)
            why = (
                self._ended(f"{silence:.0f} s without a sign of life") if hangs and timeout_s == silence else error.what
            )
        guilty = asked if len(asked) == 1 else []
        if hangs:  # over one arm, or, before it came to any, over what all of them are judged by
            guilty = [self._judging] if self._judging in asked else asked
        groups = [[name for name in asked if name not in guilty]] if guilty else [[name] for name in asked]
        parts = [Gates(failures=[ArmFailure(arm=name, what=why, out_of_memory=starved) for name in guilty])]
        parts += [self._gates(names, began) for names in groups if names]
        return Gates(gates=[g for p in parts for g in p.gates], failures=[f for p in parts for f in p.failures])

    def _told(self, failure: ArmFailure) -> str:
        """Why an arm could not be judged, and what can be done where it was for lack of memory."""
        can_shrink = failure.out_of_memory and self._gate_batch > 1
        return failure.what + (f"; --gate-batch judges fewer than {self._gate_batch} samples" if can_shrink else "")

    def _at_the_gate(self, text: str, done: float, total: float) -> None:
        judging = text.removeprefix("gate ")
        if judging != self._judging:  # it says so after every step
            self._judging = judging
            self.doing(f"numeric gate: {judging}")

    def note(self, text: str) -> None:
        self.notes.append(text)


def _turns_of(label: str, timings: Timings) -> dict[str, Any]:
    """What one of those that took turns measured; raises where any could not."""
    for failed in timings.failures:
        raise WorkerDied(f"{failed.arm}: {failed.what}")
    found = {one.quantity: one.values for one in timings.measurements if one.arm == label}
    return {
        "wall_ms": found["wall"],
        "interval_ms": found["interval"],
        "first_step_s": found["first_step"][0],
        "notes": timings.notes[label],
    }


def status_of(error: HotlapError) -> str:
    """How a trial ended, in a word or two."""
    if isinstance(error, OutOfMemory):
        return "killed" if "SIGKILL" in error.what else OUT_OF_MEMORY
    if isinstance(error, WorkerDied):
        return TIMED_OUT if "timeout_s" in error.what else "crashed"
    return "failed"


def _measured(answer: Trial) -> dict[str, Any]:
    if parse_arm(answer.arm).compile and not answer.num_graphs:
        return {"status": "failed", "why": NOT_COMPILED}
    notes = list(answer.notes)
    if answer.num_breaks:
        notes.append(f"torch.compile broke the graph {format_count(answer.num_breaks, 'time')}")
    if answer.num_recompiles:
        count = format_count(answer.num_recompiles, "time")
        notes.append(f"torch.compile compiled again {count} while steps were timed")
    if answer.tail_graphs:
        notes.append(f"torch.compile made {format_count(answer.tail_graphs, 'more graph')} for the ragged tail")
    return {
        "status": OK,
        "wall_ms": answer.wall_ms,
        "interval_ms": answer.interval_ms,
        "peak_bytes": peak_of(answer.memory),
        "first_step_s": answer.first_step_s,
        "num_breaks": answer.num_breaks,
        "num_recompiles": answer.num_recompiles,
        "tail_ms": answer.tail_ms,
        "tail_graphs": answer.tail_graphs,
        "notes": notes,
    }


def peak_of(memory: Memory) -> int | None:
    """The peak that decides whether a batch fits: what the card held, workspaces included, or what the host did."""
    sizes = [size for size in (memory.device_used_bytes, memory.reserved_bytes) if size]
    return max(sizes) if sizes else memory.host_rss_bytes


def gate_row(arm: str, gate: Gate | None, failure: ArmFailure | None, seconds: float) -> GateRow:
    """The gate of one arm as a search keeps it: the worst check, as a share of what it may be."""
    if gate is None:
        why = f"could not be judged: {failure.what if failure else 'no answer'}"
        starved = failure is not None and failure.out_of_memory
        return GateRow(arm=arm, passed=False, error=math.inf, why=why, seconds=seconds, out_of_memory=starved)
    shares = {check.name: _share(check.error, check.allowed) for check in gate.checks}
    worst = max(gate.checks, key=lambda check: (not check.passed, shares[check.name]))
    text = f"{worst.name} {worst.error:.2g}, allowed {worst.allowed:.2g}"
    detail = f" ({worst.detail})" if worst.detail else ""
    return GateRow(
        arm=arm,
        passed=gate.passed,
        error=max(shares.values()),
        check=text,
        why="" if gate.passed else f"wrong answer: {text}{detail}",
        seconds=seconds,
    )


def _share(error: float, allowed: float) -> float:
    if not math.isfinite(error):
        return math.inf
    return error / allowed if allowed > 0 else (0.0 if error == 0 else math.inf)
