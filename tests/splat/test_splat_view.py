"""The page in the browser: what windows are shown and when, live trainings, and what cannot be shown."""

from __future__ import annotations

import json
import logging
import socket
import sys
import warnings
from pathlib import Path

import fake_viser
import numpy as np
import pytest
import torch

from hotlap.base.errors import ConfigError, DataError, EnvironmentUnusable, RecordError
from hotlap.cli.main import run
from hotlap.data.scene import Pinhole
from hotlap.data.splats import read_splats, write_splats
from hotlap.splat import viewer as viewer_module
from hotlap.splat.cameras import Shot, look_at
from hotlap.splat.config import SplatViewConfig
from hotlap.splat.live import MOST_SHARE, Live
from hotlap.splat.look import Look, depth_colors, draw_look, free_camera, pose_from
from hotlap.splat.render import read_named
from hotlap.splat.train import train, train_model
from hotlap.splat.view import Running, open_shown, view
from hotlap.splat.viewer import MOVING_S, Viewer

DOWN = np.array([0.0, -1.0, 0.0])
CAMERA = Pinhole(width=48, height=32, fx=40, fy=40, cx=24, cy=16)


@pytest.fixture
def viser(monkeypatch):
    monkeypatch.setitem(sys.modules, "viser", fake_viser)
    return fake_viser


@pytest.fixture
def port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture(scope="module")
def trained(scene_folder, tmp_path_factory):
    from hotlap.splat.config import config_with

    out = tmp_path_factory.mktemp("viewed") / "run"
    config = config_with(scene=str(scene_folder), out=str(out), device="cpu", steps=4, log_every=2, sh_degree=1,
                         sh_every=1, checkpoint_every=2, strategy="none", pictures=0)  # fmt: skip
    return out, train_model(config).trainer.model()


class Clock:
    """Time that passes when it is told to."""

    now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def opened(viser, port, trained):
    """A page of the trained model, the time it goes by, and its server."""
    clock = Clock()
    stands = [
        Shot(name=f"{n}.png", pose=look_at(np.array(place), np.zeros(3), DOWN), camera=CAMERA)
        for n, place in enumerate([(3.0, -1.0, 0.0), (0.0, -1.0, 3.0), (-3.0, -1.0, 0.5)])
    ]
    page = Viewer(lambda: trained[1], stands, port=port, clock=clock)
    yield page, clock, page.server
    page.close()


def test_a_window_is_drawn_small_while_it_moves_and_whole_when_it_rests(opened):
    page, clock, server = opened
    server.gui.controls["Longest side"].use(240)
    page._pixel_s = 0.05 / 100**2
    client = server.connect()
    assert page.is_waiting()
    page.draw_waiting()
    assert client.sizes == [(100, 67)]
    assert not page.is_waiting(), "nothing has changed"
    clock.now += MOVING_S + 0.01
    page.draw_waiting()
    assert client.sizes[-1] == (240, 160)
    assert not page.is_waiting()
    page._pixel_s = 0.05 / 80**2
    client.camera.use()
    page.draw_waiting()
    assert client.sizes[-1] == (80, 53) and len(client.sizes) == 3
    server.disconnect(client)
    assert not page.is_waiting()


def test_what_is_shown_is_what_the_rasteriser_draws_from_there(opened, trained):
    page, clock, server = opened
    server.gui.controls["Longest side"].use(96)
    client = server.connect()
    clock.now += 1
    page.draw_waiting()
    place = np.array([3.0, -1.0, 0.0])
    want = draw_look(trained[1], look_at(place, np.zeros(3), DOWN), free_camera(96, 64, 2 * np.arctan(16 / 40)), Look())
    assert np.abs(client.scene.frames[-1].astype(int) - want).max() <= 1  # the pose went through a quaternion
    assert want.std() > 10, "there is something to see"


def test_controls_change_what_is_drawn(opened):
    page, clock, server = opened
    controls = server.gui.controls
    controls["Longest side"].use(64)
    client = server.connect()
    clock.now += 1
    page.draw_waiting()
    frames = [client.scene.frames[-1]]
    for name, value in (("Background", "white"), ("SH degree", 0), ("Show", "depth"), ("Show", "alpha"), ("Near", 50)):
        controls[name].use(value)
        page.draw_waiting()
        frames.append(client.scene.frames[-1])
    assert frames[1].mean() > frames[0].mean(), "white behind"
    assert len({frame.tobytes() for frame in frames}) == 6
    assert (frames[4][..., 0] == frames[4][..., 2]).all(), "coverage is grey"
    assert frames[5].max() == 0, "all is nearer than the near plane"
    controls["Near"].use(0.01)
    controls["Background"].use("colour")
    controls["Colour"].use((255, 0, 0))
    controls["Show"].use("colour")
    page.draw_waiting()
    red, green = client.scene.frames[-1][0, 0, :2].astype(int)
    assert red > green + 50


