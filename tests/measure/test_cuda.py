"""What only a card can show: its own clock, its memory, its energy, and the whole way from arms to verdict."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from hotlap.base.errors import UsageError
from hotlap.cli.main import run
from hotlap.device.memory import PeakMemory, is_out_of_memory
from hotlap.device.nvml import Nvml
from hotlap.device.precision import set_fp32_precision
from hotlap.device.probe import device_summary, get_device
from hotlap.device.timing import FullQueue, time_block, time_host
from hotlap.measure.arms import SDPA, parse_arm
from hotlap.measure.gate import GateKeeper
from hotlap.measure.process import quiet
from hotlap.measure.session import Session
from hotlap.measure.timed import NUM_BLOCKS, ArmTimer, Protocol, time_arms
from hotlap.records.run import find_runs, load_record
from hotlap.targets import InputSpec, ModuleWorkload
from hotlap.tools.bench import BenchConfig, bench

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.alone,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]
CUDA = torch.device("cuda")


def mlp(width=256):
    return ModuleWorkload(
        "mlp", lambda: nn.Sequential(nn.Linear(64, width), nn.GELU(), nn.Linear(width, 10)), [InputSpec((64,))]
    )


def conv_net():
    return ModuleWorkload(
        "conv",
        lambda: nn.Sequential(
            nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 8, 3, padding=1),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 10),
        ),
        [InputSpec((3, 32, 32))],
    )  # fmt: skip


def session(arm, workload=None, mode="train", batch=32):
    return Session(workload or mlp(), parse_arm(arm), mode=mode, batch=batch, seed=0)


def spin_cycles(ms):
    """Cycles that torch's spinning kernel needs for about ``ms``."""
    return int(ms * FullQueue()._cycles_per_ms)


def test_both_clocks_agree_on_a_kernel_of_known_length():
    cycles = spin_cycles(5.0)
    block = time_block(lambda: torch.cuda._sleep(cycles), 10, CUDA)
    assert block.wall_ms == pytest.approx(5.0, rel=0.1)
    assert sorted(block.intervals_ms)[5] == pytest.approx(5.0, rel=0.1)


def test_device_time_leaves_out_what_the_host_could_not_feed():
    queue = FullQueue()
    x = torch.randn(64, 64, device=CUDA)

    def step():
        for _ in range(50):
            torch.tanh(x)

    for _ in range(3):
        step()
    times, ahead = queue.time(step, 5)
    wall = time_block(step, 5, CUDA).wall_ms
    assert ahead, "the spin outlasted the launches"
    assert len(times) == 5
    assert min(times) < wall, "fifty tiny kernels are launch-bound"


def test_the_hosts_time_ends_when_the_call_returns():
    cycles = spin_cycles(5.0)
    assert max(time_host(lambda: torch.cuda._sleep(cycles), 5)) < 1.0, "the launch alone"


def test_a_step_that_waits_for_the_device_is_an_upper_bound_and_says_so():
    queue = FullQueue()
    x = torch.ones(8, device=CUDA)
    _, ahead = queue.time(lambda: float(x.sum()), 3)
    assert not ahead


@pytest.mark.parametrize("arm", ["cuda", "cuda:tf32", "cuda:bf16", "cuda:fp16", "cuda:channels_last", "cuda:fused",
                                 "cuda:bf16+channels_last+cudnn_benchmark+fused", "cuda:graph", "cuda:fp16+graph",
                                 "cuda:bf16+channels_last+graph"])  # fmt: skip
@pytest.mark.parametrize("mode", ["train", "infer"])
def test_right_answers_are_green_on_the_card(arm, mode):
    gate = GateKeeper(conv_net(), mode=mode, batch=8, steps=3, seed=0).judge(parse_arm(arm))
    assert gate.passed, [c for c in gate.checks if not c.passed]


class FreshHead(nn.Module):
    """Gradients before the head are 0 in the first step, and in fp16 that step overflows at the first loss scales."""

    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(64, 64), nn.Linear(64, 10)
        nn.init.zeros_(self.head.weight)

    def forward(self, x):
        return self.head(300 * torch.relu(self.body(x)))


@pytest.mark.parametrize("arm", ["cuda:fp16", "cuda:fp16+graph", "cuda:fp16+fused", "cuda:fp16+fused+graph"])
def test_a_first_step_that_overflows_is_made_again_and_counts_once(arm):
    workload = ModuleWorkload("fresh", FreshHead, [InputSpec((64,))])
    gate = GateKeeper(workload, mode="train", batch=8, steps=3, seed=0).judge(parse_arm(arm))
    assert gate.passed, [c for c in gate.checks if not c.passed]
    made = session(arm, workload)
    for _ in range(30):
        made.step()
    assert made.scaler.get_scale() < 65_536


