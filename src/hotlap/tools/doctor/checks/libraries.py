"""The Python side: torch's build, the CUDA packages beside it, and packages known to quarrel."""

from __future__ import annotations

import re

from hotlap.tools.doctor.builds import wheel_fix
from hotlap.tools.doctor.finding import Finding, Fix, failed, passed, skipped, warned
from hotlap.tools.doctor.machine import Machine, numbers
from hotlap.tools.doctor.registry import check

OLDEST_TORCH = "2.11"
_SHADOWS = ("libcudnn", "libcublas", "libcudart", "libcufft", "libcusolver", "libcusparse", "libnccl", "libnvrtc")


@check("torch-package", group="libraries", why="Everything hotlap measures is a torch program.")
def torch_package(machine: Machine) -> Finding:
    """The installed torch, read from its metadata."""
    version = machine.torch_version
    upgrade = Fix(commands=("pip install --upgrade torch",))
    if not version:
        fix = (
            wheel_fix(machine)
            if machine.has_nvidia and machine.driver_version
            else Fix(commands=("pip install torch",))
        )
        return failed("torch is not installed in this Python environment", fix)
    if numbers(version)[:2] < numbers(OLDEST_TORCH):
        return failed(f"torch {version}, but hotlap needs {OLDEST_TORCH} or newer", upgrade)
    return passed(f"torch {version}")


@check(
    "torch-build", group="libraries", why="A torch built without CUDA runs on the processor and leaves the card idle."
)
def torch_build(machine: Machine) -> Finding:
    """What torch was built for against what is here."""
    if not machine.torch_version:
        return skipped("torch is not installed; see torch-package")
    if machine.torch_hip:
        if machine.has_nvidia:
            return failed(f"torch {machine.torch_version} is built for ROCm {machine.torch_hip}", wheel_fix(machine))
        return passed(f"torch {machine.torch_version}, built for ROCm {machine.torch_hip}")
    if machine.torch_cuda:
        return passed(f"torch {machine.torch_version}, built with CUDA {machine.torch_cuda}")
    if machine.has_nvidia:
        return failed(f"torch {machine.torch_version} has no CUDA in it, but there is a card", wheel_fix(machine))
    return passed(f"torch {machine.torch_version}, built for the processor only")


@check("wheel-libraries", group="libraries", why="torch is tested with the exact cuDNN, NCCL and Triton it pins.")
def wheel_libraries(machine: Machine) -> Finding:
    """The CUDA packages that torch's metadata pins against those installed."""
    if not machine.torch_version:
        return skipped("torch is not installed; see torch-package")
    missing, other, matched = [], [], []
    for line in machine.packages.requires("torch"):
        pin = re.match(r"((?:nvidia-|triton|pytorch-triton)[\w.\-]*)\s*(==|~=)\s*([\w.]+)", line)
        if not pin or "extra ==" in line:
            continue
        name, how, wanted = pin.groups()
        version = machine.packages.version(name)
        if not version:
            missing.append(f"{name}{how}{wanted}")
        elif not _fits(version, how, wanted):
            other.append(f"{name} {version} (torch pins {how}{wanted})")
        else:
            matched.append(f"{name} {version}")
    wanted_list = " ".join(f"'{entry}'" for entry in missing)
    if missing and machine.torch_cuda and machine.has_nvidia:
        return failed(f"not installed: {', '.join(missing)}", Fix(commands=(f"pip install {wanted_list}",)))
    if other:
        again = f"pip install --force-reinstall 'torch=={machine.torch_version.partition('+')[0]}'"
        return warned("; ".join(other), Fix(say="Bring back the pinned versions", commands=(again,)))
    if not matched:
        return skipped("this torch pins no CUDA packages")
    return passed(", ".join(matched) + (f"; not needed here: {', '.join(missing)}" if missing else ""))


def _fits(version: str, how: str, wanted: str) -> bool:
    have, pin = numbers(version), numbers(wanted)
    if how == "~=":
        return have[: len(pin) - 1] == pin[:-1] and have >= pin
    return have[: len(pin)] == pin


