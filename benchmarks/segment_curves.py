"""The batch curves of the cell networks as one picture, from what their searches and single points have measured.

    python -m benchmarks.segment_curves results/segment_tune_h200_202611.json --png segment_tune.png

Nothing is measured here. Each network has two searches in the file, with kernels and without, and points that were run
later by ``segment_batches``. Batches of the chosen arm and of eager float32 are drawn, without the trials whose ragged
end was run as well: those hold a second recording, and their memory is that of two forms. Needs matplotlib.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

MODELS = ("hrnet", "resunet-small", "ma-resunet")
COLOURS = {"kernels": "#20639b", "plain": "#3c9d6b", "eager": "#b04a3a"}
Points = dict[int, tuple[float, float]]
"""Images a second and GiB by batch."""


def points_of(rows: list[dict[str, Any]], arm: str) -> Points:
    """An arm's trials by batch, the median of several, without those that ran a ragged end."""
    of_batch: dict[int, list[dict[str, Any]]] = {}
    for row in rows:
        if row["arm"] == arm and row["status"] == "ok" and not row["tail"]:
            of_batch.setdefault(row["batch"], []).append(row)
    return {
        batch: (
            statistics.median(1e3 * batch / statistics.median(row["wall_ms"]) for row in those),
            max(row["peak_bytes"] for row in those) / 2**30,
        )
        for batch, those in sorted(of_batch.items())
    }


def later_points(kernels: dict[str, Any], model: str, arm: str) -> Points:
    """Batches that the search had no time for."""
    found: Points = {}
    for name in ("points", "later points"):
        for title, point in kernels[name].items():
            if title.startswith(f"{model} at ") and point["arm"] == arm:
                memory = point["trial"]["memory"]
                peak = max(memory["device_used_bytes"], memory["reserved_bytes"])
                found[point["batch"]] = point["images_per_s"], peak / 2**30
    return found


def curves_of(measured: dict[str, Any], model: str) -> dict[str, tuple[Points, int | None]]:
    """Each line's points, and the batch that was chosen on it."""
    found: dict[str, tuple[Points, int | None]] = {}
    for name in ("kernels", "plain"):
        search = measured[name][model]
        arm, batch = search["winner"]["arm"], search["winner"]["batch"]
        points = points_of(search["rows"], arm)
        if name == "kernels":
            points = dict(sorted((points | later_points(measured["kernels"], model, arm)).items()))
        found[name] = points, batch
    found["eager"] = points_of(measured["plain"][model]["rows"], "cuda"), None
    return found


def draw(measured: dict[str, Any], png: Path) -> None:
    """Images a second and memory over the batch, a column for each network."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 5.6), layout="constrained")
    axes = figure.subplots(2, len(MODELS), sharex="col")
    labels = {"kernels": "recorded, with kernels", "plain": "recorded", "eager": "eager float32"}
    for column, model in enumerate(MODELS):
        for name, (points, chosen) in curves_of(measured, model).items():
            for row, axis in enumerate(axes[:, column]):
                values = {batch: point[row] for batch, point in points.items()}
                axis.plot(
                    list(values), list(values.values()), "o-", color=COLOURS[name], label=labels[name], markersize=4
                )
                if chosen is not None:
                    axis.plot(chosen, values[chosen], "o", color=COLOURS[name], markersize=10, markerfacecolor="none")
        for axis in axes[:, column]:
            axis.set(xscale="log", ylim=(0, None))
            ticks = [2**power for power in range(7) if 2**power <= axis.get_xlim()[1]]
            axis.set_xticks(ticks, [str(tick) for tick in ticks])
            axis.minorticks_off()
            axis.grid(alpha=0.3)
        axes[0, column].set_title(model)
        axes[1, column].set_xlabel("batch (ringed: chosen)")
    axes[0, 0].set_ylabel("images/s, 1024x1024")
    axes[1, 0].set_ylabel("memory of the card, GiB")
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False)
    figure.savefig(png, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("measured", type=Path)
    parser.add_argument("--png", type=Path, default=Path("segment_tune.png"))
    args = parser.parse_args()
    draw(json.loads(args.measured.read_text(encoding="utf-8")), args.png)


if __name__ == "__main__":
    main()
