"""A search as it is seen: the live table with the best so far, and the page with its curve, table and refusals."""

from __future__ import annotations

import dataclasses
import io
import re

import pytest
from rich.console import Console
from simulated import Machine
from test_search import CARD

from hotlap.base.events import Event, advance, warn
from hotlap.base.format import format_number
from hotlap.cli.show_tune import TuneDoor, show_tune, tune_table
from hotlap.measure.jobs import ArmFailure
from hotlap.records.codec import decode, encode
from hotlap.records.environment import capture
from hotlap.records.measurement import Verdict
from hotlap.records.run import RunRecord
from hotlap.tools.report import render
from hotlap.tools.report.method import method_sentences
from hotlap.tools.report.tune import curves, tune_facts, tune_rows
from hotlap.tools.tune.budget import Budget, spent
from hotlap.tools.tune.config import TuneConfig
from hotlap.tools.tune.goal import Goal
from hotlap.tools.tune.lab import gate_row
from hotlap.tools.tune.protocol import numeric_class
from hotlap.tools.tune.rows import OUT_OF_BUDGET, GateRow, Outcome, Row, estimates
from hotlap.tools.tune.search import Search
from hotlap.tools.tune.space import make_space
from hotlap.tools.tune.verdict import give_verdict, headline_rows

GOAL = Goal("throughput")


def searched(machine, budget=900.0, goal=GOAL):
    """The record that a search on a simulated machine would leave."""
    space = make_space(CARD, mode="train", graphs="on", max_batch=1024)
    outcome = Search(space, machine, goal, Budget(seconds=budget, rung_seconds=0.5)).run()
    config = TuneConfig(target="unet", objective=goal.objective, p95_ms=goal.p95_ms)
    verdict = give_verdict(config, goal, machine.rows, machine.gates, outcome, "complete", "")
    found = {
        "goal": goal.says(), "rows": encode(machine.rows), "gates": encode(list(machine.gates.values())),
        "winner": encode(outcome.winner), "refused": outcome.refused, "budget_s": budget, "stored": "config/unet.json",
        "spent_s": spent(machine.rows, machine.gates),
        "profile": {"tail_batch": outcome.confirmed.tail, "peak_bytes": outcome.confirmed.peak_bytes},
    }  # fmt: skip
    environment = capture(import_torch=False, ask_driver=False)
    return RunRecord(
        kind="tune", name="unet-tune", status="complete", started_at="2026-01-01T10:00:00", environment=environment,
        config=encode(config), extra={"tune": found}, verdict=verdict, notes=machine.notes,
    )  # fmt: skip


ENDS = {"max-autotune": "timed out", "reduce-overhead": OUT_OF_BUDGET}


@pytest.fixture(scope="module")
def record():
    machine = Machine(
        fits=lambda arm, batch: batch < 200,
        wrong=lambda arm: arm.precision == "fp16",
        ends=lambda config, rung: next((end for word, end in ENDS.items() if word in config.arm), "ok"),
    )
    return searched(machine)


def test_the_page_tells_the_story_first_and_draws_the_batch(record):
    page = render([record])
    winner = record.extra["tune"]["winner"]
    assert page.index(f"{winner['arm']} at batch {winner['batch']}") < page.index("The search")
    assert "Objective: the highest throughput" in page and "The batch" in page
    assert re.search(r"knee at batch \d+", page)
    assert "chosen" in page and "timed out" in page and OUT_OF_BUDGET in page and "out of memory" in page
    assert "cuda:fp16: outputs 3x off." in page, "what was refused, and why"
    assert "did not run" in page and "Numeric gate" not in page


def test_the_method_is_told_as_far_as_the_record_bears_it_out(record):
    said = " ".join(method_sentences(record))
    assert "in a process of its own." in said and "judged against float64" in said
    found = record.extra["tune"]
    turned = {**found, "winner": None, "rows": [{**row, "together": 1} for row in found["rows"]]}
    said = " ".join(method_sentences(dataclasses.replace(record, extra={"tune": turned})))
    assert "took turns in one process as well" in said and "judged against float64" not in said
    assert method_sentences(dataclasses.replace(record, extra={})), "it was stopped while the target was loaded"


