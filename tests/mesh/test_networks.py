"""The networks: tabled parameter counts, any batch and number of views, kernels, quirks, half precision."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from hotlap.base.errors import ConfigError, ShapeError
from hotlap.kernels.view_pool.reference import view_pool_ref
from hotlap.measure.session import use_kernels
from hotlap.mesh.cameras import Cameras, project_to_views
from hotlap.mesh.cnn import CNN18
from hotlap.mesh.drawn import draw_objects
from hotlap.mesh.metrics import vertex_agreement
from hotlap.mesh.pixel2mesh_lite import Pixel2MeshLite, fold_norms
from hotlap.mesh.pixel2mesh_pp import CoarseStage, Pixel2MeshPP, RefineStage, scaled
from hotlap.mesh.template import hypothesis_graph, icosphere

CPU = torch.device("cpu")


def count(model) -> int:
    return sum(p.numel() for p in model.parameters())


def seen(n: int = 2, views: int = 2, size: int = 32, device: torch.device = CPU) -> tuple[torch.Tensor, torch.Tensor]:
    made = draw_objects(torch.arange(n), views=views, size=size, points=8, seed=0, device=device)
    return made["image"], made["cameras"]


@pytest.fixture(scope="module")
def small() -> Pixel2MeshPP:
    torch.manual_seed(0)
    return Pixel2MeshPP(hidden=16, levels=1).eval()


def test_parameters_as_tabled():
    with torch.device("meta"):
        model = Pixel2MeshPP()
    assert count(model.coarse.cnn) == count(model.refine.cnn) == 12_843_632
    assert count(model.coarse) == 19_051_385 and count(model.coarse) - count(model.coarse.cnn) == 6_207_753
    assert [count(block) for block in model.refine.rounds] == [426_433, 426_433]
    assert count(model.refine) == 13_696_498


def test_layers_as_tabled():
    with torch.device("meta"):
        model = Pixel2MeshPP()
    widths = [[tuple(layer.weight.shape) for layer in (b.first, *b.hidden, b.last)] for b in model.coarse.blocks]
    assert widths[0] == [(2883, 384), *[(192, 384)] * 12, (192, 6)]
    assert widths[1] == [(3075, 384), *[(192, 384)] * 12, (192, 6)]
    assert widths[2] == [(3075, 384), *[(192, 384)] * 13, (192, 6)]
    for block in model.refine.rounds:
        assert [tuple(layer.weight.shape) for layer in block.layers] == [(339, 384), *[(192, 384)] * 4, (192, 2)]


def test_lite_parameters():
    with torch.device("meta"):
        model = Pixel2MeshLite()
    assert count(model.encoder) == 23_508_032 and count(model) == 24_346_115


def test_maps_halve_and_pad_as_tensorflow_does():
    torch.manual_seed(0)
    cnn = CNN18()
    maps = cnn(torch.rand(1, 3, 224, 224))
    assert [tuple(m.shape[1:]) for m in maps] == [
        (16, 224, 224), (32, 112, 112), (64, 56, 56), (128, 28, 28), (256, 14, 14), (512, 7, 7),
    ]  # fmt: skip
    assert len(cnn(torch.rand(1, 3, 32, 32), 3)) == 3
    first = cnn.groups[1][0]
    want = torch.zeros(1, 32, 112, 112)
    for row, column in ((0, 0), (5, 7), (111, 111)):  # output i reads inputs 2i to 2i + 2, the last of them padding
        piece = F.pad(maps[0], (0, 1, 0, 1))[:, :, 2 * row : 2 * row + 3, 2 * column : 2 * column + 3]
        want[0, :, row, column] = F.relu((piece * first.weight).sum((1, 2, 3)) + first.bias)
        got = F.relu(first(F.pad(maps[0], (0, 1, 0, 1))))[0, :, row, column]
        torch.testing.assert_close(got, want[0, :, row, column], atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(cnn.groups[4][0](F.pad(maps[3], (1, 2, 1, 2))).shape[2:], torch.Size([14, 14]))


def test_maps_are_the_same_where_a_layer_and_its_relu_are_one_kernel(device, plain_float32):
    torch.manual_seed(0)
    cnn = CNN18().to(device)
    image = torch.rand(2, 3, 64, 64, device=device)
    with torch.no_grad():
        exact = cnn(image)
        cnn.use_kernels()
        plain = cnn(image)
        with torch.autocast(device.type, dtype=torch.bfloat16):
            half = cnn(image)
    for want, same, near in zip(exact, plain, half, strict=True):
        torch.testing.assert_close(same, want)
        assert near.dtype == torch.bfloat16 and (near - want).norm() / want.norm() < 0.02
    if device.type == "cuda":
        assert any(cnn._fuses.values()), "cuDNN has one for most layers"


def test_pictures_are_scaled_once_to_the_format_that_convolutions_would_round_them_to(device):
    image = torch.arange(256, dtype=torch.uint8, device=device).expand(1, 2, 3, 4, 256)
    rounded = (image.float() / 255).bfloat16()
    with torch.autocast(device.type, dtype=torch.bfloat16):
        assert torch.equal(scaled(image, torch.float32), rounded)
    assert torch.equal(scaled(image, torch.float32), image.float() / 255)
    assert scaled(rounded, torch.float32) is rounded


def test_a_fresh_network_starts_at_its_template():
    torch.manual_seed(0)
    model = CoarseStage(hidden=16).eval()
    with torch.no_grad():
        found = model(*seen(1))
    assert [tuple(v.shape) for v in found.vertices] == [(1, 156, 3), (1, 618, 3), (1, 2466, 3)]
    for level, vertices, start in zip(model.levels, found.vertices, found.starts, strict=True):
        assert (vertices[0] - level.vertices).norm(dim=1).mean() < 0.05
        assert start.shape == vertices.shape
    assert not torch.equal(found.vertices[0][0], model.levels[0].vertices)


@pytest.mark.parametrize("views", [1, 8])
def test_any_number_of_views_and_any_batch(views, small):
    image, cameras = seen(2, views)
    with torch.no_grad():
        both = small.refine(image, cameras, small.coarse(image, cameras).vertices[-1][:, :20])[-1]
        start = [small.coarse(image[n : n + 1], cameras[n : n + 1]).vertices[-1][:, :20] for n in range(2)]
        alone = torch.cat([small.refine(image[n : n + 1], cameras[n : n + 1], start[n])[-1] for n in range(2)])
    assert both.shape == (2, 20, 3)
    torch.testing.assert_close(both, alone, rtol=1e-4, atol=1e-5)


def test_all_views_count_and_the_order_of_later_ones_does_not_matter(small):
    image, cameras = seen(1, 3)
    order = [0, 2, 1]
    with torch.no_grad():
        want, got = small(image, cameras), small(image[:, order], cameras[:, order])
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
        for view in (0, 2):
            changed = image.clone()
            changed[:, view] = 255 - changed[:, view]
            assert (small(changed, cameras) - want).abs().max() > 1e-6


def test_the_published_mistake_is_off_unless_asked_for():
    """With it the coarse stage sees no other view's picture but the first, and pictures are read as BGR."""
    image, cameras = seen(1, 3)
    changed = image.clone()
    changed[:, 1:] = 255 - changed[:, 1:]
    moved = {}
    for compat in (False, True):
        torch.manual_seed(0)
        model = CoarseStage(hidden=16, levels=1, compat=compat).eval()
        with torch.no_grad():
            first, second = (model(picture, cameras).vertices[-1] for picture in (image, changed))
        moved[compat] = (first - second).abs().max().item()
        plain = CoarseStage(hidden=16, levels=1).eval()
        plain.load_state_dict(model.state_dict())
        if compat:
            with torch.no_grad():
                one = plain(image[:, :1].flip(2), cameras[:, :1]).vertices[-1]
                alone = model(image[:, :1], cameras[:, :1]).vertices[-1]
            torch.testing.assert_close(one, alone)
    assert moved[True] == 0 < moved[False]


