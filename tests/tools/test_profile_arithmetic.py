"""Work estimated from shapes against torch's own counter, and its distance from measured ceilings."""

from __future__ import annotations

import pytest
import torch
from fake_trace import FakeTrace, training_trace
from torch import nn
from torch.profiler import ProfilerActivity, profile
from torch.utils.flop_counter import FlopCounterMode, flop_registry

from hotlap.data.kineto import Shapes, read_trace
from hotlap.records.ceilings import Ceiling, Ceilings
from hotlap.tools.profile.analyse import Worked
from hotlap.tools.profile.arithmetic import FORMULAS, describe_shapes, work_of
from hotlap.tools.profile.roofline import roofline

ON_CPU = "_scaled_dot_product_flash_attention_for_cpu"
COUNTS_ON_CPU = getattr(torch.ops.aten, ON_CPU) in flop_registry
"""Torch 2.11 does not count what attention computes on a CPU."""


def nets():
    conv = nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=2, padding=1),
        nn.Conv2d(8, 8, 3, dilation=2),
        nn.ConvTranspose2d(8, 4, 2, stride=2),
    )
    attention = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, dropout=0.0)
    return {
        "convolutions": (conv, (2, 3, 17, 17)),
        "linear": (nn.Sequential(nn.Linear(6, 10), nn.ReLU(), nn.Linear(10, 3)), (5, 4, 6)),
        "attention": (attention, (2, 7, 16)),
    }


@pytest.mark.parametrize("name", nets())
def test_arithmetic_from_shapes_is_what_torch_counts(name, tmp_path):
    torch.manual_seed(0)
    model, size = nets()[name]
    x = torch.randn(size, requires_grad=True)
    counter = FlopCounterMode(display=False)
    with counter:
        model(x).sum().backward()
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as tracer:
        model(x).sum().backward()
    tracer.export_chrome_trace(str(tmp_path / "t.json"))
    trace = read_trace(tmp_path / "t.json")
    total = 0.0
    for op, shape in zip(trace.names_of(trace.ops), trace.ops.extra.tolist(), strict=True):
        is_counted = op in FORMULAS and shape >= 0 and not (ON_CPU in op and not COUNTS_ON_CPU)
        work = work_of(op, trace.shapes[shape]) if is_counted else None
        total += work.flops if work else 0.0
    assert total == counter.get_total_flops()


def test_each_gradient_of_a_grouped_convolution_costs_what_its_forward_does():
    tail = ("[1, 1]", "[0, 0]", "[2, 2]", "False", "[0, 0]", "4")
    forward = Shapes(dims=((2, 8, 9, 9), (8, 2, 3, 3), (8,)), kinds=("float",) * 3, values=("", "", "", *tail))
    backward = Shapes(
        dims=((2, 8, 5, 5), (2, 8, 9, 9), (8, 2, 3, 3)),
        kinds=("float",) * 3,
        values=("", "", "", "[8]", *tail, "[True, True, True]"),
    )
    once = 2 * (8 * 2 * 9) * (2 * 5 * 5)
    assert work_of("aten::convolution", forward).flops == once
    assert work_of("aten::convolution_backward", backward).flops == 2 * once


@pytest.mark.parametrize(
    ("name", "weights"),
    [
        ("aten::_cudnn_rnn", (((16, 3), (16, 4), (16,), (16,)),)),
        ("aten::mkldnn_rnn_layer", ((16, 3), (16, 4))),
    ],
)
def test_every_recurrent_weight_meets_every_step_of_every_sequence(name, weights):
    shapes = Shapes(dims=((7, 5, 3), *weights), kinds=("float",) * (1 + len(weights)))
    once = 2 * 7 * 5 * 16 * (3 + 4)
    assert work_of(name, shapes).flops == once
    assert work_of(f"{name}_backward", shapes).flops == 2 * once


