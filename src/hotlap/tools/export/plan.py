"""Which arm is exported, at which batch, in which forms, and against what it is timed."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from hotlap.base.errors import UsageError
from hotlap.base.events import Emit
from hotlap.device.probe import require_cuda
from hotlap.measure.arms import ArmSpec, in_form, options_lost, parse_arm
from hotlap.measure.fingerprint import Question, stored_profile
from hotlap.measure.jobs import Description
from hotlap.tools.export.config import ExportConfig
from hotlap.tools.export.rows import FormRow


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What an export will do."""

    asked: ArmSpec
    """The arm as it was given, or as the profile has it."""
    batch: int
    rows: list[FormRow]
    told: list[str]
    """What is to be said about the tuned profile."""

    @property
    def eager(self) -> ArmSpec:
        """The model itself, with the same precision and layout: what the forms are compared with."""
        return in_form(self.asked, "")

    @property
    def beside(self) -> list[ArmSpec]:
        """The model itself and, where the arm has more than a form can keep, the whole arm too."""
        return [self.eager] + ([self.asked] if self.asked != self.eager else [])


def make_plan(config: ExportConfig, about: Description, emit: Emit) -> Plan:
    """The plan for a target on this machine; says which tuned profile it follows."""
    asked, batch, told = _choose_arm(config, about, emit)
    if asked.form or asked.tuned:
        word = asked.form or "tuned"
        remedy = "Name forms with --formats" if asked.form else "'hotlap tune --for infer' finds settings to export"
        raise UsageError(f"arm = {config.arm!r}: {word!r} is not for an export's arm", remedy=remedy)
    if asked.device == "cuda" and asked.index >= about.num_cuda:
        require_cuda(asked.index)
    rows = [FormRow(form=f, arm=in_form(asked, f).name, lost=options_lost(asked, f)) for f in config.formats]
    return Plan(asked=asked, batch=config.batch or batch or about.default_batch, rows=rows, told=told)


def _choose_arm(config: ExportConfig, about: Description, emit: Emit) -> tuple[ArmSpec, int | None, list[str]]:
    plain = parse_arm(config.arm or ("cuda" if about.num_cuda else "cpu"))
    if config.arm or not config.tuned:
        return plain, None, []
    question = Question(
        target=config.target,
        mode="infer",
        options=config.workload,
        inputs=list(config.input),
        timeout_s=config.timeout_s,
    )
    profile, lines = stored_profile(question, emit)
    if profile is None:
        return plain, None, lines
    return dataclasses.replace(parse_arm(profile.arm), form=""), profile.batch, lines
