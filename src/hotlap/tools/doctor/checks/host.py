"""The host: vector features, threads, clock governor, allocator settings, compiler."""

from __future__ import annotations

import shutil

from hotlap.base import bytecode
from hotlap.tools.doctor.finding import Finding, Fix, failed, passed, skipped, warned
from hotlap.tools.doctor.machine import Machine
from hotlap.tools.doctor.registry import check

_VECTOR = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_tile", "amx_bf16", "amx_int8", "asimd", "sve", "bf16")
_ALLOCATOR = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF")
_ALLOCATOR_KEYS = (
    "expandable_segments", "max_split_size_mb", "roundup_power2_divisions", "garbage_collection_threshold", "backend",
    "release_lock_on_cudamalloc", "pinned_use_cuda_host_register", "pinned_num_register_threads",
    "max_non_split_rounding_mb", "pinned_use_background_threads", "per_process_memory_fraction",
    "throw_on_cudamalloc_oom", "graph_capture_record_stream_reuse", "pinned_reserve_segment_size_mb",
)  # fmt: skip


@check("cpu-features", group="host", why="torch picks its processor kernels by these; without AVX2 they are slow.")
def cpu_features(machine: Machine) -> Finding:
    """The vector features that decide the speed of processor kernels."""
    flags = machine.host.flags
    have = [feature for feature in _VECTOR if feature in flags]
    facts = f"{machine.host.cpu_model}: {', '.join(have) or 'no vector features stated'}"
    if not flags:
        return skipped(f"{machine.host.cpu_model}: the kernel states no features")
    if not {"avx2", "asimd"} & flags:
        say = (
            "In a virtual machine, pass the host's processor through (QEMU: -cpu host); otherwise use a newer processor"
        )
        return warned(facts, Fix(say=say))
    bf16 = (
        "multiplies bf16 itself"
        if machine.host.has_fast_bf16
        else "has no bf16 arithmetic: bf16 is emulated and slower"
    )
    return passed(f"{facts}; {bf16}")


@check("thread-settings", group="host", why="Too many threads fight over the cores; one thread leaves them idle.")
def thread_settings(machine: Machine) -> Finding:
    """Thread variables against the cores this process may use."""
    cores = machine.host.usable_cores
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
    given = {name: machine.environ[name] for name in names if machine.environ.get(name)}
    facts = ", ".join(f"{name}={value}" for name, value in given.items()) or "no thread variables set"
    facts = f"{facts}; {cores} usable cores ({machine.host.logical_cpus} logical CPUs)"
    for name, value in given.items():
        count = int(value) if value.isdigit() else 0
        right = Fix(commands=(f"export {name}={cores}",))
        if count < 1:
            return failed(f"{facts}: {name} is not a whole number above 0", right)
        if count > machine.host.logical_cpus:
            return warned(f"{facts}: more threads than CPUs", right)
        if count == 1 and cores > 1:
            return warned(
                f"{facts}: one thread only", Fix(say="torchrun sets it; if not meant", commands=right.commands)
            )
    return passed(facts)


@check("cpu-governor", group="host", why="A governor that saves power makes processor timings slow and unsteady.")
def cpu_governor(machine: Machine) -> Finding:
    """The clock governor of the first processor this process may use."""
    folder = f"sys/devices/system/cpu/cpu{min(machine.affinity, default=0)}/cpufreq"
    governor, driver = machine.read(f"{folder}/scaling_governor"), machine.read(f"{folder}/scaling_driver")
    if not governor:
        return skipped("the kernel shows no clock governor (usual in a virtual machine)")
    # In intel_pstate's and amd-pstate-epp's active mode "powersave" still reaches the full clock under load.
    if governor == "powersave" and driver not in ("intel_pstate", "amd-pstate-epp"):
        fix = Fix(commands=("sudo cpupower frequency-set -g performance",), on_host=True)
        return warned(f"governor {governor} ({driver})", fix)
    return passed(f"governor {governor} ({driver})")


@check("allocator-settings", group="host", why="A misspelt allocator setting is ignored or stops the first allocation.")
def allocator_settings(machine: Machine) -> Finding:
    """The allocator variables as they are set; the probe ``allocator`` then shows what torch made of them."""
    given = {name: machine.environ[name] for name in _ALLOCATOR if machine.environ.get(name)}
    if not given:
        return passed("no allocator variable is set; torch's defaults hold")
    facts = ", ".join(f"{name}={value}" for name, value in given.items())
    if len(set(given.values())) > 1:
        drop = [name for name in given if name != "PYTORCH_ALLOC_CONF"]
        return warned(f"{facts}: they disagree", Fix(say="Keep one", commands=(f"unset {' '.join(drop)}",)))
    for name, value in given.items():
        for key in _setting_keys(value):
            if key not in _ALLOCATOR_KEYS:
                say = f"Spell it as one of {', '.join(_ALLOCATOR_KEYS[:5])}, ..., or drop it"
                return warned(f"{facts}: {key!r} is no known setting", Fix(say=say, commands=(f"unset {name}",)))
    if "PYTORCH_ALLOC_CONF" not in given:
        name, value = next(iter(given.items()))
        rename = (f"export PYTORCH_ALLOC_CONF='{value}'", f"unset {name}")
        return warned(f"{facts}: the old name, which torch warns about", Fix(commands=rename))
    return passed(facts)


def _setting_keys(value: str) -> list[str]:
    """The names in ``a:1,b:[x:2,y:3]``; what stands in brackets belongs to the name before."""
    keys, depth, word = [], 0, ""
    for letter in value + ",":
        depth += (letter == "[") - (letter == "]")
        if letter == "," and depth == 0:
            keys.append(word.partition(":")[0].strip())
            word = ""
        else:
            word += letter
    return [key for key in keys if key]


@check("compiler", group="host", why="torch.compile builds C++ on the processor, and Triton builds its launcher in C.")
def compiler(machine: Machine) -> Finding:
    """A C and a C++ compiler on PATH, or the one CC and CXX name."""
    path = machine.environ.get("PATH", "")
    found = {}
    for variable, names in (("CC", ("gcc", "clang", "cc")), ("CXX", ("g++", "clang++", "c++"))):
        wanted = machine.environ.get(variable, "")
        candidates = (wanted,) if wanted else names
        found[variable] = next((where for name in candidates if (where := shutil.which(name, path=path))), "")
    if all(found.values()):
        return passed(f"C: {found['CC']}, C++: {found['CXX']}")
    missing = " and ".join({"CC": "C", "CXX": "C++"}[variable] for variable, where in found.items() if not where)
    named = [f"{v}={machine.environ[v]}" for v in found if not found[v] and machine.environ.get(v)]
    facts = f"no {missing} compiler on PATH" + (f" ({', '.join(named)} is not there)" if named else "")
    return warned(facts, Fix(commands=("sudo apt-get install -y g++",)))


@check(
    "bytecode", group="host", why="Without compiled Python each process compiles torch anew: seconds at every start."
)
def kept_bytecode(machine: Machine) -> Finding:
    """Whether torch lies compiled on disk, or will after its first import."""
    package = machine.torch_folder
    if package is None:
        return skipped("torch is not installed")
    if not bytecode.is_lost(package, machine.environ):
        return passed(f"kept for {package}")
    cause = "PYTHONDONTWRITEBYTECODE is set" if machine.environ.get("PYTHONDONTWRITEBYTECODE") else "it is read-only"
    compile_all = f"python -m compileall -q -j 0 {package}"
    fix = Fix(say="hotlap's own processes keep theirs; for yours", commands=(compile_all,))
    return warned(f"none beside {package}, and none will be: {cause}", fix)
