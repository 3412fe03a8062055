"""Faults of packages, container, card and host, each faked, each with its verdict, its remedy and its exit code."""

from __future__ import annotations

import errno
from types import SimpleNamespace

import pytest
from doctor_fakes import PCI, FakeNvml, FakePackages, examine, exit_code, fake_machine, healthy_root, write
from test_doctor_driver import refuse

from hotlap.device.host import Host
from hotlap.tools.doctor.machine import Machine
from hotlap.tools.doctor.nvml_facts import NvmlFacts
from hotlap.tools.doctor.probes.host import judge_disk


def host(**changes) -> Host:
    facts = {
        "cpu_model": "Test CPU", "logical_cpus": 8, "physical_cores": 8, "quota_cpus": None,
        "flags": frozenset({"avx2"}), "memory_bytes": 64 * 2**30, "memory_limit_bytes": None, "shm_bytes": 16 * 2**30,
    }  # fmt: skip
    return Host(**{**facts, **changes})


def with_host(machine: Machine, **changes) -> Machine:
    machine.__dict__["host"] = host(**changes)
    return machine


def expect(machine: Machine, name: str, status: str, observed: str, fix: str) -> None:
    """Verdict, facts, remedy and exit code of one faked fault."""
    finding = examine(machine, name)
    assert (finding.status, exit_code(name, finding)) == (status, 4 if status == "FAIL" else 0), finding
    assert observed in finding.observed
    assert fix in finding.fix.text()


def test_torch_missing(tmp_path):
    expect(
        fake_machine(tmp_path, packages=FakePackages({})), "torch-package", "FAIL", "torch is not installed", "cu130"
    )


def test_torch_missing_without_a_card_is_a_plain_install(tmp_path):
    write(tmp_path, {"etc/os-release": "ID=debian\n"})
    machine = fake_machine(tmp_path, packages=FakePackages({}), nvml=NvmlFacts(reason="none"))
    expect(machine, "torch-package", "FAIL", "torch is not installed", "pip install torch")


def test_torch_too_old(tmp_path):
    machine = fake_machine(tmp_path, packages=FakePackages({"torch": "2.4.1"}))
    expect(machine, "torch-package", "FAIL", "torch 2.4.1", "pip install --upgrade torch")


def test_a_torch_without_cuda_beside_a_card(tmp_path):
    machine = fake_machine(tmp_path, packages=FakePackages({"torch": "2.15.0"}, cuda=None))
    expect(machine, "torch-build", "FAIL", "has no CUDA in it", "--torch-backend=cu130")


def test_a_volta_card_gets_the_last_build_that_has_its_code(tmp_path):
    library = FakeNvml(nvmlDeviceGetCudaComputeCapability=(7, 0))
    machine = fake_machine(tmp_path, library=library, packages=FakePackages({"torch": "2.15.0"}, cuda=None))
    expect(
        machine,
        "torch-build",
        "FAIL",
        "has no CUDA",
        "--torch-backend=cu126 --reinstall-package torch 'torch>=2.11,<2.15'",
    )


def test_a_missing_wheel_library(tmp_path):
    pins = ["nvidia-cudnn-cu13==9.26.0.51; platform_system == 'Linux'", "filelock"]
    machine = fake_machine(tmp_path, packages=FakePackages({"torch": "2.15.0"}, requires=pins))
    expect(
        machine, "wheel-libraries", "FAIL", "nvidia-cudnn-cu13==9.26.0.51", "pip install 'nvidia-cudnn-cu13==9.26.0.51'"
    )


def test_a_wheel_library_of_another_version(tmp_path):
    pins = ["nvidia-nccl-cu13==2.30.7", "triton~=3.9.0"]
    packages = FakePackages({"torch": "2.15.0", "nvidia-nccl-cu13": "2.27.0", "triton": "3.9.4"}, requires=pins)
    machine = fake_machine(tmp_path, packages=packages)
    expect(
        machine, "wheel-libraries", "WARN", "nvidia-nccl-cu13 2.27.0", "pip install --force-reinstall 'torch==2.15.0'"
    )
    assert "triton" not in examine(machine, "wheel-libraries").observed


def test_cudnn_on_the_library_path(tmp_path):
    healthy_root(tmp_path)
    write(tmp_path, {"opt/cuda/lib64/libcudnn.so.8": ""})
    machine = fake_machine(tmp_path, environ={"LD_LIBRARY_PATH": "/opt/cuda/lib64"})
    expect(machine, "library-path", "WARN", "/opt/cuda/lib64/libcudnn.so.8", "unset LD_LIBRARY_PATH")


