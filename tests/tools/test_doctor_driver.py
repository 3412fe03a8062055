"""Faults of driver and device files, each faked, each with its verdict, its remedy and its exit code."""

from __future__ import annotations

import errno

import pytest
from doctor_fakes import NVRM, PCI, UUID, FakeNvml, FakePackages, examine, exit_code, fake_machine, healthy_root, write

from hotlap.tools.doctor.machine import Machine
from hotlap.tools.doctor.nvml_facts import NvmlFacts
from hotlap.tools.doctor.registry import load_checks

GPU_FACTS = ("driver", "libraries", "container", "card")


def refuse(number: int):
    def open_device(path):
        raise OSError(number, {errno.EPERM: "Operation not permitted", errno.EACCES: "Permission denied"}[number])

    return open_device


def test_a_healthy_machine_has_no_fail_and_no_warning_about_the_card(tmp_path):
    machine = fake_machine(tmp_path)
    for spec in load_checks()[0].values():
        if spec.facts is not None and spec.group in GPU_FACTS and spec.name != "shared-memory":
            finding = spec.facts(machine)
            assert finding.status in ("PASS", "SKIP"), f"{spec.name}: {finding.observed}"


def test_a_machine_without_a_card_skips_with_the_reason(tmp_path):
    write(
        tmp_path,
        {"etc/os-release": "ID=debian\n", "proc/cpuinfo": "flags : avx2\n", "proc/meminfo": "MemTotal: 9000000 kB"},
    )
    machine = fake_machine(tmp_path, nvml=NvmlFacts(reason="NVML Shared Library Not Found"))
    for name in ("hardware", "kernel-module", "driver-match", "driver-cuda", "nvml", "device-files", "uvm", "throttle"):
        finding = examine(machine, name)
        assert finding.status == "SKIP", name
        assert "no NVIDIA card" in finding.observed or "no card" in finding.observed
        assert exit_code(name, finding) == 0


def test_driver_library_version_mismatch_after_an_update_asks_for_a_restart(tmp_path):
    healthy_root(tmp_path)
    write(tmp_path, {"proc/driver/nvidia/version": NVRM.format("575.64.03")})
    library = FakeNvml(init_error="Driver/library version mismatch")
    machine = fake_machine(tmp_path, library=library)
    finding = examine(machine, "driver-match")
    assert finding.status == "FAIL"
    assert "kernel module 575.64.03" in finding.observed
    assert "libcuda.so.580.82.07" in finding.observed
    assert "Driver/library version mismatch" in finding.observed
    assert finding.fix.commands == ("sudo reboot",)
    assert exit_code("driver-match", finding) == 4
    assert examine(machine, "nvml").status == "FAIL"


def test_libraries_older_than_the_module_are_reinstalled_at_the_modules_branch(tmp_path):
    healthy_root(tmp_path)
    write(tmp_path, {"proc/driver/nvidia/version": NVRM.format("590.10.01")})
    finding = examine(fake_machine(tmp_path), "driver-match")
    assert finding.status == "FAIL"
    assert "sudo apt-get install -y --reinstall nvidia-driver-590" in finding.fix.commands


def test_an_image_with_its_own_driver_libraries_is_told_to_drop_them(tmp_path):
    healthy_root(tmp_path)
    write(tmp_path, {"proc/driver/nvidia/version": NVRM.format("590.10.01"), ".dockerenv": ""})
    finding = examine(fake_machine(tmp_path), "driver-match")
    assert finding.status == "FAIL"
    assert "image carries its own driver libraries" in finding.fix.text()
    assert "libcuda.so.580.82.07" in finding.fix.text()


def test_a_second_copy_of_libcuda_on_the_path_is_a_warning(tmp_path):
    healthy_root(tmp_path)
    write(tmp_path, {"opt/old/libcuda.so.470.1.1": ""})
    machine = fake_machine(tmp_path, environ={"LD_LIBRARY_PATH": "/opt/old"})
    finding = examine(machine, "driver-match")
    assert finding.status == "WARN"
    assert "/opt/old/libcuda.so.470.1.1" in finding.fix.text()


