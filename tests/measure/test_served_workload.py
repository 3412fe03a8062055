"""Any workload behind a service: the rows that come back are those the model gives, and bad pictures are named."""

from __future__ import annotations

import gc
import io
import weakref

import pytest
import torch

from hotlap.base.errors import DataError, OutOfMemory, TargetError, UsageError
from hotlap.device.seed import generator
from hotlap.measure.loaded_workload import watched
from hotlap.measure.servable import ModelSpec
from hotlap.measure.served_workload import LoadedWorkload, WorkloadServable, arm_on, decode_picture
from hotlap.targets import load_target

TINY = {"width": 2, "size": 32, "batch": 3}
SPEC = ModelSpec(name="tiny", target="unet", options=TINY)


@pytest.fixture(scope="module")
def loaded():
    return WorkloadServable(SPEC).load("cpu")


def picture(mode="RGB", size=(40, 20), kind="PNG", **save):
    from PIL import Image

    out = io.BytesIO()
    Image.new(mode, size, 128).save(out, kind, **save)
    return out.getvalue()


def test_the_model_answers_as_its_workload_does(device):
    from hotlap.device.seed import seed_everything

    served = WorkloadServable(SPEC).load(str(device))
    workload = load_target("unet", TINY)
    seed_everything(0)
    model = workload.build_model().eval()
    images, _ = workload.make_batch(3, torch.device("cpu"), generator(5))
    (out,) = served.run((images,))
    with torch.inference_mode():
        want = model(images)
    assert out.device.type == "cpu"
    torch.testing.assert_close(out, want, rtol=1e-3, atol=1e-3)


def test_the_signature_names_what_reaches_the_model_and_leaves_targets_out(loaded):
    (taken,), (given,) = loaded.signature.inputs, loaded.signature.outputs
    assert (taken.dtype, taken.shape) == ("float32", (3, 32, 32))
    assert given.shape == (3, 32, 32)
    assert (loaded.signature.rows, loaded.signature.arm) == (3, "cpu")


def test_whoever_watches_hears_of_a_model_before_it_is_built_and_before_its_full_batches():
    heard = []

    class Watcher:
        def loading(self, workload):
            heard.append(("loading", workload.name))
            return load_target("unet", {**TINY, "size": 64})

        def warming(self, example):
            heard.append(("warming", [tuple(tensor.shape) for tensor in example]))

    with watched(Watcher()):
        served = WorkloadServable(SPEC).load("cpu")
    assert heard == [("loading", "unet"), ("warming", [(2, 3, 64, 64)])]
    assert served.signature.inputs[0].shape == (3, 64, 64)
    assert WorkloadServable(SPEC).load("cpu").signature.inputs[0].shape == (3, 32, 32) and len(heard) == 2


def test_nothing_is_kept_of_a_model_that_is_not_used_any_more():
    served = WorkloadServable(SPEC).load("cpu")
    served.run((torch.rand(1, 3, 32, 32),))
    known = weakref.ref(served)
    del served
    gc.collect()
    assert known() is None


def test_a_full_batch_that_does_not_fit_at_the_start_is_halved(monkeypatch):
    honest = LoadedWorkload.run

    def cramped(self, rows):
        if rows[0].shape[0] > 2:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return honest(self, rows)

    monkeypatch.setattr(LoadedWorkload, "run", cramped)
    spec = ModelSpec(name="tiny", target="unet", options=TINY, rows=8)
    assert WorkloadServable(spec).load("cpu").signature.rows == 2
    monkeypatch.setattr(LoadedWorkload, "run", lambda self, rows: cramped(self, (torch.ones(9, 1),)))
    with pytest.raises(OutOfMemory, match="one row of model 'unet'"):
        WorkloadServable(spec).load("cpu")


def test_a_compiled_model_sees_few_sizes_of_batch(loaded, monkeypatch):
    seen = []
    honest = loaded._session.infer_on
    monkeypatch.setattr(loaded._session, "infer_on", lambda batch: seen.append(batch[0].shape[0]) or honest(batch))
    monkeypatch.setattr(loaded, "_pads", True)
    monkeypatch.setattr(loaded, "_full", 6)
    for rows in (1, 2, 3, 5, 6):
        (out,) = loaded.run((torch.rand(rows, 3, 32, 32),))
        assert out.shape[0] == rows
    assert seen == [1, 2, 4, 6, 6]


def test_a_picture_becomes_rows_and_classes_come_back_in_its_own_pixels(loaded):
    servable = WorkloadServable(SPEC)
    decoded = servable.decode(picture(), {}, loaded.signature)
    assert decoded.rows[0].shape == (1, 3, 32, 32)
    scores = torch.zeros(1, 3, 32, 32)
    scores[0, 1, :16] = 1.0
    answer = servable.finish((scores,), decoded.facts, {})
    assert (answer["width"], answer["height"]) == (40, 20)
    assert answer["classes"] == [
        {"class": 0, "share": 0.5, "box": [0.0, 10.0, 40.0, 20.0]},
        {"class": 1, "share": 0.5, "box": [0.0, 0.0, 40.0, 10.0]},
    ]


