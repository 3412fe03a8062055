"""Are the CUDA kernels of splatting right, and how fast are they beside gsplat? Every job in a process of its own.

    python -m benchmarks.splat_kernels --out splat_kernels.json [--only check,20k,200k,1M,3M] [--timeout 90]

``check`` compares pictures and every gradient with the reference in float64 over the cases of the op. The other jobs
are scenes like a trained capture: clusters and a ground of small anisotropic splats, seen from a ring of eight cameras,
one a step, with coefficients of degree 3. Each compares picture and gradients with gsplat's, where gsplat can be
imported, then times both in turn, forward and forward with backward, ours also as a replayed CUDA graph, then asks
torch's profiler where the time of both goes, and what memory both take at most. A part that fails is reported, and the
others run. A speed-up is printed only where every comparison is within tolerance.
"""

from __future__ import annotations

import argparse
import dataclasses
import gc
import json
import math
import statistics
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

NEEDS = frozenset({"means", "quats", "scales", "opacities", "colors"})
SAMPLES, NUM_CAMERAS = 15, 8


@dataclasses.dataclass(frozen=True, kw_only=True)
class Scene:
    """What one job draws."""

    num_splats: int
    width: int
    height: int
    size_px: float
    """Median standard deviation of a splat on the screen, chosen for 2 to 3 pairs of tile and splat."""
    inner: int
    """Steps of one sample."""


SCENES = {
    "20k": Scene(num_splats=20_000, width=480, height=270, size_px=1.0, inner=32),
    "200k": Scene(num_splats=200_000, width=1297, height=840, size_px=1.0, inner=16),
    "1M": Scene(num_splats=1_000_000, width=1920, height=1080, size_px=1.0, inner=8),
    "3M": Scene(num_splats=3_000_000, width=1920, height=1080, size_px=1.0, inner=8),
}
JOBS = ("check", *SCENES)
MAX_GRADIENT_ERROR = 1e-3
"""Of the difference's norm over the norm: two right programs round thresholds otherwise in a few pixels."""
MAX_PIXELS = 1e-3
"""The part of pixels that may differ by more than 1e-3 for the same reason."""


