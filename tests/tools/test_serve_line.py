"""The line, with the time handed in: what leaves when, and in what company."""

from __future__ import annotations

import math

import pytest
from serve_fakes import ticket

from hotlap.tools.serve.line import Line, LineSettings
from hotlap.tools.serve.refusal import QueueFull, ShuttingDown, TooManyRows


def make_line(*models, **settings):
    line = Line()
    for model in models or ("double",):
        line.open(model, LineSettings(**{"batch_rows": 4, "max_delay_s": 0.01, "queue_rows": 8, **settings}))
    return line


def test_a_full_batch_leaves_at_once_and_rows_are_what_is_counted():
    line = make_line()
    first, second, third = ticket(1, 2, 3), ticket(4), ticket(5)
    for one in (first, second, third):
        line.join([one])
    assert line.pick(100.0).batch == [first, second]
    assert line.depth("double") == 1


def test_a_lone_request_waits_for_company_and_not_longer():
    line = make_line()
    alone = ticket(1)
    line.join([alone])
    turn = line.pick(100.004)
    assert (turn.batch, turn.expired) == ([], [])
    assert turn.wait_s == pytest.approx(0.006)
    assert line.pick(100.0101).batch == [alone]
    assert line.pick(101.0).wait_s is None, "nothing waits"


def test_only_one_shape_travels_in_a_batch():
    line = make_line()
    narrow, wide = ticket(1, 2), ticket(3, 4, width=5)
    line.join([narrow])
    line.join([wide])
    assert line.pick(101.0).batch == [narrow]
    assert line.pick(101.0).batch == [wide]


def test_the_queue_is_bounded_in_rows_and_says_when_to_come_back():
    line = make_line()
    line.charge("double", 4.0, 2)
    line.join([ticket(1, 2, 3, 4)])
    line.join([ticket(5, 6, 7)])
    with pytest.raises(QueueFull, match=r"'double' is full: 7 of 8 rows wait") as refused:
        line.join([ticket(8, 9)])
    assert refused.value.retry_after_s == 7.0, "7 rows at 2 s each, half of them"
    line.join([ticket(8)])
    assert line.depth("double") == 8


def test_a_request_larger_than_the_queue_can_never_be_taken():
    with pytest.raises(TooManyRows, match=r"rows = 9 .*'double'.*at most 8"):
        make_line().join([ticket(*range(4)), ticket(*range(5))])


def test_one_model_that_is_full_does_not_keep_another_out():
    line = make_line("double", "other")
    line.join([ticket(*range(8))])
    line.join([ticket(1, model="other")])
    assert line.depth("other") == 1


def test_a_deadline_that_passes_in_line_keeps_the_request_from_the_model():
    line = make_line()
    late, early = ticket(1, deadline=100.005), ticket(2)
    line.join([late])
    line.join([early])
    assert line.pick(100.0).wait_s == pytest.approx(0.005), "the deadline comes before the batch"
    turn = line.pick(100.006)
    assert (turn.batch, turn.expired) == ([], [late])
    assert line.depth("double") == 1
    assert line.pick(100.02).batch == [early]


def test_a_client_that_leaves_frees_its_place():
    line = make_line()
    gone, there = ticket(*range(7)), ticket(9)
    line.join([gone])
    assert gone.future.cancel()
    assert line.depth("double") == 0
    line.join([there])
    assert line.pick(101.0).batch == [there]


def test_models_share_a_device_by_the_time_they_have_had():
    line = make_line("cheap", "dear", queue_rows=100)
    for i in range(8):
        line.join([ticket(*[i] * 4, model="cheap")])
        line.join([ticket(*[i] * 4, model="dear")])
    seconds, order = {"cheap": 1.0, "dear": 3.0}, []
    for _ in range(8):
        (one,) = line.pick(100.0).batch
        order.append(one.model)
        line.charge(one.model, seconds[one.model], 4)
    assert order.count("cheap") == 6 and order.count("dear") == 2, order


def test_a_model_that_was_idle_has_saved_up_nothing():
    line = make_line("busy", "idle", queue_rows=100)
    for i in range(4):
        line.join([ticket(*[i] * 4, model="busy")])
    line.charge("busy", 1000.0, 4)
    for i in range(3):
        line.join([ticket(*[i] * 4, model="idle")])
    order = []
    for _ in range(4):
        (one,) = line.pick(100.0).batch
        order.append(one.model)
        line.charge(one.model, 1.0, 4)
    assert order.count("busy") == 2, order


def test_a_closed_line_takes_nobody_and_lets_those_in_it_go_at_once():
    line = make_line()
    waiting = ticket(1)
    line.join([waiting])
    line.close()
    with pytest.raises(ShuttingDown, match="shutting down"):
        line.join([ticket(2)])
    assert line.next(lambda: 100.0).batch == [waiting]
    assert line.next(lambda: 100.0) is None


def test_after_memory_ran_out_batches_of_that_shape_stay_small():
    line = make_line()
    line.cap(ticket(1).key, 2)
    for i in range(4):
        line.join([ticket(i)])
    for i in range(4):
        line.join([ticket(i, width=3)])
    sizes = [len(line.pick(101.0).batch) for _ in range(3)]
    assert sizes == [2, 2, 4]


def test_what_a_worker_died_with_comes_first_and_alone_even_into_a_full_line():
    line = make_line()
    line.join([ticket(*range(8))])
    again = [ticket(1), ticket(2)]
    for one in again:
        one.deaths = 1
    line.rejoin(again)
    assert [line.pick(100.0).batch for _ in range(2)] == [[again[0]], [again[1]]]


def test_a_request_without_deadline_never_expires():
    line = make_line(max_delay_s=math.inf)
    line.join([ticket(1)])
    turn = line.pick(1e9)
    assert (turn.batch, turn.expired, turn.wait_s) == ([], [], None)


def test_a_busy_device_is_given_full_batches_only():
    line = make_line(batch_rows=2, max_delay_s=0.0)
    line.join([ticket(1)])
    turn = line.pick(101.0, busy=True)
    assert (turn.batch, turn.wait_s) == ([], None)
    line.join([ticket(2)])
    assert len(line.pick(101.0, busy=True).batch) == 2
    line.join([ticket(3)])
    assert len(line.pick(101.0).batch) == 1, "one that is free takes what there is"


def test_whoever_waits_for_a_turn_is_told_that_the_device_has_landed():
    line, clock = make_line(max_delay_s=0.0), lambda: 101.0
    line.join([ticket(1)])
    turn = line.next(clock, until=lambda: True)
    assert turn is not None and not turn.batch
    line.close()
    assert len(line.next(clock, until=lambda: False).batch) == 1
    assert line.next(clock, until=lambda: False) is None
