"""Who paces a step, and what is left of it after a change: analyses made by hand, so that every figure is known."""

from __future__ import annotations

import dataclasses

import pytest
from fake_trace import FakeTrace

from hotlap.data.kineto import read_trace
from hotlap.measure.arms import parse_arm
from hotlap.records.ceilings import Ceiling, Ceilings
from hotlap.tools.profile import categories as kind
from hotlap.tools.profile.advice import Case, advise
from hotlap.tools.profile.analyse import Worked
from hotlap.tools.profile.found import Analysis, Part, Roofline, RoofRow, Row, Sync
from hotlap.tools.profile.on_device import BETWEEN, LAUNCH, LOADER_WAIT, SYNC
from hotlap.tools.profile.pace import Pace, pace_of, pace_told
from hotlap.tools.profile.roofline import roofline

CEILINGS = {"fp32": 50.0, "tf32": 400.0, "bf16": 800.0, "copy": 4000.0}


def analysis(busy: dict[str, float], idle: dict[str, float], *, ops=(), **more) -> Analysis:
    """A traced step on a card, in ms: its work by category and its idle time by reason."""
    step = sum(busy.values()) + sum(idle.values())

    def parts(times):
        return [Part(name=name, ms=ms, share=ms / step) for name, ms in times.items()]

    return Analysis(
        trace="t", on_device=True, device="Card", steps=1, step_ms=step, busy_ms=sum(busy.values()),
        categories=parts(busy), phases=[], idle=parts(idle), kernels=[], modules=[], memory=[],
        ops=[Row(name=name, category=name, calls=20, ms=1.0, share=0.0, host_ms=ms) for name, ms in ops],
        **{"launches": 100.0, "syncs": [], **more},
    )  # fmt: skip


def product(ms: float, *, gflop: float, mb: float, category=kind.MATMUL, precision="fp32") -> RoofRow:
    return RoofRow(
        name="aten::mm", shapes="", category=category, precision=precision, calls=1, ms=ms, flops=1e9 * gflop,
        bytes=1e6 * mb, tflops=0.0, gbps=0.0, intensity=0.0,
    )  # fmt: skip


def advised(found: Analysis, *rows: RoofRow, arm="cuda", share=None, step_ms=None, host_ms=None, **more):
    roof = Roofline(rows=list(rows), ceilings=CEILINGS if rows else {}, memory_share=share)
    made = Case(
        analysis=found, roofline=roof, step_ms=step_ms or found.step_ms, host_ms=host_ms, arm=parse_arm(arm),
        target="net", **more,
    )  # fmt: skip
    return {a.name: a for a in advise(made)}


def test_where_the_device_paces_what_it_saves_comes_off_the_step():
    found = analysis({kind.MATMUL: 8.0, kind.ELEMENTWISE: 1.0}, {BETWEEN: 0.5, LAUNCH: 0.5})
    # 200 GFLOP take 4 ms at the ceiling and 0.5 ms at the other: half of each is reached, 8 ms become 1 ms.
    tf32 = advised(found, product(8.0, gflop=200, mb=40), host_ms=2.0)["tf32"]
    assert tf32.saved_ms == pytest.approx(7.0) and tf32.gain == pytest.approx(10 / 3)
    assert tf32.at_most and "pace" not in tf32.basis
    assert "About 1.54x if" in tf32.basis, "0.5 ms, the 4 ms lost beside it, and 2 ms of other work"


def test_the_step_is_no_shorter_than_the_hosts_own_time():
    found = analysis({kind.MATMUL: 8.0, kind.ELEMENTWISE: 1.0}, {BETWEEN: 0.5, LAUNCH: 0.5})
    tf32 = advised(found, product(8.0, gflop=200, mb=40), host_ms=6.0)["tf32"]
    assert tf32.saved_ms == pytest.approx(10 - (6.0 + 0.5)), "the host's 6 ms, and what was idle beside both"
    assert tf32.basis.endswith("The host's 6.00 ms then set the pace.")


@pytest.mark.parametrize("host_ms", [19.5, None])
def test_where_the_host_paces_faster_kernels_gain_nothing(host_ms):
    """Whether its time was measured, or follows from how long the device waits for launches."""
    busy = {kind.RECURRENT: 9.0, kind.CONVOLUTION: 1.0, kind.OPTIMIZER: 1.0}
    found = analysis(busy, {LAUNCH: 8.0, BETWEEN: 0.5, SYNC: 0.5})
    names = advised(found, product(9.0, gflop=200, mb=40, category=kind.RECURRENT), host_ms=host_ms, batch=8)
    assert set(names) == {"graph", "compile", "batch 16", "fewer syncs"}
    # The device's work, less 30% of its latency, and the wait for a result.
    assert names["graph"].gain == pytest.approx(20 / (11.5 - 0.15 + 0.5))
    # Half of the host's 19.5 ms is less than the device's 11.5 ms.
    assert names["compile"].gain == pytest.approx(20 / (11.5 + 0.5))
    assert names["batch 16"].gain == pytest.approx(40 / (2 * 11.5 + 2 * 0.5)), "the device paces twice the batch"


