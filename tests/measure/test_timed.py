"""Timing the arms of one process: warm-up, plans, turns, failures, and what the device did meanwhile."""

from __future__ import annotations

import time
from types import SimpleNamespace

import pytest
import torch

from hotlap.device.nvml import CardState, Nvml
from hotlap.measure import timed
from hotlap.measure.arms import ArmSpec
from hotlap.measure.process import quiet
from hotlap.measure.timed import MIN_ITERATIONS, NOT_FINITE, NUM_BLOCKS, TURN_S, ArmTimer, Protocol, Watch, time_arms


def protocol(**changes):
    settings = {"process": 0, "repeats": 10, "seconds": 0.0, "max_seconds": 5.0, "warmup_seconds": 1.0,
                "transfer": True, "began_at": time.time()}  # fmt: skip
    return Protocol(**{**settings, **changes})


class Waiter:
    """A session whose step takes a known time, by the clock it is measured with."""

    device = torch.device("cpu")

    def __init__(self, seconds=0.0, name="cpu", log=None, fail_after=None, finite_for=None):
        self.seconds, self.log, self.fail_after, self.steps = seconds, log, fail_after, 0
        self.finite_for = finite_for
        self.spec = ArmSpec(device="cpu") if name == "cpu" else ArmSpec(device="cpu", threads=int(name[-1]))
        self.activations = 0

    def activate(self):
        self.activations += 1

    def step(self):
        self.steps += 1
        if self.log is not None:
            self.log.append(self.spec.name)
        if self.fail_after is not None and self.steps > self.fail_after:
            raise RuntimeError("lost its card")
        end = time.perf_counter() + self.seconds
        while time.perf_counter() < end:
            pass
        return (
            torch.zeros(1) if self.finite_for is None or self.steps <= self.finite_for else torch.full((1,), torch.nan)
        )


def quickest(seconds):
    """The quickest block and the quickest step that the bench reports for steps of so many seconds, in milliseconds."""
    timer = ArmTimer(Waiter(seconds), seed=0)
    timer.warm_up(protocol())
    trace = time_arms([timer], protocol(repeats=NUM_BLOCKS), quiet)
    values = {m.quantity: m.values for m in trace.measurements}
    assert len(values["wall"]) == len(values["interval"]) == NUM_BLOCKS
    return min(values["wall"]), min(values["interval"])


def test_a_step_of_known_length_is_reported_as_it_is():
    # A busy machine can only add time to a step, so the quickest of many says what the bench itself adds.
    found = []
    while not found or (max(map(min, zip(*found, strict=True))) >= 5.1 and len(found) < 20):
        found.append(quickest(0.005))
    for fastest in map(min, zip(*found, strict=True)):
        assert 5.0 <= fastest < 5.1


def test_warm_up_ends_when_three_blocks_agree(monkeypatch):
    times = iter([90.0, 40.0, 10.0, 10.1, 10.2, 99.0])
    monkeypatch.setattr(timed, "time_block", lambda *_, most_s: SimpleNamespace(wall_ms=next(times)))
    timer = ArmTimer(Waiter(), seed=0)
    timer.warm_up(protocol(warmup_seconds=60))
    assert next(times) == 99.0, "it stopped after the fifth block"
    assert timer.step_s == pytest.approx(0.0102)
    assert timer.flags == set()


@pytest.mark.parametrize(("compiled", "blocks"), [(False, 0), (True, 1)])
def test_a_first_step_longer_than_the_warm_up_was_one_unless_it_compiled(monkeypatch, compiled, blocks):
    seen = []
    monkeypatch.setattr(timed, "time_block", lambda *_, most_s: seen.append(1) or SimpleNamespace(wall_ms=50.0))
    session = Waiter(0.06)
    session.spec = ArmSpec(device="cpu", compile="default" if compiled else "")
    timer = ArmTimer(session, seed=0)
    timer.warm_up(protocol(warmup_seconds=0.05 if not compiled else 0.0))
    assert len(seen) == blocks and timer.step_s == (0.05 if compiled else timer.first_step_s)


def test_warm_up_without_end_is_flagged(monkeypatch):
    times = iter(float(2**n) for n in range(1000))
    monkeypatch.setattr(timed, "time_block", lambda *_, most_s: SimpleNamespace(wall_ms=next(times)))
    clock = iter(range(1000))
    monkeypatch.setattr(timed.time, "perf_counter", lambda: next(clock) * 0.5)
    timer = ArmTimer(Waiter(), seed=0)
    monkeypatch.setattr(timer.session, "step", lambda: None, raising=False)
    timer.warm_up(protocol(warmup_seconds=2))
    assert timer.flags == {"warm-up ended before times were steady"}


