"""The bookkeeping of densification in plain torch: the truth that every implementation is held to."""

from __future__ import annotations

from math import comb

import torch
from torch import Tensor

from hotlap.kernels.densify.stats import CHILD_A, CHILD_B, COPY, KEPT, Plan, Stats

PHILOX = (0xD2511F53, 0xCD9E8D57, 0x9E3779B9, 0xBB67AE85)
"""Multipliers and key steps of Philox 4x32."""
LOW = 0xFFFFFFFF
GATE_STEEPNESS, GATE_OPACITY = 100.0, 0.005
"""Noise is for splats with less opacity than this, and none above it."""


def accumulate_ref(
    stats: Stats,
    v_means2d: Tensor,  # [C, N, 2]
    radii: Tensor,  # [C, N, 2] int32; 0: not drawn
    width: int,
    height: int,
) -> None:
    """Adds one step to the statistics, in place."""
    drawn = (radii > 0).all(dim=2)
    scale = torch.tensor([width / 2, height / 2], device=radii.device) * len(radii)
    length = (v_means2d.double() * scale).norm(dim=2)
    stats.grad.add_(torch.where(drawn, length, 0.0).sum(0))
    stats.count.add_(drawn.sum(0))
    share = torch.where(drawn, radii.amax(2), 0).double() / max(width, height)
    stats.max_radius.copy_(torch.cat([stats.max_radius.double()[None], share]).amax(0))
    stats.visible.copy_(drawn.any(0))


def plan_ref(clone: Tensor, split: Tensor, prune: Tensor, plan: Plan) -> None:  # [N] bool each
    """Fills a plan: a pruned splat goes, a split one becomes two children, a cloned one stays and gets a copy."""
    rows: list[tuple[int, int]] = []
    flags = zip(prune.tolist(), split.tolist(), clone.tolist(), strict=True)
    for row, (pruned, halved, doubled) in enumerate(flags):
        kinds = [] if pruned else [CHILD_A, CHILD_B] if halved else [KEPT, COPY] if doubled else [KEPT]
        rows += [(row, kind) for kind in kinds]
    capacity = len(plan.source)
    plan.source.fill_(-1)
    plan.kind.fill_(KEPT)
    for tensor, column in ((plan.source, 0), (plan.kind, 1)):
        values = [row[column] for row in rows[:capacity]]
        tensor[: len(values)] = torch.tensor(values, dtype=tensor.dtype, device=tensor.device)
    plan.count.fill_(len(rows))


def relocate_ref(
    opacities: Tensor,  # [N]
    scales: Tensor,  # [N, 3]
    ratios: Tensor,  # [N] int32, at least 1
) -> tuple[Tensor, Tensor]:
    """Opacities and scales of splats ``ratios`` of which take the place of one and leave the picture alike."""
    new_opacities, new_scales = torch.empty_like(opacities), torch.empty_like(scales)
    for row, (opacity, ratio) in enumerate(zip(opacities.double().tolist(), ratios.tolist(), strict=True)):
        part = 1 - (1 - opacity) ** (1 / ratio)
        below = sum(
            comb(i - 1, k) * (-1) ** k / (k + 1) ** 0.5 * part ** (k + 1) for i in range(1, ratio + 1) for k in range(i)
        )
        new_opacities[row] = part
        new_scales[row] = (opacity / below if below > 0 else 1) * scales[row]
    return new_opacities, new_scales


def add_noise_ref(
    means: Tensor,  # [N, 3]
    quats: Tensor,  # [N, 4] w, x, y, z, of any length but 0
    log_scales: Tensor,  # [N, 3]
    logits: Tensor,  # [N]
    lr: Tensor,  # []
    step: Tensor,  # [] int32
    seed: int,
    strength: float,
) -> None:
    """Moves the centres, in place, by lr * strength * sigmoid(-100 (opacity - 0.005)) * covariance @ normal."""
    w, x, y, z = torch.nn.functional.normalize(quats, dim=1).unbind(1)
    rows = [
        [1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)],
        [2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)],
        [2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)],
    ]
    rotation = torch.stack([torch.stack(row, dim=1) for row in rows], dim=1)
    covariance = rotation @ torch.diag_embed(torch.exp(2 * log_scales)) @ rotation.mT
    gate = torch.sigmoid(-GATE_STEEPNESS * (torch.sigmoid(logits) - GATE_OPACITY))
    normal = normal_ref(len(means), int(step), seed, means.device).to(means.dtype)
    means.add_((covariance @ normal[..., None])[..., 0] * gate[:, None] * (lr * strength))


def normal_ref(num: int, step: int, seed: int, device: torch.device) -> Tensor:
    """[num, 3] normal numbers in float64 that depend on the row, the step and the seed alone."""
    row = torch.arange(num, device=device)
    counter = (row & LOW, row >> 32, torch.full_like(row, step & LOW), torch.zeros_like(row))
    parts = [((bits >> 9).double() + 0.5) / 2**23 for bits in philox_ref(counter, (seed & LOW, seed >> 32 & LOW))]
    lengths = [torch.sqrt(-2 * torch.log(part)) for part in (parts[0], parts[2])]
    turns = [2 * torch.pi * part for part in (parts[1], parts[3])]
    return torch.stack([lengths[0] * turns[0].cos(), lengths[0] * turns[0].sin(), lengths[1] * turns[1].cos()], dim=1)


def philox_ref(counter: tuple[Tensor, ...], key: tuple[int, int]) -> tuple[Tensor, ...]:
    """Four 32-bit numbers, as int64, from four of the counter: ten rounds of Philox 4x32."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        p0, p1 = c0 * PHILOX[0], c2 * PHILOX[1]  # wraps around, and the low 64 bits are right
        c0, c1, c2, c3 = p1 >> 32 & LOW ^ c1 ^ k0, p1 & LOW, p0 >> 32 & LOW ^ c3 ^ k1, p0 & LOW
        k0, k1 = k0 + PHILOX[2] & LOW, k1 + PHILOX[3] & LOW
    return c0, c1, c2, c3
