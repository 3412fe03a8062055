"""Shared by all tests: the device a body runs on, and a machine kept quiet."""

from __future__ import annotations

import gc
import json
import os
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

# However slow a busy machine is; the same examples in every run (--hypothesis-profile new looks for others).
settings.register_profile("new", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("fixed", settings.get_profile("new"), derandomize=True, database=None)
settings.load_profile("fixed")

# Before torch is imported, here and in every process that tests start. Threads that wait for one another go to sleep:
# where more of them than cores run, as with two test processes side by side, those that spin keep the others from
# getting anywhere, and a small batch norm takes a tenth of a second.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

SETUPS = pytest.StashKey[int]()
SELDOM = 500  # tests


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """The garbage collector looks only at what a test itself makes, and seldom at everything.

    All libraries and all tests are millions of objects. Whoever collects walks through them, and hotlap does before it
    forks, measures or tries again with less memory: half a second each time, and a quarter of the whole session. Where
    a card is in use, it looks at everything as ever: garbage may hold memory of the card.
    """
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        return
    setups = item.config.stash[SETUPS] = item.config.stash.get(SETUPS, 0) + 1
    if setups % SELDOM == 1:
        gc.unfreeze()
        gc.collect()
    gc.collect(1)
    gc.freeze()


@pytest.hookimpl(trylast=True)
def pytest_configure() -> None:
    """A loader's dead worker may be told in a finalizer: torch's handler of SIGCHLD raises wherever the process is.

    There it can only be ignored, which pytest would take for a fault of the test; the loader asks the exit codes then.
    """
    collect = sys.unraisablehook

    def hook(unraisable: Any) -> None:
        if "DataLoader worker (pid" not in str(unraisable.exc_value):
            collect(unraisable)

    sys.unraisablehook = hook


def pytest_sessionfinish() -> None:
    """What pytest looks for at the end, it looks for in everything."""
    gc.unfreeze()


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest):
    """Runs a test body on the CPU, and again on a card where there is one."""
    import torch

    if request.param == "cuda" and not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    return torch.device(request.param)


def source_path() -> str:
    """PYTHONPATH for processes that tests start in other folders: the very hotlap under test first."""
    import hotlap

    here = str(Path(hotlap.__file__).resolve().parents[1])
    return os.pathsep.join(filter(None, [here, os.environ.get("PYTHONPATH")]))


def shared_folder(tmp_path_factory) -> Path:
    """A folder of this session, the same for all processes that run tests side by side."""
    base = tmp_path_factory.getbasetemp()
    return base.parent if "PYTEST_XDIST_WORKER" in os.environ else base


@pytest.fixture(scope="session", autouse=True)
def _bytecode(tmp_path_factory):
    """Where Python may not write bytecode, every worker would compile torch again; for this session it may."""
    with pytest.MonkeyPatch.context() as patch:
        if sys.dont_write_bytecode:
            patch.setenv("PYTHONDONTWRITEBYTECODE", "")
            patch.setenv("PYTHONPYCACHEPREFIX", str(shared_folder(tmp_path_factory) / "bytecode"))
        yield


@pytest.fixture(autouse=True)
def _own_folders(tmp_path, monkeypatch):
    """No test reads or writes the user's cache, or hears settings from the developer's shell."""
    monkeypatch.setenv("PYTHONPATH", source_path())
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    for name in list(os.environ):
        if name.startswith("HOTLAP_"):
            monkeypatch.delenv(name)


@pytest.fixture
def no_hang():
    """Ends a body that waits for a process which will never answer, with or without pytest's own timeout."""
    import signal

    def ring(number, frame):
        pytest.fail("the test still waited after 60 s")  # no exception that a body may take for that of a pipe

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(60)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture
def plain_float32():
    """Float32 without TF32 for the length of a test, so that devices differ by rounding alone."""
    import torch

    backends = (torch.backends.cuda.matmul, torch.backends.cudnn.conv, torch.backends.cudnn.rnn)
    before = [backend.fp32_precision for backend in backends]
    for backend in backends:
        backend.fp32_precision = "ieee"
    yield
    for backend, precision in zip(backends, before, strict=True):
        backend.fp32_precision = precision


