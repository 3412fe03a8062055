"""The key under which a target's tuned profile holds here: its source, its input, this device and these libraries."""

from __future__ import annotations

import ast
import dataclasses
import hashlib
import inspect
import platform
import re
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

from hotlap.base import events
from hotlap.base.errors import HotlapError, UsageError
from hotlap.base.events import Emit
from hotlap.device.host import read_host
from hotlap.device.nvml import Nvml
from hotlap.device.probe import require_cuda
from hotlap.device.seed import generator
from hotlap.measure.arms import parse_arm
from hotlap.measure.process import Listen, Starter, run_job
from hotlap.records.codec import decode, encode
from hotlap.records.tuned import Found, ProfileStore, TunedKey, TunedProfile
from hotlap.targets import load_target
from hotlap.workload import Workload

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True, kw_only=True)
class Question:
    """Which profile is asked for."""

    target: str
    mode: str
    options: dict[str, Any]
    inputs: list[str]
    device: str = ""
    """cpu, cuda, cuda:1, or '' for a GPU where there is one."""
    timeout_s: float = 600.0

    @property
    def command(self) -> str:
        """What finds and stores such a profile, to be typed."""
        words = ["hotlap", "tune", self.target, "--for", self.mode]
        words += [word for name, value in self.options.items() for word in ("--set", f"workload.{name}={value}")]
        return shlex.join([*words, *(word for shape in self.inputs for word in ("--input", shape))])


def fingerprint(job: dict[str, Any], listen: Listen) -> TunedKey:
    """The job: the key of ``target`` with ``options`` and ``inputs`` for ``mode`` on ``device``."""
    import torch

    listen("fingerprint", 0, 1)
    workload = load_target(job["target"], job.get("options"), job.get("inputs", ()))
    device = job.get("device") or ("cuda" if torch.cuda.is_available() else "cpu")
    name, memory_bytes, cores = _device_facts(torch.device(device))
    with Nvml() as nvml:
        driver = nvml.driver_version() if device != "cpu" else ""
    cudnn = torch.backends.cudnn.version() if device != "cpu" else None
    return TunedKey(
        target=_whole(job["target"]),
        mode=job["mode"],
        options=dict(job.get("options") or {}),
        inputs=list(job.get("inputs") or ()),
        device=torch.device(device).type,
        device_name=name,
        memory_bytes=memory_bytes,
        cores=cores,
        driver=driver,
        torch=torch.__version__,
        cuda=(torch.version.cuda or "") if device != "cpu" else "",
        cudnn=str(cudnn or ""),
        python=platform.python_version(),
        model_hash=model_hash(job["target"], workload, workload.build_model()),
        signature=signature(workload),
    )


def _device_facts(device: Any) -> tuple[str, int, int]:
    if device.type == "cuda":
        import torch

        require_cuda(device.index or 0)
        props = torch.cuda.get_device_properties(device.index or 0)
        return props.name, int(props.total_memory), 0
    host = read_host()
    return host.cpu_model, host.memory_limit_bytes or host.memory_bytes, host.usable_cores


def model_hash(target: str, workload: Workload, model: nn.Module) -> str:
    """A digest that changes with the source of the target, the workload or any module class, or a parameter's shape.

    Functions that those use count as well, where they are the user's own. Modules of torch itself are left out: torch's
    version is part of the key.
    """
    classes = {type(workload), *(type(module) for module in model.modules())}
    files = {file for kind in classes if (file := _source_file(kind))}
    files |= {file for file in [_target_file(target)] if file}
    files = {str(Path(file).resolve()) for file in files}
    files |= _files_used(files)
    digest = hashlib.sha256()
    for file in sorted(files, key=lambda file: (Path(file).name, file)):  # the same wherever their folder lies
        digest.update(Path(file).name.encode() + Path(file).read_bytes())
    # Layers and their sizes, also of classes without a readable source; where a function lies is no part of them.
    digest.update(re.sub(r" at 0x[0-9a-fA-F]+", "", str(model)).encode())
    for name, parameter in model.named_parameters():
        digest.update(f"{name} {tuple(parameter.shape)} {parameter.dtype}".encode())
    return digest.hexdigest()[:16]


def _files_used(files: set[str]) -> set[str]:
    """The source files of the user's modules that those in ``files`` use, directly or through others."""
    waiting = [module for module in list(sys.modules.values()) if _own_file(module) in files]
    found: dict[str, str] = {}
    while waiting:
        module = waiting.pop()
        file = _own_file(module)
        if not file or module.__name__ in found:
            continue
        found[module.__name__] = file
        for value in list(vars(module).values()):
            if isinstance(value, ModuleType):
                waiting.append(value)
            elif isinstance(value, (FunctionType, type)) and value.__module__ in sys.modules:
                waiting.append(sys.modules[value.__module__])
        waiting += _gave_values(module, file)
    return set(found.values()) - files


