"""What the verbs of meshes can be told."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from hotlap.base.errors import ConfigError
from hotlap.base.settings import require_least

MAX_VIEWS = 8
FORMATS = ("obj", "ply", "glb")
Network = Literal["pixel2mesh-pp", "pixel2mesh-lite"]


@dataclass(frozen=True, kw_only=True)
class ViewsConfig:
    """Renders views of every mesh of a folder, with cameras and surface points, ready for 'hotlap mesh train'."""

    folder: Path
    """Folder with OBJ, PLY or GLB files anywhere below it, or rendered ShapeNet with .dat ground truth."""
    out: Path
    """Folder to fill: a file for each object, and index.json."""
    views: int = 24
    """Pictures of each object, from all around."""
    points: int = 10_000
    """Points on each object's surface."""
    variants: int = 0
    """Stretched copies of each object to train on beside it, for small collections; they are never judged by."""
    up: Literal["y", "z"] = "y"
    """Which axis of the files points up."""
    min_elevation: float = 5.0
    """Lowest view, in degrees above the horizon."""
    max_elevation: float = 45.0
    """Highest view."""
    min_distance: float = 0.75
    """Nearest view; objects are made 0.57 long from corner to corner."""
    max_distance: float = 0.9
    """Farthest view."""
    supersample: int = 3
    """Samples of a pixel, across and down."""
    format: Literal["jpeg", "png"] = "jpeg"
    """How pictures are kept: jpeg at quality 95, or png without loss and about three times as large."""
    sheet: int = 8
    """Objects shown in sheet.png, up to 8 views each; 0 for no sheet."""
    seed: int = 0
    """Decides cameras and points."""
    workers: int | None = None
    """Objects worked on at once; by default as many as torch has threads."""
    device: str = "cpu"
    """Where to render: cpu, cuda or auto."""

    def __post_init__(self) -> None:
        require_least(self, views=1, points=1, supersample=1, variants=0, sheet=0, workers=1)
        for name, least_value, most in (("elevation", -89.0, 89.0), ("distance", 0.4, 10.0)):
            low, high = getattr(self, f"min_{name}"), getattr(self, f"max_{name}")
            if not least_value <= low <= high <= most:
                raise ConfigError(
                    f"min_{name} = {low:g} and max_{name} = {high:g}",
                    expected=f"{least_value:g} to {most:g}, the smaller first",
                )


@dataclass(frozen=True, kw_only=True)
class MeshTrainConfig:
    """Trains a network on prepared views: Pixel2Mesh++ in two stages, the second from the first's weights."""

    data: Path
    """Folder that 'hotlap mesh views' prepared."""
    network: Network = "pixel2mesh-pp"
    """pixel2mesh-pp: coarse, then refined; pixel2mesh-lite: one stage, from the first view alone."""
    stage: Literal["both", "coarse", "refine"] = "both"
    """Which stages of pixel2mesh-pp to train."""
    init: Path | None = None
    """Weights of a trained coarse stage, for stage = refine."""
    epochs: int = 50
    """Rounds through the objects in the coarse stage."""
    refine_epochs: int = 10
    """Rounds through the objects in the second stage."""
    batch: int | None = None
    """Objects of one step; by default the network's own."""
    lr: float | None = None
    """Learning rate of the coarse stage; by default the network's own."""
    refine_lr: float | None = None
    """Learning rate of the second stage."""
    views: int = 3
    """Pictures of an object that are seen at once, 1 to 8."""
    points: int = 4000
    """Surface points of an object that a step compares with."""
    hold_out: int = 8
    """Every so many-th object, by name, is judged by and not trained on."""
    augment: bool = True
    """Mirrors half of the samples and exchanges their colours."""
    on_bad_sample: Literal["raise", "skip"] = "raise"
    """What happens to an object that cannot be read: stop and name it, or go on without."""
    precision: Literal["32-true", "bf16-mixed", "16-mixed"] = "32-true"
    """32-true, bf16-mixed or 16-mixed (with a loss scale)."""
    device: str = "auto"
    """auto, cpu, cuda or cuda:1."""
    seed: int = 0
    """Decides weights, order, views and points."""
    resume: bool = False
    """Goes on with the newest training of this name: unfinished stages are continued, finished ones kept."""
    workload: dict[str, Any] = field(default_factory=dict)
    """Other options of the network, as --set workload.hidden=64."""
    train: dict[str, Any] = field(default_factory=dict)
    """Any other setting of 'hotlap train', as --set train.clip_norm=1."""
    name: str = "mesh"
    """Name of the runs: NAME-coarse and NAME-refine."""
    runs: Path = Path("runs")
    """Where records and checkpoints are written."""

    def __post_init__(self) -> None:
        _check_network(self)
        require_least(self, epochs=1, refine_epochs=1, points=1, hold_out=2)
        if self.stage == "refine" and self.init is None:
            raise ConfigError("stage = 'refine' without init", expected="the checkpoint of a coarse training")
        if self.init is not None and self.stage != "refine":
            raise ConfigError(
                f"init = {str(self.init)!r} with stage = {self.stage!r}",
                expected="stage = 'refine', which starts from it",
                remedy="A first stage starts from weights with --set workload.init=FILE",
            )
        if self.network == "pixel2mesh-lite" and self.stage != "both":
            raise ConfigError(
                f"stage = {self.stage!r} of network = 'pixel2mesh-lite'", expected="both: it has one stage"
            )


