"""From settings to models: names, weights, devices, and the tuned profile, said aloud."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch

from hotlap.base.errors import ConfigError, UsageError
from hotlap.base.events import ignore
from hotlap.records.tuned import ProfileStore, TunedProfile
from hotlap.segment.nets import build_head, build_net
from hotlap.tools.serve import ServeConfig
from hotlap.tools.serve.plan import plan_devices, plan_models

TINY = {"width": 2, "size": 32}


@pytest.fixture
def stored(jobs_in_process, tmp_path):
    """A profile of the tiny U-Net, as if it had been tuned here."""
    from hotlap.measure.fingerprint import Question, ask_key

    key = ask_key(Question(target="unet", mode="infer", options=TINY, inputs=[], device="cpu"))
    profile = TunedProfile(
        key=key, arm="cpu:channels_last", batch=6, objective="throughput", samples_per_s=1.0, samples_ms=[[1.0]],
        p50_ms=1.0, p95_ms=None, peak_bytes=None, gate_error=0.1, tail_batch=1, max_batch=8,
        searched_from="2026-01-01T00:00:00", measured_at="2026-01-02T00:00:00", record="none",
    )  # fmt: skip
    store = ProfileStore(tmp_path / "tuned")
    return store, profile


def planned(store, **settings):
    told = []
    config = ServeConfig(models=("unet",), workload=TINY, **settings)
    (spec,) = plan_models(config, "cpu", lambda event: told.append(event.text), store)
    return spec, "\n".join(told)


def test_the_tuned_batch_and_arm_are_served_and_said(stored):
    store, profile = stored
    store.save(profile)
    spec, told = planned(store)
    assert (spec.arm, spec.rows) == ("cpu:channels_last", 6)
    assert "cpu:channels_last at batch 6, measured 2026-01-02" in told
    assert planned(store, batch=2)[0].rows == 2
    assert planned(store, tuned=False)[0].arm == ""


def test_a_stale_profile_is_not_used_and_says_why(stored):
    store, profile = stored
    store.save(dataclasses.replace(profile, key=dataclasses.replace(profile.key, torch="1.0")))
    spec, told = planned(store)
    assert (spec.arm, spec.rows) == ("", 0)
    assert "is stale and not used: torch was 1.0" in told


def test_a_target_without_arms_gets_none_and_an_arm_that_was_asked_for_is_told(stored):
    """Its profile is not said to be used, for it would not be."""
    store, profile = stored
    store.save(dataclasses.replace(profile, key=dataclasses.replace(profile.key, target="splat")))
    for arm, told in (("", False), ("bf16", True)):
        heard = []
        config = ServeConfig(models=("splat",), workload=TINY, arm=arm)
        (spec,) = plan_models(config, "cpu", lambda event, heard=heard: heard.append(event.text), store)
        assert (spec.arm, spec.rows) == ("", 0) and not any("uned" in text for text in heard)
        assert ("Model 'splat' is run in one way: arm = 'bf16' is not for it." in heard) == told


def test_a_model_that_was_never_tuned_or_trained_says_so(tmp_path):
    _, told = planned(ProfileStore(tmp_path))
    assert "'unet' has no weights" in told and "'unet' was never tuned here" in told


@pytest.mark.parametrize(
    ("given", "command"),
    [
        ({"models": ("unet",)}, "'hotlap tune unet --for infer'"),
        (
            {"models": ("cells",), "workload": {"model": "unet", "width": 8}},
            "'hotlap tune cells --for infer --set workload.model=unet --set workload.width=8'",
        ),
        ({"models": ("b:net",), "input": ("3x8x8",)}, "'hotlap tune b:net --for infer --input 3x8x8'"),
    ],
)
def test_the_command_that_would_tune_a_model_is_of_that_very_model(tmp_path, given, command):
    said = []
    plan_models(ServeConfig(**given), "cpu", lambda event: said.append(event.text), ProfileStore(tmp_path))
    assert any(f"was never tuned here. {command} finds its " in text for text in said), said


@pytest.mark.parametrize(
    ("target", "options"),
    [
        ("cells", {"model": "unet", "width": 2, "size": 64}),
        ("cells", {"model": "unet", "width": 2, "size": 64, "head": "foreground", "batch": 2}),
        ("unet", {"width": 2, "size": 64}),
    ],
)
@pytest.mark.parametrize(
    ("served", "head"),
    [(("cells", {"model": "unet"}), "core"), (("cells", {"model": "unet", "width": 2}), "boundary"),
     (("unet", {}), "foreground")],
)  # fmt: skip
def test_the_service_and_predict_find_the_same_profile_of_a_network(stored, tmp_path, target, options, served, head):
    """However it was called when it was tuned; the width is that of the weights."""
    from hotlap.measure.fingerprint import Question, ask_key
    from hotlap.segment.predict_config import SegmentPredictConfig
    from hotlap.segment.predictor import load_predictor

    store, profile = stored
    for width, batch in ((2, 40), (3, 7)):
        question = Question(target=target, mode="infer", options={**options, "width": width}, inputs=[], device="cpu")
        store.save(dataclasses.replace(profile, key=ask_key(question), batch=batch))
    weights = tmp_path / "weights.pt"
    torch.save(build_head("unet", head, width=2).state_dict(), weights)
    tile = {"size": 128}
    config = ServeConfig(models=(f"net={served[0]}",), workload={**served[1], **tile}, weights=(f"net={weights}",))
    (spec,) = plan_models(config, "cpu", ignore, store)
    predictor = load_predictor(SegmentPredictConfig(folder=tmp_path, model=str(weights), tile=128, overlap=32,
                                                    device="cpu"), store=store)  # fmt: skip
    assert (spec.arm, spec.rows) == (predictor.arm.name, predictor.batch) == ("cpu:channels_last", 40 * 64**2 // 128**2)
    assert spec.options == config.workload and spec.name == "net"


def test_a_unet_that_tells_classes_is_not_given_the_profile_of_one_that_finds_objects(stored, tmp_path):
    from hotlap.measure.fingerprint import Question, ask_key

    store, profile = stored
    key = ask_key(Question(target="cells", mode="infer", options={**TINY, "model": "unet"}, inputs=[], device="cpu"))
    store.save(dataclasses.replace(profile, key=key))
    weights = tmp_path / "weights.pt"
    torch.save(build_net("unet", maps=3, width=2).state_dict(), weights)
    spec, told = planned(store, weights=(str(weights),))
    assert (spec.arm, spec.rows) == ("", 0) and "'hotlap tune unet --for infer --set workload.width=2" in told


def test_models_have_names_of_their_own():
    config = ServeConfig(models=("small=unet", "b:make"), tuned=False)
    assert [(s.name, s.target) for s in plan_models(config, "cpu", ignore)] == [
        ("small", "unet"),
        ("make", "b:make"),
    ]


def test_a_model_may_have_inputs_of_its_own():
    config = ServeConfig(models=("unet", "a=b:net", "c:ids"), tuned=False, input=("a=3x8x8", "9:int64:5", "9:bool"))
    found = {spec.name: spec.inputs for spec in plan_models(config, "cpu", ignore)}
    assert found == {"unet": ("9:int64:5", "9:bool"), "a": ("3x8x8",), "ids": ("9:int64:5", "9:bool")}
    named = dataclasses.replace(config, input=("a=3x8x8", "a=4", "ids=9:int64:5"))
    found = {spec.name: spec.inputs for spec in plan_models(named, "cpu", ignore)}
    assert found == {"unet": (), "a": ("3x8x8", "4"), "ids": ("9:int64:5",)}


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"models": ("unet",), "input": ("unte=3x8x8",)}, r"input 'unte=3x8x8' is for no model .*'unet'"),
        ({"models": ("cells",), "workload": {"model": "unte"}, "tuned": True}, r"unknown model 'unte'.*'unet'"),
        ({"models": ("unte",)}, r"unknown target 'unte'.*'unet'"),
        ({"models": ("a=gone.py:net",)}, r"'gone.py' does not exist"),
        ({"models": ()}, "no model to serve"),
        ({"models": ("unet", "unet")}, "'unet,unet' names one twice"),
        ({"models": ("a b=unet",)}, "model 'a b=unet' has no usable name"),
        ({"models": ("unet",), "weights": ("unte=x",)}, r"weights 'unte=x' .*'unet'"),
        ({"models": ("unet",), "weights": ("unet=gone.pt",)}, "weights = 'gone.pt' of model 'unet' do not exist"),
    ],
)
def test_what_cannot_be_served_is_named(settings, words):
    with pytest.raises(UsageError, match=words):
        plan_models(ServeConfig(**{"tuned": False, **settings}), "cpu", ignore)


def test_devices_are_there_and_different():
    assert plan_devices(["cpu"]) == ["cpu"]
    with pytest.raises(ConfigError, match="device = 'cpu,cpu'"):
        plan_devices(["cpu", "cpu"])


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"queue_rows": 0}, "queue_rows = 0"),
        ({"deadline_s": -1.0}, r"deadline_s = -1\.0"),
        ({"deadline_s": math.inf}, "deadline_s = inf"),
        ({"deadline_s": 90000.0}, "deadline_s = 90000. Expected at most 86400"),
        ({"drain_s": math.inf}, "drain_s = inf"),
        ({"cors": ("https://a.example", "https://lab.example/")}, "cors = 'https://lab.example/' is no origin"),
        ({"cors": ("lab.example",)}, r"cors = 'lab\.example' is no origin"),
        ({"batch": 0}, "batch = 0"),
        ({"max_delay_ms": 1e9}, r"max_delay_ms = 1e\+09"),
        ({"port": 70000}, "port = 70000"),
        ({"host": "0.0.0.0"}, r"host = '0\.0\.0\.0' can be reached by others, and no token"),
        ({"cors": ("*",)}, "cors = .* no token"),
    ],
)
def test_settings_that_make_no_sense_or_are_not_safe_are_refused(settings, words):
    with pytest.raises(ConfigError, match=words):
        ServeConfig(models=("unet",), **settings)
