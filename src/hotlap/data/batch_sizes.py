"""The tuned batch of a model, from the ``batch_sizes.json`` that ``hotlap tune --export`` writes."""

from __future__ import annotations

import json
from pathlib import Path

from hotlap.base.errors import DataError, UnknownName, did_you_mean
from hotlap.data.file_bytes import read_text


def read_batch_size(path: Path, model: str) -> int:
    """The batch that was fastest for a model."""
    try:
        models = json.loads(read_text(path))["batch_configurations"]
        names = list(models)
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"file {str(path)!r} holds no batch sizes: {error!r}",
            remedy="'hotlap tune MODEL --export FOLDER' writes one",
        ) from error
    if model not in names:
        raise UnknownName(f"file {str(path)!r} has no batch size for {model!r}", remedy=did_you_mean(model, names))
    found = models[model].get("optimal_batch_size") if isinstance(models[model], dict) else None
    if not isinstance(found, int) or isinstance(found, bool) or found < 1:
        raise DataError(f"file {str(path)!r}: optimal_batch_size of {model!r} is {found!r}", expected="at least 1")
    return found
