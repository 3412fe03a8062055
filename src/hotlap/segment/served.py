"""Networks that find objects, behind a service: a picture of any size comes in, its objects go out.

A picture is normalised and cut as ``hotlap segment predict`` does it; its tiles are the rows that share batches with
those of other requests, and their maps are blended, split, outlined and measured by the same functions.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hotlap.base.errors import ConfigError, DataError, UsageError
from hotlap.base.events import Emit
from hotlap.data.micrograph import pictures_in
from hotlap.kernels.unfilter import op as unfilter_op
from hotlap.measure.arms import ArmSpec
from hotlap.measure.loaded_workload import LoadedWorkload, arm_on
from hotlap.measure.servable import OBJECTS, Decoded, ModelSpec, Rows, Signature, TensorSpec, answer_head
from hotlap.measure.served_workload import MAX_PIXELS, WorkloadServable
from hotlap.measure.weights import read_weights
from hotlap.records.tuned import ProfileStore
from hotlap.segment.app import TARGET
from hotlap.segment.instances import SplitConfig
from hotlap.segment.nets import SMP, WIDTHS, check_name
from hotlap.segment.network import load_net, recognise
from hotlap.segment.normalise import normalise
from hotlap.segment.objects import COLUMNS, ObjectMetrics
from hotlap.segment.predict import ManyConfig, Segmented, segment_maps
from hotlap.segment.targets import MAPS
from hotlap.segment.tiles import TileConfig, TilePlan, cut_tiles, join_tiles
from hotlap.segment.tuned_net import tiles_together, tuned_net, untuned_batch
from hotlap.targets import load_target
from hotlap.workload import Batch, Workload

TILE = 1024
OVERLAP = 128
_NAMES = COLUMNS[1:-1]
"""The columns between the label and the confidence, which objects have under names of their own."""


class TileNet(nn.Module):
    """A network that takes tiles as bytes and gives the probabilities of its maps."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, image: Tensor) -> Tensor:  # [n, 3, h, w] uint8 -> [n, M, h, w]
        scores: Tensor = self.net(image.float().div(255))
        likely = torch.sigmoid(scores.float())
        # Scores of 16 bits are not worth more, and half as much goes from the card to the door.
        return likely.half() if scores.dtype in (torch.bfloat16, torch.float16) else likely


class TileWorkload(Workload):
    """Tiles through a network, as something that can be loaded on any arm.

    They reach it in the arm's own layout, whichever they come in. Pictures have their channels last: a plain arm would
    not run as it was measured, and what was compiled while warming up would be compiled once more for a picture.
    """

    def __init__(
        self, name: str, build: Callable[[], nn.Module], arm: ArmSpec, shape: tuple[int, int], batch: int = 1
    ) -> None:
        self.name, self.default_batch = name, batch
        self._build, self._shape = build, shape
        self._layout = torch.channels_last if arm.channels_last else torch.contiguous_format

    def build_model(self) -> nn.Module:
        return TileNet(self._build())

    def predict(self, model: nn.Module, batch: Batch) -> Tensor:
        maps: Tensor = model(batch["image"].contiguous(memory_format=self._layout))
        return maps

    def make_batch(self, n: int, device: torch.device, generator: torch.Generator) -> Batch:
        tiles = torch.randint(256, (n, *self._shape, 3), generator=generator, dtype=torch.uint8)
        return {"image": tiles.permute(0, 3, 1, 2).contiguous(memory_format=self._layout).to(device)}


