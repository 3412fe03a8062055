"""The driver: its kernel module, its user-space libraries, and whether it is new enough for torch's CUDA."""

from __future__ import annotations

import re

from hotlap.tools.doctor.builds import OLDEST_DRIVER, driver_fix, fitting_build, wheel_fix
from hotlap.tools.doctor.builds import capabilities as card_capabilities
from hotlap.tools.doctor.finding import Finding, Fix, failed, passed, skipped, warned
from hotlap.tools.doctor.machine import Machine, numbers
from hotlap.tools.doctor.registry import check

NO_CARD = "no NVIDIA card here (PCI bus, /dev and /proc show none)"


@check("hardware", group="driver", why="Every GPU check depends on whether there is a card at all.")
def hardware(machine: Machine) -> Finding:
    """The cards that are there, from whichever source sees them."""
    if not machine.has_nvidia:
        return skipped(NO_CARD)
    named = [f"{card.name} ({card.uuid})" for card in machine.nvml.cards]
    on_bus = [f"{address} (device {device})" for address, device in machine.pci_cards.items()]
    if named:
        return passed("; ".join(named), num_cards=len(named))
    if on_bus:
        return passed("on the PCI bus: " + "; ".join(on_bus), num_cards=len(on_bus))
    return passed(f"traces in /dev or /proc: {', '.join(machine.device_files) or machine.module_version or '/dev/dxg'}")


@check("kernel-module", group="driver", why="Without the kernel module no program can reach the card.")
def kernel_module(machine: Machine) -> Finding:
    """The version of the loaded kernel module."""
    if not machine.has_nvidia:
        return skipped(NO_CARD)
    if machine.is_wsl_gpu:
        return skipped("WSL reaches the card through Windows' driver; there is no kernel module here")
    if machine.module_version:
        return passed(f"nvidia {machine.module_version} is loaded")
    if machine.nvml.cards:
        return passed(f"/proc/driver/nvidia is not visible, but NVML answers (driver {machine.nvml.driver})")
    if machine.exists("sys/module/nouveau"):
        return failed(
            "the nouveau module holds the card; the nvidia module is not loaded",
            driver_fix(machine, say="nouveau runs no CUDA; install NVIDIA's driver"),
        )
    say = "The card is on the bus but no nvidia module is loaded; install the driver"
    return failed("no nvidia kernel module is loaded", driver_fix(machine, say=say))


@check(
    "driver-match",
    group="driver",
    why="A kernel module and libraries of different versions refuse each other: every CUDA call then fails.",
)
def driver_match(machine: Machine) -> Finding:
    """The loaded kernel module against libcuda and libnvidia-ml on disk, and what NVML says of them."""
    if not machine.has_nvidia:
        return skipped(NO_CARD)
    module = machine.module_version
    others = {path: v for path, v in machine.driver_libraries.items() if module and numbers(v) != numbers(module)}
    refused = "mismatch" in machine.nvml.reason.lower()
    if refused or (others and len(others) == len(machine.driver_libraries)):
        found = ", ".join(f"{path}" for path in others) or "libraries of another version"
        said = f"; NVML says: {machine.nvml.reason}" if machine.nvml.reason else ""
        return failed(
            f"kernel module {module or 'unknown'}, libraries {found}{said}", _match_fix(machine, others), module=module
        )
    if others:
        listed = ", ".join(others)
        say = f"Remove or hide the libraries that are not of driver {module} ({listed}); the loader may find them first"
        return warned(f"kernel module {module}, but also {listed}", Fix(say=say))
    if not machine.driver_libraries:
        return _no_libraries(machine)
    return passed(f"kernel module and libraries are both {module or next(iter(machine.driver_libraries.values()))}")


