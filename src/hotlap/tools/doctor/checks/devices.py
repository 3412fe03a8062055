"""The way to the card: device files, who may open them, and which cards CUDA is told to see."""

from __future__ import annotations

import errno
import re

from hotlap.tools.doctor.checks.driver import NO_CARD
from hotlap.tools.doctor.finding import Finding, Fix, failed, passed, skipped, warned
from hotlap.tools.doctor.machine import Machine
from hotlap.tools.doctor.registry import check

_START_WITH_CARD = Fix(say="Start the container with the card", commands=("docker run --gpus all ...",), on_host=True)


@check("device-files", group="driver", why="CUDA reaches the card through /dev/nvidiactl and /dev/nvidia<n>.")
def device_files(machine: Machine) -> Finding:
    """The files under /dev, and whether this user may open them."""
    if not machine.has_nvidia or machine.is_wsl_gpu:
        return skipped("WSL has none; it uses /dev/dxg" if machine.is_wsl_gpu else NO_CARD)
    cards = [name for name in machine.device_files if re.fullmatch(r"nvidia\d+", name)]
    if not cards or "nvidiactl" not in machine.device_files:
        missing = "/dev/nvidiactl" if cards else "/dev/nvidia0"
        create = Fix(say="Create the device files", commands=("sudo nvidia-modprobe -c 0 -u",))
        return failed(f"{missing} does not exist", _START_WITH_CARD if machine.container else create)
    for name in ("nvidiactl", *cards):
        refusal = _refusal(machine, name)
        if refusal is not None:
            return refusal
    return passed(", ".join(f"/dev/{name}" for name in machine.device_files))


def _refusal(machine: Machine, name: str) -> Finding | None:
    try:
        machine.open_device(machine.root / "dev" / name)
    except OSError as error:
        facts = f"/dev/{name} cannot be opened: {error.strerror or error}"
        if error.errno == errno.EPERM:
            # EPERM on a device file is the cgroup's device filter; plain file permissions answer EACCES.
            return failed(f"{facts} (refused by the cgroup)", Fix(say="See cgroup-devices"))
        if error.errno == errno.EACCES:
            fix = Fix(say="Let this user in, then log in again", commands=('sudo usermod -aG video,render "$USER"',))
            return failed(facts, fix)
        fix = Fix(say="The card does not answer", commands=("sudo dmesg | grep -i -E 'nvrm|xid'",), on_host=True)
        return failed(facts, fix)
    return None


@check("uvm", group="driver", why="Without /dev/nvidia-uvm CUDA starts with error 999 (unknown error).")
def uvm(machine: Machine) -> Finding:
    """The unified-memory device, which is lost most often: after a suspend, or in a container started too early."""
    if not machine.has_nvidia or machine.is_wsl_gpu:
        return skipped("WSL has none; it uses /dev/dxg" if machine.is_wsl_gpu else NO_CARD)
    if not machine.device_files:
        return skipped("no /dev/nvidia* at all; see device-files")
    if "nvidia-uvm" not in machine.device_files:
        load = ("sudo modprobe nvidia-uvm", "sudo nvidia-modprobe -u -c 0")
        say = "Load the module" + (" on the host, then restart this container" if machine.container else "")
        return failed("/dev/nvidia-uvm does not exist", Fix(say=say, commands=load, on_host=True))
    try:
        machine.open_device(machine.root / "dev/nvidia-uvm")
    except OSError as error:
        reload = ("sudo rmmod nvidia_uvm", "sudo modprobe nvidia_uvm")
        say = "Reload the module, as is needed after a suspend"
        return failed(
            f"/dev/nvidia-uvm cannot be opened: {error.strerror or error}",
            Fix(say=say, commands=reload, on_host=True),
        )
    return passed("/dev/nvidia-uvm opens")


@check("visible-devices", group="driver", why="CUDA_VISIBLE_DEVICES hides cards; a wrong entry hides all after it.")
def visible_devices(machine: Machine) -> Finding:
    """What CUDA_VISIBLE_DEVICES names against the cards that are there."""
    if not machine.has_nvidia:
        return skipped(NO_CARD)
    value = machine.environ.get("CUDA_VISIBLE_DEVICES")
    count = len(machine.nvml.cards) or len(machine.pci_cards)
    if value is None:
        return passed(f"CUDA_VISIBLE_DEVICES is not set: all {count} card(s) are visible")
    unset = Fix(say="If that is not meant", commands=("unset CUDA_VISIBLE_DEVICES",))
    entries = [entry.strip() for entry in value.split(",")]
    if value.strip() in ("", "-1", "NoDevFiles"):
        return warned(f'CUDA_VISIBLE_DEVICES="{value}" hides every card', unset)
    wrong = next((entry for entry in entries if not _names_a_card(machine, entry, count)), None)
    if wrong is not None:
        here = ", ".join(f"{c.index}={c.uuid}" for c in machine.nvml.cards) or f"0 to {count - 1}"
        fix = Fix(say=f"Name a card that exists ({here})", commands=("export CUDA_VISIBLE_DEVICES=0",))
        return failed(f'CUDA_VISIBLE_DEVICES="{value}": there is no card {wrong!r} among {count}', fix)
    if len(set(entries)) < len(entries):
        return failed(f'CUDA_VISIBLE_DEVICES="{value}" names a card twice; CUDA then sees none', unset)
    return passed(f'CUDA_VISIBLE_DEVICES="{value}": {len(entries)} of {count} card(s) are visible')


def _names_a_card(machine: Machine, entry: str, count: int) -> bool:
    if entry.isdigit():
        return int(entry) < count
    if entry.startswith("MIG-"):
        return any(card.mig for card in machine.nvml.cards)
    known = [card.uuid for card in machine.nvml.cards]
    return entry.startswith("GPU-") and (not known or any(uuid.startswith(entry) for uuid in known))
