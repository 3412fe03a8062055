"""The story: each question answered from the record that knows, wrong answers never praised, and what to do next."""

from __future__ import annotations

import dataclasses

import fake_records
import pytest
from fake_trace import training_trace
from fake_trainings import training
from test_report import Page

from hotlap.records.measurement import Verdict
from hotlap.records.run import RunRecord, save
from hotlap.tools.profile import ProfileConfig, profile
from hotlap.tools.report import ReportConfig, render, report_files
from hotlap.tools.report.lap import with_stages
from hotlap.tools.report.next_steps import next_steps
from hotlap.tools.report.story import tell

WINNER = {"arm": "cuda:bf16+channels_last+compile", "batch": 64}


def tune(winner=WINNER) -> RunRecord:
    rows = [
        {"arm": "cuda:fp32", "batch": 16, "status": "ok", "wall_ms": [31.0], "peak_bytes": 2**30},
        {**WINNER, "status": "ok", "wall_ms": [38.0], "peak_bytes": 2**31},
    ]
    gates = [
        {"arm": "cuda:bf16+channels_last+compile", "passed": True, "error": 0.4},
        {"arm": "cuda:fp16", "passed": False, "error": 3.0, "why": "outputs 3x off"},
    ]
    return RunRecord(
        kind="tune", name="segment-tune", status="complete", started_at="2026-02-11T09:00:00",
        environment=fake_records.environment(), config={"target": "segment:small", "mode": "train"},
        extra={"tune": {"goal": "throughput", "rows": rows, "gates": gates, "winner": winner, "refused": {}}},
        verdict=Verdict(outcome="tuned", headline="the winner", exit_code=0),
    )  # fmt: skip


@pytest.fixture(scope="module")
def profiled(tmp_path_factory) -> RunRecord:
    folder = tmp_path_factory.mktemp("profile")
    trace = training_trace().write(folder / "t.pt.trace.json.gz")
    return profile(ProfileConfig(trace=(str(trace),), runs=folder / "runs", arm="cuda:fp32"))


def faster(record: RunRecord, name: str, by: float) -> RunRecord:
    """The same profile with one category's time divided."""
    found = record.extra["profile"]
    parts = [
        {**part, "ms": part["ms"] / by} if part["name"] == name else part for part in found["analysis"]["categories"]
    ]
    analysis = {**found["analysis"], "categories": parts}
    return dataclasses.replace(record, extra={"profile": {**found, "analysis": analysis}})


def answers(records, question: str):
    return next(asked.answers for asked in tell(records) if asked.text == question)


def words(records, question: str) -> str:
    return " | ".join(answer.text for answer in answers(records, question))


def test_every_question_is_answered_by_the_record_that_knows(profiled, tmp_path):
    largest = profiled.extra["profile"]["analysis"]["categories"][0]
    records = [
        fake_records.doctor(), profiled, tune(), faster(profiled, largest["name"], 2.0), fake_records.gpu_bench(),
        training(tmp_path / "gpu"), training(tmp_path / "cpu", device="cpu", rate=90.0, samples_per_s=90.0),
    ]  # fmt: skip
    slow = answers(records, "What was slow?")
    assert "A step on cuda:fp32 took" in slow[0].text and largest["name"] in slow[0].text
    assert {anchor for answer in slow for anchor, _ in answer.links} == {"run-2"}, "the first profile, not the last"
    changed = words(records, "What changed?")
    assert (
        "chose cuda:bf16+channels_last+compile at batch 64 in 2 trials; it began with cuda:fp32 at batch 16" in changed
    )
    assert f"{largest['name']} from " in changed
    gained = words(records, "What did it gain?")
    assert "cuda:bf16+channels_last+compile is 3.27x [3.21, 3.34] as fast as cuda:fp32" in gained
    assert "on cuda 600 steps in 32.0 s at 1,234 samples/s" in gained and "on cpu 600 steps in 7 min 07 s" in gained
    trust = answers(records, "Can I trust it?")
    told = {answer.text: answer.tone for answer in trust}
    assert told["Right answer: Yes: 20 checks passed in 4 arms."] == "good"
    assert any("cuda:fp16 left out for a wrong answer" in text for text in told)
    assert any("see library versions" in text and tone == "bad" for text, tone in told.items())
    assert "sudo nvidia-smi -pm 1" in {answer.command for answer in answers(records, "What next?")}
    page = Page(render(records))
    assert page.faults == [] and {target[1:] for target in page.targets} <= set(page.ids)
    assert page.text.index("What was slow?") < page.text.index("All runs") < page.text.index("Where the time goes")
    assert "What a step is made of, before and after" in page.text


def test_a_wrong_answer_is_no_gain():
    red = fake_records.red_bench()
    text = words([red, fake_records.doctor()], "What did it gain?")
    assert "cuda:bf16+channels_last: no speed-up: wrong answer" in text
    wrong = next(c for c in red.comparisons if c.arm == "cuda:bf16+channels_last")
    assert f"{wrong.ratio:.2f}x" not in text and "cuda:tf32 is 1.59x" in text
    steps = words([red, fake_records.doctor()], "What next?")
    assert "Do not use cuda:bf16+channels_last for segment:small: its answer is wrong" in steps


