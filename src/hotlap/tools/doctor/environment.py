"""The record's environment, read where a sick driver cannot hang the doctor."""

from __future__ import annotations

from hotlap.records.environment import Environment, capture
from hotlap.tools.doctor.runner import Runner


def read_environment(runner: Runner, timeout_s: float) -> Environment:
    """This machine as every record has it; without the driver's part when that does not answer."""
    environment, _ = runner.facts("facts:environment", Environment, timeout_s)
    return environment if isinstance(environment, Environment) else capture(import_torch=False, ask_driver=False)
