"""Traces with a known answer taken apart: shares that add up, idle gaps with their reasons, modules, syncs, memory."""

from __future__ import annotations

import pytest
from fake_trace import ENGINE, FakeTrace, training_trace

from hotlap.data.kineto import read_trace
from hotlap.tools.profile.analyse import analyse


@pytest.fixture
def analysed(tmp_path):
    """The analysis of a fake trace."""

    def run(trace: FakeTrace):
        return analyse(read_trace(trace.write(tmp_path / "t.pt.trace.json")))

    return run


def test_categories_and_idle_of_a_card_add_up_to_the_step(analysed):
    found = analysed(training_trace())
    assert (found.steps, found.step_ms, found.on_device, found.device) == (
        2,
        pytest.approx(1.0),
        True,
        "NVIDIA Test Card",
    )
    assert sum(part.ms for part in found.categories) == pytest.approx(found.step_ms)
    assert sum(part.share for part in found.categories) == pytest.approx(1.0)
    assert sum(part.ms for part in found.phases) == pytest.approx(found.step_ms)
    assert sum(part.ms for part in found.idle) == pytest.approx(found.step_ms - found.busy_ms)
    assert {part.name: round(part.ms, 6) for part in found.categories} == {
        "convolution": 0.6, "optimizer": 0.14, "normalisation": 0.05, "idle: launch-bound": 0.14,
        "idle: waiting for a sync": 0.06, "idle: between queued kernels": 0.01,
    }  # fmt: skip
    assert {part.name: round(part.ms, 6) for part in found.phases} == {
        "forward": 0.25, "backward": 0.4, "optimizer": 0.14, "idle": 0.21,
    }  # fmt: skip


def _lower_case_ids(events):
    for event in events:
        if "External id" in event.get("args", {}):
            event["args"]["external id"] = event["args"].pop("External id")


def _ids_on_calls_only(events):
    for event in events:
        if event.get("cat") in ("kernel", "gpu_memcpy"):
            event["args"].pop("External id", None)


def _without_numbers(events):
    for event in events:
        for key in ("Ev Idx", "Record function id", "Fwd thread id", "Concrete Inputs"):
            event.get("args", {}).pop(key, None)


def _small_times(events):
    first = min(event["ts"] for event in events)
    for event in events:
        event["ts"] -= first - 0.25


def _new_kinds(events):
    place = {"pid": 1, "tid": 1}
    start = min(event["ts"] for event in events)
    events.append({"ph": "M", "name": "process_labels", "args": {"labels": "CPU"}, **place})
    events.append({"ph": "X", "cat": "overhead", "name": "Buffer Flush", "ts": start, "dur": 5, **place})
    events.append({"ph": "X", "cat": "gpu_user_annotation", "name": "step", "ts": start, "dur": 9, **place})
    events.append({"ph": "C", "cat": "counter_nobody_knows", "name": "x", "ts": start, "args": {"x": 1}})


@pytest.mark.parametrize("change", [_lower_case_ids, _ids_on_calls_only, _without_numbers, _small_times, _new_kinds])
def test_what_versions_of_torch_write_differently_does_not_change_the_answer(analysed, change):
    """Ids in lower case or only on the call, arguments that come and go, times from a base, kinds that are new."""
    plain, other = training_trace(), training_trace()
    change(other.events)
    want, got = analysed(plain), analysed(other)
    assert {part.name: part.ms for part in got.categories} == pytest.approx(
        {part.name: part.ms for part in want.categories}
    )
    assert [(row.name, row.category) for row in got.kernels] == [(row.name, row.category) for row in want.kernels]


def test_work_on_two_streams_is_counted_once_and_copies_only_where_nothing_hides_them(analysed):
    trace = FakeTrace()
    trace.step(0, 0, 1000)
    first = trace.op("aten::mm", 0, 20)
    trace.launch("gemm_a", (5, 5), (10, 400), op=first)
    second = trace.op("aten::relu", 30, 20)
    trace.launch("vectorized_elementwise_kernel", (35, 5), (300, 200), op=second, stream=8)
    trace.launch("Memcpy HtoD (Pinned -> Device)", (60, 5), (100, 500), stream=9, cat="gpu_memcpy",
                 function="cudaMemcpyAsync")  # fmt: skip
    trace.launch("ncclDevKernel_AllReduce_Sum_f32", (70, 5), (0, 1000), stream=20)
    found = analysed(trace)
    assert {part.name: round(part.ms, 6) for part in found.categories} == {
        "matmul": 0.4, "elementwise": 0.09, "communication": 0.51,
    }  # fmt: skip
    assert found.busy_ms == pytest.approx(1.0)


