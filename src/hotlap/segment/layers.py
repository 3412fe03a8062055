"""Layers that the cell networks share: a norm that keeps the memory layout, sizes that fit, small attentions."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hotlap.kernels.channel_pool.op import channel_pool
from hotlap.kernels.instance_norm.op import instance_norm

RESIDUAL_GAIN = 0.2
"""Of the last norm beside a shortcut, at the start: blocks begin near the identity. With 1 the scores of a fresh HRNet
move by 30 % when it is computed in bfloat16, with 0.2 by 5 %."""


class WithKernels(nn.Module):
    """A layer that plain torch computes, or kernels of ours, where they can run: the same but for rounding."""

    kernels = False

    def use_kernels(self) -> None:
        """From now on by kernels."""
        self.kernels = True


class InstanceNorm(WithKernels, nn.InstanceNorm2d):
    """Each channel of each image with mean 0 and variance 1, then scaled and shifted; any layout, any size from 1x1.

    A ``residual`` is added to that, and a ``relu`` cuts it off at 0.

    torch's own turns channels-last images round before and after each norm, and refuses a single pixel. Here such
    tensors are summed in float32 where they lie; torch.compile makes one kernel of it. With kernels the norm and what
    follows it are two passes over memory, however it is run.
    """

    def __init__(self, channels: int) -> None:
        super().__init__(channels, affine=True)

    def forward(self, x: Tensor, residual: Tensor | None = None, relu: bool = False) -> Tensor:  # [n, C, H, W] each
        if self.kernels:
            return instance_norm(x, self.weight, self.bias, eps=self.eps, residual=residual, relu=relu)
        out = self._normalised(x)
        out = out if residual is None else out + residual
        return F.relu(out, inplace=True) if relu else out

    def _normalised(self, x: Tensor) -> Tensor:
        if x.is_contiguous() and x.shape[-2] * x.shape[-1] > 1 and not torch.compiler.is_compiling():
            return F.instance_norm(x, weight=self.weight, bias=self.bias, eps=self.eps)
        short = x.dtype in (torch.float16, torch.bfloat16)
        if short and x.is_cuda and not torch.is_grad_enabled() and not torch.compiler.is_compiling():
            return self._short(x)
        wide = x.float() if short else x
        var, mean = torch.var_mean(wide, (2, 3), correction=0, keepdim=True)
        scale = self.weight[:, None, None] * torch.rsqrt(var + self.eps)
        return torch.addcmul(self.bias[:, None, None] - mean * scale, wide, scale).to(x.dtype)

    def _short(self, x: Tensor) -> Tensor:
        """The same of 16-bit numbers, without gradients: summed in float32 as they are read, never written as float32.

        That is a third of the memory traffic. The difference of two sums is exact enough: where a mean is so much more
        than the deviation that it would not be, 16 bits hold no deviation.
        """
        # In place and fused where one call can do two: a network of 300 norms is paced by the host that launches them.
        mean = x.mean((2, 3), keepdim=True, dtype=torch.float32)
        root = torch.linalg.vector_norm(x, dim=(2, 3), keepdim=True, dtype=torch.float32)
        var = root.square_().div_(x.shape[2] * x.shape[3]).addcmul_(mean, mean, value=-1).clamp_(min=0)
        scale = var.add_(self.eps).rsqrt_().mul_(self.weight.view(-1, 1, 1))
        shift = torch.addcmul(self.bias.view(-1, 1, 1), mean, scale, value=-1)
        return torch.addcmul(shift, x, scale, out=torch.empty_like(x))


class FittedNet(nn.Module):
    """A network for images of any size: sides are extended to a multiple of ``stride`` and the result is cut back."""

    stride = 1

    def forward(self, image: Tensor) -> Tensor:  # [n, C, H, W] -> [n, maps, H, W]
        height, width = image.shape[-2:]
        if height % self.stride or width % self.stride:
            image = F.pad(image, (0, -width % self.stride, 0, -height % self.stride), mode="replicate")
        return self.scores(image)[..., :height, :width]

    def scores(self, image: Tensor) -> Tensor:
        """The scores of an image whose sides are multiples of the stride."""
        raise NotImplementedError


class ConvNorm(nn.Sequential):
    """A convolution without bias, its norm, which starts with ``gain``, and, unless told otherwise, a ReLU."""

    def __init__(
        self, before: int, after: int, kernel: int, *, stride: int = 1, relu: bool = True, gain: float = 1.0
    ) -> None:
        conv = nn.Conv2d(before, after, kernel, stride=stride, padding=kernel // 2, bias=False)
        norm = InstanceNorm(after)
        nn.init.constant_(norm.weight, gain)
        super().__init__(conv, norm)
        self.relu = relu

    def forward(self, x: Tensor, residual: Tensor | None = None, relu: bool = False) -> Tensor:  # [n, C, H, W] each
        """With a ``residual``, that is added to the norm, before the ReLU that it has or is given."""
        out: Tensor = self[1](self[0](x), residual, relu or self.relu)
        return out


class MeanAndMax(WithKernels):
    """Mean and maximum over the channels."""

    def forward(self, x: Tensor) -> Tensor:  # [n, C, H, W] -> [n, 2, H, W]
        if self.kernels:
            return channel_pool(x)
        return torch.cat([x.mean(1, keepdim=True), x.amax(1, keepdim=True)], 1)


class Gate(nn.Module):
    """A skip weighed, pixel by pixel, by how well it fits what comes up from below; then refined."""

    def __init__(self, channels: int, refine: nn.Module, *, bias: bool) -> None:
        super().__init__()
        inner = max(channels // 2, 8)
        self.from_below = ConvNorm(channels, inner, 1, relu=False)
        self.from_skip = ConvNorm(channels, inner, 1, relu=False)
        self.weigh = nn.Sequential(nn.Conv2d(inner, 1, 1, bias=bias), InstanceNorm(1))
        self.refine = refine

    def forward(self, below: Tensor, skip: Tensor) -> Tensor:  # [n, C, H, W] each
        fits = self.from_skip(skip, self.from_below(below), relu=True)
        refined: Tensor = self.refine(skip * torch.sigmoid(self.weigh(fits)))
        return refined


def init_he(net: nn.Module, last: nn.Conv2d) -> None:
    """He's initial weights for every convolution, zero for its bias; the last one starts near a score of 0."""
    for module in net.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            if module.bias is not None:
                nn.init.zeros_(module.bias)
    last.reset_parameters()


class GatedUNet(FittedNet):
    """A U-Net whose skips pass through gates; what its levels are made of is said by those who build on it."""

    stem: nn.Module
    encoders: nn.ModuleList
    bottleneck: nn.Module
    upsamplers: nn.ModuleList
    gates: nn.ModuleList
    decoders: nn.ModuleList
    head: nn.Module

    def end(self, width: int, maps: int, *between: nn.Module) -> None:
        """Adds the head, with ``between`` before its last convolution, and starts all weights."""
        last = nn.Conv2d(width // 2, maps, 1)
        self.head = nn.Sequential(ConvNorm(width, width // 2, 3), *between, last)
        init_he(self, last)

    def scores(self, image: Tensor) -> Tensor:
        x = self.stem(image)
        skips = []
        for encoder in self.encoders:
            x = encoder(x)
            skips.append(x)
            x = F.max_pool2d(x, 2)
        x = self.bottleneck(x)
        for upsample, gate, decoder in zip(self.upsamplers, self.gates, self.decoders, strict=True):
            x = upsample(x)
            x = decoder(torch.cat([gate(x, skips.pop()), x], 1))
        maps: Tensor = self.head(x)
        return maps
