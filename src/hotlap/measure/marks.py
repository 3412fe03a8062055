"""Marks that a trace shows: which module runs, what belongs to the loss, and which lines make the host wait."""

from __future__ import annotations

import contextlib
import traceback
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from torch.autograd.profiler import record_function
from torch.utils._python_dispatch import TorchDispatchMode

from hotlap.data.kineto import LOSS_MARK, MODULE_MARK
from hotlap.workload import Batch, Workload

if TYPE_CHECKING:
    from torch import Tensor, nn

WAITING = {
    "aten::_local_scalar_dense": "reads a number (.item(), float(), bool())",
    "aten::nonzero": "makes a result whose size depends on the values (nonzero, boolean indexing)",
    "aten::_unique2": "makes a result whose size depends on the values (unique)",
    "aten::masked_select": "makes a result whose size depends on the values (masked_select)",
}
"""Operators after which a card's host must wait for the result."""
_INDEXING = ("aten::index", "aten::index_put", "aten::index_put_")
_BY_VALUES = WAITING["aten::nonzero"]
_COPIES = ("aten::_to_copy", "aten::copy_")


@contextlib.contextmanager
def marked_modules(model: nn.Module) -> Iterator[None]:
    """While it lasts, every call of a module of ``model`` stands in the trace under its full name."""
    import torch

    handles: list[Any] = []
    for name, module in model.named_modules():
        if isinstance(module, torch.jit.ScriptModule):
            continue  # takes no Python hooks; its time stays with the module around it
        label = f"{MODULE_MARK}{name or 'model'} ({type(module).__name__})"
        open_marks: list[record_function] = []

        def enter(module: nn.Module, args: Any, label: str = label, marks: list[record_function] = open_marks) -> None:
            marks.append(record_function(label))
            marks[-1].__enter__()

        def leave(module: nn.Module, args: Any, out: Any, marks: list[record_function] = open_marks) -> None:
            if marks:
                marks.pop().__exit__(None, None, None)

        handles.append(module.register_forward_pre_hook(enter))
        handles.append(module.register_forward_hook(leave, always_call=True))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


class LossMarked:
    """A workload whose loss stands in the trace; what it computes outside the model's modules is the loss proper."""

    def __init__(self, workload: Workload) -> None:
        self._workload = workload

    def __getattr__(self, name: str) -> Any:
        return getattr(self._workload, name)

    def loss(self, model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor | int]:
        with record_function(LOSS_MARK):
            return self._workload.loss(model, batch)


def loss_marked(workload: Workload) -> Workload:
    return cast(Workload, LossMarked(workload))


class WaitWatcher(TorchDispatchMode):
    """Counts, by source line, the operators that make the host wait for the device."""

    def __init__(self) -> None:
        super().__init__()
        self.found: Counter[tuple[str, str]] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        why = _why_it_waits(func, args, out)
        if why:
            self.found[(source_line(), why)] += 1
        return out


def _why_it_waits(func: Any, args: Any, out: Any) -> str:
    import torch

    name = func.name().partition(".")[0]
    if name in WAITING:
        # Optimizers keep their step counters on the host, where reading one costs nothing on any machine.
        first = args[0] if args and isinstance(args[0], torch.Tensor) else None
        counter = first is not None and first.device.type == "cpu" and not first.requires_grad and first.dim() == 0
        return "" if counter and "optim" in Path(source_file()).parts else WAITING[name]
    if name in _INDEXING and any(i is not None and i.dtype in (torch.bool, torch.uint8) for i in args[1]):
        return _BY_VALUES
    if name in _COPIES and isinstance(out, torch.Tensor) and out.device.type == "cpu":
        source = args[0] if name == "aten::_to_copy" else args[1]
        if isinstance(source, torch.Tensor) and source.device.type != "cpu":
            return "copies a result to the host (.cpu(), .to('cpu'), print)"
    return ""


def _frames() -> list[traceback.FrameSummary]:
    """The stack from the innermost call outwards, without this file and the wrappers that torch puts around it."""
    frames = [frame for frame in reversed(traceback.extract_stack()) if frame.filename != __file__]
    wrappers = ("_compile.py", "eval_frame.py", "_python_dispatch.py")
    while frames and Path(frames[0].filename).name in wrappers:
        frames.pop(0)
    return frames


def source_file() -> str:
    """The file of the innermost call."""
    return next((frame.filename for frame in _frames()), "")


def source_line() -> str:
    """``file:line`` of the innermost call outside torch; of torch's own where no other is below the measuring code."""
    frames = _frames()
    for frame in frames:
        if "torch" not in Path(frame.filename).parts:
            if Path(frame.filename).parent == Path(__file__).parent:
                break
            return f"{frame.filename}:{frame.lineno}"
    return f"{frames[0].filename}:{frames[0].lineno}" if frames else "?"
