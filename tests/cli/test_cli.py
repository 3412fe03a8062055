"""The command line: what it takes, what it prints where, and how it ends."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import os
import pty
import re
import subprocess
import sys
from types import SimpleNamespace

import pytest

import hotlap
from hotlap import targets
from hotlap.base import events, registry
from hotlap.base.registry import Registry
from hotlap.cli import options, show
from hotlap.cli.main import run
from hotlap.cli.show import ProgressDoor, make_console
from hotlap.cli.verbs import GROUPS, VERBS, Verb
from hotlap.engine.config import TrainConfig
from hotlap.engine.place import LAUNCHED
from hotlap.records.environment import capture
from hotlap.records.measurement import Verdict
from hotlap.records.run import begin, find_runs, run_folder, save

BUILT = [name for name in VERBS if name not in ("doctor", "report")]
"""The verbs whose tools are tested here; the others' live with their tools."""


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny.py").write_text("from torch import nn\ndef mlp(width=16):\n    return nn.Linear(8, width)\n")
    return tmp_path


@pytest.fixture
def hotlap_cli(capsys):
    """Runs a command line in this process."""

    def call(*arguments):
        code = run([str(a) for a in arguments])
        out, err = capsys.readouterr()
        return SimpleNamespace(code=code, out=out, err=err)

    return call


def write_record(root, name="demo", headline="all well", status="complete"):
    record = begin("bench", name, {"mode": "train", "batch": 4}, {}, capture(import_torch=False))
    verdict = Verdict(outcome="faster", headline=headline, exit_code=0, lines=[headline])
    return save(dataclasses.replace(record, status=status, verdict=verdict), run_folder(root, name))


def test_the_overview_names_every_verb_and_exit_code(hotlap_cli):
    for arguments in ([], ["--help"], ["-h"], ["help"]):
        told = hotlap_cli(*arguments)
        assert told.code == 0
        assert all(f"  {name} " in told.out for name in [*GROUPS, *VERBS] if " " not in name)
        assert "5 out of memory" in told.out
    assert hotlap_cli("--version").out == f"hotlap {hotlap.__version__}\n"


@pytest.mark.parametrize("verb", BUILT)
def test_the_help_of_a_verb_has_its_example_and_the_common_options(hotlap_cli, verb):
    told = hotlap_cli(*verb.split(), "--help")
    assert told.code == 0
    assert VERBS[verb].example in " ".join(told.out.split())
    for flag in ("--json", "--quiet", "--dry-run", "--config", "--set"):
        assert flag in told.out


def test_an_application_lists_its_verbs_and_runs_them_with_their_settings(hotlap_cli, monkeypatch):
    monkeypatch.setitem(GROUPS, "paint", "pictures of numbers")
    verb = Verb("draws one", "hotlap paint draw latest", "run_show", "hotlap.cli.commands:ShowConfig", "run")
    monkeypatch.setitem(VERBS, "paint draw", verb)
    assert "  paint        pictures of numbers\n" in hotlap_cli().out
    for arguments in (["paint"], ["paint", "--help"]):
        assert "  draw         draws one\n" in hotlap_cli(*arguments).out
    assert "usage: hotlap paint draw" in hotlap_cli("paint", "draw", "--help").out
    told = hotlap_cli("paint", "drwa")
    assert told.code == 2
    assert "unknown verb 'paint drwa'" in told.err and "'paint draw'" in told.err


