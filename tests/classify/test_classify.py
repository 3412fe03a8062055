import importlib
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from hotlap.base.errors import ConfigError, DataError, EnvironmentUnusable, TargetError, UnknownName
from hotlap.classify import presets
from hotlap.classify.loss import image_cross_entropy
from hotlap.classify.metrics import image_scores
from hotlap.classify.model import build_classifier
from hotlap.classify.workload import ClassifyWorkload, classify
from hotlap.data.jpeg_folder import JpegRecipe, write_jpeg_folder
from hotlap.targets import load_target
from hotlap.workload import BadSample

Image = pytest.importorskip("PIL.Image", reason="reading images needs Pillow")
pytest.importorskip("torchvision", reason="the models and the crops are torchvision's")
CPU = torch.device("cpu")
TINY = {"model": "tiny", "norm": "group", "size": 32}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pictures")
    write_jpeg_folder(folder, JpegRecipe(classes=3, train_images=12, eval_images=6, side=48))
    return folder


def tiny(**options):
    return classify(**{**TINY, **options})


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[key].cpu(), other[key].cpu()) for key in one)


def seeded(data, position, seed):
    torch.manual_seed(seed)
    return data[position]


@pytest.mark.parametrize(
    ("model", "norm", "num"),
    [
        ("resnet18", "batch", 11_181_642),
        ("resnet18", "group", 11_181_642),
        ("resnet50", "batch", 23_528_522),
        ("vit_tiny_patch16_224", "batch", 5_526_346),
        ("tiny", "group", 98_970),
    ],
)
def test_models_have_their_known_size(model, norm, num):
    if model.startswith("vit_"):
        pytest.importorskip("timm", reason="ViTs are timm's")
    with torch.device("meta"):
        net = build_classifier(model, classes=10, size=224, norm=norm)
    assert sum(p.numel() for p in net.parameters()) == num
    has_batch_norm = any(isinstance(m, torch.nn.BatchNorm2d) for m in net.modules())
    assert has_batch_norm == (norm == "batch" and not model.startswith("vit_"))


def test_a_vit_takes_the_size_it_is_given():
    pytest.importorskip("timm", reason="ViTs are timm's")
    workload = classify(model="vit_tiny_patch16_224", size=32, classes=4)
    batch = workload.make_batch(2, CPU, torch.Generator().manual_seed(0))
    assert workload.predict(workload.build_model(), batch).shape == (2, 4)
    with pytest.raises(UnknownName, match=r"model = 'vit_tiny_patch16_225' is not known to timm.*vit_tiny_patch16_224"):
        build_classifier("vit_tiny_patch16_225", classes=2, size=32, norm="batch")


@pytest.mark.parametrize(("package", "model"), [("timm", "vit_tiny_patch16_224"), ("torchvision", "resnet18")])
def test_a_missing_package_is_named_with_its_remedy(monkeypatch, package, model):
    for name in [name for name in sys.modules if name.partition(".")[0] == package]:
        monkeypatch.delitem(sys.modules, name)
    importing = importlib.import_module

    def without(name, *rest):
        if name.partition(".")[0] == package:
            raise ModuleNotFoundError(f"No module named {package!r}", name=package)
        return importing(name, *rest)

    monkeypatch.setattr(importlib, "import_module", without)
    with pytest.raises(EnvironmentUnusable, match=rf"{model} needs {package}.*pip install 'hotlap\[vision\]'"):
        classify(model=model).build_model()


def test_loss_is_a_sum_over_images():
    logits, labels = torch.randn(4, 3, dtype=torch.float64), torch.tensor([0, 2, 1, 1])
    total, count = image_cross_entropy(logits, labels)
    want = sum(-row.log_softmax(0)[label].item() for row, label in zip(logits, labels, strict=True))
    assert total.item() == pytest.approx(want) and count == 4


