"""Trains one network on labelled cells within a few minutes, and scores it on the held-out fifth.

    PYTHONPATH=src:. python -m benchmarks.segment_train pack FOLDER cells.npz
    PYTHONPATH=src:. python -m benchmarks.segment_train train cells.npz --model hrnet --minutes 7 --out out
    PYTHONPATH=src:. python -m benchmarks.segment_train otsu cells.npz --out out
    PYTHONPATH=src:. python -m benchmarks.segment_train table --out out

The minutes are all of it: reading, trying which way to train is the fastest, the training, whose learning rate falls to
0 at its end, and the scores. A call that was cut short is gone on with by the same call. Weights are those of the last
step, never chosen by the held-out images. Every network adds to out/segment_train.json; its weights and pictures lie in
out/MODEL. ``table`` prints all that were scored.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import multiprocessing
import sys
import time
from pathlib import Path
from typing import Any

import torch
from benchmarks.timed_training import BEGAN, Clock, Printer, add_result, fastest, read_curve, read_result, train_within

from hotlap.data.instance_images import pack_images
from hotlap.engine.config import TrainConfig
from hotlap.engine.parts import pick_device
from hotlap.measure.session import kernel_layers
from hotlap.records.codec import encode
from hotlap.records.environment import capture
from hotlap.segment.app import SegmentTrainConfig, keep_weights, training
from hotlap.segment.cells import cells
from hotlap.segment.evaluate import OTSU, SegmentEvalConfig, evaluate
from hotlap.segment.nets import build_head

RESULT = "segment_train.json"
WAYS = ("graph", "graph, channels last", "graph, channels last, kernels")
SCORES = ("ap50", "ap75", "map", "f1", "pq", "dice")


def settings(args: argparse.Namespace, data: Path, out: Path, device: torch.device, **way: Any) -> TrainConfig:
    """A network's training, to be ended by the clock."""
    wanted = SegmentTrainConfig(
        data=data, model=args.model, width=args.width, head=args.head, out=out, size=args.size, batch=args.batch,
        crops=args.crops, lr=args.lr, warmup=args.warmup, epochs=1_000_000, device=args.device, eval_every=0,
        precision="bf16-mixed" if device.type == "cuda" else "32-true", workers=args.workers, seed=args.seed,
    )  # fmt: skip
    return dataclasses.replace(training(wanted), log_every=20, save_every_s=100.0, keep=1, **way)


def ways_of(args: argparse.Namespace, data: Path, out: Path, device: torch.device) -> dict[str, TrainConfig]:
    """How the network may be run; networks of many small layers wait for the host unless passes are recorded."""
    if device.type != "cuda":
        return {"eager": settings(args, data, out, device)}
    ways: dict[str, dict[str, Any]] = {
        "graph": {"graph": True},
        "graph, channels last": {"graph": True, "channels_last": True},
        "graph, channels last, kernels": {"graph": True, "channels_last": True, "kernels": True},
        "eager": {},
        "graph, channels last, compiled": {"graph": True, "channels_last": True, "compile": "default"},
    }
    has_kernels = bool(kernel_layers(build_head(args.model, args.head, width=args.width or None)))
    names = [name for name in args.ways.split(";") if has_kernels or "kernels" not in ways[name]]
    return {name: settings(args, data, out, device, fused=True, **ways[name]) for name in names}


def train(args: argparse.Namespace) -> dict[str, Any]:
    """One network from fresh weights, or from its last checkpoint, to its scores."""
    device, out = pick_device(args.device), args.out / folder_name(args.model)
    ready = multiprocessing.get_context("spawn").Process(target=compile_scores, daemon=True)
    ready.start()
    row = read_result(args.out / RESULT, "models", args.model)
    ways = ways_of(args, args.data, out, device)
    workload = cells(**next(iter(ways.values())).workload)
    clock = Clock(out / "run", 60 * args.minutes - args.reserve)
    if row.get("way") not in ways:
        row = {"state": "training"}
        row["way"], row["seconds_a_step"] = fastest(workload, ways, device)
        add_result(args.out / RESULT, "models", args.model, row)
    outcome = train_within(workload, ways[row["way"]], out / "run", device, clock)
    keep_weights(out / "run", out)
    row |= {
        "state": "trained", "steps": outcome.step, "trained_s": clock.spent_s, "minutes": args.minutes,
        "reserve_s": args.reserve,
        "config": encode(ways[row["way"]]), "outcome": encode(outcome), "curve": read_curve(out / "run"),
        "environment": encode(capture()),
    }  # fmt: skip
    add_result(args.out / RESULT, "models", args.model, row)
    print(f"[{time.monotonic() - BEGAN:5.0f} s] {outcome.step} steps in {clock.spent_s:.0f} s", flush=True)
    ready.join()
    return row | {"eval": score(args, out), "state": "scored", "last_call_s": time.monotonic() - BEGAN}


