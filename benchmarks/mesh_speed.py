"""How fast are the mesh networks beside their own plain form, batch 1, eager float32? On one card.

    python -m benchmarks.mesh_speed --out mesh_speed.json [--only check,pp,lite,train] [--timeout 140] [--minutes 9]

``check`` compares the kernels of graph convolutions and of pooling with their references in float64. Each ``pp`` job is
one form of Pixel2Mesh++ with three views at one batch: its gate, the mean vertex error against plain float32 over the
object's size, as it is then timed (replayed, where it is a CUDA graph); then the form, between two timings of plain
float32 at batch 1. ``lite`` times Pixel2Mesh lite from JPEG bytes in host memory to vertices in host memory for 35 and
for 10,000 pictures. ``train`` times a training step of stage 2 at batch 16, and compares loss and gradients first.
Weights are fresh, or those of HOTLAP_MESH_WEIGHTS. Speed-ups are printed only for forms whose checks are green. Later
calls add to the same file.
"""

from __future__ import annotations

import contextlib
import io
import os
import statistics
import time
import traceback
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.card_jobs import Finding, checked, compare_cases, medians, recorded, run_all, timed

VIEWS = 3
LARGEST_ERROR = 1e-3
"""Mean vertex error over the object's size that an arm may make."""
BASE = "plain fp32, batch 1"
ROWS = (
    ("kernels bf16+tf32", 16, True),
    ("kernels bf16+tf32", 1, True),
    ("kernels bf16+tf32", 32, True),
    ("compiled bf16+tf32", 16, True),
    ("kernels bf16", 16, True),
    ("kernels bf16", 1, True),
    ("kernels bf16+tf32", 64, True),
    ("kernels bf16+tf32", 8, True),
    ("compiled bf16+tf32", 1, True),
    ("kernels bf16", 16, False),
    ("kernels bf16", 1, False),
    ("kernels fp32", 16, True),
    ("plain bf16", 1, False),
    ("plain fp32", 16, False),
)
"""Form, batch, and whether it is a CUDA graph; the most telling first."""
TRAIN_BATCH, GATE_BATCH = 16, 4
LOSS_APART, DIRECTION = 0.01, 0.97
"""How far the loss of a faster training step may be off, and the least cosine between its gradient and the plain one's.
On a CPU, in bfloat16 and with fresh weights, the loss was 0.0002 off and the cosine 0.990."""


def check_graph_conv() -> Iterator[Finding]:
    import torch

    from hotlap.kernels.graph_conv.cases import REAL, SMALL, run_conv
    from hotlap.kernels.graph_conv.op import graph_conv
    from hotlap.kernels.graph_conv.reference import graph_conv_ref

    torch.use_deterministic_algorithms(True, warn_only=True)  # so that fresh memory is filled with NaN
    ours = partial(graph_conv, impl="triton")
    yield from checked(
        compare_cases(
            (*SMALL, *REAL), lambda op, case, card: run_conv(op, case, case.support(card)), ours, graph_conv_ref
        )
    )


def check_view_pool() -> Iterator[Finding]:
    import torch

    from hotlap.kernels.view_pool.cases import REAL, SMALL, run_pool
    from hotlap.kernels.view_pool.op import view_pool
    from hotlap.kernels.view_pool.reference import view_pool_ref

    torch.use_deterministic_algorithms(True, warn_only=True)
    ours = partial(view_pool, impl="triton")
    cases = (*SMALL, *REAL)
    yield from checked(compare_cases(cases, lambda op, case, card: run_pool(op, case), ours, view_pool_ref))


def networks() -> tuple[Any, Any]:
    """Pixel2Mesh++ in its plain form and with kernels, the same weights."""
    import copy

    import torch

    from hotlap.measure.session import use_kernels
    from hotlap.mesh.pixel2mesh_pp import Pixel2MeshPP
    from hotlap.mesh.weights import start_from

    torch.manual_seed(0)
    plain = Pixel2MeshPP()
    if os.environ.get("HOTLAP_MESH_WEIGHTS"):
        start_from(plain, Path(os.environ["HOTLAP_MESH_WEIGHTS"]))
    plain = plain.cuda().eval()
    fast = copy.deepcopy(plain)
    use_kernels(fast)
    return plain, fast


def seen(count: int) -> tuple[Any, Any]:
    import torch

    from hotlap.mesh.drawn import draw_objects

    parts = [
        draw_objects(
            torch.arange(n, min(n + 8, count)), views=VIEWS, size=224, points=4, seed=0, device=torch.device("cuda")
        )
        for n in range(0, count, 8)
    ]
    return torch.cat([part["image"] for part in parts]), torch.cat([part["cameras"] for part in parts])


@contextlib.contextmanager
def inferring(dtype: Any, tf32: bool = False) -> Iterator[None]:
    import torch

    from hotlap.device.precision import set_fp32_precision

    set_fp32_precision("tf32" if tf32 else "ieee")
    with torch.inference_mode(), torch.autocast("cuda", dtype=dtype or torch.bfloat16, enabled=dtype is not None):
        yield


