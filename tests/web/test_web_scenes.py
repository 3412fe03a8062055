"""Meshes and pictures of a scene over HTTP, with small models in this process."""

from __future__ import annotations

import io
import json
import threading

import numpy as np
import pytest

pytest.importorskip("fastapi")
from web_fakes import bright_service, client_of, picture

from hotlap.data.splats import Splats, write_splats
from hotlap.measure.servable import ModelSpec
from hotlap.mesh.served import MeshServable
from hotlap.splat.served import SplatServable
from hotlap.tools.serve import Service, ServiceSettings
from hotlap.tools.serve.runner import LocalRunner

Image = pytest.importorskip("PIL.Image")
POSE = [[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 4], [0, 0, 0, 1]]
CAMERA = {"width": 24, "height": 16, "fx": 20.0, "fy": 20.0, "camera_from_world": POSE}
CAMERAS = json.dumps([[0, 25, 0.8], [90, 25, 0.8]])


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    file = tmp_path_factory.mktemp("scene") / "scene.ply"
    one = np.zeros((1, 3), np.float32)
    splats = Splats(
        means=one, log_scales=one - 1, quats=np.float32([[1, 0, 0, 0]]), logit_opacities=np.float32([4]),
        sh0=one + 1.5, shN=np.zeros((1, 0, 3), np.float32),
    )  # fmt: skip
    write_splats(file, splats)
    options = {"hidden": 8, "levels": 1, "batch": 1}
    servables = {
        "scene": SplatServable(ModelSpec(name="scene", target="splat", weights=str(file))),
        "pp": MeshServable(ModelSpec(name="pp", target="pixel2mesh-pp", options=options)),
    }
    service = Service(servables, [LocalRunner("cpu", servables)], ServiceSettings(max_delay_s=0.0))
    with client_of(service) as client:
        yield client


def test_a_camera_sees_the_scene(client):
    answer = client.post("/api/v1/render", json=CAMERA)
    assert (answer.status_code, answer.headers["content-type"]) == (200, "image/png"), answer.text
    shown = np.asarray(Image.open(io.BytesIO(answer.content)))
    assert shown.shape == (16, 24, 3) and shown[8, 12].min() > 200 and shown[0, 0].max() < 20
    moved = {**CAMERA, "position": [0, 0, -4], "rotation": [[1, 0, 0], [0, 1, 0], [0, 0, 1]]}
    del moved["camera_from_world"]
    assert client.post("/api/v1/render?model=scene", json=moved).content == answer.content


def test_a_scene_speaks_the_protocol(client):
    inputs = [
        {"name": "viewmats", "shape": [1, 4, 4], "datatype": "FP32", "data": POSE},
        {"name": "Ks", "shape": [1, 3, 3], "datatype": "FP32", "data": [[20, 0, 12], [0, 20, 8], [0, 0, 1]]},
        {"name": "canvas", "shape": [1, 16, 24, 0], "datatype": "UINT8", "data": []},
    ]
    answer = client.post("/v2/models/scene/infer", json={"inputs": inputs})
    assert answer.status_code == 200, answer.text
    (out,) = answer.json()["outputs"]
    assert (out["name"], out["shape"], out["datatype"]) == ("picture", [1, 16, 24, 3], "UINT8")
    inputs[2]["shape"] = [1, 0, 24, 0]
    empty = client.post("/v2/models/scene/infer", json={"inputs": inputs})
    assert (empty.status_code, "24x0 pixels" in empty.json()["error"]) == (400, True), empty.text


def test_pictures_and_cameras_become_a_mesh(client):
    files = [("files", (f"{n}.png", picture(size=(20, 20)))) for n in range(2)]
    answer = client.post("/api/v1/mesh", files=files, data={"cameras": CAMERAS})
    assert (answer.status_code, answer.headers["content-type"]) == (200, "model/obj"), answer.text
    assert answer.text.count("\nv ") + answer.text.startswith("v ") == 156
    glb = client.post("/api/v1/mesh", files=files, data={"cameras": CAMERAS, "format": "glb", "model": "pp"})
    assert glb.content[:4] == b"glTF"
    rows = np.full((1, 1, 3, 224, 224), 255, np.uint8)
    cameras = np.float32([[[0, 25, 0, 0.8, 25]]])
    sent = (("image", rows, "UINT8"), ("cameras", cameras, "FP32"))
    inputs = [
        {"name": name, "shape": list(x.shape), "datatype": kind, "parameters": {"binary_data_size": x.nbytes}}
        for name, x, kind in sent
    ]
    head = json.dumps({"inputs": inputs}).encode()
    body, length = head + rows.tobytes() + cameras.tobytes(), {"Inference-Header-Content-Length": str(len(head))}
    answer = client.post("/v2/models/pp/infer", content=body, headers=length)
    assert answer.status_code == 200, answer.text
    assert answer.json()["outputs"][0]["shape"] == [1, 156, 3]


def test_wrong_requests_are_told(client):
    one = [("files", ("a.png", picture()))]
    for path, sent, status, words in (
        ("mesh", {"files": one}, 422, "cameras are missing"),
        ("mesh", {"files": one, "data": {"cameras": "[1"}}, 422, "cameras is not JSON"),
        ("mesh", {"files": one, "data": {"cameras": "[[0,0,1]]", "format": "stl"}}, 400, "format = 'stl'"),
        ("mesh", {"files": one, "data": {"model": "scene"}}, 400, "model 'scene' answers with no mesh"),
        ("mesh", {"files": one, "data": {"model": "no"}}, 404, "unknown model 'no'"),
        ("mesh", {"content": b"1"}, 422, "the body is no form"),
        ("render?model=pp", {"json": CAMERA}, 400, "model 'pp' answers with no picture"),
        ("render", {"content": b"{"}, 422, "the camera is not JSON"),
        ("render", {"json": {**CAMERA, "width": 60_000, "height": 60_000}}, 413, "60000x60000"),
        ("mesh", {"files": one * 9}, 413, "at most 8 in one request"),
        ("mesh", {"files": [("files", ("a.png", picture(1, (60_000, 1), mode="1")))]}, 413, "60000x1 pixels"),
        ("segment?model=scene", {"content": json.dumps(CAMERA)}, 400, "answers with a file"),
    ):
        answer = client.post(f"/api/v1/{path}", **sent)
        assert (answer.status_code, words in answer.json()["error"]) == (status, True), answer.text


@pytest.mark.parametrize("path", ["mesh", "render"])
def test_a_model_that_is_still_loaded_need_not_be_named(path, no_hang):
    runner, service = bright_service()
    loaded, start = threading.Event(), runner.start
    runner.start = lambda: loaded.wait(30) and start()
    with client_of(service, ready=False) as client:
        sent = {"json": CAMERA} if path == "render" else {"files": [("files", ("a.png", picture()))]}
        answer = client.post(f"/api/v1/{path}", **sent)
        loaded.set()
    assert (answer.status_code, "Retry-After" in answer.headers) == (503, True), answer.text


def test_models_say_what_they_answer(client):
    models = client.get("/api/v1/models").json()["models"]
    assert {one["name"]: one["answers"] for one in models} == {"scene": "picture", "pp": "mesh"}
