"""A clock that stands still, a model that doubles, and a runner that fails on command."""

from __future__ import annotations

import torch

from hotlap.base.errors import OutOfMemory, WorkerDied
from hotlap.measure.servable import Decoded, Signature, TensorSpec
from hotlap.tools.serve.line import Ticket


class FakeClock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds


def rows_of(*values, width=2):
    """One input whose rows are constant: [len(values), width]."""
    return (torch.tensor(values, dtype=torch.float32)[:, None].repeat(1, width),)


def ticket(*values, model="double", now=100.0, deadline=float("inf"), width=2):
    return Ticket(model, rows_of(*values, width=width), deadline, now)


def answers(done: Ticket) -> list[float]:
    (out,) = done.future.result(timeout=0)
    return out[:, 0].tolist()


def signature(rows=4):
    spec = TensorSpec(name="x", dtype="float32", shape=(2,))
    out = TensorSpec(name="output", dtype="float32", shape=(2,))
    return Signature(inputs=(spec,), outputs=(out,), rows=rows, arm="cpu")


class FakeRunner:
    """Doubles rows; ``room`` rows fit in memory, a row of -1 raises, and it dies when ``deaths`` says so."""

    device = "fake:0"

    def __init__(self, *, room=1000, deaths=(), models=("double",), rows=4, clock=None, seconds=0.0, bad_starts=0):
        self.room, self.deaths, self.models, self.rows = room, list(deaths), models, rows
        self.clock, self.seconds, self.bad_starts = clock, seconds, bad_starts
        self.batches: list[tuple[str, list[float]]] = []
        self.starts = self.stops = 0

    def start(self):
        self.starts += 1
        if self.starts > 1 and self.bad_starts:
            self.bad_starts -= 1
            raise WorkerDied("the fake did not start")
        return dict.fromkeys(self.models, signature(self.rows))

    def run(self, model, rows):
        (x,) = rows
        values = x[:, 0].tolist()
        if self.clock is not None:
            self.clock.sleep(self.seconds)
        if len(values) > self.room:
            raise OutOfMemory(f"memory ran out with rows = {len(values)}")
        if any(value in self.deaths for value in values):
            self.deaths.remove(next(value for value in values if value in self.deaths))
            raise WorkerDied("the fake died")
        self.batches.append((model, values))
        if -1.0 in values:
            raise ValueError("a row of -1")
        return (x * 2,)

    def stop(self):
        self.stops += 1


class FakeServable:
    """Text such as '1 2 3' in, the doubled numbers out."""

    def load(self, device):
        raise AssertionError("the fake runner loads nothing")

    def decode(self, body, options, signature):
        return Decoded(rows_of(*(float(word) for word in body.split())), {"words": len(body.split())})

    def finish(self, out, facts, options):
        return {"values": out[0][:, 0].tolist(), **facts}
