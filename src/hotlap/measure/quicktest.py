"""Six steps from the device to ten training steps, each observed: what a process can be asked before anything else."""

from __future__ import annotations

import math
import os
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hotlap.base.errors import EXIT_CHECK_FAILED, EXIT_ENVIRONMENT, DeviceUnavailable, HotlapError
from hotlap.base.format import format_bytes, format_count, format_number
from hotlap.base.raised import first_line, their_line
from hotlap.device.host import read_host
from hotlap.device.layout import has_convolutions, lay_out
from hotlap.device.memory import is_out_of_memory
from hotlap.device.precision import fp32_precision, set_fp32_precision
from hotlap.device.probe import get_device, why_no_cuda
from hotlap.device.seed import generator, seed_everything
from hotlap.measure.process import Listen
from hotlap.measure.session import map_tensors
from hotlap.records.measurement import Check
from hotlap.targets import load_target
from hotlap.workload import Batch, Workload, optimizer_of

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

MOST_BACKOFFS = 24
"""A loss scale halved so often is below 1 from where it starts, and a gradient still not finite is not its fault."""


class StepFailed(HotlapError):
    """A step ran and did not do what it must."""


@dataclass
class Bench:
    """What the steps hand on to one another."""

    workload: Workload
    wanted: str
    batch_size: int
    num_steps: int
    seed: int
    device: torch.device = field(init=False)
    dtype: torch.dtype = field(init=False)
    channels_last: bool = False
    model: nn.Module = field(init=False)
    batch: Batch = None
    optimizer: torch.optim.Optimizer = field(init=False)
    scaler: torch.amp.GradScaler = field(init=False)

    def mean_loss(self) -> Tensor:
        import torch

        with torch.autocast(self.device.type, dtype=self.dtype):
            total, count = self.workload.loss(self.model, self.batch)
            return total / count


def check_device(bench: Bench) -> str:
    """A product on the device agrees with one in float64."""
    import torch

    try:
        bench.device = get_device(bench.wanted)
    except DeviceUnavailable as error:
        remedy = "'hotlap doctor' finds the cause; '--device cpu' tests without a card"
        raise DeviceUnavailable(error.what, expected=error.expected, remedy=remedy) from error
    a, b = (torch.randn(64, 64, generator=generator(bench.seed + i)) for i in range(2))
    set_fp32_precision("ieee")
    off = ((a.to(bench.device) @ b.to(bench.device)).cpu().double() - a.double() @ b.double()).abs().max().item()
    if not off < 1e-3:  # float32 rounds sums of 64 products of about 1 to some 1e-5
        raise StepFailed(f"a 64x64 product on {bench.device} is off by {off:.3g}", remedy="Run 'hotlap doctor'")
    if bench.device.type == "cuda":
        about = torch.cuda.get_device_properties(bench.device)
        what = f"{about.name}, {format_bytes(about.total_memory)}, compute capability {about.major}.{about.minor}"
        return f"{bench.device}: {what}; torch {torch.__version__}, CUDA {torch.version.cuda}"
    host = read_host()
    why = "as asked" if bench.wanted == "cpu" else f"because {why_no_cuda()}"
    threads = quiet_cores(host.usable_cores)
    torch.set_num_threads(threads)
    cores = f"{threads} of {format_count(host.usable_cores, 'usable core')}"
    return f"cpu ({why}): {host.cpu_model}, {cores}; torch {torch.__version__}"


def quiet_cores(usable: int) -> int:
    """Cores that nobody else keeps busy: threads that wait for each other on busy ones take many times as long."""
    busy = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    return max(1, usable - round(busy))


