"""What is done with a trained model: judged, drawn, exported, described, from the command line."""

from __future__ import annotations

import errno
import json
import os
import re
from dataclasses import fields, replace
from pathlib import Path
from shutil import copytree

import numpy as np
import pytest
import torch

from hotlap.base.errors import ConfigError, DataError, RecordError, StorageError
from hotlap.cli.main import run
from hotlap.data.colmap import read_model, write_model
from hotlap.data.splats import read_splats
from hotlap.splat.album import save_picture
from hotlap.splat.config import (
    SplatEvalConfig,
    SplatExportConfig,
    SplatInfoConfig,
    SplatRenderConfig,
    SplatTrainConfig,
    SplatViewConfig,
    config_with,
)
from hotlap.splat.evaluate import evaluate
from hotlap.splat.judge import Model, similarity
from hotlap.splat.opened import export, info, open_splats
from hotlap.splat.photos_config import SplatPhotosConfig
from hotlap.splat.render import find_shots, read_named, read_path, render
from hotlap.splat.stage import open_scene
from hotlap.splat.train import train

CAMERA = """[{"width": 8, "height": 8, "fx": 1, "fy": 1, "position": [0, 0, 0],
"rotation": [[1, 0, 0], [0, 1, 0], [0, 0, 1]]}]"""
FOUR_ROWS = """[{"width": 8, "height": 8, "fx": 1, "fy": 1,
"camera_from_world": [[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 2]]}]"""


@pytest.fixture(scope="module")
def trained(scene_folder, tmp_path_factory):
    """The folder of a short training."""
    out = tmp_path_factory.mktemp("trained") / "run"
    train(config_with(scene=str(scene_folder), out=str(out), device="cpu", steps=6, log_every=3, sh_degree=1,
                      background="learn", strategy="none"))  # fmt: skip
    return out


def picture(path: Path) -> np.ndarray:
    from PIL import Image

    return np.asarray(Image.open(path)).astype(float)


def test_a_judgement_from_disk_is_that_of_the_training(trained):
    heard = []
    found = evaluate(SplatEvalConfig(run=str(trained), device="cpu"), heard.append)
    assert heard[-1].text == f"scores and pictures are in {trained / 'eval'}"
    want = json.loads((trained / "results.json").read_text())
    assert found["mean"]["psnr"] == pytest.approx(want["held_out"]["psnr"], abs=1e-4)
    assert found["mean"]["ssim"] == pytest.approx(want["held_out"]["ssim"], abs=1e-5)
    assert found["lpips"] != "" and (trained / "eval" / "results.json").is_file()
    both = picture(trained / "eval" / "pictures" / "view_000.png")
    assert both.shape == (32, 3 * 48 + 8, 3)
    rows = 2 * round(32 * 1200 / (3 * 48 + 8)) + 4
    assert picture(trained / "sheet.jpg").shape == picture(trained / "eval" / "sheet.jpg").shape == (rows, 1200, 3)
    assert want["sheet"] == {"file": "sheet.jpg", "width": 1200, "height": rows}
    seen = evaluate(SplatEvalConfig(run=str(trained), device="cpu", train_views=True, pictures=0, lpips=False))
    assert len(seen["images"]) == 14 and seen["lpips"] == "not asked for"


def test_a_judgement_that_cannot_be_kept_is_not_begun(trained, monkeypatch):
    monkeypatch.setattr("hotlap.splat.evaluate.os.access", lambda path, how: Path(path).name != "eval")
    monkeypatch.setattr(Model, "draw", lambda *given: pytest.fail("it was drawn"))
    with pytest.raises(StorageError, match="eval' may not be written"):
        evaluate(SplatEvalConfig(run=str(trained), device="cpu"))


def test_views_are_drawn_as_they_were_judged(trained):
    files = render(SplatRenderConfig(model=str(trained), device="cpu"))
    assert [path.name for path in files] == ["view_000.png", "view_008.png"]
    judged = picture(trained / "pictures" / "view_000.png")[:, 48 + 4 : 2 * 48 + 4]
    assert np.abs(picture(files[0]) - judged).max() <= 1


