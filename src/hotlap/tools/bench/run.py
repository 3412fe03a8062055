"""The bench itself: describe, gate, weigh, time in fresh processes, judge. The record on disk is never behind."""

from __future__ import annotations

import dataclasses
import re
import shutil
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hotlap.base import events
from hotlap.base.errors import EnvironmentUnusable, HotlapError, WorkerDied
from hotlap.base.events import Emit, ignore
from hotlap.base.format import format_count, format_list, format_target
from hotlap.device.clocks import locked_clocks
from hotlap.device.probe import require_cuda
from hotlap.measure.arms import ArmSpec, cpu_candidates, fewer_threads, parse_arm
from hotlap.measure.compared import build_arm, compare_arms, samples_of
from hotlap.measure.deploy_files import Made
from hotlap.measure.jobs import ArmFailure, Description, Footprint, Gates, Sweep, Timings
from hotlap.measure.process import Listen, run_job
from hotlap.measure.timed import Protocol
from hotlap.records.codec import decode, encode
from hotlap.records.environment import capture
from hotlap.records.loading import Claim, loading
from hotlap.records.measurement import Gate, Measurement, Telemetry
from hotlap.records.run import RunRecord, begin, now, save
from hotlap.targets import short_name, told_of_loss
from hotlap.tools.bench.break_even import find_break_even, sweep_batches
from hotlap.tools.bench.config import BenchConfig
from hotlap.tools.bench.pace import bearable_batch
from hotlap.tools.bench.plan import TUNED, Plan, make_plan
from hotlap.tools.bench.stored import with_stored_arm
from hotlap.tools.bench.verdict import give_verdict

FORMS_FOLDER = "forms"
"""Inside the run's folder while it goes on: models in the forms that its arms name."""
REGIME = "Inputs rotate over four batches that lie on the device; whole steps, so caches are as in use, not flushed."


def bench(config: BenchConfig, emit: Emit = ignore, *, sources: dict[str, str] | None = None) -> RunRecord:
    """Times one target; the record alone is enough to repeat the run."""
    emit(events.start("bench", None, f"loading {config.target}"))
    try:
        with loading("bench", config.name or short_name(config.target), config, sources or {}) as claim:
            about = describe(config)
            config, told = with_stored_arm(config, about, emit)
            run = _Run(config, emit, about, make_plan(config, about), sources or {}, claim)
        run.notes += told
        return _measure(run)
    finally:
        emit(events.finish("bench"))


def _measure(run: _Run) -> RunRecord:
    try:
        with locked_clocks(run.config.lock_clocks_mhz):
            run.measure()
    except KeyboardInterrupt:
        run.close("interrupted", "Interrupted; what was measured until then is here.")
        raise
    except HotlapError as error:
        run.close("failed", str(error))
        raise
    return run.close("complete")


def preview(config: BenchConfig) -> list[str]:
    """What a run with this config would do, in lines; loads the target, measures nothing."""
    if config.self_test:
        first = parse_arm(config.arms[0] if config.arms else "cpu")
        if first.device == "cuda":
            require_cuda(first.index)
        return ["would time the first arm against itself, 40 comparisons"]
    about = describe(config)
    config, told = with_stored_arm(config, about, ignore)
    plan = make_plan(config, about)
    return [
        *told,
        f"target     {format_target(about.name, about.summary)}, {about.num_parameters:,} parameters",
        f"baseline   {plan.arms[0].name}",
        *(f"arm        {spec.name}" for spec in plan.arms[1:]),
        *(f"context    {spec.name}" for spec in plan.context),
        f"work       {config.processes} processes, each timing {format_count(len(plan.arms), 'arm')} in turn, "
        f"at least {config.repeats} iterations an arm, batch {config.batch or about.default_batch}"
        + ("" if config.step_seconds is None or config.batch else ", or smaller where its steps are long"),
    ]


def describe(config: BenchConfig) -> Description:
    """What there is to know of the target, learnt in a process of its own."""
    answer = run_job(_job(config, "describe"), timeout_s=config.timeout_s)
    about: Description = decode(Description, answer)
    return about


def _job(config: BenchConfig, job: str, **extra: Any) -> dict[str, Any]:
    common = {"target": config.target, "options": config.workload, "inputs": list(config.input), "seed": config.seed}
    return {"job": job, **common, "mode": config.mode, **extra}


