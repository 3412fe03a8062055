"""A model in the form in which it is used elsewhere: made, read back, and put in the model's own place."""

from __future__ import annotations

import importlib
import os
import shutil
import tempfile
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from hotlap.base.errors import EnvironmentUnusable, HotlapError, TargetError
from hotlap.device.memory import is_out_of_memory
from hotlap.device.precision import older_switches_agree
from hotlap.measure.arms import ArmSpec
from hotlap.measure.capture import Call, FlatModel, capture
from hotlap.measure.deploy_files import FILES
from hotlap.workload import Batch, Workload

if TYPE_CHECKING:
    from torch.export import ExportedProgram

PRECISIONS = {"bf16": torch.bfloat16, "fp16": torch.float16}
COMPILERS = ("g++", "c++", "clang++")
Runner = Callable[[Sequence[Tensor]], Sequence[Tensor]]
"""Flat tensors in, flat tensors out."""


class Deployed(nn.Module):
    """Stands where the model stood and is called as it was, but runs the form that was read from a file."""

    def __init__(self, runner: Runner, call: Call) -> None:
        super().__init__()
        self._runner, self._call = runner, call
        self._num_inputs = len(call.tensors)
        self.eval()

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if self._call.is_plain and not kwargs and len(args) == self._num_inputs:
            return self._runner(args)[0]
        pattern, tensors = type(self._call.given).of((args, kwargs))
        if pattern.spec != self._call.given.spec or pattern.leaves != self._call.given.leaves:
            raise TargetError(
                "the model is called in another way than when it was exported",
                expected=f"the tensors {', '.join(self._call.names)} and the same constants",
            )
        return self._call.returned.fill(self._runner(tensors))


def deploy(workload: Workload, model: nn.Module, spec: ArmSpec, batch: Batch, file: Path | None) -> Deployed:
    """The form of ``spec`` in the model's place, read from ``file``; where that is not there yet, it is made first."""
    require(spec)
    call = capture(workload, model, batch)
    if file is not None and file.is_file():
        return Deployed(load_form(file, spec, call), call)
    with tempfile.TemporaryDirectory(dir=file.parent if file else None) as folder:
        made = make_form(spec, model, call, Path(folder))
        if file is not None:
            for path in sorted(Path(folder).iterdir(), key=lambda path: path.name == made.name):
                path.replace(file.parent / path.name)  # the form's own file last: once it is there, all of it is
            made = file
        return Deployed(load_form(made, spec, call), call)


def require(spec: ArmSpec) -> None:
    """Refuses a form whose libraries or tools are not on this machine."""
    if spec.form == "onnx":
        for package in ("onnx", "onnxscript", "onnxruntime"):
            _import(package)
        providers = _import("onnxruntime").get_available_providers()
        if spec.device == "cuda" and "CUDAExecutionProvider" not in providers:
            raise EnvironmentUnusable(
                f"arm {spec.name!r} needs onnxruntime's CUDAExecutionProvider, and this one has {', '.join(providers)}",
                remedy="pip install onnxruntime-gpu in the place of onnxruntime",
            )
    if spec.form == "aoti" and not any(shutil.which(name) for name in (os.environ.get("CXX", ""), *COMPILERS) if name):
        raise EnvironmentUnusable(
            f"arm {spec.name!r} needs a C++ compiler, and none of {', '.join(COMPILERS)} is here",
            remedy="apt-get install g++, or name one in CXX",
        )


def _import(package: str) -> Any:
    try:
        return importlib.import_module(package)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != package:
            raise
        raise EnvironmentUnusable(
            f"form 'onnx' needs {package}, which is not installed", remedy="pip install 'hotlap[export]'"
        ) from error


def make_form(spec: ArmSpec, model: nn.Module, call: Call, folder: Path) -> Path:
    """The file of one form, written into ``folder``; what an exporter raises becomes a TargetError with its reason."""
    file = folder / FILES[spec.form]
    flat = FlatModel(model, call, PRECISIONS.get(spec.precision), widen=spec.form == "onnx")
    with torch.no_grad(), older_switches_agree(), warnings.catch_warnings():
        # Exporters warn about their own insides, and torch.jit about its deprecation at every call.
        warnings.simplefilter("ignore")
        try:
            _MAKERS[spec.form](flat, call, file)
        except Exception as error:
            if is_out_of_memory(error):
                raise
            raise TargetError(f"{spec.form} cannot be made of {type(model).__name__}: {_reason(error)}") from error
    return file


def _reason(error: BaseException) -> str:
    """What went wrong in an exporter, from under the reports that they wrap it in."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    trace = "Traceback" in lines[0] or "failed in the TorchScript" in lines[0]
    return f"{type(error).__name__}: {lines[-1 if trace else 0]}"


def _program(flat: FlatModel, call: Call) -> ExportedProgram:
    # Of a view it would demand the same base, as of tokens[:, :-1], and the file then took no tensor of its own memory.
    tensors = tuple(tensor.clone() for tensor in call.tensors)
    return torch.export.export(flat, tensors, dynamic_shapes=_dynamic_shapes(call))


def _dynamic_shapes(call: Call) -> Any:
    if not call.dynamic:
        return None
    free = torch.export.Dim.DYNAMIC
    return (tuple(dict.fromkeys(dims, free) for dims in call.dynamic),)


def _make_exported(flat: FlatModel, call: Call, file: Path) -> None:
    torch.export.save(_program(flat, call), file)


def _make_aoti(flat: FlatModel, call: Call, file: Path) -> None:
    torch._inductor.aoti_compile_and_package(_program(flat, call), package_path=str(file))


def _make_onnx(flat: FlatModel, call: Call, file: Path) -> None:
    program = torch.onnx.export(
        flat,
        tuple(call.tensors),
        dynamo=True,
        dynamic_shapes=_dynamic_shapes(call),
        input_names=list(call.names),
        output_names=call.output_names(),
        verbose=False,
    )
    assert program is not None
    program.save(file)


def _make_torchscript(flat: FlatModel, call: Call, file: Path) -> None:
    traced = torch.jit.trace(flat, tuple(call.tensors), check_trace=False, strict=False)
    torch.jit.save(torch.jit.freeze(traced), file)


_MAKERS: dict[str, Callable[[FlatModel, Call, Path], None]] = {
    "exported": _make_exported,
    "aoti": _make_aoti,
    "onnx": _make_onnx,
    "torchscript": _make_torchscript,
}


def load_form(file: Path, spec: ArmSpec, call: Call) -> Runner:
    """The form in ``file``, ready to run on the arm's device; what a runtime raises becomes a TargetError."""
    try:
        return _read_form(file, spec, call)
    except HotlapError:
        raise
    except Exception as error:
        if is_out_of_memory(error):
            raise
        raise TargetError(f"{spec.form} was written, but cannot be read back: {_reason(error)}") from error


def _read_form(file: Path, spec: ArmSpec, call: Call) -> Runner:
    if spec.form == "onnx":
        from hotlap.measure.onnx_runner import OnnxRunner

        return OnnxRunner(file, spec, call.names)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if spec.form == "exported":
            run: Callable[..., Any] = torch.export.load(file).module()
        elif spec.form == "aoti":
            run = torch._inductor.aoti_load_package(str(file), device_index=spec.index if spec.device == "cuda" else -1)
        else:
            run = torch.jit.load(file, map_location=spec.torch_device)

    def runner(tensors: Sequence[Tensor]) -> Sequence[Tensor]:
        out = run(*tensors)
        return (out,) if isinstance(out, Tensor) else out

    return runner
