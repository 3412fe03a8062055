"""A stand-in for viser without sockets or threads: controls keep what they are told, windows what they are shown."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np


class Control:
    """A slider, a button, a line of text, a frustum."""

    def __init__(self, value=None, **others):
        self.value, self.listeners = value, []
        for name, given in others.items():
            setattr(self, name, given)

    def on_update(self, listener):
        self.listeners.append(listener)

    on_click = on_update

    def use(self, value=None, client=None):
        """What a user does."""
        if value is not None:
            self.value = value
        for listener in self.listeners:
            listener(SimpleNamespace(client=client))


class Gui:
    def __init__(self):
        self.controls = {}

    def _add(self, name, control):
        self.controls[name] = control
        return control

    def configure_theme(self, **settings):
        self.theme = settings

    def add_markdown(self, content):
        return self._add("status", Control(content=content))

    def add_dropdown(self, name, options, initial_value):
        return self._add(name, Control(initial_value, options=options))

    def add_slider(self, name, min, max, step, initial_value):
        return self._add(name, Control(initial_value, most=max))

    def add_number(self, name, value, **limits):
        return self._add(name, Control(value))

    def add_rgb(self, name, value):
        return self._add(name, Control(value))

    def add_checkbox(self, name, value):
        return self._add(name, Control(value))

    def add_button(self, name):
        return self._add(name, Control(label=name))


class Scene:
    def __init__(self):
        self.frustums, self.frames = {}, []

    def set_up_direction(self, up):
        self.up = up

    def add_camera_frustum(self, name, **settings):
        self.frustums[name] = Control(**settings)
        return self.frustums[name]

    def set_background_image(self, image, **how):
        self.frames.append(image)


class Camera(Control):
    """A window's; the server may put it elsewhere, and the user may move it."""

    def __init__(self):
        super().__init__(wxyz=np.array([1.0, 0, 0, 0]), position=np.zeros(3), fov=1.0, aspect=1.5)

    @property
    def look_at(self):
        return self._look_at

    @look_at.setter
    def look_at(self, target):
        """Turns the camera, its y down."""
        from hotlap.data.colmap import quat_of
        from hotlap.splat.cameras import look_at

        self._look_at = target
        self.wxyz = np.array(quat_of(look_at(self.position, target, np.array([0.0, -1.0, 0.0]))[:3, :3].T))


class Client:
    def __init__(self, number):
        self.client_id, self.camera, self.scene = number, Camera(), Scene()

    def atomic(self):
        return nullcontext()

    @property
    def sizes(self):
        """Width and height of all frames so far."""
        return [frame.shape[1::-1] for frame in self.scene.frames]


class ViserServer:
    last = None

    def __init__(self, host, port, label, verbose):
        self.host, self.port, self.label, self.stopped = host, port, label, False
        self.gui, self.scene, self.clients = Gui(), Scene(), {}
        ViserServer.last = self

    def get_port(self):
        return self.port

    def get_clients(self):
        return dict(self.clients)

    def on_client_connect(self, listener):
        self.met = listener

    def on_client_disconnect(self, listener):
        self.parted = listener

    def connect(self):
        """A browser opens the page."""
        client = Client(len(self.clients))
        self.clients[client.client_id] = client
        self.met(client)
        return client

    def disconnect(self, client):
        del self.clients[client.client_id]
        self.parted(client)

    def stop(self):
        self.stopped = True
