"""How a run was made, in plain sentences drawn from its record: method, limits, the command, config and machine."""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

from hotlap.base.format import format_bytes, format_count, format_list
from hotlap.records.run import RunRecord
from hotlap.tools.report.training import is_of_one_picture
from hotlap.tools.report.trust import FEW_PROCESSES, replication
from hotlap.tools.report.view import TRAININGS


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One value of the config and where it came from."""

    name: str
    value: str
    source: str
    is_default: bool


def method_sentences(record: RunRecord) -> list[str]:
    """How it was measured; only what the record bears out."""
    if record.kind == "compare":
        return [
            "Two records were compared; nothing was timed again.",
            "A ratio is the older time over the newer one, with a 95% interval by bootstrap over processes first and "
            "iterations second.",
            "A change is called faster or slower only when the test on process medians, corrected for the number of "
            "comparisons, supports it; otherwise it is inconclusive.",
        ]
    if record.kind == "loader":
        return [
            "The model's step was timed on inputs that lie on its device, or given; the loader ran apart from it, each "
            "setting in a fresh process.",
            "A rate is the median of windows that begin once the workers have started and the batches they had made "
            "meanwhile are used up, with a 95% interval by bootstrap over the windows.",
            "It is an upper bound of what a training gets: there, workers and the training share the cores.",
        ]
    if record.kind == "train":
        return [
            "Each step trains on one whole effective batch: however it is split to fit, losses are summed and divided "
            "once by their true count.",
            "Evaluations are of the averaged weights where there are any, in float32, on data not trained on.",
        ]
    if record.kind == "splat":
        return _splat_sentences(record)
    if record.kind == "tune":
        return _tune_sentences(record)
    if record.kind == "profile":
        return _profile_sentences(record)
    if record.kind != "bench":
        return []
    return [*_timing_sentences(record), *_statistics_sentences(record)]


def _splat_sentences(record: RunRecord) -> list[str]:
    step = "In each step every process draws one of the pictures; the gradient of its loss moves the splats."
    if is_of_one_picture(record):
        return [step, "Its one picture is drawn once more after the last step, and judged."]
    most = record.config.get("max_test_views")
    judged = "After the last step each held-out picture is drawn once, from its own camera, and judged"
    return [step, f"{judged}; curves on the way are means over {most} of them at most."]


def _tune_sentences(record: RunRecord) -> list[str]:
    found = record.extra.get("tune") or {}
    in_turns = any(row.get("together") for row in found.get("rows") or [])
    lines = [
        "Every trial makes whole steps on the worst-case shape, optimizer state and a pass for evaluation included, in "
        "a process of its own" + ("; those that were close took turns in one process as well." if in_turns else "."),
        "Where there was doubt, and budget, leads were checked in a second process, and the best few were run again at "
        "the end, three times as long. A rate is the median over processes.",
        "Memory was not taken to grow with the batch: a size that failed was tried again, and sizes beside and "
        "beyond it as well. Only a size that was run can be chosen.",
    ]
    last = "The winner was judged against float64 and run once more in its final form, with a ragged tail."
    return [*lines, *([last] if found.get("winner") else [])]


def _profile_sentences(record: RunRecord) -> list[str]:
    if "diff" in record.extra:
        return ["Two profiles were compared; nothing was run. A difference of two single runs is no proof of a cause."]
    found = []
    if record.config.get("target"):
        found.append(
            "The step was timed without the profiler first, in the same process. A trace with shapes gave the times; a "
            "second one, with stacks and memory, the source lines and the memory timeline."
        )
    found += [
        "An instant of the device belongs to the kernel that reached it first; copies and exchanges count only where "
        "no kernel hides them. On the host it belongs to the innermost operator.",
        "A kernel belongs to the operator that launched it, a backward operator to the module of its forward one.",
        "An estimate of a gain is arithmetic on this trace, not a measurement; the bench command beside it is one.",
    ]
    return found


def _timing_sentences(record: RunRecord) -> list[str]:
    processes, iterations = replication(record)
    quantities = {m.quantity for m in record.measurements} | {s.quantity for a in record.arms for s in a.summaries}
    step = "training step (forward, backward, optimizer)" if record.config.get("mode") == "train" else "forward pass"
    batch = record.config.get("batch")
    size = f" on a batch of {batch}" if batch is not None else ""
    found = [f"Each iteration is one {step}{size}; the inputs were made before timing and are the same in every arm."]
    if processes:
        started = format_count(processes, "fresh process was started", "fresh processes were started")
        found.append(
            f"{started}, with at least {format_count(iterations, 'timed iteration')} of each arm in it; the process, "
            "not the iteration, is what is repeated."
        )
    if len(record.arms) > 1:
        found.append("The arms took turns, so that a drift of the machine falls on all of them.")
    found.append("Warm-up, kernel building, autotuning and compilation are outside the timed part; the first step has "
                 "its own column.")  # fmt: skip
    if "wall" in quantities:
        found.append("Wall time runs from before a block of iterations to after the device has finished it: this is "
                     "the headline.")  # fmt: skip
    if "device" in quantities:
        found.append("Device time is taken by events on the device with its queue kept full; where it is shorter than "
                     "the wall time, the device waited for the host.")  # fmt: skip
    if "transfer" in quantities:
        found.append("Time with copies adds moving the batch to the device and the result back.")
    return found


def _statistics_sentences(record: RunRecord) -> list[str]:
    found = [
        "A time is the median over all processes with a 95% interval from a bootstrap over processes first and "
        "iterations second; outliers are marked and stay in."
    ]
    tests = sorted({c.test for c in record.comparisons if c.test})
    if record.comparisons:
        by = f" by {format_list(tests)}" if tests else ""
        found.append(f"A speed-up is the baseline's time over the arm's, tested{by} on process medians and corrected "
                     "for the number of arms.")  # fmt: skip
    references = sorted({gate.reference for gate in record.gates if gate.reference})
    if references:
        found.append(f"Answers were compared with {format_list(references)} before timing; an arm beyond a limit gets "
                     "no speed-up.")  # fmt: skip
    return found


def limits(record: RunRecord) -> list[str]:
    """What the page does not show."""
    if record.kind == "doctor":
        return ["The checks saw this machine at one moment, under the load it had then."]
    if record.kind in TRAININGS:
        return [
            "This is one training with one seed; another seed gives another curve, and a mean over some tells more."
        ]
    found = ["The numbers hold for this machine, these versions and this batch; another of any may give another order."]
    processes, _ = replication(record)
    if record.kind == "bench" and processes < FEW_PROCESSES:
        found.append(
            f"With {format_count(processes, 'process', 'processes')} the spread between processes is hardly known."
        )
    if record.gates:
        found.append("The gate compares numbers on the inputs it was given; it does not train to the end.")
    if record.status != "complete":
        found.append(f"The run's status is {record.status}: what stands here is what it had found by then.")
    if any(t.throttle for t in record.telemetry):
        found.append("The device slowed itself in some blocks; a cooler or unlimited device would be faster.")
    return found


def command_line(record: RunRecord) -> str:
    """The command that repeats the run, as a shell takes it."""
    if not record.command:
        return ""
    first, *rest = record.command
    # A console script's full path belongs to the machine it ran on; its name is what a reader types.
    modules = {"main.py": "python -m hotlap.cli.main", "__main__.py": "python -m hotlap"}
    name = modules.get(PurePath(first).name, PurePath(first).name)
    return " ".join([name, *(shlex.quote(part) for part in rest)])


def settings(record: RunRecord) -> list[Setting]:
    """The whole config by name, what the user chose first."""
    found = []
    for name, value in _flatten(record.config):
        source = record.config_sources.get(name) or record.config_sources.get(name.split(".")[0], "")
        found.append(Setting(name=name, value=_plain(value), source=source, is_default=source in ("", "default")))
    return sorted(found, key=lambda setting: setting.is_default)


def _flatten(config: dict[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for name, value in config.items():
        if isinstance(value, dict) and value:
            found += _flatten(value, f"{prefix}{name}.")
        else:
            found.append((f"{prefix}{name}", value))
    return found


def _plain(value: Any) -> str:
    if isinstance(value, str):
        return value or "''"
    if isinstance(value, list) and all(isinstance(item, (str, int, float)) for item in value):
        return ", ".join(str(item) for item in value) or "none"
    return json.dumps(value)


def environment_rows(record: RunRecord) -> list[tuple[str, str]]:
    """Machine and software, by name."""
    env = record.environment
    gpus = [f"{gpu.name}, {format_bytes(gpu.memory_bytes)}" for gpu in env.gpus]
    rows = [
        ("CPU", f"{env.cpu_model}, {env.usable_cores} of {env.logical_cpus} logical cores usable"),
        ("Memory", format_bytes(env.memory_bytes)),
        ("GPU", "; ".join(gpus) or "none"),
        ("Driver", env.driver),
        ("CUDA, cuDNN", ", ".join(part for part in (env.cuda, env.cudnn) if part)),
        ("System", env.system),
        ("Host", env.hostname),
        ("Python", env.python),
        ("hotlap", env.hotlap),
        ("Commit", env.commit),
        ("Packages", ", ".join(f"{name} {version}" for name, version in env.packages.items())),
        ("Variables", " ".join(f"{name}={value}" for name, value in env.variables.items())),
        ("Started", record.started_at),
        ("Finished", record.finished_at),
    ]
    return [(name, value) for name, value in rows if value]
