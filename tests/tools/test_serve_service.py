"""The service with its threads: bytes in, answers out, through a model that doubles."""

from __future__ import annotations

import asyncio
import gc
import json
import threading
import time
import weakref

import pytest
import torch
from serve_fakes import FakeRunner, FakeServable, rows_of

from hotlap.base.errors import EnvironmentUnusable, ShapeError, UnknownName, UsageError
from hotlap.tools.serve import Service, ServiceSettings
from hotlap.tools.serve.desk import LocalDesk
from hotlap.tools.serve.refusal import DeadlineExceeded, NotReady, QueueFull, ShuttingDown


class GatedRunner(FakeRunner):
    """Holds every batch until the gate opens."""

    def __init__(self, **options):
        super().__init__(**options)
        self.gate, self.entered = threading.Event(), threading.Event()

    def run(self, model, rows):
        self.entered.set()
        assert self.gate.wait(30)
        return super().run(model, rows)


@pytest.fixture
def serve(no_hang):
    """Starts services, and ends them."""
    started = []

    def make(*runners, **settings):
        service = Service({"double": FakeServable()}, runners, ServiceSettings(**settings))
        started.append(service)
        service.start()
        service.wait_until_ready(10)
        return service

    yield make
    for service in started:
        service.drain(5)


def test_bytes_come_back_as_json(serve):
    service = serve(FakeRunner())
    assert asyncio.run(service.answer("double", b"1 2 3")) == {"values": [2, 4, 6], "words": 3}
    assert service.counters.value("requests_total", model="double", ended="ok") == 1


def test_what_has_not_happened_yet_counts_as_0(serve):
    service = serve(FakeRunner())
    said = service.counters.text()
    for name in ("shed_total", "expired_total", "oom_splits_total", "retried_total"):
        assert f'hotlap_{name}{{model="double"}} 0\n' in said
    assert f'hotlap_worker_deaths_total{{device="{service.workers[0].device}"}} 0\n' in said


def test_many_clients_share_batches(serve):
    runner = GatedRunner(rows=8)
    service = serve(runner, max_delay_s=5.0)

    async def clients():
        runner.gate.set()
        return await asyncio.gather(*(service.answer("double", str(i).encode()) for i in range(16)))

    assert [answer["values"] for answer in asyncio.run(clients())] == [[2 * i] for i in range(16)]
    assert sorted(len(values) for _, values in runner.batches) == [8, 8]


def test_a_request_of_many_rows_is_cut_into_batches_and_put_together(serve):
    runner = FakeRunner(rows=4)
    service = serve(runner)
    (out,) = asyncio.run(service.infer("double", rows_of(*range(10))))
    assert out[:, 0].tolist() == [2.0 * i for i in range(10)]
    assert max(len(values) for _, values in runner.batches) == 4


def test_two_devices_work_side_by_side(serve):
    runners = [GatedRunner(rows=1), GatedRunner(rows=1)]
    service = serve(*runners)

    async def clients():
        waiting = [asyncio.create_task(service.answer("double", b"1")) for _ in range(2)]
        await asyncio.to_thread(lambda: [runner.entered.wait(10) for runner in runners])
        both = all(runner.entered.is_set() for runner in runners)
        for runner in runners:
            runner.gate.set()
        await asyncio.gather(*waiting)
        return both

    assert asyncio.run(clients())


def test_a_full_queue_refuses_and_keeps_what_it_took(serve):
    runner = GatedRunner(rows=2)
    service = serve(runner, queue_rows=2)

    async def clients():
        first = asyncio.create_task(service.answer("double", b"1 2"))
        await asyncio.to_thread(runner.entered.wait, 10)
        second = asyncio.create_task(service.answer("double", b"3 4"))
        while service.line.depth("double") < 2:
            await asyncio.sleep(0.001)
        with pytest.raises(QueueFull, match="2 of 2 rows wait"):
            await service.answer("double", b"5")
        runner.gate.set()
        return [answer["values"] for answer in await asyncio.gather(first, second)]

    assert asyncio.run(clients()) == [[2, 4], [6, 8]]
    assert service.counters.value("shed_total", model="double") == 1