def test_bytes_are_every_input_read_and_the_output_written_once():
    found = work_of("aten::mm", Shapes(dims=((4, 6), (6, 10)), kinds=("c10::BFloat16", "c10::BFloat16")))
    assert (found.flops, found.bytes, found.precision) == (480.0, 2 * (24 + 60 + 40), "bf16")
    found = work_of("aten::add", Shapes(dims=((8, 3), (8, 3), ()), kinds=("float", "float", "Scalar")))
    assert (found.flops, found.bytes) == (24.0, 4 * 72)


@pytest.mark.parametrize("name", ["aten::view", "aten::empty", "aten::t", "aten::detach"])
def test_looking_at_a_tensor_is_no_work(name):
    assert work_of(name, Shapes(dims=((4, 6),), kinds=("float",))) is None


def test_arguments_of_an_unknown_version_give_no_number_rather_than_a_wrong_one():
    assert work_of("aten::convolution", Shapes(dims=((1, 2, 3, 4), (5, 2, 1, 1)), kinds=("float", "float"))) is None
    assert work_of("aten::mm", Shapes()) is None


def test_shapes_are_described_by_their_first_tensors():
    shapes = Shapes(dims=((16, 3, 8, 8), (), (4, 3, 3, 3)), kinds=("float", "Scalar", "float"))
    assert describe_shapes(shapes) == "16x3x8x8, 4x3x3x3"


def ceilings(**rates):
    found = [Ceiling(quantity="matmul", unit="TFLOP/s", dtype=d, values=[v]) for d, v in rates.items() if d != "copy"]
    found.append(Ceiling(quantity="copy", unit="GB/s", values=[rates["copy"]]))
    return Ceilings(kind="cuda", device="Test Card", key="k", torch="2.15", measured_at="2026-11-15", ceilings=found)


def worked(trace: FakeTrace, tmp_path):
    return Worked(read_trace(trace.write(tmp_path / "t.json")))


def test_distance_is_from_the_nearer_measured_ceiling(tmp_path):
    trace = FakeTrace()
    trace.step(0, 0, 10_000)
    big = trace.op("aten::mm", 0, 20, dims=[[1000, 1000], [1000, 1000]])
    trace.launch("ampere_sgemm", (5, 5), (10, 4000), op=big)
    add = trace.op("aten::add", 30, 20, dims=[[1000, 1000], [1000, 1000]])
    trace.launch("vectorized_elementwise_kernel", (35, 5), (5000, 24), op=add)
    found = roofline(worked(trace, tmp_path), ceilings(fp32=1.0, tf32=4.0, copy=1000.0))
    assert found.ceilings == {"fp32": 1.0, "tf32": 4.0, "copy": 1000.0}
    assert "Test Card, measured 2026-11-15" in found.source
    product, sum_ = found.rows
    assert (product.bound, product.precision) == ("compute", "fp32")
    assert product.distance == pytest.approx(2.0), "2 GFLOP at 1 TFLOP/s take 2 ms, and it took 4"
    assert product.tflops == pytest.approx(0.5)
    assert (sum_.bound, sum_.distance) == ("memory", pytest.approx(2.0)), "12 MB at 1000 GB/s take 12 us"


def test_products_on_tf32_kernels_are_held_to_the_tf32_ceiling(tmp_path):
    found = roofline(worked(training_trace(), tmp_path), ceilings(fp32=1.0, tf32=4.0, copy=1000.0))
    row = next(row for row in found.rows if row.name == "aten::convolution")
    assert row.precision == "tf32"
    assert row.ideal_ms == pytest.approx(row.flops / 4e12 * 1e3)


def test_without_measured_ceilings_there_is_no_distance_and_it_is_said(tmp_path):
    found = roofline(worked(training_trace(), tmp_path), None)
    assert found.ceilings == {} and "hotlap doctor --measure" in found.source
    assert all(row.distance is None and row.ideal_ms is None for row in found.rows)
    assert found.rows[0].tflops > 0
