"""Trains Pixel2Mesh++ on a small prepared collection, a stage at a time, and scores it on objects it never saw.

    PYTHONPATH=src python -m hotlap mesh views objects/ --out prepared/ --up z --variants 2 --views 16 --points 4000
    PYTHONPATH=src python -m benchmarks.mesh_train prepared/ --stage coarse --minutes 8.5 --out scores/
    PYTHONPATH=src python -m benchmarks.mesh_train prepared/ --stage refine --minutes 8.5 --out scores/

The second stage begins with the last checkpoint of the first, below --work. Each stage first measures its pace for some
steps and then takes as many as fit into its minutes, with a learning rate that falls to 0 at the end. The weights that
are scored are the last ones: nothing is chosen by the held-out objects. STAGE.json holds the scores of every object,
those of the untrained template beside them, and the curve; the pictures show held-out and trained objects.
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

from hotlap.base.settings import parse_scalar
from hotlap.data.white_picture import encode_png
from hotlap.engine.config import TrainConfig
from hotlap.engine.loop import Trainer
from hotlap.engine.parts import pick_device
from hotlap.engine.progress import Outcome
from hotlap.mesh.config import MeshTrainConfig
from hotlap.mesh.dataset import ViewedObjects, prepared_files, split_files
from hotlap.mesh.evaluate import comparison, score_objects, summary
from hotlap.mesh.network import load_network
from hotlap.mesh.train import stage_config
from hotlap.records.environment import capture
from hotlap.targets import load_target

HELD_OUT_TIMES, TRAINED_TIMES = 5.0, 10.0
"""How many times below the untrained template's the Chamfer distance has to be."""
PACE_STEPS = 60
"""Steps that tell the pace; the first third is not counted."""
RESERVE = 0.97
"""The share of the minutes that steps are planned for."""


