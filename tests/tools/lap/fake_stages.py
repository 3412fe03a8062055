"""Stages that measure nothing: each leaves the record that the real one would, and a line that it ran.

Run as a program, it starts a lap of such stages in a folder, in which one stage may kill the process.
"""

from __future__ import annotations

import dataclasses
import os
import signal
import sys
from pathlib import Path

from hotlap.base.errors import HotlapError
from hotlap.records.environment import capture
from hotlap.records.measurement import Arm, Check, Comparison, Gate, GateCheck, Memory, Summary, Verdict
from hotlap.records.run import RunRecord, begin, now, run_folder, save
from hotlap.tools.lap import LapConfig, lap
from hotlap.tools.lap.stages import Round, Skip, Stage, bench_arms

NAMES = ("doctor", "baseline", "profile-before", "tune", "verify", "profile-after", "bench")
OPTIONAL = ("profile-before", "verify", "profile-after")
MIB = 1024**2


def summary(ms: float) -> Summary:
    return Summary(
        quantity="wall", unit="ms", median=ms, low=0.98 * ms, high=1.02 * ms, num_processes=8, num_samples=240,
        process_medians=[ms] * 8,
    )  # fmt: skip


def arm_row(name: str, ms: float, batch: int, role: str = "arm", **more) -> Arm:
    given = {"samples_per_s": 1e3 * batch / ms, "memory": Memory(host_rss_bytes=100 * MIB)} | more
    return Arm(name=name, settings={"batch": batch}, role=role, summaries=[summary(ms)], **given)


def gate(arm: str, error: float = 2e-5) -> Gate:
    check = GateCheck(name="outputs", error=error, allowed=1e-4, passed=error <= 1e-4)
    return Gate(arm=arm, passed=check.passed, checks=[check], reference="float64")


def against(arm: str, base: str, ratio: float, verdict: str) -> Comparison:
    return Comparison(
        arm=arm, baseline=base, quantity="wall", ratio=ratio, low=0.9 * ratio, high=1.1 * ratio, p_value=0.01,
        test="sign-flip", min_detectable=0.03, verdict=verdict, reason="" if verdict != "inconclusive" else "too noisy",
    )  # fmt: skip


def said(headline: str, code: int = 0) -> Verdict:
    return Verdict(outcome="ok", headline=headline, exit_code=code)


def trial(arm: str, batch: int, *, peak_bytes: int | None = None, **more) -> dict:
    """A row of the search's table."""
    return {"stage": "scout", "arm": arm, "batch": batch, "rung": 0, "peak_bytes": peak_bytes, "status": "ok"} | more


@dataclasses.dataclass
class Day:
    """What the stages find; the fields are what a test wants to be otherwise."""

    winner: tuple[str, int] | None = ("cpu:threads=1", 32)
    ratio: float = 2.0
    verdict: str = "faster"
    after_error: float = 2e-5
    consumer: int = 0
    """Exit code of the verification."""
    stored: str = "/store/net.json"
    advice: tuple[dict, ...] = ()
    trials: tuple[dict, ...] = ()
    memory: int = 1024 * MIB
    notes: tuple[str, ...] = ()
    """Of the search."""
    remarks: tuple[str, ...] = ()
    """Lines of the search's verdict."""

    def find(self, name: str, lap: Round) -> dict:
        base = arm_row("cpu", 10.0, 16, "baseline")
        if name == "doctor":
            return {"checks": [Check(name="cuda-start", group="gpu", status="SKIP", observed="no card")]}
        if name == "baseline":
            return {"arms": [base], "config": {"batch": 16}, "verdict": said("cpu: 10 ms a step")}
        if name.startswith("profile"):
            return {"extra": {"profile": {"advice": list(self.advice)}}, "verdict": said("recurrent 90%")}
        if name == "tune":
            winner = dict(zip(("arm", "batch"), self.winner, strict=True)) if self.winner else None
            rows = [trial("cpu", 16, wall_ms=[10.0], peak_bytes=7 * MIB), *self.trials]
            found = {"key": {"memory_bytes": self.memory}} | {
                "winner": winner,
                "stored": self.stored,
                "profile": winner,
                "rows": rows,
            }
            told = said("tuned") if winner else said("no configuration of net was found", 1)
            told = dataclasses.replace(told, lines=list(self.remarks))
            return {"extra": {"tune": found}, "verdict": told, "config": {"budget": "77s"}, "notes": list(self.notes)}
        if name == "verify":
            return {"verdict": said("verified" if not self.consumer else "batch is 16, expected 32", self.consumer)}
        return self._bench(lap, base)

    def _bench(self, lap: Round, base: Arm) -> dict:
        names = bench_arms(lap)
        if len(names) == 1:
            raise Skip("nothing to compare")
        arms = [base, *(arm_row(n, 10.0, 32 if "batch=32" in n else 16) for n in names[1:])]
        after = next(n for n in names if n.startswith(self.winner[0])) if lap.winner and not lap.stays else ""
        gates = [gate(n, self.after_error if n == after else 2e-5) for n in names]
        wrong = {g.arm for g in gates if not g.passed}
        heads = [against(n, "cpu", self.ratio, self.verdict) for n in names[1:] if n not in wrong]
        return {"arms": arms, "gates": gates, "comparisons": heads, "verdict": said("benched", bool(wrong))}


def fake_stages(folder: Path, day: Day | None = None, *, kill: str = "", fail: str = "", error=None) -> list[Stage]:
    """The seven stages; ``kill`` names one that ends the process: ``tune`` within it, ``tune+`` when it is done."""

    def make(name: str) -> Stage:
        def run(lap: Round) -> RunRecord:
            with (folder / "ran.txt").open("a") as file:
                file.write(name + (" again\n" if lap.unfinished else "\n"))
            place = run_folder(lap.runs, name)
            kind = "bench" if name == "baseline" else name.partition("-")[0]
            record = save(begin(kind, name, {}, {}, capture(import_torch=False, ask_driver=False)), place)
            if kill == name:
                os.kill(os.getpid(), signal.SIGKILL)
            if fail == name:
                save(dataclasses.replace(record, status="failed", config={"budget": "77s"}), place)
                raise error or HotlapError("disk is full", remedy="Make room")
            found = (day or Day()).find(name, lap)
            record = save(dataclasses.replace(record, status="complete", finished_at=now(), **found), place)
            if kill == name + "+":
                os.kill(os.getpid(), signal.SIGKILL)
            return record

        return Stage(name=name, what=f"does {name}", run=run, essential=name not in OPTIONAL)

    return [make(name) for name in NAMES]


def ran(folder: Path) -> list[str]:
    """The stages that ran, in order, since this was asked last."""
    file = folder / "ran.txt"
    lines = file.read_text().splitlines() if file.is_file() else []
    file.unlink(missing_ok=True)
    return lines


if __name__ == "__main__":
    here = Path(sys.argv[1])
    lap(LapConfig(target="net", runs=here / "runs", report=False), stages=fake_stages(here, kill=sys.argv[2]))