def test_an_exchange_is_one_whatever_operator_started_it(analysed):
    trace = FakeTrace()
    trace.step(0, 0, 100)
    op = trace.op("aten::mm", 0, 20)
    trace.launch("ncclDevKernel_AllReduce_Sum_f32", (5, 2), (0, 100), op=op)
    assert [(part.name, part.share) for part in analysed(trace).categories] == [("communication", 1.0)]


def test_an_exchange_of_hosts_is_one_though_a_hook_of_the_backward_pass_started_it(analysed):
    trace = FakeTrace()
    trace.step(0, 0, 100)
    trace.op("autograd::engine::evaluate_function: torch::autograd::AccumulateGrad", 0, 100)
    trace.op("c10d::allreduce_", 20, 80)
    found = analysed(trace)
    assert {part.name: part.share for part in found.categories} == {"communication": 0.8, "elementwise": 0.2}


def test_a_wait_for_the_loader_and_a_copy_that_the_host_prepares_have_their_own_names(analysed):
    trace = FakeTrace()
    trace.step(0, 0, 1000)
    trace.note("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", 0, 300)
    trace.launch(
        "Memcpy HtoD (Pageable -> Device)", (350, 100), (400, 50), cat="gpu_memcpy", function="cudaMemcpyAsync"
    )
    op = trace.op("aten::mm", 455, 50)
    trace.launch("gemm", (480, 5), (500, 500), op=op)
    found = analysed(trace)
    assert {part.name: round(part.ms, 6) for part in found.idle} == {
        "waiting for the loader": 0.3, "copy prepared by the host": 0.05, "launch-bound": 0.1,
    }  # fmt: skip


def test_kernels_are_credited_to_modules_forward_and_backward(analysed):
    found = analysed(training_trace())
    rows = {row.name: row for row in found.modules}
    assert rows["conv"].kind == "Conv2d"
    assert (rows["conv"].forward_ms, rows["conv"].backward_ms) == (pytest.approx(0.2), pytest.approx(0.4))
    assert rows["model"].own_ms == pytest.approx(0.05), "the norm ran in the model itself"
    assert (rows["model"].own_backward_ms, rows["conv"].own_backward_ms) == (0.0, pytest.approx(0.4))
    assert rows["model"].total_ms == pytest.approx(0.65)


def test_modules_of_a_foreign_trace_come_from_its_python_stacks(analysed):
    trace = FakeTrace()
    trace.step(0, 0, 100)
    trace.python("nn.Module: Net_0", 0, 90)
    trace.python("nn.Module: Linear_3", 10, 40)
    trace.op("aten::linear", 20, 30)
    found = analysed(trace)
    assert [(row.name, row.kind, pytest.approx(row.own_ms)) for row in found.modules] == [("Linear_3", "Linear", 0.03)]


def test_top_kernels_say_whether_they_use_tensor_cores(analysed):
    found = analysed(training_trace())
    rows = {row.name: row for row in found.kernels}
    conv = rows["sm80_xmma_fprop_implicit_gemm_tf32f32_tensor16x8x8"]
    assert (conv.tensor_cores, conv.calls, conv.category) == (True, 1.0, "convolution")
    assert rows["batch_norm_fwd"].tensor_cores is None
    assert found.tensor_core_share == pytest.approx(1.0)
    trace = FakeTrace()
    trace.step(0, 0, 100)
    trace.launch("ampere_sgemm_128x64_nn", (1, 2), (10, 50), op=trace.op("aten::mm", 0, 5))
    assert analysed(trace).tensor_core_share == 0.0


