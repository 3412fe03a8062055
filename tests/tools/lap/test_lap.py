"""The round as a whole, with stages that measure nothing: order, verdicts, kills at any moment, failures."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path

import pytest
from fake_stages import MIB, NAMES, Day, fake_stages, gate, ran, trial

from hotlap.base.errors import ConfigError, HotlapError, OutOfMemory, TargetError
from hotlap.base.settings import Layer, resolve
from hotlap.cli.main import run as hotlap_command
from hotlap.measure.arms import parse_arm
from hotlap.records.lap import lap_of, stage_records
from hotlap.records.measurement import GateCheck
from hotlap.records.run import load_record, resolve_run, save
from hotlap.targets import MADE_UP_LOSS
from hotlap.tools import bench as bench_tool
from hotlap.tools.bench import run as bench_run
from hotlap.tools.lap import LapConfig, lap, preview
from hotlap.tools.lap import stages as real
from hotlap.tools.lap.stages import Round, Skip, a_process_s, bench_processes, profile_after, search_budget_s
from hotlap.tools.tune.verdict import OVERTAKEN

ADVICE = (
    {"name": "compile", "arm": "cpu:compile", "gain": 1.5, "basis": "assumed"},
    {"name": "fewer syncs", "arm": "", "gain": 1.4, "basis": "measured"},
    {"name": "fused optimizer", "arm": "cpu:fused", "gain": 1.2, "basis": "assumed"},
)


def go(folder, day=None, *, emit=lambda event: None, kill="", fail="", error=None, **settings):
    config = LapConfig(**({"target": "net", "runs": folder / "runs", "report": False} | settings))
    return lap(config, emit, stages=fake_stages(folder, day, kill=kill, fail=fail, error=error))


def resume(folder, day=None, **settings):
    config = resolve(LapConfig, [Layer("test", {"resume": "latest", "runs": folder / "runs", **settings})]).config
    return lap(config, stages=fake_stages(folder, day))


def killed(folder, where):
    """A lap in a process of its own that kills itself."""
    done = subprocess.run([sys.executable, Path(__file__).parent / "fake_stages.py", folder, where], check=False)
    assert done.returncode == -9
    return ran(folder)


def status_of(record):
    return {stage.name: stage.status for stage in lap_of(record).stages}


def test_a_lap_runs_its_stages_in_order_and_points_to_their_records(tmp_path):
    told = []
    record = go(tmp_path, emit=told.append)
    assert ran(tmp_path) == list(NAMES)
    assert set(status_of(record).values()) == {"done"}
    assert (record.kind, record.name, record.status, record.verdict.exit_code) == ("lap", "net-lap", "complete", 0)
    assert "cpu:threads=1 at batch 32 gives 2.00x [1.80, 2.20] the samples a second of cpu at batch 16" in (
        record.verdict.headline
    )
    made = stage_records(load_record(record.path))
    assert list(made) == list(NAMES) and made["tune"].kind == "tune"
    assert any("stage 4 of 7, tune: " in event.text and "budget left" in event.text for event in told)


def test_the_code_to_paste_calls_a_model_with_as_many_inputs_as_the_lap_did(tmp_path):
    assert "model(inputs)" in lap_of(go(tmp_path / "one", input=("3x8x8",))).paste
    assert "model(*inputs)" in lap_of(go(tmp_path / "two", input=("8:int64:9", "8:bool"))).paste


@pytest.mark.usefixtures("jobs_in_process")
def test_a_model_that_raises_is_told_with_its_line_and_not_only_that_it_gave_no_time(tmp_path, monkeypatch):
    (tmp_path / "net.py").write_text("from torch import nn\ndef net():\n    return nn.Linear(4, 3)\n")
    target = f"{tmp_path / 'net.py'}:net"
    monkeypatch.setattr(real, "run_job", bench_run.run_job)  # in this process, as the bench's own
    round_ = Round(LapConfig(target=target, input=("5",), quick=True, doctor=False), tmp_path / "runs")
    words = r"raised RuntimeError while it was measured: .*mat1 .*Does --input 5 fit it"
    with pytest.raises(TargetError, match=words) as caught:
        real.baseline(round_)
    assert caught.value.exit_code == 2


def test_a_lap_of_a_plain_module_says_that_its_loss_is_made_up(tmp_path):
    assert MADE_UP_LOSS in go(tmp_path / "plain", input=("3x8x8",)).notes
    assert MADE_UP_LOSS not in go(tmp_path / "own").notes
    assert MADE_UP_LOSS not in go(tmp_path / "infer", input=("3x8x8",), mode="infer").notes


def test_the_table_has_before_its_batch_and_after_with_error_and_memory(tmp_path):
    before, batch, after = lap_of(go(tmp_path)).table
    assert [(row.role, row.arm, row.batch) for row in (before, batch, after)] == [
        ("before", "cpu", 16), ("batch", "cpu", 32), ("after", "cpu:threads=1", 32),
    ]  # fmt: skip
    assert (after.ratio, after.verdict, after.right) == (2.0, "faster", True)
    assert after.error == pytest.approx(0.2) and after.peak_bytes == 100 * 1024**2
    assert after.samples_per_s == pytest.approx(3200) and before.ratio is None


def test_a_check_that_allows_nothing_and_found_nothing_does_not_hide_the_error(tmp_path, monkeypatch):
    """As a comparison of the workload's own with at_least = 1."""

    def strict(arm, error=2e-5):
        exact = GateCheck(name="exact", error=0.0, allowed=0.0, passed=True)
        return dataclasses.replace(gate(arm, error), checks=[*gate(arm, error).checks, exact])

    monkeypatch.setattr("fake_stages.gate", strict)
    record = go(tmp_path)
    assert lap_of(record).table[-1].error == pytest.approx(0.2)
    assert "error 20% of what is allowed" in record.verdict.headline


