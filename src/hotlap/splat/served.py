"""A trained scene behind a service: a camera comes in, the picture that it sees goes out."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from hotlap.base.errors import ConfigError, DataError, TooLarge, UsageError
from hotlap.data.picture_file import require_pillow
from hotlap.measure.servable import PICTURE, Decoded, FileAnswer, ModelSpec, Rows, Signature, TensorSpec
from hotlap.splat.album import as_bytes
from hotlap.splat.judge import Model
from hotlap.splat.opened import open_splats
from hotlap.splat.render import PLAIN_SIZE, read_shot

MOST_PIXELS = 16_000_000
"""Of one picture: 4000x4000."""
POSE, INTRINSICS, CANVAS = "viewmats", "Ks", "canvas"


class LoadedScene:
    """Splats on a device. The canvas holds nothing: its height and width are those of the picture."""

    def __init__(self, model: Model, device: torch.device, rows: int) -> None:
        self._model, self._device = model, device
        self.signature = Signature(
            inputs=(
                TensorSpec(name=POSE, dtype="float32", shape=(4, 4)),
                TensorSpec(name=INTRINSICS, dtype="float32", shape=(3, 3)),
                TensorSpec(name=CANVAS, dtype="uint8", shape=(-1, -1, 0)),
            ),
            outputs=(TensorSpec(name="picture", dtype="uint8", shape=(-1, -1, 3)),),
            rows=rows,
            arm=str(device),
        )

    def begin(self, parts: Sequence[Rows]) -> Callable[[], Rows]:
        height, width = parts[0][2].shape[1:3]
        if not 0 < height * width <= MOST_PIXELS:
            kind = TooLarge if height * width else UsageError
            raise kind(f"a picture of {width}x{height} pixels", expected=f"1 to {MOST_PIXELS} in all")
        shots = [shot for poses, cameras, _ in parts for shot in zip(poses, cameras, strict=True)]
        drawn = [
            self._model.draw(pose.to(self._device), camera.to(self._device), int(height), int(width))
            for pose, camera in shots
        ]
        made = torch.stack([(picture.clamp(0, 1) * 255).round().to(torch.uint8) for picture in drawn])
        return lambda: (made.cpu(),)


class SplatServable:
    """A scene of splats, from a file or the folder of a training."""

    threshold = 0.5
    is_heavy = False
    takes_arm = False
    """Splats are drawn in one way."""

    def __init__(self, spec: ModelSpec) -> None:
        if not spec.weights:
            raise ConfigError(
                f"model {spec.name!r} has no scene", remedy=f"Give it with --weights {spec.name}=scene.ply"
            )
        self._spec = spec

    def warm_up(self) -> None:
        require_pillow()

    def answers(self, signature: Signature) -> str:
        return PICTURE

    def load(self, device: str) -> LoadedScene:
        place = torch.device(device)
        loaded = LoadedScene(open_splats(self._spec.weights).model(place), place, self._spec.rows or 1)
        width, height = PLAIN_SIZE
        canvas = torch.zeros(1, height, width, 0, dtype=torch.uint8)
        camera = torch.tensor([[width, 0, width / 2], [0, width, height / 2], [0, 0, 1]], dtype=torch.float32)
        loaded.begin([(torch.eye(4)[None], camera[None], canvas)])()
        return loaded

    def decode(self, body: bytes, options: Mapping[str, Any], signature: Signature) -> Decoded:
        try:
            said = json.loads(body)
        except (ValueError, RecursionError) as error:
            raise DataError(f"the camera is not JSON: {error}") from error
        shot = read_shot(said, "the camera")
        camera = shot.camera
        if camera.width * camera.height > MOST_PIXELS:
            raise TooLarge(
                f"a picture of {camera.width}x{camera.height} pixels", expected=f"at most {MOST_PIXELS} in all"
            )
        pose, matrix = shot.pose.astype(np.float32), camera.matrix().astype(np.float32)
        canvas = torch.zeros(1, camera.height, camera.width, 0, dtype=torch.uint8)
        return Decoded((torch.from_numpy(pose)[None], torch.from_numpy(matrix)[None], canvas))

    def finish(self, out: Rows, facts: Mapping[str, Any], options: Mapping[str, Any]) -> FileAnswer:
        made = io.BytesIO()
        require_pillow().fromarray(as_bytes(out[0][0])).save(made, "PNG", compress_level=3)
        return FileAnswer(name="picture.png", content=made.getvalue(), media_type="image/png")
