"""Adam for a few numbers, with nothing on the host, and what is learned beside the splats: colours behind, poses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

BETA1, BETA2, EPS = 0.9, 0.999, 1e-15


class SmallAdam:
    """A table of parameters [V, K], one row of which is stepped at a time; all in place on the device."""

    def __init__(self, rows: int, width: int, device: torch.device) -> None:
        self.first = torch.zeros(rows, width, device=device)
        self.second = torch.zeros(rows, width, device=device)
        self.steps = torch.zeros(rows, 1, device=device)

    def step(self, which: Tensor, grad: Tensor) -> Tensor:  # [1] int64, [1, K] -> [1, K]
        """How far the row's numbers should go, for a rate of 1."""
        made = self.steps.index_select(0, which) + 1
        first = BETA1 * self.first.index_select(0, which) + (1 - BETA1) * grad
        second = BETA2 * self.second.index_select(0, which) + (1 - BETA2) * grad * grad
        for table, row in ((self.steps, made), (self.first, first), (self.second, second)):
            table.index_copy_(0, which, row)
        return first / (1 - BETA1**made) / ((second / (1 - BETA2**made)).sqrt() + EPS)

    def tables(self) -> list[Tensor]:
        """All that it knows, a row a view."""
        return [self.first, self.second, self.steps]

    def state_dict(self) -> dict[str, Tensor]:
        return {name: getattr(self, name).cpu().clone() for name in ("first", "second", "steps")}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        for name in ("first", "second", "steps"):
            getattr(self, name).copy_(state[name])