def test_the_knee_is_where_more_batch_gives_little(record):
    page = render([record])
    knee = int(re.search(r"knee at batch (\d+)", page)[1])
    arm = re.search(r"marks the knee of ([^:]+:[^:]+):", page)[1].replace("&#43;", "+")
    rows = [r for r in headline_rows_of(record) if r["arm"] == arm and r["rate"]]
    assert len(rows) > 3
    best = max(row["rate"] for row in rows)
    assert knee == min(row["batch"] for row in rows if row["rate"] >= 0.95 * best)


def test_the_page_shows_the_error_of_an_arm_whose_class_was_judged(record):
    """Threads, kept memory and cuDNN's timing do not change an answer, so their arms have the gate of the plain one."""
    gate = {"arm": "cpu:bf16", "passed": True, "error": 0.125}
    arm = "cpu:bf16+threads=2+keep_memory"
    row = {"arm": arm, "batch": 8, "status": "ok", "wall_ms": [2.0], "interval_ms": []}
    found = {**record.extra["tune"], "rows": [row], "gates": [gate], "winner": {"arm": arm, "batch": 8}}
    [shown] = tune_rows(dataclasses.replace(record, extra={"tune": found}))
    assert (shown.word, shown.error, shown.tone) == ("chosen", "12%", "good")


def test_the_curve_shows_the_memory_of_full_batches_and_the_page_that_of_the_final_form(record):
    """A recorded ragged end holds memory of its own: the chosen batch alone would stand out of the curve."""
    arm, gib = "cuda:bf16+graph", 2**30
    row = {"arm": arm, "status": "ok", "wall_ms": [2.0], "interval_ms": [], "tail": 0}
    rows = [row | {"batch": 8, "peak_bytes": 2 * gib}, row | {"batch": 16, "peak_bytes": 4 * gib}]
    rows.append(rows[-1] | {"tail": 5, "peak_bytes": 7 * gib})
    found = {**record.extra["tune"], "rows": rows, "winner": {"arm": arm, "batch": 16}}
    found["profile"] = {"tail_batch": 5, "peak_bytes": 7 * gib}
    changed = dataclasses.replace(record, extra={"tune": found})
    [curve] = curves(changed)
    assert [point.peak_bytes / gib for point in curve.points] == [2, 4]
    final = "The winner was run once more in its final form, with a ragged tail of 5 samples; peak memory 7.00 GiB."
    assert final in tune_facts(changed)


def test_the_page_has_the_rates_of_the_terminal_where_arms_took_turns():
    """Turns are put at the pace of the trials alone; their own times say how fast the machine was just then."""
    arms = ("cpu:keep_memory", "cpu:bf16+keep_memory")
    alone = [Row(stage="arms", arm=arm, batch=8, rung=0, wall_ms=[1.0]) for arm in arms]
    turns = [
        Row(stage="arms", arm=arm, batch=8, rung=0, together=1, wall_ms=[ms, ms])
        for arm, ms in zip(arms, (5.0, 10.0), strict=True)
    ]
    rows = [*alone, *turns]
    gate = GateRow(arm="cpu", passed=True, error=0.1)
    rates = [{**encode(one.config), "samples_per_s": one.rate} for one in estimates(rows).values()]
    found = {"rows": encode(rows), "rates": rates, "gates": encode([gate]), "winner": encode(alone[0].config)}
    record = dataclasses.replace(searched(Machine()), extra={"tune": found})
    shown = {row["arm"]: format_number(row["rate"]) for row in headline_rows_of(record)}
    assert {row.arm: row.rate for row in tune_rows(record)} == shown
    assert shown == {"cpu:keep_memory": "11,314", "cpu:bf16+keep_memory": "5,657"}
    told = "4 trials, 2 of them in turns with others, the rest each in a process of its own, took"
    assert told in " ".join(tune_facts(record))
    more = encode(dataclasses.replace(alone[0], batch=16))
    record.extra["tune"]["rows"].append(more)
    assert [point.rate for point in curves(record)[0].points] == pytest.approx([11314, 16000], rel=1e-3)


