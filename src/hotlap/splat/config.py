"""What a training of splats can be told; presets are layers beneath what the user says."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Literal

from hotlap.base.errors import ConfigError, UnknownName, did_you_mean
from hotlap.base.settings import Layer, require_least

LEARNABLE = ("means", "quats", "scales", "opacities", "colors")
"""What a splat has, in the order in which all arrays of a model are listed."""
LEAST = {
    "scale": 1e-3, "hold_out": 0, "max_images": 0, "max_test_views": 0, "steps": 1, "seed": 0, "sh_degree": 0,
    "sh_every": 1, "start_splats": 0, "start_opacity": 1e-4, "start_scale": 1e-4, "start_pixels": 0, "lr_means": 0,
    "lr_decay": 1e-6, "lr_scales": 0, "lr_quats": 0, "lr_opacities": 0, "lr_colors": 0, "lr_background": 0,
    "lr_exposure": 0, "lr_poses": 0, "densify_from": 0, "densify_every": 0, "densify_until": 0, "densify_grad": 0,
    "split_scale": 0, "split_sigma": 0, "prune_opacity": 0, "prune_scale": 0, "prune_scale_from": 0, "reset_every": 0,
    "max_splats": 0, "noise": 0, "opacity_weight": 0, "scale_weight": 0, "eval_every": 0, "checkpoint_every": 0,
    "ssim_weight": 0, "log_every": 1, "keep": 1, "abort_psnr_drop": 0, "abort_growth": 0, "pictures": 0,
}  # fmt: skip
MOST = {"sh_degree": 3, "start_opacity": 0.99, "prune_opacity": 0.99, "ssim_weight": 1, "scale": 1}


@dataclass(frozen=True, kw_only=True)
class SplatTrainConfig:
    """Trains Gaussian splats on photographs whose cameras are known."""

    scene: str = ""
    """Folder of the scene: COLMAP's sparse/ beside images/, or transforms.json; 'drawn' draws a small one."""
    preset: str = "default"
    """Named settings, beneath all others: default, mcmc, fast, m7, m8-smoke, m8, m9, m10, m10-quick, micro, onehour or
    full."""
    out: str = ""
    """Folder for model, checkpoints and metrics; empty for a new one under runs/."""
    resume: bool = False
    """Go on from the newest checkpoint in --out, with the settings it was begun with; others than those are refused."""
    images: str = "images"
    """Folder of the pictures inside the scene's, as images_4."""
    factor: int | None = None
    """Takes images_<factor> if it is there; none for the folder as named."""
    skip_missing: bool = False
    """Views whose picture is missing are left out, with a warning that names them; without, they are an error."""
    scale: float = 1.0
    """Share of the pictures' height and width that is trained on."""
    max_side: int | None = None
    """Larger pictures are made smaller when they are read, to this longer side in pixels; none for as they are."""
    hold_out: int = 8
    """Every how-manieth picture by name is held out to judge by; 0 for none."""
    max_images: int = 0
    """Pictures used, spread evenly over their names; 0 for all."""
    max_test_views: int = 8
    """Held-out pictures judged while training, spread evenly; 0 for all. The end judges all."""
    image_index: int | None = None
    """Trains on this picture alone, by its place among the names, and judges by it too; none for many."""
    steps: int = 30_000
    """Training steps, one picture each (times the number of processes)."""
    seed: int = 0
    """Decides the order of pictures and all chance."""
    device: str = "auto"
    """auto, cpu, cuda or cuda:1."""
    strategy: Literal["adc", "mcmc", "none"] = "adc"
    """How splats are added and removed: adc clones, splits and prunes by gradients; mcmc moves dead splats to living
    ones and grows to max_splats; none leaves them."""
    learn: tuple[str, ...] = LEARNABLE
    """What changes: some of means, quats, scales, opacities, colors."""
    background: Literal["auto", "black", "white", "learn"] = "auto"
    """Behind all splats; learn keeps it a colour whatever the gradient; auto is what the scene says, or black."""
    exposure: bool = False
    """Each training picture gets a gain within a factor of 1.7 and an offset within 0.1 of its own, drawn back to 1
    and 0. Held-out pictures are judged without."""
    poses: bool = False
    """The training pictures' poses are refined."""
    masks: bool = True
    """Pixels that a mask leaves out are neither learned from nor judged by."""
    sh_degree: int = 3
    """Highest degree of the spherical harmonics, 0 to 3."""
    sh_every: int = 1000
    """Steps after which the next degree is used."""
    antialiased: bool = False
    """Small splats are drawn fainter, as the mip variant of the method does."""
    loss: Literal["l1-ssim", "l2"] = "l1-ssim"
    """What is made small: L1 and SSIM, or the mean squared difference."""
    ssim_weight: float = 0.2
    """Share of 1 - SSIM in l1-ssim."""
    start_splats: int = 0
    """At most so many of the scene's points become splats; 0 for all."""
    start_opacity: float = 0.1
    """Of every splat at the start."""
    start_scale: float = 1.0
    """Extent at the start, in distances to the three nearest points."""
    start_pixels: float = 0.0
    """Extent at the start in pixels of the nearest camera, in its place; 0 to go by start_scale."""
    lr_means: float = 1.6e-4
    """Rate of the centres, in extents of the scene (see lr_by_extent), at the first step."""
    lr_by_extent: bool = True
    """The centres' rate is multiplied by the scene's extent; without, it is in the scene's units."""
    lr_decay: float = 0.01
    """Share of the centres' rate that is left at the last step; it falls exponentially."""
    lr_decay_all: bool = False
    """All rates fall like the centres'."""
    lr_scales: float = 5e-3
    """Rate of the logarithms of the extents."""
    lr_quats: float = 1e-3
    """Rate of the rotations."""
    lr_opacities: float = 0.05
    """Rate of the logits of the opacities."""
    lr_colors: float = 2.5e-3
    """Rate of the constant colours; the other coefficients have a twentieth of it."""
    lr_background: float = 1e-3
    """Rate of the background's logits."""
    lr_exposure: float = 1e-3
    """Rate of gains and offsets."""
    lr_poses: float = 1e-5
    """Rate of the poses, in radians and extents of the scene."""
    adam: Literal["dense", "selective", "lazy"] = "dense"
    """dense steps every splat. lazy steps those that learn, and the others catch up after they are drawn again: it
    saves 7 to 13% of the time and scores lower, by 0.1 dB where it was tried. selective leaves those alone that are not
    seen. mcmc needs dense."""
    densify_from: int = 500
    """First step after which splats may be added."""
    densify_every: int = 100
    """Steps between two changes of the splats; 0 for never."""
    densify_until: int = 15_000
    """Last step after which splats are added or removed."""
    densify_grad: float = 2e-4
    """Splats whose mean gradient is larger are cloned or split."""
    densify_signal: Literal["screen", "abs", "world"] = "screen"
    """Which gradient: that of the centres on the screen, its absolute value summed over pixels (absgrad; thresholds of
    4e-4 to 8e-4 suit it), or that in the world."""
    split_scale: float = 0.01
    """Larger splats, in extents of the scene, are split, smaller ones cloned."""
    split_sigma: float = 0.0
    """The same in the scene's units, in its place; 0 to go by split_scale."""
    prune_opacity: float = 0.005
    """Fainter splats are removed, or moved by mcmc."""
    prune_scale: float = 0.1
    """Larger splats, in extents of the scene, are removed; 0 for none."""
    prune_scale_from: int = 3000
    """Steps until then leave large splats alone."""
    reset_every: int = 3000
    """Steps between resets of the opacities to twice prune_opacity; 0 for never."""
    max_splats: int = 0
    """There are never more; 0 for 6 million (mcmc: 1 million)."""
    noise: float = 5e5
    """Strength of mcmc's random moves."""
    opacity_weight: float = 0.01
    """Weight of the mean opacity in mcmc's loss."""
    scale_weight: float = 0.01
    """Weight of the mean extent in mcmc's loss."""
    coarse_first: bool = False
    """Starts at a quarter of the pictures' size and reaches the whole one at half of densify_until."""
    images_on: Literal["auto", "device", "host", "disk"] = "auto"
    """Where decoded pictures wait: on the device if they take less than half of its free memory, in the host's memory,
    or on disk, read ahead; auto takes the first that has room."""
    graph: bool | None = None
    """A step is recorded once as a CUDA graph and replayed; none for yes on a card."""
    eval_every: int = 1000
    """Steps between two judgements on the held-out pictures, the first before the first step; 0 for the end alone."""
    checkpoint_every: int = 0
    """Steps between two checkpoints; 0 for one every two minutes. The end is always saved."""
    keep: int = 2
    """Checkpoints that are kept."""
    log_every: int = 100
    """Steps between two rows of metrics, at which the training is also looked after."""
    abort_psnr_drop: float = 3.0
    """The training stops if the held-out PSNR falls so many dB below its best; 0 for never."""
    abort_growth: float = 1.9
    """The training stops if one densification would multiply the splats by more, of which 2 is the most there can be
    and 1.5 is usual with few points; 0 for never."""
    pictures: int = 8
    """Held-out pictures drawn beside the photographs at the end."""
    view: int | None = dataclasses.field(default=None, metadata={"bare": 8080})
    """Shows the training in the browser, at this port of this machine (8080 if none follows); none for not."""

    def presets(self) -> list[Layer]:
        """The preset's settings, just above the defaults; above them, those that a resumed training was begun with."""
        from hotlap.splat.presets import find_preset

        begun = []
        if self.resume and self.out:
            from hotlap.splat.begun import begun_layer

            begun = [begun_layer(self.out)]
        return [*begun, Layer(f"preset {self.preset}", find_preset(self.preset))]

    def __post_init__(self) -> None:
        require_least(self, **LEAST)
        for name, most in MOST.items():
            value = getattr(self, name)
            if value > most:
                raise ConfigError(f"{name} = {value:g} is not valid", expected=f"at most {most:g}")
        if self.hold_out == 1:
            raise ConfigError(
                "hold_out = 1 leaves no picture to train on", expected="0 (hold out nothing) or at least 2"
            )
        if not self.learn:
            raise ConfigError("learn names nothing", expected=f"some of {', '.join(LEARNABLE)}")
        unknown = [name for name in self.learn if name not in LEARNABLE]
        if unknown:
            raise UnknownName(f"learn names {unknown[0]!r}", remedy=did_you_mean(unknown[0], LEARNABLE))
        if self.strategy == "mcmc" and self.adam != "dense":
            raise ConfigError(
                f"adam = {self.adam!r} with strategy = 'mcmc' is not valid",
                expected="dense: its weights of opacity and extent move all splats at every step",
            )

    @property
    def most_splats(self) -> int:
        """The cap that is in force."""
        return self.max_splats or (1_000_000 if self.strategy == "mcmc" else 6_000_000)

    @property
    def judged_by(self) -> str:
        """The pictures that scores are of, as results name them: a training on one picture holds none out."""
        return "held_out" if self.image_index is None else "trained_on"

    @property
    def judged_psnr(self) -> str:
        """What the PSNR of those pictures is called where it is told."""
        return "held-out PSNR" if self.image_index is None else "PSNR on its own picture"


