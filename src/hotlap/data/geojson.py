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
    """A FeatureCollection with one feature for each object; ``measured`` has the numbers of each label.

    It is put together as text: made as objects first, the corners alone would take twice as long. Measurements have
    seven digits, as those of tables.
    """
    kind, numbers = json.dumps({"name": category}), _Numbers()
    features = [_feature(outline, measured.get(outline.label, {}), kind, numbers) for outline in outlines]
    return '{"type": "FeatureCollection", "features": [' + ",\n".join(features) + "]}\n"


class _Numbers(dict[float, str]):
    """What to write for a coordinate, a whole one without a fraction; they are few, and each comes again and again."""

    def __missing__(self, coordinate: float) -> str:
        self[coordinate] = text = repr(int(coordinate) if coordinate.is_integer() else coordinate)
        return text


def _feature(outline: Outline, measured: Mapping[str, Any], kind: str, numbers: _Numbers) -> str:
    parts = [f"[{', '.join([_ring(ring, numbers) for ring in (p.outer, *p.holes)])}]" for p in outline.parts]
    shape, places = ("Polygon", parts[0]) if len(parts) == 1 else ("MultiPolygon", f"[{', '.join(parts)}]")
    found = [
        f'"{name}": {value:.7g}' if isinstance(value, float) else f'"{name}": {value}'
        for name, value in measured.items()
        if isinstance(value, (int, float)) and math.isfinite(value)
    ]
    return (
        f'{{"type": "Feature", "id": {outline.label}, "geometry": {{"type": "{shape}", "coordinates": {places}}}, '
        f'"properties": {{"objectType": "detection", "label": {outline.label}, "inside": {outline.inside}, '
        f'"classification": {kind}, "measurements": {{{", ".join(found)}}}}}}}'
    )


def _ring(ring: np.ndarray, numbers: _Numbers) -> str:
    """A ring that ends where it begins."""
    corners = [f"[{numbers[x]}, {numbers[y]}]" for x, y in ring.tolist()]
    return f"[{', '.join([*corners, corners[0]])}]"


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