ENCODER = """
from torch import nn

def net():
    layers = (nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True) for _ in range(3))
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(32 * 64, 10))
"""


def encoder():
    found = {}
    exec(ENCODER, found)
    return ModuleWorkload("encoder", found["net"], [InputSpec((32, 64))])


@pytest.mark.parametrize("option", ["sdpa=math", "sdpa=flash", "sdpa=efficient", "sdpa=cudnn", "recompute"])
@pytest.mark.parametrize("mode", ["train", "infer"])
def test_attentions_implementations_and_recomputation_give_the_right_answer(option, mode):
    if option == "recompute" and mode == "infer":
        pytest.skip("only training keeps activations")
    arm = f"cuda:bf16+{option}"
    gate = GateKeeper(encoder(), mode=mode, batch=8, steps=3, seed=0).judge(parse_arm(arm))
    assert gate.passed, [c for c in gate.checks if not c.passed]


def test_a_search_tries_attentions_implementations_and_recomputation(tmp_path):
    (tmp_path / "encoder.py").write_text(ENCODER)
    options = [f"sdpa={kind}" for kind in SDPA] + ["recompute"]
    arms = ["cuda:bf16", *(f"cuda:bf16+{option}" for option in options)]
    words = ["--input", "32x64", "--batch", "16", "--budget", "90s", "--seconds", "0.2", "--warmup-seconds", "0.5"]
    search = ["tune", f"{tmp_path / 'encoder.py'}:net", *words, "--no-store", "--objective", "memory"]
    assert run([*search, "--arms", ",".join(arms), "--runs", str(tmp_path / "runs"), "--quiet"]) == 0
    (record,) = map(load_record, find_runs(tmp_path / "runs"))
    found = record.extra["tune"]
    assert {row["arm"] for row in found["rows"] if row["status"] == "ok"} == set(arms), found["rows"]
    assert found["winner"]["arm"] in arms and all(gate["passed"] for gate in found["gates"])


def test_a_recorded_step_trains_as_a_plain_one_and_follows_its_batches():
    runs = []
    for arm in ("cuda", "cuda:graph"):
        trained = session(arm, conv_net(), batch=8)
        runs.append([float(trained.step()) for _ in range(8)])
    assert runs[1] == pytest.approx(runs[0], rel=1e-4)
    assert len(set(runs[0][:4])) == 4  # four different batches


def test_a_recorded_step_refuses_another_shape():
    small = session("cuda:graph", batch=8)
    small.step()
    with pytest.raises(UsageError, match="shape \\[32, 64\\]"):
        small.run(session("cuda", batch=32).batches[0])


def test_a_wrong_answer_on_the_card_is_red():
    class Wrong(nn.Linear):
        def forward(self, x):
            return super().forward(x) * (1.01 if x.is_cuda else 1.0)

    workload = ModuleWorkload("wrong", lambda: Wrong(64, 10), [InputSpec((64,))])
    assert not GateKeeper(workload, mode="train", batch=8, steps=2, seed=0).judge(parse_arm("cuda")).passed


def test_tf32_is_really_on_and_really_off():
    a, b = torch.randn(512, 512, device=CUDA), torch.randn(512, 512, device=CUDA)
    truth = a.double() @ b.double()
    errors = {}
    for mode in ("ieee", "tf32"):
        set_fp32_precision(mode)
        errors[mode] = float(((a @ b).double() - truth).norm() / truth.norm())
    set_fp32_precision("ieee")
    assert errors["ieee"] < 1e-6
    if torch.cuda.get_device_capability() >= (8, 0):
        assert errors["tf32"] > 1e-5


def test_a_transfer_step_starts_and_ends_in_host_memory():
    made = session("cuda", mode="infer")
    assert all(b[0].is_pinned() and b[0].device.type == "cpu" for b in made.host_batches)
    assert all(b[0].is_cuda for b in made.batches)
    large = session("cuda", ModuleWorkload("id", lambda: nn.Linear(2**16, 1), [InputSpec((2**16,))]), "infer", 256)
    for _ in range(3):
        large.step(), large.transfer_step()
    resident = time_block(large.step, 5, CUDA).wall_ms
    copied = time_block(large.transfer_step, 5, CUDA).wall_ms
    assert copied > resident