def test_cameras_are_shown_and_gone_to(opened):
    _, _, server = opened
    client = server.connect()
    assert not any(one.visible for one in server.scene.frustums.values()) and len(server.scene.frustums) == 3
    server.gui.controls["Cameras"].use(True)
    assert all(one.visible for one in server.scene.frustums.values())
    server.scene.frustums["/cameras/1.png"].use(client=client)
    assert np.allclose(client.camera.position, [0, -1, 3])
    pose = pose_from(client.camera.wxyz, client.camera.position)
    assert np.allclose(pose, look_at(np.array([0.0, -1.0, 3.0]), np.zeros(3), DOWN), atol=1e-6)
    server.gui.controls["Jump to"].use("2.png", client=client)
    assert np.allclose(client.camera.position, [-3, -1, 0.5])


def test_cameras_of_a_long_walk_are_drawn_smaller_than_they_are_apart(viser, port, trained):
    places = [3.0 * np.array([np.cos(turn), -0.3, np.sin(turn)]) for turn in np.linspace(0, 2 * np.pi, 300, False)]
    stands = [Shot(name=f"{n}", pose=look_at(one, np.zeros(3), DOWN), camera=CAMERA) for n, one in enumerate(places)]
    page = Viewer(lambda: trained[1], stands, port=port)
    shown = list(page.server.scene.frustums.values())
    assert len(shown) == 150
    assert 0 < shown[0].scale < 0.5 * np.linalg.norm(shown[0].position - shown[1].position)
    page.close()


def test_connections_that_a_browser_leaves_unused_are_not_told_of(opened, caplog):
    server = logging.getLogger("websockets.server")
    server.error("opening handshake failed", exc_info=EOFError("stream ends after 0 bytes"))
    server.error("connection handler failed")
    assert [record.getMessage() for record in caplog.records] == ["connection handler failed"]


def test_depths_are_coloured_from_near_to_far():
    depths = torch.linspace(1, 5, 100).view(10, 10)
    alphas = torch.full((10, 10), 0.5)
    alphas[9] = 0
    colors = depth_colors(depths * alphas, alphas)
    assert (colors[9] == 0).all()
    brightness = colors[:9].sum(-1).flatten()
    assert (brightness[1:] <= brightness[:-1] + 1e-6).all() and brightness[0] > 2 > 1 > brightness[-1]
    assert (depth_colors(depths, torch.zeros(10, 10)) == 0).all()


def test_a_live_training_is_that_without_a_page(viser, port, settings, tmp_path):
    """Somebody looks around, pauses and goes on; the model is the same, bit by bit."""
    alone = train_model(settings(out=str(tmp_path / "alone"), adam="lazy")).trainer
    seen = []

    def watch(step, trainer):
        server = fake_viser.ViserServer.last
        client = server.clients[0] if server.clients else server.connect()
        client.camera.use()
        seen.append((step, server.gui.controls["status"].content))

    config = settings(out=str(tmp_path / "seen"), adam="lazy", view=port)
    looked = train_model(config, watch=watch).trainer
    for name in ("means", "opacities", "colors"):
        assert torch.equal(alone.state.alive(name), looked.state.alive(name)), name
    server = fake_viser.ViserServer.last
    assert server.host == "127.0.0.1" and server.port == port and server.stopped
    assert len(server.clients[0].scene.frames) >= 1
    assert [step for step, _ in seen] == [10, 20, 30]
    assert "step 20 of 30" in seen[1][1] and "training PSNR" in seen[1][1]


def test_a_score_is_told_with_the_step_it_is_of(viser, port, settings):
    told = []

    def watch(step, trainer):
        told.append(fake_viser.ViserServer.last.gui.controls["status"].content)

    train_model(settings(view=port, eval_every=10, strategy="none", steps=20), watch=watch)
    assert "held-out PSNR" in told[0] and told[0].count(" at step ") == 1 and "dB at step 0" in told[0]
    assert "dB at step 10" in told[1] and "dB at step 0" not in told[1]