@pytest.mark.parametrize(
    ("kernel", "category", "tensor_cores"),
    [
        ("void cutlass::Kernel2<cutlass_80_tensorop_s1688gemm_128x256_16x3_nn_align4>", "matmul", True),
        ("ampere_bf16_s16816gemm_bf16_128x64_ldg8_f2f_tn", "matmul", True),
        ("nvjet_tst_256x128_64x4_2x1_v_bz_coopA_NTT", "matmul", True),
        ("sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize32x32x8_stage3", "matmul", False),
        ("cutlass_80_simt_sgemm_128x64_8x5_nt_align1", "matmul", False),
        ("void implicit_convolve_sgemm<float, float, 128, 5, 5, 3, 3, 3, 1>", "convolution", False),
        ("sm90_xmma_wgrad_implicit_gemm_indexed_bf16bf16_bf16f32_f32_nhwckrsc", "convolution", True),
        ("void cudnn::ops::nchwToNhwcKernel<float, float, float, false, true>", "convolution", False),
        ("void cudnn::bn_fw_tr_1C11_kernel_NCHW<float, float, 512, true, 1>", "normalisation", None),
        ("void flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128, 128, 4>>", "attention", True),
        ("void RNN_blockPersist_fp_LSTM<float, float, float, 256>", "recurrent", False),
        ("void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>", "elementwise", None),
        ("void at::native::reduce_kernel<512, 1, at::native::MeanOps<float, float>>", "reduction", None),
        ("void at::native::multi_tensor_apply_kernel<at::native::FusedAdamMathFunctor>", "optimizer", None),
        ("triton_poi_fused_add_relu_0", "elementwise", None),
        ("triton_red_fused_native_batch_norm_backward_3", "normalisation", None),
        ("ncclDevKernel_AllReduce_Sum_f32_RING_LL", "communication", None),
        ("void max_pool_forward_nchw<float, long>", "pooling", None),
        ("mystery", "other", None),
    ],
)  # fmt: skip
def test_a_kernel_without_an_operator_is_known_by_its_name(analysed, kernel, category, tensor_cores):
    trace = FakeTrace()
    trace.step(0, 0, 100)
    trace.launch(kernel, (1, 2), (10, 50))
    (row,) = analysed(trace).kernels
    assert (row.category, row.tensor_cores) == (category, tensor_cores)


def test_a_sync_is_named_with_its_operator_and_source_line(analysed):
    trace = training_trace(steps=1)
    trace.python("train.py(1): <module>", 0, 1000, called_from="train.py:1")
    trace.python("train.py(40): step", 600, 200, called_from="train.py:12")
    trace.python("<built-in method item of Tensor object at 0x7f00aa>", 630, 110, called_from="train.py:57")
    found = analysed(trace).syncs
    assert [(s.call, s.op, s.where, s.count) for s in found] == [
        ("cudaStreamSynchronize", "aten::item", "train.py:57", 1.0)
    ]
    assert found[0].ms == pytest.approx(0.07)


def test_the_tracings_own_wait_for_the_device_is_not_the_steps(analysed):
    trace = training_trace(steps=1)
    trace.note("hotlap.settle", 940, 55)
    trace.sync(945, 45, "cudaDeviceSynchronize")
    assert [s.call for s in analysed(trace).syncs] == ["cudaStreamSynchronize"]


def test_a_sync_in_a_trace_without_call_lines_names_the_function(analysed):
    trace = training_trace(steps=1)
    trace.python("loop.py(40): step", 600, 200)
    trace.python("torch/_tensor.py(1100): __float__", 630, 110)
    assert analysed(trace).syncs[0].where == "loop.py:40"


def test_the_owners_of_the_memory_peak_are_those_alive_at_it(analysed):
    trace = training_trace(steps=1)
    trace.memory(25, 0xA0, 1000, 5000)
    trace.memory(62, 0xB0, 300, 5300)
    trace.memory(100, 0xB0, -300, 5000)
    trace.memory(746, 0xC0, 4000, 9000)
    trace.memory(800, 0xC0, -4000, 5000)
    (found,) = analysed(trace).memory
    assert (found.device, found.peak_bytes, found.base_bytes) == ("cuda:0", 9000, 4000)
    assert found.peak_at_ms == pytest.approx(0.746)
    assert [(o.what, o.bytes) for o in found.owners] == [
        ("aten::_foreach_add_ [optimizer]", 4000), ("aten::convolution [conv]", 1000),
    ]  # fmt: skip