def test_the_help_of_a_setting_is_its_docstring_with_its_default(hotlap_cli):
    text = " ".join(hotlap_cli("bench", "--help").out.split())
    assert "Fresh processes, the unit of replication; each times every arm. (default 8)" in text


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["benhc"], "unknown verb 'benhc'. Did you mean 'bench'?"),
        (
            ["bench", "x", "--repeets=3"],
            "hotlap bench has no option '--repeets'. Did you mean '--repeats'? 'hotlap bench",
        ),
        (["bench", "x", "--repeat", "3"], "hotlap bench has no option '--repeat'. Did you mean '--repeats'?"),
        (["bench", "x", "--for", "infer"], "hotlap bench has no option '--for'. Did you mean '--mode'?"),
        (["tune", "x", "--mode", "infer"], "hotlap tune has no option '--mode'. Did you mean '--for'?"),
        (["report", "x", "--formats", "md"], "hotlap report has no option '--formats'. Did you mean '--format'?"),
        (["bench", "x", "--jsn"], "hotlap bench has no option '--jsn'. Did you mean '--json'?"),
        (["bench", "x", "--zzz"], "hotlap bench has no option '--zzz'. 'hotlap bench --help' shows what it takes"),
        (
            ["bench", "--target", "x"],
            "hotlap bench has no option '--target'. Leave its name out, as in 'hotlap bench unet",
        ),
        (["bench", "x", "--workload", "y"], "hotlap bench has no option '--workload'. 'hotlap bench --help' shows"),
        (["show", "a", "b"], "hotlap show does not take 'b'"),
        (["train", "x", "--sdpa", "slow"], "Expected one of math, flash, efficient, cudnn"),
        (
            ["bench", "x", "--repeats", "few"],
            "repeats = 'few' in the command line is not valid. Expected a whole number",
        ),
        (
            ["bench", "x", "--mode", "trian"],
            "mode = 'trian' in the command line is not valid. Expected one of train, infer",
        ),
        (["bench", "x", "--set", "repeets=3"], "Did you mean 'repeats'"),
        (["bench", "x", "--config", "gone.yaml"], "config file 'gone.yaml' does not exist"),
        (["bench"], "no target given"),
        (["compare"], "no records given. Expected it after the verb, as in 'hotlap compare"),
        (["mesh", "views"], "no folder given. Expected it after the verb, as in 'hotlap mesh views objects/ --out"),
        (["compare", "a"], "names 1. Expected two"),
        (["show", "nothing"], "no run 'nothing' under 'runs'"),
        (["list", "things"], "what = 'things'"),
        (["--json", "list"], "option '--json' comes before a verb. Expected hotlap VERB"),
    ],
)
def test_a_wrong_command_is_one_paragraph_on_stderr_and_exit_code_2(here, hotlap_cli, arguments, words):
    told = hotlap_cli(*arguments)
    assert told.code == 2
    assert told.out == ""
    assert told.err.startswith("hotlap: ") and words in told.err
    assert len(told.err.splitlines()) == 1


@pytest.mark.parametrize("verb", ["bench", "train", "quicktest", "splat train"])
def test_without_torch_a_verb_names_it_and_the_verbs_that_need_none_go_on(here, hotlap_cli, monkeypatch, verb):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == "torch" else find(name, *rest))
    told = hotlap_cli(*verb.split(), "unet")
    assert told.code == 4 and told.out == ""
    assert f"'hotlap {verb}' needs torch, which is not installed" in told.err and "'hotlap doctor'" in told.err
    assert hotlap_cli("list", "runs").code == 0


WITHOUT = """
import importlib.util, sys

class Absent:
    def find_spec(self, name, *rest):
        if name.partition(".")[0] == "torch":
            raise ModuleNotFoundError("No module named 'torch'", name="torch")

sys.meta_path.insert(0, Absent())
find = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name == "torch" else find(name, *rest)
from hotlap.cli.main import main
sys.argv[0] = "hotlap"
main()
"""


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        ("doctor --onlly cpu", 2, "hotlap doctor has no option '--onlly'. Did you mean '--only'?"),
        ("doctor --wholly-else", 2, "hotlap doctor has no option '--wholly-else'"),
        ("segment train --help", 0, "usage: hotlap segment train"),
        ("segment predict --help", 4, "'hotlap segment predict' needs torch, which is not installed"),
        ("splat train --help", 4, "'hotlap splat train' needs torch, which is not installed"),
    ],
)
def test_where_torch_is_not_installed_nothing_ends_in_a_trace(tmp_path, arguments, code, words):
    environ = {**os.environ, "HOTLAP_MEASUR": "1"}  # nearly a setting: those of all verbs are looked through
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT, *arguments.split()], cwd=tmp_path, env=environ, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == code and words in done.stdout + done.stderr
    assert "Traceback" not in done.stderr


