"""A profile in other programs' words: batch_sizes.json, a Triton config, arguments for Lightning and Hugging Face."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import pprint
import re
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hotlap.base.errors import RecordError, StorageError
from hotlap.device.layout import LAST
from hotlap.measure.arms import ArmSpec, parse_arm
from hotlap.measure.jobs import Description
from hotlap.records.run import write_atomic
from hotlap.records.tuned import TunedProfile
from hotlap.tools.tune.rows import Row, estimates

PARTS = ("batch_configurations", "detailed_results")
"""Of a batch_sizes.json, an entry a model."""
SIZES_NAME = "batch_sizes.json"
MIB, GIB = 2**20, 2**30
PREFERRED_SHARE = 0.95
"""Of the profile's rate that a batch size must reach to be preferred by a server's queue."""


def write_exports(profile: TunedProfile, rows: Sequence[Row], about: Description, folder: Path) -> list[Path]:
    """The files, written into ``folder``; whatever else a batch_sizes.json holds that is there already stays.

    A server's configuration follows from passes alone: training steps, which are longer, leave it out.
    """
    check_folder(folder)
    sizes = folder / SIZES_NAME
    texts = {
        sizes: json.dumps(batch_sizes(profile, rows, about.name, _existing(sizes)), indent=2, allow_nan=False) + "\n",
        folder / "lightning_arguments.py": lightning_arguments(profile, about.name, volumes=about.has_volumes),
        folder / "huggingface_arguments.py": huggingface_arguments(profile, about.name, volumes=about.has_volumes),
    }
    if profile.key.mode == "infer":
        texts[folder / "config.pbtxt"] = triton_config(profile, rows, about.name)
    for path, text in texts.items():
        write_atomic(path, text)
    return list(texts)


def check_folder(folder: Path) -> None:
    """Makes the folder, and refuses one that cannot be written or has a batch_sizes.json that cannot be read."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as error:
        raise StorageError(
            f"cannot write export = {str(folder)!r}: {error.strerror or error}", remedy="Choose another --export"
        ) from error
    _existing(folder / SIZES_NAME)


def _existing(path: Path) -> dict[str, Any]:
    """What a batch_sizes.json holds already; numbers that JSON does not know, as Infinity, become null."""
    if not path.exists():
        return {}
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"), parse_constant=lambda _: None)
        if not isinstance(found, dict) or not all(isinstance(found.get(part) or {}, dict) for part in PARTS):
            raise ValueError(f"it is no object with objects as {' and '.join(PARTS)}")
    except (OSError, ValueError) as error:
        raise RecordError(
            f"{str(path)!r} is there and cannot be read: {error}", remedy="Move it away, or choose another --export"
        ) from error
    return found


def batch_sizes(profile: TunedProfile, rows: Sequence[Row], model: str, existing: dict[str, Any]) -> dict[str, Any]:
    """The profile and all trials of its arm, with true peaks; unknown numbers are null."""
    tests = [_test_result(row, model) for row in rows if row.arm == profile.arm]
    tail = f" with a ragged tail of {profile.tail_batch}" if profile.tail_batch else ""
    chosen = {
        "optimal_batch_size": profile.batch,
        "max_safe_batch_size": profile.max_batch,
        "expected_throughput": profile.samples_per_s,
        "memory_limit_mb": _mb(profile.peak_bytes),
        "p95_latency_ms": profile.p95_ms,
        "mode": profile.key.mode,
        # Entries of other models stay beside this one, and may be of another card than gpu_info.
        "note": f"{profile.arm}, {profile.key.mode}, run in its final form{tail} on {profile.key.device_name}",
    }
    result = {"model_name": model, **chosen, "test_results": tests}
    return {
        **existing,
        "optimization_timestamp": profile.measured_at,
        "gpu_info": {
            "device_name": profile.key.device_name,
            "total_memory_gb": profile.key.memory_bytes / GIB,
            "driver_version": profile.key.driver or None,
        },
        "batch_configurations": {**(existing.get("batch_configurations") or {}), model: chosen},
        "detailed_results": {
            **(existing.get("detailed_results") or {}),
            model: {"optimization_result": result, "all_test_results": [_test_result(row, model) for row in rows]},
        },
    }


def _test_result(row: Row, model: str) -> dict[str, Any]:
    return {
        "model_name": model,
        "configuration": row.arm,
        "batch_size": row.batch,
        "throughput_imgs_per_sec": row.samples_per_s,
        "avg_inference_time_ms": statistics.fmean(row.wall_ms) if row.ok and row.wall_ms else None,
        "peak_memory_mb": _mb(row.peak_bytes),
        "memory_usage_mb": _mb(row.peak_bytes),
        "success": row.ok,
        "error": row.why or None,
    }


def _mb(size: int | None) -> float | None:
    return None if size is None else size / MIB


