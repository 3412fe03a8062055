"""The examination: facts first, then probes in their own processes, then one record with a verdict."""

from __future__ import annotations

import math
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

from hotlap.base.errors import EXIT_ENVIRONMENT, EXIT_OK, ConfigError, StorageError
from hotlap.base.events import Emit, advance, finish, ignore, start
from hotlap.records.ceilings import Ceilings, write_ceilings
from hotlap.records.codec import decode, encode
from hotlap.records.measurement import Check, Verdict
from hotlap.records.run import RunRecord, begin, now
from hotlap.tools.doctor.config import DoctorConfig
from hotlap.tools.doctor.environment import read_environment
from hotlap.tools.doctor.finding import Finding, Fix, skipped, warned
from hotlap.tools.doctor.machine import Machine
from hotlap.tools.doctor.nvml_facts import NvmlFacts
from hotlap.tools.doctor.registry import Spec, load_checks, select
from hotlap.tools.doctor.runner import Runner
from hotlap.tools.doctor.shelf import Shelf

TASK = "doctor"


@dataclass
class Round:
    """One examination while it runs."""

    machine: Machine
    runner: Runner
    config: DoctorConfig
    emit: Emit
    total: int
    checks: dict[str, Check] = field(default_factory=dict)

    def note(self, check: Check) -> None:
        self.checks[check.name] = check
        self.emit(advance(TASK, len(self.checks), self.total, f"{check.status} {check.name}"))


def doctor(
    config: DoctorConfig,
    emit: Emit = ignore,
    *,
    sources: dict[str, str] | None = None,
    machine: Machine | None = None,
    runner: Runner | None = None,
) -> RunRecord:
    """Examines this machine; the record holds every check with its status, its reason and its fix.

    ``machine`` and ``runner`` stand in for the real ones in tests. This process imports no torch and opens no CUDA
    context, so that a broken one cannot take the doctor down. Where the record cannot be written, the error that says
    so holds it.
    """
    if not 0 < config.timeout_s < math.inf:
        raise ConfigError(f"timeout_s = {config.timeout_s:g} is not valid", expected="a number of seconds above 0")
    specs, broken = load_checks()
    chosen = select(specs, config.only, measure=config.measure)
    shelf = Shelf(config.runs, TASK)
    emit(start(TASK, len(chosen), "reading the machine"))
    with runner or Runner() as active:
        environment = read_environment(active, min(config.timeout_s, 20))
        record = begin(TASK, TASK, config, sources or {}, environment)
        shelf.try_to_keep(record)
        machine = machine or _this_machine(active, config)
        examination = Round(machine, active, config, emit, len(chosen))
        try:
            _examine(examination, chosen)
        except BaseException:
            done = _ordered(examination, chosen)
            shelf.try_to_keep(replace(record, status="interrupted", finished_at=now(), checks=done))
            raise
    checks = _ordered(examination, chosen) + [_plugin(name, reason) for name, reason in broken.items()]
    checks, ceilings, notes = _keep_ceilings(checks)
    extra = {"ceilings": ceilings, "system": _system(machine)}
    record = replace(record, status="complete", finished_at=now(), checks=checks, extra=extra, notes=notes)
    verdict = judge(checks)
    emit(finish(TASK, verdict.headline))
    return shelf.keep(replace(record, verdict=verdict))


def _this_machine(runner: Runner, config: DoctorConfig) -> Machine:
    facts, reason = runner.facts("facts:nvml", NvmlFacts, min(config.timeout_s, 20))
    return Machine(nvml=facts if facts is not None else NvmlFacts(reason=reason))


def _ordered(examination: Round, chosen: list[Spec]) -> list[Check]:
    return [examination.checks[spec.name] for spec in chosen if spec.name in examination.checks]


def _examine(examination: Round, chosen: list[Spec]) -> None:
    """Facts, then processor probes a few at a time, then what must run alone, then the card one by one."""
    for spec in chosen:
        if spec.facts is not None:
            examination.note(_facts_check(spec, examination.machine))
    probes = [spec for spec in chosen if spec.probe is not None]
    light = [spec for spec in probes if not spec.cuda and not spec.alone]
    first, rest = [s for s in light if not s.needs], [s for s in light if s.needs]
    for wave in (first, rest):
        with ThreadPoolExecutor(max_workers=max(1, examination.config.side_by_side)) as pool:
            for check in pool.map(lambda spec: _probe_check(spec, examination), wave):
                examination.note(check)
    heavy = [spec for spec in probes if spec.alone and not spec.cuda]
    for spec in [*heavy, *(s for s in probes if s.cuda)]:
        examination.note(_probe_check(spec, examination))


