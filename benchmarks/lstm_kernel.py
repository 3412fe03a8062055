"""Is the LSTM layer's kernel right, and how fast is it beside cuDNN? Every job in a process of its own, on one card.

    python -m benchmarks.lstm_kernel --out lstm_kernel.json [--only check,scan,layer,model] [--timeout 120]

``check`` compares outputs and every gradient with the reference in float64 over all cases. ``scan`` times the two
kernels of the recurrence alone, ``layer`` one bidirectional layer forward and backward, ``model`` the loss of the
bilstm target forward and backward: B = 64, T = 128, H = 256. A job that fails or hangs is reported, and the others run.
A speed-up is printed only for an implementation whose checks are all within tolerance.
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

PRECISIONS = ("float32", "tf32", "float16", "bfloat16")
IMPLS = ("cuda", "triton")
SIZES = {"batch": 64, "steps": 128, "features": 512, "hidden": 256}
SAMPLES, WARM_UP, INNER = 30, 3, 5
JOBS = (
    *(f"check:{impl}:{precision}" for impl in IMPLS for precision in ("float32", "float16", "bfloat16")),
    *(f"scan:{impl}" for impl in IMPLS),
    *(f"layer:{impl}" for impl in ("cudnn", *IMPLS)),
    *(f"model:{impl}" for impl in ("torch", *IMPLS)),
)


def check(impl: str, precision: str) -> Iterator[dict[str, Any]]:
    """For each case the largest relative error of every output and gradient."""
    import torch

    from hotlap.kernels.agreement import in_float64, outputs_and_grads, relative_errors
    from hotlap.kernels.lstm.cases import REAL, SMALL, run_layer
    from hotlap.kernels.lstm.op import lstm
    from hotlap.kernels.lstm.reference import lstm_ref

    card = torch.device("cuda")
    torch.use_deterministic_algorithms(True, warn_only=True)  # so that fresh memory is filled with NaN
    for case in (*SMALL, *REAL):
        if case.dtype != getattr(torch, precision):
            continue
        try:
            want = outputs_and_grads(run_layer(lstm_ref), in_float64(case.make(card)))
            got = outputs_and_grads(run_layer(partial(lstm, impl=impl)), case.make(card))
        except Exception:  # noqa: BLE001 - the other cases may say what is common to those that fail
            yield {"case": case.id, "passed": False, "error": traceback.format_exc()[-3000:]}
            continue
        errors = relative_errors(got, want)
        passed = all(error <= case.tolerance for error in errors.values())
        yield {"case": case.id, "passed": passed, "tolerance": case.tolerance, "errors": errors}


def sampled(run: Callable[[], Any]) -> dict[str, list[float]]:
    """Milliseconds of a call, eager and replayed from a CUDA graph, all samples."""
    import torch

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(WARM_UP):
            run()
    torch.cuda.current_stream().wait_stream(side)
    found = {"eager_ms": _samples(run)}
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return {**found, "graph_ms": _samples(graph.replay)}


def _samples(run: Callable[[], Any]) -> list[float]:
    import torch

    run()
    times = []
    for _ in range(SAMPLES):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(INNER):
            run()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) / INNER)
    return times


def scan(impl: str, precision: str) -> Iterator[dict[str, Any]]:
    """The recurrence alone, each way; the CUDA kernel with 8 and with 16 sequences a cluster."""
    import torch

    from hotlap.kernels.lstm import cuda
    from hotlap.kernels.lstm.scan import lstm_scan, lstm_scan_backward

    dtype = torch.float32 if precision == "tf32" else getattr(torch, precision)
    num_batch, num_steps, hidden = SIZES["batch"], SIZES["steps"], SIZES["hidden"]
    gates = torch.randn(num_batch, num_steps, 2, hidden, 4, device="cuda", dtype=dtype)
    w_hh = (torch.rand(2, 4 * hidden, hidden, device="cuda") * 2 - 1).to(dtype) / hidden**0.5
    h0 = torch.zeros(2, num_batch, hidden, device="cuda", dtype=dtype)
    c0 = h0.float()
    lengths = torch.full((num_batch,), num_steps, device="cuda", dtype=torch.int32)
    chosen = cuda._tiles
    for tiles in (1, 2) if impl == "cuda" else (0,):
        cuda._tiles = partial(_fixed, tiles) if tiles else chosen
        out, h_n, c_n, acts, cells = lstm_scan(gates, w_hh, h0, c0, lengths, impl, True)
        forward = partial(lstm_scan, gates, w_hh, h0, c0, lengths, impl, True)
        backward = partial(lstm_scan_backward, out, h_n, c_n, acts, cells, w_hh, c0, lengths, impl)
        yield {"tiles": tiles, "forward": sampled(forward), "backward": sampled(backward)}
    cuda._tiles = chosen
    if impl == "cuda":
        at_once = {
            f"{name} tiles={tiles}": cuda._clusters_at_once(0, cuda.variant_for(dtype, hidden, tiles), name)
            for name in ("lstm_fwd_kernel", "lstm_bwd_kernel")
            for tiles in (1, 2)
        }
        yield {
            "clusters_at_once": at_once,
            "chosen_tiles": [chosen(n, gates) for n in ("lstm_fwd_kernel", "lstm_bwd_kernel")],
        }


def _fixed(tiles: int, *_: Any) -> int:
    return tiles


def layer(impl: str, precision: str) -> Iterator[dict[str, Any]]:
    """One bidirectional layer on 512 features, forward and backward."""
    import torch

    from hotlap.kernels.lstm.cases import LstmCase, run_layer
    from hotlap.kernels.lstm.op import lstm

    dtype = torch.float32 if precision == "tf32" else getattr(torch, precision)
    made = LstmCase(**SIZES, dtype=dtype).make(torch.device("cuda"))
    x = made["x"].requires_grad_()
    leaves = [t.requires_grad_() for name, t in made.items() if name.startswith(("weight", "bias"))]
    plain = torch.nn.LSTM(SIZES["features"], SIZES["hidden"], batch_first=True, bidirectional=True).to("cuda", dtype)
    weight = torch.randn(SIZES["batch"], SIZES["steps"], 2 * SIZES["hidden"], device="cuda", dtype=dtype)

    def run() -> Any:
        if impl == "cudnn":
            return torch.autograd.grad(plain(x)[0], [x, *plain.parameters()], weight)
        out = run_layer(lambda *given: lstm(*given, impl=impl))(made)["out"]
        return torch.autograd.grad(out, [x, *leaves], weight)

    yield sampled(run)


def model(impl: str, precision: str) -> Iterator[dict[str, Any]]:
    """The loss of the bilstm target and its gradients, half precision by autocast."""
    import torch

    from hotlap.targets import load_target

    workload = load_target("bilstm", {"recurrence": impl})
    torch.manual_seed(0)
    network = workload.build_model().to("cuda").train()
    batch = workload.make_batch(64, torch.device("cuda"), torch.Generator().manual_seed(0))
    half = precision in ("float16", "bfloat16")
    parameters = list(network.parameters())

    def run() -> Any:
        kind = getattr(torch, precision) if half else None
        with torch.autocast("cuda", dtype=kind, enabled=half, cache_enabled=False):
            total, count = workload.loss(network, batch)
        return torch.autograd.grad(total / count, parameters)

    yield sampled(run)


def work(job: str) -> None:
    """Prints one JSON line for each finding of a job as soon as it is there; an error is a finding too."""
    from hotlap.device.precision import set_fp32_precision

    kind, impl, *one = job.split(":")
    kinds = {"check": check, "scan": scan, "layer": layer, "model": model}
    for precision in one or PRECISIONS:
        set_fp32_precision("tf32" if precision == "tf32" else "ieee")
        try:
            for finding in kinds[kind](impl, precision):
                print(json.dumps({"precision": precision, **finding}), flush=True)
        except Exception:  # noqa: BLE001 - whatever an implementation does wrong is what we want to know
            print(json.dumps({"precision": precision, "error": traceback.format_exc()[-3000:]}), flush=True)


def run_job(job: str, timeout_s: float) -> list[dict[str, Any]]:
    """The findings of a job, with an error as the last if it failed, crashed or took too long."""
    command = [sys.executable, "-m", "benchmarks.lstm_kernel", "--job", job]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)
        out, fault = done.stdout, done.stderr[-2000:] if done.returncode else ""
    except subprocess.TimeoutExpired as late:
        out = late.stdout.decode() if isinstance(late.stdout, bytes) else late.stdout or ""
        fault = f"no answer within {timeout_s:g} s"
    found = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
    return [*found, {"error": fault}] if fault else found


def describe(finding: dict[str, Any]) -> str:
    """One line for the terminal."""
    head = f"{finding.get('precision', '')} "
    if "error" in finding:
        return head + "ERROR " + finding["error"].strip()[-1500:]
    if "case" in finding:
        worst = max(finding["errors"], key=lambda name: _badness(finding["errors"][name]))
        word = "ok " if finding["passed"] else "BAD"
        return f"{word} {finding['case']}: {finding['errors'][worst]:.2e} of {finding['tolerance']:.0e} at {worst}"
    if "clusters_at_once" in finding:
        return json.dumps(finding)
    ways = [way for way in ("forward", "backward") if way in finding]
    timed = {way: finding[way] for way in ways} or {"": finding}
    lines = [
        f"{way} eager {statistics.median(t['eager_ms']):.3f} ms, graph {statistics.median(t['graph_ms']):.3f} ms"
        for way, t in timed.items()
    ]
    return head + (f"tiles={finding['tiles']} " if finding.get("tiles") else "") + "; ".join(lines)


def _badness(error: float) -> float:
    return float("inf") if error != error else error


def speed_ups(results: dict[str, list[dict[str, Any]]]) -> Iterator[str]:
    """Ours against cuDNN, graph against graph and against cuDNN's eager float32; only where every check is green."""
    for kind, peer in (("layer", "cudnn"), ("model", "torch")):
        eager = _median(results, f"{kind}:{peer}", "float32", "eager_ms")
        for impl in IMPLS:
            for precision in PRECISIONS:
                checked = results.get(f"check:{impl}:{'float32' if precision == 'tf32' else precision}", [])
                mine = _median(results, f"{kind}:{impl}", precision, "graph_ms")
                theirs = _median(results, f"{kind}:{peer}", precision, "graph_ms")
                if not checked or not all(finding.get("passed") for finding in checked):
                    yield f"{kind} {impl} {precision}: no speed-up, its checks are not green"
                elif mine and theirs and eager:
                    figures = f"{theirs / mine:.2f} x {peer} in a graph, {eager / mine:.2f} x {peer} eager float32"
                    yield f"{kind} {impl} {precision}: {figures}"


def _median(results: dict[str, list[dict[str, Any]]], job: str, precision: str, clock: str) -> float | None:
    timed = [f[clock] for f in results.get(job, []) if clock in f and f["precision"] == precision]
    return statistics.median(timed[0]) if timed else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("lstm_kernel.json"))
    parser.add_argument("--only", default="check,scan,layer,model", help="beginnings of jobs, as in check:cuda,scan")
    parser.add_argument("--timeout", type=float, default=120.0, help="seconds for each job")
    parser.add_argument("--job", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.job:
        work(given.job)
        return
    from hotlap.records.environment import capture

    results: dict[str, list[dict[str, Any]]] = {}
    environment = dataclasses.asdict(capture())
    for job in JOBS:
        if job.startswith(tuple(given.only.split(","))):
            results[job] = run_job(job, given.timeout)
            for finding in results[job]:
                print(f"{job}: {describe(finding)}", flush=True)
            answer = {"sizes": SIZES, "inner": INNER, "results": results, "environment": environment}
            given.out.write_text(json.dumps(answer, indent=1) + "\n")
    print("\n".join(speed_ups(results)))


if __name__ == "__main__":
    main()
