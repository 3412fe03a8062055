import copy

import pytest
import torch
from fake_memory import FakeMemory
from tiny_training import assert_same
from torch import nn
from torch.nn.utils import parametrizations

from hotlap.measure.dropout import key_dropout
from hotlap.measure.recompute import find_blocks, recompute_blocks
from hotlap.segment.model import UNet


def block(width=8):
    return nn.Sequential(nn.Linear(width, 32), nn.BatchNorm1d(32), nn.ReLU(inplace=True), nn.Dropout(0.4),
                         nn.Linear(32, width))  # fmt: skip


def net(num=4):
    torch.manual_seed(0)
    return nn.Sequential(*(block() for _ in range(num)), nn.Linear(8, 2)).double()


def run(model, x, key=None, num_passes=2):
    """Outputs, gradients and all state after a few passes."""
    found = {}
    for number in range(num_passes):
        if key is not None:
            key.set_step(number)
            key.set_part(0, len(x))
        out = model(x)
        out.square().sum().backward()
        found[f"out {number}"] = out.detach()
    found |= {f"grad {n}": p.grad.clone() for n, p in model.named_parameters()}
    return found | {n: t.clone() for n, t in model.state_dict().items()}


def test_everything_is_the_same_with_recomputation_and_after_it(device):
    x = torch.randn(6, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).to(device)
    found = []
    for switch in (False, True):
        model = net().to(device)
        key = key_dropout(model, device)
        off = recompute_blocks(model) if switch else lambda: None
        found.append(run(model, x, key))
        off()
    plain, recomputed = found
    assert_same(recomputed, plain)
    assert plain["0.1.num_batches_tracked"].item() == 2  # once for each pass, not for each computation
    assert [layer.num_calls for layer in key.layers] == [1] * 4
    assert not any("forward" in vars(module) for module in model.modules())
    again = run(model, x, key, num_passes=1)
    assert again["0.1.num_batches_tracked"].item() == 3


def test_functional_randomness_is_repeated_too():
    class Noisy(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)

        def forward(self, x):
            return self.b(nn.functional.dropout(self.a(x), 0.5))

    x, found = torch.randn(6, 8), []
    for switch in (False, True):
        torch.manual_seed(0)
        model = nn.Sequential(Noisy(), Noisy(), nn.Linear(8, 2))
        if switch:
            recompute_blocks(model)
        found.append(run(model, x))
    assert_same(found[1], found[0])


def test_state_that_a_forward_pass_uses_and_moves_on_is_the_same_in_the_second_computation():
    """Spectral norm improves its estimate in every pass; computed again from the later one, gradients would be off."""
    x, found = torch.randn(6, 8, dtype=torch.float64), []
    for switch in (False, True):
        torch.manual_seed(0)
        blocks = [nn.Sequential(parametrizations.spectral_norm(nn.Linear(8, 8)), nn.Tanh()) for _ in range(3)]
        blocks.append(nn.Sequential(nn.Unflatten(1, (4, 2)), nn.InstanceNorm1d(4, track_running_stats=True)))
        model = nn.Sequential(*blocks).double()
        if switch:
            recompute_blocks(model)
        found.append(run(model, x))
    assert_same(found[1], found[0])


def test_evaluation_and_the_state_dict_are_untouched():
    x, model = torch.randn(6, 8, dtype=torch.float64), net()
    want, names = model.eval()(x), list(model.state_dict())
    recompute_blocks(model)
    assert torch.equal(model(x), want) and list(model.state_dict()) == names
    with torch.no_grad():
        assert model.train()(x).shape == want.shape


def test_a_copy_of_a_model_computes_with_its_own_weights():
    model = net()
    recompute_blocks(model)
    twin = copy.deepcopy(model)
    for parameter in twin.parameters():
        parameter.data.zero_()
    x = torch.randn(6, 8, dtype=torch.float64)
    assert not twin(x).any() and model(x).any()
    twin(x).sum().backward()
    assert all(p.grad is None for p in model.parameters()) and twin[4].bias.grad is not None


