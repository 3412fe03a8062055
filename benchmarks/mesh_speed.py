"""How fast are the mesh networks beside their own plain form, batch 1, eager float32? On one card.

    python -m benchmarks.mesh_speed --out mesh_speed.json [--only check,pp,lite,train] [--timeout 140]

``check`` compares the kernels of graph convolutions and of pooling with their references in float64. ``pp`` times
Pixel2Mesh++ with three views: plain, then with kernels, in bfloat16, as a CUDA graph and batched, each with the mean
vertex error against plain float32 over the object's size. ``lite`` times Pixel2Mesh lite from JPEG bytes in host memory
to vertices in host memory for 35 and for 10,000 pictures. ``train`` times a training step of stage 2 at batch 16.
Weights are fresh, or those of HOTLAP_MESH_WEIGHTS. Speed-ups are printed only for arms whose checks are green.
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

from benchmarks.card_jobs import Finding, checked, compare_cases, medians, run_all, timed

VIEWS = 3
LARGEST_ERROR = 1e-3
"""Mean vertex error over the object's size that an arm may make."""
BATCHES = (8, 16, 32, 64)
TRAIN_BATCH = 16


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


def pixel2mesh_pp() -> Iterator[Finding]:
    import torch

    torch.backends.cudnn.benchmark = True
    plain, fast = networks()
    image, cameras = seen(max(BATCHES))

    def run(model: Any, count: int, dtype: Any, tf32: bool = False) -> Any:
        with inferring(dtype, tf32):
            return model(image[:count], cameras[:count])

    want = run(plain, 4, None)
    size = (want.amax(1) - want.amin(1)).norm(dim=1)
    bf16 = torch.bfloat16
    for arm, model, dtype, tf32 in (
        ("kernels fp32", fast, None, False),
        ("kernels bf16", fast, bf16, False),
        ("kernels bf16+tf32", fast, bf16, True),
        ("plain bf16", plain, bf16, False),
    ):
        error = ((run(model, 4, dtype, tf32) - want).norm(dim=2).mean(1) / size).max().item()
        yield {"gate": arm, "mean_vertex_error": error, "allowed": LARGEST_ERROR, "passed": error < LARGEST_ERROR}
    yield from timed("plain fp32, batch 1", partial(run, plain, 1, None))
    yield from timed("plain bf16, batch 1", partial(run, plain, 1, bf16))
    yield from timed("kernels bf16, batch 1", partial(run, fast, 1, bf16))
    yield from timed("kernels bf16, batch 1, graph", partial(run, fast, 1, bf16), graph=True)
    yield from timed("kernels bf16+tf32, batch 1, graph", partial(run, fast, 1, bf16, True), graph=True)
    for count in BATCHES:
        yield from timed(f"kernels bf16, batch {count}, graph", partial(run, fast, count, bf16), graph=True, per=count)
    for count in BATCHES[1:3]:
        call = partial(run, fast, count, bf16, True)
        yield from timed(f"kernels bf16+tf32, batch {count}, graph", call, graph=True, per=count)
        yield from timed(f"kernels bf16, batch {count}", partial(run, fast, count, bf16), per=count)
    yield from timed("plain fp32, batch 8", partial(run, plain, 8, None), per=8)
    yield from parts(fast, image[:16], cameras[:16])


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


def lite() -> Iterator[Finding]:
    import torch
    from PIL import Image

    from hotlap.measure.session import use_kernels
    from hotlap.mesh.many import ManyPictures
    from hotlap.mesh.pixel2mesh_lite import Pixel2MeshLite, fold_norms

    torch.backends.cudnn.benchmark = True
    torch.manual_seed(0)
    plain = Pixel2MeshLite().cuda().eval()
    images = seen(48)[0][:, 0].cpu()
    blobs = []
    for image in images:
        stream = io.BytesIO()
        Image.fromarray(image.permute(1, 2, 0).numpy()).save(stream, "JPEG", quality=95)
        blobs.append(stream.getvalue())
    with torch.inference_mode():
        want = plain(images[:8].cuda())
    yield from timed("plain fp32, batch 1, on the card", partial(run_plain, plain, images[:1].cuda()))
    fast = fold_norms(plain)
    use_kernels(fast)
    with inferring(torch.bfloat16):
        got = fast(images[:8].cuda())
    size = (want.amax(1) - want.amin(1)).norm(dim=1)
    error = ((got - want).norm(dim=2).mean(1) / size).max().item()
    yield {"gate": "lite", "mean_vertex_error": error, "allowed": LARGEST_ERROR, "passed": error < LARGEST_ERROR}
    for count, batch in ((35, 35), (35, 18), (10_000, 128), (10_000, 256)):
        many = ManyPictures(fast, batch=batch)
        pictures = [blobs[n % len(blobs)] for n in range(count)]
        for _ in range(3):
            many(pictures[: 4 * batch])
        found = []
        for _ in range(20 if count < 100 else 3):
            began = time.perf_counter()
            many(pictures)
            found.append(1000 * (time.perf_counter() - began) / count)
        many.close()
        yield {"arm": f"{count} pictures from host bytes, batch {batch}", "ms": found, "per": count, "peak_mb": 0.0}


def run_plain(model: Any, image: Any) -> Any:
    with inferring(None):
        return model(image)


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
    pp = medians(results.get("pp", []))
    base = pp.get("plain fp32, batch 1")
    for arm, ms in pp.items():
        gate = arm.partition(",")[0]
        if base and arm.startswith("kernels"):
            word = f"{base / ms:.1f} x plain fp32 batch 1" if gates.get(gate) else "its gate is red"
            yield f"pp: {arm}: {ms:.3f} ms a sample, {word}"
    for arm, ms in medians(results.get("lite", [])).items():
        yield f"lite: {arm}: {ms:.4f} ms a sample, gate {'green' if gates.get('lite') else 'red'}"
    steps = {job: list(medians(findings).items()) for job, findings in results.items() if job.startswith("train")}
    plain = statistics.median([ms for _, ms in steps.get("train:plain", [])] or [0])
    for job, found in steps.items():
        for arm, ms in found:
            yield f"{job}: {arm}: {ms:.2f} ms a sample" + (f", {plain / ms:.2f} x plain" if plain else "")


JOBS = {
    "check:graph_conv": check_graph_conv,
    "check:view_pool": check_view_pool,
    "pp": pixel2mesh_pp,
    "lite": lite,
    "train:plain": partial(train, "cuda", TRAIN_BATCH),
    "train:kernels": partial(train, "cuda:bf16+fused+kernels", TRAIN_BATCH),
    "train:graph": partial(train, "cuda:bf16+fused+graph+kernels", TRAIN_BATCH),
}

if __name__ == "__main__":
    run_all("benchmarks.mesh_speed", __doc__, JOBS, verdict)