def test_refinement_by_hand():
    """One round spelt out: hypotheses, features, six dense layers, softmax, mean offset."""
    torch.manual_seed(0)
    stage = RefineStage(hidden=8).double().eval()
    image, rows = seen(1)
    rows, graph = rows.double(), hypothesis_graph()
    vertices = torch.tensor([[[0.05, 0.0, -0.8], [0.0, 0.1, -0.75]]]).double()
    offsets, matrix = graph.offsets.double(), graph.support.double()
    maps = stage.cnn(image.flatten(0, 1).double() / 255, 3)
    points = (vertices[:, :, None] + offsets).flatten(1, 2)
    pooled = view_pool_ref(maps, project_to_views(points, Cameras.from_rows(rows)))
    x = torch.cat([points, pooled], 2).view(2, 43, 339)
    found = []
    for number, layer in enumerate(stage.rounds[0].layers):
        own, others = layer.weight.chunk(2, 1)
        y = torch.relu((found[-1] if found else x) @ own + matrix @ (found[-1] if found else x) @ others + layer.bias)
        found.append(y + found[0] if number == 2 else y + found[2] if number == 4 else y)
    share = torch.softmax(found[-1].view(1, 2, 43, 1), 2)
    want = vertices + (share * offsets).sum(2)
    with torch.no_grad():
        got = stage(image, rows, vertices)[0]
    torch.testing.assert_close(got, want.detach())
    assert ((got - vertices).norm(dim=2) < 0.02).all()