def test_the_profilers_own_time_is_not_the_hosts():
    found = analysis({kind.RECURRENT: 10.0}, {LAUNCH: 20.0})
    pace = pace_of(found, 18.0, None)
    assert (pace.host_ms, pace.device_ms, pace.rest_ms) == (18.0, 10.0, 0.0), "12 ms of the gaps are the profiler's"
    assert pace_of(found, 10.5, None).host_ms == 0.0, "half a millisecond of gaps: the device paces"


def test_a_step_that_reads_a_result_has_its_wait_taken_off_the_hosts_time():
    sync = Sync(call="cudaStreamSynchronize", op="aten::item", where="a.py:3", count=1.0, ms=6.0)
    found = analysis({kind.MATMUL: 9.0}, {SYNC: 1.0}, syncs=[sync])
    pace = pace_of(found, 10.0, 9.5)
    assert pace == Pace(step_ms=10.0, host_ms=3.5, device_ms=9.0, waits_ms=1.0, knows_host=True)


def test_parts_make_up_the_step_and_each_change_acts_on_its_own():
    pace = Pace(step_ms=10.0, host_ms=4.0, device_ms=7.0, waits_ms=2.0, knows_host=True)
    assert pace.after() == pace.step_ms and pace.rest_ms == 1.0
    assert pace.after(device_saved_ms=2.0) == 8.0
    assert pace.after(device_saved_ms=6.0) == 7.0, "the host's 4 ms, 2 ms of waits, 1 ms of first launches"
    assert pace.after(host_saves=0.5) == 9.5, "only the first launches are shorter"
    assert pace.after(device_saved_ms=6.0, host_saves=0.5) == 4.5
    assert pace.after(waits_saved_ms=1.5) == 8.5
    assert pace.after(work=2.0) == 14.0 + 4.0 + 1.0


def test_the_host_s_time_is_the_shorter_of_two_upper_bounds():
    found = analysis({kind.CONVOLUTION: 38.0}, {BETWEEN: 1.0, LAUNCH: 1.0})
    assert pace_of(found, 40.0, 17.7).host_ms == 17.7, "launches that wait for a full queue are in it"
    assert pace_of(found, 40.0, 17.7, few_ms=9.0).host_ms == 9.0
    assert pace_of(found, 40.0, 8.0, few_ms=9.0).host_ms == 8.0
    waits = analysis({kind.CONVOLUTION: 9.0}, {SYNC: 1.0}, syncs=[Sync(call="x", op="", where="", count=1, ms=6.0)])
    assert pace_of(waits, 10.0, 9.5, few_ms=5.0).host_ms == 5.0, "what was taken off for waiting may be too much"


def test_a_device_with_a_full_queue_may_be_faster_than_the_sum_of_what_was_seen():
    found = analysis({kind.RECURRENT: 14.0}, {BETWEEN: 1.0, LAUNCH: 12.0})
    assert pace_of(found, 27.0, 27.0).device_ms == 15.0
    assert pace_of(found, 27.0, 27.0, device_ms=13.5).device_ms == 13.5
    slower, faster = (advised(found, host_ms=27.0, device_ms=ms)["graph"].gain for ms in (None, 13.5))
    assert faster > slower


def test_what_few_samples_take_as_well_does_not_grow_with_the_batch():
    found = analysis({kind.RECURRENT: 13.0}, {LAUNCH: 12.0})
    pace = pace_of(found, 25.0, 21.0, few_device_ms=9.0, few_share=0.2)
    # 80% of the samples are 4 ms: all of them are 5, and 8 are there without any.
    assert pace.fixed_ms == pytest.approx(8.0) and pace.device_at(2) == pytest.approx(18.0)
    assert pace.after(work=2.0) == pytest.approx(21.0 + 4.0), "the host still paces"
    assert pace_of(found, 25.0, 21.0, few_device_ms=2.6, few_share=0.2).fixed_ms == 0.0, "all of it grows"
    assert pace_of(found, 25.0, 21.0, few_device_ms=99.0).device_at(2) == 13.0, "no more than all is the same"
    grown = advised(found, host_ms=21.0, few_device_ms=9.0, batch=10)["batch 20"]
    assert grown.gain == pytest.approx(50 / 25) and "8.00 ms that does not grow" in grown.basis
    assert advised(found, host_ms=21.0, batch=10)["batch 20"].gain == pytest.approx(50 / (26 + 4))


