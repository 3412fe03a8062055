"""The CUDA kernels of splatting without a card: compiled for one, and run thread by thread on the CPU."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

from hotlap.base.errors import UsageError
from hotlap.kernels import launch as launching
from hotlap.kernels.agreement import in_float64, relative_errors
from hotlap.kernels.splat import cuda, cuda_plan, cuda_program, cuda_room, reference
from hotlap.kernels.splat.cases import EVERYTHING, UNDECIDED, SplatCase, as_splats, undecided
from hotlap.kernels.splat.cuda_plan import plans_of
from hotlap.kernels.splat.cuda_program import Variant
from hotlap.kernels.splat.frame import GRADIENTS

CPU = torch.device("cpu")
HERE = Path(__file__).parent
PLAIN = Variant(channels=2, depth=False, sh_degree=None)
LARGE = cuda_room.Key(CPU, 1, 70, 100)


@pytest.fixture(scope="module")
def host(tmp_path_factory):
    """A function that has the kernels of a variant, less some statement, as a library for the CPU."""

    @cache
    def build(variant: Variant, way: str, without: str = "") -> ctypes.CDLL:
        if shutil.which("g++") is None:
            pytest.skip("no g++")
        folder = tmp_path_factory.mktemp("splat")
        kernels = [
            Path(cuda.__file__).with_name(name) for name in cuda_program.SOURCES[way] if name != "primitives.cuh"
        ]
        files = [HERE / "fibres.hpp", HERE / "splat_host.hpp", *kernels, HERE / "splat_host.cpp"]
        text = "\n".join(file.read_text() for file in files)
        assert without in text
        (folder / "splat.cpp").write_text(text.replace(without, "") if without else text)
        macros = {**dict(variant.program(way).macros), "BACKWARD": int(way == "bwd")}
        defines = [f"-D{name}={value}" for name, value in macros.items()]
        command = ["g++", "-O0", "-std=c++17", "-shared", "-fPIC", "-w", *defines, "splat.cpp", "-o", "splat.so"]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return ctypes.CDLL(str(folder / "splat.so"))

    return build


@pytest.fixture
def on_host(host, monkeypatch):
    """The kernels run on the CPU; what memory is not written by them is NaN."""
    monkeypatch.setattr(cuda_room, "ROOM", cuda_room.Room())
    monkeypatch.setattr(cuda, "FEW_TILES", 0)  # as in the large pictures that no test has time for
    monkeypatch.setattr(cuda_plan, "FEW_SPLATS", 0)
    cuda_plan.plans_of.cache_clear()
    cuda_room.needed_by_graphs(CPU).zero_()
    cuda_room.Told._unread.clear()
    cuda_room.Told._slots.clear()

    def install(without: str = "") -> None:
        def launch(variant: Variant, kernels, frame: ctypes.Structure, device: torch.device) -> None:
            for name, *grid in kernels:
                way = cuda_program.way_of(name)
                library = host(variant, way, without if way == "fwd" else "")
                assert library.frame_bytes() == ctypes.sizeof(frame)
                library.run(name.encode(), *grid, variant.threads(name), ctypes.byref(frame))

        monkeypatch.setattr(cuda_program, "launch", launch)

    torch.use_deterministic_algorithms(True, warn_only=True)
    yield install
    torch.use_deterministic_algorithms(False)
    cuda_plan.plans_of.cache_clear()


def errors_of(case: SplatCase) -> dict[str, float]:
    """The largest relative error of the picture, what is known of the splats, and every gradient."""
    made = case.make(CPU)
    exact, view = in_float64(made), case.view
    decided = ~undecided(exact, view, UNDECIDED[case.dtype])[..., None]
    assert decided.float().mean() >= 1 - case.max_undecided
    needs = frozenset(name for name in GRADIENTS if name != "backgrounds" or made["backgrounds"] is not None)
    generator = torch.Generator().manual_seed(1)
    found, weights = [], []
    for module, inputs in ((reference, exact), (cuda, made)):
        drawn = module.forward(as_splats(inputs), view)
        if not weights:
            pixels = (drawn.colors, drawn.alphas)
            weights = [torch.randn(like.shape, generator=generator) * decided for like in pixels]
            weights.append(torch.randn(drawn.means2d.shape, generator=generator))
        given = [weight.to(drawn.colors.dtype) for weight in weights]
        grads = module.backward(as_splats(inputs), view, drawn, *given, needs)
        known = {"means2d": drawn.means2d} | {n: getattr(drawn.facts, n) for n in ("depths", "conics", "radii")}
        picture = {"colors": drawn.colors * decided, "alphas": drawn.alphas * decided}
        found.append({**picture, **known, **{f"grad {name}": grads[name] for name in sorted(grads)}})
    return relative_errors(found[1], found[0])


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


@pytest.mark.parametrize("few_tiles", [0, 1024], ids=["many tiles", "few tiles"])
@pytest.mark.parametrize(
    "case",
    [
        SplatCase(splats=90, size=0.3, cameras=2, background=True, options=EVERYTHING),
        SplatCase(splats=200, size=0.4, opacity=-2.0, max_undecided=0.03, options={"sh_degree": 1, "raw": True}),
        SplatCase(
            splats=300, channels=2, size=0.6, opacity=-3.0, background=True, max_undecided=0.03, options={"raw": True}
        ),
        SplatCase(splats=300, channels=2, size=0.6, opacity=6.0, twins=True, options={"raw": True}),
        SplatCase(splats=60, channels=6, size=0.5, options={"raw": True}),
    ],
    ids=lambda case: case.id,
)
def test_long_lists_are_cut_for_the_backward_pass(case, few_tiles, on_host, monkeypatch):
    """Each part begins with the light and the colour that the forward pass has left at the cut."""
    on_host()
    monkeypatch.setattr(cuda, "FEW_TILES", few_tiles)
    monkeypatch.setattr(cuda_plan, "PART", 32)
    monkeypatch.setattr(cuda_plan, "LONG_LISTS", 1)
    monkeypatch.setattr(cuda_plan, "FEWEST_CUT", 0)
    monkeypatch.setattr(cuda_room, "STEP", 1)
    errors = errors_of(case)
    assert {name: error for name, error in errors.items() if not error <= case.tolerance} == {}
    colors = as_splats(case.make(CPU)).colors.shape
    (plan,) = plans_of(case.view, CPU, case.cameras, case.splats, colors)._known.values()
    blocks = {name: across for name, across, _ in plan.backward}["splat_blend_bwd_kernel"]
    if case.channels > 4:
        assert plan.numbers.part == 0 and blocks == plan.num_tiles
    else:
        assert plan.numbers.part == 32 and blocks == plan.num_tiles + plan.capacity // 32
        assert cuda_room.ROOM.most(plan.key) > 48 * plan.num_tiles, "lists have several parts"


def test_short_lists_and_lists_of_many_tiles_are_not_cut():
    """The memory of the cuts would be a good part of all; a large picture fills a card without them."""
    assert cuda_plan.is_cut(num_tiles=2170, channels=3, capacity=3_000_000)
    assert cuda_plan.is_cut(num_tiles=558, channels=4, capacity=300_000)
    assert not cuda_plan.is_cut(num_tiles=510, channels=3, capacity=140_000)
    assert not cuda_plan.is_cut(num_tiles=1300, channels=3, capacity=400_000)
    assert not cuda_plan.is_cut(num_tiles=558, channels=5, capacity=10**7)
    assert not cuda_plan.is_cut(num_tiles=8160, channels=3, capacity=6_000_000)


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


def frame_with(**values) -> ctypes.Structure:
    """A frame of which only this is known."""
    frame = cuda_program.frame_type()()
    for name, value in values.items():
        setattr(frame, name, value.data_ptr() if isinstance(value, torch.Tensor) else value)
    return frame


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


def sort_lists(counts: list[int], short_lists: bool = False) -> list[tuple[list[int], list[int]]]:
    """For each tile, the splats in the order of the kernel and in the right order."""
    generator = torch.Generator().manual_seed(0)
    total = sum(counts)
    depths = torch.randint(0, max(total // 3, 1), (total,), generator=generator)  # some are equal
    keys = depths << 32 | torch.randperm(total, generator=generator)
    ranges = torch.tensor([0, *torch.tensor(counts).cumsum(0)], dtype=torch.int32)
    found = torch.full((total,), -1, dtype=torch.int32)
    right = [sorted(keys[a:b].tolist()) for a, b in pairwise(ranges.tolist())]
    order = torch.arange(len(counts), dtype=torch.int32).flip(0).contiguous()
    frame = {"order": order, "keys": keys, "keys_spare": torch.full_like(keys, -1), "ranges": ranges, "ids": found}
    frame |= {"num_cameras": 1, "tiles_x": len(counts), "tiles_y": 1, "short_lists": short_lists}
    sort = ("splat_sort_kernel", -(-len(counts) // 8) if short_lists else len(counts) + total // cuda_plan.RUN, 1)
    kernels = (sort,) if short_lists else (sort, ("splat_merge_kernel", len(counts), 1))
    cuda_program.launch(PLAIN, kernels, frame_with(**frame), CPU)
    return [
        (found[a:b].tolist(), [key & 0xFFFFFFFF for key in wanted])
        for (a, b), wanted in zip(pairwise(ranges.tolist()), right, strict=True)
    ]


@pytest.mark.parametrize("short_lists", [False, True])
def test_sorts_lists_of_every_length(short_lists, on_host):
    on_host()
    counts = [0, 1, 2, 8, 9, 31, 255, 256, 257, 1000, 2047, 2048, 2049, 4096, 7001]
    assert all(found == wanted for found, wanted in sort_lists(counts, short_lists))


def test_a_missing_barrier_of_the_sort_is_seen(on_host):
    on_host(without="        block_barrier();\nUNROLL")
    assert any(found != wanted for found, wanted in sort_lists([2048, 2048]))


@pytest.mark.parametrize(
    ("num_tiles", "capacity", "told"), [(6, 10**6, True), (3000, 10**6, False), (3000, 4000, True), (3000, 4000, False)]
)
def test_every_tile_has_its_place_and_long_lists_come_first(num_tiles, capacity, told, on_host):
    on_host()
    generator = torch.Generator().manual_seed(0)
    counts = torch.randint(0, 9, (num_tiles,), generator=generator, dtype=torch.int32)
    counts[[2, num_tiles - 1]] = 500
    starts = torch.tensor([0, *counts.cumsum(0)]).clamp(max=capacity)
    frame = {"num_cameras": 1, "tiles_x": num_tiles, "tiles_y": 1, "capacity": capacity, "project_blocks": 3} | {
        "cursors": torch.cat([counts, torch.zeros(1, dtype=torch.int32)]), "needed": cuda_room.needed_by_graphs(CPU),
        "told": torch.zeros(1, dtype=torch.int32) if told else None,
        "ranges": torch.full((num_tiles + 1,), -1, dtype=torch.int32),
        "order": torch.full((num_tiles,), -1, dtype=torch.int32),
    }  # fmt: skip
    projection = "splat_project_fwd_kernel"  # without splats its blocks do nothing else than this
    cuda_program.launch(PLAIN, ((projection, 2, 1),), frame_with(**frame), CPU)
    assert frame["ranges"].tolist() == [-1] * (num_tiles + 1), "a block is not done yet"
    cuda_program.launch(PLAIN, ((projection, 1, 1),), frame_with(**frame), CPU)
    total = int(counts.sum())
    assert torch.equal(frame["ranges"].long(), starts) and torch.equal(frame["cursors"].long()[:-1], starts[:-1])
    assert frame["needed"].tolist() == [total, total if total > capacity and not told else 0]
    assert not told or frame["told"].tolist() == [total]
    assert frame["order"].tolist()[:2] == [2, num_tiles - 1]
    assert frame["order"].sort().values.tolist() == list(range(num_tiles))


@pytest.mark.parametrize("each", [2**20, 2**26])
def test_counts_that_no_room_is_enough_for_stop_at_a_number_above_it(each, on_host):
    on_host()
    num_tiles, capacity = 3000, cuda_room.MOST_PAIRS
    frame = {"num_cameras": 1, "tiles_x": num_tiles, "tiles_y": 1, "capacity": capacity, "project_blocks": 1} | {
        "cursors": torch.tensor([each] * num_tiles + [0], dtype=torch.int32), "needed": cuda_room.needed_by_graphs(CPU),
        "told": torch.zeros(1, dtype=torch.int32), "order": torch.zeros(num_tiles, dtype=torch.int32),
        "ranges": torch.full((num_tiles + 1,), -1, dtype=torch.int32),
    }  # fmt: skip
    cuda_program.launch(PLAIN, (("splat_project_fwd_kernel", 1, 1),), frame_with(**frame), CPU)
    assert frame["told"].tolist() == [2**30] and capacity < 2**30
    wanted = (torch.arange(num_tiles + 1) * each).clamp(max=capacity)
    assert torch.equal(frame["ranges"].long(), wanted)


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
