"""The host as a process may use it: affinity, siblings, cgroups of both kinds."""

from __future__ import annotations

import os

import pytest

from hotlap.device.host import (
    cpu_quota,
    memory_available,
    memory_limit,
    oom_kill_count,
    read_host,
    shm_free_bytes,
)

CPUINFO = """processor\t: 0
model name\t: Example 9000
flags\t\t: fpu sse avx2 avx512_bf16
"""


@pytest.fixture
def root(tmp_path, monkeypatch):
    """A machine of four logical CPUs on two cores, 8 GiB, no cgroup limits."""
    write(tmp_path, "proc/cpuinfo", CPUINFO)
    write(tmp_path, "proc/meminfo", "MemFree: 1 kB\nMemTotal:  8388608 kB\n")
    for cpu, siblings in enumerate(["0,2", "1,3", "0,2", "1,3"]):
        write(tmp_path, f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list", siblings + "\n")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3})
    return tmp_path


def write(root, path, text):
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def test_siblings_share_a_core(root):
    host = read_host(root)
    assert (host.logical_cpus, host.physical_cores, host.usable_cores) == (4, 2, 2)
    assert host.cpu_model == "Example 9000"
    assert host.memory_bytes == 8 * 2**30
    assert host.quota_cpus is None and host.memory_limit_bytes is None
    assert host.has_fast_bf16


def test_affinity_counts_only_the_cores_behind_it(root, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 2})
    assert read_host(root).usable_cores == 1


def test_without_topology_every_cpu_is_a_core(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2})
    host = read_host(tmp_path)
    assert (host.physical_cores, host.shm_bytes) == (3, None)
    assert host.memory_bytes > 0, "asked of psutil where /proc says nothing"
    assert not host.has_fast_bf16


@pytest.mark.parametrize(("text", "quota", "cores"), [("150000 100000", 1.5, 1), ("50000 100000", 0.5, 1),
                                                      ("800000 100000", 8.0, 2), ("max 100000", None, 2)])  # fmt: skip
def test_quota_of_cgroup_2(root, text, quota, cores):
    write(root, "proc/self/cgroup", "0::/user.slice/job\n")
    write(root, "sys/fs/cgroup/user.slice/job/cpu.max", text + "\n")
    host = read_host(root)
    assert (host.quota_cpus, host.usable_cores) == (quota, cores)


def test_quota_and_memory_of_cgroup_1(root):
    write(root, "proc/self/cgroup", "5:cpuacct,cpu:/docker/x\n4:memory:/docker/x\n3:pids:/y\n")
    write(root, "sys/fs/cgroup/cpu/docker/x/cpu.cfs_quota_us", "100000\n")
    write(root, "sys/fs/cgroup/cpu/docker/x/cpu.cfs_period_us", "100000\n")
    write(root, "sys/fs/cgroup/memory/docker/x/memory.limit_in_bytes", f"{2**31}\n")
    assert cpu_quota(root) == 1.0
    assert memory_limit(root) == 2**31


def test_no_quota_and_no_limit_of_cgroup_1(root):
    write(root, "proc/self/cgroup", "5:cpu:/x\n4:memory:/x\n")
    write(root, "sys/fs/cgroup/cpu/x/cpu.cfs_quota_us", "-1\n")
    write(root, "sys/fs/cgroup/cpu/x/cpu.cfs_period_us", "100000\n")
    write(root, "sys/fs/cgroup/memory/x/memory.limit_in_bytes", "9223372036854771712\n")
    assert cpu_quota(root) is None
    assert memory_limit(root) is None


def test_inside_a_container_the_cgroup_is_its_own_root(root):
    write(root, "proc/self/cgroup", "0::/\n")
    write(root, "sys/fs/cgroup/cpu.max", "100000 100000\n")
    write(root, "sys/fs/cgroup/memory.max", "1073741824\n")
    host = read_host(root)
    assert (host.quota_cpus, host.memory_limit_bytes) == (1.0, 2**30)


