"""What a lap can be told."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from hotlap.base.errors import ConfigError
from hotlap.base.settings import Layer, require_least
from hotlap.measure.arms import parse_arm, refuse_batch
from hotlap.records.run import RunRecord, find_of_kind
from hotlap.tools.tune.budget import parse_budget

QUICK = Layer("--quick", {"budget": "150s", "processes": 3, "verify": False, "profile_after": False})
QUICK_GIVES_UP = (
    "--quick gives up: the batch stays as it is, and only what fits into a short budget is searched; three processes "
    "in the bench, so differences under 10% are never named and there is no p-value, and no bench at all where the "
    "search saw less than 5%; a shorter gate and warm-up; the step is not traced again afterwards, nor with source "
    "lines and memory; whether a training really uses the stored profile is not checked; peak memory as the search "
    "saw it."
)
NOT_KEPT = ("resume", "runs")


@dataclass(frozen=True, kw_only=True)
class LapConfig:
    """The whole round: health, baseline, profile, search under a numeric gate, proof, report, and what to paste."""

    target: str = ""
    """Registered name, module:factory or file.py:factory; --resume takes it from the lap that goes on."""
    mode: Literal["train", "infer"] = field(default="train", metadata={"flag": "for"})
    """What it is made fast for: whole training steps, or forward passes."""
    budget: str = "10m"
    """Time for the whole lap, as 90s, 10m or 1h. The search gets what the other stages leave, at least a quarter."""
    baseline: str = ""
    """What you have today, as an arm: cpu, cuda, cuda:tf32. By default the plain device, float32 without TF32."""
    batch: int | None = None
    """Fixes the batch, before and after; by default it begins with the workload's own and is searched."""
    max_batch: int | None = None
    """The largest batch to try."""
    arms: tuple[str, ...] = ()
    """Only these are searched, as cuda:bf16,cuda:bf16+channels_last; by default all that the device and model have."""
    graphs: Literal["auto", "on", "off"] = "auto"
    """Whole steps recorded as CUDA graphs, as in 'hotlap tune'."""
    advice: int = 0
    """Puts so many pieces of the first profile's advice to the test: their arms join the bench."""
    doctor: bool = True
    """Begins with the functional checks of this machine."""
    profile: bool = True
    """Traces the step before and after."""
    profile_after: bool = True
    """Traces the step after, too; with --no-profile-after only before."""
    verify: bool = True
    """Checks that the consumer of the tuned profile really does what it says."""
    report: bool = True
    """Ends with one page that draws every stage."""
    quick: bool = False
    """An answer within three minutes on two cores: fixed batch, short search, three processes in the bench."""
    processes: int = 8
    """Fresh processes of the bench at the end, each timing every arm."""
    store: bool = True
    """Stores the tuned profile, so that train and bench find it."""
    input: tuple[str, ...] = ()
    """Shape of each input of a plain nn.Module, without the batch: 3x224x224, or 128:int64:32000 for token ids."""
    workload: dict[str, Any] = field(default_factory=dict)
    """Options of the target's factory, as --set workload.size=64."""
    seed: int = 0
    """Decides weights and inputs."""
    timeout_s: float = 900.0
    """Longest life of one measuring process."""
    resume: str = field(default="", metadata={"bare": "latest"})
    """Goes on with a lap that was cut off or failed: latest, its name or its folder. What is done is not repeated."""
    runs: Path = Path("runs")
    """Where records go; those of the stages lie in the lap's own folder."""
    name: str | None = None
    """Name of the run; by default the target's with -lap."""

    def __post_init__(self) -> None:
        if not self.target and not self.resume:
            raise ConfigError("no target given", expected="a name of 'hotlap list', module:factory or file.py:factory")
        require_least(self, batch=1, max_batch=1, processes=1, advice=0)
        if not 0 < self.timeout_s < math.inf:
            raise ConfigError(f"timeout_s = {self.timeout_s} is out of range", expected="above 0, and finite")
        if self.advice and not self.profile:
            raise ConfigError(f"advice = {self.advice} needs a profile", remedy="Leave --no-profile out")
        if self.baseline:
            refuse_batch(parse_arm(self.baseline), "--batch")
        parse_budget(self.budget)

    @property
    def budget_s(self) -> float:
        return parse_budget(self.budget)

    def presets(self) -> list[Layer]:
        """The settings of the lap to resume, and those that --quick brings, just above the defaults."""
        if not self.resume:
            return [QUICK] if self.quick else []
        record = find_lap(self.resume, self.runs)
        kept = {key: value for key, value in record.config.items() if key not in NOT_KEPT and value is not None}
        return [Layer(f"the lap resumed ({record.path})", kept)]


def find_lap(text: str, runs: Path) -> RunRecord:
    """The record of the lap that ``text`` names; 'latest' is the newest lap, whatever else ran since."""
    return find_of_kind(text, runs, "lap", "lap")
