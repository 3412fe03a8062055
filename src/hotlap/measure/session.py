"""One arm of a workload, built and ready: the step that is timed, with inputs resident or copied each time."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hotlap.base.errors import UsageError
from hotlap.device.host import read_host
from hotlap.device.kept_memory import require_kept_memory
from hotlap.device.layout import channels_last_for, laid_out, lay_out
from hotlap.device.precision import set_fp32_precision
from hotlap.device.probe import require_cuda
from hotlap.device.seed import generator, seed_everything
from hotlap.measure.arms import ArmSpec, check_mode
from hotlap.measure.graph import GraphedStep
from hotlap.targets import real_numbers
from hotlap.workload import Batch, Workload, optimizer_of, sum_and_count

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from hotlap.device.layout import Layout

NUM_BATCHES = 4
"""Different inputs that iterations take in turn; the same for every arm."""


class Session:
    """A workload on one arm. Global switches are set by :meth:`activate`, since arms of one process take turns."""

    def __init__(
        self,
        workload: Workload,
        spec: ArmSpec,
        *,
        mode: str,
        batch: int,
        seed: int,
        worst_case: bool = False,
        file: Path | None = None,
    ) -> None:
        """``file`` is where the form of an arm such as cpu:onnx lies, or is to be put; by default it is made anew."""
        import torch

        check_mode(spec, mode)
        if spec.device == "cuda":
            require_cuda(spec.index)
        self.workload, self.spec, self.mode, self.batch, self.seed = workload, spec, mode, batch, seed
        self.device = torch.device(spec.torch_device)
        self._layout: Layout = {}
        self.activate()
        self.plain_model = self._build()
        self.model = self._compiled(self.plain_model)
        self.optimizer = self._optimizer() if mode == "train" else None
        scaled = mode == "train" and spec.precision == "fp16"
        self.scaler = torch.amp.GradScaler(spec.device, enabled=True) if scaled else None
        draw = workload.worst_case_batch if worst_case else workload.make_batch
        self.host_batches = [draw(batch, torch.device("cpu"), generator(seed + i)) for i in range(NUM_BATCHES)]
        self.batches = [self.place(b) for b in self.host_batches]
        if self.device.type == "cuda":
            self.host_batches = [map_tensors(b, lambda t: t.pin_memory()) for b in self.host_batches]
        if spec.form:
            from hotlap.measure.deployed import deploy

            self.model = deploy(workload, self.plain_model, spec, self.batches[0], file)
        self._turn = 0
        self._graph: GraphedStep | None = None

    def activate(self) -> None:
        """Puts this arm's global switches in force: threads, float32 precision, cuDNN's autotuner."""
        import torch

        if self.spec.device == "cpu":
            torch.set_num_threads(self.spec.threads or read_host().usable_cores)
        if self.spec.keep_memory:
            require_kept_memory()
        set_fp32_precision("tf32" if self.spec.precision == "tf32" else "ieee")
        torch.backends.cudnn.benchmark = self.spec.cudnn_benchmark

    def _build(self) -> nn.Module:
        seed_everything(self.seed)
        model = self.workload.build_model()
        if self.spec.kernels:
            use_kernels(model)
        if self.spec.padded:
            from hotlap.measure.padded import pad_channels

            pad_channels(model)
        if self.spec.shuffled:
            from hotlap.measure.shuffled import shuffle_blocks

            shuffle_blocks(model)
        if self.spec.unbiased:
            from hotlap.measure.unbiased import drop_biases

            drop_biases(model)
        model = model.to(self.device)
        if self.spec.channels_last:
            self._layout = channels_last_for(lay_out(model))
        if self.spec.recompute:
            self._recompute(model)
        model.train(self.mode == "train")
        if self.spec.folded:
            self._fold(model)
        return model

    def _fold(self, model: nn.Module) -> None:
        import torch

        from hotlap.measure.folded import fold_norms

        few = self.place(self.workload.make_batch(2, torch.device("cpu"), generator(self.seed)))

        def run() -> None:
            with self.autocast():
                self.workload.predict(model, few)

        if not fold_norms(model, run, self._cast_type()).num_norms:
            raise UsageError(
                f"arm {self.spec.name!r}: folded would do nothing, for no BatchNorm of {type(model).__name__} follows "
                "a convolution alone",
                remedy="Leave it out",
            )

    def _recompute(self, model: nn.Module) -> None:
        from hotlap.measure.recompute import find_blocks, recompute_blocks

        if self.mode != "train" or not find_blocks(model):
            why = "only training keeps activations" if self.mode != "train" else "the model has no blocks of layers"
            raise UsageError(f"arm {self.spec.name!r}: recompute would do nothing, for {why}", remedy="Leave it out")
        recompute_blocks(model)

    def _optimizer(self) -> torch.optim.Optimizer:
        # A recorded step cannot ask the host whether gradients overflowed; the fused optimizers ask on the device.
        fused = self.spec.fused or (self.spec.graph and self.spec.precision == "fp16")
        made = optimizer_of(self.workload, self.plain_model, fused=fused)
        if self.spec.fused and str(made) == str(optimizer_of(self.workload, self.plain_model, fused=False)):
            raise UsageError(
                f"arm {self.spec.name!r}: fused would do nothing, for the {type(made).__name__} of "
                f"{self.workload.name!r} is the same without",
                remedy="Leave it out, or let optimizer(model, fused=None) hand it on",
            )
        return made

    def _compiled(self, model: nn.Module) -> nn.Module:
        import torch

        if not self.spec.compile:
            return model
        mode = None if self.spec.compile == "default" else self.spec.compile
        return torch.compile(model, mode=mode, dynamic=False)  # type: ignore[return-value]

    def place(self, batch: Batch) -> Batch:
        """A host batch on this arm's device, in its memory format."""
        return map_tensors(batch, lambda tensor: laid_out(tensor.to(self.device, non_blocking=True), self._layout))

    @contextlib.contextmanager
    def autocast(self) -> Iterator[None]:
        import torch

        kind = self._cast_type() if not self.spec.form else None  # a form has its precision inside
        with torch.autocast(self.spec.device, dtype=kind, enabled=kind is not None), _attention(self.spec.sdpa):
            yield

    def _cast_type(self) -> torch.dtype | None:
        import torch

        return {"bf16": torch.bfloat16, "fp16": torch.float16}.get(self.spec.precision)

    def _next(self) -> int:
        self._turn = (self._turn + 1) % NUM_BATCHES
        return self._turn

    def step(self) -> Tensor:
        """One iteration on inputs that lie on the device: the loss after a training step, or the output."""
        return self.run(self.batches[self._next()])

    def transfer_step(self) -> None:
        """One iteration from host memory to host memory: copy in, compute, result back."""
        self.run(self.place(self.host_batches[self._next()])).float().cpu()

    def run(self, batch: Batch) -> Tensor:
        """One iteration as the arm says: recorded first, if it is a graph, and replayed from then on."""
        if not self.spec.graph:
            return self._step_on(batch)
        if self._graph is None:
            scale = self.scaler.state_dict() if self.scaler is not None else {}
            self._graph = GraphedStep(self._step_on, batch, model=self.plain_model, optimizer=self.optimizer)
            if self.scaler is not None:  # what overflowed before the recording is no word on the step that follows
                self.scaler.load_state_dict(scale)
        return self._graph(batch)

    def run_tail(self, batch: Batch) -> Tensor:
        """One iteration on a batch of another size, as the ragged end of an epoch brings it.

        A recorded training step cannot take it, so it runs unrecorded; recorded inference gets a recording of its own.
        """
        if not self.spec.graph or self.mode == "train":
            return self._step_on(batch)
        return GraphedStep(self._step_on, batch, model=self.plain_model, optimizer=None)(batch)

    def _step_on(self, batch: Batch) -> Tensor:
        return self.train_on(batch) if self.mode == "train" else self.infer_on(batch)

    def infer_on(self, batch: Batch, model: nn.Module | None = None) -> Tensor:
        """The output for a batch; ``model`` is another than the arm's own, such as the one that is not compiled."""
        import torch

        with torch.inference_mode(), self.autocast():
            return self.workload.predict(self.model if model is None else model, batch)

    def backward_on(self, batch: Batch) -> Tensor:
        """The mean loss of a batch; its gradients are left in the model, unscaled."""
        with self.autocast():
            total, count = sum_and_count(self.workload.loss(self.model, batch))
            loss = total / count
        (loss if self.scaler is None else self.scaler.scale(loss)).backward()
        return loss.detach()

    def train_on(self, batch: Batch) -> Tensor:
        assert self.optimizer is not None
        self.optimizer.zero_grad(set_to_none=True)
        loss = self.backward_on(batch)
        if self.scaler is None:
            self.optimizer.step()
        else:
            self.scaler.step(self.optimizer)
            self.scaler.update()
        return loss


