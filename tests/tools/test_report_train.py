"""A training on the page and on the terminal: its story first, its curves, several of them in one frame."""

from __future__ import annotations

import base64
import dataclasses
import re

import pytest
from fake_trainings import splat_training, training

from hotlap.cli.show_train import training_rows
from hotlap.records.run import load_record
from hotlap.tools.report import render
from hotlap.tools.report.curves import Axis, Curve, draw_curves, thinned
from hotlap.tools.report.training import comparison_figures, training_figures, training_log


def titles(html: str) -> list[str]:
    return re.findall(r"<h4>(.*?)</h4>", html)


def words(html: str) -> str:
    """What is read of a page, without its marks."""
    return re.sub(r"<[^>]+>", "", html)


def test_a_training_is_told_first_and_then_drawn(tmp_path):
    html = render([training(tmp_path / "a")])
    story, curves = html.index("Memory ran out 2 times; no step was lost"), html.index("How it went")
    assert html.index("trained 600 steps") < story < curves
    drawn = ["Loss", "Scores", "Learning rate", "Micro-batch", "Speed", "How busy the card was"]
    assert [title for title in titles(html) if title in drawn] == drawn
    assert "Can it be trusted?" not in html
    for words in ("optimizer step", "samples/s", "learning rate", "held-out data"):
        assert words in html


def test_the_curves_are_those_of_the_journal(tmp_path):
    loss, scores, *_ = training_figures(training(tmp_path / "a"))
    label = re.search(r'aria-label="(.*?)"', loss.desk)[1]
    assert re.match(r"loss over optimizer step: training from 2.\d+ to 0.\d+; held-out data from 1.\d+ to 0.\d+", label)
    assert loss.legend == [("a1", "training"), ("a2", "held-out data")]
    assert [name for _, name in scores.legend] == ["accuracy", "macro_f1"]


def test_trainings_on_one_page_share_frames_over_steps_and_time(tmp_path):
    card = training(tmp_path / "a")
    host = training(tmp_path / "b", device="cpu", rate=90.0)
    html = render([card, host])
    assert "Trainings side by side" in html
    found = comparison_figures([card, host])
    assert [figure.title for figure in found] == ["Loss over steps", "Loss over time", "accuracy", "macro_f1", "Speed"]
    assert [name for _, name in found[0].legend] == ["1. unet cuda bf16-mixed", "2. unet cpu bf16-mixed"]
    assert "seconds of training" in found[1].desk
    slow, fast = (training_log(record).timed("eval", "loss")[-1][0] for record in (host, card))
    assert slow / fast == pytest.approx(1200 / 90)


def test_a_training_alone_or_beside_none_of_its_kind_is_not_compared(tmp_path):
    assert comparison_figures([training(tmp_path / "a")]) == []


def test_a_steady_micro_batch_needs_no_figure(tmp_path):
    record = training(tmp_path / "a", rows=10)
    journal = tmp_path / "a" / "metrics.jsonl"
    journal.write_text(re.sub(r'"micro": [\d.]+', '"micro": 64.0', journal.read_text()))
    assert "Micro-batch" not in [figure.title for figure in training_figures(record)]


@pytest.mark.parametrize("status", ["interrupted", "failed"])
def test_a_training_without_a_journal_or_an_outcome_is_still_a_page(tmp_path, status):
    record = training(tmp_path / "a")
    (tmp_path / "a" / "metrics.jsonl").unlink()
    record = dataclasses.replace(record, status=status, verdict=None, extra={}, notes=["it broke"])
    html = render([record])
    assert "How it went" not in html
    assert ("--resume" in html) == (status == "interrupted")
    assert f"the training {status}" in html
    assert training_rows(record) == []


def test_the_table_says_what_was_reached_and_where_it_lies(tmp_path):
    record = load_record(training(tmp_path / "a", resumed_from=120).path)
    rows = dict(training_rows(record))
    assert rows["reached"] == "step 600, 6 epochs of 6, resumed from step 120"
    assert rows["metrics"] == "loss 0.2100, accuracy 0.9300"
    assert rows["best"] == "accuracy 0.9400"
    assert rows["speed"] == "1,234 samples/s"
    assert rows["memory"] == "3.00 GiB on the device, 1.00 GiB on the host at most"
    assert rows["micro-batch"] == "16 samples at a time; memory ran out 2 times"
    assert rows["restarts"] == "1 after a death"
    assert rows["best checkpoint"].endswith("step-00000500-0123456789abcdef.pt")
    assert rows["bad samples"].startswith("3, in ")


