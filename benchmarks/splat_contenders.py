"""What the benchmarks of splatting on a card compare: hotlap's kernels and gsplat, drawing the same tensors."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from benchmarks.splat_scene import NUM_CAMERAS, Scene

NEEDS = frozenset({"means", "quats", "scales", "opacities", "colors"})
SAMPLES = 15
MAX_GRADIENT_ERROR = 1e-3
"""Of the difference's norm over the norm: two right programs round thresholds otherwise in a few pixels."""
MAX_PIXELS = 1e-3
"""The part of pixels that may differ by more than 1e-3 for the same reason."""
MAX_UNDECIDED = 0.2
"""The part of pixels that may be left out where both are held against float64, as rounding may decide in them.

The more splats cover a pixel, the more often one of them is near a threshold or about as deep as the next.
"""
MAX_UNDECIDED_SPLATS = 0.05
"""The part of splats whose gradients may be left out there: they may change places with another, or are needles so far
from their centres that float32 has lost the digits of their exponents."""


class Ours:
    """Hotlap's kernels, called without autograd, as its trainer does."""

    def __init__(self, scene: Scene, splats: dict[str, Any], views: Any, intrinsics: Any) -> None:
        from hotlap.kernels.splat import cuda
        from hotlap.kernels.splat.frame import Splats, View

        self.kernels, self.views, self.intrinsics = cuda, views, intrinsics
        self.view = View(width=scene.width, height=scene.height, sh_degree=3)
        self.viewmat, self.K = views[:1].clone(), intrinsics[:1].clone()
        self.splats = Splats(**splats, viewmats=self.viewmat, Ks=self.K, backgrounds=None)
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
        if v_colors is None:
            return self.draw().colors, {}
        drawn = self.kernels.forward_ahead(self.splats, self.view)
        return drawn.colors, self.kernels.backward(self.splats, self.view, drawn, v_colors, None, None, NEEDS)

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


class Called:
    """A library's call that takes gsplat's arguments, and ``backward()``, as trainings do both."""

    def __init__(self, call: Any, scene: Scene, splats: dict[str, Any], views: Any, intrinsics: Any) -> None:
        self.leaves = {name: tensor.detach().requires_grad_() for name, tensor in splats.items()}
        # Cut once, for both libraries: a training loop has its cameras at hand.
        self.cameras, self.intrinsics, self.step = list(views.split(1)), intrinsics[:1], 0
        self.rasterize = partial(call, width=scene.width, height=scene.height, sh_degree=3)

    def run(self, v_colors: Any) -> Any:
        import torch

        if v_colors is None:
            with torch.no_grad():
                return self.draw(), {}
        colors = self.draw()
        colors.backward(v_colors)
        found = {name: leaf.grad for name, leaf in self.leaves.items()}
        for leaf in self.leaves.values():
            leaf.grad = None
        return colors, found

    def draw(self) -> Any:
        """The picture that the next camera sees."""
        view = self.cameras[self.step % NUM_CAMERAS]
        self.step += 1
        return self.rasterize(**self.leaves, viewmats=view, Ks=self.intrinsics)[0]


class Gsplat(Called):
    """gsplat's ``rasterization``."""

    def __init__(self, scene: Scene, splats: dict[str, Any], views: Any, intrinsics: Any, packed: bool) -> None:
        from gsplat import rasterization

        super().__init__(partial(rasterization, packed=packed), scene, splats, views, intrinsics)


class OursCalled(Called):
    """``hotlap.splat.rasterize``."""

    def __init__(self, scene: Scene, splats: dict[str, Any], views: Any, intrinsics: Any) -> None:
        from hotlap.splat import rasterize

        super().__init__(rasterize, scene, splats, views, intrinsics)