@pytest.mark.parametrize("mode", ["L", "LA", "P", "RGBA", "I;16", "1"])
def test_pictures_of_every_mode_are_read(mode):
    pixels, size = decode_picture(picture(mode), "a.png", (8, 8))
    assert (pixels.shape, size) == ((3, 8, 8), (40, 20))


def test_cmyk_and_a_single_pixel_are_pictures_too():
    assert decode_picture(picture("CMYK", kind="JPEG"), "a.jpg", (8, 8))[1] == (40, 20)
    assert decode_picture(picture(size=(1, 1)), "a.png", (8, 8))[0].shape == (3, 8, 8)


def test_a_picture_that_lies_on_its_side_is_put_upright():
    from PIL import Image

    exif = Image.Exif()
    exif[0x0112] = 6
    _, size = decode_picture(picture(kind="JPEG", exif=exif), "a.jpg", (8, 8))
    assert size == (20, 40)


def nan_tiff():
    import numpy as np
    from PIL import Image

    out = io.BytesIO()
    Image.fromarray(np.array([[0.5, float("nan")]], dtype=np.float32)).save(out, "TIFF")
    return out.getvalue()


def animation():
    from PIL import Image

    out = io.BytesIO()
    frames = [Image.new("RGB", (4, 4), colour) for colour in ("red", "blue")]
    frames[0].save(out, "GIF", save_all=True, append_images=frames[1:])
    return out.getvalue()


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (lambda: b"", "'x' cannot be read: the file is empty"),
        (lambda: b"not a picture", "'x' cannot be read: no known picture format"),
        (lambda: picture(size=(300, 300), kind="JPEG", quality=95)[:300], "'x' cannot be read"),
        (animation, "'x' has 2 frames"),
        (nan_tiff, "'x' holds NaN"),
        (lambda: picture("1", (60_000, 1_100)), "'x' has 60000x1100 pixels"),
    ],
    ids=["empty", "text", "truncated", "animated", "nan", "huge"],
)
def test_bad_pictures_are_refused_by_name(body, words):
    with pytest.raises(DataError, match=words):
        decode_picture(body(), "x", (8, 8))


def test_a_model_without_pictures_says_what_it_takes():
    from hotlap.measure.servable import Signature, TensorSpec

    taken = TensorSpec(name="tokens", dtype="int64", shape=(12,))
    signature = Signature(inputs=(taken,), outputs=(), rows=1, arm="cpu")
    with pytest.raises(UsageError, match=r"'tiny' takes no pictures.*tokens \[12\] int64"):
        WorkloadServable(SPEC).decode(picture(), {}, signature)


def test_an_arm_moves_to_the_device_it_is_served_on():
    assert arm_on("cuda:bf16+channels_last", "cuda:3").name == "cuda:3:bf16+channels_last"
    assert arm_on("", "cpu").name == "cpu"
    with pytest.raises(UsageError, match="'cuda:bf16' cannot run on device 'cpu'"):
        arm_on("cuda:bf16", "cpu")


def test_rows_of_several_requests_are_put_together_in_their_order(loaded):
    images = load_target("unet", TINY).make_batch(3, torch.device("cpu"), generator(7))[0]
    (want,) = loaded.run((images,))
    (got,) = loaded.begin([(images[:1],), (images[1:],)])()
    torch.testing.assert_close(got, want)
    loaded.resident([(images,)])()


ONE_BY_ONE = """
from torch import nn

class OneByOne(nn.Linear):
    def forward(self, x):
        return super().forward(x.view(1, 4))

class Mean(nn.Linear):
    def forward(self, x):
        return super().forward(x).mean()
"""


@pytest.fixture
def plain(tmp_path):
    file = tmp_path / "plain.py"
    file.write_text(ONE_BY_ONE + "\ndef one():\n    return OneByOne(4, 3)\n\ndef mean():\n    return Mean(4, 3)\n")
    return lambda name, rows: LoadedWorkload(load_target(f"{file}:{name}", {}, ["4"]), arm_on("", "cpu"), rows)


def test_a_model_that_takes_one_sample_at_a_time_is_served_so(plain):
    (out,) = plain("one", 1).run((torch.ones(1, 4),))
    assert out.shape == (1, 3)


def test_an_output_without_a_row_for_each_request_is_refused(plain):
    with pytest.raises(TargetError, match=r"gave an output of shape \[\] for 4 rows"):
        plain("mean", 4)
