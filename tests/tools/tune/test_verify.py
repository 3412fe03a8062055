"""``hotlap tune --verify``: an honest consumer passes, one that does something else is caught, each thing by name."""

from __future__ import annotations

import dataclasses

import pytest

from hotlap.base.errors import RecordError
from hotlap.cli.main import run as command
from hotlap.engine import parts
from hotlap.engine import tuned as engine_tuned
from hotlap.measure import served_workload
from hotlap.measure.fingerprint import Question, ask_key
from hotlap.measure.loaded_workload import LoadedWorkload
from hotlap.records.tuned import ProfileStore, TunedKey, TunedProfile
from hotlap.tools.tune import TuneConfig, tune
from hotlap.tools.tune.verify import compare

CONV = """
from torch import nn

def net():
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.ConvTranspose2d(8, 2, 2, stride=2), nn.Flatten(), nn.Linear(288, 3))
"""
KEY = TunedKey(
    target="conv.py:net", mode="train", device="cuda", device_name="x", memory_bytes=1, torch="2", python="3",
    model_hash="h", signature="s",
)  # fmt: skip


def profile(key=KEY, arm="cpu:bf16+channels_last+fused", batch=6):
    return TunedProfile(
        key=key, arm=arm, batch=batch, objective="throughput", samples_per_s=9.0, samples_ms=[[1.0]], p50_ms=1.0,
        p95_ms=None, peak_bytes=None, gate_error=0.1, tail_batch=3, max_batch=6, searched_from="2026-01-01",
        measured_at="2026-01-02", record="r",
    )  # fmt: skip


@pytest.fixture
def stored(tmp_path, monkeypatch, jobs_in_process):
    (tmp_path / "conv.py").write_text(CONV)
    monkeypatch.chdir(tmp_path)
    for mode in ("train", "infer"):
        question = Question(target="conv.py:net", mode=mode, options={}, inputs=["3x8x8"], device="cpu")
        ProfileStore().save(
            profile(ask_key(question), arm="cpu:bf16+channels_last" + "+fused+padded+shuffled" * (mode == "train"))
        )
    return tmp_path


def config(**settings):
    return TuneConfig(target="conv.py:net", input=("3x8x8",), device="cpu", verify=True, **settings)


@pytest.mark.usefixtures("stored")
@pytest.mark.parametrize("mode", ["train", "infer"])
def test_an_honest_consumer_is_verified(mode):
    record = tune(config(mode=mode))
    assert record.verdict.outcome == "verified" and record.verdict.exit_code == 0
    assert {check.name: check.status for check in record.checks}["layout"] == "PASS"
    assert "at batch 6" in record.verdict.headline


@pytest.mark.usefixtures("stored")
def test_a_consumer_that_ignores_the_profile_is_caught(monkeypatch):
    monkeypatch.setattr(engine_tuned, "settings_from", lambda profile, config, free: ({}, []))
    record = tune(config())
    wrong = {check.name: (check.observed, check.why) for check in record.checks if check.status == "FAIL"}
    assert wrong == {
        "batch": ("16", "expected 6"),
        "precision": ("float32", "expected bfloat16"),
        "layout": ("contiguous", "expected channels_last"),
        "padded": ("0 padded convolutions ran", "expected on"),
        "shuffled": ("0 shuffled convolutions ran", "expected on"),
        "fused": ("off", "expected on"),
    }
    assert record.verdict.exit_code == 1
    assert record.verdict.headline == "hotlap train does not use the profile: batch is 16, expected 6"


@pytest.mark.usefixtures("stored")
def test_a_trainer_that_lays_out_its_batches_alone_is_caught(monkeypatch):
    monkeypatch.setattr(parts, "lay_out", lambda model: model)
    verdict = tune(config()).verdict
    assert verdict.headline.endswith("layout is channels_last, but for the weights, expected channels_last")


