"""How does the cost of splatting grow with splats and with pixels? Ours and gsplat, drawing the same tensors in turn.

    python -m benchmarks.splat_curves --out splat_curves.json [--most 10000000]
    python -m benchmarks.splat_curves --draw splat_curves.json --png splat_curves.png

One scene of the most splats is made, in random order. The curve over splats takes its first 10 thousand and up, at
1920 x 1080; the curve over pixels takes one million of them from 480 x 270 to 3840 x 2160, the splats as large in the
world at every size. At each point picture and gradients are compared with gsplat's first, and a point whose comparison
is not green has no speed-up. Times are of a forward and backward pass by the wall, eight cameras in turn. Points are
written as they are found, and what fails at one point does not end the others.
"""

from __future__ import annotations

import argparse
import dataclasses
import gc
import json
import statistics
import traceback
from pathlib import Path
from typing import Any

from benchmarks.splat_contenders import Gsplat, Ours, OursCalled, compare, timed
from benchmarks.splat_scene import Scene, make_scene

SPLATS = (10_000, 30_000, 100_000, 300_000, 1_000_000, 3_000_000, 10_000_000)
SIZES = ((480, 270), (960, 540), (1920, 1080), (2560, 1440), (3840, 2160))
FULL_HD = (1920, 1080)
SAMPLES = 7
NOT_SCALED = 10**6
"""Splats of the curve over pixels."""


def point(scene: Scene, splats: dict[str, Any], views: Any, intrinsics: Any) -> dict[str, Any]:
    """Both sides' samples for one scene, and whether they have drawn the same."""
    import torch

    ours, peer = Ours(scene, splats, views, intrinsics), Gsplat(scene, splats, views, intrinsics, packed=False)
    v_colors = torch.randn(1, scene.height, scene.width, 3, device="cuda") / (scene.height * scene.width)
    compared = compare(ours, peer, v_colors)
    called = OursCalled(scene, splats, views, intrinsics)
    ms = timed({"ours": called.run, "gsplat": peer.run}, v_colors, scene.inner, SAMPLES)
    return {"compared": compared, "ms": ms}


def scenes(most: int) -> dict[str, list[Scene]]:
    """The points of both curves."""
    width, height = FULL_HD
    splats = [
        Scene(num_splats=num, width=width, height=height, size_px=1.0, inner=max(2, min(16, 10**7 // num)))
        for num in SPLATS
        if num <= most
    ]
    pixels = [
        Scene(
            num_splats=min(NOT_SCALED, most), width=x, height=y, size_px=x / width, inner=max(2, 16 * width // x // 4)
        )
        for x, y in SIZES
    ]
    return {"splats": splats, "pixels": pixels}


def cameras(scene: Scene) -> tuple[Any, Any]:
    """The ring of cameras with the intrinsics of the scene's size."""
    _, views, intrinsics = make_scene(dataclasses.replace(scene, num_splats=3), "cuda")
    return views, intrinsics


def measure(most: int, out: Path) -> dict[str, Any]:
    """All points; the file holds those that are known."""
    from hotlap.records.environment import capture

    width, height = FULL_HD
    everything, _, _ = make_scene(Scene(num_splats=most, width=width, height=height, size_px=1.0, inner=1), "cuda")
    answer: dict[str, Any] = {"environment": dataclasses.asdict(capture()), "samples": SAMPLES, "points": []}
    for curve, found in scenes(most).items():
        for scene in found:
            some = {name: tensor[: scene.num_splats] for name, tensor in everything.items()}
            facts = {"curve": curve, **dataclasses.asdict(scene), "pixels": scene.width * scene.height}
            try:
                facts |= point(scene, some, *cameras(scene))
            except Exception:  # noqa: BLE001 - the other points may be found
                facts["error"] = traceback.format_exc()[-2000:]
            answer["points"].append(facts)
            print(describe(facts), flush=True)
            out.write_text(json.dumps(answer, indent=1, default=str) + "\n")
            gc.collect()
    return answer


def describe(facts: dict[str, Any]) -> str:
    """One line for the terminal."""
    name = f"{facts['num_splats']:>9} splats, {facts['width']} x {facts['height']}"
    if "error" in facts:
        return f"{name}: ERROR {facts['error'][-600:]}"
    ours, theirs = (statistics.median(facts["ms"][side]) for side in ("ours", "gsplat"))
    ratio = f"{theirs / ours:.2f} x" if facts["compared"]["passed"] else "no speed-up, the comparison is not green"
    return f"{name}: ours {ours:.3f} ms, gsplat {theirs:.3f} ms, {ratio}"


def draw(answer: dict[str, Any], png: Path) -> None:
    """Both curves as one picture, with the slope that is proportional for the eye."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.6), layout="constrained")
    axes = figure.subplots(1, 2, sharey=True)
    labels = {
        "splats": ("num_splats", "splats, at 1920 x 1080"),
        "pixels": ("pixels", "pixels, with one million splats"),
    }
    for axis, (curve, (field, label)) in zip(axes, labels.items(), strict=True):
        points = [p for p in answer["points"] if p["curve"] == curve and "ms" in p and p["compared"]["passed"]]
        where = [p[field] for p in points]
        for side, color in (("gsplat", "#b04a3a"), ("ours", "#20639b")):
            samples = [sorted(p["ms"][side]) for p in points]
            middle = [statistics.median(one) for one in samples]
            axis.plot(where, middle, "o-", color=color, label=side)
            axis.fill_between(where, [s[0] for s in samples], [s[-1] for s in samples], color=color, alpha=0.2)
        if points:
            last = statistics.median(points[-1]["ms"]["ours"]) / where[-1]
            axis.plot(where, [last * x for x in where], ":", color="#777777", label="in proportion")
        axis.set(xscale="log", yscale="log", xlabel=label)
        axis.grid(alpha=0.3, which="both")
        axis.legend()
    axes[0].set_ylabel("forward and backward, ms")
    figure.savefig(png, dpi=130)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("splat_curves.json"))
    parser.add_argument("--most", type=int, default=SPLATS[-1], help="splats of the largest point")
    parser.add_argument("--draw", type=Path, help="measure nothing; draw the curves of this file")
    parser.add_argument("--png", type=Path, help="draw the curves here; needs matplotlib")
    given = parser.parse_args()
    answer = json.loads(given.draw.read_text()) if given.draw else measure(given.most, given.out)
    if given.png:
        draw(answer, given.png)


if __name__ == "__main__":
    main()
