"""Advice from a known step: what is advised, what it may gain, the arm that checks it, and the check itself."""

from __future__ import annotations

import dataclasses

import pytest
from fake_trace import FakeTrace, training_trace

from hotlap.base.events import ignore
from hotlap.data.kineto import read_trace
from hotlap.measure.arms import parse_arm
from hotlap.records.ceilings import Ceiling, Ceilings
from hotlap.tools.profile import check
from hotlap.tools.profile.advice import Case, advise
from hotlap.tools.profile.analyse import Worked, analysis_of
from hotlap.tools.profile.found import Advice
from hotlap.tools.profile.roofline import roofline


def ceilings(**rates):
    found = [Ceiling(quantity="matmul", unit="TFLOP/s", dtype=d, values=[v]) for d, v in rates.items() if d != "copy"]
    found.append(Ceiling(quantity="copy", unit="GB/s", values=[rates["copy"]]))
    return Ceilings(kind="cuda", device="Card", key="k", torch="2.15", measured_at="now", ceilings=found)


def case(tmp_path, trace: FakeTrace, *, arm="cuda", measured=None, step_ms=None, **more):
    worked = Worked(read_trace(trace.write(tmp_path / "t.json")))
    analysis = analysis_of(worked, worked)
    return Case(
        analysis=analysis,
        roofline=roofline(worked, measured),
        step_ms=step_ms or analysis.step_ms,
        arm=parse_arm(arm) if arm else None,
        **{"target": "unet", "batch": 8, **more},
    )


def float32_products(kernel="ampere_sgemm_128x64", op="aten::mm"):
    """1 ms: a product of 0.8 ms at 2.5 TFLOP/s, then an idle end."""
    trace = FakeTrace()
    trace.step(0, 0, 1000)
    made = trace.op(op, 0, 10, dims=[[1000, 1000], [1000, 1000]])
    trace.launch(kernel, (0, 5), (0, 800), op=made)
    trace.sync(10, 985)
    return trace


def named(advice):
    return {a.name: a for a in advice}


def test_advice_is_ranked_and_each_piece_names_its_arm_and_command(tmp_path):
    found = advise(case(tmp_path, training_trace(), host_ms=0.3))
    assert [a.gain for a in found] == sorted((a.gain for a in found), reverse=True)
    assert all(a.gain >= 1.02 and a.why and a.basis for a in found)
    last = named(found)["channels_last"]
    assert last.arm == "cuda:channels_last"
    assert last.command == "hotlap bench unet --mode train --batch 8 --arms cuda,cuda:channels_last"
    assert last.saved_ms == pytest.approx(0.06), "a tenth of 0.6 ms; no layout change was seen"
    assert last.gain == pytest.approx(1 / 0.94)
    assert "memory format" not in last.why and last.basis == "10% of it is assumed."


def test_a_larger_batch_is_an_arm_like_the_others(tmp_path):
    found = named(advise(case(tmp_path, training_trace())))["batch 16"]
    assert found.arm == "cuda:batch=16"
    assert found.command == "hotlap bench unet --mode train --batch 8 --arms cuda,cuda:batch=16"


def test_layout_changes_that_were_seen_count_whole(tmp_path):
    trace = training_trace(steps=1)
    op = trace.op("aten::convolution", 905, 10)
    trace.launch("void cudnn::nchwToNhwcKernel<float>", (906, 2), (910, 80), op=op)
    found = named(advise(case(tmp_path, trace, host_ms=0.3)))["channels_last"]
    assert found.saved_ms == pytest.approx(0.08 + 0.1 * 0.6)
    assert "80.0 µs of it only changes the memory format" in found.why


def test_a_faster_precision_is_estimated_from_the_measured_ceilings(tmp_path):
    peaks = ceilings(fp32=5.0, tf32=20.0, bf16=50.0, copy=1000.0)
    found = named(advise(case(tmp_path, float32_products(), measured=peaks)))
    # 2 GFLOP take 0.4 ms at the float32 ceiling and 0.1 ms at TF32's: a quarter of today's 0.8 ms.
    assert found["tf32"].saved_ms == pytest.approx(0.6)
    assert found["tf32"].gain == pytest.approx(2.5)
    assert "Measured ceilings" in found["tf32"].basis and found["tf32"].arm == "cuda:tf32"
    # The 0.4 ms beside the ceiling may stay: 0.1 ms and those, and the idle 0.2 ms.
    assert found["tf32"].at_most and "About 1.43x if what products lose" in found["tf32"].basis
    assert found["bf16"].saved_ms == pytest.approx(0.8 * (1 - 0.04 / 0.4))


