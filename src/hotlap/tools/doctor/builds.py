"""Which torch build fits a driver and a card, and the commands that install drivers and builds."""

from __future__ import annotations

from dataclasses import dataclass

from hotlap.tools.doctor.finding import Fix
from hotlap.tools.doctor.machine import Machine, numbers

# The oldest Linux driver branch that runs programs of a CUDA major version, minor-version compatibility included.
OLDEST_DRIVER = {11: 450, 12: 525, 13: 580}
# The driver branch the doctor recommends: a long-lived one that runs CUDA 11, 12 and 13.
GOOD_BRANCH = 580
# Builds of torch by the oldest driver branch that loads them, newest first, with the capabilities they hold code for.
_BUILDS = (("cu130", 580, (7, 5), (99, 9)), ("cu128", 570, (7, 5), (99, 9)), ("cu126", 525, (5, 0), (9, 0)))


@dataclass(frozen=True)
class Build:
    """One build of torch."""

    backend: str
    """cu126, cu128, cu130 or cpu."""
    requirement: str = "torch"

    def fix(self, say: str = "") -> Fix:
        # uv's --torch-backend picks the build by name; plain pip only ever installs the default one.
        spec = self.requirement if self.requirement == "torch" else f"'{self.requirement}'"
        install = f"uv pip install --torch-backend={self.backend} --reinstall-package torch {spec}"
        return Fix(say=say, commands=("pip install uv", install))


def fitting_build(driver: str, capabilities: list[tuple[int, int]]) -> Build | None:
    """The newest torch build that this driver loads and that has code for every card; None when no build does."""
    branch = numbers(driver)[0] if numbers(driver) else GOOD_BRANCH
    for backend, oldest, low, high in _BUILDS:
        if branch >= oldest and all(low <= capability <= high for capability in capabilities):
            # Builds for cards before Turing end with torch 2.14.
            old_card = any(capability < (7, 5) for capability in capabilities)
            return Build(backend, "torch>=2.11,<2.15" if old_card else "torch")
    return None


def capabilities(machine: Machine) -> list[tuple[int, int]]:
    """The compute capability of each card that NVML names."""
    pairs = [numbers(card.capability) for card in machine.nvml.cards if card.capability]
    return [(pair[0], pair[1]) for pair in pairs if len(pair) > 1]


def wheel_fix(machine: Machine) -> Fix:
    """How to get a torch build that runs here; a newer driver where no build fits the present one."""
    build = fitting_build(machine.driver_version, capabilities(machine))
    if build is None:
        return driver_fix(machine, say="No torch build runs on this driver and card; install a newer driver")
    return build.fix(f"Install the {build.backend} build of torch, which this driver and card can run")


def driver_fix(machine: Machine, *, say: str, branch: int = GOOD_BRANCH, reinstall: bool = False) -> Fix:
    """How to install the driver on this distribution; the machine must restart for a new kernel module."""
    again = "--reinstall " if reinstall else ""
    distribution = machine.os_release.get("ID", "")
    like = machine.os_release.get("ID_LIKE", "").split()
    if distribution == "debian":
        # Debian names its packages without the branch, and keeps them in non-free.
        install = f"sudo apt-get install -y {again}linux-headers-amd64 nvidia-driver"
    elif distribution == "ubuntu" or "ubuntu" in like or not distribution:
        install = f"sudo apt-get install -y {again}nvidia-driver-{branch}"
    else:
        name = machine.os_release.get("PRETTY_NAME", distribution)
        return Fix(say=f"{say}: driver {branch} or newer, from the packages of {name}, then restart", on_host=True)
    return Fix(say=say, commands=("sudo apt-get update", install, "sudo reboot"), on_host=True)
