"""The tuned profile as a training takes it: a layer of settings beneath the user's own, said aloud."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from hotlap.base import events
from hotlap.base.events import Emit
from hotlap.engine.config import RECORDS_ITSELF, TrainConfig
from hotlap.measure.arms import parse_arm
from hotlap.measure.fingerprint import Question, stored_profile
from hotlap.records.tuned import ProfileStore, TunedProfile

_PRECISIONS = {"fp32": "32-true", "tf32": "32-true", "bf16": "bf16-mixed", "fp16": "16-mixed"}


def with_profile(
    config: TrainConfig, sources: Mapping[str, str], emit: Emit, store: ProfileStore | None = None
) -> tuple[TrainConfig, dict[str, str], list[str]]:
    """The config with what its tuned profile adds, the source of each value, and what is to be told.

    Only what stands at its default is filled in. A resumed run keeps what it began with.
    """
    if not config.tuned or config.resume or not sources:
        return config, dict(sources), []
    question = Question(
        target=config.target,
        mode="train",
        options=config.workload,
        inputs=list(config.input),
        device="" if config.device == "auto" else config.device,
    )
    profile, lines = stored_profile(question, emit, store)
    if profile is None:
        return config, dict(sources), lines
    free = {name for name, source in sources.items() if source == "default"}
    changes, notes = settings_from(profile, config, free)
    for text in notes:
        emit(events.note(text))
    came = {name: f"tuned profile ({profile.key.digest()})" for name in changes}
    return dataclasses.replace(config, **changes), {**sources, **came}, lines + notes


def settings_from(profile: TunedProfile, config: TrainConfig, free: set[str]) -> tuple[dict[str, Any], list[str]]:
    """The settings of a training that a profile decides, among those the user left ``free``, and remarks."""
    arm = parse_arm(profile.arm)
    wanted: dict[str, Any] = {
        "channels_last": arm.channels_last,
        "compile": arm.compile or "off",
        "fused": arm.fused,
        "cudnn_benchmark": arm.cudnn_benchmark,
        "sdpa": arm.sdpa,
        "kernels": arm.kernels,
        "padded": arm.padded,
        "shuffled": arm.shuffled,
        "unbiased": arm.unbiased,
        "keep_memory": arm.keep_memory,
        # Trials of a CPU ran on all usable cores; what torch takes by itself may be more than those, or fewer.
        "threads": arm.threads or (profile.key.cores if config.nproc == 1 else 0) or None,
    }
    wanted |= {"recompute": "on"} if arm.recompute else {}
    if {"precision", "tf32"} <= free:  # one choice, said in two settings
        wanted |= {"precision": _PRECISIONS[arm.precision], "tf32": arm.precision == "tf32"}
    notes = []
    compiled = wanted["compile"] if "compile" in free else config.compile
    wanted["graph"] = arm.graph and config.nproc == 1 and compiled not in RECORDS_ITSELF
    if config.nproc == 1 and "batch" in free:
        wanted["batch"] = profile.batch
        notes.append(
            f"batch = {profile.batch} comes from the tuned profile; the learning rate is not changed with it. "
            "--batch sets another."
        )
    elif config.nproc == 1 and config.batch is not None and profile.batch < config.batch:
        wanted["micro"] = profile.batch
    return {name: value for name, value in wanted.items() if name in free}, notes