def test_the_pynvml_distribution_beside_nvidia_ml_py(tmp_path):
    packages = FakePackages({"torch": "2.15.0", "nvidia-ml-py": "13.0", "pynvml": "11.5.0"})
    expect(
        fake_machine(tmp_path, packages=packages), "nvml-package", "WARN", "pynvml 11.5.0", "pip uninstall -y pynvml"
    )


def test_setuptools_82_with_an_old_tensorboard(tmp_path):
    packages = FakePackages({"setuptools": "82.0.1", "tensorboard": "2.20.0"})
    machine = fake_machine(tmp_path, packages=packages)
    expect(machine, "tensorboard", "WARN", "tensorboard 2.20.0, setuptools 82.0.1", "'tensorboard>=2.21'")
    fine = FakePackages({"setuptools": "81.0", "tensorboard": "2.20.0"})
    assert examine(fake_machine(tmp_path, packages=fine), "tensorboard").status == "PASS"


def test_variables_that_slow_torch(tmp_path):
    machine = fake_machine(
        tmp_path, environ={"CUDA_LAUNCH_BLOCKING": "1", "NVIDIA_TF32_OVERRIDE": "0", "MKL_VERBOSE": "0"}
    )
    expect(machine, "settings", "WARN", "CUDA_LAUNCH_BLOCKING=1", "unset CUDA_LAUNCH_BLOCKING NVIDIA_TF32_OVERRIDE")


def test_a_container_that_asked_for_a_card_and_got_none(tmp_path):
    write(tmp_path, {".dockerenv": "", "etc/os-release": "ID=ubuntu\n"})
    machine = fake_machine(tmp_path, environ={"NVIDIA_VISIBLE_DEVICES": "all"}, nvml=NvmlFacts(reason="none"))
    expect(machine, "container", "FAIL", "NVIDIA_VISIBLE_DEVICES=all", "nvidia-ctk runtime configure --runtime=docker")


def test_a_container_on_a_host_with_a_card_it_was_not_given_is_usable(tmp_path):
    healthy_root(tmp_path)
    write(tmp_path, {".dockerenv": ""})
    for file in ("nvidia0", "nvidiactl", "nvidia-uvm"):
        (tmp_path / "dev" / file).unlink()
    machine = fake_machine(tmp_path, nvml=NvmlFacts(reason="NVML Shared Library Not Found"))
    expect(
        machine, "container", "WARN", "the host has a card that this container was not given", "docker run --gpus all"
    )
    assert examine(machine, "device-files").status == "SKIP"
    assert examine(machine, "driver-match").status == "SKIP"


def test_a_container_without_the_compute_capability(tmp_path):
    healthy_root(tmp_path)
    write(tmp_path, {".dockerenv": ""})
    environ = {"NVIDIA_VISIBLE_DEVICES": "all", "NVIDIA_DRIVER_CAPABILITIES": "graphics,utility"}
    machine = fake_machine(tmp_path, environ=environ)
    expect(machine, "container", "FAIL", "without compute", "NVIDIA_DRIVER_CAPABILITIES=compute,utility")


def test_a_cgroup_v2_that_lost_the_devices(tmp_path):
    machine = fake_machine(tmp_path, open_device=refuse(errno.EPERM))
    expect(
        machine, "cgroup-devices", "FAIL", "Operation not permitted", "docker run --gpus all --device /dev/nvidiactl"
    )
    assert "See cgroup-devices" in examine(machine, "device-files").fix.text()


def test_a_cgroup_v1_without_nvidias_major_number(tmp_path):
    healthy_root(tmp_path)
    write(
        tmp_path,
        {"proc/self/cgroup": "5:devices:/box\n", "sys/fs/cgroup/devices/box/devices.list": "c 1:3 rwm\nc 5:* rwm\n"},
    )
    expect(fake_machine(tmp_path), "cgroup-devices", "FAIL", "195:* is not in", "--device /dev/nvidia-uvm")
    write(tmp_path, {"sys/fs/cgroup/devices/box/devices.list": "c 195:* rw\n"})
    assert examine(fake_machine(tmp_path), "cgroup-devices").status == "PASS"


def test_missing_char_symlinks_under_systemd(tmp_path):
    healthy_root(tmp_path)
    write(tmp_path, {"usr/bin/nvidia-ctk": "", "run/systemd/system/x": ""})
    expect(fake_machine(tmp_path), "char-symlinks", "WARN", "no 195:* links", "create-dev-char-symlinks --create-all")