def test_a_search_alone_claims_no_speed_up():
    records = [tune(), fake_records.doctor()]
    assert "no speed-up is claimed" in words(records, "What did it gain?")
    assert "x as fast" not in words(records, "What did it gain?")


def test_a_search_that_found_nothing_says_so():
    nothing = dataclasses.replace(
        tune(None), verdict=Verdict(outcome="nothing found", headline="no arm gives the right answer", exit_code=1)
    )
    assert words([nothing, tune()], "What changed?").startswith("no arm gives the right answer")


def test_what_no_record_knows_names_the_verb_that_would():
    records = [fake_records.doctor(), fake_records.doctor()]
    for question, verb in (("What was slow?", "profile"), ("What changed?", "tune"), ("What did it gain?", "bench")):
        (answer,) = answers(records, question)
        assert answer.command == f"hotlap {verb} TARGET"


def test_an_inconclusive_or_unfinished_run_asks_for_another():
    steps = {step.text: step.command for step in next_steps([fake_records.cpu_bench()])}
    again = next(command for text, command in steps.items() if "more processes" in text)
    assert again.endswith("--processes 16") and "--quick" not in again
    steps = next_steps([fake_records.interrupted_bench()])
    assert steps[0].tone == "bad" and "which was interrupted" in steps[0].text
    running = dataclasses.replace(fake_records.gpu_bench(), status="running")
    assert "still running" in next_steps([running])[0].text


@pytest.mark.parametrize(
    ("arm", "batch", "left"),
    [
        ("cuda:bf16+channels_last", 16, ["batch 32"]),  # another precision answers the advice on precision
        ("cuda:fused", 64, ["tf32", "channels_last"]),
        ("cuda", 16, ["tf32", "channels_last", "batch 32"]),
        ("cuda:nosuch", 64, ["tf32", "channels_last", "batch 32"]),
    ],
)
def test_what_the_search_chose_is_not_advised_again(arm, batch, left):
    arms = {"tf32": "cuda:tf32", "channels_last": "cuda:channels_last", "batch 32": "cuda:batch=32"}
    advice = [{"name": name, "arm": advised, "gain": 1.5, "why": ""} for name, advised in arms.items()]
    profiled = dataclasses.replace(
        tune(), kind="profile", extra={"profile": {"analysis": {"steps": 1}, "advice": advice}},
        config={"target": "segment:small", "mode": "train", "arm": "cuda", "batch": 16},
    )  # fmt: skip
    steps = [step.text for step in next_steps([profiled, tune({"arm": arm, "batch": batch})])]
    assert [text.partition(":")[0].removeprefix("Try ") for text in steps if text.startswith("Try")] == left


def test_a_bench_that_another_verb_ran_is_asked_for_with_all_that_made_it():
    config = {"target": "net.py:make", "input": ["3x8x8"], "mode": "infer", "batch": 4, "workload": {"width": 16}}
    by_lap = dataclasses.replace(fake_records.cpu_bench(), command=["hotlap", "lap", "net.py:make"], config=config)
    again = next(step.command for step in next_steps([by_lap]) if "more processes" in step.text)
    assert again == (
        "hotlap bench net.py:make --arms cpu,cpu:channels_last --input 3x8x8 --mode infer --batch 4 "
        "--set workload.width=16 --processes 16"
    )


def test_what_is_proposed_runs_the_same_model():
    config = {"target": "net.py:make", "input": ["3x8x8", "4"], "mode": "infer", "workload": {"width": 16}}
    benched = dataclasses.replace(fake_records.gpu_bench(), config=config)
    commands = [step.command for step in next_steps([benched])]
    same = "net.py:make --input 3x8x8 --input 4 --set workload.width=16"
    assert f"hotlap profile {same} --mode infer" in commands and f"hotlap tune {same} --for infer" in commands
    tuned = dataclasses.replace(tune({"arm": "cuda:1:bf16", "batch": 48}), config=config)
    chosen = "--arms cuda:1,cuda:1:bf16 --batch 48"
    assert f"hotlap bench {same} --mode infer {chosen}" in [step.command for step in next_steps([tuned])]
    trained = dataclasses.replace(tuned, config=config | {"mode": "train"})
    assert f"hotlap bench {same} {chosen}" in [step.command for step in next_steps([trained])]
    checked = dataclasses.replace(fake_records.doctor(), config=config)
    (unknown,) = answers([checked, checked], "What changed?")
    assert unknown.command == f"hotlap tune {same} --for infer"


def test_a_search_that_chose_nothing_proposes_no_bench_of_its_choice():
    for nothing in (tune(None), tune({"arm": "cuda:of-another-version", "batch": 8})):
        assert not any("what the search chose" in step.text for step in next_steps([nothing]))


