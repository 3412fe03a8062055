"""Images a second of the three cell networks at 1024x1024, model only: eager float32 at batch 1 against fast forms.

    PYTHONPATH=src:. python -m benchmarks.segment_speed --only hrnet --minutes 9 --timeout 240 --out segment_speed.json

Each network takes the weights of a training, HOTLAP_SEGMENT_WEIGHTS=segment-train/{model}/weights.pt, or first learns
drawn cells for some hundred steps (the job MODEL:learn), so that its masks mean something. Every form is a job in a
process of its own, and passes a gate first, or gets no figure: its foreground masks against those of eager float32 on
the same card and the same images, every pixel counted, IoU at least 0.995. Before and after each form the base is timed
again, and the ratio is to the median of both, so that drift falls on both. The last lines of a network say whether it
gains from batches: the best images a second over those of the same form at batch 1. Later calls add to the same file.
"""

from __future__ import annotations

import copy
import os
import statistics
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from benchmarks.card_jobs import Finding, run_all

from hotlap.measure.arms import parse_arm
from hotlap.measure.session import Session
from hotlap.measure.weights import with_weights
from hotlap.records.codec import encode
from hotlap.segment.cells import CellWorkload, cells
from hotlap.segment.metrics import map_agreement

BASE = "cuda"
FAST = "cuda:bf16+channels_last+compile+cudnn_benchmark+graph"
PLAIN = "cuda:bf16+cudnn_benchmark+graph"
LAST = "cuda:bf16+channels_last+cudnn_benchmark+graph"
KERNELS = "cuda:bf16+channels_last+cudnn_benchmark+graph+kernels"
FORMS = (
    (FAST, 8),
    (KERNELS, 8),
    (PLAIN, 8),
    (LAST, 8),
    (FAST, 1),
    (FAST, 16),
    (KERNELS, 16),
    (KERNELS, 1),
    (PLAIN, 1),
    (FAST, 4),
    (FAST, 32),
    (PLAIN, 16),
    (FAST, 2),
)
"""In this order, the most telling first: compilation takes a minute each."""
ASKED = {"hrnet": 150.0, "resunet-small": 100.0, "ma-resunet": 40.0}
"""Images a second; and ASKED_RATIO times the base."""
ASKED_RATIO = 4.0
SIZE = 1024
SECONDS = 1.5
"""Timed, of each form."""
LEARNED = Path("runs/segment_speed")
"""Where the weights of drawn cells lie."""
GATE_IMAGES = 4
GAINS = 1.05
"""A batch is said to help from here on."""


def timed_ms(session: Session, seconds: float) -> list[float]:
    """Milliseconds of single steps, from events around each, for about so long and at least five times."""
    for _ in range(3):
        session.step()
    torch.cuda.synchronize()
    times: list[float] = []
    began = time.perf_counter()
    while len(times) < 5 or time.perf_counter() - began < seconds:
        first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        first.record()
        session.step()
        last.record()
        torch.cuda.synchronize()
        times.append(first.elapsed_time(last))
    return times


def learned(workload: CellWorkload, steps: int, seconds: float) -> CellWorkload:
    """The workload whose models come with weights that have seen drawn cells."""
    c = workload.config
    lesson = cells(model=c.model, width=c.width, size=min(256, c.size), batch=8, train_images=32)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(0)
    model = lesson.build_model().to(device)
    optimizer = lesson.optimizer(model)
    for group in optimizer.param_groups:
        group["lr"] = 1e-3
    data, began = lesson.train_data(), time.monotonic()
    for step in range(steps):
        batch = lesson.collate([data[(8 * step + k) % len(data)] for k in range(8)])
        with torch.autocast(device.type, torch.bfloat16):
            total, count = lesson.loss(model, {name: tensor.to(device) for name, tensor in batch.items()})
        optimizer.zero_grad()
        (total / count).backward()
        optimizer.step()
        if step % 50 == 0 or step == steps - 1:
            print(f"{c.model}: step {step}, loss {float(total.detach()) / float(count):.3f}", flush=True)
            if time.monotonic() - began > seconds:
                break
    state = {name: value.cpu() for name, value in model.state_dict().items()}
    trained = copy.copy(workload)

    def build_model() -> torch.nn.Module:
        fresh = workload.build_model()
        fresh.load_state_dict(state)
        return fresh

    trained.build_model = build_model  # type: ignore[method-assign]
    return trained


def weights_of(model: str) -> Path:
    """The weights that a network is judged with: a training's, or those of drawn cells."""
    given = os.environ.get("HOTLAP_SEGMENT_WEIGHTS")
    return Path(given.format(model=model)) if given else LEARNED / f"{model}.pt"


def learn(model: str) -> Iterator[Finding]:
    """Leaves weights that have seen drawn cells, unless a training's are given or they are there already."""
    file = weights_of(model)
    if not file.is_file():
        trained = learned(cells(model=model, size=SIZE, augment=False), 300, 60.0)
        file.parent.mkdir(parents=True, exist_ok=True)
        torch.save(trained.build_model().state_dict(), file)
    yield {"weights": str(file)}


