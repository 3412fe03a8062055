"""Trained splats found again: by the folder of their training, over or not, or as a file."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from hotlap.base import events
from hotlap.base.errors import ConfigError, DataError, RecordError
from hotlap.base.events import Emit, ignore
from hotlap.base.settings import Layer, resolve
from hotlap.data.colmap import find_model
from hotlap.data.scene import read_scene
from hotlap.data.splats import Splats, read_splats
from hotlap.data.transforms import find_transforms
from hotlap.engine.checkpoint import CheckpointStore
from hotlap.engine.config import CHECKPOINTS
from hotlap.splat.begun import SETTINGS, read_settings
from hotlap.splat.config import FIELDS, LEARNABLE, SplatExportConfig, SplatInfoConfig, SplatTrainConfig
from hotlap.splat.guard import medians
from hotlap.splat.judge import Model
from hotlap.splat.outcome import MODEL, RESULTS, as_model, as_splats, sound
from hotlap.splat.stage import DRAWN, drawn_folder, open_scene
from hotlap.splat.trainer import is_white


@dataclass(frozen=True, kw_only=True, eq=False)
class Opened:
    """Splats from disk and, if a training's folder was named, how they were trained."""

    splats: Splats
    file: Path
    folder: Path | None = None
    config: SplatTrainConfig | None = None
    results: dict[str, Any] = dataclasses.field(default_factory=dict)
    is_over: bool = True
    """Whether the splats are those at the end of the training; without, its newest checkpoint's."""

    def model(self, device: torch.device, scene: str = "") -> Model:
        """Ready to be drawn; a training's background and antialiasing come with it.

        What lies behind one that is not over may be known by its scene alone, of which ``scene`` is another place.
        """
        behind = self.results.get("background")
        if behind is None and self.config is not None and not self.is_over:
            behind = [1.0] * 3 if is_white(self.config, open_scene(self.settings(scene))) else None
        plain = as_model(self.splats, device, behind)
        return dataclasses.replace(plain, antialiased=self.config.antialiased) if self.config else plain

    def settings(self, scene: str = "") -> SplatTrainConfig:
        """Those of the training whose folder was named, with ``scene`` as another place of its scene."""
        assert self.config is not None
        place = scene or self.config.scene
        if place != DRAWN and not Path(place).exists():
            raise DataError(
                f"the scene {place!r} of the training in {str(self.folder)!r} does not exist",
                remedy="Say where it is with --scene",
            )
        return dataclasses.replace(self.config, scene=place)


def open_splats(where: str, what: str = "model", emit: Emit = ignore) -> Opened:
    """The splats of a training's folder, or of a file; those of a training that is not over are told of."""
    if not where:
        raise ConfigError(f"no {what} was given", remedy="Name the folder of a training, or a file of splats")
    path = Path(where)
    if path.is_dir() and not _is_sog(path):
        config = read_config(path)
        file = path / MODEL
        if not file.is_file():
            return _open_checkpoint(path, config, emit)
        return Opened(splats=read_splats(file), file=file, folder=path, config=config, results=_results(path))
    return Opened(splats=read_splats(path), file=path)


def _open_checkpoint(folder: Path, config: SplatTrainConfig, emit: Emit) -> Opened:
    """The newest splats of a training that still runs or was interrupted."""
    store = CheckpointStore(folder / CHECKPOINTS, warn=lambda text: emit(events.warn(text)))
    found = store.load("latest") if store.steps() else None
    if found is None:
        raise RecordError(
            f"the training in {str(folder)!r} has neither {MODEL} nor a checkpoint",
            remedy="Wait for its first checkpoint, or let it end: --resume goes on",
        )
    emit(events.warn(f"the training in {str(folder)!r} is not over: its splats are those of step {found.step}"))
    model = sound(checkpoint_model(found.state, config, torch.device("cpu"), config.background == "white"))
    results: dict[str, Any] = {"status": "not over", "steps": found.step, "seconds": found.state["seconds"]}
    if model.background is not None:
        results["background"] = model.background[0].tolist()
    return Opened(
        splats=as_splats(model), file=found.path, folder=folder, config=config, results=results, is_over=False
    )


