"""The figures of trainings, drawn from the journals beside their records; several share one frame."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path

from hotlap.base.errors import RecordError
from hotlap.base.format import format_number
from hotlap.engine.journal import Row, read_journal
from hotlap.engine.pace import PaceRow, read_pace
from hotlap.records.run import RunRecord
from hotlap.tools.report.curves import Axis, Curve, draw_curves
from hotlap.tools.report.figures import Figure, figure
from hotlap.tools.report.svg import jpeg, svg
from hotlap.tools.report.view import TRAININGS

NUM_COLOURS = 8
NAMES = {"psnr": "PSNR", "ssim": "SSIM", "lpips": "LPIPS"}
"""How scores are written that are known by their letters."""
UNITS = {"psnr": "dB"}
Point = tuple[float, float]


@dataclass(frozen=True, kw_only=True)
class Log:
    """What a training logged."""

    label: str
    rows: list[Row]
    pace: list[PaceRow]
    judged: str = "held-out data"
    """What its scores are of."""

    def points(self, split: str, name: str) -> list[Point]:
        return [(row.step, row.values[name]) for row in self.rows if row.split == split and name in row.values]

    def timed(self, split: str, name: str) -> list[Point]:
        """The same over the seconds that training took; steps between two known times in proportion."""
        return [(self._seconds(step), value) for step, value in self.points(split, name)] if self.pace else []

    def paced(self, name: str) -> list[Point]:
        return [(row.step, row.values[name]) for row in self.pace if name in row.values]

    def _seconds(self, step: float) -> float:
        place = bisect_right(self.pace, step, key=lambda row: row.step)
        start, begin = (self.pace[place - 1].step, self.pace[place - 1].seconds) if place else (0, 0.0)
        if place == len(self.pace):
            return begin
        after = self.pace[place]
        return begin + (after.seconds - begin) * (step - start) / (after.step - start)


def training_log(record: RunRecord, label: str = "") -> Log | None:
    """The journal beside a training's record; None of any other record, or where nothing was logged."""
    if record.kind not in TRAININGS or not record.path:
        return None
    folder = Path(record.path).parent
    try:
        rows = read_journal(folder)
    except RecordError:
        return None  # it ended before its first row, or only its record was copied here
    judged = "its own picture" if is_of_one_picture(record) else "held-out data"
    return Log(label=label or record.name, rows=rows, pace=read_pace(folder), judged=judged) if rows else None


def is_of_one_picture(record: RunRecord) -> bool:
    """Whether a training holds none out, and its scores are of the one picture that it learned from."""
    return record.config.get("image_index") is not None


def training_figures(record: RunRecord) -> list[Figure]:
    """A training's pictures; loss, scores, learning rate, micro-batch, speed and number of splats over its steps."""
    log = training_log(record)
    if log is None:
        return []
    found = [_sheet_figure(record, log), _loss_figure(log), *_score_figures(log)]
    found += [
        _steps_figure("Learning rate", "learning rate", log.points("train", "lr")),
        _steps_figure("Gradient length", "length before clipping", log.points("train", "grad_norm")),
        _micro_figure(log),
        _steps_figure("Speed", "samples/s", log.paced("samples_per_s"), zero=True),
        _steps_figure("How busy the card was", "GPU utilisation, %", log.paced("utilisation"), zero=True),
        _steps_figure("Splats", "splats", log.points("train", "splats"), zero=True),
    ]
    return [drawn for drawn in found if drawn is not None]


def _loss_figure(log: Log) -> Figure | None:
    train, held_out = log.points("train", "loss"), log.points("eval", "loss")
    curves = [Curve(label="training", css="a1", points=train)] if train else []
    curves += [Curve(label="held-out data", css="a2", points=held_out, marked=True)] if held_out else []
    caption = "Training: the mean of the steps since the point before."
    if held_out:
        caption = f"{caption[:-1]}, with dropout and augmentation. Dots: evaluations."
    return _figure("Loss", curves, Axis(x="optimizer step", y="loss"), caption)


def _score_figures(log: Log) -> list[Figure | None]:
    """Scores between 0 and 1 share a frame; any other has its own, with what it is in training where that is known."""
    scores = {name: log.points("eval", name) for name in _eval_names(log) if name != "loss"}
    shares = {name: points for name, points in scores.items() if all(0 <= value <= 1 for _, value in points)}
    curves = [
        Curve(label=_named(name), css=_colour(place + 2), points=points, marked=True)
        for place, (name, points) in enumerate(shares.items())
    ]
    what = f"score on {log.judged}" if len(curves) > 1 else f"{curves[0].label} on {log.judged}" if curves else ""
    title = "Scores" if len(curves) > 1 or not curves else curves[0].label
    others = [_score_figure(log, name) for name in scores if name not in shares]
    return [_figure(title, curves, Axis(x="optimizer step", y=what)), *others]


def _score_figure(log: Log, name: str) -> Figure | None:
    held_out, train = log.points("eval", name), log.points("train", name)
    curves = [Curve(label="training", css="a1", points=train)] if train else []
    curves += [Curve(label=log.judged, css="a2" if train else "a3", points=held_out, marked=True)]
    return _figure(_named(name), curves, Axis(x="optimizer step", y=_named(name)))


