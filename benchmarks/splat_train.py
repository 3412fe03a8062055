"""How fast and how well do splats train beside gsplat's default strategy, on a scene of your own?

    python -m benchmarks.splat_train SCENE --images images_2 --steps 7000 --seeds 0,1,2 --out splat_train.json
        [--who ours,gsplat] [--preset default] [--set adam=lazy --set ...] [--label name] [--timeout 580]
    python -m benchmarks.splat_train SCENE --who m7 --out m7.json

Every training is a process of its own, and what it found is added to the file when it ends, so that a run that is cut
short keeps what it has; a training that is in the file already is not run again. Both begin with the same splats and
see the same pictures, kept as bytes on the card, with the same rates, loss, degrees and density control, and are
judged on the same held-out pictures by the same code. gsplat's side is its ``rasterization`` (unpacked, its faster
mode here), ``DefaultStrategy`` and torch's fused Adam or its own ``SelectiveAdam`` (``--gsplat-adam``); the loss is
our fused one on both sides. gsplat 1.5.3 means to reset opacities every 3,000 steps and never does (its condition
reads ``step % reset_every == 0 & step > 0``, which Python takes for ``... == (0 & step) > 0``), so ours does not
either here, unless ``--set reset_every=3000`` says so. The time is that of all steps with densification and logging,
after a few steps of another model that compile the kernels; reading pictures and judging are not in it.

``m7`` runs that preset on the card and on the CPU's cores: all steps end to end, and forward and backward apart.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch

from hotlap.base.events import ignore
from hotlap.kernels.ssim.op import l1_ssim
from hotlap.records.codec import encode
from hotlap.records.environment import capture
from hotlap.splat.config import LEARNABLE, SplatTrainConfig, config_with
from hotlap.splat.judge import Model, judged, mean_scores
from hotlap.splat.stage import Stage, open_stage
from hotlap.splat.start import start_splats
from hotlap.splat.step import rates_of
from hotlap.splat.trainer import Trainer

REPORT_EVERY = 500
WARM_STEPS = 12


def say(text: str) -> None:
    print(text, flush=True)


def make_config(arguments: argparse.Namespace, seed: int, device: str) -> SplatTrainConfig:
    changes: dict[str, Any] = dict(one.split("=", 1) for one in arguments.set)
    preset = "m7" if arguments.who.startswith("m7") else arguments.preset
    if preset == "default":
        changes = {"reset_every": 0, **changes}
    if arguments.steps and "steps" not in changes:
        changes["steps"] = arguments.steps
    return config_with(
        preset, scene=arguments.scene, images=arguments.images, seed=seed, device=device, **changes
    )  # fmt: skip


def train_ours(config: SplatTrainConfig, stage: Stage, device: torch.device) -> tuple[Model, dict[str, Any]]:
    """Our trainer, without its files."""
    warm = Trainer(dataclasses.replace(config, sh_every=2, densify_every=0), stage, device, ignore)
    warm.run(WARM_STEPS)
    del warm
    trainer = Trainer(config, stage, device, ignore)
    points: list[tuple[int, float, int]] = []
    clear_peak(device)
    began = time.perf_counter()
    for stop in range(config.log_every, config.steps + config.log_every, config.log_every):
        trainer.run(min(stop, config.steps))
        values = trainer.look_after()
        if trainer.step % REPORT_EVERY == 0 or trainer.step == config.steps:
            points.append((trainer.step, time.perf_counter() - began, trainer.state.count))
            told = f"{trainer.state.count} splats, loss {values['loss']:.4f}"
            say(f"  ours step {trainer.step}: {points[-1][1]:.1f} s, {told}")
    seconds = time.perf_counter() - began
    found = {"seconds": seconds, "splats": trainer.state.count, "points": points}
    return trainer.model(), {**found, "recordings": trainer.steps.num_recordings, "peak_bytes": peak(device)}


def train_gsplat(
    config: SplatTrainConfig, stage: Stage, device: torch.device, adam: str
) -> tuple[Model, dict[str, Any]]:
    """gsplat's rasterization and default strategy, as its own example puts them together."""
    import gsplat

    run_gsplat(config, stage, device, adam, WARM_STEPS, quiet=True)
    clear_peak(device)
    params, found = run_gsplat(config, stage, device, adam, config.steps, quiet=False)
    colors = torch.cat([params["sh0"], params["shN"]], 1)
    drawable = {name: params[name].detach() for name in LEARNABLE if name != "colors"} | {"colors": colors.detach()}
    return Model(params=drawable, background=None), {
        **found, "gsplat": gsplat.__version__, "peak_bytes": peak(device)
    }  # fmt: skip


