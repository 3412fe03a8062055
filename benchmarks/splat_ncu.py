"""How near is each kernel of splatting to what the card can do? Asked of Nsight Compute, one frame of a scene.

    python -m benchmarks.splat_ncu --out splat_ncu.json --md splat_ncu.md [--scene 1M]

Needs ``ncu`` and leave to read the card's counters. A child process draws and differentiates eight cameras, so that
everything is compiled and the room for pairs is settled, and then one more, which is profiled. For each kernel: its
time, the bytes it moved to and from memory, the warps that were there, and how busy each unit was on average. A unit
that is busy for p percent of the time would allow the kernel 100 / p times the speed: that is the distance to its
floor, and the busiest unit's is the nearest. Clocks are left alone; ncu runs kernels one by one with cold caches.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.splat_contenders import Ours
from benchmarks.splat_scene import NUM_CAMERAS, SCENES, make_scene

UNITS = {
    "memory": "dram__throughput.avg.pct_of_peak_sustained_elapsed",
    "L2": "lts__t_sectors.avg.pct_of_peak_sustained_elapsed",
    "load/store": "sm__inst_executed_pipe_lsu.avg.pct_of_peak_sustained_elapsed",
    "FMA": "sm__inst_executed_pipe_fma.avg.pct_of_peak_sustained_elapsed",
    "exp": "sm__inst_executed_pipe_xu.avg.pct_of_peak_sustained_elapsed",
    "issue": "sm__inst_executed.avg.pct_of_peak_sustained_elapsed",
}
"""The metric that says how busy a unit was, in percent. Exponentials and reciprocals are the unit XU's."""
OTHERS = {
    "ns": "gpu__time_duration.sum",
    "dram_bytes": "dram__bytes.sum",
    "occupancy_percent": "sm__warps_active.avg.pct_of_peak_sustained_active",
    "possible_occupancy_percent": "sm__maximum_warps_per_active_cycle_pct",
    "registers": "launch__registers_per_thread",
}


def child(scene_name: str) -> None:
    """One frame between the profiler's marks, after the card is warm."""
    import torch

    scene = SCENES[scene_name]
    ours = Ours(scene, *make_scene(scene, "cuda"))
    v_colors = torch.randn(1, scene.height, scene.width, 3, device="cuda") / (scene.height * scene.width)
    for _ in range(NUM_CAMERAS + 1):
        ours.run(v_colors)
    torch.cuda.synchronize()
    torch.cuda.profiler.start()
    ours.run(v_colors)
    torch.cuda.synchronize()
    torch.cuda.profiler.stop()


def profile(scene_name: str, metrics: list[str], log: Path, timeout_s: float) -> str:
    """What ncu has written; those metrics that its version does not have are left out and asked no more."""
    command = [
        "ncu", "--csv", "--page", "raw", "--print-units", "base", "--clock-control", "none",
        "--profile-from-start", "off", "--kernel-name", "regex:splat_", "--target-processes", "all", "-f",
        "--metrics", ",".join(metrics), "--log-file", str(log),
        sys.executable, "-m", "benchmarks.splat_ncu", "--child", scene_name,
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)
    text = log.read_text() if log.exists() else ""
    said = text + done.stdout + done.stderr
    missing = [name for name in metrics if re.search(rf"[Ff]ailed to find.*{re.escape(name)}", said)]
    if missing:
        print(f"this ncu does not know {', '.join(missing)}", flush=True)
        return profile(scene_name, [name for name in metrics if name not in missing], log, timeout_s)
    if done.returncode or '"Kernel Name"' not in text:
        raise SystemExit(f"ncu has failed with {done.returncode}:\n{said[-3000:]}")
    return text


def parse(text: str) -> list[dict[str, Any]]:
    """One entry for each kernel that ran, in order."""
    lines = text[text.index('"ID"') :].splitlines()
    rows = list(csv.DictReader(line for line in lines if line.startswith('"')))
    found = []
    for row in rows:
        if not row["Kernel Name"].startswith("splat_"):
            continue  # the line of units
        number = {name: _number(row.get(metric)) for name, metric in {**UNITS, **OTHERS}.items()}
        busy = {name: number.pop(name) for name in UNITS}
        known = {name: percent for name, percent in busy.items() if percent}
        nearest = max(known, key=lambda name: known[name]) if known else None
        found.append({
            "kernel": row["Kernel Name"].partition("(")[0], **number, "busy_percent": busy, "nearest_floor": nearest,
            "times_above": {name: 100 / percent for name, percent in known.items()},
        })  # fmt: skip
    return found


def _number(text: str | None) -> float | None:
    try:
        return float((text or "").replace(",", ""))
    except ValueError:
        return None


def table(kernels: list[dict[str, Any]], scene_name: str) -> str:
    """The findings as Markdown."""
    head = ["kernel", "us", "memory GB/s", "occupancy (possible) %", "registers"]
    head += [f"{unit}: busy %" for unit in UNITS]
    head += ["nearest floor"]
    lines = [f"One frame of the scene {scene_name}, forward and backward.", ""]
    lines += ["| " + " | ".join(head) + " |", "| " + " | ".join("---" for _ in head) + " |"]
    for one in kernels:
        rate = one["dram_bytes"] / one["ns"] if one["dram_bytes"] and one["ns"] else None
        cells = [f"`{one['kernel']}`", _show(one["ns"] and one["ns"] / 1e3, 1), _show(rate, 0)]
        cells += [f"{_show(one['occupancy_percent'], 0)} ({_show(one['possible_occupancy_percent'], 0)})"]
        cells += [_show(one["registers"], 0), *(_show(one["busy_percent"][unit], 0) for unit in UNITS)]
        floor = one["nearest_floor"]
        cells += [f"{floor}, {one['times_above'][floor]:.1f} x above" if floor else "not known"]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _show(value: float | None, digits: int) -> str:
    return "?" if value is None else f"{value:,.{digits}f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("splat_ncu.json"))
    parser.add_argument("--md", type=Path, default=Path("splat_ncu.md"))
    parser.add_argument("--scene", default="1M", choices=list(SCENES))
    parser.add_argument("--timeout", type=float, default=100.0, help="seconds for a run of ncu")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        child(given.child)
        return
    from hotlap.records.environment import capture

    metrics = [*UNITS.values(), *OTHERS.values()]
    text = profile(given.scene, metrics, given.out.with_suffix(".csv"), given.timeout)
    kernels = parse(text)
    answer = {"scene": given.scene, "kernels": kernels, "environment": dataclasses.asdict(capture())}
    given.out.write_text(json.dumps(answer, indent=1, default=str) + "\n")
    given.md.write_text(table(kernels, given.scene))
    print(given.md.read_text())


if __name__ == "__main__":
    main()