@pytest.mark.parametrize(
    ("day", "shown"),
    [
        (Day(), True),
        (Day(memory=19 * MIB), False),
        (Day(memory=19 * MIB, trials=(trial("cpu", 32, peak_bytes=9 * MIB),)), True),
        (Day(trials=(trial("cpu", 32, status="out of memory"),)), False),
    ],
)
def test_the_old_arm_at_the_new_batch_is_timed_only_where_it_is_likely_to_fit(tmp_path, day, shown):
    roles = [row.role for row in lap_of(go(tmp_path, day)).table]
    assert roles == (["before", "batch", "after"] if shown else ["before", "after"])


@pytest.mark.parametrize(
    ("day", "code", "words"),
    [
        (Day(verdict="inconclusive"), 3, "cannot be told"),
        (Day(verdict="slower", ratio=0.8), 3, "is slower than cpu at batch 16 in the bench"),
        (Day(winner=("cpu", 16)), 3, "nothing faster than cpu at batch 16"),
        (Day(winner=None), 1, "no configuration of net was found"),
        (Day(after_error=3e-3), 1, "cpu:threads=1 at batch 32 gives a wrong answer"),
        (Day(consumer=1), 1, "gives 2.00x"),
    ],
)
def test_the_exit_code_says_whether_it_is_faster_and_right(tmp_path, day, code, words):
    record = go(tmp_path, day)
    assert record.verdict.exit_code == code
    assert words in record.verdict.headline
    if day.consumer:
        assert record.verdict.lines[0] == "not verified: batch is 16, expected 32"
    if day.winner is None or day.winner == ("cpu", 16):
        assert lap_of(record).paste == "" and "bench was skipped" in " ".join(record.verdict.lines)


def test_a_search_that_had_no_time_is_not_passed_off_as_one_that_found_nothing(tmp_path):
    note = "The budget of 30 s left no time for switches: cpu:fused at batch 16."
    record = go(tmp_path, Day(winner=("cpu", 16), notes=(note,)))
    assert any("time for 1 configuration only; a longer --budget" in line for line in record.verdict.lines)
    assert record.verdict.headline == (
        "net train: the search had time for nothing but cpu at batch 16; repeat with a longer --budget"
    )
    assert not any("longer --budget" in line for line in go(tmp_path).verdict.lines)


