"""The services that serve_http compares, each in processes of its own that are gone when it is done with."""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.serve_watch import Moment, look

START_S = 300.0
"""How long a service may take to get ready."""
STOP_S = 20.0
"""How long one may take to end by itself."""


class ServiceFailed(Exception):
    """A service that does not start, ends by itself, or leaves processes behind."""


@dataclass(frozen=True)
class Started:
    """A service's first process and what it has said."""

    process: subprocess.Popen[str]
    log: Any

    @property
    def said(self) -> str:
        return os.pread(self.log.fileno(), 1 << 20, 0).decode(errors="replace")

    def check(self) -> None:
        """Raises where the process has ended."""
        code = self.process.poll()
        if code is not None:
            said = self.said.strip() or "nothing"
            # The cause stands first; what follows may be its children, lost without it.
            short = said if len(said) < 4000 else f"{said[:2000]} [...] {said[-2000:]}"
            raise ServiceFailed(f"it ended with exit code {code} and said: {short}")


@dataclass(frozen=True)
class Running:
    """A service, and how it is asked."""

    started: Started
    port: int
    path: str
    form: str = ""
    """The field that pictures are sent in; '' sends them as the body."""
    has_metrics: bool = False

    def look(self) -> Moment:
        return look(self.started.process.pid, self.port if self.has_metrics else None)


@contextlib.contextmanager
def process(command: list[str], until: str = "", start_s: float = START_S) -> Iterator[Started]:
    """A service in processes of its own, once it has said ``until``; all of them are gone at the end."""
    with tempfile.TemporaryFile("w+") as log:  # a pipe that nobody reads would fill up and stop the service
        made = subprocess.Popen(command, stdout=log, stderr=log, text=True, start_new_session=True)
        started = Started(made, log)
        try:
            latest = time.monotonic() + start_s
            while until not in started.said:
                started.check()
                if time.monotonic() > latest:
                    raise ServiceFailed(f"it was not ready after {start_s:g} s and said: {started.said[-2000:]}")
                time.sleep(0.1)
            yield started
        finally:
            _stop(made)


def _stop(made: subprocess.Popen[str]) -> None:
    made.send_signal(signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        made.wait(STOP_S)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(made.pid, signal.SIGKILL)  # LitServe leaves its own processes, which would keep port and memory
    made.wait()
    until = time.monotonic() + STOP_S
    while left := alive_in(made.pid):
        if time.monotonic() > until:
            raise ServiceFailed(f"processes that it started are still there: {left}")
        time.sleep(0.05)


def alive_in(group: int) -> list[int]:
    """The processes of a group that still run; what has ended and was not asked for its exit code does not."""
    found = []
    for file in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, of = file.read_text().rpartition(")")[2].split()[:3]
        except OSError:
            continue  # it has ended
        if int(of) == group and state not in "ZX":
            found.append(int(file.parent.name))
    return found


@contextlib.contextmanager
def hotlap_serve(given: argparse.Namespace, options: dict[str, Any], weights: Path) -> Iterator[Running]:
    command = [sys.executable, "-m", "hotlap", "serve", "model=cells", "--weights", f"model={weights}"]
    command += ["--port", "0", "--device", given.device, "--batch", str(given.rows), "--desks", str(given.desks)]
    command += ["--queue-rows", str(8 * given.clients), "--deadline-s", "120", "--no-tuned"]
    command += ["--jobs", str(weights.with_name("jobs.sqlite")), *(["--arm", given.arm] if given.arm else [])]
    command += [f"--set=workload.{key}={value}" for key, value in options.items()]
    with process(command, "Ready:") as started:
        found = re.search(r"127\.0\.0\.1:(\d+)", started.said)
        assert found is not None
        yield Running(started, int(found[1]), "/api/v1/segment?model=model", has_metrics=True)


@contextlib.contextmanager
def lit_serve(given: argparse.Namespace, options: dict[str, Any], weights: Path) -> Iterator[Running]:
    names = ("model", "size", "width", "device", "rows", "arm", "lit_workers")
    settings = [f"--{name.replace('_', '-')}={getattr(given, name)}" for name in names]
    port = free_port()
    command = [sys.executable, "-m", "benchmarks.serve_http", "--as-litserve", str(port), *settings]
    with process([*command, "--weights", str(weights)]) as started:
        yield Running(started, port, "/predict", "picture")


def free_port() -> int:
    """A port that nothing listens on, such as a service that an earlier run has left."""
    with socket.socket() as made:
        made.bind(("127.0.0.1", 0))
        number: int = made.getsockname()[1]
        return number
