"""A page in the browser that shows a model: the browser says where its camera is, and a frame drawn here comes back.

The page's events come on threads of the server's own; they only note what is wanted. Frames are drawn where
``draw_waiting`` is called, which is the thread that owns the model: a training may be recording a CUDA graph, and
Numba's threads take work from one caller at a time.
"""

from __future__ import annotations

import errno
import io
import logging
import math
import socket
import threading
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from typing import Any

import numpy as np

from hotlap.base.errors import ConfigError, EnvironmentUnusable
from hotlap.data.colmap import quat_of
from hotlap.splat.cameras import Shot, meeting_point
from hotlap.splat.judge import Model
from hotlap.splat.look import MODES, Look, draw_look, free_camera, pose_from

HOST = "127.0.0.1"
"""Nobody else can reach the page; who wants it from afar has ssh -L."""
PORT = 8080
LEAST_SIDE, MOST_SIDE, FIRST_SIDE = 64, 2048, 960
"""Pixels of a frame's longer side."""
MOVING_S = 0.25
"""A camera that has not moved for so long stands still."""
MOVING_FRAME_S = 0.05
"""While a camera moves, frames are so small that drawing one takes about this long."""
MOST_FRUSTUMS = 200
"""Of more cameras some are shown, spread evenly: browsers grow slow."""
WHITE, BLACK = (1.0, 1.0, 1.0), (0.0, 0.0, 0.0)


@dataclass(eq=False)
class _Window:
    """One browser: its handle, when it last moved, and what it was last shown."""

    client: Any
    moved_at: float
    wants: bool = True
    shown_side: int = 0


