"""Which head tells touching cells apart best, and with which settings? Measured without the held-out fifth.

    PYTHONPATH=src python -m benchmarks.segment_choices cells.npz --model unet --minutes 2.8 --out choices

The held-out fifth is set aside and never read. Of the images to train on every fifth is the validation part, the others
are trained on: one network for each head, the same weights at the start, the same minutes, the same crops. Each is then
judged on the validation part with every combination of thresholds and merging; maps are predicted once. choices.json
holds all of it, the table what matters. Settings are the best of a grid on few images, so their scores are a little
too good; that holds for all heads alike.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from benchmarks.segment_train import add_recipe, ways_of
from benchmarks.timed_training import Printer, fastest, judged_later, seconds_a_step

from hotlap.data.instance_images import IMAGES, LABELS, InstanceImage, find_images, split_images
from hotlap.engine.config import TrainConfig
from hotlap.engine.loop import Trainer
from hotlap.engine.parts import pick_device
from hotlap.records.codec import encode
from hotlap.records.environment import capture
from hotlap.segment.app import keep_weights
from hotlap.segment.cells import cells
from hotlap.segment.heads import HEADS
from hotlap.segment.instance_metrics import score_image, summarise
from hotlap.segment.instances import SplitConfig, split
from hotlap.segment.normalise import normalise
from hotlap.segment.predict_config import SegmentPredictConfig
from hotlap.segment.predictor import load_predictor
from hotlap.segment.tiles import TileConfig, predict_maps

THRESHOLDS = (0.4, 0.5, 0.6)
SEED_THRESHOLDS = (0.3, 0.4, 0.5, 0.6)
MERGES = (0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
LEARNING = 0.8
"""The share of the minutes in which networks learn; the rest is for trials, maps and scores."""

Array = np.ndarray[Any, Any]


def training_part(source: Path, file: Path) -> int:
    """Writes the images to train on, as they are, into a packed file: its own fifth is the validation part."""
    kept, _ = split_images(find_images(source))
    arrays = {}
    for image in kept:
        for prefix, content in ((IMAGES, image.image), (LABELS, image.label)):
            data = content if isinstance(content, bytes) else content.read_bytes()
            arrays[prefix + image.name] = np.frombuffer(data, np.uint8)
    np.savez(file, **arrays)
    return len(kept)


def ways(args: argparse.Namespace, head: str, data: Path) -> dict[str, TrainConfig]:
    """How the network of a head may be trained."""
    with_head = argparse.Namespace(**vars(args) | {"head": head})
    return ways_of(with_head, data, args.out / head, pick_device(args.device))


def train_head(args: argparse.Namespace, config: TrainConfig, head: str, steps: int) -> float:
    """Trains the network of one head and leaves its weights; the seconds it took."""
    folder = args.out / head / "run"
    folder.mkdir(parents=True, exist_ok=True)
    config = dataclasses.replace(config, steps=steps)
    workload, device = judged_later(cells(**config.workload)), pick_device(args.device)
    began = time.monotonic()
    Trainer(workload, config, folder, device, emit=Printer()).run()
    keep_weights(folder, args.out / head)
    return time.monotonic() - began


def seen(args: argparse.Namespace, head: str, images: list[InstanceImage]) -> list[tuple[Array, Array]]:
    """The true labels and the predicted maps of the validation part."""
    torch.backends.cudnn.benchmark = False  # pictures come in many sizes
    net = load_predictor(
        SegmentPredictConfig(
            folder=args.out, model=str(args.out / head), device=args.device, tuned=False, batch=args.batch
        )
    )
    read = [image.read() for image in images]
    tiles = TileConfig(batch=args.batch)
    found = dict(predict_maps((normalise(pixels) for pixels, _ in read), net, tiles))
    return [(read[index][1], found[index]) for index in range(len(read))]


def grid(head: str) -> list[SplitConfig]:
    """Settings to try; those that a head does not read stay as they are."""
    seeds = SEED_THRESHOLDS if head != "foreground" else (SplitConfig.seed_threshold,)
    found = itertools.product(THRESHOLDS, seeds, MERGES)
    return [SplitConfig(threshold=t, seed_threshold=s, merge=m) for t, s, m in found]


def scores(pairs: list[tuple[Array, Array]], names: tuple[str, ...], how: SplitConfig) -> dict[str, float]:
    """AP and the others, on the validation part, with these settings."""
    return summarise([score_image(truth, split(maps, names, how)) for truth, maps in pairs])


def judged(pairs: list[tuple[Array, Array]], head: str) -> list[dict[str, Any]]:
    """A row for each combination of settings, the best AP first; equal ones in the order of the grid."""

    def row(how: SplitConfig) -> dict[str, Any]:
        found = scores(pairs, HEADS[head], how)
        given = {name: getattr(how, name) for name in ("threshold", "seed_threshold", "merge")}
        return {**given, **{name: found[name] for name in ("ap50", "ap75", "map", "f1", "pq", "dice")}}

    with ThreadPoolExecutor(torch.get_num_threads()) as pool:
        rows = list(pool.map(row, grid(head)))
    return sorted(rows, key=lambda row: -row["ap50"])


def by_image(pairs: list[tuple[Array, Array]], head: str) -> list[float]:
    """AP at 0.5 of each image with the usual settings."""
    return [float(score_image(truth, split(maps, HEADS[head])).row()["ap50"]) for truth, maps in pairs]


def difference(first: list[float], other: list[float]) -> tuple[float, float, float]:
    """How much more the first has on average over images, and between what this lies in 95% of resamples of them."""
    apart = np.asarray(first) - np.asarray(other)
    picked = np.random.default_rng(0).integers(0, len(apart), (5000, len(apart)))
    low, high = np.percentile(apart[picked].mean(1), (2.5, 97.5))
    return float(apart.mean()), float(low), float(high)


def usual(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The row of the settings that are used unless told otherwise."""
    default = SplitConfig()
    wanted = ("threshold", "seed_threshold", "merge")
    return next(row for row in rows if all(row[name] == getattr(default, name) for name in wanted))


