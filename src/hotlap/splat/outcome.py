"""What a finished training leaves: the model as a PLY file, scores by picture, pictures beside photographs, curves."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hotlap.base import events
from hotlap.base.events import Emit
from hotlap.data.splats import Splats, write_splats
from hotlap.engine.durable import write_durably
from hotlap.engine.journal import Journal, read_journal
from hotlap.splat.album import draw_curves
from hotlap.splat.cameras import Cameras
from hotlap.splat.judge import Model, mean_scores
from hotlap.splat.judging import REMEDY, Judging
from hotlap.splat.lpips import NET, why_no_lpips
from hotlap.splat.trainer import Trainer

MODEL, RESULTS, CAMERAS, CURVES = "model.ply", "results.json", "cameras.json", "curves.png"


def close_training(
    trainer: Trainer, folder: Path, emit: Emit, status: str, why: str, judging: Judging | None = None
) -> dict[str, Any]:
    """Writes everything; what came of the training, by name. ``judging`` knows some views of the model already."""
    stage, judging = trainer.stage, judging or last_judging(trainer, folder)
    model = judging.model if judging else sound(trainer.model())
    splats = as_splats(model)
    if len(splats) < trainer.state.count:
        emit(events.warn(f"{trainer.state.count - len(splats)} splats that cannot be drawn are not in {MODEL}"))
    write_splats(folder / MODEL, splats)
    write_cameras(folder / CAMERAS, stage.cameras)
    outcome: dict[str, Any] = {
        "status": status, "why": why, "steps": trainer.step, "splats": len(splats),
        "seconds": trainer.seconds, "recordings": trainer.steps.num_recordings,
        "lost_splats": trainer.guard.num_lost, "extent": stage.extent, "sh_degree": model.degree,
        "background": [0.0, 0.0, 0.0] if model.background is None else model.background[0].tolist(),
        "pictures_on": stage.pictures.place, "device": str(trainer.device), "peak_bytes": peak_bytes(trainer.device),
    }  # fmt: skip
    if judging is not None:
        scores = judging.close(emit)
        mean = mean_scores(scores)
        outcome |= {trainer.config.judged_by: mean, "images": [vars(score) for score in scores]}
        outcome |= {"lpips": why_no_lpips() or NET, "sheet": judging.sheet}
        _log_last(folder, trainer, mean)
    draw_curves(folder / CURVES, read_journal(folder), trainer.config.judged_by.replace("_", " "))
    write_durably(folder / RESULTS, json.dumps(outcome, indent=1).encode() + b"\n", remedy=REMEDY)
    return outcome


def _log_last(folder: Path, trainer: Trainer, scores: dict[str, float]) -> None:
    """The judgement of the finished model as the last row of the metrics."""
    told = any(row.step >= trainer.step and row.split == "eval" for row in read_journal(folder))
    if told:  # a training that was over is resumed, or the model is an earlier one than that which was judged last
        return
    with Journal(folder) as journal:
        epoch = trainer.step * trainer.team.size // len(trainer.stage.cameras)
        journal.log(trainer.step, epoch, "eval", scores)


def last_judging(trainer: Trainer, folder: Path) -> Judging | None:
    """The judgement of the model as it is now, still to be made; None where nothing is held out."""
    stage = trainer.stage
    if stage.test_cameras is None or stage.test_pictures is None:
        return None
    model, most = sound(trainer.model()), trainer.config.pictures
    return Judging(model, stage.test_cameras, stage.test_pictures, folder, most, lpips="")


def as_splats(model: Model) -> Splats:
    """The model as files hold it."""
    params = {name: tensor.detach().cpu() for name, tensor in model.params.items()}

    def array(tensor: Tensor) -> Any:
        return tensor.contiguous().numpy()

    return Splats(
        means=array(params["means"]), log_scales=array(params["scales"]), quats=array(params["quats"]),
        logit_opacities=array(params["opacities"]), sh0=array(params["colors"][:, 0]),
        shN=array(params["colors"][:, 1:]), antialiased=model.antialiased,
    )  # fmt: skip


def sound(model: Model) -> Model:
    """The model without splats that no file holds: a training that went wrong may be left with such ones alone."""
    bad = torch.from_numpy(as_splats(model).bad())
    if not bool(bad.any()):
        return model
    params = {name: tensor[~bad.to(tensor.device)] for name, tensor in model.params.items()}
    return replace(model, params=params)


def as_model(splats: Splats, device: torch.device, background: list[float] | None = None) -> Model:
    """Splats from a file, to be drawn."""
    colors = torch.cat([torch.from_numpy(splats.sh0)[:, None], torch.from_numpy(splats.shN)], dim=1)
    if colors.shape[1] > 16:
        colors = colors[:, :16]
    params = {
        "means": torch.from_numpy(splats.means), "quats": torch.from_numpy(splats.quats),
        "scales": torch.from_numpy(splats.log_scales), "opacities": torch.from_numpy(splats.logit_opacities),
        "colors": colors,
    }  # fmt: skip
    behind = torch.tensor([background], dtype=torch.float32, device=device) if background and any(background) else None
    made = {name: tensor.to(device).contiguous() for name, tensor in params.items()}
    return Model(params=made, background=behind, antialiased=splats.antialiased)


def write_cameras(path: Path, cameras: Cameras) -> None:
    """The cameras as viewers of trained scenes read them: place, rotation (world from camera), focal lengths."""
    rows = []
    poses = cameras.viewmats.cpu().double().inverse()
    for number, name in enumerate(cameras.names):
        height, width = cameras.sizes[number]
        rows.append({
            "id": number, "img_name": name, "width": width, "height": height,
            "position": poses[number, :3, 3].tolist(), "rotation": poses[number, :3, :3].tolist(),
            "fx": float(cameras.Ks[number, 0, 0]), "fy": float(cameras.Ks[number, 1, 1]),
            "cx": float(cameras.Ks[number, 0, 2]), "cy": float(cameras.Ks[number, 1, 2]),
        })  # fmt: skip
    write_durably(path, json.dumps(rows, indent=1).encode() + b"\n", remedy=REMEDY)


def peak_bytes(device: torch.device) -> int:
    """Memory of the card that was in use at most; 0 on a CPU."""
    return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else 0
