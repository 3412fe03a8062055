"""Settings of a training: wrong ones are named with their value, and a resumed run brings its own."""

from __future__ import annotations

import re

import pytest

from hotlap.base.errors import ConfigError, RecordError
from hotlap.base.settings import Layer, resolve
from hotlap.cli.options import build_parser
from hotlap.cli.verbs import VERBS
from hotlap.engine.config import TrainConfig, find_training
from hotlap.records.environment import capture
from hotlap.records.run import begin, folder_name, save
from hotlap.tools.train.run import which_checkpoint


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        *[(name, 0, "at least 1.") for name in ("epochs", "keep", "log_every", "nproc", "regrow_after")],
        *[(name, 0, "at least 1.") for name in ("steps", "batch", "micro", "save_every", "patience", "threads")],
        *[(name, -1, "at least 0.") for name in ("warmup", "restarts", "eval_every", "prefetch", "workers")],
        ("save_every_s", -0.5, "at least 0, and finite."),
        ("ema", 1.0, "a decay between 0 and 1"),
        ("clip_norm", 0.0, "a positive length"),
        ("lr", -1e-3, "a positive number"),
        ("lr", float("nan"), "a positive number"),
        ("clip_norm", float("nan"), "a positive length"),
    ],
)
def test_a_wrong_value_is_named(name, value, expected):
    with pytest.raises(ConfigError) as caught:
        TrainConfig(target="unet", **{name: value})
    assert re.match(rf"{name} = {value}( is not valid)?\. Expected {re.escape(expected)}", str(caught.value))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"schedule": "plateau"}, "schedule = 'plateau' with eval_every = 0"),
        ({"patience": 2}, "patience = 2 with eval"),
    ],
)
def test_settings_that_judge_need_evaluations(settings, words):
    with pytest.raises(ConfigError, match=words):
        TrainConfig(target="unet", eval_every=0, **settings)


@pytest.mark.parametrize("mode", ["reduce-overhead", "max-autotune"])
def test_a_compiler_that_records_graphs_itself_stands_alone(mode):
    with pytest.raises(ConfigError, match=f"graph = True with compile = '{mode}', which records graphs itself"):
        TrainConfig(target="unet", graph=True, compile=mode)
    assert TrainConfig(target="unet", graph=True, compile="default").graph


@pytest.fixture
def runs(tmp_path):
    """A folder with trainings of two targets and a bench between them; makes further records."""
    environment = capture(import_torch=False, ask_driver=False)

    def make(kind: str, name: str, stamp: str, **config):
        folder = tmp_path / name / stamp
        folder.mkdir(parents=True)
        config = TrainConfig(target=name, **config) if kind == "train" else {"mode": "train"}
        return save(begin(kind, name, config, {}, environment), folder)

    make("train", "unet", "20260101-000000", epochs=7, batch=12, lr=0.5, workload={"size": 32})
    make("train", "bilstm", "20260102-000000", epochs=3)
    make("train", folder_name("wide net!"), "20260101-000001")
    make("bench", "unet", "20260103-000000")
    (tmp_path / "unet" / "20260104-000000").mkdir()
    (tmp_path / "unet" / "20260104-000000" / "record.json").write_text("{")
    return tmp_path


@pytest.mark.parametrize(
    ("text", "target", "found"),
    [
        ("latest", "", "bilstm/20260102-000000"),
        ("latest", "unet", "unet/20260101-000000"),
        ("unet", "", "unet/20260101-000000"),
        ("20260101-000000", "", "unet/20260101-000000"),
        ("bilstm/20260102-000000", "", "bilstm/20260102-000000"),
        ("wide net!", "", f"{folder_name('wide net!')}/20260101-000001"),
    ],
)
def test_only_trainings_that_can_be_read_are_found(runs, text, target, found):
    assert find_training(text, runs, target).path == str(runs / found / "record.json")


def test_a_checkpoint_a_folder_and_a_record_name_their_run(runs):
    folder = runs / "unet" / "20260101-000000"
    (folder / "checkpoints").mkdir()
    checkpoint = folder / "checkpoints" / "step-00000005-0123456789abcdef.pt"
    checkpoint.touch()
    for path in (checkpoint, folder, folder / "record.json"):
        assert find_training(str(path), runs).path == str(folder / "record.json")
    assert find_training(str(runs / "bilstm"), runs / "nowhere").path == str(
        runs / "bilstm/20260102-000000/record.json"
    )
    assert which_checkpoint(str(checkpoint)) == str(checkpoint)
    assert [which_checkpoint(text) for text in (str(folder / "record.json"), "unet", "")] == ["latest", "latest", ""]


@pytest.mark.parametrize(
    ("text", "target", "words"),
    [
        ("gone", "", "resume = 'gone': there is no such training under"),
        ("latest", "nope", "resume = 'latest': there is no such training of 'nope'"),
        ("{runs}/unet/20260103-000000", "", "20260103-000000' is the record of a bench. Expected that of a training"),
        ("{runs}/unet/20260101-000000", "bilstm", "target = 'bilstm', but the run to resume .* trains 'unet'"),
    ],
)
def test_what_cannot_be_resumed_is_said(runs, text, target, words):
    with pytest.raises(ConfigError, match=words):
        find_training(text.format(runs=runs), runs, target)


def test_a_damaged_record_that_was_named_is_an_error(runs):
    with pytest.raises(RecordError, match="is not whole JSON"):
        find_training(str(runs / "unet" / "20260104-000000"), runs)


def test_a_resumed_run_brings_its_settings_and_the_command_line_wins(runs):
    given = {"resume": "unet", "runs": str(runs), "epochs": "20", "workload.size": 64}
    resolved = resolve(TrainConfig, [Layer("the command line", given)])
    config = resolved.config
    assert (config.target, config.epochs, config.batch, config.lr) == ("unet", 20, 12, 0.5)
    assert config.workload == {"size": 64}
    assert resolved.sources["epochs"] == "the command line"
    assert resolved.sources["batch"].startswith("the run resumed (")
    assert resolved.sources["patience"] == "default"


def test_resume_may_stand_without_a_value():
    parser = build_parser("train", VERBS["train"], TrainConfig)
    assert vars(parser.parse_args(["unet", "--resume"])) == {"target": "unet", "resume": "latest"}
    assert vars(parser.parse_args(["--resume", "--epochs", "9"])) == {"resume": "latest", "epochs": "9"}
    assert vars(parser.parse_args(["--resume", "unet/x"]))["resume"] == "unet/x"
