"""The settings of a mesh network, and the named choices of them."""

from __future__ import annotations

from dataclasses import dataclass, replace

from hotlap.base.errors import ConfigError
from hotlap.mesh.cameras import SIZE_PX
from hotlap.mesh.pixel2mesh_pp import HIDDEN_LAYERS, MAX_VIEWS

STAGES = {1: "coarse", 2: "refine"}


@dataclass(frozen=True, kw_only=True)
class MeshConfig:
    """One network with its data."""

    stage: int = 2
    """Of Pixel2Mesh++: 1 trains the coarse stage alone, 2 the refinement on top of it; predictions are that stage's."""
    views: int = 3
    """Pictures of an object, 1 to 8."""
    size: int = 224
    """Height and width of drawn pictures, in pixels."""
    hidden: int = 192
    """Channels of the graph convolutions of Pixel2Mesh++."""
    levels: int = 3
    """Meshes of Pixel2Mesh++ from coarse to fine, 156, 618 and 2466 vertices; fewer for trials."""
    subdivisions: int = 4
    """Of the sphere of Pixel2Mesh lite: 4 for 2562 vertices."""
    compat: bool = False
    """Repeat what converted weights of Pixel2Mesh++ depend on: BGR pictures, and maps of the first view for others."""
    init: str = ""
    """File with weights to start from: those of stage 1 for stage 2, or of the whole network; empty for fresh ones."""
    points: int = 2000
    """Surface points of an object to compare with."""
    samples: int = 4000
    """Points on the predicted faces that stand for the mesh beside its vertices in the loss."""
    batch: int = 16
    """Objects per step."""
    data: str = ""
    """Folder that 'hotlap mesh views' prepared; empty for drawn objects."""
    hold_out: int = 8
    """Of a prepared folder, every so many-th object by name is judged by and not trained on."""
    augment: bool = True
    """Mirror half of the samples of a prepared folder, and exchange their colours."""
    train_objects: int = 200
    """Drawn objects to train on."""
    eval_objects: int = 20
    """Drawn objects to judge by."""
    lr: float = 1e-4
    """Step size of Adam; 1e-5 was published for batches of 1."""
    seed: int = 0
    """Which drawn objects."""

    def __post_init__(self) -> None:
        if self.stage not in STAGES:
            raise ConfigError(f"stage = {self.stage} is not valid", expected="1 (coarse) or 2 (refinement)")
        bounds: dict[str, tuple[int, int | None]] = {
            "views": (1, MAX_VIEWS),
            "levels": (1, len(HIDDEN_LAYERS)),
            "subdivisions": (0, 6),
            "size": (32, None),
            "hidden": (8, None),
            "points": (1, None),
            "samples": (0, None),
            "batch": (1, None),
            "hold_out": (2, None),
            "train_objects": (1, None),
            "eval_objects": (1, None),
        }
        for name, (least, most) in bounds.items():
            value = getattr(self, name)
            if value < least or (most is not None and value > most):
                expected = f"at least {least}" if most is None else f"{least} to {most}"
                raise ConfigError(f"{name} = {value} is not valid", expected=expected)
        if self.data and self.size != SIZE_PX:
            raise ConfigError(f"size = {self.size} with data = {self.data!r}", expected=f"{SIZE_PX}, as prepared views")


def full() -> MeshConfig:
    """The network as it was published, 32.7 M parameters, three views."""
    return MeshConfig()


def small() -> MeshConfig:
    """One coarse mesh of 156 vertices from pictures of 64 pixels: for trials on a CPU."""
    return replace(
        full(), stage=1, views=2, size=64, hidden=32, levels=1, subdivisions=2, points=300, samples=200, batch=4
    )
