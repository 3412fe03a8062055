"""Timing the arms of one process: warm-up until steady, then blocks in turn, forwards and backwards, both clocks.

Order within a cycle is drawn anew and run once forwards and once backwards, so that slow drift falls on all arms alike.
"""

from __future__ import annotations

import contextlib
import gc
import math
import os
import random
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hotlap.device.nvml import CardState, Nvml
from hotlap.device.timing import FullQueue, is_steady, time_block
from hotlap.measure.process import ON_CARD, Listen
from hotlap.measure.session import Session
from hotlap.records.measurement import Measurement, Telemetry

NUM_BLOCKS = 6
"""Each block drains the queue once at its ends, so few long blocks cost less than many short ones."""
TURN_S = 0.03
"""A block's length where no card takes part: long enough to fill the caches again, and short beside what disturbs a
machine, so that it falls upon all arms alike."""
SLOWER = 2
"""How much longer than it may be the timing on a CPU gets, if steps take longer than in the warm-up."""
MIN_ITERATIONS = 3
REWARM_BELOW_S = 0.2
"""A block of short steps starts with one untimed step, because the arm before it left other things in the caches."""
ENERGY_SECONDS = 0.5
"""The card's energy counter ticks every few tens of milliseconds; a reading over less says little."""
NOT_FINITE = "answers were not finite after the timed steps"
COMPILED_AGAIN = "torch.compile compiled again during timing"
NOT_COMPILED = "torch.compile gave up on the model without a word, so that it ran as it is"
NOT_STEADY = "warm-up ended before times were steady"
"""The flag of samples that may still be settling."""


@dataclass(frozen=True, kw_only=True)
class Protocol:
    """How much to measure in one process."""

    process: int
    repeats: int
    """Timed iterations of each arm, at least."""
    seconds: float
    """Timed seconds of each arm, at least."""
    max_seconds: float
    """Timed seconds of each arm, at most; long steps get fewer iterations, never below MIN_ITERATIONS."""
    warmup_seconds: float
    """Warm-up of each arm ends here even if its times are not steady yet."""
    transfer: bool
    """Also time steps that start and end in host memory."""
    began_at: float
    """Unix time at which the whole run began, for the telemetry's clock."""


@dataclass
class Trace:
    """What the arms of one process gave."""

    measurements: list[Measurement] = field(default_factory=list)
    telemetry: list[Telemetry] = field(default_factory=list)
    notes: dict[str, list[str]] = field(default_factory=dict)
    errors: list[tuple[ArmTimer, Exception]] = field(default_factory=list)


