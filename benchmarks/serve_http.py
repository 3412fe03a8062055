"""How much of a model's own batched rate is left over HTTP, JPEG in and polygons out, and how does LitServe do?

    python -m benchmarks.serve_http --model hrnet --device cuda:0 --arm cuda:bf16+channels_last+graph --out hrnet.json

Arms of one run: ``resident``, full batches that lie on the device, through the model, waited for one by one; ``host``,
the same from host memory to host memory; ``hotlap``, ``hotlap serve``; ``litserve``, LitServe with the same decoding,
model and finishing, where it is installed. Pictures are drawn from a seed, 1024x1024. The network is trained on drawn
cells for a few seconds first: fresh weights would find noise, and finishing noise takes another time than finishing
objects. Several processes of clients send pictures over kept connections and ask again when they are answered. A
service must first find the objects that the model finds by itself, or no rate of it is printed. Beside a rate stands
what explains it: cores in use by the service's processes, seconds of each step, rows of batches and the card's clock,
all while counted. An arm with ``graph`` must find what it finds without. Each phase is said as it begins, and the file
is written after each arm, so that a run that is ended early keeps what it had.

Needed beside torch, numpy, scipy, pillow and numba: fastapi, uvicorn, httptools, python-multipart, pydantic; for the
other arm litserve and pyzmq. They may lie in a folder on PYTHONPATH, put there by ``pip install --target``.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.serve_arms import START_S, Running, ServiceFailed, hotlap_serve, lit_serve
from benchmarks.serve_client import WARM_S, Client
from benchmarks.serve_watch import CardWatch, between, explain, explain_card

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # as in a service's worker; for every arm, before torch is imported
BEGAN = time.perf_counter()
NUM_PICTURES = 12
NUM_LAUNCHES = 10
AGREE = 0.02
"""Counts and areas may differ by this share: other batches round otherwise."""
WARM_UP = "from hotlap.measure.servable import ModelSpec as S; from hotlap.segment.served import SegmentServable as V; "
WARM_UP += "V(S(name='m', target='cells')).warm_up()"


def say(text: str) -> None:
    """Prints a line with the seconds since the start, at once: a run may be watched, or ended early."""
    print(f"[{time.perf_counter() - BEGAN:6.1f} s] {text}", flush=True)


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
    """Images a second of the model alone, both ways, and what it finds in the pictures."""
    from hotlap.tools.serve.plan import make_servable

    want = _unrecorded_answer(given, weights, pictures[0])
    servable = make_servable(model_spec(given, weights))
    say(f"loading the model alone, arm {given.arm or 'plain'}")
    loaded = servable.load(given.device)
    answer = _find(servable, loaded, pictures[0])
    if want is not None and not agrees({"status": 200, **answer}, want):
        raise SystemExit(f"the recorded model finds {answer}, without the recording {want}")
    began = time.perf_counter()
    objects = [_find(servable, loaded, picture)["objects"] for picture in pictures]
    one_s = (time.perf_counter() - began) / len(pictures)
    say(f"timing it for {given.seconds:g} s, resident and from host to host")
    rows = [servable.decode(pictures[0], {}, loaded.signature).rows] * given.rows
    with CardWatch(given.device) as watch:
        resident = _rate(loaded.resident(rows), given.rows, given.seconds / 2)
        host = _rate(lambda: loaded.begin(rows)(), given.rows, given.seconds / 2)
    return {
        "resident_images_per_s": resident,
        "host_images_per_s": host,
        "launch_s": _launches(loaded, rows[:1]),
        "card": watch.found(),
        "one_picture_s": one_s,
        "answer": answer,
        "objects": objects,
    }


def _unrecorded_answer(given: argparse.Namespace, weights: Path, picture: bytes) -> dict[str, float] | None:
    """What a recorded model finds without its recording; None where nothing is recorded."""
    from hotlap.measure.arms import parse_arm
    from hotlap.tools.serve.plan import make_servable

    if not given.arm or not parse_arm(given.arm).graph:
        return None
    plain = dataclasses.replace(parse_arm(given.arm), graph=False).name
    say(f"asking the model without its recording, arm {plain}")
    servable = make_servable(dataclasses.replace(model_spec(given, weights), arm=plain, rows=1))
    return _find(servable, servable.load(given.device), picture)


def _find(servable: Any, loaded: Any, picture: bytes) -> dict[str, float]:
    decoded = servable.decode(picture, {}, loaded.signature)
    return _summary(servable.finish(loaded.run(decoded.rows), decoded.facts, {}))


def _launches(loaded: Any, rows: Any) -> list[float]:
    """Seconds until the host has launched a pass over one row, which a card computes faster than it is launched."""
    found = []
    for _ in range(NUM_LAUNCHES):
        began = time.perf_counter()
        wait = loaded.begin(rows)
        found.append(time.perf_counter() - began)
        wait()
    return found


def _rate(work: Callable[[], Any], rows: int, seconds: float) -> list[float]:
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


async def first_answer(asked: Running, picture: bytes) -> dict[str, Any]:
    """What the service finds in the first picture, asked until it listens; loading may take a while."""
    client = Client(asked.port, asked.path, asked.form)
    async with asyncio.timeout(START_S):
        while True:
            try:
                await client.open()
                status, body = await client.ask(picture)
                return {"status": status, **(_summary(json.loads(body)) if status == 200 else {"said": body.decode()})}
            except (OSError, asyncio.IncompleteReadError):
                asked.started.check()
                await asyncio.sleep(0.2)


def load(given: argparse.Namespace, asked: Running, folder: Path) -> dict[str, Any]:
    """Rate and latencies under clients of several processes, begun together, and what the service did meanwhile."""
    each = str(given.clients // given.client_processes)
    base = [sys.executable, "-m", "benchmarks.serve_client", str(asked.port), asked.path, asked.form]
    command, pipe = [*base, each, str(given.seconds), str(folder)], subprocess.PIPE
    started = [subprocess.Popen(command, stdin=pipe, stdout=pipe) for _ in range(given.client_processes)]
    try:
        time.sleep(1.5)  # until all have started
        for one in started:
            assert one.stdin is not None
            one.stdin.write(b"\n")
            one.stdin.flush()
        time.sleep(WARM_S)
        before = asked.look()
        with CardWatch(given.device) as watch:
            time.sleep(given.seconds)
        watched = {**between(before, asked.look()), "card": watch.found()}
        heard = [one.communicate(timeout=given.seconds + 120)[0] for one in started]
    finally:
        for one in started:
            one.kill()  # does nothing to one that has ended
            one.wait()
    if any(one.returncode for one in started):
        asked.started.check()
        raise ServiceFailed("it closed a client's connection")
    return {**_rates([json.loads(text) for text in heard], given.seconds), "watched": watched}


def _rates(found: list[dict[str, Any]], seconds: float) -> dict[str, Any]:
    """What all clients together saw."""
    latencies = sorted(ms for one in found for ms in one["latencies_ms"])
    bad = sum(n for one in found for status, n in one["statuses"].items() if status != "200")
    if not latencies:
        raise ServiceFailed(f"it answered nothing within {seconds:g} s, and {bad} requests failed")
    at = {f"p{q}_ms": latencies[min(len(latencies) - 1, q * len(latencies) // 100)] for q in (50, 95, 99)}
    return {"images_per_s": len(latencies) / seconds, "failures": bad, **at, "latencies_ms": latencies}


def measure(given: argparse.Namespace, folder: Path, save: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    """All arms, one after the other; ``save`` is handed what is known after each."""
    weights = folder / "weights.pt"
    say(f"training {given.model} for {given.train_s:g} s, while kernels for outlines are compiled")
    compiling = subprocess.Popen([sys.executable, "-c", WARM_UP])  # kernels land on disk for every later process
    try:
        found: dict[str, Any] = {"trained": train(given, weights)}
        draw_pictures(folder, given.size)
        say(f"trained: {found['trained']}; waiting for the compiler")
        compiling.wait()
    finally:
        compiling.kill()
        compiling.wait()
    pictures = [file.read_bytes() for file in sorted(folder.glob("*.jpg"))]
    found |= {"alone": time_model(given, weights, pictures), "arms": {}}
    _give_back_memory()
    show_alone(found["alone"])
    save(found)
    services: dict[str, Any] = {"hotlap": hotlap_serve, "litserve": lit_serve}
    if not given.litserve or not _has_litserve():
        services.pop("litserve")
    for name, start in services.items():
        found["arms"][name] = serve(given, name, start, weights, pictures[0])
        failed = []
        while name == "litserve" and "error" in found["arms"][name] and given.lit_workers > 1:
            # Each of its workers has a model of its own, and so many may not fit: it gets another try with fewer.
            failed.append({"workers": given.lit_workers, **found["arms"][name]})
            say(f"{name}: no start with {given.lit_workers} workers: {found['arms'][name]['error'][:300]}")
            given.lit_workers //= 2
            found["arms"][name] = serve(given, name, start, weights, pictures[0])
        if name == "litserve":
            found["arms"][name] |= {"workers": given.lit_workers, "failed_before": failed}
        show_arm(name, found["arms"][name], found["alone"])
        save(found)
    return found


def _give_back_memory() -> None:
    import gc

    import torch

    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def serve(given: argparse.Namespace, name: str, start: Any, weights: Path, picture: bytes) -> dict[str, Any]:
    """A service's first answer and its rate under load; or why it has none, which costs the other arms nothing."""
    say(f"{name}: starting")
    found: dict[str, Any] = {}
    try:
        with start(given, _options(given), weights) as asked:
            answer = asyncio.run(first_answer(asked, picture))
            say(f"{name}: {given.clients} clients for {WARM_S + given.seconds:g} s")
            found = {"answer": answer, **load(given, asked, weights.parent)}
            say(f"{name}: stopping")
    except (ServiceFailed, OSError, subprocess.TimeoutExpired) as error:
        found["fault_at_its_end" if found else "error"] = f"{type(error).__name__}: {error}"
    return found


