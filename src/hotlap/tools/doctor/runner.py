"""Runs a probe in a process of its own and turns whatever becomes of it into a finding."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import hotlap
from hotlap.base.process_group import kill_group
from hotlap.records.codec import decode
from hotlap.tools.doctor.finding import Finding, Fix, failed
from hotlap.tools.doctor.remedies import alone_command, remedy

MODULE = "hotlap.tools.doctor.probe"
GONE_S = 5.0
"""A killed process that is there after so long waits in the kernel, for a card that is gone or a dead disk."""
_STATUSES = ("PASS", "WARN", "FAIL", "SKIP")


@dataclass(frozen=True)
class Ended:
    """How a process ended."""

    code: int
    """Its exit status; negative for the signal that killed it."""
    stdout: str
    stderr: str
    timed_out: bool = False
    stuck: bool = False
    """It could not even be killed."""


@dataclass
class Runner:
    """Starts probes and sees to it that none outlives the doctor."""

    python: str = sys.executable
    module: str = MODULE
    environ: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    live: set[int] = field(default_factory=set)
    """Process groups that have not ended."""

    def __enter__(self) -> Runner:
        return self

    def __exit__(self, *_: object) -> None:
        for group in list(self.live):
            kill_group(group)

    def start(self, name: str, timeout_s: float) -> Ended:
        """Runs one probe to its end, or kills it and all it started when the time is up."""
        # -P keeps a file of the user's folder from standing in for torch or a standard module.
        command = [self.python, "-P", "-m", self.module, name]
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            env=_child_environ(self.environ),
            start_new_session=True,
        )
        self.live.add(process.pid)
        end = threading.Thread(target=_end_group_of, args=(process,), daemon=True)
        end.start()
        try:
            out, err = process.communicate(timeout=timeout_s)
            return Ended(process.returncode, out, err)
        except subprocess.TimeoutExpired:
            kill_group(process.pid)
            end.join(GONE_S)
            return Ended(-signal.SIGKILL, "", "", timed_out=True, stuck=end.is_alive())
        finally:
            kill_group(process.pid)
            end.join(GONE_S)
            for pipe in (process.stdout, process.stderr):
                if pipe is not None:
                    pipe.close()
            self.live.discard(process.pid)

    def run(self, name: str, timeout_s: float) -> Finding:
        """The probe's finding; a crash, a hang or a garbled answer is a FAIL that says so."""
        return judge_end(name, self.start(name, timeout_s), timeout_s)

    def facts(self, name: str, kind: Any, timeout_s: float) -> tuple[Any, str]:
        """Facts of type ``kind`` and '', or None and the reason there are none."""
        ended = self.start(name, timeout_s)
        if ended.timed_out:
            return None, f"no answer within {timeout_s:g} s"
        try:
            return decode(kind, json.loads(_last_line(ended.stdout))), ""
        except ValueError:
            return None, f"the reading process ended with status {ended.code}: {_last_line(ended.stderr)}"


def _end_group_of(probe: subprocess.Popen[str]) -> None:
    """Ends what a probe leaves behind (compile workers) as soon as it is gone: they hold its stderr open."""
    probe.wait()
    kill_group(probe.pid)


def judge_end(name: str, ended: Ended, timeout_s: float) -> Finding:
    """The finding a probe's end amounts to."""
    retry = Fix(say="Run the probe alone to see where it stops", commands=(alone_command(name),))
    if ended.stuck:
        reboot = Fix(
            say="It waits in the kernel, mostly for a card or a disk; the log says which. Only a reboot ends it",
            commands=("sudo dmesg | tail -n 50",),
        )
        return failed(f"no answer within {timeout_s:g} s, and it cannot be killed", reboot)
    if ended.timed_out:
        longer = Fix(
            say=f"If the machine is only slow, give it more time: hotlap doctor --timeout-s {3 * timeout_s:g}. "
            "Otherwise see where it hangs",
            commands=(alone_command(name),),
        )
        return failed(f"no answer within {timeout_s:g} s; it was stopped", longer)
    if ended.code < 0:
        with contextlib.suppress(ValueError):
            word = signal.Signals(-ended.code).name
            return failed(f"the process was killed by {word}{_said(ended)}", _crash_fix(word, ended, retry))
        return failed(f"the process was killed by signal {-ended.code}", retry)
    if ended.code > 0:
        return failed(f"the process ended with status {ended.code}{_said(ended)}", remedy(ended.stderr, name))
    try:
        finding: Finding = decode(Finding, json.loads(_last_line(ended.stdout)))
        if finding.status not in _STATUSES:
            raise ValueError(f"status {finding.status!r}")
    except ValueError:
        return failed(f"the probe's answer is not a finding: {_last_line(ended.stdout)[:120]!r}", retry)
    return finding


def _crash_fix(word: str, ended: Ended, retry: Fix) -> Fix:
    if word == "SIGKILL":
        return Fix(say="The system killed it, most often for want of memory", commands=("sudo dmesg | grep -i oom",))
    if word == "SIGILL":
        return Fix(say="This build uses instructions the processor lacks", commands=("pip install --upgrade torch",))
    known = remedy(ended.stderr, "")
    if known.commands and "hotlap.tools.doctor.probe" not in known.commands[0]:
        return known
    return Fix(
        say="A library crashed; install torch again, then repeat the probe",
        commands=("pip install --force-reinstall torch", *retry.commands),
    )


def _said(ended: Ended) -> str:
    line = _last_line(ended.stderr)
    return f": {line[:200]}" if line else ""


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else ""


def _child_environ(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment in which a probe finds this same hotlap."""
    source = Path(hotlap.__file__).resolve().parents[1]
    child = dict(environ)
    if source.name not in ("site-packages", "dist-packages"):
        child["PYTHONPATH"] = os.pathsep.join(filter(None, (str(source), environ.get("PYTHONPATH", ""))))
    child.setdefault("PYTHONFAULTHANDLER", "0")
    return child
