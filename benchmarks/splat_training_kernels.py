"""Are the kernels around a splat training's rasterizer right, and how fast are they beside torch? On one card.

    python -m benchmarks.splat_training_kernels --out splat_training_kernels.json [--only check,loss,adam,densify]

``check`` compares every kernel with its reference over all cases. ``loss`` times L1 and SSIM with their gradient for a
picture of 1920 x 1080 beside a formula of conv2d and, where they can be imported, torchmetrics and fused_ssim.
``adam`` times a step over 1 and 3 million splats of degree 3, 59 numbers each, beside torch.optim.Adam, fused and
foreach. ``densify`` times the bookkeeping of a step. Every job is a process of its own and begins with the rate of a
large copy, which the bytes that a kernel must move are compared with. A speed-up is printed only for a kernel whose
checks are all within tolerance.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

SAMPLES, WARM_UP = 20, 3
HEIGHT, WIDTH = 1080, 1920
WIDTHS = {"means": (3,), "quats": (4,), "scales": (3,), "opacities": (), "sh0": (1, 3), "shN": (15, 3)}
RATES = {"means": 1.6e-4, "quats": 1e-3, "scales": 5e-3, "opacities": 0.025, "sh0": 2.5e-3, "shN": 1.25e-4}
NUMBERS = 59
"""Of a splat of degree 3, over all parameters."""
VISIBLE = 0.3
"""The part of the splats that a camera sees."""
JOBS = ("check:ssim", "check:adam", "check:densify", "loss", "adam:1000000", "adam:3000000", "densify:3000000")
Finding = dict[str, Any]


def check(op: str) -> Iterator[Finding]:
    """For each case the largest relative error of everything that the kernel computes."""
    from hotlap.kernels.agreement import relative_errors

    for case, tolerance, compare in {"ssim": ssim_checks, "adam": adam_checks, "densify": densify_checks}[op]():
        try:
            errors = relative_errors(*compare())
        except Exception:  # noqa: BLE001 - the other cases may say what is common to those that fail
            yield {"case": case, "passed": False, "error": traceback.format_exc()[-3000:]}
            continue
        yield {
            "case": case,
            "passed": all(error <= tolerance for error in errors.values()),
            "tolerance": tolerance,
            "worst": max(errors.values()),
        }


def ssim_checks() -> Iterator[tuple[str, float, Callable[[], Any]]]:
    import torch

    from hotlap.kernels.agreement import in_float64, outputs_and_grads
    from hotlap.kernels.ssim.cases import REAL, SMALL, run_loss
    from hotlap.kernels.ssim.op import l1_ssim
    from hotlap.kernels.ssim.reference import l1_ssim_ref

    def compare(case: Any) -> Any:
        made = case.make(torch.device("cuda"))
        want = outputs_and_grads(run_loss(l1_ssim_ref, case), in_float64(made))
        got = outputs_and_grads(run_loss(partial(l1_ssim, impl="cuda"), case), made)
        return tuple({name: found[name] for name in ("loss", "grad image")} for found in (got, want))

    for case in (*SMALL, *REAL):
        if case.dtype != torch.float64:
            yield case.id, case.tolerance, partial(compare, case)


def adam_checks() -> Iterator[tuple[str, float, Callable[[], Any]]]:
    import torch

    from hotlap.kernels.adam.cases import CASES, TOLERANCE, results
    from hotlap.kernels.adam.op import adam_flush, adam_step

    def train(case: Any, impl: str, device: torch.device) -> Any:
        state, before = case.make(device), case.make(device)
        lrs = state.lrs.clone()
        for grads, visible, factor in case.make_steps(device):
            state.lrs.copy_(lrs * factor)
            adam_step(state, grads, case.config, visible, impl=impl)
        adam_flush(state, case.config, impl=impl)
        return results(state, before)

    def compare(case: Any) -> Any:
        want = train(dataclasses.replace(case, dtype=torch.float64), "reference", torch.device("cpu"))
        return train(case, "cuda", torch.device("cuda")), want

    for case in CASES:
        yield case.id, TOLERANCE, partial(compare, case)


def densify_checks() -> Iterator[tuple[str, float, Callable[[], Any]]]:
    import torch

    from hotlap.kernels.agreement import in_float64
    from hotlap.kernels.densify import cuda, reference
    from hotlap.kernels.densify.cases import CASES, TOLERANCE
    from hotlap.kernels.densify.stats import make_plan, make_stats

    def parts(case: Any, made: Any, ref: bool) -> Any:
        stats = make_stats(case.splats, made["radii"].device)
        given = (stats, made["v_means2d"], made["radii"], case.width, case.height)
        (reference.accumulate_ref if ref else cuda.accumulate)(*given)
        plan = make_plan(2 * case.splats, made["radii"].device)
        (reference.plan_ref if ref else cuda.fill_plan)(made["clone"], made["split"], made["prune"], plan)
        relocate = reference.relocate_ref if ref else cuda.relocate
        opacities, scales = relocate(made["opacities"], made["scales"], made["ratios"])
        names = ("means", "quats", "log_scales", "logits", "lr", "step")
        (reference.add_noise_ref if ref else cuda.add_noise)(*(made[name] for name in names), 7, 5e5)
        found = {"grad": stats.grad, "count": stats.count, "radius": stats.max_radius, "visible": stats.visible}
        found |= {"source": plan.source, "kind": plan.kind, "rows": plan.count, "means": made["means"]}
        return found | {"opacities": opacities, "scales": scales}

    def compare(case: Any) -> Any:
        want = parts(case, in_float64(case.make(torch.device("cpu"))), True)
        return parts(case, case.make(torch.device("cuda")), False), want

    for case in CASES:
        yield case.id, TOLERANCE, partial(compare, case)


def samples(run: Callable[[], Any], inner: int = 3) -> list[float]:
    """Milliseconds of a call, all samples."""
    import torch

    for _ in range(WARM_UP):
        run()
    times = []
    for _ in range(SAMPLES):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(inner):
            run()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) / inner)
    return times


def replayed(run: Callable[[], Any]) -> Callable[[], Any]:
    """The call as a CUDA graph."""
    import torch

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        run()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return graph.replay


def timed(arm: str, run: Callable[[], Any], num_bytes: float | None = None, graph: bool = False) -> Iterator[Finding]:
    """One arm, eager and on request as a graph; an arm that fails is a finding."""
    try:
        yield {"arm": arm, "ms": samples(run), "bytes": num_bytes}
        if graph:
            yield {"arm": f"{arm}, graph", "ms": samples(replayed(run)), "bytes": num_bytes}
    except Exception:  # noqa: BLE001 - whatever an arm does wrong is what we want to know
        yield {"arm": arm, "error": traceback.format_exc()[-2000:]}


def copy_rate() -> Iterator[Finding]:
    """The ceiling: bytes read and written by a copy of 1 GiB."""
    import torch

    source = torch.empty(2**28, device="cuda")
    target = torch.empty_like(source)
    yield from timed("copy", partial(target.copy_, source), 2 * 2**30)


def loss() -> Iterator[Finding]:
    """L1 and SSIM of one picture with the gradient of the image."""
    import torch

    from hotlap.kernels.ssim.op import l1_ssim, l1_ssim_grad, make_buffers
    from hotlap.kernels.ssim.reference import l1_ssim_ref

    yield from copy_rate()
    target = torch.randint(0, 256, (1, HEIGHT, WIDTH, 3), dtype=torch.uint8, device="cuda")
    image = (target / 255 + 0.05 * torch.randn(target.shape, device="cuda")).requires_grad_()
    out = make_buffers(image, target, impl="cuda")
    size = image.numel()
    # Image, target and three maps; then maps, image, target and the gradient.
    needed = size * (4 + 1 + 12 + 12 + 4 + 1 + 4)
    step = partial(l1_ssim_grad, image, target, out=out, impl="cuda")
    yield from timed("ours", step, needed, graph=True)
    yield from timed("ours, autograd", lambda: torch.autograd.grad(l1_ssim(image, target, impl="cuda"), image))
    as_float = target / 255
    formula = partial(l1_ssim_ref, image, as_float)
    yield from timed("torch, conv2d", lambda: torch.autograd.grad(formula(), image), graph=True)
    yield from peers_of_loss(image, as_float)


def peers_of_loss(image: Any, target: Any) -> Iterator[Finding]:
    """Other packages, where they can be imported; they take channels first."""
    import torch

    x, y = (t.movedim(-1, 1).contiguous() for t in (image.detach(), target))
    x.requires_grad_()

    def whole(similarity: Callable[..., Any]) -> Any:
        total = 0.8 * (x - y).abs().mean() + 0.2 * (1 - similarity(x, y))
        return torch.autograd.grad(total, x)

    try:
        from torchmetrics.functional.image import structural_similarity_index_measure

        similarity = partial(structural_similarity_index_measure, sigma=1.5, kernel_size=11, data_range=1.0)
        yield from timed("torchmetrics", partial(whole, similarity))
    except ImportError as error:
        yield {"arm": "torchmetrics", "absent": str(error)}
    try:
        from fused_ssim import fused_ssim

        yield from timed("fused_ssim", partial(whole, fused_ssim))
    except ImportError as error:
        yield {"arm": "fused_ssim", "absent": str(error)}


def visible_rows(num: int, run: int) -> Any:
    """Which splats are seen, in runs of so many: 1 as if in random order, more as if sorted by place."""
    import torch

    generator = torch.Generator(device="cuda").manual_seed(0)
    return (torch.rand(-(-num // run), device="cuda", generator=generator) < VISIBLE).repeat_interleave(run)[:num]


def adam(num: int) -> Iterator[Finding]:
    """A step over all parameters of ``num`` splats."""
    import torch

    from hotlap.kernels.adam.op import adam_flush, adam_step
    from hotlap.kernels.adam.state import AdamConfig, make_adam_state

    yield from copy_rate()
    params = [0.1 * torch.randn((num, *width), device="cuda") for width in WIDTHS.values()]
    grads = [1e-5 * torch.randn_like(param) for param in params]
    rates = list(RATES.values())
    for mode, run in (("dense", 0), ("lazy", 1), ("lazy", 256), ("selective", 256)):
        config = AdamConfig(mode=mode)
        state = make_adam_state(params, rates, config)
        seen = visible_rows(num, run) if run else None
        word = f", {VISIBLE:.0%} visible in runs of {run}" if run else ""
        needed = 28 * NUMBERS * num * (VISIBLE if run else 1)
        step = partial(adam_step, state, grads, config, seen, impl="cuda")
        yield from timed(f"ours {mode}{word}", step, needed, graph=True)
        if mode == "lazy" and run == 1:
            # A flush right after a flush does nothing, so that a step lies between two of them.
            yield from timed("ours lazy step and flush", lambda s=state, f=step, c=config: (f(), adam_flush(s, c)))
        del state
    for kind in ("fused", "foreach"):
        leaves = [torch.nn.Parameter(param.clone()) for param in params]
        for leaf, grad in zip(leaves, grads, strict=True):
            leaf.grad = grad
        groups = [{"params": [leaf], "lr": rate} for leaf, rate in zip(leaves, rates, strict=True)]
        optimizer = torch.optim.Adam(groups, eps=1e-15, **{kind: True})
        yield from timed(f"torch {kind}", optimizer.step, 28 * NUMBERS * num)
        del leaves, groups, optimizer


def densify(num: int) -> Iterator[Finding]:
    """The bookkeeping of one step, and a plan."""
    import torch

    from hotlap.kernels.densify.op import densify_accumulate, densify_noise, densify_plan
    from hotlap.kernels.densify.reference import accumulate_ref
    from hotlap.kernels.densify.stats import make_stats

    yield from copy_rate()
    stats, normal = make_stats(num, "cuda"), partial(torch.randn, device="cuda")
    seen = visible_rows(num, 1)
    radii = (torch.randint(1, 50, (1, num, 2), device="cuda") * seen[None, :, None]).int()
    gradients = 1e-5 * normal(1, num, 2)
    step = partial(densify_accumulate, stats, gradients, radii, WIDTH, HEIGHT, impl="cuda")
    yield from timed("ours accumulate", step, num * (8 + 1 + VISIBLE * (8 + 24)), graph=True)
    yield from timed("torch accumulate", partial(accumulate_ref, stats, gradients, radii, WIDTH, HEIGHT))
    means, quats, scales, logits = normal(num, 3), normal(num, 4), normal(num, 3) - 4, normal(num)
    number = torch.tensor(1, dtype=torch.int32, device="cuda")
    rate = torch.tensor(1.6e-4, device="cuda")
    noise = partial(densify_noise, means, quats, scales, logits, rate, number, impl="cuda")
    yield from timed("ours noise", noise, num * 4 * (6 + 4 + 3 + 1), graph=True)
    clone, split, prune = (visible_rows(num, run) for run in (1, 2, 3))
    plan = partial(densify_plan, clone, split, prune, capacity=2 * num, impl="cuda")
    yield from timed("ours plan", plan)


def work(job: str) -> None:
    """Prints one JSON line for each finding of a job as soon as it is there; an error is a finding too."""
    kind, *rest = job.split(":")
    try:
        for finding in {"check": check, "loss": loss, "adam": adam, "densify": densify}[kind](
            *(int(word) if word.isdigit() else word for word in rest)
        ):
            print(json.dumps(finding), flush=True)
    except Exception:  # noqa: BLE001 - whatever a job does wrong is what we want to know
        print(json.dumps({"error": traceback.format_exc()[-3000:]}), flush=True)


def run_job(job: str, timeout_s: float) -> list[Finding]:
    """The findings of a job, with an error as the last if it failed, crashed or took too long."""
    command = [sys.executable, "-m", "benchmarks.splat_training_kernels", "--job", job]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)
        out, fault = done.stdout, done.stderr[-2000:] if done.returncode else ""
    except subprocess.TimeoutExpired as late:
        out = late.stdout.decode() if isinstance(late.stdout, bytes) else late.stdout or ""
        fault = f"no answer within {timeout_s:g} s"
    found = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
    return [*found, {"error": fault}] if fault else found


def describe(finding: Finding, ceiling: float | None) -> str:
    """One line for the terminal."""
    head = finding.get("arm") or finding.get("case") or ""
    if "error" in finding:
        return f"{head} ERROR {finding['error'].strip()[-1500:]}"
    if "absent" in finding:
        return f"{head}: not here ({finding['absent']})"
    if "case" in finding:
        word = "ok " if finding["passed"] else "BAD"
        return f"{word} {head}: {finding['worst']:.2e} of {finding['tolerance']:.1e}"
    median = statistics.median(finding["ms"])
    line = f"{head}: {median:.4f} ms [{min(finding['ms']):.4f}, {max(finding['ms']):.4f}]"
    if finding["bytes"]:
        rate = finding["bytes"] / median / 1e6
        line += f", {rate:.0f} GB/s" + (f" = {rate / ceiling:.0%} of a copy" if ceiling else "")
    return line


def copy_ceiling(findings: list[Finding]) -> float | None:
    """GB/s of the copy among a job's findings."""
    rates = [f["bytes"] / statistics.median(f["ms"]) / 1e6 for f in findings if f.get("arm") == "copy" and "ms" in f]
    return rates[0] if rates else None


