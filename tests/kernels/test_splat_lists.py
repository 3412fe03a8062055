"""The lists of tile and splat on a card, without one: where each begins, how it is sorted, and where it is cut."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from splat_errors import CPU, PLAIN, errors_of, frame_with

from hotlap.kernels.splat import cuda, cuda_plan, cuda_program, cuda_room
from hotlap.kernels.splat.cases import EVERYTHING, SplatCase, as_splats
from hotlap.kernels.splat.cuda_plan import plans_of


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
