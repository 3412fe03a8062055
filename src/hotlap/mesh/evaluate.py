"""How good a trained network is on prepared objects: a table of scores, means by category, pictures."""

from __future__ import annotations

import csv
import dataclasses
import io
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from hotlap.base import events
from hotlap.base.errors import DataError, StorageError
from hotlap.base.events import Emit, ignore
from hotlap.base.format import format_count
from hotlap.data.white_picture import encode_png
from hotlap.engine.parts import pick_device
from hotlap.mesh.cameras import Cameras, make_rows
from hotlap.mesh.config import MeshEvalConfig
from hotlap.mesh.dataset import ViewedObjects, collate_views, prepared_files, split_files
from hotlap.mesh.metrics import TAU, mesh_scores
from hotlap.mesh.network import load_network, open_workload, predict_vertices, template_of
from hotlap.mesh.preview import as_mesh, draw_points, grid
from hotlap.mesh.render import render_views
from hotlap.mesh.workload import MeshWorkload
from hotlap.records.run import write_atomic
from hotlap.workload import BadSample

THRESHOLD = f"F-scores at tau = {TAU:g} and 2 tau, on squared distances"
ASIDE_DEG = 70.0
"""How far from the first view the side view of the pictures is taken."""


@dataclass(frozen=True, kw_only=True)
class ScoredObject:
    """One object's scores."""

    name: str
    category: str
    scores: dict[str, float]
    vertices: Tensor
    """[N, 3] in the frame of the first view."""


@dataclass(frozen=True, kw_only=True)
class MeshScores:
    """What an evaluation found."""

    tau: float
    """Threshold of the F-score, on the squared distance."""
    num_objects: int
    mean: dict[str, float]
    """Over all objects."""
    by_category: dict[str, dict[str, float]]
    objects: dict[str, dict[str, float]]
    files: tuple[str, ...] = ()

    def lines(self) -> list[str]:
        rows = [(name or "no category", scores) for name, scores in self.by_category.items()]
        rows = [*(rows if len(rows) > 1 else []), ("all", self.mean)]
        width = max(len(name) for name, _ in rows)
        told = [f"{format_count(self.num_objects, 'object')}; {THRESHOLD}"]
        told += [f"{name:<{width}}  {_in_words(scores)}" for name, scores in rows]
        return [*told, *self.files]


def _in_words(scores: dict[str, float]) -> str:
    ratio = scores["template_chamfer"] / max(scores["chamfer"], 1e-12)
    return (
        f"Chamfer {1e3 * scores['chamfer']:.3f}e-3 (template {1e3 * scores['template_chamfer']:.3f}e-3, {ratio:.1f}x), "
        f"F(tau) {scores['f1_tau']:.2f}, F(2 tau) {scores['f1_2tau']:.2f}, "
        f"normals {scores['normal_consistency']:.3f}"
    )


def eval_mesh(config: MeshEvalConfig, emit: Emit = ignore) -> MeshScores:
    """Scores the network on a prepared folder; writes scores.csv and pictures.png."""
    train, held_out = split_files(prepared_files(config.data), config.hold_out)
    files = {"held-out": held_out, "train": train, "all": sorted([*train, *held_out])}[config.split]
    data = ViewedObjects(files, views=config.num_views, points=config.points, train=False, chosen=config.chosen)
    device = pick_device(config.device)
    if config.weights is None:
        emit(events.warn("no weights were given: the untrained network is scored, which gives its template"))
        workload = open_workload(config.network, config.stage, config.workload)
        model = workload.build_model().eval()
    else:
        workload, model = load_network(config.network, config.stage, config.workload, config.weights)
    model = model.to(device)
    scored = []
    emit(events.start("eval", len(files)))
    try:
        for thing in score_objects(workload, model, data, device, batch=config.batch):
            scored.append(thing)
            emit(events.advance("eval", len(scored), len(files), thing.name))
    except BadSample as error:
        raise DataError(
            f"object {error.where} cannot be scored: {error.reason}",
            remedy="Ask for views that it has, or run 'hotlap mesh views' again",
        ) from error
    finally:
        emit(events.finish("eval"))
    return _written(config, summary(scored), scored, data, workload.faces(model).cpu())


