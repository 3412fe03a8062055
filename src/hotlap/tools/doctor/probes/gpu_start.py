"""Probes that start CUDA: every visible card answers, runs a kernel, and keeps the settings it was given."""

from __future__ import annotations

import os
import re
from typing import Any

from hotlap.tools.doctor.builds import fitting_build
from hotlap.tools.doctor.finding import Finding, Fix, failed, passed, warned, worst
from hotlap.tools.doctor.probes.compare import agree, relative_error
from hotlap.tools.doctor.registry import probe

_CUDA = ("cuda-start", "kernel-launch")


@probe("cuda-start", group="gpu", why="CUDA must start before anything else on the card can.", needs=("torch-import",))
def cuda_start() -> Finding:
    """The cards torch sees once CUDA is up."""
    import torch

    torch.cuda.init()
    count = torch.cuda.device_count()
    if not count:
        fix = Fix(say="See visible-devices and device-files", commands=("nvidia-smi -L",))
        return failed("CUDA starts but shows no card", fix)
    names = []
    for index in range(count):
        card = torch.cuda.get_device_properties(index)
        names.append(f"{index}: {card.name}, sm_{card.major}{card.minor}, {card.total_memory / 2**30:.0f} GiB")
    return passed("; ".join(names), num_cards=count)


@probe(
    "kernel-launch",
    group="gpu",
    why="torch holds code for some cards only; on others every kernel fails with 'no kernel image'.",
    needs=("cuda-start",),
)
def kernel_launch() -> Finding:
    """The arch list against each card's capability, then a kernel launched there."""
    import torch

    findings = []
    for index in range(torch.cuda.device_count()):
        major, minor = torch.cuda.get_device_capability(index)
        finding = judge_arch(torch.cuda.get_arch_list(), (major, minor), str(torch.version.cuda))
        if finding.status != "FAIL":
            x = torch.arange(1000, device=f"cuda:{index}", dtype=torch.float32)
            agree(f"x * 2 + 1 on cuda:{index}", x * 2 + 1, torch.arange(1000).double() * 2 + 1, 1e-6)
        findings.append(finding)
    return worst(findings)


def judge_arch(archs: list[str], capability: tuple[int, int], cuda: str) -> Finding:
    """Whether a build with code for ``archs`` runs on a card of ``capability``.

    Machine code (sm_) runs on the same major version from its minor upwards; PTX (compute_) is compiled by the driver
    for any later card. Code marked 'a' runs on exactly its own capability, 'f' on its family.
    """
    card = f"sm_{capability[0]}{capability[1]}"
    exact, ptx = [], []
    for arch in archs:
        found = re.fullmatch(r"(sm|compute)_(\d+)(\d)([af]?)", arch)
        if not found:
            continue
        kind, major, minor, suffix = found.group(1), int(found.group(2)), int(found.group(3)), found.group(4)
        if kind == "compute" and not suffix and (major, minor) <= capability:
            ptx.append(arch)
        elif kind == "sm" and major == capability[0]:
            fits = minor == capability[1] if suffix == "a" else minor <= capability[1]
            exact += [arch] if fits else []
    facts = f"card {card}, torch has {' '.join(archs) or 'no code for any card'}"
    if exact:
        return passed(f"{facts}; runs {exact[-1]}")
    if ptx:
        say = "The first run compiles every kernel and is slow; a build with code for this card avoids it"
        build = fitting_build("", [capability])
        fix = build.fix(say) if build else Fix(say=say)
        return warned(f"{facts}; runs from PTX {ptx[-1]}", fix)
    build = fitting_build("", [capability])
    if build is None:
        return failed(f"{facts} (CUDA {cuda})", Fix(say=f"No torch that hotlap supports has code for {card}"))
    return failed(f"{facts} (CUDA {cuda})", build.fix(f"Install the {build.backend} build, which has code for {card}"))


