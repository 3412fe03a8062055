"""What a network may predict of a picture's objects, by name: the maps from which touching ones are told apart."""

from __future__ import annotations

from collections.abc import Container

from hotlap.base.errors import UnknownName, did_you_mean

FOREGROUND, CORE, BOUNDARY = "foreground", "core", "boundary"
KNOWN_MAPS = (FOREGROUND, CORE, BOUNDARY)
HEADS: dict[str, tuple[str, ...]] = {
    "core": (FOREGROUND, CORE),
    "boundary": (FOREGROUND, BOUNDARY),
    "foreground": (FOREGROUND,),
}
"""Maps of each head, in the order of the network's channels; the first is used unless told otherwise."""
MARK = "predicts_"
"""Begins the name of a buffer that says which head weights are of, where the number of maps does not."""


def head_maps(head: str) -> tuple[str, ...]:
    """The maps of a head."""
    if head not in HEADS:
        raise UnknownName(f"unknown head {head!r}", expected=", ".join(HEADS), remedy=did_you_mean(head, HEADS))
    return HEADS[head]


def usual_head(num_maps: int) -> str | None:
    """The head that so many maps are taken for; None where no head has as many."""
    return next((head for head, names in HEADS.items() if len(names) == num_maps), None)


def marked_head(names: Container[str]) -> str | None:
    """The head that is marked among the names of weights."""
    return next((head for head in HEADS if MARK + head in names), None)
