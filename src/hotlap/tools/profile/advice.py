"""What to try next, ranked by what it may gain; each piece names the arm that proves or refutes it.

A rule says what a change takes off the device's work, off the host's, or off a wait: time that was measured in this
trace, times a share that is measured (the ceilings) or assumed. What is assumed is said. Pace then says what is left of
the step, which is no shorter than the longer of host and device.
"""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from hotlap.base.format import format_count, format_ms, format_number, format_percent
from hotlap.measure.arms import ArmSpec
from hotlap.measure.profiled import FEW
from hotlap.tools.profile import categories as kind
from hotlap.tools.profile.found import Advice, Analysis, Roofline
from hotlap.tools.profile.on_device import BETWEEN, HOST_COPY, LOADER_WAIT, SYNC
from hotlap.tools.profile.on_host import BETWEEN_OPS
from hotlap.tools.profile.pace import Pace, launch_ms, pace_of
from hotlap.tools.profile.products import CAST_BYTES, PRODUCTS, Faster, faster_products, pass_ms

LEAST_GAIN = 1.02
"""Less than this is lost in the noise of the bench that would check it."""
GRAPH_SAVES, COMPILE_SAVES = 0.9, 0.5
"""Share of the host's time that a recorded step, or a compiled one, is assumed to save."""
GRAPH_SAVES_LATENCY = 0.3
"""Share of the time between queued kernels that a recorded step is assumed to save."""
FUSION_SAVES = 0.4
"""Share of the time in elementwise work and normalisation that compiled, fused kernels are assumed to save."""
FUSED_OPTIMIZER_SAVES = 0.5
"""A fused optimizer reads and writes each number once, in one launch; the plain one takes at least two of each."""
KERNELS_SAVE = 0.7
"""Share of recurrent time that a kernel with its weights on the chip is assumed to save: as a float32 layer of
256 units does on an H200, 2.72 ms in place of cuDNN's 8.85."""
KERNELS_SAVE_HOST = 0.9
"""Of the host's time for recurrent layers: several launches for each place of a sequence become a few for all."""
TENSOR_CORE_LAUNCHES = 3
"""Launches of a product on tensor cores, at most: its kernel, and a pass before and after it. Float32 has algorithms
with many more: a convolution through FFTs or Winograd's transforms, piece by piece."""
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
    host_ms: float | None = None
    """The host's own time for the step, without the profiler; None where it was not measured."""
    few_ms: float | None = None
    """A step with next to no work for the device; None where there was none."""
    few_device_ms: float | None = None
    """The device's own time in that step, with its queue kept full."""
    device_ms: float | None = None
    """The device's own time with its queue kept full; None where it was not measured."""
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
    num_weights: int = 0
    num_weight_tensors: int = 0
    """Of the model's parameters, which autocast turns to half precision in every step; 0 where they are not known."""
    system_ms: float = 0.0
    """Of a step on a CPU, what the system takes, where memory can be kept; 0 where it cannot, or was not looked."""
    num_pages: float = 0.0
    """Fresh pages that a step was handed."""
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
    def pace(self) -> Pace:
        return pace_of(
            self.analysis,
            self.step_ms,
            self.host_ms,
            few_ms=self.few_ms,
            device_ms=self.device_ms,
            few_device_ms=self.few_device_ms,
            few_share=FEW / self.batch if self.batch > FEW else 0.0,
        )

    @property
    def launch_ms(self) -> float:
        return launch_ms(self.analysis, self.step_ms)

    def host_share(self, *names: str) -> float:
        """Of the host's time in operators, that of these categories; 0 where there is no device to launch for."""
        times = [(row.category, row.host_ms or 0.0) for row in self.analysis.ops]
        total = sum(ms for _, ms in times)
        return sum(ms for name, ms in times if name in names) / total if total else 0.0


@dataclass(frozen=True)
class _Hint:
    """A rule's answer: what to change, what it takes off which part of the step, and why."""

    name: str
    why: str
    basis: str
    change: dict[str, object] | None = None
    device_saved_ms: float = 0.0
    device_least_ms: float | None = None
    """As ``device_saved_ms`` where that is the most that may be saved."""
    host_saves: float = 0.0
    """Share of the host's time."""
    waits_saved_ms: float = 0.0
    work: float = 1.0
    """Work of the changed step over that of this one: 2 for twice the batch."""
    at_most: bool = False
    """Something may make the gain less, hardly more."""
    command: str = ""


Rule = Callable[[Case], Iterator[_Hint]]


