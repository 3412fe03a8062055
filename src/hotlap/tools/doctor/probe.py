"""``python -m hotlap.tools.doctor.probe NAME``: runs one probe here and prints its finding as a JSON line."""

from __future__ import annotations

import json
import os
import sys
import traceback
from typing import Any

from hotlap.base.channel import take_stdout
from hotlap.records.codec import encode
from hotlap.tools.doctor.finding import Finding, failed
from hotlap.tools.doctor.registry import load_checks
from hotlap.tools.doctor.remedies import remedy


def run_body(name: str, *, verbose: bool = False) -> Finding:
    """The finding of the probe ``name``; an error of its body becomes a FAIL with the error's own words."""
    spec = load_checks()[0].get(name)
    if spec is None or spec.probe is None:
        raise SystemExit(f"unknown probe {name!r}")
    try:
        return spec.probe()
    except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever goes wrong in a probe is its finding
        if verbose:
            traceback.print_exc()
        text = f"{type(error).__name__}: {error}"
        return failed(first_line(text), remedy(text, name))


def first_line(text: str) -> str:
    """The first line that says something, cut to a length that fits a report."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return (lines[0] if lines else "no message")[:300]


def read_facts(name: str) -> Any:
    """Facts that a sick driver could hang on, read here so that only this process hangs with them."""
    if name == "facts:nvml":
        from hotlap.tools.doctor.nvml_facts import read_nvml

        return read_nvml()
    from hotlap.records.environment import capture

    return capture(import_torch=False)


def main(arguments: list[str]) -> int:
    name, verbose = arguments[0], "--verbose" in arguments
    answer = take_stdout()
    result = read_facts(name) if name.startswith("facts:") else run_body(name, verbose=verbose)
    answer.write(json.dumps(encode(result)) + "\n")
    answer.flush()
    # Leaves without tearing CUDA down: a library that crashes at exit must not spoil a finding already given.
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1:])
