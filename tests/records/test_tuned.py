"""Tuned profiles on disk: found by what they are about, stale by what they were measured on, never lost or torn."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import json
import os
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

import pytest

from hotlap.base.errors import EnvironmentUnusable, RecordError, StorageError
from hotlap.records import run as run_module
from hotlap.records.tuned import (
    ProfileStore,
    TunedKey,
    TunedProfile,
    command_for,
    default_folder,
    only_search,
    read_profile,
    stale_reasons,
    write_profile,
)

KEY = TunedKey(
    target="unet", mode="train", device="cuda", device_name="Fake H1", memory_bytes=80 * 2**30, driver="555.42",
    torch="2.15.0", cuda="13.2", cudnn="92000", python="3.11.7", model_hash="abc", signature="3x128x128:float32",
)  # fmt: skip


def profile(key=KEY, **changes):
    values = {
        "key": key, "arm": "cuda:bf16+channels_last", "batch": 64, "objective": "throughput", "samples_per_s": 900.0,
        "samples_ms": [[71.0, 72.0]], "p50_ms": 71.0, "p95_ms": None, "peak_bytes": 2**33, "gate_error": 0.2,
        "tail_batch": 42, "max_batch": 128, "searched_from": "2026-01-01T10:00:00+00:00",
        "measured_at": "2026-01-01T10:05:00+00:00", "record": "runs/a/record.json",
    }  # fmt: skip
    return TunedProfile(**{**values, **changes})


@pytest.fixture
def store(tmp_path):
    return ProfileStore(tmp_path / "tuned")


def test_a_saved_profile_is_found_and_holds(store):
    path, why_not = store.save(profile())
    found = store.find(KEY)
    assert why_not == "" and found.path == path and found.profile == profile()
    assert found.holds and found.stale == ()
    assert store.candidates("unet", "train") == [path]


def test_the_store_lies_under_the_configuration_folder(tmp_path):
    assert ProfileStore().folder == tmp_path / "config" / "hotlap" / "tuned"
    assert default_folder({"HOME": "/h", "XDG_CONFIG_HOME": "/x"}).as_posix() == "/x/hotlap/tuned"


def test_a_few_pages_more_or_less_are_the_same_memory(store):
    """A host has as much as its kernel leaves, which is another number after an update."""
    store.save(profile())
    assert store.find(dataclasses.replace(KEY, memory_bytes=KEY.memory_bytes - 40 * 2**20)).holds
    assert not store.find(dataclasses.replace(KEY, memory_bytes=KEY.memory_bytes - 2**30)).holds


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"device_name": "Fake H2"}, "device was Fake H1, is Fake H2"),
        ({"memory_bytes": 40 * 2**30}, "its memory was 80.0 GiB, is 40.0 GiB"),
        ({"driver": "560.1"}, "driver was 555.42, is 560.1"),
        ({"torch": "2.11.0"}, "torch was 2.15.0, is 2.11.0"),
        ({"cuda": ""}, "CUDA was 13.2, is none"),
        ({"cudnn": "91000"}, "cuDNN was 92000, is 91000"),
        ({"python": "3.12.1"}, "Python was 3.11.7, is 3.12.1"),
        ({"cores": 4}, "usable cores was none, is 4"),
        ({"model_hash": "def"}, "the model's source changed (abc then, def now)"),
        ({"signature": "3x64x64:float32"}, "input was 3x128x128:float32, is 3x64x64:float32"),
    ],
)
def test_each_difference_makes_a_profile_stale_and_says_why(store, change, words):
    store.save(profile())
    now = dataclasses.replace(KEY, **change)
    found = store.find(now)
    assert found.stale == (words,) == stale_reasons(KEY, now)
    assert found.profile is not None and not found.holds


@pytest.mark.parametrize("change", [{"target": "bilstm"}, {"mode": "infer"}, {"options": {"size": 64}},
                                    {"inputs": ["8"]}, {"device": "cpu"}])  # fmt: skip
def test_a_profile_of_something_else_is_not_found_at_all(store, change):
    store.save(profile())
    assert store.find(dataclasses.replace(KEY, **change)).profile is None


def test_a_file_that_moved_keeps_its_profile_and_another_of_its_name_is_something_else(store):
    key = dataclasses.replace(KEY, target="/home/a/model.py:net")
    path, _ = store.save(profile(key))
    assert store.candidates("model.py:net", "train") == store.candidates("./model.py:net", "train") == [path]
    assert store.find(dataclasses.replace(key, target="/mnt/b/model.py:net")).holds
    other = dataclasses.replace(key, target="/home/b/model.py:net", model_hash="def")
    assert store.find(other).profile is None, "it is not stale: it never was about that file"
    assert store.find(dataclasses.replace(key, model_hash="def")).stale == (
        "the model's source changed (abc then, def now)",
    )


def test_a_profile_of_another_card_is_kept_beside(store):
    other = profile(dataclasses.replace(KEY, device_name="Fake H2"), arm="cuda:fp16")
    store.save(profile())
    store.save(other)
    assert store.find(KEY).profile == profile()
    assert store.find(other.key).profile == other
    nearest = store.find(dataclasses.replace(KEY, device_name="Fake H2", torch="2.99"))
    assert nearest.profile == other and nearest.stale == ("torch was 2.15.0, is 2.99",)


def test_a_newer_search_replaces_its_own_key(store):
    store.save(profile())
    newer = profile(batch=32, samples_per_s=800.0, searched_from="2026-02-01T00:00:00+00:00", record="runs/b")
    assert store.save(newer)[1] == ""
    assert store.find(KEY).profile == newer


def test_a_faster_profile_stored_meanwhile_stays(store):
    theirs = profile(samples_per_s=1000.0, measured_at="2026-01-01T10:04:00+00:00", record="runs/theirs")
    store.save(theirs)
    path, why_not = store.save(profile())
    assert why_not == (
        "another search stored a faster profile meanwhile (cuda:bf16+channels_last at batch 64, 1000 samples/s against "
        "900); it stays"
    )
    assert read_profile(path) == theirs


def test_a_faster_profile_without_a_limit_does_not_stay_for_one_with_it(store):
    store.save(profile(samples_per_s=1000.0, measured_at="2026-01-01T10:04:00+00:00", record="runs/theirs"))
    mine = profile(p95_limit_ms=20.0)
    path, why_not = store.save(mine)
    assert why_not == "" and read_profile(path) == mine


def test_a_torn_or_foreign_file_is_told_and_does_not_hide_the_others(store):
    path, _ = store.save(profile())
    (store.folder / "unet.train.torn.json").write_text('{"schema_version": 1, "arm"')
    (store.folder / "unet.train.old.json").write_text('{"schema_version": 7}')
    found = store.find(KEY)
    assert found.holds and found.path == path
    assert len(found.broken) == 2
    assert any("unet.train.old.json' cannot be read: schema_version = 7, expected 1" in text for text in found.broken)
    with pytest.raises(RecordError, match=r"tuned profile .*torn\.json' cannot be read"):
        read_profile(store.folder / "unet.train.torn.json")


def test_the_command_that_makes_a_profile_is_whole():
    made = command_for("my net.py:f", "infer", {"size": 64, "path": "a b"}, ["3x8x8", "7:int64:9"])
    assert made == (
        "hotlap tune 'my net.py:f' --for infer --input 3x8x8 --input 7:int64:9 "
        "--set workload.size=64 --set 'workload.path=a b'"
    )


def test_a_profile_without_a_batch_is_left_aside(store):
    path, _ = store.save(profile())
    write_profile(profile(batch=0), path)
    found = store.find(KEY)
    assert (
        found.profile is None
        and f"tuned profile '{path}' cannot be read: batch = 0, expected at least 1" in found.broken
    )


@contextlib.contextmanager
def without_rights():
    """As nobody where root runs the tests, who may write anywhere."""
    mine, nobody = os.geteuid(), 65534
    if mine == 0:
        os.seteuid(nobody)
    try:
        yield
    finally:
        os.seteuid(mine)


def test_a_store_that_may_only_be_read_is_read_and_says_that_it_cannot_be_written():
    with tempfile.TemporaryDirectory() as folder:  # pytest's own nobody else may enter
        Path(folder).chmod(0o755)
        store = ProfileStore(Path(folder) / "tuned")
        path, _ = store.save(profile())
        path.chmod(0o444)
        store.folder.chmod(0o555)
        with without_rights():
            with pytest.raises(StorageError, match=r"cannot write '.*unet\.train.*': Permission denied"):
                store.save(profile(batch=8))
            assert store.find(KEY).holds and read_profile(path) == profile()
        store.folder.chmod(0o755)


def test_a_store_beneath_a_file_says_so(tmp_path):
    (tmp_path / "taken").write_text("")
    with pytest.raises(StorageError, match=r"cannot write '.*taken.*unet\.train"):
        ProfileStore(tmp_path / "taken" / "tuned").save(profile())


def test_a_full_disk_leaves_the_profile_that_was_there(store, monkeypatch):
    path, _ = store.save(profile())

    def full(handle):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(run_module.os, "fsync", full)
    with pytest.raises(StorageError, match="No space left on device"):
        store.save(profile(batch=8))
    monkeypatch.undo()
    assert read_profile(path) == profile()
    assert [file for file in store.folder.iterdir() if not file.name.startswith(".")] == [path]


def test_a_profile_is_plain_json(tmp_path):
    write_profile(profile(gate_error=float("inf")), tmp_path / "p.json")
    data = json.loads((tmp_path / "p.json").read_text(), parse_constant=lambda text: pytest.fail(text))
    assert data["gate_error"] is None and data["key"]["device_name"] == "Fake H1"


def test_a_second_search_on_a_device_is_told_who_has_it(tmp_path):
    code = """
        import sys
        from pathlib import Path
        from hotlap.records.tuned import only_search
        with only_search("cuda:0", "tuning unet", Path(sys.argv[1])):
            print("held", flush=True)
            sys.stdin.readline()
    """
    holder = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code), str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        text=True,
    )  # fmt: skip
    try:
        assert holder.stdout.readline() == "held\n"
        words = rf"another search is running on cuda:0 \(process {holder.pid}, tuning unet\)"
        with pytest.raises(EnvironmentUnusable, match=words), only_search("cuda:0", "tuning x", tmp_path):
            pytest.fail("two searches at once")
        with only_search("cuda:1", "tuning x", tmp_path):
            pass
    finally:
        holder.kill()
        holder.wait()
    with only_search("cuda:0", "tuning x", tmp_path):  # a search that was killed lets go
        pass


def test_a_card_is_one_device_whatever_its_number_and_a_number_is_several_cards(tmp_path, monkeypatch):
    """Where each process sees one card alone, all search on cuda:0; and a home folder may be that of many machines."""
    with only_search("cuda:0", "tuning unet", tmp_path, card="GPU-1"):
        with only_search("cuda:0", "tuning x", tmp_path, card="GPU-2"):
            pass
        words = "another search is running on cuda:1"
        with pytest.raises(EnvironmentUnusable, match=words), only_search("cuda:1", "x", tmp_path, card="GPU-1"):
            pytest.fail("two searches at once")
    with only_search("cpu", "tuning unet", tmp_path):
        monkeypatch.setattr("platform.node", lambda: "another")
        with only_search("cpu", "tuning x", tmp_path):
            pass


def test_two_searches_at_once_are_refused_where_the_store_cannot_be_written_too(tmp_path, monkeypatch):
    (tmp_path / "store").write_text("a file where the folder should be")
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    store = tmp_path / "store" / "tuned"
    with only_search("cpu", "tuning unet", store):
        words = rf"another search is running on cpu \(process {os.getpid()}, tuning unet\)"
        with pytest.raises(EnvironmentUnusable, match=words), only_search("cpu", "tuning x", store):
            pytest.fail("two searches at once")
    with pytest.raises(ValueError, match="of the search"), only_search("cpu", "tuning x", store):
        raise ValueError("of the search")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "store"))
    with only_search("cpu", "tuning x", store):  # nowhere to write: it runs without a lock
        pass


def test_a_disk_without_room_for_a_name_still_holds_one_search_at_a_time(tmp_path, monkeypatch):
    def full(handle, data, offset):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    words = r"another search is running on cpu\."
    with (
        only_search("cpu", "tuning unet", tmp_path),
        pytest.raises(EnvironmentUnusable, match=words),
        only_search("cpu", "tuning x", tmp_path),
    ):
        pytest.fail("two searches at once")
