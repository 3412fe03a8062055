"""``hotlap mesh``: views of meshes, training, prediction and evaluation; each calls the application and prints."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from hotlap.base.errors import EXIT_OK
from hotlap.cli.commands import _dry_run, _print_json, _print_text, _silent, _stderr
from hotlap.cli.options import Request
from hotlap.cli.show import ProgressDoor
from hotlap.records.codec import encode


def run_views(request: Request) -> int:
    from hotlap.mesh.prepare import prepare_views

    return _run(request, prepare_views)


def run_predict(request: Request) -> int:
    from hotlap.mesh.predict import predict_mesh

    return _run(request, predict_mesh)


def run_eval(request: Request) -> int:
    from hotlap.mesh.evaluate import eval_mesh

    return _run(request, eval_mesh)


def run_train(request: Request) -> int:
    from hotlap.mesh.train import train_mesh
    from hotlap.tools.train import train

    return _run(request, partial(train_mesh, train=train))


def _run(request: Request, work: Callable[..., Any]) -> int:
    """What the application's function answers, as its own lines or as JSON."""
    if request.common.dry_run:
        return _dry_run(request, [])
    with ProgressDoor(_stderr(), quiet=_silent(request.common)) as door:
        answer = work(request.resolved.config, door)
    if request.common.json:
        _print_json(encode(answer))
    else:
        _print_text("\n".join(answer.lines()))
    code: int = getattr(answer, "exit_code", EXIT_OK)
    return code