class ArmTimer:
    """One arm being timed: its session, its samples so far, the state of its device."""

    def __init__(self, session: Session, *, seed: int, label: str = "") -> None:
        self.session, self.seed = session, seed
        self.spec = session.spec
        self.label = label or session.spec.name
        self.on_cuda = session.device.type == "cuda"
        self.samples: dict[str, list[float]] = {"wall": [], "interval": [], "device": [], "transfer": [], "energy": []}
        self.flags: set[str] = set()
        self.warmup_s = 0.0
        self.step_s = 0.0
        begin = time.perf_counter()
        session.step()
        self._synchronize()
        self.first_step_s = time.perf_counter() - begin

    def _synchronize(self) -> None:
        if self.on_cuda:
            import torch

            torch.cuda.synchronize()

    def warm_up(self, protocol: Protocol) -> None:
        """Steps until three blocks in a row agree within 5%, or the time for it is over."""
        if not (self.on_cuda or self.spec.compile) and self.first_step_s > protocol.warmup_seconds:
            self.step_s = self.first_step_s  # nothing was compiled or loaded in it, so that it was the warm-up
            return
        begin = time.perf_counter()
        medians: list[float] = []
        iterations = 1
        while True:
            block = time_block(self._step, iterations, self.session.device, most_s=protocol.warmup_seconds)
            medians.append(block.wall_ms)
            spent = time.perf_counter() - begin
            if is_steady(medians) and (spent > 0.2 or iterations > 1):
                break
            if spent > protocol.warmup_seconds:
                if not is_steady(medians) and len(medians) >= 3:
                    self.flags.add(NOT_STEADY)
                break
            iterations = max(1, min(100, math.ceil(50 / max(block.wall_ms, 1e-3))))
        self.warmup_s = time.perf_counter() - begin
        self.step_s = medians[-1] / 1e3

    def _step(self) -> None:
        self.session.step()

    def plan(self, protocol: Protocol, turn_s: float = math.inf) -> tuple[int, int]:
        """Blocks and iterations a block for this arm: NUM_BLOCKS, or as many more as are no longer than ``turn_s``."""
        wanted = max(protocol.repeats, math.ceil(protocol.seconds / max(self.step_s, 1e-6)))
        bearable = max(MIN_ITERATIONS, int(protocol.max_seconds / max(self.step_s, 1e-6)))
        total = min(wanted, bearable)
        if total < protocol.repeats:
            self.flags.add(f"long steps: fewer than {protocol.repeats} iterations a process")
        # With one iteration a block, the untimed step before it would take as long.
        least = 2 if self.step_s < REWARM_BELOW_S else 1
        short = max(least, math.ceil(min(turn_s, protocol.max_seconds) / max(self.step_s, 1e-6)))
        blocks = min(max(NUM_BLOCKS, math.ceil(total / short)), total)
        return blocks, math.ceil(total / blocks)

    def time_wall(self, iterations: int, most_s: float = math.inf) -> None:
        """One block; on a CPU no step of it but the first begins after ``most_s``, should they have grown slow."""
        self.session.activate()
        if self.step_s < REWARM_BELOW_S:
            self.session.step()
        block = time_block(self._step, iterations, self.session.device, most_s)
        self.samples["wall"].append(block.wall_ms)
        self.samples["interval"].extend(block.intervals_ms)

    def time_transfer(self, iterations: int) -> None:
        self.session.transfer_step()
        block = time_block(self.session.transfer_step, iterations, self.session.device)
        self.samples["transfer"].append(block.wall_ms)

    def time_device(self, queue: FullQueue, iterations: int) -> None:
        times, ahead = queue.time(self._step, iterations)
        self.samples["device"].extend(times)
        if not ahead:
            self.flags.add("queue not kept full: device time is an upper bound")

    def time_energy(self, read_mj: Callable[[], float | None]) -> None:
        before = read_mj()
        if before is None:
            return
        iterations = max(1, math.ceil(ENERGY_SECONDS / max(self.step_s, 1e-6)))
        self.session.activate()
        time_block(self._step, iterations, self.session.device)
        after = read_mj()
        if after is not None and after > before:
            self.samples["energy"].append((after - before) / 1e3 / iterations)

    def look_at_answer(self) -> None:
        """Flags an answer that is not finite after all those steps: the numeric gate has seen the first few only."""
        self.session.activate()
        if not bool(self.session.step().isfinite().all()):
            self.flags.add(NOT_FINITE)

    def measurements(self, process: int) -> list[Measurement]:
        flags = sorted(self.flags)
        units = {"wall": "ms", "interval": "ms", "device": "ms", "transfer": "ms", "energy": "J"}
        found = [
            Measurement(quantity=q, unit=units[q], arm=self.label, process=process, values=v, flags=flags)
            for q, v in self.samples.items()
            if v
        ]
        for quantity, value in (("first_step", self.first_step_s), ("warmup", self.warmup_s)):
            found.append(Measurement(quantity=quantity, unit="s", arm=self.label, process=process, values=[value]))
        return found


class Watch:
    """The state of the cards and of the host around blocks."""

    def __init__(self, nvml: Nvml, timers: list[ArmTimer]) -> None:
        import torch

        self._nvml = nvml
        self._handles: dict[int, Any] = {}
        for index in {t.spec.index for t in timers if t.on_cuda}:
            uuid = str(torch.cuda.get_device_properties(index).uuid)
            self._handles[index] = nvml.handle(uuid)

    def card(self, timer: ArmTimer) -> CardState | None:
        return self._nvml.state(self._handles.get(timer.spec.index)) if timer.on_cuda else None

    def energy_mj(self, timer: ArmTimer) -> float | None:
        handle = self._handles.get(timer.spec.index)
        answer = self._nvml.ask("nvmlDeviceGetTotalEnergyConsumption", handle) if handle is not None else None
        return None if answer is None else float(answer)

    def read(self, timer: ArmTimer, protocol: Protocol, block: int, before: CardState | None) -> Telemetry:
        """One reading after a block; throttling counts if it was seen before or after it."""
        after = self.card(timer)
        throttle = sorted({*(before.throttle if before else []), *(after.throttle if after else [])})
        others = _strangers(after.processes) if after else []
        return Telemetry(
            process=protocol.process,
            arm=timer.label,
            block=block,
            seconds=time.time() - protocol.began_at,
            sm_clock_mhz=after.sm_clock_mhz if after else None,
            memory_clock_mhz=after.memory_clock_mhz if after else None,
            power_w=after.power_w if after else None,
            temperature_c=after.temperature_c if after else None,
            throttle=throttle,
            other_processes=others,
            cpu_clock_mhz=_cpu_clock_mhz(),
            load_average=_load_average(),
        )