def test_what_failed_in_its_final_form_is_not_called_right():
    """Its trials ran and its class answers rightly, but at this batch it did not, or did not run at all."""
    big = Row(stage="batch", arm="cpu", batch=64, rung=0, wall_ms=[1.0])
    died = Row(stage="confirm", arm="cpu", batch=64, rung=1, tail=42, status="failed", why="the output is not finite")
    small = [Row(stage="confirm", arm="cpu", batch=16, rung=1, tail=tail, wall_ms=[1.0]) for tail in (0, 10)]
    gate = GateRow(arm="cpu", passed=True, error=0.1)
    found = {"rows": encode([big, died, *small]), "gates": encode([gate]), "winner": encode(small[0].config)}
    record = dataclasses.replace(searched(Machine()), extra={"tune": found})
    assert [(row["batch"], row["status"], row["is_best"]) for row in headline_rows_of(record)] == [
        (64, "refused", False),
        (16, "right", True),
    ]
    told = {row.batch: (row.word, row.tone, row.why) for row in tune_rows(record)}
    assert told == {"16": ("chosen", "good", ""), "64": ("refused", "bad", "the output is not finite")}


def estimates_of(record):
    return estimates([decode(Row, row) for row in record.extra["tune"]["rows"]]).values()


def headline_rows_of(record, goal=GOAL):
    found = record.extra["tune"]
    gates = [decode(GateRow, gate) for gate in found["gates"]]
    return headline_rows([decode(Row, row) for row in found["rows"]], {gate.arm: gate for gate in gates}, goal)


def test_a_record_cut_off_at_once_can_be_drawn(record):
    import dataclasses

    bare = dataclasses.replace(record, status="interrupted", verdict=None, extra={"tune": {"rows": []}})
    assert "interrupted" in render([bare]) and "The search" not in render([bare])


def test_the_page_escapes_what_a_trial_said(record):
    import copy
    import dataclasses

    extra = copy.deepcopy(record.extra)
    extra["tune"]["rows"].append(
        {"arm": "cuda:sdpa=flash", "batch": 8, "status": "failed", "why": "<script>alert(1)</script>"}
    )
    page = render([dataclasses.replace(record, extra=extra)])
    assert "<script>alert(1)" not in page and "&lt;script&gt;alert(1)" in page


def drawn(events, *, terminal):
    console = Console(width=150, force_terminal=terminal, record=True)
    with console.capture() as text, TuneDoor(console, quiet=False) as door:
        for event in events:
            door(event)
    return text.get()


def test_the_live_table_shows_the_best_so_far(record):
    rows = headline_rows_of(record)
    best = next(row for row in rows if row["status"] == "right")
    events = [
        Event(kind="result", task="tune", data={"rows": rows}),
        advance("tune", 30, 60, "compile: cuda at batch 8"),
    ]
    text = drawn(events, terminal=True)
    line = next(line for line in text.splitlines() if "best so far" in line)
    assert best["arm"].split("+")[0] in line and str(best["batch"]) in line
    assert "50% of the budget, compile: cuda at batch 8" in text