def test_a_search_that_chose_another_batch_alone_is_set_beside_the_one_before():
    chosen = tune({"arm": "cpu", "batch": 64})
    for before, command in ((8, "--arms cpu,cpu:batch=64 --batch 8"), (64, None)):
        start = {"start": {"arm": "cpu", "batch": before}}
        record = dataclasses.replace(chosen, extra={"tune": chosen.extra["tune"] | start})
        found = [step.command for step in next_steps([record]) if "what the search chose" in step.text]
        assert [one.partition(" --")[2] for one in found] == ([command.removeprefix("--")] if command else [])


def test_a_search_that_found_nothing_leaves_that_open():
    told = Verdict(outcome="nothing found", headline="no configuration of x was found: no trial ran", exit_code=1)
    record = dataclasses.replace(tune(None), verdict=told, command=["hotlap", "tune", "x"])
    (step,) = next_steps([record])
    assert (step.text, step.tone) == (f"Search once more when this is mended: {told.headline}.", "bad")
    assert step.command == "hotlap tune x"


def test_a_search_that_was_cut_off_goes_on_and_is_not_repeated():
    cut = dataclasses.replace(tune(None), status="interrupted", path="runs/a b/1/record.json")
    (step,) = next_steps([cut])
    assert (step.text, step.command) == ("Let the search segment-tune go on.", "hotlap tune --resume 'runs/a b/1'")
    begun = dataclasses.replace(cut, extra={})
    assert next_steps([begun])[0].text.startswith("Repeat tune segment-tune, which ")


def test_records_of_several_machines_are_told_apart():
    here = dataclasses.replace(fake_records.gpu_bench(), environment=fake_records.environment(gpu=False))
    assert "The records are of 2 machines" in words([here, fake_records.gpu_bench()], "Can I trust it?")
    assert "machines" not in words([fake_records.gpu_bench(), fake_records.red_bench()], "Can I trust it?")


def test_profiles_of_different_workloads_are_not_compared(profiled):
    other = dataclasses.replace(profiled, config={**profiled.config, "target": "another"})
    assert "These records do not tell" in words([profiled, faster(other, "matmul", 2.0)], "What changed?")


def lap(folder) -> RunRecord:
    """A lap's record with two stages on disk beside it."""
    stages = []
    for name, record in (("bench", fake_records.gpu_bench()), ("doctor", fake_records.doctor())):
        place = folder / "stages" / name / "20260211-091403"
        place.mkdir(parents=True)
        save(record, place)
        stages.append({"name": name, "status": "done", "record": f"stages/{name}/20260211-091403/record.json"})
    stages.append({"name": "profile-after", "status": "skipped", "record": "", "why": "nothing to profile"})
    table = [
        {"role": "before", "arm": "cuda:fp32", "batch": 16, "ms": 31.6, "verdict": "baseline", "right": True},
        {"role": "after", "arm": "cuda:bf16", "batch": 64, "ms": 13.0, "ratio": 2.4, "low": 2.3, "high": 2.5,
         "verdict": "faster", "right": True, "error": 0.4},
        {"role": "advice", "arm": "cuda:fp16", "batch": 16, "ratio": 9.87, "verdict": "wrong answer", "right": False},
    ]  # fmt: skip
    advice = [{"name": "bf16", "arm": "cuda:bf16", "predicted": 1.9, "measured": 2.4, "verdict": "faster"}]
    found = {"stages": stages, "table": table, "paste": "model = model.to('cuda')\n", "advice": advice}
    found["commands"] = ["hotlap train x"]
    verdict = Verdict(outcome="faster", headline="cuda:bf16 gives 2.40x", exit_code=0)
    record = RunRecord(
        kind="lap", name="x-lap", status="complete", started_at="", environment=fake_records.environment(),
        config={"target": "x", "mode": "train"}, extra={"lap": found}, verdict=verdict,
    )  # fmt: skip
    return save(record, folder)


def test_a_lap_is_drawn_with_its_stages(tmp_path):
    record = lap(tmp_path)
    assert [r.kind for r in with_stages([record])] == ["lap", "bench", "doctor"]
    assert len(with_stages([record, *with_stages([record])])) == 3, "a stage that was named too is not drawn twice"
    page = Page(report_files(ReportConfig(records=(record.path,)))["html"].read_text(encoding="utf-8"))
    assert page.faults == [] and page.tags.count("article") == 3
    for told in ("A lap of x", "Before and after", "model = model.to('cuda')", "1.90x", "nothing to profile"):
        assert told in page.text
    assert "9.87x" not in page.text and "no speed-up: wrong answer" in page.text
    assert page.text.index("Use what was found.") < page.text.index("All runs")


def test_a_lap_whose_stages_are_gone_is_drawn_alone(tmp_path):
    record = lap(tmp_path)
    (tmp_path / "stages" / "bench" / "20260211-091403" / "record.json").unlink()
    assert [r.kind for r in with_stages([record])] == ["lap", "doctor"]


def test_what_several_records_say_alike_is_said_once():
    twice = [fake_records.gpu_bench(), fake_records.gpu_bench()]
    (changed,) = answers(twice, "What changed?")
    assert [anchor for anchor, _ in changed.links] == ["run-1", "run-2"]
    alike = [answer for answer in answers(twice, "Can I trust it?") if answer.text.startswith("In order: right answer")]
    assert len(alike) == 1 and len(alike[0].links) == 2