def test_scores_by_hand():
    logits = torch.eye(7)[[0, 0, 1, 2]] - torch.linspace(0, 0.1, 7)  # the best five of each row: 0-4
    scores = image_scores([(logits[:3], torch.tensor([0, 1, 1])), (logits[3:], torch.tensor([6]))], 7)
    assert scores["accuracy"] == 0.5 and scores["top5"] == 0.75
    assert scores["macro_f1"] == pytest.approx((2 / 3 + 2 / 3 + 0 + 0) / 4)
    assert "top5" not in image_scores([(torch.eye(5), torch.arange(5))], 5), "five of five are always among the best"


def test_scores_cover_the_last_short_batch_and_leave_the_mode(folder, device):
    workload = tiny(data=str(folder), batch=4)

    class Squares(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros(()))

        def forward(self, image):
            return torch.tensor([0.0, 0.0, 1.0], device=image.device).expand(len(image), 3) + self.weight

    model = Squares().to(device)
    for training in (True, False):
        scores = workload.metrics(model.train(training), workload.eval_data(), device)
        assert scores["accuracy"] == pytest.approx(2 / 6) and model.training is training


def test_samples_collate_to_what_make_batch_gives(folder):
    for options in ({}, {"jitter": 0.2}, {"augment": "cpu"}, {"augment": "none"}):
        for data in ("", str(folder)):
            workload = tiny(data=data, train_images=10, eval_images=10, **options)
            made = workload.make_batch(3, CPU, torch.Generator().manual_seed(0))
            loaded = next(iter(DataLoader(workload.train_data(), 3, collate_fn=workload.collate)))
            assert {k: (v.shape, v.dtype) for k, v in made.items()} == {
                k: (v.shape, v.dtype) for k, v in loaded.items()
            }
            assert made["image"].dtype == (torch.float32 if options.get("augment") == "cpu" else torch.uint8)
            assert next(iter(made)) == "image"


def test_the_generator_alone_decides_a_batch(folder, device):
    for data in ("", str(folder)):
        workload = tiny(data=data, jitter=0.3)
        batches = []
        for seed, before in ((1, 5), (1, 6), (2, 5)):
            torch.manual_seed(before)
            state = torch.get_rng_state()
            batches.append(workload.make_batch(4, device, torch.Generator().manual_seed(seed)))
            assert torch.equal(torch.get_rng_state(), state), "torch's own generator is left alone"
        assert same(batches[0], batches[1]) and not same(batches[0], batches[2])
        assert batches[0]["image"].device.type == device.type


def test_a_seeded_sample_is_repeatable_and_seeds_differ(folder):
    data = tiny(data=str(folder), jitter=0.3).train_data()
    first, again, other = (seeded(data, 5, seed) for seed in (1, 1, 2))
    assert same(first, again) and not same(first, other)
    assert same(*(tiny(data=str(folder)).eval_data()[2] for _ in range(2)))


def test_both_places_to_augment_see_the_same_picture(folder, device):
    """Rounding apart, see test_augment."""
    on_device, on_cpu = (tiny(data=str(folder), jitter=0.3, augment=a) for a in ("device", "cpu"))
    samples = [[seeded(w.train_data(), i, i) for i in range(6)] for w in (on_device, on_cpu)]
    torch.manual_seed(0)
    model = on_device.build_model().to(device)
    outs = []
    for workload, some in zip((on_device, on_cpu), samples, strict=True):
        batch = {key: value.to(device) for key, value in workload.collate(some).items()}
        outs.append(workload.predict(model, batch))
    assert {bool(sample["flip"]) for sample in samples[0]} == {True, False}
    torch.testing.assert_close(*outs, rtol=1e-3, atol=1e-3)


