"""Objects as GeoJSON polygons in pixels, with their measurements, as QuPath and others read them."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hotlap.base.errors import DataError
from hotlap.data.file_bytes import read_text
from hotlap.data.outline import Outline, Polygon


def write_geojson(outlines: Sequence[Outline], measured: Mapping[int, Mapping[str, Any]], category: str) -> str:
    """A FeatureCollection with one feature for each object; ``measured`` has the numbers of each label."""
    features = [_feature(outline, measured.get(outline.label, {}), category) for outline in outlines]
    return json.dumps({"type": "FeatureCollection", "features": features}, allow_nan=False) + "\n"


def _feature(outline: Outline, measured: Mapping[str, Any], category: str) -> dict[str, Any]:
    parts = [[_closed(ring) for ring in (part.outer, *part.holes)] for part in outline.parts]
    single = len(parts) == 1
    numbers = {k: v for k, v in measured.items() if isinstance(v, (int, float)) and math.isfinite(v)}
    return {
        "type": "Feature",
        "id": outline.label,
        "geometry": {
            "type": "Polygon" if single else "MultiPolygon",
            "coordinates": parts[0] if single else parts,
        },
        "properties": {
            "objectType": "detection",
            "label": outline.label,
            "inside": outline.inside,
            "classification": {"name": category},
            "measurements": numbers,
        },
    }


def _closed(ring: np.ndarray) -> list[list[float]]:
    """A ring that ends where it begins, whole numbers without a fraction."""
    return [
        [int(c) if float(c).is_integer() else float(c) for c in point] for point in [*ring.tolist(), ring[0].tolist()]
    ]


def read_geojson(path: Path) -> list[Outline]:
    """The polygons of a FeatureCollection, numbered by their label or else in order."""
    try:
        found = []
        for number, feature in enumerate(json.loads(read_text(path))["features"], start=1):
            geometry = feature["geometry"]
            shapes = {"Polygon": lambda c: [c], "MultiPolygon": lambda c: c}[geometry["type"]](geometry["coordinates"])
            parts = [[np.array(ring[:-1], np.float64).reshape(-1, 2) for ring in rings] for rings in shapes]
            about = feature.get("properties") or {}
            polygons = tuple(Polygon(rings[0], tuple(rings[1:])) for rings in parts)
            found.append(Outline(int(about.get("label", number)), polygons, int(about.get("inside", 0))))
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise DataError(f"file {str(path)!r} is no GeoJSON with polygons: {error!r}") from error
    return found