def triton_config(profile: TunedProfile, rows: Sequence[Row], model: str) -> str:
    """A model's config.pbtxt, but for its inputs and outputs, which only the exported file can name."""
    known = [e for e in estimates(rows).values() if e.config.arm == profile.arm and e.config.batch <= profile.batch]
    near = {e.config.batch for e in known if e.rate >= PREFERRED_SHARE * profile.samples_per_s} | {profile.batch}
    kind = "KIND_GPU" if profile.key.device == "cuda" else "KIND_CPU"
    name = re.sub(r"[^A-Za-z0-9_-]+", "_", model)
    return "\n".join(
        [
            f"# {profile.arm} at batch {profile.batch}: {profile.samples_per_s:.1f} samples/s on "
            f"{profile.key.device_name}, {profile.measured_at}",
            f'name: "{name}"',
            'backend: "pytorch"',
            f"max_batch_size: {profile.batch}",
            "dynamic_batching {",
            f"  preferred_batch_size: [ {', '.join(str(size) for size in sorted(near))} ]",
            "  # half a step: waiting longer for a fuller batch than it takes to run one does not pay",
            f"  max_queue_delay_microseconds: {max(1, round(profile.p50_ms * 500))}",
            "}",
            f"instance_group [ {{ count: 1 kind: {kind} }} ]",
            "# Add input and output as the exported model names them.",
            "",
        ]
    )


def lightning_arguments(profile: TunedProfile, model: str, *, volumes: bool = False) -> str:
    """Python with the arguments of a Lightning Trainer and what it has none for."""
    arm = parse_arm(profile.arm)
    precision = {"fp32": "32-true", "tf32": "32-true", "bf16": "bf16-mixed", "fp16": "16-mixed"}[arm.precision]
    trainer = {
        "accelerator": "gpu" if arm.device == "cuda" else "cpu",
        "devices": 1,
        "precision": precision,
        "benchmark": arm.cudnn_benchmark,
    }
    loader = {"batch_size": profile.batch}
    by_hand = _by_hand(arm, volumes)
    if arm.precision == "tf32":
        by_hand.append('torch.set_float32_matmul_precision("high")')
    elif arm.device == "cuda":  # as it was measured; the other trainer has an argument for it
        by_hand.append('torch.backends.fp32_precision = "ieee", for by itself torch lets convolutions take TF32')
    by_hand += ["hotlap.measure.recompute.recompute_blocks(model)"] if arm.recompute else []
    return _snippet(profile, model, {"TRAINER": trainer, "DATALOADER": loader, "COMPILE": _compile(arm)}, by_hand)


def huggingface_arguments(profile: TunedProfile, model: str, *, volumes: bool = False) -> str:
    """Python with the TrainingArguments of a Hugging Face Trainer."""
    arm = parse_arm(profile.arm)
    size = "per_device_train_batch_size" if profile.key.mode == "train" else "per_device_eval_batch_size"
    arguments: dict[str, Any] = {
        size: profile.batch,
        "bf16": arm.precision == "bf16",
        "fp16": arm.precision == "fp16",
        "torch_compile": bool(arm.compile),
        "gradient_checkpointing": arm.recompute,
        "optim": "adamw_torch_fused" if arm.fused else "adamw_torch",
        "use_cpu": arm.device == "cpu",
    }
    arguments |= {"tf32": arm.precision == "tf32"} if arm.device == "cuda" else {}
    arguments |= {"torch_compile_mode": arm.compile} if arm.compile else {}
    by_hand = _by_hand(dataclasses.replace(arm, fused=False), volumes)  # optim says it
    return _snippet(profile, model, {"TRAINING_ARGUMENTS": arguments}, by_hand)


def _compile(arm: ArmSpec) -> dict[str, Any] | None:
    """Arguments of torch.compile; None where it is not used."""
    return {"mode": None if arm.compile == "default" else arm.compile, "dynamic": False} if arm.compile else None


MODEL_CHANGES = {
    "folded": "hotlap.measure.folded.fold_norms(model, run), where run() calls the model once on a few samples",
    "padded": "hotlap.measure.padded.pad_channels(model)",
    "shuffled": "hotlap.measure.shuffled.shuffle_blocks(model)",
    "unbiased": "hotlap.measure.unbiased.drop_biases(model)",
    "kernels": "hotlap.measure.session.use_kernels(model)",
}


def _by_hand(arm: ArmSpec, volumes: bool) -> list[str]:
    """What the trainer has no argument for."""
    lines = [f"model = model.to(memory_format=torch.{LAST[5 if volumes else 4]})"] if arm.channels_last else []
    lines += [line for option, line in MODEL_CHANGES.items() if getattr(arm, option)]
    lines += ["the optimizer with fused=True"] if arm.fused else []
    lines += [f"torch.set_num_threads({arm.threads})"] if arm.threads else []
    lines += ["hotlap.device.kept_memory.keep_memory(), before anything else"] if arm.keep_memory else []
    lines += [f"attention within sdpa_kernel, {arm.sdpa} only"] if arm.sdpa else []
    return lines + (["the whole step recorded as a CUDA graph"] if arm.graph else [])


def _snippet(profile: TunedProfile, model: str, values: dict[str, Any], by_hand: list[str]) -> str:
    name = " ".join(model.split())  # a comment ends with its line
    what = f"{name}: {profile.arm} at batch {profile.batch} --for {profile.key.mode}"
    head = f"# {what}, found by hotlap tune on {profile.key.device_name}"
    lines = [head, f"# torch {profile.key.torch}, {profile.measured_at}, {profile.samples_per_s:.1f} samples/s"]
    lines += [f"# by hand: {line}" for line in by_hand]
    lines += [f"{name} = {pprint.pformat(value, sort_dicts=False)}" for name, value in values.items()]
    return "\n".join(lines) + "\n"
