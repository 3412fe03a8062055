"""The cell networks: sizes as published, any picture, any layout, and no score matrix in the attention."""

from __future__ import annotations

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from hotlap.base.errors import ConfigError, EnvironmentUnusable, UnknownName, UsageError
from hotlap.measure.distances import total_error
from hotlap.measure.session import use_kernels
from hotlap.segment.layers import InstanceNorm
from hotlap.segment.ma_resunet import _SelfAttention, _Triplet
from hotlap.segment.nets import LEAST, NETS, build_net

PUBLISHED = {"hrnet": 65_846_401, "resunet-small": 58_060_957, "ma-resunet": 78_210_661}


def fresh(name, **options):
    torch.manual_seed(0)
    return build_net(name, **options).eval()


@pytest.mark.parametrize("name", PUBLISHED)
def test_size_is_the_published_one(name):
    with torch.device("meta"):
        net = build_net(name)
    assert sum(p.numel() for p in net.parameters()) == PUBLISHED[name]


@pytest.mark.parametrize("name", NETS)
@pytest.mark.parametrize("size", [(1, 1), (33, 50)])
def test_any_size_and_any_number_of_maps(name, size, device):
    net = fresh(name, in_channels=2, maps=3, width=8).to(device)
    with torch.no_grad():
        scores = net(torch.rand(2, 2, *size, device=device))
    assert scores.shape == (2, 3, *size)
    assert bool(scores.isfinite().all())


