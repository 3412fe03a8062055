"""The tool itself: make a trace or take one, take it apart, advise, keep everything in a record."""

from __future__ import annotations

import dataclasses
import re
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hotlap.base import events
from hotlap.base.errors import EXIT_OK, HotlapError
from hotlap.base.events import Emit, ignore
from hotlap.base.format import format_number
from hotlap.data.kineto import read_trace
from hotlap.device.probe import require_cuda
from hotlap.measure.arms import ArmSpec, parse_arm, refuse_batch
from hotlap.measure.jobs import Description
from hotlap.measure.process import run_job
from hotlap.measure.profiled import Profiled
from hotlap.records.ceilings import Ceilings, read_ceilings
from hotlap.records.codec import decode, encode
from hotlap.records.environment import capture
from hotlap.records.loading import Claim, loading
from hotlap.records.measurement import Measurement, Verdict
from hotlap.records.run import RunRecord, begin, now, save
from hotlap.targets import short_name, told_of_loss
from hotlap.tools.profile.advice import Case, advise
from hotlap.tools.profile.analyse import Worked, analysis_of
from hotlap.tools.profile.categories import RECURRENT
from hotlap.tools.profile.check import check_advice
from hotlap.tools.profile.config import ProfileConfig
from hotlap.tools.profile.found import Advice, Analysis, RankFound, Roofline
from hotlap.tools.profile.pace import pace_told
from hotlap.tools.profile.ranks import compute_ms, ranks_found, trace_files
from hotlap.tools.profile.roofline import roofline
from hotlap.tools.profile.story import headline, story

DISTURBED = 3.0
"""A traced step that many times as long as the plain one shows something else than the step."""


def profile(config: ProfileConfig, emit: Emit = ignore, *, sources: dict[str, str] | None = None) -> RunRecord:
    """Where the time of a step goes: of a target traced now, or of traces that were there."""
    if config.diff:
        from hotlap.tools.profile.compared import diff

        return diff(config, emit, sources=sources)
    emit(events.start("profile", None, f"loading {config.target or 'the trace'}"))
    try:
        named = _stem(trace_files(config.trace)) if config.trace else f"{short_name(config.target)}-profile"
        with loading("profile", config.name or named, config, sources or {}) as claim:
            run = (_Traces if config.trace else _Target)(config, emit, sources or {}, claim)
        return run.go()
    finally:
        emit(events.finish("profile"))


class _Run:
    """One profile under way."""

    def __init__(self, config: ProfileConfig, emit: Emit, sources: dict[str, str], claim: Claim) -> None:
        self.config, self.emit = config, emit
        self.notes: list[str] = []
        self.samples: list[Measurement] = []
        self.folder: Path = claim.take()
        self.record = begin("profile", claim.name, config, sources, capture())
        self.record = save(self.record, self.folder)

    def go(self) -> RunRecord:
        """The finished record, on disk whatever happens."""
        try:
            found, verdict = self.find()
        except KeyboardInterrupt:
            self._close("interrupted", {}, Verdict(outcome="interrupted", headline="Interrupted.", exit_code=1))
            raise
        except HotlapError as error:
            self._close("failed", {}, Verdict(outcome="failed", headline=str(error), exit_code=error.exit_code))
            raise
        return self._close("complete", {"profile": found}, verdict)

    def find(self) -> tuple[dict[str, Any], Verdict]:
        raise NotImplementedError

    def _close(self, status: str, extra: dict[str, Any], verdict: Verdict) -> RunRecord:
        record = dataclasses.replace(
            self.record,
            status=status,
            finished_at=now(),
            extra=extra,
            notes=list(dict.fromkeys(self.notes)),
            measurements=self.samples,
            verdict=verdict,
        )
        self.record = save(record, self.folder)
        return self.record

    def read(self, path: str | Path) -> Worked:
        def heard(done: int) -> None:
            self.emit(events.advance("profile", 0, None, f"reading {Path(path).name}, {done / 1e6:.0f} MB"))

        self.emit(events.advance("profile", 0, None, f"reading {Path(path).name}"))
        worked = Worked(read_trace(path, heard))
        for warning in worked.warnings:
            self.emit(events.warn(f"{Path(path).name}: {warning}"))
        return worked

    def ceilings(self, key: str) -> Ceilings | None:
        file = self.config.ceilings
        if file is None:
            return read_ceilings(key) if key else None
        found = read_ceilings(file.stem, file.parent)
        if found is None:
            from hotlap.base.errors import RecordError

            raise RecordError(f"ceilings = {str(file)!r} does not exist", remedy="'hotlap doctor --measure' writes one")
        return found