def make_scene(scene: Scene, device: str, seed: int = 0) -> tuple[dict[str, Any], Any, Any]:
    """Splats by name, and the cameras' viewmats [8, 4, 4] and Ks [8, 3, 3]."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    num = scene.num_splats

    def normal(*shape: int) -> Any:
        return torch.randn(shape, generator=generator)

    focal = 1.1 * scene.width
    num_ground = num // 3
    centers, widths = normal(40, 3) * 0.8, 0.05 + 0.35 * torch.rand(40, 1, generator=generator)
    which = torch.randint(40, (num - num_ground,), generator=generator)
    clusters = centers[which] + normal(num - num_ground, 3) * widths[which]
    ground = torch.cat([normal(num_ground, 2) * 1.6, 1.2 + 0.02 * normal(num_ground, 1)], dim=1)[:, [0, 2, 1]]
    means = torch.cat([clusters, ground])
    scales = scene.size_px * 4.0 / focal * torch.exp(0.6 * normal(num, 1) + 0.5 * normal(num, 3))
    splats = {
        "means": means,
        "quats": normal(num, 4),
        "scales": scales,
        "opacities": torch.sigmoid(1.5 * normal(num)),
        "colors": torch.cat([normal(num, 1, 3), 0.1 * normal(num, 15, 3)], dim=1),
    }
    shuffled = torch.randperm(num, generator=generator)
    splats = {name: tensor[shuffled].to(device).contiguous() for name, tensor in splats.items()}
    views = torch.stack([_look_at(2 * math.pi * n / NUM_CAMERAS) for n in range(NUM_CAMERAS)])
    intrinsics = torch.tensor([[focal, 0.0, scene.width / 2], [0.0, focal, scene.height / 2], [0.0, 0.0, 1.0]])
    return splats, views.to(device), intrinsics.expand(NUM_CAMERAS, 3, 3).contiguous().to(device)


def _look_at(angle: float) -> Any:
    """A camera 4 from the middle, a little above, looking at it; y points down."""
    import torch

    position = torch.tensor([4 * math.sin(angle), -1.0, -4 * math.cos(angle)])
    forward = -position / position.norm()
    right = torch.linalg.cross(torch.tensor([0.0, 1.0, 0.0]), forward)
    right = right / right.norm()
    matrix = torch.eye(4)
    matrix[:3, :3] = torch.stack([right, torch.linalg.cross(forward, right), forward])
    matrix[:3, 3] = -matrix[:3, :3] @ position
    return matrix


def check() -> Iterator[dict[str, Any]]:
    """For each case the largest relative error of the picture and every gradient."""
    import torch

    from hotlap.kernels.splat import cuda
    from hotlap.kernels.splat.cases import REAL, SMALL

    for case in (*SMALL, *REAL):
        if case.dtype != torch.float32:
            continue
        try:
            errors = _errors_of(cuda, case)
        except Exception:  # noqa: BLE001 - the other cases may say what is common to those that fail
            yield {"part": "check", "case": case.id, "passed": False, "error": traceback.format_exc()[-3000:]}
            continue
        passed = all(error <= case.tolerance for error in errors.values())
        yield {"part": "check", "case": case.id, "passed": passed, "tolerance": case.tolerance, "errors": errors}


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


class Ours:
    """Hotlap's kernels, called without autograd."""

    def __init__(self, scene: Scene, splats: dict[str, Any], views: Any, intrinsics: Any) -> None:
        import torch

        from hotlap.kernels.splat import cuda
        from hotlap.kernels.splat.frame import Splats, View

        self.kernels, self.views, self.intrinsics = cuda, views, intrinsics
        self.view = View(width=scene.width, height=scene.height, sh_degree=3)
        self.viewmat, self.K = views[:1].clone(), intrinsics[:1].clone()
        self.splats = Splats(**splats, viewmats=self.viewmat, Ks=self.K, backgrounds=None)
        self.v_alphas = torch.zeros(1, scene.height, scene.width, 1, device=views.device)
        self.step = 0
        self.graphs: dict[bool, Any] = {}

    def look(self) -> None:
        """The next camera, copied to where graphs read it."""
        self.viewmat.copy_(self.views[self.step % NUM_CAMERAS][None])
        self.step += 1

    def draw(self) -> Any:
        return self.kernels.forward(self.splats, self.view)

    def run(self, v_colors: Any) -> Any:
        """The picture and, where its gradient is given, those of the splats."""
        self.look()
        return self.body(v_colors)

    def body(self, v_colors: Any) -> Any:
        drawn = self.draw()
        if v_colors is None:
            return drawn.colors, {}
        grads = self.kernels.backward(self.splats, self.view, drawn, v_colors, self.v_alphas, None, NEEDS)
        return drawn.colors, grads

    def replay(self, v_colors: Any) -> None:
        self.look()
        self.graphs[v_colors is not None].replay()

    def capture(self, v_colors: Any) -> None:
        import torch

        for _ in range(NUM_CAMERAS):  # each camera once: the graph keeps the room for pairs that was needed by then
            self.run(v_colors)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.body(v_colors)
        self.graphs[v_colors is not None] = graph


class Gsplat:
    """gsplat's ``rasterization``, with autograd."""

    def __init__(self, scene: Scene, splats: dict[str, Any], views: Any, intrinsics: Any, packed: bool) -> None:
        from gsplat import rasterization

        self.leaves = {name: tensor.detach().requires_grad_() for name, tensor in splats.items()}
        self.views, self.intrinsics, self.step = views, intrinsics, 0
        options = {"width": scene.width, "height": scene.height, "sh_degree": 3, "packed": packed}
        self.rasterize = partial(rasterization, **options)

    def run(self, v_colors: Any) -> Any:
        import torch

        view = self.views[self.step % NUM_CAMERAS][None]
        self.step += 1
        with torch.set_grad_enabled(v_colors is not None):
            colors, _, _ = self.rasterize(**self.leaves, viewmats=view, Ks=self.intrinsics[:1])
        if v_colors is None:
            return colors, {}
        found = torch.autograd.grad(colors, list(self.leaves.values()), v_colors)
        return colors, dict(zip(self.leaves, found, strict=True))


