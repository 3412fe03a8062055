"""A worker that dies is named, with its likely cause, and never waited for."""

from __future__ import annotations

import os
import signal
from types import SimpleNamespace

import pytest
import torch
from cut_batches import CUTTER, handed

from hotlap.base.errors import EXIT_ENVIRONMENT, LoaderDied
from hotlap.engine import loader_death
from hotlap.engine.loader import LoaderSettings, TrainLoader
from hotlap.engine.loader_death import explain_death

pytestmark = pytest.mark.usefixtures("no_hang")
KILLED = RuntimeError("DataLoader worker (pid 41) is killed by signal: Killed. ")
BUS = RuntimeError(
    "DataLoader worker (pid 41) is killed by signal: Bus error. It is possible that dataloader's workers are out of "
    "shared memory. Please try to raise your shared memory limit."
)
VANISHED = RuntimeError("DataLoader worker (pid(s) 40, 41) exited unexpectedly")


class Deadly:
    """Sample 6 ends the worker that reads it."""

    def __init__(self, how):
        self.how, self.trainer = how, os.getpid()

    def __len__(self):
        return 8

    def __getitem__(self, index):
        assert os.getpid() != self.trainer
        if index == 6 and self.how is not None:
            os.kill(os.getpid(), self.how) if self.how else os._exit(3)  # a kill with 0 would do nothing
        return index


@pytest.fixture
def root(tmp_path):
    """A machine whose kernel has killed three processes of this group, and with 9 GiB left."""
    write(tmp_path, "proc/self/cgroup", "0::/\n")
    write(tmp_path, "proc/meminfo", f"MemTotal: {16 * 2**20} kB\nMemAvailable: {9 * 2**20} kB\n")
    write(tmp_path, "sys/fs/cgroup/memory.events", "oom_kill 3\n")
    return tmp_path


def write(root, path, text):
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize(
    ("how", "words"), [(signal.SIGKILL, "SIGKILL"), (signal.SIGBUS, "SIGBUS.* /dev/shm"), (0, "exit code 3")]
)
def test_a_dead_worker_is_an_error_with_its_pid_and_the_loader_can_start_anew(how, words, persistent):
    settings = LoaderSettings(num_workers=2, persistent_workers=persistent)
    data = Deadly(how)
    train = TrainLoader(data, batch=2, seed=0, settings=settings, shuffle=False)
    with pytest.raises(LoaderDied, match=rf"a loader's worker \(pid \d+\) died of {words}") as told:
        list(train.epoch(0))
    assert told.value.exit_code == EXIT_ENVIRONMENT
    data.how = None
    assert sum(b.num_samples for b in train.epoch(0, start=2)) == 4
    train.close()


def test_a_kill_that_the_kernel_counted_is_its_own(root):
    told = explain_death(KILLED, kills_before=2, root=root)
    assert "pid 41) died of Killed: the kernel killed it for memory (oom_kill rose from 2 to 3)" in str(told)
    assert "fewer workers" in told.remedy


def test_a_kill_with_little_memory_left_was_likely_the_kernel(root):
    write(root, "proc/meminfo", f"MemAvailable: {100 * 2**10} kB\n")
    assert "most likely the kernel, for memory: 100 MiB are left" in str(
        explain_death(KILLED, kills_before=3, root=root)
    )


def test_a_kill_without_a_sign_of_want_says_so(root):
    told = str(explain_death(KILLED, kills_before=3, root=root))
    assert "9.00 GiB of memory are left, so somebody may have ended it" in told and "dmesg" in told


def test_nothing_is_made_up_where_the_kernel_says_nothing(tmp_path):
    assert "how much memory is left is not known" in str(explain_death(KILLED, root=tmp_path))


def test_a_bus_error_names_the_size_and_use_of_shared_memory(root, monkeypatch):
    full = SimpleNamespace(f_frsize=4096, f_blocks=16384, f_bavail=2)
    monkeypatch.setattr(os, "statvfs", lambda path: full)
    told = explain_death(BUS, root=root)
    assert "pid 41) died of Bus error" in str(told)
    assert "no room for its batch in /dev/shm, which is 64.0 MiB, 8.00 KiB of it free now" in str(told)
    assert "--shm-size" in told.remedy


def test_without_shared_memory_the_bus_error_says_that_it_is_not_there(root):
    assert "/dev/shm, which is not there" in str(explain_death(BUS, root=root))


def test_the_exit_code_tells_what_torch_did_not_hear():
    workers = [SimpleNamespace(pid=40, exitcode=-11), SimpleNamespace(pid=41, exitcode=0)]
    assert "(pid 40) died of SIGSEGV" in str(explain_death(VANISHED, workers=workers))
    assert "(pid 40) died of an unknown cause" in str(explain_death(VANISHED))