def test_a_search_whose_last_run_was_disturbed_says_so_in_the_lap_too(tmp_path):
    record = go(tmp_path, Day(remarks=("5 trials", f"{OVERTAKEN}; cpu at batch 16 had 9 samples/s in its own")))
    assert f"the search's choice: {OVERTAKEN}; cpu at batch 16 had 9 samples/s in its own" in record.verdict.lines
    assert not any("5 trials" in line for line in record.verdict.lines)


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"advice": 3}, "advice put to the test: 2 of 3 pieces; the profile names no more that an arm can check"),
        ({"advice": 2}, ""),
    ],
)
def test_advice_that_was_not_there_to_be_tested_is_told(tmp_path, settings, told):
    lines = go(tmp_path, Day(advice=ADVICE), **settings).verdict.lines
    assert [line for line in lines if line.startswith("advice put")] == ([told] if told else [])


def test_advice_that_is_put_to_the_test_stands_beside_its_promise(tmp_path):
    record = go(tmp_path, Day(advice=ADVICE), advice=2)
    found = lap_of(record).advice
    assert [(piece.name, piece.arm, piece.predicted, piece.measured) for piece in found] == [
        ("compile", "cpu:compile", 1.5, 2.0), ("fused optimizer", "cpu:fused", 1.2, 2.0),
    ]  # fmt: skip
    assert [piece.score for piece in found] == [pytest.approx(2.0 / 1.5), pytest.approx(2.0 / 1.2)]
    assert [row.role for row in lap_of(record).table] == ["before", "batch", "after", "advice", "advice"]


@pytest.mark.parametrize("where", ["tune", "tune+", "bench"])
def test_a_lap_killed_inside_or_between_stages_goes_on_where_it_was(tmp_path, where):
    before = killed(tmp_path, where)
    assert before == list(NAMES[: NAMES.index(where.rstrip("+")) + 1])
    cut = load_record(resolve_run("net-lap", tmp_path / "runs"))
    record = resume(tmp_path)
    assert cut.status == "interrupted" and record.command == cut.command != sys.argv
    left = list(NAMES[NAMES.index(where.rstrip("+")) :])
    # Inside a stage its own record tells it to go on; killed just after it, nothing of it is left to do.
    assert ran(tmp_path) == (left[1:] if where.endswith("+") else [f"{left[0]} again", *left[1:]])
    assert (record.status, record.verdict.exit_code) == ("complete", 0)
    assert set(status_of(record).values()) == {"done"} and len(stage_records(record)) == len(NAMES)


def test_a_stage_that_fails_is_named_with_what_is_kept_and_how_to_go_on(tmp_path):
    with pytest.raises(HotlapError) as caught:
        go(tmp_path, fail="tune", error=OutOfMemory("batch = 16 does not fit", remedy="Take a smaller one"))
    text, folder = str(caught.value), next((tmp_path / "runs" / "net-lap").iterdir())
    assert "stage 4 of 7, tune, failed: batch = 16 does not fit. Take a smaller one." in text
    assert "Done and kept: doctor, baseline and profile-before" in text
    assert f"'hotlap lap --resume {folder}' goes on from there" in text
    assert caught.value.exit_code == 5
    record = load_record(folder)
    assert (record.status, record.verdict.exit_code) == ("failed", 5)
    assert status_of(record)["tune"] == "failed" and "does not fit" in lap_of(record).stage("tune").why
    ran(tmp_path)
    assert resume(tmp_path).verdict.exit_code == 0
    assert ran(tmp_path) == ["tune again", "verify", "profile-after", "bench"]


def test_a_profile_that_fails_does_not_end_the_lap_and_is_tried_again_by_a_resume(tmp_path):
    told = []
    record = go(tmp_path, fail="profile-after", emit=told.append)
    assert record.verdict.exit_code == 0
    assert "profile-after failed: disk is full. Make room." in record.verdict.lines
    assert any(event.kind == "warn" and "goes on without it" in event.text for event in told)
    ran(tmp_path)
    assert "profile-after failed" not in " ".join(resume(tmp_path).verdict.lines)
    assert ran(tmp_path) == ["profile-after again"]


def test_a_verification_that_could_not_run_is_not_passed_over(tmp_path):
    record = go(tmp_path, fail="verify")
    assert (record.verdict.outcome, record.verdict.exit_code) == ("faster", 1)


