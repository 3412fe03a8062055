"""L1 and SSIM: every implementation against the reference in float64, by loss and gradient."""

from __future__ import annotations

from dataclasses import replace
from functools import cache, partial

import pytest
import torch
from block_host import Host, check_compiles

from hotlap.base.errors import ConfigError, KernelUnavailable, ShapeError
from hotlap.kernels import launch as launching
from hotlap.kernels.agreement import disagreements, in_float64, outputs_and_grads
from hotlap.kernels.ssim import cpu, cuda
from hotlap.kernels.ssim.buffers import allocate
from hotlap.kernels.ssim.cases import REAL, SMALL, TOLERANCES, SsimCase, run_loss
from hotlap.kernels.ssim.op import IMPLS, l1_ssim, l1_ssim_choice, l1_ssim_grad, make_buffers, ssim
from hotlap.kernels.ssim.reference import l1_ssim_ref, ssim_map_ref

CPU = torch.device("cpu")
WANTED = ("loss", "grad image")


def reason_against(impl: str, case: SsimCase, device: torch.device) -> str:
    made = case.make(device)
    try:
        l1_ssim_choice(made["image"], made["target"], impl)
    except KernelUnavailable as error:
        return str(error)
    return ""


@cache
def truth(case: SsimCase) -> dict[str, torch.Tensor]:
    found = outputs_and_grads(run_loss(l1_ssim_ref, case), in_float64(case.make(CPU)))
    return {name: found[name] for name in WANTED}


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("case", SMALL, ids=lambda case: case.id)
def test_matches_reference(case, impl, device, plain_float32):
    if reason := reason_against(impl, case, device):
        pytest.skip(reason)
    got = outputs_and_grads(run_loss(partial(l1_ssim, impl=impl), case), case.make(device))
    assert got["grad image"].dtype == case.dtype
    assert disagreements({name: got[name] for name in WANTED}, truth(case), case.tolerance) == {}


@pytest.mark.gpu
@pytest.mark.parametrize("case", REAL, ids=lambda case: case.id)
def test_matches_reference_at_real_sizes(case, plain_float32):
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    card = torch.device("cuda")
    want = outputs_and_grads(run_loss(l1_ssim_ref, case), in_float64(case.make(card)))
    got = outputs_and_grads(run_loss(partial(l1_ssim, impl="cuda"), case), case.make(card))
    want, got = ({name: found[name] for name in WANTED} for found in (want, got))
    assert disagreements(got, want, case.tolerance) == {}


@pytest.fixture(scope="module")
def host(tmp_path_factory):
    return Host(tmp_path_factory.mktemp("ssim"))


@pytest.mark.parametrize("case", [SMALL[n] for n in (2, 3, 5)], ids=lambda case: case.id)
def test_the_cuda_kernels_thread_by_thread(case, host, monkeypatch):
    monkeypatch.setattr(launching, "launch", host)
    made = case.make(CPU)
    out = allocate(made["image"], cuda.num_sums(made["image"].shape, CPU))
    for tensor in (out.loss, out.grad, out.slopes, out.sums):
        tensor.fill_(float("nan"))
    cuda.run(made["image"], made["target"], case.ssim_weight, made["mask"], made["background"], out)
    want = loss_and_grad(case, in_float64(made))
    assert disagreements({"loss": out.loss, "grad": out.grad}, want, TOLERANCES[torch.float32]) == {}
    alone = allocate(made["image"], len(out.sums), with_grad=False)
    cuda.run(made["image"], made["target"], case.ssim_weight, made["mask"], made["background"], alone)
    assert torch.equal(alone.loss, out.loss)


def loss_and_grad(case: SsimCase, inputs) -> dict[str, torch.Tensor]:
    inputs = {**inputs, "image": inputs["image"].detach().requires_grad_()}
    loss = l1_ssim_ref(ssim_weight=case.ssim_weight, **inputs)
    return {"loss": loss.detach(), "grad": torch.autograd.grad(loss, inputs["image"])[0]}


def test_a_missing_barrier_is_seen(tmp_path, monkeypatch):
    monkeypatch.setattr(launching, "launch", Host(tmp_path, without="block_barrier();\n            fetch(row + 1);"))
    case = SsimCase(batch=1, height=9, width=60)
    made = case.make(CPU)
    out = allocate(made["image"], cuda.num_sums(made["image"].shape, CPU))
    cuda.run(made["image"], made["target"], 0.2, None, None, out)
    assert (
        disagreements({"loss": out.loss}, {"loss": loss_and_grad(case, in_float64(made))["loss"]}, case.tolerance) != {}
    )


def test_compiles_for_cards():
    check_compiles(cuda.program_for(3, torch.float32, torch.uint8, False), "sm_90")
    check_compiles(cuda.program_for(4, torch.bfloat16, torch.float16, True), "sm_80")


