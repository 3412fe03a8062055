"""Does a training that really runs out of memory lose anything? Caps on the allocator, from roomy to tight.

    PYTHONPATH=src python -m benchmarks.oom_real --out oom.json

Each case is trained undisturbed, whole and in quarters, to see what memory each takes. Then the allocator is capped
between the two (and below), so that the whole batch cannot fit, and the same training is done again. Its losses must be
those of the undisturbed one; where BatchNorm makes splits differ, those of an undisturbed training with the same
micro-batches from the start. Float64 cases show exactness, since rounding is then far below anything that a lost,
doubled or wrongly weighted sample would do; the float32 case shows memory and times as in real life.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import gc
import json
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import nn

from hotlap.device.precision import set_fp32_precision
from hotlap.engine.exact import ExactStep
from hotlap.measure.session import as_double
from hotlap.records.environment import capture
from hotlap.segment.loss import IGNORE
from hotlap.segment.workload import unet
from hotlap.sequence.workload import bilstm
from hotlap.workload import Batch, Workload

RECOVERY_S = 2.0
"""From the first failure of a step to the beginning of the attempt that goes through."""
LOSS_RTOL = {torch.float64: 1e-9, torch.float32: 1e-3}
"""Two orders of summing differ by about 1e-15 in float64 and 1e-6 in float32; a dozen steps of Adam, which divides
by the size of small gradients, may magnify that a thousandfold and more. One sample of 64 that is lost, doubled or
wrongly weighted changes the loss of its step by some 1e-2."""
SHARES = (0.75, 0.4, 0.1)
"""Where the caps lie between the memory of quarters (0) and that of the whole batch (1)."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """One training, and how exactly a split of it must repeat the whole."""

    name: str
    workload: Workload
    batch: int
    dtype: torch.dtype
    exact: bool
    """Whether splits equal the whole; else they equal an undisturbed training with the same micro-batches."""
    change: Callable[[nn.Module], None] = lambda model: None
    """Done to the fresh model."""
    prepare: Callable[[Batch], Batch] = lambda batch: batch
    """Done to each batch."""


def cases(batch: int) -> list[Case]:
    """U-Net as it is, U-Net without BatchNorm, BiLSTM with dropout."""
    return [
        Case(
            name="unet",
            workload=unet(),
            batch=batch,
            dtype=torch.float32,
            exact=False,
            prepare=ignore_some_pixels,
        ),
        Case(
            name="unet with GroupNorm",
            workload=unet(width=16, size=64),
            batch=batch,
            dtype=torch.float64,
            exact=True,
            change=use_group_norm,
            prepare=ignore_some_pixels,
        ),
        Case(name="bilstm", workload=bilstm(), batch=batch, dtype=torch.float64, exact=True),
    ]


def use_group_norm(model: nn.Module) -> None:
    """Puts GroupNorm in the place of every BatchNorm2d."""
    for parent in list(model.modules()):
        for name, child in parent.named_children():
            if isinstance(child, nn.BatchNorm2d):
                channels = child.num_features
                setattr(parent, name, nn.GroupNorm(8 if channels % 8 == 0 else 1, channels))


def ignore_some_pixels(batch: Batch) -> Batch:
    """Takes more and more rows from the pictures of a batch, so that parts of it count unequal numbers of pixels."""
    image, mask = batch
    rows = torch.arange(mask.shape[1], device=mask.device)
    gone = torch.linspace(0, 0.9, len(mask), device=mask.device) * mask.shape[1]
    return image, mask.masked_fill((rows < gone[:, None])[:, :, None], IGNORE)


class Machine(Protocol):
    """Where a training runs, and how its memory is measured and capped."""

    device: torch.device

    def run(self, work: Callable[[], dict[str, Any]], cap_bytes: int | None) -> tuple[dict[str, Any], int]:
        """What ``work`` gives, and the most memory it held; at most ``cap_bytes`` may be held."""


class Card:
    """A CUDA device whose caching allocator is capped; what it caches counts, as it does for the driver."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._total = torch.cuda.get_device_properties(device).total_memory

    def run(self, work: Callable[[], dict[str, Any]], cap_bytes: int | None) -> tuple[dict[str, Any], int]:
        with self._capped(cap_bytes):
            torch.cuda.reset_peak_memory_stats(self.device)
            result = work()
            torch.cuda.synchronize(self.device)
            stats = torch.cuda.memory_stats(self.device)
            result |= {"num_ooms": stats.get("num_ooms", 0), "num_alloc_retries": stats.get("num_alloc_retries", 0)}
            return result, torch.cuda.max_memory_reserved(self.device)

    @contextlib.contextmanager
    def _capped(self, cap_bytes: int | None) -> Iterator[None]:
        self._clean()
        torch.cuda.reset_accumulated_memory_stats(self.device)
        torch.cuda.set_per_process_memory_fraction(1.0 if cap_bytes is None else cap_bytes / self._total, self.device)
        try:
            yield
        finally:
            torch.cuda.set_per_process_memory_fraction(1.0, self.device)
            self._clean()

    def _clean(self) -> None:
        gc.collect()
        torch.cuda.empty_cache()


def train(
    case: Case, data: list[Batch], device: torch.device, *, seed: int, micros: list[int] | None = None
) -> dict[str, Any]:
    """Losses, splits and times of one training from a fresh model; ``micros`` prescribes each step's split."""
    torch.manual_seed(seed)
    model = case.workload.build_model()
    case.change(model)
    model = model.to(device, case.dtype).train()
    said: list[str] = []
    step = ExactStep(model, case.workload.optimizer(model), case.workload.loss, say=said.append)
    begin = time.perf_counter()
    results = []
    for number, batch in enumerate(data):
        if micros is not None:
            step.micro = micros[number]
        results.append(step(batch))
    losses = [float(result.loss) for result in results]  # reading them waits for the device, so the time is true
    return {
        "losses": losses,
        "seconds": time.perf_counter() - begin,
        "num_splits": [result.num_splits for result in results],
        "recovery_s": [result.recovery_s for result in results if result.num_splits],
        "micros": [result.micro for result in results],
        "recomputing": step.recomputing,
        "inexact": [finding.kind for finding in step.inexact()],
        "said": said,
    }