def advise(case: Case) -> list[Advice]:
    """What may gain at least 2%, the largest first."""
    found = []
    pace = case.pace
    for rule in RULES:
        for hint in rule(case):
            before, after = case.step_ms * hint.work, _after(pace, hint, hint.device_saved_ms)
            if before / after >= LEAST_GAIN:
                found.append(_advice(case, hint, before, after))
    return sorted(found, key=lambda advice: -advice.gain)


def _after(pace: Pace, hint: _Hint, device_saved_ms: float) -> float:
    """The step's ms after the change; a twentieth of today's is left whatever the arithmetic says."""
    after = pace.after(
        device_saved_ms=device_saved_ms,
        host_saves=hint.host_saves,
        waits_saved_ms=hint.waits_saved_ms,
        work=hint.work,
    )
    return max(after, 0.05 * pace.step_ms * hint.work)


def _basis(case: Case, hint: _Hint) -> str:
    """What the estimate rests on, and what may make it less."""
    pace, words = case.pace, [hint.basis]
    if hint.device_least_ms is not None:
        least = case.step_ms * hint.work / _after(pace, hint, hint.device_least_ms)
        words.append(f"About {format_number(least)}x if what products lose today beside it takes as long as now.")
    if case.on_cuda and hint.device_saved_ms > 0:
        host = pace.host_ms * (1 - hint.host_saves)
        if host > pace.device_at(hint.work) - hint.device_saved_ms:
            words.append(f"The host's {format_ms(host)} then set the pace.")
        elif not pace.knows_host:
            words.append("The host's own time is not known; it may set the pace before that.")
    return " ".join(words)


def _advice(case: Case, hint: _Hint, before: float, after: float) -> Advice:
    arm = ""
    if hint.change is not None and case.arm is not None:
        arm = dataclasses.replace(case.arm, **hint.change).name  # type: ignore[arg-type]
    command = hint.command
    if not command and arm and case.target and case.arm is not None:
        words = ["hotlap", "bench", case.target, "--mode", case.mode, "--batch", str(case.batch), *case.options]
        command = shlex.join([*words, "--arms", f"{case.arm.name},{arm}"])
    return Advice(
        name=hint.name,
        gain=before / after,
        saved_ms=before - after,
        why=hint.why,
        basis=_basis(case, hint),
        arm=arm,
        command=command,
        at_most=hint.at_most,
    )


def _share(ms: float, case: Case) -> str:
    return f"{format_ms(ms)}, {format_percent(ms / case.step_ms)} of the step"


def channels_last(case: Case) -> Iterator[_Hint]:
    if not case.has_convolutions or (case.arm is not None and case.arm.channels_last):
        return
    time = case.category(kind.CONVOLUTION, kind.POOLING)
    device = "cuda" if case.on_cuda else "cpu"
    seen = case.analysis.layout_ms
    # A card's float32 kernels take any layout; those of tensor cores want this one.
    share = 0.0 if case.on_cuda and case.analysis.tensor_core_share == 0 else CHANNELS_LAST_SAVES[device]
    part = format_percent(share)
    changes = f"; {format_ms(seen)} of it only changes the memory format" if seen else ""
    yield _Hint(
        "channels_last",
        f"Convolution and pooling take {_share(time, case)}{changes}.",
        f"Layout changes as measured; {part} of the rest is assumed." if seen else f"{part} of it is assumed.",
        {"channels_last": True},
        device_saved_ms=seen + share * max(time - seen, 0.0),
    )


