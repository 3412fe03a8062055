"""The CUDA kernels of splatting without a card: compiled for one, and run thread by thread on the CPU."""

from __future__ import annotations

import ctypes
from dataclasses import replace

import numpy as np
import pytest
import torch
from splat_errors import CPU, PLAIN, errors_of, frame_with

from hotlap.base.errors import UsageError
from hotlap.kernels import launch as launching
from hotlap.kernels.agreement import relative_errors
from hotlap.kernels.splat import cuda, cuda_plan, cuda_program, cuda_room, reference
from hotlap.kernels.splat.cases import EVERYTHING, SplatCase, as_splats

LARGE = cuda_room.Key(CPU, 1, 70, 100)


@pytest.mark.parametrize(
    "case",
    [
        SplatCase(splats=37, cameras=2, background=True, options=EVERYTHING),
        SplatCase(splats=61, black=True, options={"sh_degree": 1, "raw": True}),
        SplatCase(splats=60, channels=6, far_out=True, cameras=2, by_camera=True, background=True),
        SplatCase(splats=90, channels=2, size=0.6, opacity=6.0, strided=True, twins=True, options={"raw": True}),
        SplatCase(splats=0, channels=2, options={"raw": True}),
    ],
    ids=lambda case: case.id,
)
def test_matches_reference_thread_by_thread(case, on_host):
    on_host()
    errors = errors_of(case)
    assert {name: error for name, error in errors.items() if not error <= case.tolerance} == {}


@pytest.mark.parametrize(
    "case",
    [
        SplatCase(splats=37, cameras=2, background=True, options=EVERYTHING),
        SplatCase(splats=61, black=True, options={"sh_degree": 1, "raw": True}),
        SplatCase(splats=300, channels=2, size=0.6, opacity=6.0, twins=True, options={"raw": True}),
        SplatCase(splats=40, channels=37, options={"raw": True}),
        SplatCase(splats=0, channels=2, options={"raw": True}),
    ],
    ids=lambda case: case.id,
)
def test_small_pictures_are_sorted_by_the_blending_and_small_scenes_have_cleared_sums(case, on_host, monkeypatch):
    on_host()
    monkeypatch.setattr(cuda, "FEW_TILES", 1024)
    monkeypatch.setattr(cuda_plan, "FEW_SPLATS", 2**18)
    errors = errors_of(case)
    assert {name: error for name, error in errors.items() if not error <= case.tolerance} == {}


def test_a_second_backward_pass_of_a_small_scene_gives_the_same(on_host, monkeypatch):
    on_host()
    monkeypatch.setattr(cuda_plan, "FEW_SPLATS", 2**18)
    case = SplatCase(splats=61, options={"sh_degree": 1, "raw": True})
    splats = as_splats(case.make(CPU))
    drawn = cuda.forward(splats, case.view)
    needs = frozenset({*cuda.PLANES, "colors"})
    given = (torch.ones_like(drawn.colors), None, None)
    first, *others = (
        cuda.backward(splats, case.view, drawn, *given, some) for some in (needs, needs, frozenset({"means"}))
    )
    for later in others:
        assert all(torch.allclose(later[name], first[name], rtol=1e-5, atol=1e-7) for name in later)
    assert first["means"].abs().sum() > 0


def test_a_backward_pass_in_a_graph_can_run_again_without_its_forward_pass(on_host, monkeypatch):
    on_host()
    case = SplatCase(splats=61, options={"sh_degree": 1, "raw": True})  # with more cameras torch's zeros are recorded
    monkeypatch.setattr(cuda_plan, "FEW_SPLATS", 2**18)
    launched, launch = [], cuda_program.launch
    monkeypatch.setattr(cuda_program, "launch", lambda *given: (launched.append(given), launch(*given)))
    splats = as_splats(case.make(CPU))
    drawn = cuda.forward(splats, case.view)
    assert drawn.saved.cleared
    given = (torch.ones_like(drawn.colors), None, None, frozenset({*cuda.PLANES, "colors"}))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cuda_room, "capturing", lambda device: True)
        recorded = cuda.backward(splats, case.view, drawn, *given)
    first = {name: grad.clone() for name, grad in recorded.items()}
    assert first["means"].abs().sum() > 0 and first["colors"].abs().sum() > 0
    for _ in range(2):
        launch(*launched[-1])
        assert max(relative_errors(recorded, first).values()) < 1e-5
    later = cuda.backward(splats, case.view, drawn, *given)
    assert max(relative_errors(later, first).values()) < 1e-5