def test_a_forward_of_the_block_itself_comes_back():
    model = net(2)
    own = model[0].forward = lambda x: x * 2
    off = recompute_blocks(model)
    x = torch.randn(6, 8, dtype=torch.float64)
    assert torch.equal(model[0](x), x * 2)
    off()
    assert model[0].forward is own


def test_a_failure_in_the_second_computation_leaves_state_and_flags_as_they_were():
    model = net()
    key = key_dropout(model, torch.device("cpu"))
    recompute_blocks(model)
    key.set_part(0, 6)
    out = model(torch.randn(6, 8, dtype=torch.float64))
    buffers = dict(model.named_buffers())

    class Refusing(FakeMemory):
        def _run(self, func, args, kwargs):
            self._fail("everything")

    with Refusing(), pytest.raises(torch.OutOfMemoryError):
        out.sum().backward()
    assert all(buffer is buffers[name] for name, buffer in model.named_buffers())
    assert [layer.num_calls for layer in key.layers] == [1] * 4


def test_memory_at_its_peak_is_lower():
    peaks = {}
    for switch in (False, True):
        torch.manual_seed(0)
        blocks = [nn.Sequential(nn.Linear(8, 128), nn.GELU(), nn.Linear(128, 8), nn.Tanh()) for _ in range(8)]
        model, x = nn.Sequential(*blocks), torch.randn(256, 8)
        if switch:
            recompute_blocks(model)
        with FakeMemory() as memory:
            model(x).sum().backward()
        peaks[switch] = memory.peak_bytes
    assert peaks[True] < 0.4 * peaks[False]  # one block of eight at a time, and what passes between them


class Wrapped(nn.Module):
    """The model inside another, as in many libraries."""

    def __init__(self, inner):
        super().__init__()
        self.backbone, self.head = inner, nn.Linear(8, 2)


class Two(nn.Module):
    def __init__(self):
        super().__init__()
        shared = block()
        self.left, self.right, self.both = shared, shared, nn.ModuleDict({"a": block(), "b": nn.Linear(8, 8)})


def names(model):
    return [name for name, _ in find_blocks(model)]


def test_blocks_are_found_in_lists_and_in_models_inside_models():
    assert names(net(3)) == ["0", "1", "2"]
    assert names(nn.Sequential(nn.Sequential(block(), block()), nn.ModuleList([block(), nn.Linear(8, 8)]))) == [
        "0.0", "0.1", "1.0",
    ]  # fmt: skip
    assert names(Wrapped(net(3))) == ["backbone.0", "backbone.1", "backbone.2"]
    assert names(Wrapped(Wrapped(net(2)))) == ["backbone.backbone.0", "backbone.backbone.1"]
    assert names(Two()) == ["left", "both.a"]
    assert names(nn.Sequential(nn.Linear(8, 8), nn.LSTM(8, 8))) == []


def test_blocks_of_known_models_are_found():
    unet = UNet(classes=3, width=4)
    assert names(unet) == [*(f"encoders.{i}" for i in range(4)), "bottleneck", *(f"decoders.{i}" for i in range(4))]
    layers = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, batch_first=True), 3)
    assert names(Wrapped(layers)) == [f"backbone.layers.{i}" for i in range(3)]


def test_blocks_of_torchvision_models_are_found():
    models = pytest.importorskip("torchvision.models")
    assert names(models.resnet18(weights=None)) == [f"layer{i}.{j}" for i in (1, 2, 3, 4) for j in (0, 1)]
    mobile = names(models.mobilenet_v2(weights=None))
    assert mobile == [*(f"features.{i}" for i in range(19)), "classifier"]


def test_a_unet_trains_the_same_with_recomputation(device):
    x = torch.randn(2, 3, 32, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).to(device)
    found = []
    for switch in (False, True):
        torch.manual_seed(0)
        model = UNet(classes=2, width=2).double().to(device)
        if switch:
            recompute_blocks(model)
        found.append(run(model, x))
    # A card's convolutions may add up in another order the second time; hundreds of terms, a few layers deep.
    last_bits = 0 if device.type == "cpu" else 2**12 * torch.finfo(torch.float64).eps
    assert_same(found[1], found[0], rtol=last_bits, atol=last_bits)
