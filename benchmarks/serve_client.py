"""Clients of a service in a process of their own: kept connections that ask again as soon as they are answered.

    python -m benchmarks.serve_client PORT PATH FORM CONNECTIONS SECONDS FOLDER

Reads JPEG files from FOLDER, waits for a line on stdin, and prints one line of JSON: latencies and failures.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
import time
from pathlib import Path
from typing import Any

HEAD = "POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\n\r\n"
WARM_S = 3.0
"""Answers of the first seconds are not counted: queues fill, and clocks rise."""


class Client:
    """One kept connection; ``form`` names the field that the picture is sent in, '' sends it as the body."""

    def __init__(self, port: int, path: str, form: str) -> None:
        self._port, self._path, self._form = port, path, form

    async def open(self) -> None:
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port, limit=1 << 24)

    def close(self) -> None:
        self._writer.close()

    async def ask(self, picture: bytes) -> tuple[int, bytes]:
        """Status and body of the answer to one picture."""
        body, kind = picture, "image/jpeg"
        if self._form:
            edge = f'--edge\r\nContent-Disposition: form-data; name="{self._form}"; filename="a.jpg"\r\n\r\n'
            body, kind = edge.encode() + picture + b"\r\n--edge--\r\n", "multipart/form-data; boundary=edge"
        head = HEAD.format(path=self._path, kind=kind, length=len(body)).encode()
        self._writer.write(head + body)
        answer = await self._reader.readuntil(b"\r\n\r\n")
        length = re.search(rb"content-length: (\d+)", answer, re.IGNORECASE)
        if length is None:
            raise OSError(f"an answer without a length: {answer[:200]!r}")
        return int(answer.split(None, 2)[1]), await self._reader.readexactly(int(length[1]))


async def load(port: int, path: str, form: str, connections: int, seconds: float, pictures: list[bytes]) -> Any:
    """Latencies in ms of the answers within the counted time, and how many were no 200."""
    latencies: list[float] = []
    statuses: dict[int, int] = {}
    begin = time.perf_counter() + WARM_S
    end = begin + seconds

    async def one(number: int) -> None:
        client = Client(port, path, form)
        await client.open()
        while (asked := time.perf_counter()) < end:
            status, _ = await client.ask(pictures[number % len(pictures)])
            now = time.perf_counter()
            number += 1
            if begin <= now <= end:
                statuses[status] = statuses.get(status, 0) + 1
                if status == 200:
                    latencies.append(round(1e3 * (now - asked), 2))

    await asyncio.gather(*(one(number) for number in range(connections)))
    return {"latencies_ms": latencies, "statuses": statuses, "seconds": seconds}


def main() -> None:
    port, path, form, connections, seconds, folder = sys.argv[1:7]
    pictures = [file.read_bytes() for file in sorted(Path(folder).glob("*.jpg"))]
    sys.stdin.readline()
    found = asyncio.run(load(int(port), path, form, int(connections), float(seconds), pictures))
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
