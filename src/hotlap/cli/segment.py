"""``hotlap segment ...``: calls the application and prints what came back."""

from __future__ import annotations

from pathlib import Path

from rich.table import Table
from rich.text import Text

from hotlap.base.errors import EXIT_CHECK_FAILED, EXIT_OK
from hotlap.cli.commands import _dry_run, _exit_code, _print_json, _print_record, _stderr
from hotlap.cli.main import EXIT_INTERRUPTED, complain
from hotlap.cli.options import Request
from hotlap.cli.show import ProgressDoor, make_console

SHOWN = {"ap50": "AP at IoU 0.5", "ap75": "AP at IoU 0.75", "map": "AP from 0.5 to 0.95", "f1": "F1", "pq": "PQ"}


def run_train(request: Request) -> int:
    from hotlap.segment.app import keep_weights, training
    from hotlap.tools.train import preview, train

    config = request.resolved.config
    request_to_engine = training(config)
    if request.common.dry_run:
        return _dry_run(request, preview(request_to_engine))
    with ProgressDoor(_stderr(), quiet=request.common.quiet) as door:
        record = train(request_to_engine, door)
    path = keep_weights(Path(record.path).parent, config.out)
    _print_record(record, request.common)
    if not request.common.json:
        make_console().print(Text(f"weights  {path}"), soft_wrap=True)
    return _exit_code(record)


def run_eval(request: Request) -> int:
    from hotlap.segment.evaluate import evaluate

    config = request.resolved.config
    if request.common.dry_run:
        return _dry_run(request, [])
    try:
        with ProgressDoor(_stderr(), quiet=request.common.quiet) as door:
            found = evaluate(config, door)
    except KeyboardInterrupt:  # it leaves no run behind that could be listed
        complain("interrupted; the same command begins anew")
        return EXIT_INTERRUPTED
    code = EXIT_CHECK_FAILED if found["bad"] else EXIT_OK
    if request.common.json:
        _print_json(found)
        return code
    table = Table(box=None, pad_edge=False, show_header=False)
    for name, title in {**SHOWN, "dice": "Dice"}.items():
        table.add_row(title, f"{found['scores'][name]:.3f}")
    console = make_console()
    console.print(Text(f"{found['model']} on {found['num_images']} images ({found['split']})", style="bold"))
    console.print(table)
    places = f"each image in {config.out / 'images.csv'}, pictures in {config.out / 'pictures'}"
    console.print(Text(places, style="dim"), soft_wrap=True)
    for reason in found["bad"].values():
        console.print(Text(f"not scored: {reason}"), soft_wrap=True)
    return code