@probe(
    "allocator",
    group="gpu",
    why="An allocator setting can be ignored in silence; this shows what is in force.",
    needs=_CUDA,
)
def allocator() -> Finding:
    """The allocator's settings after a real allocation, against those asked for."""
    import torch

    held = torch.ones(8 * 2**20, device="cuda")
    snapshot: dict[str, Any] = torch.cuda.memory._snapshot()
    asked = os.environ.get("PYTORCH_ALLOC_CONF") or os.environ.get("PYTORCH_CUDA_ALLOC_CONF") or ""
    segments = [segment for segment in snapshot["segments"] if segment.get("device", 0) == held.device.index]
    expandable = any(segment.get("is_expandable") for segment in segments)
    return judge_allocator(
        asked, snapshot.get("allocator_settings", {}), expandable, torch.cuda.get_allocator_backend()
    )


def judge_allocator(asked: str, settings: dict[str, Any], expandable: bool, backend: str) -> Finding:
    """What was asked for against what an allocation shows."""
    shown = {
        key: value for key, value in settings.items() if "CONF" not in key and value not in (None, "", -1, 0, False)
    }
    listed = ", ".join(f"{key}={value}" for key, value in sorted(shown.items()) if not isinstance(value, (dict, list)))
    facts = f"backend {backend}, asked: {asked or 'nothing'}, in force: {listed or 'defaults'}"
    wanted = re.search(r"expandable_segments:\s*(True|False)", asked)
    if wanted and backend == "native" and (wanted.group(1) == "True") != expandable:
        say = "This torch ignored it; give it under the other name as well"
        commands = (f"export PYTORCH_CUDA_ALLOC_CONF='{asked}'", f"export PYTORCH_ALLOC_CONF='{asked}'")
        return warned(
            f"{facts}; expandable_segments:{wanted.group(1)} is not in force", Fix(say=say, commands=commands)
        )
    if "cudaMallocAsync" in asked and backend != "cudaMallocAsync":
        return warned(
            f"{facts}; backend:cudaMallocAsync is not in force", Fix(say="It must be set before Python starts")
        )
    return passed(facts)


@probe(
    "tf32",
    group="gpu",
    why="TF32 is faster and keeps 10 bits; the flags say one thing, the numbers show it.",
    needs=_CUDA,
)
def tf32() -> Finding:
    """The precision flags as torch starts with them, and whether setting them changes the numbers."""
    import torch

    matmul: Any = torch.backends.cuda.matmul
    conv: Any = torch.backends.cudnn.conv  # type: ignore[attr-defined]
    # "none" is torch's word for no choice made, which computes as ieee.
    start = f"matmul {matmul.fp32_precision.replace('none', 'ieee')}, conv {conv.fp32_precision}"
    torch.manual_seed(0)
    a, b = torch.randn(512, 512, device="cuda"), torch.randn(512, 512, device="cuda")
    want = a.double() @ b.double()
    errors = {}
    for precision in ("ieee", "tf32"):
        matmul.fp32_precision = precision
        errors[precision] = relative_error(a @ b, want)
    return judge_tf32(
        start, errors, torch.cuda.get_device_capability() >= (8, 0), os.environ.get("NVIDIA_TF32_OVERRIDE")
    )


def judge_tf32(start: str, errors: dict[str, float], has_tf32: bool, override: str | None) -> Finding:
    """Whether the numbers follow the flags; TF32's 10 bits show as errors above 1e-5."""
    facts = f"at start: {start}; error {errors['ieee']:.1e} with ieee, {errors['tf32']:.1e} with tf32"
    undo = Fix(say="cuBLAS does not follow torch's flag; update torch", commands=("pip install --upgrade torch",))
    if override is not None:
        undo = Fix(commands=("unset NVIDIA_TF32_OVERRIDE",))
        facts += f"; NVIDIA_TF32_OVERRIDE={override}"
    if errors["ieee"] > 1e-5:
        return failed(f"{facts}: fp32 is not fp32 even when asked", undo)
    if has_tf32 and errors["tf32"] <= 1e-5:
        return warned(f"{facts}: TF32 does not come on when asked", undo)
    return passed(facts if has_tf32 else f"{facts}; this card has no TF32")