def test_a_training_under_another_trainer_names_no_number_of_epochs(tmp_path):
    record = dataclasses.replace(training(tmp_path / "a"), config={"micro": None})
    assert dict(training_rows(record))["reached"] == "step 600, 6 epochs"


def test_a_figure_that_was_not_finite_is_a_dash(tmp_path):
    rows = dict(training_rows(training(tmp_path / "a", metrics={"loss": None}, samples_per_s=None, micro=None)))
    assert rows["metrics"] == "loss –"
    assert "speed" not in rows
    assert rows["micro-batch"].startswith("the whole batch at a time")


def test_many_points_are_averaged_and_odd_ones_left_out():
    points = [(float(step), float(step % 2)) for step in range(1000)] + [(1000.0, float("nan"))]
    found = thinned(points, most=100)
    assert len(found) == 100
    assert found[0] == (4.5, 0.5)


def test_a_trained_scene_is_shown_with_its_pictures_and_its_curves(tmp_path):
    record = splat_training(tmp_path / "a")
    sheet, loss, ssim, psnr, splats = training_figures(record)
    content = re.search(r"data:image/jpeg;base64,([^\"]+)", sheet.desk)[1]
    assert base64.b64decode(content) == (tmp_path / "a" / "sheet.jpg").read_bytes()
    assert 'width="800" height="200"' in sheet.desk and "Photographs (held-out data)" in sheet.caption
    assert "dropout" not in loss.caption, "there is neither that nor a held-out loss"
    assert "SSIM on held-out data over optimizer step" in ssim.desk
    assert psnr.title == "PSNR, dB" and psnr.legend == [("a1", "training"), ("a2", "held-out data")]
    assert "splats from 2,000 to 4,000" in splats.desk
    told = words(render([record]))
    for line in (
        f"hotlap splat view {tmp_path / 'a'}",
        "every process draws one of the pictures",
        "one training with one seed",
    ):
        assert line in told
    (tmp_path / "a" / "sheet.jpg").unlink()
    assert [figure.title for figure in training_figures(record)] == ["Loss", "SSIM", "PSNR, dB", "Splats"]


def test_scores_of_a_training_on_one_picture_are_not_called_held_out(tmp_path):
    told = words(render([splat_training(tmp_path / "a", image_index=3)]))
    assert "SSIM on its own picture" in told and "held-out" not in told


def test_a_stopped_training_of_splats_names_what_goes_on_with_it(tmp_path):
    told = words(render([splat_training(tmp_path / "a", status="interrupted")]))
    assert f"hotlap splat train --out {tmp_path / 'a'} --resume" in told and "hotlap splat train --resume" in told
    assert "hotlap splat view" not in told


def test_trainings_of_one_scene_share_frames_over_their_steps(tmp_path):
    records = [splat_training(tmp_path / "a"), splat_training(tmp_path / "b", preset="fast")]
    found = comparison_figures(records)
    assert [figure.title for figure in found] == ["Loss over steps", "PSNR, dB", "SSIM"]
    assert [name for _, name in found[0].legend] == ["1. garden cuda default", "2. garden cuda fast"]
    told = words(render(records))
    assert "on cuda 40 steps in 2.50 s, PSNR 14.0 dB, SSIM 0.900" in told
    for line in ("hotlap profile splat --set workload.scene=garden", *(f"splat view {tmp_path / n}" for n in "ab")):
        assert line in told


@pytest.mark.parametrize("width", [340.0, 800.0])
@pytest.mark.parametrize(
    "points",
    [
        [],
        [(5, 1.0)],
        [(0, 0.0), (1, 0.0)],
        [(1, 1e-9), (2, 1e9)],
        [(1, float("inf")), (2, float("nan"))],
        [(1, -3.0), (9, 4.0)],
    ],
)
def test_curves_of_extremes_stay_in_their_frame(points, width):
    for stepped in (False, True):
        known = [p for p in points if abs(p[1]) < 1e30]
        curve = Curve(label="x", css="a1", points=known if stepped else points, stepped=stepped)
        drawing = draw_curves([curve], width, Axis(x="step", y="loss"))
        numbers = [float(v) for v in re.findall(r'(?:x|cx)="(-?[\d.]+)"', drawing)]
        assert all(-1 <= v <= width + 1 for v in numbers)
        assert "nan" not in drawing.partition(">")[2].replace("step", "").lower()


def test_far_apart_values_get_a_log_axis():
    curve = Curve(label="x", css="a1", points=[(1, 0.001), (2, 10.0)])
    assert "loss (log)" in draw_curves([curve], 800.0, Axis(x="step", y="loss"))
    assert "(log)" not in draw_curves([curve], 800.0, Axis(x="step", y="loss", zero=True))