@pytest.fixture(scope="module")
def two_cameras(scene_folder, tmp_path_factory):
    """The folder of a training on a scene whose pictures have the same names in two folders, and two sizes."""
    from PIL import Image

    folder, model = tmp_path_factory.mktemp("two") / "scene", read_model(scene_folder / "sparse" / "0")
    images = []
    for number, image in enumerate(model.images):
        name = f"{'left' if number < 8 else 'right'}/{number % 8}.png"
        (folder / "images" / name).parent.mkdir(parents=True, exist_ok=True)
        size = (48, 32) if number < 8 else (24, 16)
        Image.open(scene_folder / "images" / image.name).resize(size).save(folder / "images" / name)
        images.append(replace(image, name=name))
    write_model(folder / "sparse" / "0", replace(model, images=tuple(images)))
    out = folder.with_name("run")
    train(config_with(scene=str(folder), out=str(out), device="cpu", steps=2, strategy="none", poses=True,
                      lr_poses=0.02))  # fmt: skip
    return out


def test_pictures_of_one_name_in_two_folders_are_both_kept(two_cameras):
    want = ["0000_0.png", "0001_0.png"]
    assert sorted(path.name for path in (two_cameras / "pictures").iterdir()) == want
    files = render(SplatRenderConfig(model=str(two_cameras), device="cpu"))
    assert [path.name for path in files] == want
    assert [picture(path).shape for path in files] == [(32, 48, 3), (16, 24, 3)]


@pytest.mark.parametrize("ending", ["mp4", "gif"])
def test_a_video_of_pictures_of_two_sizes_is_refused(two_cameras, tmp_path, ending):
    config = SplatRenderConfig(model=str(two_cameras), device="cpu", out=str(tmp_path / f"a.{ending}"))
    with pytest.raises(ConfigError, match=r"pictures of 2 sizes, 24x16, 48x32.*--width and --height"):
        render(config)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["a.mp4", "a.gif", "a"])
def test_a_place_that_cannot_be_written_is_told(trained, tmp_path, name):
    if name == "a.mp4":
        pytest.importorskip("imageio_ffmpeg")
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match=r"cannot write .*file/a.*Not a directory"):
        render(SplatRenderConfig(model=str(trained), device="cpu", out=str(tmp_path / "file" / name)))


def test_a_picture_that_cannot_be_written_whole_leaves_the_one_before(tmp_path, monkeypatch):
    def full(_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    path, black = tmp_path / "view.png", np.zeros((4, 6, 3), np.uint8)
    save_picture(path, black)
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StorageError, match=r"cannot write .*view\.png': No space left on device\. Free some space"):
        save_picture(path, black + 255)
    assert [one.name for one in tmp_path.iterdir()] == ["view.png"] and (picture(path) == 0).all()


def test_training_pictures_are_judged_from_their_refined_poses(two_cameras):
    config = SplatEvalConfig(run=str(two_cameras), device="cpu", train_views=True, pictures=0, lpips=False)
    refined = evaluate(config)["mean"]["psnr"]
    path = two_cameras / "settings.json"
    said = path.read_text()
    path.write_text(said.replace('"poses": true', '"poses": false'))
    try:
        assert evaluate(config)["mean"]["psnr"] != refined
    finally:
        path.write_text(said)
    (two_cameras / "cameras.json").write_text(CAMERA)
    with pytest.raises(DataError, match=r"view 'left/1.png' is not in .*cameras.json"):
        evaluate(config)


def test_ssim_is_of_the_pixels_that_count():
    generator = torch.Generator().manual_seed(0)
    drawn, photograph = (torch.rand(40, 60, 3, generator=generator) for _ in range(2))
    photograph, mask = (photograph * 255).to(torch.uint8), torch.ones(40, 60)
    plain = similarity(drawn, photograph)
    assert similarity(drawn, photograph, mask) == pytest.approx(plain, abs=1e-5)
    mask[:, 30:] = 0
    assert similarity(drawn, photograph, mask) == pytest.approx(similarity(drawn[:, :30], photograph[:, :30]), abs=1e-5)
    assert similarity(photograph / 255, photograph, mask) == pytest.approx(1)