def check_optimisations(bench: Bench) -> str:
    """The switches are in force when read back, both ways where there are two."""
    import torch

    wrong, told = [], []
    for mode in ("ieee", "tf32"):
        set_fp32_precision(mode)  # type: ignore[arg-type]
        wrong += [
            f"{name} float32 is {now!r}, set to {mode!r}" for name, now in fp32_precision().items() if now != mode
        ]
    for on in (False, True):
        torch.backends.cudnn.benchmark = on
        wrong += [] if torch.backends.cudnn.benchmark is on else [f"cudnn.benchmark is {not on}, set to {on}"]
    if bench.device.type == "cuda":
        told.append("TF32 and cudnn.benchmark on")
    else:
        set_fp32_precision("ieee")
        told.append("TF32 and cudnn.benchmark can be set, and do nothing on a CPU")
    wrong += _fused_fault(bench.device) + _layout_fault(bench.device)
    if wrong:
        raise StepFailed("; ".join(wrong), remedy="Something else in this process sets it, or torch is damaged")
    return "; ".join([*told, "fused AdamW steps", "channels_last survives a convolution"])


def _fused_fault(device: torch.device) -> list[str]:
    import torch

    weight = torch.nn.Parameter(torch.ones(8, device=device))
    optimizer = torch.optim.AdamW([weight], lr=0.1, fused=True)
    weight.grad = torch.ones_like(weight)
    optimizer.step()
    fused = optimizer.param_groups[0]["fused"]
    moved = bool((weight < 1).all())
    return [] if fused and moved else [f"a fused AdamW says fused = {fused} and {'moved' if moved else 'did not move'}"]


def _layout_fault(device: torch.device) -> list[str]:
    import torch

    conv = torch.nn.Conv2d(8, 8, 3).to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    image = torch.ones(2, 8, 8, 8, device=device).contiguous(memory_format=torch.channels_last)
    kept = conv(image).is_contiguous(memory_format=torch.channels_last)
    return [] if kept else ["a convolution of channels_last tensors gives another layout"]


def check_model(bench: Bench) -> str:
    """The model and a batch are on the device, and every weight is a number."""
    import torch

    seed_everything(bench.seed)
    model = bench.workload.build_model()
    bench.channels_last = has_convolutions(model)
    bench.model = model.to(bench.device).train()
    if bench.channels_last:
        lay_out(model)
    tensors = dict([*bench.model.named_parameters(), *bench.model.named_buffers()])
    away = [name for name, t in tensors.items() if t.device.type != bench.device.type]
    if away:
        raise StepFailed(f"{away[0]!r} stayed on {tensors[away[0]].device}", remedy="Make it a parameter or a buffer")
    bad = [name for name, t in tensors.items() if t.is_floating_point() and not bool(t.isfinite().all())]
    if bad:
        raise StepFailed(f"{bad[0]!r} is not finite before any step", remedy="Look at how the model sets its weights")
    made = bench.workload.make_batch(bench.batch_size, torch.device("cpu"), generator(bench.seed))
    bench.batch = map_tensors(made, lambda t: t.to(bench.device))
    count, size = sum(p.numel() for p in model.parameters()), sum(t.nbytes for t in tensors.values())
    told = f"{format_count(count, 'parameter')}, {format_bytes(size)}, on {bench.device}"
    return f"{told}{', channels_last' if bench.channels_last else ''}; batch {bench.batch_size}"


def check_forward(bench: Bench) -> str:
    """The loss under autocast is a number, and which part of the model really ran in half precision."""
    import torch

    bench.dtype = torch.float16 if bench.device.type == "cuda" else torch.bfloat16
    seen: list[torch.dtype] = []

    def watch(module: Any, inputs: Any, out: Any) -> None:
        if isinstance(out, torch.Tensor) and out.is_floating_point():
            seen.append(out.dtype)

    leaves = [m for m in bench.model.modules() if not any(True for _ in m.children())]
    handles = [leaf.register_forward_hook(watch) for leaf in leaves]
    try:
        with torch.no_grad():
            loss = _finite(bench.mean_loss(), "the loss of the first forward pass")
    finally:
        for handle in handles:
            handle.remove()
    half = sum(dtype is bench.dtype for dtype in seen)
    name = str(bench.dtype).removeprefix("torch.")
    return f"{name} autocast: {half} of {format_count(len(seen), 'layer output')} in {name}; loss {format_number(loss)}"


def _finite(loss: Tensor, what: str) -> float:
    value = float(loss)
    if not math.isfinite(value):
        raise StepFailed(
            f"{what} is {value}", remedy="Look for log of 0, a division by 0 or values beyond the half type's range"
        )
    return value