def test_cudas_compat_libcuda_is_no_mismatch(tmp_path):
    healthy_root(tmp_path)
    write(tmp_path, {"usr/local/cuda/compat/libcuda.so.590.1.1": ""})
    machine = fake_machine(tmp_path, environ={"LD_LIBRARY_PATH": "/usr/local/cuda/compat"})
    assert examine(machine, "driver-match").status == "PASS"


@pytest.mark.parametrize(
    ("distribution", "command"),
    [("ubuntu", "sudo apt-get install -y nvidia-driver-580"), ("debian", "linux-headers-amd64 nvidia-driver")],
)
def test_a_card_without_a_kernel_module_gets_the_distributions_driver(tmp_path, distribution, command):
    write(
        tmp_path,
        {
            f"sys/bus/pci/devices/{PCI}/vendor": "0x10de",
            f"sys/bus/pci/devices/{PCI}/class": "0x030000",
            "etc/os-release": f"ID={distribution}\n",
        },
    )
    finding = examine(fake_machine(tmp_path, nvml=NvmlFacts(reason="Driver Not Loaded")), "kernel-module")
    assert finding.status == "FAIL"
    assert "no nvidia kernel module" in finding.observed
    assert command in finding.fix.text()
    assert exit_code("kernel-module", finding) == 4


def test_nouveau_is_named(tmp_path):
    write(
        tmp_path,
        {
            f"sys/bus/pci/devices/{PCI}/vendor": "0x10de",
            f"sys/bus/pci/devices/{PCI}/class": "0x030000",
            "sys/module/nouveau/refcnt": "1",
            "etc/os-release": "ID=fedora\nPRETTY_NAME=Fedora\n",
        },
    )
    finding = examine(fake_machine(tmp_path, nvml=NvmlFacts(reason="Driver Not Loaded")), "kernel-module")
    assert "nouveau" in finding.observed
    assert "driver 580 or newer, from the packages of Fedora" in finding.fix.text()


@pytest.mark.parametrize(
    ("driver", "cuda", "status"),
    [
        ("580.82.07", "13.0", "PASS"),
        ("570.10.01", "13.0", "FAIL"),
        ("535.10.01", "12.6", "PASS"),
        ("470.1.1", "12.6", "FAIL"),
    ],
)
def test_driver_against_the_wheels_cuda(tmp_path, driver, cuda, status):
    machine = fake_machine(tmp_path, library=FakeNvml(driver), packages=FakePackages({"torch": "2.15.0"}, cuda=cuda))
    finding = examine(machine, "driver-cuda")
    assert finding.status == status
    assert driver in finding.observed
    assert f"CUDA {cuda}" in finding.observed
    assert exit_code("driver-cuda", finding) == (4 if status == "FAIL" else 0)


def test_an_old_driver_is_offered_the_build_that_fits_it(tmp_path):
    finding = examine(fake_machine(tmp_path, library=FakeNvml("570.10.01")), "driver-cuda")
    assert "needs driver 580 or newer" in finding.observed
    assert "sudo apt-get install -y nvidia-driver-580" in finding.fix.text()
    assert "uv pip install --torch-backend=cu128 --reinstall-package torch torch" in finding.fix.commands


def test_a_driver_too_old_for_any_build_must_be_updated(tmp_path):
    finding = examine(fake_machine(tmp_path, library=FakeNvml("470.1.1")), "driver-cuda")
    assert finding.fix.commands[1] == "sudo apt-get install -y nvidia-driver-580"


@pytest.mark.parametrize("gone", ["nvidia0", "nvidiactl"])
def test_a_missing_device_file_fails_with_the_command_that_makes_it(tmp_path, gone):
    (healthy_root(tmp_path) / "dev" / gone).unlink()
    finding = examine(fake_machine(tmp_path), "device-files")
    assert finding.status == "FAIL"
    assert f"/dev/{gone} does not exist" in finding.observed
    assert "sudo nvidia-modprobe -c 0 -u" in finding.fix.commands
    assert exit_code("device-files", finding) == 4