def test_a_picture_is_like_itself_and_less_like_another(device):
    case = SsimCase(batch=2, height=20, width=24)
    made = case.make(device)
    assert abs(ssim(made["image"], made["image"]).item() - 1) < 1e-5
    want = ssim_map_ref(made["image"].double(), made["target"].double()).mean()
    assert abs(ssim(made["image"], made["target"]).item() - want.item()) < 1e-5 and want < 0.99


@pytest.mark.parametrize("impl", IMPLS)
def test_a_training_step_needs_no_new_memory(impl, device, plain_float32):
    case = SsimCase(batch=1, height=20, width=30, bytes=True)
    if reason := reason_against(impl, case, device):
        pytest.skip(reason)
    made = case.make(device)
    out = make_buffers(made["image"], made["target"], impl=impl)
    out.grad.fill_(float("nan"))
    loss, grad = l1_ssim_grad(made["image"], made["target"], out=out, impl=impl)
    assert loss is out.loss and grad is out.grad
    assert disagreements({"loss": loss, "grad": grad}, loss_and_grad(case, in_float64(made)), case.tolerance) == {}


@pytest.mark.gpu
def test_a_cuda_graph_repeats_it():
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    case = SsimCase(batch=1, height=70, width=90, bytes=True)
    made, other = case.make(torch.device("cuda")), replace(case, alpha=True).make(torch.device("cuda"))
    out = make_buffers(made["image"], made["target"])
    step = partial(l1_ssim_grad, made["image"], made["target"], out=out)
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    made["image"].copy_(1 - other["image"])
    out.grad.fill_(float("nan"))
    graph.replay()
    want = l1_ssim_grad(made["image"], made["target"])
    assert torch.equal(out.loss, want[0]) and torch.equal(out.grad, want[1])


def test_compiles_whole_with_its_gradient(device):
    case = SsimCase(batch=1, height=12, width=15, masked=True)
    impl = "cuda" if device.type == "cuda" else "cpu"
    if reason := reason_against(impl, case, device):
        pytest.skip(reason)
    torch._dynamo.reset()
    loss = torch.compile(partial(l1_ssim, impl=impl), fullgraph=True, backend="aot_eager")
    got = outputs_and_grads(run_loss(loss, case), case.make(device))
    torch._dynamo.reset()
    want = outputs_and_grads(run_loss(partial(l1_ssim, impl=impl), case), case.make(device))
    assert disagreements(got, want, 1e-6) == {}


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"target": torch.zeros(1, 8, 9, 2)}, ShapeError, r"target must be \[B, H, W, C\], got \[1, 8, 9, 2\]"),
        ({"mask": torch.zeros(1, 9, 8)}, ShapeError, r"mask must be \[B, H, W\], got \[1, 9, 8\]"),
        ({"background": torch.zeros(3)}, ShapeError, r"background is given and target \[1, 8, 9, 3\] has no alpha"),
        ({"ssim_weight": 1.5}, ConfigError, r"ssim_weight = 1\.5 is not valid\. Expected a number from 0 to 1"),
        ({"impl": "cuda"}, KernelUnavailable, r"impl='cuda' cannot run here \(cuda: the tensors are on cpu\)"),
    ],
)
def test_wrong_inputs_are_named(change, error, message):
    made = {"image": torch.zeros(1, 8, 9, 3), "target": torch.zeros(1, 8, 9, 3), **change}
    with pytest.raises(error, match=message):
        l1_ssim(made.pop("image"), made.pop("target"), **made)


def test_no_pixels_and_wrong_buffers_are_named():
    with pytest.raises(ShapeError, match=r"image \[0, 8, 9, 3\] has no pixels"):
        l1_ssim(torch.zeros(0, 8, 9, 3), torch.zeros(0, 8, 9, 3))
    image = torch.zeros(1, 8, 9, 3)
    out = make_buffers(torch.zeros(1, 8, 8, 3), torch.zeros(1, 8, 8, 3))
    with pytest.raises(ShapeError, match=r"out\.grad must be \[1, 8, 9, 3\] like the image, got \[1, 8, 8, 3\]"):
        l1_ssim_grad(image, image, out=out)


@pytest.mark.parametrize(
    ("image", "target", "channels", "reason"),
    [
        (torch.float64, torch.uint8, 3, "an image of float64 is not among float32, float16 and bfloat16"),
        (torch.float32, torch.int32, 3, "a target of int32 is not among float32, float16, bfloat16, uint8"),
        (torch.float32, torch.uint8, 33, "33 channels are above 32"),
    ],
)
def test_cuda_says_what_it_cannot_do(image, target, channels, reason):
    assert cuda.why_not(torch.device("cuda"), image, target, channels) == reason


def test_without_numba_the_reference_steps_in(monkeypatch):
    monkeypatch.setattr(cpu, "find_spec", lambda name: None)
    choice = l1_ssim_choice(torch.zeros(1, 4, 4, 3), torch.zeros(1, 4, 4, 3))
    assert choice.impl == "reference" and choice.against["cpu"] == "numba is not installed"