def check_backward(bench: Bench) -> str:
    """Scaled gradients come back finite, and a gradient that is not finite stops a step and halves the scale."""
    import torch

    bench.optimizer = optimizer_of(bench.workload, bench.model, fused=False)
    bench.scaler = torch.amp.GradScaler(bench.device.type)
    _check_overflow(bench.device)
    backoffs, bad = 0, [""]
    while bad:
        bench.optimizer.zero_grad(set_to_none=True)
        bench.scaler.scale(bench.mean_loss()).backward()
        bench.scaler.unscale_(bench.optimizer)
        grads = {name: p.grad for name, p in bench.model.named_parameters() if p.grad is not None}
        if not grads:
            raise StepFailed("no parameter has a gradient", remedy="Make the loss depend on the model's parameters")
        bad = [name for name, grad in grads.items() if not bool(grad.isfinite().all())]
        if bad and backoffs == MOST_BACKOFFS:
            raise StepFailed(
                f"the gradient of {bad[0]!r} is not finite at any loss scale down to {bench.scaler.get_scale():g}",
                remedy="Look for sqrt or norm of 0, or a loss beyond the half type's range",
            )
        if bad:
            bench.scaler.step(bench.optimizer)  # skips, for it has seen what we saw
            bench.scaler.update()
            backoffs += 1
    bench.scaler.update()
    norm = float(torch.stack([grad.float().norm() for grad in grads.values()]).norm())
    told = f"{format_count(len(grads), 'gradient')} finite, norm {format_number(norm)}"
    halved = f" after {format_count(backoffs, 'halving')}" if backoffs else ""
    return f"{told}; loss scale {bench.scaler.get_scale():g}{halved}; an infinite gradient is caught and skipped"


def _check_overflow(device: torch.device) -> None:
    """An infinite gradient, on a parameter of our own: the step must not happen and the scale must fall."""
    import torch

    weight = torch.nn.Parameter(torch.ones(4, device=device))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    scaler = torch.amp.GradScaler(device.type)
    scaler.scale((weight * math.inf).sum()).backward()
    before = scaler.get_scale()
    scaler.step(optimizer)
    scaler.update()
    if not bool((weight == 1).all()) or not scaler.get_scale() < before:
        raise StepFailed(
            f"an infinite gradient was not caught: weight {weight.tolist()}, loss scale {before:g} to "
            f"{scaler.get_scale():g}",
            remedy="Run 'hotlap doctor'; torch may be damaged",
        )


def check_training(bench: Bench) -> str:
    """Every loss of the training steps is a number, and the parameters have moved."""
    import torch

    trained = {name: p for name, p in bench.model.named_parameters() if p.requires_grad}
    before = {name: p.detach().clone() for name, p in trained.items()}
    losses, skipped = [], 0
    for number in range(bench.num_steps):
        bench.optimizer.zero_grad(set_to_none=True)
        loss = bench.mean_loss()
        losses.append(_finite(loss.detach(), f"the loss of training step {number + 1}"))
        bench.scaler.scale(loss).backward()
        scale = bench.scaler.get_scale()
        bench.scaler.step(bench.optimizer)
        bench.scaler.update()
        skipped += bench.scaler.get_scale() < scale
    bad = [name for name, p in trained.items() if not bool(p.isfinite().all())]
    if bad:
        raise StepFailed(f"{bad[0]!r} is not finite after training", remedy="Take a smaller learning rate")
    moved = sum(not torch.equal(p, before[name]) for name, p in trained.items())
    if not moved:
        raise StepFailed(
            f"no parameter changed in {format_count(bench.num_steps, 'step')}, {skipped} of them skipped for overflow",
            remedy="Look at the optimizer's parameters and learning rate",
        )
    told = f"loss {format_number(losses[0])} to {format_number(losses[-1])} on one batch in {bench.num_steps} steps"
    return f"{told}, {skipped} skipped for overflow; {moved} of {len(trained)} parameter tensors moved"


@dataclass(frozen=True)
class Step:
    name: str
    why: str
    run: Callable[[Bench], str]


