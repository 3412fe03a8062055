"""The inputs, sizes and tolerances that every implementation of splatting is judged by."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields

import torch
from torch import Tensor

from hotlap.kernels.agreement import Inputs, Run
from hotlap.kernels.splat.frame import MAX_ALPHA, MIN_ALPHA, MIN_TRANSMITTANCE, Drawn, Splats, View
from hotlap.kernels.splat.reference import CHUNK, coverage, pixel_centers, project, visible_radii

TOLERANCES = {torch.float32: 1e-4, torch.float64: 1e-9}
"""Largest error over the largest number, for each output and gradient.

The reference itself in float32 is up to 6e-6 from float64 on these cases. The tolerance leaves room for sums in another
order and for a card's fast exponential, not for a wrong term: leaving one out changes a gradient by a percent and more.
"""
UNDECIDED = {torch.float32: 2e-4, torch.float64: 1e-8}
"""How near to a threshold, as a fraction of it, rounding may decide: see ``undecided``."""

BLACK = -1.7724537849426270
"""The first coefficient of a black point, (0 - 0.5) / 0.2820948 in float32: a colour of 0 there and of 2e-8 in float64.

A colour that is not below 0 has a gradient; what begins black would stay so otherwise.
"""


@dataclass(frozen=True, kw_only=True)
class SplatCase:
    """One scene and how it is drawn."""

    splats: int
    """How many."""
    width: int = 37
    """Of the picture, in pixels; not a multiple of the tile."""
    height: int = 29
    """Of the picture, in pixels."""
    cameras: int = 1
    """How many."""
    channels: int = 3
    """Numbers of a colour, where there are no coefficients."""
    by_camera: bool = False
    """Colours of their own for each camera."""
    background: bool = False
    """Other than black."""
    size: float = 0.12
    """Standard deviation of a splat, about; the scene is about 2 wide and 4 away."""
    opacity: float = 0.0
    """Logit of a splat's opacity, about."""
    far_out: bool = False
    """A third of the splats far outside the picture, yet large enough to be seen."""
    twins: bool = False
    """Each splat twice at the same place, with another colour and opacity: the depths are equal."""
    black: bool = False
    """A third of the splats has colours of exactly 0 in float32, where the harmonics' clamp begins."""
    strided: bool = False
    """Every input is a view with gaps."""
    dtype: torch.dtype = torch.float32
    """Of all inputs."""
    max_undecided: float = 0.005
    """The part of the pixels that may be left out of the comparison; the more splats cover each, the larger."""
    options: Mapping[str, object] = field(default_factory=dict, hash=False)
    """Of the view."""

    @property
    def view(self) -> View:
        return View(width=self.width, height=self.height, **self.options)  # type: ignore[arg-type]

    @property
    def id(self) -> str:
        words = [f"n{self.splats}", f"{self.width}x{self.height}", f"c{self.cameras}"]
        words += [f"d{self.channels}"] if "sh_degree" not in self.options else []
        words += [
            name for name in ("by_camera", "background", "far_out", "twins", "black", "strided") if getattr(self, name)
        ]
        words += [name if value is True else f"{name}{value}" for name, value in self.options.items()]
        return "-".join([*words, str(self.dtype).removeprefix("torch.")])

    @property
    def tolerance(self) -> float:
        return TOLERANCES[self.dtype]

    def make(self, device: torch.device) -> dict[str, Tensor | None]:
        """The inputs by name, the same numbers on every device."""
        generator = torch.Generator().manual_seed(self.splats + self.width)
        made = self._splats(generator) | self._cameras(generator)
        made = {n: t if t is None else t.to(device, self.dtype) for n, t in made.items()}
        return {n: _with_gaps(t) if t is not None and self.strided else t for n, t in made.items()}

    def _splats(self, generator: torch.Generator) -> dict[str, Tensor | None]:
        def normal(*shape: int) -> Tensor:
            return torch.randn(shape, generator=generator, dtype=torch.float64)

        num = self.splats
        means, scales = normal(num, 3) * 0.7, self.size * (0.5 * normal(num, 3)).exp()
        if self.far_out:
            means[::3, 0] += torch.where(normal(len(means[::3])) > 0, 5.0, -5.0)
            scales[::3] *= 20
        if self.twins:
            means[1::2] = means[: len(means[1::2]) * 2 : 2]
        logits = self.opacity + normal(num)
        if "sh_degree" in self.options:
            colors = normal(num, 16, 3) * 0.3
            if self.black:
                colors[::3], colors[::3, 0] = 0.0, BLACK
        else:
            colors = normal(self.cameras, num, self.channels) if self.by_camera else normal(num, self.channels)
        raw = bool(self.options.get("raw"))
        return {
            "means": means,
            "quats": normal(num, 4),
            "scales": scales.log() if raw else scales,
            "opacities": logits if raw else logits.sigmoid(),
            "colors": colors,
        }

    def _cameras(self, generator: torch.Generator) -> dict[str, Tensor | None]:
        """Cameras on an arc around the scene, 4 from its middle, with intrinsics that differ."""
        views, intrinsics = [], []
        for camera in range(self.cameras):
            angle, tilt = 0.5 * camera - 0.2, 0.15 * camera + 0.1
            about_y = torch.tensor(
                [[math.cos(angle), 0, -math.sin(angle)], [0, 1, 0], [math.sin(angle), 0, math.cos(angle)]]
            )
            about_x = torch.tensor(
                [[1, 0, 0], [0, math.cos(tilt), -math.sin(tilt)], [0, math.sin(tilt), math.cos(tilt)]]
            )
            matrix = torch.eye(4, dtype=torch.float64)
            matrix[:3, :3] = (about_x @ about_y).double()
            matrix[:3, 3] = torch.tensor([0.1 * camera, -0.05, 4.0])
            views.append(matrix)
            focal = (1.1 + 0.1 * camera) * self.width
            intrinsics.append([[focal, 0, 0.48 * self.width], [0, 1.05 * focal, 0.53 * self.height], [0, 0, 1]])
        channels = 3 if "sh_degree" in self.options else self.channels
        behind = torch.rand(self.cameras, channels, generator=generator, dtype=torch.float64)
        return {
            "viewmats": torch.stack(views),
            "Ks": torch.tensor(intrinsics, dtype=torch.float64),
            "backgrounds": behind if self.background else None,
        }


