"""How much of a model's own batched rate is left over HTTP, JPEG in and polygons out, and how does LitServe do?

    python -m benchmarks.serve_http --model hrnet --device cuda:0 --arm cuda:bf16+channels_last --out serve_hrnet.json

Arms of one run: ``resident``, full batches that lie on the device, through the model, waited for one by one; ``host``,
the same from host memory to host memory; ``hotlap``, ``hotlap serve``; ``litserve``, LitServe with the same decoding,
model and finishing, where it is installed. Pictures are drawn from a seed, 1024x1024. The network is trained on drawn
cells for a few seconds first: fresh weights would find noise, and finishing noise takes another time than finishing
objects. Several processes of clients send pictures over kept connections and ask again when they are answered. A
service must first find the objects that the model finds by itself, or no rate of it is printed. Beside a rate stands
what explains it: cores in use by the service's processes, seconds of each step and rows of batches, all while counted.

Needed beside torch, numpy, scipy, pillow and numba: fastapi, uvicorn, httptools, python-multipart, pydantic; for the
other arm litserve and pyzmq. They may lie in a folder on PYTHONPATH, put there by ``pip install --target``.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
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
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.serve_client import WARM_S, Client
from benchmarks.serve_watch import Moment, between, explain, look

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # as in a service's worker; for every arm, before torch is imported
NUM_PICTURES = 12
AGREE = 0.02
"""Counts and areas may differ by this share: other batches round otherwise."""
WARM_UP = "from hotlap.measure.servable import ModelSpec as S; from hotlap.segment.served import SegmentServable as V; "
WARM_UP += "V(S(name='m', target='cells')).warm_up()"


def draw_pictures(folder: Path, size: int) -> None:
    """JPEG files of drawn cells."""
    from PIL import Image

    from hotlap.data.drawn_cells import draw_cells

    for number in range(NUM_PICTURES):
        pixels, _ = draw_cells(1000 + number, size=size, seed=0)
        Image.fromarray(pixels).save(folder / f"{number:03d}.jpg", quality=90)


def train(given: argparse.Namespace, file: Path) -> dict[str, float]:
    """Writes weights after some seconds of training on drawn cells; steps taken and the last loss."""
    import torch

    from hotlap.device.seed import generator, seed_everything
    from hotlap.segment.cells import cells

    device = torch.device(given.device)
    seed_everything(0)
    workload = cells(model=given.model, width=given.width, size=given.train_size, batch=given.train_batch, lr=1e-3)
    model = workload.build_model().to(device, memory_format=torch.channels_last)
    optimizer = workload.optimizer(model)
    kind = torch.bfloat16 if device.type == "cuda" else None
    batches = [workload.make_batch(given.train_batch, device, generator(seed)) for seed in range(8)]
    until, steps = time.perf_counter() + given.train_s, 0
    while time.perf_counter() < until:
        with torch.autocast(device.type, dtype=kind, enabled=kind is not None):
            total, count = workload.loss(model, batches[steps % len(batches)])
        optimizer.zero_grad(set_to_none=True)
        (total / count).backward()
        optimizer.step()
        steps += 1
        loss = float(total.detach() / count)
    torch.save(model.state_dict(), file)
    return {"steps": steps, "loss": loss}


def model_spec(given: argparse.Namespace, weights: Path) -> Any:
    from hotlap.measure.servable import ModelSpec

    return ModelSpec(
        name="model", target="cells", options=_options(given), weights=str(weights), arm=given.arm, rows=given.rows
    )  # fmt: skip


def _options(given: argparse.Namespace) -> dict[str, Any]:
    return {"model": given.model, "size": given.size, **({"width": given.width} if given.width else {})}


def time_model(given: argparse.Namespace, weights: Path, pictures: list[bytes]) -> dict[str, Any]:
    """Images a second of the model alone, both ways, and what it finds in the first picture."""
    import torch

    from hotlap.tools.serve.plan import make_servable

    servable = make_servable(model_spec(given, weights))
    loaded = servable.load(given.device)
    decoded = servable.decode(pictures[0], {}, loaded.signature)
    answer = servable.finish(loaded.run(decoded.rows), decoded.facts, {})
    rows = [decoded.rows] * given.rows
    begun = time.perf_counter()
    servable.finish(loaded.run(decoded.rows), decoded.facts, {})
    one_s = time.perf_counter() - begun
    compute = loaded.resident(rows)
    found: dict[str, Any] = {
        "resident_images_per_s": _rate(compute, given.rows, given.seconds / 2),
        "host_images_per_s": _rate(partial(_there_and_back, loaded, rows), given.rows, given.seconds / 2),
        "one_picture_s": one_s,
        "answer": _summary(answer),
        "objects": [_find(servable, loaded, picture)["objects"] for picture in pictures],
    }
    del loaded, compute
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    return found


def _find(servable: Any, loaded: Any, picture: bytes) -> dict[str, float]:
    decoded = servable.decode(picture, {}, loaded.signature)
    return _summary(servable.finish(loaded.run(decoded.rows), decoded.facts, {}))


def _there_and_back(loaded: Any, rows: Any) -> None:
    loaded.begin(rows)()


def _rate(work: Any, rows: int, seconds: float) -> list[float]:
    """Images a second of each batch."""
    for _ in range(3):
        work()
    found, until = [], time.perf_counter() + seconds
    while (began := time.perf_counter()) < until:
        work()
        found.append(rows / (time.perf_counter() - began))
    return found


def _summary(answer: dict[str, Any]) -> dict[str, float]:
    objects = answer["objects"]
    points = sum(len(one["polygon"]) for one in objects)
    return {"objects": len(objects), "area": sum(one["metrics"]["area"] for one in objects), "points": points}


@dataclass(frozen=True)
class Running:
    """A service, and how it is asked."""

    pid: int
    port: int
    path: str
    form: str = ""
    """The field that pictures are sent in; '' sends them as the body."""
    has_metrics: bool = False

    def look(self) -> Moment:
        return look(self.pid, self.port if self.has_metrics else None)


@contextlib.contextmanager
def process(command: list[str], until: str = "") -> Iterator[tuple[int, str]]:
    """A service in a process of its own, once it has said ``until``; gives its id and all that it said by then."""
    with tempfile.TemporaryFile("w+") as log:  # a pipe that nobody reads would fill up and stop the service
        started = subprocess.Popen(command, stdout=log, stderr=log, text=True, start_new_session=True)
        try:
            while until not in (heard := os.pread(log.fileno(), 1 << 20, 0).decode(errors="replace")):
                if started.poll() is not None:
                    raise SystemExit(f"{command[:5]} ended with: {heard[-2000:]}")
                time.sleep(0.1)
            yield started.pid, heard
        finally:
            started.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                started.wait(30)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(started.pid, signal.SIGKILL)  # LitServe leaves its own processes, which would keep the port


@contextlib.contextmanager
def hotlap_serve(given: argparse.Namespace, weights: Path) -> Iterator[Running]:
    command = [sys.executable, "-m", "hotlap", "serve", "model=cells", "--weights", f"model={weights}"]
    command += ["--port", "0", "--device", given.device, "--batch", str(given.rows), "--desks", str(given.desks)]
    command += ["--queue-rows", str(8 * given.clients), "--deadline-s", "120", "--no-tuned"]
    command += ["--jobs", str(weights.with_name("jobs.sqlite")), *(["--arm", given.arm] if given.arm else [])]
    command += [f"--set=workload.{key}={value}" for key, value in _options(given).items()]
    with process(command, "Ready:") as (pid, heard):
        found = re.search(r"127\.0\.0\.1:(\d+)", heard)
        assert found is not None
        yield Running(pid, int(found[1]), "/api/v1/segment?model=model", has_metrics=True)


@contextlib.contextmanager
def lit_serve(given: argparse.Namespace, weights: Path) -> Iterator[Running]:
    names = ("model", "size", "width", "device", "rows", "arm", "lit_workers")
    settings = [f"--{name.replace('_', '-')}={getattr(given, name)}" for name in names]
    command = [sys.executable, "-m", "benchmarks.serve_http", "--as-litserve", str(given.port), *settings]
    with process([*command, "--weights", str(weights)]) as (pid, _):
        yield Running(pid, given.port, "/predict", "picture")


async def first_answer(asked: Running, picture: bytes) -> dict[str, Any]:
    """What the service finds in the first picture, asked until it listens; loading may take a while."""
    client, until = Client(asked.port, asked.path, asked.form), time.perf_counter() + 180
    while True:
        try:
            await client.open()
            status, body = await client.ask(picture)
            return {"status": status, **(_summary(json.loads(body)) if status == 200 else {"said": body.decode()})}
        except (OSError, asyncio.IncompleteReadError):
            if time.perf_counter() > until:
                raise
            await asyncio.sleep(0.2)


def load(given: argparse.Namespace, asked: Running, folder: Path) -> dict[str, Any]:
    """Rate and latencies under clients of several processes, begun together, and what the service did meanwhile."""
    each = [str(given.clients // given.client_processes)] * given.client_processes
    base = [sys.executable, "-m", "benchmarks.serve_client", str(asked.port), asked.path, asked.form]
    started = [
        subprocess.Popen([*base, n, str(given.seconds), str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        for n in each
    ]
    time.sleep(1.5)  # until all have started
    for one in started:
        assert one.stdin is not None
        one.stdin.write(b"\n")
        one.stdin.flush()
    time.sleep(WARM_S)
    before = asked.look()
    time.sleep(given.seconds)
    watched = between(before, asked.look())
    found = [json.loads(one.communicate(timeout=given.seconds + 120)[0]) for one in started]
    latencies = sorted(ms for one in found for ms in one["latencies_ms"])
    bad = sum(n for one in found for status, n in one["statuses"].items() if status != "200")
    at = {f"p{q}_ms": latencies[min(len(latencies) - 1, q * len(latencies) // 100)] for q in (50, 95, 99)}
    rate = {"images_per_s": len(latencies) / given.seconds, "failures": bad, **at}
    return {**rate, "watched": watched, "latencies_ms": latencies}


def measure(given: argparse.Namespace, folder: Path) -> dict[str, Any]:
    compiling = subprocess.Popen([sys.executable, "-c", WARM_UP])  # kernels land on disk for every later process
    weights = folder / "weights.pt"
    trained = train(given, weights)
    draw_pictures(folder, given.size)
    pictures = [file.read_bytes() for file in sorted(folder.glob("*.jpg"))]
    compiling.wait()
    alone = time_model(given, weights, pictures)
    services: dict[str, Any] = {"hotlap": hotlap_serve, "litserve": lit_serve}
    if not given.litserve or not _has_litserve():
        services.pop("litserve")
    arms: dict[str, Any] = {}
    for name, start in services.items():
        with start(given, weights) as asked:
            answer = asyncio.run(first_answer(asked, pictures[0]))
            arms[name] = {"answer": answer, **load(given, asked, folder)}
    return {"trained": trained, "alone": alone, "arms": arms}


def _has_litserve() -> bool:
    import importlib.util

    return importlib.util.find_spec("litserve") is not None


def agrees(answer: dict[str, Any], want: dict[str, float]) -> bool:
    """Whether a service found what the model finds by itself."""
    return answer.get("status") == 200 and all(
        abs(answer[name] - want[name]) <= max(1, AGREE * want[name]) for name in ("objects", "area")
    )


def show(found: dict[str, Any]) -> None:
    alone = found["alone"]
    own = statistics.median(alone["resident_images_per_s"])
    print(f"{found['trained']}; objects in the pictures: {alone['objects']}")
    print(f"resident  {own:8.1f} images/s; from host to host {statistics.median(alone['host_images_per_s']):.1f}")
    for name, arm in found["arms"].items():
        if arm["failures"] or not agrees(arm["answer"], alone["answer"]):
            print(f"{name:9} no rate: {arm['failures']} failures, first answer {arm['answer']}")
            continue
        rate, p50, p99 = arm["images_per_s"], arm["p50_ms"], arm["p99_ms"]
        print(
            f"{name:9} {rate:8.1f} images/s, {100 * rate / own:5.1f}% of resident, p50 {p50:.0f} ms, p99 {p99:.0f} ms"
        )
        for line in explain(arm["watched"]):
            print(f"          {line}")


def parse() -> argparse.Namespace:
    cores = os.cpu_count() or 4
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--model", default="hrnet", help="hrnet, unet, resunet-small, ma-resunet")
    parser.add_argument("--width", type=int, default=0, help="of the first level; 0 for the published one")
    parser.add_argument("--size", type=int, default=1024)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--arm", default="", help="as cuda:bf16+channels_last")
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--clients", type=int, default=64, help="connections in all")
    parser.add_argument("--client-processes", type=int, default=4)
    parser.add_argument("--desks", type=int, default=max(1, cores - 3))
    parser.add_argument("--seconds", type=float, default=12.0)
    parser.add_argument("--train-s", type=float, default=20.0)
    parser.add_argument("--train-size", type=int, default=256)
    parser.add_argument("--train-batch", type=int, default=16)
    parser.add_argument("--litserve", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--lit-workers", type=int, default=4)
    parser.add_argument("--port", type=int, default=8765, help="for LitServe")
    parser.add_argument("--as-litserve", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--weights", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    from hotlap.records.environment import capture

    given = parse()
    if given.as_litserve:
        from benchmarks.serve_litserve import run_litserve

        spec = model_spec(given, given.weights)
        run_litserve(spec, given.device, given.rows, given.lit_workers, given.as_litserve)
        return
    with tempfile.TemporaryDirectory() as folder:
        found = measure(given, Path(folder))
    show(found)
    if given.out:
        environment = dataclasses.asdict(capture())
        settings = {key: str(value) if isinstance(value, Path) else value for key, value in vars(given).items()}
        given.out.write_text(json.dumps({"settings": settings, "environment": environment, **found}) + "\n")


if __name__ == "__main__":
    main()
