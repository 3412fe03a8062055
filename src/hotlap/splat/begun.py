"""The folder that a training may have, and the settings that it was begun with."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path
from typing import Any

from hotlap.base import events
from hotlap.base.errors import ConfigError, RecordError, StorageError
from hotlap.base.events import Emit
from hotlap.base.settings import Layer
from hotlap.engine.checkpoint import CheckpointStore
from hotlap.engine.config import CHECKPOINTS
from hotlap.engine.durable import write_durably
from hotlap.records.codec import encode
from hotlap.records.run import run_folder
from hotlap.splat.apart import check_apart
from hotlap.splat.config import FIELDS, SplatTrainConfig
from hotlap.splat.outcome import MODEL
from hotlap.splat.stage import DRAWN, scene_place

SETTINGS = "settings.json"
FREE = (
    "out", "resume", "device", "images_on", "graph", "eval_every", "max_test_views", "keep", "log_every", "pictures",
    "abort_psnr_drop", "abort_growth", "checkpoint_every", "view",
)  # fmt: skip
"""Settings that do not change what is trained, so that a resumed training may have others."""
OPEN_ADAM = "auto"
"""What earlier versions wrote for an Adam that was left open: dense with mcmc, lazy without."""
REMEDY = "Free some space or choose another folder with --out"


def as_begun(config: SplatTrainConfig, emit: Emit) -> SplatTrainConfig:
    """A training whose Adam an earlier version left open goes on with the one it took: its state is of that kind."""
    if not config.resume or not config.out or config.adam != "dense" or config.strategy == "mcmc":
        return config
    if _stored(Path(config.out)).get("adam") != OPEN_ADAM:
        return config
    emit(events.note("adam = 'lazy', as this training was begun"))
    return dataclasses.replace(config, adam="lazy")


def check_folder(config: SplatTrainConfig) -> None:
    """Refuses a folder that holds another training, before anything is read."""
    if config.resume and not config.out:
        raise ConfigError("resume = True without out", remedy="Name the folder of the training with --out")
    if config.out:
        _check_place(Path(config.out))
    if config.out and config.scene:
        check_apart(Path(config.out), [Path(config.scene)])  # its folders are looked at when they are known
    if config.resume:
        _check_same(config, Path(config.out))
        return
    there = CheckpointStore(Path(config.out) / CHECKPOINTS).steps() if config.out else []
    if there:
        raise ConfigError(
            f"out = {config.out!r} holds a training of {there[-1]} steps",
            remedy="Go on with --resume, or choose another folder",
        )
    if config.out and (Path(config.out) / MODEL).exists():  # that of a training which stopped before its first one
        raise ConfigError(
            f"out = {config.out!r} holds the {MODEL} of another training",
            remedy="Choose another folder, or move that one away",
        )


def _check_place(out: Path) -> None:
    """Refuses a place where no folder can be made."""
    nearest = next(path for path in (out, *out.absolute().parents) if path.exists())
    if not nearest.is_dir():
        raise StorageError(f"out = {str(out)!r} cannot be made: {str(nearest)!r} is no folder", remedy=REMEDY)
    if not os.access(nearest, os.W_OK):
        raise StorageError(f"out = {str(out)!r} cannot be made: {str(nearest)!r} may not be written", remedy=REMEDY)


def make_folder(config: SplatTrainConfig) -> Path:
    """The folder of this training."""
    name = f"splat-{Path(config.scene).resolve().name or config.scene}"
    folder = Path(config.out) if config.out else run_folder(Path("runs"), name)
    if config.resume:
        return folder
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(f"out = {str(folder)!r} cannot be made: {error.strerror}", remedy=REMEDY) from error
    return folder


def write_settings(config: SplatTrainConfig, folder: Path) -> None:
    _write(encode(config) | {"scene": scene_place(config.scene)}, folder)


def _write(settings: dict[str, Any], folder: Path) -> None:
    write_durably(folder / SETTINGS, json.dumps(settings, indent=1).encode() + b"\n", remedy=REMEDY)


def note_place(scene: str, folder: Path) -> None:
    """Notes where the scene of a training that goes on is now."""
    before, place = _stored(folder), scene_place(scene)
    if before.get("scene") != place:
        _write({**before, "scene": place}, folder)


def begun_layer(out: str) -> Layer:
    """What the training in a folder was begun with: so it goes on where nothing else is said."""
    found = read_settings(Path(out))
    again = ("out", "resume", "view")
    said = {name: value for name, value in found.items() if name in FIELDS and name not in again}
    return Layer(f"the training in {out}", said)


def _check_same(config: SplatTrainConfig, folder: Path) -> None:
    """Refuses to go on with settings that would have made another model."""
    before, after = read_settings(folder), encode(config)
    before, after = ({**one, "scene": scene_place(str(one.get("scene", "")))} for one in (before, after))
    for name, value in after.items():
        if name == "scene" and before[name] != DRAWN and not Path(before[name]).exists():
            continue  # it was moved, perhaps; its pictures are compared when they are read
        if name not in FREE and name in before and before[name] != value:
            raise ConfigError(
                f"{name} = {value!r} is not what the training in {str(folder)!r} was begun with",
                expected=f"{before[name]!r}",
                remedy="Leave it out, or begin a new training in another folder",
            )


def read_settings(folder: Path) -> dict[str, Any]:
    """The settings that a training was begun with."""
    found = _stored(folder)
    if found.get("adam") == OPEN_ADAM:
        found["adam"] = "dense" if found.get("strategy") == "mcmc" else "lazy"
    return found


def _stored(folder: Path) -> dict[str, Any]:
    """The same as they were written, perhaps by an earlier version."""
    path = folder / SETTINGS
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise RecordError(
            f"no training at {str(folder)!r}: {str(path)!r} cannot be read: {error.strerror or error}",
            expected=f"a folder with {SETTINGS}",
        ) from error
    except ValueError as error:
        raise RecordError(f"{str(path)!r} is not whole JSON ({error})") from error
    if not isinstance(found, dict):
        raise RecordError(f"{str(path)!r} holds a {type(found).__name__}", expected="settings by name")
    return found
