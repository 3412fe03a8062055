"""From what a user types to a Workload: a registered name, module:factory, file.py:factory, with or without adapter."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import importlib.util
import inspect
import sys
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from hotlap.base.errors import HotlapError, TargetError, UnknownName, did_you_mean
from hotlap.base.raised import their_line
from hotlap.base.registry import Registry
from hotlap.base.settings import coerce
from hotlap.workload import Agreement, Batch, Workload, adopt, is_workload, same_class

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

WORKLOADS = Registry(
    "target",
    "hotlap.workloads",
    {
        "unet": ("hotlap.segment.workload:unet", "U-Net, 31.0 M parameters, 3 classes, 128x128 RGB segmentation"),
        "hrnet": ("hotlap.segment.cells:hrnet", "HRNetV2-W48, 65.8 M parameters, cells in 1024x1024 RGB images"),
        "resunet-small": (
            "hotlap.segment.cells:resunet_small",
            "ResUNet Small with attention, 58.1 M parameters, cells in 1024x1024 RGB images",
        ),
        "ma-resunet": (
            "hotlap.segment.cells:ma_resunet",
            "ResUNet with self-attention, 78.2 M parameters, cells in 1024x1024 RGB images",
        ),
        "cells": ("hotlap.segment.cells:cells", "any of the networks that segment cells, as workload.model says"),
        "bilstm": ("hotlap.sequence.workload:bilstm", "2-layer BiLSTM, 2.4 M parameters, 3-class character sequences"),
        "classify": (
            "hotlap.classify.workload:classify",
            "ResNet-18, 11.2 M parameters, 10 classes, 224x224 JPEG files; or another model, or your folder",
        ),
        "splat": (
            "hotlap.splat.workload:splat",
            "Gaussian splatting, 20,000 splats of 59 parameters, 480x270 photographs; or a preset, or your scene",
        ),
        "pixel2mesh-pp": (
            "hotlap.mesh.workload:pixel2mesh_pp",
            "Pixel2Mesh++, 32.7 M parameters, 3 views of 224x224 to a mesh of 2466 vertices",
        ),
        "pixel2mesh-lite": (
            "hotlap.mesh.workload:pixel2mesh_lite",
            "Pixel2Mesh lite, 24.3 M parameters, one 224x224 picture to a mesh of 2562 vertices",
        ),
    },
)

SERVABLES = Registry(
    "servable",
    "hotlap.servables",
    {
        "unet": ("hotlap.segment.served:UNetServable", "classes of a picture, or the objects of one"),
        "hrnet": ("hotlap.segment.served:SegmentServable", "objects in a picture"),
        "resunet-small": ("hotlap.segment.served:SegmentServable", "objects in a picture"),
        "ma-resunet": ("hotlap.segment.served:SegmentServable", "objects in a picture"),
        "cells": ("hotlap.segment.served:SegmentServable", "objects in a picture"),
        "pixel2mesh-pp": ("hotlap.mesh.served:MeshServable", "a mesh from pictures and their cameras"),
        "pixel2mesh-lite": ("hotlap.mesh.served:MeshServable", "a mesh from one picture"),
        "splat": ("hotlap.splat.served:SplatServable", "a trained scene as a camera sees it"),
    },
)
"""Factories from a ModelSpec to a Servable, by target, for models that answer with more than their raw output."""


@dataclass(frozen=True)
class InputSpec:
    """One input of a plain module: its shape without the batch, its dtype, and the bound of integers."""

    shape: tuple[int, ...]
    dtype: str = "float32"
    high: int = 2

    @classmethod
    def parse(cls, text: str) -> InputSpec:
        """``3x224x224``, ``128:int64:32000`` (token ids below 32000) or ``16:float32``."""
        shape, _, rest = text.partition(":")
        dtype, _, high = rest.partition(":")
        try:
            sizes = tuple(int(size) for size in shape.lower().split("x"))
            bound = int(high) if high else 2
        except ValueError:
            sizes, bound = (), 0
        known = ("float32", "int64", "int32", "bool")
        if not sizes or min(sizes) < 1 or bound < 1 or (dtype and dtype not in known):
            raise TargetError(
                f"--input {text!r} is not an input",
                expected=f"sizes without the batch, as 3x224x224 or 128:int64:32000; dtypes {', '.join(known)}",
            )
        return cls(sizes, dtype or "float32", bound)

    def draw(self, n: int, generator: torch.Generator) -> Tensor:
        """``n`` random samples, on the CPU."""
        import torch

        if self.dtype == "float32":
            return torch.randn(n, *self.shape, generator=generator)
        return torch.randint(self.high, (n, *self.shape), generator=generator).to(getattr(torch, self.dtype))


class ModuleWorkload(Workload):
    """A plain ``nn.Module`` factory with random inputs.

    Its loss is cross-entropy against random classes where the output is [n, classes], and the squared distance from a
    ramp elsewhere: enough to time a step and to check gradients, not to learn. A sample brings its class along, as a
    number that is taken modulo however many classes there are; so its loss is the same wherever in a batch it stands.
    """

    def __init__(self, name: str, factory: Callable[[], nn.Module], inputs: Sequence[InputSpec]) -> None:
        self.name = name
        self.summary = f"{name} on random inputs"
        self._factory = factory
        self._inputs = tuple(inputs)

    def build_model(self) -> nn.Module:
        return self._factory()

    def make_batch(self, n: int, device: torch.device, generator: torch.Generator) -> Batch:
        import torch

        inputs = [spec.draw(n, generator).to(device) for spec in self._inputs]
        return (*inputs, torch.randint(2**31 - 1, (n,), generator=generator).to(device))

    def predict(self, model: nn.Module, batch: Batch) -> Tensor:
        *inputs, _ = batch
        return real_numbers(first_tensor(model(*inputs)))

    def loss(self, model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor | int]:
        import torch

        out = self.predict(model, batch)
        if out.ndim == 2 and out.shape[1] > 1 and out.shape[0] == batch[-1].shape[0]:
            return torch.nn.functional.cross_entropy(out, batch[-1] % out.shape[1], reduction="sum"), out.shape[0]
        out = out if out.dtype == torch.float64 else out.float()
        if out.ndim > 1:  # a norm at the end leaves the sum of squares as it is, and gradients of nothing but rounding
            out = out - torch.linspace(-1, 1, out.shape[-1], dtype=out.dtype, device=out.device)
        return out.square().sum(), out.numel()

    def compare(self, out: Tensor, ref: Tensor) -> list[Agreement]:
        return same_class(out, ref) if out.ndim >= 2 and out.shape[1] > 1 else []


MADE_UP_LOSS = (
    "The model is a plain module: samples are random, and the loss is made up of the first tensor that it returns. "
    "That times a step, and learns nothing; a Workload brings your own loss and data (docs/workloads.md)."
)


def told_of_loss(inputs: Sequence[str], mode: str) -> list[str]:
    """What is to be told of a training step whose loss nobody gave; only a plain module has ``inputs``."""
    return [MADE_UP_LOSS] if inputs and mode == "train" else []


def first_tensor(out: Any) -> Tensor:
    """The first tensor of a model's output: itself, or that of a tuple, a mapping or a dataclass such as HF's."""
    import torch

    if isinstance(out, torch.Tensor):
        return out
    values: list[Any] = []
    if isinstance(out, Mapping):
        values = list(out.values())
    elif isinstance(out, (tuple, list)):
        values = list(out)
    elif dataclasses.is_dataclass(out) and not isinstance(out, type):
        values = [getattr(out, field.name) for field in dataclasses.fields(out)]
    for value in values:
        try:
            return first_tensor(value)
        except TargetError:
            continue
    raise TargetError(
        f"the model returned {type(out).__name__} without a tensor", remedy="Wrap it in a Workload with predict()"
    )


def short_name(target: str) -> str:
    """What runs of a target are named after, by every verb: its registered name, or that of what builds it."""
    return target.rpartition(":")[2] or target


def real_numbers(out: Tensor) -> Tensor:  # complex [...] -> [..., 2]
    """A tensor of complex numbers as pairs of real ones, which can be compared and squared; any other as it is."""
    import torch

    return torch.view_as_real(out.resolve_conj()) if out.is_complex() else out


def load_target(target: str, options: Mapping[str, Any] | None = None, inputs: Sequence[str] = ()) -> Workload:
    """The workload ``target`` names, built with ``options``; ``inputs`` describe a plain module's inputs."""
    import torch

    options, device = dict(options or {}), torch.get_default_device()
    check_name(target)
    if target in WORKLOADS:
        factory: Any = WORKLOADS.get(target)
    else:
        factory = _import_factory(target)
    workload = _to_workload(target, short_name(target), factory, options, inputs)
    _check_default_device(target, device)
    return workload


