"""Metrics as they come: exact, strict, cut back to a checkpoint, and whole after a kill."""

from __future__ import annotations

import csv
import errno
import json
import math
import os
import resource
import signal
import subprocess
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hotlap.base.errors import ConfigError, EnvironmentUnusable, RecordError, StorageError
from hotlap.engine.journal import BOARD, LINES, TABLE, Journal, Row, read_journal


def logged(folder, *steps, **options):
    with Journal(folder, **options) as journal:
        for step in steps:
            journal.log(step, step // 3, "train", {"loss": 1 / (step + 1), "lr": 0.1})
    return folder


def table(folder):
    with open(folder / TABLE, newline="") as file:
        return list(csv.DictReader(file))


def steps(folder):
    """The steps in the lines, after checking that the table tells the same."""
    rows = read_journal(folder)
    flat = [(str(r.step), str(r.epoch), r.split, name, repr(value)) for r in rows for name, value in r.values.items()]
    assert [tuple(cells.values()) for cells in table(folder)] == flat
    return [row.step for row in rows]


def test_rows_come_back_in_order_from_lines_and_table(tmp_path):
    with Journal(tmp_path) as journal:
        journal.log(1, 0, "train", {"loss": 0.1 + 0.2, "lr": 1e-300})
        journal.log(1, 0, "eval", {"top1": 1})
    assert read_journal(tmp_path) == [
        Row(step=1, epoch=0, split="train", values={"loss": 0.1 + 0.2, "lr": 1e-300}),
        Row(step=1, epoch=0, split="eval", values={"top1": 1.0}),
    ]
    assert (tmp_path / TABLE).read_text().splitlines() == [
        "step,epoch,split,name,value",
        "1,0,train,loss,0.30000000000000004",
        "1,0,train,lr,1e-300",
        "1,0,eval,top1,1.0",
    ]


@settings(max_examples=40)
@given(values=st.dictionaries(st.text(), st.floats(width=64), max_size=5))
def test_any_name_and_any_number_survive_both_files(tmp_path_factory, values):
    folder = tmp_path_factory.mktemp("any")
    with Journal(folder) as journal:
        journal.log(1, 0, "train", values)
        journal.log(2, 0, "eval", {"after": 1.0})
    first, second = read_journal(folder)
    assert list(map(repr, first.values.items())) == list(map(repr, values.items()))
    assert second.values == {"after": 1.0}


def test_numbers_that_are_not_finite_leave_strict_json(tmp_path):
    with Journal(tmp_path) as journal:
        journal.log(5, 1, "train", {"loss": math.nan, "norm": -math.inf, "lr": 0.5})

    def refuse(constant):
        raise AssertionError(f"{constant} is not JSON")

    data = json.loads((tmp_path / LINES).read_text(), parse_constant=refuse)
    assert data["values"] == {"loss": None, "norm": None, "lr": 0.5}
    assert data["non_finite"] == {"loss": "nan", "norm": "-inf"}
    assert [cells["value"] for cells in table(tmp_path)] == ["nan", "-inf", "0.5"]
    (row,) = read_journal(tmp_path)
    assert math.isnan(row.values["loss"])
    assert row.values["norm"] == -math.inf


def test_a_tensor_of_one_number_can_be_logged(tmp_path, device):
    with Journal(tmp_path) as journal:
        journal.log(1, 0, "train", {"loss": torch.tensor(0.25, device=device)})
    assert read_journal(tmp_path)[0].values == {"loss": 0.25}


def test_rows_are_there_before_the_journal_is_closed(tmp_path):
    journal = Journal(tmp_path)
    journal.log(1, 0, "train", {"loss": 1.0})
    assert steps(tmp_path) == [1]
    journal.sync()
    journal.close()
    journal.close()


def test_a_journal_opened_again_goes_on(tmp_path):
    logged(tmp_path, 1, 2)
    logged(tmp_path, 3)
    assert steps(tmp_path) == [1, 2, 3]


def test_a_resumed_run_has_no_row_twice(tmp_path):
    logged(tmp_path, *range(1, 8))
    logged(tmp_path, 5, 6, 7, 8, resume_step=4)
    assert steps(tmp_path) == [1, 2, 3, 4, 5, 6, 7, 8]


def test_rows_of_the_resumed_step_that_came_after_its_checkpoint_are_dropped(tmp_path):
    with Journal(tmp_path) as journal:
        journal.log(5, 1, "train", {"loss": 1.0})
        saved = journal.num_rows
        journal.log(5, 1, "eval", {"loss": 2.0})
        journal.log(6, 1, "train", {"loss": 3.0})
    with Journal(tmp_path, resume_step=5, resume_rows=saved) as journal:
        assert journal.num_rows == 1
        journal.log(5, 1, "eval", {"loss": 2.0})
    assert [(row.step, row.split) for row in read_journal(tmp_path)] == [(5, "train"), (5, "eval")]


def test_a_running_journal_can_be_cut_back(tmp_path):
    with Journal(tmp_path) as journal:
        for step in (1, 2, 3, 2):
            journal.log(step, 0, "train", {"loss": float(step)})
        journal.truncate_after(2)
        journal.log(3, 0, "train", {"loss": 9.0})
    assert steps(tmp_path) == [1, 2, 2, 3]
    assert not list(tmp_path.glob(".*.tmp"))


@pytest.mark.parametrize("name", [LINES, TABLE])
@pytest.mark.parametrize("num_bytes", [1, 2, 9, 30])
def test_half_a_last_line_is_dropped_and_the_table_follows_the_lines(tmp_path, name, num_bytes):
    path = logged(tmp_path, 1, 2, 3) / name
    path.write_bytes(path.read_bytes()[:-num_bytes])
    left = [1, 2, 3] if name == TABLE else [1, 2]
    assert [row.step for row in read_journal(tmp_path)] == left
    logged(tmp_path, 4)
    assert steps(tmp_path) == [*left, 4]


def test_a_lost_table_is_made_again(tmp_path):
    (logged(tmp_path, 1, 2) / TABLE).unlink()
    logged(tmp_path)
    assert steps(tmp_path) == [1, 2]


@pytest.mark.parametrize(
    "line", ['{"step": 1}', "[]", "\x00\x00", '{"step":1,"epoch":0,"split":"train","values":{"a":null}}']
)
def test_a_spoilt_line_in_the_middle_is_named(tmp_path, line):
    path = logged(tmp_path, 1, 2) / LINES
    first, second = path.read_text().splitlines()
    path.write_text(f"{first}\n{line}\n{second}\n")
    with pytest.raises(RecordError, match=r"line 2 of '.*metrics\.jsonl' is no row of metrics"):
        read_journal(tmp_path)
    with pytest.raises(RecordError, match="line 2"):
        Journal(tmp_path)
    assert line in path.read_text()


def test_a_folder_without_metrics_is_named(tmp_path):
    with pytest.raises(RecordError, match=r"no metrics at '.*metrics\.jsonl'.*folder of a training"):
        read_journal(tmp_path)


@pytest.mark.parametrize(
    ("split", "values", "words"),
    [
        ("test", {}, r"split = 'test' is unknown\. Expected train or eval"),
        ("train", {"loss": "x"}, "loss = 'x' is no number"),
    ],
)
def test_a_wrong_row_is_refused_and_leaves_nothing(tmp_path, split, values, words):
    with Journal(tmp_path) as journal, pytest.raises(ConfigError, match=words):
        journal.log(1, 0, split, values)
    assert steps(tmp_path) == []


def test_a_full_disk_leaves_no_half_row(tmp_path):
    with Journal(tmp_path) as journal:
        journal.log(1, 0, "train", {"loss": 1.0})
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, ((tmp_path / LINES).stat().st_size + 20, limits[1]))
        try:
            with pytest.raises(StorageError, match=r"cannot write '.*metrics\.jsonl': .*20 of .* bytes.*untouched"):
                journal.log(2, 0, "train", {"loss": 2.0})
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        journal.log(3, 0, "train", {"loss": 3.0})
    assert steps(tmp_path) == [1, 3]