def _has_litserve() -> bool:
    import importlib.util

    return importlib.util.find_spec("litserve") is not None


def agrees(answer: dict[str, Any], want: dict[str, float]) -> bool:
    """Whether a service found what the model finds by itself."""
    return answer.get("status") == 200 and all(
        abs(answer[name] - want[name]) <= max(1, AGREE * want[name]) for name in ("objects", "area")
    )


def show_alone(alone: dict[str, Any]) -> None:
    own, host = (statistics.median(alone[f"{name}_images_per_s"]) for name in ("resident", "host"))
    print(f"objects in the pictures: {alone['objects']}")
    print(f"resident  {own:8.1f} images/s; from host to host {host:.1f}; ", end="")
    print(f"the host launches a pass in {1e3 * statistics.median(alone['launch_s']):.1f} ms", flush=True)
    for line in explain_card(alone["card"]):
        print(f"          {line}", flush=True)


def show_arm(name: str, arm: dict[str, Any], alone: dict[str, Any]) -> None:
    if "error" in arm or arm["failures"] or not agrees(arm["answer"], alone["answer"]):
        why = arm.get("error") or f"{arm['failures']} failures, first answer {arm['answer']}"
        print(f"{name:9} no rate: {why}", flush=True)
        return
    rate, p50, p99 = arm["images_per_s"], arm["p50_ms"], arm["p99_ms"]
    share = 100 * rate / statistics.median(alone["resident_images_per_s"])
    print(f"{name:9} {rate:8.1f} images/s, {share:5.1f}% of resident, p50 {p50:.0f} ms, p99 {p99:.0f} ms")
    for line in [*explain(arm["watched"]), *([arm["fault_at_its_end"]] if "fault_at_its_end" in arm else [])]:
        print(f"          {line}", flush=True)