class SegmentServable:
    """A network that finds objects, told by its target or recognised by its weights."""

    threshold = 0.5
    is_heavy = True

    def __init__(self, spec: ModelSpec) -> None:
        self._spec = spec
        size = int(spec.options.get("size", TILE))
        self._tiles = TileConfig(tile=size, overlap=min(OVERLAP, size // 4), multiple=math.gcd(64, size))

    def warm_up(self) -> None:
        maps = np.random.default_rng(0).random((len(MAPS), 32, 32), np.float32)
        for names in (MAPS, MAPS[:1]):  # other steps are taken where only the foreground is known
            find_objects(maps[: len(names)], names, {})
        unfilter_op.warm_up()

    def answers(self, signature: Signature) -> str:
        return OBJECTS

    def load(self, device: str) -> LoadedWorkload:
        spec = self._spec
        workload: Any = load_target(spec.target, spec.options)
        build: Callable[[], nn.Module] = workload.build_model
        names: tuple[str, ...] = getattr(workload, "maps", MAPS[:1])
        if spec.weights:
            net = load_net(Path(spec.weights), _named(spec, workload), int(spec.options.get("width", 0)) or None)
            build, names = lambda: net.model, net.names
        arm, side = arm_on(spec.arm, device), self._tiles.tile
        tiles = TileWorkload(spec.name, build, arm, (side, side), workload.default_batch)
        rows = spec.rows or untuned_batch(arm.device, side, tiles.default_batch)
        loaded = LoadedWorkload(tiles, arm, rows, widen=False)
        loaded.signature = _of_any_size(loaded.signature, names)
        return loaded

    def tuned(self, device: str, emit: Emit, store: ProfileStore | None) -> ModelSpec:
        """As the network's tuned profile says, whichever target that was found under; by the width of its weights."""
        spec, side = self._spec, self._tiles.tile
        name, width = _named(spec, load_target(spec.target, spec.options)), int(spec.options.get("width", 0))
        if name is not None and not name.startswith(SMP):
            check_name(name)
        if name is None or (spec.weights and name in WIDTHS):
            file = Path(spec.weights)
            name, width, _ = recognise(read_weights(file), file, name)
        profile = tuned_net(name, width or WIDTHS.get(name, 0), side, device, emit, store)
        if profile is None:
            return spec
        return dataclasses.replace(spec, arm=profile.arm, rows=spec.rows or tiles_together(profile, side, emit))

    def decode(self, body: bytes, options: Mapping[str, Any], signature: Signature) -> Decoded:
        scale = options.get("um_per_px")
        split_config(options)  # before the work, not after it
        if scale is not None and not 0 < scale < math.inf:
            raise ConfigError(f"um_per_px = {scale}", expected="a number above 0")
        picture = read_upload(body, str(options.get("filename") or "upload"))
        plan, tiles = cut_tiles(picture, self._tiles)
        rows = torch.from_numpy(np.ascontiguousarray(tiles)).permute(0, 3, 1, 2)
        names = signature.outputs[0].planes
        return Decoded((rows,), {"width": plan.width, "height": plan.height, "plan": plan, "names": names})

    def finish(self, out: Rows, facts: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
        plan: TilePlan = facts["plan"]
        maps = join_tiles(out[0].float(), plan, self._tiles)
        found = find_objects(maps, facts["names"], options)
        return {**answer_head(self._spec.name, facts, options), "objects": found}


class UNetServable(WorkloadServable):
    """A U-Net: with weights of one map it finds objects; with classes it tells them, or the objects of one of them."""

    is_heavy = True

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__(spec)
        options = {"size": TILE, **spec.options}
        self._objects = SegmentServable(dataclasses.replace(spec, options=options))

    def warm_up(self) -> None:
        self._objects.warm_up()

    def answers(self, signature: Signature) -> str:
        return OBJECTS if _is_one_map(signature) else super().answers(signature)

    def tuned(self, device: str, emit: Emit, store: ProfileStore | None) -> ModelSpec | None:
        """As of other networks where it finds objects; one that tells classes is asked for as any target is."""
        if self._num_maps() != 1:
            return None
        tuned = self._objects.tuned(device, emit, store)
        return dataclasses.replace(self._spec, arm=tuned.arm, rows=tuned.rows)

    def load(self, device: str) -> LoadedWorkload:
        if self._spec.weights:
            file, num_maps = self._spec.weights, self._num_maps()
            if num_maps == 1:
                return self._objects.load(device)
            if num_maps == len(MAPS) and "classes" not in self._spec.options:
                raise UsageError(
                    f"weights = {file!r} predict {num_maps} maps, which may be classes or those of cells",
                    remedy="Serve what 'hotlap segment train' has learned as 'hotlap serve cells', and classes with "
                    f"--set workload.classes={num_maps}",
                )
        return super().load(device)

    def _num_maps(self) -> int:
        """Of its weights; 0 without any."""
        file = Path(self._spec.weights)
        return recognise(read_weights(file), file, "unet")[2] if self._spec.weights else 0

    def decode(self, body: bytes, options: Mapping[str, Any], signature: Signature) -> Decoded:
        if _is_one_map(signature):
            return self._objects.decode(body, options, signature)
        chosen, num = options.get("class"), signature.outputs[0].shape[0]
        if chosen is not None and not 0 <= chosen < num:
            raise ConfigError(f"class = {chosen}", expected=f"a class of model {self._spec.name!r}: 0 to {num - 1}")
        if chosen is not None:
            split_config(options)
        return super().decode(body, options, signature)

    def finish(self, out: Rows, facts: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
        if "plan" in facts:
            return self._objects.finish(out, facts, options)
        if options.get("class") is None:
            return super().finish(out, facts, options)
        likely = out[0].softmax(1)[:, options["class"]][:, None]
        size = (facts["height"], facts["width"])
        maps = nn.functional.interpolate(likely, size, mode="bilinear", align_corners=False)[0].numpy()
        head = answer_head(self._spec.name, facts, options)
        return {**head, "class": options["class"], "objects": find_objects(maps, MAPS[:1], options)}


def _of_any_size(signature: Signature, names: tuple[str, ...]) -> Signature:
    """The same model, which takes tiles of any height and width and gives maps of these names."""

    def free(spec: TensorSpec, planes: tuple[str, ...] = ()) -> TensorSpec:
        return dataclasses.replace(spec, shape=(spec.shape[0], -1, -1), planes=planes)

    (taken,), (given,) = signature.inputs, signature.outputs
    return dataclasses.replace(signature, inputs=(free(taken),), outputs=(free(given, names),))


def _named(spec: ModelSpec, workload: Any) -> str | None:
    """The network's name: what the target was told, or the target; None for ``cells`` whose weights are to tell it."""
    if spec.target == TARGET and spec.weights and "model" not in spec.options:
        return None
    return str(getattr(workload.config, "model", spec.target))


def _is_one_map(signature: Signature) -> bool:
    return signature.outputs[0].shape[:1] == (1,)


def read_upload(body: bytes, name: str) -> np.ndarray:  # [H, W, 3] uint8
    """The one picture in a client's bytes, normalised; ``name`` is for messages alone."""
    pictures = pictures_in(body, Path(name), most_pixels=MAX_PIXELS, rows=unfilter_op.compiled_rows())
    first = next(pictures)
    if first.num_pages > 1:
        raise DataError(f"picture {name!r} has {first.num_pages} pages", expected="one", remedy="Send one page")
    return normalise(first.pixels)


def split_config(options: Mapping[str, Any]) -> SplitConfig:
    """How maps become objects, as a client wants it."""
    return SplitConfig(threshold=float(options.get("threshold", 0.5)))


def find_objects(maps: np.ndarray, names: tuple[str, ...], options: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The objects that maps [M, H, W] show, as JSON."""
    config = ManyConfig(split=split_config(options), um_per_px=options.get("um_per_px"))
    return objects_as_json(segment_maps(maps, names, config))


def objects_as_json(found: Segmented) -> list[dict[str, Any]]:
    """Each object with its outline in the picture's own pixels, whose first corner is not repeated, and its metrics."""
    made = []
    for outline, measured in zip(found.outlines, found.objects, strict=True):
        (part,) = outline.parts  # split() gives connected objects only
        made.append(
            {
                "id": measured.label,
                "polygon": part.outer.astype(int).tolist(),
                "holes": [hole.astype(int).tolist() for hole in part.holes],
                "confidence": measured.confidence,
                "metrics": metrics_as_json(measured),
            }
        )
    return made


def metrics_as_json(measured: ObjectMetrics) -> dict[str, int | float | str]:
    """The metrics by the names that tables have for them, without the label and the confidence."""
    return dict(zip(_NAMES, measured[1:-1], strict=True))
