"""The box around this process: container toolkit, cgroup limits, shared memory."""

from __future__ import annotations

import errno

from hotlap.device.host import cgroup_folders
from hotlap.tools.doctor.checks.driver import NO_CARD
from hotlap.tools.doctor.finding import Finding, Fix, failed, passed, skipped, warned
from hotlap.tools.doctor.machine import Machine, gib
from hotlap.tools.doctor.registry import check

_NVIDIA_MAJOR = "195"
_BATCH_BYTES = 32 * 3 * 224 * 224 * 4
"""A batch of 32 images of 224 x 224 in float32."""
_PREFETCH = 2


@check("container", group="container", why="The container toolkit mounts the driver only for what it was asked.")
def container(machine: Machine) -> Finding:
    """Which container this is, and what it asked of NVIDIA's container toolkit."""
    if not machine.container:
        return passed("not in a container")
    asked = machine.environ.get("NVIDIA_VISIBLE_DEVICES")
    powers = machine.environ.get("NVIDIA_DRIVER_CAPABILITIES", "")
    facts = f"{machine.container}, NVIDIA_VISIBLE_DEVICES={'(not set)' if asked is None else asked or '(empty)'}"
    if powers:
        facts += f", NVIDIA_DRIVER_CAPABILITIES={powers}"
    if machine.card_not_given:
        say = "If the card is wanted, start the container with it"
        return warned(
            f"{facts}; the host has a card that this container was not given",
            Fix(say=say, commands=("docker run --gpus all ...",), on_host=True),
        )
    if asked and asked not in ("none", "void") and not machine.device_files and not machine.is_wsl_gpu:
        return failed(f"{facts}, but there is no /dev/nvidia*", _toolkit_fix(machine))
    words = set(powers.split(","))
    if powers and machine.device_files and not words & {"all", "compute"}:
        commands = ("docker run --gpus all -e NVIDIA_DRIVER_CAPABILITIES=compute,utility ...",)
        return failed(f"{facts}: without compute, libcuda is not mounted", Fix(commands=commands, on_host=True))
    if powers and machine.device_files and not words & {"all", "utility"}:
        commands = ("docker run --gpus all -e NVIDIA_DRIVER_CAPABILITIES=compute,utility ...",)
        return warned(f"{facts}: without utility, NVML is not mounted", Fix(commands=commands, on_host=True))
    return passed(facts)


def _toolkit_fix(machine: Machine) -> Fix:
    if machine.container == "kubernetes":
        return Fix(say="Ask for the card in the pod's resources (limits: nvidia.com/gpu: 1) and run the device plugin")
    commands = (
        "sudo apt-get install -y nvidia-container-toolkit",
        "sudo nvidia-ctk runtime configure --runtime=docker",
        "sudo systemctl restart docker",
        "docker run --gpus all ...",
    )
    return Fix(
        say="Install NVIDIA's container toolkit and start the container with --gpus", commands=commands, on_host=True
    )


@check(
    "cgroup-devices", group="container", why="A container loses the card when its cgroup no longer allows the devices."
)
def cgroup_devices(machine: Machine) -> Finding:
    """Whether the cgroup lets this process open the card: v1's list is read, v2's filter is tried."""
    if not machine.has_nvidia:
        return skipped(NO_CARD)
    if "nvidiactl" not in machine.device_files:
        return skipped("no /dev/nvidiactl to open; see device-files")
    again = Fix(
        say="The cgroup lost the devices, usually at a 'systemctl daemon-reload'; start the container again with them "
        "named, or let Docker use cgroupfs",
        commands=("docker run --gpus all --device /dev/nvidiactl --device /dev/nvidia-uvm --device /dev/nvidia0 ...",),
        on_host=True,
    )
    for folder in cgroup_folders(machine.root, "devices"):
        listed = folder / "devices.list"
        if listed.is_file():
            rules = listed.read_text(encoding="utf-8").splitlines()
            if not any(_allows(rule) for rule in rules):
                return failed(f"{_NVIDIA_MAJOR}:* is not in the cgroup's devices.list ({'; '.join(rules[:4])})", again)
            break
    try:
        machine.open_device(machine.root / "dev/nvidiactl")
    except OSError as error:
        if error.errno == errno.EPERM:
            return failed("/dev/nvidiactl: Operation not permitted, though the file is there", again)
        return skipped(f"/dev/nvidiactl cannot be opened for another reason ({error.strerror}); see device-files")
    return passed("the cgroup lets /dev/nvidiactl be opened")


