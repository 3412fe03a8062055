"""How near to held-out objects does one come without a network? Distances to read those of a trained one beside.

    PYTHONPATH=src:. python -m benchmarks.mesh_beside prepared/ --out mesh_beside.json

The untrained template is far from everything, so to be many times nearer says little. Of every held-out object this
gives the Chamfer distance, as ``hotlap mesh eval`` has it, of: the template; a sphere whose radius is the best for the
trained objects; an ellipsoid that fills the object's true box; the trained object that comes nearest, the true surface
being asked which; and one half of the object's own points, judged by the other half: what sampling alone costs. The
last three know the truth, as no prediction can.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hotlap.mesh.dataset import ViewedObjects, prepared_files, split_files
from hotlap.mesh.metrics import mesh_scores
from hotlap.mesh.template import ellipsoid, icosphere
from hotlap.records.environment import capture

RADII = [0.01 * step for step in range(6, 25)]
"""Objects are 0.57 long from corner to corner."""
VERTICES = 2466
"""As many points stand for a trained object as the network has vertices."""


def distance(vertices: Tensor, points: Tensor) -> float:  # [N, 3], [P, 3]
    faces = torch.zeros(0, 3, dtype=torch.long)
    return float(mesh_scores(vertices[None], faces, points[None])["chamfer"][0])


def best_radius(sphere: Tensor, objects: dict[str, Tensor]) -> float:
    """The radius around the origin with the least mean distance to the objects."""
    return min(RADII, key=lambda radius: sum(distance(radius * sphere, points) for points in objects.values()))


def beside(
    points: Tensor, in_view: Tensor, sphere: Tensor, radius: float, trained: dict[str, Tensor]
) -> dict[str, Any]:
    """The distances of one object, its points once in the world and once in the frame of its first view."""
    low, high = points.amin(0), points.amax(0)
    near = {name: distance(some_of(other, VERTICES), points) for name, other in trained.items()}
    mixed = some_of(points, len(points))
    half = len(points) // 2
    return {
        "template": distance(ellipsoid().levels[-1].vertices, in_view),
        "sphere": distance(radius * sphere, points),
        "ellipsoid_in_true_box": distance(sphere * (high - low) / 2 + (high + low) / 2, points),
        "nearest_trained": min(near.values()),
        "nearest_trained_name": min(near, key=lambda name: near[name]),
        "half_of_its_points": distance(mixed[:half], mixed[half:]),
    }


def some_of(points: Tensor, count: int) -> Tensor:
    """Points in a random order, the same every time."""
    return points[torch.randperm(len(points), generator=torch.Generator().manual_seed(0))[:count]]


def measure(folder: Path, hold_out: int) -> dict[str, Any]:
    train, held_out = split_files(prepared_files(folder), hold_out)
    seen = ViewedObjects(train, views=1, points=10_000, train=False)
    trained = {seen.thing(place).name: seen.thing(place).points.float() for place in range(len(seen))}
    sphere = icosphere().vertices
    radius = best_radius(sphere, trained)
    data = ViewedObjects(held_out, views=1, points=10_000, train=False)
    rows = {
        data.thing(place).name: beside(data.thing(place).points.float(), data[place]["points"], sphere, radius, trained)
        for place in range(len(data))
    }
    kinds = [kind for kind, value in next(iter(rows.values())).items() if isinstance(value, float)]
    mean = {kind: sum(row[kind] for row in rows.values()) / len(rows) for kind in kinds}
    environment = dataclasses.asdict(capture())
    return {"num_trained": len(trained), "radius": radius, "mean": mean, "objects": rows, "environment": environment}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="folder that 'hotlap mesh views' prepared")
    parser.add_argument("--hold-out", type=int, default=8)
    parser.add_argument("--out", type=Path, default=Path("mesh_beside.json"))
    args = parser.parse_args()
    answer = measure(args.data, args.hold_out)
    args.out.write_text(json.dumps(answer, indent=1) + "\n", encoding="utf-8")
    for kind, value in answer["mean"].items():
        print(f"{kind}: {1e3 * value:.3f}e-3")


if __name__ == "__main__":
    main()
