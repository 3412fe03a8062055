"""A supervised training: who killed it is told, it is started again from its last checkpoint, or it is given up."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest
import torch
from killed_trainer import differences
from tiny_workload import Tiny

from hotlap.base.errors import HotlapError, OutOfMemory, TargetError, UsageError, WorkerDied
from hotlap.engine import supervise as module
from hotlap.engine.checkpoint import CheckpointStore
from hotlap.engine.config import CHECKPOINTS, TrainConfig
from hotlap.engine.loop import Trainer
from hotlap.engine.supervise import Killed, explain_death, supervise

TARGET = f"{Path(__file__).with_name('troubled_workload.py')}:Troubled"


def config(trouble: str, flag: Path | None = None, **settings) -> TrainConfig:
    options = {"trouble": trouble, **({"flag": str(flag)} if flag else {})}
    defaults = {"epochs": 3, "save_every": 3, "log_every": 2, "device": "cpu", "seed": 4}
    return TrainConfig(target=TARGET, workload=options, **(defaults | settings))


@pytest.fixture
def undisturbed(tmp_path):
    """What the same settings come to when nothing happens."""
    folder = tmp_path / "undisturbed"
    settings = TrainConfig(target="tiny", epochs=3, save_every=3, log_every=2, device="cpu", seed=4)
    Trainer(Tiny(dropout=0.1), settings, folder, torch.device("cpu")).run()
    return folder


def assert_same_training(one: Path, other: Path) -> None:
    assert (one / "metrics.jsonl").read_bytes() == (other / "metrics.jsonl").read_bytes()
    states = [CheckpointStore(folder / CHECKPOINTS).load().state for folder in (one, other)]
    assert differences(*states) == []


def test_a_training_killed_for_memory_goes_on_from_its_last_checkpoint(tmp_path, undisturbed):
    (folder := tmp_path / "run").mkdir()
    heard = []
    done = supervise(config("killed", tmp_path / "flag"), folder, "", heard.append)
    assert done.outcome["status"] == "complete"
    assert done.restarts == [heard_warning(heard, "SIGKILL").partition(";")[0]]
    assert "starting again from step" in heard_warning(heard, "SIGKILL")
    assert_same_training(folder, undisturbed)


@pytest.mark.slow
def test_a_killed_worker_of_the_loader_means_fewer_workers(tmp_path, undisturbed):
    (folder := tmp_path / "run").mkdir()
    heard = []
    done = supervise(config("worker killed", tmp_path / "flag", workers=2), folder, "", heard.append)
    assert (done.config.workers, done.config.prefetch) == (1, 1)
    warning = heard_warning(heard, "a loader's worker (pid")
    assert "SIGKILL" in warning or "Killed" in warning
    assert warning.endswith("now with workers = 1, prefetch = 1")
    assert_same_training(folder, undisturbed)


@pytest.mark.slow
def test_a_batch_cut_off_by_its_workers_death_means_fewer_workers_and_the_same_result(tmp_path, undisturbed):
    (folder := tmp_path / "run").mkdir()
    heard = []
    done = supervise(config("batch cut off", tmp_path / "flag", workers=2), folder, "", heard.append)
    assert (done.config.workers, len(done.restarts)) == (1, 1)
    assert heard_warning(heard, "a loader's worker (pid").endswith("now with workers = 1, prefetch = 1")
    assert_same_training(folder, undisturbed)


def test_what_the_target_raises_passes_through_with_its_line(tmp_path):
    with pytest.raises(TargetError) as caught:
        supervise(config("raises"), tmp_path, "", lambda event: None)
    source = Path(__file__).with_name("troubled_workload.py")
    line = next(n for n, text in enumerate(source.read_text().splitlines(), 1) if "the line a user is shown" in text)
    assert f"({source}:{line})" in str(caught.value)
    assert "raised RuntimeError" in str(caught.value)
    assert "Traceback" in (tmp_path / "output.txt").read_text()


def test_memory_that_never_suffices_ends_with_layer_shape_and_checkpoint(tmp_path):
    heard = []
    with pytest.raises(OutOfMemory, match=r"layer '1' \(Greedy\) on \[1, 16\] with 1 sample at a time") as caught:
        supervise(config("out of memory"), tmp_path, "", heard.append)
    assert caught.value.exit_code == 5
    assert "99 GiB" in str(caught.value)
    assert heard_warning(heard, "micro-batches of 4")


def heard_warning(heard, words: str) -> str:
    return next(event.text for event in heard if event.kind == "warn" and words in event.text)


FAKE = """
import json, os, pathlib, signal, sys, time
job = json.loads(sys.stdin.readline())
folder = pathlib.Path(job["folder"])
starts = len(list(folder.glob("start-*")))
(folder / f"start-{starts}.json").write_text(json.dumps(job))
def say(message): print(json.dumps(message), flush=True)
def checkpoint(step):
    (folder / "checkpoints").mkdir(exist_ok=True)
    (folder / "checkpoints" / f"step-{step:08d}-0123456789abcdef.pt").touch()
