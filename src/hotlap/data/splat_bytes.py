"""Numbers of splats in few bits, as several formats store them, and the order in which neighbours stand together."""

from __future__ import annotations

import numpy as np

_ALMOST = 1 / 1020  # a quarter of a step of 1/255: comes back to the same byte


def sigmoid(logits: np.ndarray) -> np.ndarray:
    """Opacities of logits, without overflow."""
    return 0.5 * (1.0 + np.tanh(0.5 * logits.astype(np.float64)))


def logit(opacities: np.ndarray) -> np.ndarray:  # -> float32
    """Logits of opacities from a byte; 0 and 1 are moved in by a quarter of its step, so that logits are finite."""
    inner = opacities.astype(np.float64).clip(_ALMOST, 1 - _ALMOST)
    return np.log(inner / (1 - inner)).astype(np.float32)


def to_steps(values: np.ndarray, most: int) -> np.ndarray:  # -> int64
    """Numbers from 0 to 1 as whole steps from 0 to ``most``, to the nearest."""
    return np.floor(values * most + 0.5).clip(0, most).astype(np.int64)


def unit(quats: np.ndarray) -> np.ndarray:  # [N, 4] -> [N, 4] float64
    """Quaternions of length 1."""
    wide = quats.astype(np.float64)
    wide = wide / np.abs(wide).max(1, keepdims=True)
    return wide / np.linalg.norm(wide, axis=1, keepdims=True)


def morton_order(means: np.ndarray) -> np.ndarray:  # [N, 3] -> [N] int64
    """Positions along a curve on which neighbours in space are mostly neighbours in the file."""
    wide = means.astype(np.float64)
    low, high = wide.min(0, initial=np.inf), wide.max(0, initial=-np.inf)
    size = np.where(high > low, high - low, 1.0)
    cells = ((wide - low) / size * 1023).astype(np.int64) if len(means) else np.zeros((0, 3), np.int64)
    code = np.zeros(len(means), np.int64)
    for bit in range(10):
        for axis in range(3):
            code |= ((cells[:, axis] >> bit) & 1) << (3 * bit + axis)
    return np.argsort(code, kind="stable")


def three_smallest(quats: np.ndarray) -> tuple[np.ndarray, np.ndarray]:  # [N, 4] -> [N], [N, 3]
    """Which of four components is the largest, and the others in order, signed so that the largest is positive."""
    largest = np.abs(quats).argmax(1)
    signed = quats * np.sign(np.take_along_axis(quats, largest[:, None], 1))
    others = signed[np.arange(4) != largest[:, None]].reshape(-1, 3)
    return largest, others


def from_three(largest: np.ndarray, others: np.ndarray) -> np.ndarray:  # [N], [N, 3] -> [N, 4] float32
    """Quaternions of length 1 from their three smaller components."""
    quats = np.empty((len(largest), 4))
    quats[np.arange(4) != largest[:, None]] = others.reshape(-1)
    quats[np.arange(len(largest)), largest] = np.sqrt((1 - (others**2).sum(1)).clip(0))
    return quats.astype(np.float32)