def compare(ours: Ours, peer: Gsplat, v_colors: Any) -> dict[str, Any]:
    """How far picture and gradients are from gsplat's."""
    ours.step = peer.step = 3
    colors, grads = ours.run(v_colors)
    their_colors, their_grads = peer.run(v_colors)
    apart = ((colors - their_colors).abs() > 1e-3).any(dim=-1).float().mean().item()
    errors = {
        name: ((grads[name] - wanted).double().norm() / wanted.double().norm()).item()
        for name, wanted in their_grads.items()
    }
    passed = apart <= MAX_PIXELS and all(error <= MAX_GRADIENT_ERROR for error in errors.values())
    return {"passed": passed, "pixels_apart": apart, "errors": errors}


def facts(ours: Ours) -> dict[str, Any]:
    """What the scene is like, so that it can be judged whether it is like a capture."""
    pairs, seen, covered = [], [], []
    for _ in range(NUM_CAMERAS):
        ours.look()
        drawn = ours.draw()
        visible = drawn.radii.amax(-1) > 0
        seen.append(visible.float().mean().item())
        pairs.append(drawn.tiles_per_splat[visible].float().mean().item())
        covered.append(drawn.alphas.mean().item())
    return {"tiles_per_visible_splat": pairs, "visible": seen, "mean_alpha": covered}


def timed(ways: dict[str, Callable[[Any], Any]], v_colors: Any, inner: int) -> dict[str, list[float]]:
    """Milliseconds a step by the wall, all samples, the ways in turn."""
    import torch

    for run in ways.values():
        for _ in range(NUM_CAMERAS):
            run(v_colors)
    found: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(SAMPLES):
        for name, run in ways.items():
            torch.cuda.synchronize()
            begin = time.perf_counter()
            for _ in range(inner):
                run(v_colors)
            torch.cuda.synchronize()
            found[name].append((time.perf_counter() - begin) * 1e3 / inner)
    return found