def parse() -> argparse.Namespace:
    cores = os.cpu_count() or 4
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--model", default="hrnet", help="hrnet, unet, resunet-small, ma-resunet")
    parser.add_argument("--width", type=int, default=0, help="of the first level; 0 for the published one")
    parser.add_argument("--size", type=int, default=1024)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--arm", default="", help="as cuda:bf16+channels_last+graph; of every arm of the run")
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
    parser.add_argument("--as-litserve", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--weights", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args()


def saving(given: argparse.Namespace) -> Callable[[dict[str, Any]], None]:
    """The call that writes what is known to the file that was asked for, whole or not at all."""
    from hotlap.records.environment import capture

    environment = dataclasses.asdict(capture())
    settings = {key: str(value) if isinstance(value, Path) else value for key, value in vars(given).items()}

    def save(found: dict[str, Any]) -> None:
        if given.out:
            beside = given.out.with_name(given.out.name + ".part")
            beside.write_text(json.dumps({"settings": settings, "environment": environment, **found}) + "\n")
            beside.replace(given.out)

    return save


def main() -> None:
    given = parse()
    if given.as_litserve:
        from benchmarks.serve_litserve import run_litserve

        spec = model_spec(given, given.weights)
        run_litserve(spec, given.device, given.rows, given.lit_workers, given.as_litserve)
        return
    # As after Ctrl-C: services and clients are ended, which a signal's own way would leave running.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    with tempfile.TemporaryDirectory() as folder:
        found = measure(given, Path(folder), saving(given))
    say("done")
    if "error" in found["arms"]["hotlap"]:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
