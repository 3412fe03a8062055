"""One step of a training: a picture drawn, compared, differentiated, and everything moved, without a word to the host.

All that changes from step to step lies in tensors: which camera, its picture, the rates, the number of the step. So
the same code runs eagerly on a CPU and is recorded as a CUDA graph on a card (``graphed.py``).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from hotlap.kernels.adam.op import adam_step
from hotlap.kernels.densify.op import densify_accumulate, densify_noise
from hotlap.kernels.splat.frame import Drawn, Splats, View
from hotlap.kernels.splat.op import splat_choice
from hotlap.kernels.ssim.buffers import Buffers
from hotlap.kernels.ssim.op import l1_ssim_grad, make_buffers
from hotlap.splat.cameras import Cameras
from hotlap.splat.config import SplatTrainConfig
from hotlap.splat.small_adam import Background, Exposure, Poses
from hotlap.splat.state import SplatState

Gradients = dict[str, Tensor]
Key = tuple[int, int, int]
"""Height and width of a picture, and how often they are halved."""
KEPT_FRAMES = 16
"""Frames that wait for the next picture of their size; a scene may have as many sizes as pictures."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Frame:
    """What a step of one picture size reads and writes, always at the same place."""

    height: int
    width: int
    zoom: Tensor
    """[1, 3, 3] what the intrinsics are multiplied by, number by number."""
    which: Tensor
    """[1] int64 the camera's number."""
    target: Tensor
    """[1, H, W, 3] uint8 its picture."""
    mask: Tensor | None
    """[1, H, W] float32, 1 where pixels count."""
    image: Tensor
    """[1, H, W, 3] what was drawn last."""
    pairs: Tensor
    """[] int64 the most pairs of tile and splat of a picture since it was last set to 0."""
    no_alphas: Tensor
    """[1, H, W, 1] zeros: alphas have no gradient of their own."""
    compared: Buffers


@dataclass(frozen=True, kw_only=True, eq=False)
class Beside:
    """What is learned beside the splats; None for what is not."""

    color: Tensor | None
    """[1, 3] behind all splats; None: black."""
    background: Background | None = None
    exposure: Exposure | None = None
    poses: Poses | None = None

    def parts(self) -> dict[str, Background | Exposure | Poses]:
        """Those that learn, by name."""
        named = {"background": self.background, "exposure": self.exposure, "poses": self.poses}
        return {name: part for name, part in named.items() if part is not None}

    def by_view(self) -> list[Tensor]:
        """What each step changes of one view's own, a row a view."""
        return [table for part in (self.exposure, self.poses) if part is not None for table in part.tables()]