def test_products_on_tensor_cores_have_fewer_launches_than_algorithms_of_many():
    found = analysis({kind.CONVOLUTION: 34.0, kind.ELEMENTWISE: 4.0}, {BETWEEN: 2.0}, ops=[(kind.CONVOLUTION, 7.0)])
    many = [Row(name="fft", category=kind.CONVOLUTION, calls=110, ms=34.0, share=0.85)]
    rows = product(34.0, gflop=1000, mb=400, category=kind.CONVOLUTION)
    before = advised(found, rows, host_ms=16.0)["tf32"]
    after = advised(dataclasses.replace(found, kernels=many), rows, host_ms=16.0)["tf32"]
    assert before.gain == pytest.approx(40 / 16) and "launches" not in before.basis
    # 20 operators of 3 launches at most are 60 of 110, and the step has 100 in all: the host's half is gone.
    assert "50 launches less" in after.basis and "pace" not in after.basis
    assert after.gain > 40 / 11 - 1e-9
    recurrent = [dataclasses.replace(many[0], category=kind.RECURRENT)]
    kept = advised(dataclasses.replace(found, kernels=recurrent), rows, host_ms=16.0)["tf32"]
    assert kept.gain == before.gain, "a recurrent layer keeps its launches in any precision"


@pytest.mark.parametrize(("share", "is_advised"), [(0.0, False), (0.4, True), (None, True)])
def test_channels_last_is_for_tensor_cores(share, is_advised):
    found = analysis({kind.CONVOLUTION: 9.0}, {LAUNCH: 1.0}, tensor_core_share=share)
    assert ("channels_last" in advised(found, host_ms=1.0)) == is_advised


def test_what_the_system_takes_for_fresh_pages_is_what_kept_memory_may_save():
    found = dataclasses.replace(analysis({kind.MATMUL: 8.0}, {}), on_device=False)
    kept = advised(found, arm="cpu", system_ms=3.0, num_pages=4000.0)["keep_memory"]
    assert kept.saved_ms == pytest.approx(3.0) and not kept.at_most and kept.arm == "cpu:keep_memory"
    assert "4,000 fresh pages" in kept.why
    assert "keep_memory" not in advised(found, arm="cpu:keep_memory", system_ms=3.0, num_pages=4000.0)
    assert "keep_memory" not in advised(found, arm="cpu", system_ms=0.0, num_pages=4000.0), "nothing to gain"
    on_card = analysis({kind.MATMUL: 8.0}, {})
    assert "keep_memory" not in advised(on_card, system_ms=3.0, num_pages=4000.0)


def test_an_optimizer_in_one_launch_shortens_a_step_that_the_host_paces():
    ops = [(kind.OPTIMIZER, 6.0), (kind.MATMUL, 4.0)]
    found = analysis({kind.MATMUL: 4.0, kind.OPTIMIZER: 1.0}, {LAUNCH: 5.0}, ops=ops)
    assert advised(found, host_ms=10.0)["fused optimizer"].saved_ms == pytest.approx(10 * 0.5 * 0.6)


def test_a_compiler_leaves_the_launches_of_recurrent_layers():
    found = analysis({kind.RECURRENT: 4.0}, {LAUNCH: 6.0}, ops=[(kind.RECURRENT, 6.0), (kind.MATMUL, 2.0)])
    named = advised(found, host_ms=10.0, has_kernels=True)
    assert named["compile"].saved_ms == pytest.approx(10 * 0.5 * 0.25) and "recurrent" in named["compile"].basis
    assert named["kernels"].saved_ms == pytest.approx(10 * 0.9 * 0.75), "a layer in one kernel has fewer launches"


def test_what_halved_activations_are_assumed_to_save_is_said():
    found = analysis({kind.MATMUL: 4.0, kind.ELEMENTWISE: 3.0, kind.NORMALISATION: 1.0}, {})
    named = advised(found, host_ms=1.0)
    assert "Of 4.00 ms that move activations, 35% is assumed." in named["bf16"].basis
    assert "activations" not in named["tf32"].basis, "TF32 leaves them as they are"