def test_a_missing_barrier_of_a_warp_is_seen(on_host):
    on_host(without="warp_barrier();  // what is staged is there for all")
    case = SplatCase(splats=90, channels=2, size=0.6, opacity=6.0, options={"raw": True})
    splats = as_splats(case.make(CPU))
    got, want = cuda.forward(splats, case.view), reference.forward(splats, case.view)
    assert not (got.colors - want.colors).abs().max() < 0.01


def test_the_picture_does_not_depend_on_how_many_pixels_a_thread_has(on_host, monkeypatch):
    on_host()
    case = SplatCase(splats=90, channels=2, size=0.6, opacity=6.0, options={"raw": True})
    splats, frames = as_splats(case.make(CPU)), []
    for pixels in (1, 2, 4):  # forward has 2 by itself, and backward 4: both must decide alike what counts
        monkeypatch.setattr(cuda, "_variant", lambda *given, pixels=pixels: replace(PLAIN, pixels=pixels))
        frames.append(cuda.forward(splats, case.view))
    for frame in frames[1:]:
        assert torch.equal(frame.colors, frames[0].colors)
        assert torch.equal(lasts_of(frame), lasts_of(frames[0]))


def lasts_of(drawn) -> torch.Tensor:  # [C * H * W]
    """The pair after the last one that counts, of each pixel."""
    memory = drawn.saved.memory
    return memory[(drawn.saved.frame.lasts - memory.data_ptr()) // 4 :][: drawn.alphas.numel()]


def test_sizes_and_flags_may_be_numpys(on_host):
    on_host()
    case = SplatCase(splats=5, channels=2, options={"raw": True})
    splats, plain = as_splats(case.make(CPU)), case.view
    odd = replace(plain, width=np.int64(plain.width), height=np.int32(plain.height), raw=np.True_, near=np.float32(0.5))
    want = cuda.forward(splats, replace(plain, near=0.5))
    assert torch.equal(cuda.forward(splats, odd).colors, want.colors)


def test_kernels_are_launched_in_order_with_their_frame_and_none_without_blocks(monkeypatch):
    asked = []

    def cu_launch_kernel(function, *numbers):
        *sizes, stream, address, _ = numbers
        frame = cuda_program.frame_type().from_address(ctypes.c_void_p.from_address(address).value)
        asked.append((function, sizes, int(stream), frame.num_splats, frame.means))
        return (0,)

    monkeypatch.setattr(torch.cuda, "current_device", lambda: 5)
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda index: 1000 + index, raising=False)
    monkeypatch.setattr(launching, "_driver_launch", lambda: cu_launch_kernel)
    monkeypatch.setattr(cuda_program, "load_function", lambda index, program, name: f"{name} on {index}")
    kernels = (("splat_clear_kernel", 1, 1), ("splat_pair_kernel", 0, 3), ("splat_blend_fwd_kernel", 7, 2))
    cuda_program.launch(PLAIN, kernels, frame_with(num_splats=9, means=96), torch.device("cuda", 5))
    assert asked == [
        ("splat_clear_kernel on 5", [1, 1, 1, 256, 1, 1, 0], 1005, 9, 96),
        ("splat_blend_fwd_kernel on 5", [7, 2, 1, 128, 1, 1, 0], 1005, 9, 96),
    ]
    cuda_program._loaded.cache_clear()


def test_a_frame_that_no_room_is_enough_for_is_refused(on_host, monkeypatch):
    on_host()
    monkeypatch.setattr(cuda_room, "STEP", 1)
    monkeypatch.setattr(cuda_room, "MOST_PAIRS", 30)
    case, splats = one_large_splat()
    with pytest.raises(UsageError, match=r"\(1, 70, 100\) on cpu has more than 30 pairs .* Draw fewer cameras at once"):
        cuda.forward(splats, case.view)
    assert LARGE not in cuda_room.ROOM.known, "later frames of this size do not pay for it"
    monkeypatch.setattr(cuda_room, "MOST_PAIRS", 35)
    assert int(cuda.forward(splats, case.view).facts.tiles_per_splat.sum()) == 35


def test_the_first_guess_is_no_more_than_kernels_can_count():
    assert cuda_room.Room().of(LARGE._replace(cameras=9), num_splats=2**27) == cuda_room.MOST_PAIRS < 2**30


