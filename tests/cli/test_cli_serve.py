"""``hotlap serve`` as a user starts and stops it."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import urllib.request

import pytest

MODEL = """
from torch import nn

def mlp():
    return nn.Sequential(nn.Linear(8, 4), nn.Tanh(), nn.Linear(4, 3))
"""
QUESTION = {"inputs": [{"name": "input", "shape": [2, 8], "datatype": "FP32", "data": [0.5] * 16}]}


def run_cli(arguments, capsys):
    from hotlap.cli.main import run

    code = run(arguments)
    told = capsys.readouterr()
    return code, told.out, told.err


def test_a_dry_run_shows_the_settings_and_serves_nothing(capsys):
    code, out, _ = run_cli(
        ["serve", "unet", "a=b:c", "--input", "a=4x4", "--batch", "3", "--dry-run", "--json"], capsys
    )
    config = json.loads(out)["config"]
    assert (code, config["models"], config["batch"], config["host"]) == (0, ["unet", "a=b:c"], 3, "127.0.0.1")


def test_a_dry_run_lists_the_models_and_refuses_a_name_that_stands_for_none(capsys):
    _, out, _ = run_cli(["serve", "unet", "a=b:c", "--input", "a=4x4", "--dry-run", "--json"], capsys)
    assert json.loads(out)["plan"] == ["model      unet: unet, no weights", "model      a: b:c, input 4x4, no weights"]
    code, out, err = run_cli(["serve", "unte", "--dry-run"], capsys)
    assert (code, out) == (2, "") and "unknown target 'unte'" in err and "'unet'" in err


def test_a_dry_run_does_not_show_the_token(capsys, monkeypatch):
    monkeypatch.setenv("HOTLAP_TOKEN", "s3cret")
    for flags in ([], ["--json"]):
        code, out, err = run_cli(["serve", "unet", "--host", "0.0.0.0", "--dry-run", *flags], capsys)
        assert (code, "s3cret" in out + err, "set, not shown" in out) == (0, False, True), out


def test_the_address_of_ipv6_has_its_brackets():
    from hotlap.web.server import address_of

    assert (address_of("::1", 80), address_of("127.0.0.1", 80)) == ("http://[::1]:80", "http://127.0.0.1:80")


def test_without_a_token_only_this_machine_may_be_served(capsys):
    code, _, err = run_cli(["serve", "unet", "--host", "0.0.0.0"], capsys)
    assert code == 2 and "host = '0.0.0.0' can be reached by others" in " ".join(err.split())


def test_a_port_that_is_taken_is_told_before_anything_is_loaded(capsys):
    pytest.importorskip("fastapi")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, _, err = run_cli(["serve", "unet", "--port", str(port)], capsys)
    assert code == 4 and f"port = {port}" in " ".join(err.split())


def test_answers_on_a_kept_connection_do_not_wait_for_the_client_to_confirm_their_head():
    pytest.importorskip("fastapi")
    from hotlap.web.server import _listen

    with _listen("127.0.0.1", 0) as door, socket.create_connection(door.getsockname()):
        taken, _ = door.accept()
        with taken:
            assert taken.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_connections_that_never_send_a_request_are_looked_for(capsys, monkeypatch, tmp_path):
    pytest.importorskip("fastapi")
    import uvicorn

    (tmp_path / "own.py").write_text(MODEL)
    monkeypatch.chdir(tmp_path)
    ran = []
    monkeypatch.setattr(uvicorn.Server, "run", lambda server, sockets: ran.append(server.config))
    run_cli(["serve", "own.py:mlp", "--input", "8", "--port", "0", "--device", "cpu"], capsys)
    assert ran[0].callback_notify is not None and ran[0].timeout_notify == 5


def test_without_the_extra_the_error_names_it(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "fastapi", None)
    code, _, err = run_cli(["serve", "unet"], capsys)
    assert code == 4 and "pip install 'hotlap[serve]'" in " ".join(err.split())


@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("mlp", "gives a plain Sequential, whose input is not known. Say it with --input, as in --input 3x224x224."),
        ("Broken", "model 'Broken' raised ValueError while it was loaded: no such layer (OWN:8)."),
    ],
)
def test_a_model_that_cannot_be_loaded_is_a_wrong_request_with_its_remedy(tmp_path, target, words):
    pytest.importorskip("fastapi")
    own = tmp_path / "own.py"
    own.write_text(
        MODEL + "class Broken(nn.Module):\n    def forward(self, x):\n        raise ValueError('no such layer')\n"
    )
    command = [sys.executable, "-m", "hotlap", "serve", f"own.py:{target}", "--port", "0", "--device", "cpu"]
    command += ["--input", "8"] * (target == "Broken")
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=200, check=False)
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    assert words.replace("OWN", str(own)) in " ".join(done.stderr.split())


@pytest.mark.timeout(240)
def test_it_serves_until_it_is_told_to_stop_and_answers_what_it_took(tmp_path):
    pytest.importorskip("fastapi")
    (tmp_path / "own.py").write_text(MODEL)
    command = [sys.executable, "-m", "hotlap", "serve", "own.py:mlp", "--input", "8", "--port", "0", "--device", "cpu"]
    process = subprocess.Popen(
        [*command, "--max-delay-ms", "1500"], cwd=tmp_path, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip
    try:
        heard = ""
        for line in process.stderr:
            heard += line
            if "Ready:" in heard:
                break
        address = re.search(r"http://127\.0\.0\.1:\d+", heard)
        assert address and "mlp (cpu, batches of 16 rows)" in " ".join(heard.split()), heard
        answers = []

        def ask():
            url = f"{address[0]}/v2/models/mlp/infer"
            with urllib.request.urlopen(urllib.request.Request(url, json.dumps(QUESTION).encode())) as answer:
                answers.append(json.load(answer)["outputs"][0]["shape"])

        ask()
        waiting = [threading.Thread(target=ask) for _ in range(3)]
        for thread in waiting:
            thread.start()
        while 'requests_inside{model="mlp"} 3' not in urllib.request.urlopen(f"{address[0]}/metrics").read().decode():
            assert len(answers) < 4, "all were answered before the signal"
        os.killpg(process.pid, signal.SIGTERM)  # as systemd does it: to the workers, too
        for thread in waiting:
            thread.join(60)
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert (answers, process.returncode) == ([[2, 3]] * 4, 0), (out, err)
    assert "Served 4 requests; 0 shed, 0 restarts" in out


@pytest.mark.timeout(240)
def test_a_service_with_processes_that_decode_says_nothing_of_its_own_inside_when_it_ends(tmp_path):
    """What is kept from the garbage collector was not taken down: an extension printed a page of what had leaked."""
    pytest.importorskip("fastapi")
    pytest.importorskip("PIL")
    command = [sys.executable, "-m", "hotlap", "serve", "cells", "--port", "0", "--device", "cpu", "--desks", "1"]
    command += ["--set=workload.model=unet", "--set=workload.size=64", "--batch", "2", "--no-tuned"]
    process = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        ready = next((line for line in process.stderr if "Ready: cells" in line), "")
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=100)
    finally:
        process.kill()
    assert ready and process.returncode == 0
    assert err == "" and out.strip() == "Served 0 requests; 0 shed, 0 restarts of a worker."
