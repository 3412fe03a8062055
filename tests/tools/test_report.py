"""The page says the right words for every kind of run, stands alone, and draws within its frame."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from html.parser import HTMLParser
from importlib import resources
from pathlib import Path

import fake_records
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hotlap.base.errors import RecordError, StorageError, UsageError
from hotlap.base.format import format_bytes
from hotlap.records.measurement import Arm, Measurement
from hotlap.records.run import RunRecord, save
from hotlap.tools.report import ReportConfig, charts, render, report, report_files, series, svg
from hotlap.tools.report.compose import compose
from hotlap.tools.report.doctor import ceiling_groups
from hotlap.tools.report.sections import MACHINE

VOID = {"meta", "br", "link", "img", "hr", "input", "wbr"}
KINDS = sorted(fake_records.ALL)


class Page(HTMLParser):
    """What a page holds: balance of tags, loads from outside, words outside scripts and style."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.faults: list[str] = []
        self.loads: list[str] = []
        self.ids: list[str] = []
        self.targets: list[str] = []
        self.words: list[str] = []
        self.tags: list[str] = []
        self.feed(html)
        self.close()
        self.faults += [f"<{tag}> is never closed" for tag in self.open]

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        for name, value in attrs:
            if name in ("src", "href", "action", "data", "srcset", "poster", "xlink:href"):
                (self.targets if (value or "").startswith("#") else self.loads).append(value)
            if name == "id":
                self.ids.append(value)
            if name.startswith("on"):
                self.faults.append(f"{name}={value}")
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        if not self.open or self.open.pop() != tag:
            self.faults.append(f"</{tag}> at {self.getpos()}")

    def handle_data(self, data):
        if not self.open or self.open[-1] not in ("script", "style"):
            self.words.append(data)

    @property
    def text(self) -> str:
        return re.sub(r"\s+", " ", " ".join(self.words))


def row_of(html: str, arm: str) -> str:
    """The table row of one arm, as words."""
    rows = [Page(row).text for row in re.findall(r"<tr>.*?</tr>", html.replace("<wbr>", ""), re.DOTALL)]
    return next(row for row in rows if f" {arm} " in row)


@pytest.mark.parametrize("kind", KINDS)
def test_page_is_whole_and_loads_nothing(kind):
    html = render([fake_records.ALL[kind]()])
    page = Page(html)
    assert page.faults == []
    assert page.loads == []
    assert len(page.ids) == len(set(page.ids))
    assert {target[1:] for target in page.targets} <= set(page.ids)
    assert not re.search(r"https?://|@import|url\(|fetch\(|XMLHttp", html)
    assert len(html.encode()) < 160_000


def test_an_arm_may_be_broken_between_its_options_and_is_copied_as_it_is():
    """A zero-width space would be copied with it, and refused where it is pasted."""
    html = render([fake_records.gpu_bench()])
    assert "cuda:bf16+<wbr>channels_last" in html and "\u200b" not in html


def test_several_records_have_an_index_and_one_table():
    records = [fake_records.gpu_bench(), fake_records.red_bench(), fake_records.doctor()]
    page = Page(render(records))
    assert page.faults == []
    assert {"#run-1", "#run-2", "#run-3"} <= set(page.targets)
    assert "3 runs side by side" in page.text
    assert "Every arm of every run" in page.text
    assert page.tags.count("article") == 3


def test_of_several_records_only_the_first_shows_its_machine_unfolded():
    html = render([fake_records.gpu_bench(), fake_records.red_bench(), fake_records.doctor()])
    folds = re.findall(r"<details([^>]*)>\s*<summary[^>]*>\s*Machine and software", html)
    assert [" open" in fold for fold in folds] == [True, False, False]


def test_a_machine_is_told_once_and_then_what_differs():
    first = fake_records.gpu_bench()
    moved = dataclasses.replace(first.environment, hostname="another-host")
    second = dataclasses.replace(first, environment=moved, started_at="2026-03-04T05:06:07")
    parts = compose([first, second, first]).parts
    told = [
        [block for section in part.sections for block in section.blocks if getattr(block, "title", "") == MACHINE]
        for part in parts
    ]
    pairs = [
        {pair.name: pair.value for block in fold.blocks for pair in getattr(block, "pairs", ())} for [fold] in told
    ]
    assert first.environment.cpu_model in pairs[0]["CPU"]
    assert pairs[1] == {"Host": "another-host", "Started": "2026-03-04T05:06:07"}
    assert pairs[2] == {} and told[2][0].blocks[0].text == "As in run 1."


