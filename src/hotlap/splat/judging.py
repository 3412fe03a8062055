"""All views of one model judged, each drawn once: their scores, a table of them, some beside their photographs."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from hotlap.base import events
from hotlap.base.events import Emit, ignore
from hotlap.engine.durable import write_durably
from hotlap.splat.album import file_names, save_picture, sheet_of, side_by_side
from hotlap.splat.cameras import Cameras
from hotlap.splat.judge import Model, Score, judged
from hotlap.splat.pictures import Pictures

SCORES = "scores.csv"
PICTURES = "pictures"
"""The folder of pictures beside their photographs."""
SHEET, SHEET_ROWS = "sheet.jpg", 4
"""Some of the pictures beside their photographs in one small file, and how many."""
REMEDY = "Free some space or choose another folder"


class Judging:
    """What is known of a model's views; they may be asked for in parts, and none is drawn again."""

    def __init__(
        self, model: Model, cameras: Cameras, pictures: Pictures, folder: Path, most: int, *, lpips: str | None
    ) -> None:
        """Of ``most`` views a picture beside the photograph is kept, of four in a sheet."""
        self.model, self._cameras, self._pictures, self._folder = model, cameras, pictures, folder
        self._lpips, self._files = lpips, file_names(cameras.names)
        self._counting = [number for number in range(len(cameras)) if pictures.counts[number]]
        self._shown = set(self._counting[:: max(1, -(-len(cameras) // most))]) if most else set()
        self._scores: dict[int, Score] = {}
        self._rows: dict[int, np.ndarray] = {}
        self.sheet: dict[str, Any] = {}
        """File, width and height of the sheet, once it is written."""

    def scores(self, which: Iterable[int], emit: Emit = ignore) -> list[Score]:
        """Those of some views by number; a view of which a mask leaves no pixel has none."""
        wanted = [number for number in which if self._pictures.counts[number]]
        fresh = [number for number in wanted if number not in self._scores]
        found = judged(self.model, self._cameras, self._pictures, fresh, lpips=self._lpips)
        for number, (score, drawn, photograph) in zip(fresh, found, strict=True):
            self._scores[number] = score
            if number in self._shown:
                self._rows[number] = side_by_side(photograph, drawn)
            emit(events.advance("judge", len(self._scores), len(self._cameras), f"PSNR {score.psnr:.2f}"))
        return [self._scores[number] for number in wanted]

    def close(self, emit: Emit) -> list[Score]:
        """The scores of all; pictures, sheet and table are written."""
        emit(events.start("judge", len(self._cameras)))
        scores = self.scores(self._counting, emit)
        emit(events.finish("judge"))
        rows = []
        for number in sorted(self._rows):
            rows.append(self._rows[number])
            save_picture(self._folder / PICTURES / self._files[number], rows[-1])
        if rows:
            sheet = sheet_of(rows[:: -(-len(rows) // SHEET_ROWS)])
            save_picture(self._folder / SHEET, sheet)
            self.sheet = {"file": SHEET, "width": sheet.shape[1], "height": sheet.shape[0]}
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(("name", "psnr", "ssim", "lpips"))
        writer.writerows((s.name, s.psnr, s.ssim, "" if s.lpips is None else s.lpips) for s in scores)
        write_durably(self._folder / SCORES, text.getvalue().encode(), remedy=REMEDY)
        return scores
