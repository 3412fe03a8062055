"""One real lap of a tiny model through the real tools, without the start of processes."""

from __future__ import annotations

import pytest
import torch

from hotlap.records.lap import lap_of, stage_records
from hotlap.records.run import load_record
from hotlap.tools.lap import LapConfig, lap, stages
from hotlap.tools.profile import advice
from hotlap.tools.profile import run as profile_run
from hotlap.tools.report import ReportConfig, report
from hotlap.tools.tune import lab

NET = """
from torch import nn

def mlp(width=8):
    return nn.Sequential(nn.Linear(8, width), nn.Tanh(), nn.Linear(width, 3))
"""


def promise_fused(case):
    """A rule whose advice does not depend on how busy the machine is, and whose arm is quick to build."""
    yield advice._Hint("fused optimizer", "why", "basis", {"fused": True}, device_saved_ms=0.2 * case.step_ms)


@pytest.fixture
def here(tmp_path, monkeypatch, jobs_in_process):
    """A folder with a model, in which jobs run in this process; torch's threads are put back."""
    (tmp_path / "net.py").write_text(NET)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(advice, "RULES", (promise_fused,))
    for module in (stages, profile_run):
        monkeypatch.setattr(module, "run_job", lab.run_job)
    threads = torch.get_num_threads()
    yield tmp_path
    torch.set_num_threads(threads)


def test_a_lap_of_a_tiny_model_ends_with_a_table_code_and_a_page(here):
    given = {"quick": True, "doctor": False, "budget": "20s", "processes": 2, "advice": 1}
    config = LapConfig(target="net.py:mlp", input=("8",), arms=("cpu:threads=1",), **given)
    record = lap(config)
    found, made = lap_of(record), stage_records(record)
    assert record.verdict.exit_code in (0, 3), record.verdict
    assert (found.baseline, found.tuned, found.batch) == ("cpu", "cpu:threads=1", 16)
    assert list(made) == ["baseline", "profile-before", "tune", "verify", "profile-after", "bench"]
    assert made["verify"].verdict.exit_code == 0
    assert [row.role for row in found.table] == ["before", "after", "advice"]
    assert "torch.set_num_threads(1)" in found.paste
    assert all(row.right and row.ms > 0 and row.error < 1 for row in found.table)
    bench = made["bench"]
    for row in found.table[1:]:
        assert row.ratio in [c.ratio for c in bench.comparisons], "speed-ups are those of the bench alone"
    assert [(piece.arm, piece.predicted) for piece in found.advice] == [("cpu:fused", pytest.approx(1.25))]
    assert found.advice[0].measured == bench.comparisons[1].ratio
    page = (here / "runs" / "mlp-lap" / record.path.split("/")[-2] / "report.html").read_text()
    for words in ("Before and after", "Advice put to the test", "The stages", "The search"):
        assert words in page
    again = report(ReportConfig(records=("latest",), out=here / "again.html"))
    assert "Before and after" in again.read_text()
    assert load_record(record.path).verdict == record.verdict
