"""The mesh networks as workloads: drawn objects or a prepared folder, the published losses, Chamfer and F-scores."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from hotlap.data.counter_random import EVAL, TRAIN, draw_index
from hotlap.mesh.dataset import ViewedObjects, collate_views, prepared_files, split_files, with_variants
from hotlap.mesh.drawn import DrawnObjects, draw_objects
from hotlap.mesh.loss import coarse_weights, mesh_loss, refine_weights
from hotlap.mesh.metrics import mesh_scores, vertex_agreement
from hotlap.mesh.pixel2mesh_lite import Pixel2MeshLite
from hotlap.mesh.pixel2mesh_pp import CoarseStage, Pixel2MeshPP
from hotlap.mesh.presets import STAGES, MeshConfig
from hotlap.mesh.weights import start_from
from hotlap.workload import Agreement, Batch, Workload

WEIGHT_DECAY, CNN_WEIGHT_DECAY = 5e-6, 3e-6
"""The published factors of the squared weights of graph convolutions and of convolutions."""


def pixel2mesh_pp(
    stage: int = 2,
    views: int = 3,
    size: int = 224,
    hidden: int = 192,
    levels: int = 3,
    compat: bool = False,
    init: str = "",
    points: int = 2000,
    samples: int = 4000,
    batch: int = 16,
    data: str = "",
    hold_out: int = 8,
    augment: bool = True,
    train_objects: int = 200,
    eval_objects: int = 20,
    lr: float = 1e-4,
    seed: int = 0,
) -> Pixel2MeshPPWorkload:
    """The Pixel2Mesh++ workload with these settings; MeshConfig says what each means."""
    return Pixel2MeshPPWorkload(
        MeshConfig(
            stage=stage,
            views=views,
            size=size,
            hidden=hidden,
            levels=levels,
            compat=compat,
            init=init,
            points=points,
            samples=samples,
            batch=batch,
            data=data,
            hold_out=hold_out,
            augment=augment,
            train_objects=train_objects,
            eval_objects=eval_objects,
            lr=lr,
            seed=seed,
        )
    )


def pixel2mesh_lite(
    size: int = 224,
    subdivisions: int = 4,
    init: str = "",
    points: int = 2000,
    samples: int = 4000,
    batch: int = 16,
    data: str = "",
    hold_out: int = 8,
    augment: bool = True,
    train_objects: int = 200,
    eval_objects: int = 20,
    lr: float = 1e-4,
    seed: int = 0,
) -> Pixel2MeshLiteWorkload:
    """The Pixel2Mesh lite workload with these settings; MeshConfig says what each means."""
    return Pixel2MeshLiteWorkload(
        MeshConfig(
            views=1,
            size=size,
            subdivisions=subdivisions,
            init=init,
            points=points,
            samples=samples,
            batch=batch,
            data=data,
            hold_out=hold_out,
            augment=augment,
            train_objects=train_objects,
            eval_objects=eval_objects,
            lr=lr,
            seed=seed,
        )
    )


class MeshWorkload(Workload):
    """Batches hold image [n, V, 3, size, size] uint8, cameras [n, V, 5], points and normals [n, P, 3], num_points [n].

    All coordinates are in the frame of the first view.
    """

    def __init__(self, config: MeshConfig) -> None:
        self.config = config
        self.default_batch = config.batch
        self._files: tuple[list[Path], list[Path]] = ([], [])
        self._viewed_train: ViewedObjects | None = None
        if config.data:
            self._files = split_files(prepared_files(Path(config.data)), config.hold_out)

    def make_batch(self, n: int, device: torch.device, generator: torch.Generator) -> Batch:
        c = self.config
        if c.data:
            return {name: tensor.to(device) for name, tensor in self.collate(self._picked(n, generator)).items()}
        index = draw_index(n, generator)
        return draw_objects(index, views=c.views, size=c.size, points=c.points, seed=c.seed, device=device)

    def optimizer(self, model: nn.Module, *, fused: bool | None = None) -> torch.optim.Optimizer:
        named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
        groups = [
            {"params": [p for name, p in named if is_cnn(name) is wanted], "weight_decay": decay}
            for wanted, decay in ((True, CNN_WEIGHT_DECAY), (False, WEIGHT_DECAY))
        ]
        return torch.optim.Adam([group for group in groups if group["params"]], lr=self.config.lr, fused=fused)

    def compare(self, out: Tensor, ref: Tensor) -> list[Agreement]:
        return vertex_agreement(out, ref)

    def train_data(self) -> Any:
        if self.config.data:
            # The same every time: it keeps what it has decoded.
            self._viewed_train = self._viewed_train or self._viewed(with_variants(self._files[0]), train=True)
            return self._viewed_train
        return self._drawn(TRAIN, self.config.train_objects)

    def eval_data(self) -> Any:
        if self.config.data:
            return self._viewed(self._files[1], train=False)
        return self._drawn(EVAL, self.config.eval_objects)

    def collate(self, samples: Sequence[Any]) -> Batch:
        return collate_views(samples)

    def _viewed(self, files: list[Path], *, train: bool) -> ViewedObjects:
        c = self.config
        return ViewedObjects(files, views=c.views, points=c.points, train=train, augment=c.augment)

    def _picked(self, n: int, generator: torch.Generator) -> list[dict[str, Tensor]]:
        """Samples of the training data that the generator alone decides."""
        data = self.train_data()
        picked = torch.randint(len(data), (n,), generator=generator).tolist()
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(int(torch.randint(1 << 62, (), generator=generator)))
            return [data[position] for position in picked]

    def _drawn(self, split: int, count: int) -> Dataset[dict[str, Tensor]]:
        c = self.config
        return DrawnObjects(split=split, num_objects=count, views=c.views, size=c.size, points=c.points, seed=c.seed)

    def faces(self, model: nn.Module) -> Tensor:  # [F, 3]
        """The faces of the meshes that a model predicts."""
        return _unwrapped(model).faces

    def metrics(self, model: nn.Module, data: Dataset, device: torch.device) -> dict[str, float]:
        was_training = model.training
        model.eval()
        found: dict[str, list[Tensor]] = {}
        try:
            for host in DataLoader(data, batch_size=self.config.batch, collate_fn=self.collate):
                batch = {name: tensor.to(device) for name, tensor in host.items()}
                with torch.no_grad():
                    vertices = self.predict(model, batch).float()
                truth = batch["points"], batch["normals"], batch["num_points"]
                for name, values in mesh_scores(vertices, self.faces(model), *truth).items():
                    found.setdefault(name, []).append(values.cpu())
        finally:
            model.train(was_training)
        return {name: torch.cat(values).double().mean().item() for name, values in found.items()}


class Pixel2MeshPPWorkload(MeshWorkload):
    """Pixel2Mesh++: its coarse stage alone, or the whole with the coarse stage held as it is."""

    name = "pixel2mesh-pp"

    def __init__(self, config: MeshConfig) -> None:
        super().__init__(config)
        self.summary = (
            f"Pixel2Mesh++, {STAGES[config.stage]} stage, {config.views} views of {config.size}x{config.size}"
        )

    def build_model(self) -> nn.Module:
        c = self.config
        model: nn.Module
        if c.stage == 1:
            model = CoarseStage(hidden=c.hidden, levels=c.levels, compat=c.compat)
        else:
            model = Pixel2MeshPP(hidden=c.hidden, levels=c.levels, compat=c.compat)
        if c.init:
            start_from(model, Path(c.init))
        return model

    def predict(self, model: nn.Module, batch: Batch) -> Tensor:
        found = model(batch["image"], batch["cameras"])
        return found.vertices[-1] if self.config.stage == 1 else found

    def loss(self, model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor | int]:
        truth = batch["points"], batch["normals"], batch["num_points"]
        levels = _unwrapped(model).levels
        if self.config.stage == 1:
            found = model(batch["image"], batch["cameras"])
            steps = list(zip(found.vertices, found.starts, levels, strict=True))
            weights = coarse_weights(self.config.samples)
        else:
            meshes = model(batch["image"], batch["cameras"], every=True)
            steps = [(after, before, levels[-1]) for before, after in pairwise(meshes)]
            weights = refine_weights(self.config.samples)
        total = truth[0].new_zeros([])
        for number, (after, before, level) in enumerate(steps):
            terms = mesh_loss(after, before, level, *truth, weights=weights, first=number == 0)
            total = total + torch.stack(list(terms.values())).sum()
        return total, len(truth[0])


class Pixel2MeshLiteWorkload(MeshWorkload):
    """Pixel2Mesh lite, which sees the first view alone."""

    name = "pixel2mesh-lite"

    def __init__(self, config: MeshConfig) -> None:
        super().__init__(config)
        self.summary = f"Pixel2Mesh lite, one view of {config.size}x{config.size}"

    def build_model(self) -> nn.Module:
        model = Pixel2MeshLite(subdivisions=self.config.subdivisions)
        if self.config.init:
            start_from(model, Path(self.config.init))
        return model

    def predict(self, model: nn.Module, batch: Batch) -> Tensor:
        return model(batch["image"][:, 0])

    def loss(self, model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor | int]:
        vertices = self.predict(model, batch)
        mesh = _unwrapped(model).mesh
        start = mesh.vertices.expand_as(vertices)
        truth = batch["points"], batch["normals"], batch["num_points"]
        terms = mesh_loss(vertices, start, mesh, *truth, weights=coarse_weights(self.config.samples), first=True)
        return torch.stack(list(terms.values())).sum(), len(vertices)


def _unwrapped(model: nn.Module) -> Any:
    """The network itself, for its tensors; several processes wrap it."""
    return getattr(model, "module", model)


def is_cnn(name: str) -> bool:
    """Whether a parameter belongs to the half that looks at pictures."""
    return "cnn." in name or name.startswith("encoder.")