def _attention(kind: str) -> contextlib.AbstractContextManager[Any]:
    """Leaves scaled-dot-product attention one implementation only; '' leaves all."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    kinds = {
        "math": SDPBackend.MATH,
        "flash": SDPBackend.FLASH_ATTENTION,
        "efficient": SDPBackend.EFFICIENT_ATTENTION,
        "cudnn": SDPBackend.CUDNN_ATTENTION,
    }
    return sdpa_kernel(kinds[kind]) if kind else contextlib.nullcontext()


def map_tensors(batch: Batch, change: Callable[[Tensor], Tensor]) -> Batch:
    """The batch with every tensor changed; its structure stays."""
    from torch import Tensor
    from torch.utils._pytree import tree_map_only

    # Nearly all batches are one of these, and a training asks twice a step: the general way takes ten times as long.
    if type(batch) is dict and all(isinstance(value, Tensor) for value in batch.values()):
        return {name: change(value) for name, value in batch.items()}
    if type(batch) in (tuple, list) and all(isinstance(value, Tensor) for value in batch):
        return type(batch)(change(value) for value in batch)
    return tree_map_only(Tensor, change, batch)


def use_kernels(model: nn.Module) -> None:
    """Lets every layer that has a kernel of ours use it; a layer says so by a method ``use_kernels``."""
    layers = kernel_layers(model)
    if not layers:
        raise UsageError(
            f"option kernels: no layer of {type(model).__name__} has a kernel of its own", remedy="Leave it out"
        )
    for layer in layers:
        layer.use_kernels()  # type: ignore[operator]


def kernel_layers(model: nn.Module) -> list[nn.Module]:
    """The layers that can be run by a kernel of ours; models of Hugging Face have a setting of that name instead."""
    return [module for module in model.modules() if callable(getattr(module, "use_kernels", None))]


def has_attention(model: nn.Module) -> bool:
    """Whether the implementation of attention can matter: torch's own layers, or classes whose source calls it."""
    from torch import nn

    kinds = {type(m) for m in model.modules()}
    if any(issubclass(kind, nn.MultiheadAttention) for kind in kinds):
        return True
    return any("scaled_dot_product_attention" in _source(kind) for kind in kinds if kind.__module__[:6] != "torch.")


def _source(kind: type) -> str:
    try:
        return inspect.getsource(kind)
    except (OSError, TypeError):
        return ""


def zero_dropout(model: nn.Module) -> None:
    """Switches dropout off while the model stays in training mode, so that two devices compute the same thing.

    Reaches dropout layers and probabilities that modules keep under a name with 'dropout' in it.
    """
    from torch.nn.modules.dropout import _DropoutNd

    for module in model.modules():
        if isinstance(module, _DropoutNd):
            module.p = 0.0
        for name, value in list(vars(module).items()):
            if "dropout" in name and isinstance(value, float):
                setattr(module, name, 0.0)


def as_double(batch: Batch) -> Batch:
    """The batch with its floating-point tensors in float64."""
    return map_tensors(batch, lambda t: t.double() if t.is_floating_point() else t)


def gradients_by_name(model: nn.Module) -> dict[str, torch.Tensor]:
    """The gradients of a model by parameter name, in float64 on the CPU; parameters without one are left out."""
    found = {n: real_numbers(p.grad.detach()) for n, p in model.named_parameters() if p.grad is not None}
    return {n: gradient.double().cpu() for n, gradient in found.items()}
