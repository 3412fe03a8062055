"""What to try next, ranked by what it may gain; each piece names the arm that proves or refutes it.

An estimate takes time off the step: time that was measured in this trace, times a share that is measured (the ceilings)
or assumed. What is assumed is said.
"""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from hotlap.base.format import format_ms, format_number, format_percent
from hotlap.measure.arms import ArmSpec
from hotlap.tools.profile import categories as kind
from hotlap.tools.profile.found import Advice, Analysis, Roofline
from hotlap.tools.profile.on_device import BETWEEN, HOST_COPY, LAUNCH, LOADER_WAIT, SYNC
from hotlap.tools.profile.on_host import BETWEEN_OPS

LEAST_GAIN = 1.02
"""Less than this is lost in the noise of the bench that would check it."""
GRAPH_SAVES, COMPILE_SAVES = 0.9, 0.5
"""Share of launch-bound time that a recorded step, or a compiled one, is assumed to save."""
FUSION_SAVES = 0.4
"""Share of the time in elementwise work and normalisation that compiled, fused kernels are assumed to save."""
FUSED_OPTIMIZER_SAVES = 0.5
"""A fused optimizer reads and writes each number once; the plain one goes over them about twice as often."""
KERNELS_SAVE = 0.3
"""Share of recurrent time that a kernel which keeps its weights on the chip is assumed to save."""
HALF_BYTES_SAVES = 0.35
"""Share of memory-bound time that half-width activations save under autocast, which keeps some in float32."""
CHANNELS_LAST_SAVES = {"cuda": 0.1, "cpu": 0.15}
"""Share of convolution and pooling time assumed to be saved beside the layout changes that were seen."""
PRODUCT_RATIO = {"tf32": 2.0, "bf16": 2.5}
"""How much faster products are assumed to get where the ceilings were not measured."""
FEW_LAUNCHES = 10
"""An optimizer with no more launches a step than this is fused already, or as good as."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """What the rules look at."""

    analysis: Analysis
    roofline: Roofline
    step_ms: float
    """The step without the profiler, which is what a change would shorten."""
    arm: ArmSpec | None
    """None for a trace whose arm is not known; the advice then names options only."""
    target: str = ""
    mode: str = "train"
    batch: int = 0
    options: tuple[str, ...] = ()
    """Words of the bench's command that repeat the target: --set, --input."""
    has_convolutions: bool = True
    has_kernels: bool = False
    has_norms: bool = False
    """Some BatchNorm may follow a convolution."""
    fast_bf16: bool = False
    """The CPU is known to be fast in bfloat16; a trace does not tell."""

    @property
    def scale(self) -> float:
        """From traced time to time without the profiler, which slows the host's operators but not a device's work."""
        return 1.0 if self.on_cuda else min(self.step_ms / self.analysis.step_ms, 1.0)

    def category(self, *names: str) -> float:
        return self.scale * sum(part.ms for part in self.analysis.categories if part.name in names)

    def idle(self, *names: str) -> float:
        return self.scale * sum(part.ms for part in self.analysis.idle if part.name in names)

    @property
    def on_cuda(self) -> bool:
        return self.analysis.on_device

    @property
    def launch_ms(self) -> float:
        """Launch-bound time without the profiler's share of it: the profiler slows the host, hardly the device."""
        slowed = max(self.analysis.step_ms - self.step_ms, 0.0)
        return max(self.idle(LAUNCH) - slowed, 0.0)


@dataclass(frozen=True)
class _Hint:
    """A rule's answer: what to change, how much time it takes off, and why."""

    name: str
    saved_ms: float
    why: str
    basis: str
    change: dict[str, object] | None = None
    command: str = ""
    scale: float = 1.0
    """Work of the changed step over that of this one: 2 for twice the batch."""


Rule = Callable[[Case], Iterator[_Hint]]


def advise(case: Case) -> list[Advice]:
    """What may gain at least 2%, the largest first."""
    found = []
    for rule in RULES:
        for hint in rule(case):
            saved = min(hint.saved_ms, 0.95 * case.step_ms * hint.scale)
            gain = case.step_ms * hint.scale / (case.step_ms * hint.scale - saved)
            if gain >= LEAST_GAIN:
                found.append(_advice(case, hint, gain, saved))
    return sorted(found, key=lambda advice: -advice.gain)


