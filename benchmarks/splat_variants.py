"""Which settings of the preset ``fast`` are worth their time? Many trainings of one scene in one process.

Each variant changes one thing of ``fast``: its length, its pictures, its density control, its Adam, or what is drawn;
those of ``mcmc`` are the other strategy in about the same time.

    python -m benchmarks.splat_variants SCENE --images images --out variants.json
        [--only 'fast,10k steps'] [--seeds 0] [--timeout 540] [--device cuda]

Pictures are read and kernels compiled once. Each training's held-out scores and seconds (steps, densification and
logging; no reading, no judging) are added to the file when it ends; those that are there are not run again, and none
is begun that would not end in time if its steps took as long as the slowest before it. One that fails is kept with its
error, tried again by the next call, and does not end the others. With ``--only fast --seeds 0,1,2 --timeout 110`` it is
the preset itself, as often as there is time for.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch
from benchmarks.splat_train import PUBLISHED
from benchmarks.splat_train_arms import Clock, say, train_ours

from hotlap.base.errors import HotlapError, UnknownName, did_you_mean
from hotlap.base.events import ignore
from hotlap.records.codec import encode
from hotlap.records.environment import capture
from hotlap.records.run import write_atomic
from hotlap.splat.config import SplatTrainConfig, config_with
from hotlap.splat.judge import judged, mean_scores
from hotlap.splat.stage import open_stage

CHAIN = {"steps": 10_000, "densify_until": 8000, "sh_every": 500}
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "fast": ("fast", {}),
    "10k steps": ("fast", {"steps": 10_000, "densify_until": 6000}),
    "15k steps": ("fast", {"steps": 15_000, "densify_until": 9000}),
    "whole pictures": ("fast", {"coarse_first": False}),
    "resets": ("fast", {"reset_every": 3000}),
    "absgrad": ("fast", {"densify_signal": "abs", "densify_grad": 8e-4}),
    "antialiased": ("fast", {"antialiased": True}),
    "exposure": ("fast", {"exposure": True}),
    "lazy adam": ("fast", {"adam": "lazy"}),
    "mcmc 500k": ("mcmc", {**CHAIN, "max_splats": 500_000}),
    "mcmc 1m": ("mcmc", {**CHAIN, "max_splats": 1_000_000}),
    "mcmc 500k coarse": ("mcmc", {**CHAIN, "max_splats": 500_000, "coarse_first": True}),
    "mcmc 500k 20k steps": ("mcmc", {**CHAIN, "max_splats": 500_000, "steps": 20_000, "densify_until": 16_000}),
}
"""Preset and what is changed in it, by name."""


def config_of(arguments: argparse.Namespace, name: str, seed: int) -> SplatTrainConfig:
    """The settings of one variant."""
    preset, changes = VARIANTS[name]
    changes = {**changes, **({"steps": arguments.steps} if arguments.steps else {})}
    return config_with(preset, scene=arguments.scene, images=arguments.images, scale=arguments.scale, seed=seed,
                       device=arguments.device, **changes)  # fmt: skip


def run_one(arguments: argparse.Namespace, stage: Any, name: str, seed: int) -> dict[str, Any]:
    """One training and its scores."""
    config = config_of(arguments, name, seed)
    device = torch.device(arguments.device, 0) if arguments.device == "cuda" else torch.device(arguments.device)
    stage = stage or open_stage(config, device, ignore)
    model, found, _ = train_ours(config, stage, Clock(device, float("inf")), Path("never"), judge=False)
    scores = [s for s, _, _ in judged(model, stage.test_cameras, stage.test_pictures, range(len(stage.test_cameras)))]
    found |= {"name": name, "seed": seed, "config": encode(config), "mean": mean_scores(scores)}
    return {"stage": stage, "job": found}


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scene")
    parser.add_argument("--images", default="images")
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--steps", type=int, default=0, help="of every variant; 0: its own")
    parser.add_argument("--only", default=",".join(VARIANTS))
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--timeout", type=float, default=540.0)
    parser.add_argument("--out", default="splat_variants.json")
    return parser.parse_args()


def main() -> None:
    arguments = parse()
    began, slowest, stage, out = time.monotonic(), 0.0, None, Path(arguments.out)
    kept = json.loads(out.read_text()) if out.is_file() else {"environment": encode(capture()), "jobs": []}
    names = arguments.only.split(",")
    unknown = [name for name in names if name not in VARIANTS]
    if unknown:
        raise UnknownName(f"unknown variant {unknown[0]!r}", remedy=did_you_mean(unknown[0], VARIANTS))
    for seed in [int(one) for one in arguments.seeds.split(",")]:
        for name in names:
            if any((job["name"], job["seed"]) == (name, seed) and "error" not in job for job in kept["jobs"]):
                continue
            steps = config_of(arguments, name, seed).steps
            if time.monotonic() - began + slowest * steps > arguments.timeout:
                say(f"{name}, seed {seed}: no time left")
                continue
            say(f"{name}, seed {seed}")
            begun = time.monotonic()
            try:
                found = run_one(arguments, stage, name, seed)
                stage, job = found["stage"], found["job"]
            except (HotlapError, torch.OutOfMemoryError) as error:
                say(f"  failed: {error}")
                job = {"name": name, "seed": seed, "error": f"{type(error).__name__}: {error}"}
            else:
                slowest = max(slowest, (time.monotonic() - begun) / steps)
            kept["jobs"] = [one for one in kept["jobs"] if (one["name"], one["seed"]) != (name, seed)] + [job]
            write_atomic(out, json.dumps(kept, indent=1))
    for line in table(kept["jobs"]):
        say(line)


def table(jobs: list[dict[str, Any]]) -> list[str]:
    """Markdown: a row for each training that ended, the best first."""
    lines = ["", "| variant | seed | PSNR dB | SSIM | seconds | splats |", "| --- " * 6 + "|"]
    for job in sorted((job for job in jobs if "error" not in job), key=lambda job: -job["mean"]["psnr"]):
        mean = job["mean"]
        lines.append(
            f"| {job['name']} | {job['seed']} | {mean['psnr']:.3f} | {mean['ssim']:.4f} | {job['seconds']:.1f} | "
            f"{job['splats']:,} |"
        )
    return [*lines, PUBLISHED]


if __name__ == "__main__":
    main()