def test_a_cpu_quota_below_the_cpus(tmp_path):
    machine = with_host(fake_machine(tmp_path), quota_cpus=2.0)
    expect(machine, "cpu-quota", "WARN", "quota of 2 CPUs on 8 logical CPUs", "export OMP_NUM_THREADS=2")


def test_a_tight_memory_limit(tmp_path):
    machine = with_host(fake_machine(tmp_path), memory_limit_bytes=2 * 2**30)
    expect(machine, "memory-limit", "WARN", "2.0 GiB allowed by the cgroup", "docker run --memory=16g")


def test_dockers_64_mib_of_shared_memory(tmp_path):
    healthy_root(tmp_path)
    write(tmp_path, {".dockerenv": ""})
    machine = with_host(fake_machine(tmp_path), shm_bytes=64 * 2**20)
    expect(machine, "shared-memory", "WARN", "/dev/shm holds 64 MiB", "docker run --shm-size=8g")


def test_no_shared_memory_at_all(tmp_path):
    machine = with_host(fake_machine(tmp_path), shm_bytes=None)
    expect(machine, "shared-memory", "FAIL", "/dev/shm does not exist", "sudo mount -t tmpfs")


CARD_FAULTS = [
    ("throttle", {"nvmlDeviceGetCurrentClocksEventReasons": 0x40}, "WARN", "hardware thermal", "Cool the card"),
    ("throttle", {"nvmlDeviceGetCurrentClocksEventReasons": 0x80}, "WARN", "hardware power brake", "power supply"),
    ("clocks", {"nvmlDeviceGetApplicationsClock": 900}, "WARN", "clock 900 MHz", "sudo nvidia-smi -i 0 -rac"),
    ("clocks", {"nvmlDeviceGetPowerManagementLimit": 200_000}, "WARN", "200 W of 350 W", "nvidia-smi -i 0 -pl 350"),
    ("ecc", {"nvmlDeviceGetTotalEccErrors": 3}, "FAIL", "3 uncorrected errors", "sudo nvidia-smi -i 0 --gpu-reset"),
    ("ecc", {"nvmlDeviceGetRemappedRows": (0, 1, 0, 1)}, "FAIL", "could not be replaced", "Have the card exchanged"),
    ("mig", {"nvmlDeviceGetMigMode": (1, 1)}, "FAIL", "MIG is on but has no instance", "nvidia-smi mig -i 0 -cgi 0 -C"),
    (
        "mig",
        {"nvmlDeviceGetMigMode": (1, 1), "nvmlDeviceGetMaxMigDeviceCount": 2,
         "nvmlDeviceGetMigDeviceHandleByIndex": "slice"},
        "WARN", "2 instance(s)", "nvidia-smi -L",
    ),
    (
        "tenants",
        {"nvmlDeviceGetComputeRunningProcesses": [SimpleNamespace(pid=999999, usedGpuMemory=2**30)]},
        "WARN", "in use by 999999", "ps -o pid,user,cmd -p 999999",
    ),
    ("persistence", {"nvmlDeviceGetPersistenceMode": 0}, "WARN", "off", "systemctl enable --now nvidia-persistenced"),
    ("compute-mode", {"nvmlDeviceGetComputeMode": 2}, "FAIL", "PROHIBITED", "sudo nvidia-smi -i 0 -c DEFAULT"),
    ("compute-mode", {"nvmlDeviceGetComputeMode": 3}, "WARN", "EXCLUSIVE_PROCESS", "sudo nvidia-smi -i 0 -c DEFAULT"),
    ("pcie-link", {"nvmlDeviceGetCurrPcieLinkWidth": 4}, "WARN", "x4 of x16", "lspci -vv -s 00000000:41:00.0"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "answers", "status", "observed", "fix"), CARD_FAULTS)
def test_card_faults(tmp_path, name, answers, status, observed, fix):
    expect(fake_machine(tmp_path, library=FakeNvml(**answers)), name, status, observed, fix)


def test_a_process_bound_to_the_other_socket(tmp_path):
    machine = fake_machine(tmp_path, affinity=frozenset({8, 9}))
    expect(machine, "numa", "WARN", "on node 0", "numactl --cpunodebind=0 --membind=0")
    write(tmp_path, {f"sys/bus/pci/devices/{PCI}/local_cpulist": "0-3,8-11\n"})
    assert examine(machine, "numa").status == "PASS"


