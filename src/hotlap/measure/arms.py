"""An arm: one way to run a workload, spelt ``device:option+option``, as in ``cuda:bf16+channels_last+compile``."""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass
from typing import Any, Literal

from hotlap.base.errors import UsageError, did_you_mean

Precision = Literal["fp32", "tf32", "bf16", "fp16"]
SDPA = ("math", "flash", "efficient", "cudnn")
COMPILE_MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")
FORMS = {
    "exported": "torch.export's program, saved and read back",
    "aoti": "compiled ahead of time by AOTInductor into one library",
    "onnx": "an ONNX file under onnxruntime",
    "torchscript": "a TorchScript trace; torch has deprecated it",
}
"""What a model can be turned into for use without its source."""
_NOT_IN_A_FORM = ("compile", "graph", "fused", "recompute", "folded", "padded", "shuffled", "unbiased")
_NOT_IN_ONNX = ("channels_last", "sdpa", "cudnn_benchmark", "kernels")
OPTIONS = {
    "fp32": "full float32, TF32 off (the default)",
    "tf32": "float32 storage, TF32 tensor cores (cuda)",
    "bf16": "bfloat16 autocast",
    "fp16": "float16 autocast, with loss scaling in training (cuda)",
    "channels_last": "channels side by side in memory: NHWC, of volumes NDHWC",
    "compile": f"torch.compile; compile=MODE with {', '.join(COMPILE_MODES)}",
    "threads=N": "CPU threads; by default the usable physical cores (cpu)",
    "batch=N": "its own number of samples a step, in a bench; arms are then compared by time a sample",
    "cudnn_benchmark": "let cuDNN time its algorithms (cuda)",
    "fused": "fused optimizer",
    "folded": "BatchNorm folded into the convolution before it, with the ReLU after it where cuDNN can (infer)",
    "keep_memory": "memory that was freed is kept for the next tensors, not given back to the system (cpu, glibc)",
    "kernels": "the model's layers by Hotlap's own kernels, where it has them",
    "graph": "the whole step recorded as one CUDA graph (cuda)",
    "padded": "convolutions of few channels computed with zeros added, up to a multiple of eight",
    "recompute": "blocks forget their activations and compute them again in the backward pass",
    "shuffled": "transposed convolutions that do not overlap computed as one matrix product",
    "unbiased": "biases left out that the BatchNorm behind a convolution takes away again (train)",
    "sdpa=KIND": f"attention by one implementation only: {', '.join(SDPA)}",
    **{form: f"{what} (infer)" for form, what in FORMS.items()},
    "tuned": "the fastest CPU settings that pass the gate, found before timing (cpu, alone)",
}


