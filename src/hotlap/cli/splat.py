"""``hotlap splat ...``: calls the application and prints what came back."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table
from rich.text import Text

from hotlap.base.errors import EXIT_OK
from hotlap.cli.commands import _dry_run, _exit_code, _leave, _print_json, _print_record, _print_text, _stderr
from hotlap.cli.options import Common, Request
from hotlap.cli.show import ProgressDoor, make_console

if TYPE_CHECKING:
    from hotlap.splat.photos import FromPhotos


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
    return _exit_code(record)


def run_eval(request: Request) -> int:
    from hotlap.splat.app import evaluate

    return _run(request, evaluate, _print_scores)


def run_render(request: Request) -> int:
    from hotlap.splat.app import render

    return _run(request, render, _print_files)


def run_view(request: Request) -> int:
    from hotlap.splat.app import view

    return _run(request, view, lambda _, common: EXIT_OK)


def run_from_photos(request: Request) -> int:
    from hotlap.cli.main import EXIT_INTERRUPTED, complain
    from hotlap.splat.app import from_photos
    from hotlap.splat.motion import is_colmap_working

    try:
        return _run(request, from_photos, _print_photos)
    except KeyboardInterrupt:
        if not is_colmap_working():
            raise
        complain("interrupted; the same command goes on after the last stage that was finished")
        _leave(lambda: EXIT_INTERRUPTED)


def run_export(request: Request) -> int:
    from hotlap.splat.app import export

    return _run(request, export, lambda written, common: _print_files([written], common))


def run_info(request: Request) -> int:
    from hotlap.splat.app import info

    return _run(request, info, _print_info)


def _run(request: Request, work: Callable[..., Any], show: Callable[[Any, Common], int]) -> int:
    """Does what was asked for and shows what came of it; the exit code."""
    if request.common.dry_run:
        return _dry_run(request, [])
    with ProgressDoor(_stderr(), quiet=request.common.quiet) as door:
        found = work(request.resolved.config, door)
    return show(found, request.common)


def _print_scores(found: dict[str, Any], common: Common) -> int:
    if common.json:
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


def _print_photos(found: FromPhotos, common: Common) -> int:
    if found.record is not None:
        _print_record(found.record, common)
        return _exit_code(found.record)
    if common.json:
        _print_json({"scene": str(found.scene), "photos": found.photos, "registered": list(found.registered)})
    else:
        _print_text(f"{found.scene}: cameras of {len(found.registered)} of {found.photos} photographs")
    return EXIT_OK


def _print_info(found: dict[str, Any], common: Common) -> int:
    if common.json:
        _print_json(found)
        return EXIT_OK
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in found.items():
        if value == []:
            continue
        table.add_row(name.replace("_", " "), Text(_text(value)))
    make_console().print(table)
    return EXIT_OK


def _print_files(files: list[Path], common: Common) -> int:
    names = [str(path) for path in files]
    if common.json:
        _print_json({"files": names})
    else:
        _print_text("\n".join(names))
    return EXIT_OK


def _text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, dict):
        return ", ".join(f"{name} {_text(item)}" for name, item in value.items())
    return ", ".join(map(_text, value)) if isinstance(value, list) else str(value)