def _check_default_device(target: str, before: torch.device) -> None:
    """Refuses a default that turns what is drawn for the CPU, here and inside torch, into something else."""
    import torch

    device = torch.get_default_device()
    if device != before:
        raise TargetError(
            f"torch's default device is {str(device)!r} once target {target!r} is loaded",
            expected="the CPU: models and batches are made there, and each arm takes them to its own device",
            remedy='Put torch.set_default_device() under if __name__ == "__main__":',
        )


def check_name(target: str) -> None:
    """Refuses a name that stands for no target, before anything is imported or started for it."""
    file, colon, _ = target.rpartition(":")
    if target in WORKLOADS or (colon and not file.endswith(".py")):
        return
    if not colon:
        raise UnknownName(
            f"unknown target {target!r}",
            expected="a registered name, module:factory or file.py:factory",
            remedy=f"Name what builds the model in it, as in {target}:NAME"
            if target.endswith(".py")
            else did_you_mean(target, WORKLOADS.names()),
        )
    if not Path(file).is_file():
        raise UnknownName(f"target {target!r}: file {file!r} does not exist", remedy=f"Looked in {Path.cwd()}")


def as_workload(
    thing: Any, options: Mapping[str, Any] | None = None, inputs: str | Sequence[str] | None = None
) -> Workload:
    """The workload behind a target's name, a Workload, a factory, or a plain module with its ``inputs``."""
    inputs = [inputs] if isinstance(inputs, str) else list(inputs or ())
    if isinstance(thing, str):
        return load_target(thing, options, inputs)
    name = getattr(thing, "__name__", type(thing).__name__)
    return _to_workload(name, name, thing, dict(options or {}), inputs)