_SWITCHES = (
    "cudnn_benchmark", "folded", "fused", "graph", "keep_memory", "kernels", "padded", "recompute", "shuffled", "tuned",
    "unbiased",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class ArmSpec:
    """One way to run a workload."""

    device: Literal["cpu", "cuda"]
    index: int = 0
    precision: Precision = "fp32"
    channels_last: bool = False
    compile: str = ""
    """A torch.compile mode; '' runs eagerly."""
    threads: int = 0
    """CPU threads; 0 means all usable cores."""
    batch: int = 0
    """Samples a step; 0 means the run's own."""
    cudnn_benchmark: bool = False
    folded: bool = False
    """BatchNorm inside the convolutions, in inference."""
    fused: bool = False
    graph: bool = False
    keep_memory: bool = False
    """For the whole process: a C library that was told so cannot be told otherwise."""
    kernels: bool = False
    padded: bool = False
    recompute: bool = False
    """Activation checkpointing, in training."""
    shuffled: bool = False
    unbiased: bool = False
    """Biases that a norm takes away left out, in training."""
    sdpa: str = ""
    """The only implementation attention may use; '' lets torch choose."""
    form: str = ""
    """One of FORMS; '' runs the model itself."""
    tuned: bool = False
    """Stands for the winner of the CPU race, put in its place before timing."""

    @property
    def name(self) -> str:
        """The canonical spelling; equal arms have equal names."""
        options: list[str] = [self.precision] if self.precision != "fp32" else []
        options += ["channels_last"] if self.channels_last else []
        options += [("compile" if self.compile == "default" else f"compile={self.compile}")] if self.compile else []
        options += [f"threads={self.threads}"] if self.threads else []
        options += [f"batch={self.batch}"] if self.batch else []
        options += [f"sdpa={self.sdpa}"] if self.sdpa else []
        options += [word for word in _SWITCHES if getattr(self, word)]
        options += [self.form] if self.form else []
        place = self.device + (f":{self.index}" if self.index else "")
        return place + (":" + "+".join(options) if options else "")

    @property
    def torch_device(self) -> str:
        return "cpu" if self.device == "cpu" else f"cuda:{self.index}"

    @property
    def numeric_class(self) -> str:
        """The arm without what cannot change its answer: threads, kept memory and cuDNN's timing of its algorithms."""
        return dataclasses.replace(self, threads=0, keep_memory=False, cudnn_benchmark=False).name

    def settings(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


def parse_arm(text: str) -> ArmSpec:
    """The arm that ``text`` spells; an error names the part that is wrong and what is known."""
    match = re.fullmatch(r"(cpu|cuda)(?::(\d+))?(?::(.*))?", text.strip())
    if not match:
        raise UsageError(
            f"arm {text!r} does not start with a device",
            expected="cpu or cuda, then ':' and options joined by '+', as in cuda:bf16+channels_last",
        )
    device, index, options = match.groups()
    values: dict[str, Any] = {"device": device, "index": int(index or 0)}
    for option in (options or "").split("+"):
        if option:
            found = _parse_option(option.strip(), text)
            clash = [key for key in found if key in values and values[key] != found[key]]
            if clash:
                raise UsageError(
                    f"arm {text!r}: {clash[0]} cannot be both {values[clash[0]]!r} and {found[clash[0]]!r}"
                )
            values.update(found)
    spec = ArmSpec(**values)
    _check(spec, text)
    return spec


def _parse_option(option: str, text: str) -> dict[str, Any]:
    key, equals, value = option.partition("=")
    if not equals and option in ("fp32", "tf32", "bf16", "fp16"):
        return {"precision": option}
    if not equals and option in ("channels_last", *_SWITCHES):
        return {option: True}
    if not equals and option in FORMS:
        return {"form": option}
    if key == "sdpa":
        if value not in SDPA:
            raise UsageError(f"sdpa={value!r} in arm {text!r} is not known", remedy=did_you_mean(value, SDPA))
        return {"sdpa": value}
    if key == "compile":
        mode = value or "default"
        if mode not in COMPILE_MODES:
            raise UsageError(
                f"compile={value!r} in arm {text!r} is not a mode", remedy=did_you_mean(value, COMPILE_MODES)
            )
        return {"compile": mode}
    if key in ("threads", "batch"):
        if not value.isdigit() or int(value) < 1:
            raise UsageError(f"{key}={value!r} in arm {text!r} is not valid", expected="a whole number from 1")
        return {key: int(value)}
    raise UsageError(f"unknown option {option!r} in arm {text!r}", remedy=did_you_mean(option, OPTIONS))


def _check(spec: ArmSpec, text: str) -> None:
    """Refuses combinations that would silently do nothing."""
    if spec.device == "cpu" and spec.index:
        raise UsageError(f"arm {text!r}: cpu has no index", expected=f"cpu:threads={spec.index} for that many threads")
    only_cuda = [w for w, on in (("tf32", spec.precision == "tf32"), ("fp16", spec.precision == "fp16")) if on]
    only_cuda += [word for word in ("cudnn_benchmark", "graph") if getattr(spec, word)]
    if spec.device == "cpu" and only_cuda:
        raise UsageError(
            f"arm {text!r}: {only_cuda[0]} works on cuda only", remedy="Use cpu:bf16 for a half-precision CPU arm"
        )
    only_cpu = [word for word in ("tuned", "threads", "keep_memory") if getattr(spec, word)]
    if spec.device == "cuda" and only_cpu:
        raise UsageError(f"arm {text!r}: {only_cpu[0]} works on cpu only")
    if spec.graph and spec.compile in ("reduce-overhead", "max-autotune"):
        raise UsageError(f"arm {text!r}: compile={spec.compile} records graphs itself", expected="compile+graph")
    lost = options_lost(spec, spec.form)
    if lost:
        raise UsageError(f"arm {text!r}: {lost[0]} has no meaning for {spec.form}", remedy="Leave it out")
    if spec.tuned and spec != ArmSpec(device="cpu", tuned=True):
        raise UsageError(f"arm {text!r}: tuned stands alone", expected="cpu:tuned")


def refuse_batch(spec: ArmSpec, flag: str) -> None:
    """Refuses an arm with a batch of its own where ``flag`` is what sets the batch."""
    if spec.batch:
        raise UsageError(f"arm {spec.name!r}: batch={spec.batch} works in a bench only", remedy=f"Use {flag} instead")


def options_lost(spec: ArmSpec, form: str) -> list[str]:
    """The options of an arm that do not survive in a form: another compiler takes over, or the file cannot say them."""
    if not form:
        return []
    names = [*_NOT_IN_A_FORM, *(_NOT_IN_ONNX if form == "onnx" else ())]
    return [name for name in names if getattr(spec, name)]


def in_form(spec: ArmSpec, form: str) -> ArmSpec:
    """The arm with its model in a form, without the options that are lost in it; '' gives the plain eager arm."""
    plain: dict[str, Any] = {field.name: field.default for field in dataclasses.fields(ArmSpec)}
    lost = options_lost(spec, form) if form else _NOT_IN_A_FORM
    kept = {name: value for name, value in spec.settings().items() if name not in lost}
    return ArmSpec(**{**plain, **kept, "form": form})


def check_mode(spec: ArmSpec, mode: str) -> None:
    """Refuses to train what can only infer."""
    if spec.folded and mode == "train":
        raise UsageError(
            f"arm {spec.name!r} cannot be trained: folded puts the norms' statistics into the weights",
            expected="--mode infer",
        )
    if spec.unbiased and mode != "train":
        raise UsageError(
            f"arm {spec.name!r}: unbiased works in training only, where norms take the batch's own statistics",
            expected="--mode train, or folded",
        )
    if spec.form and mode == "train":
        raise UsageError(
            f"arm {spec.name!r} cannot be trained: {spec.form} is a form for inference", expected="--mode infer"
        )


def cpu_candidates(*, has_convolutions: bool, fast_bf16: bool, can_compile: bool) -> list[ArmSpec]:
    """The CPU settings worth racing on this machine for this model."""
    layouts = (False, True) if has_convolutions else (False,)
    precisions: tuple[Precision, ...] = ("fp32", "bf16") if fast_bf16 else ("fp32",)
    modes = ("", "default") if can_compile else ("",)
    return [
        ArmSpec(device="cpu", channels_last=layout, precision=precision, compile=mode)
        for mode in modes
        for precision in precisions
        for layout in layouts
    ]


def fewer_threads(spec: ArmSpec, usable_cores: int) -> list[ArmSpec]:
    """The same arm on half and on a quarter of the cores: small models lose more to waiting than they gain."""
    counts = sorted({usable_cores // 2, usable_cores // 4} - {0}, reverse=True)
    return [dataclasses.replace(spec, threads=count) for count in counts]