def run_case(case: Case, machine: Machine, *, steps: int, seed: int) -> dict[str, Any]:
    """The undisturbed trainings, the capped ones, and what is wrong with them."""
    generator = torch.Generator().manual_seed(seed)
    data = [case.prepare(case.workload.make_batch(case.batch, machine.device, generator)) for _ in range(steps)]
    if case.dtype is torch.float64:
        data = [as_double(batch) for batch in data]
    calm: dict[tuple[int, ...], dict[str, Any]] = {}

    def undisturbed(micros: list[int]) -> dict[str, Any]:
        if tuple(micros) not in calm:
            work = partial(train, case, data, machine.device, seed=seed, micros=micros)
            result, peak = machine.run(work, None)
            calm[tuple(micros)] = result | {"peak_bytes": peak}
        return calm[tuple(micros)]

    whole, quarter = undisturbed([case.batch] * steps), undisturbed([-(-case.batch // 4)] * steps)
    room = whole["peak_bytes"] - quarter["peak_bytes"]
    capped = []
    for cap in [quarter["peak_bytes"] + int(share * room) for share in SHARES]:
        result, peak = machine.run(partial(train, case, data, machine.device, seed=seed), cap)
        wanted = whole if case.exact else undisturbed(result["micros"])
        difference = largest_difference(result["losses"], wanted["losses"])
        capped.append(result | {"cap_bytes": cap, "peak_bytes": peak, "largest_difference": difference})
    wrong = [words for run in capped for words in faults(case, run)]
    return {"calm": list(calm.values()), "capped": capped, "wrong": wrong}


def largest_difference(got: list[float], want: list[float]) -> float:
    """Of two loss curves, relative to the second."""
    return max(abs(g - w) / abs(w) for g, w in zip(got, want, strict=True))


def faults(case: Case, run: dict[str, Any]) -> list[str]:
    """What is wrong with one capped training; empty when all is well."""
    wrong = []
    if sum(run["num_splits"]) == 0:
        wrong.append("memory never ran out, so the cap shows nothing")
    if not run["largest_difference"] <= LOSS_RTOL[case.dtype]:
        wrong.append(f"losses differ by {run['largest_difference']:.2e}, allowed {LOSS_RTOL[case.dtype]:.0e}")
    slow = [seconds for seconds in run["recovery_s"] if seconds >= RECOVERY_S]
    if slow:
        wrong.append(f"a recovery took {max(slow):.2f} s, allowed {RECOVERY_S} s")
    if run["peak_bytes"] > run["cap_bytes"]:
        wrong.append(f"{run['peak_bytes']} bytes were held")
    if case.exact and run["inexact"]:
        wrong.append(f"splits are not exact: {', '.join(run['inexact'])}")
    return [f"{case.name}, cap {run['cap_bytes'] / 2**20:.0f} MiB: {words}" for words in wrong]


def show(name: str, outcome: dict[str, Any]) -> None:
    for run in outcome.get("calm", []):
        parts, held = run["micros"][-1], run["peak_bytes"] / 2**20
        print(f"{name}: undisturbed in parts of {parts}: {held:.0f} MiB, {run['seconds']:.2f} s")
    for run in outcome.get("capped", []):
        recovery, parts = max(run["recovery_s"], default=0.0), run["micros"][-1]
        print(
            f"{name}: cap {run['cap_bytes'] / 2**20:.0f} MiB: {sum(run['num_splits'])} splits to parts of {parts}, "
            f"recovery {recovery:.3f} s, {run['seconds']:.2f} s, losses differ by {run['largest_difference']:.1e}"
        )


def run_all(chosen: list[Case], machine: Machine, *, steps: int, seed: int) -> dict[str, dict[str, Any]]:
    """Every case's outcome by name; a case that breaks down is reported and the others go on."""
    outcomes: dict[str, dict[str, Any]] = {}
    for case in chosen:
        try:
            outcomes[case.name] = run_case(case, machine, steps=steps, seed=seed)
        except Exception as error:  # noqa: BLE001  one case that cannot run must not hide the others
            trace = traceback.format_exc(limit=-8)
            outcomes[case.name] = {"wrong": [f"{case.name}: {type(error).__name__}: {error}"], "traceback": trace}
        show(case.name, outcomes[case.name])
    return outcomes


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="JSON file to write")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        print("no CUDA device: memory cannot be capped here")
        return 4
    set_fp32_precision("ieee")
    torch.backends.cudnn.deterministic = True
    machine = Card(torch.device("cuda", torch.cuda.current_device()))
    outcomes = run_all(cases(args.batch), machine, steps=args.steps, seed=args.seed)
    wrong = [words for outcome in outcomes.values() for words in outcome["wrong"]]
    print("\n".join(wrong) or "ok")
    if args.out:
        record = {
            "steps": args.steps,
            "batch": args.batch,
            "seed": args.seed,
            "shares": SHARES,
            "loss_rtol": {str(dtype): rtol for dtype, rtol in LOSS_RTOL.items()},
            "recovery_allowed_s": RECOVERY_S,
            "cases": outcomes,
            "wrong": wrong,
            "environment": dataclasses.asdict(capture()),
        }
        args.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
