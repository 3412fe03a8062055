"""``tune --verify``: the stored profile against what its consumer is seen to do."""

from __future__ import annotations

import dataclasses
from typing import Any

from hotlap.base import events
from hotlap.base.errors import EXIT_CHECK_FAILED, EXIT_OK, RecordError
from hotlap.base.events import Emit, ignore
from hotlap.base.settings import Layer, resolve
from hotlap.engine.config import TrainConfig
from hotlap.engine.tuned import with_profile
from hotlap.measure.arms import ArmSpec, parse_arm
from hotlap.measure.fingerprint import Question, ask_key, on_device, understood
from hotlap.measure.process import run_job
from hotlap.records.codec import encode
from hotlap.records.environment import capture
from hotlap.records.measurement import Check, Verdict
from hotlap.records.run import RunRecord, begin, now, run_folder, save
from hotlap.records.tuned import ProfileStore, TunedProfile, command_for
from hotlap.targets import short_name
from hotlap.tools.tune.config import TuneConfig

WATCH = "watch"
_DTYPES = {"fp32": "float32", "tf32": "float32", "bf16": "bfloat16", "fp16": "float16"}


def verify(config: TuneConfig, emit: Emit = ignore, *, sources: dict[str, str] | None = None) -> RunRecord:
    """A check for each thing the profile decides; the verdict fails when the consumer does something else."""
    emit(events.start("tune", None, "looking for the profile"))
    profile = _find(config)
    emit(events.advance("tune", 0, None, "running the consumer"))
    seen = run_job(_job(config, profile, emit), timeout_s=max(600.0, config.timeout_s))
    checks = compare(profile, seen)
    name = config.name or f"{short_name(config.target)}-verify"
    folder = run_folder(config.runs, name)
    record = begin("verify", name, config, sources or {}, capture())
    wrong = [check for check in checks if check.status == "FAIL"]
    consumer = _consumer(config)
    headline = (
        f"{consumer} does not use the profile: {wrong[0].name} is {wrong[0].observed}, {wrong[0].why}"
        if wrong
        else f"{consumer} really runs {profile.arm} at batch {profile.batch}"
    )
    verdict = Verdict(
        outcome="mismatch" if wrong else "verified",
        headline=headline,
        exit_code=EXIT_CHECK_FAILED if wrong else EXIT_OK,
        lines=[f"{check.status} {check.name}: {check.observed}" for check in checks],
    )
    extra = {"verify": {"profile": encode(profile), "seen": seen}}
    changes: dict[str, Any] = {"checks": checks, "extra": extra, "verdict": verdict}
    emit(events.finish("tune"))
    return save(dataclasses.replace(record, status="complete", finished_at=now(), **changes), folder)


def preview(config: TuneConfig) -> list[str]:
    """Which profile would be verified, by which consumer; runs neither."""
    profile = _find(config)
    return [
        f"profile    {profile.arm} at batch {profile.batch}, measured {profile.measured_at[:10]}",
        f"consumer   {_consumer(config)}, for a few steps with hooks on the model",
    ]


def _consumer(config: TuneConfig) -> str:
    return "hotlap train" if config.mode == "train" else "hotlap serve"


def _find(config: TuneConfig) -> TunedProfile:
    question = Question(
        target=config.target,
        mode=config.mode,
        options=config.workload,
        inputs=list(config.input),
        device=config.device,
    )
    found = understood(ProfileStore().find(ask_key(question)))
    if found.profile is None or found.stale:
        why = [f"the one in {found.path} is stale: {'; '.join(found.stale)}"] if found.profile else []
        raise RecordError(
            "; ".join([f"no tuned profile of {config.target!r} for {config.mode} holds here", *why, *found.broken]),
            remedy=f"{command_for(config.target, config.mode, config.workload, config.input)!r} makes one",
        )
    return on_device(found.profile, config.device)


def _job(config: TuneConfig, profile: TunedProfile, emit: Emit) -> dict[str, Any]:
    if config.mode == "infer":
        common = {"target": config.target, "options": config.workload, "inputs": list(config.input)}
        return {
            "job": WATCH,
            "mode": "infer",
            "arm": profile.arm,
            "batch": profile.batch,
            **common,
        }
    given = {"target": config.target, "workload": config.workload, "input": config.input, "workers": 0, "eval_every": 0}
    given |= {"device": config.device} if config.device else {}
    resolved = resolve(TrainConfig, [Layer("tune --verify", given)])
    trained, _, _ = with_profile(resolved.config, resolved.sources, emit)
    return {"job": WATCH, "mode": "train", "target": config.target, "config": encode(trained)}