def test_a_picture_that_is_masked_all_over_has_no_score(scene_folder, tmp_path):
    from PIL import Image

    folder, out = tmp_path / "scene", tmp_path / "run"
    copytree(scene_folder, folder)
    (folder / "masks").mkdir()
    Image.new("L", (48, 32), 0).save(folder / "masks" / "view_000.png")
    train(config_with(scene=str(folder), out=str(out), device="cpu", steps=4, strategy="none", eval_every=2))
    results = json.loads((out / "results.json").read_text())
    assert [image["name"] for image in results["images"]] == ["view_008.png"]
    assert results["held_out"]["psnr"] == results["images"][0]["psnr"] < 50
    Image.new("L", (48, 32), 0).save(folder / "masks" / "view_008.png")
    with pytest.raises(DataError, match="leave no pixel to judge by"):
        evaluate(SplatEvalConfig(run=str(out), device="cpu"))
    with pytest.raises(ConfigError, match="pictures = -1 is not valid"):
        SplatEvalConfig(run=str(out), pictures=-1)


def test_an_orbit_goes_round_at_the_size_asked_for(trained, tmp_path):
    out = str(tmp_path / "orbit")
    files = render(SplatRenderConfig(model=str(trained), path="orbit", frames=3, out=out, width=30, device="cpu"))
    pictures = [picture(path) for path in files]
    assert len(pictures) == 3 and pictures[0].shape == (20, 30, 3)
    assert np.abs(pictures[0] - pictures[1]).mean() > 1


def test_a_file_of_splats_has_an_orbit_but_no_views(trained, tmp_path):
    model = str(trained / "model.ply")
    shots = render(SplatRenderConfig(model=model, path="orbit", frames=2, out=str(tmp_path), width=32, device="cpu"))
    assert picture(shots[0]).max() > 0
    with pytest.raises(ConfigError, match=r"path = 'views' with model = .*model\.ply"):
        render(SplatRenderConfig(model=model, device="cpu"))


def test_views_that_were_trained_on_are_drawn_from_their_refined_poses(scene_folder, tmp_path):
    out = str(tmp_path / "run")
    train(config_with(scene=str(scene_folder), out=out, device="cpu", steps=20, sh_degree=0, strategy="none",
                      poses=True, lr_poses=0.01, hold_out=0))  # fmt: skip
    opened = open_splats(out)
    shots, refined = find_shots(SplatRenderConfig(model=out), opened), read_named(tmp_path / "run" / "cameras.json")
    assert len(shots) == 16 and all(np.array_equal(shot.pose, refined[shot.name].pose) for shot in shots)
    before = {view.name: view.camera_from_world for view in open_scene(opened.config).views}
    assert any(np.abs(shot.pose - before[shot.name]).max() > 1e-3 for shot in shots)


def test_the_cameras_of_a_training_are_a_path(trained, tmp_path):
    shots = read_path(trained / "cameras.json")
    assert len(shots) == 14 and (shots[0].camera.width, shots[0].camera.height) == (48, 32)
    rows = json.loads((trained / "cameras.json").read_text())
    back = np.linalg.inv(shots[3].pose)
    assert np.allclose(back[:3, 3], rows[3]["position"]) and np.allclose(back[:3, :3], rows[3]["rotation"])
    direct = tmp_path / "direct.json"
    direct.write_text(
        json.dumps([{"width": 8, "height": 6, "fx": 9, "fy": 9, "camera_from_world": np.eye(4).tolist()}])
    )
    assert np.array_equal(read_path(direct)[0].pose, np.eye(4)) and read_path(direct)[0].camera.cx == 4


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "is no JSON"),
        ("[]", "holds no list of cameras"),
        ('[{"width": 8}]', "camera 0 of .* is malformed: KeyError 'height'"),
        ("[3]", "camera 0 of .* is malformed: TypeError"),
        (CAMERA.replace('"fx": 1', '"fx": 0'), "fx = 0"),
        (CAMERA.replace("[0, 0, 0]", "[0, 0, NaN]"), "camera 0 .* not finite"),
        (CAMERA.replace("[1, 0, 0]", "[2, 0, 0]"), "camera 0 .* no rotation. Expected rows of length 1"),
        (CAMERA.replace("[1, 0, 0]", "[-1, 0, 0]"), "camera 0 .* no rotation"),
        (FOUR_ROWS, r"camera 0 .* has \[0.0, 0.0, 0.0, 2.0\] as its fourth row. Expected 0, 0, 0, 1"),
        (CAMERA.replace('"fx": 1', '"fx": 1e200'), "camera 0 .* beyond those of 32 bits"),
    ],
)  # fmt: skip
def test_paths_that_cannot_be_followed_are_refused(tmp_path, content, message):
    path = tmp_path / "path.json"
    path.write_text(content)
    with pytest.raises(DataError, match=message):
        read_path(path)


