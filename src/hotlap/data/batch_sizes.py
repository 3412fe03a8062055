"""The tuned batch of a model, from the ``batch_sizes.json`` that ``hotlap tune --export`` writes."""

from __future__ import annotations

import json
from pathlib import Path

from hotlap.base.errors import DataError, UnknownName, did_you_mean
from hotlap.data.file_bytes import read_text


def read_batch_size(path: Path, model: str) -> int:
    """The batch with which a model's passes were fastest; that of training steps is refused.

    Files of other programs do not say what they are for; they are for inference.
    """
    try:
        models = json.loads(read_text(path))["batch_configurations"]
        names = list(models)
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"file {str(path)!r} holds no batch sizes: {error!r}",
            remedy="'hotlap tune MODEL --for infer --export FOLDER' writes one",
        ) from error
    if model not in names:
        raise UnknownName(f"file {str(path)!r} has no batch size for {model!r}", remedy=did_you_mean(model, names))
    entry = models[model] if isinstance(models[model], dict) else {}
    if entry.get("mode", "infer") != "infer":
        raise DataError(
            f"file {str(path)!r}: the batch of {model!r} was tuned for {entry['mode']!r}",
            expected="one that was tuned for inference",
            remedy="'hotlap tune MODEL --for infer --export FOLDER' writes one, or give --batch",
        )
    found = entry.get("optimal_batch_size")
    if not isinstance(found, int) or isinstance(found, bool) or found < 1:
        raise DataError(f"file {str(path)!r}: optimal_batch_size of {model!r} is {found!r}", expected="at least 1")
    return found