def precision(case: Case) -> Iterator[_Hint]:
    today = _precision_today(case)
    if today not in ("fp32", "tf32"):
        return
    faster = ("tf32", "bf16") if today == "fp32" else ("bf16",)
    wanted = faster if case.on_cuda else (("bf16",) if case.fast_bf16 else ())
    for name in wanted:
        time = case.category(*PRODUCTS)
        why = f"Products in {today} take {_share(time, case)}"
        if case.analysis.tensor_core_share is not None:
            why += f", {format_percent(case.analysis.tensor_core_share)} of it on tensor cores"
        # Float32 kernels take any layout; those of tensor cores want channels last, and others are turned for them.
        turns = case.on_cuda and today == "fp32" and not (case.arm is not None and case.arm.channels_last)
        found = faster_products(case.roofline, today, name, layout_ms=case.analysis.layout_ms, turns=turns)
        lost = case.scale * (found.after_most_ms - found.after_ms) if found is not None else 0.0
        if found is None:
            ratio = PRODUCT_RATIO[name] / PRODUCT_RATIO.get(today, 1.0)
            saved = time * (1 - 1 / ratio)
            basis = f"Assumed ratio of {format_number(ratio)} for products; no ceilings were measured."
        else:
            saved = case.scale * (found.before_ms - found.after_ms)
            basis = _by_ceilings(found)
        casts, fewer = 0, _fewer_launches(case) if today == "fp32" else 0.0
        if fewer:
            basis += f" Products that are not taken apart need {format_count(round(fewer), 'launch', 'launches')} less."
        if name == "bf16":
            casts, cast_ms = _casts(case)
            halved = case.category(kind.ELEMENTWISE, kind.NORMALISATION, kind.POOLING)
            saved += HALF_BYTES_SAVES * halved - cast_ms
            if halved:
                part = format_percent(HALF_BYTES_SAVES)
                basis += f" Of {format_ms(halved)} that move activations, {part} is assumed."
            if cast_ms:
                basis += f" Autocast adds {format_count(casts, 'cast')} of weights, {format_ms(cast_ms)}."
        yield _Hint(
            name,
            why + ".",
            basis,
            {"precision": name},
            device_saved_ms=saved,
            device_least_ms=saved - lost if lost else None,
            host_saves=(fewer - casts) / case.analysis.launches if case.analysis.launches else 0.0,
            at_most=found is not None,
        )


def _casts(case: Case) -> tuple[int, float]:
    """How many casts autocast adds for the weights, and in training for their gradients, and their ms."""
    passes = 2 if case.mode == "train" else 1
    return passes * case.num_weight_tensors, pass_ms(case.roofline, passes * CAST_BYTES * case.num_weights)


def _fewer_launches(case: Case) -> float:
    """How many launches of a step are more than products on tensor cores have; recurrent layers keep theirs."""
    names = set(PRODUCTS) - {kind.RECURRENT}
    seen = sum(row.calls for row in case.analysis.kernels if row.category in names)
    # Operators without time of their own are those that call others.
    expected = sum(row.calls for row in case.analysis.ops if row.category in names and row.ms > 0)
    return max(0.0, seen - TENSOR_CORE_LAUNCHES * expected)


def _by_ceilings(found: Faster) -> str:
    basis = "Measured ceilings of both precisions, at today's share of them"
    if found.layout_ms:
        basis += f"; passes that turn convolutions' memory format are reckoned at {format_ms(found.layout_ms)}"
    return basis + "."


def _precision_today(case: Case) -> str:
    """The arm's, or what the kernels of an unknown arm show; float32 on tensor cores is TF32."""
    shown = {row.precision for row in case.roofline.rows if row.category in PRODUCTS}
    if case.arm is not None and case.arm.precision != "fp32":
        return case.arm.precision
    return next((name for name in ("bf16", "fp16", "tf32", "fp32") if name in shown), "fp32")


def graph(case: Case) -> Iterator[_Hint]:
    spec = case.arm
    if not case.on_cuda or (spec is not None and (spec.graph or spec.compile in ("reduce-overhead", "max-autotune"))):
        return
    time = case.launch_ms
    yield _Hint(
        "graph",
        f"The device waits {_share(time, case)} for the host to launch its work "
        f"({format_number(case.analysis.launches)} launches a step).",
        f"Assumed: {format_percent(GRAPH_SAVES)} of the host's time and {format_percent(GRAPH_SAVES_LATENCY)} of the "
        "time between queued kernels.",
        {"graph": True},
        device_saved_ms=GRAPH_SAVES_LATENCY * case.idle(BETWEEN),
        host_saves=GRAPH_SAVES,
    )


def compiled(case: Case) -> Iterator[_Hint]:
    if case.arm is not None and case.arm.compile:
        return
    fusible = case.category(kind.ELEMENTWISE, kind.NORMALISATION, kind.REDUCTION)
    waiting = case.launch_ms if case.on_cuda else case.idle(BETWEEN_OPS)
    lost = f"{format_ms(waiting)} is the host's own time"
    if case.on_cuda:
        lost = f"the device waits {format_ms(waiting)} for launches"
    yield _Hint(
        "compile",
        f"Work that can be fused takes {_share(fusible, case)}; {lost}.",
        f"Assumed: {format_percent(FUSION_SAVES)} of the first and {format_percent(COMPILE_SAVES)} of the host's time"
        f"{' but for recurrent layers' if case.host_share(kind.RECURRENT) else ''}.",
        {"compile": "default"},
        device_saved_ms=FUSION_SAVES * fusible + (0.0 if case.on_cuda else COMPILE_SAVES * waiting),
        # A recurrent layer stays one call of the library, with all its launches.
        host_saves=COMPILE_SAVES * (1 - case.host_share(kind.RECURRENT)),
    )