@pytest.mark.parametrize(("width", "height"), [(80, 24), (80, 12), (120, 30)])
def test_what_is_done_next_is_seen_in_a_low_terminal_too(record, width, height):
    """Arms of a card fill three lines of a narrow one each, and what stands beneath them would be cut off."""
    console = Console(width=width, height=height, force_terminal=True, file=io.StringIO())
    with TuneDoor(console, quiet=False) as door:
        door(Event(kind="result", data={"rows": headline_rows_of(record)}))
        door(advance("tune", 30, 60, "compile: cuda at batch 8"))
        text = console.file.getvalue()  # at the end all of it is drawn, and taken away
    assert "50% of the budget, compile: cuda at batch 8" in text and "best so far" in text


@pytest.mark.parametrize("terminal", [True, False])
@pytest.mark.parametrize(
    "goal", [Goal("latency"), Goal("latency", 20.0), Goal("memory")], ids=["latency", "p95", "memory"]
)
def test_the_best_so_far_is_the_best_by_the_goal_and_not_the_fastest(goal, terminal):
    record = searched(Machine(), goal=goal)
    rows = headline_rows_of(record, goal)
    known = {gate["arm"] for gate in record.extra["tune"]["gates"] if gate["passed"]}
    right = [one for one in estimates_of(record) if numeric_class(one.config.arm) in known]
    best = goal.order(right)[0].config
    assert rows[0]["arm"] != best.arm or rows[0]["batch"] != best.batch, "or this shows nothing"
    text = drawn([Event(kind="result", data={"rows": rows}), advance("tune", 6, 60, "next")], terminal=terminal)
    line = next(line for line in text.splitlines() if "best so far" in line)
    assert best.arm.split("+")[0] in line and re.search(rf"\b{best.batch}\b", line)


@pytest.mark.parametrize("width", [80, 120, 200])
def test_the_table_breaks_arms_between_their_options_only(record, width):
    console = Console(width=width, record=True, file=io.StringIO())
    rows = headline_rows_of(record)
    console.print(tune_table(rows, width=width))
    words = {word for line in console.export_text().splitlines() for word in line.split(maxsplit=1)[:1]}
    options = {part.rstrip("+") for word in words for part in re.split(r"(?<=.)\+", word)}
    assert {option for row in rows for option in row["arm"].split("+")} <= options


def test_an_arm_has_the_room_that_the_figures_leave():
    arm, figures = "cpu:bf16+threads=1+keep_memory", {"batch": 4096, "rate": 135156.0, "p50_ms": 0.704, "error": 0.058}
    rows = [{"arm": arm, "status": "right", **figures}, {"arm": "cpu", "batch": 32, "status": "out of memory"}]
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(tune_table(rows, width=80))
    assert [line.split()[0] for line in console.export_text().splitlines()[2:]] == [
        "cpu:bf16+threads=1+",
        "keep_memory",
        "cpu",
    ]


def test_where_nothing_can_be_redrawn_a_line_a_trial_is_printed(record):
    rows = headline_rows_of(record)
    events = [
        Event(kind="result", data={"rows": rows}),
        advance("tune", 6, 60, "batch: cuda at batch 8"),
        warn("careful"),
    ]
    text = drawn(events, terminal=False)
    assert "tune: 10% of the budget, batch: cuda at batch 8 (best so far" in text and "careful" in text


def test_a_winner_whose_last_run_fell_behind_is_told():
    class Busy(Machine):
        def _run(self, stage, config, rung, attempt, tail):
            row = super()._run(stage, config, rung, attempt, tail)
            slow = [10 * ms for ms in row.wall_ms] if stage == "confirm" else row.wall_ms
            return dataclasses.replace(row, wall_ms=slow)

    told, quiet = (" ".join(searched(machine).verdict.lines) for machine in (Busy(), Machine()))
    assert re.search(r"was slower than its trials; cuda\S* at batch \d+ had [\d,.]+ samples/s in its own", told)
    assert "was slower" not in quiet


