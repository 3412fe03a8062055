"""A step against one written with autograd and torch's own Adam; what is learned beside the splats stays in bounds."""

from __future__ import annotations

import math
import shutil

import pytest
import torch

from hotlap.kernels.ssim.op import l1_ssim
from hotlap.splat.config import LEARNABLE
from hotlap.splat.rasterize import rasterize
from hotlap.splat.small_adam import Background, Exposure, moved_pose, pose_gradient
from hotlap.splat.step import KEPT_FRAMES, rates_of, shrunk

RATES_TOLERANCE = 2e-3
"""Of the largest move: Adam's first steps divide by the gradient's size, so that its rounding is not damped."""


def plain_steps(made, steps: int) -> dict[str, torch.Tensor]:
    """The parameters after some steps by autograd and ``torch.optim.Adam``."""
    config, stage = made.config, made.stage
    params = {name: made.state.alive(name).detach().clone().requires_grad_() for name in LEARNABLE}
    coefficients = params.pop("colors")
    constant = coefficients[:, :1].detach().clone().requires_grad_()
    others = coefficients[:, 1:].detach().clone().requires_grad_()
    rates = rates_of(config, stage.extent)
    groups = [{"params": [p], "lr": rates[name]} for name, p in params.items()]
    groups += [{"params": [constant], "lr": rates["colors"]}, {"params": [others], "lr": rates["colors"] / 20}]
    optimizer = torch.optim.Adam(groups, eps=1e-15)
    for step in range(steps):
        optimizer.param_groups[0]["lr"] = rates["means"] * config.lr_decay ** (step / config.steps)
        number = made.camera_at(step)
        height, width = stage.cameras.sizes[number]
        image, _, _ = rasterize(
            params["means"], params["quats"], params["scales"], params["opacities"], torch.cat([constant, others], 1),
            stage.cameras.viewmats[number][None], stage.cameras.Ks[number][None], width, height,
            sh_degree=min(step // config.sh_every, config.sh_degree), raw=True,
        )  # fmt: skip
        target = stage.pictures[number].image[None].to(image.device)
        optimizer.zero_grad()
        l1_ssim(image, target, ssim_weight=config.ssim_weight).backward()
        optimizer.step()
    return {**{n: p.detach() for n, p in params.items()}, "colors": torch.cat([constant, others], 1).detach()}


def test_steps_are_those_of_autograd_and_adam(trainer, device):
    made = trainer(device, background="black", strategy="none", sh_every=2, steps=6)
    generator = torch.Generator().manual_seed(0)
    for name in (
        "quats",
        "scales",
    ):  # round splats have no gradient by their rotation but rounding, which Adam enlarges
        rows = made.state.alive(name)
        rows += 0.5 * torch.randn(rows.shape, generator=generator).to(device)
    start = {name: made.state.alive(name).clone() for name in LEARNABLE}
    want = plain_steps(made, 5)
    made.run(5)
    made.state.flush()
    for name in LEARNABLE:
        moved, apart = want[name] - start[name], made.state.alive(name) - want[name]
        assert moved.abs().max() > 0, name
        assert apart.abs().max() <= RATES_TOLERANCE * moved.abs().max(), name


def test_losses_are_summed_until_they_are_read(trainer):
    made = trainer(strategy="none")
    made.run(2)
    total = made.train_step.read_loss()
    assert 0 < total < 2 and made.train_step.read_loss() == 0


def test_only_what_should_learn_does(trainer):
    made = trainer(learn=("colors",), strategy="none")
    before = {name: made.state.alive(name).clone() for name in LEARNABLE}
    made.run(3)
    changed = [name for name in LEARNABLE if not torch.equal(before[name], made.state.alive(name))]
    assert changed == ["colors"]


def test_a_step_at_half_the_size_has_the_camera_and_the_picture_of_that_size(trainer):
    made = trainer(strategy="none")
    picture = made.stage.pictures[0].image
    frame = made.train_step.put((32, 48, 1), 0, picture, None)
    assert (frame.height, frame.width) == (16, 24)
    _, intrinsics = made.train_step._camera(frame)
    assert torch.allclose(intrinsics[0, :2], made.stage.cameras.Ks[0, :2] / 2)
    want = picture.float().view(16, 2, 24, 2, 3).mean((1, 3))
    assert (frame.target[0].float() - want).abs().max() <= 0.5
    assert torch.equal(shrunk(picture, 32, 48), picture)


@pytest.mark.parametrize("place", ["device", "disk"])
def test_smaller_pictures_are_the_same_each_time_they_are_asked_for(trainer, place):
    made = trainer(strategy="none", images_on=place)
    found = []
    for number in (0, 1, 0):
        frame = made.train_step.put((32, 48, 1), number, made.stage.pictures[number].image, None)
        found.append(frame.target.clone())
    assert torch.equal(found[0], found[2]) and not torch.equal(found[0], found[1])
    assert torch.equal(found[0][0], shrunk(made.stage.pictures[0].image, 16, 24))


def test_frames_of_many_sizes_do_not_pile_up(trainer, scene_folder, tmp_path):
    from PIL import Image

    scene = tmp_path / "scene"
    shutil.copytree(scene_folder, scene)
    for path in sorted((scene / "images").iterdir())[::2]:
        Image.open(path).resize((36, 24)).save(path)
    few, all_of_them = (trainer(scene=str(scene)) for _ in range(2))
    few.train_step.most_frames, all_of_them.train_step.most_frames = 1, None
    few.run(12)
    all_of_them.run(12)
    assert (len(few.train_step.frames), len(all_of_them.train_step.frames)) == (1, 2)
    assert few.look_after() == all_of_them.look_after()
    for name in LEARNABLE:
        assert torch.equal(few.state.alive(name), all_of_them.state.alive(name)), name
    step = trainer().train_step
    for side in range(20, 20 + KEPT_FRAMES):
        kept = step.frame_of((side, side, 0))
    step.frame_of((20, 20, 0))
    for side in range(50, 50 + KEPT_FRAMES - 2):
        step.frame_of((side, side, 0))
    assert len(step.frames) == KEPT_FRAMES and step.frame_of((19 + KEPT_FRAMES, 19 + KEPT_FRAMES, 0)) is kept
    assert (20, 20, 0) in step.frames and (21, 21, 0) not in step.frames


def test_masked_pixels_teach_nothing(trainer):
    def masks_of(stage):
        stage.pictures.has_masks = True
        return {}

    ends = []
    for wrong in (0, 255):
        made = trainer(strategy="none", change=masks_of)
        mask = torch.ones(32, 48)
        mask[:, 24:] = 0
        picture = made.stage.pictures[0].image.clone()
        picture[:, 24:] = wrong
        for _ in range(3):
            made.train_step.run(made.train_step.put((32, 48, 0), 0, picture, mask), 0)
        ends.append(made.state.alive("colors").clone())
    assert torch.equal(*ends)


@pytest.mark.parametrize("loss", ["l1-ssim", "l2"])
def test_either_loss_falls(trainer, loss):
    made = trainer(loss=loss, strategy="none", steps=40, image_index=0)
    made.run(5)
    first = made.train_step.read_loss()
    made.run(35)
    made.train_step.read_loss()
    made.run(40)
    assert made.train_step.read_loss() < 0.8 * first


@pytest.mark.parametrize("rate", [0.1, 1e6])
def test_a_background_is_a_colour_whatever_the_gradient(rate, device):
    background = Background(torch.tensor([0.2, 0.5, 1.0]), rate, device)
    for grad in (1e30, -1e30, float("nan"), float("inf"), 1e-30):
        for _ in range(20):
            background.step(torch.full((1, 3), grad, device=device))
            assert ((background.color > 0) & (background.color < 1)).all()


def test_an_exposure_learns_a_gain_and_stays_within_its_bounds(device):
    generator = torch.Generator().manual_seed(0)
    image = torch.rand(1, 8, 8, 3, generator=generator).to(device)
    which = torch.tensor([1], device=device)
    exposure = Exposure(3, 0.05, device)
    target = 1.3 * image + 0.02
    for _ in range(300):
        shown = exposure.apply(which, image)
        exposure.step(which, image, 2 * (shown - target) / image.numel())
    assert (exposure.apply(which, image) - target).abs().max() < 0.02
    assert not exposure.table[0].any(), "other pictures keep theirs"
    for _ in range(200):
        exposure.step(which, image, torch.full_like(image, -1e6))
    extreme = exposure.apply(which, image)
    assert (extreme <= image * math.exp(0.5) + 0.1 + 1e-6).all() and (extreme >= image).all()


def test_the_gradient_of_a_pose_is_that_of_small_moves():
    generator = torch.Generator().manual_seed(0)
    turn = torch.linalg.qr(torch.randn(3, 3, generator=generator, dtype=torch.float64)).Q
    pose = torch.eye(4, dtype=torch.float64)
    pose[:3, :3], pose[:3, 3] = turn, torch.randn(3, generator=generator, dtype=torch.float64)
    weights = torch.randn(4, 4, generator=generator, dtype=torch.float64)
    weights[3] = 0
    found = pose_gradient(pose, weights)
    for axis in range(6):
        move = torch.zeros(6, dtype=torch.float64)
        move[axis] = 1e-6
        ahead, behind = ((moved_pose(pose, sign * move) * weights).sum() for sign in (1, -1))
        assert abs((ahead - behind) / 2e-6 - found[axis]) < 1e-6


def test_a_pose_that_is_off_comes_back(trainer):
    made = trainer(steps=160, strategy="none", poses=True, lr_poses=2e-3, lr_decay=1.0, sh_degree=0, seed=3)
    made.run(70)
    right = made.stage.cameras.viewmats[0].clone()
    off = torch.tensor([0.0, 0.03, 0.0, 0.05, 0.0, 0.0])
    made.stage.cameras.viewmats[0] = moved_pose(right, off)
    before = (made.stage.cameras.viewmats[0] - right).norm()
    made.run(160)
    after = (made.stage.cameras.viewmats[0] - right).norm()
    assert after < 0.7 * before
    rotation = made.stage.cameras.viewmats[0, :3, :3]
    assert (rotation @ rotation.T - torch.eye(3)).abs().max() < 1e-4


@pytest.mark.parametrize("adam", ["selective", "lazy"])
def test_other_ways_of_adam_learn_as_well(trainer, adam):
    made, dense = trainer(adam=adam, strategy="none"), trainer(adam="dense", strategy="none")
    for one in (made, dense):
        one.run(30)
    first, second = made.judge()["psnr"], dense.judge()["psnr"]
    assert abs(first - second) < 0.5


def test_an_update_leaves_the_gradients_that_it_is_given(trainer, device):
    """Of several processes each replays the first half of a step into them, and reduces them, before the second."""
    made = trainer(device, strategy="mcmc", max_splats=450)
    frame = made.train_step.put((32, 48, 0), 0, made.stage.pictures[0].image, None)
    grads = made.train_step.differentiate(frame, 0)
    before = {name: (tensor, tensor.clone()) for name, tensor in grads.items()}
    made.train_step.update(frame, grads)
    for name, (tensor, value) in before.items():
        assert grads[name] is tensor and torch.equal(tensor, value), name
