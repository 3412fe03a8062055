"""The state of each card as NVML reads it now. Nothing here changes a setting of the card."""

from __future__ import annotations

import os
from collections.abc import Callable

from hotlap.tools.doctor.finding import Finding, Fix, failed, passed, skipped, warned, worst
from hotlap.tools.doctor.machine import Machine, gib
from hotlap.tools.doctor.nvml_facts import CardFacts
from hotlap.tools.doctor.registry import check

_EXCLUSIVE, _PROHIBITED = 3, 2


def _each(machine: Machine, judge: Callable[[CardFacts], Finding]) -> Finding:
    """The worst of the judgements over all cards."""
    if not machine.nvml.cards:
        return skipped("no card that NVML can read")
    return worst([judge(card) for card in machine.nvml.cards])


def _label(card: CardFacts) -> str:
    return f"card {card.index}"


@check("clocks", group="card", why="A card held below its clock gives numbers that another run will not repeat.")
def clocks(machine: Machine) -> Finding:
    """The clock now, the highest one, and any limit someone set below it."""

    def judge(card: CardFacts) -> Finding:
        facts = f"{_label(card)}: SM {_mhz(card.sm_clock_mhz)} of {_mhz(card.max_sm_clock_mhz)}"
        low = card.app_clock_mhz and card.max_sm_clock_mhz and card.app_clock_mhz < 0.8 * card.max_sm_clock_mhz
        if low:
            # Application clocks were set by an administrator; it is their choice whether to undo it.
            facts += f", application clock {_mhz(card.app_clock_mhz)}"
            fix = Fix(say="Give the clock back", commands=(f"sudo nvidia-smi -i {card.index} -rac",), on_host=True)
            return warned(facts, fix)
        default, limit = card.power_default_w, card.power_limit_w
        if default and limit and limit < 0.95 * default:
            facts += f", power limit {limit:.0f} W of {default:.0f} W"
            restore = f"sudo nvidia-smi -i {card.index} -pl {default:.0f}"
            return warned(facts, Fix(say="Restore the default limit", commands=(restore,), on_host=True))
        return passed(facts)

    return _each(machine, judge)


def _mhz(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.0f} MHz"


@check("throttle", group="card", why="While a card slows itself down, no timing of it means what it says.")
def throttle(machine: Machine) -> Finding:
    """The reasons for which the driver holds the clock down now."""

    def judge(card: CardFacts) -> Finding:
        heat = "" if card.temperature_c is None else f", {card.temperature_c:.0f} C"
        power = "" if card.power_w is None else f", {card.power_w:.0f} W"
        if not card.throttle:
            return passed(f"{_label(card)}: not slowed{heat}{power}")
        facts = f"{_label(card)}: {', '.join(card.throttle)}{heat}{power}"
        if any("thermal" in reason for reason in card.throttle):
            say = "Cool the card (airflow, dust, fan curve, room) and watch it settle"
        elif any("brake" in reason or "hardware slowdown" in reason for reason in card.throttle):
            say = "Check the power supply and its cables, then watch it settle"
        else:
            say = "Wait for other work on the card to end, then watch it settle"
        return warned(facts, Fix(say=say, commands=("nvidia-smi -q -d PERFORMANCE,TEMPERATURE,POWER",), on_host=True))

    return _each(machine, judge)


@check("ecc", group="card", why="Uncorrected memory errors mean wrong numbers or a process killed by the driver.")
def ecc(machine: Machine) -> Finding:
    """Memory errors and rows that wait for a reset to be replaced."""

    def judge(card: CardFacts) -> Finding:
        state = {None: "not supported", True: "on", False: "off"}[card.ecc]
        facts = f"{_label(card)}: ECC {state}"
        if card.remap_failed:
            return failed(f"{facts}, a memory row could not be replaced", Fix(say="Have the card exchanged"))
        if card.ecc_uncorrected or card.remap_pending:
            count = card.ecc_uncorrected or 0
            pending = ", a row waits to be replaced" if card.remap_pending else ""
            reset = (f"sudo nvidia-smi -i {card.index} --gpu-reset",)
            say = "Stop the work on this card and reset it; exchange the card when errors return"
            return failed(f"{facts}, {count} uncorrected errors{pending}", Fix(say=say, commands=reset, on_host=True))
        return passed(facts + ("" if card.ecc is not True else ", no uncorrected errors"))

    return _each(machine, judge)


@check("mig", group="card", why="With MIG on, a program sees one slice; with no slice made, it sees nothing.")
def mig(machine: Machine) -> Finding:
    """Whether the card is cut into instances."""

    def judge(card: CardFacts) -> Finding:
        if not card.mig:
            return passed(f"{_label(card)}: MIG {'off' if card.mig is False else 'not supported'}")
        if not card.mig_instances:
            make = (f"sudo nvidia-smi mig -i {card.index} -cgi 0 -C",)
            return failed(
                f"{_label(card)}: MIG is on but has no instance",
                Fix(say="Make one, or turn MIG off with an administrator", commands=make, on_host=True),
            )
        say = "Compare numbers only with runs on the same slice; list the slices"
        return warned(
            f"{_label(card)}: MIG is on with {card.mig_instances} instance(s)",
            Fix(say=say, commands=("nvidia-smi -L",)),
        )

    return _each(machine, judge)