@pytest.mark.parametrize(
    ("step_s", "changes", "total", "flag"),
    [
        (0.01, {"repeats": 30}, 30, False),
        (0.01, {"repeats": 30, "seconds": 1.0}, 100, False),
        (1.0, {"repeats": 30, "max_seconds": 5.0}, 5, True),
        (100.0, {"repeats": 30, "max_seconds": 5.0}, MIN_ITERATIONS, True),
        (0.01, {"repeats": 2}, 2, False),
    ],
)
def test_long_steps_get_fewer_iterations_and_say_so(step_s, changes, total, flag):
    timer = ArmTimer(Waiter(), seed=0)
    timer.step_s = step_s
    blocks, iterations = timer.plan(protocol(**changes))
    assert blocks == min(NUM_BLOCKS, total)
    assert blocks * iterations >= total
    assert bool(timer.flags) is flag
    if flag:
        assert timer.flags == {f"long steps: fewer than {changes['repeats']} iterations a process"}


@pytest.mark.parametrize(
    ("step_s", "total", "blocks", "iterations"),
    [(0.001, 1000, 34, 30), (0.01, 100, 34, 3), (0.1, 20, 10, 2), (0.5, 8, 8, 1), (0.01, 4, 4, 1)],
)
def test_without_a_card_blocks_are_short_so_that_what_disturbs_falls_on_all_arms(step_s, total, blocks, iterations):
    timer = ArmTimer(Waiter(), seed=0)
    timer.step_s = step_s
    assert timer.plan(protocol(repeats=total), TURN_S) == (blocks, iterations)
    assert timer.plan(protocol(repeats=total)) == (min(NUM_BLOCKS, total), -(-total // min(NUM_BLOCKS, total)))


def test_arms_take_turns_forwards_and_backwards_and_are_activated_each_time():
    log = []
    timers = [ArmTimer(Waiter(0.001, f"threads={n}", log), seed=0) for n in (1, 2, 3)]
    for timer in timers:
        timer.step_s = 0.001
    log.clear()
    time_arms(timers, protocol(repeats=NUM_BLOCKS, process=1), quiet)
    turns = [log[i] for i in range(0, len(log) - 3, 2)]  # one untimed step and one timed one a block, and a last look
    assert len(turns) == 3 * NUM_BLOCKS
    for cycle in range(0, NUM_BLOCKS, 2):
        there, back = turns[3 * cycle : 3 * cycle + 3], turns[3 * cycle + 3 : 3 * cycle + 6]
        assert sorted(there) == ["cpu:threads=1", "cpu:threads=2", "cpu:threads=3"]
        assert back == there[::-1]
    assert len({tuple(turns[3 * c : 3 * c + 3]) for c in range(0, NUM_BLOCKS, 2)}) > 1, "the order is drawn anew"
    assert all(timer.session.activations == NUM_BLOCKS + 1 for timer in timers)


def test_an_arm_that_fails_midway_is_dropped_and_the_others_go_on():
    good, bad = ArmTimer(Waiter(0, "threads=1"), seed=0), ArmTimer(Waiter(0, "threads=2", fail_after=6), seed=0)
    good.step_s = bad.step_s = 0.001
    trace = time_arms([good, bad], protocol(), quiet)
    assert [(timer.label, str(error)) for timer, error in trace.errors] == [("cpu:threads=2", "lost its card")]
    assert {m.arm for m in trace.measurements} == {"cpu:threads=1"}
    assert len(trace.measurements[0].values) == NUM_BLOCKS


def test_an_answer_that_is_not_finite_in_the_end_is_flagged():
    """The gate sees the first few steps only: a model that counts them, or whose training goes astray, passes it."""
    timers = [ArmTimer(Waiter(0.001, name, finite_for=most), seed=0) for name, most in (("cpu", None), ("cpu1", 8))]
    trace = time_arms(timers, protocol(repeats=NUM_BLOCKS), quiet)
    assert trace.notes == {"cpu": [], "cpu:threads=1": [NOT_FINITE]}


def test_steps_that_grow_slow_do_not_stretch_the_timing():
    slow = Waiter(0.0)
    timer = ArmTimer(slow, seed=0)
    timer.step_s, slow.seconds = 1e-5, 0.01
    began = time.monotonic()
    trace = time_arms([timer], protocol(seconds=0.2, max_seconds=0.2), quiet)
    assert len(trace.measurements[0].values) >= NUM_BLOCKS, "all turns are taken"
    assert time.monotonic() - began < 10, "20,000 steps were expected to fit"


def test_nothing_to_time_gives_nothing():
    assert time_arms([], protocol(), quiet).measurements == []


def state(**changes):
    empty = {"sm_clock_mhz": 1500.0, "max_sm_clock_mhz": None, "memory_clock_mhz": None, "power_w": None,
             "temperature_c": None, "utilisation": None, "memory_used_bytes": None, "throttle": [], "processes": [],
             "energy_mj": None}  # fmt: skip
    return CardState(**{**empty, **changes})


@pytest.fixture
def watched(monkeypatch):
    """What a watch tells when the card is in one state before a block and in another after it."""

    def read(before, after):
        timer = SimpleNamespace(on_cuda=False, label="cuda", spec=ArmSpec(device="cuda"))
        watch = Watch(Nvml(), [timer])
        monkeypatch.setattr(watch, "card", lambda _: after)
        return watch.read(timer, protocol(), 3, before)

    return read


def test_throttling_before_or_after_a_block_counts(watched):
    told = watched(state(throttle=["sync boost"]), state(throttle=["hardware slowdown"]))
    assert told.throttle == ["hardware slowdown", "sync boost"]
    assert (told.block, told.arm, told.sm_clock_mhz) == (3, "cuda", 1500.0)
    assert watched(state(), state()).throttle == []


@pytest.mark.parametrize(
    ("processes", "count"),
    [([], 0), (["me"], 0), ([99], 0), (["me", 99], 1), ([98, 99], 1), (["me", 98, 99], 2)],
)
def test_other_tenants_are_counted_also_where_process_ids_are_not_ours(watched, processes, count):
    pids = [timed.os.getpid() if p == "me" else p for p in processes]
    told = watched(state(), state(processes=pids))
    assert len(told.other_processes) == count
    assert timed.os.getpid() not in told.other_processes


@pytest.mark.parametrize(
    ("processes", "count"), [(["me", "caller"], 0), ([98, 99], 0), (["me", "caller", 99], 1), ([97, 98, 99], 1)]
)
def test_a_caller_that_only_waits_is_no_other_tenant(watched, monkeypatch, processes, count):
    monkeypatch.setenv(timed.ON_CARD, "1")
    names = {"me": timed.os.getpid(), "caller": timed.os.getppid()}
    told = watched(state(), state(processes=[names.get(p, p) for p in processes]))
    assert len(told.other_processes) == count


def test_without_a_card_only_the_host_is_read(watched):
    told = watched(None, None)
    assert (told.sm_clock_mhz, told.throttle, told.other_processes) == (None, [], [])
    assert told.load_average is not None and told.seconds >= 0


def test_energy_is_counted_per_step():
    timer = ArmTimer(Waiter(0.001), seed=0)
    timer.step_s = 0.25
    readings = iter([1000.0, 7000.0])
    timer.time_energy(lambda: next(readings))
    assert timer.samples["energy"] == [3.0], "6 J over the two steps of half a second"
    timer.time_energy(lambda: None)
    assert timer.samples["energy"] == [3.0]


class Compiling(Waiter):
    """A model that is compiled in some of its steps."""

    def __init__(self, counts, *when):
        super().__init__(0.001)
        self.spec = ArmSpec(device="cpu", compile="default")
        self.counts, self.when = counts, when

    def step(self):
        self.counts[0] += self.steps + 1 in self.when
        return super().step()


@pytest.mark.parametrize(
    ("mine", "other", "told"),
    [
        ((1,), (1,), ([], [])),
        ((1, 3), (1,), ([timed.COMPILED_AGAIN], [])),
        ((1,), (1, 3), ([], [timed.COMPILED_AGAIN])),
        ((), (), ([timed.NOT_COMPILED], [timed.NOT_COMPILED])),
    ],
    ids=["both at first", "one again", "the other again", "neither"],
)
def test_whose_compilation_fell_into_its_timing_is_told_and_who_was_not_compiled(monkeypatch, mine, other, told):
    counts = [0]
    monkeypatch.setattr(timed, "_count_graphs", lambda: counts[0])
    timers = [ArmTimer(Compiling(counts, *when), seed=0, label=name) for name, when in (("a", mine), ("b", other))]
    for timer in timers:
        timer.step_s = 0.001
    trace = time_arms(timers, protocol(), quiet)
    assert (trace.notes["a"], trace.notes["b"]) == told
    walls = {one.arm: one.flags for one in trace.measurements if one.quantity == "wall"}
    assert (walls["a"], walls["b"]) == told


def test_collecting_between_blocks_does_not_walk_what_was_there_before(monkeypatch):
    timed.gc.unfreeze()  # as in a process of a bench, where nothing is frozen yet
    walked = []
    monkeypatch.setattr(timed.gc, "collect", lambda: walked.append(len(timed.gc.get_objects())))
    timer = ArmTimer(Waiter(), seed=0)
    timer.step_s = 0.001
    time_arms([timer], protocol(), quiet)
    assert len(walked) == 1 + NUM_BLOCKS
    assert max(walked[1:]) < walked[0] / 10
    assert timed.gc.get_freeze_count() == 0, "and it can be collected again afterwards"
    assert timed.gc.isenabled()
