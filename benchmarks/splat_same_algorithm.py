"""Is our density control the one of gsplat? Both densify the same model, and train side by side, without a card.

    python -m benchmarks.splat_same_algorithm SCENE --images images_2 --out splat_same_algorithm.json

gsplat 1.5.3's own rasterization needs a card, its ``DefaultStrategy`` does not. So here both sides draw with our CPU
kernels; gsplat's side has its strategy, torch's Adam, and the loop that ``splat_train`` times on a card. Where a split
splat's children go is drawn by chance; both sides are given the same draw, so that nothing but the algorithm is left.

``decisions``: our training is stopped before each densification, and its model, Adam's moments and statistics are
handed to gsplat's strategy. Both densify; every parameter and moment of every splat must then be the same.
``trainings``: both begin with the same splats and go on by themselves; losses and numbers of splats stand side by side.
Rounding grows in a training, so these may drift apart slowly.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from benchmarks.splat_train_arms import GsplatTraining, say
from torch import Tensor

from hotlap.base.events import ignore
from hotlap.records.codec import encode
from hotlap.records.environment import capture
from hotlap.records.run import write_atomic
from hotlap.splat.config import LEARNABLE, SplatTrainConfig, config_with
from hotlap.splat.rasterize import rasterize
from hotlap.splat.stage import Stage, open_stage
from hotlap.splat.trainer import Trainer

CPU = torch.device("cpu")
SAME = 1e-5
"""Parameters that are computed, not copied, may differ by this: float32 of numbers up to a hundred."""
OFFSET = (0.3, -0.7, 1.1)
"""In standard deviations: where each child of a split splat goes, on both sides."""
EVERY = 100
"""Steps between two densifications, and between two lines of the table."""


def make_config(arguments: argparse.Namespace) -> SplatTrainConfig:
    """The default preset, with its stages brought forward: huge splats are removed from the second densification on."""
    return config_with(
        "default", scene=arguments.scene, images=arguments.images, device="cpu", scale=arguments.scale, reset_every=0,
        start_splats=arguments.splats, steps=arguments.steps, max_images=arguments.pictures, sh_every=150,
        densify_from=EVERY, densify_every=EVERY, densify_until=arguments.steps - EVERY, prune_scale_from=2 * EVERY,
    )  # fmt: skip


def same_draw(*size: int, **_: Any) -> Tensor:  # [..., 3]
    """In place of torch's chance."""
    return torch.tensor(OFFSET).expand(*size).clone()


def hand_over(ours: Trainer, theirs: GsplatTraining) -> None:
    """Gives gsplat's side our splats, what Adam knows of them, and the statistics."""
    state = ours.state
    for name in list(theirs.params):
        here, part = {"sh0": ("colors", slice(0, 1)), "shN": ("colors", slice(1, None))}.get(name, (name, None))
        rows = [state.alive(kind + here).detach() for kind in ("", "first.", "second.")]
        param, first, second = (row.clone() if part is None else row[:, part].clone() for row in rows)
        optimizer = theirs.optimizers[name]
        optimizer.state.pop(theirs.params[name], None)
        theirs.params[name] = torch.nn.Parameter(param)
        optimizer.param_groups[0]["params"] = [theirs.params[name]]
        optimizer.state[theirs.params[name]] = {
            "step": torch.tensor(float(ours.step)), "exp_avg": first, "exp_avg_sq": second
        }  # fmt: skip
    theirs.stats["grad2d"] = state.alive("stats.grad").clone()
    theirs.stats["count"] = state.alive("stats.count").float()


def our_rows(ours: Trainer) -> dict[str, Tensor]:  # [N, ...] each
    return {kind + name: ours.state.alive(kind + name).detach() for name in LEARNABLE for kind in KINDS}


def their_rows(theirs: GsplatTraining) -> dict[str, Tensor]:  # [N, ...] each
    found: dict[str, Tensor] = {}
    for kind, moment in KINDS.items():
        rows = {
            name: theirs.optimizers[name].state[param][moment] if moment else param.detach()
            for name, param in theirs.params.items()
        }
        rows["colors"] = torch.cat([rows.pop("sh0"), rows.pop("shN")], 1)
        found |= {kind + name: row for name, row in rows.items()}
    return found


KINDS = {"": "", "first.": "exp_avg", "second.": "exp_avg_sq"}