class Background:
    """The colour behind all splats: the sigmoid of logits that stay within 6, so that it is always a colour."""

    LIMIT = 6.0

    def __init__(self, start: Tensor, rate: float, device: torch.device) -> None:  # [3] in 0 to 1
        self.rate = rate
        self.logits = torch.logit(start.to(device), eps=1e-2)[None]
        self.color = torch.sigmoid(self.logits)
        """[1, 3], changed in place."""
        self._adam = SmallAdam(1, 3, device)
        self._first = torch.zeros(1, dtype=torch.int64, device=device)

    def step(self, grad: Tensor) -> None:  # [1, 3] by the colour
        grad = torch.nan_to_num(grad, 0.0, 0.0, 0.0) * self.color * (1 - self.color)
        self.logits.sub_(self.rate * self._adam.step(self._first, grad)).clamp_(-self.LIMIT, self.LIMIT)
        self.color.copy_(torch.sigmoid(self.logits))

    def state_dict(self) -> dict[str, Any]:
        return {"logits": self.logits.cpu().clone(), "adam": self._adam.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.logits.copy_(state["logits"])
        self.color.copy_(torch.sigmoid(self.logits))
        self._adam.load_state_dict(state["adam"])


class Exposure:
    """A gain within a factor of 1.65 and an offset within 0.1 for each channel of each picture, drawn to 1 and 0."""

    GAIN, OFFSET, PULL = 0.5, 0.1, 0.01

    def __init__(self, num_views: int, rate: float, device: torch.device) -> None:
        self.rate = rate
        self.table = torch.zeros(num_views, 6, device=device)
        self._adam = SmallAdam(num_views, 6, device)

    def apply(self, which: Tensor, image: Tensor) -> Tensor:  # [1], [1, H, W, 3]
        """The picture as this view's camera would have exposed it."""
        gain, offset = self._of(which)
        return image * gain + offset

    def _of(self, which: Tensor) -> tuple[Tensor, Tensor]:
        row = torch.tanh(self.table.index_select(0, which)).view(1, 1, 1, 6)
        return torch.exp(self.GAIN * row[..., :3]), self.OFFSET * row[..., 3:]

    def step(self, which: Tensor, image: Tensor, grad: Tensor) -> Tensor:  # [1], [1, H, W, 3] twice
        """The gradient by the picture before exposure; the view's numbers make their step."""
        gain, _ = self._of(which)
        flat = 1 - torch.tanh(self.table.index_select(0, which)) ** 2
        by_gain = (grad * image).sum((1, 2)) * gain.view(1, 3) * self.GAIN
        by_offset = grad.sum((1, 2)) * self.OFFSET
        slope = torch.nan_to_num(torch.cat([by_gain, by_offset], dim=1) * flat, 0.0, 0.0, 0.0)
        row = self.table.index_select(0, which)
        self.table.index_copy_(0, which, row - self.rate * (self._adam.step(which, slope) + self.PULL * row))
        return grad * gain

    def tables(self) -> list[Tensor]:
        """All that a step changes, a row a view."""
        return [self.table, *self._adam.tables()]

    def state_dict(self) -> dict[str, Any]:
        return {"table": self.table.cpu().clone(), "adam": self._adam.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.table.copy_(state["table"])
        self._adam.load_state_dict(state["adam"])


class Poses:
    """The training views' poses, refined in place by small turns and shifts."""

    def __init__(self, viewmats: Tensor, rate: float, extent: float) -> None:  # [V, 4, 4]
        self.viewmats, self.rate = viewmats, rate
        units = [1.0] * 3 + [extent] * 3
        self.units = torch.tensor([units], device=viewmats.device)
        self._adam = SmallAdam(len(viewmats), 6, viewmats.device)

    def step(self, which: Tensor, pose: Tensor, grad: Tensor) -> None:  # [1], [1, 4, 4] twice
        """Moves one pose against the gradient by its numbers."""
        twist = torch.nan_to_num(pose_gradient(pose[0], grad[0]), 0.0, 0.0, 0.0)[None]
        move = -self.rate * self.units * self._adam.step(which, twist * self.units)
        self.viewmats.index_copy_(0, which, moved_pose(pose[0], move[0])[None])

    def tables(self) -> list[Tensor]:
        """All that a step changes, a row a view."""
        return [self.viewmats, *self._adam.tables()]

    def state_dict(self) -> dict[str, Any]:
        return {"viewmats": self.viewmats.cpu().clone(), "adam": self._adam.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.viewmats.copy_(state["viewmats"])
        self._adam.load_state_dict(state["adam"])


def pose_gradient(pose: Tensor, grad: Tensor) -> Tensor:  # [4, 4] twice -> [6]
    """By a turn and then a shift in front of the camera, the gradient by a pose's 12 numbers given."""
    rotation, shift = pose[:3, :3], pose[:3, 3]
    by_rotation, by_shift = grad[:3, :3], grad[:3, 3]
    spin = _product(by_rotation, rotation.T) - _product(rotation, by_rotation.T)
    turn = torch.stack([spin[2, 1], spin[0, 2], spin[1, 0]])
    return torch.cat([turn + torch.linalg.cross(shift, by_shift), by_shift])


def moved_pose(pose: Tensor, move: Tensor) -> Tensor:  # [4, 4], [6] -> [4, 4]
    """The pose after a turn about an axis, by its length, and a shift, both seen from the camera."""
    x, y, z = move[:3].unbind()
    zero = torch.zeros_like(x)
    rows = torch.stack([torch.stack([zero, -z, y]), torch.stack([z, zero, -x]), torch.stack([-y, x, zero])])
    square = (move[:3] ** 2).sum()
    angle = square.clamp(min=1e-24).sqrt()
    turn = (
        torch.eye(3, dtype=pose.dtype, device=pose.device)
        + torch.sin(angle) / angle * rows
        + (1 - torch.cos(angle)) / angle**2 * _product(rows, rows)
    )
    moved = pose.clone()
    moved[:3, :3] = _product(turn, pose[:3, :3])
    moved[:3, 3] = (turn * pose[:3, 3]).sum(1) + move[3:]
    return moved


def _product(a: Tensor, b: Tensor) -> Tensor:  # [3, 3] twice
    """The matrix product, whatever precision matrix units are set to."""
    return (a[:, :, None] * b[None]).sum(1)
