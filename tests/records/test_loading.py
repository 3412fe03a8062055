"""The record of a run whose target is still being loaded."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import pytest

from hotlap.base.errors import ConfigError
from hotlap.records.loading import loading
from hotlap.records.run import begin, find_runs, load_record, save


@dataclass(frozen=True)
class Config:
    """What records keep of a tool's."""

    runs: Path = field(default_factory=lambda: Path("runs"))
    batch: int | None = None


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def held() -> list:
    return [load_record(file) for file in find_runs(Path("runs"))]


def test_there_is_a_record_that_says_so_while_the_target_is_loaded():
    with loading("bench", "net", Config(), {"batch": "default"}) as claim:
        (record,) = held()
        assert (record.kind, record.name, record.status) == ("bench", "net", "running")
        assert record.notes == ["The target was being loaded; nothing was measured yet."]
        assert record.config_sources == {"batch": "default"}
        folder = claim.take()
        assert (claim.name, folder) == ("net", Path(record.path).parent), "the run goes on in the same folder"
        save(begin("bench", "net", Config(batch=3), {}, record.environment), folder)
    (record,) = held()
    assert record.config["batch"] == 3 and record.notes == []


def test_who_interrupts_then_finds_a_record_that_says_so():
    with pytest.raises(KeyboardInterrupt), loading("bench", "net", Config(), {}):
        raise KeyboardInterrupt
    (record,) = held()
    assert record.status == "interrupted" and record.finished_at
    assert record.verdict is not None and record.verdict.outcome == "interrupted"
    assert "nothing was measured yet" in record.verdict.headline


@pytest.mark.parametrize("before", [False, True])
def test_a_target_that_cannot_be_loaded_leaves_nothing(before):
    if before:
        Path("runs/net").mkdir(parents=True)
        Path("runs/net/mine.txt").write_text("kept")
    with pytest.raises(ConfigError), loading("bench", "net", Config(), {}):
        assert len(held()) == 1
        raise ConfigError("no such target")
    assert held() == []
    assert sorted(str(path) for path in Path().rglob("*")) == (
        ["runs", "runs/net", "runs/net/mine.txt"] if before else []
    )


@pytest.mark.parametrize("error", [ConfigError("late"), KeyboardInterrupt()])
def test_a_run_that_has_its_folder_looks_after_its_record_itself(error):
    with pytest.raises(type(error)), loading("bench", "net", Config(), {}) as claim:
        claim.take()
        raise error
    (record,) = held()
    assert record.status == "running"
