"""The fix script: the shell commands of a record's findings, for the user to read and run."""

from __future__ import annotations

import textwrap

from hotlap.records.codec import decode
from hotlap.records.measurement import Check
from hotlap.records.run import RunRecord
from hotlap.tools.doctor.finding import Fix

_SECTIONS = (
    ("Driver", ("driver", "card")),
    ("Container", ("container",)),
    ("torch and its libraries", ("libraries", "cpu", "gpu")),
    ("Host", ("host", "measure")),
)
_ONLY_LOOKS = ("nvidia-smi -", "nvidia-smi", "df ", "du ", "ps ", "sudo dmesg", "python -m hotlap", "sudo lspci")


def fix_script(record: RunRecord) -> str:
    """A shell script with the commands of every WARN and FAIL, in the order to run them. Nothing here runs it.

    Commands that belong on a container's host, that need a value filled in, or that end the session are commented
    out, so that running the whole script by mistake does nothing that cannot be undone from here.
    """
    system = record.extra.get("system", {})
    lines = ["#!/bin/sh", *_comment(f"Fixes that 'hotlap doctor' proposes for {system.get('name', 'this machine')}.")]
    lines += _comment("Read it before you run it: hotlap ran none of this. Failures come before warnings.")
    lines += _comment(f"Driver {system.get('driver') or 'none'}, torch {system.get('torch') or 'none'}.")
    lines += ["set -eu"]
    written: set[str] = set()
    found = False
    for title, groups in _SECTIONS:
        checks = [c for c in record.checks if c.group in groups and c.status in ("FAIL", "WARN")]
        checks.sort(key=lambda check: check.status != "FAIL")
        if checks:
            lines += ["", *_comment(f"--- {title} ---")]
        for check in checks:
            found = True
            lines += ["", *_check_lines(check, bool(system.get("container")), written)]
    if not found:
        lines += ["", *_comment("Nothing to put right: no check failed or warned.")]
    return "\n".join(lines) + "\n"


def _check_lines(check: Check, in_container: bool, written: set[str]) -> list[str]:
    fix: Fix = decode(Fix, check.data["fix"]) if "fix" in check.data else Fix(say=check.fix)
    lines = _comment(f"{check.status} {check.name}: {check.observed}")
    lines += _comment(fix.say)
    outside = fix.on_host and in_container
    if outside and fix.commands:
        lines += _comment("On the host, outside this container:")
    for command in fix.commands:
        if command in written:
            continue
        written.add(command)
        if outside or needs_a_person(command):
            lines.append(f"# {command}")
        else:
            lines.append(command)
    return lines


def needs_a_person(command: str) -> bool:
    """Whether a command must not run unread: placeholders, restarts, or a shell's own settings and looks."""
    own = ("export ", "unset ", "ulimit ")
    return "..." in command or "<" in command or "reboot" in command or command.startswith((*own, *_ONLY_LOOKS))


def _comment(text: str) -> list[str]:
    return textwrap.wrap(text, width=100, initial_indent="# ", subsequent_indent="#   ", break_long_words=False)
