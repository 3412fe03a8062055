"""``hotlap VERB ...``: finds the verb, lets it work, turns errors into one paragraph and an exit code."""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType

import hotlap
from hotlap.base.errors import EXIT_OK, HotlapError, UnknownName, did_you_mean
from hotlap.cli.verbs import VERBS

EXIT_INTERRUPTED = 130


def main(arguments: list[str] | None = None) -> None:
    """The process's entry; never returns."""
    signal.signal(signal.SIGTERM, _interrupt)
    sys.exit(run(sys.argv[1:] if arguments is None else arguments))


def _interrupt(number: int, frame: FrameType | None) -> None:
    """SIGTERM ends a run as Ctrl-C does: with a readable partial record."""
    raise KeyboardInterrupt


def run(arguments: list[str]) -> int:
    """The exit code of one command line."""
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        sys.stdout.write(overview())
        return EXIT_OK
    if arguments[0] in ("-V", "--version"):
        sys.stdout.write(f"hotlap {hotlap.__version__}\n")
        return EXIT_OK
    try:
        return _dispatch(arguments[0], arguments[1:])
    except HotlapError as error:
        complain(str(error))
        return error.exit_code
    except KeyboardInterrupt:
        complain("interrupted; 'hotlap list runs' shows what was saved until then")
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the reader went away, as `| head` does
        return EXIT_OK


def _dispatch(name: str, arguments: list[str]) -> int:
    verb = VERBS.get(name)
    if verb is None:
        raise UnknownName(f"unknown verb {name!r}", remedy=did_you_mean(name, VERBS))
    from hotlap.cli import options

    try:
        request = options.parse(name, verb, arguments)
    except SystemExit as done:  # argparse leaves this way after --help
        return int(done.code or 0)
    from hotlap.cli import commands

    code: int = getattr(commands, verb.handler)(request)
    return code


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
    lines += [f"  {name:<10} {verb.summary}" for name, verb in VERBS.items()]
    lines += [
        "",
        "TARGET is a registered name (hotlap list), module:factory or file.py:factory.",
        "Every verb takes --json, --config FILE, --set A.B=C, --dry-run and --quiet.",
        "Exit codes: 0 ok, 1 check failed or regression, 2 usage, 3 inconclusive, 4 environment, 5 out of memory.",
        "",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
