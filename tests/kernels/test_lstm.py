"""One LSTM layer: every implementation against the reference in float64, by outputs and gradients."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from hotlap.base.errors import KernelUnavailable, ShapeError, UnknownName
from hotlap.kernels.agreement import disagreements, in_float64, outputs_and_grads
from hotlap.kernels.lstm.cases import REAL, SMALL, LstmCase, run_layer
from hotlap.kernels.lstm.op import IMPLS, lstm, lstm_choice
from hotlap.kernels.lstm.reference import lstm_ref

CPU = torch.device("cpu")


def check(case: LstmCase, impl: str, device: torch.device) -> None:
    reason = lstm_reason(impl, device, case)
    if reason:
        pytest.skip(reason)
    want = outputs_and_grads(run_layer(lstm_ref), in_float64(case.make(CPU)))
    got = outputs_and_grads(run_layer(partial(lstm, impl=impl)), case.make(device))
    assert {t.dtype for t in got.values()} == {case.dtype}
    assert disagreements(got, want, case.tolerance) == {}


def lstm_reason(impl: str, device: torch.device, case: LstmCase) -> str:
    try:
        lstm_choice(device, case.dtype, case.hidden, impl)
    except KernelUnavailable as error:
        return str(error)
    return ""


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("case", SMALL, ids=lambda case: case.id)
def test_matches_reference(case, impl, device, plain_float32, nan_filled):
    check(case, impl, device)


@pytest.mark.gpu
@pytest.mark.parametrize("impl", ["cuda", "triton"])
@pytest.mark.parametrize("case", REAL, ids=lambda case: case.id)
def test_matches_reference_at_sizes_of_real_use(case, impl, plain_float32, nan_filled):
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    check(case, impl, torch.device("cuda"))


@pytest.mark.slow
def test_triton_matches_reference_when_interpreted():
    """Those of the tests above and below that Triton takes part in, in a process that interprets it.

    Triton looks at the variable when it is imported, and some other test may have imported it.
    """
    pytest.importorskip("triton")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", __file__, "-k", "triton and cpu"]
    environ = {**os.environ, "TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert re.search(rf"{len(SMALL) - 1 + 2} passed", done.stdout), done.stdout  # one is in bfloat16


@pytest.mark.parametrize("ragged", [False, True])
def test_the_reference_is_nn_lstm(ragged):
    case = LstmCase(batch=6, steps=9, features=5, hidden=7, ragged=ragged, states=True)
    inputs = in_float64(case.make(CPU))
    layer = torch.nn.LSTM(5, 7, batch_first=True, bidirectional=True).double()
    layer.load_state_dict({n.replace("h_r", "h_l0_r") if "_r" in n else f"{n}_l0": inputs[n] for n in weight_names()})
    x, states = inputs["x"], (inputs["h0"], inputs["c0"])
    if ragged:
        inputs["lengths"] = lengths = inputs["lengths"].clamp(min=1)
        x = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
    want, (h_n, c_n) = layer(x, states)
    if ragged:
        want, _ = pad_packed_sequence(want, batch_first=True, total_length=9)
    got = run_layer(lstm_ref)(inputs)
    assert disagreements(got, {"out": want, "h_n": h_n, "c_n": c_n}, 1e-13) == {}


def weight_names() -> list[str]:
    return [f"{n}{d}" for d in ("", "_reverse") for n in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")]


@pytest.mark.parametrize("impl", ["cpu", "cuda", "triton"])
def test_an_empty_sequence_returns_the_state_it_got(impl, device):
    case = LstmCase(batch=3, steps=4, hidden=16, ragged=True, states=True)
    reason = lstm_reason(impl, device, case)
    if reason:
        pytest.skip(reason)
    inputs = case.make(device)
    got = run_layer(partial(lstm, impl=impl))(inputs)
    assert inputs["lengths"][1] == 0 and (got["out"][1] == 0).all()
    assert torch.equal(got["h_n"][:, 1], inputs["h0"][:, 1]) and torch.equal(got["c_n"][:, 1], inputs["c0"][:, 1])


@pytest.mark.parametrize("impl", ["cuda", "triton"])
def test_compiles_whole_with_its_gradients(impl, device):
    case = LstmCase(batch=3, steps=4, hidden=16, ragged=True, states=True)
    reason = lstm_reason(impl, device, case)
    if reason:
        pytest.skip(reason)
    layer = partial(lstm, impl=impl)
    torch._dynamo.reset()
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    got = outputs_and_grads(run_layer(compiled), case.make(device))
    torch._dynamo.reset()
    assert disagreements(got, outputs_and_grads(run_layer(layer), case.make(device)), 1e-6) == {}


@pytest.mark.gpu
@pytest.mark.parametrize("impl", ["cuda", "triton"])
def test_a_cuda_graph_repeats_it(impl):
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    case = LstmCase(batch=20, steps=8, hidden=64, ragged=True, dtype=torch.float16)
    reason = lstm_reason(impl, torch.device("cuda"), case)
    if reason:
        pytest.skip(reason)
    inputs = {n: t.requires_grad_(t.is_floating_point()) if t is not None else t for n, t in case.make("cuda").items()}
    leaves = [t for t in inputs.values() if t is not None and t.requires_grad]

    def step() -> tuple[torch.Tensor, ...]:
        return torch.autograd.grad(run_layer(partial(lstm, impl=impl))(inputs)["out"].float().sum(), leaves)

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        want = step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got = step()
    for tensor in got:
        tensor.fill_(float("nan"))
    graph.replay()
    torch.testing.assert_close(got, want)


@pytest.mark.parametrize("impl", IMPLS)
def test_follows_autocast_as_nn_lstm_does(impl, device):
    case = LstmCase(batch=4, steps=5, hidden=16, features=16, ragged=True, states=True)
    reason = lstm_reason(impl, device, replace(case, dtype=torch.bfloat16))
    if reason:
        pytest.skip(reason)
    run = run_layer(partial(lstm, impl=impl))
    with torch.autocast(device.type, dtype=torch.bfloat16):
        got = outputs_and_grads(run, case.make(device))
    want = outputs_and_grads(run_layer(lstm_ref), in_float64(case.make(CPU)))
    assert [got[name].dtype for name in ("out", "h_n", "c_n")] == [torch.bfloat16] * 3
    assert got["grad weight_hh"].dtype == torch.float32
    assert disagreements(got, want, replace(case, dtype=torch.bfloat16).tolerance) == {}


def test_without_gradients_nothing_is_kept(device):
    case = LstmCase(batch=2, steps=3, hidden=16)
    with torch.inference_mode():
        out = run_layer(lstm)(case.make(device))["out"]
    want = outputs_and_grads(run_layer(lstm_ref), in_float64(case.make(CPU)))["out"]
    assert disagreements({"out": out}, {"out": want}, 1e-3) == {}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": torch.zeros(3, 4)}, r"x must be \[B, T, F\], got \[3, 4\]"),
        ({"weight_hh": torch.zeros(64, 15)}, r"weights\[1\] must be \[4H, H\], got \[64, 15\]"),
        ({"bias_hh_reverse": torch.zeros(60)}, r"weights\[7\] must be \[4H\], got \[60\]"),
        ({"lengths": torch.ones(2)}, r"lengths must be \[B\], got \[2\]"),
        ({"h0": torch.zeros(1, 3, 16)}, r"h0 must be \[2, B, H\], got \[1, 3, 16\]"),
        ({"bias_ih": None}, r"len\(weights\) = 7 is not valid"),
    ],
)
def test_wrong_shapes_are_named(change, message):
    inputs = {**LstmCase(batch=3, steps=4, hidden=16).make(CPU), **change}
    with pytest.raises(ShapeError, match=message):
        run_layer(lstm)(inputs)


def test_an_explicit_request_that_cannot_run_says_why():
    small = LstmCase(batch=1, steps=1, hidden=4).make(CPU)
    with pytest.raises(KernelUnavailable, match=r"impl='cuda' cannot run here \(cuda: the tensors are on cpu\)"):
        run_layer(partial(lstm, impl="cuda"))(small)
    with pytest.raises(UnknownName, match=r"unknown impl 'tritn'\. Did you mean 'triton'"):
        run_layer(partial(lstm, impl="tritn"))(small)


def test_the_choice_for_a_cpu_names_what_speaks_against_the_others(monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    choice = lstm_choice(CPU, torch.float32, 256)
    assert choice.impl == "cpu" and list(choice.against) == ["cuda", "triton"]
    assert choice.against["cuda"] == "the tensors are on cpu"
    assert lstm_choice(torch.device("meta"), torch.float32, 256).impl == "reference"


@pytest.mark.parametrize(
    ("dtype", "hidden", "reason"),
    [(torch.float64, 256, "float64 is not among"), (torch.float32, 1025, "hidden = 1025 is above 1024")],
)
def test_triton_says_what_it_cannot_do(dtype, hidden, reason):
    pytest.importorskip("triton")
    with pytest.raises(KernelUnavailable, match=reason):
        lstm_choice(torch.device("cuda"), dtype, hidden, "triton")
