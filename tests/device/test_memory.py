"""Free memory: a cgroup's grant counts, files in its cache do not, and a real device has some."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from hotlap.device.memory import PeakMemory, cgroup_free_bytes, free_bytes

GIB = 2**30


def write(root, files):
    for name, text in files.items():
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return root


def test_what_is_used_is_taken_off_and_cached_files_are_not(tmp_path):
    folder = "sys/fs/cgroup/job"
    files = {
        "proc/self/cgroup": "0::/job\n",
        f"{folder}/memory.max": f"{4 * GIB}\n",
        f"{folder}/memory.current": f"{3 * GIB}\n",
        f"{folder}/memory.stat": f"anon {GIB}\ninactive_file {2 * GIB}\n",
    }
    assert cgroup_free_bytes(write(tmp_path, files)) == 3 * GIB


def test_the_tightest_of_a_hierarchy_counts_in_cgroup_1_too(tmp_path):
    files = {"proc/self/cgroup": "4:memory:/a/b\n"}
    for folder, limit in (("a", 2 * GIB), ("a/b", 8 * GIB)):
        files[f"sys/fs/cgroup/memory/{folder}/memory.limit_in_bytes"] = str(limit)
        files[f"sys/fs/cgroup/memory/{folder}/memory.usage_in_bytes"] = str(GIB)
    assert cgroup_free_bytes(write(tmp_path, files)) == GIB


@pytest.mark.parametrize("limit", ["max", str(1 << 62), "what"])
def test_without_a_limit_there_is_no_answer(tmp_path, limit):
    files = {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": limit, "sys/fs/cgroup/memory.current": "5"}
    assert cgroup_free_bytes(write(tmp_path, files)) is None


def test_a_full_cgroup_has_nothing_left(tmp_path):
    files = {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "5", "sys/fs/cgroup/memory.current": "9"}
    assert cgroup_free_bytes(write(tmp_path, files)) == 0


def test_this_very_device_has_memory_left(device):
    assert 2**20 < free_bytes(device) < 2**50


@pytest.mark.parametrize("uuid", ["1", "GPU-1"])
def test_the_growth_of_other_cards_is_not_that_of_a_trial(monkeypatch, uuid):
    used = {"GPU-0": 5 * GIB, "GPU-1": GIB}

    class Driver:
        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

        def cards(self):
            return [SimpleNamespace(uuid=uuid) for uuid in used]

        def handle(self, uuid):
            return uuid

        def state(self, handle):
            return SimpleNamespace(memory_used_bytes=used[handle])

    monkeypatch.setattr("hotlap.device.memory.Nvml", Driver)
    for name in ("synchronize", "max_memory_allocated", "max_memory_reserved"):
        monkeypatch.setattr(torch.cuda, name, lambda device=None: 0)
    monkeypatch.setattr(torch.cuda, "memory_stats", lambda device: {})
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(uuid=uuid))
    peak = PeakMemory(torch.device("cuda:1"))
    used.update({"GPU-0": 40 * GIB, "GPU-1": 3 * GIB})
    assert peak.read().device_used_bytes == 2 * GIB
