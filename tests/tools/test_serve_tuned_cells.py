"""A network that finds cells from ``tune`` to the service: the batch that was found is what reaches the model."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from serve_fakes import FakeClock

from hotlap.base.events import ignore
from hotlap.data.batch_sizes import read_batch_size
from hotlap.measure.served_workload import WorkloadServable
from hotlap.records.tuned import read_profile
from hotlap.tools.serve import ServeConfig
from hotlap.tools.serve.counters import Counters
from hotlap.tools.serve.line import Line, LineSettings, Ticket
from hotlap.tools.serve.plan import plan_models
from hotlap.tools.serve.worker import DeviceWorker
from hotlap.tools.tune import TuneConfig, tune

CELLS = {"width": 6, "size": 32, "train_images": 2, "eval_images": 2}


class Here:
    """A runner in this process."""

    device = "cpu"

    def __init__(self, spec):
        self.name, self.loaded = spec.name, WorkloadServable(spec).load("cpu")

    def start(self):
        return {self.name: self.loaded.signature}

    def run(self, model, rows):
        return self.loaded.run(rows)

    def stop(self):
        pass


def test_the_tuned_batch_of_a_cell_network_reaches_the_model(jobs_in_process, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    record = tune(
        TuneConfig(
            target="resunet-small", mode="infer", workload=CELLS, arms=("cpu",), batches=(1, 2), seconds=0.002,
            warmup_seconds=0.01, gate_batch=1, budget="1h", export=Path("exported"),
        )
    )  # fmt: skip
    curve = {row["batch"] for row in record.extra["tune"]["rows"] if row["status"] == "ok"}
    assert curve == {1, 2}  # of three, how fast the first were decides whether the last is tried
    profile = read_profile(Path(record.extra["tune"]["stored"]))
    batch = profile.batch
    sizes = Path("exported/batch_sizes.json")
    assert read_batch_size(sizes, "resunet-small") == batch
    tested = json.loads(sizes.read_text())["detailed_results"]["resunet-small"]["all_test_results"]
    assert {test["batch_size"] for test in tested} == curve

    (spec,) = plan_models(ServeConfig(models=("resunet-small",), workload=CELLS), "cpu", ignore)
    assert (spec.arm, spec.rows) == (profile.arm, batch)
    runner, clock, line = Here(spec), FakeClock(), Line()
    assert runner.loaded.signature.rows == batch
    line.open(spec.name, LineSettings(batch_rows=runner.loaded.signature.rows, max_delay_s=0.01))
    worker = DeviceWorker(runner, line, Counters(), clock=clock, sleep=clock.sleep)
    assert worker.start_runner()
    seen = []
    runner.loaded._session.plain_model.register_forward_pre_hook(lambda net, given: seen.append(len(given[0])))
    one = [torch.zeros(1, *given.shape, dtype=getattr(torch, given.dtype)) for given in runner.loaded.signature.inputs]
    pictures = [Ticket(spec.name, tuple(one), float("inf"), clock()) for _ in range(2 * batch + 1)]
    for picture in pictures:
        line.join([picture])
    while line.depth(spec.name):
        clock.sleep(0.02)
        worker.serve(line.pick(clock()))
    assert seen == ([batch, batch, 1] if batch > 1 else [1, 1, 1])
    assert all(picture.future.result(timeout=0)[0].shape == (1, 2, 32, 32) for picture in pictures)
