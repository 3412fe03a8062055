"""Starts a training in several processes: torchrun does it, with the same command line in each of them."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Sequence
from pathlib import Path

import hotlap
from hotlap.base import events
from hotlap.base.errors import ConfigError, WorkerDied
from hotlap.base.events import Emit
from hotlap.base.settings import ENV_PREFIX
from hotlap.device.host import read_host
from hotlap.engine.config import TrainConfig
from hotlap.engine.place import LAUNCHED, find_place
from hotlap.records.codec import encode
from hotlap.records.run import RunRecord, load_record

SHUTDOWN_S = "60"
"""Seconds that torchrun gives processes it has told to stop; their last step and checkpoint must be done by then."""
TORCHRUN = "hotlap.tools.train.torchrun"


def wants_torchrun(config: TrainConfig) -> bool:
    """Whether this process has to hand over to torchrun, being none of its processes yet."""
    return config.nproc > 1 and find_place() is None


def torchrun_command(config: TrainConfig, arguments: Sequence[str]) -> list[str]:
    """The command that trains in ``config.nproc`` processes, each called with ``arguments`` after ``hotlap train``."""
    from hotlap.engine.distributed import check_devices

    check_devices(config.device, config.nproc)
    counts = ["--nproc-per-node", str(config.nproc), "--max-restarts", str(config.restarts)]
    return [sys.executable, "-m", TORCHRUN, *counts, "--standalone",
            "-m", "hotlap", "train", *_respelled(arguments)]  # fmt: skip


def _respelled(arguments: Sequence[str]) -> list[str]:
    """The same words without ``--nproc``, which torchrun would take for a short form of an option of its own."""
    words = iter(arguments)
    found: list[str] = []
    for word in words:
        if word == "--nproc":
            found += ["--set", f"nproc={next(words)}"]
        elif word.startswith("--nproc="):
            found += ["--set", word[2:]]
        else:
            found.append(word)
    return found


def torchrun_environment(config: TrainConfig) -> dict[str, str]:
    """The user's environment, with this very hotlap importable and the cores shared out."""
    here = str(Path(hotlap.__file__).resolve().parents[1])
    paths = os.pathsep.join([here, *filter(None, [os.environ.get("PYTHONPATH")])])
    threads = str(max(1, read_host().usable_cores // config.nproc))
    chosen = {"OMP_NUM_THREADS": threads, "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": SHUTDOWN_S}
    return {**chosen, **os.environ, "PYTHONPATH": paths, LAUNCHED: "1"}


def exec_torchrun(config: TrainConfig, arguments: Sequence[str]) -> None:
    """Becomes torchrun; does not return."""
    command = torchrun_command(config, arguments)
    sys.stdout.flush()
    sys.stderr.flush()
    os.dup2(sys.stdout.fileno(), 1)  # for the first process's answer
    os.execvpe(command[0], command, torchrun_environment(config))


def run_torchrun(config: TrainConfig, emit: Emit) -> RunRecord:
    """The record of a training in several processes, waited for; what they print is told as notes."""
    with tempfile.TemporaryDirectory() as folder:
        settings = Path(folder) / "settings.yaml"
        given = {key: value for key, value in encode(config).items() if value is not None}
        settings.write_text(json.dumps(given), encoding="utf-8")
        command = torchrun_command(config, ["--config", str(settings), "--json"])
        answer = Path(folder) / "record.json"
        with (
            answer.open("w") as stdout,
            subprocess.Popen(
                command,
                stdout=stdout,
                stderr=subprocess.PIPE,
                text=True,
                env=_without_settings(torchrun_environment(config)),
            ) as process,
        ):
            last = _hear(process, emit)
        try:
            path = json.loads(answer.read_text(encoding="utf-8"))["path"]
        except ValueError as error:
            raise WorkerDied(
                f"the training in nproc = {config.nproc} processes ended with exit code {process.returncode}: "
                + (next((line for line in last if line.startswith("hotlap: ")), "") or "".join(last)[-500:]).strip(),
                remedy="Go on with resume='latest' once the cause is mended",
            ) from error
    return load_record(path)


def _without_settings(environ: dict[str, str]) -> dict[str, str]:
    """Without the variables that are settings: they would win over the caller's, which come by a file."""
    names = {field.name for field in dataclasses.fields(TrainConfig)}
    return {
        variable: text
        for variable, text in environ.items()
        if not variable.startswith(ENV_PREFIX) or variable[len(ENV_PREFIX) :].lower().partition("__")[0] not in names
    }


def _hear(process: subprocess.Popen[str], emit: Emit) -> list[str]:
    """Tells what is printed as it comes; the last lines of it."""
    last: deque[str] = deque(maxlen=100)
    assert process.stderr is not None
    try:
        for line in process.stderr:
            last.append(line)
            emit(events.note(line.rstrip()))
    except BaseException:
        process.terminate()
        raise
    return list(last)


def refuse_fsdp_alone(config: TrainConfig) -> None:
    """Sharding is over processes: with one there is nothing to shard over."""
    if config.fsdp and config.nproc == 1 and find_place() is None:
        raise ConfigError(
            "fsdp = True with nproc = 1",
            expected="several processes",
            remedy="Add --nproc 2 or more, or --no-fsdp; a checkpoint serves both",
        )
