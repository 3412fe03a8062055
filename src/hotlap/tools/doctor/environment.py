"""The record's environment, read where a sick driver cannot hang the doctor."""

from __future__ import annotations

import os
import platform
from pathlib import Path

import hotlap
from hotlap.device.host import read_host
from hotlap.records.environment import VARIABLES, Environment, read_commit
from hotlap.tools.doctor.runner import Runner


def read_environment(runner: Runner, timeout_s: float) -> Environment:
    """This machine as every record has it; without the driver's part when that does not answer."""
    environment, _ = runner.facts("facts:environment", Environment, timeout_s)
    return environment if isinstance(environment, Environment) else _without_driver()


def _without_driver() -> Environment:
    host = read_host()
    return Environment(
        hostname=Environment.this_hostname(),
        system=f"{platform.system()} {platform.release()} {platform.machine()}",
        python=platform.python_version(),
        hotlap=hotlap.__version__,
        commit=read_commit(Path.cwd()),
        cpu_model=host.cpu_model,
        usable_cores=host.usable_cores,
        logical_cpus=host.logical_cpus,
        memory_bytes=host.memory_bytes,
        driver="",
        variables={name: os.environ[name] for name in VARIABLES if name in os.environ},
    )
