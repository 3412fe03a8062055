"""Trainings as they lie on disk, made up: records with their journals, for the page and the terminal."""

from __future__ import annotations

import dataclasses
import json
import math
import random
from pathlib import Path

from fake_records import environment

from hotlap.engine.config import TrainConfig
from hotlap.engine.journal import Journal
from hotlap.engine.pace import PACE
from hotlap.records.measurement import Verdict
from hotlap.records.run import RunRecord, begin, save
from hotlap.splat.config import SplatTrainConfig

OUTCOME = {
    "status": "complete", "step": 600, "epoch": 6, "resumed_from": None, "metrics": {"loss": 0.21, "accuracy": 0.93},
    "best": 0.94, "best_checkpoint": "runs/unet/1/checkpoints/step-00000500-0123456789abcdef.pt",
    "last_checkpoint": "runs/unet/1/checkpoints/step-00000600-fedcba9876543210.pt", "samples_per_s": 1234.5,
    "micro": 16, "num_splits": 2, "recovery_s": 0.4, "recomputing": False, "num_replays": 0, "num_bad_samples": 3,
    "peak_bytes": 3 * 2**30, "host_peak_bytes": 2**30,
    "warnings": ["out of memory with 64 samples; the step is replayed in micro-batches of 32"],
}  # fmt: skip


def training(folder: Path, *, device: str = "cuda", rate: float = 1200.0, rows: int = 60, **outcome) -> RunRecord:
    """A training of 600 steps in ``folder`` whose memory ran out on the way."""
    folder.mkdir(parents=True)
    chance = random.Random(3)
    lines = []
    with Journal(folder) as journal:
        for k in range(1, rows + 1):
            step = k * (600 // rows)
            loss = 2 * math.exp(-step / 150) + 0.15 + chance.gauss(0, 0.03)
            micro = 64.0 if step < 200 else 32.0 if step < 350 else 16.0
            values = {"loss": loss, "lr": 1e-3 * (1 + math.cos(math.pi * step / 600)) / 2, "micro": micro}
            journal.log(step, 1 + step // 100, "train", values)
            if step % 100 == 0:
                scores = {"loss": loss + 0.05, "accuracy": 1 - loss / 3, "macro_f1": 0.98 - loss / 3}
                journal.log(step, step // 100, "eval", scores)
            speed = {"samples_per_s": rate * chance.uniform(0.93, 1.03)}
            speed |= {"utilisation": chance.uniform(80, 99)} if device == "cuda" else {}
            lines.append(json.dumps({"step": step, "seconds": 64 * step / rate, "values": speed}))
    (folder / PACE).write_text("\n".join(lines) + "\n")
    config = TrainConfig(target="unet", epochs=6, device=device, monitor="accuracy", precision="bf16-mixed")
    record = begin("train", "unet", config, {"epochs": "the command line"}, environment(gpu=device == "cuda"))
    verdict = Verdict(
        outcome="complete",
        headline="trained 600 steps; loss 0.21, accuracy 0.93; 1,230 samples/s",
        lines=["Memory ran out 2 times; no step was lost, and the longest replay took 400 ms."],
        exit_code=0,
    )
    extra = {"outcome": {**OUTCOME, **outcome}, "restarts": ["the training process died: it was killed"]}
    notes = ["out of memory with 64 samples; the step is replayed in micro-batches of 32"]
    return save(dataclasses.replace(record, status="complete", verdict=verdict, extra=extra, notes=notes), folder)


def splat_training(folder: Path, *, status: str = "complete", **config) -> RunRecord:
    """A training of splats of 40 steps in ``folder``, judged three times, with a sheet of pictures beside it."""
    folder.mkdir(parents=True)
    with Journal(folder) as journal:
        for step in range(0, 41, 20):
            if step:
                values = {"loss": 1 / step, "psnr": 12 + step / 10, "splats": 100.0 * step}
                journal.log(step, 1, "train", values)
            journal.log(step, 1, "eval", {"psnr": 10 + step / 10, "ssim": 0.5 + step / 100})
    (folder / "sheet.jpg").write_bytes(b"\xff\xd8 a picture \xff\xd9")
    record = begin("splat", "garden", SplatTrainConfig(scene="garden", **config), {}, environment())
    scores = {"psnr": 14.0, "ssim": 0.9}
    outcome = {"steps": 40, "seconds": 2.5, "sheet": {"file": "sheet.jpg", "width": 1200, "height": 300}}
    outcome["held_out" if record.config["image_index"] is None else "trained_on"] = scores
    verdict = Verdict(outcome=status, headline="trained 40 steps in 2.50 s", exit_code=0)
    return save(dataclasses.replace(record, status=status, verdict=verdict, extra={"outcome": outcome}), folder)