def test_a_processor_without_avx2(tmp_path):
    machine = with_host(fake_machine(tmp_path), flags=frozenset({"sse4_2"}))
    expect(machine, "cpu-features", "WARN", "Test CPU", "-cpu host")


@pytest.mark.parametrize(
    ("value", "status", "words"),
    [
        ("64", "WARN", "more threads than CPUs"),
        ("1", "WARN", "one thread only"),
        ("four", "FAIL", "not a whole number"),
    ],
)
def test_thread_variables(tmp_path, value, status, words):
    machine = with_host(fake_machine(tmp_path, environ={"OMP_NUM_THREADS": value}))
    expect(machine, "thread-settings", status, words, "export OMP_NUM_THREADS=8")
    assert f"OMP_NUM_THREADS={value}" in examine(machine, "thread-settings").observed


def test_a_power_saving_governor(tmp_path):
    folder = "sys/devices/system/cpu/cpu0/cpufreq"
    healthy_root(tmp_path)
    write(tmp_path, {f"{folder}/scaling_governor": "powersave\n", f"{folder}/scaling_driver": "acpi-cpufreq\n"})
    expect(
        fake_machine(tmp_path), "cpu-governor", "WARN", "governor powersave", "cpupower frequency-set -g performance"
    )
    write(tmp_path, {f"{folder}/scaling_driver": "intel_pstate\n"})
    assert examine(fake_machine(tmp_path), "cpu-governor").status == "PASS"


@pytest.mark.parametrize(
    ("environ", "words", "fix"),
    [
        ({"PYTORCH_ALLOC_CONF": "expandable:True"}, "'expandable' is no known", "unset PYTORCH_ALLOC_CONF"),
        (
            {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}, "the old name",
            "export PYTORCH_ALLOC_CONF='expandable_segments:True'",
        ),
        (
            {"PYTORCH_ALLOC_CONF": "expandable_segments:True", "PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:64"},
            "they disagree", "unset PYTORCH_CUDA_ALLOC_CONF",
        ),
    ],
)  # fmt: skip
def test_allocator_variables(tmp_path, environ, words, fix):
    expect(fake_machine(tmp_path, environ=environ), "allocator-settings", "WARN", words, fix)


def test_an_allocator_setting_with_brackets_is_understood(tmp_path):
    environ = {"PYTORCH_ALLOC_CONF": "roundup_power2_divisions:[256:1,512:2,>:8],expandable_segments:True"}
    assert examine(fake_machine(tmp_path, environ=environ), "allocator-settings").status == "PASS"


def test_bytecode_that_is_lost(tmp_path):
    package = tmp_path / "torch"
    package.mkdir()
    environ = {"PYTHONDONTWRITEBYTECODE": "1"}
    machine = fake_machine(tmp_path / "root", environ=environ, torch_folder=package)
    fix = f"python -m compileall -q -j 0 {package}"
    expect(machine, "bytecode", "WARN", f"none beside {package}, and none will be: PYTHONDONTWRITEBYTECODE", fix)


def test_bytecode_that_is_kept_or_will_be(tmp_path):
    package = tmp_path / "torch"
    package.mkdir()
    for environ in ({}, {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONPYCACHEPREFIX": "/tmp/bytecode"}):
        machine = fake_machine(tmp_path / "root", environ=environ, torch_folder=package)
        assert examine(machine, "bytecode").status == "PASS"
    assert examine(fake_machine(tmp_path / "root", torch_folder=None), "bytecode").status == "SKIP"


def test_no_compiler(tmp_path):
    machine = fake_machine(tmp_path, environ={"PATH": str(tmp_path), "CXX": "icpx"})
    expect(machine, "compiler", "WARN", "no C and C++ compiler on PATH (CXX=icpx", "sudo apt-get install -y g++")


def test_disk_full_nearly_full_and_slow():
    gib = 2**30
    full = judge_disk("/data", gib // 4, 100 * gib, 0.0)
    low = judge_disk("/data", 5 * gib, 100 * gib, 900.0)
    slow = judge_disk("/data", 50 * gib, 100 * gib, 12.0)
    assert [f.status for f in (full, low, slow)] == ["FAIL", "WARN", "WARN"]
    assert exit_code("disk", full) == 4
    assert "256 MiB free of 100.0 GiB" in full.observed
    assert "df -h ." in full.fix.commands
    assert "12 MB/s" in slow.observed
    assert "local disk" in slow.fix.text()