def test_random_crops_lie_within_the_picture_and_vary(folder):
    data = tiny(data=str(folder), min_crop=0.2).train_data()
    torch.manual_seed(0)
    boxes = [data._random_box(48, 36) for _ in range(50)]
    areas = [(right - left) * (bottom - top) / (48 * 36) for left, top, right, bottom in boxes]
    assert all(0 <= le < ri <= 48 and 0 <= to < bo <= 36 for le, to, ri, bo in boxes)
    assert min(areas) > 0.15 and max(areas) > 0.8 and len(set(boxes)) > 40


def test_a_split_batch_has_the_whole_ones_gradients(device, plain_float32):
    """With group norm, in float64: only the order of a sum differs."""
    workload = tiny(jitter=0.2)
    batch = workload.make_batch(7, device, torch.Generator().manual_seed(3))
    grads = []
    for cuts in ([], [2, 5]):
        torch.manual_seed(0)
        model = workload.build_model().to(device).double()
        for part in zip(*(tensor.tensor_split(cuts) for tensor in batch.values()), strict=True):
            workload.loss(model, dict(zip(batch, part, strict=True)))[0].backward()
        grads.append([p.grad for p in model.parameters()])
    torch.testing.assert_close(grads[0], grads[1], rtol=1e-9, atol=1e-9)


def test_agrees_with_float64_on_the_cpu(device, plain_float32):
    """Float32 sums of a few hundred terms: 1e-4."""
    workload = tiny(norm="batch")
    outs = []
    for where, dtype in ((device, torch.float32), (CPU, torch.float64)):
        torch.manual_seed(0)
        model = workload.build_model().to(where, dtype)
        outs.append(workload.predict(model, workload.make_batch(6, where, torch.Generator().manual_seed(9))))
    torch.testing.assert_close(outs[0].cpu().double(), outs[1], rtol=1e-4, atol=1e-4)


def test_norms_and_biases_do_not_decay():
    workload = tiny(lr=0.5)
    model = workload.build_model()
    decaying, free = workload.optimizer(model).param_groups
    assert decaying["weight_decay"] > 0 == free["weight_decay"] and decaying["lr"] == 0.5
    assert len(decaying["params"]) + len(free["params"]) == len(list(model.parameters()))
    assert all(p.ndim == 1 for p in free["params"]) and len(decaying["params"]) == 5


@pytest.fixture
def spoiled(tmp_path):
    write_jpeg_folder(tmp_path, JpegRecipe(classes=2, train_images=6, eval_images=4, side=48))
    paths = sorted(tmp_path.glob("*/disc/*.jpg"))
    for path, content in zip(paths, (b"", b"no picture", paths[2].read_bytes()[:-200]), strict=False):
        path.write_bytes(content)
    return tmp_path


def test_bad_files_are_bad_samples_and_all_others_come_through(spoiled):
    workload = tiny(data=str(spoiled))
    bad, good = [], 0
    for position in range(len(workload.train_data())):
        try:
            workload.train_data()[position]
            good += 1
        except BadSample as error:
            bad.append((Path(error.where).name, error.reason))
    assert good == 3 and [name for name, _ in bad] == ["000000.jpg", "000002.jpg", "000004.jpg"]
    assert [reason for _, reason in bad][:2] == ["the file is empty", "no known picture format"]
    assert "truncated" in bad[2][1]


def test_batches_to_measure_with_are_whole_as_long_as_there_are_good_files(spoiled):
    workload = tiny(data=str(spoiled))
    batches = [workload.make_batch(32, CPU, torch.Generator().manual_seed(0)) for _ in range(2)]
    assert len(batches[0]["image"]) == 32 and same(*batches)
    for path in (spoiled / "train").rglob("*.jpg"):
        path.write_bytes(b"")
    with pytest.raises(BadSample, match=r"train/.*: the file is empty"):
        workload.make_batch(2, CPU, torch.Generator().manual_seed(0))


def test_a_bad_sample_stops_the_scores(spoiled):
    workload = tiny(data=str(spoiled))
    next(iter((spoiled / "val" / "ring").iterdir())).write_bytes(b"")
    with pytest.raises(BadSample, match=r"val/ring/.*: the file is empty.*--on-bad-sample skip"):
        workload.metrics(workload.build_model(), workload.eval_data(), CPU)