def called(form: str, plain: Any, fast: Any, image: Any, cameras: Any) -> Any:
    """What runs a form on some samples."""
    import torch

    kind, _, numbers = form.partition(" ")
    model = plain if kind == "plain" else fast
    model = torch.compile(model, dynamic=False) if kind == "compiled" else model
    dtype = torch.bfloat16 if "bf16" in numbers else None

    def run() -> Any:
        with inferring(dtype, "tf32" in numbers):
            return model(image, cameras)

    return run


def row_name(form: str, count: int, graph: bool) -> str:
    return f"{form}, batch {count}" + (", graph" if graph else "")


def pixel2mesh_pp(form: str, count: int, graph: bool) -> Iterator[Finding]:
    """One form at one batch: the gate, then its time between two of the base."""
    import torch

    torch.backends.cudnn.benchmark = True
    plain, fast = networks()
    image, cameras = seen(count)
    base = called("plain fp32", plain, fast, image[:1], cameras[:1])
    want = torch.cat([called("plain fp32", plain, fast, image[n : n + 1], cameras[n : n + 1])() for n in range(count)])
    run = called(form, plain, fast, image, cameras)
    for _ in range(3):
        got = run()
    if graph:
        run, got = recorded(run)
        run()
    size = (want.amax(1) - want.amin(1)).norm(dim=1)
    error = ((got - want).norm(dim=2).mean(1) / size).max().item()
    passed = error < LARGEST_ERROR
    yield {"gate": row_name(form, count, graph), "mean_vertex_error": error, "allowed": LARGEST_ERROR, "passed": passed}
    if passed:
        yield from timed(BASE, base)
        yield from timed(row_name(form, count, graph), run, per=count)
        yield from timed(f"{BASE}, again", base)


def pixel2mesh_pp_parts() -> Iterator[Finding]:
    _, fast = networks()
    yield from parts(fast, *seen(16))


def parts(model: Any, image: Any, cameras: Any) -> Iterator[Finding]:
    """Where the time of a batch goes: stages, convolutions and rounds of refinement, in bfloat16."""
    import torch

    count = len(image)
    with inferring(torch.bfloat16):
        coarse = model.coarse(image, cameras).vertices[-1].clone()
        flat = image.flatten(0, 1).float() / 255
    halves = {
        "coarse stage": lambda: model.coarse(image, cameras),
        "convolutions of the coarse stage": lambda: model.coarse.cnn(flat),
        "refine stage": lambda: model.refine(image, cameras, coarse),
        "convolutions of the refine stage": lambda: model.refine.cnn(flat, 3),
    }
    for name, call in halves.items():

        def run(call: Any = call) -> Any:
            with inferring(torch.bfloat16):
                return call()

        yield from timed(f"{name}, batch {count}, graph", run, graph=True, per=count)


def lite(count: int, batches: tuple[int, ...]) -> Iterator[Finding]:
    """So many pictures from host memory and back to it, behind the gate."""
    import torch
    from PIL import Image

    from hotlap.measure.session import use_kernels
    from hotlap.mesh.many import ManyPictures
    from hotlap.mesh.pixel2mesh_lite import Pixel2MeshLite, fold_norms

    torch.backends.cudnn.benchmark = True
    torch.manual_seed(0)
    plain = Pixel2MeshLite().cuda().eval()
    with torch.no_grad():
        plain.last.weight.mul_(100)  # a fresh network hardly moves its sphere, and the gate would see little
    images = seen(48)[0][:, 0].cpu()
    blobs = []
    for image in images:
        stream = io.BytesIO()
        Image.fromarray(image.permute(1, 2, 0).numpy()).save(stream, "JPEG", quality=95)
        blobs.append(stream.getvalue())
    with torch.inference_mode():
        want = plain(images[:8].cuda())
    yield from timed("plain fp32, batch 1, on the card", partial(run_plain, plain, images[:1].cuda()))
    fast = fold_norms(plain, torch.bfloat16)
    use_kernels(fast)
    with inferring(torch.bfloat16):
        got = fast(images[:8].cuda())
    size = (want.amax(1) - want.amin(1)).norm(dim=1)
    error = ((got - want).norm(dim=2).mean(1) / size).max().item()
    passed = error < LARGEST_ERROR
    yield {"gate": f"lite:{count}", "mean_vertex_error": error, "allowed": LARGEST_ERROR, "passed": passed}
    for batch in batches:
        many = ManyPictures(fast, batch=batch)
        pictures = [blobs[n % len(blobs)] for n in range(count)]
        for _ in range(3):
            many(pictures[: 4 * batch])
        found = []
        for _ in range(20 if count < 100 else 3):
            began = time.perf_counter()
            many(pictures)
            found.append(1000 * (time.perf_counter() - began) / count)
        yield {"note": f"lite:{count}, batch {batch}", "parts_ms": lite_parts(many, pictures[:batch])}
        many.close()
        yield {"arm": f"{count} pictures from host bytes, batch {batch}", "ms": found, "per": count, "peak_mb": 0.0}


