"""The arm of the target's tuned profile, put in its place among the arms of a bench."""

from __future__ import annotations

import dataclasses

from hotlap.base import events
from hotlap.base.errors import UsageError
from hotlap.base.events import Emit
from hotlap.measure.arms import parse_arm
from hotlap.measure.fingerprint import Question, stored_profile
from hotlap.measure.jobs import Description
from hotlap.records.tuned import command_for
from hotlap.tools.bench.config import BenchConfig
from hotlap.tools.bench.plan import default_arms

STORED = "tuned-profile"
"""Spells the stored profile's arm; ``cpu:tuned`` is another thing, a race for CPU settings before the timing."""


def with_stored_arm(config: BenchConfig, about: Description, emit: Emit) -> tuple[BenchConfig, list[str]]:
    """The config with the profile's arm for ``tuned-profile``, or beside the arms it has by default; and what to tell.

    Alone it is set against the plain device, at the profile's batch.
    """
    asked = STORED in config.arms
    if not asked and (config.arms or not config.tuned):
        return config, []
    others = tuple(name for name in config.arms if name != STORED)
    question = Question(
        target=config.target,
        mode=config.mode,
        options=config.workload,
        inputs=list(config.input),
        device=parse_arm(others[0]).torch_device if others else "",
    )
    profile, lines = stored_profile(question, emit)
    if profile is None:
        if asked:
            command = command_for(config.target, config.mode, config.workload, config.input)
            raise UsageError(
                f"arms has {STORED!r}, but no tuned profile of {config.target!r} for {config.mode} holds here",
                remedy=" ".join([*lines, f"{command!r} makes one"]),
            )
        return config, lines
    plain = profile.arm.partition(":")[0]
    arms = others or ((plain,) if asked else tuple(default_arms(about, config.quick)))
    arms = tuple(dict.fromkeys([*arms, profile.arm]))
    batch = config.batch or (profile.batch if asked else None)
    if batch is None and profile.batch != about.default_batch:
        lines.append(f"It is not timed at batch {profile.batch} here: --arms {STORED} takes its batch, too.")
        emit(events.note(lines[-1]))
    return dataclasses.replace(config, arms=arms, batch=batch), lines
