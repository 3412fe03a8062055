"""Does a service lose a request or grow, when for minutes everything happens to it at once?

    python -m benchmarks.serve_soak --minutes 10 --out results/serve_soak_2core_202611.json

Clients send good pictures, whose objects are known, and bad ones; some hang or leave; floods overflow the queue; a
process of the service (the device's, or one that decodes and finishes) is killed again and again; jobs are begun, and
half way the service is told to stop, and started again on the same file of jobs. Every request must be answered
rightly or refused by name; every job must end with every file done; memory and open files of the service must not
grow. Writes JSON, and a picture of the memory beside it. Ends with 1 where something did not hold.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import io
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from benchmarks.serve_client import Client

SEGMENT = "/api/v1/segment?model=model"
REFUSALS = (429, 503, 504)
SETTLE_S = 45.0
"""Of each life of the service that memory is not judged in: allocators and caches fill."""
MOST_GROWTH = {"door_mb": 0.05, "fds": 0.25}
"""Of the door's memory and open files, from the middle to the end of a life; clients that are connected are files."""
BAD = {
    "text": (b"not a picture", 422), "empty": (b"", 422), "gif": (b"GIF89a broken", 422),
    "cut": (b"", 422), "threshold": (b"", 400), "model": (b"", 404), "large": (b"", 413),
}  # fmt: skip


@dataclass
class Tally:
    """What has happened."""

    good: Counter[str] = field(default_factory=Counter)
    bad: Counter[str] = field(default_factory=Counter)
    lost: list[str] = field(default_factory=list)
    kills: list[dict[str, Any]] = field(default_factory=list)
    jobs: list[str] = field(default_factory=list)
    latencies_ms: list[float] = field(default_factory=list)
    memory: list[dict[str, Any]] = field(default_factory=list)


class House:
    """The service, started and started again."""

    def __init__(self, folder: Path, port: int) -> None:
        self.folder, self.port, self.life = folder, port, 0
        self.up = asyncio.Event()
        self.process: subprocess.Popen[bytes] | None = None
        self.log = open(folder / "service.log", "ab")  # noqa: SIM115 - it lives as long as the soak

    async def start(self) -> None:
        command = [sys.executable, "-m", "hotlap", "serve", "model=cells", "--weights", f"model={self.folder / 'w.pt'}"]
        command += ["--set=workload.model=unet", "--set=workload.size=64", "--batch", "4", "--queue-rows", "24"]
        command += ["--port", str(self.port), "--desks", "1", "--no-tuned", "--device", "cpu", "--max-body-mb", "4"]
        command += ["--jobs", str(self.folder / "jobs.sqlite"), "--deadline-s", "120", "--drain-s", "60"]
        self.process = subprocess.Popen(command, stdout=self.log, stderr=self.log)
        self.life += 1
        await self.wait_until_ready()
        self.up.set()

    async def wait_until_ready(self) -> None:
        until = time.monotonic() + 300
        while time.monotonic() < until:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError, ValueError):
                if (await get(self.port, "/v2/health/ready"))[0] == 200:
                    return
            assert self.process is not None and self.process.poll() is None, "the service ended"
            await asyncio.sleep(0.5)
        raise SystemExit("the service did not become ready")

    async def stop(self) -> int:
        assert self.process is not None
        self.up.clear()
        self.process.send_signal(signal.SIGTERM)
        return await asyncio.to_thread(self.process.wait, 120)

    def parts(self) -> list[psutil.Process]:
        """The processes that models and desks run in."""
        assert self.process is not None
        children = psutil.Process(self.process.pid).children()
        return [child for child in children if "spawn_main" in " ".join(child.cmdline())]


