"""A network by its name and stage, with trained weights: what prediction and evaluation begin with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from hotlap.base.errors import DataError, UsageError
from hotlap.measure.weights import load_weights, read_weights
from hotlap.mesh.pixel2mesh_lite import Pixel2MeshLite
from hotlap.mesh.template import Level, ellipsoid, make_level
from hotlap.mesh.workload import MeshWorkload
from hotlap.targets import load_target

STAGE_NUMBERS = {"coarse": 1, "refine": 2}
KINDS = (("pixel2mesh-pp", "coarse"), ("pixel2mesh-pp", "refine"), ("pixel2mesh-lite", "refine"))


def open_workload(network: str, stage: str, options: dict[str, Any]) -> MeshWorkload:
    """The workload of a network: pixel2mesh-pp as its coarse stage alone or with the refinement, or pixel2mesh-lite."""
    stages = {"stage": STAGE_NUMBERS[stage]} if network == "pixel2mesh-pp" else {}
    workload = load_target(network, {**options, **stages})
    assert isinstance(workload, MeshWorkload)
    return workload


def load_network(network: str, stage: str, options: dict[str, Any], weights: Path) -> tuple[MeshWorkload, nn.Module]:
    """A trained network, ready to predict, and its workload; weights of another network or stage are refused."""
    workload = open_workload(network, stage, options)
    model = workload.build_model()
    state = read_weights(weights)
    try:
        load_weights(model, state, weights)
    except UsageError as error:
        other = next((kind for kind in KINDS if kind != (network, stage) and _fits(kind, state)), None)
        if other is None:
            raise
        asked = f"network = {network!r}" + (f", stage = {stage!r}" if network == "pixel2mesh-pp" else "")
        raise UsageError(
            f"weights = {str(weights)!r} are not those of {asked}",
            remedy=f"Give --network {other[0]}" + (f" --stage {other[1]}" if other[0] == "pixel2mesh-pp" else ""),
        ) from error
    return workload, model.eval()


def _fits(kind: tuple[str, str], state: dict[str, Tensor]) -> bool:
    """Whether a network has parameters of these names; sizes may come from other options."""
    if kind[0] == "pixel2mesh-lite":
        return any(name.startswith("encoder.") for name in state)
    has_refinement = any(name.startswith("refine.") for name in state)
    has_cnn = any(name.startswith("cnn.") for name in state)
    return has_refinement if kind[1] == "refine" else has_cnn


@torch.no_grad()
def predict_vertices(
    workload: MeshWorkload, model: nn.Module, image: Tensor, cameras: Tensor
) -> Tensor:  # [B, V, 3, H, W], [B, V, 5]
    """The finest vertices [B, N, 3] in the frame of the first view, in float32; weights that give none are refused."""
    vertices = workload.predict(model, {"image": image, "cameras": cameras}).float()
    num_bad = int((~vertices.isfinite()).any(2).sum())
    if num_bad:
        raise DataError(
            f"{num_bad} of {vertices.shape[0] * vertices.shape[1]} predicted vertices are NaN or infinite",
            expected="weights that predict places",
            remedy="Take an earlier checkpoint: with these weights the training had failed",
        )
    return vertices


def template_of(model: nn.Module) -> Level:
    """What an untrained network would predict, at its finest: the sphere of the small one, the ellipsoid of others."""
    if not isinstance(model, Pixel2MeshLite):
        return ellipsoid().levels[-1]
    return make_level(model.mesh.vertices.detach().cpu(), model.mesh.faces.cpu())
