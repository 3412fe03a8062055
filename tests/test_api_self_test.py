"""hotlap.bench(self_test=True) times A against A, as the command line does."""

from __future__ import annotations

import sys

import hotlap
from hotlap.measure.jobs import Description, Timings
from hotlap.records.codec import encode
from hotlap.records.measurement import Measurement
from hotlap.tools.bench import bench, self_test

ABOUT = Description(
    name="toy", summary="", default_batch=5, num_parameters=1, has_convolutions=False, can_compile=False,
    fast_bf16=False, usable_cores=1, num_cuda=0,
)  # fmt: skip


def test_the_keyword_reaches_the_self_test_with_the_workloads_own_batch(monkeypatch, tmp_path):
    jobs = []

    def answer(job, **_):
        if job["job"] == "describe":
            return encode(ABOUT)
        jobs.append(job)
        found = [
            Measurement(quantity="wall", unit="ms", arm=label, process=job["protocol"]["process"], values=[1.0, 1.0])
            for label in job["labels"]
        ]
        return encode(Timings(measurements=found))

    monkeypatch.setattr(sys.modules[self_test.__module__], "run_job", answer)
    monkeypatch.setattr(sys.modules[bench.__module__], "run_job", answer)
    record = hotlap.bench("unet", self_test=True, processes=2, runs=tmp_path)
    assert record.kind == "self-test"
    assert record.extra["self_test"]["comparisons"] == 40
    assert {job["batch"] for job in jobs} == {5}
    assert record.config["batch"] == 5