def one_large_splat() -> tuple[SplatCase, object]:
    case = SplatCase(splats=1, width=100, height=70, channels=2, size=3.0, opacity=4.0, options={"raw": True})
    return case, as_splats(case.make(CPU))


def test_a_frame_with_more_pairs_than_room_is_drawn_again(on_host, monkeypatch):
    on_host()
    monkeypatch.setattr(cuda_room, "STEP", 1)
    case, splats = one_large_splat()
    drawn = cuda.forward(splats, case.view)
    pairs = int(drawn.facts.tiles_per_splat.sum())
    assert pairs > 4, "more than the first guess"
    assert cuda_room.ROOM.of(LARGE, num_splats=1) == pairs * 5 // 4 + 1
    want = reference.forward(splats, case.view)
    assert (drawn.colors - want.colors).abs().max() < 1e-5


def test_a_captured_frame_with_too_little_room_says_so(on_host, monkeypatch):
    on_host()
    monkeypatch.setattr(cuda_room, "STEP", 1)
    case, splats = one_large_splat()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cuda_room, "capturing", lambda device: True)
        with pytest.raises(UsageError, match=r"\(cameras, height, width\) = \(1, 70, 100\) was drawn on cpu"):
            cuda.forward(splats, case.view)
        cuda_room.ROOM.learn(LARGE, needed=1, num_splats=1)
        cut = cuda.forward(splats, case.view)
    whole = cuda.forward(splats, case.view)
    assert not torch.equal(cut.colors, whole.colors)
    assert cuda.overflowed(CPU) and not cuda.overflowed(CPU)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cuda_room, "capturing", lambda device: True)
        assert torch.equal(cuda.forward(splats, case.view).colors, whole.colors)
    assert not cuda.overflowed(CPU)


@pytest.fixture
def settled(on_host, monkeypatch):
    """The room has seen enough frames of one small splat."""
    on_host()
    monkeypatch.setattr(cuda_room, "STEP", 1)
    case, _ = one_large_splat()
    small = as_splats(replace(case, size=0.02).make(CPU))
    drawn = [cuda.forward_ahead(small, case.view) for _ in range(cuda_room.FIRST_FRAMES)]
    assert [frame.saved.told for frame in drawn] == [None] * len(drawn), "the first frames are waited for"
    assert cuda_room.ROOM.is_settled(LARGE, num_splats=1)


TOO_MANY = r"frame of \(cameras, height, width\) = \(1, 70, 100\) on cpu had 35 pairs of tile and splat and room for 2"


def test_a_frame_drawn_ahead_that_did_not_fit_is_drawn_again_for_its_gradients(settled):
    case, splats = one_large_splat()
    want = reference.forward(splats, case.view)
    drawn = cuda.forward_ahead(splats, case.view)
    assert (drawn.colors - want.colors).abs().max() > 0.1, "nobody has waited"
    given = (torch.ones_like(want.colors), None, None, frozenset({"means", "colors"}))
    with pytest.warns(RuntimeWarning, match=TOO_MANY):
        got = cuda.backward(splats, case.view, drawn, *given)
    assert (drawn.colors - want.colors).abs().max() < 1e-5, "the picture is completed where it lies"
    wanted = reference.backward(splats, case.view, want, *given)
    assert max(relative_errors(dict(sorted(got.items())), dict(sorted(wanted.items()))).values()) < 1e-3
    again = cuda.forward_ahead(splats, case.view)
    assert (again.colors - want.colors).abs().max() < 1e-5


def test_a_frame_drawn_ahead_and_given_up_says_if_it_did_not_fit(settled):
    case, splats = one_large_splat()
    cuda.forward_ahead(splats, case.view)
    with pytest.warns(RuntimeWarning, match=TOO_MANY):
        drawn = cuda.forward_ahead(splats, case.view)
    assert (drawn.colors - reference.forward(splats, case.view).colors).abs().max() < 1e-5


def test_a_frame_without_gradients_is_always_complete(settled):
    case, splats = one_large_splat()
    want = reference.forward(splats, case.view)
    assert (cuda.forward(splats, case.view).colors - want.colors).abs().max() < 1e-5


