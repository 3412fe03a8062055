"""Records as a run would leave them, from a seed: the good day, the bad days, and what lies between."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from hotlap.records.environment import Environment, Gpu
from hotlap.records.measurement import (
    Arm,
    Check,
    Comparison,
    Gate,
    GateCheck,
    Measurement,
    Memory,
    Summary,
    Telemetry,
    Verdict,
)
from hotlap.records.run import RunRecord

GIB = 1024**3


def environment(*, gpu: bool = True) -> Environment:
    return Environment(
        hostname="bench-07",
        system="Linux 6.8.0 x86_64",
        python="3.12.4",
        hotlap="0.1.0",
        commit="4f0c1d2e9a7b4f0c1d2e9a7b4f0c1d2e9a7b4f0c+",
        cpu_model="AMD EPYC 9554 64-Core Processor",
        usable_cores=32,
        logical_cpus=128,
        memory_bytes=256 * GIB,
        driver="580.82.07" if gpu else "",
        gpus=[Gpu(name="NVIDIA RTX A6000", uuid="GPU-8f2c", memory_bytes=48 * GIB)] if gpu else [],
        packages={"torch": "2.11.0", "triton": "3.6.0", "numpy": "2.2.1"},
        cuda="13.0" if gpu else "",
        cudnn="91500" if gpu else "",
        variables={"OMP_NUM_THREADS": "32"},
    )


def samples(centre: float, *, processes: int, iterations: int, seed: int, bimodal: float = 0.0) -> list[list[float]]:
    """Right-skewed times around ``centre``; with ``bimodal`` every third process is slower by that share."""
    rng = np.random.default_rng(seed)
    found = []
    for process in range(processes):
        level = centre * (1 + rng.normal(0, 0.006)) * (1 + (bimodal if process % 3 == 2 else 0))
        values = level * (1 + rng.gamma(2.0, 0.004, iterations))
        values[rng.integers(0, iterations, 1)] *= 1 + abs(rng.normal(0, 0.15))
        found.append([round(float(v), 6) for v in values])
    return found


def summary(quantity: str, processes: list[list[float]]) -> Summary:
    medians = [float(np.median(p)) for p in processes]
    half = 1.96 * float(np.std(medians)) / max(len(medians), 1) ** 0.5
    centre = float(np.median(medians))
    return Summary(
        quantity=quantity,
        unit="ms",
        median=centre,
        low=centre - half,
        high=centre + half,
        num_processes=len(processes),
        num_samples=sum(len(p) for p in processes),
        process_medians=medians,
    )


def series(arm: str, quantity: str, processes: list[list[float]], flags: dict[int, str]) -> list[Measurement]:
    return [
        Measurement(
            quantity=quantity,
            unit="ms",
            arm=arm,
            process=p,
            values=values,
            flags=[flags[p]] if p in flags else [],
        )
        for p, values in enumerate(processes)
    ]


def gate(arm: str, scale: float, *, red: bool = False) -> Gate:
    names = ["output", "loss", "grad backbone.stem.weight", "grad head.weight", "loss after 3 steps"]
    errors = [scale * (1 + 0.4 * k) for k in range(len(names))]
    if red:
        errors[2] = 0.21
    checks = [
        GateCheck(name=name, error=error, allowed=2e-2, passed=error <= 2e-2, detail="" if k else "max relative error")
        for k, (name, error) in enumerate(zip(names, errors, strict=True))
    ]
    return Gate(arm=arm, passed=all(c.passed for c in checks), checks=checks, reference="float64 on cpu", seconds=2.1)


def telemetry(arms: list[str], processes: int, *, gpu: bool, throttled: bool, seed: int = 3) -> list[Telemetry]:
    rng = np.random.default_rng(seed)
    found = []
    for k in range(processes * len(arms) * 3):
        process, rest = divmod(k, len(arms) * 3)
        heat = 44 + 32 * (1 - np.exp(-k / 24)) + rng.normal(0, 0.4)
        held = throttled and process == processes - 2
        fields: dict[str, Any] = (
            {
                "sm_clock_mhz": float(1800 - (210 if held else 0) + rng.integers(-1, 2) * 15),
                "memory_clock_mhz": 8001.0,
                "power_w": float(round(232 + 40 * (1 - np.exp(-k / 9)) + rng.normal(0, 5), 1)),
                "temperature_c": float(round(heat)),
                "throttle": ["software thermal slowdown"] if held else [],
            }
            if gpu
            else {}
        )
        found.append(
            Telemetry(
                process=process,
                arm=arms[rest // 3],
                block=rest % 3,
                seconds=round(4.0 + 1.7 * k + 6.0 * process, 2),
                cpu_clock_mhz=float(round(3400 + rng.normal(0, 60))),
                load_average=float(round(1.1 + rng.gamma(2, 0.1), 2)),
                **fields,
            )
        )
    return found


def comparison(arm: str, baseline: str, quantity: str, ratio: float, half: float = 0.02) -> Comparison:
    low, high = ratio * (1 - half), ratio * (1 + half)
    verdict = "faster" if low > 1 else "slower" if high < 1 else "inconclusive"
    return Comparison(
        arm=arm,
        baseline=baseline,
        quantity=quantity,
        ratio=ratio,
        low=low,
        high=high,
        p_value=0.0016 if verdict != "inconclusive" else 0.41,
        test="Mann-Whitney U",
        min_detectable=0.021,
        verdict=verdict,
        reason="" if verdict != "inconclusive" else "the interval holds 1x",
    )


def timed_arm(place: int, spec: tuple[str, str, float, float], wall: list[list[float]]) -> Arm:
    """One arm with its summaries and memory, from (name, role, wall ms, device share of it)."""
    name, role, wall_ms, share = spec
    on_card = name.startswith("cuda")
    used = int((2.2 - 0.3 * place) * GIB)
    on_device = [("device", share), ("transfer", 1.2)] if on_card else []
    return Arm(
        name=name,
        settings={"device": name.split(":")[0]},
        role=role,
        summaries=[summary(q, [[v * times for v in p] for p in wall]) for q, times in [("wall", 1.0), *on_device]],
        memory=Memory(allocated_bytes=used, reserved_bytes=int(used * 1.2), device_used_bytes=used + GIB // 2)
        if on_card
        else Memory(host_rss_bytes=int(1.4 * GIB)),
        first_step_s=1.8 if place < 2 else 21.4,
        samples_per_s=16 / wall_ms * 1000,
        energy_j_per_sample=0.19 / (place + 1) if on_card else None,
    )


def bench(specs: list[tuple[str, str, float, float]], *, gpu: bool, processes: int = 8, iterations: int = 50,
          target: str = "segment:small", **changes: Any) -> RunRecord:  # fmt: skip
    """A finished bench of (arm, role, wall ms, device share of it), the first one the baseline."""
    arms, measurements, comparisons = [], [], []
    for k, (name, role, wall_ms, share) in enumerate(specs):
        count = 3 if role == "context" else processes
        wall = samples(wall_ms, processes=count, iterations=iterations, seed=k, bimodal=0.06 if k == 1 else 0)
        flags = {count - 2: "throttled"} if gpu and k == len(specs) - 1 and count > 2 else {}
        measurements += series(name, "wall", wall, flags)
        if name.startswith("cuda"):
            measurements += series(name, "device", [[v * share for v in p[:10]] for p in wall], {})
        arms.append(timed_arm(k, specs[k], wall))
        if k and role != "context":
            ratio = specs[0][2] / wall_ms
            comparisons.append(comparison(name, specs[0][0], "wall", ratio))
            if name.startswith("cuda"):
                comparisons.append(comparison(name, specs[0][0], "device", ratio / share))
    parts = {"arms": arms, "measurements": measurements, "comparisons": comparisons}
    return dataclasses.replace(empty_bench(specs, gpu=gpu, processes=processes, target=target), **{**parts, **changes})


def empty_bench(specs: list[tuple[str, str, float, float]], *, gpu: bool, processes: int, target: str) -> RunRecord:
    """The same run before it has timed anything."""
    names = [spec[0] for spec in specs]
    best = min(specs, key=lambda spec: spec[2])[0]
    return RunRecord(
        kind="bench",
        name=target.replace(":", "-"),
        status="complete",
        started_at="2026-02-11T09:14:03+00:00",
        finished_at="2026-02-11T09:18:40+00:00",
        command=["/usr/local/bin/hotlap", "bench", target, "--batch", "16", "--arms", ",".join(names)],
        config={"target": target, "mode": "train", "batch": 16, "arms": names, "processes": processes, "seed": 0,
                "gate": {"steps": 3, "rtol": 0.02}},
        config_sources={"target": "command line", "mode": "default", "batch": "command line", "arms": "command line",
                        "processes": "bench.yaml", "seed": "default", "gate": "default"},
        environment=environment(gpu=gpu),
        gates=[gate(name, 1e-7 if "tf32" not in name and "bf16" not in name else 3e-3) for name in names],
        telemetry=telemetry(names, processes, gpu=gpu, throttled=gpu),
        verdict=Verdict(outcome="faster", headline=f"{best} trains {target} faster than {names[0]}.", exit_code=0,
                        lines=["The gain holds with the copies of the batch counted."]),
        path=f"runs/{target.replace(':', '-')}/20260211-091403/record.json",
    )  # fmt: skip


def gpu_bench() -> RunRecord:
    """Four arms on a card, one with processes of two speeds, one with throttled blocks."""
    return bench(
        [
            ("cuda:fp32", "baseline", 31.4, 0.97),
            ("cuda:tf32", "arm", 19.8, 0.93),
            ("cuda:bf16+channels_last", "arm", 13.1, 0.71),
            ("cuda:bf16+channels_last+compile", "arm", 9.6, 0.94),
        ],
        gpu=True,
        extra={"self_test": {"comparisons": 40, "false_positives": 1, "rate": 0.025, "ratios": [1.0, 1.01]}},
    )


def mixed_bench() -> RunRecord:
    """A tuned CPU against a card, far apart, with the break-even batch and the CPU's race."""
    batches = [1, 2, 4, 8, 16, 32, 64]
    return bench(
        [("cpu:tuned", "baseline", 412.0, 1.0), ("cuda", "arm", 14.2, 0.62), ("cpu:1thread", "context", 3900.0, 1.0)],
        gpu=True,
        target="sequence:base",
        extra={
            "break_even": {
                "batches": batches,
                "times_ms": {
                    "cpu:tuned": [9.0 + 25.0 * b for b in batches],
                    "cuda": [42.0 + 0.6 * b for b in batches],
                },
                "batch": 2,
                "text": "From batch 2 on the card is faster, copies counted.",
            },
            "tuned_cpu": {
                "candidates": [
                    {"arm": "cpu:threads=32", "median_ms": 412.0, "passed_gate": True},
                    {"arm": "cpu:threads=64", "median_ms": 455.1, "passed_gate": True},
                    {"arm": "cpu:threads=32+bf16", "median_ms": 201.7, "passed_gate": False},
                ],
                "chosen": "cpu:threads=32",
            },
        },
    )