def test_a_camera_of_too_many_pixels_is_refused(trained, tmp_path):
    path = tmp_path / "path.json"
    path.write_text(CAMERA.replace('"width": 8', '"width": 1000000').replace('"height": 8', '"height": 1000000'))
    config = SplatRenderConfig(model=str(trained), path=str(path), out=str(tmp_path / "out"), device="cpu")
    with pytest.raises(ConfigError, match="frame_0000 would have 1000000x1000000 pixels"):
        render(config)
    assert len(render(replace(config, width=8))) == 1


def test_a_video_without_two_pixels_a_side_is_refused(trained, tmp_path):
    pytest.importorskip("imageio_ffmpeg")
    out = str(tmp_path / "orbit.mp4")
    with pytest.raises(ConfigError, match=r"orbit\.mp4' with pictures of 1x9 pixels"):
        render(SplatRenderConfig(model=str(trained), path="orbit", frames=2, out=out, width=1, height=9, device="cpu"))


def test_a_video_has_all_frames(trained, tmp_path):
    imageio = pytest.importorskip("imageio_ffmpeg")
    out = tmp_path / "orbit.mp4"
    config = SplatRenderConfig(model=str(trained), path="orbit", frames=5, out=str(out), fps=5, width=31, device="cpu")
    assert render(config) == [out]
    frames, seconds = imageio.count_frames_and_secs(str(out))
    assert frames == 5 and seconds == pytest.approx(1.0, abs=0.3)


def test_a_gif_has_all_frames_and_repeats(trained, tmp_path):
    from PIL import Image

    out = tmp_path / "orbit.gif"
    config = SplatRenderConfig(model=str(trained), path="orbit", frames=3, out=str(out), fps=20, width=30, device="cpu")
    assert render(config) == [out]
    with Image.open(out) as film:
        assert (film.n_frames, film.size, film.info["duration"], film.info["loop"]) == (3, (30, 20), 50, 0)
        first = np.asarray(film.convert("RGB")).astype(float)
    want = render(SplatRenderConfig(model=str(trained), path="orbit", frames=3, out=str(tmp_path), width=30))
    assert np.abs(first - picture(want[0])).mean() < 8


def test_a_video_needs_its_extra(trained, tmp_path, monkeypatch):
    import sys

    from hotlap.base.errors import EnvironmentUnusable

    monkeypatch.setitem(sys.modules, "imageio_ffmpeg", None)
    with pytest.raises(EnvironmentUnusable, match=r"orbit\.mp4.*hotlap\[video\]"):
        render(
            SplatRenderConfig(model=str(trained), path="orbit", frames=1, out=str(tmp_path / "orbit.mp4"), device="cpu")
        )


def test_exported_files_hold_the_same_splats(trained, tmp_path):
    whole = read_splats(trained / "model.ply")
    path = export(SplatExportConfig(model=str(trained), out=str(tmp_path / "plain.ply"), sh_degree=0))
    assert read_splats(path).sh_degree == 0 and np.array_equal(read_splats(path).means, whole.means)
    path = export(SplatExportConfig(model=str(trained), out=str(tmp_path / "all.ply"), sh_degree=3))
    assert read_splats(path).sh_degree == whole.sh_degree == 1, "what is not there is not kept"
    path = export(SplatExportConfig(model=str(trained), out=str(tmp_path / "some.ply"), min_opacity=0.1))
    some = read_splats(path)
    assert 0 < len(some) < len(whole) and (some.logit_opacities >= np.log(0.1 / 0.9) - 1e-5).all()
    with pytest.raises(ConfigError, match="min_opacity = 2 is not valid"):
        export(SplatExportConfig(model=str(trained), out=str(tmp_path / "x.ply"), min_opacity=2))
    with pytest.raises(DataError, match=rf"nothing is left of the {len(whole)} splats of '.*Lower --min-opacity"):
        export(SplatExportConfig(model=str(trained), out=str(tmp_path / "x.ply"), min_opacity=0.99999))
    assert not (tmp_path / "x.ply").exists()
    with pytest.raises(ConfigError, match="no out was given"):
        export(SplatExportConfig(model=str(trained)))