def _sheet_figure(record: RunRecord, log: Log) -> Figure | None:
    """Some of the pictures that it was judged by, if their file lies beside the record."""
    sheet = (record.extra.get("outcome") or {}).get("sheet")
    file = Path(record.path).parent / str(sheet["file"]) if sheet else None
    if not sheet or file is None or not file.is_file():
        return None
    content, shape = file.read_bytes(), sheet["height"] / sheet["width"]
    told = f"Photographs ({log.judged}), what was drawn there, and three times their difference."
    return figure("Pictures", lambda width: svg(width, shape * width, told, jpeg(width, shape * width, content)), told)


def _named(name: str) -> str:
    """A score as an axis names it."""
    return ", ".join([NAMES.get(name, name), *filter(None, [UNITS.get(name)])])


def told_score(name: str, value: float) -> str:
    """A score in a sentence."""
    return f"{NAMES.get(name, name)} {format_number(value)} {UNITS.get(name, '')}".rstrip()


def _micro_figure(log: Log) -> Figure | None:
    rows = log.points("train", "micro")
    changes = [after for before, after in pairwise(rows) if after[1] != before[1]]
    points = [*rows[:1], *changes, *rows[-1:]]
    caption = "Samples on the device at once. It falls where memory ran out and the step was replayed in smaller parts."
    if len({value for _, value in points}) < 2:
        return None  # the story says it: nothing happened
    curve = Curve(label="micro-batch", css="a4", points=points, stepped=True)
    return _figure("Micro-batch", [curve], Axis(x="optimizer step", y="samples", zero=True), caption)


def _steps_figure(
    title: str, what: str, points: Sequence[Point], *, zero: bool = False, marked: bool = False
) -> Figure | None:
    curve = Curve(label=what, css="a3", points=points, marked=marked)
    return _figure(title, [curve] if points else [], Axis(x="optimizer step", y=what, zero=zero))


def comparison_figures(records: Sequence[RunRecord]) -> list[Figure]:
    """Several trainings of one target in shared frames, such as CPU against GPU; none for fewer than two.

    Titles name the target where more than one is compared.
    """
    groups: dict[str, list[Log]] = {}
    for number, record in enumerate(records, 1):
        log = training_log(record, f"{number}. {_short(record)}")
        if log is not None:
            groups.setdefault(str(record.config.get("target") or record.name), []).append(log)
    compared = {target: logs for target, logs in groups.items() if len(logs) > 1}
    return [
        replace(figure, title=f"{target}: {figure.title}") if len(compared) > 1 else figure
        for target, logs in compared.items()
        for figure in _shared_frames(logs)
    ]


def _shared_frames(logs: Sequence[Log]) -> list[Figure]:
    """Loss over steps and over time, scores and speed."""
    steps, seconds = "optimizer step", "seconds of training"
    is_timed = all(log.pace for log in logs)
    has_eval = all(log.points("eval", "loss") for log in logs)
    split, kind = ("eval", "loss on held-out data") if has_eval else ("train", "training loss")
    common = [name for name in _eval_names(logs[0]) if all(name in _eval_names(log) for log in logs) and name != "loss"]
    found = [
        _overlay("Loss over steps", logs, lambda log: log.points(split, "loss"), Axis(x=steps, y=kind)),
        _overlay("Loss over time", logs, lambda log: log.timed(split, "loss"), Axis(x=seconds, y=kind)),
    ]
    for name in common:
        points = partial(Log.timed if is_timed else Log.points, split="eval", name=name)
        axis = Axis(x=seconds if is_timed else steps, y=_named(name))
        found.append(_overlay(_named(name), logs, points, axis))
    speed = Axis(x=steps, y="samples/s", zero=True)
    found.append(_overlay("Speed", logs, lambda log: log.paced("samples_per_s"), speed, marked=False))
    return [drawn for drawn in found if drawn is not None]


def _eval_names(log: Log) -> list[str]:
    return list(dict.fromkeys(name for row in log.rows if row.split == "eval" for name in row.values))


def _short(record: RunRecord) -> str:
    """What tells one training of a page from another: target, device, precision or preset."""
    parts = (record.name, device_of(record), *(record.config.get(name, "") for name in ("precision", "preset")))
    return " ".join(str(part) for part in parts if part)


def device_of(record: RunRecord) -> str:
    """Where a training ran, in a word."""
    device = str(record.config.get("device", ""))
    return ("cuda" if record.environment.gpus else "cpu") if device in ("", "auto") else device


def _overlay(
    title: str, logs: Sequence[Log], points: Callable[[Log], list[Point]], axis: Axis, *, marked: bool = True
) -> Figure | None:
    curves = [
        Curve(label=log.label, css=_colour(place), points=points(log), marked=marked) for place, log in enumerate(logs)
    ]
    return _figure(title, [curve for curve in curves if curve.points], axis)


def _figure(title: str, curves: Sequence[Curve], axis: Axis, caption: str = "") -> Figure | None:
    if not curves:
        return None
    legend = [(curve.css, curve.label) for curve in curves] if len(curves) > 1 else None
    return figure(title, lambda width: draw_curves(curves, width, axis), caption, legend=legend)


def _colour(place: int) -> str:
    return f"a{1 + place % NUM_COLOURS}"