def cpu_bench() -> RunRecord:
    """Two CPU arms that cannot be told apart, in quick mode."""
    return bench(
        [("cpu", "baseline", 52.0, 1.0), ("cpu:channels_last", "arm", 51.6, 1.0)],
        gpu=False,
        processes=3,
        iterations=12,
        notes=["Quick mode: 3 processes; a small change cannot be seen."],
        verdict=Verdict(outcome="inconclusive", headline="No difference could be shown.", exit_code=3),
    )


def interrupted_bench() -> RunRecord:
    """A run stopped after three processes, before any comparison."""
    full = gpu_bench()
    return dataclasses.replace(
        full,
        status="interrupted",
        comparisons=[],
        verdict=None,
        gates=full.gates[:2],
        extra={},
        arms=[dataclasses.replace(arm, summaries=[]) for arm in full.arms],
        measurements=[m for m in full.measurements if m.process < 3],
        telemetry=[t for t in full.telemetry if t.process < 3],
        notes=["The run was cut off."],
    )


def red_bench() -> RunRecord:
    """bf16 is fast and wrong; another arm did not fit."""
    full = gpu_bench()
    gates = [*full.gates[:2], gate("cuda:bf16+channels_last", 4e-3, red=True)]
    arms = [
        *full.arms[:3],
        Arm(name="cuda:bf16+channels_last+compile", settings={}, error="OutOfMemory: batch 16 does not fit"),
    ]
    lost = "cuda:bf16+channels_last+compile"
    return dataclasses.replace(
        full,
        gates=gates,
        arms=arms,
        comparisons=[c for c in full.comparisons if c.arm != lost],
        measurements=[m for m in full.measurements if m.arm != lost],
        verdict=Verdict(outcome="gate_failed", headline="cuda:bf16+channels_last gives a wrong answer.", exit_code=1),
    )