def test_ctrl_c_leaves_a_record_and_the_way_to_go_on(tmp_path):
    told = []
    with pytest.raises(KeyboardInterrupt):
        go(tmp_path, fail="bench", error=KeyboardInterrupt(), emit=told.append)
    record = load_record(resolve_run("latest", tmp_path / "runs"))
    assert (record.status, status_of(record)["bench"]) == ("interrupted", "interrupted")
    assert any("Stopped in stage 7 of 7, bench" in event.text and "--resume" in event.text for event in told)


@pytest.mark.parametrize(
    ("gone", "again"), [("verify", ["verify"]), ("tune", ["tune", "verify", "profile-after", "bench"])]
)
def test_a_stage_whose_record_is_gone_runs_again_with_what_rests_on_it(tmp_path, gone, again):
    record = go(tmp_path)
    ran(tmp_path)
    (Path(record.path).parent / lap_of(record).stage(gone).record).unlink()
    assert resume(tmp_path).verdict.exit_code == 0
    assert ran(tmp_path) == again


def test_a_lap_of_another_machine_or_one_that_still_runs_is_not_resumed(tmp_path):
    record = go(tmp_path)
    folder = Path(record.path).parent
    other = dataclasses.replace(record.environment, packages={**record.environment.packages, "torch": "1.0"})
    save(dataclasses.replace(record, environment=other), folder)
    with pytest.raises(ConfigError, match=r"resume = 'latest' cannot go on: torch was 1.0, is "):
        resume(tmp_path)
    save(dataclasses.replace(record, status="running"), folder)
    with pytest.raises(ConfigError, match=r"resume = 'latest' is still running \(process \d+\)"):
        resume(tmp_path)


def test_a_lap_of_a_file_that_was_edited_is_not_resumed(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text("net = 1\n")
    with pytest.raises(HotlapError, match="stage 4 of 7"):
        go(tmp_path, target=f"{file}:net", fail="tune", error=OutOfMemory("batch = 16 does not fit"))
    file.write_text("net = 2\n")
    with pytest.raises(ConfigError, match=r"cannot go on: the file of '.*mine.py:net' is not what it was.*a new lap"):
        resume(tmp_path)
    file.rename(tmp_path / "other.py")
    with pytest.raises(ConfigError, match=r"cannot go on: the file of '.*mine.py:net' cannot be read in "):
        resume(tmp_path)
    file.write_text("net = 1\n")
    assert resume(tmp_path).verdict.exit_code == 0


@pytest.mark.parametrize("name", ["mine.py", "nets/mine.py", "mine/__init__.py"])
def test_a_lap_of_a_module_of_this_folder_that_was_edited_is_not_resumed(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    file = Path(name)
    file.parent.mkdir(exist_ok=True)
    file.write_text("net = 1\n")
    target = f"{name.removesuffix('.py').removesuffix('/__init__').replace('/', '.')}:net"
    with pytest.raises(HotlapError, match="stage 4 of 7"):
        go(tmp_path, target=target, fail="tune", error=OutOfMemory("batch = 16 does not fit"))
    file.write_text("net = 2\n")
    with pytest.raises(ConfigError, match=f"cannot go on: the file of '{target}' is not what it was.*a new lap"):
        resume(tmp_path)


def test_resuming_what_is_no_lap_is_refused(tmp_path):
    record = go(tmp_path)
    bench = Path(record.path).parent / lap_of(record).stage("bench").record
    with pytest.raises(ConfigError, match=r"resume = .*record.json' is the record of a bench.*that of a lap"):
        resume(tmp_path, resume=str(bench))
    with pytest.raises(ConfigError, match="resume = 'latest', but no lap lies under"):
        resume(tmp_path / "empty")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"target": ""}, "no target given"),
        ({"batch": 0}, "batch = 0 is not valid"),
        ({"advice": -1}, "advice = -1 is not valid"),
        ({"advice": 3, "profile": False}, "advice = 3 needs a profile"),
        ({"budget": "soon"}, "budget = 'soon' is not a time"),
        ({"timeout_s": 0.0}, "timeout_s = 0.0 is out of range"),
        ({"baseline": "cpu:batch=8"}, "batch=8 works in a bench only"),
    ],
)
def test_a_wrong_setting_is_named_with_its_value(settings, words):
    with pytest.raises(HotlapError, match=words):
        LapConfig(**({"target": "net"} | settings))