def checkpoint_model(state: dict[str, Any], config: SplatTrainConfig, device: torch.device, white: bool) -> Model:
    """The splats of a checkpoint, to be drawn on white or, if it has not learned another colour, on black."""
    arrays = state["state"]["arrays"]
    behind = torch.sigmoid(state["beside"]["background"]["logits"]) if "background" in state["beside"] else None
    if white:
        behind = torch.ones(1, 3)
    return Model(
        params={name: arrays[name].to(device).contiguous() for name in LEARNABLE},
        background=None if behind is None else behind.to(device),
        antialiased=config.antialiased,
        sh_degree=min(config.sh_degree, max(0, state["step"] - 1) // config.sh_every),
    )


def _is_sog(path: Path) -> bool:
    """Whether a folder, or its meta.json, is a model as PlayCanvas has it, and neither a training nor a scene."""
    folder = path.parent if path.name == "meta.json" else path
    if not (folder / "meta.json").is_file() or (folder / SETTINGS).is_file():
        return False
    return find_model(folder) is None and not find_transforms(folder)


def read_config(folder: Path) -> SplatTrainConfig:
    """The settings that a training was begun with."""
    settings = {name: value for name, value in read_settings(folder).items() if name in FIELDS}
    if settings.get("strategy") == "budget":  # of earlier versions: what it made can still be drawn and judged
        settings["strategy"] = "none"
    return resolve(SplatTrainConfig, [Layer(f"{folder / SETTINGS}", settings)]).config


def _results(folder: Path) -> dict[str, Any]:
    try:
        found = json.loads((folder / RESULTS).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise RecordError(f"{str(folder / RESULTS)!r} is not whole JSON ({error})") from error
    if not isinstance(found, dict):
        raise RecordError(f"{str(folder / RESULTS)!r} holds a {type(found).__name__}", expected="results by name")
    background = found.get("background", [0.0] * 3)
    is_color = isinstance(background, list) and len(background) == 3
    if not is_color or not all(type(part) in (int, float) for part in background):
        raise RecordError(f"{str(folder / RESULTS)!r} has background = {background!r}", expected="three numbers")
    return found


def export(config: SplatExportConfig, emit: Emit = ignore) -> Path:
    """The file that was written, in the format its name asks for."""
    from hotlap.data.splats import beyond, write_splats

    if not config.out:
        raise ConfigError("no out was given", remedy="Name the file to write, as --out scene.spz")
    opened = open_splats(config.model, emit=emit)
    splats = opened.splats
    if opened.config is not None:  # the model of an older training does not say it itself
        splats = dataclasses.replace(splats, antialiased=opened.config.antialiased)
    if config.drop_bad:
        bad, far = splats.bad(), beyond(config.out, splats)
        for lost, why in ((bad, "cannot be drawn"), (far & ~bad, "lie farther out than the file reaches")):
            if lost.any():
                emit(events.warn(f"{int(lost.sum())} of {len(splats)} splats, which {why}, are left out"))
        splats = splats.take(~(bad | far))
    if config.min_opacity:
        if not 0 < config.min_opacity < 1:
            raise ConfigError(f"min_opacity = {config.min_opacity:g} is not valid", expected="0 to below 1")
        opacities = torch.sigmoid(torch.from_numpy(splats.logit_opacities)).numpy()
        splats = splats.take(opacities >= config.min_opacity)
    if not len(splats) and len(opened.splats):
        raise DataError(
            f"nothing is left of the {len(opened.splats)} splats of {config.model!r}",
            remedy="Lower --min-opacity" if config.min_opacity else "Look at them with 'hotlap splat info'",
        )
    if config.sh_degree is not None:
        splats = splats.with_degree(min(config.sh_degree, splats.sh_degree))
    write_splats(config.out, splats)
    return Path(config.out)


def info(config: SplatInfoConfig, emit: Emit = ignore) -> dict[str, Any]:
    """What a scene, a training or a file of splats holds, by name."""
    if not config.what:
        raise ConfigError("nothing was named", remedy="Name a scene, the folder of a training or a file of splats")
    path = drawn_folder() if config.what == DRAWN else Path(config.what)
    if not path.exists():
        raise DataError(f"{config.what!r} does not exist")
    if ((path.is_dir() and not (path / SETTINGS).is_file()) or path.suffix == ".json") and not _is_sog(path):
        return _scene_info(path, config)
    for name, value in (("images", config.images), ("factor", config.factor)):
        if value not in ("images", None):
            raise ConfigError(f"{name} = {value!r} with what = {config.what!r}", expected="the folder of a scene")
    opened = open_splats(config.what, "what", emit)
    found = {"file": str(opened.file), **splats_info(opened.splats)}
    if opened.config is not None:
        wanted = ("status", "steps", "seconds", "held_out", "trained_on", "background", "device")
        found |= {"scene": opened.config.scene, "preset": opened.config.preset}
        found |= {name: opened.results[name] for name in wanted if name in opened.results}
    return found


def _scene_info(path: Path, config: SplatInfoConfig) -> dict[str, Any]:
    scene = read_scene(path, config.images, config.factor, skip_missing=True)
    train, held_out = scene.split()
    sizes = sorted({(view.camera.width, view.camera.height) for view in scene.views})
    return {
        "scene": str(path), "pictures": len(scene.views), "train": len(train), "held_out": len(held_out),
        "sizes": [f"{width}x{height}" for width, height in sizes[:4]], "points": len(scene.points),
        "distorted": sum(view.lens is not None for view in scene.views),
        "masks": sum(view.mask is not None for view in scene.views), "notes": list(scene.notes()),
    }  # fmt: skip


def splats_info(splats: Splats) -> dict[str, Any]:
    """Splats in a few numbers."""
    good = splats.take(~splats.bad())
    bad = len(splats) - len(good)
    found: dict[str, Any] = {"splats": len(splats), "sh_degree": splats.sh_degree, "bad_splats": bad}
    if len(good):
        means = torch.from_numpy(good.means)
        scales, opacities = torch.from_numpy(good.log_scales), torch.from_numpy(good.logit_opacities)
        found |= {"low": means.amin(0).tolist(), "high": means.amax(0).tolist(), **medians(scales, opacities)}
    return found
