"""The profile that a consumer gets: of this kind of device, on the one that it means."""

from __future__ import annotations

import pytest

from hotlap.base.events import ignore
from hotlap.measure import fingerprint
from hotlap.measure.fingerprint import Question, stored_profile
from hotlap.records.tuned import ProfileStore, TunedKey, TunedProfile

KEY = TunedKey(
    target="unet", mode="infer", device="cuda", device_name="Fake H1", memory_bytes=80 * 2**30, driver="555.42",
    torch="2.15.0", cuda="13.2", cudnn="92000", python="3.11.7", model_hash="abc", signature="3x128x128:float32",
)  # fmt: skip


@pytest.mark.parametrize(
    ("measured", "device", "arm"),
    [
        ("cuda:1:bf16", "", "cuda:bf16"),
        ("cuda:1:bf16", "cuda", "cuda:bf16"),
        ("cuda:bf16", "cuda:1", "cuda:1:bf16"),
        ("cuda:1:bf16", "cuda:1", "cuda:1:bf16"),
    ],
)
def test_a_profile_of_one_card_is_run_on_the_card_that_is_asked_for(tmp_path, monkeypatch, measured, device, arm):
    """The key holds for all cards of a kind: another one may be asked for, or be the only one in sight."""
    monkeypatch.setattr(fingerprint, "ask_key", lambda question: KEY)
    store = ProfileStore(tmp_path)
    store.save(
        TunedProfile(
            key=KEY, arm=measured, batch=64, objective="throughput", samples_per_s=900.0, samples_ms=[[71.0]],
            p50_ms=71.0, p95_ms=None, peak_bytes=None, gate_error=0.2, tail_batch=42, max_batch=128,
            searched_from="2026-01-01T10:00:00+00:00", measured_at="2026-01-01T10:05:00+00:00", record="r",
        )
    )  # fmt: skip
    question = Question(target="unet", mode="infer", options={}, inputs=[], device=device)
    found, _ = stored_profile(question, ignore, store)
    assert found is not None and found.arm == arm


@pytest.mark.parametrize(
    ("arm", "why"), [("cuda:newer", "unknown option 'newer'"), ("cpu", "its arm 'cpu' is not of cuda")]
)
def test_a_profile_with_an_arm_of_another_version_is_left_aside(tmp_path, monkeypatch, arm, why):
    """Its key holds, for that does not know which hotlap wrote it; whoever trains has not asked for any arm."""
    monkeypatch.setattr(fingerprint, "ask_key", lambda question: KEY)
    store = ProfileStore(tmp_path)
    store.save(
        TunedProfile(
            key=KEY, arm=arm, batch=64, objective="throughput", samples_per_s=900.0, samples_ms=[[71.0]],
            p50_ms=71.0, p95_ms=None, peak_bytes=None, gate_error=0.2, tail_batch=42, max_batch=128,
            searched_from="2026-01-01T10:00:00+00:00", measured_at="2026-01-01T10:05:00+00:00", record="r",
        )
    )  # fmt: skip
    found, lines = stored_profile(Question(target="unet", mode="infer", options={}, inputs=[]), ignore, store)
    assert found is None and lines[0].startswith("Left aside: tuned profile '") and why in lines[0]
