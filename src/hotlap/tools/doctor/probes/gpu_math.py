"""Probes of CUDA's libraries, each called once for real and compared with float64."""

from __future__ import annotations

import tempfile

from hotlap.tools.doctor.finding import Finding, Fix, failed, passed, warned
from hotlap.tools.doctor.probes.compare import agree
from hotlap.tools.doctor.registry import probe

_CUDA = ("cuda-start", "kernel-launch")


@probe("cublas", group="gpu", why="Every linear layer runs in cuBLAS.", needs=_CUDA)
def cublas() -> Finding:
    """Matrix products in four dtypes."""
    import torch

    torch.backends.cuda.matmul.fp32_precision = "ieee"
    torch.manual_seed(0)
    a, b = torch.randn(257, 512, device="cuda"), torch.randn(512, 129, device="cuda")
    said = []
    # Allowed errors follow the dtype's rounding of inputs and result; inputs are rounded before the reference too.
    for dtype, allowed in (
        (torch.float64, 1e-12),
        (torch.float32, 1e-5),
        (torch.bfloat16, 1e-2),
        (torch.float16, 2e-3),
    ):
        left, right = a.to(dtype), b.to(dtype)
        want = left.double().cpu() @ right.double().cpu()
        said.append(agree(str(dtype).removeprefix("torch."), left @ right, want, allowed))
    return passed("relative errors: " + ", ".join(said))


@probe(
    "cudnn",
    group="gpu",
    why="Every convolution runs in cuDNN, forward and backward through different kernels.",
    needs=_CUDA,
)
def cudnn() -> Finding:
    """A convolution, its input gradient and its weight gradient."""
    import torch

    if not torch.backends.cudnn.is_available():
        fix = Fix(say="Install torch again with its cuDNN", commands=("pip install --force-reinstall torch",))
        return failed("torch finds no cuDNN", fix)
    torch.backends.cudnn.conv.fp32_precision = "ieee"  # type: ignore[attr-defined]
    torch.manual_seed(0)
    image, kernel = torch.randn(4, 8, 33, 31), torch.randn(16, 8, 3, 3)
    grad = torch.randn(4, 16, 31, 29)
    got = _conv(image.cuda(), kernel.cuda(), grad.cuda())
    want = _conv(image.double(), kernel.double(), grad.double())
    names = ("forward", "input gradient", "weight gradient")
    # Winograd kernels keep about five digits in fp32; TF32 or a fault would show above 1e-4.
    said = [agree(n, g, w, 1e-4) for n, g, w in zip(names, got, want, strict=True)]
    return passed(f"cuDNN {torch.backends.cudnn.version()}, relative errors: " + ", ".join(said))


def _conv(image, kernel, grad):  # type: ignore[no-untyped-def]
    import torch

    image, kernel = image.requires_grad_(), kernel.requires_grad_()
    out = torch.nn.functional.conv2d(image, kernel)
    out.backward(grad)
    return out.detach(), image.grad, kernel.grad


@probe("cufft", group="gpu", why="FFTs run in cuFFT, which makes its plans at the first call.", needs=_CUDA)
def cufft() -> Finding:
    """A real FFT of a power of two and of a prime, and the way back."""
    import torch

    torch.manual_seed(0)
    said = []
    for size in (1024, 1009):
        x = torch.randn(3, size)
        spectrum = torch.fft.rfft(x.cuda())
        want = torch.view_as_real(torch.fft.rfft(x.double()))
        said.append(agree(f"rfft {size}", torch.view_as_real(spectrum), want, 1e-5))
        said.append(agree(f"irfft {size}", torch.fft.irfft(spectrum, n=size), x.double(), 1e-5))
    return passed("relative errors: " + ", ".join(said))


@probe("cusolver", group="gpu", why="cuSolver is known to fail at its first call and work at the second.", needs=_CUDA)
def cusolver() -> Finding:
    """Two solves and two eigendecompositions, one after the other."""
    import torch

    torch.backends.cuda.preferred_linalg_library("cusolver")
    torch.manual_seed(0)
    half = torch.randn(96, 96)
    matrix, right = half @ half.T + 96 * torch.eye(96), torch.randn(96, 3)
    want = torch.linalg.solve(matrix.double(), right.double())
    values = torch.linalg.eigvalsh(matrix.double())
    outcomes: list[str | Exception] = []
    for _ in range(2):
        try:
            said = agree("solve", torch.linalg.solve(matrix.cuda(), right.cuda()), want, 1e-4)
            outcomes.append(f"{said}, {agree('eigh', torch.linalg.eigh(matrix.cuda())[0], values, 1e-4)}")
        except (RuntimeError, ArithmeticError) as error:
            outcomes.append(error)
    return judge_twice(outcomes)


def judge_twice(outcomes: list[str | Exception]) -> Finding:
    """Two calls judged together: the first may fail where the second works."""
    first, second = outcomes
    warm = "torch.linalg.solve(torch.eye(2, device='cuda'), torch.ones(2, 1, device='cuda'))"
    if isinstance(second, Exception):
        again = Fix(say="Install torch again with its cuSolver", commands=("pip install --force-reinstall torch",))
        return failed(f"{type(second).__name__}: {str(second).strip().splitlines()[0]}", again)
    if isinstance(first, Exception):
        words = str(first).strip().splitlines()[0]
        say = f"Update torch; until then make one solve at the start of the program and ignore its error ({warm})"
        return warned(
            f"the first call failed ({words}), the second worked: {second}",
            Fix(say=say, commands=("pip install --upgrade torch",)),
        )
    return passed(f"both calls right; relative errors: {second}")


@probe("cusparse", group="gpu", why="Sparse products, as in graph networks, run in cuSPARSE.", needs=_CUDA)
def cusparse() -> Finding:
    """A CSR matrix times a dense one."""
    import torch

    torch.backends.cuda.matmul.fp32_precision = "ieee"
    torch.manual_seed(0)
    dense = torch.randn(128, 96) * (torch.rand(128, 96) < 0.1)
    right = torch.randn(96, 17)
    got = dense.cuda().to_sparse_csr() @ right.cuda()
    return passed("relative error: " + agree("CSR product", got, dense.double() @ right.double(), 1e-5))


@probe(
    "nccl",
    group="gpu",
    why="Training on several cards talks through NCCL; one rank shows that it loads and starts.",
    needs=_CUDA,
)
def nccl() -> Finding:
    """An all-reduce in a group of one."""
    import torch
    import torch.distributed as dist

    if not dist.is_available() or not dist.is_nccl_available():
        fix = Fix(
            say="Needed for several cards only; install a torch with NCCL", commands=("pip install --upgrade torch",)
        )
        return warned("this torch has no NCCL", fix)
    with tempfile.TemporaryDirectory(prefix="hotlap-nccl-") as folder:
        store = dist.FileStore(f"{folder}/store", 1)  # type: ignore[attr-defined]
        device = torch.device("cuda:0")
        torch.cuda.set_device(device)
        dist.init_process_group("nccl", store=store, rank=0, world_size=1, device_id=device)
        x = torch.arange(1000, device=device, dtype=torch.float32)
        dist.all_reduce(x)
        torch.cuda.synchronize()
        said = agree("all-reduce error", x, torch.arange(1000).double(), 0.0)
        version = ".".join(str(part) for part in torch.cuda.nccl.version())
        dist.destroy_process_group()
    return passed(f"NCCL {version}, one rank, {said}")