class _Run:
    """One bench under way."""

    def __init__(
        self,
        config: BenchConfig,
        emit: Emit,
        about: Description,
        plan: Plan,
        sources: dict[str, str],
        claim: Claim,
    ) -> None:
        self.config, self.emit, self.about = config, emit, about
        self.arms, self.context = list(plan.arms), list(plan.context)
        self.out: set[str] = set()
        """Arms that gave a wrong answer or failed; they keep their row and are timed no more."""
        self.needs_race = plan.needs_race
        self.crosses = plan.crosses_devices
        self.batch = config.batch or about.default_batch
        self.began = time.time()
        self.gates: dict[str, Gate] = {}
        self.footprints: dict[str, Footprint] = {}
        self.files: dict[str, str] = {}
        """Of arms such as cpu:onnx, made once and read by every process."""
        self.measurements: list[Measurement] = []
        self.telemetry: list[Telemetry] = []
        self.failures: list[ArmFailure] = []
        self.done, self.units = 0, 0
        resolved = dataclasses.replace(config, batch=self.batch)
        environment = capture()
        self.folder: Path = claim.take()
        self.record = begin("bench", claim.name, resolved, sources, environment)
        self.extra: dict[str, Any] = {"about": encode(about), "regime": REGIME}
        self.notes = [*config.given_up(), *told_of_loss(config.input, config.mode)]
        if about.other_weights:
            kinds = format_list(about.other_weights)
            self.notes.append(f"The model has weights in {kinds}, which no arm casts: 'fp32' means {kinds} for them.")
        if len({spec.batch or self.batch for spec in self.arms}) > 1:
            self.notes.append("The arms have different batches; speed-ups are of samples a second, not of steps.")

    def measure(self) -> None:
        self._save()
        self.units = self.needs_race + self.config.gate + self.config.processes + len(self.context)
        self.units += len(self.arms) if self.config.memory else 0
        self.units += sum(bool(spec.form) for spec in self.arms)
        self.units += self.config.break_even and self.crosses
        if self.needs_race:
            self._race()
            self.done += 1
        if self.config.gate:
            self._gate()
            self._shorten_steps()
        for spec in self._going(self.arms):
            if spec.form:
                self._make(spec)
            elif self.config.memory:
                self._weigh(spec)
        for process in range(self.config.processes):
            began = time.monotonic()
            self._time(process, self._going(self.arms), f"process {process + 1} of {self.config.processes}")
            self._save()
            if process == 0:
                self._say_how_long(time.monotonic() - began)
        for spec in self._going(self.context):
            self._time(0, [spec], f"context {spec.name}")
        if self.config.break_even and self.crosses:
            self._break_even()

    def _say_how_long(self, one_process_s: float) -> None:
        """Says it once where the wait is long, for nobody can tell eight processes from eighty."""
        minutes = round(one_process_s * (self.config.processes - 1 + len(self.context)) / 60)
        if minutes >= 2:
            faster = "" if self.config.quick else "; --quick gives a rougher answer in about one"
            self.emit(events.note(f"about {minutes} minutes to go{faster}"))

    # One unit of progress is one process.
    def _run(self, text: str, job: dict[str, Any]) -> Any:
        def listen(detail: str, done: float, total: float) -> None:
            share = done / total if total else 0.0
            self.emit(events.advance("bench", self.done + share, self.units, f"{text}: {detail}"))

        ear: Listen = listen
        self.emit(events.advance("bench", self.done, self.units, text))
        answer = run_job(job, timeout_s=self.config.timeout_s, listen=ear)
        self.done += 1
        return answer

    def _protocol(self, process: int, **changes: Any) -> dict[str, Any]:
        config = self.config
        protocol = Protocol(
            process=process,
            repeats=config.repeats,
            seconds=config.seconds,
            max_seconds=config.max_seconds,
            warmup_seconds=config.warmup_seconds,
            transfer=config.transfer,
            began_at=self.began,
        )
        data: dict[str, Any] = encode(dataclasses.replace(protocol, **changes))
        return data

    def _race(self) -> None:
        """Puts the fastest CPU settings that pass the gate in the place of ``cpu:tuned``."""
        about = self.about
        candidates = cpu_candidates(
            has_convolutions=about.has_convolutions, fast_bf16=about.fast_bf16, can_compile=about.can_compile
        )
        try:
            rows = self._heat(candidates)
        except WorkerDied:  # compiled code aborts where plain code says what is wrong
            self._find_fault(candidates[0])
            raise
        if not _by_time(rows):
            self._find_fault(candidates[0])
        else:
            leader = next(spec for spec in candidates if spec.name == _by_time(rows)[0])
            fewer = fewer_threads(leader, about.usable_cores)
            candidates += fewer
            rows += self._heat(fewer) if fewer else []
        winner = self._first_correct(_by_time(rows), rows)
        self.extra["tuned_cpu"] = {"candidates": rows, "chosen": winner}
        self._replace_tuned(next(spec for spec in candidates if spec.name == winner))

    def _find_fault(self, plain: ArmSpec) -> None:
        """Raises what is wrong with the target itself, if the gate meets it, too."""
        if self.config.gate:
            self._check_gates([plain.name])

    def _heat(self, candidates: Sequence[ArmSpec]) -> list[dict[str, Any]]:
        """One short process with all candidates: the median step of each, or why it has none."""
        brief = self._protocol(0, repeats=5, seconds=0.3, max_seconds=min(4.0, self.config.max_seconds), transfer=False)
        names = [spec.name for spec in candidates]
        job = _job(self.config, "timing", arms=names, batch=self.batch, protocol=brief)
        found: Timings = decode(Timings, self._run("tuned CPU", job))
        self.done -= 1
        why = {failure.arm: failure.what for failure in found.failures}
        walls = {name: samples_of(found.measurements, name, "wall") for name in names}
        return [
            {
                "arm": name,
                "median_ms": statistics.median(walls[name][0]) if walls[name] else None,
                "passed_gate": None,
                "error": why.get(name, ""),
            }
            for name in names
        ]

    def _first_correct(self, names: Sequence[str], rows: list[dict[str, Any]]) -> str:
        for name in names:
            if not self.config.gate:
                return name
            self._check_gates([name])
            passed = name in self.gates and self.gates[name].passed
            next(row for row in rows if row["arm"] == name)["passed_gate"] = passed
            if passed:
                return name
            gate = self.gates.pop(name, None)
            self.failures = [f for f in self.failures if f.arm != name]
            why = _what_is_wrong(gate) if gate else "it failed"
            self.notes.append(f"{name} was left out of the tuned CPU: {why}")
        why = next((f": {row['arm']} gave {row['error']}" for row in rows if row["error"]), "")
        raise EnvironmentUnusable(
            f"no CPU settings of {self.config.target!r} ran and passed the gate{why}",
            remedy="Look at one with --arms cpu, or leave the CPU out with --arms cuda",
        )

    def _replace_tuned(self, chosen: ArmSpec) -> None:
        self.notes.append(f"cpu:tuned is {chosen.name} here.")
        for group in (self.arms, self.context):
            if TUNED in group:
                group[group.index(TUNED)] = chosen
                group[:] = dict.fromkeys(group)  # the first place counts, since the first arm is the baseline
        self.context[:] = [spec for spec in self.context if spec not in self.arms]

    def _gate(self) -> None:
        names = [spec.name for spec in self.arms + self.context if spec.name not in self.gates]
        self._check_gates(names)
        self.done += 1
        self.out |= {name for name, gate in self.gates.items() if not gate.passed}
        self.out |= {failure.arm for failure in self.failures}
        self._save()

    def _shorten_steps(self) -> None:
        """Takes a smaller batch where the steps of the workload's own would be too long, and says so."""
        longest = self.config.step_seconds
        if longest is None or self.config.batch is not None or any(spec.batch for spec in self.arms + self.context):
            return
        going = {spec.name for spec in self._going(self.arms + self.context)}
        whole, gates = self.batch, [gate for gate in self.gates.values() if gate.arm in going]
        self.batch, expected = bearable_batch(whole, gates, longest)
        if self.batch == whole:
            return
        self.record = dataclasses.replace(
            self.record,
            config=self.record.config | {"batch": self.batch},
            config_sources=self.record.config_sources | {"batch": "step_seconds"},
        )
        note = (
            f"Batch {self.batch} instead of {whole}, for a step of every arm may take up to {expected:.1f} s; a "
            f"device that needs large batches looks slower for it. --batch {whole} times it whole."
        )
        self.notes.append(note)
        self.emit(events.note(note))

    def _going(self, specs: Sequence[ArmSpec]) -> list[ArmSpec]:
        return [spec for spec in specs if spec.name not in self.out]

    def _check_gates(self, names: Sequence[str]) -> None:
        size = min([self.config.gate_batch, self.batch, *(parse_arm(name).batch or self.batch for name in names)])
        job = _job(self.config, "gate", arms=list(names), batch=size, steps=self.config.gate_steps)
        found: Gates = decode(Gates, self._run("numeric gate", job))
        self.done -= 1
        self.gates.update({gate.arm: gate for gate in found.gates})
        self.failures += found.failures
        for gate in found.gates:
            self.emit(events.note(f"gate {gate.arm}: {'passed' if gate.passed else 'FAILED'}"))

    def _weigh(self, spec: ArmSpec) -> None:
        job = _job(self.config, "footprint", arm=spec.name, batch=self.batch)
        try:
            self.footprints[spec.name] = decode(Footprint, self._run(f"memory {spec.name}", job))
        except HotlapError as error:
            self._drop(spec, error)

    def _make(self, spec: ArmSpec) -> None:
        folder = self.folder / FORMS_FOLDER / re.sub(r"\W+", "-", spec.name)
        folder.mkdir(parents=True)
        job = _job(self.config, "deploy", arm=spec.name, batch=self.batch, dynamic=False, folder=str(folder.resolve()))
        try:
            made: Made = decode(Made, self._run(f"making {spec.name}", job))
        except HotlapError as error:
            self._drop(spec, error)
            return
        self.files[spec.name] = str(folder.resolve() / made.files[0].name)

    def _drop(self, spec: ArmSpec, error: HotlapError) -> None:
        """Leaves an arm out that cannot run; without any arm left, its error is the run's."""
        self.failures.append(ArmFailure(arm=spec.name, what=error.what, out_of_memory=error.exit_code == 5))
        self.out.add(spec.name)
        if not self._going(self.arms):
            raise error

    def _time(self, process: int, specs: Sequence[ArmSpec], text: str) -> None:
        if not specs:
            return
        # A process that keeps memory does so for all its arms: others get one beside it, now before and now after it.
        groups = [[spec for spec in specs if spec.keep_memory == kept] for kept in (False, True)]
        groups = [group for group in (groups[::-1] if process % 2 else groups) if group]
        protocol = self._protocol(process)
        for group in groups:
            names = [spec.name for spec in group]
            job = _job(self.config, "timing", arms=names, batch=self.batch, protocol=protocol, files=self.files)
            timings: Timings = decode(Timings, self._run(text, job))
            self.measurements += timings.measurements
            self.telemetry += timings.telemetry
            self.failures += timings.failures
            self.out |= {failure.arm for failure in timings.failures}
        self.done -= len(groups) - 1  # one unit of progress

    def _break_even(self) -> None:
        going = [spec for spec in self._going(self.arms + self.context) if not spec.form]
        host = next((s for s in going if s.device == "cpu" and s.threads != 1), None)
        card = next((s for s in going if s.device == "cuda"), None)
        if host is None or card is None:
            return
        batches = sweep_batches(self.batch)
        job = _job(self.config, "sweep", arms=[host.name, card.name], batches=batches, seconds=1.0)
        found: Sweep = decode(Sweep, self._run("break-even batch", job))
        self.extra["break_even"] = find_break_even(found, host.name, card.name)

    def _snapshot(self) -> RunRecord:
        failed = {f.arm: f for f in reversed(self.failures)}
        roles = {spec.name: "arm" for spec in self.arms} | {spec.name: "context" for spec in self.context}
        roles |= {self.arms[0].name: "baseline"}
        rows = [
            build_arm(
                spec,
                roles[spec.name],
                self.batch,
                self.measurements,
                self.telemetry,
                footprint=self.footprints.get(spec.name),
                failure=failed.get(spec.name),
            )
            for spec in self.arms + self.context
        ]
        return dataclasses.replace(
            self.record,
            arms=rows,
            comparisons=compare_arms(rows, self.gates, self.measurements, self.config.min_effect),
            gates=list(self.gates.values()),
            measurements=list(self.measurements),
            telemetry=list(self.telemetry),
            extra=self.extra,
            notes=list(self.notes),
        )

    def _save(self) -> None:
        self.record = save(self._snapshot(), self.folder)

    def close(self, status: str, why: str = "") -> RunRecord:
        """The finished record, with its verdict, on disk."""
        shutil.rmtree(self.folder / FORMS_FOLDER, ignore_errors=True)
        record = self._snapshot()
        verdict = give_verdict(record.arms, self.gates, record.comparisons, self.failures)
        if status != "complete":
            verdict = dataclasses.replace(verdict, outcome=status, headline=why, exit_code=1)
        notes = [*record.notes, why] if why else record.notes
        record = dataclasses.replace(record, status=status, finished_at=now(), verdict=verdict, notes=notes)
        self.record = save(record, self.folder)
        return self.record


def _what_is_wrong(gate: Gate) -> str:
    """The check that is furthest from what is allowed."""
    worst = max((c for c in gate.checks if not c.passed), key=lambda c: c.error / max(c.allowed, 1e-300))
    return f"wrong answer, {worst.name} error {worst.error:.2g}, allowed {worst.allowed:.2g}"


def _by_time(rows: Sequence[dict[str, Any]]) -> list[str]:
    """The names of the candidates that ran, fastest first."""
    return [row["arm"] for row in sorted((r for r in rows if r["median_ms"]), key=lambda r: r["median_ms"])]