def test_a_deadline_answers_though_the_model_is_busy_and_spares_it_the_work(serve):
    runner = GatedRunner(rows=1)
    service = serve(runner)

    async def clients():
        busy = asyncio.create_task(service.answer("double", b"1"))
        await asyncio.to_thread(runner.entered.wait, 10)
        with pytest.raises(DeadlineExceeded, match="'double'"):
            await service.answer("double", b"2", deadline_s=0.05)
        runner.gate.set()
        await busy

    asyncio.run(clients())
    assert service.drain(5)
    assert runner.batches == [("double", [1])]
    assert service.counters.value("expired_total", model="double") == 1


def test_a_client_that_leaves_takes_its_rows_out_of_the_line(serve):
    runner = GatedRunner(rows=1)
    service = serve(runner)

    async def clients():
        busy = asyncio.create_task(service.answer("double", b"1"))
        await asyncio.to_thread(runner.entered.wait, 10)
        leaving = asyncio.create_task(service.answer("double", b"2"))
        while not service.line.depth("double"):
            await asyncio.sleep(0.001)
        leaving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await leaving
        depth = service.line.depth("double")
        runner.gate.set()
        await busy
        return depth

    assert asyncio.run(clients()) == 0
    assert runner.batches == [("double", [1])]


def test_draining_answers_what_was_accepted_and_refuses_the_rest(serve):
    runner = GatedRunner(rows=1)
    service = serve(runner)

    async def clients():
        taken = [asyncio.create_task(service.answer("double", str(i).encode())) for i in range(3)]
        while service.line.depth("double") < 2:
            await asyncio.sleep(0.001)
        draining = asyncio.create_task(asyncio.to_thread(service.drain, 10))
        while not service.draining:
            await asyncio.sleep(0.001)
        with pytest.raises(ShuttingDown):
            await service.infer("double", rows_of(1))
        runner.gate.set()
        return [answer["values"] for answer in await asyncio.gather(*taken)], await draining

    values, ended = asyncio.run(clients())
    assert (values, ended, runner.stops) == ([[0], [2], [4]], True, 1)


def test_a_service_that_is_still_loading_ends_at_once(no_hang):
    loaded, stopped = threading.Event(), threading.Event()

    class Loading(FakeRunner):
        def start(self):
            assert loaded.wait(30)
            return super().start()

        def stop(self):
            stopped.set()

    service = Service({"double": FakeServable()}, [Loading()])
    service.start()
    began = time.monotonic()
    assert not service.drain(20)
    assert time.monotonic() - began < 10
    loaded.set()
    assert stopped.wait(10), "its runner is let go once it is there"


def test_when_every_device_is_lost_nobody_waits_for_ever(serve):
    service = serve(FakeRunner(deaths=[1], bad_starts=99))
    service.workers[0]._sleep = lambda seconds: None
    with pytest.raises(NotReady, match="'double' is not ready: failed: the fake did not start"):
        asyncio.run(service.answer("double", b"1"))
    with pytest.raises(NotReady, match="failed"):
        asyncio.run(service.answer("double", b"2"))
    assert service.status()["ready"] is False


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ((torch.ones(1, 3),), r"input 'x' of model 'double' has shape \[1, 3\]"),
        ((torch.ones(0, 2),), r"'x' .* has shape \[0, 2\]"),
        ((torch.ones(2),), r"'x' .* has shape \[2\]"),
        ((torch.ones(1, 2, dtype=torch.float64),), r"'x' .* is torch.float64"),
        ((torch.ones(1, 2), torch.ones(1, 2)), r"'double' got 2 inputs"),
    ],
)
def test_tensors_that_do_not_fit_are_named(serve, rows, words):
    service = serve(FakeRunner())
    with pytest.raises(ShapeError, match=words):
        asyncio.run(service.infer("double", rows))