async def get(port: int, path: str, method: str = "GET", body: bytes = b"", kind: str = "") -> tuple[int, bytes]:
    """Status and body over a connection of its own."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 24)
    try:
        head = f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\nContent-Length: {len(body)}\r\n"
        writer.write((head + (f"Content-Type: {kind}\r\n" if kind else "") + "\r\n").encode() + body)
        answer = await reader.read()
    finally:
        writer.close()
    head_bytes, _, rest = answer.partition(b"\r\n\r\n")
    return int(head_bytes.split(None, 2)[1]), rest


def prepare(folder: Path) -> tuple[list[bytes], list[int]]:
    """Weights that find something, pictures, and how many objects the model finds in each by itself."""
    import torch
    from PIL import Image

    from hotlap.data.drawn_cells import draw_cells
    from hotlap.measure.servable import ModelSpec
    from hotlap.segment.nets import build_net
    from hotlap.segment.served import SegmentServable

    torch.manual_seed(0)
    net = build_net("unet", maps=2, width=2).eval()
    drawn = [draw_cells(n, size=48 + 12 * n, seed=0)[0] for n in range(8)]
    with torch.no_grad():
        pixels = torch.from_numpy(drawn[4]).permute(2, 0, 1)[None] / 255
        net.head.weight *= 4 / net(pixels).std()
        net.head.bias -= net(pixels).mean((0, 2, 3))
    torch.save(net.state_dict(), folder / "w.pt")
    options = {"model": "unet", "size": 64}
    servable = SegmentServable(ModelSpec(name="m", target="cells", options=options, weights=str(folder / "w.pt")))
    loaded = servable.load("cpu")
    files, counts = [], []
    for picture in drawn:
        out = io.BytesIO()
        Image.fromarray(picture).save(out, "PNG")
        files.append(out.getvalue())
        decoded = servable.decode(files[-1], {}, loaded.signature)
        counts.append(len(servable.finish(loaded.run(decoded.rows), decoded.facts, {})["objects"]))
    return files, counts


class Soak:
    """Everything that goes on at once."""

    def __init__(self, house: House, files: list[bytes], counts: list[int], until: float) -> None:
        self.house, self.files, self.counts, self.until = house, files, counts, until
        self.tally, self.draw = Tally(), random.Random(0)

    def goes_on(self) -> bool:
        return time.monotonic() < self.until

    async def ask_good(self, number: int) -> None:
        """One good request: its objects are right, or it is refused by name; anything else is a loss."""
        began, life = time.monotonic(), self.house.life
        try:
            client = Client(self.house.port, SEGMENT, "")
            await client.open()
            try:
                status, body = await asyncio.wait_for(client.ask(self.files[number]), 150)
            finally:
                client.close()
        except ConnectionRefusedError:
            self.tally.good["refused while restarting"] += 1
            return
        except (OSError, asyncio.IncompleteReadError, TimeoutError) as error:
            if not self.house.up.is_set() or life != self.house.life:
                self.tally.good["refused while restarting"] += 1  # its connection was never taken
                return
            self.tally.lost.append(f"{type(error).__name__}: {error}")
            return
        if status == 200:
            found = len(json.loads(body)["objects"])
            self.tally.good["answered"] += 1
            self.tally.latencies_ms.append(round(1e3 * (time.monotonic() - began), 1))
            if abs(found - self.counts[number]) > 1:  # other batches round otherwise
                self.tally.lost.append(f"picture {number}: {found} objects instead of {self.counts[number]}")
        elif status in REFUSALS:
            self.tally.good[f"refused with {status}"] += 1
            await asyncio.sleep(1)
        else:
            self.tally.lost.append(f"status {status}: {body[:200]!r}")

    async def steady(self) -> None:
        while self.goes_on():
            await self.house.up.wait()
            await self.ask_good(self.draw.randrange(len(self.files)))
            await asyncio.sleep(0.02)

    async def floods(self) -> None:
        while self.goes_on():
            await asyncio.sleep(25)
            if self.house.up.is_set():
                await asyncio.gather(*(self.ask_good(n % len(self.files)) for n in range(60)))

    async def bad_ones(self) -> None:
        paths = {"threshold": f"{SEGMENT}&threshold=7", "model": "/api/v1/segment?model=nobody"}
        while self.goes_on():
            await self.house.up.wait()
            for name, (body, want) in BAD.items():
                sent = {"cut": self.files[5][:400], "large": b"x" * 5_000_000}.get(name, body)
                sent = self.files[0] if name in paths else sent
                with contextlib.suppress(OSError, ValueError, IndexError):
                    status, said = await get(self.house.port, paths.get(name, SEGMENT), "POST", sent, "image/png")
                    self.tally.bad[f"{name}: {status}"] += 1
                    if status not in (want, *REFUSALS):
                        self.tally.lost.append(f"bad request {name!r} got {status}: {said[:200]!r}")
            await self.leave()
            await asyncio.sleep(1)

    async def leave(self) -> None:
        """A client that goes in the middle of its body, and one that goes before its answer."""
        for whole in (False, True):
            with contextlib.suppress(OSError):
                _, writer = await asyncio.open_connection("127.0.0.1", self.house.port)
                head = f"POST {SEGMENT} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(self.files[7])}\r\n\r\n"
                writer.write(head.encode() + (self.files[7] if whole else b"some"))
                await writer.drain()
                writer.close()
                self.tally.bad["left"] += 1

    async def kills(self) -> None:
        while self.goes_on():
            await asyncio.sleep(75)
            if not self.house.up.is_set():
                continue
            parts = self.house.parts()
            if parts:
                victim = parts[len(self.tally.kills) % len(parts)]
                with contextlib.suppress(psutil.NoSuchProcess):
                    victim.kill()
                    self.tally.kills.append({"pid": victim.pid, "at_s": time.monotonic()})

    async def jobs(self) -> None:
        while self.goes_on():
            await self.house.up.wait()
            edge = b"".join(
                b'--e\r\nContent-Disposition: form-data; name="files"; filename="%d.png"\r\n\r\n%s\r\n' % (n, body)
                for n, body in enumerate(self.files)
            )
            with contextlib.suppress(OSError, ValueError, IndexError):
                kind = "multipart/form-data; boundary=e"
                status, said = await get(self.house.port, "/api/v1/jobs", "POST", edge + b"--e--\r\n", kind)
                if status == 202:
                    self.tally.jobs.append(json.loads(said)["id"])
            await asyncio.sleep(30)

    async def watch(self) -> None:
        while self.goes_on():
            await asyncio.sleep(2)
            if not self.house.up.is_set() or self.house.process is None:
                continue
            with contextlib.suppress(psutil.Error):
                door = psutil.Process(self.house.process.pid)
                tree = sum(child.memory_info().rss for child in door.children(recursive=True))
                self.tally.memory.append(
                    {
                        "at_s": time.monotonic(), "life": self.house.life, "door_mb": door.memory_info().rss / 2**20,
                        "tree_mb": tree / 2**20, "fds": door.num_fds(), "threads": door.num_threads(),
                    }
                )  # fmt: skip

    async def restart(self, after_s: float) -> int:
        """Stops the service while much is going on, and starts it again; its exit code."""
        await asyncio.sleep(after_s)
        code = await self.house.stop()
        await self.house.start()
        return code

    async def settle_jobs(self) -> dict[str, int]:
        """How all jobs ended, waited for."""
        ended: Counter[str] = Counter()
        for job in self.tally.jobs:
            until = time.monotonic() + 180
            while True:
                said = json.loads((await get(self.house.port, f"/api/v1/jobs/{job}"))[1])
                if said["state"] != "running" or time.monotonic() > until:
                    break
                await asyncio.sleep(0.5)
            whole = said["state"] == "done" and said["done"] == said["total"]
            ended["whole" if whole else f"{said['state']}, {said['done']} of {said['total']}"] += 1
        return dict(ended)

    async def run(self, minutes: float) -> dict[str, Any]:
        await self.house.start()
        self.until, began = time.monotonic() + 60 * minutes, time.monotonic()
        work = [self.steady() for _ in range(4)] + [self.floods(), self.bad_ones(), self.kills(), self.jobs()]
        code, *_ = await asyncio.gather(self.restart(30 * minutes), self.watch(), *work)
        ended = await self.settle_jobs()
        _, metrics = await get(self.house.port, "/metrics")
        last = await self.house.stop()
        return {
            "seconds": time.monotonic() - began, "exit_codes": [code, last], "jobs": ended,
            "good": dict(self.tally.good), "bad": dict(self.tally.bad), "lost": self.tally.lost[:50],
            "num_lost": len(self.tally.lost), "kills": len(self.tally.kills),
            "latencies_ms": self.tally.latencies_ms, "memory": _since(self.tally.memory, began),
            "metrics": [line for line in metrics.decode().splitlines() if not line.startswith("#")],
        }  # fmt: skip


def _since(rows: list[dict[str, Any]], began: float) -> list[dict[str, Any]]:
    return [{**row, "at_s": round(row["at_s"] - began, 1)} for row in rows]


def growth(memory: list[dict[str, Any]], name: str) -> dict[str, float]:
    """For each life of the service: the share by which the last third lies above the middle third, and MB a minute."""
    found = {}
    for life in sorted({row["life"] for row in memory}):
        rows = [row for row in memory if row["life"] == life]
        rows = [row for row in rows if row["at_s"] > rows[0]["at_s"] + SETTLE_S]
        if len(rows) < 12:
            continue
        third = len(rows) // 3
        middle, end = (statistics.median(r[name] for r in part) for part in (rows[third : 2 * third], rows[-third:]))
        found[f"life {life}"] = end / middle - 1
        slope = np.polyfit([r["at_s"] / 60 for r in rows], [r[name] for r in rows], 1)[0]
        found[f"life {life}, a minute"] = float(slope)
    return found


def judge(found: dict[str, Any]) -> list[str]:
    """What did not hold."""
    faults = [f"{found['num_lost']} requests were lost or wrong: {found['lost'][:3]}"] if found["num_lost"] else []
    if set(found["jobs"]) != {"whole"}:
        faults.append(f"jobs ended as {found['jobs']}")
    if found["exit_codes"] != [0, 0]:
        faults.append(f"the service ended with {found['exit_codes']}")
    wanted = ("answered", "refused with 429")
    faults += [f"nothing was {name}: the soak did not test it" for name in wanted if not found["good"].get(name)]
    for name in MOST_GROWTH:
        found.setdefault("growth", {})[name] = by_life = growth(found["memory"], name)
        faults += [
            f"{name} grew by {share:.1%} in {life}"
            for life, share in by_life.items()
            if "minute" not in life and share > MOST_GROWTH[name]
        ]
    return faults


def draw(found: dict[str, Any], path: Path) -> None:
    """The service's memory over time: the process at the door, and all the others."""
    from PIL import Image, ImageDraw

    width, height, edge = 900, 360, 50
    picture = Image.new("RGB", (width, height), "white")
    pen = ImageDraw.Draw(picture)
    rows = found["memory"]
    end_s, top = max(r["at_s"] for r in rows), 1.1 * max(max(r["door_mb"], r["tree_mb"]) for r in rows)

    def place(at_s: float, value: float) -> tuple[float, float]:
        return edge + at_s / end_s * (width - 2 * edge), height - edge - value / top * (height - 2 * edge)

    for name, colour in (("door_mb", "#0072b2"), ("tree_mb", "#d55e00")):
        for life in {r["life"] for r in rows}:
            pen.line([place(r["at_s"], r[name]) for r in rows if r["life"] == life], fill=colour, width=2)
    pen.line([(edge, edge), (edge, height - edge), (width - edge, height - edge)], fill="black")
    for share in (0.0, 0.5, 1.0):
        x, y = place(end_s * share, top * share)
        pen.text((x - 10, height - edge + 6), f"{end_s * share / 60:.1f} min", fill="black")
        pen.text((4, y - 6), f"{top * share:.0f} MB", fill="black")
    pen.text((edge + 10, 8), "memory of the service: the door (blue), its processes together (orange)", fill="black")
    picture.save(path)


async def main_soak(given: argparse.Namespace, folder: Path) -> dict[str, Any]:
    files, counts = await asyncio.to_thread(prepare, folder)
    return await Soak(House(folder, given.port), files, counts, 0.0).run(given.minutes)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--port", type=int, default=8766)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        try:
            found = asyncio.run(main_soak(given, Path(folder)))
        finally:
            log = (Path(folder) / "service.log").read_text(errors="replace")
    faults = judge(found)
    found |= {"faults": faults, "log_tail": log[-4000:], "cores": os.cpu_count()}
    ms = sorted(found["latencies_ms"])
    print(f"{found['good']}; bad: {found['bad']}; {found['kills']} kills; jobs: {found['jobs']}")
    print(f"p50 {ms[len(ms) // 2]:.0f} ms, p99 {ms[99 * len(ms) // 100]:.0f} ms; growth: {found['growth']}")
    print("\n".join(faults) or "all held")
    if given.out:
        given.out.write_text(json.dumps(found) + "\n")
        draw(found, given.out.with_suffix(".png"))
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
