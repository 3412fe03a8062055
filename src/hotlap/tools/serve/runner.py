"""Models on one device: in this process, for tests and for embedding, or in a child that may die without harm.

A child process is what a service uses. A crash in a kernel or a library, or a CUDA error after which a context answers
nothing any more, then costs one restart; the door goes on, and its interpreter lock is not the model's.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from hotlap.base.errors import EnvironmentUnusable, HotlapError, OutOfMemory, WorkerDied
from hotlap.device.memory import is_out_of_memory
from hotlap.measure.process import freeze_error, revive_error
from hotlap.measure.servable import Loaded, ModelSpec, Servable, Signature

if TYPE_CHECKING:
    from torch import Tensor

MakeServable = Callable[[ModelSpec], Servable]


class Runner(Protocol):
    """Some models on one device."""

    device: str

    def start(self) -> dict[str, Signature]:
        """Loads and warms every model; called again after a death."""
        ...

    def run(self, model: str, rows: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """The outputs; raises OutOfMemory, WorkerDied, or what the model raised."""
        ...

    def stop(self) -> None: ...


class LocalRunner:
    """The models in this very process."""

    def __init__(self, device: str, servables: Mapping[str, Servable]) -> None:
        self.device, self._servables = device, dict(servables)
        self._loaded: dict[str, Loaded] = {}

    def start(self) -> dict[str, Signature]:
        self._loaded = {name: servable.load(self.device) for name, servable in self._servables.items()}
        return {name: loaded.signature for name, loaded in self._loaded.items()}

    def run(self, model: str, rows: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        with _memory_errors(model, rows):
            return self._loaded[model].run(rows)

    def stop(self) -> None:
        self._loaded = {}


@contextlib.contextmanager
def _memory_errors(model: str, rows: tuple[Tensor, ...]) -> Any:
    """Turns every spelling of running out of memory into ours, and gives back what the allocator holds."""
    import torch

    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        raise OutOfMemory(
            f"memory ran out in model {model!r} with rows = {rows[0].shape[0]}", remedy="Send smaller inputs"
        ) from None


class ChildRunner:
    """The models in a process of their own; tensors go over in shared memory."""

    def __init__(
        self,
        device: str,
        specs: Sequence[ModelSpec],
        make: MakeServable,
        *,
        start_s: float = 600.0,
        run_s: float = 120.0,
    ) -> None:
        """``make`` must be importable by name. A load or a batch that takes longer than said counts as a death."""
        self.device, self._specs, self._make = device, tuple(specs), make
        self._start_s, self._run_s = start_s, run_s
        self._process: Any = None
        self._pipe: Any = None

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None else None

    def start(self) -> dict[str, Signature]:
        import torch.multiprocessing as torch_mp

        self.stop()
        # Read by the child's OpenMP. Its threads share the cores with those that decode: where they spin while they
        # wait for one another, a batch on a busy two-core machine took eight times as long.
        os.environ.setdefault("OMP_WAIT_POLICY", "passive")
        context = torch_mp.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(
            target=_child,
            args=(theirs, self.device, self._specs, self._make),
            daemon=True,
            name=f"hotlap {self.device}",
        )
        self._process.start()
        theirs.close()
        signatures: dict[str, Signature] = self._answer(self._start_s, "loading its models")
        return signatures

    def run(self, model: str, rows: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        try:
            self._pipe.send((model, rows))
        except OSError:
            raise self._death(f"running {model!r}") from None
        out: tuple[Tensor, ...] = self._answer(self._run_s, f"running {model!r}")
        return out

    def _answer(self, limit_s: float, doing: str) -> Any:
        try:
            if not self._pipe.poll(limit_s):
                self._process.kill()
                raise self._death(f"{doing}, which took longer than {limit_s:g} s")
            kind, value = self._pipe.recv()
        except (EOFError, OSError):
            raise self._death(doing) from None
        if kind == "error":
            raise revive_error(value)
        return value

    def _death(self, doing: str) -> WorkerDied:
        self._process.join(5)
        code = self._process.exitcode
        how = f"by signal {signal.Signals(-code).name}" if code is not None and code < 0 else f"with exit code {code}"
        return WorkerDied(f"the process of device {self.device!r} ended {how} while {doing}", remedy="Send it again")

    def stop(self) -> None:
        """Ends the child: by closing its pipe, and by force when it does not hear."""
        if self._process is None:
            return
        self._pipe.close()
        self._process.join(10)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        self._process = self._pipe = None


def _child(pipe: Any, device: str, specs: Sequence[ModelSpec], make: MakeServable) -> None:
    """The process: loads, says what it has, then answers until the pipe closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the door, which drains first
    runner: LocalRunner | None = None
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
        while True:
            try:
                if runner is None:
                    runner = LocalRunner(device, {spec.name: make(spec) for spec in specs})
                    answer: Any = runner.start()
                else:
                    answer = runner.run(*pipe.recv())
            except (EOFError, BrokenPipeError, ConnectionResetError):
                raise
            except Exception as error:  # noqa: BLE001 - whatever a model raises is told; only a broken device ends us
                if _is_beyond_repair(error):
                    return
                pipe.send(("error", freeze_error(_told(error, device))))
            else:
                pipe.send(("ok", answer))


def _is_beyond_repair(error: BaseException) -> bool:
    """Whether the CUDA context answers nothing any more, so that only a new process helps."""
    return isinstance(error, RuntimeError) and "CUDA error" in str(error) and not is_out_of_memory(error)


def _told(error: Exception, device: str) -> HotlapError:
    if isinstance(error, HotlapError):
        return error
    said = (str(error).strip().splitlines() or [""])[0]
    return EnvironmentUnusable(f"a model on {device!r} raised {type(error).__name__}: {said}")