def speed_ups(results: dict[str, list[Finding]]) -> Iterator[str]:
    """Each of our arms against each of others in the same job; only where every check of the op is green."""
    for job, findings in results.items():
        op = {"loss": "ssim"}.get(job, job.split(":")[0])
        checked = results.get(f"check:{op}", [])
        if job.startswith("check"):
            continue
        if not checked or not all(finding.get("passed") for finding in checked):
            yield f"{job}: no speed-up, its checks are not green"
            continue
        medians = {f["arm"]: statistics.median(f["ms"]) for f in findings if "ms" in f and f["arm"] != "copy"}
        for mine in (arm for arm in medians if arm.startswith("ours")):
            for peer in (arm for arm in medians if not arm.startswith("ours")):
                if op != "densify" or mine.removeprefix("ours ").startswith(peer.removeprefix("torch ")):
                    yield f"{job}: {mine} is {medians[peer] / medians[mine]:.2f} x {peer}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("splat_training_kernels.json"))
    parser.add_argument("--only", default="check,loss,adam,densify", help="beginnings of jobs, as in check:adam,loss")
    parser.add_argument("--timeout", type=float, default=60.0, help="seconds for each job")
    parser.add_argument("--job", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.job:
        work(given.job)
        return
    from hotlap.records.environment import capture

    results: dict[str, list[Finding]] = {}
    environment = dataclasses.asdict(capture())
    for job in JOBS:
        if job.startswith(tuple(given.only.split(","))):
            results[job] = run_job(job, given.timeout)
            for finding in results[job]:
                print(f"{job}: {describe(finding, copy_ceiling(results[job]))}", flush=True)
            answer = {"samples": SAMPLES, "results": results, "environment": environment}
            given.out.write_text(json.dumps(answer, indent=1) + "\n")
    print("\n".join(speed_ups(results)))


if __name__ == "__main__":
    main()
