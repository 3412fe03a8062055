"""Any workload as a servable: tensors or a picture in, its raw output or a map of classes out."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hotlap.base.errors import DataError, HotlapError, TooLarge, UsageError
from hotlap.data.picture_file import PictureTooLarge, UnreadablePicture, require_pillow, to_rgb
from hotlap.measure.loaded_workload import LoadedWorkload, arm_on
from hotlap.measure.servable import CLASSES, TENSORS, Decoded, ModelSpec, Rows, Signature, answer_head
from hotlap.measure.weights import with_weights
from hotlap.targets import load_target

_ORIENTATION = 0x0112
_LYING = (5, 6, 7, 8)  # EXIF orientations that exchange width and height
MAX_PIXELS = 64_000_000
"""Of one picture: an 8000x8000 scan. More may be a small file that unpacks into all of memory."""


class WorkloadServable:
    """A workload behind the door: pictures where the model takes them, a map of classes where it gives one."""

    threshold = 0.5
    is_heavy = False

    def __init__(self, spec: ModelSpec) -> None:
        self._spec = spec

    def warm_up(self) -> None:
        return

    def answers(self, signature: Signature) -> str:
        return CLASSES if len(signature.outputs) == 1 and len(signature.outputs[0].shape) == 3 else TENSORS

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

    def finish(self, out: Rows, facts: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
        (scores,) = out
        head = answer_head(self._spec.name, facts, options)
        if scores.ndim != 4:
            return {**head, "output": scores[0].tolist()}
        if scores.shape[1] == 1:
            classes = (scores[0, 0].sigmoid() >= head["threshold"]).long()
        else:
            classes = scores[0].argmax(0)
        return {**head, "classes": _class_boxes(classes, facts)}


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
    except image_module.DecompressionBombError as error:  # Pillow's own limit, met before ours can be asked
        raise PictureTooLarge(name, str(error)) from error
    except Exception as error:  # a decoder may fail in any way on bytes made to break it
        raise UnreadablePicture(name, str(error) or type(error).__name__) from error


def _decode(image: Any, name: str, size: tuple[int, int]) -> tuple[Tensor, tuple[int, int]]:
    import numpy as np
    from PIL import Image, ImageOps

    width, height = image.size
    if width * height > MAX_PIXELS:
        raise TooLarge(f"picture {name!r} has {width}x{height} pixels", expected=f"at most {MAX_PIXELS} in all")
    if getattr(image, "n_frames", 1) > 1 and image.format != "MPO":  # a photograph with its preview
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
