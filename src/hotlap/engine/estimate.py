"""How much memory a training step needs, told beforehand: weights, gradients, optimizer state and activations."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from hotlap.base.errors import HotlapError, TargetError, UsageError, did_you_mean
from hotlap.base.format import format_bytes
from hotlap.device.seed import generator
from hotlap.engine.imitate import Imitation, Kept, Owner, autocast, count_kept, optimizer_bytes
from hotlap.workload import Workload

PRECISIONS: dict[str, torch.dtype | None] = {"32-true": None, "bf16-mixed": torch.bfloat16, "16-mixed": torch.float16}
NUM_LARGEST = 5
_TRIED = (4, 8)
"""Batches of the real forward passes that stand in where shapes alone do not tell. Libraries round what they keep up to
pages, so that smaller batches would mislead."""


@dataclass(frozen=True, kw_only=True)
class MemoryEstimate:
    """The memory of one training step, by what takes it. An estimate: nothing of this size was run.

    Not in it: workspaces of libraries, gradients of activations that live for a moment during the backward pass,
    temporary tensors of the optimizer, the allocator's rounding and fragments, and the CUDA context.
    """

    batch: int
    precision: str
    device: str
    """The kind of device that was imitated: cpu or cuda."""
    parameters_bytes: int
    gradients_bytes: int
    optimizer_bytes: int
    """State of the workload's own optimizer after a step; 0 when it was not asked for."""
    buffers_bytes: int
    activations_bytes: int
    """What the forward pass keeps for the backward pass at this batch: the batch itself and autocast's copies of the
    weights included."""
    activations_bytes_per_sample: int
    """How much one more sample adds."""
    largest: tuple[Owner, ...]
    """The largest tensors that are kept: module, shape, bytes."""
    method: str
    """'imitated' from shapes, or 'extrapolated' from real forward passes of small batches on the CPU."""
    notes: tuple[str, ...] = ()
    """Where the estimate had to leave its usual way, and why."""

    @property
    def total_bytes(self) -> int:
        """All of it at once."""
        fixed = self.parameters_bytes + self.gradients_bytes + self.optimizer_bytes + self.buffers_bytes
        return fixed + self.activations_bytes

    @property
    def fixed_bytes(self) -> int:
        """What does not grow with the batch."""
        return self.total_bytes - self.batch * self.activations_bytes_per_sample

    def __str__(self) -> str:
        sizes = {
            "parameters": self.parameters_bytes,
            "gradients": self.gradients_bytes,
            "optimizer": self.optimizer_bytes,
            "buffers": self.buffers_bytes,
            "activations": self.activations_bytes,
            "total": self.total_bytes,
        }
        lines = [f"{name:<12}{format_bytes(size):>9}" for name, size in sizes.items()]
        lines[4] += (
            f"  {format_bytes(self.activations_bytes_per_sample)} a sample, batch {self.batch}, {self.precision}"
        )
        lines += [f"  {format_bytes(o.bytes):>9}  {o.module} {list(o.shape)}" for o in self.largest]
        return "\n".join([*lines, *(f"note: {note}" for note in self.notes)])


def estimate_memory(
    workload: Workload,
    *,
    batch: int,
    precision: str = "32-true",
    optimizer: bool = True,
    device: str = "cpu",
) -> MemoryEstimate:
    """The memory of a training step of ``batch`` samples, from shapes alone: no card is asked, no such step is run.

    ``device`` is the kind to imitate: a card keeps other things than a processor does (dropout masks of one byte, fused
    attention), and it need not be there. Where imitation fails, the notes say what was done instead.
    """
    dtype = _check(batch, precision, device)
    notes: list[str] = []
    for kind in dict.fromkeys((device, "cpu")):
        try:
            imitation = Imitation(workload, kind, dtype)
            now, twice = imitation.kept(batch), imitation.kept(2 * batch)
        except HotlapError:
            raise
        except Exception as error:  # noqa: BLE001 - a model may do anything that shapes alone cannot answer
            notes.append(f"{kind} could not be imitated ({_first_line(error)})")
            continue
        if imitation.unknown_op:
            notes.append(f"what {imitation.unknown_op} keeps on a CPU cannot be told from shapes")
            continue
        state = _optimizer(workload, imitation, notes) if optimizer else 0
        slope = (twice.bytes - now.bytes) // batch
        return _estimate(imitation.model, now, slope, state, batch, precision, kind, "imitated", notes)
    return _extrapolate(workload, batch, precision, optimizer, notes)


