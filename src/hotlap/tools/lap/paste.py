"""What a user takes home: plain PyTorch code that does what the winning arm does, and the commands that use it."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from hotlap.device.kept_memory import LARGE, M_MMAP_MAX, M_MMAP_THRESHOLD, M_TRIM_THRESHOLD, NEVER
from hotlap.device.layout import LAST
from hotlap.measure.arms import ArmSpec
from hotlap.tools.lap.config import LapConfig

_DTYPES = {"bf16": "torch.bfloat16", "fp16": "torch.float16"}
_BACKENDS = {"math": "MATH", "flash": "FLASH_ATTENTION", "efficient": "EFFICIENT_ATTENTION", "cudnn": "CUDNN_ATTENTION"}
_RECORD = '''
def record(step, *example):
    """``step`` recorded as one CUDA graph; every batch must have the shape of ``example``, so drop the last one."""
    static = [tensor.clone() for tensor in example]
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):  # these steps count: in training they change the weights
            step(*static)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = step(*static)

    def replay(*batch):
        for old, new in zip(static, batch):
            old.copy_(new)
        graph.replay()
        return out  # overwritten by the next call

    return replay
'''
_PADDED = '''
class PaddedConv2d(torch.nn.Conv2d):
    """A convolution with zero channels beside its own, up to a multiple of eight."""

    def forward(self, x):
        more_in, more_out = -self.in_channels % 8, -self.out_channels % 8
        weight = torch.nn.functional.pad(self.weight, (0, 0, 0, 0, 0, more_in, 0, more_out))
        bias = None if self.bias is None else torch.nn.functional.pad(self.bias, (0, more_out))
        x = torch.nn.functional.pad(x, (0, 0, 0, 0, 0, more_in))
        return self._conv_forward(x, weight, bias)[:, : self.out_channels]
'''

_SHUFFLED = '''
class ShuffledConvTranspose2d(torch.nn.ConvTranspose2d):
    """A transposed convolution whose stride is its kernel, as one matrix product and a change of places."""

    def forward(self, x):
        (n, _, height, width), k, (p, q) = x.shape, self.out_channels, self.stride
        weight = self.weight.permute(2, 3, 1, 0).reshape(p * q * k, self.in_channels)
        bias = None if self.bias is None else self.bias.repeat(p * q)
        blocks = torch.nn.functional.linear(x.permute(0, 2, 3, 1), weight, bias).view(n, height, width, p, q, k)
        if x.is_contiguous():
            return blocks.permute(0, 5, 1, 3, 2, 4).reshape(n, k, height * p, width * q)
        return blocks.transpose(2, 3).reshape(n, height * p, width * q, k).permute(0, 3, 1, 2)
'''


def use_commands(config: LapConfig, arm: ArmSpec, *, has_card: bool) -> list[str]:
    """Command lines that take the tuned profile by themselves; ``has_card`` tells whether the device must be named."""
    named = arm.index > 0 or (has_card and arm.device == "cpu")
    words = [config.target, *(word for text in config.input for word in ("--input", text))]
    words += [word for key, value in config.workload.items() for word in ("--set", f"workload.{key}={value}")]
    if config.mode == "train":
        return [shlex.join(["hotlap", "train", *words, *(["--device", arm.torch_device] if named else [])])]
    arms = f"{arm.torch_device},tuned-profile" if named else "tuned-profile"
    return [shlex.join(["hotlap", "bench", *words, "--mode", "infer", "--arms", arms])]


def paste_of(arm: ArmSpec, batch: int, mode: str, *, volumes: bool = False, several: bool = False) -> str:
    """Python source with ``prepare(model)`` and ``train_step(...)`` or ``predict(...)``, as the arm ran.

    ``volumes`` says that the model has 3-D convolutions, which have a memory format of their own, ``several`` that it
    is called with more than one tensor.
    """
    train, star = mode == "train", "*" if several else ""
    layout = LAST[5 if volumes else 4]
    lines = [
        *_imports(arm),
        "",
        f"# {arm.name} at batch {batch}: DataLoader(..., batch_size={batch})",
        *_switches(arm, train),
    ]
    lines += [_PADDED.rstrip()] if arm.padded and not arm.unbiased else []
    lines += ["", _SHUFFLED.rstrip()] if arm.shuffled else []
    lines += ["", "", *_place(arm, layout), "", "", *_prepare(arm, train, layout, star), "", ""]
    lines += _train_step(arm, star) if train else _predict(arm, star)
    text = "\n".join(lines) + "\n"
    if not arm.graph:
        return text
    use = f"step = record(functools.partial(train_step, model, optimizer, loss_of), {star}inputs, targets)"
    run = f"run = record(functools.partial(predict, model), {star}inputs)"
    return f"{text}\n{_RECORD}\n\n# {use if train else run}\n"


def _imports(arm: ArmSpec) -> Iterator[str]:
    if arm.keep_memory:
        yield "import ctypes"
    if arm.graph:
        yield "import functools"
    if arm.keep_memory or arm.graph:
        yield ""
    yield "import torch"
    if arm.sdpa:
        yield "from torch.nn.attention import SDPBackend, sdpa_kernel"
    if arm.folded:
        yield "from hotlap.measure.folded import fold_norms"
    if arm.unbiased:
        if arm.padded:  # these must know one another
            yield "from hotlap.measure.padded import pad_channels"
        yield "from hotlap.measure.unbiased import drop_biases"


def _switches(arm: ArmSpec, train: bool) -> Iterator[str]:
    """The device and what holds for the whole process."""
    yield f'device = torch.device("{arm.torch_device}")'
    if arm.threads:
        yield f"torch.set_num_threads({arm.threads})"
    if arm.keep_memory:
        yield "libc = ctypes.CDLL(None)  # freed memory is kept for the next tensors; glibc only"
        yield f"libc.mallopt({M_MMAP_THRESHOLD}, {LARGE}) or libc.mallopt({M_MMAP_MAX}, 0)"
        yield f"libc.mallopt({M_TRIM_THRESHOLD}, {NEVER})"
    if arm.device == "cuda":
        kind = "tf32" if arm.precision == "tf32" else "ieee"
        for place in ("cuda.matmul", "cudnn.conv", "cudnn.rnn"):
            yield f'torch.backends.{place}.fp32_precision = "{kind}"'
    if arm.cudnn_benchmark:
        yield "torch.backends.cudnn.benchmark = True"
    if train and arm.precision == "fp16":
        yield 'scaler = torch.amp.GradScaler("cuda")'


def _prepare(arm: ArmSpec, train: bool, layout: str, star: str) -> Iterator[str]:
    if arm.folded:
        yield f"def prepare(model, {star}example):"
        yield '    """The model as it ran; two samples as ``example`` show which norm follows which convolution."""'
    else:
        yield "def prepare(model):"
        yield f'    """The model as it ran{"; make the optimizer from what this returns" if train else ""}."""'
    if arm.kernels:
        yield "    for layer in model.modules():"
        yield '        if callable(getattr(layer, "use_kernels", None)):  # of Hotlap, with a kernel of its own'
        yield "            layer.use_kernels()"
    if arm.recompute:
        yield "    # In the forward of each block of layers, let activations go and be computed again:"
        yield "    # x = torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False)"
    if arm.padded and arm.unbiased:
        yield "    pad_channels(model)"
    elif arm.padded:
        yield "    for layer in model.modules():"
        yield "        odd = type(layer) is torch.nn.Conv2d and (layer.in_channels % 8 or layer.out_channels % 8)"
        yield "        if odd and layer.groups == 1:"
        yield "            layer.__class__ = PaddedConv2d"
    if arm.shuffled:
        yield from _shuffle()
    if arm.unbiased:
        yield "    drop_biases(model)  # those that a BatchNorm takes away again"
    order = f", memory_format=torch.{layout}" if arm.channels_last else ""
    yield f"    model = model.to(device{order}).{'train' if train else 'eval'}()"
    if arm.folded:
        yield from _fold(arm, star)
    if arm.compile:
        mode = "" if arm.compile == "default" else f'mode="{arm.compile}", '
        yield f"    return torch.compile(model, {mode}dynamic=False)"
    else:
        yield "    return model"
    wanted = [f"{word}=True" for word, on in (("fused", _is_fused(arm)), ("capturable", arm.graph)) if on]
    if train and wanted:
        yield ""
        yield ""
        yield f"# optimizer = torch.optim.AdamW(model.parameters(), ..., {', '.join(wanted)}), or the one you have"


def _shuffle() -> Iterator[str]:
    yield "    for layer in model.modules():"
    yield "        if type(layer) is not torch.nn.ConvTranspose2d or layer.kernel_size != layer.stride:"
    yield "            continue"
    yield "        plain = not any(layer.padding + layer.output_padding) and layer.dilation == (1, 1)"
    yield "        if plain and layer.groups == 1:"
    yield "            layer.__class__ = ShuffledConvTranspose2d"


def _fold(arm: ArmSpec, star: str) -> Iterator[str]:
    inside, dtype = _with(arm), _DTYPES.get(arm.precision)
    yield "    def run():"
    if inside:
        yield f"    {inside}"
    yield f"        {'    ' if inside else ''}model({_placed('example', star)})"
    yield ""
    yield f"    fold_norms(model, run{f', {dtype}' if dtype else ''})"


def _is_fused(arm: ArmSpec) -> bool:
    """A recorded step with loss scaling asks on the device whether gradients overflowed, as fused optimizers do."""
    return arm.fused or (arm.graph and arm.precision == "fp16")


def _place(arm: ArmSpec, layout: str) -> Iterator[str]:
    yield "def place(tensor):"
    yield "    tensor = tensor.to(device, non_blocking=True)"
    if arm.channels_last:
        yield f"    if tensor.ndim == {5 if layout == LAST[5] else 4} and tensor.is_floating_point():"
        yield f"        tensor = tensor.contiguous(memory_format=torch.{layout})"
    yield "    return tensor"


def _with(arm: ArmSpec) -> str:
    """The line that opens the arm's contexts; '' where it has none."""
    parts = []
    if arm.precision in _DTYPES:
        parts.append(f'torch.autocast("{arm.device}", dtype={_DTYPES[arm.precision]})')
    if arm.sdpa:
        parts.append(f"sdpa_kernel(SDPBackend.{_BACKENDS[arm.sdpa]})")
    return f"    with {', '.join(parts)}:" if parts else ""


