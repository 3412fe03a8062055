"""How smooth is the service's page with many polygons? A real Chromium pans, zooms, drags corners and hovers.

    python -m benchmarks.page_smooth --out page_smooth.json [--seconds 4]

The page is the service's own; its questions to the service are answered here, with 300 polygons that have 4,000 corners
together, and then with 300 of 4,000 corners each. While the mouse moves, the time between frames is taken as
the browser tells it, the time of each drawing by the page's clock, and the processor's time of the page's thread a
frame, which other work on the machine does not lengthen. 16.7 ms is a frame of a screen with 60 of them a second.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import math
import os
import random
import shutil
import socket
import threading
import time
from collections.abc import Callable, Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

from hotlap.records.environment import capture

SIZE = (2048, 1536)
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
POLYGONS = 300
SCENES = {"4,000 corners in all": 4_000, "4,000 corners each": POLYGONS * 4_000}
RECORD = """async () => {
  const { Pane } = await import("/static/js/pane.js");
  const draw = Pane.prototype.draw;
  const told = (globalThis.told = { frames: [], draws: [], on: false });
  Pane.prototype.draw = function () {
    const began = performance.now();
    draw.call(this);
    if (told.on) told.draws.push(performance.now() - began);
  };
  let last = null;
  const step = (now) => {
    if (told.on && last !== null) told.frames.push(now - last);
    last = told.on ? now : null;
    requestAnimationFrame(step);
  };
  requestAnimationFrame(step);
}"""
START = "() => { Object.assign(globalThis.told, { frames: [], draws: [], on: true }); }"
STOP = "() => { globalThis.told.on = false; return globalThis.told; }"
HOLDS = "async () => (await import('/static/js/tools.js')).inHand.held !== null"
SCREEN = """async () => {
  const { camera } = await import("/static/js/stage.js");
  const { objectsNow } = await import("/static/js/work.js");
  const { left, top } = document.getElementById("canvas").getBoundingClientRect();
  const [x, y] = objectsNow()[150].polygon[0];
  return [left + x * camera.scale + camera.x, top + y * camera.scale + camera.y];
}"""


def objects(corners: int) -> list[dict[str, Any]]:
    """Wobbly discs on a grid."""
    draw = random.Random(0)
    found = []
    for number in range(POLYGONS):
        x, y = (number % 20 + 0.5) * SIZE[0] / 20, (number // 20 + 0.5) * SIZE[1] / 15
        each = corners // POLYGONS + (number < corners % POLYGONS)
        phase, lobes = draw.random() * 6, draw.randrange(2, 6)
        ring = []
        for i in range(each):
            turn = 2 * math.pi * i / each
            radius = 40 * (1 + 0.15 * math.sin(lobes * turn + phase))
            ring.append([round(x + radius * math.cos(turn), 2), round(y + radius * math.sin(turn), 2)])
        metrics = {"area": 5000.0 + number, "perimeter": 250.0, "circularity": 0.9, "solidity": 0.95}
        found.append({"id": number + 1, "polygon": ring, "holes": [], "confidence": 0.9, "metrics": metrics})
    return found


def answers(corners: int) -> dict[str, Any]:
    """What the service would say, by the end of the path."""
    model = {"ready": True, "arm": "eager-fp32", "batch_rows": 8, "queued_rows": 0, "requests": 1, "shed": 0}
    segmented = {
        "model": "cells", "file": "cells.png", "width": SIZE[0], "height": SIZE[1], "threshold": 0.5,
        "um_per_px": None, "objects": objects(corners), "seconds": {"all": 0.1},
    }  # fmt: skip
    return {
        "status": {"ready": True, "draining": False, "workers": [], "models": {"cells": model}, "gpus": []},
        "models": {"models": [{"name": "cells", "answers": "objects", "threshold": 0.5}]},
        "segment": segmented,
        "measure": {"objects": []},
    }


def picture() -> bytes:
    from PIL import Image

    image = Image.effect_noise(SIZE, 60)
    out = BytesIO()
    image.save(out, "PNG")
    return out.getvalue()


@contextlib.contextmanager
def page_served() -> Iterator[int]:
    """The page's files behind a socket."""
    import uvicorn
    from fastapi import FastAPI

    from hotlap.web.page import add_page

    app = FastAPI()
    add_page(app)
    server = uvicorn.Server(uvicorn.Config(app, log_level="critical", timeout_graceful_shutdown=1))
    door = socket.create_server(("127.0.0.1", 0))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [door]})
    thread.start()
    yield door.getsockname()[1]
    server.should_exit = True
    thread.join()