"""


@pytest.fixture
def child(tmp_path, monkeypatch):
    """Puts a process of the test's own making in the training's place; gives the jobs it was started with."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(module, "CHILD", "fake_child")
    (folder := tmp_path / "run").mkdir()

    def run(body: str, **settings):
        (tmp_path / "fake_child.py").write_text(FAKE + body)
        run.heard = []
        settings = TrainConfig(target="t", **settings)
        return supervise(settings, folder, "", run.heard.append)

    run.jobs = lambda: [json.loads(f.read_text()) for f in sorted(folder.glob("start-*"))]
    run.folder = folder
    return run


def test_it_gives_up_when_killed_more_often_than_allowed(child):
    body = "checkpoint(starts + 1); os.kill(os.getpid(), signal.SIGKILL)"
    with pytest.raises(Killed, match=r"SIGKILL.*, after 2 restarts.*--batch") as caught:
        child(body, restarts=2)
    assert caught.value.exit_code == 137
    assert [job["resume"] for job in child.jobs()] == ["", "latest", "latest"]


def test_what_a_training_that_died_had_started_is_ended_before_the_next_start(child):
    """It would go on reading and holding memory beside the new one."""
    body = (
        "import subprocess\n"
        "left = [int(file.read_text()) for file in folder.glob('left-*')]\n"
        "lives = [pid for pid in left if pathlib.Path(f'/proc/{pid}/stat').exists()"
        " and pathlib.Path(f'/proc/{pid}/stat').read_text().rpartition(')')[2].split()[0] != 'Z']\n"
        "if left: say({'result': {'lives': lives}}); os._exit(0)\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'], stdout=2)\n"
        "(folder / 'left-0').write_text(str(child.pid))\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    assert child(body).outcome == {"lives": []}


def test_three_deaths_without_a_new_checkpoint_are_enough(child):
    with pytest.raises(Killed, match="after 2 restarts without a new checkpoint"):
        child("os.kill(os.getpid(), signal.SIGKILL)", restarts=50)
    assert [job["resume"] for job in child.jobs()] == ["", "", ""]
    assert "from the beginning" in heard_warning(child.heard, "SIGKILL")


def test_progress_lets_it_go_on_and_workers_are_halved_each_time(child):
    body = (
        "checkpoint(5 * (starts + 1))\n"
        "if starts == 2: say({'result': {'status': 'complete'}})\n"
        "else: os.kill(os.getpid(), signal.SIGBUS if starts else signal.SIGKILL)\n"
    )
    done = child(body, workers=8, prefetch=4)
    assert done.outcome == {"status": "complete"}
    assert [(j["config"]["workers"], j["config"]["prefetch"]) for j in child.jobs()] == [(8, 4), (4, 1), (2, 1)]
    assert len(done.restarts) == 2
    assert "bus error: /dev/shm is full" in done.restarts[1]
    assert "from step 10, now with workers = 2" in heard_warning(child.heard, "bus error")


def test_a_lost_step_is_started_again_and_other_errors_are_not(child):
    error = {"type": "StepLost", "kind": "OutOfMemory", "what": "lost", "expected": "", "remedy": ""}
    done = child(f"say({{'error': {error}}} if starts == 0 else {{'result': {{'status': 'complete'}}}})", workers=4)
    assert done.restarts == ["lost"]
    assert child.jobs()[-1]["config"]["workers"] == 4
    error |= {"type": "Diverged", "kind": "HotlapError", "what": "the loss was nan"}
    with pytest.raises(HotlapError, match="the loss was nan"):
        child(f"say({{'error': {error}}})")
    assert len(child.jobs()) == 3


def test_a_crash_that_is_no_kill_ends_in_its_last_words(child):
    with pytest.raises(WorkerDied, match=r"exit code 9 and no answer.*last words: it broke.*, after 0 restarts"):
        child("sys.stderr.write('first\\nit broke\\n'); sys.stderr.flush(); os._exit(9)", restarts=0)


def test_a_listener_that_fails_lets_the_training_save_before_it_ends(child):
    body = (
        "def leave(*_): checkpoint(3); os._exit(0)\n"
        "signal.signal(signal.SIGTERM, leave)\nsay({'event': {'kind': 'note'}})\ntime.sleep(30)"
    )

    def terminal_is_gone(event):
        if event.kind == "note":
            raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        child_with_listener(child, body, terminal_is_gone)
    assert len(list(child.folder.glob("checkpoints/*"))) == len(child.jobs()) == 1


def test_a_checkpoint_that_was_named_is_named_again_until_there_is_a_newer_one(child):
    body = "checkpoint(9 if starts < 2 else 12); os.kill(os.getpid(), signal.SIGKILL)"
    (child.folder.parent / "fake_child.py").write_text(FAKE + body)
    (child.folder / "checkpoints").mkdir()
    (child.folder / "checkpoints" / "step-00000009-0123456789abcdef.pt").touch()
    with pytest.raises(Killed):
        supervise(TrainConfig(target="t", restarts=3), child.folder, "old.pt", lambda event: None)
    assert [job["resume"] for job in child.jobs()] == ["old.pt", "old.pt", "old.pt", "latest"]


def test_a_training_that_dies_while_it_is_told_to_stop_is_not_started_again(child):
    body = "signal.signal(signal.SIGTERM, lambda *_: os._exit(7))\nsay({'event': {'kind': 'note'}})\ntime.sleep(30)"

    def interrupt_once(event):
        if event.text == "":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        child_with_listener(child, body, interrupt_once)
    assert len(child.jobs()) == 1


def child_with_listener(child, body: str, listen):
    (child.folder.parent / "fake_child.py").write_text(FAKE + body)
    return supervise(TrainConfig(target="t"), child.folder, "", listen)


def test_a_training_told_to_stop_may_answer_and_is_killed_if_it_never_does(child, monkeypatch):
    polite = (
        "told = []\nsignal.signal(signal.SIGTERM, lambda *_: told.append(1))\nsay({'event': {'kind': 'note'}})\n"
        "while not told: time.sleep(0.01)\nsay({'result': {'status': 'interrupted'}})\nos._exit(0)"
    )

    def interrupt_once(event):
        if event.text == "":
            raise KeyboardInterrupt

    assert child_with_listener(child, polite, interrupt_once).outcome == {"status": "interrupted"}
    monkeypatch.setattr(module, "PATIENCE_S", 0.2)
    deaf = "signal.signal(signal.SIGTERM, signal.SIG_IGN)\nsay({'event': {'kind': 'note'}})\ntime.sleep(30)"
    with pytest.raises(KeyboardInterrupt):
        child_with_listener(child, deaf, interrupt_once)


def test_a_target_that_trains_itself_on_import_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("HOTLAP_IS_MEASURING", "1")
    with pytest.raises(UsageError, match="if __name__"):
        supervise(TrainConfig(target="t"), tmp_path, "", lambda event: None)


@pytest.mark.parametrize(
    ("code", "kills", "is_memory", "words"),
    [
        (-signal.SIGKILL, (3, 4), True, "the kernel killed it for memory (oom_kill 3 -> 4)"),
        (-signal.SIGKILL, (3, 3), True, "it was killed (SIGKILL), which is what the kernel does"),
        (137, (None, None), True, "it was killed (SIGKILL)"),
        (-signal.SIGBUS, (None, None), True, "died of a bus error: /dev/shm is full"),
        (135, (0, 1), True, "died of a bus error"),
        (-signal.SIGSEGV, (0, 0), False, "died of SIGSEGV; its last words: Segmentation fault"),
        (1, (0, 0), False, "with exit code 1 and no answer; its last words: Segmentation fault"),
    ],
)
def test_deaths_are_told_apart(code, kills, is_memory, words):
    death = explain_death(code, *kills, "much before\nSegmentation fault")
    assert words in death.what
    assert death.is_memory is is_memory


def test_a_death_without_last_words_is_told_without():
    assert explain_death(1, None, None, "").what == "the training process died with exit code 1 and no answer"
