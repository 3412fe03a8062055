"""The profile as a tool: a target traced in a process of its own, traces of one rank or many, two profiles compared."""

from __future__ import annotations

import dataclasses
import json
import re
import sys
from pathlib import Path

import pytest
from fake_trace import FakeTrace, training_trace
from rich.console import Console
from test_report import Page

import hotlap
from hotlap.base.errors import ConfigError, DataError, RecordError, TargetError
from hotlap.base.format import format_ms
from hotlap.cli.main import run as command
from hotlap.cli.show import show_record
from hotlap.measure import profiled
from hotlap.measure.jobs import Description, find_job
from hotlap.measure.process import quiet
from hotlap.records.ceilings import Ceiling, Ceilings, write_ceilings
from hotlap.records.codec import encode
from hotlap.records.run import load_record, run_folder, save
from hotlap.targets import MADE_UP_LOSS
from hotlap.tools.profile import ProfileConfig, profile
from hotlap.tools.report import render

run_module = sys.modules["hotlap.tools.profile.run"]
MODEL = """
from torch import nn

def net():
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 2))
"""


def printed(record) -> str:
    console = Console(width=160, force_terminal=False, no_color=True)
    with console.capture() as capture:
        show_record(record, console)
    return capture.get()


def read(tmp_path, *traces: FakeTrace, **settings):
    files = [str(t.write(tmp_path / f"t{place}.pt.trace.json.gz")) for place, t in enumerate(traces)]
    return profile(ProfileConfig(trace=tuple(files), runs=tmp_path / "runs", **settings))


@pytest.fixture(scope="module")
def of_target(tmp_path_factory):
    """One run of the whole tool, its jobs done in this process, where they need no seconds to start and warm up."""

    def here(job, *, timeout_s, listen=quiet):
        return json.loads(json.dumps(encode(find_job(job["job"])(job, listen))))

    brief = dataclasses.replace(profiled.WARM_UP, warmup_seconds=0.0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_module, "run_job", here)
        patch.setattr(profiled, "WARM_UP", brief)
        return traced(tmp_path_factory)


def traced(tmp_path_factory):
    folder = tmp_path_factory.mktemp("target")
    (folder / "net.py").write_text(MODEL)
    target = f"{folder / 'net.py'}:net"
    runs = folder / "runs"
    return hotlap.profile(target, input=("3x8x8",), arm="cpu:threads=1", batch=2, steps=2, runs=runs, name="net")


def test_a_targets_record_holds_the_step_the_slow_down_and_the_traces(of_target):
    assert of_target.status == "complete" and of_target.kind == "profile"
    found = of_target.extra["profile"]
    analysis, measured = found["analysis"], found["measured"]
    assert sum(part["ms"] for part in analysis["categories"]) == pytest.approx(analysis["step_ms"])
    assert {"convolution", "normalisation", "matmul", "optimizer"} <= {part["name"] for part in analysis["categories"]}
    assert analysis["steps"] == 2 and measured["slow_down"] == pytest.approx(
        measured["traced_ms"] / measured["step_ms"]
    )
    assert any("The profiler made the step" in note for note in of_target.notes)
    assert MADE_UP_LOSS in of_target.notes
    assert any(re.search(r"GFLOP of products run at [\d.]+ GFLOP/s", line) for line in of_target.verdict.lines)
    assert {row["name"] for row in analysis["modules"]} >= {"model", "0", "1", "4"}
    assert analysis["memory"][0]["peak_bytes"] > 0
    again = load_record(of_target.path)
    assert again.samples("cpu:threads=1", "step")[0] and again.verdict == of_target.verdict
    assert all((Path(of_target.path).parent / name).is_file() for name in measured["traces"])
    assert "cpu:threads=1" in measured["traces"][0].replace("-", ":")


def test_a_trace_that_is_hardly_of_the_same_step_says_so():
    ran = profiled.Profiled(
        arm="cpu", mode="train", batch=1, steps=1, trace="t", detail="d", step_ms=[10.0], traced_ms=29.0, detail_ms=65.0
    )
    told = run_module.slow_down_told(ran, 10.0)
    assert "2.90x as long, and 6.50x with stacks" in told and "may mislead" not in told
    disturbed = run_module.slow_down_told(dataclasses.replace(ran, traced_ms=109.0), 10.0)
    assert "10.9x as long" in disturbed and "its shares may mislead: other work on this machine" in disturbed


