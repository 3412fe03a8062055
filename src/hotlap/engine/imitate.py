"""What a forward pass keeps for its backward pass, counted on tensors that have shapes and no memory."""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd.graph import saved_tensors_hooks
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_flatten, tree_map_only, tree_unflatten

from hotlap.base.errors import TargetError
from hotlap.device.seed import generator
from hotlap.workload import Batch, Workload, optimizer_of

LOSS = "(loss)"
"""Stands for a module's name where no module was at work."""
_RECURRENT = ("lstm", "gru", "rnn_tanh", "rnn_relu")
_DRAWN = (2, 3)
"""Sizes of the two real batches that show which dimensions grow; one sample alone would upset batch norm."""


class Owner(NamedTuple):
    """One tensor that is kept for the backward pass."""

    module: str
    """The innermost module at work when it was kept; ``(loss)`` outside the model."""
    shape: tuple[int, ...]
    bytes: int


@dataclass(frozen=True)
class Kept:
    """Everything one forward pass keeps, in the order it was kept."""

    owners: list[Owner]

    @property
    def bytes(self) -> int:
        return sum(owner.bytes for owner in self.owners)


class Imitation:
    """A workload's model on a pretended device: no memory is taken, no card is asked, no number is computed."""

    def __init__(self, workload: Workload, device: str, dtype: torch.dtype | None) -> None:
        self._workload, self._device, self._dtype = workload, torch.device(device), dtype
        self._samples = BatchShapes(workload)
        self._mode = FakeTensorMode()
        self.unknown_op = ""
        """An operation that was met whose kept bytes cannot be told from shapes."""
        model = self._build(workload)
        self._mode.allow_non_fake_inputs = True  # constants that a model or a loss holds outside its parameters
        with self._pretend():
            self.model = place(model, self._device).train()

    def _build(self, workload: Workload) -> nn.Module:
        """The model, without memory where its factory allows that: one that copies or reads weights does not."""
        try:
            with self._pretend():
                return workload.build_model()
        except Exception:  # noqa: BLE001 - whatever went wrong, a factory that is at fault itself fails again below
            with torch.random.fork_rng(devices=[]):
                return workload.build_model()

    @contextlib.contextmanager
    def _pretend(self) -> Iterator[None]:
        with warnings.catch_warnings(), _quiet_log(), torch.random.fork_rng(devices=[]), torch.enable_grad():
            warnings.filterwarnings("ignore", message="Accessing the data pointer of FakeTensor")
            with self._mode, _without_cudnn():
                yield

    def kept(self, batch: int) -> Kept:
        """What the loss of ``batch`` samples keeps for its backward pass, the batch included."""
        with self._pretend():
            made = self._samples.empty(batch, self._device)
            recurrent = _Recurrent(self._device, self._dtype)
            with autocast(self._device.type, self._dtype), recurrent:
                found = count_kept(self._workload, self.model, made)
        self.unknown_op = recurrent.unknown_op
        return found

    def optimizer_bytes(self) -> int:
        """The size of the optimizer's state after one step, on the device."""
        with self._pretend():
            return optimizer_bytes(self._workload, self.model)


@contextlib.contextmanager
def _without_cudnn() -> Iterator[None]:
    """cuDNN's recurrent layers ask the card for the size of what they keep; torch's own have it in their shapes.

    Not by ``cudnn.flags``, which also reads the old TF32 switch and fails where the new ones differ.
    """
    before = torch.backends.cudnn.enabled
    torch.backends.cudnn.enabled = False
    try:
        yield
    finally:
        torch.backends.cudnn.enabled = before


@contextlib.contextmanager
def _quiet_log() -> Iterator[None]:
    """Without torch's trace of an operation that cannot be imitated; the caller hears of it as an exception."""
    log = logging.getLogger("torch._subclasses.fake_tensor")
    before, log.disabled = log.disabled, True
    try:
        yield
    finally:
        log.disabled = before


class BatchShapes:
    """The shapes of a workload's worst batch at any size, learnt from two small real ones."""

    def __init__(self, workload: Workload) -> None:
        drawn = [workload.worst_case_batch(n, torch.device("cpu"), generator(0)) for n in _DRAWN]
        (small, _), (large, self._structure) = (tree_flatten(batch) for batch in drawn)
        if len(small) != len(large):
            raise TargetError(
                f"a batch of {_DRAWN[0]} of {workload.name!r} has {len(small)} parts, one of {_DRAWN[1]} has "
                f"{len(large)}",
                expected="the same parts in a batch of any size",
            )
        self._parts = list(zip(small, large, strict=True))

    def empty(self, n: int, device: torch.device) -> Batch:
        """A batch of ``n`` with the right shapes and no values; parts that are no tensors stay as they are."""
        parts = [self._grown(a, b, n, device) if isinstance(b, Tensor) else b for a, b in self._parts]
        return tree_unflatten(parts, self._structure)

    def _grown(self, small: Tensor, large: Tensor, n: int, device: torch.device) -> Tensor:
        low, high = _DRAWN
        shape = [a + (b - a) * (n - low) // (high - low) for a, b in zip(small.shape, large.shape, strict=True)]
        return torch.empty([max(size, 0) for size in shape], dtype=large.dtype, device=device)


class _Recurrent(TorchFunctionMode):
    """Recurrent layers as the device runs them.

    cuDNN casts input and weights once under autocast, where torch's own layers would cast them at every step. The CPU
    runs LSTMs in oneDNN, whose workspace no shape shows.
    """

    def __init__(self, device: torch.device, dtype: torch.dtype | None) -> None:
        super().__init__()
        self._kind, self._dtype = device.type, dtype
        self.unknown_op = ""

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        name = getattr(func, "__name__", "")
        if name == "lstm" and self._kind == "cpu":
            self.unknown_op = name
        if name in _RECURRENT and self._kind == "cuda" and self._dtype is not None:
            args = tree_map_only(Tensor, self._cast, args)
            with autocast(self._kind, None):
                return func(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))

    def _cast(self, tensor: Tensor) -> Tensor:
        return tensor.to(self._dtype) if tensor.is_floating_point() else tensor