def open_session(workload: CellWorkload, arm: str, batch: int) -> Session:
    return Session(workload, parse_arm(arm), mode="infer", batch=batch, seed=0)


def gate(base: Session, form: Session) -> dict[str, Any]:
    """Masks of the form against those of the base, one image at a time through the base."""
    form.activate()
    out = form.run(form.batches[0])[:GATE_IMAGES].double().cpu()
    base.activate()
    images = form.batches[0]["image"][:GATE_IMAGES]
    ref = torch.cat([base.run({"image": image[None]}).double().cpu() for image in images])
    agreements = map_agreement(out[:, :1], ref[:, :1], clear=0.0)
    core = map_agreement(out[:, 1:], ref[:, 1:], clear=0.0)
    error = float((out - ref).norm() / ref.norm())
    passed = bool(out.isfinite().all()) and bool(agreements) and all(one.passed for one in agreements)
    return {
        "passed": passed,
        "agreements": encode(agreements),
        "core": encode(core),
        "relative_error": error,
        "images": len(images),
    }


def one_form(model: str, arm: str, batch: int) -> Iterator[Finding]:
    """The gate of one form at one batch, then its milliseconds an image between two timings of the base."""
    workload = with_weights(cells(model=model, size=SIZE, augment=False), weights_of(model))
    base = open_session(workload, BASE, 1)  # type: ignore[arg-type]
    began = time.perf_counter()
    form = open_session(workload, arm, batch)  # type: ignore[arg-type]
    found = gate(base, form)
    yield {"gate": form_name(arm, batch), "start_s": time.perf_counter() - began, **found}
    if not found["passed"]:
        return
    base.activate()
    base_ms = timed_ms(base, SECONDS / 2)
    form.activate()
    torch.cuda.reset_peak_memory_stats()
    ms = timed_ms(form, SECONDS)
    peak = torch.cuda.max_memory_allocated()
    base.activate()
    base_ms += timed_ms(base, SECONDS / 2)
    yield {"arm": "eager float32, batch 1", "ms": base_ms, "per": 1, "peak_mb": 0.0}
    one = [sample / batch for sample in ms]
    yield {"arm": form_name(arm, batch), "form": arm, "batch": batch, "ms": one, "per": batch, "peak_mb": peak / 1e6}


def form_name(arm: str, batch: int) -> str:
    return f"{arm}@{batch}"


def figures(findings: list[Finding]) -> dict[str, Any] | None:
    """Images a second and the ratio of a form that passed its gate."""
    timed = [finding for finding in findings if "ms" in finding]
    if len(timed) != 2:
        return None
    base, mine = (statistics.median(finding["ms"]) for finding in timed)
    return {"arm": timed[1]["form"], "batch": timed[1]["batch"], "images_per_s": 1e3 / mine, "ratio": base / mine}


def verdict(results: dict[str, list[Finding]]) -> Iterator[str]:
    """Whether what was asked was reached, and what batches are good for."""
    for model in ASKED:
        jobs = [findings for job, findings in results.items() if job.startswith(f"{model}:")]
        forms = [found for found in map(figures, jobs) if found is not None]
        if jobs:
            yield from of_model(model, forms)


def of_model(model: str, forms: list[dict[str, Any]]) -> Iterator[str]:
    for form in forms:
        name = form_name(form["arm"], form["batch"])
        yield f"{model} {name}: {form['images_per_s']:.1f} images/s, {form['ratio']:.2f}x"
    if not forms:
        yield f"{model}: no form passed its gate"
        return
    best = max(forms, key=lambda form: form["images_per_s"])
    reached = best["images_per_s"] >= ASKED[model] and best["ratio"] >= ASKED_RATIO
    yield (
        f"{model}: best {best['images_per_s']:.1f} images/s ({best['arm']}, batch {best['batch']}), "
        f"{best['ratio']:.2f}x eager float32 at batch 1; {ASKED[model]:g} images/s and {ASKED_RATIO:g}x asked: "
        + ("reached" if reached else "MISSED")
    )
    for arm in dict.fromkeys(form["arm"] for form in forms):
        curve = {form["batch"]: form["images_per_s"] for form in forms if form["arm"] == arm}
        if 1 in curve and len(curve) > 1:
            gain = max(curve.values()) / curve[1]
            word = "gains" if gain >= GAINS else "does not gain"
            at = ", ".join(f"{batch}: {curve[batch]:.1f}" for batch in sorted(curve))
            yield f"{model} {word} from batching with {arm}: {gain:.2f}x (images/s at batch {at})"


JOBS = {f"{model}:learn": partial(learn, model) for model in ASKED} | {
    f"{model}:{form_name(arm, batch)}": partial(one_form, model, arm, batch) for arm, batch in FORMS for model in ASKED
}

if __name__ == "__main__":
    run_all("benchmarks.segment_speed", __doc__, JOBS, verdict)
