"""Small pictures of a trained scene for a page: held-out views beside their photographs, curves, a short orbit."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from hotlap.engine.journal import Row
from hotlap.splat.album import as_bytes, draw_curves, save_picture, sheet_of, side_by_side
from hotlap.splat.cameras import orbit
from hotlap.splat.config import SplatTrainConfig
from hotlap.splat.judge import Model, judged
from hotlap.splat.judging import SHEET, SHEET_ROWS
from hotlap.splat.pictures import planned_camera
from hotlap.splat.render import write_gif
from hotlap.splat.stage import Stage

FRAMES, WIDTH, FPS = 40, 360, 12


def leave_pictures(folder: Path, model: Model, stage: Stage, config: SplatTrainConfig, rows: Sequence[Row]) -> None:
    """Writes sheet.jpg, curves.png and orbit.gif."""
    assert stage.test_cameras is not None and stage.test_pictures is not None
    some = np.linspace(0, len(stage.test_cameras) - 1, SHEET_ROWS).round().astype(int).tolist()
    found = judged(model, stage.test_cameras, stage.test_pictures, some)
    save_picture(folder / SHEET, sheet_of([side_by_side(photograph, drawn) for _, drawn, photograph in found]))
    draw_curves(folder / "curves.png", rows)
    camera = planned_camera(stage.views[0], config.scale, config.max_side)
    camera = camera.scaled_to(WIDTH, round(camera.height * WIDTH / camera.width))
    device = stage.cameras.Ks.device
    intrinsics = torch.from_numpy(camera.matrix().astype(np.float32)).to(device)
    poses = torch.from_numpy(orbit(stage.views, stage.scene.points, FRAMES).astype(np.float32)).to(device)
    frames = (as_bytes(model.draw(pose, intrinsics, camera.height, camera.width)) for pose in poses)
    write_gif(folder / "orbit.gif", frames, FPS)
