"""How ``hotlap serve`` ends: what was accepted is answered or told, and no signal brings its insides to light."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request

import pytest

pytest.importorskip("fastapi")

MODEL = """
from torch import nn

def mlp():
    return nn.Linear(8, 3)
"""
QUESTION = {"inputs": [{"name": "input", "shape": [2, 8], "datatype": "FP32", "data": [0.5] * 16}]}
SERVED = "Served {} requests; 0 shed, 0 restarts of a worker."


class Served:
    """A service of its own session, with clients that wait for its only batch to be full."""

    def __init__(self, folder, *flags):
        (folder / "own.py").write_text(MODEL)
        command = [
            sys.executable,
            "-m",
            "hotlap",
            "serve",
            "own.py:mlp",
            "--input",
            "8",
            "--port",
            "0",
            "--device",
            "cpu",
        ]
        self.process = subprocess.Popen(
            [*command, "--no-tuned", *flags], cwd=folder, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            start_new_session=True,
        )  # fmt: skip
        heard = ""
        while "Ready:" not in heard:
            line = self.process.stderr.readline()
            assert line, heard
            heard += line
        self.address = re.search(r"http://127\.0\.0\.1:\d+", heard)[0]
        self.answers, self.clients = [], []

    def ask(self, num):
        """So many clients, all of them inside when it returns."""
        self.clients = [threading.Thread(target=self._ask) for _ in range(num)]
        for client in self.clients:
            client.start()
        while f'requests_inside{{model="mlp"}} {num}' not in self._get("/metrics"):
            assert not self.answers, "answered before the signal"

    def _ask(self):
        asked = urllib.request.Request(f"{self.address}/v2/models/mlp/infer", json.dumps(QUESTION).encode())
        try:
            with urllib.request.urlopen(asked) as answer:
                self.answers.append((answer.status, json.load(answer)["outputs"][0]["shape"]))
        except urllib.error.HTTPError as error:
            self.answers.append((error.code, json.load(error)["error"]))

    def _get(self, path):
        with urllib.request.urlopen(self.address + path) as answer:
            return answer.read().decode()

    def interrupt(self):
        os.killpg(self.process.pid, signal.SIGINT)  # as a terminal does it

    def end(self):
        """The exit code, and what was said since it was ready."""
        out, err = self.process.communicate(timeout=60)
        for client in self.clients:
            client.join(10)
        return self.process.returncode, out.strip(), err


@pytest.fixture
def serve(tmp_path):
    made = []

    def begin(*flags):
        made.append(Served(tmp_path, *flags))
        return made[-1]

    yield begin
    for each in made:
        each.process.kill()


@pytest.mark.timeout(240)
def test_two_interrupts_at_once_are_one_and_all_is_answered(serve):
    """``timeout -s INT`` sends one to the process and one to its group."""
    service = serve("--max-delay-ms", "2500")
    service.ask(2)
    service.process.send_signal(signal.SIGINT)
    time.sleep(0.05)
    service.interrupt()
    assert service.end() == (0, SERVED.format(2), "")
    assert service.answers == [(200, [2, 3])] * 2


@pytest.mark.timeout(240)
@pytest.mark.parametrize(("flags", "again"), [((), True), (("--drain-s", "1"), False)])
def test_a_second_interrupt_or_the_end_of_the_time_to_drain_refuses_what_still_waits(serve, flags, again):
    service = serve("--max-delay-ms", "10000", *flags)
    service.ask(2)
    sends_no_more = socket.create_connection(("127.0.0.1", int(service.address.rpartition(":")[2])))
    sends_no_more.sendall(b"POST /v2/models/mlp/infer HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 99\r\n\r\n{")
    time.sleep(0.2)
    began = time.monotonic()
    service.interrupt()
    if again:
        time.sleep(1.2)
        assert not service.answers
        service.interrupt()
    assert service.end() == (0, SERVED.format(2), "")
    assert time.monotonic() - began < 9, "it waited for the batch after all"
    assert [code for code, _ in service.answers] == [503, 503]
    assert all("the service is shutting down" in said for _, said in service.answers)


@pytest.mark.timeout(240)
def test_an_interrupt_while_it_is_ending_changes_nothing(serve):
    service = serve()
    for _ in range(200):
        if service.process.poll() is not None:
            break
        service.process.send_signal(signal.SIGINT)
        time.sleep(0.03)
    assert service.end() == (0, SERVED.format(0), "")
