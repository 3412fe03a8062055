"""Forms of a model in the model's place: the same answers, made once, refused with a reason."""

from __future__ import annotations

import dataclasses
import shutil
import sys
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from hotlap.base.errors import EnvironmentUnusable, TargetError, UsageError
from hotlap.measure import deployed
from hotlap.measure.arms import FORMS, in_form, options_lost, parse_arm
from hotlap.measure.capture import capture
from hotlap.measure.deploy_files import FILES
from hotlap.measure.onnx_runner import OnnxRunner, _providers
from hotlap.measure.session import Session
from hotlap.targets import InputSpec, ModuleWorkload
from hotlap.workload import Workload


class Gated(nn.Module):
    """A nest in, a keyword, a constant, a tuple out."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 3)

    def forward(self, pair, *, shift, scale):
        x, gate = pair
        return self.linear(x) * gate * scale + shift, x


class GatedWorkload(Workload):
    name = "gated"
    scale = 3.0

    def build_model(self):
        return Gated()

    def make_batch(self, n, device, generator):
        drawn = [torch.randn(n, 4, generator=generator), torch.rand(n, 1, generator=generator)]
        return {"x": drawn[0].to(device), "gate": drawn[1].to(device)}

    def predict(self, model, batch):
        return model((batch["x"], batch["gate"]), shift=batch["gate"], scale=self.scale)[0]

    def loss(self, model, batch):
        return self.predict(model, batch).sum(), 1


def mlp():
    return ModuleWorkload("mlp", lambda: nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)), [InputSpec((4,))])


def session(arm, workload=None, **settings):
    return Session(workload or GatedWorkload(), parse_arm(arm), mode="infer", batch=3, seed=0, **settings)


@pytest.mark.parametrize("form", ["exported", "torchscript"])
def test_a_form_gives_the_models_answers(device, form, plain_float32):
    plain, formed = session(device.type), session(f"{device.type}:{form}")
    for _ in range(3):
        torch.testing.assert_close(formed.step(), plain.step())
    assert formed.model is not formed.plain_model


class Tokens(GatedWorkload):
    """A language model's way: all tokens but the last go in."""

    name = "tokens"

    def build_model(self):
        return nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 9))

    def make_batch(self, n, device, generator):
        return torch.randint(9, (n, 6), generator=generator).to(device)

    def predict(self, model, batch):
        return model(batch[:, :-1])


@pytest.mark.parametrize("dynamic", [True, False])
def test_a_form_of_a_model_that_is_given_a_view_takes_any_tensor(tmp_path, dynamic):
    workload = Tokens()
    model, generator = workload.build_model().eval(), torch.Generator().manual_seed(0)
    call = capture(workload, model, workload.make_batch(3, "cpu", generator))
    call = dataclasses.replace(call, dynamic=((0,),) if dynamic else ())
    file = deployed.make_form(parse_arm("cpu:exported"), model, call, tmp_path)
    own = torch.randint(9, (3, 5), generator=generator)
    torch.testing.assert_close(torch.export.load(file).module()(own), model(own))


def test_an_onnx_file_gives_the_models_answers():
    pytest.importorskip("onnxruntime")
    plain, formed = session("cpu"), session("cpu:onnx")
    torch.testing.assert_close(formed.step(), plain.step())


def test_half_precision_and_layout_are_inside_the_form():
    convolution = ModuleWorkload("conv", lambda: nn.Conv2d(3, 4, 3), [InputSpec((3, 8, 8))])
    plain = session("cpu:bf16+channels_last", convolution).step()
    formed = session("cpu:bf16+channels_last+torchscript", convolution).step()
    assert formed.dtype == plain.dtype == torch.bfloat16
    assert torch.equal(formed, plain)


def test_a_form_is_made_once_and_then_read(tmp_path, monkeypatch):
    file = tmp_path / FILES["torchscript"]
    first = session("cpu:torchscript", file=file).step()
    assert [path.name for path in tmp_path.iterdir()] == [file.name]
    monkeypatch.setattr(deployed, "make_form", None)
    assert torch.equal(session("cpu:torchscript", file=file).step(), first)


