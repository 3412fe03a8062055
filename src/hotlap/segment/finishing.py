"""One picture from its maps to its files: the same work in a thread of a run and in a process beside it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from hotlap.base.errors import DataError
from hotlap.segment.done import Done
from hotlap.segment.exports import OUTLINED, picture_entry, picture_files
from hotlap.segment.predict import ManyConfig, segment_maps

Answer = dict[str, Any] | str
"""What was noted of a picture that is finished, or why it has no results."""


class Facts(NamedTuple):
    """What is known of one picture besides its pixels."""

    name: str
    file_name: str
    digest: str
    num_pages: int


@dataclass(frozen=True, kw_only=True)
class Finishing:
    """What all pictures of a folder have in common once the network has seen them."""

    names: tuple[str, ...]
    """Of the maps."""
    many: ManyConfig
    formats: tuple[str, ...]
    category: str
    done: Done

    @property
    def needs_picture(self) -> bool:
        """Whether a format shows the picture itself."""
        return "overlay" in self.formats

    def one(self, facts: Facts, maps: np.ndarray, picture: np.ndarray | None) -> Answer:  # [M, H, W], [H, W, 3] uint8
        """Works out one picture's results and writes them, and last that it is finished."""
        try:
            found = segment_maps(maps, self.names, self.many, outlined=not OUTLINED.isdisjoint(self.formats))
            del maps  # as large as all that comes now
            made = picture_files(facts.name, found, picture, self.formats, self.category)
            page = int(facts.name.rpartition("_page")[2]) if facts.num_pages > 1 else None
            entry = picture_entry(facts.name, facts.file_name, found, self.formats, page)
            entry |= {"digest": facts.digest, "num_pages": facts.num_pages, "page": page or 0}
            self.done.write(entry, made)
        except DataError as error:
            return str(error)
        return entry