def _advice(case: Case, hint: _Hint, gain: float, saved: float) -> Advice:
    arm = ""
    if hint.change is not None and case.arm is not None:
        arm = dataclasses.replace(case.arm, **hint.change).name  # type: ignore[arg-type]
    command = hint.command
    if not command and arm and case.target and case.arm is not None:
        words = ["hotlap", "bench", case.target, "--mode", case.mode, "--batch", str(case.batch), *case.options]
        command = shlex.join([*words, "--arms", f"{case.arm.name},{arm}"])
    return Advice(name=hint.name, gain=gain, saved_ms=saved, why=hint.why, basis=hint.basis, arm=arm, command=command)


def _share(ms: float, case: Case) -> str:
    return f"{format_ms(ms)}, {format_percent(ms / case.step_ms)} of the step"


def channels_last(case: Case) -> Iterator[_Hint]:
    if not case.has_convolutions or (case.arm is not None and case.arm.channels_last):
        return
    time = case.category(kind.CONVOLUTION, kind.POOLING)
    device = "cuda" if case.on_cuda else "cpu"
    share = CHANNELS_LAST_SAVES[device]
    seen = case.analysis.layout_ms
    part = format_percent(share)
    changes = f"; {format_ms(seen)} of it only changes the memory format" if seen else ""
    yield _Hint(
        "channels_last",
        seen + share * max(time - seen, 0.0),
        f"Convolution and pooling take {_share(time, case)}{changes}.",
        f"Layout changes as measured; {part} of the rest is assumed." if seen else f"{part} of it is assumed.",
        {"channels_last": True},
    )


def precision(case: Case) -> Iterator[_Hint]:
    today = _precision_today(case)
    if today not in ("fp32", "tf32"):
        return
    faster = ("tf32", "bf16") if today == "fp32" else ("bf16",)
    wanted = faster if case.on_cuda else (("bf16",) if case.fast_bf16 else ())
    for name in wanted:
        saved, measured = _products_saved(case, today, name)
        time = case.category(*_PRODUCTS)
        why = f"Products in {today} take {_share(time, case)}"
        if case.analysis.tensor_core_share is not None:
            why += f", {format_percent(case.analysis.tensor_core_share)} of it on tensor cores"
        if name == "bf16":
            saved += HALF_BYTES_SAVES * case.category(kind.ELEMENTWISE, kind.NORMALISATION, kind.POOLING)
        basis = "Measured ceilings of both precisions, at today's distance from them"
        if not measured:
            ratio = PRODUCT_RATIO[name] / PRODUCT_RATIO.get(today, 1.0)
            basis = f"Assumed ratio of {format_number(ratio)} for products; no ceilings were measured"
        yield _Hint(name, saved, why + ".", basis + ".", {"precision": name})


def _precision_today(case: Case) -> str:
    """The arm's, or what the kernels of an unknown arm show; float32 on tensor cores is TF32."""
    shown = {row.precision for row in case.roofline.rows if row.category in _PRODUCTS}
    if case.arm is not None and case.arm.precision != "fp32":
        return case.arm.precision
    return next((name for name in ("bf16", "fp16", "tf32", "fp32") if name in shown), "fp32")


def _products_saved(case: Case, today: str, name: str) -> tuple[float, bool]:
    """Time off the products in another precision: by the ceilings, each no faster than memory allows."""
    peaks, saved = case.roofline.ceilings, 0.0
    rows = [row for row in case.roofline.rows if row.precision == today and row.category in _PRODUCTS]
    if not {today, name, "copy"} <= set(peaks) or not rows:
        return case.category(*_PRODUCTS) * (1 - PRODUCT_RATIO.get(today, 1.0) / PRODUCT_RATIO[name]), False
    for row in rows:
        moved = row.bytes * (0.5 if name == "bf16" else 1.0)
        before = max(row.flops / peaks[today] / 1e12, row.bytes / peaks["copy"] / 1e9)
        after = max(row.flops / peaks[name] / 1e12, moved / peaks["copy"] / 1e9)
        saved += case.scale * row.ms * max(1 - after / before, 0.0) if before > 0 else 0.0
    return saved, True


_PRODUCTS = (kind.CONVOLUTION, kind.MATMUL, kind.ATTENTION, kind.RECURRENT)


def graph(case: Case) -> Iterator[_Hint]:
    spec = case.arm
    if not case.on_cuda or (spec is not None and (spec.graph or spec.compile in ("reduce-overhead", "max-autotune"))):
        return
    time = case.launch_ms
    yield _Hint(
        "graph",
        GRAPH_SAVES * time + case.idle(BETWEEN) * 0.3,
        f"The device waits {_share(time, case)} for the host to launch its work "
        f"({format_number(case.analysis.launches)} launches a step).",
        f"Launch-bound time as measured, less what the profiler added; {format_percent(GRAPH_SAVES)} of it is assumed.",
        {"graph": True},
    )


