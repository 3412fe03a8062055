"""Are the CUDA kernels of splatting right, and how fast are they beside gsplat? Every job in a process of its own.

    python -m benchmarks.splat_kernels --out splat_kernels.json [--only check,20k,200k,1M,3M,ply] [--ply trained.ply]

``check`` compares pictures and every gradient with the reference in float64 over the cases of the op. The other jobs
are scenes like a trained capture: clusters and a ground of small anisotropic splats, seen from a ring of eight cameras,
one a step, with coefficients of degree 3. Each compares picture and gradients with gsplat's, where gsplat can be
imported, then times both in turn, forward and forward with backward, then asks torch's profiler where the time of both
goes. ``ours`` is ``hotlap.splat.rasterize`` with autograd, as gsplat is called; ``ours kernels`` are its kernels
called without autograd, as a trainer may, and ``ours graph`` those as a replayed CUDA graph. The job ``ply`` is the
same with a trained scene, from a file of splats. What memory each side takes at most is asked in processes of their
own: libraries that one side calls keep memory for themselves. A part that fails is reported, and the others run. A
speed-up is printed only where every comparison is within tolerance.
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
from pathlib import Path
from typing import Any

from benchmarks.splat_contenders import SAMPLES, Gsplat, Ours, OursCalled, compare, facts, peak_bytes, profiled, timed
from benchmarks.splat_scene import SCENES, Scene, make_scene, read_scene

JOBS = ("check", *SCENES, "ply")
SIDES = ("ours", "gsplat packed", "gsplat plain")
PLY_SIZE = (1920, 1080)
FEW_FRAMES, MANY_SAMPLES = 16, 45
"""From so many frames a sample on, a scene is small, and its time the host's, which varies: more samples then."""


def check() -> Iterator[dict[str, Any]]:
    """For each case the largest relative error of the picture and every gradient."""
    import torch

    from hotlap.kernels.splat import cuda
    from hotlap.kernels.splat.cases import EVERYTHING, REAL, SMALL

    small = [(case, cuda.FEW_TILES) for case in (*SMALL, *REAL) if case.dtype == torch.float32]
    # With as many pixels a thread as in large pictures: fewer, as each is compiled once more.
    large = [(case, 0) for case, _ in small if case in REAL or case.options == EVERYTHING]
    for case, few_tiles in (*small, *large):
        cuda.FEW_TILES = few_tiles
        told = {"part": "check", "case": case.id, "few_tiles": few_tiles}
        try:
            errors = _errors_of(cuda, case)
        except Exception:  # noqa: BLE001 - the other cases may say what is common to those that fail
            yield {**told, "passed": False, "error": traceback.format_exc()[-3000:]}
            continue
        passed = all(error <= case.tolerance for error in errors.values())
        yield {**told, "passed": passed, "tolerance": case.tolerance, "errors": errors}


def _errors_of(cuda: Any, case: Any) -> dict[str, float]:
    import torch

    from hotlap.kernels.agreement import in_float64, relative_errors
    from hotlap.kernels.splat import reference
    from hotlap.kernels.splat.cases import UNDECIDED, as_splats, undecided
    from hotlap.kernels.splat.frame import GRADIENTS

    made = case.make(torch.device("cuda"))
    exact, view = in_float64(made), case.view
    decided = ~undecided(exact, view, UNDECIDED[case.dtype])[..., None]
    generator = torch.Generator(device="cuda").manual_seed(1)
    found: list[dict[str, Any]] = []
    weights: list[Any] = []
    needs = frozenset(name for name in GRADIENTS if name != "backgrounds" or made["backgrounds"] is not None)
    for module, inputs in ((reference, exact), (cuda, made)):
        splats = as_splats(inputs)
        drawn = module.forward(splats, view)
        if not weights:
            for like, mask in ((drawn.colors, decided), (drawn.alphas, decided), (drawn.means2d, 1)):
                weights.append(torch.randn(like.shape, generator=generator, device="cuda", dtype=like.dtype) * mask)
        given = [weight.to(drawn.colors.dtype) for weight in weights]
        grads = module.backward(splats, view, drawn, *given, needs)
        picture = {"colors": drawn.colors * decided, "alphas": drawn.alphas * decided, "means2d": drawn.means2d}
        found.append({**picture, **{f"grad {name}": grads[name] for name in sorted(grads)}})
    return relative_errors(found[1], found[0])