@pytest.mark.parametrize(
    "text",
    [
        "unable to open shared memory object </torch_7> in read-write mode: No space left on device (28)",
        "unable to allocate shared memory(shm) for file </torch_7>: Success (0)",
    ],
)
def test_a_batch_that_found_no_shared_memory_is_explained(text):
    assert "no room for its batch in /dev/shm" in str(explain_death(RuntimeError(text)))


def no_room(samples):
    raise RuntimeError("unable to allocate shared memory(shm) for file </torch_7>: Success (0)")


def test_no_shared_memory_inside_a_worker_is_told_as_that():
    train = TrainLoader(range(4), batch=2, seed=0, settings=LoaderSettings(num_workers=1), collate=no_room)
    with pytest.raises(LoaderDied, match=r"putting batch 0 .* together: .*no room for its batch in /dev/shm"):
        list(train.epoch(0))


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("Too many open files. Communication with the workers is no longer possible"),
        RuntimeError("received 0 items of ancdata"),
        OSError(24, "Too many open files"),
    ],
)
def test_too_many_open_files_names_the_limit(error):
    assert "ulimit -n" in str(explain_death(error))


@pytest.mark.parametrize(
    "error", [ValueError("x"), RuntimeError("CUDA error: device-side assert"), torch.OutOfMemoryError("x")]
)
def test_another_error_is_no_death(error):
    assert explain_death(error) is None


CUTS = [
    ConnectionResetError(104, "Connection reset by peer"),
    ConnectionRefusedError(111, "Connection refused"),
    BrokenPipeError(32, "Broken pipe"),
    FileNotFoundError(2, "No such file or directory"),
    EOFError(),
    RuntimeError("Pin memory thread exited unexpectedly"),
    RuntimeError("unable to open shared memory object </torch_7> in read-write mode: No such file or directory (2)"),
]
cuts = pytest.mark.parametrize("error", CUTS, ids=lambda error: f"{type(error).__name__}-{error}"[:40])


class Dying:
    """A process that is dead only for those who ask again."""

    pid = 41

    def __init__(self):
        self.codes = [None, None, -signal.SIGKILL]

    @property
    def exitcode(self):
        return self.codes.pop(0) if len(self.codes) > 1 else self.codes[0]


@cuts
def test_a_batch_cut_off_by_its_workers_death_is_that_death(error, root):
    told = explain_death(error, workers=[SimpleNamespace(pid=40, exitcode=None), Dying()], kills_before=2, root=root)
    assert "pid 41) died of SIGKILL: the kernel killed it for memory (oom_kill rose from 2 to 3)" in str(told)


@pytest.mark.parametrize("error", CUTS[:-1], ids=lambda error: type(error).__name__)
def test_a_cut_without_a_death_is_none(error, monkeypatch):
    monkeypatch.setattr(loader_death, "DYING_S", 0.03)
    assert explain_death(error, workers=[SimpleNamespace(pid=40, exitcode=None)]) is None
    assert explain_death(error) is None


def test_an_error_that_is_no_cut_is_not_laid_to_a_dead_worker():
    assert explain_death(ValueError("x"), workers=[SimpleNamespace(pid=40, exitcode=-9)]) is None


def test_what_torch_says_while_a_death_is_waited_for_is_heard():
    class Heard(Dying):
        @property
        def exitcode(self):
            if self.codes.pop():
                raise RuntimeError(str(KILLED))

    assert "(pid 41) died of Killed" in str(explain_death(CUTS[0], workers=[Heard()]))


@pytest.fixture
def cutter():
    yield CUTTER
    CUTTER.__init__()


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("error", [CUTS[0], CUTS[4]], ids=["reset", "end"])
def test_a_real_worker_that_dies_after_its_batch_was_cut_is_named_and_nothing_is_lost(cutter, error, persistent):
    settings = LoaderSettings(num_workers=2, persistent_workers=persistent)
    train = TrainLoader(range(8), batch=2, seed=0, settings=settings, collate=lambda samples: handed(tuple(samples)))
    cutter.at, cutter.error = 2, error
    used = []
    with pytest.raises(LoaderDied, match=r"a loader's worker \(pid \d+\) died of (SIGKILL|Killed)"):
        used.extend(loaded.batch for loaded in train.epoch(0))
    used.extend(loaded.batch for loaded in train.epoch(0, start=len(used)))
    assert [index for batch in used for index in batch] == train.order(0)
    train.close()


def test_the_same_error_is_the_users_own_where_every_worker_lives_on(cutter, monkeypatch):
    monkeypatch.setattr(loader_death, "DYING_S", 0.05)
    train = TrainLoader(range(8), batch=2, seed=0, settings=LoaderSettings(num_workers=1), collate=handed)
    cutter.at, cutter.kills = 2, False
    with pytest.raises(ConnectionResetError, match="Connection reset by peer"):
        list(train.epoch(0))