def test_quick_brings_its_settings_beneath_those_given():
    config = resolve(LapConfig, [Layer("test", {"target": "net", "quick": True, "processes": 4})]).config
    assert (config.budget, config.processes, config.verify) == ("150s", 4, False)
    *stages, _, given_up = preview(config)
    assert [line.split()[2].rstrip(":") for line in stages] == [
        "doctor", "baseline", "profile-before", "tune", "bench", "report",
    ]  # fmt: skip
    assert "--quick gives up" in given_up
    wanted = preview(dataclasses.replace(config, doctor=False, profile=False, verify=True, quick=False))
    assert [line.split()[2].rstrip(":") for line in wanted[:-1]] == ["baseline", "tune", "verify", "bench", "report"]


def lap_with_real_bench(folder, monkeypatch, trials, **settings):
    """A lap whose last stage decides for itself whether to measure; what it would measure is as it was made up."""
    *others, last = fake_stages(folder, Day(winner=("cpu:fused", 16), trials=trials, advice=ADVICE))
    rounds = []

    def run(lap):
        rounds.append(lap)
        return real.bench(lap)

    monkeypatch.setattr(bench_tool, "bench", lambda config, emit: last.run(rounds[0]))
    config = LapConfig(target="net", runs=folder / "runs", report=False, **settings)
    return lap(config, stages=[*others, dataclasses.replace(last, run=run)])


@pytest.mark.parametrize(
    ("ms", "settings", "is_benched"),
    [
        (9.8, {"quick": True}, False),
        (9.0, {"quick": True}, True),
        (9.8, {}, True),
        (9.8, {"quick": True, "advice": 1}, True),
    ],
)
def test_quick_tries_to_prove_only_what_it_could_prove(tmp_path, monkeypatch, ms, settings, is_benched):
    trials = (trial("cpu:fused", 16, wall_ms=[ms]),)
    record = lap_with_real_bench(tmp_path, monkeypatch, trials, **settings)
    assert ("bench" in ran(tmp_path)) == is_benched
    assert record.verdict.exit_code == (0 if is_benched else 3)
    if not is_benched:
        assert record.verdict.outcome == "nothing faster"
        words = "the search saw 1.02x, and with --quick the bench names no difference under 10%"
        assert words in record.verdict.headline and words not in " ".join(record.verdict.lines), "told once"
        found = lap_of(record)
        assert (found.paste, found.commands) == ("", []), "nothing is recommended that was not measured"
        (row,) = lap_of(record).table
        assert (row.role, row.arm, row.ratio) == ("before", "cpu", None), "a search's trials are no speed-up"


def test_quick_measures_where_the_search_has_not_tried_the_baseline(tmp_path, monkeypatch):
    config = {"quick": True, "baseline": "cpu:threads=2"}
    monkeypatch.setattr(Round, "baseline", property(lambda self: parse_arm("cpu:threads=2")))
    lap_with_real_bench(tmp_path, monkeypatch, (trial("cpu:fused", 16, wall_ms=[9.8]),), **config)
    assert "bench" in ran(tmp_path)


@pytest.mark.parametrize(("most", "asked"), [(None, 16), (8, 8), (64, 16)])
def test_quick_searches_at_the_baselines_batch_or_the_largest_that_is_allowed(tmp_path, monkeypatch, most, asked):
    found = []
    monkeypatch.setattr(Round, "baseline", property(lambda self: parse_arm("cpu")))
    monkeypatch.setattr(Round, "batch", property(lambda self: 16))
    monkeypatch.setattr("hotlap.tools.tune.tune", lambda config, emit: found.append((config.batch, config.max_batch)))
    real.tune(Round(LapConfig(target="net", quick=True, max_batch=most), tmp_path))
    assert found == [(asked, most)]


