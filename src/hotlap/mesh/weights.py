"""Weights of the mesh networks: files of our own, and those of the published TensorFlow network."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hotlap.base.errors import DataError, EnvironmentUnusable, UsageError
from hotlap.base.raised import misfit
from hotlap.data.npz import UnreadableArrays, read_npz
from hotlap.data.plain_pickle import load_plain_pickle
from hotlap.measure.weights import read_weights
from hotlap.mesh.graph_layers import GraphConv
from hotlap.mesh.template import MAX_NEIGHBOURS, HypothesisGraph, Level, Template, edges_of

COARSE = "coarse."
"""Before the names of the coarse stage within the whole network."""


def save_weights(model: nn.Module, file: Path) -> None:
    """Writes all tensors of a model, templates too, as safetensors."""
    try:
        from safetensors.torch import save_file
    except ModuleNotFoundError as error:
        raise EnvironmentUnusable(
            f"writing {str(file)!r} needs safetensors, which is not installed", remedy="pip install 'hotlap[mesh]'"
        ) from error
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in model.state_dict().items()}
    save_file(tensors, file, metadata={"network": type(model).__name__})


def start_from(model: nn.Module, file: Path) -> None:
    """Puts weights into a model: its own, or into the whole Pixel2Mesh++ those of its coarse stage.

    The refinement's convolutions then start from the coarse stage's, as published.
    """
    weights = read_weights(file)
    own = model.state_dict()
    if set(weights) == set(own):
        _fill(model, weights, file)
        return
    stage = {name.removeprefix(COARSE): name for name in own if name.startswith(COARSE)}
    if stage and set(weights) == set(stage):
        _fill(model.coarse, weights, file)  # type: ignore[arg-type]
        cnn = {name.removeprefix("cnn."): t for name, t in weights.items() if name.startswith("cnn.")}
        _fill(model.refine.cnn, cnn, file)  # type: ignore[arg-type, union-attr]
        return
    inner = {name.removeprefix(COARSE): t for name, t in weights.items() if name.startswith(COARSE)}
    if set(inner) == set(own):
        _fill(model, inner, file)
        return
    odd = sorted(set(weights) ^ set(own))[0]
    raise UsageError(
        f"init = {str(file)!r} holds weights of another network: {odd!r} is on one side only",
        expected=f"those of {type(model).__name__}",
    )


def _fill(model: nn.Module, weights: Mapping[str, Tensor], file: Path) -> None:
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        raise UsageError(
            f"init = {str(file)!r} does not fit: {misfit(error)}",
            remedy="Give the options that it was trained with, as --set workload.hidden=64",
        ) from error


def convert_tensorflow(stage: nn.Module, file: Path) -> None:
    """Fills a stage of Pixel2Mesh++ with the variables of a published checkpoint, from an ``.npz`` or a pickled dict.

    Convolutions [k, k, in, out] and graph layers (``weights_0``, ``weights_1``, ``bias``) are taken in the order of the
    numbers in their names, and every shape must fit. Rows of the first graph layers are in the order place, maximum,
    mean, deviation, hidden state. Build the stage with ``compat=True`` and the template of the same publication.
    """
    arrays = _read_arrays(file)
    convolutions = [m for m in stage.modules() if isinstance(m, nn.Conv2d)]
    layers = [m for m in stage.modules() if isinstance(m, GraphConv)]
    kernels = _in_order([name for name, array in arrays.items() if array.ndim == 4])
    graphs = _in_order([name for name in arrays if re.search(r"weights_0(:0)?$", name)])
    for what, wanted, found in (("convolutions", convolutions, kernels), ("graph layers", layers, graphs)):
        if len(wanted) != len(found):
            raise DataError(f"{str(file)!r} has {len(found)} {what}", expected=f"{len(wanted)}, as the stage has")
    filled: list[tuple[Tensor | None, np.ndarray, str]] = []
    for conv, name in zip(convolutions, kernels, strict=True):
        bias = _partner(arrays, name, (r"(W|weights|kernel)(:0)?$", ("b", "biases", "bias")), file)
        filled += [(conv.weight, arrays[name].transpose(3, 2, 0, 1), name), (conv.bias, arrays[bias], bias)]
    for layer, name in zip(layers, graphs, strict=True):
        second = _partner(arrays, name, (r"weights_0(:0)?$", ("weights_1",)), file)
        if arrays[name].ndim != 2 or arrays[second].shape != arrays[name].shape:
            raise DataError(
                f"{name!r} and {second!r} of {str(file)!r} have the shapes {list(arrays[name].shape)} and "
                f"{list(arrays[second].shape)}",
                expected="two matrices of one shape",
            )
        bias = _partner(arrays, name, (r"weights_0(:0)?$", ("bias",)), file)
        both = np.concatenate([arrays[name], arrays[second]], 1)
        filled += [(layer.weight, both, name), (layer.bias, arrays[bias], bias)]
    for parameter, array, name in filled:  # all of them first, so that a stage is never filled by half
        _check(parameter, array, name, file)
    with torch.no_grad():
        for parameter, array, _ in filled:
            assert parameter is not None
            parameter.copy_(torch.from_numpy(np.ascontiguousarray(array, dtype=np.float32)))


def read_template(file: Path) -> tuple[Template, HypothesisGraph]:
    """The meshes and hypotheses of a published template, a pickle of arrays; nothing in it is executed."""
    try:
        return _template(file)
    except (IndexError, TypeError, ValueError, RuntimeError) as error:
        raise DataError(
            f"template {str(file)!r} does not fit together: {error}", expected="a template of Pixel2Mesh++"
        ) from error


def _template(file: Path) -> tuple[Template, HypothesisGraph]:
    data = load_plain_pickle(_bytes(file), str(file))
    wanted = ("coord", "stage1", "stage2", "stage3", "pool_idx", "faces_triangle", "sample_coord", "sample_cheb_dense")
    for name in wanted:
        if not isinstance(data, dict) or name not in data:
            raise DataError(f"{str(file)!r} has no {name!r}", expected="a template of Pixel2Mesh++")
    vertices = torch.tensor(np.asarray(data["coord"]), dtype=torch.float32)
    levels = []
    for number in range(3):
        faces = torch.tensor(np.asarray(data["faces_triangle"][number]), dtype=torch.int64)
        edges = edges_of(faces)
        if number < 2:
            edges = torch.tensor(np.asarray(data["pool_idx"][number]), dtype=torch.int64)
        levels.append(_published_level(vertices, faces, edges, data[f"stage{number + 1}"][1], file))
        vertices = torch.cat([vertices, vertices[edges].mean(1)])
    offsets, matrix = (
        torch.tensor(np.asarray(a), dtype=torch.float32) for a in (data["sample_coord"], data["sample_cheb_dense"][1])
    )
    if offsets.shape != (len(matrix), 3) or matrix.shape != (len(matrix), len(matrix)):
        raise ValueError(f"sample_coord is {list(offsets.shape)} and sample_cheb_dense {list(matrix.shape)}")
    return Template(levels=tuple(levels)), HypothesisGraph(offsets=offsets, support=matrix)


def _published_level(vertices: Tensor, faces: Tensor, edges: Tensor, support: Any, file: Path) -> Level:
    """A level with the support that is given as (places, numbers, shape)."""
    places, numbers = np.asarray(support[0]).astype(np.int64), np.asarray(support[1]).astype(np.float32)
    count = len(vertices)
    for what, numbered in (("face", faces.numpy()), ("support", places)):
        if numbered.size and not 0 <= numbered.min() <= numbered.max() < count:
            raise ValueError(f"a {what} names vertex {numbered.max()} of {count}")
    neighbours = torch.arange(count)[:, None].repeat(1, MAX_NEIGHBOURS)
    values = torch.zeros(count, 1 + MAX_NEIGHBOURS)
    used = [0] * count
    for (row, column), number in zip(places.tolist(), numbers.tolist(), strict=True):
        if row == column:
            values[row, 0] = number
            continue
        if used[row] == MAX_NEIGHBOURS:
            raise DataError(f"vertex {row} of {str(file)!r} has more than {MAX_NEIGHBOURS} neighbours")
        neighbours[row, used[row]], values[row, 1 + used[row]] = column, number
        used[row] += 1
    return Level(
        vertices=vertices, faces=faces, edges=edges, neighbours=neighbours, degrees=torch.tensor(used), support=values
    )


def _bytes(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise DataError(f"{str(file)!r} cannot be read: {error.strerror}", expected="an existing file") from error


def _read_arrays(file: Path) -> dict[str, np.ndarray]:
    """Arrays by name, from an ``.npz`` without pickles in it, or from a pickled dict through the restricted reader."""
    if file.suffix == ".npz":
        try:
            return read_npz(file)
        except UnreadableArrays as error:
            raise DataError(f"{str(file)!r} cannot be read: {error}", expected="an .npz of plain arrays") from error
    data = load_plain_pickle(_bytes(file), str(file))
    plain = isinstance(data, dict) and all(isinstance(k, str) and isinstance(v, np.ndarray) for k, v in data.items())
    if not plain:
        raise DataError(f"{str(file)!r} holds no arrays by name", expected="a pickled dict of arrays, or an .npz")
    return data


def _in_order(names: list[str]) -> list[str]:
    """By the numbers in the names, where a name without one comes before those with."""
    return sorted(
        names, key=lambda name: [(text, int(digits or 0)) for text, digits in re.findall(r"(\D*)(\d*)", name)]
    )


def _partner(arrays: Mapping[str, Any], name: str, rule: tuple[str, tuple[str, ...]], file: Path) -> str:
    """The name of what belongs to ``name``: its end replaced by one of several."""
    pattern, ends = rule
    for end in ends:
        for suffix in ("", ":0"):
            other = re.sub(pattern, end + suffix, name)
            if other in arrays and other != name:
                return other
    raise DataError(f"{str(file)!r} has {name!r} without {' or '.join(ends)}")


def _check(parameter: Tensor | None, array: np.ndarray, name: str, file: Path) -> None:
    assert parameter is not None
    if tuple(parameter.shape) != array.shape:
        raise DataError(
            f"{name!r} of {str(file)!r} has the shape {list(array.shape)}", expected=str(list(parameter.shape))
        )
    if array.dtype.kind not in "fiu" or not np.isfinite(array).all():
        raise DataError(f"{name!r} of {str(file)!r} holds NaN or infinity", expected="numbers")
