"""Memory that runs out where a test wants it to."""

from __future__ import annotations

import torch


class RunsOut:
    """Raises in passes through one layer, forward or backward, at random, where more than ``fits`` samples are in."""

    def __init__(self, layer, seed, *, share=0.2, fits=2):
        self.share, self.fits, self.num_failed = share, fits, 0
        self.dice = torch.Generator().manual_seed(seed)
        layer.register_forward_hook(self._forward)

    def _strike(self):
        if torch.rand((), generator=self.dice) < self.share:
            self.num_failed += 1
            raise torch.OutOfMemoryError("CUDA out of memory. (injected)")

    def _forward(self, module, inputs, output):
        first = output[0] if isinstance(output, tuple) else output
        if module.training and first.shape[0] > self.fits:
            self._strike()
            if first.requires_grad:
                first.register_hook(lambda gradient: self._strike())