def _match_fix(machine: Machine, others: dict[str, str]) -> Fix:
    if machine.container:
        say = (
            f"The image carries its own driver libraries ({', '.join(others) or 'libcuda, libnvidia-ml'}); remove them "
            "from the image so that the host's are mounted, or restart the container after a driver update on the host"
        )
        return Fix(say=say)
    newer = any(numbers(version) > numbers(machine.module_version) for version in others.values())
    if newer or not others:
        # An update put new libraries on disk while the old module stayed in memory: a restart loads the new one.
        return Fix(say="The driver was updated under a running system; restart", commands=("sudo reboot",))
    branch = numbers(machine.module_version)[0] if numbers(machine.module_version) else 580
    return driver_fix(machine, say="The libraries are older than the module", branch=branch, reinstall=True)


def _no_libraries(machine: Machine) -> Finding:
    if machine.nvml.cards:
        return passed(f"NVML answers (driver {machine.nvml.driver}); its libraries are not in the usual folders")
    if machine.container:
        fix = Fix(say="Start the container with the card", commands=("docker run --gpus all ...",), on_host=True)
        return failed("libcuda and libnvidia-ml are not in this container", fix)
    if not machine.module_version:
        return skipped("no kernel module is loaded; see kernel-module")
    branch = numbers(machine.module_version)[0]
    fix = driver_fix(machine, say="Install the driver's libraries", branch=branch, reinstall=True)
    return failed(f"kernel module {machine.module_version}, but libcuda and libnvidia-ml are missing", fix)


@check("driver-cuda", group="driver", why="A driver older than torch's CUDA needs cannot start that CUDA at all.")
def driver_cuda(machine: Machine) -> Finding:
    """The driver's version against the oldest one that torch's CUDA runs on."""
    if not machine.has_nvidia:
        return skipped(NO_CARD)
    if not machine.torch_cuda:
        return skipped("torch is not installed or has no CUDA in it; see torch-build")
    driver = machine.driver_version
    if not driver:
        return skipped("the driver's version is not known; see kernel-module")
    major = numbers(machine.torch_cuda)[0]
    oldest = OLDEST_DRIVER.get(major)
    if oldest is None:
        return skipped(f"the oldest driver for CUDA {machine.torch_cuda} is not known to this hotlap")
    facts = f"driver {driver}, torch {machine.torch_version} with CUDA {machine.torch_cuda}"
    if numbers(driver)[0] >= oldest:
        newest = f" (the driver knows CUDA up to {machine.nvml.cuda})" if machine.nvml.cuda else ""
        return passed(facts + newest)
    return failed(f"{facts}, which needs driver {oldest} or newer", _old_driver_fix(machine, major))


def _old_driver_fix(machine: Machine, major: int) -> Fix:
    build = fitting_build(machine.driver_version, card_capabilities(machine))
    update = driver_fix(machine, say=f"Update the driver for CUDA {major}")
    if build is None:
        return update
    wheel = wheel_fix(machine)
    return Fix(say=f"{update.text()}. Or, without touching the driver, {wheel.say.lower()}", commands=wheel.commands)


@check("nvml", group="driver", why="Clocks, temperature, throttling and other processes are read through NVML.")
def nvml(machine: Machine) -> Finding:
    """Whether the management library answers."""
    if machine.nvml.cards or machine.nvml.driver:
        return passed(
            f"driver {machine.nvml.driver}, {len(machine.nvml.cards)} card(s), CUDA {machine.nvml.cuda or '?'}"
        )
    if not machine.has_nvidia:
        return skipped(NO_CARD)
    reason = machine.nvml.reason
    if "not installed" in reason:
        return warned(reason, Fix(commands=("pip install --upgrade nvidia-ml-py",)))
    if re.search("mismatch", reason, re.IGNORECASE):
        return failed(f"NVML says: {reason}", Fix(say="See driver-match"))
    if "no answer" in reason:
        fix = Fix(say="A driver that does not answer usually needs a restart", commands=("sudo reboot",), on_host=True)
        return failed(f"NVML: {reason}", fix)
    say = "See kernel-module and device-files; the kernel's own words are in the log"
    return failed(f"NVML says: {reason}", Fix(say=say, commands=("sudo dmesg | grep -i -E 'nvrm|xid'",), on_host=True))
