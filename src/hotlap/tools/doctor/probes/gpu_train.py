"""Probes of what training does on a card: pinned memory, mixed precision, graphs, torch.compile."""

from __future__ import annotations

import copy
from typing import Any

from hotlap.tools.doctor.finding import Finding, Fix, failed, passed
from hotlap.tools.doctor.probes.compare import agree
from hotlap.tools.doctor.probes.cpu import compile_and_compare
from hotlap.tools.doctor.registry import probe

_CUDA = ("cuda-start", "kernel-launch")


@probe("pinned-memory", group="gpu", why="Loaders pin memory so that copies run beside the kernels.", needs=_CUDA)
def pinned_memory() -> Finding:
    """Pinned memory is given, and data survives the way to the card and back."""
    import torch

    x = torch.randn(4 * 2**20).pin_memory()
    if not x.is_pinned():
        say = "Raise the limit on locked memory"
        fix = Fix(say=say, commands=("ulimit -l unlimited", "docker run --ulimit memlock=-1 ..."))
        return failed("pin_memory() gave memory that is not pinned", fix)
    back = torch.empty_like(x).pin_memory()
    back.copy_(x.to("cuda", non_blocking=True), non_blocking=True)
    torch.cuda.synchronize()
    return passed(f"16 MiB pinned, there and back: {agree('error', back, x.double(), 0.0)}")


@probe("amp-step", group="gpu", why="Mixed precision with loss scaling is how most models train.", needs=_CUDA)
def amp_step() -> Finding:
    """One fp16 gradient against float64, then steps that must lower the loss."""
    import torch

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.GELU(), torch.nn.Linear(128, 8))
    x, target = torch.randn(256, 64), torch.randn(256, 8)
    exact = copy.deepcopy(model).double()
    torch.nn.functional.mse_loss(exact(x.double()), target.double()).backward()
    want = [parameter.grad for parameter in exact.parameters()]
    said, losses = _amp_steps(model.cuda(), x.cuda(), target.cuda(), want)
    if not losses[-1] < losses[0]:
        fix = Fix(say="Repeat with bf16, which needs no loss scaling; then see throttle and ecc")
        return failed(f"the loss did not fall in {len(losses)} steps: {losses[0]:.4f} to {losses[-1]:.4f}", fix)
    return passed(f"{said}; loss {losses[0]:.3f} to {losses[-1]:.3f} in {len(losses)} steps with GradScaler")


def _amp_steps(model: Any, x: Any, target: Any, want: list[Any]) -> tuple[str, list[float]]:
    """Ten steps with GradScaler; the first step's unscaled gradients are compared with ``want``."""
    import torch

    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cuda", init_scale=1024.0)
    losses: list[float] = []
    said = ""
    for step in range(10):
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", dtype=torch.float16):
            loss = torch.nn.functional.mse_loss(model(x), target)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        if step == 0:
            grads = torch.cat([parameter.grad.flatten() for parameter in model.parameters()])
            # fp16 keeps 11 bits; a few roundings in a row stay within 2%.
            said = agree("fp16 gradient error", grads, torch.cat([w.flatten() for w in want]), 2e-2)
        scaler.step(optimizer)
        scaler.update()
        losses.append(float(loss.detach()))
    return said, losses


@probe(
    "cuda-graph",
    group="gpu",
    why="Graphs remove launch overhead, which decides the speed of small models.",
    needs=_CUDA,
)
def cuda_graph() -> Finding:
    """A captured graph replayed on new data."""
    import torch

    torch.backends.cuda.matmul.fp32_precision = "ieee"
    torch.manual_seed(0)
    weight, x = torch.randn(64, 64, device="cuda"), torch.randn(32, 64, device="cuda")

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            torch.relu(x @ weight)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = torch.relu(x @ weight)
    fresh = torch.randn(32, 64, device="cuda")
    x.copy_(fresh)
    out.fill_(float("nan"))
    graph.replay()
    torch.cuda.synchronize()
    return passed("captured and replayed, " + agree("error", out, torch.relu(fresh.double() @ weight.double()), 1e-5))


@probe(
    "gpu-compile",
    group="gpu",
    why="torch.compile on the card writes Triton, which needs a C compiler.",
    needs=_CUDA,
    patience=3.0,
)
def gpu_compile() -> Finding:
    """A small function compiled through Triton from nothing and compared with float64."""
    from importlib.metadata import version

    finding = compile_and_compare("cuda")
    return Finding(status=finding.status, observed=f"Triton {version('triton')}: {finding.observed}", fix=finding.fix)