@dataclass(frozen=True, kw_only=True)
class MeshPredictConfig:
    """Predicts the mesh of one object from its pictures and their cameras."""

    images: tuple[Path, ...] = ()
    """Pictures of one object, 1 to 8, or one folder of them; over white or with transparency."""
    cameras: Path | None = None
    """Text file, a row for each picture: azimuth, elevation, distance; or five numbers as ShapeNet renderings have.
    pixel2mesh-lite may go without."""
    weights: Path | None = None
    """Checkpoint of a training, or .safetensors."""
    network: Network = "pixel2mesh-pp"
    """Which network the weights are of."""
    stage: Literal["refine", "coarse"] = "refine"
    """Which stage of pixel2mesh-pp the weights are of."""
    workload: dict[str, Any] = field(default_factory=dict)
    """Options of the network, as --set workload.hidden=64; the same that it was trained with."""
    out: Path = Path("predicted")
    """Folder to write to."""
    formats: tuple[str, ...] = ("obj", "ply", "glb")
    """Mesh files to write: obj, ply, glb."""
    frame: Literal["world", "camera"] = "world"
    """world: y up, the object's middle at the origin; camera: as the first camera sees it."""
    turntable: int = 24
    """Pictures of the turntable (PNG and GIF); 0 for none."""
    device: str = "auto"
    """auto, cpu, cuda or cuda:1."""

    def __post_init__(self) -> None:
        for name in self.formats:
            if name not in FORMATS:
                raise ConfigError(f"formats = {name!r}", expected=f"some of {', '.join(FORMATS)}")
        if self.turntable < 0:
            raise ConfigError(f"turntable = {self.turntable}", expected="0 or more")


@dataclass(frozen=True, kw_only=True)
class MeshEvalConfig:
    """Scores a trained network on prepared objects: Chamfer distance, F-score, normal consistency; CSV and pictures."""

    data: Path
    """Folder that 'hotlap mesh views' prepared."""
    weights: Path | None = None
    """Checkpoint of a training, or .safetensors; without, the untrained template is scored."""
    network: Network = "pixel2mesh-pp"
    """Which network the weights are of."""
    stage: Literal["refine", "coarse"] = "refine"
    """Which stage of pixel2mesh-pp the weights are of."""
    workload: dict[str, Any] = field(default_factory=dict)
    """Options of the network, as --set workload.hidden=64; the same that it was trained with."""
    split: Literal["held-out", "train", "all"] = "held-out"
    """Which objects to score."""
    hold_out: int = 8
    """Every so many-th object was held out of the training."""
    views: int = 3
    """Pictures of an object that are seen at once, spread evenly from the first on."""
    chosen: tuple[int, ...] = ()
    """Numbers of the views to take in their place, such as 0,6,7."""
    points: int = 10_000
    """Surface points of an object to compare with, at most."""
    batch: int = 4
    """Objects predicted at once."""
    pictures: int = 8
    """Objects shown in pictures.png; 0 for none."""
    out: Path = Path("evaluated")
    """Folder to write to."""
    device: str = "auto"
    """auto, cpu, cuda or cuda:1."""

    def __post_init__(self) -> None:
        _check_network(self)
        require_least(self, hold_out=2, points=1, batch=1, pictures=0)
        if len(self.chosen) > MAX_VIEWS or min(self.chosen, default=0) < 0:
            given = ",".join(str(number) for number in self.chosen)
            raise ConfigError(f"chosen = {given}", expected=f"at most {MAX_VIEWS} numbers of views, from 0 on")

    @property
    def num_views(self) -> int:
        """How many views of an object are read."""
        if self.network == "pixel2mesh-lite":
            return max(1, len(self.chosen))
        return len(self.chosen) or self.views


def _check_network(config: MeshTrainConfig | MeshEvalConfig) -> None:
    if not 1 <= config.views <= MAX_VIEWS:
        raise ConfigError(f"views = {config.views}", expected=f"1 to {MAX_VIEWS}")
