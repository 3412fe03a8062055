"""Traces read into columns: whole, compressed, cut, damaged, of several shapes, or refused."""

from __future__ import annotations

import gzip
import json
import random
import sys
from pathlib import Path

import numpy as np
import pytest

from hotlap.base.errors import DataError
from hotlap.data import json_events
from hotlap.data.kineto import read_trace

sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))
from fake_trace import FakeTrace, training_trace


def counts(trace):
    return {name: len(getattr(trace, name)) for name in ("ops", "notes", "python", "runtime", "device", "memory")}


@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize("suffix", [".json", ".json.gz"])
def test_every_event_arrives_whatever_the_windows_cut(tmp_path, monkeypatch, suffix, indent):
    monkeypatch.setattr(json_events, "WINDOW_BYTES", 997)  # a prime, so that windows end anywhere in an event
    made = training_trace(steps=3)
    found = read_trace(made.write(tmp_path / f"t.pt.trace{suffix}", indent=indent))
    assert counts(found) == {"ops": 18, "notes": 15, "python": 0, "runtime": 15, "device": 12, "memory": 0}
    assert found.warnings == [] and not found.cut
    wanted = {e["name"] for e in made.events if e.get("cat") in ("cpu_op", "kernel", "cuda_runtime", "user_annotation")}
    assert set(found.names) == wanted


def test_times_are_microseconds_from_the_first_event_and_sorted(tmp_path):
    found = read_trace(training_trace().write(tmp_path / "t.json"))
    assert found.notes.start[0] == 0.0
    assert np.all(np.diff(found.ops.start) >= 0)
    place = found.names_of(found.ops).index("aten::convolution")
    assert (found.ops.start[place], found.ops.duration[place]) == (pytest.approx(20.0), pytest.approx(20.0))
    assert found.shapes[found.ops.extra[place]].dims[:2] == ((8, 16, 32, 32), (32, 16, 3, 3))


def test_kernels_join_their_call_and_their_operator(tmp_path):
    found = read_trace(training_trace(steps=1).write(tmp_path / "t.json"))
    kernel = found.names_of(found.device).index("batch_norm_fwd")
    call = found.runtime.correlation.tolist().index(found.device.correlation[kernel])
    op = found.ops.link.tolist().index(found.device.link[kernel])
    assert found.runtime.start[call] == pytest.approx(65.0)
    assert found.names_of(found.ops)[op] == "aten::batch_norm"


def test_a_cut_text_is_read_as_far_as_it_goes_and_it_is_said(tmp_path):
    whole = training_trace(steps=3).text()
    file = tmp_path / "cut.json"
    file.write_text(whole[: len(whole) * 2 // 3])
    found = read_trace(file)
    assert 0 < len(found.device) < 12
    assert found.cut and "ends in the middle of its events" in found.warnings[0]


def test_a_cut_gzip_is_read_as_far_as_it_goes_and_it_is_said(tmp_path):
    made = training_trace(steps=50)
    random.Random(0).shuffle(made.events)  # so that compressed bytes are spread over the events
    file = made.write(tmp_path / "t.json.gz")
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    found = read_trace(file)
    assert 0 < len(found.ops) < 300
    assert found.cut and "damaged or cut" in found.warnings[0]


def test_a_damaged_event_is_left_out_and_counted(tmp_path):
    text = training_trace(steps=2).text(indent=None)
    broken = text.replace('"name": "aten::item"', '"name": "aten::it\\x"', 1)
    (tmp_path / "t.json").write_text(broken)
    found = read_trace(tmp_path / "t.json")
    assert len(found.ops) == 11
    assert found.warnings == ["1 damaged event(s) were left out."]


def test_a_bare_list_of_events_is_a_trace_too(tmp_path):
    (tmp_path / "t.json").write_text(json.dumps(training_trace(steps=1).events))
    assert len(read_trace(tmp_path / "t.json").ops) == 6


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("none.json", None, "trace '.*none.json' cannot be read: No such file"),
        ("empty.json", b"", "trace '.*empty.json' holds no list of events"),
        ("record.json", b'{"schema_version": 1, "kind": "bench"}', "'.*record.json' holds no list of events"),
        ("picture.json", b"\x89PNG\r\n", "'.*picture.json' holds no list of events"),
        ("cut.json.gz", gzip.compress(b'{"traceEvents": [' + b" " * 5000, mtime=0)[:20], "holds no list of events"),
        ("marks.json", b'{"traceEvents": [{"ph": "M", "name": "process_name", "ts": 1}]}', "holds no operator and no"),
        ("odd.json", b'{"traceEvents": [{"ph": "X", "cat": "cpu_op", "name": "a"}]}', "not one: KeyError: 'ts'"),
    ],
)  # fmt: skip
def test_what_is_no_trace_is_refused_by_name(tmp_path, name, content, words):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=words):
        read_trace(tmp_path / name)


def test_the_rank_comes_from_the_file_or_from_its_name(tmp_path):
    told = FakeTrace(rank=3, world=8)
    told.op("aten::mm", 0, 1)
    found = read_trace(told.write(tmp_path / "rank7.json"))
    assert (found.rank, found.world_size) == (3, 8)
    silent = FakeTrace()
    silent.op("aten::mm", 0, 1)
    assert read_trace(silent.write(tmp_path / "job_rank_5.pt.trace.json")).rank == 5
    assert read_trace(silent.write(tmp_path / "alone.json")).rank is None


def test_names_of_python_calls_do_not_grow_with_addresses(tmp_path):
    trace = FakeTrace()
    trace.op("aten::mm", 0, 1)
    for address in range(50):
        trace.python(f"<built-in method item of Tensor object at 0x7f{address:04x}>", 2.0 * address, 1)
    found = read_trace(trace.write(tmp_path / "t.json"))
    assert len(found.python) == 50 and len(found.names) <= 3


def test_the_reader_tells_how_far_it_is(tmp_path, monkeypatch):
    monkeypatch.setattr(json_events, "WINDOW_BYTES", 2000)
    monkeypatch.setattr("hotlap.data.kineto.HEARD_EVERY_BYTES", 4000)
    heard = []
    file = training_trace(steps=2).write(tmp_path / "t.json")
    read_trace(file, heard.append)
    assert heard == sorted(heard) and 2 < len(heard) <= file.stat().st_size / 4000