def test_memory_is_told_three_ways():
    torch.zeros(1, device=CUDA)
    peak = PeakMemory(CUDA)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    kept = torch.empty(256 * 2**20, dtype=torch.uint8, device=CUDA)
    told = peak.read()
    assert told.allocated_bytes - before >= kept.numel()
    assert told.reserved_bytes >= told.allocated_bytes
    assert told.device_used_bytes is None or told.device_used_bytes >= 200 * 2**20
    assert told.num_ooms >= 0 and told.host_rss_bytes >= 0


def test_the_real_error_of_a_full_card_is_recognised():
    with pytest.raises(torch.OutOfMemoryError) as caught:
        torch.empty(2**50, dtype=torch.uint8, device=CUDA)
    assert is_out_of_memory(caught.value)


def test_one_process_gives_both_clocks_transfer_telemetry_and_energy():
    timers = [ArmTimer(session(arm), seed=0) for arm in ("cuda", "cuda:bf16", "cpu")]
    protocol = Protocol(
        process=0, repeats=10, seconds=0.05, max_seconds=2.0, warmup_seconds=1.0, transfer=True, began_at=0
    )
    for timer in timers:
        timer.warm_up(protocol)
    trace = time_arms(timers, protocol, quiet)
    assert trace.errors == []
    found = {(m.arm, m.quantity): m.values for m in trace.measurements}
    for arm in ("cuda", "cuda:bf16"):
        assert min(found[arm, "device"]) > 0 and min(found[arm, "transfer"]) > 0
        assert len(found[arm, "wall"]) == NUM_BLOCKS
    assert ("cpu", "device") not in found
    with Nvml() as nvml:
        counts_energy = nvml.available and nvml.ask("nvmlDeviceGetTotalEnergyConsumption", nvml.handle(card_uuid()))
    assert (("cuda", "energy") in found) == bool(counts_energy)
    told = [t for t in trace.telemetry if t.arm == "cuda"]
    assert len(told) == NUM_BLOCKS
    if counts_energy:
        assert all(t.sm_clock_mhz for t in told) and found["cuda", "energy"][0] > 0


def card_uuid():
    return str(torch.cuda.get_device_properties(0).uuid)


def test_cards_of_cuda_and_of_the_driver_are_matched():
    with Nvml() as nvml:
        if not nvml.available:
            pytest.skip(f"no NVML: {nvml.reason}")
        state = nvml.state(nvml.handle(card_uuid()))
    assert state is not None and state.memory_used_bytes > 0
    assert torch.cuda.get_device_name(0) in device_summary()
    assert get_device() == torch.device("cuda")


def test_a_bench_of_cpu_and_card_from_end_to_end(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("wide.py").write_text(
        "from torch import nn\ndef mlp():\n"
        "    wide = [nn.Linear(512, 2048), nn.GELU(), nn.Linear(2048, 2048), nn.GELU(), nn.Linear(2048, 10)]\n"
        "    return nn.Sequential(*wide)\n"
    )
    record = bench(
        BenchConfig(
            target="wide.py:mlp", input=("512",), arms=("cpu:threads=2", "cuda", "cuda:bf16"), batch=512, processes=3,
            repeats=5, seconds=0.1, max_seconds=2.0, warmup_seconds=2.0, gate_steps=2, context=False,
        )
    )  # fmt: skip
    assert record.status == "complete" and load_record(record.path) == record
    assert {g.arm: g.passed for g in record.gates} == {"cpu:threads=2": True, "cuda": True, "cuda:bf16": True}
    heads = {c.arm: c for c in record.comparisons if c.quantity == "wall"}
    assert heads["cuda"].verdict == "faster" and heads["cuda"].ratio > 2, (heads["cuda"], record.verdict.lines)
    for arm in ("cuda", "cuda:bf16"):
        row = record.arm(arm)
        assert {"wall", "interval", "device", "transfer"} <= {s.quantity for s in row.summaries}
        assert row.summary("device").median <= row.summary("wall").median * 1.1
        assert row.memory.allocated_bytes > 2**20 and row.memory.reserved_bytes >= row.memory.allocated_bytes
    assert {c.arm for c in record.comparisons if c.quantity == "transfer"} == {"cuda", "cuda:bf16"}
    assert record.extra["break_even"]["batches"][-1] == 512
    assert record.verdict.exit_code == 0 and record.environment.gpus
