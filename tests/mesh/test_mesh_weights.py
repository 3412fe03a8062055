"""Weights in files: saved and read, from stage to stage, and from the published TensorFlow network."""

from __future__ import annotations

import os
import pickle

import numpy as np
import pytest
import torch

from hotlap.base.errors import DataError, UsageError
from hotlap.mesh.drawn import draw_objects
from hotlap.mesh.graph_layers import GraphConv
from hotlap.mesh.pixel2mesh_pp import CoarseStage, Pixel2MeshPP, RefineStage
from hotlap.mesh.template import ellipsoid, hypothesis_graph
from hotlap.mesh.weights import convert_tensorflow, read_template, save_weights, start_from


def same(model, other) -> bool:
    pairs = zip(model.state_dict().values(), other.state_dict().values(), strict=True)
    return all(torch.equal(a, b) for a, b in pairs)


def test_there_and_back(tmp_path):
    pytest.importorskip("safetensors")
    torch.manual_seed(0)
    model, other = CoarseStage(hidden=8, levels=1), CoarseStage(hidden=8, levels=1)
    model.levels[0].vertices.add_(0.5)  # templates travel with the weights
    assert not same(model, other)
    save_weights(model, tmp_path / "a.safetensors")
    start_from(other, tmp_path / "a.safetensors")
    assert same(model, other)


def test_the_second_stage_starts_from_the_first(tmp_path):
    torch.manual_seed(0)
    coarse, whole = CoarseStage(hidden=8, levels=1), Pixel2MeshPP(hidden=8, levels=1)
    torch.save(coarse.state_dict(), tmp_path / "coarse.pt")
    start_from(whole, tmp_path / "coarse.pt")
    assert same(whole.coarse, coarse) and same(whole.refine.cnn, coarse.cnn)
    torch.save(whole.state_dict(), tmp_path / "whole.pt")
    fresh = CoarseStage(hidden=8, levels=1)
    start_from(fresh, tmp_path / "whole.pt")
    assert same(fresh, coarse)


def test_weights_of_another_size_are_refused(tmp_path):
    torch.save(CoarseStage(hidden=16, levels=1).state_dict(), tmp_path / "wide.pt")
    with pytest.raises(UsageError, match=r"wide.pt' does not fit: .*size mismatch"):
        start_from(CoarseStage(hidden=8, levels=1), tmp_path / "wide.pt")


def published(stage, kinds=("Conv2D", "graphconvolution")) -> dict[str, np.ndarray]:
    """The variables of a stage as TensorFlow names and lays them out."""
    arrays, numbers = {}, dict.fromkeys(kinds, 0)
    for module in stage.modules():
        if isinstance(module, torch.nn.Conv2d):
            suffix = f"_{numbers[kinds[0]]}" if numbers[kinds[0]] else ""
            arrays[f"net/{kinds[0]}{suffix}/W:0"] = module.weight.detach().permute(2, 3, 1, 0).numpy()
            arrays[f"net/{kinds[0]}{suffix}/b:0"] = module.bias.detach().numpy()
            numbers[kinds[0]] += 1
        if isinstance(module, GraphConv):
            numbers[kinds[1]] += 1
            name = f"net/{kinds[1]}_{numbers[kinds[1]]}_vars"
            first, second = module.weight.detach().chunk(2, 1)
            arrays |= {f"{name}/weights_0:0": first.numpy(), f"{name}/weights_1:0": second.numpy()}
            arrays[f"{name}/bias:0"] = module.bias.detach().numpy()
    return arrays


@pytest.mark.parametrize("kind", ["npz", "dat"])
def test_published_variables(kind, tmp_path):
    torch.manual_seed(0)
    stage, other = RefineStage(hidden=8), RefineStage(hidden=8)
    arrays = dict(sorted(published(stage).items()))  # 10 before 2
    file = tmp_path / f"p2mpp.{kind}"
    if kind == "npz":
        np.savez(file, **arrays)
    else:
        file.write_bytes(pickle.dumps({name: np.array(a) for name, a in arrays.items()}, protocol=2))
    convert_tensorflow(other, file)
    assert same(stage, other)


