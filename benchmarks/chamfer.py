"""Is the Chamfer kernel right, and how fast and small is it beside ``torch.cdist``? On one card.

    python -m benchmarks.chamfer --out chamfer.json [--only check,speed]

``check`` compares distances and gradients with the reference in float64 over all cases. ``speed`` times forward and
backward, both directions, for batch 8 of 10,000 x 10,000 points and two more sizes, eager and as a CUDA graph, beside
``torch.cdist`` with two minima, and beside pytorch3d where it can be imported. A speed-up is printed only if every
check is green.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from benchmarks.card_jobs import Finding, checked, compare_cases, medians, run_all, timed

SIZES = ((8, 10_000, 10_000), (16, 6466, 2000), (1, 10_000, 10_000))


def check() -> Iterator[Finding]:
    import torch

    from hotlap.kernels.chamfer.cases import REAL, SMALL, run_chamfer
    from hotlap.kernels.chamfer.op import chamfer
    from hotlap.kernels.chamfer.reference import chamfer_ref

    torch.use_deterministic_algorithms(True, warn_only=True)  # so that fresh memory is filled with NaN
    ours = partial(chamfer, impl="cuda")
    yield from checked(compare_cases((*SMALL, *REAL), lambda op, case, card: run_chamfer(op), ours, chamfer_ref))


def speed(batch: int, num_x: int, num_y: int) -> Iterator[Finding]:
    """Forward and backward of the sum of both directions."""
    import torch

    from hotlap.kernels.chamfer.op import chamfer

    generator = torch.Generator().manual_seed(0)
    x, y = (0.3 * torch.randn(batch, n, 3, generator=generator) for n in (num_x, num_y))
    x, y = x.cuda().requires_grad_(), y.cuda().requires_grad_()

    def ours() -> Any:
        found = chamfer(x, y, impl="cuda")
        return torch.autograd.grad(found.x_distance.sum() + found.y_distance.sum(), (x, y))

    def forward_only() -> Any:
        with torch.no_grad():
            return chamfer(x, y, impl="cuda")

    def plain() -> Any:
        pairs = torch.cdist(x, y)
        return torch.autograd.grad(pairs.min(2).values.square().sum() + pairs.min(1).values.square().sum(), (x, y))

    yield from timed("ours", ours)
    yield from timed("ours, graph", ours, graph=True)
    yield from timed("ours, forward only", forward_only)
    yield from timed("torch.cdist", plain)
    try:
        from pytorch3d.loss import chamfer_distance
    except ImportError as error:
        yield {"peer": "pytorch3d", "absent": str(error)}
    else:
        yield from timed("pytorch3d", lambda: torch.autograd.grad(chamfer_distance(x, y)[0], (x, y)))


def verdict(results: dict[str, list[Finding]]) -> Iterator[str]:
    checks = results.get("check", [])
    if not checks or not all(finding.get("passed") for finding in checks):
        yield "no speed-up, the checks are not green"
        return
    for job, findings in results.items():
        found = medians(findings)
        for peer in ("torch.cdist", "pytorch3d"):
            for mine in ("ours", "ours, graph"):
                if mine in found and peer in found:
                    yield f"{job}: {mine} is {found[peer] / found[mine]:.1f} x {peer}"
        for finding in findings:
            if finding.get("arm") == "ours" and "peak_mb" in finding:
                yield f"{job}: ours takes {finding['peak_mb']:.1f} MB beside its inputs"


JOBS = {"check": check} | {f"speed:{b}x{n}x{m}": partial(speed, b, n, m) for b, n, m in SIZES}

if __name__ == "__main__":
    run_all("benchmarks.chamfer", __doc__, JOBS, verdict)
