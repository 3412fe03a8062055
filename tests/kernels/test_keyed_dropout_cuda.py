"""The CUDA kernel of dropout by samples without a card: compiled for one, and run thread by thread on the CPU."""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import shutil
import subprocess
import threading
from pathlib import Path

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from hotlap.kernels import nvrtc
from hotlap.kernels.agreement import outputs_and_grads
from hotlap.kernels.dropout import cuda
from hotlap.kernels.dropout.cases import BF16, F16, F32, F64, SMALL, DropoutCase, run_dropout
from hotlap.kernels.dropout.reference import keyed_dropout_ref
from hotlap.measure.dropout import _seeds_on_host

CPU = torch.device("cpu")
HERE = Path(__file__).parent
ONE = DropoutCase(shape=(4, 33), samples=4)


@pytest.fixture(scope="module")
def host_kernel(tmp_path_factory):
    """The kernel, compiled for the CPU."""
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("no g++")
    folder = tmp_path_factory.mktemp("dropout")
    files = [HERE / "dropout_host.hpp", Path(cuda.__file__).with_name("dropout.cu"), HERE / "dropout_host.cpp"]
    (folder / "dropout.cpp").write_text("\n".join(file.read_text() for file in files))
    command = [compiler, "-O1", "-std=c++17", "-shared", "-fPIC", "-w", "dropout.cpp", "-o", "dropout.so"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    library = ctypes.CDLL(str(folder / "dropout.so"))
    assert library.argument_bytes() == cuda.LAYOUT.size and library.seeds_bytes() == cuda.SEEDS.size
    return library


@pytest.fixture
def on_host(host_kernel, monkeypatch):
    """Launches run on the CPU; the list returned has the number of blocks of each."""
    launches = []

    def launch(device, kind, blocks, mask):
        launches.append(blocks)
        if kind == torch.int32:
            host_kernel.run_seeds(blocks, mask)
        else:
            host_kernel.run(kind == F32, blocks, mask)

    monkeypatch.setattr(cuda, "_launch", launch)
    return launches


class Seen(TorchDispatchMode):
    """The names of the operations that torch is asked for."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("case", SMALL, ids=lambda case: case.id)
def test_gives_the_bits_of_the_reference_thread_by_thread(case, on_host):
    want = outputs_and_grads(run_dropout(keyed_dropout_ref, case), case.make(CPU))
    got = outputs_and_grads(run_dropout(cuda.keyed_dropout_cuda, case), case.make(CPU))
    for name, wanted in want.items():
        assert torch.equal(got[name], wanted), name
    assert len(on_host) == (1 if want["out"].numel() else 0)


@pytest.mark.parametrize("dtype", [F32, F16, BF16, F64])
def test_numbers_that_are_not_finite_go_through(dtype, on_host):
    case = DropoutCase(shape=(2, 600), samples=2, dtype=dtype)
    inputs = case.make(CPU)
    inputs["x"][:, ::3], inputs["x"][:, 1::3] = torch.nan, -torch.inf
    (got,) = run_dropout(cuda.keyed_dropout_cuda, case)(inputs).values()
    (want,) = run_dropout(keyed_dropout_ref, case)(inputs).values()
    assert torch.equal(got.nan_to_num(9, 8, 7), want.nan_to_num(9, 8, 7))
    assert got[:, ::3].isnan().all() and (got == 0).any(), "as torch's own dropout has it"


@pytest.mark.parametrize(
    ("dtype", "most_factors", "kept_as", "num_products"),
    [(F32, 4 * 33, F32, 1), (F32, 4 * 33 - 1, torch.bool, 2), (BF16, 2**23, torch.bool, 2)],
)
def test_the_backward_pass_is_torchs_own(dtype, most_factors, kept_as, num_products, on_host, monkeypatch):
    """Few numbers of float32 keep factors and take one product each way; others keep a byte an element."""
    monkeypatch.setattr(cuda, "MAX_FACTORS", most_factors)
    case = dataclasses.replace(ONE, dtype=dtype)
    inputs = case.make(CPU)
    kept = []

    def keep(tensor):
        kept.append((tensor.dtype, tuple(tensor.shape)))
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        (out,) = run_dropout(cuda.keyed_dropout_cuda, case)({**inputs, "x": inputs["x"].requires_grad_()}).values()
    assert kept == [(kept_as, case.shape)]
    with Seen() as backward:
        out.sum().backward()
    assert len(on_host) == 1 and backward.names.count("mul") == num_products


@pytest.mark.parametrize("case", [case for case in SMALL if case.dtype == F32], ids=lambda case: case.id)
def test_a_mask_of_bytes_gives_the_bits_of_one_of_factors(case, on_host, monkeypatch):
    factors = outputs_and_grads(run_dropout(cuda.keyed_dropout_cuda, case), case.make(CPU))
    monkeypatch.setattr(cuda, "MAX_FACTORS", 0)
    whether = outputs_and_grads(run_dropout(cuda.keyed_dropout_cuda, case), case.make(CPU))
    assert all(torch.equal(factors[name], whether[name]) for name in factors)


@pytest.mark.parametrize(("first", "num", "step"), [(0, 1, 0), (3, 64, -(2**31)), (2**20, 257, 2**31 - 1), (5, 0, 1)])
def test_seeds_made_by_the_kernel_are_those_of_the_host(first, num, step, on_host, monkeypatch):
    monkeypatch.setattr(cuda, "_loaded", lambda index: cuda._Loaded())
    out = torch.zeros(num, dtype=torch.int32)
    assert cuda.write_seeds(out, first, step)
    assert out.tolist() == _seeds_on_host(first, num, step).tolist()
    assert len(on_host) == (num > 0)


def test_a_mask_of_channels_is_no_larger_than_they_are(on_host):
    case = DropoutCase(shape=(4, 1024, 30, 30), samples=4, by_channel=True)
    run_dropout(cuda.keyed_dropout_cuda, case)(case.make(CPU))
    assert on_host == [4]  # 4 x 1024 factors of four bytes, 4096 bytes a block


def test_it_can_be_differentiated_again(on_host):
    case = DropoutCase(shape=(4, 10), samples=4, p=0.25, dtype=F64)
    inputs = case.make(CPU)
    x = inputs["x"].requires_grad_()

    def layer(x):
        return cuda.keyed_dropout_cuda(x, inputs["seeds"], case.start, case.p).square()

    assert torch.autograd.gradgradcheck(layer, (x,))


@pytest.mark.parametrize("architecture", ["sm_80", "sm_90"])
def test_compiles_for_a_card(architecture):
    pytest.importorskip("cuda.bindings")
    try:
        cubin = nvrtc.compile_cubin(cuda.program(), architecture)
    except RuntimeError as error:  # the bindings are there and the compiler is not
        pytest.skip(f"no NVRTC: {error}")
    assert cubin.startswith(b"\x7fELF") and all(name.encode() in cubin for name in cuda.KERNELS.values())


class FarAway:
    """A tensor on a card, as far as looking at it goes."""

    def __init__(self, **looks):
        looks = {"device": torch.device("cuda", 0), "dtype": F32, "layout": torch.strided, "size": 12, **looks}
        self.device, self.dtype, self.layout, self.size = (looks[n] for n in ("device", "dtype", "layout", "size"))

    def numel(self):
        return self.size

    def is_contiguous(self):
        return True


@pytest.mark.parametrize(
    ("looks", "reason"),
    [
        ({"device": CPU}, "the tensors are on cpu"),
        ({"layout": torch.sparse_coo}, "x is a FarAway with the layout sparse_coo"),
        ({"size": 2**31}, "2147483648 elements are above 2147483647"),
        ({"device": torch.device("cuda", 1)}, "the seeds are not int32, on the same card and without gaps"),
    ],
)
def test_says_what_it_cannot_do(looks, reason, monkeypatch):
    monkeypatch.setattr(cuda, "_PLAIN", (FarAway,))
    assert cuda.why_not(FarAway(**looks), FarAway(dtype=torch.int32)) == reason


def test_it_leaves_other_kinds_of_tensors_and_of_derivatives_alone(monkeypatch):
    seeds = FarAway(dtype=torch.int32)
    assert cuda.why_not(FarAway(), seeds) == "x is a FarAway with the layout strided"
    monkeypatch.setattr(cuda, "_PLAIN", (FarAway,))
    with torch.autograd.forward_ad.dual_level():
        assert cuda.why_not(FarAway(), seeds) == "torch.func or forward-mode differentiation is at work"
    reasons = []
    torch.func.vmap(lambda x: reasons.append(cuda.why_not(FarAway(), seeds)) or x)(torch.zeros(3))
    assert reasons == ["torch.func or forward-mode differentiation is at work"]


@pytest.fixture
def a_card(monkeypatch):
    """A card with bindings as far as looking for them goes, nothing loaded yet and no capture under way."""
    monkeypatch.setattr(cuda, "_PLAIN", (FarAway,))
    monkeypatch.setattr(cuda, "_LOADED", {})
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(torch.cuda, "device", lambda index: contextlib.nullcontext())
    monkeypatch.setattr(cuda, "why_no_compiler", lambda: "")
    return FarAway(), FarAway(dtype=torch.int32)


@pytest.mark.parametrize(
    "error", [OSError("read-only"), RuntimeError("read-only"), nvrtc.KernelUnavailable("read-only")]
)
def test_a_kernel_that_cannot_be_loaded_is_asked_for_once(error, a_card, monkeypatch):
    pytest.importorskip("cuda.bindings")
    asked = []

    def load(device, program, name):
        asked.append(name)
        raise error

    monkeypatch.setattr(cuda, "load_function", load)
    for _ in range(2):
        assert cuda.why_not(*a_card) == "the kernel cannot be loaded (read-only)"
    assert asked == ["dropout_keep_kernel"]


def test_a_missing_library_is_named(a_card, monkeypatch):
    monkeypatch.setattr(cuda, "why_no_compiler", nvrtc.why_no_compiler)
    monkeypatch.setattr(nvrtc, "has_bindings", lambda: False)
    assert cuda.why_not(*a_card) == "cuda-bindings is not installed"


def test_nothing_is_loaded_while_a_graph_is_captured(a_card, monkeypatch):
    monkeypatch.setattr(cuda, "load_function", lambda device, program, name: "a function")
    with monkeypatch.context() as patch:
        patch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
        assert cuda.why_not(*a_card) == "nothing can be loaded while a CUDA graph is captured"
    pytest.importorskip("cuda.bindings")
    assert cuda.why_not(*a_card) == "", "it was not given up for good"


def test_each_threads_launches_are_given_their_own_argument(monkeypatch):
    """The driver is given the address of a pointer to the argument; another thread must not write over it meanwhile."""
    given, both = {}, threading.Barrier(2)

    def enqueue(function, grid, threads, address, index):
        both.wait(10)
        argument = ctypes.cast(address, ctypes.POINTER(ctypes.c_void_p))[0]
        given[function, grid] = ctypes.string_at(argument, cuda.LAYOUT.size)

    monkeypatch.setattr(cuda.launching, "enqueue", enqueue)
    monkeypatch.setitem(cuda._LOADED, 0, cuda._Loaded(functions={F32: "kernel"}))
    wanted = {("kernel", (blocks, 1, 1)): bytes([blocks]) * cuda.LAYOUT.size for blocks in (1, 2)}
    runs = [
        threading.Thread(target=cuda._launch, args=(torch.device("cuda", 0), F32, grid[0], argument))
        for (_, grid), argument in wanted.items()
    ]
    for run in runs:
        run.start()
    for run in runs:
        run.join()
    assert given == wanted