def _with_gaps(tensor: Tensor) -> Tensor:
    wide = tensor.new_full((*tensor.shape, 2), torch.nan)
    wide[..., 0] = tensor
    return wide[..., 0]


def as_splats(inputs: Inputs) -> Splats:
    """The inputs of a case as the kernels take them."""
    return Splats(**{one.name: inputs[one.name] for one in fields(Splats)})  # type: ignore[arg-type]


def run_frame(draw: Callable[[Splats, View], Drawn], view: View, decided: Tensor) -> Run:
    """A function from a case's inputs to what is drawn, by name; 0 in pixels that are not decided."""

    def run(inputs: Inputs) -> dict[str, Tensor]:
        drawn = draw(as_splats(inputs), view)
        there = decided.to(drawn.colors.device)[..., None]
        found = {"colors": drawn.colors, "alphas": drawn.alphas}
        return {n: torch.where(there, t, 0) for n, t in found.items()} | {"means2d": drawn.means2d}

    return run


def undecided(inputs: Inputs, view: View, margin: float) -> Tensor:  # [C, H, W] bool
    """The pixels in which rounding may decide whether a splat counts; ``inputs`` are those in float64.

    There some alpha is within ``margin`` of the least that counts or of the most there can be, the light left is near
    the least that may be, or two splats that cover the pixel are almost, but not quite, equally deep. A kernel may then
    differ from the reference by all that a splat adds; everywhere else it has to agree.
    """
    splats, found = as_splats(inputs), []
    for camera in range(len(splats.viewmats)):
        screen = project(splats, view, camera, slice(None))
        seen = visible_radii(screen, view).amax(1) > 0
        order = torch.where(seen, screen.depths, torch.inf).sort(stable=True).indices[: int(seen.sum())]
        rows = []
        for pixels in pixel_centers(view, screen.means2d).split(max(1, CHUNK // max(1, len(order)))):
            nothing = torch.zeros_like(screen.means2d[order])
            given = (screen.means2d[order], screen.conics[order], screen.opacities[order])
            sigma, _ = coverage(pixels, *given, nothing)
            rows.append(_undecided_pixels(given[2] * (-sigma).exp(), screen.depths[order], margin))
        found.append(torch.cat(rows).view(view.height, view.width))
    return torch.stack(found)


def _undecided_pixels(alphas: Tensor, depths: Tensor, margin: float) -> Tensor:  # [P, n], [n] -> [P]
    """``alphas`` are not held down to the most there can be."""
    counts = alphas >= MIN_ALPHA * (1 - margin)
    light = (1 - alphas.clamp(max=MAX_ALPHA) * counts).cumprod(dim=1)
    reached = torch.cat([torch.ones_like(light[:, :1]), light[:, :-1]], dim=1) > MIN_TRANSMITTANCE * (1 - margin)
    near = ((alphas / MIN_ALPHA - 1).abs() < margin) | ((alphas / MAX_ALPHA - 1).abs() < margin)
    near |= counts & ((light / MIN_TRANSMITTANCE - 1).abs() < margin)
    gaps = depths.diff()
    near[:, 1:] |= counts[:, 1:] & counts[:, :-1] & (gaps > 0) & (gaps < 0.01 * margin * depths[1:])
    return (near & reached).any(dim=1)


EVERYTHING: dict[str, object] = {"sh_degree": 3, "raw": True, "depth": True, "antialiased": True, "absgrad": True}
SMALL = (
    SplatCase(splats=0, background=True),
    SplatCase(splats=1, width=1, height=1, options={"raw": True}),
    SplatCase(splats=37, cameras=2, background=True, options=EVERYTHING),
    SplatCase(splats=61, options={"sh_degree": 0, "raw": True}),
    SplatCase(splats=61, background=True, options={"sh_degree": 1}),
    SplatCase(splats=61, cameras=3, options={"sh_degree": 2, "eps2d": 0.1, "depth": True}),
    SplatCase(splats=83, channels=1, background=True),
    SplatCase(splats=83, channels=0, options={"depth": True, "raw": True}),
    SplatCase(splats=83, channels=11, cameras=2, by_camera=True, background=True, options={"antialiased": True}),
    SplatCase(splats=60, far_out=True, options={"sh_degree": 1, "depth": True, "raw": True}),
    SplatCase(splats=50, twins=True, background=True, options={"raw": True}),
    SplatCase(splats=60, black=True, options={"sh_degree": 3, "raw": True}),
    SplatCase(splats=61, strided=True, background=True, cameras=2, options={"sh_degree": 3, "absgrad": True}),
    SplatCase(splats=97, size=0.6, opacity=6.0, background=True, options={"raw": True, "depth": True}),
    SplatCase(splats=97, size=0.04, options={"radius_clip": 3.0, "near": 3.5, "far": 4.5}),
    SplatCase(splats=37, cameras=2, background=True, dtype=torch.float64, options=EVERYTHING),
)
"""Nothing, one, primes, sizes that fill no tile, views, each option: small enough for a CPU."""

REAL = (
    SplatCase(splats=4001, width=211, height=161, size=0.05, background=True, max_undecided=0.02, options=EVERYTHING),
    SplatCase(
        splats=3000,
        width=160,
        height=120,
        size=0.4,
        opacity=-3.0,
        max_undecided=0.5,
        options={"sh_degree": 3, "raw": True},
    ),
    SplatCase(
        splats=20011,
        width=241,
        height=129,
        size=0.02,
        cameras=2,
        max_undecided=0.03,
        options={"sh_degree": 2, "raw": True},
    ),
    SplatCase(
        splats=2003, width=97, height=113, channels=32, by_camera=True, cameras=2, background=True, max_undecided=0.03
    ),
)
"""More splats than a batch or a short list holds, deep stacks of faint ones, many channels: for a card."""