class TrainStep:
    """Makes steps on one state; ``frames`` by picture size."""

    def __init__(
        self,
        state: SplatState,
        cameras: Cameras,
        config: SplatTrainConfig,
        extent: float,
        beside: Beside,
        *,
        with_masks: bool = False,
        keep_small: bool = False,
        reduce: Callable[[Gradients, Tensor], None] | None = None,
    ) -> None:
        self.state, self.cameras, self.config, self.beside = state, cameras, config, beside
        self.with_masks, self.reduce = with_masks, reduce
        self._small: dict[tuple[Key, int], tuple[Tensor, Tensor | None]] | None = {} if keep_small else None
        device = state.device
        self.numbers = torch.arange(len(cameras), device=device)
        self.frames: dict[Key, Frame] = {}
        """The one that was asked for last stands last."""
        self.most_frames: int | None = KEPT_FRAMES
        """None for all: recorded steps read and write theirs."""
        self.loss_sum = torch.zeros((), device=device, dtype=torch.float64)
        """Over the steps since it was last read."""
        rates = rates_of(config, extent)
        decays = [config.lr_decay if config.lr_decay_all or name == "means" else 1.0 for name in state.learned]
        self._base = torch.tensor([rates[name] for name in state.learned], device=device)
        self._log_decays = torch.tensor([math.log(decay) / config.steps for decay in decays], device=device)
        needs = {*state.learned, "means2d"}
        needs |= {"backgrounds"} if beside.background else set()
        needs |= {"viewmats"} if beside.poses else set()
        needs |= {"means"} if config.densify_signal == "world" else set()
        self._needs = frozenset(needs)
        self._has_noise = config.strategy == "mcmc" and "means" in state.learned

    def degree_at(self, step: int) -> int:
        """Of the harmonics in use after so many steps."""
        return min(step // self.config.sh_every, self.config.sh_degree)

    def view_of(self, frame: Frame, degree: int) -> View:
        """How the kernels are to draw."""
        c = self.config
        return View(
            height=frame.height, width=frame.width, sh_degree=degree, raw=True, antialiased=c.antialiased,
            absgrad=c.densify_signal == "abs",
        )  # fmt: skip

    def frame_of(self, key: Key) -> Frame:
        """The frame for pictures of a size, made when it is first asked for."""
        if key in self.frames:
            self.frames[key] = self.frames.pop(key)
        else:
            while self.most_frames is not None and len(self.frames) >= self.most_frames:
                del self.frames[next(iter(self.frames))]
            device, shape = self.state.device, halved(key)
            image = torch.zeros(1, *shape, 3, device=device)
            target = torch.zeros(1, *shape, 3, device=device, dtype=torch.uint8)
            y, x = shape[0] / key[0], shape[1] / key[1]
            self.frames[key] = Frame(
                height=shape[0],
                width=shape[1],
                zoom=torch.tensor([[[x, 1.0, x], [1.0, y, y], [1.0, 1.0, 1.0]]], device=device),
                which=torch.zeros(1, dtype=torch.int64, device=device),
                target=target,
                mask=torch.ones(1, *shape, device=device) if self.with_masks else None,
                image=image,
                pairs=torch.zeros((), dtype=torch.int64, device=device),
                no_alphas=torch.zeros(1, *shape, 1, device=device),
                compared=make_buffers(image, target),
            )
        return self.frames[key]

    def put(self, key: Key, number: int, target: Tensor, mask: Tensor | None) -> Frame:
        """The frame with a camera and its picture in it, copied without waiting."""
        frame = self.frame_of(key)
        frame.which.copy_(self.numbers[number : number + 1])
        if key[2]:
            target, mask = self._shrunk(key, number, target.to(frame.target.device), mask)
        frame.target[0].copy_(target, non_blocking=True)
        if frame.mask is not None and mask is not None:
            frame.mask[0].copy_(mask, non_blocking=True)
        elif frame.mask is not None:
            frame.mask.fill_(1)
        return frame

    def _shrunk(self, key: Key, number: int, target: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """A picture and its mask at the size of the key; where pictures wait on the device, so do those."""
        if self._small is not None and (key, number) in self._small:
            return self._small[key, number]
        size = halved(key)
        small = shrunk(target, *size), None if mask is None else shrunk(mask[..., None], *size)[..., 0]
        if self._small is not None:
            self._small[key, number] = small
        return small

    def run(self, frame: Frame, degree: int) -> None:
        """Makes the whole step for the picture in the frame."""
        grads = self.differentiate(frame, degree)
        if self.reduce is not None:
            self.reduce(grads, self.state.stats.visible)
        self.update(frame, grads)

    def differentiate(self, frame: Frame, degree: int) -> Gradients:
        """The gradients of all that learns; densification's statistics have heard of them."""
        kernels, splats, view = self._drawing(frame, degree)
        drawn = kernels.forward(splats, view)
        v_image = self._compare(frame, drawn.colors)
        grads: Gradients = kernels.backward(splats, view, drawn, v_image, frame.no_alphas, None, self._needs)
        stats = self.state.stats
        signal = grads["means2d_abs"] if view.absgrad else grads["means2d"]
        densify_accumulate(stats, signal, drawn.facts.radii, frame.width, frame.height)
        if self.config.densify_signal == "world":
            self.state["stats.world"].add_(grads["means"].norm(dim=1))
        frame.image.copy_(drawn.colors)
        frame.pairs.copy_(torch.maximum(frame.pairs, drawn.facts.tiles_per_splat.sum()))
        return grads

    def draw(self, frame: Frame, degree: int) -> Drawn:
        """The picture alone, with what is known of each splat."""
        kernels, splats, view = self._drawing(frame, degree)
        drawn: Drawn = kernels.forward(splats, view)
        return drawn

    def _drawing(self, frame: Frame, degree: int) -> tuple[Any, Splats, View]:
        view = self.view_of(frame, degree)
        splats = self.state.splats(*self._camera(frame), self.beside.color)
        return import_module(f"hotlap.kernels.splat.{splat_choice(splats, view).impl}"), splats, view

    def update(self, frame: Frame, grads: Gradients) -> None:
        """Moves everything that learns."""
        state, step = self.state, self.state.adam.step
        state.adam.lrs.copy_(self._base * torch.exp(self._log_decays * step))
        if self.config.strategy == "mcmc":
            grads = self._weighed(grads)
        adam_step(state.adam, [grads[name] for name in state.learned], state.config, self._stepped())
        if self.beside.background is not None:
            self.beside.background.step(grads["backgrounds"])
        if self.beside.poses is not None:
            self.beside.poses.step(frame.which, self._camera(frame)[0], grads["viewmats"])
        if self._has_noise:
            self._shake(state)

    def read_loss(self) -> float:
        """The sum of the losses since the last time; waits for the device."""
        total = self.loss_sum.item()
        self.loss_sum.zero_()
        return total

    def _stepped(self) -> Tensor | None:
        """The splats that Adam steps now: those seen, or all where it has to know of each."""
        return None if self.config.strategy == "mcmc" else self.state.stats.visible

    def _camera(self, frame: Frame) -> tuple[Tensor, Tensor]:
        """Pose [1, 4, 4] and intrinsics [1, 3, 3] of the frame's camera, at the frame's size."""
        pose = self.cameras.viewmats.index_select(0, frame.which)
        return pose, self.cameras.Ks.index_select(0, frame.which) * frame.zoom

    def _compare(self, frame: Frame, image: Tensor) -> Tensor:  # [1, H, W, 3] -> the same
        """The gradient of the loss by the image that was drawn."""
        exposure = self.beside.exposure
        shown = image if exposure is None else exposure.apply(frame.which, image)
        if self.config.loss == "l2":
            v_shown = self._squares(frame, shown)
        else:
            weight = self.config.ssim_weight
            loss, v_shown = l1_ssim_grad(shown, frame.target, ssim_weight=weight, mask=frame.mask, out=frame.compared)
            self.loss_sum.add_(loss)
        return v_shown if exposure is None else exposure.step(frame.which, image, v_shown)

    def _squares(self, frame: Frame, image: Tensor) -> Tensor:
        apart = image - frame.target / 255
        if frame.mask is not None:
            apart = apart * frame.mask[..., None]
        self.loss_sum.add_(apart.square().mean())
        return apart * (2 / apart.numel())

    def _weighed(self, grads: Gradients) -> Gradients:
        """The gradients with those of the mean opacity and the mean extent; a replayed step needs the others again."""
        state, c, found = self.state, self.config, dict(grads)
        if "opacities" in grads:
            opacities = torch.sigmoid(state["opacities"])
            found["opacities"] = grads["opacities"] + c.opacity_weight / state.num * opacities * (1 - opacities)
        if "scales" in grads:
            found["scales"] = grads["scales"] + c.scale_weight / (3 * state.num) * torch.exp(state["scales"])
        return found

    def _shake(self, state: SplatState) -> None:
        rate = state.adam.lrs[state.learned.index("means")]
        own = (state["means"], state["quats"], state["scales"], state["opacities"])
        densify_noise(*own, rate, state.adam.step, seed=self.config.seed, strength=self.config.noise)


def halved(key: Key) -> tuple[int, int]:
    """The size that a picture is trained at."""
    return max(1, round(key[0] / 2 ** key[2])), max(1, round(key[1] / 2 ** key[2]))


def shrunk(picture: Tensor, height: int, width: int) -> Tensor:  # [H, W, C] -> [h, w, C]
    """A picture at a smaller size: the means of the pixels that become one."""
    planes = picture.permute(2, 0, 1)[None].float()
    small = torch.nn.functional.interpolate(planes, (height, width), mode="area")[0].permute(1, 2, 0)
    return small.round().to(picture.dtype) if picture.dtype == torch.uint8 else small


def rates_of(config: SplatTrainConfig, extent: float) -> dict[str, float]:
    """The rate of each parameter at the first step, by name."""
    rates = {name: getattr(config, f"lr_{name}") for name in config.learn}
    if "means" in rates and config.lr_by_extent:
        rates["means"] *= extent
    return rates
