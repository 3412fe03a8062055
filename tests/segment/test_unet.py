import os
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader

from hotlap.base.errors import ConfigError, DataError, TargetError
from hotlap.segment import presets
from hotlap.segment.loss import IGNORE, pixel_cross_entropy
from hotlap.segment.metrics import mask_agreement, segmentation_scores
from hotlap.segment.model import UNet
from hotlap.segment.workload import UNetWorkload, unet
from hotlap.targets import load_target

CPU = torch.device("cpu")
REAL_DATA = Path(os.environ.get("HOTLAP_TEST_DATA", Path(__file__).parents[3] / "shared" / "data")) / "dsb2018"


def train(workload, device, steps, dtype=torch.float32, seed=0):
    """Steps of plain training on ``device``: the loss of each, and the model."""
    torch.manual_seed(seed)
    model = workload.build_model().to(device, dtype)
    optimizer = workload.optimizer(model)
    generator = torch.Generator().manual_seed(seed)
    losses = []
    for _ in range(steps):
        image, mask = workload.make_batch(workload.default_batch, device, generator)
        total, count = workload.loss(model, (image.to(dtype), mask))
        optimizer.zero_grad()
        (total / count).backward()
        optimizer.step()
        losses.append((total / count).item())
    return losses, model


def test_full_size_has_31_043_651_parameters():
    with torch.device("meta"):
        model = load_target("unet").build_model()
    assert sum(p.numel() for p in model.parameters()) == 31_043_651


@pytest.mark.parametrize(("height", "width"), [(16, 16), (17, 40), (33, 31), (5, 64)])
def test_any_size_works(height, width):
    model = UNet(classes=4, width=2).eval()
    assert model(torch.rand(2, 3, height, width)).shape == (2, 4, height, width)


def test_a_whole_multiple_of_16_is_not_touched_by_the_padding():
    model = UNet(classes=2, width=2).eval()
    image = torch.rand(1, 3, 20, 20)
    extended = torch.nn.functional.pad(image, (0, 12, 0, 12), mode="replicate")
    torch.testing.assert_close(model(image), model(extended)[..., :20, :20])


def test_loss_is_a_sum_over_labelled_pixels():
    logits = torch.randn(2, 3, 4, 4, dtype=torch.float64)
    mask = torch.randint(3, (2, 4, 4))
    mask[0, 0, :3] = IGNORE
    total, count = pixel_cross_entropy(logits, mask)
    want = sum(
        -logits[n, :, y, x].log_softmax(0)[mask[n, y, x]].item()
        for n in range(2)
        for y in range(4)
        for x in range(4)
        if mask[n, y, x] != IGNORE
    )
    assert total.item() == pytest.approx(want)
    assert count.item() == 29


def test_seeing_only_background_scores_badly():
    """A picture's background alone must not pass for a segmentation."""
    workload = UNetWorkload(presets.small())

    class OnlyBackground(torch.nn.Module):
        def forward(self, image):
            return torch.tensor([1.0, 0.0, 0.0]).view(1, 3, 1, 1).expand(len(image), 3, *image.shape[-2:])

    scores = workload.metrics(OnlyBackground(), workload.eval_data(), CPU)
    assert scores["dice_1"] == scores["dice_2"] == scores["iou_1"] == scores["iou_2"] == 0
    assert scores["dice"] < 0.34 and scores["pixel_accuracy"] > 0.7


def test_scores_of_a_perfect_and_an_absent_class():
    scores = segmentation_scores(torch.tensor([[6, 2, 0], [1, 3, 0], [0, 0, 0]]))
    assert scores["dice_0"] == pytest.approx(12 / 15) and scores["iou_1"] == pytest.approx(3 / 6)
    assert "dice_2" not in scores
    assert scores["dice"] == pytest.approx((12 / 15 + 6 / 9) / 2)


def test_metrics_leave_the_mode_as_it_was():
    workload = unet(width=2, size=16, train_images=2, eval_images=3, batch=2)
    model = workload.build_model()
    for training in (True, False):
        model.train(training)
        workload.metrics(model, workload.eval_data(), CPU)
        assert model.training is training


def test_agreement_is_the_overlap_of_the_masks():
    ref = torch.zeros(1, 2, 10, 10)
    ref[:, 1, :5] = 1
    ref[:, 0, 5:] = 1
    out = ref.clone()
    assert mask_agreement(out, ref)[0].passed
    out[0, 1, 5, :2] = 2
    (agreement,) = mask_agreement(out, ref)
    assert agreement.value == pytest.approx((50 / 52 + 48 / 50) / 2) and not agreement.passed
    assert mask_agreement(out, torch.zeros_like(ref)) == [], "nothing is decided, so nothing can be judged"


def test_the_generator_alone_decides_a_batch(device):
    workload = unet(width=2, size=32)
    first, again, other = (
        workload.make_batch(3, device, torch.Generator().manual_seed(seed))[1].cpu() for seed in (1, 1, 2)
    )
    assert torch.equal(first, again) and not torch.equal(first, other)


def test_agrees_with_float64_on_the_cpu(device, plain_float32):
    """Fresh outputs within 1e-4, as float32 sums of a few hundred terms are; the losses of four steps within 1e-3.

    Adam divides each gradient by its own size, so the rounding of near-zero gradients comes back magnified.
    """
    workload = unet(width=4, size=32, batch=4, lr=1e-3)
    image, _ = workload.make_batch(4, CPU, torch.Generator().manual_seed(9))
    out, ref = (train(workload, d, 0, t)[1](image.to(d, t)) for d, t in ((device, torch.float32), (CPU, torch.float64)))
    torch.testing.assert_close(out.cpu().double(), ref, rtol=1e-4, atol=1e-4)
    got, want = train(workload, device, 4)[0], train(workload, CPU, 4, torch.float64)[0]
    assert got == pytest.approx(want, rel=1e-3)


def test_training_learns_the_shapes(device):
    """Sizes of a test; the full size and its scores are in docs/unet.md."""
    workload = unet(width=8, size=32, batch=16, eval_images=32, lr=5e-3)
    losses, model = train(workload, device, 80)
    scores = workload.metrics(model, workload.eval_data(), device)
    assert losses[-1] < 0.4 * losses[0]
    assert scores["dice"] > 0.7 and scores["dice_1"] > 0.5 and scores["dice_2"] > 0.5


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"classes": 1}, "classes = 1"),
        ({"classes": 256}, "classes = 256"),
        ({"size": 0}, "size = 0"),
        ({"label_kind": "boxes"}, "label_kind = 'boxes'"),
    ],
)
def test_bad_settings_are_named(options, message):
    with pytest.raises(ConfigError, match=message):
        unet(**options)


def test_bad_targets_are_named(tmp_path):
    with pytest.raises(TargetError, match="no option 'widht'"):
        load_target("unet", {"widht": 3})
    with pytest.raises(DataError, match="images' does not exist"):
        load_target("unet", {"data": str(tmp_path)})


def test_real_images():
    if not REAL_DATA.is_dir():
        pytest.skip(f"no real data at {REAL_DATA}")
    workload = unet(classes=2, width=4, size=64, data=str(REAL_DATA), label_kind="instances", lr=3e-3)
    train_data, eval_data = workload.train_data(), workload.eval_data()
    assert (len(train_data), len(eval_data)) == (240, 60)
    image, mask = next(iter(DataLoader(eval_data, 8)))
    assert image.shape == (8, 3, 64, 64) and mask.unique().tolist() == [0, 1]
    losses, _ = train(workload, CPU, 3)
    assert all(loss == loss for loss in losses)