def test_published_variables_that_do_not_fit(tmp_path):
    stage = RefineStage(hidden=8)
    arrays = published(stage)
    file = tmp_path / "a.npz"
    np.savez(file, **{n: a for n, a in arrays.items() if "graphconvolution_12" not in n})
    with pytest.raises(DataError, match=r"a.npz' has 11 graph layers"):
        convert_tensorflow(stage, file)
    np.savez(file, **{n: a for n, a in arrays.items() if n != "net/graphconvolution_3_vars/weights_1:0"})
    with pytest.raises(DataError, match=r"'net/graphconvolution_3_vars/weights_0:0' without weights_1"):
        convert_tensorflow(stage, file)
    np.savez(file, **(arrays | {"net/Conv2D_2/W:0": np.zeros((3, 3, 5, 32))}))
    with pytest.raises(DataError, match=r"'net/Conv2D_2/W:0' of .* has the shape \[32, 5, 3, 3\]"):
        convert_tensorflow(stage, file)
    whole = {name: tensor.clone() for name, tensor in stage.state_dict().items()}
    np.savez(file, **({n: a + 1 for n, a in arrays.items()} | {"net/graphconvolution_12_vars/bias:0": np.zeros(7)}))
    with pytest.raises(DataError, match=r"'net/graphconvolution_12_vars/bias:0' of .* has the shape \[7\]"):
        convert_tensorflow(stage, file)
    assert all(torch.equal(whole[name], tensor) for name, tensor in stage.state_dict().items()), "filled by half"
    content = file.read_bytes()
    for damaged in (b"not an archive", b"", content[: len(content) // 2], content[:9000] + b"?" * 99 + content[9099:]):
        file.write_bytes(damaged)
        with pytest.raises(DataError, match=r"a.npz' cannot be read"):
            convert_tensorflow(stage, file)
    numbered = tmp_path / "numbers.dat"
    numbered.write_bytes(pickle.dumps({1: np.zeros(3)}))
    with pytest.raises(DataError, match=r"numbers.dat' holds no arrays by name"):
        convert_tensorflow(stage, numbered)


def test_names_may_begin_with_their_numbers(tmp_path):
    torch.manual_seed(0)
    stage, other = RefineStage(hidden=8), RefineStage(hidden=8)
    arrays = {name.replace("net/graphconvolution_", ""): array for name, array in published(stage).items()}
    np.savez(tmp_path / "a.npz", **dict(sorted(arrays.items())))  # 10 before 2
    convert_tensorflow(other, tmp_path / "a.npz")
    assert same(stage, other)


class Hostile:
    def __init__(self, command):
        self.command = command

    def __reduce__(self):
        return os.system, (self.command,)


@pytest.mark.parametrize("read", [lambda file: convert_tensorflow(RefineStage(hidden=8), file), read_template])
def test_a_hostile_pickle_is_refused_and_not_executed(read, tmp_path):
    file, trace = tmp_path / "evil.dat", tmp_path / "trace"
    file.write_bytes(pickle.dumps({"coord": Hostile(f"touch {trace}")}))
    with pytest.raises(DataError, match=r"evil.dat' was refused: it asks for (posix|nt).system"):
        read(file)
    assert not trace.exists()


def test_a_published_template(tmp_path):
    """Our own ellipsoid, written the way the published one is, is read back as it was."""
    levels = ellipsoid().levels
    data = {"coord": levels[0].vertices.numpy(), "pool_idx": [level.edges.numpy() for level in levels[:2]]}
    data["faces_triangle"] = [level.faces.numpy() for level in levels]
    for number, level in enumerate(levels, start=1):
        own = torch.arange(len(level.vertices))[:, None]
        columns = torch.cat([own, level.neighbours], 1)
        real = level.support != 0
        places = torch.stack([own.expand_as(columns)[real], columns[real]], 1).numpy()
        count = len(level.vertices)
        data[f"stage{number}"] = [None, (places, level.support[real].numpy(), (count, count))]
    graph = hypothesis_graph()
    data |= {"sample_coord": graph.offsets.numpy(), "sample_cheb_dense": [np.eye(43), graph.support.numpy()]}
    file = tmp_path / "template.dat"
    file.write_bytes(pickle.dumps(data, protocol=2))
    template, hypotheses = read_template(file)
    torch.manual_seed(0)
    plain = Pixel2MeshPP(hidden=8, levels=2).eval()
    read = Pixel2MeshPP(hidden=8, levels=2, template=template, graph=hypotheses).eval()
    for wanted, got in zip(levels, template.levels, strict=True):
        assert torch.equal(wanted.vertices, got.vertices) and torch.equal(wanted.edges, got.edges)
    weights = {n: t for n, t in plain.state_dict().items() if "levels" not in n and n not in ("refine.columns",)}
    read.load_state_dict(weights, strict=False)
    made = draw_objects(torch.arange(1), views=1, size=32, points=8, seed=0, device=torch.device("cpu"))
    with torch.no_grad():
        want, got = (model.coarse(made["image"], made["cameras"]).vertices[-1] for model in (plain, read))
    torch.testing.assert_close(got, want)
    odd = [
        ("faces_triangle", data["faces_triangle"][:1]),
        ("pool_idx", [data["pool_idx"][0] + 500, data["pool_idx"][1]]),
        ("coord", "text"),
        ("stage1", [None, (np.array([[0, 999]]), np.ones(1), (156, 156))]),
        ("sample_coord", np.zeros((4, 3))),
    ]
    for name, value in odd:
        file.write_bytes(pickle.dumps({**data, name: value}, protocol=2))
        with pytest.raises(DataError, match=r"template '.*template.dat' does not fit together"):
            read_template(file)
    del data["sample_coord"]
    file.write_bytes(pickle.dumps(data, protocol=2))
    with pytest.raises(DataError, match=r"template.dat' has no 'sample_coord'"):
        read_template(file)