def _plain(
    analysis: Analysis, roof: Roofline, advice: list[Advice], ranks: list[RankFound], **more: Any
) -> dict[str, Any]:
    """What a record keeps of a profile."""
    return {
        "analysis": encode(analysis),
        "roofline": encode(roof),
        "advice": encode(advice),
        "ranks": encode(ranks),
        **more,
    }


def _stem(files: Sequence[Path]) -> str:
    """What traces are called, without what all of them end in."""
    return re.sub(r"(\.pt)?(\.trace)?\.json(\.gz)?$", "", files[0].name) or "trace"


class _Traces(_Run):
    """Traces that are there already, one a rank."""

    def __init__(self, config: ProfileConfig, emit: Emit, sources: dict[str, str], claim: Claim) -> None:
        self.files = trace_files(config.trace)
        super().__init__(config, emit, sources, claim)

    def find(self) -> tuple[dict[str, Any], Verdict]:
        config, analyses, numbers, roofs = self.config, [], [], []
        for place, file in enumerate(self.files):
            worked = self.read(file)
            analyses.append(analysis_of(worked, worked))
            roofs.append(roofline(worked, self.ceilings(""), tf32="tf32" in config.arm))
            numbers.append(worked.trace.rank if worked.trace.rank is not None else place)
        ranks = ranks_found(analyses, numbers)
        slowest = max(range(len(analyses)), key=lambda place: compute_ms(analyses[place]))
        analysis, roof = analyses[slowest], roofs[slowest]
        self.notes += [w for a in analyses for w in a.warnings]
        spec = parse_arm(config.arm) if config.arm else None
        case = Case(
            analysis=analysis,
            roofline=roof,
            step_ms=analysis.step_ms,
            arm=spec,
            mode=config.mode,
            batch=config.batch or 0,
        )
        advice = advise(case)
        if analysis.on_device and analysis.device:
            self.notes.append(f"The trace is of a {analysis.device}.")
        self.notes.append("The step's time was taken under the profiler; how much that slowed it is not known.")
        found = _plain(analysis, roof, advice, ranks if len(ranks) > 1 else [], traces=[str(f) for f in self.files])
        return found, Verdict(
            outcome="profiled",
            headline=headline(Path(analysis.trace).name, analysis, analysis.step_ms),
            exit_code=EXIT_OK,
            lines=story(analysis, roof, advice, ranks, pace_told(case.pace)),
        )


