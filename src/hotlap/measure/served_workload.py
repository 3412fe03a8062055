"""Any workload as a servable: tensors or a picture in, its raw output or a map of classes out.

How it runs is an arm, so a served model uses the precision, layout and compilation that were measured. Arms that
record or compile see few sizes of batch: rows are padded to the next power of two and cut off again.
"""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hotlap.base.errors import DataError, HotlapError, OutOfMemory, UsageError
from hotlap.data.picture_file import UnreadablePicture, require_pillow, to_rgb
from hotlap.device.memory import is_out_of_memory
from hotlap.device.seed import generator
from hotlap.measure.arms import ArmSpec, parse_arm
from hotlap.measure.capture import Pattern, capture
from hotlap.measure.graph import GraphedStep
from hotlap.measure.servable import Decoded, ModelSpec, Signature, TensorSpec
from hotlap.measure.session import Session
from hotlap.measure.weights import with_weights
from hotlap.targets import load_target
from hotlap.workload import Workload

_ORIENTATION = 0x0112
_LYING = (5, 6, 7, 8)  # EXIF orientations that exchange width and height
MAX_PIXELS = 64_000_000
"""Of one picture: an 8000x8000 scan. More may be a small file that unpacks into all of memory."""


class LoadedWorkload:
    """A workload's model on a device, ready to answer."""

    _active: LoadedWorkload | None = None

    def __init__(self, workload: Workload, arm: ArmSpec, rows: int) -> None:
        self._workload = workload
        self._session = Session(workload, arm, mode="infer", batch=1, seed=0)
        self._session.host_batches, self._session.batches = [], []
        self._graphs: dict[tuple[Any, ...], GraphedStep] = {}
        self._full = rows
        self._pads = bool(arm.graph or arm.compile)
        example = self._session.place(workload.make_batch(2, torch.device("cpu"), generator(0)))
        self._pattern, tensors = Pattern.of(example)
        self._places, names = self._find_inputs(example, tensors)
        self._others = [t[:1] for t in tensors]
        inputs = tuple(
            TensorSpec(name=name, dtype=_dtype(tensors[i]), shape=tuple(tensors[i].shape[1:]))
            for i, name in zip(self._places, names, strict=True)
        )
        rows, out = self._warm(tuple(tensors[i].cpu() for i in self._places), rows)
        outputs = (TensorSpec(name="output", dtype=_dtype(out), shape=tuple(out.shape[1:])),)
        self.signature = Signature(inputs=inputs, outputs=outputs, rows=rows, arm=arm.name)

    def _find_inputs(self, example: Any, tensors: list[Tensor]) -> tuple[list[int], list[str]]:
        """Which tensors of a batch reach the model, and what its forward pass calls them; the others are targets."""
        call = capture(self._workload, self._session.plain_model, example)
        known = {id(tensor): place for place, tensor in enumerate(tensors)}
        if all(id(tensor) in known for tensor in call.tensors):
            return [known[id(tensor)] for tensor in call.tensors], call.names
        return list(range(len(tensors))), [f"input_{i}" for i in range(len(tensors))]

    def _warm(self, example: tuple[Tensor, ...], rows: int) -> tuple[int, Tensor]:
        """Runs a full batch once; where it does not fit, half of it, until one does."""
        while True:
            try:
                sizes = {rows, 1} if not self._pads else {rows, *(2**i for i in range(rows.bit_length()))}
                for size in sorted((size for size in sizes if size <= rows), reverse=True):
                    (out,) = self.run(tuple(t[:1].repeat(size, *[1] * (t.ndim - 1)) for t in example))
                return rows, out
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
                if rows == 1:
                    raise OutOfMemory(f"one row of model {self._workload.name!r} does not fit") from error
                self._full = rows = rows // 2

    def run(self, rows: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        if LoadedWorkload._active is not self:
            self._session.activate()
            LoadedWorkload._active = self
        num_rows = rows[0].shape[0]
        size = max(num_rows, min(self._full, 1 << (num_rows - 1).bit_length())) if self._pads else num_rows
        batch = self._session.place(self._batch_of(rows, size))
        out = self._replay(batch, rows, size) if self._session.spec.graph else self._session.infer_on(batch)
        out = out[:num_rows].cpu()
        return (out.float() if out.dtype in (torch.bfloat16, torch.float16) else out,)

    def _batch_of(self, rows: tuple[Tensor, ...], size: int) -> Any:
        """The batch that predict() takes, of ``size`` samples; the last row fills it up, and targets are made up."""
        tensors = [other.expand(size, *other.shape[1:]) for other in self._others]
        for place, tensor in zip(self._places, rows, strict=True):
            filler = tensor[-1:].expand(size - tensor.shape[0], *tensor.shape[1:])
            tensors[place] = torch.cat([tensor, filler]) if len(filler) else tensor
        return self._pattern.fill(tensors)

    def _replay(self, batch: Any, rows: tuple[Tensor, ...], size: int) -> Tensor:
        key = (size, *(tuple(t.shape[1:]) for t in rows))
        if key not in self._graphs:
            model = self._session.plain_model
            self._graphs[key] = GraphedStep(self._session.infer_on, batch, model=model, optimizer=None)
        return self._graphs[key](batch)


class WorkloadServable:
    """A workload behind the door: pictures where the model takes them, a map of classes where it gives one."""

    def __init__(self, spec: ModelSpec) -> None:
        self._spec = spec

    def load(self, device: str) -> LoadedWorkload:
        spec = self._spec
        workload = load_target(spec.target, spec.options, spec.inputs)
        if spec.weights:
            workload = with_weights(workload, Path(spec.weights))
        return LoadedWorkload(workload, arm_on(spec.arm, device), spec.rows or workload.default_batch)

    def decode(self, body: bytes, options: Mapping[str, Any], signature: Signature) -> Decoded:
        wanted = signature.inputs[0]
        if len(signature.inputs) != 1 or len(wanted.shape) != 3 or wanted.shape[0] != 3 or wanted.dtype != "float32":
            said = "; ".join(f"{spec.name} {list(spec.shape)} {spec.dtype}" for spec in signature.inputs)
            raise UsageError(f"model {self._spec.name!r} takes no pictures", expected=f"tensors: {said}")
        name = str(options.get("filename") or "upload")
        pixels, (width, height) = decode_picture(body, name, (wanted.shape[1], wanted.shape[2]))
        return Decoded((pixels[None],), {"width": width, "height": height})

    def finish(self, out: tuple[Tensor, ...], facts: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
        (scores,) = out
        if scores.ndim != 4:
            return {"output": scores[0].tolist()}
        threshold = float(options.get("threshold", 0.5))
        if scores.shape[1] == 1:
            classes = (scores[0, 0].sigmoid() >= threshold).long()
        else:
            classes = scores[0].argmax(0)
        return {"image_size": dict(facts), "classes": _class_boxes(classes, facts)}


def arm_on(text: str, device: str) -> ArmSpec:
    """The arm that ``text`` spells, moved to ``device``; a plain one where nothing is said."""
    place = torch.device(device)
    arm = parse_arm(text) if text else ArmSpec(device="cuda" if place.type == "cuda" else "cpu")
    if arm.device != place.type:
        raise UsageError(f"arm {text!r} cannot run on device {device!r}", expected=f"an arm of {place.type}")
    return dataclasses.replace(arm, index=place.index or 0)


def decode_picture(body: bytes, name: str, size: tuple[int, int]) -> tuple[Tensor, tuple[int, int]]:
    """A picture in a client's bytes as [3, height, width] in 0..1 at ``size``, and its own width and height.

    Scaled without keeping its proportions. Turned as EXIF says. Damaged, animated, endless and non-finite
    ones are refused by name.
    """
    image_module = require_pillow()
    if not body:
        raise UnreadablePicture(name, "the file is empty")
    try:
        return _decode(image_module.open(io.BytesIO(body)), name, size)
    except HotlapError:
        raise
    except image_module.UnidentifiedImageError as error:
        raise UnreadablePicture(name, "no known picture format") from error
    except Exception as error:  # a decoder may fail in any way on bytes made to break it
        raise UnreadablePicture(name, str(error) or type(error).__name__) from error


def _decode(image: Any, name: str, size: tuple[int, int]) -> tuple[Tensor, tuple[int, int]]:
    import numpy as np
    from PIL import Image, ImageOps

    width, height = image.size
    if width * height > MAX_PIXELS:
        raise DataError(f"picture {name!r} has {width}x{height} pixels", expected=f"at most {MAX_PIXELS} in all")
    if getattr(image, "n_frames", 1) > 1:
        raise DataError(f"picture {name!r} has {image.n_frames} frames", expected="one", remedy="Send one frame")
    lying = image.getexif().get(_ORIENTATION, 1) in _LYING
    if image.format == "JPEG":
        image.draft("RGB", size if lying else size[::-1])
    image.load()
    if image.mode == "F" and not np.isfinite(np.asarray(image)).all():
        raise DataError(f"picture {name!r} holds NaN or infinite pixels", expected="finite ones")
    upright = ImageOps.exif_transpose(image)
    square = to_rgb(upright).resize(size[::-1], Image.Resampling.BILINEAR, reducing_gap=2.0)
    pixels = torch.from_numpy(np.array(square)).permute(2, 0, 1).float().div_(255)
    return pixels, (height, width) if lying else (width, height)


def _class_boxes(classes: Tensor, facts: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Where each class lies: its share of the picture and its box, in the picture's own pixels."""
    across, down = facts["width"] / classes.shape[1], facts["height"] / classes.shape[0]
    found = []
    for value in classes.unique().tolist():
        y, x = torch.where(classes == value)
        box = [x.min() * across, y.min() * down, (x.max() + 1) * across, (y.max() + 1) * down]
        share = len(x) / classes.numel()
        found.append({"class": value, "share": share, "box": [round(float(edge), 2) for edge in box]})
    return found


def _dtype(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")