def lite_parts(many: Any, pictures: list[bytes]) -> dict[str, float]:
    """Where the time of one batch goes, each part by itself and waited for: median milliseconds."""
    import torch

    image = many._slots[0].cuda()
    parts = {
        "decode": lambda: [share.result() for share in many._decode(pictures, 0)],
        "to the card": lambda: many._slots[0].to("cuda", non_blocking=True),
        "network": lambda: many._step(image),
    }
    found = {}
    for name, call in parts.items():
        times = []
        for _ in range(15):
            torch.cuda.synchronize()
            began = time.perf_counter()
            call()
            torch.cuda.synchronize()
            times.append(1000 * (time.perf_counter() - began))
        found[name] = statistics.median(times)
    return found


def run_plain(model: Any, image: Any) -> Any:
    with inferring(None):
        return model(image)


def train_gate() -> Iterator[Finding]:
    """Loss and gradient of a training step in bfloat16 with kernels beside those of plain float32."""
    import torch

    from hotlap.device.precision import set_fp32_precision
    from hotlap.targets import load_target

    set_fp32_precision("ieee")
    workload = load_target("pixel2mesh-pp", {"stage": 2})
    batch = workload.make_batch(GATE_BATCH, torch.device("cuda"), torch.Generator().manual_seed(0))

    def step(model: Any, half: bool) -> tuple[float, Any]:
        model.train()
        with torch.autocast("cuda", torch.bfloat16, enabled=half):
            loss, count = workload.loss(model, batch)
        (loss / count).backward()
        gradients = [p.grad.flatten().double() for p in model.parameters() if p.grad is not None]
        return float(loss.detach()) / int(count), torch.cat(gradients)

    plain, fast = networks()
    (want_loss, want), (loss, got) = step(plain, False), step(fast, True)
    apart, cosine = abs(loss / want_loss - 1), float(want @ got / (want.norm() * got.norm()))
    passed = apart < LOSS_APART and cosine > DIRECTION
    yield {"gate": "train", "loss_apart": apart, "gradient_cosine": cosine, "passed": passed}


def train(arm: str, batch: int) -> Iterator[Finding]:
    """A training step of stage 2; memory that runs out halves the batch."""
    import torch

    from hotlap.measure.arms import parse_arm
    from hotlap.measure.session import Session
    from hotlap.targets import load_target

    while batch:
        try:
            workload = load_target("pixel2mesh-pp", {"stage": 2})
            session = Session(workload, parse_arm(arm), mode="train", batch=batch, seed=0)
            yield from timed(f"{arm}, batch {batch}", session.step, per=batch)
            return
        except torch.OutOfMemoryError:
            yield {"note": f"{arm}: batch {batch} does not fit", "detail": traceback.format_exc()[-300:]}
            session = None
            batch //= 2
            torch.cuda.empty_cache()


def verdict(results: dict[str, list[Finding]]) -> Iterator[str]:
    checks = [f for job, findings in results.items() if job.startswith("check") for f in findings]
    gates = {f["gate"]: f["passed"] for findings in results.values() for f in findings if "gate" in f}
    if not checks or not all(finding.get("passed") for finding in checks):
        yield "no speed-ups, the checks of the kernels are not green"
        return
    for job, findings in results.items():
        found = medians(findings)
        base = statistics.mean([ms for arm, ms in found.items() if arm.startswith(BASE)] or [0])
        for arm, ms in found.items():
            if job.startswith("pp:") and gates.get(arm):
                yield f"{job}: {ms:.3f} ms a sample, {base / ms:.1f} x plain fp32 batch 1"
            elif job.startswith("lite:"):
                yield f"{job}: {arm}: {ms:.4f} ms a sample, gate {'green' if gates.get(job) else 'red'}"
    steps = {job: list(medians(findings).items()) for job, findings in results.items() if job.startswith("train")}
    if steps and not gates.get("train"):
        yield "train: no speed-ups, its gate is not green"
        return
    plain = statistics.median([ms for _, ms in steps.get("train:plain", [])] or [0])
    for job, found_steps in steps.items():
        for arm, ms in found_steps:
            yield f"{job}: {arm}: {ms:.2f} ms a sample" + (f", {plain / ms:.2f} x plain" if plain else "")


JOBS = {
    "check:graph_conv": check_graph_conv,
    "check:view_pool": check_view_pool,
    **{f"pp:{row_name(*row)}": partial(pixel2mesh_pp, *row) for row in ROWS},
    "lite:35": partial(lite, 35, (35, 18)),
    "lite:10000": partial(lite, 10_000, (128, 256)),
    "train:gate": train_gate,
    "train:plain": partial(train, "cuda", TRAIN_BATCH),
    "train:graph": partial(train, "cuda:bf16+fused+graph+kernels", TRAIN_BATCH),
    "train:kernels": partial(train, "cuda:bf16+fused+kernels", TRAIN_BATCH),
    "parts": pixel2mesh_pp_parts,
}

if __name__ == "__main__":
    run_all("benchmarks.mesh_speed", __doc__, JOBS, verdict)
