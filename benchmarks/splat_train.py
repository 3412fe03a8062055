"""How fast and how well do splats train beside gsplat's default strategy, on a scene of your own?

    python -m benchmarks.splat_train SCENE --images images_2 --steps 7000 --seeds 0,1,2 --out splat_train.json
        [--who ours,gsplat] [--preset default] [--set adam=lazy --set ...] [--label name] [--timeout 540]
        [--pictures DIR]
    python -m benchmarks.splat_train SCENE --who ours --preset fast --seeds 0,1,2 --out fast.json
    python -m benchmarks.splat_train SCENE --who m7 --out m7.json [--timed-steps 200]
    python -m benchmarks.splat_train --merge one.json two.json --out all.json

Every training is a process of its own, and what it found is added to the file when it ends; one that is in the file
already is not run again. When ``--timeout`` is near, the training that runs is put aside in ``--aside``, and the same
command goes on with it. Files of several calls are put together by ``--merge``.

Both sides begin with the same splats and see the same pictures, kept as bytes on the card, with the same rates, loss,
degrees and density control, and are judged on the same held-out pictures by the same code. gsplat's side is its
``rasterization`` (unpacked, its faster mode here), ``DefaultStrategy`` and torch's fused Adam or its own
``SelectiveAdam`` (``--gsplat-adam``); the loss is our fused one on both sides. gsplat 1.5.3 means to reset opacities
every 3,000 steps and never does (its condition reads ``step % reset_every == 0 & step > 0``, which Python takes for
``... == (0 & step) > 0``), so ours does not either here, unless ``--set reset_every=3000`` says so.

Figures of gsplat's own example are of another task; results/splat_train_h200_202611.md lists how it differs. Two of
its differences can be had here. Where ``images_2`` holds JPEG files it makes half-size pictures of its own from
``images`` by a bicubic filter, which are smoother, and is judged by those. And the rate of its centres falls over
``max_steps``, 30,000 unless said: what it scores after 7,000 is a training under way. ``--images`` with a folder of
such pictures, and ``--set lr_decay=0.3415`` (0.01 to the power of 7/30), give both sides that much of its task.

The time is that of all steps with densification and logging, after a few steps of another model that compile the
kernels; reading pictures and judging are not in it.

``--pictures`` leaves sheet.jpg, curves.png and orbit.gif of our first training there; its held-out curve is judged
while the clock stands still. ``m7`` runs that preset, at its 480 pixels of width, on the card and on the CPU's cores:
the same number of steps on both end to end, ``--timed-steps`` of the preset's 1,000, and forward and backward apart.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import torch
from benchmarks.splat_train_arms import LIKE_M7, Aside, Clock, say, time_m7, train_gsplat, train_ours

from hotlap.base.events import ignore
from hotlap.records.codec import encode
from hotlap.records.environment import capture
from hotlap.records.run import write_atomic
from hotlap.splat.config import SplatTrainConfig, config_with
from hotlap.splat.judge import judged, mean_scores
from hotlap.splat.stage import open_scene, open_stage

PUBLISHED = "published, 4090, 980x545: LiteGS 21.50 dB in 47 s, FastGS 22.57 dB in 80 s"
SPARE_S = 12.0
"""Kept of the time for putting a training aside, or judging it."""


def make_config(arguments: argparse.Namespace, seed: int, device: str) -> SplatTrainConfig:
    changes: dict[str, Any] = dict(one.split("=", 1) for one in arguments.set)
    preset = "m7" if arguments.who.startswith("m7") else arguments.preset
    if preset == "default":
        changes = {"reset_every": 0, **changes}
    if arguments.steps and "steps" not in changes:
        changes["steps"] = arguments.steps
    config = config_with(
        preset, scene=arguments.scene, images=arguments.images, seed=seed, device=device, **changes
    )  # fmt: skip
    if preset == "m7" and "scale" not in changes:
        width = open_scene(config).views[config.image_index or 0].camera.width
        config = dataclasses.replace(config, scale=min(1.0, LIKE_M7 / width))
    return config


def one_job(arguments: argparse.Namespace) -> dict[str, Any]:
    """One training in this process."""
    kind = "cpu" if arguments.who == "m7-cpu" else arguments.device
    device = torch.device(kind, 0) if kind == "cuda" else torch.device(kind)
    clock = Clock(device, time.monotonic() + arguments.timeout - SPARE_S)
    config = make_config(arguments, arguments.seed, kind)
    began = time.perf_counter()
    stage = open_stage(config, device, ignore)
    say(f"  {len(stage.cameras)} pictures read in {time.perf_counter() - began:.1f} s, kept on {stage.pictures.place}")
    found: dict[str, Any] = {"threads": torch.get_num_threads(), "config": encode(config)}
    torch.manual_seed(arguments.seed)  # gsplat draws the places of split splats from torch's own chance
    found["card"] = torch.cuda.get_device_name(device) if device.type == "cuda" else ""
    if arguments.who.startswith("m7"):
        return {**found, **time_m7(config, stage, device, arguments.timed_steps)}
    kept = Path(arguments.aside) / f"{re.sub(r'[^a-z0-9]+', '-', arguments.label.lower())}.pt"
    if arguments.who == "gsplat":
        model, told = train_gsplat(config, stage, clock, kept, arguments.gsplat_adam)
    else:
        model, told, rows = train_ours(config, stage, clock, kept, judge=bool(arguments.pictures))
    assert stage.test_cameras is not None and stage.test_pictures is not None
    scores = [s for s, _, _ in judged(model, stage.test_cameras, stage.test_pictures, range(len(stage.test_cameras)))]
    if arguments.pictures and arguments.who == "ours":
        from benchmarks.splat_train_pictures import leave_pictures

        leave_pictures(Path(arguments.pictures), model, stage, config, rows)
    kept.unlink(missing_ok=True)
    return {**found, **told, "mean": mean_scores(scores), "images": [vars(score) for score in scores]}


def parse(words: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scene", nargs="?", default="")
    parser.add_argument("--images", default="images")
    parser.add_argument("--steps", type=int, default=0, help="0: the preset's")
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--seed", type=int, default=-1, help="of one job; given by the run itself")
    parser.add_argument("--who", default="ours,gsplat")
    parser.add_argument("--preset", default="default")
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("--label", default="")
    parser.add_argument("--gsplat-adam", default="fused", choices=("fused", "selective"))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--timed-steps", type=int, default=200, help="of m7, on either device")
    parser.add_argument("--timeout", type=float, default=540.0, help="seconds for all jobs together")
    parser.add_argument("--aside", default=str(Path(tempfile.gettempdir()) / "splat_train_aside"))
    parser.add_argument("--pictures", default="", help="folder for pictures of our first training")
    parser.add_argument("--merge", nargs="+", default=[], help="files of earlier calls to put into --out")
    parser.add_argument("--out", default="splat_train.json")
    return parser.parse_args(words)


def main() -> None:
    arguments = parse()
    if arguments.seed >= 0:
        try:
            say("RESULT " + json.dumps(one_job(arguments)))
        except Aside as aside:
            say("RESULT " + json.dumps({"error": str(aside), "aside": True}))
        return
    out, give_up = Path(arguments.out), time.monotonic() + arguments.timeout
    kept = json.loads(out.read_text()) if out.is_file() else {"environment": encode(capture()), "jobs": []}
    for path in arguments.merge:
        kept = merged(kept, json.loads(Path(path).read_text()))
    if arguments.merge:
        write_atomic(out, json.dumps(kept, indent=1))
    who = ["m7-cuda", "m7-cpu"] if arguments.who == "m7" else arguments.who.split(",")
    jobs = [(int(seed), name) for seed in arguments.seeds.split(",") for name in who] if arguments.scene else []
    pictured = next((job for job in jobs if job[1] == "ours"), None)
    for seed, name in jobs:
        label = f"{arguments.label or arguments.preset} {name} {arguments.images} {arguments.steps} seed {seed}"
        if any(job["label"] == label and "error" not in job for job in kept["jobs"]):
            say(f"{label}: known already")
            continue
        left = give_up - time.monotonic()
        if left < 3 * SPARE_S:
            say(f"{label}: no time left")
            continue
        say(label)
        job = {"label": label, "who": name, "seed": seed, "steps": arguments.steps}
        job |= run_job(name, seed, label, left, pictures=(seed, name) == pictured)
        kept = merged(kept, {"jobs": [job]})
        write_atomic(out, json.dumps(kept, indent=1))
        say(f"  {summary(job)}")
    for line in [*compared(kept["jobs"]), *table(kept["jobs"])]:
        say(line)


def merged(kept: dict[str, Any], more: dict[str, Any]) -> dict[str, Any]:
    """The jobs of both, by label; one that failed never takes the place of one that did not."""
    jobs = {job["label"]: job for job in kept["jobs"]}
    for job in more["jobs"]:
        if "error" not in job or "error" in jobs.get(job["label"], job):
            jobs[job["label"]] = job
    return {**more, **kept, "jobs": list(jobs.values())}


def compared(jobs: list[dict[str, Any]]) -> list[str]:
    """Each of our trainings beside gsplat's of the same pictures, steps and seed, and m7 on both devices."""
    lines, whole = [], [job for job in jobs if "error" not in job]
    for job in whole:
        for other in whole:
            same = all(job[key] == other[key] for key in ("seed", "steps"))
            same = same and job["config"]["images"] == other["config"]["images"]
            if same and job["who"] == "ours" and other["who"] == "gsplat":
                apart = {name: job["mean"][name] - other["mean"][name] for name in ("psnr", "ssim")}
                times = other["seconds"] / job["seconds"]
                lines.append(
                    f"{job['label']}: {times:.2f}x gsplat's speed, {apart['psnr']:+.3f} dB, SSIM {apart['ssim']:+.4f}, "
                    f"{job['splats'] / other['splats']:.2f}x the splats"
                )
            same = same and job.get("timed_steps") == other.get("timed_steps")
            if same and job["who"] == "m7-cuda" and other["who"] == "m7-cpu":
                lines.append(_m7_line(job, other))
    return lines


