"""How much of a model's own batched rate is left over HTTP, and how does LitServe do with the same model?

    python -m benchmarks.serve_http --out serve_http.json [--target unet] [--device cuda:0] [--rows 32] [--seconds 20]

Three arms in one run, one after the other, twice round: the model alone on resident batches; ``hotlap serve``; LitServe
with the same decoding, model and finishing, where it is installed. Clients send JPEG bytes over kept connections and
read JSON. A service must first give the model's own classes for a picture, or no number of it is printed. LitServe and
its wheels (pyzmq, and what FastAPI needs) may lie in a folder on PYTHONPATH; they are pure Python but for pyzmq,
pydantic-core.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import io
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # as in a service's worker; for every arm, before torch is imported
HEAD = "POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\n\r\n"


def jpegs(count: int, size: int) -> list[bytes]:
    """Pictures of drawn shapes, as a camera would send them."""
    import torch
    from PIL import Image

    from hotlap.data.drawn_shapes import draw_shapes

    images, _ = draw_shapes(torch.arange(count), size=size, seed=0, device=torch.device("cpu"))
    found = []
    for image in images:
        pixels = (image.clamp(0, 1) * 255).byte().permute(1, 2, 0).numpy()
        out = io.BytesIO()
        Image.fromarray(pixels).save(out, "JPEG", quality=90)
        found.append(out.getvalue())
    return found


def model_spec(given: argparse.Namespace) -> Any:
    from hotlap.measure.servable import ModelSpec

    options = json.loads(given.options)
    return ModelSpec(name="model", target=given.target, options=options, arm=given.arm, rows=given.rows)


def time_alone(given: argparse.Namespace, pictures: list[bytes]) -> dict[str, Any]:
    """Images a second of full batches that lie in host memory, through the model and back; and one right answer."""
    import torch

    from hotlap.measure.served_workload import WorkloadServable

    servable = WorkloadServable(model_spec(given))
    loaded = servable.load(given.device)
    decoded = servable.decode(pictures[0], {}, loaded.signature)
    batch = (decoded.rows[0].repeat(given.rows, 1, 1, 1),)
    answer = servable.finish(tuple(t[:1] for t in loaded.run(batch)), decoded.facts, {})
    began, runs = time.perf_counter(), 0
    while time.perf_counter() - began < given.seconds / 2:
        loaded.run(batch)
        runs += 1
    rate = runs * given.rows / (time.perf_counter() - began)
    del loaded
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    return {"images_per_s": rate, "answer": answer["classes"]}


@contextlib.contextmanager
def process(command: list[str], until: str) -> Iterator[str]:
    """A service in a process of its own, once it has said ``until``; gives all that it said by then."""
    with tempfile.TemporaryFile("w+") as log:  # a pipe that nobody reads would fill up and stop the service
        started = subprocess.Popen(command, stdout=log, stderr=log, text=True, start_new_session=True)
        try:
            while until not in (heard := _read(log)):
                if started.poll() is not None:
                    raise SystemExit(f"{command[:5]} ended with: {heard[-2000:]}")
                time.sleep(0.1)
            yield heard
        finally:
            started.send_signal(signal.SIGTERM)
            try:
                started.wait(60)
            except subprocess.TimeoutExpired:
                started.kill()
            with contextlib.suppress(ProcessLookupError):
                os.killpg(started.pid, signal.SIGKILL)  # LitServe leaves its own processes, which would keep the port


def _read(log: IO[str]) -> str:
    return os.pread(log.fileno(), 1 << 20, 0).decode(errors="replace")


@contextlib.contextmanager
def hotlap_serve(given: argparse.Namespace) -> Iterator[tuple[int, str]]:
    options = [f"--set=workload.{key}={value}" for key, value in json.loads(given.options).items()]
    command = [
        sys.executable,
        "-m",
        "hotlap",
        "serve",
        f"model={given.target}",
        "--port",
        "0",
        "--device",
        given.device,
    ]
    command += ["--batch", str(given.rows), "--queue-rows", str(8 * given.clients), "--threads", str(given.threads)]
    command += ["--no-tuned"] if not given.arm else []
    with process([*command, *options], "Ready:") as heard:
        found = re.search(r"127\.0\.0\.1:(\d+)", heard)
        assert found is not None
        yield int(found[1]), "/api/v1/segment?model=model"


@contextlib.contextmanager
def lit_serve(given: argparse.Namespace) -> Iterator[tuple[int, str]]:
    arguments = [
        f"--{name}={getattr(given, name)}" for name in ("target", "device", "rows", "options", "arm", "threads")
    ]
    command = [sys.executable, "-m", "benchmarks.serve_http", "--as-litserve", str(given.port), *arguments]
    with process(command, ""):
        yield given.port, "/predict"


class Client:
    """One kept connection."""

    def __init__(self, port: int, path: str, form: bool) -> None:
        self._port, self._path, self._form = port, path, form

    async def open(self) -> None:
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port)

    async def ask(self, picture: bytes) -> tuple[int, bytes]:
        body, kind = picture, "image/jpeg"
        if self._form:
            edge = b'--edge\r\nContent-Disposition: form-data; name="picture"; filename="a"\r\n\r\n'
            body, kind = edge + picture + b"\r\n--edge--\r\n", "multipart/form-data; boundary=edge"
        head = HEAD.format(path=self._path, kind=kind, length=len(body)).encode()
        self._writer.write(head + body)
        answer = await self._reader.readuntil(b"\r\n\r\n")
        length = re.search(rb"content-length: (\d+)", answer, re.IGNORECASE)
        assert length is not None, answer
        return int(answer.split(None, 2)[1]), await self._reader.readexactly(int(length[1]))


async def _first_answer(client: Client, picture: bytes) -> tuple[int, bytes]:
    """What the service says to the first picture, asked until it listens; loading may take a while."""
    until = time.perf_counter() + 120
    while True:
        try:
            await client.open()
            return await client.ask(picture)
        except (OSError, asyncio.IncompleteReadError):
            if time.perf_counter() > until:
                raise
            await asyncio.sleep(0.2)


async def load(port: int, path: str, form: bool, pictures: list[bytes], clients: int, seconds: float) -> dict[str, Any]:
    """Images a second, latencies and failures of so many clients who ask again as soon as they are answered."""
    status, answer = await _first_answer(Client(port, path, form), pictures[0])
    latencies: list[float] = []
    failures = 0
    end = time.perf_counter() + seconds + 2.0
    begin = end - seconds

    async def one(number: int) -> None:
        nonlocal failures
        client = Client(port, path, form)
        await client.open()
        turn = number
        while (asked := time.perf_counter()) < end:
            said, _ = await client.ask(pictures[turn % len(pictures)])
            now = time.perf_counter()
            turn += 1
            if begin <= now <= end:
                failures += said != 200
                latencies.append(now - asked)

    await asyncio.gather(*(one(number) for number in range(clients)))
    ordered = sorted(latencies)
    quantiles = {f"p{q}_ms": 1e3 * ordered[min(len(ordered) - 1, q * len(ordered) // 100)] for q in (50, 95, 99)}
    said = json.loads(answer)
    rate = (len(latencies) - failures) / seconds
    return {"images_per_s": rate, "failures": failures, **quantiles, "status": status, "answer": said.get("classes")}


def measure(given: argparse.Namespace) -> dict[str, Any]:
    size = json.loads(given.options).get("size", 128)
    pictures = jpegs(64, size)
    arms: dict[str, list[dict[str, Any]]] = {"alone": [], "hotlap": [], "litserve": []}
    services = {"hotlap": (hotlap_serve, False), "litserve": (lit_serve, True)}
    if not _has_litserve():
        services.pop("litserve")
        print("litserve is not installed: its arm is left out")
    for _ in range(given.rounds):
        arms["alone"].append(time_alone(given, pictures))
        for name, (start, form) in services.items():
            with start(given) as (port, path):
                arms[name].append(asyncio.run(load(port, path, form, pictures, given.clients, given.seconds)))
    return {"arms": arms, "settings": vars(given)}


def _has_litserve() -> bool:
    import importlib.util

    return importlib.util.find_spec("litserve") is not None


def show(found: dict[str, Any]) -> None:
    """A line for each arm; a service whose answer is not the model's gets no rate."""
    arms = found["arms"]
    alone = statistics.median(run["images_per_s"] for run in arms["alone"])
    print(f"alone     {alone:9.1f} images/s")
    for name in ("hotlap", "litserve"):
        if not arms[name]:
            continue
        if any(run["answer"] != arms["alone"][0]["answer"] or run["failures"] for run in arms[name]):
            print(f"{name:9} gave wrong answers or failures: {arms[name]}")
            continue
        rate = statistics.median(run["images_per_s"] for run in arms[name])
        p99 = statistics.median(run["p99_ms"] for run in arms[name])
        print(f"{name:9} {rate:9.1f} images/s, {100 * rate / alone:5.1f}% of alone, p99 {p99:.1f} ms")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--target", default="unet")
    parser.add_argument("--options", default="{}", help="of the target, as JSON")
    parser.add_argument("--device", default="cpu")
    parser.add_argument(
        "--arm", default="", help="as cuda:bf16+channels_last, which must be the stored tuned profile's"
    )
    parser.add_argument("--rows", type=int, default=16)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 4)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--port", type=int, default=8765, help="for LitServe")
    parser.add_argument("--as-litserve", type=int, default=0, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.as_litserve:
        from benchmarks.serve_litserve import run_litserve

        run_litserve(model_spec(given), given.device, given.rows, given.as_litserve)
        return
    found = measure(given)
    show(found)
    if given.out:
        given.out.write_text(json.dumps(found, indent=1, default=str) + "\n")


if __name__ == "__main__":
    main()