@pytest.mark.parametrize(("kind", "name"), [("bench", "bench train"), ("lap", "unet-lap train")])
def test_a_run_called_by_its_kind_is_not_called_so_twice(kind, name):
    part = dataclasses.replace(compose([fake_records.gpu_bench()]).parts[0], kind=kind, name=name)
    assert part.label == name
    assert dataclasses.replace(part, name="benchmark").label == f"{kind} benchmark"


def test_a_good_run_shows_its_speed_and_why_to_trust_it():
    record = fake_records.gpu_bench()
    html = render([record])
    text = Page(html).text
    for words in ("8 fresh processes × 50 iterations", "20 checks passed in 4 arms", "12 of 96 blocks",
                  "software thermal slowdown", "A change of 2.1%", "1 of 40 comparisons", "launch-bound",
                  "the device was ours alone", "hotlap bench segment:small", "bench.yaml",
                  "record.json"):  # fmt: skip
        assert words in text
    assert record.verdict.headline in text
    assert "2.40x" in row_of(html, "cuda:bf16+channels_last")
    assert "device only 3.38x" in row_of(html, "cuda:bf16+channels_last")


def test_a_wrong_answer_gets_no_speed_up_anywhere():
    record = fake_records.red_bench()
    html = render([record])
    wrong = [c for c in record.comparisons if c.arm == "cuda:bf16+channels_last"]
    assert wrong
    row = row_of(html, "cuda:bf16+channels_last")
    assert "no speed-up: wrong answer" in row
    assert "2.1e-1" in row
    for comparison in wrong:
        assert f"{comparison.ratio:.2f}x" not in html
    assert "1.59x" in row_of(html, "cuda:tf32")
    assert "gate failed" in Page(html).text
    failed = row_of(html, "cuda:bf16+channels_last+compile")
    assert "OutOfMemory: batch 16 does not fit" in failed


def test_a_wrong_baseline_gives_no_speed_up_to_anyone():
    record = fake_records.gpu_bench()
    gates = [fake_records.gate("cuda:fp32", 1e-7, red=True), *record.gates[1:]]
    html = render([dataclasses.replace(record, gates=gates, verdict=None)])
    assert "no speed-up: the baseline's answer is wrong" in Page(html).text
    assert not re.search(r"\d\.\d\dx", html)


@pytest.mark.parametrize("status", ["interrupted", "failed", "running"])
def test_an_unfinished_run_says_so_first(status):
    record = dataclasses.replace(fake_records.interrupted_bench(), status=status)
    html = render([record])
    text = Page(html).text
    assert 'role="alert"' in html
    assert html.index('role="alert"') < html.index("Speed beside the baseline")
    assert f"{status} with samples of 3 processes; no verdict" in text
    assert "so far, no interval" in text
    assert "cuda:bf16+channels_last and cuda:bf16+channels_last+compile not checked" in text


def test_a_quick_cpu_run_shows_its_caveats_and_the_cpu_clock():
    text = Page(render([fake_records.cpu_bench()])).text
    for words in ("Quick mode: 3 processes", "few; repeat before relying on it", "inconclusive", "CPU clock, MHz",
                  "the interval holds 1x"):  # fmt: skip
        assert words in text
    assert "SM clock" not in text


def test_break_even_and_the_cpu_race_are_drawn():
    text = Page(render([fake_records.mixed_bench()])).text
    for words in ("break-even at batch 2", "From batch 2 on the card is faster", "cpu:threads=32+bf16",
                  "wrong answer", "chosen", "context"):  # fmt: skip
        assert words in text


def test_a_doctor_record_lists_failures_first_with_fixes():
    html = render([fake_records.doctor()])
    text = Page(html).text
    assert "1 check failed and 2 checks warned" in text
    assert text.index("library versions") < text.index("driver answers")
    assert text.index("persistence mode") < text.index("compiler")
    assert "sudo nvidia-smi -pm 1" in text
    assert "Measured ceilings, TFLOP/s" in text
    assert "Speed beside" not in text


def test_a_compare_record_has_a_row_for_each_comparison():
    text = Page(render([fake_records.compare()])).text
    assert "against cuda:bf16 before" in text
    assert "0.910x" in text
    assert "slower" in text