@pytest.mark.parametrize("is_over", [True, False])
def test_a_training_on_one_picture_has_no_held_out_score(viser, port, settings, tmp_path, is_over):
    told = []

    def watch(step, trainer):
        told.append(fake_viser.ViserServer.last.gui.controls["status"].content)

    config = settings(view=port, eval_every=10, strategy="none", steps=20, image_index=0)
    train_model(config, watch=watch)
    if not is_over:
        (tmp_path / "out" / "model.ply").unlink()
    told.append(open_shown(str(tmp_path / "out"), torch.device("cpu")).told())
    assert len(told) == 3 and all("PSNR on its own picture" in line for line in told)
    assert not any("held-out" in line for line in told)


@pytest.mark.filterwarnings("error")
def test_a_window_that_closes_while_it_is_drawn_is_no_warning(opened, monkeypatch):
    page, _, server = opened
    client = server.connect()

    def closed(image, **how):
        warnings.warn("Queued a BackgroundImageMessage on a closed connection (e.g. via a handle)", stacklevel=2)

    monkeypatch.setattr(client.scene, "set_background_image", closed)
    page.draw_waiting()
    assert not page.is_waiting()


class Page:
    """A page that takes a second for every frame, and always wants one."""

    paused, drawn = False, 0

    def __init__(self, clock):
        self.clock = clock

    def wake(self):
        pass

    def is_waiting(self):
        return True

    def draw_waiting(self):
        self.clock.now += 1
        self.drawn += 1
        return 1.0


def test_drawing_takes_no_more_than_its_share_of_a_training(trainer):
    clock = Clock()
    page = Page(clock)
    live = Live(page, trainer(), lambda event: None, clock)
    began, away = clock.now, 0.0
    while clock.now - began < 100:
        clock.now += 0.1  # a step
        away += live.between(live._trainer)
    assert away == pytest.approx(page.drawn)
    assert 0.15 < page.drawn / (clock.now - began) <= MOST_SHARE + 0.01


def test_pause_stops_the_training_until_it_is_resumed(viser, port, trainer):
    said, trained = [], trainer()
    trained.run(1)
    page = Viewer(lambda: trained.model(flush=False), port=port)
    page.add_pause()
    button = page.server.gui.controls["Pause"]
    live = Live(page, trained, lambda event: said.append(event.text))
    button.use()
    assert page.paused and button.label == "Resume"
    looks = []

    def wait(seconds):
        looks.append(page.server.gui.controls["status"].content)
        if len(looks) == 3:
            button.use()

    page.wait = wait
    live.between(trained)
    assert len(looks) == 3 and looks[0].startswith("paused at step 1 of 30")
    assert not page.paused and button.label == "Pause"
    assert said == ["step 1: paused from the browser", "the training goes on"]


def test_time_spent_on_the_page_is_not_the_trainings(trainer):
    trained = trainer()
    trained.between = lambda _: 1000.0
    trained.run(2)
    assert trained.seconds < 0


def test_a_running_training_is_shown_by_its_newest_checkpoint(viser, port, trained, tmp_path):
    import shutil

    folder = tmp_path / "running"
    shutil.copytree(trained[0], folder, ignore=shutil.ignore_patterns("model.ply", "results.json"))
    late = next(folder.glob("checkpoints/*00004*"))
    late.rename(tmp_path / late.name)
    shown = Running(folder, torch.device("cpu"))
    assert "step 2 of 4" in shown.told() and "PSNR" in shown.told() and not shown.reload()
    (tmp_path / late.name).rename(late)
    assert shown.reload() and "step 4 of 4" in shown.told()
    assert torch.equal(shown.now().params["means"], trained[1].params["means"])
    assert [stand.name for stand in shown.stands()] == list(read_named(trained[0] / "cameras.json"))
    shutil.rmtree(folder / "checkpoints")
    with pytest.raises(RecordError, match=r"running' has neither model\.ply nor a checkpoint"):
        view(SplatViewConfig(model=str(folder), port=port))


