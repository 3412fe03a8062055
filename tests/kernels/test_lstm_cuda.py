"""The CUDA kernels of the LSTM layer without a card: compiled for one, and run thread by thread on the CPU."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from functools import partial
from pathlib import Path

import pytest
import torch

from hotlap.kernels import nvrtc
from hotlap.kernels.agreement import disagreements, in_float64, outputs_and_grads
from hotlap.kernels.lstm import cuda, scan
from hotlap.kernels.lstm.cases import LstmCase, run_layer
from hotlap.kernels.lstm.cuda import Variant, variant_for, why_not
from hotlap.kernels.lstm.reference import lstm_ref
from hotlap.kernels.nvrtc import compile_cubin

CPU = torch.device("cpu")
HERE = Path(__file__).parent
F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16


def host_scan(variant: Variant, folder: Path, without: str = "") -> scan.Scan:
    """The kernels of ``lstm.cu``, less some statement, compiled for the CPU: every thread is a fibre of its own."""
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("no g++")
    source = [HERE / "fibres.hpp", HERE / "lstm_host.hpp", Path(cuda.__file__).with_name("lstm.cu")]
    text = "\n".join(file.read_text() for file in [*source, HERE / "lstm_host.cpp"])
    assert without in text
    (folder / "lstm.cpp").write_text(text.replace(without, "") if without else text)
    shared = max(variant.shared_bytes.values())
    macros = {"DTYPE": variant.dtype, "HIDDEN": variant.hidden, "TILES": variant.tiles, "PRODUCTS": variant.products}
    defines = [f"-D{name}={value}" for name, value in {**macros, "SHARED_BYTES": shared}.items()]
    command = [compiler, "-O0", "-std=c++17", "-shared", "-fPIC", "-w", *defines, "lstm.cpp", "-o", "lstm.so"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    library = ctypes.CDLL(str(folder / "lstm.so"))

    def run(name: str, num_inputs: int, like: int, *tensors: torch.Tensor) -> None:
        assert all(t.is_contiguous() for t in tensors)
        addresses = [t.data_ptr() for t in tensors]
        inputs, outputs = addresses[:num_inputs], addresses[num_inputs:]
        num_batch, num_steps, num_directions, hidden, _ = tensors[like].shape
        sizes = [num_batch, num_steps, num_directions, hidden, int(tensors[8].numel() > 0)]
        getattr(library, name)(
            (ctypes.c_void_p * len(inputs))(*inputs),
            (ctypes.c_void_p * len(outputs))(*outputs),
            (ctypes.c_int * 5)(*sizes),
        )

    return scan.Scan(forward=partial(run, "host_forward", 5, 0), backward=partial(run, "host_backward", 8, 3))


@pytest.mark.parametrize(
    ("case", "tiles", "products"),
    [
        (LstmCase(batch=19, steps=2, hidden=50, features=5, ragged=True, states=True), 2, 3),
        (LstmCase(batch=9, steps=4, hidden=64, features=5, ragged=True, directions=1), 1, 3),
        (LstmCase(batch=9, steps=3, hidden=48, features=5, ragged=True, states=True, dtype=F16), 1, 1),
        (LstmCase(batch=13, steps=3, hidden=37, features=5, ragged=True, states=True, dtype=BF16), 2, 1),
        (LstmCase(batch=8, steps=3, hidden=128, features=5, ragged=True, states=True, directions=1), 1, 3),
        (LstmCase(batch=8, steps=2, hidden=250, features=5, states=True, directions=1, dtype=F16), 1, 1),
    ],
    ids=lambda value: getattr(value, "id", str(value)),
)
def test_matches_reference_thread_by_thread(case, tiles, products, tmp_path, monkeypatch):
    hidden = next(size for size in (64, 128, 256) if case.hidden <= size)
    variant = Variant(dtype=cuda.DTYPES[case.dtype], hidden=hidden, tiles=tiles, products=products)
    host = host_scan(variant, tmp_path)
    monkeypatch.setattr(scan, "_scan", lambda impl: host)
    want = outputs_and_grads(run_layer(lstm_ref), in_float64(case.make(CPU)))
    got = outputs_and_grads(run_layer(partial(scan.scan_layer, "cuda")), case.make(CPU))
    assert disagreements(got, want, case.tolerance) == {}


@pytest.mark.parametrize(
    "without",
    [
        "pair_barrier(group);",
        "        block_barrier();\n\n",
        "cluster_wait();  // the states that this step starts from are written in every block",
    ],
    ids=["pair", "block", "cluster"],
)
def test_a_missing_barrier_is_seen(without, tmp_path, monkeypatch):
    case = LstmCase(batch=8, steps=4, hidden=64, features=5, directions=1, dtype=F16)
    host = host_scan(Variant(dtype=1, hidden=64, tiles=1, products=1), tmp_path, without)
    monkeypatch.setattr(scan, "_scan", lambda impl: host)
    want = outputs_and_grads(run_layer(lstm_ref), in_float64(case.make(CPU)))
    got = outputs_and_grads(run_layer(partial(scan.scan_layer, "cuda")), case.make(CPU))
    assert disagreements(got, want, case.tolerance) != {}


@pytest.mark.parametrize(
    ("dtype", "hidden", "tiles", "products"),
    [(0, 256, 2, 3), (0, 256, 1, 1), (1, 256, 1, 1), (2, 64, 2, 1)],
)
def test_compiles_for_a_card_with_clusters(dtype, hidden, tiles, products, tmp_path):
    pytest.importorskip("cuda.bindings")
    program = Variant(dtype=dtype, hidden=hidden, tiles=tiles, products=products).program
    try:
        cubin = compile_cubin(program, "sm_90")
    except RuntimeError as error:  # the bindings are there and the compiler is not
        pytest.skip(f"no NVRTC: {error}")
    assert cubin.startswith(b"\x7fELF") and b"lstm_fwd_kernel" in cubin and b"lstm_bwd_kernel" in cubin
    (cached,) = (tmp_path / "cache" / "hotlap" / "kernels").iterdir()
    cached.write_bytes(b"kept")
    assert compile_cubin(program, "sm_90") == b"kept"


def test_float32_is_float32_unless_torch_may_use_tf32(plain_float32):
    assert variant_for(F32, 200, 1) == Variant(dtype=0, hidden=256, tiles=1, products=3)
    torch.backends.cudnn.rnn.fp32_precision = "tf32"
    assert variant_for(F32, 64, 1).products == 1
    assert variant_for(BF16, 65, 2) == Variant(dtype=2, hidden=128, tiles=2, products=1)


@pytest.mark.parametrize(
    ("capability", "dtype", "hidden", "reason"),
    [
        ((8, 0), F32, 256, "clusters of blocks need sm_90 or newer, and the card is sm_80"),
        ((9, 0), F32, 257, "hidden = 257 is above 256"),
        ((9, 0), torch.float64, 256, "float64 is not among float32, float16 and bfloat16"),
        ((10, 0), F16, 48, ""),
    ],
)
def test_says_what_it_cannot_do(capability, dtype, hidden, reason, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(nvrtc, "has_bindings", lambda: True)
    assert why_not(torch.device("cuda"), dtype, hidden) == reason


def test_a_missing_library_is_named(monkeypatch):
    monkeypatch.setattr(nvrtc, "has_bindings", lambda: False)
    assert why_not(torch.device("cuda"), F32, 64) == "cuda-bindings is not installed"
