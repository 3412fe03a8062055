"""Objects as GeoJSON polygons in pixels, with their measurements, as QuPath and others read them."""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hotlap.base.errors import DataError
from hotlap.data.file_bytes import read_text
from hotlap.data.outline import Outline, Polygon, corner_texts


def write_geojson(outlines: Sequence[Outline], measured: Mapping[int, Mapping[str, Any]], category: str) -> str:
    """A FeatureCollection with one feature for each object; ``measured`` has the numbers of each label.

    It is put together as text: made as objects first, the corners alone would take twice as long. Measurements have
    seven digits, as those of tables.
    """
    kind = json.dumps({"name": category})
    rings = [ring for outline in outlines for part in outline.parts for ring in (part.outer, *part.holes)]
    corners = iter(corner_texts(rings, _across, _down))
    features = [_feature(outline, measured.get(outline.label, {}), kind, corners) for outline in outlines]
    return '{"type": "FeatureCollection", "features": [' + ",\n".join(features) + "]}\n"


@functools.lru_cache(maxsize=1 << 16)
def _across(x: float) -> str:
    return f"[{_coordinate(x)}, "


@functools.lru_cache(maxsize=1 << 16)
def _down(y: float) -> str:
    return f"{_coordinate(y)}]"


def _coordinate(value: float) -> str:
    """A whole one without a fraction."""
    return repr(int(value) if value.is_integer() else value)


def _feature(outline: Outline, measured: Mapping[str, Any], kind: str, corners: Iterator[list[str]]) -> str:
    parts = [f"[{', '.join([_ring(next(corners)) for _ in (p.outer, *p.holes)])}]" for p in outline.parts]
    shape, places = ("Polygon", parts[0]) if len(parts) == 1 else ("MultiPolygon", f"[{', '.join(parts)}]")
    numbers = {n: v for n, v in measured.items() if isinstance(v, (int, float)) and math.isfinite(v)}
    kinds = tuple([isinstance(value, float) for value in numbers.values()])
    return (
        f'{{"type": "Feature", "id": {outline.label}, "geometry": {{"type": "{shape}", "coordinates": {places}}}, '
        f'"properties": {{"objectType": "detection", "label": {outline.label}, "inside": {outline.inside}, '
        f'"classification": {kind}, "measurements": {{{_told(tuple(numbers), kinds) % tuple(numbers.values())}}}}}}}'
    )


@functools.lru_cache
def _told(names: tuple[str, ...], are_floats: tuple[bool, ...]) -> str:
    """How measurements are written: the same for nearly all objects."""
    kinds = zip(names, are_floats, strict=True)
    return ", ".join(
        f"{json.dumps(name).replace('%', '%%')}: {'%.7g' if is_float else '%d'}" for name, is_float in kinds
    )


def _ring(corners: list[str]) -> str:
    """A ring that ends where it begins."""
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
