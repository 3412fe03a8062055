"""``hotlap serve``: the web room is found by its path, for a door does not import a door."""

from __future__ import annotations

import importlib

from hotlap.cli.commands import _dry_run, _print_json, _print_text, _silent, _stderr
from hotlap.cli.options import Request
from hotlap.cli.show import ProgressDoor
from hotlap.cli.verbs import SERVER
from hotlap.measure.servable import ModelSpec
from hotlap.records.codec import encode
from hotlap.tools.serve.plan import named_models


def run_serve(request: Request) -> int:
    if request.common.dry_run:
        return _dry_run(request, [_line(spec) for spec in named_models(request.resolved.config)])
    module, _, function = SERVER.partition(":")
    with ProgressDoor(_stderr(), quiet=_silent(request.common)) as door:
        served = getattr(importlib.import_module(module), function)(request.resolved.config, door)
    if request.common.json:
        _print_json(encode(served))
    else:
        _print_text("\n".join(served.lines()))
    code: int = served.exit_code
    return code


def _line(spec: ModelSpec) -> str:
    """One model of a dry run."""
    given = [f"input {text}" for text in spec.inputs] + [f"weights {spec.weights}" if spec.weights else "no weights"]
    return f"model      {spec.name}: {', '.join([spec.target, *given])}"
