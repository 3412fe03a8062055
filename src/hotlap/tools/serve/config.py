"""What ``hotlap serve`` can be told."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hotlap.base.errors import ConfigError
from hotlap.base.settings import require_least

LONGEST_S = 86400.0
"""The longest deadline of a request: a day."""


@dataclass(frozen=True, kw_only=True)
class ServeConfig:
    """Serves models over HTTP: real batches, a bounded queue, deadlines, and a restart for a worker that dies."""

    models: tuple[str, ...] = ()
    """Targets to serve, as unet or my.py:factory; NAME=TARGET serves one under another name."""
    weights: tuple[str, ...] = ()
    """Trained weights, as NAME=FILE; a model without is served with fresh ones, good for load tests only."""
    input: tuple[str, ...] = ()
    """Shapes of a plain module's inputs, as 3x224x224; of one model among several as NAME=3x224x224."""
    workload: dict[str, Any] = field(default_factory=dict)
    """Options of the target's factory, with --set workload.width=16."""
    device: tuple[str, ...] = ("auto",)
    """Where: auto (every GPU, or the CPU), or a list such as cuda:0,cuda:1; one process each, holding all models."""
    tuned: bool = True
    """Whether the tuned profile of a model decides its batch, precision and compilation."""
    arm: str = ""
    """How the models run, as cuda:bf16+channels_last, instead of what the tuned profiles say."""
    batch: int | None = None
    """Rows in a full batch, instead of the tuned or the workload's own."""
    max_delay_ms: float = 5.0
    """How long the first request of a batch waits for others."""
    queue_rows: int = 256
    """Rows of one model that may wait; more are refused with 429."""
    deadline_s: float = 60.0
    """How long a request may take when it names no deadline."""
    drain_s: float = 30.0
    """How long the service may take to answer what it has accepted, once told to stop."""
    host: str = "127.0.0.1"
    """Address to listen on; another than this machine's own needs a token."""
    port: int = 8000
    """Port to listen on; 0 takes a free one."""
    token: str = field(default="", metadata={"secret": True})
    """What clients must send as 'Authorization: Bearer TOKEN'; best given as HOTLAP_TOKEN."""
    cors: tuple[str, ...] = ()
    """Origins whose pages may call, as https://lab.example."""
    max_body_mb: float = 64.0
    """The largest request."""
    max_files: int = 64
    """Files in one batch request."""
    jobs: Path = Path("runs/serve/jobs.sqlite")
    """File that keeps jobs and their results, so that they survive a restart."""
    runs: Path = Path("runs")
    """Folder whose runs and reports the page shows."""
    threads: int = 4
    """Threads that decode pictures and finish answers, where no processes do."""
    desks: int | None = None
    """Processes that decode pictures and finish answers; 0 for threads of the service instead. By default there are
    some where a card would otherwise wait for outlines, and none where models run on the CPU."""

    def __post_init__(self) -> None:
        for name in ("queue_rows", "deadline_s", "max_body_mb", "max_files", "threads", "drain_s"):
            if not 0 < getattr(self, name) < math.inf:
                raise ConfigError(f"{name} = {getattr(self, name)!r}", expected="more than 0, and finite")
        if self.deadline_s > LONGEST_S:
            raise ConfigError(f"deadline_s = {self.deadline_s:g}", expected=f"at most {LONGEST_S:g}")
        if self.desks is not None and not 0 <= self.desks <= 256:
            raise ConfigError(f"desks = {self.desks}", expected="0 to 256")
        require_least(self, batch=1)
        if not 0 <= self.max_delay_ms <= 10_000:
            raise ConfigError(f"max_delay_ms = {self.max_delay_ms:g}", expected="0 to 10000")
        if not 0 <= self.port <= 65535:
            raise ConfigError(f"port = {self.port}", expected="0 to 65535")
        if self.host not in ("127.0.0.1", "::1", "localhost") and not self.token:
            raise ConfigError(
                f"host = {self.host!r} can be reached by others, and no token is set",
                remedy="Set HOTLAP_TOKEN to a long random text, or listen on 127.0.0.1",
            )
        wrong = [origin for origin in self.cors if not re.fullmatch(r"\*|[a-z][a-z0-9+.-]*://[^/\s]+", origin)]
        if wrong:  # browsers send an origin without a path, so that another would never be met
            raise ConfigError(
                f"cors = {wrong[0]!r} is no origin", expected="scheme and host alone, as https://lab.example"
            )
        if "*" in self.cors and not self.token:
            raise ConfigError("cors = '*' lets every page of every site call, and no token is set",
                              remedy="List the origins, or set HOTLAP_TOKEN")  # fmt: skip
