"""What a search can be told."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from hotlap.base.errors import ConfigError
from hotlap.base.settings import Layer, require_least
from hotlap.measure.arms import COMPILE_MODES
from hotlap.records.codec import encode
from hotlap.records.run import RunRecord, find_of_kind
from hotlap.tools.tune.budget import parse_budget
from hotlap.tools.tune.rows import OUT_OF_BUDGET, TIMED_OUT

DECIDE_TRIALS = (
    "target", "mode", "input", "workload", "seconds", "warmup_seconds", "gate_batch", "gate_steps", "seed",
)  # fmt: skip
"""Settings that say what a trial or a judgement is; those of a search that goes on were made under its own."""


@dataclass(frozen=True, kw_only=True)
class TuneConfig:
    """Finds the fastest configuration of a target that still gives the right answer, and stores it as its profile."""

    target: str = ""
    """Registered name, module:factory or file.py:factory; --resume takes it from the search that goes on."""
    mode: Literal["train", "infer"] = field(default="train", metadata={"flag": "for"})
    """What it is tuned for: whole training steps, or forward passes."""
    objective: Literal["throughput", "latency", "memory"] = "throughput"
    """throughput; latency: the shortest step, or with --p95-ms the highest throughput within it; memory: the smallest
    peak with 95% of the best throughput."""
    p95_ms: float | None = None
    """Milliseconds within which 95% of the steps must end."""
    budget: str = "5m"
    """Time for all trials together, as 90s, 5m or 1h; the winner's last run is kept back from it, and a trial that does
    not end is ended in time for that."""
    arms: tuple[str, ...] = ()
    """Only these ways to run it, as cuda,cuda:bf16+channels_last; by default all that the device and the model have."""
    device: str = ""
    """cpu, cuda or cuda:1; by default a GPU where there is one."""
    graphs: Literal["auto", "on", "off"] = "auto"
    """Steps recorded as CUDA graphs; auto and on try them wherever the device has them, off leaves them out."""
    batch: int | None = None
    """Fixes the batch; by default it is searched, beginning with the workload's own."""
    max_batch: int | None = None
    """The largest batch to try; for training never more than the data has samples."""
    batches: tuple[int, ...] = ()
    """Only these batch sizes, as 16,64,256; by default sizes are doubled and halved, and neighbours are tried."""
    compile: tuple[str, ...] = COMPILE_MODES[:3]
    """Modes of torch.compile that finalists are tried in; none leaves it out, which saves most of a search's time."""
    input: tuple[str, ...] = ()
    """Shape of each input of a plain nn.Module, without the batch: 3x224x224, or 128:int64:32000 for token ids."""
    workload: dict[str, Any] = field(default_factory=dict)
    """Options of the target's factory, as --set workload.size=64."""
    seconds: float = 0.5
    """Timed seconds of a first trial; the next rounds take three and nine times as long."""
    warmup_seconds: float = 5.0
    """A trial's warm-up ends here, or at a twentieth of the budget, even if its times are not steady."""
    gate_batch: int = 4
    """Samples in the numeric gate's batch."""
    gate_steps: int = 5
    """Training steps whose losses the gate compares."""
    timeout_s: float = 180.0
    """Longest life of one trial, or what the budget leaves for it; one that hangs is then a row in the table."""
    resume: str = field(default="", metadata={"bare": "latest"})
    """Goes on with a search that was cut off: latest, its name or its folder. No trial is repeated."""
    verify: bool = False
    """Instead of a search, runs the consumer of the stored profile and checks what it really uses."""
    store: bool = True
    """Stores the profile, so that train and bench find it; it lies in the run's folder in any case."""
    export: Path | None = None
    """Folder that gets batch_sizes.json, snippets for Lightning and Hugging Face, and a Triton config for inference."""
    seed: int = 0
    """Decides weights and inputs."""
    runs: Path = Path("runs")
    """Where records go."""
    name: str | None = None
    """Name of the run; by default the target's with -tune."""

    def __post_init__(self) -> None:
        if not self.target and not self.resume:
            raise ConfigError("no target given", expected="a name of 'hotlap list', module:factory or file.py:factory")
        require_least(self, batch=1, max_batch=1, gate_batch=1, gate_steps=1)
        if self.device and not re.fullmatch(r"cpu|cuda(:\d+)?", self.device):
            raise ConfigError(f"device = {self.device!r} is not a device", expected="cpu, cuda or cuda:1")
        if any(size < 1 for size in self.batches):
            raise ConfigError(f"batches = {min(self.batches)} is too small", expected="at least 1")
        wrong = [mode for mode in self.compile if mode not in (*COMPILE_MODES, "none")]
        if wrong:
            raise ConfigError(f"compile = {wrong[0]!r} is not a mode", expected=f"none, {', '.join(COMPILE_MODES)}")
        for key in ("p95_ms", "seconds", "warmup_seconds", "timeout_s"):
            value = getattr(self, key)
            if value is not None and not 0 < value < math.inf:
                raise ConfigError(f"{key} = {value} is out of range", expected="above 0, and finite")
        if self.batch is not None and self.max_batch is not None and self.batch > self.max_batch:
            raise ConfigError(f"batch = {self.batch} is above max_batch = {self.max_batch}")
        if self.batch is not None and self.batches and self.batches != (self.batch,):
            given = ", ".join(map(str, self.batches))
            raise ConfigError(f"batch = {self.batch} and batches = {given} cannot both hold", expected="one of them")
        if self.verify and self.export is not None:
            raise ConfigError(
                "verify and export cannot both hold: only a search is exported",
                remedy="'hotlap tune --resume SEARCH --export DIR' exports one that is done, without a new trial",
            )
        parse_budget(self.budget)

    @property
    def budget_s(self) -> float:
        return parse_budget(self.budget)

    def presets(self) -> list[Layer]:
        """The settings of the search to resume, just above the defaults."""
        if not self.resume:
            return []
        record = find_search(self.resume, self.runs)
        kept = {k: v for k, v in record.config.items() if k not in ("resume", "runs", "export") and v is not None}
        return [Layer(f"the search resumed ({record.path})", kept)]


def find_search(text: str, runs: Path) -> RunRecord:
    """The record of the search that ``text`` names; 'latest' is the newest search, whatever else ran since."""
    return find_of_kind(text, runs, "tune", "search")


def cut_short(record: RunRecord, config: TuneConfig) -> set[str]:
    """Ends that trials of a search had only because they were given less time than ``config`` gives them."""
    was = record.config
    longer = {
        OUT_OF_BUDGET: config.budget_s > parse_budget(was.get("budget", config.budget)),
        TIMED_OUT: config.timeout_s > was.get("timeout_s", config.timeout_s),
    }
    return {status for status, is_longer in longer.items() if is_longer}


def changed_settings(record: RunRecord, config: TuneConfig) -> tuple[str, ...]:
    """How ``config`` differs from that of a search, in words, where the trials of that search do not answer it."""
    was, now = record.config, encode(config)
    changed = [key for key in DECIDE_TRIALS if was.get(key, now[key]) != now[key]]
    return tuple(f"{'--for' if key == 'mode' else key} was {was[key]!r}, is {now[key]!r}" for key in changed)
