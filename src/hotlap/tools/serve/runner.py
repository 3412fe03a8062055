"""Models on one device: in this process, for tests and for embedding, or in a child that may die without harm.

A child process is what a service uses. A crash in a kernel or a library, or a CUDA error after which a context answers
nothing any more, then costs one restart; the door goes on, and its interpreter lock is not the model's.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import queue
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, Protocol

from hotlap.base.channel import keep_from_forks
from hotlap.base.errors import EnvironmentUnusable, HotlapError, OutOfMemory, TargetError, WorkerDied
from hotlap.base.raised import first_line, their_line
from hotlap.device.memory import is_out_of_memory
from hotlap.measure.passing import receive, send
from hotlap.measure.process import freeze_error, revive_error
from hotlap.measure.servable import Loaded, ModelSpec, Rows, Servable, Signature

MakeServable = Callable[[ModelSpec], Servable]
_Begun = tuple[Callable[[], Any], float]
"""What waits for a batch, and the seconds that beginning it took."""
COPYING = 4
"""Threads that put a card's batches together. Each of a copy's threads must get a core before it is done, and all cores
but a few belong to the desks."""


class Runner(Protocol):
    """Some models on one device."""

    device: str

    def start(self) -> dict[str, Signature]:
        """Loads and warms every model; called again after a death."""
        ...

    def begin(self, model: str, parts: Sequence[Rows]) -> Future[Rows]:
        """The outputs of several requests' rows to come; or OutOfMemory, WorkerDied, or what the model raises."""
        ...

    def stop(self) -> None: ...


class LocalRunner:
    """The models in this very process."""

    def __init__(self, device: str, servables: Mapping[str, Servable]) -> None:
        self.device, self._servables = device, dict(servables)
        self._loaded: dict[str, Loaded] = {}

    def start(self) -> dict[str, Signature]:
        self._loaded = {name: _load(name, servable, self.device) for name, servable in self._servables.items()}
        return {name: loaded.signature for name, loaded in self._loaded.items()}

    def begin(self, model: str, parts: Sequence[Rows]) -> Future[Rows]:
        return at_once(lambda: self.started(model, parts)())

    def started(self, model: str, parts: Sequence[Rows]) -> Callable[[], Rows]:
        """Starts on a batch; the call that waits for it."""
        with _memory_errors(model, parts):
            wait = self._loaded[model].begin(parts)

        def waited() -> Rows:
            with _memory_errors(model, parts):
                return wait()

        return waited

    def stop(self) -> None:
        self._loaded = {}


def _load(name: str, servable: Servable, device: str) -> Loaded:
    """The model on its device; what its own code raises there is told with its line."""
    try:
        return servable.load(device)
    except Exception as error:
        if isinstance(error, HotlapError) or is_out_of_memory(error) or _is_beyond_repair(error):
            raise
        said = f"{type(error).__name__} while it was loaded: {first_line(error)} {their_line(error)}"
        raise TargetError(f"model {name!r} raised {said}", remedy="Call it by hand in Python until it works") from error


def _unheard(model: str, seconds: float) -> None:
    return


def at_once(work: Callable[[], Rows]) -> Future[Rows]:
    """What ``work`` gives or raises, as something that was waited for."""
    done: Future[Rows] = Future()
    try:
        done.set_result(work())
    except Exception as error:  # noqa: BLE001 - whoever asks for the result hears it
        done.set_exception(error)
    return done


@contextlib.contextmanager
def _memory_errors(model: str, parts: Sequence[Rows]) -> Any:
    """Turns every spelling of running out of memory into ours, and gives back what the allocator holds."""
    import torch

    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        rows = sum(int(part[0].shape[0]) for part in parts)
        raise OutOfMemory(
            f"memory ran out in model {model!r} with rows = {rows}", remedy="Send smaller inputs"
        ) from None