def _to_workload(target: str, name: str, factory: Any, options: dict[str, Any], inputs: Sequence[str]) -> Workload:
    import torch
    from torch import nn

    built = is_workload(factory) or isinstance(factory, nn.Module)
    if built and options:
        raise TargetError(
            f"{target!r} is already built, so its option {next(iter(options))!r} would do nothing",
            remedy="Name the function or class that builds it",
        )
    made = factory if built else _call(target, factory, options)
    if is_workload(made):
        if inputs:
            raise TargetError(
                f"--input {','.join(inputs)} is given, but {target!r} is a workload that makes its own batches",
                remedy="Leave it out",
            )
        return adopt(made, name)
    if isinstance(made, torch.jit.ScriptModule):
        raise TargetError(
            f"{target!r} gives a TorchScript module, whose layers nothing here can see or change",
            expected="the torch.nn.Module that it was made of",
            remedy="Name the function or class that builds that one; 'hotlap export' times its TorchScript beside it",
        )
    if isinstance(made, nn.Module):
        if not inputs:
            raise TargetError(
                f"{target!r} gives a plain {type(made).__name__}, whose input is not known",
                remedy="Say it with --input, as in --input 3x224x224",
            )
        _check_inputs(target, made, inputs)
        rebuild = (lambda: _call(target, factory, options)) if not built else (lambda: _copy_fresh(made))
        return ModuleWorkload(name, rebuild, [InputSpec.parse(text) for text in inputs])
    raise TargetError(
        f"{target!r} gave an object of type {type(made).__name__}",
        expected="a hotlap Workload (build_model, make_batch, loss) or a torch.nn.Module",
    )


def _copy_fresh(module: nn.Module) -> nn.Module:
    import copy

    return copy.deepcopy(module)


def _call(target: str, factory: Any, options: dict[str, Any]) -> Any:
    if not callable(factory):
        raise TargetError(f"{target!r} is a {type(factory).__name__}", expected="a function or class to call")
    options = _checked_options(target, factory, options)
    try:
        return factory(**options)
    except HotlapError:
        raise
    except (Exception, SystemExit) as error:
        raise TargetError(
            f"the factory of target {target!r} raised {type(error).__name__}: {error} {their_line(error)}",
            remedy="Call it by hand in Python until it works; hotlap calls it with "
            + (f"{options}" if options else "no arguments"),
        ) from error


