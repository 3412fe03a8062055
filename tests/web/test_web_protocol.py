"""The Open Inference Protocol over HTTP: tensors in, tensors out, and a clear word for every wrong request."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

pytest.importorskip("fastapi")
from web_fakes import MEMORY, bright_service, client_of

from hotlap.base.errors import DataError
from hotlap.measure.servable import Signature, TensorSpec
from hotlap.web.tensors import encode_infer, parse_infer

INFER = "/v2/models/bright/infer"


@pytest.fixture(scope="module")
def house():
    runner, service = bright_service(max_delay_s=0.0)
    with client_of(service) as client:
        yield client, runner, service


@pytest.fixture
def client(house):
    return house[0]


def infer_body(rows=1, **changes):
    data = np.full((rows, 3, 4, 4), 0.75).ravel().tolist()
    return {"inputs": [{"name": "x", "shape": [rows, 3, 4, 4], "datatype": "FP32", "data": data, **changes}]}


def test_health_and_metadata(client):
    assert client.get("/v2/health/live").json() == {"live": True}
    assert client.get("/v2/health/ready").status_code == 200
    assert client.get("/v2/models/bright/ready").json() == {"ready": True}
    assert client.get("/v2").json()["name"] == "hotlap"
    about = client.get("/v2/models/bright").json()
    assert about["inputs"] == [{"name": "x", "datatype": "FP32", "shape": [-1, 3, 4, 4]}]
    assert [client.get(f"/v2/models/bright/versions/{version}").json() for version in about["versions"]] == [about]
    assert client.get("/v2/models/bright/versions/1/ready").status_code == 200
    assert client.get("/v2/models/bright/versions/2").status_code == 404
    assert client.post("/v2/models/bright/versions/1/infer", json=infer_body()).status_code == 200
    assert about["outputs"] == [{"name": "output", "datatype": "FP32", "shape": [-1, 2, 4, 4]}]


def test_tensors_go_through_the_model(client):
    answer = client.post(INFER, json={"id": "7", **infer_body(rows=6)})
    assert answer.status_code == 200, answer.text
    said = answer.json()
    (out,) = said["outputs"]
    assert (said["id"], said["model_name"]) == ("7", "bright")
    assert (out["name"], out["shape"], out["datatype"]) == ("output", [6, 2, 4, 4], "FP32")
    values = np.array(out["data"]).reshape(6, 2, 4, 4)
    assert np.allclose(values[:, 0], 0.5) and np.allclose(values[:, 1], 0.75)


def test_tensors_travel_as_bytes_both_ways(client):
    x = np.linspace(0, 1, 96, dtype=np.float32).reshape(2, 3, 4, 4)
    entry = {"name": "x", "shape": [2, 3, 4, 4], "datatype": "FP32", "parameters": {"binary_data_size": x.nbytes}}
    head = json.dumps({"inputs": [entry], "parameters": {"binary_data_output": True}}).encode()
    answer = client.post(INFER, content=head + x.tobytes(), headers={"Inference-Header-Content-Length": str(len(head))})
    assert answer.status_code == 200, answer.text
    length = int(answer.headers["Inference-Header-Content-Length"])
    (out,) = json.loads(answer.content[:length])["outputs"]
    assert out["parameters"] == {"binary_data_size": 2 * 2 * 16 * 4}
    values = np.frombuffer(answer.content[length:], np.float32).reshape(out["shape"])
    assert np.allclose(values[:, 1], x.mean(1))


def test_what_is_not_finite_is_null(client, house):
    body = infer_body(data=[float("nan")] * 48)
    answer = client.post(INFER, content=json.dumps(body))
    assert answer.status_code == 200
    assert None in answer.json()["outputs"][0]["data"]


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        ("{", 422, "not JSON"),
        ("[" * 100_000, 422, "not JSON"),
        ("[]", 422, "the body is a list"),
        ("{}", 422, "inputs = None"),
        (json.dumps({"inputs": [3]}), 422, "inputs holds 3"),
        (json.dumps({"inputs": []}), 422, "input 'x' is missing"),
        (json.dumps(infer_body(name="y")), 404, "unknown input 'y'"),
        (json.dumps(infer_body(datatype="FP31")), 422, "datatype = 'FP31'"),
        (json.dumps(infer_body(datatype="FP64")), 400, "is torch.float64"),
        (json.dumps(infer_body(shape=[-1, 48])), 400, "shape = [-1, 48]"),
        (json.dumps(infer_body(shape=[2**31, 1])), 400, "shape ="),
        (json.dumps(infer_body(shape=[1, 48])), 400, "has shape [1, 48]"),
        (json.dumps(infer_body(shape=[0, 3, 4, 4], data=[])), 400, "has shape [0, 3, 4, 4]"),
        (json.dumps(infer_body(data=[1, 2])), 400, "holds 2 values"),
        (json.dumps(infer_body(data=[[1], [1, 2]])), 422, "is not a tensor"),
        (json.dumps(infer_body(data=["a"] * 48)), 422, "is not a tensor"),
        (json.dumps(infer_body(data="abc")), 422, "data = 'abc'"),
        (json.dumps(infer_body(parameters={"binary_data_size": 192})), 400, "binary_data_size = 192"),
        (json.dumps(infer_body(parameters=[1])), 422, "parameters of input 'x' = [1]"),
        (json.dumps({**infer_body(), "outputs": [{"name": "z"}]}), 404, "unknown output 'z'"),
        (json.dumps({**infer_body(), "parameters": {"deadline_s": "soon"}}), 422, "deadline_s = 'soon'"),
        (json.dumps({**infer_body(), "parameters": {"deadline_s": -4}}), 400, "deadline = -4 s"),
        (json.dumps(infer_body(rows=300)), 413, "rows = 300"),
    ],
)
def test_wrong_requests_are_told_what_is_wrong(client, body, status, words):
    answer = client.post(INFER, content=body)
    assert (answer.status_code, words in answer.json()["error"]) == (status, True), answer.text
    assert "Traceback" not in answer.text


def test_a_header_length_that_lies_is_refused(client):
    endless = client.post(INFER, content=b"{}", headers={"Inference-Header-Content-Length": "9" * 5000})
    assert (endless.status_code, "a number up to 2" in endless.json()["error"]) == (422, True), endless.text
    answer = client.post(INFER, content=b"{}", headers={"Inference-Header-Content-Length": "999"})
    assert (answer.status_code, "= '999'" in answer.json()["error"]) == (422, True)


def test_only_the_outputs_that_are_named_are_sent_and_numbers_are_taken_as_they_are():
    def spec(name, dtype="float32"):
        return TensorSpec(name=name, dtype=dtype, shape=(2,))

    whole = Signature(inputs=(spec("x", "uint8"),), outputs=(spec("a"), spec("b")), rows=1, arm="fake")
    body = {"id": None, "inputs": [{"name": "x", "shape": [1, 2], "datatype": "UINT8", "data": [1, 255]}]}
    outputs = (torch.zeros(1, 2), torch.ones(1, 2))

    def answered(**more):
        request = parse_infer(json.dumps({**body, **more}).encode(), None, whole)
        content, length = encode_infer("m", request, outputs, whole)
        said = json.loads(content[:length])
        assert "id" not in said
        return [(entry["name"], entry.get("data")) for entry in said["outputs"]]

    assert answered() == answered(outputs=[]) == [("a", [0.0, 0.0]), ("b", [1.0, 1.0])]
    assert answered(outputs=[{"name": "b"}]) == [("b", [1.0, 1.0])]
    assert answered(outputs=[{"name": "b"}], parameters={"binary_data_output": True}) == [("b", None)]
    with pytest.raises(DataError, match="Inference-Header-Content-Length = '²'"):
        parse_infer(b"{}", "²", whole)
    for wrong in ([1.5, 0], [-1, 0]):
        body["inputs"][0]["data"] = wrong
        with pytest.raises(DataError, match="data of input 'x' holds numbers that are no uint8"):
            answered()


def test_an_unknown_model_is_not_found(client):
    for path in ("/v2/models/brihgt", "/v2/models/brihgt/ready"):
        assert client.get(path).status_code == 404
    answer = client.post("/v2/models/brihgt/infer", json=infer_body())
    assert (answer.status_code, answer.json()["kind"]) == (404, "UnknownName")
    assert "'bright'" in answer.json()["error"]


def test_what_goes_wrong_in_the_model_has_a_status_and_no_stack(house):
    client, runner, _ = house
    for error, status in ((MEMORY, 413), (KeyError("secret"), 500)):
        runner.failing = error
        answer = client.post(INFER, json=infer_body())
        runner.failing = None
        assert answer.status_code == status
        assert "Traceback" not in answer.text and "secret" not in answer.text
    assert client.post(INFER, json=infer_body()).status_code == 200


def test_openapi_describes_every_route(client):
    said = client.get("/openapi.json").json()
    running = (
        "/v2/models/{model}/infer",
        *(f"/api/v1/{name}" for name in ("segment", "batch-segment", "mesh", "render")),
    )
    for path in running:
        post = said["paths"][path]["post"]
        assert post["requestBody"]["content"] and {"429", "503", "504"} <= set(post["responses"])
    others = ("measure", "export", "export/{kind}", "runs", "runs/{name}/{stamp}/report", "status", "models")
    assert {"/metrics", *(f"/api/v1/{name}" for name in others)} <= set(said["paths"])
    examples = {path: json.dumps(said["paths"][path]["post"]["requestBody"]) for path in running}
    assert all("example" in text for text in examples.values()), examples


def test_examples_of_the_description_are_answered_when_they_are_sent(client):
    said = client.get("/openapi.json").json()
    infer = said["paths"]["/v2/models/{model}/infer"]["post"]
    (model,) = (one["schema"]["example"] for one in infer["parameters"] if one["name"] == "model")
    answer = client.post(
        f"/v2/models/{model}/infer", json=infer["requestBody"]["content"]["application/json"]["example"]
    )
    assert (answer.status_code, answer.json()["outputs"][0]["shape"]) == (200, [1, 2, 4, 4])
    export = said["paths"]["/api/v1/export/{kind}"]["post"]["requestBody"]["content"]["application/json"]
    examples = {"measure": said["components"]["schemas"]["DrawnPicture"]["example"], "export/csv": export["example"]}
    for path, example in examples.items():
        sent = client.post(f"/api/v1/{path}", json=example)
        assert sent.status_code == 200, sent.text
    form = said["paths"]["/api/v1/segment"]["post"]["requestBody"]["content"]["multipart/form-data"]["schema"]
    assert form["properties"]["model"]["example"] == "bright"