def test_flags_with_another_name_than_their_setting_are_known_to_be_so():
    found = {}
    for verb in VERBS.values():
        for field in dataclasses.fields(options.load_config_class(verb.config)) if verb.config else ():
            if "flag" in field.metadata:
                found["--" + field.metadata["flag"]] = field.name
    assert found == options.RENAMED


def test_settings_come_from_line_environment_and_file_and_say_so(here, hotlap_cli, monkeypatch, jobs_in_process):
    (here / "c.yaml").write_text("repeats: 4\nprocesses: 4\nworkload:\n  width: 5\n")
    monkeypatch.setenv("HOTLAP_PROCESSES", "3")
    arguments = [
        "bench",
        "tiny.py:mlp",
        "--input",
        "8",
        "--arms",
        "cpu",
        "--arms",
        "cpu:threads=1",
        "--config",
        "c.yaml",
    ]
    told = hotlap_cli(*arguments, "--seconds", "3e-1", "--set", "seed=9", "--quick", "--dry-run", "--json")
    assert told.code == 0
    data = json.loads(told.out)
    assert data["config"]["arms"] == ["cpu", "cpu:threads=1"]
    assert data["config"]["workload"] == {"width": 5}
    want = {"repeats": 4, "processes": 3, "seconds": 0.3, "seed": 9, "max_seconds": 1.5, "batch": None}
    assert {key: data["config"][key] for key in want} == want
    assert {key: data["sources"][key] for key in want} == {
        "repeats": "file c.yaml",
        "processes": "the environment (HOTLAP_*)",
        "seconds": "the command line",
        "seed": "the command line (--set)",
        "max_seconds": "--quick",
        "batch": "default",
    }
    assert any("baseline" in line for line in data["plan"])


def test_a_dry_run_measures_and_writes_nothing(here, hotlap_cli, jobs_in_process):
    told = hotlap_cli("bench", "tiny.py:mlp", "--input", "8", "--arms", "cpu", "--dry-run")
    assert told.code == 0 and "the command line" in told.out and "8 processes" in told.out
    assert [job["job"] for job in jobs_in_process] == ["describe"]
    first, second = write_record(here / "runs"), write_record(here / "runs")
    before = sorted(find_runs(here / "runs"))
    assert hotlap_cli("compare", first.path, second.path, "--dry-run").code == 0
    assert sorted(find_runs(here / "runs")) == before
    assert {p.name for p in here.iterdir()} <= {"tiny.py", "runs", "__pycache__", "cache", "config"}


def test_every_verb_prints_only_json_on_stdout(here, hotlap_cli, bench_run, capsys):
    runs = bench_run.runs
    (record,) = find_runs(runs)
    shown = json.loads(hotlap_cli("show", "--runs", runs, "--json").out)
    assert shown["name"] == "mlp" and shown["path"] == str(record)
    listed = json.loads(hotlap_cli("list", "runs", "--runs", runs, "--json").out)
    assert listed["runs"][0]["status"] == "complete"
    known = json.loads(hotlap_cli("list", "--json").out)
    assert {"unet", "bilstm"} <= {row["name"] for row in known["targets"]}
    told = hotlap_cli("compare", record, record, "--runs", here / "runs", "--json", "--arm", "cpu")
    assert json.loads(told.out)["kind"] == "compare"
    assert told.code == json.loads(told.out)["verdict"]["exit_code"]
    assert json.loads(bench_run.done.stdout)["kind"] == "bench"


