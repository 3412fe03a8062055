"""``hotlap VERB ...``: finds the verb, lets it work, turns errors into one paragraph and an exit code."""

from __future__ import annotations

import codecs
import importlib
import importlib.util
import io
import os
import signal
import sys
import warnings
from types import FrameType
from typing import Any

import hotlap
from hotlap.base.channel import take_stdout
from hotlap.base.errors import EXIT_OK, EnvironmentUnusable, HotlapError, UnknownName, UsageError, did_you_mean
from hotlap.cli.verbs import GROUPS, VERBS, WITHOUT_TORCH, Verb

EXIT_INTERRUPTED = 130


def main(arguments: list[str] | None = None) -> None:
    """The process's entry; never returns."""
    signal.signal(signal.SIGTERM, _interrupt)
    if sys.stdout is not None and sys.stderr is not None:  # a caller may have closed them
        sys.stdout = take_stdout(sys.stdout.encoding)
    _print_anywhere()
    # Pillow's words on large pictures, with a line of its source; readers that refuse them say so themselves.
    warnings.filterwarnings("ignore", message="Image size .* exceeds limit")
    sys.exit(run(sys.argv[1:] if arguments is None else arguments))


def _print_anywhere() -> None:
    """What a terminal cannot show, such as the µ of µs where it takes ASCII alone, becomes something near it."""
    near = str.maketrans({"µ": "u", "–": "-", "×": "x"})

    def nearest(error: UnicodeError) -> tuple[str, int]:
        assert isinstance(error, UnicodeEncodeError)
        text = error.object[error.start : error.end].translate(near)
        return "".join(sign if sign.isascii() else "?" for sign in text), error.end

    codecs.register_error("hotlap-nearest", nearest)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="hotlap-nearest")


def _interrupt(number: int, frame: FrameType | None) -> None:
    """SIGTERM ends a run as Ctrl-C does: with a readable partial record."""
    raise KeyboardInterrupt


def run(arguments: list[str]) -> int:
    """The exit code of one command line."""
    if arguments[:1] == ["help"] and len(arguments) > 1:
        arguments = [*arguments[1:], "--help"]
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        sys.stdout.write(overview())
        return EXIT_OK
    if arguments[0] in ("-V", "--version"):
        sys.stdout.write(f"hotlap {hotlap.__version__}\n")
        return EXIT_OK
    try:
        return _dispatch(arguments)
    except HotlapError as error:
        complain(str(error))
        return error.exit_code
    except KeyboardInterrupt:
        exec("")  # 'python -m' takes one that came while text was run, as dataclasses do, for unhandled, and dies of it
        complain("interrupted; 'hotlap list runs' shows what was saved until then")
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the reader went away, as `| head` does
        return EXIT_OK


def _dispatch(arguments: list[str]) -> int:
    if arguments[0] in GROUPS and (len(arguments) == 1 or arguments[1] in ("-h", "--help", "help")):
        sys.stdout.write(group_overview(arguments[0]))
        return EXIT_OK
    words = 2 if arguments[0] in GROUPS else 1
    name = " ".join(arguments[:words])
    verb = VERBS.get(name)
    if verb is None and name.startswith("-"):
        raise UsageError(f"option {name!r} comes before a verb", expected="hotlap VERB [TARGET] [options]")
    if verb is None:
        raise UnknownName(f"unknown verb {name!r}", remedy=did_you_mean(name, [*VERBS, *GROUPS]))
    from hotlap.cli import options

    try:
        request = options.parse(name, verb, arguments[words:])
    except SystemExit as done:  # argparse leaves this way after --help
        return int(done.code or 0)
    except ModuleNotFoundError as error:  # an application's settings may stand beside what it draws with
        if error.name != "torch":
            raise
        raise _needs_torch(name) from error
    for sentence in options.mistyped_variables(type(request.resolved.config)):
        complain(sentence)
    if name not in WITHOUT_TORCH and importlib.util.find_spec("torch") is None:
        raise _needs_torch(name)
    _check_target(request.resolved.config)
    code: int = _handler(verb)(request)
    return code


def _needs_torch(name: str) -> EnvironmentUnusable:
    return EnvironmentUnusable(
        f"'hotlap {name}' needs torch, which is not installed in {sys.prefix}",
        remedy="'pip install torch' installs it, and 'hotlap doctor' says which build suits this machine",
    )


def _check_target(config: object) -> None:
    """A mistyped name is told at once, also by --dry-run, and leaves no failed run behind."""
    target = getattr(config, "target", "")
    compares = getattr(config, "diff", "")  # then it stands for a second trace
    if target and not compares:
        from hotlap.targets import check_name

        check_name(target)


def _handler(verb: Verb) -> Any:
    module, _, function = verb.handler.rpartition(":")
    return getattr(importlib.import_module(module or "hotlap.cli.commands"), function)


def complain(text: str) -> None:
    colour = sys.stderr.isatty() and not os.environ.get("NO_COLOR")
    sys.stderr.write(f"\033[31mhotlap:\033[0m {text}\n" if colour else f"hotlap: {text}\n")


def overview() -> str:
    """The verbs in the order of a lap."""
    lines = [
        f"hotlap {hotlap.__version__}: from 'it runs' to 'as fast as this hardware allows', with proof",
        "",
        "usage: hotlap VERB [TARGET] [options]        hotlap VERB --help shows a verb's options",
        "",
    ]
    lines += _verb_lines({name: verb for name, verb in VERBS.items() if " " not in name})
    lines += ["", "applications:"] * bool(GROUPS) + [f"  {name:<12} {summary}" for name, summary in GROUPS.items()]
    lines += [
        "",
        "TARGET is a registered name (hotlap list), module:factory or file.py:factory.",
        "Every verb takes --json, --config FILE, --set A.B=C, --dry-run and --quiet.",
        "Exit codes: 0 ok, 1 check failed or regression, 2 usage, 3 inconclusive, 4 environment, 5 out of memory.",
        "",
    ]
    return "\n".join(lines)


def group_overview(group: str) -> str:
    """The verbs of one application."""
    own = {name: verb for name, verb in VERBS.items() if name.startswith(f"{group} ")}
    lines = [
        f"hotlap {group}: {GROUPS[group]}",
        "",
        f"usage: hotlap {group} VERB [options]        hotlap {group} VERB --help shows a verb's options",
        "",
        *_verb_lines({name.partition(" ")[2]: verb for name, verb in own.items()}),
        "",
    ]
    return "\n".join(lines)


def _verb_lines(verbs: dict[str, Verb]) -> list[str]:
    return [f"  {name:<12} {verb.summary}" for name, verb in verbs.items()]


if __name__ == "__main__":
    main()