@pytest.mark.usefixtures("stored")
def test_a_server_that_runs_another_batch_than_its_profile_is_caught(monkeypatch):
    class Halved(LoadedWorkload):
        def __init__(self, workload, arm, rows):
            super().__init__(workload, arm, rows // 2)

    monkeypatch.setattr(served_workload, "LoadedWorkload", Halved)
    record = tune(config(mode="infer"))
    assert record.verdict.headline == "hotlap serve does not use the profile: batch is 3, expected 6"


def test_without_a_profile_there_is_nothing_to_verify(tmp_path, monkeypatch, jobs_in_process, capsys):
    (tmp_path / "conv.py").write_text(CONV)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RecordError, match=r"no tuned profile of 'conv\.py:net' for train holds here"):
        tune(config())
    assert command(["tune", "conv.py:net", "--input", "3x8x8", "--verify"]) == 2
    assert "'hotlap tune conv.py:net --for train --input 3x8x8' makes one" in capsys.readouterr().err


@pytest.mark.usefixtures("stored")
def test_a_profile_gone_stale_is_named_with_its_reason(tmp_path):
    (tmp_path / "conv.py").write_text(CONV.replace("Conv2d(3, 8, 3)", "Conv2d(3, 8, 3, bias=False)"))
    with pytest.raises(RecordError, match="is stale: the model's source changed"):
        tune(config())


@pytest.mark.usefixtures("stored")
def test_a_profile_that_cannot_be_read_is_named():
    (file,) = ProfileStore().folder.glob("*.train.*.json")
    file.write_text("{bad")
    with pytest.raises(RecordError, match=rf"for train holds here; tuned profile '.*{file.name}' cannot be read: "):
        tune(config())


@pytest.mark.usefixtures("stored")
def test_a_profile_of_another_version_is_named_with_what_is_unknown():
    (file,) = ProfileStore().folder.glob("*.train.*.json")
    file.write_text(file.read_text().replace("cpu:bf16", "cpu:fp6"))
    with pytest.raises(RecordError, match=rf"tuned profile '.*{file.name}' cannot be used: unknown option 'fp6'"):
        tune(config())


@pytest.mark.usefixtures("stored")
def test_a_dry_run_tells_which_profile_would_be_verified(capsys):
    given = ["tune", "conv.py:net", "--input", "3x8x8", "--device", "cpu", "--for", "infer", "--verify", "--dry-run"]
    assert command(given) == 0
    told = capsys.readouterr().out
    assert "profile    cpu:bf16+channels_last at batch 6, measured 2026-01-02" in told
    assert "consumer   hotlap serve" in told and "every trial" not in told


SEEN = {
    "batches": [6, 6, 4], "dtypes": ["float32"], "channels_last": None, "compiled": True, "tf32": True,
    "cudnn_benchmark": True, "threads": 2, "fused": False, "num_replays": 0,
    "num_folded": 0, "num_padded": 0, "num_shuffled": 0, "num_unbiased": 0,
}  # fmt: skip


