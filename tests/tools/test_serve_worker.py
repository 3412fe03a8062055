"""One worker without a thread: batches in, answers out, whatever happens to the runner."""

from __future__ import annotations

import time
from concurrent.futures import Future

import pytest
import torch
from serve_fakes import FakeClock, FakeRunner, answers, ticket

from hotlap.base.errors import OutOfMemory, WorkerDied
from hotlap.tools.serve.counters import Counters
from hotlap.tools.serve.line import Line, LineSettings, Turn
from hotlap.tools.serve.refusal import DeadlineExceeded
from hotlap.tools.serve.runner import at_once
from hotlap.tools.serve.worker import DeviceWorker


class House:
    """A line, a worker and a clock, moved by hand."""

    def __init__(self, runner, **settings):
        self.clock, self.line, self.counters, self.runner = FakeClock(), Line(), Counters(), runner
        self.line.open("double", LineSettings(**{"batch_rows": 4, "max_delay_s": 0.01, **settings}))
        self.worker = DeviceWorker(runner, self.line, self.counters, clock=self.clock, sleep=self.clock.sleep)
        assert self.worker.start_runner()

    def join(self, *tickets):
        for one in tickets:
            self.line.join([one])
        return tickets

    def work(self):
        """Serves until nothing is left in line; whether the worker is still there."""
        alive = True
        while alive and self.line.depth("double"):
            self.clock.sleep(0.02)
            alive = self.worker.serve(self.line.pick(self.clock()))
        return alive


def test_requests_share_a_batch_and_each_gets_its_own_rows_back():
    house = House(FakeRunner())
    first, second, third = house.join(ticket(1, 2), ticket(3), ticket(4))
    house.work()
    assert house.runner.batches == [("double", [1, 2, 3, 4])]
    assert [answers(one) for one in (first, second, third)] == [[2, 4], [6], [8]]
    assert house.counters.mean("batch_rows", model="double") == 4
    assert house.counters.value("queue_seconds") == 3


def test_a_batch_that_does_not_fit_is_split_and_later_ones_are_smaller():
    house = House(FakeRunner(room=1))
    tickets = house.join(ticket(1, 2, 3), ticket(4))
    house.work()
    assert [answers(one) for one in tickets] == [[2, 4, 6], [8]]
    assert house.counters.value("oom_splits_total", model="double") == 3
    house.join(ticket(5), ticket(6))
    house.work()
    assert house.counters.value("oom_splits_total") == 3, "the second time nothing had to be split"
    assert [len(values) for _, values in house.runner.batches] == [1] * 6


def test_a_single_row_that_does_not_fit_is_told_so():
    house = House(FakeRunner(room=0))
    (one,) = house.join(ticket(1))
    house.work()
    with pytest.raises(OutOfMemory, match="rows = 1"):
        one.future.result(timeout=0)


def test_one_bad_request_does_not_take_its_neighbours_along():
    house = House(FakeRunner())
    good, bad, also = house.join(ticket(1), ticket(-1), ticket(3))
    house.work()
    with pytest.raises(ValueError, match="a row of -1"):
        bad.future.result(timeout=0)
    assert (answers(good), answers(also)) == ([2], [6])


def test_requests_outlive_the_worker_that_died_with_them():
    house = House(FakeRunner(deaths=[2]))
    tickets = house.join(ticket(1), ticket(2), ticket(3))
    assert house.work()
    assert [answers(one) for one in tickets] == [[2], [4], [6]]
    assert house.runner.starts == 2
    assert house.counters.value("worker_deaths_total", device="fake:0") == 1
    assert house.counters.value("retried_total", model="double") == 3


def test_a_request_that_kills_every_worker_is_refused_and_the_others_are_not():
    house = House(FakeRunner(deaths=[2] * 9))
    good, killer, also = house.join(ticket(1), ticket(2), ticket(3))
    assert house.work()
    with pytest.raises(WorkerDied, match="the fake died"):
        killer.future.result(timeout=0)
    assert (answers(good), answers(also)) == ([2], [6])
    assert house.counters.value("worker_deaths_total") == 2


def test_a_runner_that_needs_a_moment_is_waited_for_ever_longer():
    house = House(FakeRunner(deaths=[1], bad_starts=2))
    (one,) = house.join(ticket(1))
    began = house.clock()
    assert house.work()
    assert answers(one) == [2]
    assert house.clock() - began >= 3.0, "1 s, then 2 s"
    assert house.worker.state == "ready"