def _m7_line(card: dict[str, Any], cpu: dict[str, Any]) -> str:
    """What was timed on either device, and how many times the card is as fast."""
    both = [_m7_times(cpu), _m7_times(card)]
    parts = [f"{name} {both[0][name]:.2f} against {both[1][name]:.3f} ms ({both[0][name] / both[1][name]:.0f}x)"
             for name in both[0]]  # fmt: skip
    height, width = card["size"]
    return (
        f"m7, {card['splats']} splats at {width} x {height}, {card['timed_steps']} steps on each, the CPU with "
        f"{cpu['threads']} threads: {', '.join(parts)}"
    )


def _m7_times(job: dict[str, Any]) -> dict[str, float]:
    """In milliseconds: all timed steps end to end, one of them, and single passes."""
    passes = {name: statistics.median(job[f"{name}_ms"]) for name in ("forward", "backward")}
    return {"end to end": 1e3 * job["seconds"], "a step": 1e3 * job["seconds"] / job["timed_steps"], **passes}


def table(jobs: list[dict[str, Any]]) -> list[str]:
    """Markdown: a row for each training, its seeds together."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for job in jobs:
        if "error" not in job and not job["who"].startswith("m7"):
            groups.setdefault(job["label"].rsplit(" seed ", 1)[0], []).append(job)
    lines = ["", "| training | seeds | PSNR dB | SSIM | seconds | splats | peak MB |", "| --- " * 7 + "|"]
    for label, some in groups.items():
        psnr, ssim = ([job["mean"][name] for job in some] for name in ("psnr", "ssim"))
        means = [statistics.mean(job[name] for job in some) for name in ("seconds", "splats", "peak_bytes")]
        lines.append(
            f"| {label} | {len(some)} | {statistics.mean(psnr):.3f} ({min(psnr):.2f} to {max(psnr):.2f}) | "
            f"{statistics.mean(ssim):.4f} | {means[0]:.1f} | {means[1]:,.0f} | {means[2] / 1e6:,.0f} |"
        )
    return [*lines, PUBLISHED] if groups else []


def run_job(name: str, seed: int, label: str, left: float, *, pictures: bool) -> dict[str, Any]:
    """What a process of its own found; it prints as it goes."""
    words = [sys.executable, "-u", "-m", "benchmarks.splat_train", *sys.argv[1:], "--who", name, "--seed", str(seed)]
    # Less than it has: it counts from when it was loaded, and has to put its work aside before it is ended.
    words += ["--label", label, "--timeout", str(left - SPARE_S), *([] if pictures else ["--pictures", ""])]
    child = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert child.stdout is not None
    tail, late = list[str](), threading.Event()
    watch = threading.Timer(left, lambda: (late.set(), child.kill()))  # it may hang without a word
    watch.start()
    try:
        for line in child.stdout:
            if line.startswith("RESULT "):
                found: dict[str, Any] = json.loads(line[len("RESULT ") :])
                return found
            say(line.rstrip())
            tail = [*tail[-30:], line.rstrip()]
    finally:
        watch.cancel()
        child.kill()
        child.wait()
    said = f"stopped after {left:.0f} s" if late.is_set() else "the process ended without a result"
    return {"error": said, "tail": tail}


def summary(job: dict[str, Any]) -> str:
    if "error" in job:
        return f"failed: {job['error']}"
    if "timed_steps" in job:
        times = ", ".join(f"{name} {ms:.3f} ms" for name, ms in _m7_times(job).items())
        return f"{job['timed_steps']} steps, {job['splats']} splats: {times}; PSNR of the picture {job['psnr']:.2f}"
    mean = job["mean"]
    return f"{job['seconds']:.2f} s, PSNR {mean['psnr']:.3f}, SSIM {mean['ssim']:.4f}, {job['splats']} splats"


if __name__ == "__main__":
    main()
