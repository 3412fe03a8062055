"""The tuned profile of a network that finds objects: one rule, for folders of pictures and for the service.

A network is known by its name and width, however it was called when it was tuned: as a target of its own, or as
``cells`` with ``workload.model``. Options that leave the network as it is, such as its images' size, do not hide it.
"""

from __future__ import annotations

import contextlib
from typing import Any

import torch

from hotlap.base import events
from hotlap.base.errors import RecordError
from hotlap.base.events import Emit
from hotlap.measure.fingerprint import Question, stored_profile
from hotlap.records.tuned import ProfileStore, TunedKey, TunedProfile, read_profile
from hotlap.segment.app import TARGET
from hotlap.segment.nets import WIDTHS
from hotlap.segment.presets import CellConfig

OWN_TARGETS = ("hrnet", "resunet-small", "ma-resunet")
"""Networks that are a target with the same images and maps as ``cells``; that of ``unet`` has others."""

CPU_PIXELS = 1024**2
"""Of tiles that go together through a network that was never tuned, on a CPU, which is no faster with more: eight
pictures of 1024x1024 took hrnet 72 s one by one and 117 s together on two cores, with 2.1 and 6.7 GiB of memory; others
need two to three times as much."""


def tuned_net(
    name: str, width: int, tile: int, device: str, emit: Emit, store: ProfileStore | None = None
) -> TunedProfile | None:
    """The profile for inference of a network that sees such tiles; what was found, stale or missing is said.

    ``width`` is 0 where the name decides it.
    """
    store = store or ProfileStore()
    target, options = _nearest(store, name, width, tile, torch.device(device).type) or _to_tune(name, width, tile)
    question = Question(target=target, mode="infer", options=options, inputs=[], device=device)
    profile, lines = stored_profile(question, emit, store)
    if profile is None and not lines:
        emit(events.note(f"Network {name!r} was never tuned here. {question.command!r} finds its arm and batch."))
    return profile


def tiles_together(profile: TunedProfile, tile: int, emit: Emit) -> int:
    """The profile's batch; where it was measured with smaller images, as many tiles as have no more pixels."""
    side = _side(profile.key)
    if side >= tile:
        return profile.batch
    batch = max(1, profile.batch * side**2 // tile**2)
    emit(
        events.note(
            f"Its batch was measured with images of {side}x{side}; tiles of {tile}x{tile} go {batch} at a time."
        )
    )
    return batch


def untuned_batch(device: str, tile: int, most: int) -> int:
    """Tiles that go together through a network of which nothing better is known: ``most``, on a CPU few large ones."""
    return max(1, min(most, CPU_PIXELS // tile**2)) if device == "cpu" else most


def _to_tune(name: str, width: int, tile: int) -> tuple[str, dict[str, Any]]:
    """The target and options under which a network should be tuned."""
    is_own = name in OWN_TARGETS
    options: dict[str, Any] = {} if is_own else {"model": name}
    if width != WIDTHS.get(name, 0):
        options["width"] = width
    if tile != CellConfig.size:
        options["size"] = tile
    return name if is_own else TARGET, options


def _nearest(store: ProfileStore, name: str, width: int, tile: int, kind: str) -> tuple[str, dict[str, Any]] | None:
    """The target and options with which the network was tuned at the size nearest to a tile, of several the newest.

    Small machines are tuned with small images, and with one's own. Profiles of another kind of device, as in a home
    folder that several machines share, say nothing.
    """
    found = []
    for path in [path for target in (name, TARGET) for path in store.candidates(target, "infer")]:
        with contextlib.suppress(RecordError):  # named when the profile is asked for
            profile = read_profile(path)
            if profile.key.device == kind and _network(profile.key) == (name, width):
                found.append(profile)
    found.sort(key=lambda profile: profile.measured_at, reverse=True)
    nearest = min(found, key=lambda profile: abs(_side(profile.key) - tile), default=None)
    return None if nearest is None else (nearest.key.target, nearest.key.options)


def _network(key: TunedKey) -> tuple[str, int]:
    """Name and width of the network that a profile is of."""
    name = str(key.options.get("model", CellConfig.model)) if key.target == TARGET else key.target
    return name, int(key.options.get("width") or WIDTHS.get(name, 0))


def _side(key: TunedKey) -> int:
    """Height and width of the images that a profile was measured with."""
    return int(key.signature.partition(":")[0].rpartition("x")[2])
