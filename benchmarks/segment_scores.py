"""What the scores of several trainings say together: intervals, differences image by image, kinds of images, curves.

    PYTHONPATH=src:. python -m benchmarks.segment_scores cells.npz unet.json hrnet.json otsu.json
        --commit abc1234 --shared "all four at once" --out segment_train.json --picture segment_train.png

The files are those that ``segment_train`` writes, of one or several networks each; the networks' rows are put into one
file, with what is worked out here under ``afterwards``. Needs matplotlib for the picture.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.timed_training import write_json

from hotlap.data.instance_images import find_images, split_images
from hotlap.segment.evaluate import OTSU

DRAWS = 10_000
STAINED, FLUORESCENCE, GREY = "stained", "fluorescence", "transmitted light, grey"
KINDS = (
    "by the colours of the image: stained where the channels differ by 2 of 255 or more on average, "
    "else fluorescence where the median is below 100"
)
COUNTS = ("truths", "found", "missed", "wrong")
Models = dict[str, dict[str, Any]]


def kind_of(pixels: np.ndarray) -> str:  # [H, W, C]
    """The microscopy that an image's colours speak for: see KINDS."""
    values = pixels.astype(np.float64)
    if pixels.shape[2] == 3 and np.ptp(values, axis=2).mean() >= 2:
        return STAINED
    return FLUORESCENCE if np.median(values) < 100 else GREY


def interval(values: np.ndarray) -> list[float]:  # [n]
    """The mean of values, and the interval in which it lies when images are drawn again."""
    picked = np.random.default_rng(0).integers(len(values), size=(DRAWS, len(values)))
    low, high = np.percentile(values[picked].mean(1), (2.5, 97.5))
    return [float(values.mean()), round(float(low), 4), round(float(high), 4)]


def afterwards(models: Models, kinds: dict[str, str]) -> dict[str, Any]:
    names = sorted(kinds)
    ap = {
        model: np.array([{row["name"]: row["ap50"] for row in found["eval"]["images"]}[name] for name in names])
        for model, found in models.items()
    }
    of_kind = {kind: np.array([kinds[name] == kind for name in names]) for kind in (FLUORESCENCE, STAINED, GREY)}
    best = max(ap, key=lambda model: float(ap[model].mean()))
    return {
        "kinds": KINDS,
        "kind": kinds,
        "num_by_kind": {kind: int(those.sum()) for kind, those in of_kind.items()},
        "ap50_by_kind": {
            model: {kind: float(values[those].mean()) for kind, those in of_kind.items()}
            for model, values in ap.items()
        },
        "ap50_interval": {model: interval(values)[1:] for model, values in ap.items()},
        "ap50_above_otsu": {model: interval(values - ap[OTSU]) for model, values in ap.items() if model != OTSU},
        "best": best,
        "ap50_best_above": {model: interval(ap[best] - values) for model, values in ap.items() if model != best},
        "intervals": f"95 %, images resampled {DRAWS:,} times, seed 0",
        "objects": {
            model: {name: sum(row[name] for row in found["eval"]["images"]) for name in COUNTS}
            for model, found in models.items()
        },
    }


def draw_curves(models: Models, file: Path) -> None:
    """Training loss over steps."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.6, 4.2), layout="constrained")
    axes = figure.subplots()
    for model, found in models.items():
        if "curve" in found:
            axes.plot(
                [row["step"] for row in found["curve"]],
                [row["values"]["loss"] for row in found["curve"]],
                label=f"{model}, {found['steps']:,} steps",
                linewidth=1.4,
            )
    axes.set(xlabel="step of 16 crops", ylabel="training loss, mean of 20 steps", xscale="log", yscale="log")
    ticks = [0.2, 0.4, 0.6, 1, 1.4]
    axes.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()
    axes.legend(frameon=False)
    axes.grid(alpha=0.3)
    figure.savefig(file, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--commit", required=True, help="that was measured")
    parser.add_argument("--shared", default="", help="what else ran on the card")
    parser.add_argument("--out", type=Path, default=Path("segment_train.json"))
    parser.add_argument("--picture", type=Path)
    args = parser.parse_args()
    models: Models = {}
    for file in args.files:
        models |= json.loads(file.read_text(encoding="utf-8"))["models"]
    _, held_out = split_images(find_images(args.data))
    found = afterwards(models, {image.name: kind_of(image.read()[0]) for image in held_out})
    write_json(args.out, {"commit": args.commit, "shared_card": args.shared, "models": models, "afterwards": found})
    for model, (low, high) in found["ap50_interval"].items():
        by_kind = ", ".join(f"{kind} {value:.3f}" for kind, value in found["ap50_by_kind"][model].items())
        print(f"{model}: AP at 0.5 {models[model]['eval']['scores']['ap50']:.3f} [{low:.3f}, {high:.3f}]; {by_kind}")
    for name in ("ap50_above_otsu", "ap50_best_above"):
        print(name, {model: [round(value, 3) for value in values] for model, values in found[name].items()})
    if args.picture:
        draw_curves(models, args.picture)


if __name__ == "__main__":
    main()