def test_own_times_on_the_host_leave_out_what_is_inside(analysed):
    trace = FakeTrace()
    trace.step(0, 0, 200)
    trace.op("aten::linear", 10, 100)
    trace.op("aten::addmm", 20, 80)
    trace.op("aten::relu", 120, 30)
    found = analysed(trace)
    assert not found.on_device
    assert {row.name: round(row.ms, 6) for row in found.ops} == {
        "aten::addmm": 0.08,
        "aten::relu": 0.03,
        "aten::linear": 0.02,
    }
    assert {part.name: round(part.ms, 6) for part in found.categories} == {
        "matmul": 0.1, "host code between operators": 0.07, "elementwise": 0.03,
    }  # fmt: skip


def test_operators_on_two_threads_at_once_do_not_make_the_step_longer(analysed):
    trace = FakeTrace()
    trace.step(0, 0, 100)
    trace.op("aten::mm", 0, 60)
    trace.op("aten::relu", 30, 50, tid=ENGINE)
    found = analysed(trace)
    assert {part.name: round(part.ms, 6) for part in found.categories} == {
        "matmul": 0.06, "elementwise": 0.02, "host code between operators": 0.02,
    }  # fmt: skip


def test_a_part_of_a_composite_keeps_its_category_in_the_backward_pass(analysed):
    trace = FakeTrace()
    trace.step(0, 0, 200)
    trace.op("aten::lstm", 0, 50, sequence=1)
    trace.op("aten::addmm", 10, 20, sequence=2)
    trace.op("autograd::engine::evaluate_function: AddmmBackward0", 100, 40, tid=ENGINE, sequence=2)
    trace.op("aten::mm", 110, 20, tid=ENGINE)
    assert {part.name: round(part.ms, 6) for part in analysed(trace).categories}["recurrent"] == 0.09


def test_what_a_loss_computes_outside_the_model_is_the_loss(analysed):
    trace = FakeTrace()
    trace.step(0, 0, 100)
    trace.note("hotlap.loss", 0, 80)
    trace.note("hotlap.module: model (Net)", 0, 40)
    trace.op("aten::mul", 10, 20)
    trace.op("aten::sub", 50, 10)
    found = {part.name: round(part.ms, 6) for part in analysed(trace).categories}
    assert (found["elementwise"], found["loss"]) == (0.02, 0.01)


def test_steps_without_marks_are_counted_by_the_optimizer_and_it_is_said(analysed):
    trace = FakeTrace()
    for start in (0, 100, 200):
        trace.op("aten::mm", start, 50)
        trace.note("Optimizer.step#SGD.step", start + 60, 30)
        trace.op("aten::add_", start + 65, 20)
    found = analysed(trace)
    assert (found.steps, found.warnings) == (
        3,
        ["The trace has no step marks; 3 optimizer steps were counted instead."],
    )


def test_the_busiest_of_two_devices_is_shown_and_the_other_named(analysed):
    trace = FakeTrace()
    trace.step(0, 0, 100)
    for place in range(3):
        trace.launch("gemm", (place * 10, 2), (place * 10 + 5, 5), device=1)
    trace.launch("gemm", (50, 2), (55, 5), device=0)
    found = analysed(trace)
    assert found.busy_ms == pytest.approx(0.015)
    assert found.warnings == ["Work on device 0 is left out; the step is that of 1."]


def test_launches_whose_kernels_the_profiler_lost_are_counted(analysed):
    trace = training_trace(steps=1)
    lost = next(e for e in trace.events if e["name"] == "batch_norm_fwd")
    trace.events.remove(lost)
    found = analysed(trace)
    assert found.warnings == [
        "1 of 4 launches have no kernel in the trace: the profiler lost them, and idle is too long."
    ]
    assert analysed(training_trace()).warnings == []


def test_a_recorded_graphs_kernels_are_found_though_no_operator_launched_them(analysed):
    trace = FakeTrace()
    trace.step(0, 0, 100)
    trace.ids += 1
    trace.span("cuda_runtime", "cudaGraphLaunch", 5, 10, correlation=77)
    for start, name in ((20, "sm90_xmma_gemm_bf16"), (50, "vectorized_elementwise_kernel")):
        trace.span("kernel", name, start, 25, pid=0, tid=7, device=0, stream=7, correlation=77)
    found = analysed(trace)
    assert {part.name: round(part.ms, 6) for part in found.categories} == {
        "matmul": 0.025, "elementwise": 0.025, "idle: launch-bound": 0.045, "idle: between queued kernels": 0.005,
    }  # fmt: skip
