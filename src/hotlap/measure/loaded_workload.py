"""A workload's model on a device, ready to answer: rows of several requests go in, their outputs come back.

How it runs is an arm, so a served model uses the precision, layout and compilation that were measured. Arms that
record or compile see few sizes of batch: rows are padded to the next power of two and cut off again. On a card nothing
waits until the outputs are asked for, so one batch is copied while the next one is computed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor

from hotlap.base.errors import OutOfMemory, TargetError, UsageError
from hotlap.device.layout import format_of
from hotlap.device.memory import is_out_of_memory
from hotlap.device.seed import generator
from hotlap.measure.arms import ArmSpec, parse_arm
from hotlap.measure.capture import Pattern, capture
from hotlap.measure.graph import GraphedStep, Recorder
from hotlap.measure.servable import Rows, Signature, TensorSpec
from hotlap.measure.session import Session
from hotlap.workload import Workload

MOST_GRAPHS = 24
"""Recordings of one model, each of which keeps memory; batches of further shapes run as they are."""
RECORD_FROM = 8
"""Batches of a shape that was not expected before it is recorded, which takes as long as some of them do."""


class Watcher(Protocol):
    """Whoever wants to see what is really served, from before a model is built."""

    def loading(self, workload: Workload) -> Workload:
        """A model of ``workload`` is about to be built; what is to be loaded in its place."""
        ...

    def warming(self, example: Rows) -> None:
        """The model stands, and its full batches begin, of rows such as ``example`` has."""
        ...


_WATCHER: ContextVar[Watcher | None] = ContextVar("who watches what is loaded", default=None)


@contextlib.contextmanager
def watched(watcher: Watcher) -> Iterator[None]:
    """Tells ``watcher`` of each workload that is loaded inside the block, by whichever servable."""
    token = _WATCHER.set(watcher)
    try:
        yield
    finally:
        _WATCHER.reset(token)


class LoadedWorkload:
    """A workload's model on a device."""

    _active: weakref.ref[LoadedWorkload] | None = None
    """Whose switches are in force; it may be gone, and its memory with it."""

    def __init__(self, workload: Workload, arm: ArmSpec, rows: int, *, widen: bool = True) -> None:
        """``widen`` gives outputs of 16 bits as float32, for clients without such types."""
        watcher = _WATCHER.get()
        workload = workload if watcher is None else watcher.loading(workload)
        self._workload, self._widen = workload, widen
        self._session = Session(workload, arm, mode="infer", batch=1, seed=0)
        self._session.host_batches, self._session.batches = [], []
        self._graphs: dict[tuple[Any, ...], GraphedStep] = {}
        self._recorder: Recorder | None = None
        self._met: Counter[tuple[Any, ...]] = Counter()
        self._expected: set[tuple[Any, ...]] = set()
        self._full = rows
        self._record_from = 1  # what is run before the first client comes is expected
        self._pads = bool(arm.graph or arm.compile)
        on_card = self._session.device.type == "cuda"
        self._copies = torch.cuda.Stream(self._session.device) if on_card else None
        # No more than a full batch has: there are models that take one sample at a time.
        example = self._session.place(workload.make_batch(min(2, rows), torch.device("cpu"), generator(0)))
        self._pattern, tensors = Pattern.of(example)
        self._places, names = self._find_inputs(example, tensors)
        self._others = [t[:1] for t in tensors]
        inputs = tuple(
            TensorSpec(name=name, dtype=_dtype(tensors[i]), shape=tuple(tensors[i].shape[1:]))
            for i, name in zip(self._places, names, strict=True)
        )
        taken = tuple(tensors[i].cpu() for i in self._places)
        if watcher is not None:
            watcher.warming(taken)
        rows, out = self._warm(taken, rows)
        outputs = (TensorSpec(name="output", dtype=_dtype(out), shape=tuple(out.shape[1:])),)
        self.signature = Signature(inputs=inputs, outputs=outputs, rows=rows, arm=arm.name)
        self._record_from = RECORD_FROM

    def _find_inputs(self, example: Any, tensors: list[Tensor]) -> tuple[list[int], list[str]]:
        """Which tensors of a batch reach the model, and what its forward pass calls them; the others are targets."""
        with self._session.autocast():  # layers that were folded are of 16 bits, and take nothing else
            call = capture(self._workload, self._session.plain_model, example)
        known = {id(tensor): place for place, tensor in enumerate(tensors)}
        if all(id(tensor) in known for tensor in call.tensors):
            return [known[id(tensor)] for tensor in call.tensors], call.names
        return list(range(len(tensors))), [f"input_{i}" for i in range(len(tensors))]

    def _warm(self, example: Rows, rows: int) -> tuple[int, Tensor]:
        """Runs a full batch once; where it does not fit, half of it, until one does."""
        while True:
            try:
                for size in sorted(self._sizes(rows), reverse=True):
                    (out,) = self.run(tuple(t[:1].repeat(size, *[1] * (t.ndim - 1)) for t in example))
                return rows, out
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
                if rows == 1:
                    raise OutOfMemory(f"one row of model {self._workload.name!r} does not fit") from error
                self._forget_recordings()  # those of a batch that is too large would keep the room of a smaller one
                self._full = rows = rows // 2

    def _sizes(self, rows: int) -> set[int]:
        """Batches that are run before the first client comes, where ``rows`` is the largest."""
        return {rows, *(2**i for i in range(rows.bit_length()))} if self._pads else {rows, 1}

    def _padded(self, num_rows: int, shapes: tuple[Any, ...]) -> int:
        """How many rows so many are filled up to."""
        return max(num_rows, min(self._full, 1 << (num_rows - 1).bit_length())) if self._pads else num_rows

    def run(self, rows: Rows) -> Rows:
        """The outputs of some rows, on the CPU."""
        return self.begin([rows])()

    def begin(self, parts: Sequence[Rows]) -> Callable[[], Rows]:
        """Starts on the rows of several requests, which are of one shape; the call that waits for their outputs."""
        if LoadedWorkload._active is None or LoadedWorkload._active() is not self:
            self._session.activate()
            LoadedWorkload._active = weakref.ref(self)
        num_rows = sum(int(part[0].shape[0]) for part in parts)
        size = self._padded(num_rows, _shapes(parts[0]))
        columns = [self._column([part[i] for part in parts], size) for i in range(len(self._places))]
        batch = self._session.place(self._batch_of(columns, size))
        out = self._replay(batch, columns, size) if self._session.spec.graph else self._infer(batch, _shapes(columns))
        if not out.ndim or out.shape[0] != size:
            raise TargetError(
                f"model {self._workload.name!r} gave an output of shape {list(out.shape)} for {size} rows",
                expected="a row of output for each row of input, to be told apart by who asked",
            )
        return self._returning(out[:num_rows])

    def resident(self, parts: Sequence[Rows]) -> Callable[[], None]:
        """The call that runs one batch, which lies on the device, and waits for it: what the model alone can do."""
        size = sum(int(part[0].shape[0]) for part in parts)
        columns = [self._column([part[i] for part in parts], size) for i in range(len(self._places))]
        batch = self._session.place(self._batch_of(columns, size))

        def run() -> None:
            if self._session.spec.graph:
                self._replay(batch, columns, size)
            else:
                self._infer(batch, _shapes(columns))
            if self._copies is not None:
                torch.cuda.synchronize(self._session.device)

        return run

    def _column(self, tensors: Sequence[Tensor], size: int) -> Tensor:
        """One input of all requests, the last row repeated up to ``size``; where a card can fetch it by itself."""
        short = size - sum(int(t.shape[0]) for t in tensors)
        padded = [*tensors, tensors[-1][-1:].expand(short, *tensors[-1].shape[1:])] if short else list(tensors)
        if self._copies is None:
            return padded[0] if len(padded) == 1 else torch.cat(padded)
        shape = (size, *tensors[0].shape[1:])
        pinned = torch.empty(shape, dtype=tensors[0].dtype, memory_format=format_of(tensors[0]), pin_memory=True)
        start = 0
        for tensor in padded:
            pinned[start : start + tensor.shape[0]].copy_(tensor)
            start += int(tensor.shape[0])
        return pinned

    def _batch_of(self, columns: Sequence[Tensor], size: int) -> Any:
        """The batch that predict() takes, of ``size`` samples; targets are made up."""
        tensors = [other.expand(size, *other.shape[1:]) for other in self._others]
        for place, tensor in zip(self._places, columns, strict=True):
            tensors[place] = tensor
        return self._pattern.fill(tensors)

    def _infer(self, batch: Any, shapes: tuple[Any, ...]) -> Tensor:
        """One pass as it is; rows of a shape that was not expected are not compiled for, which can take minutes."""
        if self._record_from == 1:
            self._expected.add(shapes)
        if self._session.spec.compile and shapes not in self._expected:
            return self._session.infer_on(batch, self._session.plain_model)
        return self._session.infer_on(batch)

    def _replay(self, batch: Any, columns: Sequence[Tensor], size: int) -> Tensor:
        shapes = _shapes(columns)
        key = (size, *shapes)
        if key not in self._graphs:
            self._met[key] += 1
            if len(self._graphs) >= MOST_GRAPHS or self._met[key] < self._record_from:
                return self._infer(batch, shapes)
            self._graphs[key] = self._recorded(batch, shapes)
        return self._graphs[key](batch).clone()  # the next replay overwrites it while it may still be copied

    def _recorded(self, batch: Any, shapes: tuple[Any, ...]) -> GraphedStep:
        """A pass over batches of this shape. All share one room: replays follow one another, and outputs are copied."""
        if self._recorder is None:
            self._recorder = Recorder(self._session.device)
        model, recorder = self._session.plain_model, self._recorder
        step = partial(self._infer, shapes=shapes)
        return GraphedStep(step, batch, model=model, optimizer=None, recorder=recorder)

    def _forget_recordings(self) -> None:
        self._graphs.clear()
        if self._recorder is not None:
            self._recorder.close()
            self._recorder = None

    def _returning(self, out: Tensor) -> Callable[[], Rows]:
        """The call that gives an output in host memory, on its way there already."""
        if self._widen and out.dtype in (torch.bfloat16, torch.float16):
            out = out.float()
        if self._copies is None:
            return lambda: (out,)
        out = out.contiguous()
        self._copies.wait_stream(torch.cuda.current_stream(out.device))
        with torch.cuda.stream(self._copies):
            host = torch.empty(out.shape, dtype=out.dtype, pin_memory=True)
            host.copy_(out, non_blocking=True)
            # One that spins while it waits takes a core, and the driver's lock from the thread that launches.
            arrived = torch.cuda.Event(blocking=True)
            arrived.record(self._copies)
        out.record_stream(self._copies)

        def wait() -> Rows:
            arrived.synchronize()
            return (host,)

        return wait


def arm_on(text: str, device: str) -> ArmSpec:
    """The arm that ``text`` spells, moved to ``device``; a plain one where nothing is said."""
    place = torch.device(device)
    arm = parse_arm(text) if text else ArmSpec(device="cuda" if place.type == "cuda" else "cpu")
    if arm.device != place.type:
        raise UsageError(f"arm {text!r} cannot run on device {device!r}", expected=f"an arm of {place.type}")
    return dataclasses.replace(arm, index=place.index or 0)


def _shapes(rows: Sequence[Tensor]) -> tuple[Any, ...]:
    """Of one row's tensors."""
    return tuple(tuple(t.shape[1:]) for t in rows)


def _dtype(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")