class _Target(_Run):
    """A target, traced now."""

    def __init__(self, config: ProfileConfig, emit: Emit, sources: dict[str, str], claim: Claim) -> None:
        self.common = {
            "target": config.target,
            "options": config.workload,
            "inputs": list(config.input),
            "seed": config.seed,
        }
        about: Description = decode(
            Description, run_job({**self.common, "job": "describe"}, timeout_s=config.timeout_s)
        )
        self.spec: ArmSpec = parse_arm(config.arm or ("cuda" if about.num_cuda else "cpu"))
        refuse_batch(self.spec, "--batch")
        if self.spec.device == "cuda" and self.spec.index >= about.num_cuda:
            require_cuda(self.spec.index)
        self.batch = config.batch or about.default_batch
        resolved = dataclasses.replace(config, arm=self.spec.name, batch=self.batch)
        super().__init__(resolved, emit, sources, claim)
        self.stem = re.sub(r"[^A-Za-z0-9._+=-]+", "-", f"{about.name}.{self.spec.name}")

    def find(self) -> tuple[dict[str, Any], Verdict]:
        config = self.config
        ran = self._trace()
        worked = self.read(ran.trace)
        analysis = analysis_of(worked, self.read(ran.detail) if ran.detail else worked)
        roof = roofline(worked, self.ceilings(ran.ceilings_key), tf32=self.spec.precision == "tf32")
        step = statistics.median(ran.step_ms)
        case = self._case(analysis, roof, step, ran)
        advice = advise(case)
        if config.check_advice:
            job = {**self.common, "mode": config.mode, "batch": self.batch}
            advice, samples, notes = check_advice(advice, self.spec.name, job, config.timeout_s, self.emit)
            self.samples += samples
            self.notes += notes
        measured = self._measured(ran, step)
        if analysis.steps != ran.steps:
            self.notes.append(f"The trace holds {analysis.steps} of {ran.steps} steps; the profiler lost the others.")
        self.notes += [*analysis.warnings, *ran.notes, slow_down_told(ran, step)]
        self.notes += told_of_loss(config.input, config.mode)
        what = f"{config.target} {config.mode}, {self.spec.name}, batch {self.batch}"
        rate = _rate(ran, step, analysis)
        return _plain(analysis, roof, advice, [], measured=measured), Verdict(
            outcome="profiled",
            headline=headline(what, analysis, step),
            exit_code=EXIT_OK,
            lines=story(analysis, roof, advice, [], rate, pace_told(case.pace)),
        )

    def _trace(self) -> Profiled:
        def listen(text: str, done: float, total: float) -> None:
            self.emit(events.advance("profile", done, total, text))

        job = {
            **self.common,
            "job": "profile",
            "arm": self.spec.name,
            "mode": self.config.mode,
            "batch": self.batch,
            "steps": self.config.steps,
            "warmup_seconds": self.config.warmup_seconds,
            "detail": self.config.detail,
            "folder": str(self.folder.resolve()),
            "stem": self.stem,
        }
        ran: Profiled = decode(Profiled, run_job(job, timeout_s=self.config.timeout_s, listen=listen))
        arm = self.spec.name
        self.samples.append(Measurement(quantity="step", unit="ms", arm=arm, process=0, values=ran.step_ms))
        if ran.device_ms:
            self.samples.append(Measurement(quantity="device", unit="ms", arm=arm, process=0, values=ran.device_ms))
        return ran

    def _case(self, analysis: Analysis, roof: Roofline, step: float, ran: Profiled) -> Case:
        options = [word for text in self.config.input for word in ("--input", text)]
        options += [
            word for key, value in self.config.workload.items() for word in ("--set", f"workload.{key}={value}")
        ]
        return Case(
            analysis=analysis,
            roofline=roof,
            step_ms=step,
            host_ms=_median(ran.host_ms),
            few_ms=_median(ran.few_ms),
            few_device_ms=_median(ran.few_device_ms),
            device_ms=_median(ran.device_ms),
            arm=self.spec,
            target=self.config.target,
            mode=self.config.mode,
            batch=self.batch,
            options=tuple(options),
            has_convolutions=ran.has_convolutions,
            has_kernels=ran.has_kernels,
            has_norms=ran.has_norms,
            num_weights=ran.num_weights,
            num_weight_tensors=ran.num_weight_tensors,
            fast_bf16=ran.fast_bf16,
            system_ms=ran.system_ms if ran.can_keep_memory else 0.0,
            num_pages=ran.num_pages,
        )

    def _measured(self, ran: Profiled, step: float) -> dict[str, Any]:
        return {
            "step_ms": step,
            "device_ms": _median(ran.device_ms),
            "host_ms": _median(ran.host_ms),
            "few_ms": _median(ran.few_ms),
            "few_device_ms": _median(ran.few_device_ms),
            "system_ms": ran.system_ms,
            "num_pages": ran.num_pages,
            "traced_ms": ran.traced_ms,
            "slow_down": ran.traced_ms / step,
            "detail_slow_down": ran.detail_ms / step if ran.detail_ms else None,
            "flops": ran.flops,
            "flops_by_op": ran.flops_by_op,
            "waits": encode(ran.waits),
            "traces": [Path(path).name for path in (ran.trace, ran.detail) if path],
        }


def _median(times: list[float]) -> float | None:
    return statistics.median(times) if times else None


def slow_down_told(ran: Profiled, step_ms: float) -> str:
    """What the profiler cost, and where that was so much that the trace may show something else than the step."""
    text = f"The profiler made the step {format_number(ran.traced_ms / step_ms)}x as long"
    if ran.detail_ms:
        text += f", and {format_number(ran.detail_ms / step_ms)}x with stacks and memory"
    text += "; shares are of the traced step, the headline's time is of the one without."
    if ran.traced_ms > DISTURBED * step_ms:
        text += " So much longer, its shares may mislead: other work on this machine, or very small operators."
    return text


def _rate(ran: Profiled, step_ms: float, analysis: Analysis) -> str:
    """The step's arithmetic, as torch counts it, over its time; '' where it counts too little to say so.

    Torch's counter knows matrix products, convolutions and attention, but no recurrent layers.
    """
    if not ran.flops or any(part.name == RECURRENT and part.share > 0.01 for part in analysis.categories):
        return ""
    rate = ran.flops / (step_ms / 1e3)
    speed = f"{format_number(rate / 1e12)} TFLOP/s" if rate >= 1e11 else f"{format_number(rate / 1e9)} GFLOP/s"
    return f"The step's {format_number(ran.flops / 1e9)} GFLOP of products run at {speed}."