@pytest.mark.parametrize("broken", ["os.fsync", "pathlib.Path.replace"])
def test_a_cut_that_fails_leaves_all_rows(tmp_path, monkeypatch, broken):
    logged(tmp_path, 1, 2, 3)

    def fail(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(broken, fail)
        with pytest.raises(StorageError, match=r"metrics\.jsonl': No space left on device"):
            Journal(tmp_path, resume_step=1)
    assert steps(tmp_path) == [1, 2, 3]
    assert not list(tmp_path.glob(".*.tmp"))


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StorageError, match=r"file/run/metrics\.jsonl': Not a directory"):
        Journal(tmp_path / "file/run")


def test_a_killed_writer_leaves_rows_without_gap(tmp_path):
    code = (
        "import sys, itertools; from pathlib import Path; from hotlap.engine.journal import Journal\n"
        "journal = Journal(Path(sys.argv[1]))\n"
        "for step in itertools.count(1):\n"
        "    journal.log(step, 0, 'train', {'loss': 0.5})\n"
        "    print(step, flush=True)\n"
    )
    writer = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    for _ in range(200):
        writer.stdout.readline()
    writer.send_signal(signal.SIGKILL)
    last = int((writer.communicate()[0].splitlines() or ["200"])[-1])
    logged(tmp_path)
    found = steps(tmp_path)
    assert found == list(range(1, len(found) + 1))
    assert len(found) >= last >= 200


def test_a_missing_tensorboard_is_said_with_its_remedy(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard.writer", None)
    with pytest.raises(EnvironmentUnusable, match=r"tensorboard = True needs.*pip install 'hotlap\[tensorboard\]'"):
        Journal(tmp_path / "run", tensorboard=True)
    assert not (tmp_path / "run").exists()


def test_tensorboard_shows_each_step_once_after_a_resume(tmp_path):
    loading = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator", reason="no tensorboard")
    logged(tmp_path, *range(1, 8), tensorboard=True)
    logged(tmp_path, 5, 6, tensorboard=True, resume_step=4)
    events = loading.EventAccumulator(str(tmp_path / BOARD)).Reload()
    shown = events.Scalars("train/loss")
    assert [event.step for event in shown] == [1, 2, 3, 4, 5, 6]
    assert [event.value for event in shown] == pytest.approx([1 / (step + 1) for step in range(1, 7)])
    assert steps(tmp_path) == [1, 2, 3, 4, 5, 6]


def test_importing_the_journal_imports_neither_torch_nor_tensorboard():
    code = "import sys, hotlap.engine.journal; print(sorted({'torch', 'tensorboard'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