def test_a_record_of_nothing_is_still_a_page():
    for kind in ("bench", "doctor", "compare", "tune"):
        empty = RunRecord(
            kind=kind, name="empty", status="complete", started_at="", environment=fake_records.environment()
        )
        page = Page(render([empty]))
        assert page.faults == []
        assert "empty" in page.text


def test_one_arm_without_samples_or_comparisons():
    record = fake_records.bench([("cpu", "baseline", 5.0, 1.0)], gpu=False, measurements=[], telemetry=[], verdict=None)
    text = Page(render([record])).text
    assert "cpu takes 5.0" in text
    assert "nothing was compared" in text


def test_hostile_words_stay_words():
    evil = "<script>alert(1)</script><img src=x onerror=alert(2)>\"'"
    record = fake_records.gpu_bench()
    record = dataclasses.replace(
        record,
        name=evil,
        notes=[evil],
        command=["hotlap", evil],
        config={**record.config, "target": evil, evil: evil},
        arms=[dataclasses.replace(a, name=evil if k == 1 else a.name, notes=[evil]) for k, a in enumerate(record.arms)],
        measurements=[dataclasses.replace(m, arm=evil if m.arm == "cuda:tf32" else m.arm) for m in record.measurements],
        comparisons=[dataclasses.replace(c, arm=evil if c.arm == "cuda:tf32" else c.arm) for c in record.comparisons],
        gates=[dataclasses.replace(g, arm=evil, reference=evil) for g in record.gates],
        extra={"break_even": {"batches": [1, 2], "times_ms": {evil: [1.0, None]}, "batch": None, "text": evil}},
    )  # fmt: skip
    page = Page(render([record], title=evil))
    assert page.faults == []
    assert page.tags.count("script") == 1
    assert "img" not in page.tags
    assert "<script>alert(1)</script>" in page.text


NUMBER = re.compile(r"-?(?:\d+\.?\d*|\.\d+)(?:e-?\d+)?")


def assert_drawn_within(drawing: str) -> None:
    """Every coordinate is finite and inside the viewBox, but for half a mark's width."""
    assert "nan" not in drawing.lower().replace("nano", "")
    assert "inf" not in re.sub(r">[^<]*<|aria-label=\"[^\"]*\"", "", drawing)
    width, height = (float(v) for v in re.search(r'viewBox="0 0 (\S+) ([^"]+)"', drawing).groups())
    room = {"x": width, "cx": width, "width": width, "y": height, "cy": height, "height": height}
    for name, value in re.findall(r'\b(x|y|cx|cy|width|height)="([^"]+)"', drawing):
        assert -1 <= float(value) <= room[name] + 1, (name, value, drawing)
    for path in re.findall(r'\bd="([^"]+)"', drawing):
        x = y = 0.0
        for command, body in re.findall(r"([MmLlhHvV])([^MmLlhHvV]*)", path):
            found = [float(v) for v in NUMBER.findall(body)]
            if command in "ML":
                x, y = found
            elif command in "ml":
                x, y = x + found[0], y + found[1]
            elif command == "h":
                x += found[0]
            elif command == "H":
                x = found[0]
            elif command == "V":
                y = found[0]
            assert -1 <= x <= width + 1, path
            assert -1 <= y <= height + 1, path


@pytest.mark.parametrize("kind", KINDS)
def test_every_drawing_stays_in_its_frame(kind):
    html = render([fake_records.ALL[kind]()])
    drawings = re.findall(r"<svg.*?</svg>", html, re.DOTALL)
    assert drawings or kind not in ("gpu", "mixed", "cpu")
    for drawing in drawings:
        assert_drawn_within(drawing)


ANY = st.floats(allow_nan=True, allow_infinity=True)
TIMES = st.one_of(st.floats(min_value=0, max_value=1e9), st.sampled_from([0.0, 1.0, 1e-9, 5e-324, math.nan]))
WIDTHS = st.sampled_from([340.0, 800.0])


@settings(max_examples=40)
@given(st.lists(st.tuples(ANY, ANY, ANY), min_size=1, max_size=4), WIDTHS)
def test_forest_of_extremes(rows, width):
    marks = [charts.ForestRow(label="arm " * 20, ratio=r, low=a, high=b, note="no ratio") for r, a, b in rows]
    assert_drawn_within(charts.forest(marks, width))


