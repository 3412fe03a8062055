"""The samples that a training left out, each once, in a file of its folder."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from hotlap.engine.durable import write_durably
from hotlap.engine.samples import Skipped

BAD_SAMPLES = "bad_samples.txt"


class BadSamples:
    """Bad samples by data set and index; the file has a line for each: data set, index, where, why, by tabs."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / BAD_SAMPLES
        self._found: dict[tuple[str, int], Skipped] = {}

    def __len__(self) -> int:
        return len(self._found)

    def add(self, split: str, found: Iterable[Skipped]) -> list[Skipped]:
        """Those that were not known before."""
        new = [bad for bad in found if (split, bad.index) not in self._found]
        self._found |= {(split, bad.index): bad for bad in new}
        return new

    def write(self) -> None:
        """Brings the file up to date; without a bad sample there is none."""
        rows = [(split, str(i), bad.where, bad.reason) for (split, i), bad in sorted(self._found.items())]
        if not rows:
            self._path.unlink(missing_ok=True)
            return
        text = "".join("\t".join(" ".join(cell.split()) for cell in row) + "\n" for row in rows)
        content = text.encode(errors="backslashreplace")  # names of files need not be text
        write_durably(self._path, content, remedy="Free some space, then go on with --resume")

    def state(self) -> list[list[str | int]]:
        return [[split, index, bad.where, bad.reason] for (split, index), bad in sorted(self._found.items())]

    def load(self, state: Iterable[Iterable[str | int]]) -> None:
        for split, index, where, reason in state:
            self.add(str(split), [Skipped(index=int(index), where=str(where), reason=str(reason))])
