"""What a finished training leaves: the model as a PLY file, scores by picture, pictures beside photographs, curves."""

from __future__ import annotations

import csv
import io
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
from hotlap.splat.album import draw_curves, file_names, save_picture, sheet_of, side_by_side
from hotlap.splat.cameras import Cameras
from hotlap.splat.judge import Model, Score, judged, mean_scores
from hotlap.splat.lpips import NET, why_no_lpips
from hotlap.splat.pictures import Pictures
from hotlap.splat.trainer import Trainer

MODEL, RESULTS, SCORES, CAMERAS, CURVES = "model.ply", "results.json", "scores.csv", "cameras.json", "curves.png"
PICTURES = "pictures"
"""The folder of pictures beside their photographs."""
SHEET, SHEET_ROWS = "sheet.jpg", 4
"""Some of the pictures beside their photographs in one small file, and how many."""
REMEDY = "Free some space or choose another folder"


def close_training(trainer: Trainer, folder: Path, emit: Emit, status: str, why: str) -> dict[str, Any]:
    """Writes everything; what came of the training, by name."""
    model, stage = sound(trainer.model()), trainer.stage
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
    if stage.test_cameras is not None and stage.test_pictures is not None:
        scores = judge_all(
            model, stage.test_cameras, stage.test_pictures, folder, trainer.config.pictures, lpips="", emit=emit
        )
        mean = mean_scores(scores)
        outcome |= {trainer.config.judged_by: mean, "images": [vars(score) for score in scores]}
        outcome["lpips"] = why_no_lpips() or NET
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


def judge_all(
    model: Model, cameras: Cameras, pictures: Pictures, folder: Path, most: int, *, lpips: str | None, emit: Emit
) -> list[Score]:
    """The score of every view; of ``most`` of them a picture beside the photograph is kept, of four in a sheet."""
    scores: list[Score] = []
    rows: list[Any] = []
    shown = set(range(0, len(cameras), max(1, -(-len(cameras) // most)))) if most else set()
    files = dict(zip(cameras.names, file_names(cameras.names), strict=True))
    emit(events.start("judge", len(cameras)))
    for score, drawn, photograph in judged(model, cameras, pictures, range(len(cameras)), lpips=lpips):
        if len(scores) in shown:
            rows.append(side_by_side(photograph, drawn))
            save_picture(folder / PICTURES / files[score.name], rows[-1])
        scores.append(score)
        emit(events.advance("judge", len(scores), len(cameras), f"PSNR {score.psnr:.2f}"))
    emit(events.finish("judge"))
    if rows:
        save_picture(folder / SHEET, sheet_of(rows[:: -(-len(rows) // SHEET_ROWS)]))
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(("name", "psnr", "ssim", "lpips"))
    writer.writerows((s.name, s.psnr, s.ssim, "" if s.lpips is None else s.lpips) for s in scores)
    write_durably(folder / SCORES, text.getvalue().encode(), remedy=REMEDY)
    return scores


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