@settings(max_examples=40)
@given(st.lists(st.lists(TIMES, max_size=6), min_size=1, max_size=4), WIDTHS, st.booleans())
def test_samples_of_extremes(processes, width, log):
    strip = series.Strip(
        label="arm", css="a1", processes=dict(enumerate(processes)), median=1.0, low=0.0, high=math.nan
    )
    assert_drawn_within(series.strips([strip], width, log=log))
    assert_drawn_within(series.spreads([dataclasses.replace(strip, median=None)], width))
    assert_drawn_within(series.sequence([strip], width))


@settings(max_examples=40)
@given(st.lists(TIMES, min_size=1, max_size=5), WIDTHS)
def test_bars_clocks_panels_and_lines_of_extremes(values, width):
    known = [v for v in values if math.isfinite(v)] or [0.0]
    rows = [charts.BarRow(label="arm", bars=[("used", v, "a1 solid")]) for v in known]
    assert_drawn_within(charts.bars(rows, width, what="memory"))
    pairs = [charts.ClockRow(label="arm", css="a1", wall=v, device=known[0]) for v in known]
    assert_drawn_within(charts.clocks(pairs, width))
    panel = series.Panel(label="clock", unit="MHz", points=list(enumerate(values)), css="a1")
    moments = [series.Moment(seconds=float(k), tip="x", throttled=True) for k in range(len(values))]
    assert_drawn_within(series.panels([panel], moments, width))
    batches = [2**k for k in range(len(values))]
    assert_drawn_within(series.break_even(batches, [("cpu", "a0", values)], 3, width))
    scale = charts.breach_scale([charts.breach_share(v, 1e-3) for v in values], 150.0)
    for value in values:
        assert_drawn_within(charts.breach(value, 1e-3, scale).replace('16" width', '16" data-w'))


@given(st.floats(min_value=1e-9, max_value=1e9), st.floats(min_value=1.0001, max_value=1e6), st.integers(2, 9))
def test_ticks_lie_within_their_domain(low, factor, count):
    for scale in (svg.Scale(low, low * factor, 0, 100, log=True), svg.Scale(low, low * factor, 0, 100)):
        ticks = scale.ticks(count)
        assert 2 <= len(ticks) <= 4 * count + 2
        assert all(low * 0.999 <= tick <= low * factor * 1.001 for tick in ticks)


def test_a_huge_record_stays_a_small_page():
    record = fake_records.gpu_bench()
    many = [
        Measurement(quantity="wall", unit="ms", arm=arm.name, process=p, values=[10.0 + k % 7 for k in range(2000)])
        for arm in record.arms
        for p in range(16)
    ]
    assert len(render([dataclasses.replace(record, measurements=many)]).encode()) < 250_000


def test_ceilings_in_any_nest_become_bars_by_unit():
    groups = dict(
        ceiling_groups({"cuda": {"bf16_tflops": 118.0, "copy": {"value": 640.0, "unit": "GB/s"}}, "note": None})
    )
    assert [row.label for row in groups["TFLOP/s"]] == ["cuda bf16"]
    assert [row.label for row in groups["GB/s"]] == ["cuda copy"]
    assert ceiling_groups(None) == []


def test_report_is_written_beside_the_first_record(tmp_path):
    folder = tmp_path / "runs" / "segment-small" / "20260211-091403"
    folder.mkdir(parents=True)
    save(fake_records.cpu_bench(), folder)
    told = []
    out = report(ReportConfig(records=("segment-small",), runs=tmp_path / "runs"), told.append)
    assert out == folder / "report.html"
    assert "No difference could be shown" in out.read_text(encoding="utf-8")
    assert [event.kind for event in told] == ["start", "advance", "advance", "finish", "result"]
    shares = [event.done / event.total for event in told if event.total]
    assert shares == sorted(shares), "a report that is done does not begin again"
    elsewhere = report(ReportConfig(records=(str(folder),), out=tmp_path / "x.html", title="Mine"))
    assert "<title>Mine</title>" in elsewhere.read_text(encoding="utf-8")
    assert sorted(p.name for p in folder.iterdir()) == ["record.json", "report.html"]


def test_a_run_that_is_not_there(tmp_path):
    with pytest.raises(RecordError, match=r"no run 'nosuch' under .*runs"):
        report(ReportConfig(records=("nosuch",), runs=tmp_path / "runs"))
    with pytest.raises(UsageError, match=r"records = \(\) names nothing to draw"):
        report(ReportConfig(records=()))


