"""Gaussian splatting: ``hotlap.splat.rasterize`` draws splats, with gradients, on a card or a CPU."""

from hotlap.splat.rasterize import rasterize as rasterize
