"""Splats drawn from a camera, and pictures of them judged beside the photographs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from hotlap.kernels.splat.frame import Splats, View
from hotlap.kernels.splat.op import splat
from hotlap.kernels.ssim.op import ssim
from hotlap.kernels.ssim.reference import compared, ssim_map_ref
from hotlap.splat.cameras import Cameras
from hotlap.splat.config import LEARNABLE
from hotlap.splat.lpips import lpips_of, why_no_lpips
from hotlap.splat.pictures import Pictures

MAX_PSNR = 100.0
"""Of pictures that are equal."""


@dataclass(frozen=True, kw_only=True)
class Score:
    """How near one picture is to its photograph."""

    name: str
    psnr: float
    ssim: float
    lpips: float | None = None
    """Of the net alex; None where it was not asked for, cannot be had, or the picture is too small for the net."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Model:
    """Splats that can be drawn."""

    params: Mapping[str, Tensor]
    """Raw, by name, [N, ...] each."""
    background: Tensor | None
    """[1, 3]; None: black."""
    antialiased: bool = False
    sh_degree: int | None = None
    """Degree in use; None for all there are."""

    @property
    def degree(self) -> int:
        most = math.isqrt(self.params["colors"].shape[1]) - 1
        return most if self.sh_degree is None else min(most, self.sh_degree)

    @torch.no_grad()
    def draw(self, pose: Tensor, intrinsics: Tensor, height: int, width: int) -> Tensor:  # [4, 4], [3, 3] -> [H, W, 3]
        """The picture from one camera; it may leave 0 to 1."""
        own = {name: self.params[name] for name in LEARNABLE}
        splats = Splats(**own, viewmats=pose[None], Ks=intrinsics[None], backgrounds=self.background)
        view = View(height=height, width=width, sh_degree=self.degree, raw=True, antialiased=self.antialiased)
        return splat(splats, view).colors[0]


def judged(
    model: Model, cameras: Cameras, pictures: Pictures, which: Sequence[int], *, lpips: str | None = None
) -> Iterator[tuple[Score, Tensor, Tensor]]:
    """For some views by number: the score, the picture drawn [H, W, 3] and the photograph [H, W, 3] uint8.

    ``lpips`` is None for none, or where its weights are ('' for the usual places). A view of which a mask leaves no
    pixel has no score.
    """
    has_lpips = lpips is not None and not why_no_lpips(lpips)
    for number in which:
        picture = pictures[number]
        if picture.mask is not None and not bool(picture.mask.any()):
            continue
        height, width = cameras.sizes[number]
        drawn = model.draw(cameras.viewmats[number], cameras.Ks[number], height, width).clamp(0, 1)
        photograph = picture.image.to(drawn.device)
        mask = None if picture.mask is None else picture.mask.to(drawn.device)
        score = Score(
            name=cameras.names[number],
            psnr=psnr(drawn, photograph, mask),
            ssim=similarity(drawn, photograph, mask),
            lpips=lpips_of(*_seen(drawn, photograph, mask), lpips or "") if has_lpips else None,
        )
        yield score, drawn, photograph


def psnr(drawn: Tensor, photograph: Tensor, mask: Tensor | None = None) -> float:  # [H, W, 3] twice, [H, W]
    """Peak signal-to-noise ratio in dB over the pixels that count; 100 for equal pictures."""
    squares = (drawn - photograph.to(drawn.dtype) / 255).square()
    mean = squares.mean() if mask is None else (squares * mask[..., None]).sum() / (3 * mask.sum()).clamp(min=1)
    error = float(mean)
    return MAX_PSNR if error <= 10 ** (-MAX_PSNR / 10) else -10 * math.log10(error)


def similarity(drawn: Tensor, photograph: Tensor, mask: Tensor | None = None) -> float:  # [H, W, 3] twice, [H, W]
    """SSIM over the pixels that count, with the others black in both pictures; 1 for equal pictures."""
    if mask is None:
        return float(ssim(drawn[None], photograph[None]))
    # The kernel's mean is that of all pixels, of which those left out are equal. Float64: conv2d may round to TF32.
    found = ssim_map_ref(*compared(drawn.double()[None], photograph[None], mask[None]))[0].mean(-1)
    return float((found * mask).sum() / mask.sum())


def _seen(drawn: Tensor, photograph: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:  # [H, W, 3] twice, [H, W]
    """Both pictures with the pixels that do not count black, so that a net sees no difference there."""
    return (drawn, photograph) if mask is None else (drawn * mask[..., None], photograph * mask[..., None])


def mean_scores(scores: Sequence[Score]) -> dict[str, float]:
    """The mean of each measure over the pictures that have it."""
    found = {}
    for name in ("psnr", "ssim", "lpips"):
        values = [value for score in scores if (value := getattr(score, name)) is not None]
        if values:
            found[name] = sum(values) / len(values)
    return found