def compare(profile: TunedProfile, seen: dict[str, Any]) -> list[Check]:
    """What the profile says against what was seen, a check each."""
    arm = parse_arm(profile.arm)
    wanted, dtypes = _DTYPES[arm.precision], seen["dtypes"]
    # A short format may leave islands of float32; plain float32 leaves none of the others.
    right = wanted in dtypes if wanted != "float32" else dtypes == ["float32"]
    sizes, split = sorted(set(seen["batches"])), seen.get("micro")
    ran = ", ".join(map(str, sizes)) + (f", split into parts of {split} for lack of memory" if split else "")
    found = [
        _check("batch", max(sizes, default=0) == profile.batch and not split, ran, str(profile.batch)),
        _check("precision", right, ", ".join(dtypes), wanted),
        _check("compile", seen["compiled"] == bool(arm.compile), _word(seen["compiled"]), _word(bool(arm.compile))),
    ]
    if seen["channels_last"] is not None:
        layouts = {True: "channels_last", False: "contiguous"}
        saw, asked = seen["channels_last"], arm.channels_last
        lie = seen.get("weights_last")
        told = layouts[saw] + (", but for the weights" if asked and saw and lie is False else "")
        found.append(_check("layout", told == layouts[asked], told, layouts[asked]))
    if profile.key.mode == "train":
        count = seen["num_replays"]
        why = seen.get("why_not")
        saw = f"{count} replays" if count else f"off, because {why}" if why else "off"
        found.append(_check("graph", (count > 0) == arm.graph, saw, "replays" if arm.graph else "off"))
    return found + _option_checks(arm, seen) + _device_checks(arm, profile.key.cores, seen)


def _option_checks(arm: ArmSpec, seen: dict[str, Any]) -> list[Check]:
    found = []
    if arm.sdpa:
        saw = ", ".join(seen["sdpa"])
        found.append(_check("sdpa", saw == arm.sdpa, saw, arm.sdpa))
    if arm.recompute and not arm.compile:  # of a traced pass hooks see nothing again
        count = seen["num_recomputed"]
        found.append(_check("recompute", count > 0, f"{count} layers ran again", "on"))
    if arm.kernels:
        count = seen["num_kernels"]
        found.append(_check("kernels", count > 0, f"{count} layers ran with kernels of ours", "on"))
    if arm.folded or seen["num_folded"]:
        count = seen["num_folded"]
        found.append(_check("folded", bool(count) == arm.folded, f"{count} norms folded", _word(arm.folded)))
    for word, asked in (("padded", arm.padded), ("shuffled", arm.shuffled), ("unbiased", arm.unbiased)):
        count = seen[f"num_{word}"]
        if asked or count:
            found.append(_check(word, bool(count) == asked, f"{count} {word} convolutions ran", _word(asked)))
    return found


def _device_checks(arm: ArmSpec, cores: int, seen: dict[str, Any]) -> list[Check]:
    found = []
    if arm.device == "cuda":
        wanted = arm.precision == "tf32"
        found.append(_check("tf32", seen["tf32"] == wanted, _word(seen["tf32"]), _word(wanted)))
        saw = seen["cudnn_benchmark"]
        found.append(_check("cudnn_benchmark", saw == arm.cudnn_benchmark, _word(saw), _word(arm.cudnn_benchmark)))
    if threads := arm.threads or cores:
        found.append(_check("threads", seen["threads"] == threads, str(seen["threads"]), str(threads)))
    if arm.device == "cpu":
        kept = bool(seen.get("keeps_memory"))
        found.append(_check("keep_memory", kept == arm.keep_memory, _word(kept), _word(arm.keep_memory)))
    if seen["fused"] is not None:
        asked = arm.fused or (arm.graph and arm.precision == "fp16")  # as a recorded step needs it
        found.append(_check("fused", seen["fused"] == asked, _word(seen["fused"]), _word(asked)))
    return found


def _word(on: bool) -> str:
    return "on" if on else "off"


def _check(name: str, passed: bool, observed: str, wanted: str) -> Check:
    status = "PASS" if passed else "FAIL"
    return Check(name=name, group="profile", status=status, observed=observed or "nothing", why=f"expected {wanted}")
