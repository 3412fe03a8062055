"""Graph convolutions: every implementation against the reference in float64, by output and gradients."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from functools import partial

import pytest
import torch

from hotlap.base.errors import KernelUnavailable, ShapeError
from hotlap.kernels.agreement import disagreements, in_float64, outputs_and_grads
from hotlap.kernels.graph_conv.cases import REAL, SMALL, GraphConvCase, run_conv
from hotlap.kernels.graph_conv.op import IMPLS, graph_conv, graph_conv_choice
from hotlap.kernels.graph_conv.reference import graph_conv_ref
from hotlap.kernels.graph_conv.support import support_from_matrix, support_from_rows

CPU = torch.device("cpu")


def skip_unless(impl: str, device: torch.device, dtype: torch.dtype) -> None:
    try:
        graph_conv_choice(device, dtype, impl)
    except KernelUnavailable as error:
        pytest.skip(str(error))


def check(case: GraphConvCase, impl: str, device: torch.device) -> None:
    skip_unless(impl, device, case.dtype)
    want = outputs_and_grads(run_conv(graph_conv_ref, case, case.support(CPU)), in_float64(case.make(CPU)))
    conv = run_conv(partial(graph_conv, impl=impl), case, case.support(device))
    got = outputs_and_grads(conv, case.make(device))
    assert {t.dtype for t in got.values()} == {case.dtype}
    assert disagreements(got, want, case.tolerance, case.typical) == {}


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("case", SMALL, ids=lambda case: case.id)
def test_matches_reference(case, impl, device, plain_float32, nan_filled):
    check(case, impl, device)


@pytest.mark.gpu
@pytest.mark.parametrize("case", REAL, ids=lambda case: case.id)
def test_matches_reference_at_real_sizes(case, plain_float32, nan_filled):
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    check(case, "triton", torch.device("cuda"))


@pytest.mark.slow
def test_triton_matches_reference_when_interpreted():
    """Triton looks at the variable when it is imported, and some other test may have imported it."""
    pytest.importorskip("triton")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", __file__, "-k", "triton and cpu"]
    environ = {**os.environ, "TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert re.search(rf"{len(SMALL) - 1 + 1} passed", done.stdout), done.stdout  # one is in bfloat16


def test_the_reference_is_the_formula():
    matrix = torch.tensor([[0.5, 2.0, 0.0], [2.0, 0.0, -1.0], [0.0, -1.0, 0.25]]).double()
    x, weight, bias = torch.randn(4, 3, 5).double(), torch.randn(5, 4).double(), torch.randn(2).double()
    want = torch.relu(x @ weight[:, :2] + matrix @ x @ weight[:, 2:] + bias)
    torch.testing.assert_close(graph_conv_ref(x, weight, bias, support_from_matrix(matrix)), want)


def test_a_large_graph_is_its_matrix():
    case = GraphConvCase(rows=2, vertices=70, features=3, outputs=2)
    support, made = case.support(CPU), in_float64(case.make(CPU))
    matrix = torch.zeros(70, 70).double()
    for row in range(70):
        for column, value in zip(support.columns[row].tolist(), support.values[row].tolist(), strict=True):
            matrix[row, column] += value
    assert support.dense.numel() == 0 and torch.equal(matrix, matrix.T)
    y0, y1 = (made["x"] @ made["weight"]).chunk(2, -1)
    want = torch.relu(y0 + matrix @ y1 + made["bias"])
    torch.testing.assert_close(run_conv(graph_conv_ref, case, support)(made)["out"], want)


@pytest.mark.parametrize("impl", IMPLS)
def test_leading_dimensions_are_free_and_nothing_is_kept_without_gradients(impl, device):
    skip_unless(impl, device, torch.float32)
    case = GraphConvCase(rows=6, vertices=43, features=4, outputs=5)
    made, support = case.make(device), case.support(device)
    flat = graph_conv(made["x"], made["weight"], made["bias"], support, impl=impl)
    with torch.inference_mode():
        nested = graph_conv(made["x"].view(2, 3, 43, 4), made["weight"], made["bias"], support, impl=impl)
    assert torch.equal(nested.view(6, 43, 5), flat) and not nested.requires_grad


def test_compiles_whole_with_its_gradients(device):
    case = SMALL[1]
    torch._dynamo.reset()
    compiled = torch.compile(graph_conv, fullgraph=True, backend="aot_eager")
    got = outputs_and_grads(run_conv(compiled, case, case.support(device)), case.make(device))
    torch._dynamo.reset()
    want = outputs_and_grads(run_conv(graph_conv, case, case.support(device)), case.make(device))
    assert disagreements(got, want, 1e-6) == {}


def test_what_does_not_fit():
    support = support_from_matrix(torch.eye(3))
    with pytest.raises(ShapeError, match=r"y must be \[..., 3, 4\], got \[1, 4, 4\]"):
        graph_conv(torch.zeros(1, 4, 5), torch.zeros(5, 4), torch.zeros(2), support)
    with pytest.raises(ShapeError, match="the support is not symmetric"):
        support_from_rows(torch.tensor([[1], [1]]), torch.ones(2, 1))
