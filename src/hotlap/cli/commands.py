"""What each verb does once its settings are known: call the tool, print what came back, answer with its exit code."""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NoReturn

from rich.console import Console
from rich.table import Table
from rich.text import Text

from hotlap.base.errors import EXIT_OK, HotlapError, RecordError
from hotlap.base.events import Emit
from hotlap.cli.options import Common, Request
from hotlap.cli.show import COLOURS, ProgressDoor, make_console, show_record
from hotlap.records.codec import encode, to_json
from hotlap.records.run import RunRecord, find_runs, load_record, resolve_run


@dataclass(frozen=True, kw_only=True)
class ShowConfig:
    """Prints a record."""

    run: str = "latest"
    """A record's path or folder, 'latest', a run's name or name/timestamp."""
    runs: Path = Path("runs")
    """Where records lie."""


@dataclass(frozen=True, kw_only=True)
class ListConfig:
    """Lists what is known here."""

    what: Literal["targets", "runs"] = "targets"
    """targets: everything that can be measured; runs: the records of this folder, newest first."""
    runs: Path = Path("runs")
    """Where records lie."""


def run_doctor(request: Request) -> int:
    from hotlap.tools.doctor import Unkept, doctor, fix_script

    if request.common.dry_run:
        return _dry_run(request, [])

    def tell(record: RunRecord) -> None:
        if request.resolved.config.fix_script:
            _print_text(fix_script(record))
        else:
            _print_record(record, request.common)

    try:
        record = _with_progress(request, doctor)
    except Unkept as error:  # a full disk is what the doctor is asked about: the findings first, then this one
        tell(error.record)
        raise
    tell(record)
    return _exit_code(record)


def run_quicktest(request: Request) -> int:
    from hotlap.tools.quicktest import quicktest

    return _run_tool(request, quicktest)


def run_bench(request: Request) -> int:
    from hotlap.tools.bench import bench, preview, self_test

    if request.common.dry_run:
        return _dry_run(request, preview(request.resolved.config))
    return _run_tool(request, self_test if request.resolved.config.self_test else bench)


def run_lap(request: Request) -> int:
    from hotlap.tools.lap import lap, preview

    if request.common.dry_run:
        return _dry_run(request, preview(request.resolved.config))
    return _run_tool(request, lap)


def run_loader(request: Request) -> int:
    from hotlap.tools.loader import loader

    return _run_tool(request, loader)


def run_compare(request: Request) -> int:
    from hotlap.tools.compare import compare

    return _run_tool(request, compare)


def run_profile(request: Request) -> int:
    from hotlap.tools.profile import profile

    return _run_tool(request, profile)


def run_train(request: Request) -> int:
    from hotlap.engine.place import find_place
    from hotlap.tools.train import exec_torchrun, preview, train, wants_torchrun

    config = request.resolved.config
    if request.common.dry_run:
        with _results_alone():
            plan = preview(config)
        return _dry_run(request, plan)
    if wants_torchrun(config):
        with _results_alone():
            preview(config)  # what is wrong with the target is told once, and not by each process at each of its starts
        exec_torchrun(config, request.arguments)
    place = find_place()
    if place is None:
        return _run_tool(request, train)
    if place.rank == 0:
        return _leave(lambda: _run_tool(request, train))
    with _results_alone():
        return _leave(lambda: _exit_code(train(config, sources=request.resolved.sources)))


def run_tune(request: Request) -> int:
    from hotlap.cli.show_tune import TuneDoor
    from hotlap.tools.tune import preview, tune

    if request.common.dry_run:
        return _dry_run(request, preview(request.resolved.config))
    with TuneDoor(_stderr(), quiet=_silent(request.common)) as door:
        record = tune(request.resolved.config, door, sources=request.resolved.sources)
    _print_record(record, request.common)
    return _exit_code(record)


def run_export(request: Request) -> int:
    from hotlap.tools.export import export, preview

    if request.common.dry_run:
        return _dry_run(request, preview(request.resolved.config))
    return _run_tool(request, export)


def run_report(request: Request) -> int:
    from hotlap.tools.report import report_files

    if request.common.dry_run:
        return _dry_run(request, [])
    with ProgressDoor(_stderr(), quiet=_silent(request.common)) as door:
        files = report_files(request.resolved.config, door)
    paths = {name: str(path) for name, path in files.items()}
    if request.common.json:
        _print_json({"report": next(iter(paths.values())), "files": paths})
    else:
        _print_text("\n".join(paths.values()))
    return EXIT_OK


def run_show(request: Request) -> int:
    config: ShowConfig = request.resolved.config
    record = load_record(resolve_run(config.run, config.runs))
    _print_record(record, request.common)
    return EXIT_OK


def run_list(request: Request) -> int:
    config: ListConfig = request.resolved.config
    return _list_runs(config, request.common) if config.what == "runs" else _list_targets(request.common)


