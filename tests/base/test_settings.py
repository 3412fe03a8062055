"""Settings: who wins, what is remembered, and how a wrong name or value is told."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import pytest

from hotlap.base.errors import ConfigError
from hotlap.base.settings import (
    Layer,
    env_layer,
    field_docs,
    file_layer,
    load_yaml,
    parse_scalar,
    require_least,
    resolve,
    set_layer,
)


@dataclass(frozen=True, kw_only=True)
class Demo:
    """A config with a field of every kind."""

    target: str = "unet"
    """What to measure."""
    repeats: int = 30
    """How often,
    at least."""
    seconds: float = 1.0
    fast: bool = False
    mode: Literal["train", "infer"] = "train"
    batch: int | None = None
    arms: tuple[str, ...] = ()
    sizes: tuple[int, ...] = ()
    workload: dict[str, Any] = field(default_factory=dict)
    runs: Path = Path("runs")
    fast_repeats: int = 3

    def presets(self) -> list[Layer]:
        return [Layer("--fast", {"repeats": self.fast_repeats, "seconds": 0.1})] if self.fast else []


@dataclass(frozen=True, kw_only=True)
class Needy:
    """A config that cannot do without one value."""

    target: str


def test_the_highest_layer_wins_and_each_value_remembers_its_source(tmp_path):
    file = tmp_path / "demo.yaml"
    file.write_text("repeats: 4\nseconds: 4\nbatch: 4\nmode: infer\n")
    layers = [
        Layer("the command line", {"repeats": 1}),
        env_layer(Demo, {"HOTLAP_REPEATS": "2", "HOTLAP_SECONDS": "2", "OTHER": "9"}),
        file_layer(file),
        Layer("tuned profile", {"repeats": 5, "seconds": 5, "batch": 5, "mode": "train", "arms": ["cpu"]}),
    ]
    resolved = resolve(Demo, layers)
    config, sources = resolved.config, resolved.sources
    assert (config.repeats, sources["repeats"]) == (1, "the command line")
    assert (config.seconds, sources["seconds"]) == (2.0, "the environment (HOTLAP_*)")
    assert (config.batch, sources["batch"]) == (4, f"file {file}")
    assert (config.mode, sources["mode"]) == ("infer", f"file {file}")
    assert (config.arms, sources["arms"]) == (("cpu",), "tuned profile")
    assert (config.target, sources["target"]) == ("unet", "default")


def test_dict_fields_merge_key_by_key_over_the_layers():
    layers = [
        set_layer(["workload.size=64"]),
        env_layer(Demo, {"HOTLAP_WORKLOAD__DEPTH": "3"}),
        Layer("file f", {"workload": {"size": 32, "classes": 5}}),
    ]
    resolved = resolve(Demo, layers)
    assert resolved.config.workload == {"size": 64, "depth": 3, "classes": 5}
    assert resolved.sources["workload.size"] == "the command line (--set)"
    assert resolved.sources["workload.depth"] == "the environment (HOTLAP_*)"
    assert resolved.sources["workload.classes"] == "file f"
    assert "workload" not in resolved.sources


def test_a_preset_sits_just_above_the_defaults():
    quick = resolve(Demo, [Layer("the command line", {"fast": True})])
    assert (quick.config.repeats, quick.config.seconds) == (3, 0.1)
    assert quick.sources["repeats"] == "--fast"
    explicit = resolve(Demo, [Layer("the command line", {"fast": True}), Layer("file f", {"repeats": 7})])
    assert (explicit.config.repeats, explicit.sources["repeats"]) == (7, "file f")
    assert explicit.config.seconds == 0.1


@pytest.mark.parametrize("text", ["3e-5", "3E-5", "+3e-5", "0.3e-4", "30e-6", ".3e-4"])
def test_scientific_notation_is_a_number_in_yaml(tmp_path, text):
    file = tmp_path / "a.yaml"
    file.write_text(f"seconds: {text}\nworkload:\n  lr: {text}\n")
    config = resolve(Demo, [file_layer(file)]).config
    assert config.seconds == pytest.approx(3e-5)
    assert config.workload["lr"] == pytest.approx(3e-5)
    assert isinstance(config.workload["lr"], float)


def test_scientific_notation_is_a_number_in_set_and_env():
    config = resolve(Demo, [set_layer(["workload.lr=3e-5", "seconds=3e-5"])]).config
    assert config.workload == {"lr": 3e-5}
    assert config.seconds == 3e-5
    assert resolve(Demo, [env_layer(Demo, {"HOTLAP_WORKLOAD__LR": "1e-3"})]).config.workload == {"lr": 1e-3}


@pytest.mark.parametrize("text", ["version-3e5x", "e5", "3e", "1.2.3e4"])
def test_what_only_looks_like_a_number_stays_text(text):
    assert load_yaml(text) == text


def test_text_that_was_quoted_in_a_file_or_given_by_a_call_stays_text(tmp_path):
    file = tmp_path / "a.yaml"
    file.write_text('workload:\n  tag: "007"\n  word: "yes"\n  size: 7\n')
    assert resolve(Demo, [file_layer(file)]).config.workload == {"tag": "007", "word": "yes", "size": 7}
    assert resolve(Demo, [Layer("the call", {"workload": {"tag": "1e3"}})]).config.workload == {"tag": "1e3"}


@pytest.mark.parametrize("text", ["2020-01-01", "2001-12-14 21:59:43"])
def test_a_date_is_text_because_a_record_has_no_dates(text):
    assert parse_scalar(text) == text


@dataclass(frozen=True, kw_only=True)
class Flagged:
    """A config with a flag of another name."""

    mode: Literal["train", "infer"] = field(default="train", metadata={"flag": "for"})


@pytest.mark.parametrize("name", ["for", "mode"])
def test_a_setting_may_be_named_as_its_flag_everywhere(tmp_path, name):
    (tmp_path / "a.yaml").write_text(f"{name}: infer\n")
    layers = [
        file_layer(tmp_path / "a.yaml"),
        set_layer([f"{name}=infer"]),
        env_layer(Flagged, {f"HOTLAP_{name.upper()}": "infer"}),
    ]
    for layer in layers:
        found = resolve(Flagged, [layer])
        assert (found.config.mode, found.sources) == ("infer", {"mode": layer.source})
    with pytest.raises(ConfigError, match="setting 'mode' is given twice, once as 'mode'"):
        resolve(Flagged, [set_layer(["for=infer", "mode=train"])])


def test_a_wrong_value_is_told_by_the_name_that_the_user_gave():
    with pytest.raises(ConfigError, match=r"for = 'foo' in x is not valid\. Expected one of train, infer"):
        resolve(Flagged, [Layer("x", {"for": "foo"})])


def test_dashes_and_underscores_spell_the_same_setting():
    assert resolve(Demo, [set_layer(["fast-repeats=9"])]).config.fast_repeats == 9


@pytest.mark.parametrize(
    ("layer", "words"),
    [
        (Layer("file x.yaml", {"repeat": 5}), ["'repeat'", "file x.yaml", "Did you mean 'repeats'"]),
        (set_layer(["repeets=5"]), ["'repeets'", "--set", "Did you mean 'repeats'"]),
        (set_layer(["workloads.size=5"]), ["'workloads.size'", "Did you mean 'workload'"]),
        (set_layer(["repeats.size=5"]), ["'repeats.size'", "has no parts"]),
    ],
)
def test_a_wrong_name_is_told_with_its_source_and_the_nearest_right_one(layer, words):
    with pytest.raises(ConfigError) as caught:
        resolve(Demo, [layer])
    for word in words:
        assert word in str(caught.value)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("repeats", "many", "a whole number"),
        ("repeats", 2.5, "a whole number"),
        ("repeats", True, "a whole number"),
        ("seconds", "long", "a number"),
        ("seconds", True, "a number"),
        ("fast", "perhaps", "true or false"),
        ("mode", "trian", "one of train, infer"),
        ("batch", "big", "a whole number or none"),
        ("target", ["a"], "text"),
        ("sizes", "1,b", "a comma-separated list of a whole number"),
        ("arms", 3, "a comma-separated list of text"),
        ("workload", 3, "a mapping of names to values"),
        ("runs", 3, "a path"),
    ],
)
def test_a_wrong_value_names_key_value_source_and_what_was_expected(key, value, expected):
    with pytest.raises(ConfigError) as caught:
        resolve(Demo, [Layer("file x.yaml", {key: value})])
    message = str(caught.value)
    assert f"{key} = {value!r}" in message
    assert "file x.yaml" in message
    assert f"Expected {expected}." in message


@pytest.mark.parametrize(
    ("key", "raw", "value"),
    [
        ("repeats", "9", 9),
        ("repeats", 9.0, 9),
        ("seconds", "0.5", 0.5),
        ("seconds", 2, 2.0),
        ("fast", "on", True),
        ("fast", "No", False),
        ("batch", "auto", None),
        ("batch", None, None),
        ("batch", "8", 8),
        ("arms", "cpu, cuda:bf16", ("cpu", "cuda:bf16")),
        ("arms", ["cpu"], ("cpu",)),
        ("sizes", "1,2", (1, 2)),
        ("runs", "here", Path("here")),
        ("target", 5, "5"),
    ],
)
def test_text_becomes_the_type_of_its_field(key, raw, value):
    got = getattr(resolve(Demo, [Layer("x", {key: raw})]).config, key)
    assert got == value
    assert type(got) is type(value)


def test_a_missing_value_is_asked_for_by_ways_that_exist():
    with pytest.raises(ConfigError, match=r"'target' is missing.*HOTLAP_TARGET") as caught:
        resolve(Needy, [])
    assert "--target" not in str(caught.value), "a positional has no flag"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: [1", ["not valid YAML", "at line 1, column 4"]),
        ("lr: 1\nbatch: 2\nlr: 3\n", ["'lr' is given twice, on lines 1 and 3"]),
        ("workload: {size: 1, size: 2}", ["'size' is given twice"]),
        ("- a\n- b\n", ["holds a list", "'name: value'"]),
        ("just text", ["holds a str"]),
    ],
)
def test_a_bad_file_is_named(tmp_path, text, words):
    file = tmp_path / "bad.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        file_layer(file)
    for word in [*words, "bad.yaml"]:
        assert word in str(caught.value)


def test_a_file_that_is_not_text_is_named(tmp_path):
    (tmp_path / "bad.yaml").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match=r"bad\.yaml' is not valid YAML: .*0xff"):
        file_layer(tmp_path / "bad.yaml")


@pytest.mark.parametrize("raw", ["nan", math.nan])
def test_nan_is_no_number_of_a_setting(raw):
    with pytest.raises(ConfigError, match=r"seconds = .*nan.* in x is not valid\. Expected a number"):
        resolve(Demo, [Layer("x", {"seconds": raw})])


def test_an_absent_file_is_an_error_and_an_empty_one_is_not(tmp_path):
    with pytest.raises(ConfigError, match=rf"config file '{tmp_path}' is no file"):
        file_layer(tmp_path)
    with pytest.raises(ConfigError, match=r"nowhere\.yaml' does not exist"):
        file_layer(tmp_path / "nowhere.yaml")
    (tmp_path / "empty.yaml").write_text("")
    assert file_layer(tmp_path / "empty.yaml").values == {}


@pytest.mark.parametrize("assignment", ["size", "=5", " =5"])
def test_set_needs_a_name_and_an_equals_sign(assignment):
    with pytest.raises(ConfigError, match=r"not an assignment.*--set workload\.size=64"):
        set_layer([assignment])


def test_set_keeps_equals_signs_in_the_value():
    assert set_layer(["arms=cpu:threads=2"]).values == {"arms": "cpu:threads=2"}


def test_the_help_of_a_field_is_its_docstring_on_one_line():
    docs = field_docs(Demo)
    assert docs["target"] == "What to measure."
    assert docs["repeats"] == "How often, at least."
    assert "seconds" not in docs


@pytest.mark.parametrize(("value", "expected"), [(0, "at least 1"), (0.5, "at least 1, and finite"),
                                                 (math.inf, "at least 1, and finite"),
                                                 (math.nan, "at least 1, and finite")])  # fmt: skip
def test_a_value_below_its_least_is_named_with_it(value, expected):
    with pytest.raises(ConfigError, match=rf"size = {value} is not valid\. Expected {expected}\.$"):
        require_least(SimpleNamespace(batch=None, size=value), batch=1, size=1)
    require_least(SimpleNamespace(size=1), size=1)