def config_with(preset: str = "default", **changes: object) -> SplatTrainConfig:
    """A preset with some settings changed, for callers in Python."""
    from hotlap.base.settings import resolve

    return resolve(SplatTrainConfig, [Layer("the caller", {"preset": preset, **changes})]).config


@dataclass(frozen=True, kw_only=True)
class SplatEvalConfig:
    """Judges trained splats on the held-out pictures of their scene."""

    run: str = ""
    """Folder of a training."""
    scene: str = ""
    """Another place of the scene; empty for the one it was trained on."""
    train_views: bool = False
    """Judges by the pictures it was trained on instead, from the poses that were refined."""
    pictures: int = 8
    """Pictures drawn beside the photographs."""
    lpips: bool = True
    """LPIPS too, where the weights of its net are at hand."""
    lpips_weights: str = ""
    """File with AlexNet's weights, or a folder with those and LPIPS's own; empty to look where torch keeps them."""
    device: str = "auto"
    """auto, cpu, cuda or cuda:1."""

    def __post_init__(self) -> None:
        require_least(self, pictures=0)


@dataclass(frozen=True, kw_only=True)
class SplatRenderConfig:
    """Draws trained splats from views, an orbit or a path of cameras."""

    model: str = ""
    """Folder of a training, or a file of splats."""
    scene: str = ""
    """Another place of the scene; empty for the one it was trained on."""
    path: str = "views"
    """views: the held-out cameras (with a training's folder); orbit: around the scene; or a JSON file of cameras."""
    out: str = ""
    """Folder for PNG files, or a name that ends in .mp4 or .gif; empty for renders/ in the training's folder."""
    frames: int = 120
    """Pictures of an orbit."""
    fps: int = 30
    """Pictures a second of a video."""
    width: int | None = None
    """Pixels; none for the training's size."""
    height: int | None = None
    """Pixels; none for the training's size."""
    background: Literal["auto", "black", "white"] = "auto"
    """Behind all splats; auto is the training's."""
    device: str = "auto"
    """auto, cpu, cuda or cuda:1."""