def test_drawn_files_are_made_only_when_asked_for(tmp_path):
    workload = tiny(train_images=20, eval_images=10)
    workload.make_batch(2, CPU, torch.Generator().manual_seed(0))
    cache = tmp_path / "cache" / "hotlap" / "jpeg"
    assert not cache.exists()
    assert (len(workload.train_data()), len(workload.eval_data())) == (20, 10)
    assert len(list(cache.rglob("*.jpg"))) == 30
    with Image.open(workload.train_data().files.paths[0]) as image:
        assert max(image.size) == 48, "half as much again as the network sees"


def test_unused_outputs_are_allowed_but_too_few_are_not(folder):
    wide = tiny(data=str(folder), classes=12)
    batch = wide.make_batch(2, CPU, torch.Generator().manual_seed(0))
    assert wide.predict(wide.build_model(), batch).shape == (2, 12) and wide.class_names == ["disc", "ring", "square"]
    assert tiny(classes=4).class_names == ["disc", "ring", "square", "triangle"]
    with pytest.raises(ConfigError, match=r"classes = 2 is too few for .*at least 3"):
        tiny(data=str(folder), classes=2)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"model": "resnet19"}, UnknownName, "model = 'resnet19' is not known.*resnet18"),
        ({"norm": "layer"}, ConfigError, "norm = 'layer' is not valid.*batch, group"),
        ({"norm": "group", "model": "vit_tiny_patch16_224"}, ConfigError, "norm = 'group' does not fit model = 'vit_"),
        ({"size": 0}, ConfigError, "size = 0"),
        ({"batch": 0}, ConfigError, "batch = 0"),
        ({"classes": 1}, ConfigError, "classes = 1"),
        ({"classes": -1}, ConfigError, "classes = -1"),
        ({"hold_out": 1}, ConfigError, "hold_out = 1 .*at least 2"),
        ({"augment": "gpu"}, ConfigError, "augment = 'gpu'.*auto, cpu, device, none"),
        ({"jitter": 1.0}, ConfigError, "jitter = 1.0"),
        ({"min_crop": 0.0}, ConfigError, "min_crop = 0.0"),
        ({"data": "nowhere"}, DataError, "folder 'nowhere' does not exist"),
    ],
)
def test_bad_settings_are_named(options, error, message):
    with pytest.raises(error, match=message):
        classify(**options)


def test_the_target_is_registered():
    workload = load_target("classify", {**TINY, "classes": 5})
    assert isinstance(workload, ClassifyWorkload) and workload.summary == "tiny, 5 classes, 32x32 drawn pictures"
    with pytest.raises(TargetError, match="no option 'sise'"):
        load_target("classify", {"sise": 3})
    out = torch.tensor(np.eye(3))
    assert workload.compare(out, out)[0].passed and not workload.compare(out.flip(0), out)[0].passed


@pytest.fixture
def one_thread():
    """So small a network gains nothing from more, and loses much where cores are shared."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_training_on_files_learns_the_classes(device, one_thread):
    """Far better than a chance of 0.1 after a few passes; docs/classify.md has the scores of longer trainings."""
    workload = ClassifyWorkload(replace(presets.small(), batch=16))
    torch.manual_seed(0)
    model = workload.build_model().to(device)
    optimizer = workload.optimizer(model)
    data = workload.train_data()
    for _ in range(5):
        for samples in DataLoader(data, 16, shuffle=True, collate_fn=workload.collate):
            total, count = workload.loss(model, {key: value.to(device) for key, value in samples.items()})
            optimizer.zero_grad()
            (total / count).backward()
            optimizer.step()
    scores = workload.metrics(model, workload.eval_data(), device)
    assert scores["accuracy"] >= 0.25 and scores["top5"] >= 0.8
