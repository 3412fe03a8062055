"""BatchNorm folded into the convolution before it, for inference: fewer passes over the pictures, the same function."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_weights
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


@torch.library.custom_op("hotlap::conv_relu", mutates_args=())
def conv_relu(
    x: Tensor, weight: Tensor, bias: Tensor, stride: list[int], padding: list[int], dilation: list[int], groups: int
) -> Tensor:
    """The ReLU of a 2-D convolution; on a card by one kernel of cuDNN's."""
    if x.is_cuda:
        return torch.cudnn_convolution_relu(x, weight, bias, stride, padding, dilation, groups)
    return F.relu(F.conv2d(x, weight, bias, stride, padding, dilation, groups))


@conv_relu.register_fake
def _(
    x: Tensor, weight: Tensor, bias: Tensor, stride: list[int], padding: list[int], dilation: list[int], groups: int
) -> Tensor:
    return F.conv2d(x, weight, bias, stride, padding, dilation, groups)


@torch.library.custom_op("hotlap::conv_add_relu", mutates_args=())
def conv_add_relu(
    x: Tensor, weight: Tensor, z: Tensor, bias: Tensor, stride: list[int], padding: list[int], dilation: list[int],
    groups: int,
) -> Tensor:  # fmt: skip
    """The ReLU of a 2-D convolution and ``z``; on a card by one kernel of cuDNN's."""
    if x.is_cuda:
        return torch.cudnn_convolution_add_relu(x, weight, z, 1.0, bias, stride, padding, dilation, groups)
    return F.relu(F.conv2d(x, weight, bias, stride, padding, dilation, groups) + z)


@conv_add_relu.register_fake
def _(
    x: Tensor, weight: Tensor, z: Tensor, bias: Tensor, stride: list[int], padding: list[int], dilation: list[int],
    groups: int,
) -> Tensor:  # fmt: skip
    return F.conv2d(x, weight, bias, stride, padding, dilation, groups)


def layer_relu(conv: nn.Conv2d, x: Tensor, plus: Tensor | None = None, dtype: torch.dtype | None = None) -> Tensor:
    """The ReLU of a layer and, if it is given, ``plus``: one kernel on a card; in ``dtype``, or the layer's own."""
    assert conv.bias is not None and not isinstance(conv.padding, str)
    dtype = dtype or conv.weight.dtype
    weight, bias, x = conv.weight.to(dtype), conv.bias.to(dtype), x.to(dtype)
    given = (list(conv.stride), list(conv.padding), list(conv.dilation), conv.groups)
    return conv_relu(x, weight, bias, *given) if plus is None else conv_add_relu(x, weight, plus, bias, *given)


class ConvRelu2d(nn.Conv2d):
    """A convolution that takes the ReLU after it along; a layer is turned into one where it stands."""

    def forward(self, x: Tensor) -> Tensor:
        return layer_relu(self, x)


@dataclass(frozen=True)
class Folded:
    """What was found to fold."""

    num_norms: int
    num_relus: int
    """Of the convolutions that take the ReLU after them along."""


@dataclass
class _Chain:
    """A convolution with what follows it and nothing else reads."""

    conv: nn.Module
    example: Tensor
    """What it was given in the pass that was watched."""
    norm: nn.Module | None = None
    relu: nn.ReLU | None = None


def fold_norms(model: nn.Module, run: Callable[[], Any], dtype: torch.dtype | None = None) -> Folded:
    """Folds every BatchNorm of ``model`` that it can, in place, and puts convolutions into the format ``dtype``.

    ``run`` calls the model once, on a few samples; that pass shows which norm reads which convolution, and that
    nothing else does. A ReLU that follows goes along where cuDNN has a kernel for both. The model must be in
    evaluation mode, on its device and in its layout, and is of no use for training afterwards.
    """
    assert not model.training, "statistics of batches cannot be folded"
    chains = _find_chains(model, run)
    gone: set[nn.Module] = set()
    with torch.no_grad():
        for chain in chains:
            if chain.norm is not None:
                _fold(chain.conv, chain.norm)
                gone.add(chain.norm)
        for module in model.modules():
            if dtype is not None and isinstance(module, CONVOLUTIONS):
                module.to(dtype)  # autocast would do it in every pass
        for chain in chains:
            if chain.relu is not None and has_one_kernel(chain.conv, chain.example):
                chain.conv.__class__ = ConvRelu2d  # its hooks and its place in the model stay
                gone.add(chain.relu)
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if child in gone:
                setattr(parent, name, nn.Identity())
    num_relus = sum(isinstance(module, nn.ReLU) for module in gone)
    return Folded(len(gone) - num_relus, num_relus)


