"""Jobs of a benchmark on one card, each in a process of its own: what fails or hangs is reported, the others run."""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

Finding = dict[str, Any]
Job = Callable[[], Iterator[Finding]]


def samples(run: Callable[[], Any], count: int = 20, warm_up: int = 3, seconds: float = 4.0) -> list[float]:
    """Milliseconds of a call on the card, all samples; fewer than ``count`` where they take more than ``seconds``."""
    import torch

    for _ in range(warm_up):
        run()
    times, began = [], time.monotonic()
    while len(times) < count and (len(times) < 5 or time.monotonic() - began < seconds):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        run()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end))
    return times


def recorded(run: Callable[[], Any]) -> tuple[Callable[[], Any], Any]:
    """The call as a CUDA graph: what replays it, and its answer, which every replay writes anew."""
    import torch

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(2):
            run()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        answer = run()
    return graph.replay, answer


def timed(arm: str, run: Callable[[], Any], *, graph: bool = False, per: int = 1) -> Iterator[Finding]:
    """One arm: all samples in milliseconds, divided by ``per``, and the peak of memory; one that fails is a finding."""
    import torch

    try:
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        call = recorded(run)[0] if graph else run
        found = [sample / per for sample in samples(call)]
        peak = torch.cuda.max_memory_allocated() - before
        yield {"arm": arm, "ms": found, "per": per, "peak_mb": peak / 1e6}
    except Exception:  # noqa: BLE001 - whatever an arm does wrong is what we want to know
        yield {"arm": arm, "error": traceback.format_exc()[-2500:]}


def checked(cases: Iterator[tuple[str, float, Callable[[], Any]]]) -> Iterator[Finding]:
    """For each case, named and with its tolerance, the largest relative error between what ``compare`` gives."""
    from hotlap.kernels.agreement import relative_errors

    for case, tolerance, compare in cases:
        try:
            errors = relative_errors(*compare())
        except Exception:  # noqa: BLE001 - the other cases may say what is common to those that fail
            yield {"case": case, "passed": False, "error": traceback.format_exc()[-2500:]}
            continue
        worst = max(errors, key=lambda name: float("inf") if errors[name] != errors[name] else errors[name])
        passed = all(error <= tolerance for error in errors.values())
        yield {"case": case, "passed": passed, "tolerance": tolerance, "worst": worst, "error_of_it": errors[worst]}


def describe(finding: Finding) -> str:
    """One line for the terminal."""
    head = finding.get("arm") or finding.get("case") or ""
    if "error" in finding:
        return f"{head} ERROR {finding['error'].strip()[-1200:]}"
    if "case" in finding:
        word = "ok " if finding["passed"] else "BAD"
        return f"{word} {head}: {finding['error_of_it']:.2e} of {finding['tolerance']:.0e} at {finding['worst']}"
    if "ms" in finding:
        median, more = statistics.median(finding["ms"]), f", peak {finding['peak_mb']:.0f} MB"
        return f"{head}: {median:.4f} ms [{min(finding['ms']):.4f}, {max(finding['ms']):.4f}]{more}"
    return json.dumps(finding)


def medians(findings: list[Finding]) -> dict[str, float]:
    """The median milliseconds of each arm that ran."""
    return {f["arm"]: statistics.median(f["ms"]) for f in findings if "ms" in f}


def run_all(
    module: str, text: str | None, jobs: Mapping[str, Job], verdict: Callable[[dict[str, list[Finding]]], Iterator[str]]
) -> None:
    """The command line of a benchmark: runs its jobs, writes what they find to --out after each, ends with verdicts.

    A later call adds to what is there: the jobs that it runs take the place of earlier ones of the same name.
    """
    given = _parsed(module, text)
    if given.job:
        _work(jobs[given.job])
        return
    from hotlap.records.environment import capture

    kept = json.loads(given.out.read_text(encoding="utf-8")) if given.out.is_file() else {}
    results: dict[str, list[Finding]] = kept.get("results", {})
    environments: dict[str, Any] = kept.get("environments", {})
    environment, began = dataclasses.asdict(capture()), time.monotonic()
    for name in jobs:
        if not name.startswith(tuple(given.only.split(","))) or (given.missing and _went_well(results.get(name))):
            continue
        left = 60 * given.minutes - (time.monotonic() - began)
        if left <= 0:
            print(f"{name}: not begun, the minutes are over", flush=True)
            continue
        results[name] = _run(module, name, min(given.timeout, left))
        environments[name] = environment
        for finding in results[name]:
            print(f"{name}: {describe(finding)}", flush=True)
        content = {"results": results, "environments": environments}
        given.out.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    print("\n".join(verdict(results)))


def _parsed(module: str, text: str | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(f"{module.rpartition('.')[2]}.json"))
    parser.add_argument("--only", default="", help="beginnings of jobs, separated by commas; all by default")
    parser.add_argument("--timeout", type=float, default=140.0, help="seconds for each job")
    parser.add_argument("--minutes", type=float, default=60.0, help="for all; jobs that no longer fit are named")
    parser.add_argument("--missing", action="store_true", help="only jobs that --out has nothing of, or an error")
    parser.add_argument("--job", help=argparse.SUPPRESS)
    return parser.parse_args()


def _went_well(findings: list[Finding] | None) -> bool:
    return bool(findings) and not any("error" in finding for finding in findings or ())


def _work(job: Job) -> None:
    """Prints one JSON line for each finding as soon as it is there; an error is a finding too."""
    try:
        for finding in job():
            print(json.dumps(finding), flush=True)
    except Exception:  # noqa: BLE001 - whatever a job does wrong is what we want to know
        print(json.dumps({"error": traceback.format_exc()[-2500:]}), flush=True)


def _run(module: str, job: str, timeout_s: float) -> list[Finding]:
    command = [sys.executable, "-m", module, "--job", job]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)
        out, fault = done.stdout, done.stderr[-2000:] if done.returncode else ""
    except subprocess.TimeoutExpired as late:
        out = late.stdout.decode() if isinstance(late.stdout, bytes) else late.stdout or ""
        fault = f"no answer within {timeout_s:g} s"
    found = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
    return [*found, {"error": fault}] if fault else found


def compare_cases(
    cases: Any, run: Callable[..., Any], ours: Callable[..., Any], ref: Callable[..., Any]
) -> Iterator[Any]:
    """What :func:`checked` wants, of an op's cases: ours on the card against the reference there in float64."""
    import torch

    from hotlap.kernels.agreement import in_float64, outputs_and_grads

    def compare(case: Any) -> Any:
        card = torch.device("cuda")
        want = outputs_and_grads(run(ref, case, card), in_float64(case.make(card)))
        got = outputs_and_grads(run(ours, case, card), case.make(card))
        return got, want, getattr(case, "typical", None)  # judged as the tests judge them

    for case in cases:
        yield case.id, case.tolerance, partial(compare, case)
