"""Forward and backward passes recorded as CUDA graphs, shape by shape, and replayed for every part of a known shape.

A recording reads its inputs and the seeds of dropout from buffers of its own. Its gradients are written, in a step of
one part, or added to those of the parts before, in a step of several.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from hotlap.base.errors import UsageError
from hotlap.device.host_random import HostRandom
from hotlap.device.memory import is_out_of_memory
from hotlap.engine.split import copy_of, leaves_of
from hotlap.engine.undo import first_line
from hotlap.measure.dropout import StepKey
from hotlap.measure.graph import Recorder, Recording, waits_seen
from hotlap.workload import Batch

EAGER_FIRST = 3
"""Parts of a shape that run unrecorded: libraries choose algorithms there, compilers compile, and waiting is seen."""
MAX_SHAPES = 4
"""Recordings at a time; each holds the activations of its shape, as far as it cannot share them with the others."""
MAX_MET = 64
"""Shapes that are told apart while they are counted."""
MAX_DROPS = 3
"""Times that memory may run out beside recordings, or while one is made, before no more are made."""


class Passed(NamedTuple):
    """What a pass over one part gives, its gradients apart."""

    loss: Tensor
    """Summed over the part, detached."""
    num: Tensor | int
    """The count that makes the loss a mean."""
    divisor: Any
    mean: Tensor
    """The loss over the divisor."""


Pass = Callable[[Batch], Passed]
_Gradients = list[tuple[nn.Parameter, Tensor]]


@dataclass(frozen=True, kw_only=True)
class _Shape:
    """One recording with the buffers it reads."""

    inputs: list[Tensor]
    recording: Recording
    gradients: _Gradients
    """What it writes; empty where it adds to those in force."""


class _HostCopies(TorchDispatchMode):
    """Counts copies from the host to another device: a replay would read memory that is used for something else."""

    def __init__(self) -> None:
        super().__init__()
        self.shapes: list[list[int]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if func in _COPIES and isinstance(out, Tensor):
            source = args[1] if func is torch.ops.aten.copy_.default else args[0]
            if isinstance(source, Tensor) and source.device.type == "cpu" != out.device.type:
                self.shapes.append(list(source.shape))
        return out


_COPIES = (torch.ops.aten._to_copy.default, torch.ops.aten.copy_.default)


class CannotRecord(Exception):
    """Why passes cannot be recorded; the message goes on after 'because'."""


def recorder_for(device: torch.device) -> Recorder:
    """A recorder for a card; refuses any other device."""
    if device.type != "cuda":
        raise UsageError(
            f"graph = True with a model on {device.type}",
            expected="a CUDA device, which alone records graphs",
            remedy="Leave --graph (graph=True) out",
        )
    return Recorder(device)


class GraphedPasses:
    """Passes of one model: eager while a shape is new, then recorded and replayed.

    What cannot be recorded is said once, with the reason, and all passes are eager from then on.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        device: torch.device,
        key: StepKey | None,
        *,
        is_compiled: bool = False,
        say: Callable[[str], None],
    ) -> None:
        self._device, self._key, self._say = device, key, say
        self._is_compiled = is_compiled
        self._modules, self._parameters = list(model.modules()), dict(model.named_parameters())
        known = set(self._parameters.values())
        trained = [p for group in optimizer.param_groups for p in group["params"] if p not in known]  # such as a loss's
        self._parameters |= {f"parameter {number} beside the model's": p for number, p in enumerate(trained)}
        self._recorder = recorder_for(device)
        self.why_not = ""
        """Why nothing is recorded any more; '' while recordings are made."""
        self.num_replays = 0
        self._shapes: dict[Any, _Shape] = {}
        self._met: dict[Any, int] = {}
        self._model_was: Any = None
        self._kept: _Gradients = []
        self._touched: list[nn.Parameter] | None = None
        self._adds, self._can_add = False, False
        self._num_drops = 0
        self._is_crowded = False

    @property
    def aside_bytes(self) -> int:
        """What the allocator calls free, though only recordings may use it."""
        return self._recorder.aside_bytes if self._shapes else 0

    @property
    def num_shapes(self) -> int:
        return len(self._shapes)

    def refuse(self, why: str) -> None:
        """Records nothing from now on."""
        self._forget()
        if not self.why_not:
            self._say(f"passes run one by one, not as CUDA graphs, because {why}")
        self.why_not = why

    def begin(self, *, adds: bool) -> None:
        """A step begins, its parameters without gradients; ``adds`` if it has several parts."""
        if self.why_not:
            return
        now = self._model_now()
        if now != self._model_was:  # other layers are trained, or the weights lie elsewhere
            self._forget()
            self._model_was = now
        self._adds, self._can_add = adds, False
        if not adds or self._touched is None:
            return
        if not self._kept:
            self._kept = [(p, torch.zeros_like(p)) for p in self._touched]
        else:
            torch._foreach_zero_([gradient for _, gradient in self._kept])
        _put(self._kept)
        self._can_add = True

    def __call__(self, part: Batch, run: Pass) -> Passed:
        """What ``run(part)`` gives, with its gradients in the parameters, replayed if its shape is recorded."""
        if self.why_not:
            return run(part)
        given = leaves_of(part)
        shape = (self._adds, type(part), *map(_looks_of, given))
        found = self._shapes.get(shape)
        if found is None and self._is_due(shape):
            try:
                found = self._shapes[shape] = self._record(part, run)
            except CannotRecord as error:
                self.refuse(str(error))
        if found is None:
            return self._watched(part, run) if self._met.get(shape) == EAGER_FIRST else run(part)
        return self._replayed(found, [leaf for leaf in given if isinstance(leaf, Tensor)])

    def release(self) -> bool:
        """Gives up all recordings and their memory, for they can be made again; whether there were any."""
        had = bool(self._shapes)
        self._forget()
        self._num_drops += had
        if self._num_drops > MAX_DROPS:
            self.refuse(f"memory ran out beside them {self._num_drops} times")
        return had

    def _forget(self) -> None:
        self._shapes, self._met, self._kept, self._touched = {}, {}, [], None
        self._can_add = False
        self._recorder.close()
        self._recorder = recorder_for(self._device)  # memory that recordings have left cannot be recorded to again

    def _model_now(self) -> Any:
        modes = tuple(module.training for module in self._modules)
        return modes, tuple((p.requires_grad, p.data_ptr()) for p in self._parameters.values())

    def _is_due(self, shape: Any) -> bool:
        """Whether the shape has been met often enough to be recorded, and everything is there for it."""
        if len(self._shapes) >= MAX_SHAPES or (shape not in self._met and len(self._met) >= MAX_MET):
            if not self._is_crowded:
                kept = f"the first {len(self._shapes)}" if self._shapes else "none"
                self._say(f"parts come in many shapes, of which {kept} are recorded")
            self._is_crowded = True
            self._met.pop(shape, None)
            return False
        self._met[shape] = self._met.get(shape, 0) + 1
        return self._met[shape] > EAGER_FIRST and (self._can_add or not self._adds)

    def _watched(self, part: Batch, run: Pass) -> Passed:
        """An eager pass, after which it is known whether it could be recorded."""
        chance = HostRandom()
        copies = _HostCopies()
        # To look at its copies, a compiled model would have to run uncompiled, which may not fit.
        with waits_seen(self._device) as waits, contextlib.nullcontext() if self._is_compiled else copies:
            passed = run(part)
        trained = {name: p for name, p in self._parameters.items() if p.grad is not None}
        self._touched = list(trained.values())
        sparse = [name for name, p in trained.items() if p.grad is not None and p.grad.layout is not torch.strided]
        away = [leaf for leaf in leaves_of(part) if isinstance(leaf, Tensor) and leaf.device != self._device]
        if waits:
            self.refuse(f"a pass waits for the card, at {waits[0]}")
        elif copies.shapes:
            self.refuse(f"a pass copies a tensor of shape {copies.shapes[0]} from the host")
        elif sparse:
            self.refuse(f"the gradient of {sparse[0]} is sparse")
        elif away:
            self.refuse(f"a batch holds a tensor on {away[0].device}")
        elif not chance.is_now():
            self.refuse("a pass draws random numbers on the host")
        elif self._key is not None and any(layer.is_odd for layer in self._key.layers):
            self.refuse("dropout meets rows that do not go by sample")
        return passed

    def _record(self, part: Batch, run: Pass) -> _Shape:
        """A recording of ``run`` on buffers of its own; nothing of the model changes."""
        static = copy_of(part)
        key, seeds = self._key, [] if self._key is None else [self._key.seeds]
        buffers = [tensor.clone() for tensor in seeds]
        parameters = list(self._parameters.values())
        before = [p.grad for p in parameters]

        def work() -> Passed:
            if key is not None:
                key.use(*buffers)
            return run(static)

        try:
            with self._same_buffers():
                recording = self._recorder.record(work)
            written = [(p, p.grad) for p in parameters if p.grad is not None]
        except Exception as error:
            if isinstance(error, CannotRecord):
                raise
            self._num_drops += is_out_of_memory(error)
            if is_out_of_memory(error) and self._num_drops <= MAX_DROPS:
                raise
            raise CannotRecord(f"recording one failed: {first_line(error)}") from error
        finally:
            for p, gradient in zip(parameters, before, strict=True):
                p.grad = gradient
            if key is not None:
                key.use(*seeds)
        if self._adds and len(written) != len(self._kept):
            raise CannotRecord("parts of other shapes train other parameters")
        inputs = [leaf for leaf in leaves_of(static) if isinstance(leaf, Tensor)]
        return _Shape(inputs=inputs + buffers, recording=recording, gradients=[] if self._adds else written)

    @contextlib.contextmanager
    def _same_buffers(self) -> Iterator[None]:
        """Refuses a pass that puts new tensors in place of buffers: a recording would go on reading the old ones."""
        slots = [(m, name, tensor) for m in self._modules for name, tensor in m._buffers.items()]
        try:
            yield
        finally:
            changed = [(module, name) for module, name, tensor in slots if module._buffers.get(name) is not tensor]
            for module, name, tensor in slots:
                module._buffers[name] = tensor
        if changed:
            module, name = changed[0]
            raise CannotRecord(f"{type(module).__name__} replaces its buffer {name!r} in a pass")

    def _replayed(self, shape: _Shape, given: list[Tensor]) -> Passed:
        if self._key is not None:
            given.append(self._key.seeds)
        with torch.no_grad():
            torch._foreach_copy_(shape.inputs, given)
        shape.recording.replay()
        _put(shape.gradients)
        self.num_replays += 1
        # The next replay writes to the same places.
        loss, num, divisor, mean = shape.recording.out
        return Passed(loss.clone(), num.clone() if isinstance(num, Tensor) else num, divisor, mean.clone())


def _put(gradients: _Gradients) -> None:
    for parameter, gradient in gradients:
        parameter.grad = gradient


def _looks_of(leaf: Any) -> Any:
    """What a recording depends on: of a tensor its shape, type and place, of anything else the thing itself."""
    return (leaf.shape, leaf.dtype, leaf.device) if isinstance(leaf, Tensor) else repr(leaf)