def doctor() -> RunRecord:
    """A machine with one failure, two warnings and its ceilings."""
    checks = [
        Check(name="driver answers", group="driver", status="PASS", observed="580.82.07, CUDA 13.0"),
        Check(name="library versions", group="driver", status="FAIL", observed="cuDNN 9.1 is loaded, torch wants 9.15",
              why="A convolution may fail at run time, or fall back to a slow algorithm.",
              fix="pip install --upgrade nvidia-cudnn-cu13"),
        Check(name="persistence mode", group="clocks", status="WARN", observed="off",
              why="The driver unloads between processes and the first call pays for it.", fix="sudo nvidia-smi -pm 1"),
        Check(name="throttle reasons", group="clocks", status="PASS", observed="none"),
        Check(name="/dev/shm", group="host", status="WARN", observed="64 MiB, the loader may need 512 MiB",
              why="Workers die with a bus error.", fix="docker run --shm-size=2g ..."),
        Check(name="cgroup CPU quota", group="host", status="PASS", observed="32 of 128 cores"),
        Check(name="compiler", group="compile", status="PASS", observed="gcc 13.2, Triton 3.6.0"),
        Check(name="MIG", group="compile", status="SKIP", observed="not supported by this card"),
    ]  # fmt: skip
    return RunRecord(
        kind="doctor",
        name="doctor",
        status="complete",
        started_at="2026-02-11T09:00:00+00:00",
        command=["hotlap", "doctor"],
        environment=environment(),
        checks=checks,
        extra={"ceilings": {"cuda": {"gemm_fp32_tflops": 19.1, "gemm_tf32_tflops": 61.0, "gemm_bf16_tflops": 118.4,
                                     "copy_gbps": 642.0}, "cpu": {"gemm_fp32_tflops": 1.9, "copy_gbps": 88.0}}},
        path="runs/doctor/20260211-090000/record.json",
    )  # fmt: skip


def compare() -> RunRecord:
    """Yesterday's record against today's: comparisons, and nothing else."""
    return RunRecord(
        kind="compare",
        name="compare",
        status="complete",
        started_at="2026-02-12T09:00:00+00:00",
        command=["hotlap", "compare", "runs/a", "runs/b"],
        environment=environment(),
        comparisons=[comparison("cuda:bf16", "cuda:bf16 before", "wall", 0.91),
                     comparison("cuda:fp32", "cuda:fp32 before", "wall", 1.003)],
        verdict=Verdict(outcome="slower", headline="cuda:bf16 is slower than before.", exit_code=1),
    )  # fmt: skip


ALL = {
    "gpu": gpu_bench,
    "mixed": mixed_bench,
    "cpu": cpu_bench,
    "interrupted": interrupted_bench,
    "red": red_bench,
    "doctor": doctor,
    "compare": compare,
}
