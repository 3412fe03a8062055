"""From the pixels of a picture to what the network sees: mirrored, recoloured, normalised.

What is random is decided for each image by itself, before, and travels with it, so an image comes out the same to the
last bit in whatever batch it is: one large batch and its parts give the same numbers.
"""

from __future__ import annotations

import torch
from torch import Tensor

MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)
"""Of ImageNet's pixels, in [0, 1]: what published weights expect."""
_GREY = (0.2989, 0.587, 0.114)
_FINE = 256.0  # steps of a grey level in the exact mean


def finish_batch(
    image: Tensor, flip: Tensor | None, jitter: Tensor | None, dtype: torch.dtype
) -> Tensor:  # [n, 3, H, W] uint8, [n] bool, [n, 3]
    """Normalised images [n, 3, H, W], where the batch is; jitter holds factors of brightness, contrast, saturation."""
    if image.device.type != "cpu":
        return _finish(image, flip, jitter, dtype)
    # On a CPU an image at a time stays in the cache, and the outcome is the same to the last bit.
    finished = torch.empty(image.shape, dtype=dtype)
    for number in range(len(image)):
        one = slice(number, number + 1)
        finished[one] = _finish(
            image[one], None if flip is None else flip[one], None if jitter is None else jitter[one], dtype
        )
    return finished


def _finish(image: Tensor, flip: Tensor | None, jitter: Tensor | None, dtype: torch.dtype) -> Tensor:
    if flip is not None:
        image = torch.where(flip[:, None, None, None], image.flip(-1), image)
    exact = torch.float64 if dtype == torch.float64 else torch.float32
    pixels = image.to(exact)
    if jitter is not None:
        pixels = _recolour(pixels, jitter.to(exact))
    # Plain numbers, a channel at a time: a tensor of them would have to be copied to the device at every step.
    for channel, mean, std in zip(pixels.unbind(1), MEAN, STD, strict=True):
        channel.sub_(255.0 * mean).div_(255.0 * std)
    return pixels.to(dtype)


def finish_one(image: Tensor, flip: Tensor, jitter: Tensor | None) -> Tensor:  # [3, H, W] uint8, [], [3]
    """The same for one image, in float32 with torchvision's own functions, as a loader's process does it."""
    from torchvision.transforms.v2 import functional as v2

    if flip:
        image = v2.horizontal_flip(image)
    pixels = v2.to_dtype(image, torch.float32, scale=True)
    if jitter is not None:
        brightness, contrast, saturation = jitter.tolist()
        pixels = v2.adjust_brightness(pixels, brightness)
        pixels = v2.adjust_contrast(pixels, contrast)
        pixels = v2.adjust_saturation(pixels, saturation)
    return v2.normalize(pixels, list(MEAN), list(STD))


def _recolour(pixels: Tensor, jitter: Tensor) -> Tensor:  # [n, 3, H, W] in 0..255, [n, 3]
    brightness, contrast, saturation = (factor[:, None, None, None] for factor in jitter.unbind(1))
    pixels = (pixels * brightness).clamp_(0.0, 255.0)
    # A sum of floats depends on how the device cuts it up, and that on the batch; a sum of integers does not.
    total = (_grey(pixels) * _FINE).round().long().sum((1, 2, 3), keepdim=True)
    mean = (total.double() / (_FINE * pixels.shape[2] * pixels.shape[3])).to(pixels.dtype)
    pixels = (pixels * contrast + mean * (1.0 - contrast)).clamp_(0.0, 255.0)
    return (pixels * saturation + _grey(pixels) * (1.0 - saturation)).clamp_(0.0, 255.0)


def _grey(pixels: Tensor) -> Tensor:  # [n, 3, H, W] -> [n, 1, H, W]
    red, green, blue = pixels.split(1, dim=1)
    return red * _GREY[0] + green * _GREY[1] + blue * _GREY[2]