def _part(name: str, make: Callable[[], Any]) -> dict[str, Any]:
    try:
        return {"part": name, **make()}
    except Exception:  # noqa: BLE001 - whatever goes wrong is what we want to know
        return {"part": name, "error": traceback.format_exc()[-3000:]}


def load(job: str, ply: str | None) -> tuple[Scene, tuple[Any, ...]]:
    """The scene of a job, on the card."""
    if job != "ply":
        return SCENES[job], make_scene(SCENES[job], "cuda")
    if ply is None:
        raise ValueError("the job 'ply' needs --ply FILE")
    return read_scene(ply, *PLY_SIZE, "cuda")


def upstream(scene: Scene) -> Any:
    """A gradient of the picture, as large as that of a mean over its pixels."""
    import torch

    return torch.randn(1, scene.height, scene.width, 3, device="cuda") / (scene.height * scene.width)


def remember(job: str, side: str, ply: str | None) -> dict[str, Any]:
    """The most memory that one side takes, alone in its process."""
    scene, made = load(job, ply)
    way = OursCalled(scene, *made) if side == "ours" else Gsplat(scene, *made, packed=side.endswith("packed"))
    return {"of": side, "peak_bytes": peak_bytes(way.run, upstream(scene))}


def measure(job: str, ply: str | None) -> Iterator[dict[str, Any]]:
    """Everything about one scene but the memory."""
    import torch

    scene, made = load(job, ply)
    ours, called = Ours(scene, *made), OursCalled(scene, *made)
    v_colors = upstream(scene)
    peers: dict[str, Gsplat] = {}

    def find() -> dict[str, Any]:
        peers.update(packed=Gsplat(scene, *made, packed=True), plain=Gsplat(scene, *made, packed=False))
        return {}

    absent = _part("gsplat", find)
    if "error" in absent:
        yield absent
    yield _part("facts", lambda: {"splats": [scene.num_splats], **facts(ours)})
    if peers:
        yield _part("compare", lambda: compare(ours, peers["plain"], v_colors))
    ways: dict[str, Callable[[Any], Any]] = {"ours": called.run, "ours kernels": ours.run}
    ways |= {f"gsplat {name}": peer.run for name, peer in peers.items()}
    for what, given in (("forward", None), ("forward+backward", v_colors)):
        captured = _part("capture", lambda given=given: ours.capture(given) or {})
        if "error" in captured:
            yield captured
        replay = {} if "error" in captured else {"ours graph": ours.replay}
        samples = SAMPLES if scene.inner < FEW_FRAMES else MANY_SAMPLES
        yield _part(
            what,
            lambda given=given, replay=replay, samples=samples: {
                "ms": timed({**ways, **replay}, given, scene.inner, samples)
            },
        )
        yield _part("overflow", lambda: {"overflowed": ours.kernels.overflowed(torch.device("cuda", 0))})
    for name, run in ways.items():
        if name == "ours kernels":
            continue  # the same kernels
        yield _part("profile", lambda name=name, run=run: {"of": name, "ms": profiled(run, v_colors)})


def work(job: str, ply: str | None) -> None:
    """Prints one JSON line for each finding of a job as soon as it is there; an error is a finding too."""
    name, _, side = job.partition(":")
    try:
        if side:
            findings: Any = [_part("memory", lambda: remember(name, side, ply))]
        else:
            findings = check() if name == "check" else measure(name, ply)
        for finding in findings:
            print(json.dumps(finding), flush=True)
    except Exception:  # noqa: BLE001 - whatever goes wrong is what we want to know
        print(json.dumps({"part": job, "error": traceback.format_exc()[-3000:]}), flush=True)


def run_job(job: str, ply: str | None, timeout_s: float) -> list[dict[str, Any]]:
    """The findings of a job, with an error as the last if it failed, crashed or took too long."""
    command = [sys.executable, "-m", "benchmarks.splat_kernels", "--job", job, *(["--ply", ply] if ply else [])]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)
        out, fault = done.stdout, done.stderr[-2000:] if done.returncode else ""
    except subprocess.TimeoutExpired as late:
        out = late.stdout.decode() if isinstance(late.stdout, bytes) else late.stdout or ""
        fault = f"no answer within {timeout_s:g} s"
    found = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
    return [*found, {"part": job, "error": fault}] if fault else found