def test_the_search_gets_what_the_other_stages_leave():
    config = LapConfig(target="net", budget="10m", processes=8)
    idle = Round(config, Path("runs"), seconds={"doctor": 10.0, "baseline": 20.0, "profile-before": 30.0})
    with_three = 10 * (1 + 2 * 0.5)  # before, after, and before at the batch of after
    assert search_budget_s(idle) == pytest.approx(600 - 60 - (8 * with_three + 30 + 15))
    once = Round(dataclasses.replace(config, profile_after=False, verify=False), Path("runs"), seconds=idle.seconds)
    assert search_budget_s(once) == pytest.approx(600 - 60 - 8 * with_three), "what is not run needs no time"
    fixed = Round(dataclasses.replace(config, batch=16, advice=3), Path("runs"), seconds=idle.seconds)
    assert a_process_s(fixed) == pytest.approx(10 * (1 + 4 * 0.5)), "one batch, and three arms of advice"
    busy = Round(config, Path("runs"), seconds={"baseline": 500.0})
    assert search_budget_s(busy) == 150, "a quarter of the whole in any case"


@pytest.mark.parametrize(("asked", "spent", "given"), [(8, 100.0, 8), (8, 490.0, 7), (8, 590.0, 5), (3, 590.0, 3)])
def test_a_short_budget_cuts_the_bench_down_to_no_fewer_than_five_processes(monkeypatch, asked, spent, given):
    config = LapConfig(target="net", budget="10m", processes=asked)
    lap = Round(config, Path("runs"), seconds={"baseline": 20.0, "tune": spent - 20.0})
    monkeypatch.setattr(real, "bench_arms", lambda lap: ("cpu", "cpu:fused"))
    lap.records["tune"] = object()
    assert a_process_s(lap) == pytest.approx(15.0)
    assert bench_processes(lap) == given


@pytest.mark.parametrize(("spent", "processes", "memory"), [(100.0, 8, True), (590.0, 5, False)])
def test_a_bench_in_a_hurry_takes_its_memory_from_the_search(tmp_path, monkeypatch, spent, processes, memory):
    asked, told = [], []
    monkeypatch.setattr(bench_tool, "bench", lambda config, emit: asked.append(config))
    monkeypatch.setattr(Round, "baseline", parse_arm("cpu"))
    monkeypatch.setattr(Round, "batch", 16)
    monkeypatch.setattr(Round, "winner", (parse_arm("cpu:fused"), 16))
    seconds = {"baseline": 20.0, "tune": spent - 20.0}
    real.bench(Round(LapConfig(target="net", budget="10m"), tmp_path, told.append, seconds=seconds))
    assert (asked[0].processes, asked[0].memory) == (processes, memory)
    assert ["5 of 8 processes" in event.text for event in told] == [True] * (not memory)


def test_the_second_profile_leaves_the_bench_its_time(tmp_path, monkeypatch):
    config = LapConfig(target="net", budget="10m")
    lap = Round(config, tmp_path, seconds={"baseline": 40.0, "profile-before": 30.0, "tune": 400.0})
    monkeypatch.setattr(Round, "winner", (parse_arm("cpu:fused"), 16))
    monkeypatch.setattr(Round, "stays", False)
    with pytest.raises(Skip, match="the bench needs what is left of the budget"):
        profile_after(lap)


def test_a_promise_that_is_a_bound_is_called_one(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    bound = {**ADVICE[0], "at_most": True}
    record = go(tmp_path, Day(advice=(bound, *ADVICE[1:])), advice=2)
    assert [piece.at_most for piece in lap_of(record).advice] == [True, False]
    assert hotlap_command(["show", "latest"]) == 0
    assert "at most" in capsys.readouterr().out


def test_a_lap_and_its_stages_are_shown_and_listed(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    go(tmp_path, Day(advice=ADVICE), advice=2)
    assert hotlap_command(["show", "latest"]) == 0
    shown = capsys.readouterr().out
    for words in ("after", "cpu:threads=1", "2.00x [1.80, 2.20]", "about 1.50x", "torch.set_num_threads(1)",
                  "hotlap train net", "/store/net.json"):  # fmt: skip
        assert words in shown
    assert hotlap_command(["show", "net-lap/tune", "--json"]) == 0
    assert '"kind": "tune"' in capsys.readouterr().out
    assert hotlap_command(["list", "runs"]) == 0
    assert "net-lap/" in capsys.readouterr().out