def test_a_targets_advice_repeats_the_target_in_its_command(of_target):
    advice = {row["name"]: row for row in of_target.extra["profile"]["advice"]}
    assert advice, "a step of tiny operators leaves something to gain"
    for row in advice.values():
        if row["arm"]:
            assert "--input 3x8x8" in row["command"] and f"--arms cpu:threads=1,{row['arm']}" in row["command"]


def test_a_trace_with_fewer_steps_than_were_run_is_noted(tmp_path, monkeypatch, of_target):
    kept = Path(of_target.path).parent / of_target.extra["profile"]["measured"]["traces"][0]
    ran = profiled.Profiled(
        arm="cpu", mode="train", batch=2, steps=7, trace=str(kept), detail="", step_ms=[1.0], traced_ms=2.0
    )
    about = Description(
        name="net", summary="", default_batch=2, num_parameters=1, has_convolutions=True, can_compile=False,
        fast_bf16=False, usable_cores=1, num_cuda=0,
    )  # fmt: skip
    answers = {"describe": about, "profile": ran}
    monkeypatch.setattr(run_module, "run_job", lambda job, **_: encode(answers[job["job"]]))
    record = profile(ProfileConfig(target="net.py:net", runs=tmp_path))
    assert "The trace holds 2 of 7 steps; the profiler lost the others." in record.notes


def test_a_target_that_cannot_run_fails_with_a_record_that_says_so(tmp_path):
    (tmp_path / "bad.py").write_text("from torch import nn\n\ndef net():\n    return nn.Linear(3, 2)\n")
    with pytest.raises(TargetError, match="raised RuntimeError while it was measured"):
        hotlap.profile(f"{tmp_path / 'bad.py'}:net", input=("5",), batch=2, runs=tmp_path / "runs", name="bad")
    (file,) = (tmp_path / "runs").glob("bad/*/record.json")
    assert load_record(file).status == "failed"


def test_a_trace_is_read_without_a_target(tmp_path):
    record = read(tmp_path, training_trace())
    found = record.extra["profile"]
    assert record.verdict.headline == (
        "t0.pt.trace.json.gz: 1.00 ms a step, convolution 60%, optimizer 14% and idle: launch-bound 14%"
    )
    assert found["analysis"]["on_device"] and found["ranks"] == []
    assert any("idle 21% of the traced step: launch-bound 0.140 ms" in line for line in record.verdict.lines)
    text = printed(record)
    for words in ("convolution", "multi_tensor_apply_kernel", "tensor cores", "at aten::item", "what to try"):
        assert words in text


def test_ceilings_for_a_trace_come_from_the_file_that_is_named(tmp_path):
    rates = [Ceiling(quantity="matmul", unit="TFLOP/s", dtype="tf32", values=[9.0, 10.0, 12.0])]
    rates.append(Ceiling(quantity="copy", unit="GB/s", values=[900.0]))
    made = Ceilings(kind="cuda", device="Card", key="card", torch="2.15", measured_at="now", ceilings=rates)
    file = write_ceilings(made, tmp_path)
    roof = read(tmp_path, training_trace(), ceilings=file).extra["profile"]["roofline"]
    assert roof["ceilings"] == {"tf32": 10.0, "copy": 900.0}
    assert roof["rows"][0]["distance"] > 1
    with pytest.raises(RecordError, match=r"ceilings = '.*other.json' does not exist"):
        read(tmp_path, training_trace(), ceilings=tmp_path / "other.json")


def ranks(tmp_path, *slow):
    """Traces of ranks whose products take as long as given, then an exchange until 1000 us."""
    folder = tmp_path / "ranks"
    folder.mkdir(exist_ok=True)
    for rank, length in enumerate(slow):
        trace = FakeTrace(rank=rank, world=len(slow))
        trace.step(0, 0, 1000)
        trace.launch("gemm", (0, 2), (0, length), op=trace.op("aten::mm", 0, 5))
        trace.launch("ncclDevKernel_AllReduce_Sum_f32", (5, 2), (length, 1000 - length), stream=20)
        trace.write(folder / f"job_{rank}.pt.trace.json.gz")
    return folder