def compiled(case: Case) -> Iterator[_Hint]:
    if case.arm is not None and case.arm.compile:
        return
    fusible = case.category(kind.ELEMENTWISE, kind.NORMALISATION, kind.REDUCTION)
    waiting = case.launch_ms if case.on_cuda else case.idle(BETWEEN_OPS)
    yield _Hint(
        "compile",
        COMPILE_SAVES * waiting + FUSION_SAVES * fusible,
        f"Work that can be fused takes {_share(fusible, case)}; {format_ms(waiting)} is the host's own time.",
        f"Assumed: {format_percent(FUSION_SAVES)} of the first and {format_percent(COMPILE_SAVES)} of the second.",
        {"compile": "default"},
    )


def fused(case: Case) -> Iterator[_Hint]:
    spec = case.arm
    time = case.category(kind.OPTIMIZER)
    calls = sum(row.calls for row in case.analysis.ops if row.category == kind.OPTIMIZER and row.ms > 0)
    if case.mode != "train" or (spec is not None and (spec.fused or spec.graph)) or calls <= FEW_LAUNCHES:
        return
    yield _Hint(
        "fused optimizer",
        FUSED_OPTIMIZER_SAVES * time,
        f"The optimizer takes {_share(time, case)} in about {format_number(calls)} operators.",
        f"Optimizer time as measured; {format_percent(FUSED_OPTIMIZER_SAVES)} of it is assumed.",
        {"fused": True},
    )


def kernels(case: Case) -> Iterator[_Hint]:
    if not case.has_kernels or (case.arm is not None and case.arm.kernels) or not case.on_cuda:
        return
    time = case.category(kind.RECURRENT)
    yield _Hint(
        "kernels",
        KERNELS_SAVE * time,
        f"Recurrent layers take {_share(time, case)}, and Hotlap has a kernel for them.",
        f"Recurrent time as measured; {format_percent(KERNELS_SAVE)} of it is assumed.",
        {"kernels": True},
    )


def folded(case: Case) -> Iterator[_Hint]:
    spec = case.arm
    if case.mode != "infer" or not case.has_norms or (spec is not None and (spec.folded or spec.compile)):
        return
    time = case.category(kind.NORMALISATION)
    yield _Hint(
        "folded norms",
        time,
        f"Normalisation takes {_share(time, case)}, and in inference it can be folded into the convolutions before it.",
        "As measured; norms that do not follow a convolution alone stay.",
        {"folded": True},
    )


def loader(case: Case) -> Iterator[_Hint]:
    time = case.idle(LOADER_WAIT, HOST_COPY)
    yield _Hint(
        "loader",
        time,
        f"The step waits {_share(time, case)} for data: {format_ms(case.idle(LOADER_WAIT))} for the loader and "
        f"{format_ms(case.idle(HOST_COPY))} for copies that the host prepares.",
        "As measured; workers, pinned memory and prefetching hide it whole if they keep up.",
        command=shlex.join(["hotlap", "loader", case.target]) if case.target else "",
    )


def syncs(case: Case) -> Iterator[_Hint]:
    time = case.idle(SYNC)
    first = next((sync for sync in case.analysis.syncs if sync.where or sync.op), None)
    place = f", first at {first.where or first.op}" if first else ""
    yield _Hint(
        "fewer syncs",
        time,
        f"The device is idle {_share(time, case)} because the host waited for a result{place}.",
        "As measured. No arm can check it: change the line and profile again.",
    )


def larger_batch(case: Case) -> Iterator[_Hint]:
    if not case.on_cuda or not case.batch:
        return
    time = case.launch_ms
    # Twice the work in twice the device's time, but with the host's time once.
    yield _Hint(
        f"batch {2 * case.batch}",
        time,
        f"The device waits {_share(time, case)} for launches, which a larger batch does not have more of.",
        "Launch-bound time as measured, spread over twice the samples; gain in samples a second.",
        {"batch": 2 * case.batch},
        scale=2.0,
    )


RULES: tuple[Rule, ...] = (
    channels_last, precision, graph, compiled, fused, kernels, folded, loader, syncs, larger_batch,
)  # fmt: skip
