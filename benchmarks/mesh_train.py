"""Trains Pixel2Mesh++ on a small prepared collection, a stage at a time, and scores it on objects it never saw.

    PYTHONPATH=src python -m hotlap mesh views objects/ --out prepared/ --up z --variants 2 --views 16 --points 4000
    PYTHONPATH=src:. python -m benchmarks.mesh_train prepared/ --stage coarse --minutes 9 --out scores/
    PYTHONPATH=src:. python -m benchmarks.mesh_train prepared/ --stage refine --minutes 9 --out scores/

The minutes are all of a stage: reading, the training, whose learning rate falls to 0 at its end, scores and pictures.
A call that was cut short is gone on with by the same call. The second stage begins with the last weights of the first.
The weights that are scored are the last ones: nothing is chosen by the held-out objects. Every stage adds to
scores/mesh_train.json as soon as something is known: the curve, then the scores of every object beside those of the
untrained template. Pictures show held-out and trained objects, STAGE_half.pt holds the weights in half precision.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
import time
from pathlib import Path
from typing import Any

import torch
from benchmarks.timed_training import BEGAN, Clock, add_result, fastest, read_curve, read_result, train_within

from hotlap.base.settings import parse_scalar
from hotlap.data.white_picture import encode_png
from hotlap.device.host import read_host
from hotlap.device.precision import set_fp32_precision
from hotlap.engine.config import TrainConfig
from hotlap.engine.parts import pick_device
from hotlap.measure.weights import read_weights
from hotlap.mesh.config import MeshTrainConfig
from hotlap.mesh.dataset import ViewedObjects, prepared_files, split_files
from hotlap.mesh.evaluate import comparison, score_objects, summary
from hotlap.mesh.network import load_network
from hotlap.mesh.train import stage_config
from hotlap.records.environment import capture
from hotlap.targets import load_target

HELD_OUT_TIMES, TRAINED_TIMES = 5.0, 10.0
"""How many times below the untrained template's the Chamfer distance has to be."""
LEARNING_RATES = {"coarse": 3e-4, "refine": 1e-4}
PRECISIONS = {"coarse": "32-true", "refine": "bf16-mixed"}
"""On a card. The refinement is nearly all products of 1.7 million hypotheses; the coarse stage's are few."""
WARMUP = 200
RESULT = "mesh_train.json"


def settings(args: argparse.Namespace, **way: Any) -> TrainConfig:
    """A stage's training, to be ended by the clock."""
    init = args.init or (coarse_weights(args) if args.stage == "refine" else "")
    options: dict[str, Any] = {
        "schedule": "cosine", "warmup": args.warmup, "tf32": True, "workers": args.workers, "kernels": True,
        "eval_every": 0, "log_every": 20, "clip_norm": args.clip_norm, "save_every_s": 100.0, "keep": 1,
        "tuned": False, **way,
    }  # fmt: skip
    config = MeshTrainConfig(
        data=args.data, epochs=1_000_000, refine_epochs=1_000_000, batch=args.batch, lr=args.lr, refine_lr=args.lr,
        views=args.views, points=args.points, hold_out=args.hold_out, precision=args.precision, device=args.device,
        seed=args.seed, workload=options_of(args), train=options,
    )  # fmt: skip
    return stage_config(config, args.stage, init)


def ways_of(args: argparse.Namespace, device: torch.device) -> dict[str, TrainConfig]:
    """How the stage may be run."""
    if device.type != "cuda":
        return {"eager": settings(args)}
    return {way: settings(args, fused=True, graph=way == "graph") for way in args.ways.split(",")}


def options_of(args: argparse.Namespace) -> dict[str, Any]:
    return {name: parse_scalar(value) for name, _, value in (part.partition("=") for part in args.set)}


def coarse_weights(args: argparse.Namespace) -> str:
    """The last weights of the first stage: its checkpoint, or what it has written beside its scores."""
    found = sorted((args.work / "coarse").glob("checkpoints/step-*.pt"), key=lambda file: file.stat().st_mtime)
    found = found or [file for file in [args.out / "coarse_half.pt"] if file.is_file()]
    if not found:
        sys.exit(f"{args.work / 'coarse'} has no checkpoint: train --stage coarse first, or give --init")
    return str(found[-1])


def trained(args: argparse.Namespace, device: torch.device) -> dict[str, Any]:
    """Trains the stage, or what is left of it; what is known of it before it is scored."""
    row = read_result(args.out / RESULT, "stages", args.stage)
    ways = ways_of(args, device)
    workload = load_target("pixel2mesh-pp", next(iter(ways.values())).workload)
    workload.train_data().preload(read_host().usable_cores)  # type: ignore[union-attr]
    folder = args.work / args.stage
    clock = Clock(folder, 60 * args.minutes - args.reserve)
    if row.get("way") not in ways:
        row = {"state": "training"}
        row["way"], row["seconds_a_step"] = fastest(workload, ways, device)
        add_result(args.out / RESULT, "stages", args.stage, row)
    outcome = train_within(workload, ways[row["way"]], folder, device, clock)
    row |= {
        "state": "trained", "steps": outcome.step, "trained_s": clock.spent_s, "minutes": args.minutes,
        "reserve_s": args.reserve,
        "config": dataclasses.asdict(ways[row["way"]]), "outcome": dataclasses.asdict(outcome),
        "curve": read_curve(folder), "environment": dataclasses.asdict(capture()), "scores": {},
    }  # fmt: skip
    add_result(args.out / RESULT, "stages", args.stage, row)
    print(f"[{time.monotonic() - BEGAN:5.0f} s] {outcome.step} steps in {clock.spent_s:.0f} s", flush=True)
    return row