def _check(batch: int, precision: str, device: str) -> torch.dtype | None:
    if batch < 1:
        raise UsageError(f"batch = {batch} is not valid", expected="a whole number from 1")
    if precision not in PRECISIONS:
        raise UsageError(f"precision = {precision!r} is not known", remedy=did_you_mean(precision, PRECISIONS))
    if device not in ("cpu", "cuda"):
        raise UsageError(f"device = {device!r} cannot be imitated", expected="cpu or cuda")
    return PRECISIONS[precision]


def _optimizer(workload: Workload, imitation: Imitation, notes: list[str]) -> int:
    try:
        return imitation.optimizer_bytes()
    except HotlapError:
        raise
    except Exception as error:  # noqa: BLE001 - some optimizers look at numbers, which an imitation has not
        notes.append(f"the optimizer was stepped for real on the CPU ({_first_line(error)})")
    with torch.random.fork_rng(devices=[]):
        model = workload.build_model()
    return _real_optimizer(workload, model)


def _real_optimizer(workload: Workload, model: torch.nn.Module) -> int:
    try:
        return optimizer_bytes(workload, model)
    except HotlapError:
        raise
    except Exception as error:
        raise TargetError(
            f"the optimizer of {workload.name!r} cannot take a step: {_first_line(error)}",
            expected="an optimizer with step() that needs no closure",
            remedy="Leave its state out with optimizer=False",
        ) from error


def _extrapolate(workload: Workload, batch: int, precision: str, optimizer: bool, notes: list[str]) -> MemoryEstimate:
    """The estimate from two real forward passes of small batches on the CPU, continued in a straight line."""
    low, high = _TRIED
    with torch.random.fork_rng(devices=[]):
        model = workload.build_model().cpu().train()
        try:
            first, second = (_really_kept(workload, model, n, PRECISIONS[precision]) for n in _TRIED)
        except HotlapError:
            raise
        except Exception as error:
            raise TargetError(
                f"the loss of {workload.name!r} failed at batch {low}: {_first_line(error)}",
                remedy="Run one step of it by hand in Python to see the whole trace",
            ) from error
    notes.append(f"activations are extrapolated from real forward passes of {low} and {high} samples on the CPU")
    kept, slope = _grown(first, second, batch), (second.bytes - first.bytes) // (high - low)
    state = _real_optimizer(workload, model) if optimizer else 0
    return _estimate(model, kept, slope, state, batch, precision, "cpu", "extrapolated", notes)


def _really_kept(workload: Workload, model: torch.nn.Module, n: int, dtype: torch.dtype | None) -> Kept:
    made = workload.worst_case_batch(n, torch.device("cpu"), generator(0))
    with autocast("cpu", dtype), torch.enable_grad():
        return count_kept(workload, model, made)


def _grown(first: Kept, second: Kept, batch: int) -> Kept:
    """What is kept at ``batch``, if every tensor goes on growing as it did between the two batches tried."""
    low, high = _TRIED

    def at(a: int, b: int) -> int:
        return a + (batch - low) * (b - a) // (high - low)

    if [len(o.shape) for o in first.owners] != [len(o.shape) for o in second.owners]:
        return Kept([Owner("(all)", (), at(first.bytes, second.bytes))])
    return Kept(
        [
            Owner(a.module, tuple(at(x, y) for x, y in zip(a.shape, b.shape, strict=True)), at(a.bytes, b.bytes))
            for a, b in zip(first.owners, second.owners, strict=True)
        ]
    )


def _estimate(
    model: torch.nn.Module,
    kept: Kept,
    slope: int,
    state: int,
    batch: int,
    precision: str,
    device: str,
    method: str,
    notes: list[str],
) -> MemoryEstimate:
    parameters = list(model.parameters())
    return MemoryEstimate(
        batch=batch,
        precision=precision,
        device=device,
        parameters_bytes=sum(p.nbytes for p in parameters),
        gradients_bytes=sum(p.nbytes for p in parameters if p.requires_grad),
        optimizer_bytes=state,
        buffers_bytes=sum(b.nbytes for b in model.buffers()),
        activations_bytes=kept.bytes,
        activations_bytes_per_sample=slope,
        largest=tuple(sorted(kept.owners, key=lambda owner: -owner.bytes)[:NUM_LARGEST]),
        method=method,
        notes=tuple(notes),
    )


def _first_line(error: Exception) -> str:
    text = str(error).strip()
    return f"{type(error).__name__}: {text.splitlines()[0]}" if text else type(error).__name__
