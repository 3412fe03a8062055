"""Probes that need torch but no card: that it imports, and which libraries it really loads."""

from __future__ import annotations

import re
from pathlib import Path

from hotlap.tools.doctor.finding import Finding, Fix, passed, skipped, warned, worst
from hotlap.tools.doctor.machine import Distributions, numbers
from hotlap.tools.doctor.registry import probe

_WATCHED = re.compile(
    r"/lib(cudnn|cublas|cublasLt|cudart|cufft|cusolver|cusparse|nccl|nvrtc|cuda|nvidia-ml|gomp|iomp5|omp|mkl_rt|torch_cpu|"
    r"torch_cuda)(-[0-9a-f]+)?\.so[.\d]*$"
)


@probe("torch-import", group="cpu", why="Nothing else can work while torch itself does not import.", patience=2.0)
def torch_import() -> Finding:
    """That torch imports and adds two numbers."""
    import torch

    total = (torch.ones(3) + torch.ones(3)).sum().item()
    if total != 6:
        raise ArithmeticError(f"1 + 1 three times gave {total}")
    return passed(f"torch {torch.__version__} from {Path(torch.__file__).parent}")


@probe(
    "loaded-libraries",
    group="libraries",
    why="The libraries in memory, not those installed, decide what runs; two copies of one fight.",
    needs=("torch-import",),
)
def loaded_libraries() -> Finding:
    """The CUDA and threading libraries in this process after torch is loaded, from /proc/self/maps."""
    import torch

    maps = Path("/proc/self/maps")
    if not maps.is_file():
        return skipped("this system has no /proc/self/maps")
    cudnn = torch.backends.cudnn.version() if torch.version.cuda else None
    finding = judge_maps(maps.read_text(encoding="utf-8"), str(Path(torch.__file__).parent.parent))
    return judge_cudnn(
        finding, cudnn, Distributions().version(f"nvidia-cudnn-cu{(torch.version.cuda or '').split('.')[0]}")
    )


def judge_cudnn(finding: Finding, loaded: int | None, wheel: str) -> Finding:
    """Adds the cuDNN that answers against the one the wheel brought: another copy may have been found first."""
    if loaded is None or not wheel:
        return finding
    # 92600 is 9.26.0.
    parts = (loaded // 10000, loaded // 100 % 100, loaded % 100)
    said = f"cuDNN {'.'.join(str(part) for part in parts)} answers, the wheel is {wheel}"
    if numbers(wheel)[:3] != parts:
        fix = Fix(say="Another cuDNN is found first; keep to the wheel's", commands=("unset LD_LIBRARY_PATH",))
        return worst([finding, warned(said, fix)])
    return worst([finding, passed(said)])


def judge_maps(maps: str, site: str) -> Finding:
    """Each watched library once and from beside torch; ``site`` is the folder that holds torch."""
    loaded: dict[str, set[str]] = {}
    for line in maps.splitlines():
        path = line.partition("/")[2]
        found = _WATCHED.search(f"/{path}") if path else None
        if found:
            loaded.setdefault(found.group(1), set()).add(f"/{path}")
    twice = {name: sorted(paths) for name, paths in loaded.items() if len(paths) > 1}
    driver = ("cuda", "nvidia-ml")
    outside = sorted(p for name, paths in loaded.items() if name not in (*driver, "gomp", "omp", "iomp5", "mkl_rt")
                     for p in paths if not p.startswith(site))  # fmt: skip
    threads = sorted({"gomp", "iomp5", "omp"} & loaded.keys())
    names = ", ".join(sorted(path.rpartition("/")[2] for paths in loaded.values() for path in paths))
    if twice:
        listed = "; ".join(f"{name}: {' and '.join(paths)}" for name, paths in twice.items())
        fix = Fix(say="Keep one copy; most often the other comes from", commands=("unset LD_LIBRARY_PATH LD_PRELOAD",))
        return warned(f"loaded twice: {listed}", fix)
    if len(threads) > 1:
        say = "Two OpenMP runtimes start twice the threads; reinstall torch and numpy from one source"
        return warned(f"two OpenMP runtimes: {', '.join(threads)}", Fix(say=say))
    if outside:
        say = "These do not come with torch; unless it was built from source"
        return warned(f"from outside {site}: {', '.join(outside)}", Fix(say=say, commands=("unset LD_LIBRARY_PATH",)))
    return passed(names or "torch is linked statically", loaded={name: sorted(paths) for name, paths in loaded.items()})
