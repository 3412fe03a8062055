"""An export: what lies in its folder, what is refused or left out, and what its record says."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from pathlib import Path

import pytest
import torch

import hotlap
from hotlap.base.errors import ConfigError, StorageError, UsageError
from hotlap.cli.main import run as run_cli
from hotlap.measure import deployed
from hotlap.measure.fingerprint import Question, ask_key
from hotlap.measure.process import run_job
from hotlap.records.run import load_record
from hotlap.records.tuned import ProfileStore, TunedProfile
from hotlap.tools.bench import BenchConfig, bench
from hotlap.tools.bench import preview as bench_preview
from hotlap.tools.export import ExportConfig, export, preview
from hotlap.tools.export import folder as export_folder
from hotlap.tools.report import render

NET = """
from torch import nn

def mlp(width=6):
    return nn.Sequential(nn.Linear(4, width), nn.Tanh(), nn.Linear(width, 3))

class Two(nn.Linear):  # the second output of its trace has the number of the input that it was traced with
    def __init__(self, frozen: bool = True):
        super().__init__(4, 3)
        self.frozen = frozen

    def forward(self, x):
        y = super().forward(x)
        scale = float(y.detach().sum()) if self.frozen else y.sum()
        return y, y * scale, y.argmax(1), y.new_full((1,), float("-inf"))

class Clipped(nn.Linear):
    def __init__(self):
        super().__init__(4, 3)

    def forward(self, x):
        if x.shape[0] > 1000:  # of a size alone
            return super().forward(x[:1000])
        if x.abs().max() > 50:
            x = x.clamp(-50, 50)
        return super().forward(x)