def _allows(rule: str) -> bool:
    kind, _, rest = rule.partition(" ")
    number, _, rights = rest.partition(" ")
    return kind in ("a", "c") and number.split(":")[0] in ("*", _NVIDIA_MAJOR) and "w" in rights


@check(
    "char-symlinks",
    group="container",
    why="systemd finds devices through /dev/char; without links containers lose them.",
)
def char_symlinks(machine: Machine) -> Finding:
    """Links under /dev/char for NVIDIA's devices, on a host that starts GPU containers under systemd."""
    if not machine.has_nvidia:
        return skipped(NO_CARD)
    if machine.container:
        return skipped("made on the host, not in a container")
    if not (machine.exists("usr/bin/nvidia-ctk") or machine.exists("usr/bin/nvidia-container-runtime")):
        return skipped("NVIDIA's container toolkit is not installed here")
    if not machine.exists("run/systemd/system"):
        return skipped("systemd does not run here")
    folder = machine.root / "dev/char"
    links = sorted(p.name for p in folder.glob(f"{_NVIDIA_MAJOR}:*")) if folder.is_dir() else []
    if links:
        return passed(f"/dev/char has {', '.join(links)}")
    create = ("sudo nvidia-ctk system create-dev-char-symlinks --create-all",)
    return warned(f"/dev/char has no {_NVIDIA_MAJOR}:* links", Fix(commands=create, on_host=True))


@check("cpu-quota", group="container", why="Threads beyond the quota are stopped in the middle of their work.")
def cpu_quota(machine: Machine) -> Finding:
    """The cgroup's CPU quota against the processors this process may run on."""
    quota, cpus = machine.host.quota_cpus, machine.host.logical_cpus
    if quota is None:
        return passed(f"no CPU quota; {cpus} logical CPUs, {machine.host.usable_cores} usable cores")
    facts = f"quota of {quota:g} CPUs on {cpus} logical CPUs"
    if quota >= cpus:
        return passed(facts)
    threads = machine.environ.get("OMP_NUM_THREADS", "")
    if threads.isdigit() and int(threads) <= max(1, quota):
        return passed(f"{facts}, OMP_NUM_THREADS={threads} keeps within it")
    wanted = machine.host.usable_cores
    say = "Start no more threads than the quota feeds"
    return warned(facts, Fix(say=say, commands=(f"export OMP_NUM_THREADS={wanted}",)))


@check("memory-limit", group="container", why="A process that passes the cgroup's limit is killed without a message.")
def memory_limit(machine: Machine) -> Finding:
    """Memory this process may use: the host's, or the cgroup's limit when that is lower."""
    limit, total = machine.host.memory_limit_bytes, machine.host.memory_bytes
    usable = min(total, limit) if limit else total
    facts = f"{gib(total)} on the host" + (f", {gib(limit)} allowed by the cgroup" if limit and limit < total else "")
    if usable < 4 * 2**30:
        fix = Fix(say="Give it more memory", commands=("docker run --memory=16g ...",), on_host=True)
        plain = Fix(say="Use smaller batches and fewer loader workers, or a machine with at least 4 GiB")
        return warned(f"{facts}: under 4 GiB", fix if limit and limit < total else plain)
    return passed(facts)


@check(
    "shared-memory", group="container", why="Loader workers hand batches over in /dev/shm; when it is full they die."
)
def shared_memory(machine: Machine) -> Finding:
    """The size of /dev/shm against what a loader with a worker for each core would put there."""
    size = machine.host.shm_bytes
    workers = machine.host.usable_cores
    needed = _BATCH_BYTES * _PREFETCH * workers
    plan = f"{workers} workers x {_PREFETCH} batches of {gib(_BATCH_BYTES)} need {gib(needed)}"
    target = max(8, -(-2 * needed // 2**30))
    if size is None:
        if machine.platform != "linux":
            return skipped(f"{machine.platform} has no /dev/shm")
        fix = Fix(commands=("sudo mount -t tmpfs -o size=8G tmpfs /dev/shm",))
        return failed("/dev/shm does not exist", fix)
    facts = f"/dev/shm holds {gib(size)}; {plan}"
    # 64 MiB is what Docker gives when nothing is asked; real batches outgrow it whatever this estimate says.
    if size >= max(needed, 256 * 2**20):
        return passed(facts)
    if machine.container:
        say = f"Start the container with --shm-size={target}g or --ipc=host"
        return warned(facts, Fix(say=say, commands=(f"docker run --shm-size={target}g ...",), on_host=True))
    return warned(facts, Fix(commands=(f"sudo mount -o remount,size={target}G /dev/shm",)))