def _list_targets(common: Common) -> int:
    from hotlap.targets import WORKLOADS

    with _results_alone():
        broken = WORKLOADS.check_plugins()
    rows = [{"name": e.name, "summary": e.summary, "from": e.source} for e in WORKLOADS if e.name not in broken]
    if common.json:
        _print_json({"targets": rows, "broken": broken})
        return EXIT_OK
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("target", "what it is", "from"):
        table.add_column(column)
    for row in rows:
        table.add_row(Text(row["name"]), Text(row["summary"]), Text(row["from"]))
    console = make_console()
    console.print(table)
    console.print(
        Text("Also module:factory and file.py:factory; a plain nn.Module needs --input 3x224x224.", style="dim")
    )
    for name, why in broken.items():
        _stderr().print(Text(f"plug-in {name!r} was skipped: {why}", style="yellow"))
    return EXIT_OK


def _list_runs(config: ListConfig, common: Common) -> int:
    rows = []
    for file in find_runs(config.runs):
        run = file.parent.relative_to(config.runs).as_posix()
        try:
            record = load_record(file)
        except RecordError as error:
            rows.append({"run": run, "status": "unreadable", "headline": error.what})
            continue
        why_not = {"failed": record.notes[:1], "interrupted": record.notes[-1:]}.get(record.status, [])
        headline = record.verdict.headline if record.verdict else "".join(why_not)
        rows.append({"run": run, "kind": record.kind, "status": record.status, "headline": headline})
    if common.json:
        _print_json({"runs": rows})
        return EXIT_OK
    table = Table(box=None, pad_edge=False, header_style="bold")
    console = make_console()
    longest = max((len(row["run"]) for row in rows), default=0)
    table.add_column("run", overflow="fold", min_width=min(longest, console.width * 2 // 5))  # copied from here
    for column in ("kind", "status", "what came out"):
        table.add_column(column, overflow="fold")
    for row in rows:
        status = Text(row["status"], style=COLOURS.get(row["status"], "red"))
        table.add_row(Text(row["run"]), Text(row.get("kind", "")), status, Text(row["headline"]))
    console.print(table if rows else Text(f"No runs under {config.runs}."))
    return EXIT_OK


def _leave(work: Callable[[], int]) -> NoReturn:
    """Ends the process at once: libraries that wait for other processes would wait for ever, and those whose threads
    still work would abort.
    """
    from hotlap.cli.main import complain

    try:
        code = work()
    except HotlapError as error:
        complain(str(error))
        code = error.exit_code
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


Tool = Callable[..., RunRecord]


def _run_tool(request: Request, tool: Tool) -> int:
    if request.common.dry_run:
        return _dry_run(request, [])
    record = _with_progress(request, tool)
    _print_record(record, request.common)
    return _exit_code(record)


def _with_progress(request: Request, tool: Tool) -> RunRecord:
    with ProgressDoor(_stderr(), quiet=_silent(request.common)) as door, _results_alone():
        emit: Emit = door
        return tool(request.resolved.config, emit, sources=request.resolved.sources)


def _results_alone() -> AbstractContextManager[Any]:
    """Keeps ``sys.stdout`` for the result: what a user's model or plug-in prints in this process goes to stderr.

    What is written to descriptor 1 below Python goes there anyway: see :func:`hotlap.cli.main.main`.
    """
    return redirect_stdout(sys.stderr)


def _exit_code(record: RunRecord) -> int:
    return record.verdict.exit_code if record.verdict else EXIT_OK


def _silent(common: Common) -> bool:
    return common.quiet


def _stderr() -> Console:
    return make_console(stderr=True)


def _dry_run(request: Request, lines: list[str]) -> int:
    """Every setting with where it came from, and what would be done; nothing is measured or written.

    Of a secret it is shown only that it is set: what a dry run prints is pasted into tickets and logs.
    """
    config, sources = request.resolved.config, request.resolved.sources
    shown: dict[str, Any] = encode(config)
    for field in dataclasses.fields(config):
        if field.metadata.get("secret") and shown[field.name]:
            shown[field.name] = "(set, not shown)"
    if request.common.json:
        _print_json({"config": shown, "sources": sources, "plan": lines})
        return EXIT_OK
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("setting", "value", "from"):
        table.add_column(column, overflow="fold")
    for field in dataclasses.fields(config):
        keys = [key for key in sources if key == field.name or key.startswith(field.name + ".")]
        came = ", ".join(dict.fromkeys(sources[key] for key in keys))
        table.add_row(field.name, Text(str(shown[field.name])), Text(came))
    console = make_console()
    console.print(table)
    for line in lines:
        console.print(Text(line))
    return EXIT_OK


def _print_record(record: RunRecord, common: Common) -> None:
    if common.json:
        _print_json(encode(record))
    else:
        show_record(record, make_console())


def _print_json(data: Any) -> None:
    sys.stdout.write(to_json(data) + "\n")


def _print_text(text: str) -> None:
    sys.stdout.write(text.rstrip("\n") + "\n")