def compare(ours: Ours, peer: Gsplat, v_colors: Any) -> dict[str, Any]:
    """How far picture and gradients are from gsplat's; where that is too far, float64 says which of both is off.

    Float64 is asked only about what is decided, see ``cpu_undecided``. Undecided pixels have no part in any gradient
    then, and those of undecided splats are not looked at, neither in ours nor in gsplat's. There may not be many.
    """
    apart, grads, their_grads = _both(ours, peer, v_colors)
    errors = _errors(grads, their_grads)
    agree = apart.float().mean().item() <= MAX_PIXELS
    passed = agree and all(error <= MAX_GRADIENT_ERROR for error in errors.values())
    found: dict[str, Any] = {"passed": passed, "pixels_apart": apart.float().mean().item(), "errors": errors}
    if not passed:
        pixels, splats, exact = _in_float64(ours, v_colors)
        _, grads, their_grads = _both(ours, peer, v_colors * ~pixels[..., None])
        mine, theirs = _errors(grads, exact, ~splats), _errors(their_grads, exact, ~splats)
        left_out = {"pixels": pixels.float().mean().item(), "splats": splats.float().mean().item()}
        found |= {"errors_to_float64": mine, "gsplat_to_float64": theirs, "left_out": left_out}
        found["decided_pixels_apart"] = (apart & ~pixels).float().mean().item()
        allowed = {name: max(MAX_GRADIENT_ERROR, theirs[name]) for name in theirs}
        few = left_out["pixels"] <= MAX_UNDECIDED and left_out["splats"] <= MAX_UNDECIDED_SPLATS
        found["passed"] = agree and few and all(mine[name] <= allowed[name] for name in mine)
    return found


def _both(ours: Ours, peer: Gsplat, v_colors: Any) -> tuple[Any, dict[str, Any], dict[str, Any]]:
    """Which pixels of one camera differ, our gradients, and gsplat's."""
    ours.step = peer.step = 3
    colors, grads = ours.run(v_colors)
    their_colors, their_grads = peer.run(v_colors)
    return ((colors - their_colors).abs() > 1e-3).any(dim=-1), grads, their_grads


def _errors(found: dict[str, Any], wanted: dict[str, Any], which: Any = slice(None)) -> dict[str, float]:
    """The norm of each difference over the norm, of some splats."""
    errors = {}
    for name, right in wanted.items():
        exact = right[which].double()
        errors[name] = ((found[name][which].double() - exact).norm() / exact.norm()).item()
    return errors


def _in_float64(ours: Ours, v_colors: Any) -> tuple[Any, Any, dict[str, Any]]:
    """Of the camera last drawn: undecided pixels and splats, and the gradients in float64 of all other pixels."""
    import dataclasses

    from hotlap.kernels.splat import cpu
    from hotlap.kernels.splat.cpu_undecided import find_undecided

    wide: dict[str, Any] = {}
    for field in dataclasses.fields(ours.splats):
        tensor = getattr(ours.splats, field.name)
        wide[field.name] = None if tensor is None else tensor.cpu().double()
    splats = dataclasses.replace(ours.splats, **wide)
    undecided = find_undecided(splats, ours.view)
    drawn = cpu.forward(splats, ours.view)
    v_decided = v_colors.cpu().double() * ~undecided.pixels[..., None]
    grads = cpu.backward(splats, ours.view, drawn, v_decided, None, None, NEEDS)
    device = v_colors.device
    return undecided.pixels.to(device), undecided.splats.to(device), {n: grads[n].to(device) for n in NEEDS}


def facts(ours: Ours) -> dict[str, Any]:
    """What the scene is like, so that it can be judged whether it is like a capture."""
    pairs, seen, covered = [], [], []
    for _ in range(NUM_CAMERAS):
        ours.look()
        drawn = ours.draw()
        visible = drawn.facts.radii.amax(-1) > 0
        seen.append(visible.float().mean().item())
        pairs.append(drawn.facts.tiles_per_splat[visible].float().mean().item())
        covered.append(drawn.alphas.mean().item())
    return {"tiles_per_visible_splat": pairs, "visible": seen, "mean_alpha": covered}


def timed(
    ways: dict[str, Callable[[Any], Any]], v_colors: Any, inner: int, samples: int = SAMPLES
) -> dict[str, list[float]]:
    """Milliseconds a step by the wall, all samples, the ways in turn."""
    import torch

    for run in ways.values():
        for _ in range(NUM_CAMERAS):
            run(v_colors)
    found: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(samples):
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