def folder_name(model: str) -> str:
    return model.replace(":", "-").replace("/", "-")


def score(args: argparse.Namespace, out: Path) -> dict[str, Any]:
    """The scores of the weights in ``out`` on the held-out fifth, with pictures."""
    # Pictures come in many sizes: timing every algorithm for each of them would take longer than all of the scores.
    torch.backends.cudnn.benchmark = False
    named = args.model.startswith("smp:")
    config = SegmentEvalConfig(
        data=args.data, model=args.model if named else str(out), weights=out / "weights.pt" if named else None,
        out=out, device=args.device, batch=args.batch, pictures=args.pictures,
    )  # fmt: skip
    return evaluate(config, Printer())


def compile_scores() -> None:
    """Leaves the compiled functions of objects and scores on disk, while the network learns."""
    import numpy as np

    from hotlap.segment.instance_metrics import score_image
    from hotlap.segment.instances import split

    maps = np.zeros((2, 32, 32), np.float32)
    maps[:, 8:16, 8:16] = 0.9
    for names in (("foreground", "core"), ("foreground", "boundary")):
        score_image(split(maps, names), split(maps, names))
    split(maps[:1], ("foreground",))


def report(answer: dict[str, Any], args: argparse.Namespace, model: str) -> None:
    """Prints the scores and keeps all of it."""
    scores = answer["eval"]["scores"]
    shown = "  ".join(f"{name} {scores[name]:.3f}" for name in SCORES)
    print(f"{model} on {answer['eval']['num_images']} held-out images: {shown}", flush=True)
    add_result(args.out / RESULT, "models", model, answer)


def table(file: Path) -> str:
    """Markdown of all networks that were scored."""
    kept = json.loads(file.read_text(encoding="utf-8"))["models"]
    lines = ["| | " + " | ".join(SCORES) + " | steps | minutes |", "| --- |" + " --- |" * (len(SCORES) + 2)]
    for model, row in kept.items():
        if "eval" in row:
            values = " | ".join(f"{row['eval']['scores'][name]:.3f}" for name in SCORES)
            minutes = f"{row['trained_s'] / 60:.1f}" if "trained_s" in row else ""
            lines.append(f"| {model} | {values} | {row.get('steps', '')} | {minutes} |")
    return "\n".join(lines)


def add_recipe(parser: argparse.ArgumentParser) -> None:
    """How a network is trained, the same for all benchmarks of it."""
    parser.add_argument("--width", type=int, default=0)
    parser.add_argument("--size", type=int, default=256)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--crops", type=int, default=4)
    parser.add_argument("--lr", type=float, default=5e-4)
    parser.add_argument("--warmup", type=int, default=50)
    parser.add_argument("--workers", type=int, default=10, help="processes that load crops")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--ways", default=";".join(WAYS), help="to train that are tried, on a card")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("pack", "train", "otsu", "table"))
    parser.add_argument("data", type=Path, nargs="?", default=Path())
    parser.add_argument("packed", type=Path, nargs="?", help="of pack: the file to write")
    parser.add_argument("--model", default="hrnet")
    parser.add_argument("--head", default=SegmentTrainConfig.head)
    parser.add_argument("--minutes", type=float, default=7.0, help="of the whole, scores and pictures included")
    parser.add_argument("--reserve", type=float, default=60.0, help="seconds of them for scores and pictures")
    parser.add_argument("--out", type=Path, default=Path("segment-train"))
    parser.add_argument("--pictures", type=int, default=12, help="of held-out images, labels beside findings")
    add_recipe(parser)
    args = parser.parse_args()
    if args.what == "pack":
        count = pack_images(args.data, args.packed)
        print(f"{count} images, {args.packed.stat().st_size / 1e6:.1f} MB")
    elif args.what == "otsu":
        config = SegmentEvalConfig(data=args.data, model=OTSU, out=args.out / OTSU)
        report({"eval": evaluate(config, Printer())}, args, OTSU)
    elif args.what == "train":
        report(train(args), args, args.model)
    if args.what in ("otsu", "table"):
        print(table(args.out / RESULT))
    return 0


if __name__ == "__main__":
    sys.exit(main())
