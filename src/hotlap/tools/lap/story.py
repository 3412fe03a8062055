"""The lap's page: the one place that knows how a report is asked for."""

from __future__ import annotations

from pathlib import Path

from hotlap.base.events import Emit
from hotlap.records.run import RunRecord


def draw(record: RunRecord, emit: Emit) -> Path:
    """One self-contained page beside the lap's record, drawn from it and from the records of its stages."""
    from hotlap.tools.report import ReportConfig, report

    title = f"A lap of {record.config['target']}, {record.config['mode']}"
    return report(ReportConfig(records=(record.path,), title=title), emit)