def in_order(rows: dict[str, Tensor]) -> dict[str, Tensor]:
    """Splats in an order that does not depend on their places in memory: by what densification copies.

    Last come the centres, for splats that no picture has shown yet and that are alike in all else.
    """
    is_old = sum(row.reshape(len(row), -1).abs().sum(1) for name, row in rows.items() if "." in name) > 0
    keys = [rows[name].reshape(len(is_old), -1) for name in ("quats", "opacities", "colors")]
    table = torch.cat([*keys, is_old[:, None].float(), rows["means"].mul(1e4).round()], 1)
    order = torch.arange(len(table))
    for column in reversed(range(table.shape[1])):
        order = order[torch.argsort(table[order, column], stable=True)]
    return {name: row[order] for name, row in rows.items()}


def compare_decisions(config: SplatTrainConfig, stage: Stage) -> list[dict[str, Any]]:
    """A row for each densification: what both did to the same model, and how far they are apart afterwards."""
    ours, theirs = Trainer(config, stage, CPU, ignore), gsplat_side(config, stage)
    found = []
    for step in range(2 * EVERY, config.densify_until, EVERY):
        while ours.step < step:
            ours._one()
        hand_over(ours, theirs)
        with mock.patch("torch.randn", same_draw):
            changed = ours.strategy.after(step, ours.state)
            cloned, split = theirs.strategy._grow_gs(theirs.params, theirs.optimizers, theirs.stats, step)
            pruned = theirs.strategy._prune_gs(theirs.params, theirs.optimizers, theirs.stats, step)
        assert changed is not None
        mine, other = in_order(our_rows(ours)), in_order(their_rows(theirs))
        apart = {
            name: (row - other[name]).abs().max().item() if len(row) == len(other[name]) else float("inf")
            for name, row in mine.items()
        }
        row = {
            "step": step, "ours": encode(changed), "gsplat": {"cloned": cloned, "split": split, "pruned": pruned},
            "splats": [len(mine["means"]), len(other["means"])], "largest_difference": apart,
            "same": max(apart.values()) <= SAME,
        }  # fmt: skip
        say(f"  step {step}: {row['ours']} and {row['gsplat']}, splats {row['splats']}, "
            f"largest difference {max(apart.values()):.1e}")  # fmt: skip
        found.append(row)
    return found


def compare_trainings(config: SplatTrainConfig, stage: Stage) -> list[dict[str, Any]]:
    """A row for each hundred steps of two trainings: their mean loss and their number of splats."""
    ours, theirs = Trainer(config, stage, CPU, ignore), gsplat_side(config, stage)
    found = []
    with mock.patch("torch.randn", same_draw):
        for step in range(EVERY, config.steps + 1, EVERY):
            ours.run(step)
            losses = [ours.look_after()["loss"], theirs.run(step)]
            splats = [ours.state.count, len(theirs.params["means"])]
            found.append({"step": step, "loss": losses, "splats": splats})
            say(f"  step {step}: loss {losses[0]:.6f} and {losses[1]:.6f}, splats {splats[0]} and {splats[1]}")
    return found


def gsplat_side(config: SplatTrainConfig, stage: Stage) -> GsplatTraining:
    return GsplatTraining(config, stage, CPU, "fused", rasterization=rasterize, late=0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scene")
    parser.add_argument("--images", default="images_2")
    parser.add_argument("--scale", type=float, default=0.25)
    parser.add_argument("--pictures", type=int, default=24)
    parser.add_argument("--splats", type=int, default=2000)
    parser.add_argument("--steps", type=int, default=700)
    parser.add_argument("--out", default="splat_same_algorithm.json")
    arguments = parser.parse_args()
    import gsplat

    config = make_config(arguments)
    stage = open_stage(config, CPU, ignore)
    say("both densify the same model")
    decisions = compare_decisions(config, stage)
    say("both train by themselves")
    trainings = compare_trainings(config, stage)
    found = {
        "config": encode(config), "gsplat": gsplat.__version__, "environment": encode(capture()), "offset": OFFSET,
        "allowed": SAME, "decisions": decisions, "trainings": trainings,
    }  # fmt: skip
    write_atomic(Path(arguments.out), json.dumps(found, indent=1))
    if not all(row["same"] for row in decisions):
        raise SystemExit("RED: a densification of ours differs from gsplat's")


if __name__ == "__main__":
    main()