def run_gsplat(
    config: SplatTrainConfig, stage: Stage, device: torch.device, adam: str, steps: int, *, quiet: bool
) -> tuple[dict[str, Any], dict[str, Any]]:
    from gsplat import DefaultStrategy, rasterization

    params, optimizers = _gsplat_model(config, stage, device, adam)
    decay = torch.optim.lr_scheduler.ExponentialLR(optimizers["means"], gamma=config.lr_decay ** (1 / config.steps))
    strategy = DefaultStrategy(
        verbose=False, refine_start_iter=config.densify_from, refine_stop_iter=config.densify_until,
        refine_every=config.densify_every, reset_every=3000, grow_grad2d=config.densify_grad,
        prune_opa=config.prune_opacity, grow_scale3d=config.split_scale, prune_scale3d=config.prune_scale,
    )  # fmt: skip
    strategy.check_sanity(params, optimizers)
    kept = strategy.initialize_state(scene_scale=stage.extent)
    order = Order(config, len(stage.cameras))
    points, losses = [], torch.zeros((), device=device)
    began = _now(device)
    for step in range(steps):
        number = order.camera_at(step)
        height, width = stage.cameras.sizes[number]
        colors = torch.cat([params["sh0"], params["shN"]], 1)
        image, _, info = rasterization(
            params["means"], params["quats"], torch.exp(params["scales"]), torch.sigmoid(params["opacities"]), colors,
            stage.cameras.viewmats[number][None], stage.cameras.Ks[number][None], width, height, packed=False,
            sh_degree=min(step // config.sh_every, config.sh_degree), absgrad=False,
        )  # fmt: skip
        strategy.step_pre_backward(params, optimizers, kept, step, info)
        target = stage.pictures[number].image[None]
        loss = l1_ssim(image, target, ssim_weight=config.ssim_weight)
        loss.backward()
        losses += loss.detach()
        for optimizer in optimizers.values():
            if adam == "selective":
                optimizer.step((info["radii"] > 0).all(-1).any(0))
            else:
                optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        decay.step()
        strategy.step_post_backward(params, optimizers, kept, step, info, packed=False)
        if not quiet and ((step + 1) % REPORT_EVERY == 0 or step + 1 == steps):
            mean = losses.item() / ((step % REPORT_EVERY) + 1)
            losses.zero_()
            points.append((step + 1, time.perf_counter() - began, len(params["means"])))
            say(f"  gsplat step {step + 1}: {points[-1][1]:.1f} s, {points[-1][2]} splats, loss {mean:.4f}")
    seconds = _now(device) - began
    return dict(params), {
        "seconds": seconds, "splats": len(params["means"]), "points": points
    }  # fmt: skip


class Order:
    """The order of pictures that our trainer has."""

    def __init__(self, config: SplatTrainConfig, num: int) -> None:
        self.config, self.num, self.orders = config, num, dict[int, list[int]]()

    def camera_at(self, step: int) -> int:
        epoch, at = divmod(step, self.num)
        if epoch not in self.orders:
            generator = torch.Generator().manual_seed((self.config.seed * 1_000_003 + epoch) % 2**63)
            self.orders = {epoch: torch.randperm(self.num, generator=generator).tolist()}
        return self.orders[epoch][at]


def _gsplat_model(
    config: SplatTrainConfig, stage: Stage, device: torch.device, adam: str
) -> tuple[torch.nn.ParameterDict, dict[str, torch.optim.Optimizer]]:
    start = start_splats(stage.scene, stage.views, config, stage.extent)
    colors = start.pop("colors")
    start |= {"sh0": colors[:, :1], "shN": colors[:, 1:]}
    params = torch.nn.ParameterDict(
        {name: torch.nn.Parameter(tensor.contiguous().to(device)) for name, tensor in start.items()}
    )
    rates = rates_of(config, stage.extent)
    rates |= {"sh0": rates["colors"], "shN": rates["colors"] / 20}
    optimizers: dict[str, torch.optim.Optimizer] = {}
    for name, param in params.items():
        group = [{"params": [param], "lr": rates[name], "name": name}]
        if adam == "selective":
            from gsplat.optimizers import SelectiveAdam

            optimizers[name] = SelectiveAdam(group, eps=1e-15, betas=(0.9, 0.999))
        else:
            optimizers[name] = torch.optim.Adam(group, eps=1e-15, betas=(0.9, 0.999), fused=True)
    return params, optimizers


def time_m7(config: SplatTrainConfig, stage: Stage, device: torch.device) -> dict[str, Any]:
    """All steps of the preset end to end, then forward and backward of single eager steps, in ms."""
    from importlib import import_module

    from hotlap.kernels.splat.op import splat_choice

    warm = Trainer(config, stage, device, ignore)
    warm.run(WARM_STEPS)
    trainer = Trainer(config, stage, device, ignore)
    began = time.perf_counter()
    trainer.run(config.steps)
    found: dict[str, Any] = {"seconds": time.perf_counter() - began, "splats": trainer.state.count}
    key = (*stage.cameras.sizes[0], 0)
    step = trainer.train_step
    frame = step.put(key, 0, stage.pictures[0].image, None)
    kernels, splats, view = step._drawing(frame, 0)
    kernels = import_module(f"hotlap.kernels.splat.{splat_choice(splats, view).impl}")
    found |= {"forward_ms": [], "backward_ms": [], "size": list(key[:2])}
    needs = frozenset({*LEARNABLE, "means2d"})
    for _ in range(20):
        clock = [_now(device)]
        drawn = kernels.forward(splats, view)
        clock.append(_now(device))
        kernels.backward(splats, view, drawn, torch.ones_like(drawn.colors), frame.no_alphas, None, needs)
        clock.append(_now(device))
        found["forward_ms"].append(1e3 * (clock[1] - clock[0]))
        found["backward_ms"].append(1e3 * (clock[2] - clock[1]))
    return found


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def clear_peak(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)


def peak(device: torch.device) -> int:
    return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else 0


def one_job(arguments: argparse.Namespace) -> dict[str, Any]:
    """One training in this process."""
    kind = "cpu" if arguments.who == "m7-cpu" else arguments.device
    device = torch.device(kind, 0) if kind == "cuda" else torch.device(kind)
    config = make_config(arguments, arguments.seed, kind)
    began = time.perf_counter()
    stage = open_stage(config, device, ignore)
    say(f"  {len(stage.cameras)} pictures read in {time.perf_counter() - began:.1f} s, kept on {stage.pictures.place}")
    found: dict[str, Any] = {"threads": torch.get_num_threads(), "config": encode(config)}
    found["card"] = torch.cuda.get_device_name(device) if device.type == "cuda" else ""
    if arguments.who.startswith("m7"):
        return {**found, **time_m7(config, stage, device)}
    if arguments.who == "gsplat":
        model, told = train_gsplat(config, stage, device, arguments.gsplat_adam)
    else:
        model, told = train_ours(config, stage, device)
    assert stage.test_cameras is not None and stage.test_pictures is not None
    scores = [s for s, _, _ in judged(model, stage.test_cameras, stage.test_pictures, range(len(stage.test_cameras)))]
    return {**found, **told, "mean": mean_scores(scores), "images": [vars(score) for score in scores]}


def parse(words: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scene")
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
    parser.add_argument("--timeout", type=float, default=580.0, help="seconds for all jobs together")
    parser.add_argument("--out", default="splat_train.json")
    return parser.parse_args(words)


def main() -> None:
    arguments = parse()
    if arguments.seed >= 0:
        say("RESULT " + json.dumps(one_job(arguments)))
        return
    out, give_up = Path(arguments.out), time.monotonic() + arguments.timeout
    kept = json.loads(out.read_text()) if out.is_file() else {"environment": encode(capture()), "jobs": []}
    who = ["m7-cuda", "m7-cpu"] if arguments.who == "m7" else arguments.who.split(",")
    for seed in [int(one) for one in arguments.seeds.split(",")]:
        for name in who:
            label = f"{arguments.label or arguments.preset} {name} {arguments.images} {arguments.steps} seed {seed}"
            if any(job["label"] == label and "error" not in job for job in kept["jobs"]):
                say(f"{label}: known already")
                continue
            left = give_up - time.monotonic()
            if left < 10:
                say(f"{label}: no time left")
                continue
            say(label)
            job = {"label": label, "who": name, "seed": seed, "steps": arguments.steps, **run_job(name, seed, left)}
            kept["jobs"] = [other for other in kept["jobs"] if other["label"] != label] + [job]
            out.write_text(json.dumps(kept, indent=1))
            say(f"  {summary(job)}")
    for line in compared(kept["jobs"]):
        say(line)


def compared(jobs: list[dict[str, Any]]) -> list[str]:
    """Each of our trainings beside gsplat's of the same pictures, steps and seed."""
    lines = []
    whole = [job for job in jobs if "mean" in job]
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
    return lines


def run_job(name: str, seed: int, left: float) -> dict[str, Any]:
    """What a process of its own found; it prints as it goes."""
    words = [sys.executable, "-u", "-m", "benchmarks.splat_train", *sys.argv[1:], "--who", name, "--seed", str(seed)]
    child = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert child.stdout is not None
    began, tail = time.monotonic(), list[str]()
    try:
        for line in child.stdout:
            if line.startswith("RESULT "):
                found: dict[str, Any] = json.loads(line[len("RESULT ") :])
                return found
            say(line.rstrip())
            tail = [*tail[-30:], line.rstrip()]
            if time.monotonic() - began > left:
                return {"error": f"stopped after {left:.0f} s", "tail": tail}
    finally:
        child.kill()
        child.wait()
    return {"error": "the process ended without a result", "tail": tail}


def summary(job: dict[str, Any]) -> str:
    if "error" in job:
        return f"failed: {job['error']}"
    if "mean" not in job:
        middle = {name: sorted(job[name])[len(job[name]) // 2] for name in ("forward_ms", "backward_ms")}
        return f"{job['seconds']:.2f} s, forward {middle['forward_ms']:.3f} ms, backward {middle['backward_ms']:.3f} ms"
    mean = job["mean"]
    return f"{job['seconds']:.1f} s, PSNR {mean['psnr']:.3f}, SSIM {mean['ssim']:.4f}, {job['splats']} splats"


if __name__ == "__main__":
    main()