@check(
    "library-path", group="libraries", why="Libraries on LD_LIBRARY_PATH are loaded before those torch brings along."
)
def library_path(machine: Machine) -> Finding:
    """Copies of CUDA's libraries that LD_LIBRARY_PATH or LD_PRELOAD would put before the wheel's."""
    if machine.platform != "linux":
        return skipped(f"not looked for on {machine.platform}")
    folders = [f for f in machine.environ.get("LD_LIBRARY_PATH", "").split(":") if f.startswith("/")]
    found = []
    for folder in folders:
        where = machine.root / folder.lstrip("/")
        found += [str(f"{folder}/{p.name}") for name in _SHADOWS for p in sorted(where.glob(f"{name}*.so*"))[:1]]
    preload = machine.environ.get("LD_PRELOAD", "")
    facts = f"LD_LIBRARY_PATH={':'.join(folders) or '(empty)'}" + (f", LD_PRELOAD={preload}" if preload else "")
    if found and machine.torch_cuda:
        listed = ", ".join(found[:6])
        say = "Leave it to torch's own copies, unless torch was built from source against these"
        return warned(f"{facts} holds {listed}", Fix(say=say, commands=("unset LD_LIBRARY_PATH",)))
    return passed(facts)


@check("nvml-package", group="libraries", why="Two packages bring a module named pynvml; whichever came last wins.")
def nvml_package(machine: Machine) -> Finding:
    """The distribution nvidia-ml-py against the old one named pynvml."""
    good, old = machine.packages.version("nvidia-ml-py"), machine.packages.version("pynvml")
    if old:
        commands = ("pip uninstall -y pynvml", "pip install --force-reinstall nvidia-ml-py")
        return warned(f"pynvml {old} is installed beside nvidia-ml-py {good or '(none)'}", Fix(commands=commands))
    if good:
        return passed(f"nvidia-ml-py {good}")
    if not machine.has_nvidia:
        return skipped("nvidia-ml-py is not installed, and no card needs it")
    return warned("nvidia-ml-py is not installed", Fix(commands=("pip install nvidia-ml-py",)))


@check(
    "tensorboard", group="libraries", why="setuptools 82 dropped pkg_resources, which tensorboard before 2.21 imports."
)
def tensorboard(machine: Machine) -> Finding:
    """setuptools 82 or newer with a tensorboard that cannot start beside it."""
    board, tools = machine.packages.version("tensorboard"), machine.packages.version("setuptools")
    if not board:
        return skipped("tensorboard is not installed")
    facts = f"tensorboard {board}, setuptools {tools or '(none)'}"
    if numbers(tools) >= (82,) and numbers(board) < (2, 21):
        return warned(facts, Fix(commands=("pip install --upgrade 'tensorboard>=2.21'",)))
    return passed(facts)


@check("settings", group="libraries", why="Some environment variables change speed or numbers without a word.")
def settings(machine: Machine) -> Finding:
    """Variables that slow every launch or change the arithmetic behind torch's back."""
    slow = {"CUDA_LAUNCH_BLOCKING": "every launch waits", "NVIDIA_TF32_OVERRIDE": "overrides torch's TF32 settings",
            "PYTORCH_NO_CUDA_MEMORY_CACHING": "no caching allocator", "TRITON_INTERPRET": "Triton runs in Python",
            "TORCH_COMPILE_DISABLE": "torch.compile does nothing", "TORCHDYNAMO_DISABLE": "torch.compile does nothing",
            "DNNL_VERBOSE": "oneDNN prints every call", "MKL_VERBOSE": "MKL prints every call"}  # fmt: skip
    # 0 turns each of them off, except the TF32 override, where 0 forbids TF32 whatever torch is told.
    found = {
        name: effect
        for name, effect in slow.items()
        if (value := machine.environ.get(name, "")) and (value != "0" or name == "NVIDIA_TF32_OVERRIDE")
    }
    if not found:
        return passed("none of the variables that slow torch down is set")
    facts = ", ".join(f"{name}={machine.environ[name]} ({effect})" for name, effect in found.items())
    return warned(facts, Fix(commands=(f"unset {' '.join(found)}",)))
