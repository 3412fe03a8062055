"""What a network learns of a picture's objects: where they are, and where each of them begins and ends.

Maps in [0, 1], predicted as the sigmoid of a score. ``foreground`` is 1 in every object. ``core`` is 1 in the middle of
an object and falls to 0 at its edge, where it meets a neighbour too; so objects that touch in the one map are hills of
their own in the other, however small they are, and can be told apart by their tops. ``boundary`` is 1 along the inner
edge of every object.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from hotlap.segment.heads import BOUNDARY, CORE, FOREGROUND, HEADS

MAPS = HEADS["core"]
"""The maps that are learned unless told otherwise, in the order of the network's channels."""
EDGE_PX, SLIGHT_PX = 2.0, 4.0
"""How far a boundary reaches into its object, and how deep an object is at the least that has so wide a one; in
shallower ones it is 1 pixel, or nothing would be left inside."""

Labels = np.ndarray[Any, np.dtype[Any]]
"""[H, W] integers: 0 is background, every other value one object."""


def label_maps(
    labels: Labels, names: tuple[str, ...] = MAPS
) -> np.ndarray[Any, np.dtype[np.float32]]:  # [H, W] -> [M, H, W]
    """The maps of an instance label: foreground; core, the distance to the edge over the object's largest; boundary.

    Distances are counted from the nearest pixel that is not of the same object; the picture's border is no edge.
    """
    from scipy import ndimage

    made = np.zeros((len(names), *labels.shape), np.float32)
    maps = dict(zip(names, made, strict=True))
    if FOREGROUND in maps:
        maps[FOREGROUND][labels != 0] = 1.0
    if maps.keys() == {FOREGROUND}:
        return made
    numbered = _numbered(labels)
    for number, box in enumerate(ndimage.find_objects(numbered), start=1):
        if box is None:
            continue
        grown = tuple(slice(max(side.start - 1, 0), side.stop + 1) for side in box)
        mine = numbered[grown] == number
        if mine.all():
            if CORE in maps:
                maps[CORE][grown] = 1.0  # it fills the picture and has no edge
            continue
        depth = ndimage.distance_transform_edt(mine)
        deepest = depth.max()
        if CORE in maps:
            maps[CORE][grown][mine] = (depth / deepest)[mine]
        if BOUNDARY in maps:
            maps[BOUNDARY][grown][mine & (depth <= (EDGE_PX if deepest >= SLIGHT_PX else 1.0))] = 1.0
    return made


def _numbered(labels: Labels) -> Labels:  # [H, W] int32
    """The objects numbered from 1 without gaps, in the order of their values."""
    values = np.unique(np.concatenate([np.unique(row) for row in labels]))
    numbered = np.empty(labels.shape, np.int32)
    for number, row in enumerate(labels):  # the places of all pixels at once would take twice their room
        numbered[number] = np.searchsorted(values, row)
    numbered += int(values[0] != 0)
    return numbered
