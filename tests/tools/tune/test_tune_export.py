"""What a profile becomes for other programs: valid, true to what was measured, and nothing there is lost."""

from __future__ import annotations

import dataclasses
import importlib
import json
import re

import pytest
from simulated import Machine

from hotlap.base.errors import DataError, RecordError, StorageError
from hotlap.data.batch_sizes import read_batch_size
from hotlap.measure.jobs import Description
from hotlap.records.tuned import TunedKey, TunedProfile
from hotlap.tools.tune.export import write_exports
from hotlap.tools.tune.rows import Config, Row

KEY = TunedKey(
    target="unet", mode="train", device="cuda", device_name="Fake H1", memory_bytes=80 * 2**30, driver="555.42",
    torch="2.15.0", python="3.11.7", model_hash="abc", signature="3x128x128:float32",
)  # fmt: skip
PROFILE = TunedProfile(
    key=KEY, arm="cuda:bf16+channels_last+compile=reduce-overhead+cudnn_benchmark+fused", batch=64,
    objective="throughput", samples_per_s=900.0, samples_ms=[[71.0]], p50_ms=71.0, p95_ms=None, peak_bytes=3 * 2**30,
    gate_error=0.2, tail_batch=42, max_batch=128, searched_from="2026-01-01", measured_at="2026-01-02", record="r",
)  # fmt: skip
ABOUT = Description(
    name="u-net 1", summary="", default_batch=16, num_parameters=1, has_convolutions=True, can_compile=True,
    fast_bf16=False, usable_cores=8, num_cuda=1,
)  # fmt: skip


def rows():
    machine = Machine(noise=0.0, rate=lambda arm, batch: {32: 880.0, 64: 900.0, 128: 899.0}[batch])
    for batch in (32, 64, 128):
        machine.trial("batch", Config(PROFILE.arm, batch), rung=0, attempt=0, tail=0)
    failed = Row(stage="batch", arm=PROFILE.arm, batch=256, rung=0, status="out of memory", why="batch = 256: no room")
    return [*machine.rows, failed]


def refuse(text):
    pytest.fail(f"{text} is not JSON")


def test_batch_sizes_is_valid_json_in_the_known_schema(tmp_path):
    write_exports(PROFILE, rows(), ABOUT, tmp_path / "out")
    data = json.loads((tmp_path / "out/batch_sizes.json").read_text(), parse_constant=refuse)
    assert data["gpu_info"] == {"device_name": "Fake H1", "total_memory_gb": 80.0, "driver_version": "555.42"}
    chosen = data["batch_configurations"]["u-net 1"]
    assert (chosen["optimal_batch_size"], chosen["max_safe_batch_size"]) == (64, 128)
    assert (chosen["expected_throughput"], chosen["memory_limit_mb"], chosen["p95_latency_ms"]) == (900.0, 3072.0, None)
    tests = data["detailed_results"]["u-net 1"]["optimization_result"]["test_results"]
    assert [(t["batch_size"], t["success"]) for t in tests] == [(32, True), (64, True), (128, True), (256, False)]
    assert tests[-1]["error"] == "batch = 256: no room" and tests[-1]["throughput_imgs_per_sec"] is None
    assert tests[1]["peak_memory_mb"] == pytest.approx((1000 + 64 * 60) / 2**20)
    assert set(tests[0]) >= {"model_name", "batch_size", "throughput_imgs_per_sec", "avg_inference_time_ms",
                             "peak_memory_mb", "memory_usage_mb", "success", "error"}  # fmt: skip


def test_other_models_in_the_file_stay(tmp_path):
    write_exports(PROFILE, rows(), dataclasses.replace(ABOUT, name="other"), tmp_path)
    write_exports(PROFILE, rows(), ABOUT, tmp_path)
    data = json.loads((tmp_path / "batch_sizes.json").read_text())
    assert set(data["batch_configurations"]) == set(data["detailed_results"]) == {"other", "u-net 1"}


@pytest.mark.parametrize("text", ['{"memory": Infinit', '[{"model": 1}]', '{"batch_configurations": ["unet"]}', '"x"'])
def test_a_file_that_cannot_be_read_is_not_written_over(tmp_path, text):
    (tmp_path / "batch_sizes.json").write_text(text)
    with pytest.raises(RecordError, match=r"batch_sizes\.json' is there and cannot be read"):
        write_exports(PROFILE, rows(), ABOUT, tmp_path)
    assert (tmp_path / "batch_sizes.json").read_text() == text