class Viewer:
    """The page; closed, its port is free again."""

    def __init__(
        self, source: Callable[[], Model], stands: Sequence[Shot] = (), *, port: int = PORT, title: str = "hotlap",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        """``source`` gives the model as it is now; the page begins at the first of ``stands``."""
        self._source, self._stands, self._clock = source, list(stands), clock
        self._middle, self._up = _surroundings(self._stands)
        self._lock, self._news = threading.Lock(), threading.Event()
        self._windows: dict[int, _Window] = {}
        self._pixel_s = 1e-7
        self._asked_pause = threading.Event()
        self.server = open_server(port, title)
        self.port: int = port
        self._gui = _build_panel(self.server, self._stands, self.wake, self._jump)
        self.server.scene.set_up_direction(self._up)
        self._frustums = _add_frustums(self.server, self._stands, self._jump)
        self._gui.frustums.on_update(lambda _: self._show_frustums())
        self.server.on_client_connect(self._meet)
        self.server.on_client_disconnect(self._part)

    @property
    def address(self) -> str:
        return f"http://{HOST}:{self.port}"

    @property
    def paused(self) -> bool:
        return self._asked_pause.is_set()

    def add_pause(self) -> None:
        """A button that asks for a pause, and then for going on."""
        button = self.server.gui.add_button("Pause")

        def toggle(_: Any) -> None:
            (self._asked_pause.clear if self.paused else self._asked_pause.set)()
            button.label = "Resume" if self.paused else "Pause"
            self._news.set()

        button.on_click(toggle)

    def tell(self, text: str) -> None:
        """Shows a line at the top of the panel."""
        self._gui.status.content = text

    def wake(self) -> None:
        """Every window is drawn anew, as after a change of the model or of a setting."""
        with self._lock:
            for window in self._windows.values():
                window.wants = True
        self._news.set()

    def wait(self, seconds: float) -> None:
        """Comes back when a window wants something, at the latest after ``seconds``."""
        self._news.wait(seconds)
        self._news.clear()

    def is_waiting(self) -> bool:
        """Whether a window would be drawn now; cheap enough to ask after every step of a training."""
        if not self._windows:
            return False
        now = self._clock()
        with self._lock:
            return any(self._side_for(window, now) for window in self._windows.values())

    def draw_waiting(self) -> float:
        """Draws what windows wait for; the seconds that took."""
        began = self._clock()
        with self._lock:
            due = [(window, side) for window in self._windows.values() if (side := self._side_for(window, began))]
            for window, side in due:
                window.wants, window.shown_side = False, side
        for window, side in due:
            self._draw(window, side)
        return self._clock() - began

    def _side_for(self, window: _Window, now: float) -> int:
        """Pixels of the longer side that a window is to be drawn with now; 0 for what it shows already."""
        full = int(self._gui.size.value)
        if now - window.moved_at < MOVING_S:
            pixels = MOVING_FRAME_S / self._pixel_s
            side = min(full, max(LEAST_SIDE, int(math.sqrt(pixels))))
            return side if window.wants else 0
        return full if window.wants or window.shown_side < full else 0

    def _draw(self, window: _Window, side: int) -> None:
        camera = window.client.camera
        aspect = camera.aspect
        width, height = (side, max(1, round(side / aspect))) if aspect >= 1 else (max(1, round(side * aspect)), side)
        began = self._clock()
        frame = draw_look(
            self._source(), pose_from(camera.wxyz, camera.position), free_camera(width, height, camera.fov),
            self._gui.look(),
        )  # fmt: skip
        self._pixel_s = max(1e-9, (self._clock() - began) / (width * height))
        quality = 90 if side >= int(self._gui.size.value) else 60
        if window.client.client_id in self.server.get_clients():  # it may have gone meanwhile
            with warnings.catch_warnings():  # or goes just now: viser warns of a frame that nobody will see
                warnings.filterwarnings("ignore", ".* on a closed connection")
                window.client.scene.set_background_image(frame, format="jpeg", jpeg_quality=quality)

    def _meet(self, client: Any) -> None:
        """A browser has come: it is shown the scene from its first camera."""
        window = _Window(client=client, moved_at=self._clock())
        if self._stands:
            self._stand(client, self._stands[0])
        with self._lock:
            self._windows[client.client_id] = window

        def moved(_: Any) -> None:
            with self._lock:
                window.moved_at, window.wants = self._clock(), True
            self._news.set()

        client.camera.on_update(moved)
        self._news.set()

    def _part(self, client: Any) -> None:
        with self._lock:
            self._windows.pop(client.client_id, None)

    def _jump(self, stand: Shot, client: Any | None = None) -> None:
        for one in [client] if client is not None else list(self.server.get_clients().values()):
            self._stand(one, stand)

    def _stand(self, client: Any, stand: Shot) -> None:
        """Puts a browser's camera where another stood; it turns around what all of them look at."""
        place, ahead = stand.place(), stand.pose[2, :3]
        distance = float((self._middle - place) @ ahead)
        with client.atomic():
            client.camera.position = place
            client.camera.look_at = place + (distance if distance > 0 else 1.0) * ahead
            client.camera.up_direction = self._up
            client.camera.fov = stand.fov()

    def _show_frustums(self) -> None:
        for handle in self._frustums:
            handle.visible = self._gui.frustums.value

    def close(self) -> None:
        self._asked_pause.clear()
        stop_server(self.server)


@dataclass(frozen=True, kw_only=True, eq=False)
class _Panel:
    """The page's controls."""

    status: Any
    mode: Any
    size: Any
    degree: Any
    near: Any
    far: Any
    background: Any
    color: Any
    frustums: Any

    def look(self) -> Look:
        """What they say now."""
        chosen = {"white": WHITE, "black": BLACK, "colour": tuple(part / 255 for part in self.color.value)}
        near, far = max(1e-6, float(self.near.value)), float(self.far.value)
        return Look(
            mode=self.mode.value, degree=int(self.degree.value), near=near, far=far if far > near else 1e10,
            background=chosen.get(self.background.value),
        )  # fmt: skip


def _build_panel(
    server: Any, stands: Sequence[Shot], changed: Callable[[], None], jump: Callable[[Shot, Any], None]
) -> _Panel:
    gui = server.gui
    panel = _Panel(
        status=gui.add_markdown(""),
        mode=gui.add_dropdown("Show", MODES, initial_value=MODES[0]),
        size=gui.add_slider("Longest side", min=LEAST_SIDE, max=MOST_SIDE, step=32, initial_value=FIRST_SIDE),
        degree=gui.add_slider("SH degree", min=0, max=3, step=1, initial_value=3),
        near=gui.add_number("Near", 0.01, min=0.0, step=0.01),
        far=gui.add_number("Far (0: none)", 0.0, min=0.0, step=0.1),
        background=gui.add_dropdown("Background", ("model", "black", "white", "colour"), initial_value="model"),
        color=gui.add_rgb("Colour", (128, 128, 128)),
        frustums=gui.add_checkbox("Cameras", False),
    )
    for control in (panel.mode, panel.size, panel.degree, panel.near, panel.far, panel.background, panel.color):
        control.on_update(lambda _: changed())
    if stands:
        by_name = {stand.name: stand for stand in stands}
        choice = gui.add_dropdown("Jump to", tuple(by_name), initial_value=stands[0].name)
        choice.on_update(lambda event: jump(by_name[choice.value], event.client))
    return panel


def _add_frustums(server: Any, stands: Sequence[Shot], jump: Callable[[Shot, Any], None]) -> list[Any]:
    """Every camera, or some of very many, as lines; a click goes there."""
    handles = []
    shown = stands[:: -(-len(stands) // MOST_FRUSTUMS) or 1]
    size = _frustum_size(shown)
    for stand in shown:
        aspect = stand.camera.width / stand.camera.height
        handle = server.scene.add_camera_frustum(
            f"/cameras/{stand.name}", fov=stand.fov(), aspect=aspect, scale=size, thickness=0.03 * size,
            wxyz=np.array(quat_of(stand.pose[:3, :3].T)), position=stand.place(), color=(240, 160, 40), visible=False,
        )  # fmt: skip
        handle.on_click(lambda event, stand=stand: jump(stand, event.client))
        handles.append(handle)
    return handles


def _frustum_size(stands: Sequence[Shot]) -> float:
    """A length that suits the distances between cameras: many of them must not hide what they saw."""
    places = np.array([stand.place() for stand in stands]) if stands else np.zeros((1, 3))
    reach = float(np.linalg.norm(places - places.mean(0), axis=1).max())
    return 0.12 * reach / math.sqrt(len(places)) if reach > 0 else 0.1


def _surroundings(stands: Sequence[Shot]) -> tuple[np.ndarray, np.ndarray]:  # [3], [3]
    """What the cameras look at, and what they have above them."""
    if not stands:
        return np.zeros(3), np.array([0.0, -1.0, 0.0])
    places, looks = np.array([one.place() for one in stands]), np.array([one.pose[2, :3] for one in stands])
    up = -np.mean([one.pose[1, :3] for one in stands], axis=0)
    length = float(np.linalg.norm(up))
    middle = meeting_point(places, looks, np.zeros((0, 3)))
    return middle, up / length if length > 1e-6 else np.array([0.0, -1.0, 0.0])


def told_psnr(name: str, value: float, of_step: int, step: int) -> str:
    """A score as the page says it, with its step if that is another than the model's."""
    return f"{name} {value:.2f} dB" + (f" at step {of_step:,}" if of_step != step else "")


def open_server(port: int, title: str) -> Any:
    """viser's server on exactly this port of this machine."""
    viser = require_viser()
    check_port(port)
    logging.getLogger("websockets.server").addFilter(_is_worth_telling)
    with redirect_stdout(io.StringIO()):  # its greeting would stand in the midst of a result
        server = viser.ViserServer(host=HOST, port=port, label=title, verbose=False)
    if server.get_port() != port:  # it takes the next one if another program was faster
        stop_server(server)
        raise _port_taken(port)
    server.gui.configure_theme(show_share_button=False)  # it would open the page to the world
    return server


def _is_worth_telling(record: logging.LogRecord) -> bool:
    """All but the connections that a browser opens in advance and leaves unused, each of which is a stack trace."""
    return record.getMessage() != "opening handshake failed"


def stop_server(server: Any) -> None:
    """Ends the page; what viser says of it would stand in the midst of a result."""
    with redirect_stdout(io.StringIO()):
        server.stop()


def require_viser() -> Any:
    """The package."""
    try:
        import viser
    except ImportError as error:
        raise EnvironmentUnusable(
            "a view in the browser needs viser, which is not installed", remedy="pip install 'hotlap[view]'"
        ) from error
    return viser


def check_port(port: int) -> None:
    """Refuses a port that is none, or that cannot be had."""
    if not 1 <= port <= 65535:
        raise ConfigError(f"port = {port} is not valid", expected="1 to 65535")
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise _port_taken(port) from error
            raise EnvironmentUnusable(
                f"port = {port} cannot be had: {error.strerror}", remedy="Choose another, as 8080"
            ) from error


def _port_taken(port: int) -> EnvironmentUnusable:
    return EnvironmentUnusable(
        f"port = {port} is in use", remedy=f"End what uses it, or choose another, as {port % 65535 + 1}"
    )
