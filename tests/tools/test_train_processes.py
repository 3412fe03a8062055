"""``hotlap train`` in several processes through torchrun: disturbed, stopped and resumed, it comes to the same end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from hotlap.base.errors import ConfigError, DeviceUnavailable, EnvironmentUnusable, OutOfMemory, UsageError, WorkerDied
from hotlap.engine.checkpoint import CheckpointStore
from hotlap.engine.config import TrainConfig
from hotlap.engine.loop import Trainer
from hotlap.engine.place import Place, find_place
from hotlap.records.codec import encode
from hotlap.records.run import load_record
from hotlap.targets import load_target
from hotlap.tools.train import train
from hotlap.tools.train.launch import torchrun_command
from hotlap.tools.train.member import Pointer, ask_for_less, read_request

TARGET = f"{Path(__file__).parents[1] / 'engine' / 'masked_rows.py'}:masked"
COMMON = ["--nproc", "2", "--device", "cpu", "--epochs", "4", "--log-every", "1", "--json"]
PATIENCE_S = 280
"""For a machine with many other things to do; a run of this size takes a few seconds."""
CLOSE = {"rtol": 1e-11, "atol": 1e-13}
"""Sums of a few terms in float64, taken in another order, over 16 steps."""


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """The weights after the same training in one process."""
    config = TrainConfig(target=TARGET, device="cpu", epochs=4)
    trainer = Trainer(load_target(TARGET), config, tmp_path_factory.mktemp("alone"), torch.device("cpu"))
    trainer.run()
    return trainer.parts.model.state_dict()


def start(folder, *arguments, target=TARGET):
    command = [sys.executable, "-m", "hotlap", "train", target, *COMMON, *arguments]
    return subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finish(process):
    try:
        return process.communicate(timeout=PATIENCE_S)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGTERM)
        raise


def weights(folder):
    found = CheckpointStore(folder / "checkpoints").load("latest")
    return found.step, found.state["model"]


@pytest.fixture
def alarm():
    """Ends a body that waits for processes which will never answer."""

    def ring(number, frame):
        raise TimeoutError(f"the test still waited after {PATIENCE_S} s")

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(PATIENCE_S)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.slow
def test_killed_and_short_of_memory_it_comes_to_the_same_end(tmp_path, undisturbed, alarm):
    told = []
    config = TrainConfig(
        target=TARGET, nproc=2, device="cpu", epochs=4, log_every=1, probation=2, save_every=3, restarts=3,
        workload={"mishaps": str(tmp_path)}, runs=tmp_path / "runs",
    )  # fmt: skip
    record = encode(train(config, lambda event: told.append(event.text)))
    assert any("all processes were started again" in text for text in told)
    assert (tmp_path / "killed").exists() and record["status"] == "complete"
    first, second = record["extra"]["restarts"]
    assert first == "a process ended"
    assert second.startswith("memory ran out while gradients were being shared")
    assert record["extra"]["outcome"]["micro"] == 2
    step, model = weights(Path(record["path"]).parent)
    assert step == 16
    torch.testing.assert_close(model, undisturbed, **CLOSE)
    rows = [json.loads(line) for line in (Path(record["path"]).parent / "metrics.jsonl").open()]
    assert [row["step"] for row in rows if row["split"] == "train"] == list(range(1, 17)), (
        "each step is logged once, whatever was done twice"
    )


@pytest.mark.slow
def test_told_to_stop_it_saves_and_goes_on_in_one_process(tmp_path, undisturbed):
    process = start(tmp_path, "--set", "workload.pause_s=0.2", "--workers", "1")
    deadline = time.monotonic() + PATIENCE_S
    while not any(path.read_text().count("\n") >= 4 for path in tmp_path.glob("runs/*/*/metrics.jsonl")):
        assert process.poll() is None and time.monotonic() < deadline, finish(process)[1]
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    out, err = finish(process)
    assert process.returncode == 130, err
    assert json.loads(out)["verdict"]["exit_code"] == 130
    assert err.splitlines()[-1] == "interrupted; a checkpoint was saved, and --resume goes on from it"
    assert "Traceback" not in err and "signal" not in err
    (folder,) = tmp_path.glob("runs/masked/*")
    assert load_record(folder).status == "interrupted", err
    assert 3 <= weights(folder)[0] < 16
    config = TrainConfig(target=TARGET, device="cpu", epochs=4)
    trainer = Trainer(load_target(TARGET), config, folder, torch.device("cpu"))
    trainer.run(trainer.store.load("latest"))
    torch.testing.assert_close(trainer.parts.model.state_dict(), undisturbed, **CLOSE)


@pytest.fixture
def loud(tmp_path):
    """A target that also prints below Python, as programs and libraries in C do."""
    folder = str(Path(TARGET.rpartition(":")[0]).parent)
    prints = ["print('import prints')", "os.system('echo a program prints')"]
    lines = ["import os, sys", *prints, f"sys.path.insert(0, {folder!r})", "from masked_rows import masked"]
    (tmp_path / "loud.py").write_text("\n".join(lines))
    return f"{tmp_path / 'loud.py'}:masked"


@pytest.mark.slow
def test_stdout_has_the_answer_alone_whatever_a_target_prints(tmp_path, loud, monkeypatch):
    monkeypatch.setenv("HOTLAP_BATCHH", "3")
    process = start(tmp_path, "--epochs", "1", target=loud)
    out, err = finish(process)
    assert process.returncode == 0, err
    assert json.loads(out)["status"] == "complete"
    assert err.count("import prints") == err.count("a program prints") == 3, "before the start, and in each process"
    assert err.count("HOTLAP_BATCHH in the environment is no setting") == 1


def test_a_training_that_prints_is_not_taken_for_dead(tmp_path, loud, alarm, monkeypatch):
    monkeypatch.setenv("HOTLAP_EPOCHS", "3")
    monkeypatch.setenv("HOTLAP_STEPS", "1")
    config = TrainConfig(target=loud, nproc=2, device="cpu", epochs=1, runs=tmp_path / "runs")
    told = []
    record = train(config, lambda event: told.append(event.text))
    assert record.status == "complete" and told.count("a program prints") == 2
    assert (record.config["epochs"], record.config["steps"]) == (1, None), "what Python asked for"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_torchrun_stopped_before_it_has_processes_says_so(number):
    """torch's own entry is stood in for by the signal."""
    code = (
        "import os, signal, sys, torch.distributed.run as run\n"
        f"signal.signal({int(number)}, signal.SIG_DFL)\n"  # nohup and shells in the background ignore some
        f"run.main = lambda arguments: os.kill(os.getpid(), {int(number)})\n"
        "from hotlap.tools.train.torchrun import main\n"
        "main()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE_S)
    assert (done.returncode, done.stderr) == (130, "hotlap: interrupted before the training began\n")


@pytest.mark.slow
def test_what_ended_all_processes_is_told_and_not_tried_again(tmp_path, alarm):
    config = TrainConfig(target=TARGET, nproc=2, device="cpu", batch=99, restarts=2, runs=tmp_path / "runs")
    told = []
    with pytest.raises(WorkerDied, match=r"nproc = 2 processes ended .*batch = 99 is larger than the 22 samples"):
        train(config, lambda event: told.append(event.text))
    (folder,) = tmp_path.glob("runs/masked/*")
    assert load_record(folder).status == "failed", "one folder: the processes that were started again tried nothing"


def test_the_command_line_reaches_every_process_as_it_was_typed():
    config = TrainConfig(target="unet", nproc=3, device="cpu", restarts=7)
    command = torchrun_command(config, ["unet", "--nproc", "3", "--nproc=3", "--name", "a b"])
    assert command[1:] == [
        "-m", "hotlap.tools.train.torchrun", "--nproc-per-node", "3", "--max-restarts", "7", "--standalone",
        "-m", "hotlap", "train", "unet", "--set", "nproc=3", "--set", "nproc=3", "--name", "a b",
    ]  # fmt: skip


def test_more_processes_than_cards_are_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(
        DeviceUnavailable, match=r"nproc = 2, but 1 CUDA devices are visible.*--nproc 1 or --device cpu"
    ):
        torchrun_command(TrainConfig(target="unet", nproc=2, device="cuda"), [])
    with pytest.raises(UsageError, match="device = 'cuda:1' with nproc = 2"):
        torchrun_command(TrainConfig(target="unet", nproc=2, device="cuda:1"), [])


def test_sharding_needs_several_processes():
    with pytest.raises(ConfigError, match="fsdp = True with nproc = 1"):
        train(TrainConfig(target="unet", fsdp=True))


TORCHRUN = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "host",
            "MASTER_PORT": "1", "TORCHELASTIC_RUN_ID": "job/7", "TORCHELASTIC_RESTART_COUNT": "2"}  # fmt: skip


