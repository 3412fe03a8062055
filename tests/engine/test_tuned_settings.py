"""A training takes what its tuned profile says, only where the user said nothing, and says that it did."""

from __future__ import annotations

import dataclasses

import pytest

from hotlap.base.settings import Layer, resolve
from hotlap.engine.config import TrainConfig
from hotlap.engine.tuned import settings_from, with_profile
from hotlap.measure import fingerprint
from hotlap.records.codec import encode
from hotlap.records.tuned import ProfileStore, TunedKey, TunedProfile

KEY = TunedKey(
    target="unet", mode="train", device="cuda", device_name="Fake H1", memory_bytes=2**36, driver="555", torch="2.15.0",
    cuda="13.2", cudnn="9", python="3.11.7", model_hash="abc", signature="3x128x128:float32",
)  # fmt: skip


def profile(arm="cuda:bf16+channels_last+compile+cudnn_benchmark+fused", batch=64):
    return TunedProfile(
        key=KEY, arm=arm, batch=batch, objective="throughput", samples_per_s=900.0, samples_ms=[[1.0]], p50_ms=1.0,
        p95_ms=None, peak_bytes=None, gate_error=0.1, tail_batch=3, max_batch=batch, searched_from="2026-01-01",
        measured_at="2026-01-02", record="r",
    )  # fmt: skip


@pytest.fixture
def now(monkeypatch):
    """The machine as a fresh process would tell it; a test may change it."""
    facts = {"key": KEY, "asked": []}

    def run_job(job, *, timeout_s, nursery=None):
        facts["asked"].append(job)
        return encode(facts["key"])

    monkeypatch.setattr(fingerprint, "run_job", run_job)
    return facts


def resolved(**settings):
    return resolve(TrainConfig, [Layer("the command line", {"target": "unet", **settings})])


def applied(**settings):
    heard, given = [], resolved(**settings)
    return (*with_profile(given.config, given.sources, heard.append), heard)


def test_a_profile_that_holds_fills_what_the_user_left_open(now):
    ProfileStore().save(profile())
    config, sources, told, heard = applied(fused=False, batch=256)
    assert (config.precision, config.tf32, config.channels_last, config.compile) == (
        "bf16-mixed",
        False,
        True,
        "default",
    )
    assert config.fused is False and sources["fused"] == "the command line"
    assert (config.batch, config.micro) == (256, 64), "the batch asked for is kept, and split as was found fastest"
    assert sources["precision"].startswith("tuned profile (")
    assert "cuda:bf16+channels_last+compile+cudnn_benchmark+fused at batch 64" in told[0]
    assert [event.text for event in heard if event.kind == "note"] == told


def test_the_batch_comes_from_the_profile_only_where_none_was_given(now):
    ProfileStore().save(profile())
    config, _, told, _ = applied()
    assert config.batch == 64 and config.micro is None
    assert any("batch = 64 comes from the tuned profile; the learning rate is not changed" in line for line in told)


@pytest.mark.parametrize("settings", [{"tuned": False}, {"resume": "x"}])
def test_one_who_does_not_want_it_or_resumes_goes_without(now, settings):
    ProfileStore().save(profile())
    given = dataclasses.replace(resolved().config, **settings)
    assert with_profile(given, resolved().sources, lambda event: None) == (given, resolved().sources, [])
    assert now["asked"] == []


def test_a_stale_profile_is_not_used_and_why_is_said(now):
    ProfileStore().save(profile())
    now["key"] = dataclasses.replace(KEY, torch="2.16.0")
    config, _, told, heard = applied()
    assert config == resolved().config
    assert "is stale and not used: torch was 2.15.0, is 2.16.0. 'hotlap tune' makes a new one." in told[0]
    assert [event.kind for event in heard] == ["warn"]


def test_nothing_is_asked_or_said_where_no_profile_was_ever_stored(now):
    config, _, told, heard = applied()
    assert (config, told, heard, now["asked"]) == (resolved().config, [], [], [])


def test_precision_and_tf32_are_one_choice():
    changes, _ = settings_from(profile("cuda:tf32"), resolved().config, {"precision", "tf32"})
    assert changes == {"precision": "32-true", "tf32": True}
    changes, _ = settings_from(profile("cuda:tf32"), resolved(precision="bf16-mixed").config, {"tf32"})
    assert changes == {}


def test_switches_threads_and_recomputation_are_taken_over():
    free = set(resolved().sources)
    changes, _ = settings_from(profile("cpu:threads=2+recompute"), resolved().config, free)
    assert (changes["threads"], changes["recompute"], changes["compile"]) == (2, "on", "off")
    assert changes["keep_memory"] is False
    assert settings_from(profile("cpu:keep_memory"), resolved().config, free)[0]["keep_memory"] is True
    changes, _ = settings_from(profile("cuda:sdpa=flash"), resolved().config, free)
    assert (changes["sdpa"], changes["cudnn_benchmark"]) == ("flash", False)


@pytest.mark.parametrize(("nproc", "threads"), [(1, 12), (4, None)])
def test_a_cpu_gets_the_threads_of_the_trials_unless_several_processes_share_it(nproc, threads):
    on_cpu = dataclasses.replace(profile("cpu:bf16"), key=dataclasses.replace(KEY, device="cpu", cores=12))
    given = dataclasses.replace(resolved().config, nproc=nproc)
    assert settings_from(on_cpu, given, {"threads"})[0] == {"threads": threads}
    assert settings_from(profile("cuda:bf16"), given, {"threads"})[0] == {"threads": None}


@pytest.mark.parametrize(
    ("settings", "taken"), [({}, True), ({"compile": "reduce-overhead"}, False), ({"compile": "default"}, True)]
)
def test_a_recorded_step_is_recorded_unless_the_compiler_does_that(settings, taken):
    given = resolved(**settings)
    free = {name for name, source in given.sources.items() if source == "default"}
    changes, _ = settings_from(profile("cuda:graph"), given.config, free)
    assert changes["graph"] is taken
    assert dataclasses.replace(given.config, **changes).compile == settings.get("compile", "off")


def test_several_processes_record_nothing():
    given = dataclasses.replace(resolved().config, nproc=2)
    changes, _ = settings_from(profile("cuda:graph"), given, set(resolved().sources))
    assert changes["graph"] is False


def test_several_processes_keep_their_own_batch():
    given = dataclasses.replace(resolved().config, nproc=4)
    changes, _ = settings_from(profile(), given, set(resolved().sources))
    assert "batch" not in changes and "micro" not in changes


def test_a_profile_with_padded_channels_switches_them_on():
    changes, _ = settings_from(profile("cuda:padded"), resolved().config, {"padded", "kernels", "shuffled", "unbiased"})
    assert changes == {"padded": True, "kernels": False, "shuffled": False, "unbiased": False}


def test_a_profile_with_kernels_of_our_own_switches_them_on():
    changes, _ = settings_from(profile("cuda:kernels+fp16"), resolved().config, {"kernels", "precision", "tf32"})
    assert changes == {"kernels": True, "precision": "16-mixed", "tf32": False}