def test_of_several_ranks_the_slowest_is_shown_and_the_others_waits_are_told(tmp_path):
    folder = ranks(tmp_path, 400.0, 900.0, 600.0)
    record = profile(ProfileConfig(trace=(str(folder),), runs=tmp_path / "runs"))
    found = record.extra["profile"]
    assert [(row["rank"], round(row["waits_ms"], 3), round(row["communication_ms"], 3)) for row in found["ranks"]] == [
        (0, 0.5, 0.6), (1, 0.0, 0.1), (2, 0.3, 0.4),
    ]  # fmt: skip
    assert found["analysis"]["trace"].endswith("job_1.pt.trace.json.gz")
    assert "Rank 1 is the slowest of 3; others wait up to 0.500 ms for it." in record.verdict.lines
    assert "rank 2: 1.00 ms a step" in printed(record)
    assert "Before the slowest" in render([record])


def test_two_traces_of_one_rank_are_refused(tmp_path):
    first, second = training_trace(rank=2, world=4), training_trace(rank=2, world=4)
    with pytest.raises(DataError, match="two traces are of rank 2"):
        read(tmp_path, first, second)


def test_a_folder_without_traces_is_refused_by_name(tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=r"folder '.*empty' holds no trace"):
        profile(ProfileConfig(trace=(str(tmp_path / "empty"),), runs=tmp_path / "runs"))