def test_show_prints_verdict_arms_gate_and_place(hotlap_cli, bench_run, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    told = hotlap_cli("show", "latest", "--runs", bench_run.runs)
    assert told.code == 0
    for word in ("bench mlp, train, batch 4", "cpu:bf16", "baseline", "numeric gate", "pass", "four of five", "record"):
        assert word in told.out


def test_a_run_too_short_to_say_what_it_could_have_seen_says_nothing(here, hotlap_cli, bench_run):
    (record,) = find_runs(bench_run.runs)
    data = json.loads(record.read_text())
    for comparison in data["comparisons"]:
        comparison["min_detectable"] = None  # as that of a single process
    short = run_folder(here / "runs", "short") / "record.json"
    short.write_text(json.dumps(data))
    told = hotlap_cli("show", short)
    assert told.code == 0 and "numeric gate" in told.out and "four of five" not in told.out


def test_list_runs_shows_the_good_the_cut_off_and_the_unreadable(here, hotlap_cli):
    write_record(here / "runs", "good")
    write_record(here / "runs", "cut", status="interrupted")
    bad = run_folder(here / "runs", "bad")
    (bad / "record.json").write_text("{")
    bad.rename(here / "runs" / "my_scene")
    told = hotlap_cli("list", "runs")
    assert told.code == 0
    for word in ("good/", "cut/", "my_scene ", "complete", "interrupted", "unreadable"):
        assert word in told.out
    assert hotlap_cli("list", "runs", "--runs", "nowhere").out.strip() == "No runs under nowhere."


def test_what_is_copied_from_the_terminal_is_not_broken(here, hotlap_cli, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    write_record(here / "runs", "run-of-length-16", headline=40 * "word ")
    assert "run-of-length-16/2" in hotlap_cli("list", "runs").out.splitlines()[1].split(" ")[0]
    path = f"runs/trained/20260101-000000/checkpoints/step-00000001-{32 * 'a'}.pt"
    outcome = {
        "step": 1, "epoch": 1, "samples_per_s": 2.0, "metrics": {}, "best_checkpoint": path, "last_checkpoint": path
    }  # fmt: skip
    record = begin("train", "trained", {"epochs": 1}, {}, capture(import_torch=False))
    save(
        dataclasses.replace(record, status="complete", extra={"outcome": outcome}), run_folder(here / "runs", "trained")
    )
    lines = hotlap_cli("show", "trained").out.splitlines()
    assert [line.split()[2] for line in lines if line[4:].startswith(" checkpoint")] == [path, path]
    assert next(line.index("step 1") for line in lines if "reached" in line) == lines[-2].index(path)


def test_list_runs_says_why_a_training_failed(here, hotlap_cli):
    failed = begin("train", "lost", {}, {}, capture(import_torch=False))
    save(
        dataclasses.replace(failed, status="failed", notes=["lr was odd", "2 more"]), run_folder(here / "runs", "lost")
    )
    told = json.loads(hotlap_cli("list", "runs", "--json").out)
    assert [(row["status"], row["headline"]) for row in told["runs"]] == [("failed", "lr was odd")]


def test_list_runs_says_that_a_run_was_cut_off(here, hotlap_cli):
    gone = dataclasses.replace(begin("train", "gone", {}, {}, capture(import_torch=False)), pid=2**22 + 1)
    save(gone, run_folder(here / "runs", "gone"))
    (row,) = json.loads(hotlap_cli("list", "runs", "--json").out)["runs"]
    assert (row["status"], row["headline"]) == ("interrupted", "The run was cut off.")


TAKES_A_TARGET = ["lap", "quicktest", "bench", "loader", "profile", "train", "tune", "export"]


@pytest.mark.parametrize("verb", TAKES_A_TARGET)
def test_a_mistyped_target_is_told_before_anything_starts(here, hotlap_cli, verb):
    for target, words in {"unett": "Did you mean 'unet'", "gone.py:mlp": "file 'gone.py' does not exist"}.items():
        for more in ([], ["--dry-run"]):
            told = hotlap_cli(verb, target, *more)
            assert told.code == 2 and words in told.err and not told.out
    assert not (here / "runs").exists()


def test_a_model_that_prints_leaves_stdout_to_the_result(here, hotlap_cli):
    (here / "loud.py").write_text("from torch import nn\nprint('importing')\ndef mlp():\n    print('building')\n"
                                  "    return nn.Linear(8, 2)\n")  # fmt: skip
    told = hotlap_cli("train", "loud.py:mlp", "--input", "8", "--dry-run", "--json")
    assert json.loads(told.out)["config"]["target"] == "loud.py:mlp"
    assert "importing" in told.err and "building" in told.err


def test_what_a_target_writes_below_python_leaves_stdout_to_the_result(here):
    (here / "loud.py").write_text("import os\nfrom torch import nn\nos.system('echo a program')\n"
                                  "def mlp():\n    return nn.Linear(8, 2)\n")  # fmt: skip
    command = [sys.executable, "-m", "hotlap", "train", "loud.py:mlp", "--input", "8", "--dry-run", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["config"]["target"] == "loud.py:mlp"
    assert done.stderr == "a program\n"


def test_a_target_that_several_processes_could_not_train_is_told_before_they_start(here, hotlap_cli, monkeypatch):
    started = []
    monkeypatch.setattr("hotlap.tools.train.exec_torchrun", lambda config, arguments: started.append(arguments))
    told = hotlap_cli("train", "tiny.py:mlp", "--device", "cpu", "--nproc", "2", "--set", "workload.widht=3")
    assert told.code == 2 and "has no option 'widht'" in told.err
    assert not started


def test_a_plugin_that_prints_leaves_stdout_to_the_list(here, hotlap_cli, monkeypatch):
    (here / "loud_plugin.py").write_text("print('importing')\ndef make(): ...\n")
    monkeypatch.syspath_prepend(str(here))
    points = [SimpleNamespace(name="loud", value="loud_plugin:make", dist=SimpleNamespace(name="loud-dist"))]
    monkeypatch.setattr(registry, "entry_points", lambda group: points)
    monkeypatch.setattr(targets, "WORKLOADS", Registry("target", "g", {}))
    told = hotlap_cli("list", "--json")
    assert [row["name"] for row in json.loads(told.out)["targets"]] == ["loud"]
    assert "importing" in told.err


def test_progress_that_is_no_terminal_s_ends_without_an_empty_line(capsys):
    with ProgressDoor(make_console(stderr=True), quiet=False) as door:
        door(events.start("bench", 2))
        door(events.advance("bench", 1, 2, "process 1 of 2"))
        door(events.finish("bench"))
    assert capsys.readouterr().err == "bench 50%: process 1 of 2\n"


def test_what_a_tool_begins_with_is_said_before_it_goes_on(capsys):
    """The first thing may be what takes for ever, such as a target that hangs while it is loaded."""
    with ProgressDoor(make_console(stderr=True), quiet=False) as door:
        door(events.start("bench", None, "loading net.py:f"))
        assert capsys.readouterr().err == "bench: loading net.py:f\n"
        door(events.start("bench", 2))
        door(events.advance("bench", 1, 2, "process 1 of 2"))
        assert [task.total for task in door._progress.tasks] == [2]
    assert capsys.readouterr().err == "bench 50%: process 1 of 2\n"


def test_a_task_without_phases_is_said_without_a_colon(capsys):
    with ProgressDoor(make_console(stderr=True), quiet=False) as door:
        door(events.start("render", 4))
        door(events.advance("render", 1, 4))
    assert capsys.readouterr().err == "render 25%\n"


def test_a_phase_that_goes_on_is_said_again_in_a_log(capsys, monkeypatch):
    clock = iter([0.0, 10.0, 31.0, 40.0, 70.0])
    monkeypatch.setattr(show.time, "monotonic", lambda: next(clock))
    with ProgressDoor(make_console(stderr=True), quiet=False) as door:
        door(events.start("predict", 10))
        for done in range(1, 6):
            door(events.advance("predict", done, 10, f"pictures: {done}.png"))
    assert capsys.readouterr().err.splitlines() == [f"predict {done}0%: pictures" for done in (1, 3, 5)]


def test_a_stream_of_another_encoding_gets_the_nearest_signs(here):
    write_record(here / "runs", headline="12 µs – no more ✓")
    env = {**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    done = subprocess.run([sys.executable, "-m", "hotlap", "show"], cwd=here, env=env, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    assert b"12 us - no more ?" in done.stdout


def test_help_before_a_verb_is_that_verb_s_help(hotlap_cli):
    assert hotlap_cli("help", "compare").out == hotlap_cli("compare", "--help").out
    assert hotlap_cli("help", "mesh").out == hotlap_cli("mesh").out


@pytest.mark.parametrize("headline", ["[enforce fail at alloc.cpp:1] no memory", "closing [/bold] tag", "[red]not red"])
def test_text_in_brackets_is_shown_and_not_taken_for_markup(here, hotlap_cli, headline):
    write_record(here / "runs", headline=headline)
    assert headline in " ".join(hotlap_cli("list", "runs").out.split())
    assert headline in " ".join(hotlap_cli("show").out.split())


def test_a_broken_plugin_is_named_and_the_list_goes_on(hotlap_cli, monkeypatch):
    points = [
        SimpleNamespace(name="bad", value="no_such_pkg:make", dist=SimpleNamespace(name="bad-dist")),
        SimpleNamespace(name="fine", value="fractions:Fraction", dist=SimpleNamespace(name="fine-dist")),
        SimpleNamespace(name="unet", value="fractions:Fraction", dist=SimpleNamespace(name="greedy-dist")),
    ]
    monkeypatch.setattr(registry, "entry_points", lambda group: points)
    monkeypatch.setattr(targets, "WORKLOADS", Registry("target", "g", {"unet": ("collections:OrderedDict", "U-Net")}))
    told = hotlap_cli("list")
    assert told.code == 0
    assert "fine-dist" in told.out and "U-Net" in told.out and "bad" not in told.out
    err = " ".join(told.err.split())
    assert "plug-in 'bad' was skipped: no_such_pkg:make from bad-dist: ModuleNotFoundError" in err
    assert "greedy-dist registers the name 'unet', which is taken" in err


ESCAPE = re.compile(r"\x1b")


def on_a_terminal(arguments, folder, **environ):
    """What a command writes to a terminal, both streams."""
    leader, follower = pty.openpty()
    env = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "120", **environ}
    for name in ("CI", "FORCE_COLOR"):
        env.pop(name, None)
    done = subprocess.Popen(
        [sys.executable, "-m", "hotlap", *arguments], stdout=follower, stderr=follower, cwd=folder, env=env
    )
    os.close(follower)
    told = b""
    while True:
        try:
            part = os.read(leader, 65536)
        except OSError:  # how Linux tells the end of a terminal
            break
        if not part:
            break
        told += part
    os.close(leader)
    done.wait()
    return told.decode()


def test_no_color_gives_no_escape_codes_even_on_a_terminal(here):
    records = [write_record(here / "runs").path for _ in range(2)]
    for arguments in (["list"], ["show"], ["list", "runs"], ["compare", *records], ["no-such-verb"]):
        assert not ESCAPE.search(on_a_terminal(arguments, here, NO_COLOR="1")), arguments
    assert ESCAPE.search(on_a_terminal(["show"], here)), "where colours are welcome there are some"


def test_a_reader_that_goes_away_is_no_error(here):
    write_record(here / "runs")
    command = f"{sys.executable} -m hotlap show --json | head -c 1; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True)
    assert done.stdout == "{0\n"
    assert "Traceback" not in done.stderr


def test_a_mistyped_variable_of_the_environment_is_told(monkeypatch, capsys):
    monkeypatch.setenv("HOTLAP_BATCHH", "3")
    monkeypatch.setenv("HOTLAP_TOKEN", "a secret of another verb")
    assert run(["bench", "bilstm", "--dry-run", "--quiet"]) == 0
    told = capsys.readouterr().err
    assert "HOTLAP_BATCHH in the environment is no setting; HOTLAP_BATCH is one" in told and "TOKEN" not in told


def test_of_several_processes_one_tells_of_a_mistyped_variable():
    mistyped = {"HOTLAP_EPOCS": "3"}
    assert len(options.mistyped_variables(TrainConfig, {**mistyped, "RANK": "0"})) == 1
    assert options.mistyped_variables(TrainConfig, {**mistyped, "RANK": "1"}) == []
    assert options.mistyped_variables(TrainConfig, {**mistyped, "RANK": "0", LAUNCHED: "1"}) == [], "told at the start"


def test_a_variable_that_another_verb_has_is_no_mistake():
    @dataclasses.dataclass
    class Config:
        batchs: int = 1

    assert options.mistyped_variables(Config, {"HOTLAP_BATCH": "3", "OTHER_BATCHS": "3"}) == []
    assert len(options.mistyped_variables(Config, {"HOTLAP_BATCHZ": "3"})) == 1
