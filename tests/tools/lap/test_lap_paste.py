"""The code a user pastes does what the arm did: same weights after the same steps, same outputs."""

from __future__ import annotations

import copy
import subprocess
import sys

import pytest
import torch
from torch import nn

from hotlap.device.kept_memory import can_keep_memory
from hotlap.device.seed import seed_everything
from hotlap.measure.arms import parse_arm
from hotlap.measure.session import Session
from hotlap.measure.unbiased import UnbiasedConv2d, UnbiasedPaddedConv2d
from hotlap.tools.lap import LapConfig
from hotlap.tools.lap.paste import paste_of, use_commands
from hotlap.workload import Workload

CUDA_ARMS = (
    "cuda", "cuda:tf32+cudnn_benchmark", "cuda:fp16+fused", "cuda:bf16+channels_last+sdpa=flash+recompute",
    "cuda:1:bf16+compile=max-autotune", "cuda:bf16+graph", "cuda:fp16+kernels+graph",
)  # fmt: skip


class Pictures(Workload):
    name, summary = "pictures", "a convolution and a line"

    def build_model(self):
        up = nn.ConvTranspose2d(4, 4, 2, stride=2)
        layers = (nn.Conv2d(2, 4, 3), nn.Tanh(), up, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3))
        return nn.Sequential(*layers)

    def make_batch(self, n, device, generator):
        return torch.randn(n, 2, 6, 6, generator=generator).to(device), torch.ones(n, 3).to(device)

    def predict(self, model, batch):
        return model(batch[0])

    def loss(self, model, batch):
        return (self.predict(model, batch) - batch[1]).square().sum(), batch[0].shape[0]

    def optimizer(self, model, fused=None):
        return torch.optim.SGD(model.parameters(), lr=0.1, fused=fused)


class Normed(Pictures):
    def build_model(self):
        norm = nn.BatchNorm2d(4)
        norm.running_mean = torch.randn(4)
        return nn.Sequential(nn.Conv2d(2, 4, 3), norm, nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())


@pytest.fixture
def same_threads():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def pasted(arm, mode="train", **about):
    space: dict = {}
    exec(compile(paste_of(parse_arm(arm), 8, mode, **about), arm, "exec"), space)
    return space


def weights(model):
    return [parameter.detach().float().cpu() for parameter in model.parameters()]


def loss_of(outputs, targets):
    return (outputs - targets).square().sum() / len(outputs)


@pytest.mark.parametrize(
    "options", ["", "bf16", "channels_last", "fused+threads=1", "bf16+channels_last", "padded+shuffled+channels_last"]
)
def test_pasted_training_steps_give_the_weights_of_the_arm(options, device, plain_float32, same_threads):
    if device.type == "cuda":
        options = options.replace("+threads=1", "")
    arm = device.type + (f":{options}" if options else "")
    session = Session(Pictures(), parse_arm(arm), mode="train", batch=8, seed=0)
    space = pasted(arm)
    seed_everything(0)
    model = space["prepare"](Pictures().build_model())
    optimizer = Pictures().optimizer(model, fused="fused" in arm or None)
    for batch in session.batches[:3]:
        session.train_on(batch)
        space["train_step"](model, optimizer, loss_of, *batch)
    for mine, theirs in zip(weights(model), weights(session.plain_model), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-6)
    if "threads=1" in arm:
        assert torch.get_num_threads() == 1


@pytest.mark.skipif(not can_keep_memory(), reason="another C library")
def test_pasted_code_keeps_memory_as_the_arm_does():
    again = "for _ in range(10):\n    torch.empty(2**24).fill_(1.0)\n"  # at first there is no room yet that fits
    count = "import resource\nbefore = resource.getrusage(resource.RUSAGE_SELF).ru_minflt\n"
    count += 4 * again
    count += "print((resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) / 40)\n"
    source = paste_of(parse_arm("cpu:keep_memory"), 8, "train") + 4 * again + count
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True)
    assert float(done.stdout) < 2**24 * 4 / 4096 / 2, "not half of the pages that 64 MiB have; without, all of them"