@pytest.mark.parametrize("name", NETS)
def test_layout_changes_nothing(name):
    net = fresh(name, width=8).double()
    image = torch.rand(1, 3, 64, 64, dtype=torch.float64)
    with torch.no_grad():
        plain = net(image)
        turned = net.to(memory_format=torch.channels_last)(image.to(memory_format=torch.channels_last))
    torch.testing.assert_close(turned, plain, rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("name", PUBLISHED)
def test_images_of_a_batch_do_not_meet(name):
    """Only then may a batch be split, or tiles of several pictures be put into one."""
    net = fresh(name, width=8).double()
    images = torch.rand(3, 3, 64, 64, dtype=torch.float64)
    with torch.no_grad():
        together, alone = net(images), torch.cat([net(image[None]) for image in images])
    torch.testing.assert_close(together, alone)


@pytest.mark.parametrize("name", PUBLISHED)
def test_every_weight_that_is_trained_has_a_gradient(name):
    net = fresh(name, width=8, maps=2)
    net(torch.rand(2, 3, 64, 64)).square().sum().backward()
    idle = [n for n, p in net.named_parameters() if p.requires_grad and p.grad is None]
    assert idle == []


@pytest.mark.parametrize("name", PUBLISHED)
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_kernels_compute_the_same_network(name, layout, device, plain_float32):
    """On a CPU by what kernels fall back to there, in float64: which still is another way through every layer.

    On a card in float32, where gradients of fresh networks were seen 1.6e-3 apart for the order of sums alone.
    """
    dtype, off = (torch.float64, 1e-8) if device.type == "cpu" else (torch.float32, 5e-3)
    plain = fresh(name, width=8, maps=2).to(device, dtype, memory_format=layout)
    quick = copy.deepcopy(plain)
    use_kernels(quick)
    x = torch.rand(2, 3, 96, 64, device=device, dtype=dtype).contiguous(memory_format=layout)
    found = {}
    for net in (plain, quick):
        net.eval()
        with torch.no_grad():
            seen = net(x)
        net.zero_grad()
        net(x).square().mean().backward()
        found[net] = seen, {n: p.grad for n, p in net.named_parameters() if p.grad is not None}
    torch.testing.assert_close(found[quick][0], found[plain][0], rtol=off / 10, atol=off / 10)
    assert list(found[quick][1]) == list(found[plain][1])
    assert total_error(found[quick][1], found[plain][1]) < off
    assert list(plain.state_dict()) == list(quick.state_dict())


@pytest.mark.parametrize("shape", [(1, 5, 7, 12), (2, 3, 1, 9), (1, 4, 6, 1)])
def test_profiles_by_matrix_products_are_means(shape, device):
    triplet = _Triplet()
    triplet.use_kernels()
    x = torch.randn(shape, device=device, dtype=torch.float64).contiguous(memory_format=torch.channels_last)
    rows, columns = triplet._profiles(x)
    torch.testing.assert_close(rows, x.mean(3, keepdim=True))
    torch.testing.assert_close(columns, x.mean(2, keepdim=True))


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_norm_is_that_of_torch(layout, device):
    norm = InstanceNorm(5).to(device)
    torch.nn.init.normal_(norm.weight)
    torch.nn.init.normal_(norm.bias)
    x = (3 + 2 * torch.randn(2, 5, 6, 7, device=device)).to(memory_format=layout)
    want = torch.nn.functional.instance_norm(x.contiguous(), weight=norm.weight, bias=norm.bias)
    got = norm(x)
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
    assert got.is_contiguous(memory_format=layout)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_norm_of_16_bits_without_gradients_is_that_of_torch(dtype, device):
    """The way that a card takes by itself, tried on the CPU as well."""
    norm = InstanceNorm(5).to(device)
    torch.nn.init.normal_(norm.weight)
    torch.nn.init.normal_(norm.bias)
    x = (3 + 2 * torch.randn(2, 5, 16, 24, device=device)).to(dtype).to(memory_format=torch.channels_last)
    x[:, 0] = 9.0  # no deviation at all
    wide = {"weight": norm.weight.double(), "bias": norm.bias.double()}
    want = torch.nn.functional.instance_norm(x.double().contiguous(), **wide)
    before = x.clone()
    with torch.no_grad():
        got = norm._short(x)
    assert got.dtype == dtype and got.is_contiguous(memory_format=torch.channels_last) and torch.equal(x, before)
    step = torch.finfo(dtype).eps
    torch.testing.assert_close(got.double(), want, rtol=2 * step, atol=2 * step)


def test_norm_of_one_pixel_is_its_shift():
    norm = InstanceNorm(2)
    torch.nn.init.constant_(norm.bias, 0.5)
    assert norm(torch.full((1, 2, 1, 1), 9.0)).flatten().tolist() == [0.5, 0.5]


def test_norm_of_short_numbers_sums_in_float32():
    x = (100 + torch.randn(1, 4, 32, 32)).bfloat16().to(memory_format=torch.channels_last)
    norm = InstanceNorm(4)
    torch.testing.assert_close(norm(x).float(), norm(x.float()), rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("offset", [0.0, 3.0])
def test_norm_of_short_numbers_on_a_card_without_gradients(dtype, offset, device):
    torch.manual_seed(0)
    norm = InstanceNorm(5).to(device)
    torch.nn.init.normal_(norm.weight)
    torch.nn.init.normal_(norm.bias)
    x = (torch.randn(3, 5, 40, 33, device=device) + offset).to(dtype).contiguous(memory_format=torch.channels_last)
    want = torch.nn.functional.instance_norm(x.double(), weight=norm.weight.double(), bias=norm.bias.double())
    with torch.no_grad():
        got, alone = norm._short(x), norm._short(x[:1])
    assert got.dtype == dtype and got.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(got.double(), want, rtol=2**-8, atol=2e-3)
    torch.testing.assert_close(alone, got[:1])


def test_self_attention_is_softmax_over_all_places():
    torch.manual_seed(0)
    layer = _SelfAttention(16).double()
    x = torch.randn(2, 16, 3, 4, dtype=torch.float64)
    q, k, v = layer.to_qkv(layer.spread(x)).view(2, 3, 8, 2, 12).transpose(3, 4).unbind(1)
    weights = (q @ k.transpose(-1, -2) / math.sqrt(2)).softmax(-1)
    want = layer.project((weights @ v).transpose(2, 3).reshape(2, 16, 3, 4))
    torch.testing.assert_close(layer(x), want)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_self_attention_never_makes_the_matrix_of_all_pairs(layout, device):
    """Only implementations that do without it are allowed."""
    layer = _SelfAttention(64).to(device)
    x = torch.randn(1, 64, 16, 16, device=device).contiguous(memory_format=layout)
    fused = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.CUDNN_ATTENTION]
    with sdpa_kernel(fused), torch.no_grad():
        found = layer(x)
    assert found.is_contiguous(memory_format=layout)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["resunet-small", "ma-resunet"])
