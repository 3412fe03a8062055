"""``hotlap serve``: the web room is found by its path, for a door does not import a door."""

from __future__ import annotations

import importlib

from hotlap.cli.commands import _dry_run, _print_json, _print_text, _silent, _stderr
from hotlap.cli.options import Request
from hotlap.cli.show import ProgressDoor
from hotlap.cli.verbs import SERVER
from hotlap.records.codec import encode


def run_serve(request: Request) -> int:
    if request.common.dry_run:
        return _dry_run(request, [])
    module, _, function = SERVER.partition(":")
    with ProgressDoor(_stderr(), quiet=_silent(request.common)) as door:
        served = getattr(importlib.import_module(module), function)(request.resolved.config, door)
    if request.common.json:
        _print_json(encode(served))
    else:
        _print_text("\n".join(served.lines()))
    code: int = served.exit_code
    return code