def test_numbers_that_json_does_not_know_become_null_in_what_stays(tmp_path):
    file = tmp_path / "batch_sizes.json"
    file.write_text(
        '{"batch_configurations": {"old": {"memory_limit_mb": Infinity, "p95": NaN}}, "detailed_results": null}'
    )
    write_exports(PROFILE, rows(), ABOUT, tmp_path)
    data = json.loads(file.read_text(), parse_constant=lambda text: pytest.fail(text))
    assert data["batch_configurations"]["old"] == {"memory_limit_mb": None, "p95": None}


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "taken").write_text("")
    with pytest.raises(StorageError, match=r"cannot write export = '.*taken/out': Not a directory"):
        write_exports(PROFILE, rows(), ABOUT, tmp_path / "taken" / "out")


def test_settings_in_the_file_stay(tmp_path):
    settings = {"dynamic_batching": {"enabled": True, "max_queue_delay_ms": 5}, "memory_reserve_percent": 15}
    (tmp_path / "batch_sizes.json").write_text(json.dumps({**settings, "gpu_info": {"device_name": "old"}}))
    write_exports(PROFILE, rows(), ABOUT, tmp_path)
    data = json.loads((tmp_path / "batch_sizes.json").read_text())
    assert {name: data[name] for name in settings} == settings
    assert data["gpu_info"]["device_name"] == "Fake H1"


def test_an_entry_names_the_device_it_was_measured_on(tmp_path):
    """gpu_info is that of the last one written."""
    other = dataclasses.replace(PROFILE, key=dataclasses.replace(KEY, device_name="Fake A5"))
    write_exports(other, rows(), dataclasses.replace(ABOUT, name="other"), tmp_path)
    write_exports(PROFILE, rows(), ABOUT, tmp_path)
    entries = json.loads((tmp_path / "batch_sizes.json").read_text())["batch_configurations"]
    assert entries["other"]["note"].endswith(", train, run in its final form with a ragged tail of 42 on Fake A5")
    assert entries["u-net 1"]["note"].endswith(" on Fake H1")


def test_the_batch_of_training_steps_is_not_read_as_one_of_passes(tmp_path):
    file = tmp_path / "batch_sizes.json"
    write_exports(PROFILE, rows(), ABOUT, tmp_path)
    words = r"the batch of 'u-net 1' was tuned for 'train'\. Expected .*inference.*--for infer --export"
    with pytest.raises(DataError, match=words):
        read_batch_size(file, "u-net 1")
    for_infer = dataclasses.replace(PROFILE, batch=32, key=dataclasses.replace(KEY, mode="infer"))
    write_exports(for_infer, rows(), ABOUT, tmp_path)
    assert read_batch_size(file, "u-net 1") == 32
    file.write_text('{"batch_configurations": {"hrnet": {"optimal_batch_size": 4}}}')  # of another program
    assert read_batch_size(file, "hrnet") == 4


def test_training_steps_make_no_configuration_of_a_server(tmp_path):
    files = write_exports(PROFILE, rows(), ABOUT, tmp_path)
    assert {file.name for file in files} == {
        "batch_sizes.json", "lightning_arguments.py", "huggingface_arguments.py"
    } == {file.name for file in tmp_path.iterdir()}  # fmt: skip


def test_the_triton_config_holds_sizes_that_were_run(tmp_path):
    write_exports(dataclasses.replace(PROFILE, key=dataclasses.replace(KEY, mode="infer")), rows(), ABOUT, tmp_path)
    text = (tmp_path / "config.pbtxt").read_text()
    assert 'name: "u-net_1"' in text and "max_batch_size: 64" in text and "kind: KIND_GPU" in text
    assert "preferred_batch_size: [ 32, 64 ]" in text, "128 is more than the batch chosen"
    assert re.search(r"max_queue_delay_microseconds: 35500$", text, re.M)
    bare = "\n".join(line for line in text.splitlines() if not line.strip().startswith("#"))
    assert bare.count("{") == bare.count("}") and bare.count("[") == bare.count("]")


def python_of(path):
    values = {}
    exec(compile(path.read_text(), str(path), "exec"), values)
    return values


