"""What a network learns of a picture's objects: where they are, and how deep inside one of them each pixel lies.

Two maps, both in [0, 1] and both predicted as the sigmoid of a score. ``foreground`` is 1 in every object. ``core`` is
1 in the middle of an object and falls to 0 at its edge, where it meets a neighbour too; so objects that touch in the
one map are hills of their own in the other, however small they are, and can be told apart by their tops.
"""

from __future__ import annotations

from typing import Any

import numpy as np

MAPS = ("foreground", "core")
"""The maps by name, in the order of the network's channels."""

Labels = np.ndarray[Any, np.dtype[Any]]
"""[H, W] integers: 0 is background, every other value one object."""


def label_maps(labels: Labels) -> np.ndarray[Any, np.dtype[np.float32]]:  # [H, W] -> [2, H, W]
    """The maps of an instance label: foreground, and core: the distance to the edge over the object's largest one.

    The core of a pixel is counted from the nearest pixel that is not of its object; the picture's border is no edge.
    """
    from scipy import ndimage

    maps = np.zeros((len(MAPS), *labels.shape), dtype=np.float32)
    maps[0] = labels != 0
    values, place = np.unique(labels, return_inverse=True)
    numbered = place.reshape(labels.shape).astype(np.int32) + int(values[0] != 0)
    for number, box in enumerate(ndimage.find_objects(numbered), start=1):
        if box is None:
            continue
        grown = tuple(slice(max(side.start - 1, 0), side.stop + 1) for side in box)
        mine = numbered[grown] == number
        if mine.all():
            maps[1][grown] = 1.0  # it fills the picture and has no edge
            continue
        depth = ndimage.distance_transform_edt(mine)
        maps[1][grown][mine] = (depth / depth.max())[mine]
    return maps