def test_more_splats_are_not_trusted_to_fit(settled):
    assert cuda_room.ROOM.is_settled(LARGE, num_splats=1)
    assert not cuda_room.ROOM.is_settled(LARGE, num_splats=3)
    assert not cuda_room.ROOM.is_settled(LARGE._replace(height=71), num_splats=1)


def test_counts_that_are_not_there_yet_are_not_waited_for(settled):
    told = cuda_room.Told(LARGE, num_splats=1, capacity=3)
    told._slot.number.value = -1  # as where a card writes it
    cuda_room.Told.read_those_there(CPU)
    assert told.count is None
    told._slot.number.value = 2
    cuda_room.Told.read_those_there(CPU)
    assert told.count == 2


def test_a_count_is_waited_for_until_it_is_there_or_nothing_runs_that_could_tell_it(settled):
    class Stream:
        """A card's, which is asked again and again."""

        def __init__(self, told: cuda_room.Told, answers: list[int | None]) -> None:
            self.number, self.answers = told._slot.number, answers

        def query(self) -> bool:
            answer = self.answers.pop(0)
            if answer is not None:
                self.number.value = answer
            return not self.answers

    told = cuda_room.Told(LARGE, num_splats=1, capacity=3)
    told._slot.number.value, told._stream = -1, Stream(told, [None, None, 2])
    assert told.wait() and told.count == 2
    told = cuda_room.Told(LARGE, num_splats=1, capacity=3)
    told._slot.number.value, told._stream = -1, Stream(told, [None, None])
    with pytest.raises(RuntimeError, match=r"70, 100.* on cpu has ended without a count of pairs"):
        told.wait()


def test_gradients_share_memory_with_the_sums_only_where_that_is_safe(on_host):
    on_host()
    case, splats = one_large_splat()
    drawn = cuda.forward(splats, case.view)
    given = (torch.ones_like(drawn.colors), None, None)
    alone = cuda.backward(splats, case.view, drawn, *given, frozenset({"means", "colors"}))
    every = cuda.backward(splats, case.view, drawn, *given, frozenset({*cuda.PLANES, "colors"}))
    assert all(torch.allclose(every[name], alone[name], rtol=1e-5) for name in alone)
    assert {every[name].data_ptr() % 16 for name in cuda.PLANES} == {0}
    assert all(every[name].is_contiguous() for name in every)
    assert all(grad.untyped_storage().nbytes() == grad.nbytes for grad in every.values())


def test_frames_are_kept_until_their_gradients_are_asked_for(on_host, device, monkeypatch):
    monkeypatch.setattr(cuda, "FEW_TILES", 1024)
    if device.type == "cpu":
        on_host()
    case = SplatCase(splats=90, channels=2, size=0.6, opacity=6.0, options={"raw": True})
    scenes = [as_splats(replace(case, width=width).make(device)) for width in (37, 38)]
    views = [replace(case, width=width).view for width in (37, 38)]
    drawn = [cuda.forward(splats, view) for splats, view in zip(scenes, views, strict=True)]
    for splats, view, frame in reversed(list(zip(scenes, views, drawn, strict=True))):
        given = (torch.ones_like(frame.colors), torch.ones_like(frame.alphas), None, frozenset({"means", "colors"}))
        got = cuda.backward(splats, view, frame, *given)
        want = reference.backward(splats, view, frame, *given)
        assert max(relative_errors(dict(sorted(got.items())), dict(sorted(want.items()))).values()) < 1e-3


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_replayed_graph_draws_and_differentiates_what_it_is_given():
    card = torch.device("cuda", torch.cuda.current_device())
    case = SplatCase(splats=997, width=100, height=70, size=0.05, options={"sh_degree": 3, "raw": True})
    splats, view, needs = as_splats(case.make(card)), case.view, frozenset({"means", "colors"})
    v_colors, v_alphas = torch.randn(1, 70, 100, 3, device=card), torch.randn(1, 70, 100, 1, device=card)

    def step() -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        drawn = cuda.forward(splats, view)
        return drawn.colors, cuda.backward(splats, view, drawn, v_colors, v_alphas, None, needs)

    step()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        colors, grads = step()
    splats.viewmats[0, 0, 3] += 0.05
    graph.replay()
    torch.cuda.synchronize()
    assert not cuda.overflowed(card)
    fresh, fresh_grads = step()
    assert torch.equal(colors, fresh)
    assert max(relative_errors(grads, fresh_grads).values()) < 1e-4