def test_a_form_called_in_another_way_is_refused():
    formed = session("cpu:torchscript")
    formed.workload.scale = 4.0
    with pytest.raises(TargetError, match=r"called in another way.*pair_0, pair_1, shift"):
        formed.step()


@pytest.mark.parametrize("form", FORMS)
def test_forms_are_for_inference(form):
    with pytest.raises(UsageError, match=rf"arm 'cpu:{form}' cannot be trained: {form} is a form for inference"):
        Session(mlp(), parse_arm(f"cpu:{form}"), mode="train", batch=2, seed=0)


class Branching(nn.Module):
    def forward(self, x):
        return x + 1 if x.sum() > 0 else x


def test_an_exporter_that_fails_is_named_with_the_models_class_and_its_reason():
    workload = ModuleWorkload("branching", Branching, [InputSpec((4,))])
    with pytest.raises(TargetError, match=r"exported cannot be made of Branching: \w+: .+"):
        session("cpu:exported", workload)


def test_a_form_that_its_runtime_refuses_is_named_with_the_reason():
    pytest.importorskip("onnxruntime")
    convolution = ModuleWorkload("conv", lambda: nn.Conv2d(3, 4, 3), [InputSpec((3, 8, 8))])
    with pytest.raises(TargetError, match=r"onnx was written, but cannot be read back: InvalidGraph: .*bfloat16"):
        session("cpu:bf16+onnx", convolution)


@pytest.mark.parametrize("package", ["onnx", "onnxscript", "onnxruntime"])
def test_a_package_that_is_not_installed_is_named_with_the_command(monkeypatch, package):
    for name in ("onnx", "onnxscript", "onnxruntime"):
        pytest.importorskip(name)
    monkeypatch.setitem(sys.modules, package, None)
    words = rf"form 'onnx' needs {package}, which is not installed. pip install 'hotlap\[export\]'"
    with pytest.raises(EnvironmentUnusable, match=words):
        deployed.require(parse_arm("cpu:onnx"))


def test_onnxruntime_without_its_cuda_part_is_refused_on_a_card(monkeypatch):
    onnxruntime = pytest.importorskip("onnxruntime")
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: ["CPUExecutionProvider"])
    with pytest.raises(EnvironmentUnusable, match=r"'cuda:onnx' needs onnxruntime's CUDAExecutionProvider"):
        deployed.require(parse_arm("cuda:onnx"))


def test_without_a_compiler_aoti_is_refused(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(EnvironmentUnusable, match=r"arm 'cpu:aoti' needs a C\+\+ compiler"):
        deployed.require(parse_arm("cpu:aoti"))


@pytest.mark.parametrize(("arm", "tf32"), [("cuda:onnx", "0"), ("cuda:1:tf32+onnx", "1")])
def test_onnxruntime_is_told_which_float32_the_arm_means(arm, tf32):
    (name, options), _ = _providers(parse_arm(arm))
    assert name == "CUDAExecutionProvider" and options["use_tf32"] == tf32


def test_a_card_that_onnxruntime_gives_up_on_by_itself_is_an_error(tmp_path, monkeypatch):
    class Session:
        def __init__(self, *_, **__):
            pass

        def get_providers(self):
            return ["CPUExecutionProvider"]

    fake = SimpleNamespace(InferenceSession=Session, SessionOptions=SimpleNamespace, preload_dlls=lambda: None)
    monkeypatch.setitem(sys.modules, "onnxruntime", fake)
    words = r"arm 'cuda:onnx': onnxruntime could not start its CUDAExecutionProvider and took CPUExecutionProvider"
    with pytest.raises(EnvironmentUnusable, match=words):
        OnnxRunner(tmp_path / "model.onnx", parse_arm("cuda:onnx"), ["x"])


def test_an_arm_in_a_form_loses_what_the_form_cannot_have():
    asked = parse_arm("cuda:1:bf16+channels_last+compile+fused+cudnn_benchmark")
    assert in_form(asked, "aoti").name == "cuda:1:bf16+channels_last+cudnn_benchmark+aoti"
    assert in_form(asked, "onnx").name == "cuda:1:bf16+onnx"
    assert in_form(asked, "").name == "cuda:1:bf16+channels_last+cudnn_benchmark"
    assert options_lost(asked, "onnx") == ["compile", "fused", "channels_last", "cudnn_benchmark"]