def score(args: argparse.Namespace, row: dict[str, Any], device: torch.device) -> list[str]:
    """Scores held-out and trained objects, with a picture of some of each; what falls short of what is asked."""
    set_fp32_precision("ieee")
    weights = Path(row["outcome"]["last_checkpoint"])
    workload, model = load_network("pixel2mesh-pp", args.stage, options_of(args), weights)
    keep_half(weights, model, args.out / f"{args.stage}_half.pt")
    model = model.to(device)
    train, held_out = split_files(prepared_files(args.data), args.hold_out)
    wrong = []
    for name, files, asked in (("held_out", held_out, HELD_OUT_TIMES), ("trained", train, TRAINED_TIMES)):
        data = ViewedObjects(files, views=args.views, points=10_000, train=False)
        found = list(score_objects(workload, model, data, device, batch=8))
        row["scores"][name] = dataclasses.asdict(summary(found))
        wrong += tell(name, row["scores"][name]["mean"], asked)
        add_result(args.out / RESULT, "stages", args.stage, row)
        picture = comparison(found[:8], data, workload.faces(model).cpu())
        (args.out / f"{args.stage}_{name}.png").write_bytes(encode_png(picture))
    row |= {"state": "scored", "wrong": wrong, "last_call_s": time.monotonic() - BEGAN}
    add_result(args.out / RESULT, "stages", args.stage, row)
    return wrong


def keep_half(weights: Path, model: torch.nn.Module, file: Path) -> None:
    """Writes the weights in half precision; templates stay as they are."""
    names = {name for name, _ in model.named_parameters()}
    state = {name: t.half() if name in names else t for name, t in read_weights(weights).items()}
    torch.save(state, file)


def tell(name: str, mean: dict[str, float], asked: float) -> list[str]:
    """Prints the scores; what falls short of the asked ratio."""
    times = mean["template_chamfer"] / mean["chamfer"]
    print(
        f"{name}: Chamfer {1e3 * mean['chamfer']:.3f}e-3, template {1e3 * mean['template_chamfer']:.3f}e-3, "
        f"{times:.1f}x (asked {asked:g}x); F(tau) {mean['f1_tau']:.1f}, F(2 tau) {mean['f1_2tau']:.1f}",
        flush=True,
    )
    return [f"{name}: {times:.2f}x, asked {asked:g}x"] if times < asked else []


def main() -> int:
    args = parse()
    args.out.mkdir(parents=True, exist_ok=True)
    device = pick_device(args.device)
    args.precision = args.precision or (PRECISIONS[args.stage] if device.type == "cuda" else "32-true")
    wrong = score(args, trained(args, device), device)
    print(f"[{time.monotonic() - BEGAN:5.0f} s] {'; '.join(wrong) or 'what was asked is reached'}", flush=True)
    return 1 if wrong else 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="folder that 'hotlap mesh views' prepared")
    parser.add_argument("--stage", choices=["coarse", "refine"], required=True)
    parser.add_argument("--minutes", type=float, default=9.0, help="of the whole stage, scores and pictures included")
    parser.add_argument("--reserve", type=float, default=45.0, help="seconds of them for scores and pictures")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--lr", type=float, help="at its highest; by default 3e-4 coarse, 1e-4 refine")
    parser.add_argument("--warmup", type=int, default=WARMUP, help="steps in which it rises")
    parser.add_argument("--clip-norm", type=float, default=1000.0, help="the published weights make large gradients")
    parser.add_argument("--views", type=int, default=3)
    parser.add_argument("--points", type=int, default=4000)
    parser.add_argument("--hold-out", type=int, default=8)
    parser.add_argument("--precision", default="", help="by default 32-true, and bf16-mixed to refine on a card")
    parser.add_argument("--workers", type=int, default=8, help="processes that load samples")
    parser.add_argument("--ways", default="graph", help="graph, eager: the faster of those given, on a card")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--set", action="append", default=[], metavar="OPTION=VALUE", help="of the network")
    parser.add_argument("--init", default="", help="weights of the coarse stage; by default those below --work")
    parser.add_argument("--work", type=Path, default=Path("runs/mesh_proof"), help="checkpoints and curves")
    parser.add_argument("--out", type=Path, default=Path("mesh_proof"))
    args = parser.parse_args()
    args.lr = args.lr or LEARNING_RATES[args.stage]
    return args


if __name__ == "__main__":
    sys.exit(main())