def test_a_latency_that_nothing_keeps_is_told_with_what_comes_nearest():
    rows = [Row(stage="batch", arm="cpu", batch=n, rung=0, wall_ms=[1.0 + n], interval_ms=[1.0 + n]) for n in (4, 2, 8)]
    gates = {"cpu": GateRow(arm="cpu", passed=True, error=0.1)}
    goal, config = Goal("latency", 0.5), TuneConfig(target="unet", objective="latency", p95_ms=0.5)
    verdict = give_verdict(config, goal, rows, gates, Outcome(None, None, []), "complete", "")
    assert verdict.exit_code == 1 and verdict.headline == (
        "no configuration of unet was found: none has 95% of its steps within p95_ms = 0.5; cpu at batch 2 comes "
        "nearest, with 3.00 ms"
    )


@pytest.mark.parametrize(
    ("last", "told"),
    [
        ({"wall_ms": [1.3]}, "was slower than its trials: 6,154 samples/s after 8,000 samples/s"),
        ({"status": "failed", "why": "it broke"}, "cpu:fused at batch 8 failed: it broke"),
    ],
    ids=["slower", "failed"],
)
def test_of_two_the_one_is_named_whose_last_run_was_slower(last, told):
    """The table shows it above the winner, by its trials; the winner's own last run was as fast as those before."""
    fast = [Row(stage="final", arm="cpu:fused", batch=8, rung=1, attempt=i, wall_ms=[1.0]) for i in range(2)]
    fast.append(Row(stage="confirm", arm="cpu:fused", batch=8, rung=1, tail=5, **last))
    ran = [Row(stage="confirm", arm="cpu", batch=8, rung=1, tail=tail, wall_ms=[1.1]) for tail in (0, 5)]
    gates = {name: GateRow(arm=name, passed=True, error=0.1) for name in map(numeric_class, ("cpu", "cpu:fused"))}
    outcome = Outcome(ran[0].config, ran[1], [])
    lines = give_verdict(TuneConfig(target="unet"), GOAL, [*fast, *ran], gates, outcome, "complete", "").lines
    assert sum(told in line for line in lines) == 1
    assert not any(line.startswith("its last run") for line in lines), "that would be the winner's"


@pytest.mark.parametrize(("last_ms", "is_told"), [(80.0, True), (1.05, False)])
def test_a_winner_whose_last_run_belies_its_trials_says_so(last_ms, is_told):
    """The median of two processes that differ eightyfold is a rate that neither had."""
    rows = [Row(stage="batch", arm="cpu", batch=8, rung=0, wall_ms=[1.0])]
    rows.append(Row(stage="confirm", arm="cpu", batch=8, rung=1, tail=5, wall_ms=[last_ms]))
    gates = {"cpu": GateRow(arm="cpu", passed=True, error=0.1)}
    outcome = Outcome(rows[0].config, rows[1], [])
    lines = give_verdict(TuneConfig(target="x"), GOAL, rows, gates, outcome, "complete", "").lines
    told = (
        "its last run, in a fresh process, was slower than its trials: 100 samples/s after 8,000 samples/s. Other work"
    )
    assert any(line.startswith(told) for line in lines) == is_told


@pytest.mark.parametrize(
    ("objective", "last_ms", "is_told"),
    [("memory", 1.08, False), ("memory", 1.3, True), ("throughput", 1.08, True), ("latency", 1.3, False)],
)
def test_how_far_a_last_run_may_fall_depends_on_the_goal(objective, last_ms, is_told):
    """The leanest may be slower by a twentieth, but not by more: that would be no longer what was asked for."""
    lean = [Row(stage="batch", arm="cpu", batch=8, rung=0, wall_ms=[ms], peak_bytes=1) for ms in (1.0, last_ms)]
    fast = Row(stage="batch", arm="cpu", batch=16, rung=0, wall_ms=[2.0], peak_bytes=2)
    gates = {"cpu": GateRow(arm="cpu", passed=True, error=0.1)}
    outcome = Outcome(lean[0].config, lean[1], [])
    verdict = give_verdict(TuneConfig(target="x"), Goal(objective), [*lean, fast], gates, outcome, "complete", "")
    assert any("cpu at batch 16 had 8,000 samples/s in its own" in line for line in verdict.lines) == is_told