def _facts_check(spec: Spec, machine: Machine) -> Check:
    assert spec.facts is not None
    begun = time.perf_counter()
    try:
        finding = spec.facts(machine)
    except Exception as error:  # noqa: BLE001 - one broken check must not stop the others
        say = "This check itself is at fault; please report it with this line"
        finding = warned(f"the check failed with {type(error).__name__}: {error}", Fix(say=say))
    return to_check(spec, finding, time.perf_counter() - begun)


def _probe_check(spec: Spec, examination: Round) -> Check:
    reason = _why_not(spec, examination)
    if reason:
        return to_check(spec, skipped(reason), 0.0)
    begun = time.perf_counter()
    finding = examination.runner.run(spec.name, examination.config.timeout_s * spec.patience)
    return to_check(spec, finding, time.perf_counter() - begun)


def _why_not(spec: Spec, examination: Round) -> str:
    """The reason a probe is skipped; '' when it can run."""
    machine = examination.machine
    if spec.cuda:
        if not machine.has_nvidia:
            return "no NVIDIA card here"
        if not machine.torch_version:
            return "torch is not installed"
        if not machine.torch_cuda:
            return "this torch has no CUDA in it; see torch-build"
        if machine.environ.get("CUDA_VISIBLE_DEVICES", "0").strip() in ("", "-1", "NoDevFiles"):
            return "CUDA_VISIBLE_DEVICES hides every card"
    for need in spec.needs:
        before = examination.checks.get(need)
        if before is None or before.status not in ("PASS", "WARN"):
            return f"needs {need}, which did not pass"
    return ""


def to_check(spec: Spec, finding: Finding, seconds: float) -> Check:
    """A finding with its name, its reason and its time; the fix's commands go along for the fix script."""
    data = dict(finding.data)
    if finding.fix.text():
        data["fix"] = encode(finding.fix)
    return Check(
        name=spec.name,
        group=spec.group,
        status=finding.status,
        observed=finding.observed,
        why=spec.why,
        fix=finding.fix.text(),
        seconds=round(seconds, 3),
        data=data,
    )


def _plugin(name: str, reason: str) -> Check:
    spec = Spec(name=f"plugin-{name}", group="libraries", why="A plug-in that does not load checks nothing.")
    return to_check(spec, warned(reason, Fix(say=f"Update or remove the package that brings the check {name!r}")), 0.0)


def _keep_ceilings(checks: list[Check]) -> tuple[list[Check], dict[str, Any], list[str]]:
    """Moves measured ceilings out of the checks, into the record and the cache."""
    kept, ceilings, notes = [], {}, []
    for check in checks:
        data = dict(check.data)
        found = data.pop("ceilings", None)
        if found is not None:
            ceilings[str(found["kind"])] = found
            try:
                notes.append(f"Ceilings of {found['device']} are cached in {write_ceilings(decode(Ceilings, found))}")
            except (OSError, StorageError) as error:
                notes.append(f"Ceilings of {found['device']} could not be cached: {error}")
        kept.append(replace(check, data=data))
    return kept, ceilings, notes


def _system(machine: Machine) -> dict[str, Any]:
    return {
        "distribution": machine.os_release.get("ID", ""),
        "name": machine.os_release.get("PRETTY_NAME", machine.platform),
        "container": machine.container,
        "driver": machine.driver_version,
        "torch": machine.torch_version,
        "capabilities": [card.capability for card in machine.nvml.cards],
    }


def judge(checks: list[Check]) -> Verdict:
    """0 when nothing failed, whatever was warned of or skipped; 4 when anything failed."""
    counts = {status: sum(check.status == status for check in checks) for status in ("PASS", "WARN", "FAIL", "SKIP")}
    failures = [check for check in checks if check.status == "FAIL"]
    told = ", ".join(f"{count} {status}" for status, count in counts.items())
    lines = [f"{check.name}: {check.observed}" for check in failures]
    if failures:
        names = ", ".join(check.name for check in failures)
        return Verdict(
            outcome="unusable", headline=f"{told}. Put right first: {names}", exit_code=EXIT_ENVIRONMENT, lines=lines
        )
    outcome = "warnings" if counts["WARN"] else "healthy"
    end = "Usable; the warnings cost speed or trust" if counts["WARN"] else "Usable"
    return Verdict(outcome=outcome, headline=f"{told}. {end}", exit_code=EXIT_OK, lines=lines)