def test_a_device_that_never_comes_back_is_given_up_and_the_request_waits_for_another():
    house = House(FakeRunner(deaths=[1], bad_starts=99))
    (one,) = house.join(ticket(1))
    assert not house.work()
    assert house.worker.state == "failed: the fake did not start"
    assert house.line.depth("double") == 1 and not one.future.done()


def test_an_answer_that_comes_too_late_is_not_given():
    clock_runner = FakeRunner(seconds=5.0)
    house = House(clock_runner)
    clock_runner.clock = house.clock
    late, patient = house.join(ticket(1, deadline=103.0), ticket(2))
    house.work()
    with pytest.raises(DeadlineExceeded, match=r"'double' passed after 5\.02 s"):
        late.future.result(timeout=0)
    assert answers(patient) == [4]


def test_an_expired_request_never_reaches_the_model():
    house = House(FakeRunner())
    (late,) = house.join(ticket(1, deadline=100.001))
    house.work()
    assert isinstance(late.future.exception(timeout=0), DeadlineExceeded)
    assert house.runner.batches == []


def test_a_cancelled_request_never_reaches_the_model():
    house = House(FakeRunner())
    gone, there = house.join(ticket(1), ticket(2))
    gone.future.cancel()
    house.work()
    assert house.runner.batches == [("double", [2])]
    assert answers(there) == [4]


def test_an_output_with_another_number_of_rows_is_refused():
    house = House(FakeRunner())
    house.runner.run = lambda model, rows: (rows[0][:1],)
    (one,) = house.join(ticket(1, 2))
    house.worker.serve(Turn([one]))
    with pytest.raises(Exception, match=r"'double' answered 2 rows with an output of shape \(1, 2\)"):
        one.future.result(timeout=0)


class FlyingRunner(FakeRunner):
    """Takes batches and answers them when it is told to, in their order."""

    def __init__(self, **options):
        super().__init__(**options)
        self.asked = []

    def begin(self, model, parts):
        self.asked.append((Future(), model, parts))
        return self.asked[-1][0]

    def answer(self):
        future, model, parts = self.asked.pop(0)
        try:
            future.set_result(self.run(model, (torch.cat([rows for (rows,) in parts]),)))
        except WorkerDied as error:
            future.set_exception(error)


def test_the_next_batch_is_with_the_device_before_the_first_comes_back():
    house = House(FlyingRunner(), batch_rows=2)
    tickets = house.join(ticket(1), ticket(2), ticket(3), ticket(4))
    for _ in range(2):
        assert house.worker.take_off(house.line.pick(house.clock()))
    assert [len(parts) for _, _, parts in house.runner.asked] == [2, 2] and not tickets[0].future.done()
    house.runner.answer()
    house.runner.answer()
    assert house.worker.land() and house.worker.land()
    assert [answers(one) for one in tickets] == [[2], [4], [6], [8]]


def test_a_device_has_a_batch_waiting_while_it_computes_and_another_is_on_its_way(no_hang):
    house = House(FlyingRunner(), batch_rows=1)
    tickets = house.join(*(ticket(i) for i in range(1, 6)))
    house.worker.start()
    for already in range(3):
        until = time.monotonic() + 10
        while len(house.runner.asked) < 3 and time.monotonic() < until:
            time.sleep(0.001)
        time.sleep(0.02)
        assert len(house.runner.asked) == 3, f"three at a time, after {already} were answered"
        house.runner.answer()
    house.line.close()
    house.runner.answer()
    house.runner.answer()
    assert house.worker.join(10)
    assert [answers(one) for one in tickets] == [[2], [4], [6], [8], [10]]


def test_all_that_was_with_a_device_outlives_it_and_is_tried_one_by_one():
    house = House(FlyingRunner(deaths=[1, 3]), batch_rows=2)
    tickets = house.join(ticket(1), ticket(2), ticket(3), ticket(4))
    for _ in range(2):
        house.worker.take_off(house.line.pick(house.clock()))
    house.runner.answer()
    house.runner.answer()
    house.runner.begin = lambda model, parts: at_once(lambda: FakeRunner.run(house.runner, model, *parts))
    house.runner.deaths = []
    assert house.worker.land() and house.work()
    assert [answers(one) for one in tickets] == [[2], [4], [6], [8]]
    assert house.runner.batches == [("double", [float(i)]) for i in range(1, 5)]
    assert house.counters.value("worker_deaths_total") == 1


def test_rows_that_cannot_be_handed_over_are_told_so():
    house = House(FlyingRunner())
    house.runner.begin = lambda model, parts: (_ for _ in ()).throw(RuntimeError("no room in shared memory"))
    (one,) = house.join(ticket(1))
    assert house.work()
    with pytest.raises(RuntimeError, match="no room in shared memory"):
        one.future.result(timeout=0)