def fused(case: Case) -> Iterator[_Hint]:
    spec = case.arm
    time = case.category(kind.OPTIMIZER)
    calls = sum(row.calls for row in case.analysis.ops if row.category == kind.OPTIMIZER and row.ms > 0)
    if case.mode != "train" or (spec is not None and (spec.fused or spec.graph)) or calls <= FEW_LAUNCHES:
        return
    yield _Hint(
        "fused optimizer",
        f"The optimizer takes {_share(time, case)} in about {format_number(calls)} operators.",
        f"Optimizer time as measured; {format_percent(FUSED_OPTIMIZER_SAVES)} of it is assumed.",
        {"fused": True},
        device_saved_ms=FUSED_OPTIMIZER_SAVES * time,
        host_saves=FUSED_OPTIMIZER_SAVES * case.host_share(kind.OPTIMIZER),
    )


def kernels(case: Case) -> Iterator[_Hint]:
    if not case.has_kernels or (case.arm is not None and case.arm.kernels) or not case.on_cuda:
        return
    time = case.category(kind.RECURRENT)
    yield _Hint(
        "kernels",
        f"Recurrent layers take {_share(time, case)}, and Hotlap has a kernel for them.",
        f"Recurrent time as measured; {format_percent(KERNELS_SAVE)} of it is assumed, and "
        f"{format_percent(KERNELS_SAVE_HOST)} of the host's time for it.",
        {"kernels": True},
        device_saved_ms=KERNELS_SAVE * time,
        host_saves=KERNELS_SAVE_HOST * case.host_share(kind.RECURRENT),
    )


def kept_memory(case: Case) -> Iterator[_Hint]:
    if case.on_cuda or not case.num_pages or (case.arm is not None and case.arm.keep_memory):
        return
    yield _Hint(
        "keep_memory",
        f"The system takes {_share(case.system_ms, case)}, and hands out {format_number(case.num_pages)} fresh pages, "
        "each of which it clears.",
        "All that the system takes, as measured; that fresh memory lies in no cache is not counted.",
        {"keep_memory": True},
        device_saved_ms=case.system_ms,
    )


def folded(case: Case) -> Iterator[_Hint]:
    spec = case.arm
    if case.mode != "infer" or not case.has_norms or (spec is not None and (spec.folded or spec.compile)):
        return
    time = case.category(kind.NORMALISATION)
    yield _Hint(
        "folded norms",
        f"Normalisation takes {_share(time, case)}, and in inference it can be folded into the convolutions before it.",
        "As measured; norms that do not follow a convolution alone stay.",
        {"folded": True},
        device_saved_ms=time,
        host_saves=case.host_share(kind.NORMALISATION),
        at_most=True,
    )


def loader(case: Case) -> Iterator[_Hint]:
    time = case.idle(LOADER_WAIT, HOST_COPY)
    yield _Hint(
        "loader",
        f"The step waits {_share(time, case)} for data: {format_ms(case.idle(LOADER_WAIT))} for the loader and "
        f"{format_ms(case.idle(HOST_COPY))} for copies that the host prepares.",
        "As measured; workers, pinned memory and prefetching hide it whole if they keep up.",
        waits_saved_ms=time,
        at_most=True,
        command=shlex.join(["hotlap", "loader", case.target]) if case.target else "",
    )


def syncs(case: Case) -> Iterator[_Hint]:
    time = case.idle(SYNC)
    first = next((sync for sync in case.analysis.syncs if sync.where or sync.op), None)
    place = f", first at {first.where or first.op}" if first else ""
    yield _Hint(
        "fewer syncs",
        f"The device is idle {_share(time, case)} because the host waited for a result{place}.",
        "As measured. No arm can check it: change the line and profile again.",
        waits_saved_ms=time,
        at_most=True,
    )


def larger_batch(case: Case) -> Iterator[_Hint]:
    if not case.on_cuda or not case.batch:
        return
    time, fixed = case.launch_ms, case.pace.fixed_ms
    grows = f"the device's time, but for {format_ms(fixed)} that does not grow," if fixed else "the device's time"
    yield _Hint(
        f"batch {2 * case.batch}",
        f"The device waits {_share(time, case)} for launches, which a larger batch does not have more of.",
        f"Twice {grows} and waits, the host's time once; gain in samples a second.",
        {"batch": 2 * case.batch},
        work=2.0,
    )


RULES: tuple[Rule, ...] = (
    channels_last, precision, graph, compiled, fused, kernels, kept_memory, folded, loader, syncs, larger_batch,
)  # fmt: skip
