"""Probes of torch on the processor: right answers, threads, bf16, torch.compile."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from functools import partial

from hotlap.device.host import read_host
from hotlap.tools.doctor.finding import Finding, Fix, passed, warned
from hotlap.tools.doctor.probes.compare import agree
from hotlap.tools.doctor.registry import probe

_TORCH = ("torch-import",)
NUM_TRIES = 15
"""Products of 512x512 take a fraction of a millisecond; undisturbed ones are among so many on a busy machine, too."""


@probe(
    "cpu-math",
    group="cpu",
    why="Matmul, convolution, FFT and solve come from four libraries, each can be broken.",
    needs=_TORCH,
)
def cpu_math() -> Finding:
    """Four operations in float32 against float64."""
    import torch

    torch.manual_seed(0)
    a, b = torch.randn(257, 129), torch.randn(129, 65)
    image, kernel = torch.randn(2, 3, 33, 31), torch.randn(5, 3, 3, 3)
    signal = torch.randn(7, 1009)
    matrix = torch.randn(64, 64) + 16 * torch.eye(64)
    conv = torch.nn.functional.conv2d
    said = [
        agree("matmul", a @ b, a.double() @ b.double(), 1e-5),
        agree("conv", conv(image, kernel), conv(image.double(), kernel.double()), 1e-5),
        agree("fft", torch.fft.rfft(signal).abs(), torch.fft.rfft(signal.double()).abs(), 1e-5),
        agree("solve", torch.linalg.solve(matrix, a[:64, :4]),
              torch.linalg.solve(matrix.double(), a[:64, :4].double()), 1e-4),
    ]  # fmt: skip
    return passed("relative errors: " + ", ".join(said))


@probe(
    "cpu-threads", group="cpu", why="torch's own thread count is what runs, whatever the variables say.", needs=_TORCH
)
def cpu_threads() -> Finding:
    """torch's thread count against the usable cores."""
    import torch

    host = read_host()
    return judge_threads(
        torch.get_num_threads(), host.usable_cores, host.logical_cpus, os.environ.get("OMP_NUM_THREADS", "")
    )


def judge_threads(threads: int, cores: int, cpus: int, omp: str) -> Finding:
    """The thread count torch chose, judged by the cores it may use."""
    facts = (
        f"torch uses {threads} threads; {cores} usable cores, {cpus} logical CPUs, OMP_NUM_THREADS={omp or '(not set)'}"
    )
    fix = Fix(commands=(f"export OMP_NUM_THREADS={cores}",))
    if threads > cpus:
        return warned(f"{facts}: more threads than CPUs", fix)
    if threads > cores:
        return warned(f"{facts}: more threads than physical cores or quota", fix)
    if threads < cores:
        return warned(f"{facts}: {cores - threads} cores stay idle", fix)
    return passed(facts)


@probe("cpu-bf16", group="cpu", why="bf16 saves time only where the processor multiplies it.", needs=_TORCH, alone=True)
def cpu_bf16() -> Finding:
    """bf16 matmul against float64, and its speed against float32."""
    import torch

    torch.manual_seed(0)
    a, b = torch.randn(512, 512), torch.randn(512, 512)
    want = a.bfloat16().double() @ b.bfloat16().double()
    said = agree("bf16 matmul error", a.bfloat16() @ b.bfloat16(), want, 2e-2)
    ratio = speed_over(lambda: a @ b, partial(torch.matmul, a.bfloat16(), b.bfloat16()))
    return judge_bf16(ratio, read_host().has_fast_bf16, said)


def speed_over(plain: Callable[[], object], other: Callable[[], object]) -> float:
    """How many times as fast as ``plain`` the other call is, by the least time of each.

    In turn, and the least: on a busy machine half of all calls may wait a hundred times as long for a thread.
    """
    times: dict[Callable[[], object], list[float]] = {plain: [], other: []}
    for _ in range(NUM_TRIES):
        for call, mine in times.items():
            begin = time.perf_counter()
            call()
            mine.append(time.perf_counter() - begin)
    return min(times[plain]) / min(times[other])


def judge_bf16(ratio: float, has_bf16: bool, said: str) -> Finding:
    """Whether bf16 pays here; a processor that should be fast and is not gets a warning."""
    facts = f"bf16 matmul runs at {ratio:.2f}x the speed of fp32 ({said})"
    if has_bf16 and ratio < 0.8:
        say = "The processor has bf16 instructions that torch does not use; update it"
        return warned(facts, Fix(say=say, commands=("pip install --upgrade torch",)))
    if has_bf16:
        return passed(f"{facts}; the processor has bf16 instructions")
    return passed(f"{facts}; the processor has no bf16 instructions: choose fp32 here")


@probe(
    "cpu-compile",
    group="cpu",
    why="torch.compile on the processor writes C++ and needs a compiler.",
    needs=_TORCH,
    patience=3.0,
)
def cpu_compile() -> Finding:
    """A small function compiled from nothing and compared with float64."""
    return compile_and_compare("cpu")


def compile_and_compare(device: str) -> Finding:
    """Compiles one fused function on ``device``, in an empty cache so that an old result cannot stand in."""
    with tempfile.TemporaryDirectory(prefix="hotlap-compile-", ignore_cleanup_errors=True) as cache:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = cache
        os.environ["TRITON_CACHE_DIR"] = f"{cache}/triton"
        import torch
        from torch._inductor import config, metrics

        # Worker processes would cost more time to start than this one function takes.
        config.compile_threads = 1
        torch.manual_seed(0)
        x = torch.randn(64, 257, device=device)

        def body(x):  # type: ignore[no-untyped-def]
            return (torch.relu(x * 2 + 1) - x).sum(-1)

        begin = time.perf_counter()
        got = torch.compile(body)(x)
        seconds = time.perf_counter() - begin
        said = agree("error", got, body(x.double()), 1e-5)
        if metrics.generated_kernel_count < 1:
            say = "torch.compile fell back to eager; see why"
            return warned(f"no kernel was generated ({said})", Fix(say=say, commands=("export TORCH_LOGS=dynamo",)))
    return passed(f"{metrics.generated_kernel_count} kernel(s) built and run in {seconds:.0f} s, {said}")