def gestures(tab: Any) -> dict[str, tuple[Callable[[], None], Callable[[float], None], Callable[[], None]]]:
    """Name: what begins it, what the mouse does at a time in seconds, what ends it."""
    box = tab.locator("#canvas").bounding_box()
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2

    def circle(radius: float) -> Callable[[float], None]:
        return lambda at: tab.mouse.move(x + radius * math.cos(4 * at), y + radius * math.sin(4 * at))

    def hold(key: str, place: Callable[[], tuple[float, float]]) -> Callable[[], None]:
        def begin() -> None:
            tab.keyboard.press("0")
            tab.keyboard.press(key)
            tab.wait_for_timeout(200)
            tab.mouse.move(*place())
            tab.mouse.down()

        return begin

    def corner() -> tuple[float, float]:
        left, top = tab.evaluate(SCREEN)
        tab.mouse.click(left - 8, top)
        tab.keyboard.press("e")
        return left, top

    def near(at: float) -> None:
        left, top = place["corner"]
        tab.mouse.move(left + 3 + 3 * math.cos(6 * at), top + 3 * math.sin(6 * at))

    place: dict[str, tuple[float, float]] = {}

    def take_corner() -> None:
        hold("v", corner)()
        place["corner"] = tab.evaluate(SCREEN)

    return {
        "hover": (lambda: tab.keyboard.press("v"), circle(180), lambda: None),
        "pan": (hold("v", lambda: (x, y)), circle(120), tab.mouse.up),
        "zoom": (
            lambda: tab.mouse.move(x, y),
            lambda at: tab.mouse.wheel(0, -60 if math.sin(2 * at) > 0 else 60),
            lambda: tab.keyboard.press("0"),
        ),
        "drag a corner": (take_corner, near, tab.mouse.up),
    }


def measure(tab: Any, session: Any, seconds: float) -> dict[str, Any]:
    """Frames, drawings and the thread's time for each gesture."""
    found = {}
    for name, (begin, move, end) in gestures(tab).items():
        begin()
        tab.wait_for_timeout(300)
        before, began = thread_seconds(session), time.monotonic()
        tab.evaluate(START)
        while time.monotonic() - began < seconds:
            move(time.monotonic() - began)
        told = tab.evaluate(STOP)
        used = thread_seconds(session) - before
        if name == "drag a corner" and not tab.evaluate(HOLDS):
            raise SystemExit("no result: the mouse did not take hold of the corner")
        end()
        found[name] = {**told, "thread_s": used, "load": os.getloadavg()[0]}
        print(f"  {name}: {line(found[name])}", flush=True)
    return found


def thread_seconds(session: Any) -> float:
    """Processor time of the page's main thread so far."""
    metrics = {one["name"]: one["value"] for one in session.send("Performance.getMetrics")["metrics"]}
    return float(metrics["TaskDuration"])


def share(samples: list[float], of: float) -> float:
    return sorted(samples)[min(len(samples) - 1, int(of * len(samples)))] if samples else math.nan


def line(one: dict[str, Any]) -> str:
    frames, draws = one["frames"], one["draws"]
    own = 1000 * one["thread_s"] / max(1, len(frames))
    return (
        f"{len(frames)} frames, {share(frames, 0.5):.1f} ms at p50, {share(frames, 0.95):.1f} at p95; drawing "
        f"{share(draws, 0.5):.2f} and {share(draws, 0.95):.2f} ms; {own:.1f} ms of the thread's own time a frame; "
        f"load {one['load']:.1f}"
    )


def one_scene(browser: Any, port: int, corners: int, seconds: float) -> dict[str, Any]:
    said = answers(corners)
    tab = browser.new_page(viewport={"width": 1400, "height": 860}, locale="en")
    tab.route("**/api/v1/**", lambda route: route.fulfill(json=said.get(route.request.url.rsplit("/", 1)[-1], [])))
    tab.goto(f"http://127.0.0.1:{port}/")
    tab.wait_for_selector("#app[data-ready]")
    tab.set_input_files("#files", [{"name": "cells.png", "mimeType": "image/png", "buffer": picture()}])
    tab.wait_for_selector("#pictures li[data-state=done]", timeout=60_000)
    tab.wait_for_timeout(1000)
    tab.evaluate(RECORD)
    session = tab.context.new_cdp_session(tab)
    session.send("Performance.enable", {"timeDomain": "threadTicks"})
    found = measure(tab, session, seconds)
    tab.close()
    return found


def main() -> None:
    from playwright.sync_api import sync_playwright

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("page_smooth.json"))
    parser.add_argument("--seconds", type=float, default=4.0)
    given = parser.parse_args()
    path = next(filter(None, map(shutil.which, BROWSERS)), None)
    flags = ["--no-sandbox"] if os.geteuid() == 0 else []
    scenes = {}
    with page_served() as port, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=flags)
        version = browser.version
        for name, corners in SCENES.items():
            print(f"{POLYGONS} polygons, {name}")
            scenes[name] = one_scene(browser, port, corners, given.seconds)
        browser.close()
    answer = {"chromium": version, "polygons": POLYGONS, "picture": SIZE, "window": [1400, 860], "scenes": scenes,
              "environment": dataclasses.asdict(capture())}  # fmt: skip
    given.out.write_text(json.dumps(answer, indent=1, default=str) + "\n")


if __name__ == "__main__":
    main()
