"""``hotlap splat eval``: trained splats judged on pictures, picture by picture."""

from __future__ import annotations

import json
import os
from functools import partial
from pathlib import Path
from typing import Any

import torch

from hotlap.base import events
from hotlap.base.errors import ConfigError, DataError, StorageError
from hotlap.base.events import Emit, ignore
from hotlap.device.probe import get_device
from hotlap.engine.durable import write_durably
from hotlap.splat.cameras import Cameras, pack_cameras
from hotlap.splat.config import SplatEvalConfig
from hotlap.splat.judge import mean_scores
from hotlap.splat.judging import REMEDY, Judging
from hotlap.splat.lpips import NET, why_no_lpips
from hotlap.splat.opened import open_splats
from hotlap.splat.outcome import CAMERAS
from hotlap.splat.pictures import Pictures, load_scaled
from hotlap.splat.render import read_named
from hotlap.splat.room import told_of_memory
from hotlap.splat.stage import open_scene, split_views

FOLDERS = {False: "eval", True: "eval_train"}


def evaluate(config: SplatEvalConfig, emit: Emit = ignore) -> dict[str, Any]:
    """Mean scores and those of each picture; also in ``eval/results.json`` with a table and pictures beside it."""
    if not config.run or not Path(config.run).is_dir():
        raise ConfigError(f"run = {config.run!r} is no folder", expected="the folder of a training")
    weights = config.lpips_weights if config.lpips else None
    if config.lpips_weights and (reason := why_no_lpips(config.lpips_weights)):
        raise ConfigError(f"lpips_weights = {config.lpips_weights!r} cannot be used: {reason}")
    opened, device = open_splats(config.run, "run", emit), get_device(config.device)
    assert opened.folder is not None
    settings = opened.settings(config.scene)
    train, held_out = split_views(open_scene(settings), settings)
    views = train if config.train_views else held_out
    if not views:
        raise DataError(f"the training in {config.run!r} held no picture out", remedy="Judge by --train-views")
    pictures = Pictures(views, partial(load_scaled, scale=settings.scale, max_side=settings.max_side), device, "disk")
    try:
        cameras = pack_cameras(views, pictures.pinholes, device)
        if config.train_views and settings.poses:
            take_refined(cameras, opened.folder / CAMERAS)
        folder = opened.folder / FOLDERS[config.train_views]
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StorageError(f"cannot make {str(folder)!r}: {error.strerror or error}", remedy=REMEDY) from error
        if not os.access(folder, os.W_OK):  # said before minutes of judging
            raise StorageError(f"{str(folder)!r} may not be written", remedy=REMEDY)
        with torch.no_grad(), told_of_memory("the judgement", "Take another --device"):
            model = opened.model(device, config.scene)
            scores = Judging(model, cameras, pictures, folder, config.pictures, lpips=weights).close(emit)
    finally:
        pictures.close()
    if not scores:
        raise DataError(f"the masks of the scene {settings.scene!r} leave no pixel to judge by")
    trained_on = config.train_views or settings.judged_by == "trained_on"
    found = {
        "run": config.run, "views": "train" if trained_on else "held out", "splats": len(opened.splats),
        "mean": mean_scores(scores), "lpips": "not asked for" if weights is None else why_no_lpips(weights) or NET,
        "images": [vars(score) for score in scores],
    }  # fmt: skip
    write_durably(folder / "results.json", json.dumps(found, indent=1).encode() + b"\n", remedy=REMEDY)
    emit(events.note(f"scores and pictures are in {folder}"))
    return found


def take_refined(cameras: Cameras, path: Path) -> None:
    """Puts the poses that a training has refined in place of the scene's."""
    refined = read_named(path)
    for number, name in enumerate(cameras.names):
        if name not in refined:
            raise DataError(
                f"view {name!r} is not in {str(path)!r}", expected="the poses that the training refined",
                remedy="Judge by the scene it was trained on",
            )  # fmt: skip
        cameras.viewmats[number] = torch.from_numpy(refined[name].pose)