def test_casts_of_weights_cost_bytes_and_launches():
    found = analysis({kind.MATMUL: 8.0}, {LAUNCH: 0.0, BETWEEN: 2.0})
    row = product(8.0, gflop=200, mb=40)
    # 8 ms become 0.5 ms. 100 million weights of 6 bytes, there and back: 0.3 ms at the ceiling, 0.6 ms at half of it.
    weights = {"num_weights": 100_000_000, "num_weight_tensors": 25}
    bf16 = advised(found, row, share=0.5, host_ms=1.0, **weights)["bf16"]
    assert bf16.saved_ms == pytest.approx(7.5 - 0.6)
    assert "Autocast adds 50 casts of weights, 0.600 ms." in bf16.basis
    assert advised(found, row, share=0.5, host_ms=1.0, mode="infer", **weights)["bf16"].saved_ms == pytest.approx(7.2)
    # Half as many launches again, and half as much of the host's time.
    paced = advised(found, row, host_ms=6.0, **weights)["bf16"]
    assert paced.saved_ms == pytest.approx(10 - 9.0)


@pytest.mark.parametrize(("arm", "passes_ms"), [("cuda", 1.0), ("cuda:channels_last", 0.0)])
def test_tensor_cores_have_convolutions_turned_unless_they_lie_right(arm, passes_ms):
    found = analysis({kind.CONVOLUTION: 8.0}, {BETWEEN: 2.0})
    row = product(8.0, gflop=200, mb=2000, category=kind.CONVOLUTION)  # 0.5 ms of bytes, as long as its arithmetic
    named = advised(found, row, arm=arm, host_ms=1.0)
    assert named["tf32"].saved_ms == pytest.approx(7.0 - passes_ms)
    assert named["bf16"].saved_ms == pytest.approx(7.5 - passes_ms / 2)
    assert ("memory format" in named["tf32"].basis) == bool(passes_ms)


def test_turning_that_was_seen_shrinks_with_its_bytes_alone():
    found = analysis({kind.CONVOLUTION: 6.0}, {BETWEEN: 2.0}, layout_ms=2.0)
    row = product(6.0, gflop=800, mb=40, category=kind.CONVOLUTION, precision="tf32")
    bf16 = advised(found, row, arm="cuda:tf32", host_ms=1.0)["bf16"]
    assert bf16.saved_ms == pytest.approx(6.0 - (4.0 / 2 + 2.0 / 2))


def test_a_product_bound_by_memory_gains_what_its_bytes_shrink():
    found = analysis({kind.MATMUL: 8.0}, {BETWEEN: 2.0})
    named = advised(found, product(8.0, gflop=20, mb=16000), host_ms=1.0)  # 4 ms of bytes
    assert "tf32" not in named
    assert named["bf16"].saved_ms == pytest.approx(4.0)


def test_a_trace_without_the_hosts_time_says_so():
    found = analysis({kind.MATMUL: 8.0}, {BETWEEN: 1.5, LAUNCH: 0.5})
    tf32 = advised(found, product(8.0, gflop=200, mb=40))["tf32"]
    assert tf32.saved_ms == pytest.approx(7.0) and "The host's own time is not known" in tf32.basis


def test_a_step_paced_by_the_host_is_told():
    pace = pace_of(analysis({kind.RECURRENT: 10.0}, {LAUNCH: 10.0}), 20.0, 19.0)
    assert "needs 19.0 ms for what the device does in 10.0 ms" in pace_told(pace)
    assert pace_told(pace_of(analysis({kind.MATMUL: 10.0}, {BETWEEN: 1.0}), 11.0, 2.0)) == ""


def test_without_a_device_everything_that_is_no_wait_counts():
    found = analysis({kind.CONVOLUTION: 8.0}, {LOADER_WAIT: 2.0})
    host = pace_of(type(found)(**{**vars(found), "on_device": False}), 5.0, None)
    assert (host.host_ms, host.device_ms, host.waits_ms) == (0.0, 4.0, 1.0)
    assert host.after(device_saved_ms=1.0) == 4.0 and pace_told(host) == ""


def test_passes_over_memory_go_at_the_rate_of_elementwise_operators_alone(tmp_path):
    trace = FakeTrace()
    trace.step(0, 0, 1000)
    # A million numbers read and written are 8 MB: 2 us at 4000 GB/s, for which it takes 8 us.
    trace.launch("elementwise", (0, 5), (10, 8), op=trace.op("aten::relu", 0, 10, dims=[[1000, 1000]]))
    trace.launch("bn_fw", (20, 5), (30, 100), op=trace.op("aten::batch_norm", 20, 10, dims=[[1000, 1000]]))
    values = [Ceiling(quantity="matmul", unit="TFLOP/s", dtype="fp32", values=[50.0])]
    values.append(Ceiling(quantity="copy", unit="GB/s", values=[4000.0]))
    made = Ceilings(kind="cuda", device="Card", key="k", torch="2.15", measured_at="now", ceilings=values)
    worked = Worked(read_trace(trace.write(tmp_path / "t.json")))
    assert roofline(worked, made).memory_share == pytest.approx(0.25)
    assert roofline(worked, None).memory_share is None