def describe(finding: dict[str, Any]) -> str:
    """One line, or one for each kernel, for the terminal."""
    part = finding["part"]
    if "error" in finding:
        return f"{part} {finding.get('case', '')} ERROR {finding['error'].strip()[-1200:]}"
    if part in ("check", "compare"):
        worst = max(finding["errors"], key=lambda name: _badness(finding["errors"][name]))
        word = "ok " if finding["passed"] else "BAD"
        apart = f", {finding['pixels_apart']:.1e} of pixels apart" if "pixels_apart" in finding else ""
        if "errors_to_float64" in finding:
            mine, theirs = finding["errors_to_float64"][worst], finding["gsplat_to_float64"][worst]
            apart += f"; to float64 {mine:.2e}, gsplat's {theirs:.2e}, without {_told(finding['left_out'])}"
        return f"{part} {word} {finding.get('case', 'gsplat')}: {finding['errors'][worst]:.2e} at {worst}{apart}"
    if part in ("forward", "forward+backward"):
        return f"{part}: " + "; ".join(f"{name} {statistics.median(ms):.3f} ms" for name, ms in finding["ms"].items())
    if part == "profile":
        rows = [f"    {ms:8.4f} ms  {name}" for name, ms in finding["ms"].items()]
        return "\n".join([f"profile of {finding['of']}: {sum(finding['ms'].values()):.3f} ms on the card", *rows])
    if part == "memory":
        return f"memory of {finding['of']}: {finding['peak_bytes'] / 1e6:.0f} MB"
    if part == "facts":
        means = {name: statistics.mean(values) for name, values in finding.items() if name != "part"}
        return "facts: " + ", ".join(f"{name} {mean:.2f}" for name, mean in means.items())
    return json.dumps(finding)


def _told(shares: dict[str, float]) -> str:
    return " and ".join(f"{share:.1e} of the {name}" for name, share in shares.items())


def _badness(error: float) -> float:
    return float("inf") if error != error else error


def speed_ups(results: dict[str, list[dict[str, Any]]]) -> Iterator[str]:
    """Ours against gsplat's better way; only where every comparison is green."""
    checked = [finding.get("passed", False) for finding in results.get("check", [])]
    for job in (name for name in JOBS if name in results and name != "check"):
        found = results[job]
        compared = [finding.get("passed", False) for finding in found if finding["part"] == "compare"]
        if not checked or not compared or not all(checked + compared):
            yield f"{job}: no speed-up, its comparisons are not green"
            continue
        for finding in found:
            if finding["part"] in ("forward", "forward+backward") and "ms" in finding:
                yield f"{job} {finding['part']}: {_ratios(finding['ms'])}"


def _ratios(found: dict[str, list[float]]) -> str:
    """Of gsplat's faster way over each of ours: the median of the rounds' ratios, and its 95% interval."""
    from hotlap.base.stats import ratio_interval

    theirs = min((name for name in found if name.startswith("gsplat")), key=lambda name: statistics.median(found[name]))
    mine = []
    for name in (name for name in found if name.startswith("ours")):
        ratio = ratio_interval([[ms] for ms in found[theirs]], [[ms] for ms in found[name]], paired=True)
        mine.append(f"{name} {ratio.value:.2f} x [{ratio.low:.2f}, {ratio.high:.2f}]")
    return f"{theirs} {statistics.median(found[theirs]):.3f} ms; {', '.join(mine)} as fast"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("splat_kernels.json"))
    parser.add_argument("--only", default=",".join(JOBS), help="jobs, as in check,20k; ply only where --ply is given")
    parser.add_argument("--ply", help="a file of trained splats, for the job ply")
    parser.add_argument("--timeout", type=float, default=120.0, help="seconds for each job")
    parser.add_argument("--job", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.job:
        work(given.job, given.ply)
        return
    from hotlap.records.environment import capture

    results: dict[str, list[dict[str, Any]]] = {}
    environment = dataclasses.asdict(capture())
    scenes = {name: dataclasses.asdict(scene) for name, scene in SCENES.items()}
    for job in JOBS:
        if job in given.only.split(",") and (job != "ply" or given.ply):
            results[job] = run_job(job, given.ply, given.timeout)
            for side in SIDES if job != "check" else ():
                results[job] += run_job(f"{job}:{side}", given.ply, given.timeout)
            for finding in results[job]:
                print(f"{job}: {describe(finding)}", flush=True)
            answer = {"scenes": scenes, "samples": SAMPLES, "results": results, "environment": environment}
            given.out.write_text(json.dumps(answer, indent=1) + "\n")
    print("\n".join(speed_ups(results)))


if __name__ == "__main__":
    main()