def _gave_values(module: ModuleType, file: str) -> list[ModuleType]:
    """Modules from which ``module`` imports what does not know where it was defined, as a number does not."""
    found = []
    for node in ast.walk(ast.parse(Path(file).read_bytes())):
        if not isinstance(node, ast.ImportFrom):
            continue
        above = (module.__package__ or "").split(".")[: 1 - node.level or None] if node.level else []
        source = sys.modules.get(".".join([*above, *([node.module] if node.module else [])]))
        values = [getattr(source, alias.name, None) for alias in node.names]  # of a star none
        if source and not all(isinstance(value, (ModuleType, FunctionType, type)) for value in values):
            found.append(source)
    return found


def _own_file(module: ModuleType) -> str:
    """The source file of a module that the user wrote; '' for Python's, for installed ones and for ours."""
    path = Path(getattr(module, "__dict__", {}).get("__file__") or "")
    top = getattr(module, "__name__", "").partition(".")[0]
    if path.suffix != ".py" or top in ("hotlap", "torch") or top in sys.stdlib_module_names:
        return ""
    return "" if {"site-packages", "dist-packages"} & set(path.parts) else str(path.resolve())


def _whole(target: str) -> str:
    """The target with the whole path of its file, however that was spelt."""
    place, _, factory = target.rpartition(":")
    return f"{Path(place).resolve()}:{factory}" if place.endswith(".py") else target


def _target_file(target: str) -> str:
    """The file that ``file.py:factory`` or ``module:factory`` names; '' for a registered name."""
    place, _, _ = target.rpartition(":")
    if place.endswith(".py"):
        return place
    return str(getattr(sys.modules.get(place), "__file__", None) or "")


def _source_file(thing: Any) -> str:
    """The file a class or function was written in; '' for torch's own and where there is none."""
    if (getattr(thing, "__module__", "") or "").partition(".")[0] == "torch":
        return ""
    try:
        file = inspect.getsourcefile(thing)
    except TypeError:
        return ""
    return file if file and Path(file).is_file() else ""


def signature(workload: Workload) -> str:
    """Shapes and types of a worst-case batch, without the samples' dimension."""
    import torch
    from torch.utils._pytree import tree_leaves

    batch = workload.worst_case_batch(2, torch.device("cpu"), generator(0))
    tensors = [leaf for leaf in tree_leaves(batch) if isinstance(leaf, torch.Tensor)]
    shapes = ["x".join(str(size) for size in t.shape[1:]) or "1" for t in tensors]
    return ", ".join(f"{s}:{str(t.dtype).removeprefix('torch.')}" for s, t in zip(shapes, tensors, strict=True))


def ask_key(question: Question, nursery: Starter | None = None) -> TunedKey:
    """The key of what is here now, learnt in a process of its own, forked by ``nursery`` where there is one."""
    job = {"job": "fingerprint", **{k: v for k, v in encode(question).items() if k != "timeout_s"}}
    key: TunedKey = decode(TunedKey, run_job(job, timeout_s=question.timeout_s, nursery=nursery))
    return key


def stored_profile(
    question: Question, emit: Emit, store: ProfileStore | None = None
) -> tuple[TunedProfile | None, list[str]]:
    """The profile that holds for a target here, and what to tell about it; nothing is said where none was ever stored.

    One that is stale, or cannot be read, is not used, and why is said.
    """
    store = store or ProfileStore()
    if not store.candidates(question.target, question.mode):
        return None, []
    try:
        found = understood(store.find(ask_key(question)))
    except HotlapError as error:
        lines = [f"The tuned profile was not looked at: {error.what}."]
        emit(events.warn(lines[0]))
        return None, lines
    lines = [f"Left aside: {text}." for text in found.broken] + _told(found)
    for line in lines:
        emit(events.note(line) if found.holds else events.warn(line))
    return (on_device(found.profile, question.device) if found.profile and found.holds else None), lines


def understood(found: Found) -> Found:
    """The same; a profile whose arm this version does not know, as one of another version may be, is told as broken."""
    if found.profile is None or not found.holds:
        return found
    try:
        arm = parse_arm(found.profile.arm)
        if arm.device != found.profile.key.device:
            raise UsageError(f"its arm {arm.name!r} is not of {found.profile.key.device}")
    except UsageError as error:
        return Found(None, broken=(*found.broken, f"tuned profile {str(found.path)!r} cannot be used: {error.what}"))
    return found


def on_device(profile: TunedProfile, device: str) -> TunedProfile:
    """The profile with its arm on the card that is meant: it was measured on one, and holds for all of its kind."""
    index = parse_arm(device).index if device else 0
    return dataclasses.replace(profile, arm=dataclasses.replace(parse_arm(profile.arm), index=index).name)


def _told(found: Found) -> list[str]:
    if found.profile is None:
        return []
    what = f"{found.profile.arm} at batch {found.profile.batch}, measured {found.profile.measured_at[:10]}"
    if found.stale:
        why = "; ".join(found.stale)
        return [f"The tuned profile {found.path} ({what}) is stale and not used: {why}. 'hotlap tune' makes a new one."]
    return [f"Tuned profile {found.path}: {what}. --no-tuned goes without."]