def profiled(run: Callable[[Any], Any], v_colors: Any) -> dict[str, float]:
    """Milliseconds a step of each kernel on the card, by name, the longest first."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    run(v_colors)
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as seen:
        for _ in range(NUM_CAMERAS):
            run(v_colors)
        torch.cuda.synchronize()
    times: dict[str, float] = {}
    for event in seen.key_averages():
        if event.device_type == torch.autograd.DeviceType.CUDA and event.self_device_time_total > 0:
            times[event.key[:80]] = event.self_device_time_total / 1e3 / NUM_CAMERAS
    return dict(sorted(times.items(), key=lambda item: -item[1])[:20])


def peak_bytes(run: Callable[[Any], Any], v_colors: Any) -> int:
    """The most memory that tensors have taken at once during a few steps, inputs included."""
    import torch

    run(v_colors)
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    for _ in range(3):
        run(v_colors)
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated()


def _part(name: str, make: Callable[[], Any]) -> dict[str, Any]:
    try:
        return {"part": name, **make()}
    except Exception:  # noqa: BLE001 - whatever goes wrong is what we want to know
        return {"part": name, "error": traceback.format_exc()[-3000:]}


def measure(job: str) -> Iterator[dict[str, Any]]:
    """Everything about one scene."""
    import torch

    scene = SCENES[job]
    made = make_scene(scene, "cuda")
    ours = Ours(scene, *made)
    v_colors = torch.randn(1, scene.height, scene.width, 3, device="cuda") / (scene.height * scene.width)
    peers: dict[str, Gsplat] = {}

    def load() -> dict[str, Any]:
        peers.update(packed=Gsplat(scene, *made, packed=True), plain=Gsplat(scene, *made, packed=False))
        return {}

    absent = _part("gsplat", load)
    if "error" in absent:
        yield absent
    yield _part("facts", lambda: facts(ours))
    if peers:
        yield _part("compare", lambda: compare(ours, peers["plain"], v_colors))
    ways: dict[str, Callable[[Any], Any]] = {"ours": ours.run}
    ways |= {f"gsplat {name}": peer.run for name, peer in peers.items()}
    for name, run in ways.items():
        yield _part("memory", lambda name=name, run=run: {"of": name, "peak_bytes": peak_bytes(run, v_colors)})
    for what, given in (("forward", None), ("forward+backward", v_colors)):
        captured = _part("capture", lambda given=given: ours.capture(given) or {})
        if "error" in captured:
            yield captured
        replay = {} if "error" in captured else {"ours graph": ours.replay}
        yield _part(what, lambda given=given, replay=replay: {"ms": timed({**ways, **replay}, given, scene.inner)})
        yield _part("overflow", lambda: {"overflowed": ours.kernels.overflowed(torch.device("cuda", 0))})
    for name, run in ways.items():
        yield _part("profile", lambda name=name, run=run: {"of": name, "ms": profiled(run, v_colors)})
    if job == "1M":
        yield _part("pixels", lambda: by_pixels(ours, v_colors))


def by_pixels(ours: Ours, v_colors: Any) -> dict[str, Any]:
    """What the blending kernels take with one, two and four pixels a thread."""
    chosen = ours.kernels._variant
    found: dict[str, dict[str, float]] = {}
    try:
        for pixels in (1, 2, 4):
            ours.kernels._variant = lambda *given, pixels=pixels: dataclasses.replace(chosen(*given), pixels=pixels)
            times = profiled(ours.run, v_colors)
            found[str(pixels)] = {name: ms for name, ms in times.items() if "blend" in name}
    finally:
        ours.kernels._variant = chosen
    return {"ms": found}


def work(job: str) -> None:
    """Prints one JSON line for each finding of a job as soon as it is there; an error is a finding too."""
    try:
        for finding in check() if job == "check" else measure(job):
            print(json.dumps(finding), flush=True)
    except Exception:  # noqa: BLE001 - as above
        print(json.dumps({"part": job, "error": traceback.format_exc()[-3000:]}), flush=True)


def run_job(job: str, timeout_s: float) -> list[dict[str, Any]]:
    """The findings of a job, with an error as the last if it failed, crashed or took too long."""
    command = [sys.executable, "-m", "benchmarks.splat_kernels", "--job", job]
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


def _badness(error: float) -> float:
    return float("inf") if error != error else error


def speed_ups(results: dict[str, list[dict[str, Any]]]) -> Iterator[str]:
    """Ours against gsplat's better way; only where every comparison is green."""
    checked = [finding.get("passed", False) for finding in results.get("check", [])]
    for job in SCENES:
        found = results.get(job, [])
        compared = [finding.get("passed", False) for finding in found if finding["part"] == "compare"]
        if not checked or not compared or not all(checked + compared):
            yield f"{job}: no speed-up, its comparisons are not green"
            continue
        for finding in found:
            if finding["part"] in ("forward", "forward+backward") and "ms" in finding:
                middle = {name: statistics.median(ms) for name, ms in finding["ms"].items()}
                theirs = min(ms for name, ms in middle.items() if name.startswith("gsplat"))
                mine = ", ".join(f"{n} {theirs / middle[n]:.2f} x" for n in ("ours", "ours graph") if n in middle)
                yield f"{job} {finding['part']}: gsplat {theirs:.3f} ms; {mine} as fast"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("splat_kernels.json"))
    parser.add_argument("--only", default=",".join(JOBS), help="jobs, as in check,20k")
    parser.add_argument("--timeout", type=float, default=90.0, help="seconds for each job")
    parser.add_argument("--job", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.job:
        work(given.job)
        return
    from hotlap.records.environment import capture

    results: dict[str, list[dict[str, Any]]] = {}
    environment = dataclasses.asdict(capture())
    scenes = {name: dataclasses.asdict(scene) for name, scene in SCENES.items()}
    for job in JOBS:
        if job in given.only.split(","):
            results[job] = run_job(job, given.timeout)
            for finding in results[job]:
                print(f"{job}: {describe(finding)}", flush=True)
            answer = {"scenes": scenes, "samples": SAMPLES, "results": results, "environment": environment}
            given.out.write_text(json.dumps(answer, indent=1) + "\n")
    print("\n".join(speed_ups(results)))


if __name__ == "__main__":
    main()
