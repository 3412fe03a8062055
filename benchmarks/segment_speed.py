"""Images a second of the three cell networks at 1024x1024, model only: eager float32 at batch 1 against fast forms.

    PYTHONPATH=src python benchmarks/segment_speed.py --models hrnet --minutes 9 --out segment_speed.json

Each network first learns drawn cells for some hundred steps, so that its masks mean something, or takes the weights of
a training (--weights). Every form passes a gate first, or gets no figure: its foreground masks against those of eager
float32 on the same card and the same images, every pixel counted, IoU at least 0.995. Before and after each form the
base is timed again, and the ratio is to the median of both, so that drift falls on both. Forms that no longer
fit the minutes are named. The last lines of a network say whether it gains from batches: the best images a second over
those of the same form at batch 1.
"""

from __future__ import annotations

import argparse
import copy
import gc
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import torch

from hotlap.base.errors import HotlapError
from hotlap.measure.arms import parse_arm
from hotlap.measure.session import Session
from hotlap.measure.weights import with_weights
from hotlap.records.codec import encode
from hotlap.records.environment import capture
from hotlap.segment.cells import CellWorkload, cells
from hotlap.segment.metrics import map_agreement

BASE = "cuda"
FAST = "cuda:bf16+channels_last+compile+cudnn_benchmark+graph"
PLAIN = "cuda:bf16+cudnn_benchmark+graph"
FORMS = ((FAST, 8), (FAST, 1), (PLAIN, 8), (PLAIN, 1), (FAST, 16), (FAST, 4), (PLAIN, 16), (FAST, 32), (FAST, 2))
"""In this order, the most telling first: compilation takes a minute each."""
ASKED = {"hrnet": 150.0, "resunet-small": 100.0, "ma-resunet": 40.0}
"""Images a second; and ASKED_RATIO times the base."""
ASKED_RATIO = 4.0
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


def one_form(workload: CellWorkload, base: Session, arm: str, batch: int, seconds: float) -> dict[str, Any]:
    """The figures of one form at one batch, or why there are none."""
    answer: dict[str, Any] = {"arm": arm, "batch": batch}
    began = time.perf_counter()
    try:
        torch.cuda.reset_peak_memory_stats()
        form = open_session(workload, arm, batch)
        answer["gate"] = gate(base, form)
        answer["start_s"] = time.perf_counter() - began
        if answer["gate"]["passed"]:
            base.activate()
            before = timed_ms(base, seconds / 2)
            form.activate()
            answer["ms"] = timed_ms(form, seconds)
            base.activate()
            answer["base_ms"] = before + timed_ms(base, seconds / 2)
            answer["images_per_s"] = 1e3 * batch / statistics.median(answer["ms"])
            answer["ratio"] = answer["images_per_s"] * statistics.median(answer["base_ms"]) / 1e3
        answer["peak_bytes"] = torch.cuda.max_memory_allocated()
    except (HotlapError, torch.OutOfMemoryError, RuntimeError) as error:
        answer["failed"] = f"{type(error).__name__}: {str(error).splitlines()[0][:300]}"
    form = None  # type: ignore[assignment]
    torch._dynamo.reset()
    gc.collect()
    torch.cuda.empty_cache()
    return answer


def tell(model: str, form: dict[str, Any]) -> None:
    head = f"{model} {form['arm']} at batch {form['batch']}: "
    if "failed" in form:
        print(head + form["failed"], flush=True)
    elif "images_per_s" not in form:
        print(head + f"RED GATE, no figure: {form['gate']}", flush=True)
    else:
        iou = form["gate"]["agreements"][0]["value"]
        print(
            head + f"{form['images_per_s']:.1f} images/s, {form['ratio']:.2f}x eager float32 at batch 1; mask IoU "
            f"{iou:.4f}; {form['peak_bytes'] / 2**30:.1f} GiB; ready after {form['start_s']:.0f} s",
            flush=True,
        )


def verdict(model: str, forms: list[dict[str, Any]]) -> list[str]:
    """Whether what was asked was reached, and what batches are good for."""
    right = [form for form in forms if "images_per_s" in form]
    if not right:
        return [f"{model}: no form passed its gate"]
    best = max(right, key=lambda form: form["images_per_s"])
    reached = best["images_per_s"] >= ASKED[model] and best["ratio"] >= ASKED_RATIO
    asked = f"{ASKED[model]:g} images/s and {ASKED_RATIO:g}x asked"
    lines = [
        f"{model}: best {best['images_per_s']:.1f} images/s ({best['arm']}, batch {best['batch']}), "
        f"{best['ratio']:.2f}x; {asked}: {'reached' if reached else 'MISSED'}"
    ]
    for arm in dict.fromkeys(form["arm"] for form in right):
        curve = {form["batch"]: form["images_per_s"] for form in right if form["arm"] == arm}
        if 1 in curve and len(curve) > 1:
            gain = max(curve.values()) / curve[1]
            word = "gains" if gain >= GAINS else "does not gain"
            at = ", ".join(f"{batch}: {curve[batch]:.1f}" for batch in sorted(curve))
            lines.append(f"{model} {word} from batching with {arm}: {gain:.2f}x (images/s at batch {at})")
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=",".join(ASKED))
    parser.add_argument("--minutes", type=float, default=9.0, help="for all networks together")
    parser.add_argument("--seconds", type=float, default=1.5, help="timed, of each form")
    parser.add_argument("--steps", type=int, default=300, help="learned before the gate; at most a minute")
    parser.add_argument("--weights", default="", help="file of weights, as segment-train/{model}/weights.pt")
    parser.add_argument("--size", type=int, default=1024)
    parser.add_argument("--forms", default="", help="ARM@BATCH,... in place of the built-in ones")
    parser.add_argument("--out", type=Path, default=Path("segment_speed.json"))
    args = parser.parse_args()
    forms = [(arm, int(batch)) for arm, _, batch in (f.rpartition("@") for f in args.forms.split(",") if f)] or FORMS
    models = args.models.split(",")
    began, answers = time.monotonic(), {}
    environment = encode(capture())
    for number, model in enumerate(models, start=1):
        workload = cells(model=model, size=args.size, augment=False)
        if args.weights:
            workload = with_weights(workload, Path(args.weights.format(model=model)))  # type: ignore[assignment]
        else:
            workload = learned(workload, args.steps, 60.0)
        base = open_session(workload, BASE, 1)
        base_ms = timed_ms(base, args.seconds)
        print(f"{model} {BASE} at batch 1: {1e3 / statistics.median(base_ms):.2f} images/s", flush=True)
        found: list[dict[str, Any]] = []
        answers[model] = {"base_ms": base_ms, "forms": found}
        for arm, batch in forms:
            if time.monotonic() - began > 60 * args.minutes * number / len(models):
                print(f"{model} {arm} at batch {batch}: not tried, the minutes are over", flush=True)
                continue
            found.append(one_form(workload, base, arm, batch, args.seconds))
            tell(model, found[-1])
            args.out.write_text(json.dumps({"models": answers, "environment": environment}, indent=1) + "\n")
        answers[model]["verdict"] = verdict(model, found)
        print("\n".join(answers[model]["verdict"]), flush=True)
        args.out.write_text(json.dumps({"models": answers, "environment": environment}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