def test_a_running_training_is_shown_on_the_white_that_its_scene_has(settings, scene_folder, tmp_path):
    import shutil

    from PIL import Image

    scene = tmp_path / "scene"
    shutil.copytree(scene_folder, scene)
    matrix = np.diag([1.0, -1, -1, 1]).tolist()
    for name in ("view_000", "view_001"):
        Image.open(scene / "images" / f"{name}.png").convert("RGBA").save(scene / f"{name}.png")
    frames = [{"file_path": f"./{name}", "transform_matrix": matrix} for name in ("view_000", "view_001")]
    (scene / "transforms.json").write_text(json.dumps({"camera_angle_x": 0.8, "frames": frames}))
    config = settings(scene=str(scene / "transforms.json"), background="auto", steps=2, start_splats=50)
    trained = train_model(config).trainer
    (tmp_path / "out" / "model.ply").unlink()
    shown = Running(tmp_path / "out", torch.device("cpu")).now()
    assert trained.beside.color.tolist() == shown.background.tolist() == [[1.0, 1.0, 1.0]]


def test_cameras_that_are_no_json_are_told(trained, tmp_path):
    (tmp_path / "cameras.json").write_text("[3")
    with pytest.raises(DataError, match=r"cameras\.json' is no JSON"):
        read_named(tmp_path / "cameras.json")


def test_files_and_folders_are_shown_until_the_end(viser, port, trained, tmp_path):
    file = tmp_path / "model.splat"
    write_splats(file, read_splats(trained[0] / "model.ply"))
    for where in (trained[0], file):
        said, turns = [], iter([False, False, True])
        config = SplatViewConfig(model=str(where), port=port, device="cpu")
        view(config, lambda event, said=said: said.append(event.text), until=lambda turns=turns: next(turns))
        assert f"http://127.0.0.1:{port}" in said[0] and str(where) in said[0]
        server = fake_viser.ViserServer.last
        assert server.stopped and "400 splats" in server.gui.controls["status"].content
        assert len(server.scene.frustums) == (14 if where == trained[0] else 8)


def test_ctrl_c_closes_the_page_and_is_no_error(viser, port, trained, capsys, monkeypatch):
    def interrupt(self, seconds):
        raise KeyboardInterrupt

    monkeypatch.setattr(Viewer, "wait", interrupt)
    assert run(["splat", "view", str(trained[0]), "--port", str(port), "--device", "cpu"]) == 0
    assert "the page is closed" in capsys.readouterr().err and fake_viser.ViserServer.last.stopped


def test_a_port_in_use_is_told_before_anything_is_read(viser, settings):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        number = taken.getsockname()[1]
        with pytest.raises(EnvironmentUnusable, match=f"port = {number} is in use"):
            viewer_module.open_server(number, "")
        with pytest.raises(EnvironmentUnusable, match=f"port = {number} is in use"):
            train(settings(view=number, scene="/nowhere"))
    with pytest.raises(ConfigError, match="port = 70000 is not valid"):
        viewer_module.check_port(70000)


def test_a_port_that_viser_did_not_get_is_refused(viser, port, monkeypatch):
    monkeypatch.setattr(fake_viser.ViserServer, "get_port", lambda self: self.port + 1)
    with pytest.raises(EnvironmentUnusable, match=f"port = {port} is in use"):
        viewer_module.open_server(port, "")
    assert fake_viser.ViserServer.last.stopped


def test_without_viser_the_extra_is_named(monkeypatch, port, trained):
    monkeypatch.setitem(sys.modules, "viser", None)
    with pytest.raises(EnvironmentUnusable, match=r"viser, which is not installed.*hotlap\[view\]"):
        view(SplatViewConfig(model=str(trained[0]), port=port, device="cpu"))


def test_a_training_that_cannot_be_shown_is_not_begun(monkeypatch, port, settings):
    config = settings(view=port, scene="nowhere")
    monkeypatch.setitem(sys.modules, "viser", None)
    with pytest.raises(EnvironmentUnusable, match="viser, which is not installed"):  # before the scene is read
        train(config)
    assert not Path(config.out).exists()


def test_what_is_no_model_is_told(viser):
    with pytest.raises(ConfigError, match="no model was given"):
        view(SplatViewConfig())
    with pytest.raises(DataError, match="nowhere"):
        view(SplatViewConfig(model="/nowhere.ply"))


def test_viser_itself_takes_the_page(port, trained):
    pytest.importorskip("viser")
    stands = list(read_named(trained[0] / "cameras.json").values())
    page = Viewer(lambda: trained[1], stands, port=port)
    try:
        page.add_pause()
        page.tell("hello")
        assert page.server.get_port() == port and page.draw_waiting() < 1 and not page.is_waiting()
        with pytest.raises(EnvironmentUnusable, match=f"port = {port} is in use"):
            viewer_module.check_port(port)
    finally:
        page.close()