def test_a_product_gets_no_faster_than_memory_allows(tmp_path):
    peaks = ceilings(fp32=5.0, tf32=500.0, bf16=1000.0, copy=60.0)  # 12 MB at 60 GB/s take 0.2 ms
    found = named(advise(case(tmp_path, float32_products(), measured=peaks)))
    assert found["tf32"].saved_ms == pytest.approx(0.4)


def test_without_ceilings_the_ratio_is_assumed_and_said(tmp_path):
    found = named(advise(case(tmp_path, float32_products())))
    assert found["tf32"].saved_ms == pytest.approx(0.4)
    assert "Assumed ratio of 2.00" in found["tf32"].basis and not found["tf32"].at_most


def test_what_the_arm_has_already_is_not_advised(tmp_path):
    arm = "cuda:bf16+channels_last+compile=reduce-overhead+fused+kernels"
    names = set(named(advise(case(tmp_path, training_trace(), arm=arm, has_kernels=True))))
    assert names == {"batch 16", "fewer syncs"}
    tf32 = named(advise(case(tmp_path, float32_products("sm80_xmma_gemm_tf32f32_tensor16x8x8"))))
    assert "tf32" not in tf32 and "bf16" in tf32, "float32 on tensor cores is TF32 already"


def test_the_profilers_own_slow_down_is_not_called_launch_bound(tmp_path):
    traced = case(tmp_path, training_trace(), host_ms=0.3)
    assert named(advise(traced))["graph"].saved_ms == pytest.approx(0.9 * 0.14 + 0.3 * 0.01)
    faster = dataclasses.replace(traced, step_ms=0.9)
    assert named(advise(faster))["graph"].saved_ms == pytest.approx(0.9 * 0.04 + 0.3 * 0.01)


def test_recurrent_layers_with_a_kernel_of_ours_are_pointed_to_it(tmp_path):
    trace = FakeTrace()
    trace.step(0, 0, 1000)
    trace.launch("cudnn::rnn::LSTM_elementWise", (0, 5), (0, 900), op=trace.op("aten::_cudnn_rnn", 0, 10))
    assert named(advise(case(tmp_path, trace, has_kernels=True)))["kernels"].arm == "cuda:kernels"
    assert "kernels" not in named(advise(case(tmp_path, trace)))


@pytest.mark.parametrize(
    ("arm", "mode", "has_norms", "is_advised"),
    [
        ("cuda", "infer", True, True),
        ("cuda", "train", True, False),
        ("cuda", "infer", False, False),
        ("cuda:folded", "infer", True, False),
        ("cuda:compile", "infer", True, False),
    ],
)
def test_norms_are_to_be_folded_in_inference_where_something_else_has_not_done_it(
    tmp_path, arm, mode, has_norms, is_advised
):
    found = named(advise(case(tmp_path, training_trace(), arm=arm, mode=mode, has_norms=has_norms, host_ms=0.3)))
    assert ("folded norms" in found) == is_advised
    if is_advised:
        advice = found["folded norms"]
        assert advice.arm == "cuda:folded" and advice.at_most
        # All of the norm's time, and of the first launches' 0.14 ms its share of the host's 210 us in operators.
        assert advice.saved_ms == pytest.approx(0.05 + 0.14 * 20 / 210)


def test_an_optimizer_of_many_small_operators_is_pointed_to_the_fused_one(tmp_path):
    trace = FakeTrace()
    trace.step(0, 0, 1000)
    trace.note("Optimizer.step#AdamW.step", 0, 900)
    for place in range(40):
        trace.op("aten::addcdiv_", 20.0 * place, 15)
    found = named(advise(case(tmp_path, trace, arm="cpu")))["fused optimizer"]
    assert found.saved_ms == pytest.approx(0.3) and found.arm == "cpu:fused"
    assert "fused optimizer" not in named(advise(case(tmp_path, trace, arm="cpu", mode="infer")))


