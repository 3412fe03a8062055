"""A scene as photographs with known cameras and some coloured points, whatever files it was read from.

World and cameras are as in COLMAP: a camera looks along its +z, x is to the right and y down.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hotlap.base.errors import ConfigError
from hotlap.base.format import format_count
from hotlap.data.pinhole import Lens, Pinhole

if TYPE_CHECKING:
    import numpy as np

MOST_ROUNDING = 1e-4
"""Of the distance between cameras: splats are trained in float32, and steps of their centres that are smaller than the
spacing of its numbers are lost. A step begins with about this much."""

HOLD_OUT_EVERY = 8
"""Every eighth view by name is held out, as all published figures do."""


@dataclass(frozen=True, kw_only=True, eq=False)
class View:
    """One photograph and where it was taken; the pixels are on disk until ``load_view`` reads them."""

    name: str
    """As the scene's own files name it; unique in the scene."""
    image: Path
    """The picture file."""
    mask: Path | None = None
    """A picture file that is black where pixels must not be learned from."""
    camera_from_world: np.ndarray
    """[4, 4] float64, a rotation and a shift."""
    camera: Pinhole
    """Of the picture as ``load_view`` gives it: at that size, and without the lens."""
    lens: Lens | None = None
    """What loading undoes; None: the file is a pinhole picture already."""
    background: tuple[int, int, int] = (0, 0, 0)
    """The colour behind transparent pixels."""

    def position(self) -> np.ndarray:  # [3] float64
        """Where the camera stood, in the world."""
        rotation, shift = self.camera_from_world[:3, :3], self.camera_from_world[:3, 3]
        return -rotation.T @ shift


@dataclass(frozen=True, kw_only=True, eq=False)
class LoadedView:
    """The pixels of a view and the camera that belongs to them."""

    image: np.ndarray
    """[H, W, 3] uint8."""
    mask: np.ndarray | None
    """[H, W] bool, True where pixels count; None: everywhere."""
    camera: Pinhole
    """Of these pixels."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Scene:
    """Photographs of one place with their cameras, and points to begin from."""

    folder: Path
    """What was read."""
    views: tuple[View, ...]
    """Sorted by name."""
    points: np.ndarray
    """[P, 3] float32 in the world; all finite."""
    colors: np.ndarray
    """[P, 3] uint8, of the points."""
    white_background: bool | None = None
    """Whether transparent pixels were put on white or black; None: no picture has any."""
    held_out: tuple[str, ...] | None = None
    """Names of views that a file of the scene sets aside; None: no file does."""
    random_points: bool = False
    """The files have no points, and these were drawn at random from a fixed seed."""
    missing: tuple[str, ...] = ()
    """Names of views that were left out because their pictures are not there."""
    unused: tuple[str, ...] = ()
    """Pictures in the folder that no view names."""
    idle_masks: tuple[str, ...] = ()
    """Masks that are there, where no view has one."""
    num_bad_points: int = 0
    """Points that were left out because a coordinate is not finite."""

    def split(self, every: int = HOLD_OUT_EVERY) -> tuple[tuple[View, ...], tuple[View, ...]]:
        """The views to train on and those held out: what a file says, else every ``every``-th from the first.

        With ``every`` = 0, or a single view, nothing is held out.
        """
        if every < 0 or every == 1:
            raise ConfigError(
                f"every = {every} leaves no view to train on", expected="0 (hold out nothing) or at least 2"
            )
        if not every or len(self.views) == 1:
            aside = set()
        elif self.held_out is not None:
            aside = set(self.held_out)
        else:
            aside = {view.name for view in self.views[::every]}
        train = tuple(view for view in self.views if view.name not in aside)
        return train, tuple(view for view in self.views if view.name in aside)

    def notes(self) -> tuple[str, ...]:
        """What a user should know about how the files were taken, as sentences; empty if all is plain."""
        said = []
        if self.missing:
            count = format_count(len(self.missing), "view has", "views have")
            said.append(f"{count} no picture, left out: {first_few(self.missing)}")
        if self.unused:
            count = format_count(len(self.unused), "picture belongs", "pictures belong")
            said.append(f"{count} to no view: {first_few(self.unused)}")
        if self.idle_masks:
            count = format_count(len(self.idle_masks), "mask has", "masks have")
            said.append(f"{count} no view's name, not used: {first_few(self.idle_masks)}")
        if self.num_bad_points:
            said.append(f"{format_count(self.num_bad_points, 'point')} with coordinates that are not finite, left out")
        if self.random_points:
            said.append(f"the scene has no points: {len(self.points)} were drawn at random")
        return (*said, *self._far_away())

    def _far_away(self) -> tuple[str, ...]:
        """What is lost where a scene lies so far from the origin that float32 is coarse, as on a map of the earth."""
        import numpy as np

        places = np.array([view.position() for view in self.views]).reshape(-1, 3)
        reach = float(np.abs(places).max(initial=0.0))
        apart = float(np.linalg.norm(places - places.mean(0), axis=1).max(initial=0.0)) if len(places) > 1 else 0.0
        rounding = float(np.spacing(np.float32(reach)))
        if not apart or rounding <= MOST_ROUNDING * apart:
            return ()
        return (
            f"the scene lies {reach:.3g} from the origin and its cameras within {apart:.3g}: splats there can only be "
            f"placed to {rounding:.2g}, and are trained badly; move its cameras and points to the origin",
        )


def first_few(names: tuple[str, ...] | list[str], most: int = 3) -> str:
    """The first names of a list that may be long, in quotes, with dots if there are more."""
    return ", ".join(repr(name) for name in names[:most]) + (", ..." if len(names) > most else "")