def _strangers(processes: list[int]) -> list[int]:
    """Processes on the card that are neither this one nor a caller that only waits for it.

    Inside a container the driver's process ids are not ours, so as many of those listed as are ours are left out.
    """
    callers = int(os.environ.get(ON_CARD, 0))
    others = [pid for pid in processes if pid not in (os.getpid(), os.getppid())]
    return others[: max(0, len(processes) - 1 - callers)]


def time_arms(timers: list[ArmTimer], protocol: Protocol, listen: Listen) -> Trace:
    """Times every arm in interleaved blocks; an arm that fails is dropped and the others go on."""
    trace = Trace()
    if not timers:
        return trace
    turn_s = math.inf if any(t.on_cuda for t in timers) else TURN_S  # a queue is drained at both ends of a block
    plans = {t.label: t.plan(protocol, turn_s) for t in timers}
    cycles = max(blocks for blocks, _ in plans.values())
    rng = random.Random(protocol.process)
    queue = FullQueue() if any(t.on_cuda for t in timers) else None
    alive = list(timers)
    order: list[ArmTimer] = []
    gc.collect()
    gc.freeze()  # torch alone is half a million objects, which every collection between blocks would walk again
    with contextlib.ExitStack() as stack:
        stack.callback(gc.unfreeze)
        nvml = stack.enter_context(Nvml())
        watch = Watch(nvml, timers)
        for cycle in range(cycles):
            order = order[::-1] if cycle % 2 else rng.sample(alive, len(alive))
            for timer in order:
                listen(f"timing {timer.label}", cycle, cycles)
                if cycle >= plans[timer.label][0] or timer not in alive:
                    continue
                try:
                    _one_block(timer, protocol, watch, queue, cycle, plans[timer.label], trace)
                except Exception as error:  # noqa: BLE001 - an arm that fails midway is reported, the others go on
                    trace.errors.append((timer, error))
                    alive.remove(timer)
        for timer in alive:
            if timer.on_cuda:
                timer.time_energy(lambda timer=timer: watch.energy_mj(timer))  # type: ignore[misc]
    for timer in list(alive):
        try:
            timer.look_at_answer()
        except Exception as error:  # noqa: BLE001 - as above
            trace.errors.append((timer, error))
            alive.remove(timer)
    for timer in alive:
        if timer.spec.compile and not _count_graphs():
            timer.flags.add(NOT_COMPILED)
        trace.measurements += timer.measurements(protocol.process)
        trace.notes[timer.label] = sorted(timer.flags)
    return trace


def _one_block(
    timer: ArmTimer,
    protocol: Protocol,
    watch: Watch,
    queue: FullQueue | None,
    cycle: int,
    plan: tuple[int, int],
    trace: Trace,
) -> None:
    before, (blocks, iterations) = watch.card(timer), plan
    graphs = _count_graphs()
    gc.collect()
    gc.disable()
    try:
        timer.time_wall(iterations, SLOWER * max(protocol.max_seconds, protocol.seconds) / blocks)
        trace.telemetry.append(watch.read(timer, protocol, cycle, before))
        if timer.on_cuda and queue is not None:
            timer.time_device(queue, max(1, min(3, iterations)))
            if protocol.transfer:
                timer.time_transfer(iterations)
    finally:
        gc.enable()
    if timer.spec.compile and _count_graphs() > graphs:
        timer.flags.add(COMPILED_AGAIN)


def _count_graphs() -> int:
    """Graphs torch.compile has made in this process."""
    dynamo = sys.modules.get("torch._dynamo.utils")
    return int(dynamo.counters["stats"]["unique_graphs"]) if dynamo is not None else 0


def _cpu_clock_mhz() -> float | None:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return None
    clocks = [float(line.split(":")[1]) for line in lines if line.startswith("cpu MHz")]
    return statistics.fmean(clocks) if clocks else None


def _load_average() -> float | None:
    try:
        return os.getloadavg()[0]
    except OSError:
        return None