@dataclass(frozen=True, kw_only=True)
class SplatViewConfig:
    """Shows trained splats, or those of a training that still runs, in the browser."""

    model: str = ""
    """Folder of a training, or a file of splats."""
    port: int = 8080
    """Of this machine; nobody else can reach it."""
    device: str = "auto"
    """What draws: auto, cpu, cuda or cuda:1."""


@dataclass(frozen=True, kw_only=True)
class SplatExportConfig:
    """Writes trained splats to a file that viewers read."""

    model: str = ""
    """Folder of a training, or a file of splats."""
    out: str = ""
    """File to write; its name decides the format: .ply, .compressed.ply, .splat or .spz. Its folder is made."""
    sh_degree: int | None = None
    """Highest degree that is kept; none for all."""
    min_opacity: float = 0.0
    """Fainter splats are left out."""
    drop_bad: bool = False
    """Splats with numbers that are not finite or a rotation of length 0, and those too far out for the format, are left
    out and counted; without, they are an error."""


@dataclass(frozen=True, kw_only=True)
class SplatInfoConfig:
    """Says what a scene, a training or a file of splats holds."""

    what: str = ""
    """Folder of a scene or a training, or a file of splats; 'drawn' is the small scene that is drawn."""
    images: str = "images"
    """Folder of the pictures inside a scene's, as images_4."""
    factor: int | None = None
    """Takes images_<factor> of a scene if it is there; none for the folder as named."""


FIELDS = tuple(field.name for field in dataclasses.fields(SplatTrainConfig))