def test_a_cut_trace_is_analysed_with_a_warning(tmp_path):
    text = training_trace(steps=3).text()
    (tmp_path / "cut.pt.trace.json").write_text(text[: len(text) * 3 // 4])
    said = []
    record = profile(
        ProfileConfig(trace=(str(tmp_path / "cut.pt.trace.json"),), runs=tmp_path / "runs"), lambda e: said.append(e)
    )
    assert any("was cut" in note for note in record.notes)
    assert any(e.kind == "warn" and "ends in the middle" in e.text for e in said)
    parts = record.extra["profile"]["analysis"]
    assert sum(p["ms"] for p in parts["categories"]) == pytest.approx(parts["step_ms"])


def slower_trace():
    trace = FakeTrace()
    trace.step(0, 0, 2000)
    trace.launch("gemm", (0, 2), (0, 1500), op=trace.op("aten::mm", 0, 5))
    trace.launch("relu_elementwise", (8, 2), (1500, 400), op=trace.op("aten::relu", 6, 5))
    return trace


def faster_trace():
    trace = FakeTrace()
    trace.step(0, 0, 1000)
    trace.launch("gemm", (0, 2), (0, 900), op=trace.op("aten::mm", 0, 5))
    return trace


def test_two_traces_are_compared_part_by_part(tmp_path, capsys):
    before = slower_trace().write(tmp_path / "before.pt.trace.json")
    after = faster_trace().write(tmp_path / "after.pt.trace.json.gz")
    assert command(["profile", "--diff", str(before), str(after), "--runs", str(tmp_path / "runs"), "--json"]) == 0
    diff = json.loads(capsys.readouterr().out)["extra"]["diff"]
    assert (diff["before_ms"], diff["after_ms"], diff["traced"]) == (2.0, 1.0, True)
    changed = {row["name"]: (row["before_ms"], row["after_ms"]) for row in diff["categories"]}
    assert changed["matmul"] == (pytest.approx(1.5), pytest.approx(0.9))
    assert changed["elementwise"] == (pytest.approx(0.4), 0.0)
    assert diff["kernels"][0]["name"] == "gemm", "the largest change comes first"


def test_traces_are_compared_by_any_name_and_one_that_was_cut_is_told(tmp_path):
    before, whole = (slower_trace().write(tmp_path / name) for name in ("trace.json", "whole.json"))
    after = tmp_path / "after.json"
    text = whole.read_text()
    after.write_text(text[: text.rindex('"ph"')])
    record = profile(ProfileConfig(diff=(str(before), str(after)), runs=tmp_path / "runs"))
    assert (record.extra["diff"]["before"], record.extra["diff"]["after"]) == ("trace.json", "after.json")
    assert any(note.startswith("after.json: The trace was cut, so shares may be wrong") for note in record.notes)
    assert not any(note.startswith("trace.json:") for note in record.notes)


def test_records_are_compared_by_the_step_without_the_profiler(tmp_path, of_target):
    config = ProfileConfig(diff=(of_target.path, of_target.path), runs=tmp_path / "runs")
    record = profile(config)
    diff = record.extra["diff"]
    assert diff["before_ms"] == diff["after_ms"] == of_target.extra["profile"]["measured"]["step_ms"]
    assert not diff["traced"] and diff["before"].endswith("(1)") and "takes 1.00x the time" in record.verdict.headline
    traced = format_ms(of_target.extra["profile"]["analysis"]["step_ms"])
    assert f"Parts are of the traced steps, {traced} before and {traced} after" in " ".join(record.notes)
    assert re.search(r"convolution .* 0 ms *\n", printed(record)) and "-0 ms" not in printed(record)


def test_a_record_without_a_profile_is_refused_by_name(tmp_path, of_target):
    other = save(dataclasses.replace(of_target, kind="bench", extra={}), run_folder(tmp_path, "bench"))
    broken = dataclasses.replace(of_target, extra={"profile": {"analysis": {"steps": "two"}}})
    broken = save(broken, run_folder(tmp_path, "broken"))
    with pytest.raises(RecordError, match=r"record '.*bench.*' holds no profile: it is a bench run, complete"):
        profile(ProfileConfig(diff=(other.path, of_target.path), runs=tmp_path))
    with pytest.raises(RecordError, match=r"record '.*broken.*' has a malformed profile: "):
        profile(ProfileConfig(diff=(of_target.path, broken.path), runs=tmp_path))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({}, "no target given"),
        ({"target": "unet", "steps": 0}, "steps = 0 is not valid"),
        ({"target": "unet", "batch": 0}, "batch = 0 is not valid"),
        ({"target": "unet", "timeout_s": -1.0}, r"timeout_s = -1.0 is out of range"),
        ({"target": "unet", "warmup_seconds": 0.0}, r"warmup_seconds = 0.0 is out of range"),
        ({"diff": ("a",)}, r"diff = \['a'\] names 1"),
        ({"diff": ("a", "b", "c")}, r"diff = \['a', 'b', 'c'\] names 3"),
        ({"diff": ("a", "b"), "trace": ("c",)}, "diff and trace were both given"),
        ({"trace": ("a",), "check_advice": True}, "check_advice = True needs a target"),
    ],
)  # fmt: skip
def test_settings_that_make_no_sense_are_refused_by_name_and_value(settings, words):
    with pytest.raises(ConfigError, match=words):
        ProfileConfig(**settings)


def test_the_page_shows_the_whole_profile(tmp_path, of_target):
    record = read(tmp_path, training_trace())
    page = render([record, of_target])
    titles = ("What a step is made of", "Why the device was idle", "What to try", "Longest kernels", "By module",
              "Memory of host", "Who held it at the peak", "Roofline", "Lines that make the host wait")  # fmt: skip
    assert [title for title in titles if title not in page] == []
    read_page = Page(page)
    assert (read_page.faults, read_page.loads) == ([], []), "whole, and complete in itself"
    assert page.count("hotlap bench") >= 1 and "No ceilings were measured" in page


def test_the_page_shows_what_changed(tmp_path):
    before = slower_trace().write(tmp_path / "before.pt.trace.json")
    after = faster_trace().write(tmp_path / "after.pt.trace.json")
    page = render([profile(ProfileConfig(diff=(str(before), str(after)), runs=tmp_path / "runs"))])
    assert "What changed" in page and "By kernel" in page and "−0.600 ms" in page


def test_the_words_of_a_trace_stay_words_on_the_page(tmp_path):
    trace = FakeTrace()
    trace.step(0, 0, 100)
    trace.launch("<script>alert(1)</script>", (0, 2), (0, 50), op=trace.op("aten::mm<img src=x>", 0, 5))
    page = render([read(tmp_path, trace)])
    assert "<script>alert" not in page and "<img src=x" not in page