def _checked_options(target: str, factory: Any, options: dict[str, Any]) -> dict[str, Any]:
    """The options as the factory's annotations want them; what it does not know, or lacks, is named."""
    try:
        parameters = inspect.signature(factory).parameters
    except (TypeError, ValueError):
        return options
    for key in options:
        if key not in parameters and not any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
            raise TargetError(f"target {target!r} has no option {key!r}", remedy=did_you_mean(key, parameters))
    by_name = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    for name, parameter in parameters.items():
        if parameter.kind in by_name and parameter.default is parameter.empty and name not in options:
            raise TargetError(
                f"the factory of target {target!r} needs {name!r}, which was not given",
                remedy=f"Give it, as in --set workload.{name}=VALUE, or a default in the code",
            )
    kinds = _plain_kinds(factory, parameters)
    source = f"the options of target {target!r}"
    return {
        key: coerce(value, kinds[key], f"workload.{key}", source) if key in kinds and value is not None else value
        for key, value in options.items()
    }


def _plain_kinds(factory: Any, parameters: Mapping[str, inspect.Parameter]) -> dict[str, Any]:
    """The annotated types of those parameters that take nothing but numbers, words or a choice of them."""
    with contextlib.suppress(Exception):  # an annotation is the user's code, and need not stand for anything
        parameters = inspect.signature(factory, eval_str=True).parameters
    return {name: p.annotation for name, p in parameters.items() if _is_plain(p.annotation)}


def _is_plain(kind: Any) -> bool:
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        return all(_is_plain(part) for part in typing.get_args(kind))
    return kind in (int, float, bool, str, type(None)) or typing.get_origin(kind) is Literal


def _check_inputs(target: str, module: nn.Module, inputs: Sequence[str]) -> None:
    """Refuses inputs that the module's forward cannot be called with, as far as its signature tells."""
    try:
        signature = inspect.signature(module.forward)
    except (TypeError, ValueError):
        return
    try:
        signature.bind(*inputs)
    except TypeError as error:
        given = " ".join(f"--input {text}" for text in inputs)
        raise TargetError(
            f"forward{signature} of target {target!r} cannot be called with {given}: {error}",
            remedy="Give an --input for each argument, in their order; a model that needs keywords or anything but "
            "tensors wants a Workload with predict()",
        ) from error


def _import_factory(target: str) -> Any:
    module_name, _, attribute = target.rpartition(":")
    module = (
        _import_file(Path(module_name), target) if module_name.endswith(".py") else _import_module(module_name, target)
    )
    thing: Any = module
    for part in attribute.split("."):
        if not hasattr(thing, part):
            known = [n for n in vars(thing) if not n.startswith("_")] if hasattr(thing, "__dict__") else []
            raise UnknownName(f"{module_name!r} has no {attribute!r}", remedy=did_you_mean(part, known[:200]))
        thing = getattr(thing, part)
    return thing


def _import_file(path: Path, target: str) -> Any:
    resolved = path.resolve()
    name = f"_hotlap_target_{resolved.stem}"
    spec = importlib.util.spec_from_file_location(name, resolved)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    if str(resolved.parent) not in sys.path:
        sys.path.insert(0, str(resolved.parent))  # so that the file's own neighbours import as they do for the user
    try:
        spec.loader.exec_module(module)
    except HotlapError:
        raise
    except (Exception, SystemExit) as error:  # a script without a main guard may well leave
        del sys.modules[name]
        raise TargetError(
            f"target {target!r}: {path.name} raised {type(error).__name__} on import: {error} {their_line(error)}",
            remedy=_as_module(resolved, target) if _is_relative(error) else f"Try 'python {path}' until it imports",
        ) from error
    return module


def _is_relative(error: BaseException) -> bool:
    return isinstance(error, ImportError) and "relative import" in str(error)


def _as_module(file: Path, target: str) -> str:
    """How to name a file that imports its neighbours as a part of their package, which a lone file is not."""
    folder, parts = file.parent, [file.stem]
    while (folder / "__init__.py").is_file():
        folder, parts = folder.parent, [folder.name, *parts]
    if len(parts) == 1:  # a package need not have an __init__.py
        folder, parts = folder.parent, [folder.name, *parts]
    return f"In {str(folder)!r}, give it as a module of its package: {'.'.join(parts)}:{target.rpartition(':')[2]}"


def _import_module(name: str, target: str) -> Any:
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        missing = error.name or name
        raise UnknownName(
            f"target {target!r}: no module named {missing!r}",
            remedy=f"Install it (pip install {missing.partition('.')[0]}), or give a file as path/to/file.py:factory",
        ) from error
    except (Exception, SystemExit) as error:
        raise TargetError(
            f"target {target!r}: importing {name!r} raised {type(error).__name__}: {error} {their_line(error)}",
            remedy=f"Try 'python -c \"import {name}\"' until it works",
        ) from error