def test_without_masks_all_pixels_are_judged_by(scene_folder, tmp_path):
    from PIL import Image

    folder = tmp_path / "scene"
    copytree(scene_folder, folder)
    (folder / "masks").mkdir()
    for name in ("view_000.png", "view_008.png"):
        Image.new("L", (48, 32), 0).save(folder / "masks" / name)
    found = []
    for number, scene in enumerate((folder, scene_folder)):
        out = str(tmp_path / f"run{number}")
        train(config_with(scene=str(scene), out=out, device="cpu", steps=2, strategy="none", masks=False))
        found.append([image["psnr"] for image in evaluate(SplatEvalConfig(run=out, device="cpu"))["images"]])
    assert len(found[0]) == 2 and found[0] == found[1]


@pytest.mark.parametrize("name", ["a.ply", "a.spz"])
def test_an_antialiased_model_is_drawn_so_wherever_it_is_exported_to(scene_folder, tmp_path, name):
    run_folder, path = str(tmp_path / "run"), str(tmp_path / "path.json")
    train(config_with(scene=str(scene_folder), out=run_folder, device="cpu", steps=2, sh_degree=0, strategy="none",
                      start_scale=0.1, start_opacity=0.99, antialiased=True))  # fmt: skip
    rows = json.loads((tmp_path / "run" / "cameras.json").read_text())
    Path(path).write_text(json.dumps(rows[:1]))
    file = export(SplatExportConfig(model=run_folder, out=str(tmp_path / name)))
    assert read_splats(file).antialiased and read_splats(file).take(np.arange(3)).with_degree(1).antialiased
    drawn = [
        picture(render(SplatRenderConfig(model=str(model), path=path, out=str(tmp_path / out), device="cpu"))[0])
        for model, out in ((run_folder, "x"), (file, "y"))
    ]
    assert drawn[0].max() > 20 and np.abs(drawn[0] - drawn[1]).max() <= 8  # spz rounds a little


def test_splats_that_cannot_be_drawn_are_exported_without_only_if_asked_for(trained, tmp_path):
    whole = read_splats(trained / "model.ply")
    raw = bytearray((trained / "model.ply").read_bytes())
    raw[-4 * 4 :] = bytes(16)  # the last splat's rotation
    file, out = tmp_path / "damaged.ply", str(tmp_path / "whole.spz")
    file.write_bytes(raw)
    with pytest.raises(DataError, match=r"splat 399 of 400, and 0 others, .* rotation of length 0.*drop_bad"):
        export(SplatExportConfig(model=str(file), out=out))
    assert len(read_splats(export(SplatExportConfig(model=str(file), out=out, drop_bad=True)))) == len(whole) - 1


def test_info_knows_scenes_trainings_and_files(trained, scene_folder):
    scene = info(SplatInfoConfig(what=str(scene_folder)))
    assert (scene["pictures"], scene["train"], scene["points"]) == (16, 14, 400)
    found = info(SplatInfoConfig(what=str(trained)))
    assert found["splats"] == 400 and found["status"] == "complete" and found["scene"] == str(scene_folder)
    assert info(SplatInfoConfig(what=str(trained / "model.ply")))["sh_degree"] == 1
    with pytest.raises(DataError, match="'/nowhere/at/all' does not exist"):
        info(SplatInfoConfig(what="/nowhere/at/all"))


