"""A trained network, found and recognised by its weights."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from hotlap.base import events
from hotlap.base.errors import ConfigError, UsageError
from hotlap.base.events import Emit, ignore
from hotlap.engine.checkpoint import CheckpointStore
from hotlap.engine.config import CHECKPOINTS
from hotlap.measure.weights import load_weights, read_weights
from hotlap.segment.app import RUNS, WEIGHTS
from hotlap.segment.heads import HEADS, MARK, marked_head, usual_head
from hotlap.segment.nets import LEAST, NETS, SMP, build_head, build_net, check_name
from hotlap.segment.predict_config import SegmentPredictConfig


@dataclass(frozen=True)
class TrainedNet:
    """A network with its weights, on the CPU."""

    model: nn.Module
    name: str
    names: tuple[str, ...]
    """Of its maps."""
    digest: str
    width: int
    """Channels of the first level; 0 where the name decides them."""


def load_net(file: Path, named: str | None = None, width: int | None = None) -> TrainedNet:
    """The network that a file of weights belongs to; one of segmentation_models_pytorch must be named."""
    weights = read_weights(file)
    if named is not None and named.startswith(SMP):
        name, num_maps = named, _num_maps_given(weights, file, named, width)
    else:
        name, own, num_maps = recognise(weights, file, named)
        if width not in (None, own):
            raise UsageError(
                f"width = {width} is not that of weights = {str(file)!r}", expected=str(own), remedy="Leave --width out"
            )
        width = own
    head = marked_head(weights) or usual_head(num_maps)
    if head is None or len(HEADS[head]) != num_maps:
        expected = "; ".join(", ".join(names) for names in HEADS.values())
        raise UsageError(f"weights = {str(file)!r} predict {num_maps} maps", expected=expected)
    model = build_head(name, head, width=width)
    load_weights(model, weights, file)
    return TrainedNet(model, name, HEADS[head], f"{name} {_digest(weights)}", width or 0)


def find_weights(config: SegmentPredictConfig, emit: Emit = ignore) -> Path:
    """The file with the weights; of a training's folder without it the best checkpoint, as is said, or the last."""
    given = config.weights
    if given is None:
        given = Path(config.model)
        if not given.exists():
            known = config.model in NETS or config.model.startswith(SMP)
            raise ConfigError(
                f"model = {config.model!r} "
                + ("comes without weights" if known else "is neither a file nor a network"),
                expected=f"a checkpoint, a training's folder, or one of {', '.join(NETS)} with --weights",
                remedy="'hotlap segment train' makes one",
            )
    if not given.is_dir():
        return given
    if (given / WEIGHTS).is_file():
        return given / WEIGHTS
    for folder in (given / CHECKPOINTS, given):
        store = CheckpointStore(folder)
        best = store.best_path()
        if best is not None:
            said = f"{WEIGHTS} is not in {str(given)!r}: the weights are those of its best checkpoint, {best.name}."
            emit(events.warn(f"{said} Held-out images have chosen it, and scores on them flatter it."))
            return best
        last = sorted(folder.glob("step-*.pt"))
        if last:
            return last[-1]
    raise UsageError(
        f"folder {str(given)!r} holds no checkpoint",
        expected=f"{WEIGHTS} or {CHECKPOINTS}/step-*.pt in it",
        remedy=f"A training that was killed has checkpoints in {given / RUNS}: 'hotlap segment train' with the same "
        "settings and --resume goes on with it"
        if (given / RUNS).is_dir()
        else "",
    )


def recognise(weights: Mapping[str, Tensor], file: Path, named: str | None = None) -> tuple[str, int, int]:
    """Name, width and number of maps of the network that these weights belong to."""
    if named is not None:
        check_name(named)
    name = next((name for name in NETS if set(_shapes(name, 1, LEAST[name])) == _names(weights)), None)
    if name is None or named not in (None, name):
        raise _not_those(file, named, name)
    least = LEAST[name]
    narrow, wide = _shapes(name, 1, least), _shapes(name, 1, 2 * least)
    head = _first_other(narrow, _shapes(name, 2, least))
    body = _first_other(narrow, wide)
    # Channels grow in step with the width.
    grown = (len(weights[body]) - narrow[body][0]) * least
    return name, least + grown // (wide[body][0] - narrow[body][0]), len(weights[head])


def _first_other(some: Mapping[str, torch.Size], others: Mapping[str, torch.Size]) -> str:
    """The first tensor that has another first side in the one than in the other."""
    return next(key for key in some if some[key][:1] != others[key][:1])


@functools.cache
def _shapes(name: str, maps: int, width: int | None) -> dict[str, torch.Size]:
    with torch.device("meta"):
        return {key: tensor.shape for key, tensor in build_net(name, maps=maps, width=width).state_dict().items()}


def _num_maps_given(weights: Mapping[str, Tensor], file: Path, name: str, width: int | None) -> int:
    """Of weights whose network is known by name; files keep tensors in orders of their own, so names must tell."""
    one = _shapes(name, 1, width)
    if set(one) != _names(weights):
        raise _not_those(file, name)
    return len(weights[_first_other(one, _shapes(name, 2, width))])


def _names(weights: Mapping[str, Tensor]) -> set[str]:
    """Of a network's tensors, without the mark of its head."""
    return {key for key in weights if not key.startswith(MARK)}


def _not_those(file: Path, named: str | None, found: str | None = None) -> UsageError:
    """The error for weights of another network than ``named``: of ``found``, where that is known."""
    remedy = "One of segmentation_models_pytorch must be named beside its weights, as smp:unet/resnet34"
    if found is not None:
        of = str(file)
        remedy = f"'hotlap segment predict --model {of}' and 'hotlap serve cells --weights cells={of}' recognise them"
    return UsageError(
        f"weights = {str(file)!r} are not those of {named or 'a network known here'}"
        + (f", but of {found}" if found else ""),
        expected=f"weights of {named or ', '.join(NETS)}",
        remedy=remedy,
    )


def _digest(weights: Mapping[str, Tensor]) -> str:
    made = hashlib.sha256()
    for key in sorted(weights):
        made.update(key.encode())
        made.update(weights[key].detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return made.hexdigest()[:16]
