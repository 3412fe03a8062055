"""The arrays that every implementation of counting and looking up is judged by."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, kw_only=True)
class LookupCase:
    """Some samples and a table."""

    shape: tuple[int, ...]
    """Of the samples."""
    kind: str = "uint8"
    """Of the samples: uint8 or uint16."""
    gaps: bool = False
    """The samples are a view, turned around and with gaps."""

    @property
    def id(self) -> str:
        return f"{'x'.join(map(str, self.shape))}-{self.kind}{'-gaps' if self.gaps else ''}"

    def make(self) -> tuple[np.ndarray, np.ndarray]:
        """Samples, and a table of bytes."""
        draw, num = np.random.default_rng(0), np.iinfo(self.kind).max + 1
        samples = draw.integers(num, size=self.shape).astype(self.kind)
        return samples[::-1, ::2] if self.gaps else samples, draw.integers(256, size=num, dtype=np.uint8)


CASES = tuple(
    LookupCase(shape=shape, kind=kind, gaps=gaps)
    for kind in ("uint8", "uint16")
    for shape, gaps in (((0, 3), False), ((1, 1, 1), False), ((37, 29, 3), False), ((37, 29, 3), True))
)
"""Nothing, one, a picture, and a part of one."""
