"""Does a service keep its device busy where neither the model nor the pictures cost processor time?

    python -m benchmarks.serve_sleeping --rows 8 --batch-s 2 --in-flight 3

The model only sleeps, as a card would compute: launching a batch takes ``--launch-ms`` of its process, batches are
computed one after the other in ``--batch-s`` each, however many rows they have, and copying the outputs takes
``--copy-ms`` more. All the rest is real: HTTP, queue, shared memory and processes. Its own rate is rows / batch-s; the
service's is counted over whole batches, whose answers come together. ``--size`` makes pictures, and what goes through
shared memory, larger. With ``--profile`` the dearest functions of the door's loop
are printed.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from benchmarks.serve_client import Client
from benchmarks.serve_watch import between, explain, look

NAME = "sleeper"


class SleepingModel:
    """What a card with a model looks like from its process."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        from hotlap.measure.servable import Signature, TensorSpec

        shape = (3, settings["size"], settings["size"])
        self._settings, self._free_at = settings, 0.0
        self.signature = Signature(
            inputs=(TensorSpec(name="image", dtype="uint8", shape=shape),),
            outputs=(TensorSpec(name="output", dtype="float16", shape=(1, *shape[1:])),),
            rows=settings["rows"],
            arm="asleep",
        )

    def begin(self, parts: Sequence[Any]) -> Callable[[], Any]:
        import torch

        rows, (_, height, width) = sum(int(part[0].shape[0]) for part in parts), self.signature.inputs[0].shape
        time.sleep(self._settings["launch_ms"] / 1e3)
        self._free_at = done_at = max(time.monotonic(), self._free_at) + self._settings["batch_s"]

        def wait() -> Any:
            time.sleep(max(0.0, done_at - time.monotonic()) + self._settings["copy_ms"] / 1e3)
            return (torch.zeros(rows, 1, height, width, dtype=torch.float16),)

        return wait


class Sleeper:
    """The servable; nothing is decoded, and nothing is found."""

    threshold, is_heavy = 0.5, False

    def __init__(self, spec: Any) -> None:
        self._settings = spec.options

    def warm_up(self) -> None:
        return

    def answers(self, signature: Any) -> str:
        return "objects"

    def load(self, device: str) -> SleepingModel:
        return SleepingModel(self._settings)

    def decode(self, body: bytes, options: Mapping[str, Any], signature: Any) -> Any:
        import torch

        from hotlap.measure.servable import Decoded

        return Decoded((torch.empty(1, *signature.inputs[0].shape, dtype=torch.uint8),))

    def finish(self, out: Any, facts: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
        return {"objects": [], "shape": list(out[0].shape)}


def serve(given: argparse.Namespace) -> None:
    """The service, in this process, until it is ended."""
    import uvicorn

    from hotlap.measure.servable import ModelSpec
    from hotlap.tools.serve import Service, ServiceSettings, worker
    from hotlap.tools.serve.desk import ProcessDesks
    from hotlap.tools.serve.runner import ChildRunner
    from hotlap.web.app import AppSettings, create_app

    worker.IN_FLIGHT = given.in_flight
    options = {name: getattr(given, name) for name in ("rows", "size", "batch_s", "launch_ms", "copy_ms")}
    specs = [ModelSpec(name=NAME, target=NAME, options=options)]
    service = Service(
        {NAME: Sleeper(specs[0])},
        [ChildRunner("cpu", specs, Sleeper)],
        ServiceSettings(queue_rows=8 * given.clients, deadline_s=600, pool_threads=given.desks or 4),
        desk=ProcessDesks(given.desks, specs, Sleeper) if given.desks else None,
    )
    app = create_app(service, AppSettings(), lambda: print("Ready", flush=True))

    class Quiet(uvicorn.Server):
        """Ends without passing the signal on, so that the profile can be printed."""

        def handle_exit(self, sig: int, frame: FrameType | None) -> None:
            self.should_exit = True

    server = Quiet(uvicorn.Config(app, port=given.port, log_level="warning"))
    if not given.profile:
        server.run()
        return
    import cProfile
    import pstats

    profile = cProfile.Profile()
    profile.runcall(server.run)
    pstats.Stats(profile, stream=sys.stdout).sort_stats("tottime").print_stats(25)


async def load(given: argparse.Namespace) -> list[float]:
    """When each answer came, the first batches' left out."""
    came: list[float] = []
    until = time.perf_counter() + given.seconds
    body = b"\xff\xd8" + os.urandom(given.body_kb * 1024)

    async def one() -> None:
        client = Client(given.port, f"/api/v1/segment?model={NAME}", "")
        await client.open()
        while time.perf_counter() < until:
            status, said = await client.ask(body)
            assert status == 200, said
            came.append(time.perf_counter())

    await asyncio.gather(*(one() for _ in range(given.clients)))
    return sorted(at for at in came if at <= until)[2 * given.in_flight * given.rows :]


def measure(given: argparse.Namespace) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.serve_sleeping", "--as-service", *sys.argv[1:]]
    with tempfile.TemporaryFile("w+") as log:
        started = subprocess.Popen(command, stdout=log, stderr=log, text=True)
        try:
            while "Ready" not in (heard := os.pread(log.fileno(), 1 << 20, 0).decode()):
                if started.poll() is not None:
                    raise SystemExit(f"the service ended with: {heard[-2000:]}")
                time.sleep(0.1)
            before = look(started.pid, given.port)
            came = asyncio.run(load(given))
            watched = between(before, look(started.pid, given.port))
        finally:
            started.terminate()
            started.wait(60)
            said = os.pread(log.fileno(), 1 << 20, 0).decode()
    # The answers of a batch come together: from the first of one to the first of another are whole batches.
    firsts = [n for n in range(1, len(came)) if came[n] - came[n - 1] > given.batch_s / 4]
    rate = (firsts[-1] - firsts[0]) / (came[firsts[-1]] - came[firsts[0]])
    own = given.rows / given.batch_s
    return {"own_images_per_s": own, "images_per_s": rate, "share": rate / own, "watched": watched, "said": said}


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--batch-s", type=float, default=2.0, help="for a batch to be computed")
    parser.add_argument("--launch-ms", type=float, default=30.0)
    parser.add_argument("--copy-ms", type=float, default=10.0)
    parser.add_argument("--in-flight", type=int, default=3, help="batches with the device at a time")
    parser.add_argument("--size", type=int, default=256, help="side of the pictures that go through shared memory")
    parser.add_argument("--body-kb", type=int, default=64)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--desks", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--port", type=int, default=8766)
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--as-service", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--out", default="")
    return parser.parse_args()


def main() -> None:
    given = parse()
    if given.as_service:
        serve(given)
        return
    found = measure(given)
    print(f"{found['images_per_s']:.2f} images/s, {100 * found['share']:.1f}% of {found['own_images_per_s']:.2f}")
    print("\n".join(explain(found["watched"])))
    if given.profile:
        print(found["said"])
    if given.out:
        from hotlap.records.environment import capture

        environment = dataclasses.asdict(capture())
        Path(given.out).write_text(json.dumps({"settings": vars(given), "environment": environment, **found}) + "\n")


if __name__ == "__main__":
    main()