def test_info_of_splats_that_went_wrong_is_json_that_has_no_other_numbers(trained, tmp_path, capsys):
    whole = read_splats(trained / "model.ply")
    raw = (trained / "model.ply").read_bytes()
    header, rows = raw[: -400 * 104], np.frombuffer(raw[-400 * 104 :], np.float32).reshape(400, 26).copy()
    rows[7, -8], rows[:, -7] = np.nan, 3e38  # an opacity that is none, and needles beyond all numbers
    (tmp_path / "wrong.ply").write_bytes(header + rows.tobytes())
    assert run(["splat", "info", str(tmp_path / "wrong.ply"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    good = np.delete(whole.logit_opacities, 7)
    assert found["bad_splats"] == 1 and found["anisotropy_median"] > 1e300
    assert found["opacity_median"] == pytest.approx(float(torch.sigmoid(torch.from_numpy(good)).median()))


def test_info_of_a_scenes_other_pictures(scene_folder, trained, capsys):
    halves = info(SplatInfoConfig(what=str(scene_folder), factor=2))
    assert info(SplatInfoConfig(what=str(scene_folder)))["sizes"] == ["48x32"] and halves["sizes"] == ["24x16"]
    assert run(["splat", "info", str(scene_folder), "--images", "images_9"]) == 2
    assert "images_9" in capsys.readouterr().err
    assert run(["splat", "info", str(scene_folder)]) == 0
    said = capsys.readouterr().out
    assert "48x32" in said and "notes" not in said, "what there is nothing of has no line"
    with pytest.raises(ConfigError, match=r"images = 'images_2' with what = .*Expected the folder of a scene"):
        info(SplatInfoConfig(what=str(trained), images="images_2"))


def test_a_training_of_an_earlier_version_is_judged_and_drawn(trained, tmp_path):
    folder = tmp_path / "earlier"
    copytree(trained, folder)
    path = folder / "settings.json"
    gone = {"strategy": "budget", "adam": "auto", "densify_score": "error", "budget_power": 2.0}
    path.write_text(json.dumps({**json.loads(path.read_text()), **gone}))
    config = SplatEvalConfig(run=str(folder), device="cpu", pictures=0, lpips=False)
    want = json.loads((trained / "results.json").read_text())
    assert evaluate(config)["mean"]["psnr"] == pytest.approx(want["held_out"]["psnr"], abs=1e-4)


def test_what_is_no_training_is_told(tmp_path, trained):
    with pytest.raises(ConfigError, match="run = 'nothing' is no folder"):
        evaluate(SplatEvalConfig(run="nothing"))
    with pytest.raises(RecordError, match=r"no training at .*settings\.json"):
        render(SplatRenderConfig(model=str(tmp_path)))
    (tmp_path / "settings.json").write_text((trained / "settings.json").read_text())
    with pytest.raises(RecordError, match=r"has neither model\.ply nor a checkpoint.*--resume"):
        render(SplatRenderConfig(model=str(tmp_path)))
    with pytest.raises(ConfigError, match="no model was given"):
        render(SplatRenderConfig())


def test_the_command_line_trains_judges_draws_and_exports(scene_folder, tmp_path, capsys):
    out = str(tmp_path / "run")
    words = ["--preset", "m8-smoke", "--steps", "4", "--start-splats", "100", "--scale", "1", "--log-every", "2"]
    assert run(["splat", "train", str(scene_folder), "--out", out, *words, "--device", "cpu", "--json", "--quiet"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["kind"] == "splat" and record["config"]["steps"] == 4 and record["config"]["loss"] == "l2"
    assert record["config_sources"]["loss"] == "preset m8-smoke"
    assert run(["splat", "eval", out, "--device", "cpu", "--quiet"]) == 0
    assert "view_000.png" in capsys.readouterr().out
    assert run(["splat", "render", out, "--device", "cpu", "--quiet"]) == 0
    assert capsys.readouterr().out.strip().endswith("view_000.png")
    assert run(["splat", "export", out, "--out", str(tmp_path / "m.spz"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["files"] == [str(tmp_path / "m.spz")]
    assert run(["splat", "info", out]) == 0
    assert "m8-smoke" in capsys.readouterr().out
    assert run(["show", out]) == 0
    assert "trained 4 steps" in capsys.readouterr().out


def test_the_documentation_names_options_that_there_are():
    known = {"--dry-run", "--set", "--nproc-per-node", "--no-deps"}
    for kind in (SplatTrainConfig, SplatEvalConfig, SplatRenderConfig, SplatViewConfig, SplatExportConfig,
                 SplatInfoConfig, SplatPhotosConfig):  # fmt: skip
        for field in fields(kind):
            name = field.name.replace("_", "-")
            known |= {f"--{name}", *([f"--no-{name}"] if field.type == "bool" else [])}
    page = (Path(__file__).parents[2] / "docs" / "splat-training.md").read_text(encoding="utf-8")
    assert not set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", page)) - known


def test_the_command_line_explains_errors(tmp_path, capsys):
    assert run(["splat", "train", str(tmp_path / "nowhere"), "--quiet"]) == 2
    assert "nowhere" in capsys.readouterr().err
    assert run(["splat", "train", "drawn", "--preset", "m8", "--dry-run"]) == 0
    assert "preset m8" in capsys.readouterr().out