def test_a_verdict_without_a_winner_says_what_was_missing():
    machine = Machine(wrong=lambda arm: True)
    space = make_space(CARD, mode="train")
    outcome = Search(space, machine, Goal("throughput"), Budget(seconds=99, rung_seconds=0.5)).run()
    verdict = give_verdict(
        TuneConfig(target="unet"), Goal("throughput"), machine.rows, machine.gates, outcome, "complete", ""
    )
    assert isinstance(verdict, Verdict) and verdict.exit_code == 1
    assert verdict.headline == "no configuration of unet was found: no arm gives the right answer (outputs 3x off)"


def test_what_could_not_be_judged_is_not_called_wrong():
    why = "the gate process for 'x' was stopped after timeout_s = 30"
    unknown = {name: gate_row(name, None, ArmFailure(arm=name, what=why), 1.0) for name in ("cpu", "cpu:bf16")}
    wrong = GateRow(arm="cpu:fp16", passed=False, error=3.0, check="outputs 3, allowed 1", why="outputs 3x off")

    def headline(gates):
        return give_verdict(TuneConfig(target="x"), GOAL, [], gates, Outcome(None, None, []), "complete", "").headline

    assert headline(unknown) == f"no configuration of x was found: no arm could be judged: {why}"
    mixed = headline({**unknown, "cpu:fp16": wrong})
    assert mixed == "no configuration of x was found: no arm gives the right answer (outputs 3x off)"


def test_gates_without_memory_end_a_search_as_trials_without_memory_do():
    why = "batch = 4 does not fit in memory; --gate-batch judges fewer than 4 samples"
    starved = {"cpu": gate_row("cpu", None, ArmFailure(arm="cpu", what=why, out_of_memory=True), 1.0)}
    verdict = give_verdict(TuneConfig(target="x"), GOAL, [], starved, Outcome(None, None, []), "complete", "")
    assert verdict.exit_code == 5
    assert verdict.headline == f"no configuration of x was found: no arm could be judged: {why}"


def test_the_table_of_a_search_that_ended_without_a_winner_marks_none():
    """Every last run fails: nothing of the table will be chosen any more."""
    row = Row(stage="scout", arm="cpu", batch=8, rung=0, wall_ms=[1.0])
    gate = GateRow(arm="cpu", passed=True, error=0.1)
    found = {"rows": encode([row]), "gates": encode([gate]), "winner": None, "spent_s": 1.0, "budget_s": 9.0}
    done = dataclasses.replace(searched(Machine()), extra={"tune": found})
    texts = {}
    for status in ("complete", "interrupted"):
        console = Console(width=120, force_terminal=False)
        with console.capture() as text:
            show_tune(dataclasses.replace(done, status=status), console)
        texts[status] = text.get()
    assert "best so far" in texts["interrupted"] and "best so far" not in texts["complete"]


def test_a_slower_last_run_is_set_beside_the_trials_and_not_beside_a_median_that_holds_it():
    fast = Row(stage="batch", arm="cpu:fused", batch=8, rung=0, wall_ms=[0.8])
    slow = Row(stage="confirm", arm="cpu:fused", batch=8, rung=1, tail=5, wall_ms=[1.3])
    ran = [Row(stage="confirm", arm="cpu", batch=8, rung=1, tail=tail, wall_ms=[1.1]) for tail in (0, 5)]
    gates = {name: GateRow(arm=name, passed=True, error=0.1) for name in map(numeric_class, ("cpu", "cpu:fused"))}
    outcome = Outcome(ran[0].config, ran[1], [])
    lines = give_verdict(TuneConfig(target="x"), GOAL, [fast, slow, *ran], gates, outcome, "complete", "").lines
    assert any("slower than its trials: 6,154 samples/s after 10,000 samples/s." in line for line in lines)