class ChildRunner:
    """The models in a process of their own; tensors go over in shared memory, answers come as they were asked for."""

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
        self.on_launch: Callable[[str, float], None] = _unheard
        """Told of each batch's model and of the seconds that its launch took."""
        self._process: Any = None
        self._pipe: Any = None
        self._asked: queue.SimpleQueue[tuple[Future[Rows], str] | None] = queue.SimpleQueue()
        """Who waits, and for which model, in the order of answers."""
        self._reader: threading.Thread | None = None

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None else None

    def start(self) -> dict[str, Signature]:
        import multiprocessing

        self.stop()
        # Read by the child's OpenMP. Its threads share the cores with those that decode: where they spin while they
        # wait for one another, a batch on a busy two-core machine took eight times as long.
        os.environ.setdefault("OMP_WAIT_POLICY", "passive")
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(
            target=_child,
            args=(theirs, self.device, self._specs, self._make),
            daemon=True,
            name=f"hotlap {self.device}",
        )
        self._process.start()
        atexit.register(self._process.kill)  # it does not hear the SIGTERM that Python itself would send
        theirs.close()
        signatures: dict[str, Signature] = self._answer(self._start_s, "loading its models")[0]
        self._asked = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, name=f"hotlap reads {self.device}", daemon=True)
        self._reader.start()
        return signatures

    def begin(self, model: str, parts: Sequence[Rows]) -> Future[Rows]:
        asked: Future[Rows] = Future()
        try:
            send(self._pipe, (model, list(parts)))
        except OSError:
            asked.set_exception(self._death(f"running {model!r}"))
        else:
            self._asked.put((asked, model))
        return asked

    def run(self, model: str, rows: Rows) -> Rows:
        """The outputs of one request's rows, waited for."""
        return self.begin(model, [rows]).result()

    def _read(self) -> None:
        """Hands out the answers, until there are no more questions."""
        while (question := self._asked.get()) is not None:
            asked, model = question
            try:
                found, launch_s = self._answer(self._run_s, f"running {model!r}")
            except Exception as error:  # noqa: BLE001 - it belongs to whoever asked
                asked.set_exception(error)
            else:
                self.on_launch(model, launch_s)
                asked.set_result(found)

    def _answer(self, limit_s: float, doing: str) -> tuple[Any, float]:
        """What the child says, and the seconds that it took to begin."""
        try:
            if not self._pipe.poll(limit_s):
                self._process.kill()
                raise self._death(f"{doing}, which took longer than {limit_s:g} s")
            kind, value, launch_s = receive(self._pipe)
        except (EOFError, OSError):
            raise self._death(doing) from None
        if kind == "error":
            raise revive_error(value)
        return value, launch_s

    def _death(self, doing: str) -> WorkerDied:
        self._process.join(5)
        code = self._process.exitcode
        how = f"by signal {signal.Signals(-code).name}" if code is not None and code < 0 else f"with exit code {code}"
        return WorkerDied(f"the process of device {self.device!r} ended {how} while {doing}", remedy="Send it again")

    def stop(self) -> None:
        """Ends the child: by closing its pipe, and by force when it does not hear."""
        if self._process is None:
            return
        self._asked.put(None)
        if self._reader is not None:
            self._reader.join(1)
            if self._reader.is_alive():  # it waits for an answer that nobody wants any more
                self._process.kill()
                self._reader.join()
        self._pipe.close()
        self._process.join(10)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        atexit.unregister(self._process.kill)
        self._process = self._pipe = self._reader = None


def _child(pipe: Any, device: str, specs: Sequence[ModelSpec], make: MakeServable) -> None:
    """The process: loads, says what it has, then answers until the pipe closes.

    One thread takes questions and starts on them, the other waits for results and sends them: a card computes one
    batch while the one before it is on its way out and the next one on its way in.
    """
    leave_signals_to_the_door()
    keep_from_forks(pipe.fileno())
    begun: queue.SimpleQueue[_Begun] = queue.SimpleQueue()
    threading.Thread(target=_send_answers, args=(pipe, begun, device), daemon=True).start()
    runner: LocalRunner | None = None
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
        while True:
            try:
                if runner is None:
                    runner = _loaded(device, specs, make)
                    begun.put((partial(_same, runner.start()), 0.0))
                else:
                    begun.put(_begun(runner, *receive(pipe)))
            except (EOFError, BrokenPipeError, ConnectionResetError):
                raise
            except Exception as error:  # noqa: BLE001 - whatever a model raises is told; only a broken device ends us
                begun.put((_raising(error), 0.0))


def leave_signals_to_the_door() -> None:
    """Lets neither Ctrl-C nor SIGTERM end this process: the door drains first, and then closes the pipe.

    Both may be sent to all processes of a service at once, by a terminal and by systemd; a child that died of it would
    have to be started again for what was accepted.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


def _loaded(device: str, specs: Sequence[ModelSpec], make: MakeServable) -> LocalRunner:
    import torch

    if device.startswith("cuda"):
        torch.cuda.set_device(torch.device(device).index or 0)
        torch.set_num_threads(min(COPYING, torch.get_num_threads()))
    return LocalRunner(device, {spec.name: make(spec) for spec in specs})


def _begun(runner: LocalRunner, model: str, parts: Sequence[Rows]) -> _Begun:
    began = time.perf_counter()
    wait = runner.started(model, parts)
    return wait, time.perf_counter() - began


def _same(value: Any) -> Any:
    return value


def _raising(error: Exception) -> Callable[[], Any]:
    def again() -> Any:
        raise error

    return again


def _send_answers(pipe: Any, begun: queue.SimpleQueue[_Begun], device: str) -> None:
    with contextlib.suppress(BrokenPipeError, ConnectionResetError, OSError):
        while True:
            send(pipe, _waited(*begun.get(), device))  # no name is left that would keep a batch until the next one


def _waited(wait: Callable[[], Any], launch_s: float, device: str) -> tuple[str, Any, float]:
    try:
        return "ok", wait(), launch_s
    except Exception as error:  # noqa: BLE001 - as above
        if _is_beyond_repair(error):
            os._exit(1)
        return "error", freeze_error(told_error(error, device)), launch_s


def _is_beyond_repair(error: BaseException) -> bool:
    """Whether the CUDA context answers nothing any more, so that only a new process helps."""
    return isinstance(error, RuntimeError) and "CUDA error" in str(error) and not is_out_of_memory(error)


def told_error(error: Exception, device: str) -> HotlapError:
    """An error of ours for whatever was raised."""
    if isinstance(error, HotlapError):
        return error
    return EnvironmentUnusable(f"a model on {device!r} raised {type(error).__name__}: {first_line(error)}")