STEPS = (
    Step("device", "Without a device that computes rightly nothing else counts.", check_device),
    Step("optimisations", "A switch that is set and not in force costs speed unseen.", check_optimisations),
    Step("model", "A part left behind on the host fails later, and less clearly.", check_model),
    Step("forward", "Half precision may overflow or meet an operation it does not have.", check_forward),
    Step("backward", "Small gradients vanish in half precision unless the loss is scaled.", check_backward),
    Step("training", "Only steps that move the parameters are training.", check_training),
)


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What the six steps found."""

    checks: list[Check]
    exit_code: int
    batch: int


def run_quicktest(job: dict[str, Any], listen: Listen) -> Outcome:
    """The six steps in order; after one that fails the rest are skipped."""
    workload = load_target(job["target"], job.get("options"), job.get("inputs", ()))
    listen("loaded", 0, len(STEPS))
    size = job["batch"] or min(4, workload.default_batch)
    bench = Bench(workload, job["device"], size, job["steps"], job["seed"])
    checks: list[Check] = []
    exit_code = 0
    for number, step in enumerate(STEPS):
        if exit_code:
            checks.append(skipped(step, checks))
            continue
        begun = time.perf_counter()
        try:
            status, told, fix = "PASS", step.run(bench), ""
            _wait(bench)
        except Exception as error:  # noqa: BLE001 - whatever a model raises is what this step found
            traceback.print_exc()
            status, (told, fix) = "FAIL", explain_step(error, size)
            exit_code = EXIT_ENVIRONMENT if isinstance(error, DeviceUnavailable) else EXIT_CHECK_FAILED
        seconds = round(time.perf_counter() - begun, 3)
        memory = read_memory(bench)
        checks.append(_check(step, status, told, fix=fix, seconds=seconds, data={"memory": memory}))
        listen(f"{step.name}: {told}", number + 1, len(STEPS))
    return Outcome(checks=checks, exit_code=exit_code, batch=size)


def _check(step: Step, status: str, observed: str, **more: Any) -> Check:
    return Check(name=step.name, group="quicktest", status=status, observed=observed, why=step.why, **more)


def skipped(step: Step, before: list[Check]) -> Check:
    """A step that was not run, and because of which."""
    number = next(n for n, check in enumerate(before, start=1) if check.status == "FAIL")
    return _check(step, "SKIP", f"because step {number} ({before[number - 1].name}) failed")


def explain_step(error: Exception, batch: int) -> tuple[str, str]:
    """What went wrong in a step, and what to do."""
    if isinstance(error, HotlapError):
        return error.what, " ".join(
            filter(None, [f"Expected {error.expected}." if error.expected else "", error.remedy])
        )
    told = f"{type(error).__name__}: {first_line(error)} {their_line(error)}"
    if is_out_of_memory(error):
        return told, f"Take a --batch smaller than {batch}, or a smaller model"
    return told, "Run this step by hand in Python to see the whole trace"


def died(heard: dict[int, str], error: HotlapError) -> list[Check]:
    """The steps of a process that died: those it told of, the one it died in, and the rest."""
    checks: list[Check] = []
    for number, step in enumerate(STEPS, start=1):
        if number in heard:
            checks.append(_check(step, "PASS", heard[number].partition(": ")[2]))
        elif number == max(heard) + 1:
            checks.append(_check(step, "FAIL", error.what, fix=error.remedy))
        else:
            checks.append(skipped(step, checks))
    return checks


def _wait(bench: Bench) -> None:
    """A kernel's error belongs to the step that started it."""
    import torch

    if bench.device.type == "cuda":
        torch.cuda.synchronize(bench.device)


def read_memory(bench: Bench) -> dict[str, int]:
    """The memory in use now, in bytes: the allocator's on a card, the process's on the host."""
    import psutil
    import torch

    found = {"rss": int(psutil.Process().memory_info().rss)}
    device = getattr(bench, "device", None)
    if device is not None and device.type == "cuda":
        found["allocated"] = torch.cuda.memory_allocated(device)
        found["reserved"] = torch.cuda.memory_reserved(device)
        found["peak_allocated"] = torch.cuda.max_memory_allocated(device)
    return found