def test_waiting_for_data_points_to_the_loader(tmp_path):
    trace = FakeTrace()
    trace.step(0, 0, 1000)
    trace.note("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 0, 500)
    trace.launch("gemm", (510, 5), (520, 480), op=trace.op("aten::mm", 505, 20))
    found = named(advise(case(tmp_path, trace)))["loader"]
    assert (found.gain, found.command) == (pytest.approx(2.0), "hotlap loader unet")


def test_bfloat16_is_advised_only_for_a_processor_known_to_be_fast_in_it(tmp_path):
    trace = FakeTrace()
    trace.step(0, 0, 1000)
    trace.op("aten::mm", 0, 800, dims=[[1000, 1000], [1000, 1000]])
    assert "bf16" not in named(advise(case(tmp_path, trace, arm="")))
    assert named(advise(case(tmp_path, trace, arm="cpu", fast_bf16=True)))["bf16"].arm == "cpu:bf16"


def test_times_of_the_host_are_scaled_to_the_step_without_the_profiler(tmp_path):
    trace = FakeTrace()
    trace.step(0, 0, 1000)
    trace.op("aten::conv2d", 0, 1000)
    found = named(advise(case(tmp_path, trace, arm="cpu", step_ms=0.5)))["channels_last"]
    assert found.saved_ms == pytest.approx(0.15 * 0.5)


def test_a_trace_of_an_unknown_arm_is_advised_without_commands(tmp_path):
    found = advise(case(tmp_path, training_trace(), arm=None, target="", batch=0))
    assert found and all(a.arm == "" and a.command == "" for a in found)


def test_checked_advice_stands_beside_its_measurement(monkeypatch):
    asked = []

    def fake(job, *, timeout_s):
        asked.append((job["job"], job["arms"]))
        if job["job"] == "gate":
            gates = [{"arm": arm, "passed": arm != "cuda:bf16", "checks": [], "reference": "r"} for arm in job["arms"]]
            broken = [{"arm": "cuda:graph", "what": "RuntimeError at batch 8: no", "out_of_memory": False}]
            return {"gates": gates, "failures": broken}
        times = {"cuda": [4.0, 4.2, 4.1], "cuda:bf16": [2.0], "cuda:batch=16": [8.2]}
        rows = [
            {"quantity": "wall", "unit": "ms", "arm": arm, "process": 0, "values": times[arm]} for arm in job["arms"]
        ]
        return {"measurements": rows}

    monkeypatch.setattr(check, "run_job", fake)
    arms = ("cuda:bf16", "", "cuda:graph", "cuda:batch=16", "cuda:fused")
    advice = [Advice(name=a or "loader", gain=1.5, saved_ms=1.0, why="w", basis="b", arm=a) for a in arms]
    found, samples, notes = check.check_advice(advice, "cuda", {"target": "x", "batch": 8}, 9.0, ignore)
    # Twice the samples in twice the time is no gain.
    assert [(a.measured, a.right) for a in found] == [
        (pytest.approx(2.05), False), (None, None), (None, None), (pytest.approx(1.0), True), (None, None),
    ]  # fmt: skip
    assert notes == ["cuda:graph could not be checked: RuntimeError at batch 8: no"]
    assert len(samples) == 9
    assert asked[0] == ("gate", ["cuda", "cuda:bf16", "cuda:graph", "cuda:batch=16"])
    assert asked[1:] == [("timing", ["cuda", "cuda:bf16", "cuda:batch=16"])] * 3, (
        "twice the samples in twice the time: 1.0"
    )


def test_advice_without_arms_is_not_checked_and_it_is_said():
    advice = [Advice(name="loader", gain=1.5, saved_ms=1.0, why="w", basis="b")]
    found, samples, notes = check.check_advice(advice, "cuda", {}, 9.0, ignore)
    assert (found, samples) == (advice, []) and "nothing was checked" in notes[0]