def test_in_a_container_missing_device_files_mean_it_was_started_without_the_card(tmp_path):
    root = healthy_root(tmp_path)
    (root / "dev/nvidia0").unlink()
    write(root, {".dockerenv": ""})
    assert "docker run --gpus all" in examine(fake_machine(tmp_path), "device-files").fix.text()


def test_a_device_file_this_user_may_not_open(tmp_path):
    finding = examine(fake_machine(tmp_path, open_device=refuse(errno.EACCES)), "device-files")
    assert finding.status == "FAIL"
    assert "Permission denied" in finding.observed
    assert 'usermod -aG video,render "$USER"' in finding.fix.text()


def test_missing_uvm_is_error_999(tmp_path):
    (healthy_root(tmp_path) / "dev/nvidia-uvm").unlink()
    finding = examine(fake_machine(tmp_path), "uvm")
    assert finding.status == "FAIL"
    assert "sudo modprobe nvidia-uvm" in finding.fix.commands
    assert "999" in load_checks()[0]["uvm"].why


def test_uvm_that_does_not_open_is_reloaded(tmp_path):
    finding = examine(fake_machine(tmp_path, open_device=refuse(errno.EPERM)), "uvm")
    assert finding.status == "FAIL"
    assert finding.fix.commands == ("sudo rmmod nvidia_uvm", "sudo modprobe nvidia_uvm")


@pytest.mark.parametrize(
    ("value", "status", "words"),
    [
        (None, "PASS", "not set"),
        ("0", "PASS", "1 of 1"),
        (UUID, "PASS", "1 of 1"),
        (UUID[:12], "PASS", "1 of 1"),
        ("", "WARN", "hides every card"),
        ("-1", "WARN", "hides every card"),
        ("3", "FAIL", "no card '3'"),
        ("0,0", "FAIL", "twice"),
        ("GPU-ffff", "FAIL", "no card 'GPU-ffff'"),
        ("cuda:0", "FAIL", "no card 'cuda:0'"),
    ],
)
def test_cuda_visible_devices(tmp_path, value, status, words):
    environ = {} if value is None else {"CUDA_VISIBLE_DEVICES": value}
    finding = examine(fake_machine(tmp_path, environ=environ), "visible-devices")
    assert finding.status == status
    assert words in finding.observed
    assert ("CUDA_VISIBLE_DEVICES" in finding.fix.text()) == (status != "PASS")


def test_a_driver_that_does_not_answer_is_a_fail(tmp_path):
    machine = fake_machine(tmp_path, nvml=NvmlFacts(reason="no answer within 20 s"))
    finding = examine(machine, "nvml")
    assert finding.status == "FAIL"
    assert "no answer within 20 s" in finding.observed
    assert finding.fix.commands == ("sudo reboot",)


def test_nvml_without_its_package_is_a_warning(tmp_path):
    machine = fake_machine(tmp_path, nvml=NvmlFacts(reason="the package nvidia-ml-py is not installed"))
    finding = examine(machine, "nvml")
    assert finding.status == "WARN"
    assert finding.fix.commands == ("pip install --upgrade nvidia-ml-py",)


def test_wsl_needs_no_kernel_module(tmp_path):
    write(tmp_path, {"dev/dxg": "", "usr/lib/wsl/lib/libcuda.so.1": "", "etc/os-release": "ID=ubuntu\n"})
    machine = fake_machine(tmp_path)
    assert machine.has_nvidia
    assert examine(machine, "kernel-module").status == "SKIP"
    assert examine(machine, "device-files").status == "SKIP"


def test_the_module_version_is_read_from_both_spellings(tmp_path):
    write(
        tmp_path, {"proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug"}
    )
    assert Machine(root=tmp_path).module_version == "535.104.05"
    write(tmp_path, {"proc/driver/nvidia/version": NVRM.format("580.82.07")})
    assert Machine(root=tmp_path).module_version == "580.82.07"
