"""Trains one network on labelled cells within a few minutes, and scores it on the held-out fifth.

    PYTHONPATH=src python benchmarks/segment_train.py pack FOLDER cells.npz
    PYTHONPATH=src python benchmarks/segment_train.py train cells.npz --model hrnet --minutes 7 --out out
    PYTHONPATH=src python benchmarks/segment_train.py otsu cells.npz --out out

The minutes are all of it: measuring the speed of a step in two memory layouts, the training, which gets as many steps
as then fit, and the scores. Weights are those of the last step, never chosen by the held-out images. Everything is
printed as it happens and written to out/MODEL.json; pictures lie in out/MODEL/pictures.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from hotlap.base.events import Event
from hotlap.data.instance_images import pack_images
from hotlap.engine.config import TrainConfig
from hotlap.engine.loop import Trainer
from hotlap.engine.parts import pick_device
from hotlap.records.codec import encode
from hotlap.records.environment import capture
from hotlap.segment.app import SegmentTrainConfig, keep_weights, training
from hotlap.segment.cells import CellWorkload, cells
from hotlap.segment.evaluate import OTSU, SegmentEvalConfig, evaluate

TRIAL_STEPS = 24
SETTLED = 8
"""Steps of a trial that are not timed: algorithms are chosen and memory is taken in them."""
RESERVE_S = 45.0
"""Kept back for the last checkpoint and the scores."""
MARGIN = 0.92
"""Of the steps that would fit: a training also saves, logs and evaluates."""


class Printer:
    """Events as lines, at most one of progress every few seconds."""

    def __init__(self) -> None:
        self.began, self.said = time.monotonic(), 0.0

    def __call__(self, event: Event) -> None:
        now = time.monotonic()
        if event.kind == "advance" and now - self.said < 10:
            return
        if event.text:
            self.said = now
            done = f"{event.done:.0f}/{event.total:.0f} " if event.total else ""
            print(f"[{now - self.began:5.0f} s] {done}{event.text}", flush=True)


def seconds_a_step(workload: CellWorkload, config: TrainConfig, device: torch.device) -> float:
    """The mean time of a training step once it has settled; inf where it does not run."""
    stamps: list[float] = []

    def stop() -> bool:
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        stamps.append(time.perf_counter())
        return len(stamps) > TRIAL_STEPS

    with tempfile.TemporaryDirectory() as folder:
        trial = dataclasses.replace(config, eval_every=0, steps=None, epochs=1000)
        trainer = Trainer(workload, trial, Path(folder), device, should_stop=stop)
        trainer.run()
    settled = stamps[SETTLED:]
    return (settled[-1] - settled[0]) / (len(settled) - 1)


def train(args: argparse.Namespace) -> dict[str, Any]:
    """One network from fresh weights to its scores."""
    began = time.monotonic()
    say = Printer()
    device = pick_device(args.device)
    wanted = SegmentTrainConfig(
        data=args.data,
        model=args.model,
        width=args.width,
        head=args.head,
        out=args.out / args.model.replace("/", "-"),
        size=args.size,
        batch=args.batch,
        crops=args.crops,
        lr=args.lr,
        epochs=1_000_000,
        device=args.device,
        precision="bf16-mixed" if device.type == "cuda" else "32-true",
        eval_every=0,
        workers=args.workers,
        seed=args.seed,
    )
    base = training(wanted)
    workload = cells(**base.workload)
    speeds = {}
    for last in (False, True) if device.type == "cuda" else (False,):
        speeds[last] = seconds_a_step(workload, dataclasses.replace(base, channels_last=last), device)
        print(f"{args.model}: {1e3 * speeds[last]:.1f} ms a step, channels_last = {last}", flush=True)
    chosen = min(speeds, key=lambda last: speeds[last])
    left = 60 * args.minutes - (time.monotonic() - began) - RESERVE_S
    steps = max(1, int(MARGIN * left / speeds[chosen]))
    print(f"{args.model}: {steps} steps of {args.batch} crops in {left:.0f} s", flush=True)
    config = dataclasses.replace(base, channels_last=chosen, steps=steps, ema=0.998 if steps > 2000 else None)
    folder = wanted.out / "run"
    folder.mkdir(parents=True, exist_ok=True)
    deadline = began + 60 * args.minutes - RESERVE_S
    trainer = Trainer(workload, config, folder, device, emit=say, should_stop=lambda: time.monotonic() > deadline)
    outcome = trainer.run()
    trained_s = time.monotonic() - began
    keep_weights(folder, wanted.out)
    named = {"weights": wanted.out / "weights.pt"} if args.model.startswith("smp:") else {}
    found = evaluate(
        SegmentEvalConfig(
            data=args.data,
            model=args.model if named else str(wanted.out),
            out=wanted.out,
            device=args.device,
            batch=args.batch,
            **named,
        ),
        say,
    )
    return {
        "model": args.model,
        "config": encode(config),
        "seconds_a_step": {str(last): value for last, value in speeds.items()},
        "outcome": encode(outcome),
        "trained_s": trained_s,
        "total_s": time.monotonic() - began,
        "eval": found,
    }


def report(answer: dict[str, Any], args: argparse.Namespace) -> None:
    """Prints the scores and writes all of it."""
    scores = answer["eval"]["scores"]
    shown = "  ".join(f"{name} {scores[name]:.3f}" for name in ("ap50", "ap75", "map", "f1", "pq", "dice"))
    print(f"{answer['model']} on {answer['eval']['num_images']} held-out images: {shown}", flush=True)
    args.out.mkdir(parents=True, exist_ok=True)
    path = args.out / f"{answer['model'].replace('/', '-')}.json"
    path.write_text(json.dumps({**answer, "environment": encode(capture())}, indent=1, default=str) + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("pack", "train", "otsu"))
    parser.add_argument("data", type=Path)
    parser.add_argument("packed", type=Path, nargs="?", help="of pack: the file to write")
    parser.add_argument("--model", default="hrnet")
    parser.add_argument("--width", type=int, default=0)
    parser.add_argument("--head", default=SegmentTrainConfig.head)
    parser.add_argument("--minutes", type=float, default=7.0)
    parser.add_argument("--size", type=int, default=256)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--crops", type=int, default=4)
    parser.add_argument("--lr", type=float, default=5e-4)
    parser.add_argument("--workers", type=int, default=None)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("segment-train"))
    args = parser.parse_args()
    if args.what == "pack":
        count = pack_images(args.data, args.packed)
        print(f"{count} images, {args.packed.stat().st_size / 1e6:.1f} MB")
    elif args.what == "otsu":
        config = SegmentEvalConfig(data=args.data, model=OTSU, out=args.out / OTSU)
        report({"model": OTSU, "eval": evaluate(config, Printer())}, args)
    else:
        report(train(args), args)
    return 0


if __name__ == "__main__":
    sys.exit(main())
