"""``hotlap splat ...``: calls the application and prints what came back."""

from __future__ import annotations

from typing import Any

from rich.table import Table
from rich.text import Text

from hotlap.base.errors import EXIT_OK
from hotlap.cli.commands import _dry_run, _print_json, _print_record, _print_text, _stderr
from hotlap.cli.options import Common, Request
from hotlap.cli.show import ProgressDoor, make_console


def run_train(request: Request) -> int:
    from hotlap.engine.place import find_place
    from hotlap.splat.app import train

    if request.common.dry_run:
        return _dry_run(request, [])
    place = find_place()
    quiet = request.common.quiet or (place is not None and place.rank > 0)
    with ProgressDoor(_stderr(), quiet=quiet) as door:
        record = train(request.resolved.config, door, sources=request.resolved.sources)
    if place is None or place.rank == 0:
        _print_record(record, request.common)
    return record.verdict.exit_code if record.verdict else EXIT_OK


def run_eval(request: Request) -> int:
    from hotlap.splat.app import evaluate

    if request.common.dry_run:
        return _dry_run(request, [])
    with ProgressDoor(_stderr(), quiet=request.common.quiet) as door:
        found = evaluate(request.resolved.config, door)
    if request.common.json:
        _print_json(found)
        return EXIT_OK
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("picture", "PSNR dB", "SSIM", "LPIPS"):
        table.add_column(column, justify="left" if column == "picture" else "right")
    for row in [*found["images"], {"name": "mean", **found["mean"]}]:
        figures = [row["psnr"], row["ssim"], row.get("lpips")]
        table.add_row(Text(row["name"]), *("" if value is None else f"{value:.4g}" for value in figures))
    console = make_console()
    console.print(table)
    if found["lpips"] != "alex":
        console.print(Text(f"no LPIPS: {found['lpips']}", style="dim"))
    return EXIT_OK


def run_render(request: Request) -> int:
    from hotlap.splat.app import render

    if request.common.dry_run:
        return _dry_run(request, [])
    with ProgressDoor(_stderr(), quiet=request.common.quiet) as door:
        files = render(request.resolved.config, door)
    return _print_files([str(path) for path in files], request.common)


def run_view(request: Request) -> int:
    from hotlap.splat.app import view

    if request.common.dry_run:
        return _dry_run(request, [])
    with ProgressDoor(_stderr(), quiet=request.common.quiet) as door:
        view(request.resolved.config, door)
    return EXIT_OK


def run_from_photos(request: Request) -> int:
    from hotlap.splat.app import from_photos

    if request.common.dry_run:
        return _dry_run(request, [])
    with ProgressDoor(_stderr(), quiet=request.common.quiet) as door:
        found = from_photos(request.resolved.config, door)
    if found.record is not None:
        _print_record(found.record, request.common)
        return found.record.verdict.exit_code if found.record.verdict else EXIT_OK
    if request.common.json:
        _print_json({"scene": str(found.scene), "photos": found.photos, "registered": list(found.registered)})
    else:
        _print_text(f"{found.scene}: cameras of {len(found.registered)} of {found.photos} photographs")
    return EXIT_OK


def run_export(request: Request) -> int:
    from hotlap.splat.app import export

    if request.common.dry_run:
        return _dry_run(request, [])
    with ProgressDoor(_stderr(), quiet=request.common.quiet) as door:
        written = export(request.resolved.config, door)
    return _print_files([str(written)], request.common)


def run_info(request: Request) -> int:
    from hotlap.splat.app import info

    if request.common.dry_run:
        return _dry_run(request, [])
    with ProgressDoor(_stderr(), quiet=request.common.quiet) as door:
        found = info(request.resolved.config, door)
    if request.common.json:
        _print_json(found)
        return EXIT_OK
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in found.items():
        table.add_row(name.replace("_", " "), Text(_text(value)))
    make_console().print(table)
    return EXIT_OK


def _print_files(files: list[str], common: Common) -> int:
    if common.json:
        _print_json({"files": files})
    else:
        _print_text("\n".join(files))
    return EXIT_OK


def _text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, dict):
        return ", ".join(f"{name} {_text(item)}" for name, item in value.items())
    return ", ".join(map(_text, value)) if isinstance(value, list) else str(value)