class FakeNvml:
    """A driver with cards of our making; ``calls`` remembers what was set."""

    def __init__(self, num_cards: int = 2, **answers):
        self.num_cards, self.answers, self.calls, self.open = num_cards, answers, [], False

    def __getattr__(self, name):
        """Any further NVML call answers what the test said, or is missing as in an old driver."""
        answers = self.__dict__["answers"]
        if name not in answers:
            raise AttributeError(name)

        def call(*arguments):
            self.calls.append((name, *arguments))
            answer = answers[name]
            answer = answer(*arguments) if callable(answer) else answer
            if isinstance(answer, Exception):
                raise answer
            return answer

        return call

    def nvmlInit(self):
        self.open = True

    def nvmlShutdown(self):
        self.open = False

    def nvmlSystemGetDriverVersion(self):
        return b"555.42"

    def nvmlDeviceGetCount(self):
        return self.num_cards

    def nvmlDeviceGetHandleByIndex(self, index):
        return f"card {index}"

    def nvmlDeviceGetUUID(self, handle):
        return f"GPU-{handle[-1] * 4}".encode()

    def nvmlDeviceGetName(self, handle):
        return "Fake H1"

    def nvmlDeviceGetMemoryInfo(self, handle):
        return SimpleNamespace(total=80 * 2**30, used=3 * 2**30)

    def nvmlDeviceGetPciInfo(self, handle):
        return SimpleNamespace(busId=b"0000:0" + handle[-1].encode())


@pytest.fixture
def fake_nvml(monkeypatch):
    """Makes a fake driver that every session with NVML then talks to."""

    def make(num_cards: int = 2, **answers) -> FakeNvml:
        library = FakeNvml(num_cards, **answers)
        monkeypatch.setitem(sys.modules, "pynvml", library)
        return library

    return make


MLP = """
from torch import nn

def mlp(width=16):
    return nn.Sequential(nn.Linear(8, width), nn.Tanh(), nn.Linear(width, 3))
"""
SMALL = ("--processes", "2", "--repeats", "3", "--seconds", "0.05", "--warmup-seconds", "0.2", "--gate-steps", "2")


@pytest.fixture(scope="session")
def bench_run(tmp_path_factory, _bytecode):
    """One real bench of a tiny MLP through the command line, shared by the tests that look at what it left.

    Also between processes that run tests side by side: the first to ask runs it, and the others wait.
    """
    folder = shared_folder(tmp_path_factory) / "bench"
    told = folder / "told.json"
    try:
        folder.mkdir()
    except FileExistsError:
        give_up = time.monotonic() + 280
        while not told.exists() and time.monotonic() < give_up:
            time.sleep(0.1)
    else:
        _bench_tiny(folder, told)
    return SimpleNamespace(folder=folder, done=SimpleNamespace(**json.loads(told.read_text())), runs=folder / "runs")


def _bench_tiny(folder: Path, told: Path) -> None:
    import subprocess

    (folder / "tiny.py").write_text(MLP)
    command = ["bench", "tiny.py:mlp", "--input", "8", "--arms", "cpu,cpu:bf16", "--batch", "4", *SMALL, "--json"]
    environ = {k: v for k, v in os.environ.items() if not k.startswith("HOTLAP_")}
    done = subprocess.run(
        [sys.executable, "-m", "hotlap", *command, "--set", "workload.width=12"],
        cwd=folder, env={**environ, "PYTHONPATH": source_path()}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    whole = told.with_suffix(".part")
    whole.write_text(json.dumps({"returncode": done.returncode, "stdout": done.stdout, "stderr": done.stderr}))
    whole.rename(told)


@pytest.fixture
def jobs_in_process(monkeypatch):
    """Runs the jobs of a bench in this process: the same code and the same JSON, without the start of a worker."""
    from hotlap.base.errors import HotlapError
    from hotlap.measure import fingerprint, worker
    from hotlap.measure.jobs import find_job
    from hotlap.measure.nursery import Nursery
    from hotlap.measure.process import freeze_error, quiet, revive_error
    from hotlap.records.codec import encode
    from hotlap.tools.bench import run, self_test
    from hotlap.tools.export import export
    from hotlap.tools.loader import loader
    from hotlap.tools.tune import lab, tune, verify

    done = []

    def run_job(job, *, timeout_s, listen=quiet, nursery=None, each_word=False):
        done.append(job)
        try:
            answer = find_job(job["job"])(json.loads(json.dumps(job)), listen)
        except HotlapError as error:
            raise revive_error(freeze_error(error)) from error
        except Exception as error:
            raise revive_error(freeze_error(worker.explain(error, job))) from error
        return json.loads(json.dumps(encode(answer), allow_nan=False))

    monkeypatch.setattr(Nursery, "_open", lambda self, modules: None)
    tools = [sys_module(tool) for tool in (self_test, export, loader, tune)]
    for module in (run, *tools, fingerprint, lab, verify):
        monkeypatch.setattr(module, "run_job", run_job)
    return done


def sys_module(function):
    """The module a function lives in."""
    return sys.modules[function.__module__]
