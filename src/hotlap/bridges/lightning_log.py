"""What a training step says on the side, once for a whole batch: logged values, metrics, outputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn

REDUCTIONS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "mean": lambda values, weights: (values * weights).sum() / weights.sum(),
    "sum": lambda values, weights: values.sum(),
    "max": lambda values, weights: values.max(),
    "min": lambda values, weights: values.min(),
}


class LogOnce:
    """Holds back what a module logs until the step has gone through, then logs it once for all parts."""

    def __init__(self, module: Any) -> None:
        self._module = module
        self._entries: dict[str, list[tuple[int, Any, tuple[Any, ...], dict[str, Any]]]] = {}
        self.weight = 1
        """Of the part at work."""

    def __enter__(self) -> None:
        self._module.log = self._hold

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        del self._module.log  # the class's own shows again

    def _hold(self, name: str, value: Any, *args: Any, **kwargs: Any) -> None:
        value = value.detach() if isinstance(value, Tensor) else value
        self._entries.setdefault(name, []).append((self.weight, value, args, kwargs))

    def clear(self) -> None:
        self._entries.clear()

    def flush(self) -> None:
        for name, entries in self._entries.items():
            _, value, args, kwargs = entries[-1]
            if len(entries) > 1 and isinstance(value, (int, float, Tensor)):
                sizes = [entry[3]["batch_size"] for entry in entries if entry[3].get("batch_size") is not None]
                if len(sizes) == len(entries):
                    kwargs = {**kwargs, "batch_size": sum(sizes)}
                else:
                    sizes = [entry[0] for entry in entries]
                value = _reduced([entry[1] for entry in entries], sizes, kwargs.get("reduce_fx", "mean"))
            self._module.log(name, value, *args, **kwargs)
        self._entries.clear()


def _reduced(values: list[Any], weights: list[int], how: Any) -> Tensor:
    """Parts' values as one for the whole batch; a function of the user's own is taken for a kind of mean."""
    last = values[-1]
    numbers = torch.stack([torch.as_tensor(value).double().reshape(()) for value in values])
    found = REDUCTIONS.get(how, REDUCTIONS["mean"])(numbers, numbers.new_tensor(weights))
    return found.to(last.dtype) if isinstance(last, Tensor) and last.is_floating_point() else found.float()


class MetricStates:
    """The states of a module's torchmetrics, to come back to when a step is done again."""

    def __init__(self, module: nn.Module) -> None:
        from torchmetrics import Metric

        self._metrics = [m for m in module.modules() if isinstance(m, Metric)]
        self._states: list[tuple[dict[str, Any], int]] = []

    def remember(self) -> None:
        self._states = [({k: _copied(v) for k, v in m.metric_state.items()}, m.update_count) for m in self._metrics]

    def restore(self) -> None:
        for metric, (state, count) in zip(self._metrics, self._states, strict=True):
            if metric.update_count != count:
                for name, value in state.items():
                    setattr(metric, name, _copied(value))
                metric._update_count, metric._computed = count, None


def _copied(state: Any) -> Any:
    return state.detach().clone() if isinstance(state, Tensor) else list(state)


def detached(output: Any) -> Any:
    """A training step's output without its graph, which would keep the part's memory."""
    if isinstance(output, Mapping):
        return {name: value.detach() if isinstance(value, Tensor) else value for name, value in output.items()}
    return output.detach()


def join_outputs(outputs: list[tuple[int, Any]]) -> Any:
    """The outputs of all parts as one, with a loss that has no way back to the model.

    Of what else a training step returns, tensors with a first dimension are joined, single numbers averaged by weight,
    and anything else is the last part's.
    """
    if not outputs:
        return None
    weights = [weight for weight, _ in outputs]
    last = outputs[-1][1]
    if not isinstance(last, Mapping):
        return _leaf([loss for _, loss in outputs], weights)
    joined = {name: _joined([output.get(name) for _, output in outputs], weights) for name in last}
    return {**joined, "loss": _leaf([output["loss"] for _, output in outputs], weights)}


def _leaf(losses: list[Tensor], weights: list[int]) -> Tensor:
    loss = losses[0].clone() if len(losses) == 1 else _reduced(losses, weights, "mean")
    return loss.requires_grad_()


def _joined(values: list[Any], weights: list[int]) -> Any:
    if len(values) == 1 or not all(isinstance(value, Tensor) for value in values):
        return values[-1]
    if all(value.ndim > 0 for value in values):
        return torch.cat(values)
    return _reduced(values, weights, "mean") if all(value.ndim == 0 for value in values) else values[-1]