def has_norms(model: nn.Module) -> bool:
    """Whether there may be something to fold."""
    kinds = {type(module) for module in model.modules()}
    return bool(kinds & set(NORMS)) and bool(kinds & set(CONVOLUTIONS))


class _Uses(TorchFunctionMode):
    """The functions that took each tensor, in order; those that only ask for its shape do not count."""

    def __init__(self) -> None:
        super().__init__()
        self.by_tensor: dict[int, list[str]] = {}
        self._alive: list[Any] = []  # so that no other tensor gets the same id

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if any(isinstance(leaf, Tensor) for leaf in tree_leaves(out)):
            self._alive.append((args, kwargs, out))
            for leaf in tree_leaves((args, kwargs)):
                if isinstance(leaf, Tensor):
                    self.by_tensor.setdefault(id(leaf), []).append(getattr(func, "__name__", ""))
        return out


@dataclass
class _Calls:
    """Calls of layers in one pass: who took a tensor, by its id, and what each layer took and gave."""

    taken: dict[int, list[nn.Module]] = field(default_factory=dict)
    given: dict[nn.Module, list[tuple[int, Tensor]]] = field(default_factory=dict)

    def note(self, module: nn.Module, args: tuple[Any, ...], out: Any) -> None:
        if len(args) == 1 and isinstance(args[0], Tensor) and isinstance(out, Tensor):
            self.taken.setdefault(id(args[0]), []).append(module)
            self.given.setdefault(module, []).append((id(out), args[0]))

    def reader(self, tensor: int, kinds: tuple[type, ...]) -> Any:
        """The layer of these kinds that takes a tensor, if it is called only this once."""
        # Of these kinds themselves: a class that was made from one of them may do more than it.
        found = [m for m in self.taken.get(tensor, []) if type(m) in kinds and len(self.given[m]) == 1]
        return found[0] if found else None


def _find_chains(model: nn.Module, run: Callable[[], Any]) -> list[_Chain]:
    calls, uses = _Calls(), _Uses()
    kinds = (*CONVOLUTIONS, *NORMS, nn.ReLU)
    hooks = [m.register_forward_hook(calls.note) for m in model.modules() if isinstance(m, kinds)]
    try:
        with torch.inference_mode(), uses:
            run()
    finally:
        for hook in hooks:
            hook.remove()
    found = []
    for conv, outs in calls.given.items():
        if not isinstance(conv, CONVOLUTIONS) or len(outs) != 1 or not _is_plain(conv):
            continue
        out, chain = outs[0][0], _Chain(conv, outs[0][1])
        norm = calls.reader(out, NORMS)
        if norm is not None and len(uses.by_tensor[out]) == 1 and norm.running_mean is not None:
            chain.norm = norm
            out = calls.given[norm][0][0]
        relu = calls.reader(out, (nn.ReLU,))
        readers = uses.by_tensor.get(out, [])
        # In place it must be the first reader: the others see its result, under the same name.
        if relu is not None and readers[0] in ("relu", "relu_") and (relu.inplace or len(readers) == 1):
            chain.relu = relu
        found.append(chain)
    return found


def _is_plain(conv: nn.Module) -> bool:
    """Whether the weights are parameters, and their columns those of the output's channels."""
    assert isinstance(conv, CONVOLUTIONS)
    return "weight" in conv._parameters and not (isinstance(conv, TRANSPOSED) and conv.groups > 1)


def _fold(conv: Any, norm: Any) -> None:
    conv.weight, conv.bias = fuse_conv_bn_weights(
        conv.weight,
        conv.bias,
        norm.running_mean,
        norm.running_var,
        norm.eps,
        norm.weight,
        norm.bias,
        transpose=isinstance(conv, TRANSPOSED),
    )


def has_one_kernel(conv: nn.Module, example: Tensor, dtype: torch.dtype | None = None) -> bool:
    """Whether cuDNN computes this convolution and a ReLU at once, and reads nothing of the memory it writes to."""
    if type(conv) is not nn.Conv2d or not conv.weight.is_cuda or conv.bias is None:
        return False
    if conv.padding_mode != "zeros" or isinstance(conv.padding, str):
        return False
    try:
        left = torch.full_like(layer_relu(conv, example, dtype=dtype), float("nan"))
        del left  # the allocator gives the same memory to the next tensor of that size
        out = layer_relu(conv, example, dtype=dtype)
    except RuntimeError:
        return False
    return bool(out.isfinite().all())
