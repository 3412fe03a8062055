"""The CUDA kernels of splatting on a card: streams, devices, graphs, loops that wait for nothing, extreme sizes."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from hotlap.base.errors import UsageError
from hotlap.kernels.agreement import relative_errors
from hotlap.kernels.splat import cpu, cuda, cuda_room, reference
from hotlap.kernels.splat.cases import SplatCase, as_splats
from hotlap.kernels.splat.op import splat
from hotlap.splat import rasterize

CASE = SplatCase(splats=997, width=100, height=70, size=0.05, options={"sh_degree": 3, "raw": True})
LEARNED = ("means", "quats", "scales", "opacities", "colors")


@pytest.fixture
def card(monkeypatch):
    """The first card, which knows of no frame yet."""
    monkeypatch.setattr(cuda_room, "ROOM", cuda_room.Room())
    return torch.device("cuda", 0)


def leaves_of(case: SplatCase, device: torch.device) -> dict[str, torch.Tensor]:
    made = case.make(device)
    return {name: made[name].requires_grad_() for name in LEARNED} | {n: made[n] for n in ("viewmats", "Ks")}


def step(inputs: dict[str, torch.Tensor], case: SplatCase, weights: torch.Tensor) -> dict[str, torch.Tensor]:
    """The picture and the gradients of all that is learned, by autograd."""
    colors, _, _ = rasterize(**inputs, width=case.width, height=case.height, **case.options)
    grads = torch.autograd.grad((colors * weights).sum(), [inputs[name] for name in LEARNED])
    return {"picture": colors.detach(), **dict(zip(LEARNED, grads, strict=True))}


def weights_of(case: SplatCase, device: torch.device) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(1, case.height, case.width, 3, generator=generator).to(device)


def assert_same(got: dict[str, torch.Tensor], want: dict[str, torch.Tensor]) -> None:
    assert torch.equal(got["picture"], want["picture"])
    assert max(relative_errors(got, want).values()) < 1e-4


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
class TestOnACard:
    def test_two_streams_at_once(self, card):
        cases = [CASE, replace(CASE, splats=3001, width=130)]
        scenes = [(leaves_of(case, card), case, weights_of(case, card)) for case in cases]
        wanted = [step(*scene) for scene in scenes]
        torch.cuda.synchronize()
        streams, found = [torch.cuda.Stream() for _ in scenes], {}
        for _ in range(20):
            for n, (stream, scene) in enumerate(zip(streams, scenes, strict=True)):
                with torch.cuda.stream(stream):
                    found[n] = step(*scene)
        torch.cuda.synchronize()
        for n, want in enumerate(wanted):
            assert_same(found[n], want)

    def test_a_second_card_that_is_not_the_current_one(self, card):
        if torch.cuda.device_count() < 2:
            pytest.skip("no second CUDA device")
        other = torch.device("cuda", 1)
        want = step(leaves_of(CASE, card), CASE, weights_of(CASE, card))
        with torch.cuda.device(card):
            got = step(leaves_of(CASE, other), CASE, weights_of(CASE, other))
        assert {tensor.device for tensor in got.values()} == {other}
        assert_same({name: tensor.to(card) for name, tensor in got.items()}, want)

    def test_a_training_step_with_autograd_as_a_graph(self, card):
        inputs, weights = leaves_of(CASE, card), weights_of(CASE, card)
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                step(inputs, CASE, weights)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            recorded = step(inputs, CASE, weights)
        with torch.no_grad():
            inputs["means"] += 0.02
        graph.replay()
        torch.cuda.synchronize()
        assert not cuda.overflowed(card)
        assert_same(recorded, step(inputs, CASE, weights))

    def test_a_loop_waits_for_no_count_that_is_there(self, card, monkeypatch):
        inputs, weights = leaves_of(CASE, card), weights_of(CASE, card)
        want = step(inputs, CASE, weights)
        for _ in range(cuda_room.FIRST_FRAMES):
            step(inputs, CASE, weights)
        waits = []
        whole = torch.cuda.Event.synchronize
        monkeypatch.setattr(torch.cuda.Event, "synchronize", lambda event: (waits.append(event), whole(event)))
        for _ in range(4):
            colors, _, _ = rasterize(**inputs, width=CASE.width, height=CASE.height, **CASE.options)
            torch.cuda.synchronize()  # as if the host had other things to do
            torch.autograd.grad(colors.sum(), inputs["means"])
        assert waits == []
        with torch.no_grad():
            picture, _, _ = rasterize(**inputs, width=CASE.width, height=CASE.height, **CASE.options)
        assert torch.equal(picture, want["picture"])

    def test_a_frame_that_did_not_fit_is_completed_by_its_backward_pass(self, card, monkeypatch):
        monkeypatch.setattr(cuda_room, "STEP", 1)
        inputs, weights = leaves_of(CASE, card), weights_of(CASE, card)
        for _ in range(cuda_room.FIRST_FRAMES + 1):
            step(inputs, CASE, weights)
        with torch.no_grad():
            inputs["scales"] += 1.0
        with pytest.warns(RuntimeWarning, match=r"\(1, 70, 100\) on cuda:0 had \d+ pairs .* room for \d+"):
            got = step(inputs, CASE, weights)
        assert_same(got, step(inputs, CASE, weights))

    def test_gradients_of_8192_pixels_on_a_side(self, card):
        """The same splats in a corner of a large picture, where only that corner has a weight."""
        case = replace(CASE, splats=50, size=0.3)
        inputs, weights = leaves_of(case, card), weights_of(case, card)
        with torch.no_grad():
            inputs["means"] *= 0.3  # all within the picture: how far outside one is linearised depends on its size
        want = step(inputs, case, weights)
        intrinsics = inputs["Ks"].clone()
        intrinsics[:, 0, 2] += 8192 - case.width
        intrinsics[:, 1, 2] += 8192 - case.height
        wide = torch.zeros(1, 8192, 8192, 3, device=card)
        wide[:, 8192 - case.height :, 8192 - case.width :] = weights
        got = step(inputs | {"Ks": intrinsics}, replace(case, width=8192, height=8192), wide)
        del got["picture"], want["picture"]
        # In float32 a centre near 8192 is known to 5e-4 pixels, and some pixels are at a threshold.
        assert all((got[n] - want[n]).norm() < 0.02 * want[n].norm() for n in want)

    def test_many_splats_over_the_whole_screen(self, card):
        case = SplatCase(splats=3000, width=300, height=200, channels=3, size=30.0, opacity=-3.0, options={"raw": True})
        made = case.make(torch.device("cpu"))
        want = splat(as_splats(made), case.view, "cpu")
        on_card = {name: tensor if tensor is None else tensor.to(card) for name, tensor in made.items()}
        got = splat(as_splats(on_card), case.view, "cuda")
        assert (got.facts.tiles_per_splat.sum() > 0.5 * 3000 * 19 * 13) and cuda_room.ROOM.known
        # Where the last of the light goes is decided by rounding in a few pixels.
        apart = (got.colors.cpu() - want.colors).abs().amax(-1)
        assert (apart > 1e-3).float().mean() < 0.01 and (got.alphas.cpu() - want.alphas).abs().max() < 1e-2

    def test_deterministic_algorithms_are_refused_before_gradients_are_made(self, card):
        inputs, weights = leaves_of(CASE, card), weights_of(CASE, card)
        torch.use_deterministic_algorithms(True)
        try:
            with pytest.raises(UsageError, match="gradients of splatting on cuda:0 are sums in no fixed order"):
                step(inputs, CASE, weights)
        finally:
            torch.use_deterministic_algorithms(False)


def test_deterministic_algorithms_are_refused_warned_about_or_not_asked_for():
    device = torch.device("cuda", 0)
    cuda.check_determinism(device)
    try:
        torch.use_deterministic_algorithms(True)
        with pytest.raises(UsageError, match=r"gradients of splatting on cuda:0 .* Take impl='cpu'"):
            cuda.check_determinism(device)
        cuda.check_determinism(torch.device("cpu"))
        torch.use_deterministic_algorithms(True, warn_only=True)
        with pytest.warns(RuntimeWarning, match="gradients of splatting on cuda:0 are sums in no fixed order"):
            cuda.check_determinism(device)
    finally:
        torch.use_deterministic_algorithms(False)


def test_a_gradient_that_is_none_is_one_of_zeros(device):
    case = SplatCase(splats=40, channels=2, background=True)
    inputs = as_splats(case.make(device))
    for module in (reference, cpu, cuda):
        if module is not reference and module.why_not(inputs, case.view):
            continue
        drawn = module.forward(inputs, case.view)
        v_colors, needs = torch.ones_like(drawn.colors), frozenset({"means", "backgrounds"})
        some = module.backward(inputs, case.view, drawn, v_colors, None, None, needs)
        zeros = module.backward(inputs, case.view, drawn, v_colors, torch.zeros_like(drawn.alphas), None, needs)
        assert max(relative_errors(some, zeros).values()) < 1e-5
        nothing = module.backward(inputs, case.view, drawn, None, torch.zeros_like(drawn.alphas), None, needs)
        assert all((grad == 0).all() for grad in nothing.values())