def settings(args: argparse.Namespace, steps: int) -> TrainConfig:
    """A stage's training of so many steps."""
    init = args.init or (newest_checkpoint(args.work / "coarse") if args.stage == "refine" else "")
    options: dict[str, Any] = {
        "steps": steps, "schedule": "cosine", "warmup": min(200, steps // 10), "tf32": True, "workers": args.workers,
        "kernels": args.kernels, "graph": args.graph, "eval_every": 0, "log_every": 20, "clip_norm": args.clip_norm,
        "tuned": False,
    }  # fmt: skip
    config = MeshTrainConfig(
        data=args.data, epochs=1_000_000, refine_epochs=1_000_000, batch=args.batch, lr=args.lr, refine_lr=args.lr,
        views=args.views, points=args.points, hold_out=args.hold_out, precision=args.precision, device=args.device,
        seed=args.seed, workload=options_of(args), train=options,
    )  # fmt: skip
    return stage_config(config, args.stage, init)


def options_of(args: argparse.Namespace) -> dict[str, Any]:
    return {name: parse_scalar(value) for name, _, value in (part.partition("=") for part in args.set)}


def newest_checkpoint(folder: Path) -> str:
    """The last checkpoint that a stage left."""
    found = sorted(folder.glob("checkpoints/step-*.pt"), key=lambda file: file.stat().st_mtime)
    if not found:
        sys.exit(f"{folder} has no checkpoint: train --stage coarse first, or give --init")
    return str(found[-1])


def seconds_a_step(args: argparse.Namespace, device: torch.device) -> float:
    """The pace of the training, from a short one that is thrown away."""
    marks: dict[int, float] = {}

    def heard(event: Any) -> None:
        if event.kind == "advance":
            marks[int(event.done)] = time.perf_counter()

    count = args.steps or PACE_STEPS
    config = dataclasses.replace(settings(args, count), log_every=max(1, count // 6), save_every=10**9)
    with tempfile.TemporaryDirectory() as folder:
        run(config, Path(folder), device, heard, time.monotonic() + 120)
    (first, begin), (last, end) = sorted(marks.items())[1], sorted(marks.items())[-1]
    return (end - begin) / (last - first)


def run(config: TrainConfig, folder: Path, device: torch.device, emit: Any, deadline: float) -> Outcome:
    """One training by the engine, in this process."""
    workload = load_target(config.target, config.workload)
    workload.train_data().preload()  # type: ignore[union-attr]
    trainer = Trainer(workload, config, folder, device, emit=emit, should_stop=lambda: time.monotonic() > deadline)
    return trainer.run()


def show(event: Any) -> None:
    if event.kind in ("warn", "note") or (event.kind == "advance" and int(event.done) % 500 < 20):
        print(f"{int(event.done)} {event.text}", flush=True)


def scores(args: argparse.Namespace, weights: Path, device: torch.device) -> dict[str, Any]:
    """Scores of held-out and trained objects, and a picture of some of each."""
    workload, model = load_network("pixel2mesh-pp", args.stage, options_of(args), weights)
    model = model.to(device)
    train, held_out = split_files(prepared_files(args.data), args.hold_out)
    answer: dict[str, Any] = {}
    for name, files in (("held_out", held_out), ("trained", train)):
        data = ViewedObjects(files, views=args.views, points=10_000, train=False)
        found = list(score_objects(workload, model, data, device, batch=8))
        answer[name] = dataclasses.asdict(summary(found))
        picture = encode_png(comparison(found[:8], data, workload.faces(model).cpu()))
        (args.out / f"{args.stage}_{name}.png").write_bytes(picture)
    return answer


def main() -> int:
    args = parse()
    args.out.mkdir(parents=True, exist_ok=True)
    device = pick_device(args.device)
    began = time.perf_counter()
    pace = seconds_a_step(args, device)
    steps = args.steps or max(PACE_STEPS, int(RESERVE * 60 * args.minutes / pace))
    print(f"{args.stage}: {1e3 * pace:.1f} ms a step, {steps} steps", flush=True)
    folder = args.work / args.stage
    folder.mkdir(parents=True, exist_ok=True)
    start = time.perf_counter()
    config = settings(args, steps)
    outcome = run(config, folder, device, show, time.monotonic() + 60 * args.minutes)
    seconds = time.perf_counter() - start
    found = scores(args, Path(outcome.last_checkpoint), device)
    answer = {
        "stage": args.stage, "seconds": seconds, "steps": outcome.step, "seconds_a_step": pace,
        "all_seconds": time.perf_counter() - began, "config": dataclasses.asdict(config), "scores": found,
        "outcome": dataclasses.asdict(outcome), "curve": read_curve(folder),
        "environment": dataclasses.asdict(capture()),
    }  # fmt: skip
    wrong = tell(found)
    answer["wrong"] = wrong
    (args.out / f"{args.stage}.json").write_text(json.dumps(answer, indent=1, default=str) + "\n", encoding="utf-8")
    if args.save_weights:
        state = torch.load(outcome.last_checkpoint, map_location="cpu", weights_only=True)["model"]
        half = {name: t.half() if t.is_floating_point() else t for name, t in state.items()}
        torch.save(half, args.out / f"{args.stage}_half.pt")
    return 1 if wrong else 0


def read_curve(folder: Path) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    return rows[:: max(1, len(rows) // 200)]


def tell(found: dict[str, Any]) -> list[str]:
    """Prints the scores; what falls short of the asked ratios."""
    wrong = []
    for name, asked in (("held_out", HELD_OUT_TIMES), ("trained", TRAINED_TIMES)):
        mean = found[name]["mean"]
        times = mean["template_chamfer"] / mean["chamfer"]
        print(
            f"{name}: Chamfer {1e3 * mean['chamfer']:.3f}e-3, template {1e3 * mean['template_chamfer']:.3f}e-3, "
            f"{times:.1f}x (asked {asked:g}x); F(tau) {mean['f1_tau']:.1f}, F(2 tau) {mean['f1_2tau']:.1f}",
            flush=True,
        )
        wrong += [f"{name}: {times:.2f}x, asked {asked:g}x"] if times < asked else []
    return wrong


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="folder that 'hotlap mesh views' prepared")
    parser.add_argument("--stage", choices=["coarse", "refine"], required=True)
    parser.add_argument("--minutes", type=float, default=8.5, help="of training; scoring and the pace come on top")
    parser.add_argument("--steps", type=int, help="so many, in place of what fits into the minutes")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--lr", type=float, help="at its highest; by default 3e-4 coarse, 1e-4 refine")
    parser.add_argument("--clip-norm", type=float, default=1000.0, help="the published weights make large gradients")
    parser.add_argument("--views", type=int, default=3)
    parser.add_argument("--points", type=int, default=4000)
    parser.add_argument("--hold-out", type=int, default=8)
    parser.add_argument("--precision", default="32-true")
    parser.add_argument("--kernels", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--graph", action=argparse.BooleanOptionalAction, default=False)
    parser.add_argument("--workers", type=int, default=8, help="processes that load samples")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--set", action="append", default=[], metavar="OPTION=VALUE", help="of the network")
    parser.add_argument("--init", default="", help="weights of the coarse stage; by default those below --work")
    parser.add_argument("--work", type=Path, default=Path("runs/mesh_proof"), help="checkpoints and curves")
    parser.add_argument("--save-weights", action="store_true", help="also in --out, in half precision")
    parser.add_argument("--out", type=Path, default=Path("mesh_proof"))
    args = parser.parse_args()
    args.lr = args.lr or (3e-4 if args.stage == "coarse" else 1e-4)
    return args


if __name__ == "__main__":
    sys.exit(main())
