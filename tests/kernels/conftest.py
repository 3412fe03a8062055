"""Memory that nobody wrote, seen; and the CUDA kernels of splatting on a CPU, thread by thread, for tests that draw."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from functools import cache
from pathlib import Path

import pytest
import torch
from splat_errors import CPU

from hotlap.kernels.splat import cuda, cuda_plan, cuda_program, cuda_room
from hotlap.kernels.splat.cuda_program import Variant

HERE = Path(__file__).parent


@pytest.fixture
def nan_filled():
    """Fresh memory holds NaN, so that a number that no kernel wrote is seen."""
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    assert torch.empty(3).isnan().all()
    yield
    torch.use_deterministic_algorithms(before[0], warn_only=before[1])


@pytest.fixture(scope="session")
def splat_host(tmp_path_factory):
    """A function that has the kernels of a variant, less some statement, as a library for the CPU."""

    @cache
    def build(variant: Variant, way: str, without: str = "") -> ctypes.CDLL:
        if shutil.which("g++") is None:
            pytest.skip("no g++")
        folder = tmp_path_factory.mktemp("splat")
        kernels = [
            Path(cuda.__file__).with_name(name) for name in cuda_program.SOURCES[way] if name != "primitives.cuh"
        ]
        files = [HERE / "fibres.hpp", HERE / "splat_host.hpp", *kernels, HERE / "splat_host.cpp"]
        text = "\n".join(file.read_text() for file in files)
        assert without in text
        (folder / "splat.cpp").write_text(text.replace(without, "") if without else text)
        macros = {**dict(variant.program(way).macros), "BACKWARD": int(way == "bwd")}
        defines = [f"-D{name}={value}" for name, value in macros.items()]
        command = ["g++", "-O0", "-std=c++17", "-shared", "-fPIC", "-w", *defines, "splat.cpp", "-o", "splat.so"]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return ctypes.CDLL(str(folder / "splat.so"))

    return build


@pytest.fixture
def on_host(splat_host, monkeypatch):
    """The kernels run on the CPU; what memory is not written by them is NaN."""
    monkeypatch.setattr(cuda_room, "ROOM", cuda_room.Room())
    monkeypatch.setattr(cuda, "FEW_TILES", 0)  # as in the large pictures that no test has time for
    monkeypatch.setattr(cuda_plan, "FEW_SPLATS", 0)
    cuda_plan.plans_of.cache_clear()
    cuda_room.needed_by_graphs(CPU).zero_()
    cuda_room.Told._unread.clear()
    cuda_room.Told._slots.clear()

    def install(without: str = "") -> None:
        def launch(variant: Variant, kernels, frame: ctypes.Structure, device: torch.device) -> None:
            for name, *grid in kernels:
                way = cuda_program.way_of(name)
                library = splat_host(variant, way, without if way == "fwd" else "")
                assert library.frame_bytes() == ctypes.sizeof(frame)
                library.run(name.encode(), *grid, variant.threads(name), ctypes.byref(frame))

        monkeypatch.setattr(cuda_program, "launch", launch)

    torch.use_deterministic_algorithms(True, warn_only=True)
    yield install
    torch.use_deterministic_algorithms(False)
    cuda_plan.plans_of.cache_clear()