def test_a_record_that_cannot_be_read(tmp_path):
    file = tmp_path / "record.json"
    file.write_text('{"schema_version": 1, "kind"')
    with pytest.raises(RecordError, match=r"record '.*record\.json' is not whole JSON"):
        report(ReportConfig(records=(str(file),)))
    file.write_text(json.dumps({"schema_version": 99}))
    with pytest.raises(RecordError, match="has schema_version = 99"):
        report(ReportConfig(records=(str(file),)))


def test_a_place_that_cannot_be_written(tmp_path):
    record = save(fake_records.doctor(), tmp_path)
    out = tmp_path / "record.json" / "r.html"
    with pytest.raises(StorageError, match=re.escape(f"cannot create {str(out.parent)!r}: File exists")):
        report(ReportConfig(records=(record.path,), out=out))
    assert sorted(p.name for p in tmp_path.iterdir() if p.is_file()) == ["record.json"]


def test_the_folder_of_a_page_is_made(tmp_path):
    record = save(fake_records.doctor(), tmp_path)
    report(ReportConfig(records=(record.path,), out=tmp_path / "new" / "deep" / "r.html"))
    assert (tmp_path / "new" / "deep" / "r.html").stat().st_size > 1000


@pytest.mark.parametrize("formats", [("html",), ("html", "md")])
def test_a_slash_at_the_end_of_a_name_makes_the_folder(tmp_path, formats):
    record = save(fake_records.doctor(), tmp_path)
    for _ in range(2):
        files = report_files(ReportConfig(records=(record.path,), formats=formats, out=f"{tmp_path}/new/"))
        assert files == {name: tmp_path / "new" / f"report.{name}" for name in formats}
    assert sorted(p.name for p in tmp_path.iterdir()) == ["new", "record.json"]
    with pytest.raises(StorageError, match=re.escape(f"cannot create {record.path!r}: File exists")):
        report(ReportConfig(records=(record.path,), out=f"{record.path}/"))


def test_templates_are_in_the_package():
    folder = resources.files("hotlap.tools.report") / "templates"
    names = {entry.name for entry in folder.iterdir()}
    assert names == {"page.html.j2", "blocks.html.j2", "report.typ", "style.css", "page.js"}


def test_arm_that_failed_alone():
    record = fake_records.bench([("cuda", "baseline", 5.0, 1.0)], gpu=True, measurements=[], comparisons=[], gates=[])
    record = dataclasses.replace(record, arms=[Arm(name="cuda", settings={}, role="baseline", error="no kernel image")])
    text = Page(render([record])).text
    assert "no kernel image" in text
    assert "No timed samples" in text
    assert Path(record.path).name in text


@pytest.mark.parametrize(
    ("high", "labels"),
    [
        (73.1 * 2**30, ["0 B", "50.0 GiB"]),
        (16.0 * 2**30, ["0 B", "10.0 GiB"]),
        (900 * 2**20, ["0 B", "500 MiB"]),
        (700, ["0 B", "500 B"]),
    ],
)
def test_sizes_on_an_axis_are_round_in_the_unit_they_are_written_in(high, labels):
    assert [format_bytes(value) for value in svg.byte_ticks(high, 2)] == labels


def test_the_iterations_of_a_run_are_counted_and_not_its_blocks():
    """A block of many iterations is one value of the wall clock."""
    record = fake_records.gpu_bench()
    single = [
        dataclasses.replace(m, quantity="interval", values=m.values * 40)
        for m in record.measurements
        if m.quantity == "wall"
    ]
    counted = dataclasses.replace(record, measurements=[*record.measurements, *single])
    text = Page(render([counted])).text
    assert "8 fresh processes × 2,000 iterations" in text and "at least 2,000 timed iterations of each arm" in text


def test_the_headline_is_not_said_again_beneath_it():
    record = fake_records.gpu_bench()
    told = dataclasses.replace(record.verdict, lines=[record.verdict.headline, "and one thing more"])
    (part,) = compose([dataclasses.replace(record, verdict=told)]).parts
    assert part.headline == record.verdict.headline and part.lines == ("and one thing more",)


def test_a_cpu_that_others_kept_busy_is_told_and_one_that_this_run_filled_is_not():
    record = fake_records.cpu_bench()
    cpus = record.environment.logical_cpus

    def loaded(load):
        blocks = [dataclasses.replace(block, load_average=load) for block in record.telemetry]
        return Page(render([dataclasses.replace(record, telemetry=blocks)])).text

    assert f"{2 * cpus} on {cpus} CPUs: other programs took turns with this one; repeat when quiet." in loaded(
        2.0 * cpus
    )
    assert "other programs" not in loaded(float(cpus))