@pytest.mark.parametrize(
    ("arm", "change", "wrong"),
    [
        ("cuda:tf32+compile+cudnn_benchmark", {}, []),
        ("cuda:compile+cudnn_benchmark", {}, ["tf32"]),
        ("cuda:tf32+cudnn_benchmark", {}, ["compile"]),
        ("cuda:tf32+compile", {}, ["cudnn_benchmark"]),
        ("cuda:fp16+compile+cudnn_benchmark", {"tf32": False}, ["precision"]),
        ("cuda:fp16+compile+cudnn_benchmark", {"tf32": False, "dtypes": ["float16", "float32"]}, []),
        ("cuda:tf32+compile+cudnn_benchmark", {"dtypes": ["bfloat16", "float32"]}, ["precision"]),
        ("cuda:tf32+compile+cudnn_benchmark", {"batches": [4, 4]}, ["batch"]),
        ("cuda:tf32+compile+cudnn_benchmark", {"batches": []}, ["batch"]),
        ("cuda:tf32+compile+cudnn_benchmark", {"micro": 3}, ["batch"]),
        ("cpu:channels_last+compile", {"channels_last": True, "weights_last": True}, []),
        ("cpu:channels_last+compile", {"channels_last": True, "weights_last": False}, ["layout"]),
        ("cpu:channels_last+compile", {"channels_last": False, "weights_last": True}, ["layout"]),
        ("cpu:compile", {"channels_last": False, "weights_last": True}, []),
        ("cpu:threads=1+compile", {}, ["threads"]),
        ("cpu:compile+fused", {}, ["fused"]),
        ("cpu:compile+keep_memory", {}, ["keep_memory"]),
        ("cpu:compile+keep_memory", {"keeps_memory": True}, []),
        ("cpu:compile", {"keeps_memory": True}, ["keep_memory"]),
        ("cpu:compile+folded", {}, ["folded"]),
        ("cpu:compile", {"num_folded": 2}, ["folded"]),
        ("cuda:tf32+compile+cudnn_benchmark+sdpa=flash", {"sdpa": ["math", "flash"]}, ["sdpa"]),
        ("cuda:tf32+compile+cudnn_benchmark+sdpa=flash", {"sdpa": ["flash"]}, []),
        ("cuda:tf32+compile+cudnn_benchmark+kernels", {"num_kernels": 0}, ["kernels"]),
        ("cuda:tf32+compile+cudnn_benchmark+kernels", {"num_kernels": 3}, []),
        ("cuda:tf32+cudnn_benchmark+recompute", {"compiled": False, "num_recomputed": 0}, ["recompute"]),
        ("cuda:tf32+cudnn_benchmark+recompute", {"compiled": False, "num_recomputed": 9}, []),
        ("cpu:compile+folded", {"num_folded": 2}, []),
        ("cpu:compile", {"num_padded": 2}, ["padded"]),
        ("cpu:compile+shuffled", {}, ["shuffled"]),
        ("cpu:compile+shuffled", {"num_shuffled": 4}, []),
        ("cpu:compile+unbiased", {"num_unbiased": 18}, []),
        ("cpu:compile+unbiased", {}, ["unbiased"]),
        ("cpu:compile", {"num_unbiased": 18}, ["unbiased"]),
        ("cuda:tf32+compile+cudnn_benchmark+graph", {}, ["graph"]),
        ("cuda:tf32+compile+cudnn_benchmark+graph", {"num_replays": 3}, []),
        ("cuda:tf32+compile+cudnn_benchmark", {"num_replays": 3}, ["graph"]),
        (
            "cuda:fp16+graph+compile+cudnn_benchmark",
            {"tf32": False, "dtypes": ["float16"], "num_replays": 1},
            ["fused"],
        ),
    ],
)
def test_each_thing_that_differs_is_named(arm, change, wrong):
    found = compare(profile(dataclasses.replace(KEY), arm), {**SEEN, **change})
    assert [check.name for check in found if check.status == "FAIL"] == wrong


def test_a_batch_that_was_split_for_lack_of_memory_is_told():
    found = compare(profile(arm="cuda:tf32+compile+cudnn_benchmark"), {**SEEN, "batches": [6, 3, 3], "micro": 3})
    told = {check.name: (check.observed, check.why) for check in found}
    assert told["batch"] == ("3, 6, split into parts of 3 for lack of memory", "expected 6")


@pytest.mark.parametrize(("threads", "wrong"), [(8, []), (2, ["threads"])])
def test_a_cpu_is_used_with_as_many_threads_as_it_was_measured_with(threads, wrong):
    key = dataclasses.replace(KEY, device="cpu", cores=8)
    found = compare(profile(key, "cpu:compile"), {**SEEN, "threads": threads})
    assert [check.name for check in found if check.status == "FAIL"] == wrong