def test_compiles_whole(name):
    net = build_net(name, maps=2, width=LEAST[name]).eval()
    x = torch.rand(1, 3, 32, 32).contiguous(memory_format=torch.channels_last)
    torch._dynamo.reset()
    with torch.no_grad():
        got, want = torch.compile(net, backend="eager", fullgraph=True)(x), net(x)
    torch._dynamo.reset()
    torch.testing.assert_close(got, want, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    ("name", "options", "error", "message"),
    [
        ("hrnte", {}, UnknownName, "unknown model 'hrnte'.*'hrnet'"),
        ("hrnet", {"width": 3}, ConfigError, "width = 3"),
        ("unet", {"maps": 0}, ConfigError, "maps = 0"),
        ("unet", {"in_channels": 0}, ConfigError, "in_channels = 0"),
        ("smp:unet/resnet18", {"width": 8}, ConfigError, "width = 8 with model 'smp:unet/resnet18'"),
    ],
)
def test_bad_requests_are_named(name, options, error, message):
    with pytest.raises(error, match=message):
        build_net(name, **options)


def test_smp_is_asked_for_by_name(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "segmentation_models_pytorch", None)
    with pytest.raises(EnvironmentUnusable, match=r"'smp:unet/resnet18' needs .*hotlap\[smp\]"):
        build_net("smp:unet/resnet18")


@pytest.mark.parametrize("encoder", ["tu-vit_tiny_patch16_224", "tu-vit_small_patch16_dinov3"])
def test_transformers_of_smp_take_any_size(encoder):
    pytest.importorskip("segmentation_models_pytorch")
    net = build_net(f"smp:dpt/{encoder}", maps=2).eval()
    with torch.no_grad():
        assert net(torch.rand(1, 3, 70, 33)).shape == (1, 2, 70, 33)


def test_a_network_of_smp_for_one_size_is_named():
    pytest.importorskip("segmentation_models_pytorch")
    net = build_net("smp:unet/tu-swin_tiny_patch4_window7_224").eval()
    with pytest.raises(UsageError, match=r"'smp:unet/tu-swin.*' cannot see images of 64x96: .*any size"):
        net(torch.rand(1, 3, 50, 90))


@pytest.mark.parametrize("size", [(1, 1), (64, 64), (127, 200), (128, 128)])
def test_pan_of_smp_takes_images_smaller_than_it_needs(size):
    """Which it sees as if their last rows and columns went on; a folder's small pictures are tiles of 64x64."""
    pytest.importorskip("segmentation_models_pytorch")
    net = build_net("smp:pan/resnet18", maps=2).eval()
    image = torch.rand(1, 3, *size)
    whole = F.pad(image, (0, max(0, 128 - size[1]), 0, max(0, 128 - size[0])), mode="replicate")
    with torch.no_grad():
        torch.testing.assert_close(net(image), net(whole)[..., : size[0], : size[1]], rtol=0, atol=0)


def test_smp_networks_take_any_size():
    pytest.importorskip("segmentation_models_pytorch")
    net = build_net("smp:fpn/resnet18", maps=2).eval()
    with torch.no_grad():
        assert net(torch.rand(1, 3, 40, 70)).shape == (1, 2, 40, 70)
    with pytest.raises(UnknownName, match="'smp:fnp/resnet18'"):
        build_net("smp:fnp/resnet18")