def score_objects(
    workload: MeshWorkload, model: nn.Module, data: ViewedObjects, device: torch.device, *, batch: int = 4
) -> Iterator[ScoredObject]:
    """The objects of ``data`` one after another, each with its scores and those of the untrained template."""
    faces = workload.faces(model)
    level = template_of(model)
    for begin in range(0, len(data), batch):
        positions = range(begin, min(begin + batch, len(data)))
        loaded = collate_views([data[position] for position in positions])
        on_device = {name: tensor.to(device) for name, tensor in loaded.items()}
        points, normals, counts = (on_device[name] for name in ("points", "normals", "num_points"))
        vertices = predict_vertices(workload, model, on_device["image"], on_device["cameras"])
        scores = mesh_scores(vertices, faces, points, normals, counts)
        template = level.vertices.to(device).expand(len(positions), -1, -1)
        scores["template_chamfer"] = mesh_scores(template, level.faces.to(device), points, None, counts)["chamfer"]
        for row, position in enumerate(positions):
            thing = data.thing(position)
            yield ScoredObject(
                name=thing.name,
                category=thing.category,
                scores={name: float(values[row]) for name, values in scores.items()},
                vertices=vertices[row].cpu(),
            )


def summary(scored: list[ScoredObject]) -> MeshScores:
    """Means over all objects and over those of each category."""
    categories = sorted({thing.category for thing in scored})
    return MeshScores(
        tau=TAU,
        num_objects=len(scored),
        mean=_mean(scored),
        by_category={name: _mean([thing for thing in scored if thing.category == name]) for name in categories},
        objects={thing.name: thing.scores for thing in scored},
    )


def _mean(scored: list[ScoredObject]) -> dict[str, float]:
    return {name: sum(thing.scores[name] for thing in scored) / len(scored) for name in scored[0].scores}


def _written(
    config: MeshEvalConfig, found: MeshScores, scored: list[ScoredObject], data: ViewedObjects, faces: Tensor
) -> MeshScores:
    try:
        config.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(f"cannot create {str(config.out)!r}: {error.strerror or error}") from error
    files = [config.out / "scores.csv"]
    write_atomic(files[0], as_csv(found, scored))
    if config.pictures:
        files.append(config.out / "pictures.png")
        write_atomic(files[1], encode_png(comparison(scored[: config.pictures], data, faces)))
    return dataclasses.replace(found, files=tuple(str(file) for file in files))


def as_csv(found: MeshScores, scored: list[ScoredObject]) -> str:
    """A row for each object, then the means by category and over all; the first line says what tau is."""
    out = io.StringIO()
    table = csv.writer(out, lineterminator="\n")
    names = list(found.mean)
    out.write(f"# {THRESHOLD}; Chamfer = both mean squared distances added\n")
    table.writerow(["object", "category", *names])
    for thing in scored:
        table.writerow([thing.name, thing.category, *(f"{thing.scores[name]:.6g}" for name in names)])
    for category, scores in found.by_category.items():
        table.writerow(["mean of category", category, *(f"{scores[name]:.6g}" for name in names)])
    table.writerow(["mean", "", *(f"{found.mean[name]:.6g}" for name in names)])
    return out.getvalue()


def comparison(scored: list[ScoredObject], data: ViewedObjects, faces: Tensor) -> Tensor:  # [rows * S, 4 * S, 3]
    """A row for each object: its first view, the prediction from there, then prediction and true points from aside."""
    by_name = {data.thing(position).name: position for position in range(len(data))}
    rows = []
    for found in scored:
        thing, sample = data.thing(by_name[found.name]), data[by_name[found.name]]
        first = sample["cameras"][0]
        aside = make_rows(first[0] + ASIDE_DEG, first[1], first[3])
        cameras = Cameras.from_rows(torch.stack([first, aside]))
        mesh = as_mesh(cameras[0].to_world(found.vertices), faces)
        drawn = render_views(mesh, cameras).image
        truth = draw_points(thing.points, thing.normals, cameras[1])
        rows.append([sample["image"][0].permute(1, 2, 0).contiguous(), drawn[0], drawn[1], truth])
    return grid(rows)