"""
BRIEF = {"processes": 1, "repeats": 1, "seconds": 0.0, "warmup_seconds": 0.0}


@pytest.fixture
def net(tmp_path, monkeypatch):
    (tmp_path / "tiny.py").write_text(NET)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def folder(net, jobs_in_process):
    """A folder with a tiny target, where the jobs of an export run in this process."""
    return net


def config(**settings):
    common = {"target": "tiny.py:mlp", "input": ("4",), "out": Path("out"), "formats": ("torchscript",), "time": False}
    return ExportConfig(**{**common, **BRIEF, **settings})


def forms(record):
    return {row["form"]: row for row in record.extra["export"]["forms"]}


def spoil(monkeypatch, form, maker):
    monkeypatch.setitem(deployed._MAKERS, form, maker)


def fails(flat, call, file):
    file.write_bytes(b"half of it")
    raise RuntimeError("this exporter gives up\nwith details")


def wrong(flat, call, file):
    with torch.no_grad():
        flat.model[2].bias += 1
    make_torchscript(flat, call, file)


make_torchscript = deployed._MAKERS["torchscript"]


def test_every_form_is_delivered_with_a_manifest_whose_digests_and_code_hold(folder, monkeypatch):
    pytest.importorskip("onnxruntime")
    wanted = ("exported", "onnx", "torchscript")
    record = export(config(formats=wanted, batch=3, time=True))
    assert record.verdict.exit_code == 0 and record.status == "complete"
    assert sorted(path.name for path in (folder / "out").iterdir()) == [
        "README.md", "manifest.json", "model.onnx", "model.pt2", "model.torchscript.pt",
    ]  # fmt: skip
    manifest = json.loads((folder / "out/manifest.json").read_text())
    assert manifest["inputs"] == [{"name": "input", "dtype": "float32", "shape": [None, 4]}]
    assert manifest["outputs"] == [{"name": "output", "dtype": "float32", "shape": [None, 3]}]
    assert torch.__version__.startswith(manifest["versions"]["torch"]) and manifest["dynamic_batch"] is True
    monkeypatch.chdir(folder / "out")
    for form in wanted:
        entry = manifest["forms"][form]
        for file in entry["files"]:
            data = (folder / "out" / file["name"]).read_bytes()
            assert (file["size_bytes"], file["sha256"]) == (len(data), hashlib.sha256(data).hexdigest())
        scope = {}
        exec(entry["load"], scope)
        assert tuple(scope["output"].shape) == (3, 3)
        assert entry["load"].rstrip() in (folder / "out/README.md").read_text()
        assert entry["gate_error"] <= entry["gate_allowed"]
    arms = [arm.name for arm in record.arms]
    assert arms == ["cpu", "cpu:exported", "cpu:onnx", "cpu:torchscript"]
    assert all(arm.summary("wall") for arm in record.arms)
    assert {c.arm for c in record.comparisons} == set(arms[1:])


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("target", "options"),
    [("unet", {"width": 2, "size": 16}), ("bilstm", {"hidden": 4, "length": 32, "embedding": 4, "layers": 1})],
)
def test_built_in_targets_are_right_at_other_batches_than_the_one_they_were_made_with(target, options):
    record = export(config(target=target, input=(), workload=options, batch=3, gate_batch=2))
    assert record.verdict.exit_code == 0, record.verdict
    names = {check.name for check in record.gates[0].checks}
    assert {"outputs, batch 2", "outputs, batch 1"} <= names


def test_a_fixed_batch_is_judged_as_it_is(folder):
    record = export(config(dynamic_batch=False, batch=5))
    assert record.gates[0].reference == "float64 on the CPU, batch 5"
    manifest = json.loads((folder / "out/manifest.json").read_text())
    assert manifest["inputs"][0]["shape"] == [5, 4]


def test_a_wrong_form_turns_the_gate_red_and_is_not_delivered(folder, monkeypatch):
    spoil(monkeypatch, "torchscript", wrong)
    record = export(config(formats=("torchscript", "exported")))
    assert record.verdict.exit_code == 1 and record.verdict.outcome == "gate failed"
    assert record.verdict.headline.startswith("cpu:torchscript gives a wrong answer: outputs")
    assert forms(record)["torchscript"]["status"] == "wrong"
    assert not (folder / "out/model.torchscript.pt").exists() and (folder / "out/model.pt2").exists()
    assert list(json.loads((folder / "out/manifest.json").read_text())["forms"]) == ["exported"]


def test_a_form_that_is_wrong_in_its_second_output_alone_is_not_delivered(folder):
    record = export(config(target="tiny.py:Two"))
    checks = {check.name: check for check in record.gates[0].checks}
    assert checks["outputs, batch 1"].passed and not checks["output_1, batch 1"].passed
    assert record.verdict.exit_code == 1 and not (folder / "out").exists()


def test_a_decision_that_a_trace_keeps_is_named_with_its_line(folder):
    record = export(config(target="tiny.py:Clipped"))
    where = f"{folder / 'tiny.py'}:{NET.splitlines().index('        if x.abs().max() > 50:') + 1}"
    said = f"torchscript always goes the way that its first inputs went at {where}, where the model reads a number"
    assert record.verdict.exit_code == 0, "the gate's inputs are all small"
    assert [note.startswith(said) for note in record.notes] == [True]
    assert said in (folder / "out/README.md").read_text()
    assert said in json.loads((folder / "out/manifest.json").read_text())["forms"]["torchscript"]["remark"]


def test_every_output_of_a_right_form_is_judged_but_what_is_not_finite(folder):
    record = export(config(target="tiny.py:Two", workload={"frozen": False}, gate_batch=1))
    names = [check.name for check in record.gates[0].checks if check.name.startswith("output_")]
    assert names == ["output_1", "output_2"], "the first is what predict() has shown to the gate"
    assert record.verdict.exit_code == 0 and (folder / "out/model.torchscript.pt").is_file()


def test_where_every_form_is_wrong_nothing_is_written(folder, monkeypatch):
    spoil(monkeypatch, "torchscript", wrong)
    assert export(config()).verdict.exit_code == 1
    assert not (folder / "out").exists() and leftovers(folder) == []


def leftovers(folder):
    return [path.name for path in folder.iterdir() if path.name.startswith(".")]


def test_a_form_that_fails_is_named_and_the_others_go_on(folder, monkeypatch):
    spoil(monkeypatch, "exported", fails)
    record = export(config(formats=("exported", "torchscript")), sources={"formats": "default"})
    row = forms(record)["exported"]
    assert row["status"] == "failed"
    assert "exported cannot be made of Sequential: RuntimeError: this exporter gives up" in row["why"]
    assert any(line.startswith("exported was not made: ") for line in record.verdict.lines)
    assert sorted(path.name for path in (folder / "out").iterdir()) == [
        "README.md", "manifest.json", "model.torchscript.pt",
    ]  # fmt: skip
    assert record.verdict.exit_code == 0


@pytest.mark.usefixtures("folder")
def test_a_form_asked_for_by_name_that_fails_is_exit_code_4(monkeypatch):
    spoil(monkeypatch, "exported", fails)
    record = export(config(formats=("exported", "torchscript")), sources={"formats": "the command line"})
    assert (record.verdict.exit_code, record.verdict.outcome) == (4, "form failed")
    assert record.verdict.headline == "torchscript in out; exported could not be made"


@pytest.mark.usefixtures("folder")
def test_a_form_whose_package_is_missing_is_skipped_with_the_command(monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    record = export(config(formats=("onnx", "torchscript")))
    row = forms(record)["onnx"]
    assert row["status"] == "skipped" and "pip install 'hotlap[export]'" in row["why"]


@pytest.mark.parametrize("where", ["first", "again"])
def test_an_export_cut_off_leaves_no_half_of_a_folder(folder, monkeypatch, where):
    if where == "again":
        export(config())
    before = {path.name: path.read_bytes() for path in (folder / "out").glob("*")}

    def cut(flat, call, file):
        file.write_bytes(b"half of it")
        raise KeyboardInterrupt

    spoil(monkeypatch, "torchscript", cut)
    with pytest.raises(KeyboardInterrupt):
        export(config(name="cut"))
    assert {path.name: path.read_bytes() for path in (folder / "out").glob("*")} == before
    assert (folder / "out").exists() == (where == "again")
    assert leftovers(folder) == []
    assert load_record(next((folder / "runs/cut").iterdir())).status == "interrupted"


def test_a_new_export_replaces_the_old_one_as_a_whole(folder):
    export(config())
    (folder / "out/notes.txt").write_text("of the old one")
    export(config(batch=2))
    assert not (folder / "out/notes.txt").exists()
    assert json.loads((folder / "out/manifest.json").read_text())["batch"] == 2
    assert leftovers(folder) == []


def test_where_the_new_one_cannot_be_put_the_old_one_is_back(folder, monkeypatch):
    export(config())
    rename = export_folder.Path.rename

    def refuse(self, goal):
        if self.name.endswith(".part"):
            raise OSError(28, "No space left on device")
        return rename(self, goal)

    monkeypatch.setattr(export_folder.Path, "rename", refuse)
    with pytest.raises(StorageError, match=r"cannot put the export at out = 'out': No space left on device"):
        export(config(batch=2))
    assert json.loads((folder / "out/manifest.json").read_text())["batch"] == 16
    assert leftovers(folder) == []


def test_a_folder_with_other_files_is_never_replaced(folder):
    (folder / "out").mkdir()
    (folder / "out/thesis.tex").write_text("years of work")
    with pytest.raises(UsageError, match=r"out = 'out' holds other files than an export"):
        export(config())
    assert (folder / "out/thesis.tex").read_text() == "years of work"


def test_a_file_in_the_folders_place_is_refused(folder):
    (folder / "out").write_text("a file")
    with pytest.raises(UsageError, match=r"out = 'out' is a file"):
        export(config())


def test_a_place_that_cannot_be_written_is_named(folder):
    (folder / "file").write_text("not a folder")
    with pytest.raises(StorageError, match=r"cannot write beside out = 'file/out': \w+"):
        export(config(out=Path("file/out")))


def test_what_a_killed_export_left_is_removed_once_it_is_old(folder):
    for name in (".out.0000.part", ".out.1111.part"):
        (folder / name).mkdir()
    os.utime(folder / ".out.0000.part", (0, 0))
    export(config())
    assert leftovers(folder) == [".out.1111.part"]


def test_trained_weights_are_what_is_exported(folder):
    trained = {name: torch.full_like(value, 0.25) for name, value in mlp_state(folder).items()}
    torch.save(trained, folder / "w.pt")
    export(config(weights=folder / "w.pt"))
    out = torch.jit.load(folder / "out/model.torchscript.pt")(torch.ones(2, 4))
    hidden = torch.tanh(torch.full((2, 6), 4 * 0.25 + 0.25))
    torch.testing.assert_close(out, (hidden.sum(1, keepdim=True) * 0.25 + 0.25).expand(2, 3))


def mlp_state(folder):
    return hotlap.load_target(f"{folder}/tiny.py:mlp", inputs=["4"]).build_model().state_dict()


@pytest.mark.usefixtures("folder")
def test_the_tuned_profile_is_followed_and_said():
    question = Question(target="tiny.py:mlp", mode="infer", options={}, inputs=["4"], device="cpu")
    ProfileStore().save(
        TunedProfile(
            key=ask_key(question), arm="cpu:bf16+compile", batch=12, objective="throughput", samples_per_s=9.0,
            samples_ms=[[1.0]], p50_ms=1.0, p95_ms=None, peak_bytes=None, gate_error=0.1, tail_batch=3, max_batch=12,
            searched_from="2026-01-01", measured_at="2026-01-02", record="r",
        )
    )  # fmt: skip
    record = export(config())
    assert record.config["arm"] == "cpu:bf16+compile" and record.config["batch"] == 12
    assert forms(record)["torchscript"]["arm"] == "cpu:bf16+torchscript"
    assert any(note.startswith("Tuned profile ") and "cpu:bf16+compile at batch 12" in note for note in record.notes)
    assert "torchscript goes without compile: it has no place for it." in record.notes
    assert [line for line in preview(config()) if line.startswith("beside")] == []
    lines = preview(config(time=True))
    assert [line.split()[1] for line in lines if line.startswith("beside")] == ["cpu:bf16", "cpu:bf16+compile"]
    assert preview(config(arm="cpu"))[-2:] == [
        "form       torchscript: model.torchscript.pt, timed as cpu:torchscript",
        "folder     out, any batch",
    ]


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"formats": ("onx",)}, r"formats has 'onx', which is no form. Did you mean 'onnx'"),
        ({"formats": ("onnx", "onnx")}, r"formats = \['onnx', 'onnx'\] is not valid"),
        ({"batch": 0}, "batch = 0 is not valid"),
        ({"out": None}, "out is not given"),
        ({"target": ""}, "no target given"),
        ({"arm": "cpu:onnx"}, "arm = 'cpu:onnx': 'onnx' is not for an export's arm"),
        ({"arm": "cpu:tuned"}, "arm = 'cpu:tuned': 'tuned' is not for an export's arm"),
    ],
)
def test_wrong_requests_are_refused_by_name_and_value(settings, words):
    with pytest.raises((ConfigError, UsageError), match=words):
        export(config(**settings))


def test_the_command_line_shows_a_table_and_a_report_has_a_section(folder, capsys):
    words = ["export", "tiny.py:mlp", "--input", "4", "--out", "out", "--formats", "torchscript", "--processes", "1"]
    words += ["--repeats", "1", "--seconds", "0", "--warmup-seconds", "0", "--quiet"]
    assert run_cli(words) == 0
    shown = capsys.readouterr().out
    assert "torchscript in out" in shown and "against cpu, eager, batch 16" in shown
    assert [line.split()[0] for line in shown.splitlines() if line.startswith(("eager", "torchscript "))][:2] == [
        "torchscript", "eager",
    ]  # fmt: skip
    record = load_record(next((folder / "runs/mlp-export").iterdir()))
    page = render([record])
    assert "model.torchscript.pt" in page and "Forms for use elsewhere" in page
    assert run_cli([*words, "--dry-run"]) == 0
    assert "timed as cpu:torchscript" in capsys.readouterr().out


def test_a_bench_takes_forms_as_arms_and_leaves_no_files(folder):
    settings = {"target": "tiny.py:mlp", "input": ("4",), "arms": ("cpu", "cpu:torchscript"), **BRIEF, "gate_steps": 1}
    record = bench(BenchConfig(mode="infer", memory=False, **settings))
    assert [(arm.name, bool(arm.summary("wall"))) for arm in record.arms] == [("cpu", True), ("cpu:torchscript", True)]
    assert [path.name for path in next((folder / "runs/mlp").iterdir()).iterdir()] == ["record.json"]
    with pytest.raises(UsageError, match="arm 'cpu:torchscript' cannot be trained"):
        bench_preview(BenchConfig(mode="train", **settings))


@pytest.mark.usefixtures("folder")
def test_a_bench_goes_on_without_a_form_that_cannot_be_made(monkeypatch):
    spoil(monkeypatch, "exported", fails)
    arms = ("cpu", "cpu:exported")
    record = bench(BenchConfig(target="tiny.py:mlp", input=("4",), mode="infer", arms=arms, gate=False, **BRIEF))
    assert record.arm("cpu").summary("wall") and not record.arm("cpu:exported").summary("wall")
    assert "exported cannot be made of Sequential" in record.arm("cpu:exported").error
    assert record.verdict.exit_code == 4


@pytest.mark.slow
@pytest.mark.timeout(900)  # the compiler alone takes a quarter of a minute, and many times that on a busy machine
def test_a_library_compiled_ahead_of_time_is_made_in_one_process_and_right_in_another(net):
    if deployed.shutil.which("g++") is None:
        pytest.skip("no g++")
    common = {"target": "tiny.py:mlp", "inputs": ["4"], "seed": 0, "arm": "cpu:aoti"}
    made = run_job({**common, "job": "deploy", "batch": 4, "dynamic": True, "folder": str(net)}, timeout_s=800)
    file = made["files"][0]
    assert (file["name"], file["size_bytes"]) == ("model.aoti.pt2", (net / "model.aoti.pt2").stat().st_size)
    found = run_job({**common, "job": "reload", "file": str(net / file["name"]), "sizes": [3, 1]}, timeout_s=800)
    assert found["gate"]["passed"] and found["load_s"] > 0
    assert {check["name"] for check in found["gate"]["checks"]} >= {"outputs, batch 3", "outputs, batch 1"}