def test_pasted_inference_gives_the_outputs_of_the_arm(device, plain_float32):
    arm = f"{device.type}:bf16+channels_last"
    session = Session(Pictures(), parse_arm(arm), mode="infer", batch=8, seed=0)
    space = pasted(arm, "infer")
    model = space["prepare"](copy.deepcopy(session.plain_model).train())
    got = space["predict"](model, session.batches[0][0])
    assert got.dtype == torch.bfloat16 and not model.training
    torch.testing.assert_close(got, session.infer_on(session.batches[0]), rtol=1e-2, atol=1e-2)


class Added(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3)

    def forward(self, x, shift):
        return self.norm(self.conv(x)).mean((2, 3)) + shift


class TwoInputs(Pictures):
    def build_model(self):
        return Added()

    def make_batch(self, n, device, generator):
        x, shift = torch.randn(n, 2, 6, 6, generator=generator), torch.randn(n, 3, generator=generator)
        return x.to(device), shift.to(device), torch.ones(n, 3).to(device)

    def predict(self, model, batch):
        return model(*batch[:-1])

    def loss(self, model, batch):
        return (self.predict(model, batch) - batch[-1]).square().sum(), batch[0].shape[0]


def test_pasted_code_calls_a_model_with_all_of_its_inputs(device, plain_float32):
    arm = f"{device.type}:bf16+channels_last"
    session, space = (
        Session(TwoInputs(), parse_arm(arm), mode="train", batch=8, seed=0),
        pasted(arm, several=True),
    )
    seed_everything(0)
    model = space["prepare"](Added())
    optimizer = TwoInputs().optimizer(model)
    for batch in session.batches[:2]:
        session.train_on(batch)
        space["train_step"](model, optimizer, loss_of, *batch)
    for mine, theirs in zip(weights(model), weights(session.plain_model), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-6)
    folded = f"{device.type}:folded"
    session, space = (
        Session(TwoInputs(), parse_arm(folded), mode="infer", batch=8, seed=0),
        pasted(folded, "infer", several=True),
    )
    seed_everything(0)
    *inputs, _ = session.batches[0]
    model = space["prepare"](Added(), *(tensor[:2] for tensor in inputs))
    torch.testing.assert_close(space["predict"](model, *inputs), session.infer_on(session.batches[0]))


class Volumes(Pictures):
    def build_model(self):
        return nn.Sequential(nn.Conv3d(2, 4, 3), nn.Tanh(), nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(4, 3))

    def make_batch(self, n, device, generator):
        return torch.randn(n, 2, 4, 5, 6, generator=generator).to(device), torch.ones(n, 3).to(device)


def test_pasted_code_for_volumes_lays_them_out_as_the_arm_does(device, plain_float32):
    arm = f"{device.type}:channels_last"
    session, space = Session(Volumes(), parse_arm(arm), mode="infer", batch=4, seed=0), {}
    exec(paste_of(parse_arm(arm), 4, "infer", volumes=True), space)
    model = space["prepare"](copy.deepcopy(session.plain_model).to(memory_format=torch.contiguous_format))
    assert model[0].weight.is_contiguous(memory_format=torch.channels_last_3d)
    plain = session.host_batches[0][0]
    assert space["place"](plain).is_contiguous(memory_format=torch.channels_last_3d)
    torch.testing.assert_close(space["predict"](model, plain), session.infer_on(session.batches[0]))


class NormedTrained(Normed):
    def make_batch(self, n, device, generator):
        return torch.randn(n, 2, 6, 6, generator=generator).to(device), torch.ones(n, 4).to(device)