@check("tenants", group="card", why="Another process on the card takes its time and memory while you measure.")
def tenants(machine: Machine) -> Finding:
    """Other processes that hold memory on a card."""

    def judge(card: CardFacts) -> Finding:
        others = [tenant for tenant in card.tenants if tenant.pid != os.getpid()]
        used = (
            ""
            if card.memory_used_bytes is None
            else f", {gib(card.memory_used_bytes)} of {gib(card.memory_bytes)} used"
        )
        if not others:
            return passed(f"{_label(card)}: no other process{used}")
        listed = ", ".join(f"{t.pid} {t.name}".strip() for t in others)
        say = "Wait for them, or choose another card with CUDA_VISIBLE_DEVICES; see what they are"
        pids = ",".join(str(t.pid) for t in others)
        return warned(
            f"{_label(card)}: in use by {listed}{used}", Fix(say=say, commands=(f"ps -o pid,user,cmd -p {pids}",))
        )

    return _each(machine, judge)


@check(
    "persistence", group="card", why="Without persistence the driver unloads between programs: the first call is slow."
)
def persistence(machine: Machine) -> Finding:
    """Whether the driver stays loaded while no program uses the card."""

    def judge(card: CardFacts) -> Finding:
        if card.persistence is None:
            return passed(f"{_label(card)}: the driver does not say")
        if card.persistence:
            return passed(f"{_label(card)}: on")
        enable = ("sudo systemctl enable --now nvidia-persistenced",)
        return warned(f"{_label(card)}: off", Fix(commands=enable, on_host=True))

    return _each(machine, judge)


@check("compute-mode", group="card", why="In exclusive mode a second process is refused, loader workers included.")
def compute_mode(machine: Machine) -> Finding:
    """Whether the card takes more than one process."""

    def judge(card: CardFacts) -> Finding:
        restore = Fix(
            say="Ask the administrator to set the default mode",
            commands=(f"sudo nvidia-smi -i {card.index} -c DEFAULT",),
            on_host=True,
        )
        if card.compute_mode == _PROHIBITED:
            return failed(f"{_label(card)}: compute mode PROHIBITED: no CUDA program may use it", restore)
        if card.compute_mode == _EXCLUSIVE:
            return warned(f"{_label(card)}: compute mode EXCLUSIVE_PROCESS", restore)
        return passed(f"{_label(card)}: {'default' if card.compute_mode == 0 else 'not stated'}")

    return _each(machine, judge)


@check("pcie-link", group="card", why="Half the lanes carry half the data between host and card.")
def pcie_link(machine: Machine) -> Finding:
    """Lanes in use against lanes the card has. The generation is only told: it drops while a card idles."""

    def judge(card: CardFacts) -> Finding:
        if not card.pcie_width or not card.pcie_width_max:
            return passed(f"{_label(card)}: the driver does not say")
        lanes = f"{_label(card)}: x{card.pcie_width} of x{card.pcie_width_max}"
        facts = f"{lanes}, generation {card.pcie_gen} of {card.pcie_gen_max}"
        if card.pcie_width < card.pcie_width_max:
            say = "Move the card to a slot with all its lanes, or reseat it and its riser; look at the link"
            look = (f"sudo lspci -vv -s {card.pci_bus} | grep -i lnksta",)
            return warned(facts, Fix(say=say, commands=look, on_host=True))
        return passed(facts)

    return _each(machine, judge)


@check("numa", group="card", why="A process on the other socket reaches the card through the link between sockets.")
def numa(machine: Machine) -> Finding:
    """The processors nearest to each card against those this process may run on."""

    def judge(card: CardFacts) -> Finding:
        # NVML writes the domain with eight digits, the kernel with four.
        address = card.pci_bus.lower()[-12:]
        folder = f"sys/bus/pci/devices/{address}"
        node, near = machine.read(f"{folder}/numa_node"), parse_cpulist(machine.read(f"{folder}/local_cpulist"))
        if not near or node in ("", "-1"):
            return passed(f"{_label(card)}: one memory node, or none stated")
        if not near & machine.affinity:
            bind = (f"numactl --cpunodebind={node} --membind={node} <your command>",)
            return warned(f"{_label(card)}: on node {node}, but this process may not run there", Fix(commands=bind))
        share = "all" if machine.affinity <= near else f"{len(machine.affinity & near)} of {len(machine.affinity)}"
        return passed(f"{_label(card)}: on node {node}; {share} of this process's CPUs are there")

    return _each(machine, judge)


def parse_cpulist(text: str) -> frozenset[int]:
    """The processors in a kernel list such as ``0-3,8``."""
    found: set[int] = set()
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        found.update(range(int(first), int(last or first) + 1))
    return frozenset(found)
