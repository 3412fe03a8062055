"""Splatting as a workload: a step of one camera a sample, on a drawn scene or one of your own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from hotlap.base.errors import ConfigError
from hotlap.data.drawn_scene import DrawnScene
from hotlap.data.scene import Scene, View
from hotlap.kernels.ssim.op import l1_ssim, ssim
from hotlap.splat.cameras import scene_extent
from hotlap.splat.config import SplatTrainConfig, config_with
from hotlap.splat.judge import psnr
from hotlap.splat.model import SplatModule
from hotlap.splat.pictures import load_scaled, planned_camera
from hotlap.splat.stage import DRAWN, drawn_folder, open_scene, split_views
from hotlap.splat.start import start_splats
from hotlap.splat.step import rates_of
from hotlap.workload import Agreement, Batch, Workload

SAME_PIXEL, LEAST_SAME = 1 / 255, 0.999
"""Two right programs draw the same picture but for single pixels, where they round a threshold otherwise."""


def splat(
    preset: str = "default",
    scene: str = DRAWN,
    images: str = "images",
    scale: float | None = None,
    splats: int | None = None,
    views: int = 16,
    width: int = 480,
    height: int = 270,
    batch: int = 1,
    seed: int = 0,
) -> SplatWorkload:
    """Splatting with these settings; ``views``, ``width`` and ``height`` are those of the drawn scene."""
    changes: dict[str, Any] = {"images": images, "seed": seed}
    changes |= {} if scale is None else {"scale": scale}
    changes |= {} if splats is None else {"start_splats": splats}
    config = config_with(preset, **changes)
    if scene == DRAWN:
        points = config.start_splats or 20_000
        if config.image_index is not None:  # one picture does not see them all
            points = points * 5 // 4
        drawn = DrawnScene(num_views=views, width=width, height=height, num_points=max(4, points))
        return SplatWorkload(config_with(preset, **{**changes, "scale": 1.0, "scene": str(drawn_folder(drawn))}), batch)
    return SplatWorkload(config_with(preset, **changes, scene=scene), batch)


class SplatWorkload(Workload):
    """Batches hold image [n, H, W, 3] uint8, viewmats [n, 4, 4] and Ks [n, 3, 3] of views of one size."""

    name = "splat"

    def __init__(self, config: SplatTrainConfig, batch: int = 1) -> None:
        if batch < 1:
            raise ConfigError(f"batch = {batch} is not valid", expected="at least 1")
        self.config, self.default_batch = config, batch
        self._scene: Scene = open_scene(config)
        train, held_out = split_views(self._scene, config)
        size = Counter(self._size(view) for view in train).most_common(1)[0][0]
        self._train = tuple(view for view in train if self._size(view) == size)
        self._held_out = tuple(view for view in held_out if self._size(view) == size)
        self.width, self.height = size
        self._extent = scene_extent(train, self._scene.points)
        self._start = start_splats(self._scene, train, config, self._extent)
        self.summary = (
            f"{len(self._start['means'])} splats of degree {config.sh_degree}, {len(self._train)} views "
            f"of {self.width}x{self.height}, learning {', '.join(config.learn)}"
        )

    def _size(self, view: View) -> tuple[int, int]:
        camera = planned_camera(view, self.config.scale, self.config.max_side)
        return camera.width, camera.height

    def build_model(self) -> nn.Module:
        return SplatModule(self._start, self.config.learn, self.height, self.width)

    def make_batch(self, n: int, device: torch.device, generator: torch.Generator) -> Batch:
        data = self.train_data()
        picked = torch.randint(len(data), (n,), generator=generator).tolist()
        return {name: tensor.to(device) for name, tensor in self.collate([data[place] for place in picked]).items()}

    def predict(self, model: nn.Module, batch: Batch) -> Tensor:
        image: Tensor = model(batch["viewmats"], batch["Ks"])
        return image

    def loss(self, model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor | int]:
        image, target = self.predict(model, batch), batch["image"]
        if self.config.loss == "l2":
            return (image - target.to(image.dtype) / 255).square().mean((1, 2, 3)).sum(), len(target)
        return l1_ssim(image, target, ssim_weight=self.config.ssim_weight) * len(target), len(target)

    def optimizer(self, model: nn.Module, *, fused: bool | None = None) -> torch.optim.Optimizer:
        rates = {**rates_of(self.config, self._extent), "background": self.config.lr_background}
        groups = [{"params": [param], "lr": rates[name]} for name, param in model.named_parameters()]
        return torch.optim.Adam(groups, eps=1e-15, fused=fused)

    def compare(self, out: Tensor, ref: Tensor) -> list[Agreement]:
        same = ((out.double() - ref.double()).abs().amax(-1) <= SAME_PIXEL).double().mean().item()
        return [Agreement(name="same pixels", value=same, at_least=LEAST_SAME)]

    def train_data(self) -> ViewData:
        return ViewData(self._train, self.config)

    def eval_data(self) -> ViewData:
        return ViewData(self._held_out or self._train, self.config)

    @torch.no_grad()
    def metrics(self, model: nn.Module, data: Dataset, device: torch.device) -> dict[str, float]:
        scores: dict[str, list[float]] = {"psnr": [], "ssim": []}
        for place in range(len(data)):  # type: ignore[arg-type]
            batch = {name: tensor.to(device) for name, tensor in self.collate([data[place]]).items()}
            drawn = self.predict(model, batch).clamp(0, 1)
            scores["psnr"].append(psnr(drawn[0], batch["image"][0]))
            scores["ssim"].append(float(ssim(drawn, batch["image"])))
        return {name: sum(values) / len(values) for name, values in scores.items()}


class ViewData(Dataset[dict[str, Tensor]]):
    """Views as samples; pictures are read when they are asked for, and kept."""

    def __init__(self, views: Sequence[View], config: SplatTrainConfig) -> None:
        self._views, self._load = views, partial(load_scaled, scale=config.scale, max_side=config.max_side)
        self._kept: dict[int, dict[str, Tensor]] = {}

    def __len__(self) -> int:
        return len(self._views)

    def __getitem__(self, place: int) -> dict[str, Tensor]:
        if place not in self._kept:
            view = self._views[place]
            loaded = self._load(view)
            self._kept[place] = {
                "image": torch.from_numpy(loaded.image.copy()),
                "viewmats": torch.from_numpy(view.camera_from_world).float(),
                "Ks": torch.from_numpy(loaded.camera.matrix()).float(),
            }
        return self._kept[place]
