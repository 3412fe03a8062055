"""A service of fakes behind its web face, in this process."""

from __future__ import annotations

import contextlib
import io
import socket
import threading

import torch

from hotlap.base.errors import OutOfMemory, WorkerDied
from hotlap.measure.servable import ModelSpec, Signature, TensorSpec
from hotlap.measure.served_workload import WorkloadServable
from hotlap.tools.serve import Service, ServiceSettings


class BrightRunner:
    """A 'model' whose score of class 1 is the brightness of the picture; it can be held, and made to fail."""

    device = "fake:0"

    def __init__(self, rows=4):
        self.signature = Signature(
            inputs=(TensorSpec(name="x", dtype="float32", shape=(3, 4, 4)),),
            outputs=(TensorSpec(name="output", dtype="float32", shape=(2, 4, 4)),),
            rows=rows,
            arm="fake",
        )
        self.failing = None
        self.gate = None
        self.entered = None
        self.seen_rows = 0

    def start(self):
        return {"bright": self.signature}

    def run(self, model, rows):
        if self.gate is not None:
            self.entered.set()
            assert self.gate.wait(30)
        if self.failing is not None:
            raise self.failing
        (x,) = rows
        self.seen_rows += len(x)
        mean = x.mean(1)
        return (torch.stack([torch.full_like(mean, 0.5), mean], 1),)

    def stop(self):
        pass


def bright_service(**settings):
    runner = BrightRunner()
    servable = WorkloadServable(ModelSpec(name="bright", target="none"))
    return runner, Service({"bright": servable}, [runner], ServiceSettings(**settings), sleep=lambda seconds: None)


@contextlib.contextmanager
def client_of(service, **options):
    """A client of the service, once it is ready, or at once where ``ready`` is False."""
    from starlette.testclient import TestClient

    from hotlap.web.app import AppSettings, create_app
    from hotlap.web.guard import GuardSettings

    of_app = {k: options.pop(k) for k in ("max_files", "runs") if k in options}
    guard = GuardSettings(**{k: v for k, v in options.items() if k not in ("base_url", "store", "ready")})
    settings = AppSettings(**{"guard": guard, "max_files": 8, "drain_s": 5.0, **of_app})
    app = create_app(service, settings, store=options.get("store"))
    with TestClient(app, base_url=options.get("base_url", "http://127.0.0.1"), raise_server_exceptions=False) as client:
        assert not options.get("ready", True) or service.wait_until_ready(120)
        yield client


@contextlib.contextmanager
def listening(service, store=None, patience_s=30.0, sent_at_once=0, **guard):
    """The service behind a real socket, which takes ``sent_at_once`` bytes of an answer that nobody reads, if given."""
    import uvicorn

    from hotlap.web.app import AppSettings, create_app
    from hotlap.web.guard import GuardSettings
    from hotlap.web.slow_clients import watch_clients

    app = create_app(service, AppSettings(guard=GuardSettings(**guard), drain_s=5.0), store=store)
    server = uvicorn.Server(uvicorn.Config(app, log_level="critical", timeout_graceful_shutdown=5))
    watch_clients(server, patience_s, 0.0)
    door = socket.create_server(("127.0.0.1", 0))
    if sent_at_once:
        door.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, sent_at_once)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [door]})
    thread.start()
    try:
        assert service.wait_until_ready(120)
        yield door.getsockname()
    finally:
        server.should_exit = True
        thread.join(20)


def picture(colour=(255, 255, 255), size=(8, 4), kind="PNG", mode="RGB", **save):
    from PIL import Image

    out = io.BytesIO()
    Image.new(mode, size, colour).save(out, kind, **save)
    return out.getvalue()


MEMORY = OutOfMemory("memory ran out in model 'bright' with rows = 1")
DEATH = WorkerDied("the process of device 'fake:0' ended by signal SIGKILL")