@pytest.mark.parametrize("options", ["unbiased", "padded+unbiased"])
def test_pasted_training_leaves_out_the_biases_that_the_arm_does(device, plain_float32, options):
    arm = f"{device.type}:{options}"
    session, space = Session(NormedTrained(), parse_arm(arm), mode="train", batch=8, seed=0), pasted(arm)
    seed_everything(0)
    model = space["prepare"](NormedTrained().build_model())
    optimizer = NormedTrained().optimizer(model, fused=None)
    for batch in session.batches[:3]:
        session.train_on(batch)
        space["train_step"](model, optimizer, loss_of, *batch)
    kinds = [type(layer) for layer in model.modules()]
    assert (UnbiasedPaddedConv2d if "padded" in options else UnbiasedConv2d) in kinds
    for mine, theirs in zip(weights(model), weights(session.plain_model), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-6)


def test_pasted_folding_gives_the_outputs_of_the_arm(device, plain_float32):
    arm = f"{device.type}:bf16+folded+padded"
    session = Session(Normed(), parse_arm(arm), mode="infer", batch=8, seed=0)
    space, inputs = pasted(arm, "infer"), session.batches[0][0]
    seed_everything(0)
    model = space["prepare"](Normed().build_model(), inputs[:2])
    assert not any(isinstance(layer, nn.BatchNorm2d) for layer in model.modules())
    torch.testing.assert_close(space["predict"](model, inputs), session.infer_on(session.batches[0]))


@pytest.mark.parametrize("mode", ["train", "infer"])
@pytest.mark.parametrize("arm", CUDA_ARMS)
def test_code_for_a_card_is_whole_python_and_says_what_the_arm_does(arm, mode):
    spec, text = parse_arm(arm), paste_of(parse_arm(arm), 64, mode)
    compile(text, arm, "exec")
    compile(paste_of(spec, 64, mode, several=True), arm, "exec")
    assert f"{spec.name} at batch 64" in text and "batch_size=64" in text
    assert f'fp32_precision = "{"tf32" if spec.precision == "tf32" else "ieee"}"' in text
    wanted = {
        "memory_format=torch.channels_last": spec.channels_last,
        "torch.compile(": bool(spec.compile),
        'mode="max-autotune"': spec.compile == "max-autotune",
        "torch.cuda.graph(": spec.graph,
        "cudnn.benchmark = True": spec.cudnn_benchmark,
        "use_kernels()": spec.kernels,
        "SDPBackend.FLASH_ATTENTION": spec.sdpa == "flash",
        "checkpoint(": spec.recompute,
        "scaler.scale(loss)": spec.precision == "fp16" and mode == "train",
        "GradScaler(": spec.precision == "fp16" and mode == "train",
        "fused=True": mode == "train" and (spec.fused or (spec.graph and spec.precision == "fp16")),
        "capturable=True": mode == "train" and spec.graph,
    }
    assert {words: words in text for words in wanted} == wanted


@pytest.mark.gpu
def test_a_pasted_recording_replays_the_step_on_a_card(plain_float32):
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    session = Session(Pictures(), parse_arm("cuda:graph"), mode="infer", batch=8, seed=0)
    space = pasted("cuda:graph", "infer")
    model = space["prepare"](copy.deepcopy(session.plain_model))
    run = space["record"](lambda inputs: space["predict"](model, inputs), session.batches[0][0])
    torch.testing.assert_close(run(session.batches[1][0]), session.infer_on(session.batches[1]))


def test_the_command_repeats_the_target_with_its_options():
    config = LapConfig(target="net.py:net", input=("3x32x32",), workload={"width": 8})
    assert use_commands(config, parse_arm("cuda:bf16"), has_card=True) == [
        "hotlap train net.py:net --input 3x32x32 --set workload.width=8"
    ]
    train, infer = LapConfig(target="unet"), LapConfig(target="unet", mode="infer")
    cpu, second = parse_arm("cpu:threads=2"), parse_arm("cuda:1:bf16")
    assert use_commands(infer, cpu, has_card=False) == ["hotlap bench unet --mode infer --arms tuned-profile"]
    assert use_commands(infer, cpu, has_card=True) == ["hotlap bench unet --mode infer --arms cpu,tuned-profile"]
    assert use_commands(train, second, has_card=True) == ["hotlap train unet --device cuda:1"]