def test_the_tightest_limit_of_the_hierarchy_counts(root):
    write(root, "proc/self/cgroup", "0::/pod/container\n")
    write(root, "sys/fs/cgroup/pod/container/cpu.max", "400000 100000\n")
    write(root, "sys/fs/cgroup/pod/cpu.max", "100000 100000\n")
    write(root, "sys/fs/cgroup/pod/container/memory.max", "4294967296\n")
    write(root, "sys/fs/cgroup/pod/memory.max", "1073741824\n")
    assert cpu_quota(root) == 1.0
    assert memory_limit(root) == 2**30


def test_a_parent_s_limit_counts_when_the_child_has_none(root):
    write(root, "proc/self/cgroup", "0::/pod/container\n")
    write(root, "sys/fs/cgroup/pod/container/cpu.max", "max 100000\n")
    write(root, "sys/fs/cgroup/pod/container/memory.max", "max\n")
    write(root, "sys/fs/cgroup/pod/cpu.max", "200000 100000\n")
    write(root, "sys/fs/cgroup/pod/memory.max", "2147483648\n")
    assert (cpu_quota(root), memory_limit(root)) == (2.0, 2**31)


@pytest.mark.parametrize("text", ["", "garbage", "5:cpu", "::"])
def test_a_strange_cgroup_file_does_no_harm(root, text):
    write(root, "proc/self/cgroup", text)
    assert cpu_quota(root) is None


@pytest.mark.parametrize(("quota", "cpus"), [("max 100000", 4), ("350000 100000", 3), ("50000 100000", 1)])
def test_processes_worth_starting_are_bound_by_affinity_and_quota(root, quota, cpus):
    write(root, "proc/self/cgroup", "0::/\n")
    write(root, "sys/fs/cgroup/cpu.max", quota)
    assert read_host(root).usable_cpus == cpus


def test_kills_for_memory_are_counted_in_cgroup_2(root):
    write(root, "proc/self/cgroup", "0::/pod/container\n")
    write(root, "sys/fs/cgroup/pod/memory.events", "oom 9\noom_kill 9\n")
    write(root, "sys/fs/cgroup/pod/container/memory.events", "low 0\noom 3\noom_kill 2\noom_group_kill 0\n")
    assert oom_kill_count(root) == 2, "those of this group, not of its neighbours"


def test_kills_for_memory_are_counted_in_cgroup_1(root):
    write(root, "proc/self/cgroup", "4:memory:/docker/x\n")
    write(root, "sys/fs/cgroup/memory/docker/x/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 5\n")
    assert oom_kill_count(root) == 5


def test_without_a_counter_no_number_of_kills_is_made_up(root):
    assert oom_kill_count(root) is None


def test_what_memory_is_left_is_the_tightest_of_host_and_cgroup(root):
    assert memory_available(root) is None
    write(root, "proc/meminfo", "MemTotal: 8388608 kB\nMemAvailable:  4194304 kB\n")
    assert memory_available(root) == 4 * 2**30
    write(root, "proc/self/cgroup", "0::/job\n")
    write(root, "sys/fs/cgroup/job/memory.max", f"{3 * 2**30}\n")
    write(root, "sys/fs/cgroup/job/memory.current", f"{2 * 2**30}\n")
    assert memory_available(root) == 2**30
    write(root, "sys/fs/cgroup/job/memory.stat", f"anon 1\ninactive_file {2**29}\n")
    assert memory_available(root) == 2**30 + 2**29, "cached files can be dropped"


def test_memory_left_in_cgroup_1(root):
    write(root, "proc/self/cgroup", "4:memory:/x\n")
    write(root, "sys/fs/cgroup/memory/x/memory.limit_in_bytes", "1000")
    write(root, "sys/fs/cgroup/memory/x/memory.usage_in_bytes", "900")
    write(root, "sys/fs/cgroup/memory/x/memory.stat", "total_inactive_file 300")
    assert memory_available(root) == 400


def test_what_is_left_of_shared_memory(root):
    assert shm_free_bytes(root) is None
    (root / "dev/shm").mkdir(parents=True)
    assert 0 < shm_free_bytes(root) <= read_host(root).shm_bytes


def test_this_very_machine_can_be_read():
    host = read_host()
    assert 1 <= host.usable_cores <= host.logical_cpus
    assert host.memory_bytes > 2**20