def table(answers: dict[str, Any]) -> str:
    """Markdown: each head with the usual and with its best settings, and what merging does."""
    lines = [
        "| head | steps | AP at 0.5, usual settings | best | at threshold, seed, merge | AP 0.5 to 0.95, best |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for head, answer in answers.items():
        best = answer["rows"][0]
        settings = f"{best['threshold']:g}, {best['seed_threshold']:g}, {best['merge']:g}"
        lines.append(
            f"| {head} | {answer['steps']} | {usual(answer['rows'])['ap50']:.3f} | {best['ap50']:.3f} | {settings} "
            f"| {best['map']:.3f} |"
        )
    lines += ["", "| head, usual thresholds | " + " | ".join(f"merge {share:g}" for share in MERGES) + " |"]
    lines.append("| --- |" + " --- |" * len(MERGES))
    default, (first, *others) = SplitConfig(), answers
    for head, answer in answers.items():
        rows = {
            row["merge"]: row["ap50"]
            for row in answer["rows"]
            if (row["threshold"], row["seed_threshold"]) == (default.threshold, default.seed_threshold)
        }
        lines.append(f"| {head} | " + " | ".join(f"{rows[share]:.3f}" for share in MERGES) + " |")
    for head in others:
        more, low, high = difference(answers[first]["usual_ap50"], answers[head]["usual_ap50"])
        lines += ["", f"{first} has {more:+.3f} [{low:+.3f}, {high:+.3f}] more AP at 0.5 than {head}, usual settings."]
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--heads", default=",".join(HEADS))
    parser.add_argument("--model", default="unet")
    parser.add_argument("--minutes", type=float, default=2.8, help="for all heads together")
    parser.add_argument("--steps", type=int, default=0, help="of each head, in place of what fits the minutes")
    parser.add_argument("--out", type=Path, default=Path("segment-choices"))
    add_recipe(parser)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    data, heads = args.out / "training_part.npz", args.heads.split(",")
    count = training_part(args.data, data)
    _, images = split_images(find_images(data))
    print(f"{count - len(images)} images to learn from, {len(images)} to choose by", flush=True)
    found = ways(args, heads[0], data)
    workload = cells(**next(iter(found.values())).workload)
    device = pick_device(args.device)
    way, paces = fastest(workload, found, device)
    pace = float(paces[way]) if way in paces else 0.0 if args.steps else seconds_a_step(workload, found[way], device)
    steps = args.steps or max(1, int(60 * args.minutes * LEARNING / len(heads) / pace))
    answers: dict[str, Any] = {}
    for head in heads:
        seconds = train_head(args, ways(args, head, data)[way], head, steps)
        pairs = seen(args, head, images)
        rows = judged(pairs, head)
        answers[head] = {"steps": steps, "train_s": seconds, "rows": rows, "usual_ap50": by_image(pairs, head)}
        print(f"{head}: {steps} steps in {seconds:.0f} s; best {rows[0]}", flush=True)
        kept = {"heads": answers, "images": [image.name for image in images], "config": encode(vars(args))}
        kept["environment"] = encode(capture())
        (args.out / "choices.json").write_text(json.dumps(kept, indent=1, default=str) + "\n")
    print(table(answers))
    (args.out / "choices.md").write_text(table(answers) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
