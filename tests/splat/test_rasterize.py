"""Drawing splats as gsplat's users do: modes, gradients on the screen, and what goes wrong in real use."""

from __future__ import annotations

from dataclasses import replace
from enum import Enum

import pytest
import torch

import hotlap
from hotlap.base.errors import ConfigError, ShapeError, UnknownName
from hotlap.kernels.splat.cases import SplatCase, as_splats
from hotlap.kernels.splat.op import splat
from hotlap.splat import rasterize

CASE = SplatCase(splats=40, cameras=2, background=True)
SH = SplatCase(splats=40, background=True, options={"sh_degree": 2, "raw": True})
CPU = torch.device("cpu")


class Shutter(Enum):
    """As gsplat has it."""

    TOP_TO_BOTTOM = 0
    GLOBAL = 4


@pytest.fixture(autouse=True)
def one_thread():
    """Torch's threads wait for each other longer than pictures as small as these take."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def learning(case: SplatCase, device: torch.device):
    return {n: None if t is None else t.requires_grad_() for n, t in case.make(device).items()}


def draw(inputs, case: SplatCase, call=rasterize, **options):
    given = {"width": case.width, "height": case.height, **case.options, **options}
    given = {{"near": "near_plane", "far": "far_plane"}.get(name, name): value for name, value in given.items()}
    return call(**{**inputs, **given})


def grads_of(loss: torch.Tensor, inputs) -> dict[str, torch.Tensor]:
    leaves = {n: t for n, t in inputs.items() if t is not None and t.requires_grad}
    return dict(zip(leaves, torch.autograd.grad(loss, list(leaves.values()), allow_unused=True), strict=True))


def test_it_is_the_kernel_with_the_arguments_of_gsplat(device):
    inputs = CASE.make(device)
    colors, alphas, meta = draw(inputs, CASE, rasterize_mode="antialiased", radius_clip=1.0, near=3.0, far=5.0)
    view = replace(CASE.view, antialiased=True, radius_clip=1.0, near=3.0, far=5.0)
    want = splat(as_splats(inputs), view)
    assert torch.equal(colors, want.colors) and torch.equal(alphas, want.alphas)
    assert torch.equal(meta["radii"], want.facts.radii) and torch.equal(meta["means2d"], want.means2d)
    assert torch.equal(meta["tiles_per_gauss"], want.facts.tiles_per_splat)
    assert torch.equal(meta["depths"], want.facts.depths) and meta["radii"] is meta["radii"]
    assert (meta["width"], meta["height"], meta["n_cameras"]) == (37, 29, 2)
    assert (meta["tile_size"], meta["tile_width"], meta["tile_height"]) == (16, 3, 2)


def on_the_axis(device, depths, opacities, colors):
    """Splats of 0.1 one behind the other before a camera that looks at them through the middle of pixel 4, 4."""
    num = len(depths)
    return {
        "means": torch.tensor([[0.0, 0.0, z] for z in depths], device=device),
        "quats": torch.tensor([[2.0, 0, 0, 0]], device=device).expand(num, 4),
        "scales": torch.full((num, 3), 0.1, device=device),
        "opacities": torch.tensor(opacities, device=device),
        "colors": torch.tensor(colors, device=device),
        "viewmats": torch.eye(4, device=device)[None],
        "Ks": torch.tensor([[[8.0, 0, 4.5], [0, 8.0, 4.5], [0, 0, 1]]], device=device),
        "backgrounds": torch.tensor([[0.0, 0.0, 1.0]], device=device),
        "width": 9,
        "height": 9,
    }


def test_two_splats_one_behind_the_other_by_hand(device):
    """The nearer one, which comes second, takes half of the light, the other half of the rest."""
    given = on_the_axis(device, [2.0, 1.0], [0.5, 0.5], [[0.0, 1.0, 0.0], [1.0, 0.0, 0.0]])
    colors, alphas, meta = rasterize(**given, render_mode="RGB+D")
    torch.testing.assert_close(colors[0, 4, 4].cpu(), torch.tensor([0.5, 0.25, 0.25, 0.5 * 1 + 0.25 * 2]))
    assert alphas[0, 4, 4].item() == pytest.approx(0.75)
    variances = torch.tensor([(8 * 0.1 / z) ** 2 + 0.3 for z in (2.0, 1.0)], device=device)
    torch.testing.assert_close(meta["conics"][0, :, 0], 1 / variances)
    torch.testing.assert_close(meta["conics"][0, :, 1], torch.zeros(2, device=device))
    reach = (2 * variances * torch.tensor(0.5 * 255).log()).sqrt().ceil().int()
    assert torch.equal(meta["radii"][0], reach[:, None].expand(2, 2))
    left = [0.5 * (-0.5 * 2**2 / v).exp() for v in variances]
    assert alphas[0, 4, 2].item() == pytest.approx(1 - ((1 - left[0]) * (1 - left[1])).item(), rel=1e-5)


def test_light_ends_before_the_splat_that_would_take_the_last_of_it(device):
    """The most one splat may take is 0.999 of it: a second leaves 1e-6, and is left out."""
    given = on_the_axis(device, [1.0, 2.0], [1.0, 1.0], [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
    colors, alphas, _ = rasterize(**given)
    torch.testing.assert_close(colors[0, 4, 4].cpu(), torch.tensor([0.999, 0.0, 0.001]), rtol=0, atol=1e-6)
    assert alphas[0, 4, 4].item() == pytest.approx(0.999)


def test_the_spread_on_the_screen_is_that_of_projected_points():
    """A million points of a small tilted splat, through the camera one by one: within a percent of its covariance."""
    case = SplatCase(splats=1, size=0.02, dtype=torch.float64)
    inputs = case.make(CPU) | {"scales": torch.tensor([[0.05, 0.02, 0.01]], dtype=torch.float64)}
    w, x, y, z = (inputs["quats"][0] / inputs["quats"][0].norm()).tolist()
    cross = torch.tensor([[0, -z, y], [z, 0, -x], [-y, x, 0]], dtype=torch.float64)
    rotation = torch.eye(3, dtype=torch.float64) + 2 * w * cross + 2 * cross @ cross
    points = torch.randn(1_000_000, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    world = (points * inputs["scales"]) @ rotation.T + inputs["means"]
    seen = (world @ inputs["viewmats"][0, :3, :3].T + inputs["viewmats"][0, :3, 3]) @ inputs["Ks"][0].T
    spread = torch.cov((seen[:, :2] / seen[:, 2:]).T) + 0.3 * torch.eye(2, dtype=torch.float64)
    xx, xy, yy = draw(inputs, case)[2]["conics"][0, 0]
    found = torch.linalg.inv(torch.stack([torch.stack([xx, xy]), torch.stack([xy, yy])]))
    torch.testing.assert_close(found, spread, rtol=0, atol=0.01 * spread.max().item())


def test_constant_harmonics_are_a_colour(device):
    case = SplatCase(splats=40, options={"sh_degree": 0})
    inputs = case.make(device)
    as_colors = inputs | {"colors": (0.5 + inputs["colors"][:, 0] / (2 * torch.pi**0.5)).clamp(min=0)}
    want = draw(as_colors, case, sh_degree=None)[0]
    torch.testing.assert_close(draw(inputs, case)[0], want, rtol=1e-5, atol=1e-5)
    higher = inputs | {"colors": torch.cat([inputs["colors"][:, :1], torch.zeros(40, 15, 3, device=device)], dim=1)}
    torch.testing.assert_close(draw(higher, case, sh_degree=3)[0], want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("case", [CASE, SH], ids=["colors", "coefficients"])
def test_depth_comes_alone_or_behind_the_colours_accumulated_or_expected(case, device):
    inputs = case.make(device)
    plain, alphas, _ = draw(inputs, case)
    both, _, _ = draw(inputs, case, render_mode="RGB+D")
    assert torch.equal(both[..., :3], plain) and both.shape[-1] == 4
    depth = both[..., 3:]
    assert torch.equal(draw(inputs, case, render_mode="D")[0], depth)
    torch.testing.assert_close(draw(inputs, case, render_mode="ED")[0], depth / alphas.clamp(min=1e-10))
    expected = draw(inputs, case, render_mode="RGB+ED")[0]
    assert torch.equal(expected[..., :3], plain)
    torch.testing.assert_close(expected[..., 3:], depth / alphas.clamp(min=1e-10))
    there = expected[..., 3][alphas[..., 0] > 0.01]
    assert there.min() > 1 and there.max() < 8, "the scene is about 4 away"


def test_the_expected_depth_where_nothing_is_drawn_is_0_with_gradients_of_0(device):
    inputs = learning(CASE, device) | {"opacities": torch.zeros(40, device=device)}
    colors, _, _ = draw(inputs, CASE, render_mode="ED")
    assert (colors == 0).all()
    assert all((grad == 0).all() for grad in grads_of(colors.sum(), inputs).values() if grad is not None)


@pytest.mark.parametrize("options", [{}, {"render_mode": "RGB+D"}])
def test_many_channels_are_drawn_in_passes(options, device):
    case = SplatCase(splats=40, channels=11, background=True, by_camera=True, cameras=2)
    inputs = learning(case, device)
    whole, one_alphas, one_meta = draw(inputs, case, **options)
    parts, alphas, meta = draw(inputs, case, channel_chunk=4, **options)
    assert torch.equal(parts, whole) and torch.equal(alphas, one_alphas)
    weights = torch.randn(whole.shape, generator=torch.Generator().manual_seed(0)).to(device)
    found = []
    for picture, known in ((whole, one_meta), (parts, meta)):
        known["means2d"].retain_grad()
        (picture * weights).sum().backward()
        found.append({name: tensor.grad for name, tensor in (inputs | {"means2d": known["means2d"]}).items()})
        for tensor in inputs.values():
            tensor.grad = None
    for name, grad in found[0].items():
        assert grad.abs().sum() > 0
        torch.testing.assert_close(found[1][name], grad, rtol=1e-4, atol=1e-4 * grad.abs().max().item())


def test_the_gradient_on_the_screen_is_where_gsplat_has_it(device):
    """By its meaning: all centres move with the principal point, and as far, if none is far outside the picture."""
    inputs = learning(CASE, device)
    with torch.no_grad():
        inputs["means"] *= 0.3
    colors, _, meta = draw(inputs, CASE, absgrad=True)
    meta["means2d"].retain_grad()
    colors.sin().sum().backward()
    on_screen = meta["means2d"].grad
    torch.testing.assert_close(on_screen.sum(1), inputs["Ks"].grad[:, :2, 2], rtol=1e-4, atol=1e-3)
    assert (meta["means2d"].absgrad >= on_screen.abs() - 1e-5).all()
    assert meta["means2d"].absgrad.sum() > 1.5 * on_screen.abs().sum(), "neighbouring pixels pull in turn"


def test_the_meta_is_used_as_a_dictionary(device):
    _, _, meta = draw(learning(CASE, device), CASE)
    names = {"means2d", "radii", "depths", "conics", "tiles_per_gauss", "n_cameras", "gaussian_ids"}
    assert names < set(meta) and len(meta) == len(dict(meta)) == len({**meta})
    assert "radii" in meta and "what" not in meta and meta.get("what") is None and "'n_cameras': 2" in repr(meta)
    meta["what"] = 3
    meta.update(width=1)
    assert meta["what"] == 3 and meta.pop("width") == 1 and "width" not in meta
    with pytest.raises(KeyError, match="nothing"):
        meta["nothing"]


def test_a_loss_on_the_centres_reaches_the_splats_and_their_gradient(device):
    inputs = learning(CASE, device)
    colors, _, meta = draw(inputs, CASE)
    meta["means2d"].retain_grad()
    (colors.sum() + 3 * meta["means2d"].sum()).backward()
    both, from_both = inputs["means"].grad.clone(), meta["means2d"].grad
    apart = []
    for loss in ("colors", "means2d"):
        fresh = learning(CASE, device)
        colors, _, meta = draw(fresh, CASE)
        meta["means2d"].retain_grad()
        (colors.sum() if loss == "colors" else 3 * meta["means2d"].sum()).backward()
        apart.append((fresh["means"].grad, meta["means2d"].grad))
    torch.testing.assert_close(apart[0][0] + apart[1][0], both, rtol=1e-4, atol=1e-3)
    torch.testing.assert_close(apart[0][1] + apart[1][1], from_both)


def test_gradients_on_the_screen_are_made_by_backward_alone_and_add_up(device):
    inputs = learning(CASE, device)
    colors, _, meta = draw(inputs, CASE, absgrad=True)
    centers = meta["means2d"]
    centers.retain_grad()
    torch.autograd.grad(colors.sum(), list(inputs.values()), retain_graph=True)
    assert centers.grad is None and not hasattr(centers, "absgrad")
    colors.sum().backward(retain_graph=True)
    once, absolute = centers.grad.clone(), centers.absgrad.clone()
    colors.sum().backward()
    torch.testing.assert_close(centers.grad, 2 * once, rtol=1e-4, atol=1e-4 * once.abs().max().item())
    torch.testing.assert_close(centers.absgrad, 2 * absolute, rtol=1e-4, atol=1e-4 * absolute.max().item())
    assert all(tensor.grad.isfinite().all() for tensor in inputs.values())


def test_gradients_of_gradients_are_refused(device):
    inputs = learning(CASE, device)
    colors, _, _ = draw(inputs, CASE)
    (grad,) = torch.autograd.grad(colors.sin().sum(), inputs["means"], create_graph=True)
    with pytest.raises(RuntimeError, match="differentiate twice"):
        grad.sum().backward()


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("name", ["means", "quats", "scales", "opacities", "colors"])
def test_a_splat_with_a_number_that_is_not_finite_is_not_drawn_and_learns_nothing(name, value, device):
    inputs = learning(CASE, device)
    without = {
        n: t if n in ("viewmats", "Ks", "backgrounds") else t.detach()[torch.arange(40) != 17].requires_grad_()
        for n, t in inputs.items()
    }
    with torch.no_grad():
        inputs[name][17].view(-1)[-1] = value
    colors, _, meta = draw(inputs, CASE)
    want, _, _ = draw(without, CASE)
    assert torch.equal(colors, want) and (meta["radii"][:, 17] == 0).all()
    got, expected = grads_of(colors.sin().sum(), inputs), grads_of(want.sin().sum(), without)
    for n in ("means", "quats", "scales", "opacities", "colors"):
        assert (got[n][17] == 0).all() and got[n].isfinite().all()
    for n in ("viewmats", "Ks", "means"):
        kept = got[n] if n != "means" else got[n][torch.arange(40) != 17]
        torch.testing.assert_close(kept, expected[n], rtol=1e-4, atol=1e-4 * expected[n].abs().max().item())


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 400.0])
def test_logarithms_of_scales_that_are_too_large_are_not_drawn_either(value, device):
    inputs = learning(SH, device)
    with torch.no_grad():
        inputs["scales"][3, 1] = value
    colors, _, meta = draw(inputs, SH)
    assert (meta["radii"][:, 3] == 0).all() and colors.isfinite().all()
    assert all(grad.isfinite().all() for grad in grads_of(colors.sum(), inputs).values())


def test_a_quaternion_of_0_is_not_drawn(device):
    inputs = learning(CASE, device)
    with torch.no_grad():
        inputs["quats"][5] = 0
    colors, _, meta = draw(inputs, CASE)
    assert (meta["radii"][:, 5] == 0).all() and (meta["radii"][:, 6] > 0).any()
    grads = grads_of(colors.sum(), inputs)
    assert (grads["quats"][5] == 0).all() and all(grad.isfinite().all() for grad in grads.values())


def test_splats_behind_the_camera_leave_the_background(device):
    inputs = learning(CASE, device)
    with torch.no_grad():
        inputs["viewmats"][:, 2, 3] = -40.0
    colors, alphas, meta = draw(inputs, CASE)
    assert torch.equal(colors, inputs["backgrounds"][:, None, None].expand_as(colors)) and (alphas == 0).all()
    assert all((meta[name] == 0).all() for name in ("radii", "means2d", "depths", "conics", "tiles_per_gauss"))
    grads = grads_of(colors.sum(), inputs)
    assert (grads.pop("backgrounds") == 37 * 29).all()
    assert all((grad == 0).all() for grad in grads.values())


def test_one_splat_over_the_whole_screen(device):
    """Far larger than the picture, it is as opaque everywhere as in its middle, up to the most there can be."""
    inputs = SplatCase(splats=1).make(device)
    inputs |= {"means": torch.zeros(1, 3, device=device), "scales": torch.full((1, 3), 1e4, device=device)}
    for opacity, alpha in ((0.5, 0.5), (1.0, 0.999)):
        inputs["opacities"] = torch.tensor([opacity], device=device)
        _, alphas, meta = draw(inputs, SplatCase(splats=1))
        torch.testing.assert_close(alphas, torch.full_like(alphas, alpha), rtol=1e-4, atol=1e-4)
        assert meta["tiles_per_gauss"].item() == 6


def test_no_splats_at_all(device):
    inputs = learning(SplatCase(splats=0, background=True), device)
    colors, alphas, meta = draw(inputs, CASE)
    assert torch.equal(colors, inputs["backgrounds"][:, None, None].expand_as(colors)) and (alphas == 0).all()
    colors.sum().backward()
    assert inputs["means"].grad.shape == (0, 3) and meta["radii"].shape == (1, 0, 2)


def test_a_large_picture_is_the_small_one_with_more_around_it(device):
    """8192 pixels on a side: the same cameras, their principal point moved, see the same in a corner of it."""
    case = SplatCase(splats=3, channels=1)
    inputs = case.make(device)
    small, small_alphas, small_meta = draw(inputs, case)
    inputs["Ks"] = inputs["Ks"].clone()
    inputs["Ks"][:, 0, 2] += 8192 - case.width
    inputs["Ks"][:, 1, 2] += 8192 - case.height
    with torch.no_grad():
        large, alphas, meta = draw(inputs, case, width=8192, height=8192)
    corner = (slice(None), slice(8192 - case.height, None), slice(8192 - case.width, None))
    # In float32 a centre near 8192 is known to 5e-4 pixels.
    torch.testing.assert_close(large[corner], small, rtol=0, atol=2e-3)
    torch.testing.assert_close(alphas[corner], small_alphas, rtol=0, atol=2e-3)
    assert torch.equal(meta["radii"] > 0, small_meta["radii"] > 0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_computed_in_float32(dtype, device):
    inputs = {n: None if t is None else t.to(dtype).requires_grad_() for n, t in CASE.make(device).items()}
    colors, alphas, _ = draw(inputs, CASE)
    as_float32 = {n: t.float() for n, t in inputs.items()}
    assert colors.dtype == alphas.dtype == torch.float32
    assert torch.equal(colors, draw(as_float32, CASE)[0])
    colors.sum().backward()
    assert {t.grad.dtype for t in inputs.values()} == {dtype}


def test_float64_stays_float64_and_the_widest_type_wins(device):
    inputs = CASE.make(device)
    inputs["means"] = inputs["means"].double()
    colors, alphas, _ = draw(inputs, CASE)
    assert colors.dtype == alphas.dtype == torch.float64
    torch.testing.assert_close(colors.float(), draw(CASE.make(device), CASE)[0], rtol=1e-4, atol=1e-4)


def test_autocast_changes_nothing(device):
    inputs = learning(CASE, device)
    want, _, _ = draw(inputs, CASE)
    expected = grads_of(want.sum(), inputs)
    with torch.autocast(device.type, dtype=torch.bfloat16):
        colors, _, _ = draw(inputs, CASE)
        got = grads_of(colors.sum(), inputs)
    assert torch.equal(colors, want)
    for name, grad in expected.items():
        torch.testing.assert_close(got[name], grad, rtol=1e-4, atol=1e-4 * grad.abs().max().item())


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_without_gradients_nothing_is_kept(mode, device):
    inputs = learning(CASE, device)
    with mode():
        colors, _, meta = draw(inputs, CASE)
    assert not colors.requires_grad and not meta["means2d"].requires_grad
    assert torch.equal(colors, draw(inputs, CASE)[0].detach())


def test_compiles_whole_with_its_gradients(device):
    inputs = learning(SH, device)
    options = {"render_mode": "RGB+ED", "rasterize_mode": "antialiased"}
    want, _, _ = draw(inputs, SH, **options)
    expected = grads_of(want.sin().sum(), inputs)
    torch._dynamo.reset()
    compiled = torch.compile(rasterize, fullgraph=True, backend="aot_eager")
    colors, _, _ = draw(inputs, SH, compiled, **options)
    got = grads_of(colors.sin().sum(), inputs)
    torch._dynamo.reset()
    torch.testing.assert_close(colors, want, rtol=1e-6, atol=1e-6)
    for name, grad in expected.items():
        torch.testing.assert_close(got[name], grad, rtol=1e-4, atol=1e-4 * grad.abs().max().item())


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"render_mode": "RGBD"}, UnknownName, r"unknown render_mode 'RGBD'\. Did you mean 'RGB"),
        ({"rasterize_mode": "mip"}, UnknownName, r"unknown rasterize_mode 'mip'\. Known: antialiased, classic"),
        ({"channel_chunk": 0}, ConfigError, "channel_chunk = 0 is too small"),
        ({"camera_model": "fisheye"}, ConfigError, r"camera_model = 'fisheye' is not supported\. Expected 'pinhole'"),
        ({"sparse_grad": True}, ConfigError, r"sparse_grad = True is not supported\. Expected False"),
        ({"covars": torch.eye(3).expand(40, 3, 3)}, ConfigError, r"covars of shape \[40, 3, 3\] is not .* None"),
        ({"rolling_shutter": Shutter.TOP_TO_BOTTOM}, ConfigError, r"rolling_shutter = .*TOP.* Expected 'GLOBAL'"),
        ({"sh_degree": 1.5}, TypeError, "'float' object cannot be interpreted as an integer"),
        ({"radius_clip": float("nan")}, ConfigError, "radius_clip = nan is not valid"),
        ({"width": 0}, ConfigError, "width = 0 is too small"),
        ({"width": 37.0}, TypeError, "'float' object cannot be interpreted as an integer"),
        ({"near_plane": float("nan")}, ConfigError, "near = nan and far"),
        (
            {"viewmats": torch.zeros(3, 4, 4)},
            ShapeError,
            r"Ks must be \[C, 3, 3\], got \[2, 3, 3\] \(bound: N=40, C=3\)",
        ),
        ({"colors": torch.zeros(40, 3, dtype=torch.uint8)}, ConfigError, "colors is uint8"),
        ({"colours": 1}, TypeError, "unexpected keyword argument 'colours'"),
    ],
)
def test_wrong_arguments_are_named_at_every_call(options, error, message):
    draw(CASE.make(CPU), CASE)
    for _ in range(2):
        with pytest.raises(error, match=message):
            draw(CASE.make(CPU), CASE, **options)


def test_arguments_of_gsplat_that_ask_for_nothing_else_are_taken():
    inputs = CASE.make(CPU)
    others = {"packed": False, "tile_size": 8, "camera_model": "pinhole", "distributed": False, "covars": None}
    others["rolling_shutter"] = Shutter.GLOBAL
    assert torch.equal(draw(inputs, CASE, **others)[0], draw(inputs, CASE)[0])


@pytest.mark.gpu
def test_tensors_of_a_cpu_and_a_card_are_not_mixed():
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    inputs = CASE.make(torch.device("cuda")) | {"viewmats": CASE.make(CPU)["viewmats"]}
    with pytest.raises(ConfigError, match="viewmats is on cpu, means on cuda:0"):
        draw(inputs, CASE)


def test_it_is_found_in_the_package():
    assert hotlap.splat.rasterize is rasterize and "splat" in dir(hotlap)
