"""The job of a measuring process that runs the engine's own loader over a target's training data."""

from __future__ import annotations

from typing import Any

import torch

from hotlap.base.errors import TargetError
from hotlap.device.probe import require_cuda
from hotlap.engine.loader_choice import Speed
from hotlap.engine.loader_settings import LoaderSettings
from hotlap.engine.loader_speed import make_loader, measure_speed
from hotlap.measure.process import Listen
from hotlap.records.codec import decode
from hotlap.targets import load_target


def measure_loader(job: dict[str, Any], listen: Listen) -> Speed:
    """The speed of one setting, in a process that has loaded nothing before; ``decides`` is the rate asked for."""
    settings: LoaderSettings = decode(LoaderSettings, job["settings"])
    device = torch.device(job["device"])
    if device.type == "cuda":
        require_cuda(device.index or 0)
    listen("loading", 0, 1)
    workload = load_target(job["target"], job.get("options"), job.get("inputs", ()))
    data = workload.train_data()
    if data is None:
        raise TargetError(
            f"target {job['target']!r} has no train_data", expected="a Workload whose train_data() gives a dataset"
        )
    loader = make_loader(
        data,
        settings,
        batch=job["batch"],
        seed=job["seed"],
        device=device,
        collate=workload.collate,
        on_bad_sample=job["on_bad_sample"],
    )
    return measure_speed(loader, device, seconds=job["seconds"], decides=job.get("decides"))
