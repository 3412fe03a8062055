"""Scenes like a trained capture, from a seed: clusters and a ground of small splats, and a ring of cameras."""

from __future__ import annotations

import dataclasses
import math
from importlib import import_module
from typing import Any

NUM_CAMERAS = 8


@dataclasses.dataclass(frozen=True, kw_only=True)
class Scene:
    """What one job draws."""

    num_splats: int
    width: int
    height: int
    size_px: float
    """Median standard deviation of a splat on the screen, chosen for 2 to 3 pairs of tile and splat."""
    inner: int
    """Steps of one sample."""


SCENES = {
    "20k": Scene(num_splats=20_000, width=480, height=270, size_px=1.0, inner=32),
    "200k": Scene(num_splats=200_000, width=1297, height=840, size_px=1.0, inner=16),
    "1M": Scene(num_splats=1_000_000, width=1920, height=1080, size_px=1.0, inner=8),
    "3M": Scene(num_splats=3_000_000, width=1920, height=1080, size_px=1.0, inner=8),
}


def read_scene(path: str, width: int, height: int, device: str) -> tuple[Scene, tuple[dict[str, Any], Any, Any]]:
    """A trained scene from a file of splats, seen by a ring of cameras around what is dense in it.

    The file does not say where its cameras were. Half of the splats are nearer to the median centre than some distance;
    the ring has one and a half times that as its radius, in the plane of the two axes in which the splats spread most.
    """
    import torch

    read = import_module("hotlap.data.splats").read_splats(path)
    means, sh = torch.from_numpy(read.means), torch.from_numpy(read.shN)
    fill = torch.zeros(len(means), 15 - min(sh.shape[1], 15), 3)
    splats = {
        "means": means,
        "quats": torch.from_numpy(read.quats),
        "scales": torch.from_numpy(read.log_scales).exp(),
        "opacities": torch.from_numpy(read.logit_opacities).sigmoid(),
        "colors": torch.cat([torch.from_numpy(read.sh0)[:, None], sh[:, :15], fill], dim=1),
    }
    middle = means.median(dim=0).values
    apart = (means - middle).norm(dim=1)
    near = means[apart <= apart.median()] - middle
    axes = torch.linalg.eigh(near.T @ near).eigenvectors.T  # the flattest first
    views = []
    for n in range(NUM_CAMERAS):
        angle = 2 * math.pi * n / NUM_CAMERAS
        out = math.cos(angle) * axes[2] + math.sin(angle) * axes[1] + 0.25 * axes[0]
        views.append(_look_at(middle + 1.5 * apart.median() * out, middle, down=-axes[0]))
    scene = Scene(num_splats=len(means), width=width, height=height, size_px=math.nan, inner=8)
    splats = {name: tensor.to(device).contiguous() for name, tensor in splats.items()}
    return scene, (splats, torch.stack(views).to(device), _intrinsics(scene).to(device))


def make_scene(scene: Scene, device: str, seed: int = 0) -> tuple[dict[str, Any], Any, Any]:
    """Splats by name, and the cameras' viewmats [8, 4, 4] and Ks [8, 3, 3]."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    num = scene.num_splats

    def normal(*shape: int) -> Any:
        return torch.randn(shape, generator=generator)

    focal = 1.1 * scene.width
    num_ground = num // 3
    centers, widths = normal(40, 3) * 0.8, 0.05 + 0.35 * torch.rand(40, 1, generator=generator)
    which = torch.randint(40, (num - num_ground,), generator=generator)
    clusters = centers[which] + normal(num - num_ground, 3) * widths[which]
    ground = torch.cat([normal(num_ground, 2) * 1.6, 1.2 + 0.02 * normal(num_ground, 1)], dim=1)[:, [0, 2, 1]]
    means = torch.cat([clusters, ground])
    scales = scene.size_px * 4.0 / focal * torch.exp(0.6 * normal(num, 1) + 0.5 * normal(num, 3))
    splats = {
        "means": means,
        "quats": normal(num, 4),
        "scales": scales,
        "opacities": torch.sigmoid(1.5 * normal(num)),
        "colors": torch.cat([normal(num, 1, 3), 0.1 * normal(num, 15, 3)], dim=1),
    }
    shuffled = torch.randperm(num, generator=generator)
    splats = {name: tensor[shuffled].to(device).contiguous() for name, tensor in splats.items()}
    views = torch.stack([_on_ring(2 * math.pi * n / NUM_CAMERAS) for n in range(NUM_CAMERAS)])
    return splats, views.to(device), _intrinsics(scene).to(device)


def _intrinsics(scene: Scene) -> Any:  # [8, 3, 3]
    import torch

    focal = 1.1 * scene.width
    matrix = torch.tensor([[focal, 0.0, scene.width / 2], [0.0, focal, scene.height / 2], [0.0, 0.0, 1.0]])
    return matrix.expand(NUM_CAMERAS, 3, 3).contiguous()


def _on_ring(angle: float) -> Any:
    """A camera 4 from the middle, a little above, looking at it; y points down."""
    import torch

    position = torch.tensor([4 * math.sin(angle), -1.0, -4 * math.cos(angle)])
    return _look_at(position, torch.zeros(3), down=torch.tensor([0.0, 1.0, 0.0]))


def _look_at(position: Any, target: Any, down: Any) -> Any:  # [4, 4]
    """Camera from world."""
    import torch

    forward = (target - position) / (target - position).norm()
    right = torch.linalg.cross(down, forward)
    right = right / right.norm()
    matrix = torch.eye(4)
    matrix[:3, :3] = torch.stack([right, torch.linalg.cross(forward, right), forward])
    matrix[:3, 3] = -matrix[:3, :3] @ position
    return matrix
