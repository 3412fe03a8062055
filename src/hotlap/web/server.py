"""``hotlap serve``: from settings to a listening process, and to an orderly end."""

from __future__ import annotations

import gc
import socket
from dataclasses import dataclass
from typing import Any

from hotlap.base import events
from hotlap.base.errors import EXIT_ENVIRONMENT, EXIT_OK, EnvironmentUnusable
from hotlap.base.events import Emit
from hotlap.tools.serve import ServeConfig, Service, build_service
from hotlap.tools.serve.jobs import JobStore


@dataclass(frozen=True)
class Served:
    """What a service did until it was told to stop."""

    requests: int
    shed: int
    worker_deaths: int
    failed: str = ""
    """Why no device could serve; '' where one did."""

    @property
    def exit_code(self) -> int:
        return EXIT_ENVIRONMENT if self.failed else EXIT_OK

    def lines(self) -> list[str]:
        said = f"Served {self.requests} requests; {self.shed} shed, {self.worker_deaths} restarts of a worker."
        return [said, *([f"No device could serve: {self.failed}"] if self.failed else [])]


def serve(config: ServeConfig, emit: Emit) -> Served:
    """Serves until SIGTERM or Ctrl-C; what was accepted by then is answered first."""
    _require_web()
    import uvicorn

    from hotlap.web.app import AppSettings, create_app
    from hotlap.web.guard import LOOPBACK, GuardSettings
    from hotlap.web.orderly import OrderlyServer
    from hotlap.web.slow_clients import watch_clients

    _allow_many_files()
    door = _listen(config.host, config.port)
    service = build_service(config, emit)
    guard = GuardSettings(
        token=config.token,
        origins=config.cors,
        only_loopback=config.host in LOOPBACK,
        max_body_bytes=int(config.max_body_mb * 2**20),
    )
    settings = AppSettings(guard=guard, max_files=config.max_files, drain_s=config.drain_s, runs=config.runs)
    address = address_of(config.host, door.getsockname()[1])

    def on_ready() -> None:
        if service.is_ready:
            gc.freeze()  # what is there by now stays: to look through it at every large request holds up all others
            emit(events.note(f"Ready: {', '.join(_said(service, name) for name in service.models)}."))
        else:
            server.should_exit = True

    store = JobStore(config.jobs)
    app = create_app(service, settings, on_ready, store)
    server = OrderlyServer(uvicorn.Config(app, log_level="warning", server_header=False), service, config.drain_s)
    watch_clients(server)
    emit(events.note(f"Listening on {address}; the models are being loaded."))
    try:
        server.run(sockets=[door])
    finally:
        gc.unfreeze()  # or extensions would complain at the end of what nobody has taken down
        store.close()
    if service.refused is not None:
        raise service.refused
    return _summary(service)


def address_of(host: str, port: int) -> str:
    """The address as a browser takes it."""
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _said(service: Service, name: str) -> str:
    signature = service.signature(name)
    return f"{name} ({signature.arm}, batches of {signature.rows} rows)"


def _summary(service: Service) -> Served:
    count = service.counters.value
    return Served(
        int(count("requests_total")),
        int(count("shed_total")),
        int(count("worker_deaths_total")),
        service.failed,
    )


def _require_web() -> Any:
    try:
        import fastapi
        import python_multipart
        import uvicorn
    except ModuleNotFoundError as error:
        raise EnvironmentUnusable(
            f"serving over HTTP needs {error.name}, which is not installed", remedy="pip install 'hotlap[serve]'"
        ) from error
    return fastapi, uvicorn, python_multipart


def _allow_many_files() -> None:
    """Lets this process open as many files as it may: each waiting picture is one, and so is each client."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _listen(host: str, port: int) -> socket.socket:
    """The listening socket; bound before anything is loaded, so that a taken port is told at once."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        door = socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        raise EnvironmentUnusable(
            f"cannot listen on host = {host!r}, port = {port}: {error.strerror or error}",
            remedy="Choose another with --port, or 0 for any that is free",
        ) from error
    # Connections inherit it. asyncio sets it only on sockets that name their protocol, which those of create_server do
    # not; without it, on a connection that is kept, each answer's body waits 40 ms until the client confirms its head.
    door.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return door