def _placed(tensors: str, star: str) -> str:
    """The arguments of a call of the model."""
    return f"*map(place, {tensors})" if star else f"place({tensors})"


def _train_step(arm: ArmSpec, star: str) -> Iterator[str]:
    if star:
        yield "def train_step(model, optimizer, loss_of, *batch):  # the model's inputs in order, then the targets"
        yield "    *inputs, targets = map(place, batch)"
    else:
        yield "def train_step(model, optimizer, loss_of, inputs, targets):"
        yield "    inputs, targets = place(inputs), place(targets)"
    yield "    optimizer.zero_grad(set_to_none=True)"
    inside = _with(arm)
    if inside:
        yield inside
    yield ("    " if inside else "") + f"    loss = loss_of(model({star}inputs), targets)"
    if arm.precision == "fp16":
        yield "    scaler.scale(loss).backward()"
        yield "    scaler.step(optimizer)"
        yield "    scaler.update()"
    else:
        yield "    loss.backward()"
        yield "    optimizer.step()"
    yield "    return loss.detach()"


def _predict(arm: ArmSpec, star: str) -> Iterator[str]:
    yield "@torch.inference_mode()"
    yield f"def predict(model, {star}inputs):"
    inside = _with(arm)
    if inside:
        yield inside
    yield ("    " if inside else "") + f"    return model({_placed('inputs', star)})"
