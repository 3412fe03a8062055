"""Does the numeric gate let right half precision pass, and wrong gradients not, on networks that rounding moves far?

    python -m benchmarks.gate_faults --out gate_faults.json [--only resnet50,regnet_y_400mf] [--size 128] [--batch 4]

Fresh networks of torchvision in bf16 on a CPU, random inputs, one training step. First as they are, which must be
green; then with faults that show in half precision and in gradients alone, each of which should be red. A layer in
the middle is the middle one of the convolutions. What is printed beside a red one is the check that is furthest off.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torchvision
from torch import Tensor, nn

from hotlap.measure.arms import parse_arm
from hotlap.measure.gate import GateKeeper
from hotlap.records.codec import encode
from hotlap.records.environment import capture
from hotlap.records.measurement import Gate
from hotlap.targets import InputSpec, ModuleWorkload

NETWORKS = (
    "resnet18,resnet50,resnet101,densenet121,mobilenet_v2,mobilenet_v3_small,mnasnet1_0,shufflenet_v2_x1_0,"
    "efficientnet_b0,regnet_y_400mf,squeezenet1_1,convnext_tiny"
)
Change = Callable[[Tensor], Tensor]


class Backwards(torch.autograd.Function):
    """Right forwards; what comes back is changed."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, change: Change) -> Tensor:
        ctx.change = change
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return ctx.change(grad), None


def on_answer(change: Change) -> Callable[[nn.Module], None]:
    """Changes the gradient that the loss hands to the model."""

    def plant(model: nn.Module) -> None:
        model.register_forward_hook(lambda _m, _x, out: Backwards.apply(out, change) if in_half() else out)

    return plant


def on_middle_answer(change: Change) -> Callable[[nn.Module], None]:
    """Changes the gradient that the layer in the middle hands back."""

    def plant(model: nn.Module) -> None:
        middle(model).register_forward_pre_hook(lambda _m, x: (Backwards.apply(x[0], change),) if in_half() else x)

    return plant


def on_middle_weight(change: Change) -> Callable[[nn.Module], None]:
    """Changes the gradient of the weight of the layer in the middle."""

    def plant(model: nn.Module) -> None:
        layer, half = middle(model), []
        layer.register_forward_pre_hook(lambda _m, _x: half.append(in_half()))
        layer.weight.register_hook(lambda grad: change(grad) if half and half[-1] else grad)  # type: ignore[operator]

    return plant


def in_half() -> bool:
    return torch.is_autocast_enabled("cpu")


def middle(model: nn.Module) -> nn.Module:
    layers = [layer for layer in model.modules() if isinstance(layer, nn.Conv2d)]
    return layers[len(layers) // 2]


def of_half(grad: Tensor) -> Tensor:
    return torch.cat([2 * grad[: len(grad) // 2], torch.zeros_like(grad[len(grad) // 2 :])])


def noise(grad: Tensor) -> Tensor:
    drawn = torch.randn(grad.shape, generator=torch.Generator().manual_seed(0)).to(grad.dtype)
    return drawn * (grad.norm() / drawn.norm())


FAULTS: dict[str, Callable[[nn.Module], None]] = {
    "none": lambda _model: None,
    "all zero": on_answer(lambda grad: 0 * grad),
    "all negative": on_answer(lambda grad: -grad),
    "all doubled": on_answer(lambda grad: 2 * grad),
    "all halved": on_answer(lambda grad: 0.5 * grad),
    "half of the samples": on_answer(of_half),
    "of other samples": on_answer(lambda grad: grad.flip(0)),
    "noise from the middle on": on_middle_answer(noise),
    "middle layer hands back nothing": on_middle_answer(lambda grad: 0 * grad),
    "middle layer hands back half": on_middle_answer(lambda grad: 0.5 * grad),
    "middle weight negative": on_middle_weight(lambda grad: -grad),
    "middle weight's entries exchanged": on_middle_weight(lambda grad: grad.flatten().flip(0).view(grad.shape)),
}


def network(name: str, fault: str) -> nn.Module:
    model: nn.Module = torchvision.models.get_model(name)
    for layer in model.modules():
        if type(layer).__name__ == "StochasticDepth":
            layer.p = 0.0  # type: ignore[assignment]
    FAULTS[fault](model)
    return model


def judge(name: str, fault: str, size: int, batch: int, seed: int) -> Gate:
    workload = ModuleWorkload(name, lambda: network(name, fault), [InputSpec((3, size, size))])
    return GateKeeper(workload, mode="train", batch=batch, steps=1, seed=seed).judge(parse_arm("cpu:bf16"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("gate_faults.json"))
    parser.add_argument("--only", default=NETWORKS)
    parser.add_argument("--size", type=int, default=128)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for name in given.only.split(","):
        for fault in FAULTS:
            began = time.monotonic()
            gate = judge(name, fault, given.size, given.batch, given.seed)
            right = gate.passed == (fault == "none")
            worst = max(gate.checks, key=lambda check: (not check.passed, check.error / max(check.allowed, 1e-12)))
            told = (
                "" if gate.passed else f"{worst.name} {worst.error:.2g}, allowed {worst.allowed:.2g} ({worst.detail})"
            )
            print(
                f"{name} {fault}: {'green' if gate.passed else 'red'}{'' if right else ', WRONGLY'} {told}", flush=True
            )
            rows.append({"network": name, "fault": fault, "right": right, "gate": encode(gate)})
            rows[-1]["seconds"] = time.monotonic() - began
        answer = {"size": given.size, "batch": given.batch, "seed": given.seed, "rows": rows}
        given.out.write_text(json.dumps({**answer, "environment": encode(capture())}, indent=1) + "\n")
    faults = [row for row in rows if row["fault"] != "none"]
    print(
        f"green as they are: {sum(row['right'] for row in rows) - sum(row['right'] for row in faults)} of "
        f"{len(rows) - len(faults)} networks; red with a fault: {sum(row['right'] for row in faults)} of {len(faults)}"
    )


if __name__ == "__main__":
    main()