def test_the_snippets_are_python_with_the_arguments_of_each_trainer(tmp_path):
    write_exports(PROFILE, rows(), ABOUT, tmp_path)
    lightning = python_of(tmp_path / "lightning_arguments.py")
    assert lightning["TRAINER"] == {"accelerator": "gpu", "devices": 1, "precision": "bf16-mixed", "benchmark": True}
    assert lightning["DATALOADER"] == {"batch_size": 64}
    assert lightning["COMPILE"] == {"mode": "reduce-overhead", "dynamic": False}
    face = python_of(tmp_path / "huggingface_arguments.py")["TRAINING_ARGUMENTS"]
    assert face["per_device_train_batch_size"] == 64 and face["bf16"] and not face["fp16"]
    assert (face["torch_compile"], face["torch_compile_mode"]) == (True, "reduce-overhead")
    assert face["optim"] == "adamw_torch_fused"
    by_hand = "# by hand: the optimizer with fused=True"
    assert by_hand in (tmp_path / "lightning_arguments.py").read_text()
    assert by_hand not in (tmp_path / "huggingface_arguments.py").read_text(), "optim has said it"
    for name in ("lightning", "huggingface"):
        first = (tmp_path / f"{name}_arguments.py").read_text().partition("\n")[0]
        assert first == f"# u-net 1: {PROFILE.arm} at batch 64 --for train, found by hotlap tune on Fake H1"
    assert "# by hand: model = model.to(memory_format=torch.channels_last)" in (
        (tmp_path / "huggingface_arguments.py").read_text()
    )


IEEE = 'torch.backends.fp32_precision = "ieee", for by itself torch lets convolutions take TF32'


@pytest.mark.parametrize(
    ("arm", "by_hand"),
    [
        ("cuda", [IEEE]),
        ("cuda:tf32", ['torch.set_float32_matmul_precision("high")']),
        ("cuda:bf16", [IEEE]),
        ("cpu", []),
    ],
)
def test_lightning_is_told_which_float32_was_measured(tmp_path, arm, by_hand):
    """The other trainer has an argument for it."""
    write_exports(dataclasses.replace(PROFILE, arm=arm), rows(), ABOUT, tmp_path)
    text = (tmp_path / "lightning_arguments.py").read_text()
    assert re.findall(r"^# by hand: (.*)$", text, re.M) == by_hand
    assert text.startswith(f"# u-net 1: {arm} at batch 64 --for train, found by hotlap tune on Fake H1\n")
    face = (tmp_path / "huggingface_arguments.py").read_text()
    assert "by hand" not in face
    if arm.startswith("cuda"):
        assert python_of(tmp_path / "huggingface_arguments.py")["TRAINING_ARGUMENTS"]["tf32"] is (arm == "cuda:tf32")


def test_what_a_trainer_has_no_argument_for_is_said(tmp_path):
    odd = dataclasses.replace(PROFILE, arm="cpu:threads=2", key=dataclasses.replace(KEY, mode="infer", device="cpu"))
    write_exports(odd, rows(), ABOUT, tmp_path)
    assert "# by hand: torch.set_num_threads(2)" in (tmp_path / "lightning_arguments.py").read_text()
    face = python_of(tmp_path / "huggingface_arguments.py")["TRAINING_ARGUMENTS"]
    assert face["per_device_eval_batch_size"] == 64 and face["use_cpu"] is True and "tf32" not in face
    assert "kind: KIND_CPU" in (tmp_path / "config.pbtxt").read_text()


@pytest.mark.parametrize(
    ("option", "call"),
    [
        ("folded", "fold_norms"),
        ("padded", "pad_channels"),
        ("shuffled", "shuffle_blocks"),
        ("unbiased", "drop_biases"),
        ("kernels", "use_kernels"),
    ],
)
def test_a_change_of_the_model_is_named_by_the_function_that_makes_it(tmp_path, option, call):
    write_exports(dataclasses.replace(PROFILE, arm=f"cpu:{option}"), rows(), ABOUT, tmp_path)
    for name in ("lightning_arguments.py", "huggingface_arguments.py"):
        [line] = [line for line in (tmp_path / name).read_text().splitlines() if "# by hand: hotlap." in line]
        module, _, called = line.removeprefix("# by hand: ").partition("(")[0].rpartition(".")
        assert called == call and callable(getattr(importlib.import_module(module), called))


def test_activations_computed_again_are_an_argument_of_one_trainer_and_said_for_the_other(tmp_path):
    write_exports(dataclasses.replace(PROFILE, arm="cuda:recompute"), rows(), ABOUT, tmp_path)
    assert python_of(tmp_path / "huggingface_arguments.py")["TRAINING_ARGUMENTS"]["gradient_checkpointing"] is True
    text = (tmp_path / "lightning_arguments.py").read_text()
    assert "# by hand: hotlap.measure.recompute.recompute_blocks(model)" in text
    assert callable(importlib.import_module("hotlap.measure.recompute").recompute_blocks)
