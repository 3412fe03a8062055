"""A real worker process: it answers, it is killed, and what was accepted is answered all the same."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import signal
import subprocess
import sys
import time

import pytest
import torch
from serve_fakes import FakeServable

from hotlap.base.errors import TargetError, WorkerDied
from hotlap.device.seed import generator
from hotlap.measure.servable import ModelSpec
from hotlap.tools.serve import Service, ServiceSettings
from hotlap.tools.serve.plan import make_servable
from hotlap.tools.serve.runner import ChildRunner, LocalRunner

MODEL = """
from torch import nn

class Doubler(nn.Module):
    def __init__(self):
        super().__init__()
        self.one = nn.Parameter(nn.init.ones_(__import__("torch").empty(1)))

    def forward(self, x):
        if float(x.min()) < -100:
            raise ValueError("a row below -100")
        if float(x.max()) > 100:
            __import__("time").sleep(100)
        return x * 2 * self.one

def doubler():
    return Doubler()
"""


@pytest.fixture
def spec(tmp_path):
    (tmp_path / "doubler.py").write_text(MODEL)
    return ModelSpec(name="double", target=f"{tmp_path / 'doubler.py'}:doubler", inputs=("2",), rows=4)


@pytest.mark.timeout(240)
def test_a_killed_worker_loses_nothing(spec):
    runner = ChildRunner("cpu", [spec], make_servable)
    service = Service({"double": FakeServable()}, [runner], ServiceSettings(max_delay_s=0.001))
    service.start()
    assert service.wait_until_ready(200), service.status()
    assert [taken.name for taken in service.signature("double").inputs] == ["x"]

    async def clients():
        first = await service.answer("double", b"1 2 3")
        with pytest.raises(Exception, match="raised ValueError: a row below -100"):
            await service.answer("double", b"-101")
        os.kill(runner.pid, signal.SIGKILL)
        return first, await asyncio.gather(*(service.answer("double", str(i).encode()) for i in range(6)))

    first, rest = asyncio.run(clients())
    assert first["values"] == [2, 4, 6]
    assert [answer["values"] for answer in rest] == [[2 * i] for i in range(6)]
    assert service.counters.value("worker_deaths_total", device="cpu") == 1
    batches, launched = (service.counters.value(name) for name in ("batch_seconds", "launch_seconds"))
    assert 2 <= launched < batches, "the child tells of each batch that it answered, and not of those that it did not"
    child = runner.pid
    assert service.drain(20)
    with pytest.raises(ProcessLookupError):
        os.kill(child, 0)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.timeout(240)
def test_a_recorded_model_answers_batches_in_flight_from_its_process():
    options = {"width": 4, "size": 32}
    spec = ModelSpec(name="net", target="unet", options=options, arm="cuda:graph", rows=4)
    plain = LocalRunner("cpu", {"net": make_servable(dataclasses.replace(spec, arm=""))})
    runner = ChildRunner("cuda:0", [spec], make_servable)
    try:
        plain.start()
        assert runner.start()["net"].arm == "cuda:graph"
        batches = [torch.rand(rows, 3, 32, 32, generator=generator(i)) for i, rows in enumerate((4, 3, 4, 1, 2))]
        asked = [runner.begin("net", [(row[None],) for row in batch]) for batch in batches]
        for batch, told in zip(batches, asked, strict=True):
            (want,) = plain.begin("net", [(batch,)]).result()
            torch.testing.assert_close(told.result(timeout=60)[0], want, rtol=1e-3, atol=1e-3)
    finally:
        runner.stop()


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_worker_that_hangs_or_cannot_load_is_told(tmp_path, spec):
    runner = ChildRunner("cpu", [spec], make_servable, run_s=0.5)
    try:
        runner.start()
        with pytest.raises(
            WorkerDied, match=r"device 'cpu' ended by signal SIGKILL while running 'double', which took"
        ):
            runner.run("double", (torch.full((1, 2), 101.0),))
    finally:
        runner.stop()
    bad = ModelSpec(name="double", target=f"{tmp_path / 'doubler.py'}:doubler", inputs=())
    broken = ChildRunner("cpu", [bad], make_servable)
    try:
        with pytest.raises(TargetError, match="whose input is not known"):
            broken.start()
    finally:
        broken.stop()


HURRIED = """
import sys
from hotlap.measure.servable import ModelSpec
from hotlap.tools.serve.plan import make_servable
from hotlap.tools.serve.runner import ChildRunner

if __name__ == "__main__":
    spec = ModelSpec(name="double", target=sys.argv[1], inputs=("2",), rows=4)
    kept = ChildRunner("cpu", [spec], make_servable)
    kept.start()
    print(kept.pid)
"""


FORKS = """
import os, pathlib, signal, time
from torch import nn

class Forking(nn.Linear):
    def forward(self, x):
        if float(x.max()) > 100:
            if (pid := os.fork()) == 0:
                time.sleep(600)
            pathlib.Path(__file__).with_name("left").write_text(str(pid))
            os.kill(os.getpid(), signal.SIGKILL)
        return super().forward(x)

def forking():
    return Forking(2, 2)
"""


@pytest.mark.timeout(240)
def test_the_death_of_a_worker_is_told_at_once_though_a_child_that_it_forked_lives(tmp_path):
    (tmp_path / "forks.py").write_text(FORKS)
    spec = ModelSpec(name="forks", target=f"{tmp_path / 'forks.py'}:forking", inputs=("2",), rows=4)
    runner = ChildRunner("cpu", [spec], make_servable, run_s=100)
    runner.start()
    try:
        began = time.monotonic()
        with pytest.raises(WorkerDied, match=r"ended by signal SIGKILL while running 'forks'\. Send it again"):
            runner.run("forks", (torch.full((1, 2), 1000.0),))
        assert time.monotonic() - began < 50
    finally:
        os.kill(int((tmp_path / "left").read_text()), signal.SIGKILL)
        runner.stop()


@pytest.mark.timeout(240)
def test_a_door_that_ends_without_stopping_its_worker_takes_it_along(spec, tmp_path):
    (tmp_path / "hurried.py").write_text(HURRIED)
    command = [sys.executable, str(tmp_path / "hurried.py"), spec.target]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    with pytest.raises(ProcessLookupError):
        os.kill(int(done.stdout), 0)