def test_the_place_is_read_from_torchruns_variables():
    place = find_place(TORCHRUN)
    assert place == Place(rank=3, size=4, local_rank=1, local_size=2, run_id="job/7", num_restarts=2)
    assert place.key == "job-7" and place.has_name
    assert find_place({}) is None and find_place({"WORLD_SIZE": "1", "RANK": "0"}) is None
    unnamed = find_place({**TORCHRUN, "TORCHELASTIC_RUN_ID": "none"})
    assert not unnamed.has_name and unnamed.key.endswith(f"-{os.getppid()}")


def test_half_an_environment_is_refused_by_name():
    some = {key: value for key, value in TORCHRUN.items() if key not in ("MASTER_ADDR", "LOCAL_RANK")}
    with pytest.raises(EnvironmentUnusable, match="LOCAL_RANK, MASTER_ADDR not set, although WORLD_SIZE = 4"):
        find_place(some)


def placed(name="job", restarts=0):
    return Place(rank=0, size=2, local_rank=0, local_size=2, run_id=name, num_restarts=restarts)


def test_processes_started_again_find_their_training(tmp_path):
    config = TrainConfig(target="unet", runs=tmp_path)
    first = Pointer(config, placed())
    assert first.folder() is None
    first.write(tmp_path / "unet" / "1", "running", ["why"])
    for again in (Pointer(config, placed(restarts=1)), Pointer(config, placed())):
        assert again.folder() == tmp_path / "unet" / "1" and again.restarts() == ["why"] and again.ended() is None
    other = TrainConfig(target="bilstm", runs=tmp_path)
    assert Pointer(other, placed()).folder() is None, "a new training under an old name"
    first.write(tmp_path / "unet" / "1", "complete", [])
    assert Pointer(config, placed()).folder() is None


def test_an_error_that_would_come_back_is_told_again_without_training(tmp_path):
    config = TrainConfig(target="unet", runs=tmp_path)
    Pointer(config, placed()).failed(OutOfMemory("memory ran out with 1 sample"))
    with pytest.raises(OutOfMemory, match="memory ran out with 1 sample"):
        Pointer(config, placed(restarts=1)).ended()
    assert Pointer(config, placed()).ended() is None, "the next torchrun tries again"


def test_a_dead_loader_asks_for_fewer_workers(tmp_path):
    from hotlap.base.errors import LoaderDied

    ask_for_less(tmp_path, 7, 4, UsageError("something else"))
    assert read_request(tmp_path) is None
    ask_for_less(tmp_path, 7, 4, LoaderDied("a loader's worker died"))
    assert read_request(tmp_path) == {"workers": 2, "step": 7, "why": "a loader's worker died"}