@pytest.mark.parametrize("train", [False, True])
def test_kernels_give_the_same_mesh_and_gradients(train, device, plain_float32):
    torch.manual_seed(0)
    model = Pixel2MeshPP(hidden=16, levels=1).to(device)
    model.coarse.requires_grad_(train)
    image, cameras = seen(1, 3, device=device)
    found = {}
    for kernels in (False, True):
        if kernels:
            use_kernels(model)
        with torch.set_grad_enabled(train):
            out = model.refine(image, cameras, model.coarse(image, cameras).vertices[-1])[-1]
        found[kernels] = [out.detach()]
        if train:
            wanted = [p for p in model.parameters() if p.requires_grad]
            found[kernels] += torch.autograd.grad(out.square().sum(), wanted, allow_unused=True)
    pairs = [(p, f) for p, f in zip(found[False], found[True], strict=True) if p is not None]
    floor = 1e-4 * max(plain.abs().max() for plain, _ in pairs[1:] or pairs)  # the last bias has no slope in truth
    for plain, fast in pairs:
        assert ((plain - fast).abs().max() / plain.abs().max().clamp(min=floor)).item() < 2e-3


def test_half_precision_stays_within_a_thousandth_of_the_object(small, device):
    model = small.to(device)
    image, cameras = seen(2, 3, device=device)
    with torch.no_grad():
        want = model(image, cameras)
        with torch.autocast(device.type, dtype=torch.bfloat16):
            got = model(image, cameras)
    small.to(CPU)
    assert got.dtype == torch.float32 and not torch.equal(got, want)
    assert vertex_agreement(got, want)[0].passed


def test_every_mesh_and_no_gradient_in_the_coarse_stage(small):
    meshes = small(*seen(1), every=True)
    assert len(meshes) == 3 and not meshes[0].requires_grad and meshes[2].requires_grad
    grads = torch.autograd.grad(meshes[2].square().sum(), [p for p in small.parameters() if p.requires_grad])
    assert all(grad.isfinite().all() for grad in grads)


def test_lite_in_half_precision_and_with_folded_norms(device, plain_float32):
    torch.manual_seed(0)
    model = Pixel2MeshLite(subdivisions=1).to(device).eval()
    image = seen(2, 1, device=device)[0][:, 0]
    with torch.no_grad():
        fresh = model(image)
        with torch.autocast(device.type, dtype=torch.bfloat16):
            half = model(image)
        for module in model.modules():
            if isinstance(module, torch.nn.BatchNorm2d):
                module.running_mean.normal_(0, 0.1)
                module.running_var.uniform_(0.5, 1.5)
                module.weight.uniform_(0.5, 1.0)
        want = model(image)
        folded = fold_norms(model)(image)
        with torch.autocast(device.type, dtype=torch.bfloat16):
            model.encoder.to(torch.bfloat16)
            folded_half = model(image)
    assert want.shape == (2, 42, 3) and len(model.faces) == 80
    torch.testing.assert_close(folded, want, rtol=1e-4, atol=1e-5)
    assert vertex_agreement(folded_half, want)[0].passed
    assert not any(isinstance(m, torch.nn.BatchNorm2d) for m in model.modules())
    assert half.dtype == torch.float32 and vertex_agreement(half, fresh)[0].passed
    assert icosphere(1).vertices.norm(dim=1).allclose(torch.ones(42)), "the template itself was changed"


def test_what_does_not_fit(small):
    image, cameras = seen(1, 2)
    with pytest.raises(ShapeError, match=r"cameras must be \[B, V, 5\], got \[1, 1, 5\]"):
        small(image, cameras[:, :1])
    with pytest.raises(ShapeError, match="image has 9 views"):
        small(image[:, :1].repeat(1, 9, 1, 1, 1), cameras[:, :1].repeat(1, 9, 1))
    with pytest.raises(ConfigError, match="levels = 4 is not valid"):
        CoarseStage(levels=4)