def test_unknown_models_and_senseless_deadlines_are_refused(serve):
    service = serve(FakeRunner())
    with pytest.raises(UnknownName, match=r"unknown model 'duoble'.*'double'"):
        asyncio.run(service.answer("duoble", b"1"))
    with pytest.raises(UsageError, match="deadline = -1 s"):
        asyncio.run(service.answer("double", b"1", deadline_s=-1))


def test_metrics_are_text_that_prometheus_reads(serve):
    service = serve(FakeRunner())
    asyncio.run(service.answer("double", b"1 2 3"))
    text = service.counters.text(service.gauges())
    assert 'hotlap_batch_rows_bucket{model="double",le="2"} 0' in text
    assert 'hotlap_batch_rows_bucket{model="double",le="4"} 1' in text
    assert 'hotlap_batch_rows_bucket{model="double",le="+Inf"} 1' in text
    assert 'hotlap_requests_total{ended="ok",model="double"} 1' in text
    assert 'hotlap_queue_rows{model="double"} 0' in text
    assert "# TYPE hotlap_request_seconds histogram" in text
    for once in ("decode_seconds", "finish_seconds"):
        assert f'hotlap_{once}_count{{model="double"}} 1' in text
    assert 'hotlap_desk_wait_seconds_count{model="double"} 2' in text


def test_seconds_at_a_desk_are_counted_apart_from_the_wait_for_it(no_hang):
    now = [100.0]

    class SlowDesk(LocalDesk):
        def decode(self, *arguments):
            now[0] += 3.0
            return super().decode(*arguments)

        def finish(self, *arguments):
            now[0] += 5.0
            raise EnvironmentUnusable("no pen")

    servables = {"double": FakeServable()}
    settings = ServiceSettings(max_delay_s=0.0)
    service = Service(servables, [FakeRunner()], settings, desk=SlowDesk(servables), clock=lambda: now[0])
    service.start()
    assert service.wait_until_ready(10)
    with pytest.raises(EnvironmentUnusable, match="no pen"):
        asyncio.run(service.answer("double", b"1"))
    service.drain(5)
    mean = service.counters.mean
    assert mean("decode_seconds") == 3.0 and mean("finish_seconds") == 5.0, "that of a failure, too"
    assert mean("desk_wait_seconds") == 0.0


def test_nothing_of_a_request_stays_when_it_is_answered(serve):
    """Pictures lie in shared memory, each an open file: they may not wait for a collection of cycles."""
    seen = []

    class Watching(FakeRunner):
        def run(self, model, rows):
            out = super().run(model, rows)
            seen.extend(weakref.ref(tensor) for tensor in (*rows, *out))
            return out

    service = serve(Watching(rows=4), max_delay_s=0.0)

    async def clients():
        for i in range(6):
            await service.answer("double", str(i).encode())

    gc.collect()
    gc.disable()
    try:
        asyncio.run(clients())
        alive = sum(ref() is not None for ref in seen)
    finally:
        gc.enable()
    assert len(seen) == 12
    assert alive <= 2, "those of the last request at most"


def test_a_service_that_cannot_finish_answers_says_why_and_is_not_ready():
    class Broken(LocalDesk):
        def start(self):
            raise EnvironmentUnusable("the desk has no legs")

    servables = {"double": FakeServable()}
    service = Service(servables, [FakeRunner()], desk=Broken(servables))
    service.start()
    assert not service.wait_until_ready(20) and "the desk has no legs" in service.failed
    service.drain(5)


def test_a_file_is_not_had_from_a_model_that_gives_none(serve):
    service = serve(FakeRunner())
    with pytest.raises(UsageError, match="model 'double' answers with no file"):
        asyncio.run(service.answer_file("double", b"1"))
    text = asyncio.run(service.answer_json("double", b"1 2"))
    assert json.loads(text)["values"] == [2, 4] and json.loads(text)["seconds"]["all"] >= 0