@contextlib.contextmanager
def autocast(kind: str, dtype: torch.dtype | None) -> Iterator[None]:
    """Autocast to ``dtype`` (none switches it off); unlike torch.autocast also for a card that is not there."""
    before = torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)
    torch.set_autocast_enabled(kind, dtype is not None)
    torch.set_autocast_dtype(kind, dtype or before[1])
    torch.autocast_increment_nesting()
    try:
        yield
    finally:
        if torch.autocast_decrement_nesting() == 0:
            torch.clear_autocast_cache()
        torch.set_autocast_enabled(kind, before[0])
        torch.set_autocast_dtype(kind, before[1])


def place(model: nn.Module, device: torch.device) -> nn.Module:
    """``model`` with empty tensors of the same shapes on ``device`` in its place; shared ones stay shared."""
    moved: dict[int, tuple[Tensor, Tensor]] = {}

    def move(tensor: Tensor) -> Tensor:
        if id(tensor) not in moved:
            empty = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=device)
            if isinstance(tensor, nn.Parameter):
                empty = nn.Parameter(empty, requires_grad=tensor.requires_grad)
            moved[id(tensor)] = tensor, empty  # the old one is kept, or its id might serve a second tensor
        return moved[id(tensor)][1]

    for module in model.modules():
        own: list[tuple[str, Tensor]] = list(module.named_parameters(recurse=False, remove_duplicate=False))
        own += list(module.named_buffers(recurse=False, remove_duplicate=False))
        for name, tensor in own:
            setattr(module, name, move(tensor))
    return model


def count_kept(workload: Workload, model: nn.Module, batch: Batch) -> Kept:
    """The distinct memory that a forward pass keeps: views count once, parameters and buffers not at all."""
    known = {_key(t) for t in (*model.parameters(), *model.buffers())}
    device = next((t.device for t in model.parameters()), torch.device("cpu"))
    found: dict[int, tuple[Tensor, Owner]] = {}
    at_work = [LOSS]

    def keep(tensor: Tensor) -> Tensor:
        if tensor.layout is torch.strided and tensor.device.type == device.type:
            key, size = _key(tensor), tensor.untyped_storage().nbytes()
            if key not in known and key not in found:
                whole = tensor if tensor._base is None else tensor._base
                found[key] = tensor, Owner(at_work[-1], tuple(whole.shape), size)
        return tensor

    with _watched(model, at_work), saved_tensors_hooks(keep, lambda tensor: tensor):
        total, _ = workload.loss(model, batch)
    at_work.append("(batch)")
    for tensor in tree_flatten(batch)[0]:
        if isinstance(tensor, Tensor):
            keep(tensor)
    if not total.requires_grad:
        raise TargetError(f"the loss of {workload.name!r} has no gradient", remedy="Leave a parameter trainable")
    return Kept([owner for _, owner in found.values()])


def _key(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata


@contextlib.contextmanager
def _watched(model: nn.Module, at_work: list[str]) -> Iterator[None]:
    """Keeps the name of the innermost running module at the end of ``at_work``."""

    def enter(name: str) -> Callable[..., None]:
        return lambda *_: at_work.append(name)

    def leave(*_: Any) -> None:
        at_work.pop()

    handles = [m.register_forward_pre_hook(enter(name or type(m).__name__)) for name, m in model.named_modules()]
    handles += [m.register_forward_hook(leave) for m in model.modules()]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def optimizer_bytes(workload: Workload, model: nn.Module) -> int:
    """The size of the state that the workload's own optimizer has after one step, where the parameters are."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    kinds = {p.device.type for p in parameters}
    known = {_key(p) for p in parameters}
    optimizer = optimizer_of(workload, model, fused=False)
    for parameter in parameters:
        parameter.grad = torch.zeros_like(parameter)
    try:
        optimizer.step()
    finally:
        for parameter in parameters:
            parameter.grad = None
    state: list[Any] = tree_flatten(list(optimizer.state.values()))[0]
    tensors = {_key(t): t for t in state if isinstance(t, Tensor) and t.device.type in kinds}
    return sum(t.untyped_storage().nbytes() for key, t in tensors.items() if key not in known)
