"""What a frame on a card costs the host: few operations of torch, and all that frames share worked out once."""

from __future__ import annotations

import ctypes
import itertools
from collections import Counter
from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from hotlap.base.errors import UsageError
from hotlap.kernels.splat import cuda, cuda_plan, cuda_program, cuda_room
from hotlap.kernels.splat.cases import SplatCase, as_splats
from hotlap.kernels.splat.cuda_plan import plans_of
from hotlap.kernels.splat.cuda_program import Variant
from hotlap.kernels.splat.frame import INPUTS
from hotlap.splat import rasterize

CPU = torch.device("cpu")
CASE = SplatCase(splats=61, width=100, height=70, options={"sh_degree": 3})
LEARNED = ("means", "quats", "scales", "opacities", "colors")


class Counted(TorchDispatchMode):
    """The operations that torch was asked for, by name."""

    def __init__(self) -> None:
        super().__init__()
        self.names: Counter[str] = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names[func.overloadpacket.__name__] += 1
        return func(*args, **(kwargs or {}))


@pytest.fixture
def launched(monkeypatch):
    """The frames that kernels were launched with; the kernels do nothing, and tensors of the CPU are as good."""
    frames = []

    def launch(variant, kernels, frame, device) -> None:
        copy = type(frame).from_buffer_copy(frame)
        frames.append(({name for name, *_ in kernels}, copy))

    monkeypatch.setattr(cuda_program, "launch", launch)
    monkeypatch.setattr(cuda, "why_not", lambda splats, view: "")
    monkeypatch.setattr(cuda_room, "ROOM", cuda_room.Room())
    monkeypatch.setattr(cuda_room.Told, "_unread", [])
    monkeypatch.setattr(cuda_room.Told, "_slots", {})
    return frames


def leaves() -> dict[str, torch.Tensor]:
    made = CASE.make(CPU)
    return {name: made[name].requires_grad_() for name in LEARNED} | {n: made[n] for n in ("viewmats", "Ks")}


def draw(inputs: dict[str, torch.Tensor], **options):
    return rasterize(**inputs, width=CASE.width, height=CASE.height, sh_degree=3, **options)


def test_a_call_with_gradients_asks_torch_for_memory_and_for_nothing_else(launched):
    inputs, weights = leaves(), torch.ones(1, CASE.height, CASE.width, 3)
    draw(inputs)  # the first makes what all have in common
    launched.clear()
    with Counted() as forward:
        colors, _, _ = draw(inputs)
    with Counted() as backward:
        torch.autograd.grad(colors, [inputs[name] for name in LEARNED], weights)
    # Autograd itself makes aliases of results that have gradients, to keep them and to hand them over.
    assert forward.names.pop("detach", 0) <= 3 and backward.names.pop("detach", 0) <= 3
    assert forward.names == {"empty_like": 6}, (
        "three results, what is known of splats, the lists to keep and those for now"
    )
    assert backward.names == {"empty_like": 5}, "five gradients"
    assert [len(names) for names, _ in launched] == [4, 2], "small pictures are sorted where they are blended"


def test_only_a_large_scene_or_a_second_pass_needs_a_kernel_that_clears(launched, monkeypatch):
    def names_of(passes: int) -> list[bool]:
        inputs = leaves()
        launched.clear()
        plans_of.cache_clear()
        colors, _, _ = draw(inputs)
        for _ in range(passes):
            colors.backward(torch.ones_like(colors), retain_graph=True)
        return ["splat_clear_bwd_kernel" in names for names, _ in launched[1:]]

    assert names_of(3) == [False, True, True]
    monkeypatch.setattr(cuda_plan, "FEW_SPLATS", CASE.splats - 1)
    assert names_of(2) == [True, True]
    plans_of.cache_clear()


def test_the_gradient_on_the_screen_costs_one_piece_more_and_an_absolute_one_another(launched):
    for absgrad, pieces in ((False, 6), (True, 7)):
        inputs = leaves()
        colors, _, meta = draw(inputs, absgrad=absgrad)
        meta["means2d"].retain_grad()
        weights = torch.ones_like(colors)
        with Counted() as backward:
            colors.backward(weights)
        assert backward.names["empty_like"] == pieces
        assert launched[-1][1].out_means2d == meta["means2d"].grad.data_ptr()
        if absgrad:
            assert launched[-1][1].out_means2d_abs == meta["means2d"].absgrad.data_ptr()


def test_the_gradient_on_the_screen_is_not_made_for_who_has_not_asked_for_it(launched):
    colors, _, _ = draw(leaves())
    with Counted() as backward:
        colors.backward(torch.ones_like(colors))
    assert backward.names["empty_like"] == 5 and launched[-1][1].out_means2d is None


def test_what_is_known_of_splats_is_where_the_kernels_were_told_to_write_it(launched):
    _, _, meta = draw(leaves())
    frame, num = launched[-1][1], CASE.splats
    shapes = {"radii": (1, num, 2), "depths": (1, num), "conics": (1, num, 3), "tiles_per_gauss": (1, num)}
    for name, shape in shapes.items():
        address = getattr(frame, "tiles_per_splat" if name == "tiles_per_gauss" else name)
        assert meta[name].data_ptr() == address and meta[name].shape == shape and meta[name].is_contiguous()
    assert meta["radii"].dtype == meta["tiles_per_gauss"].dtype == torch.int32
    assert meta["depths"].dtype == meta["conics"].dtype == torch.float32
    ends = sorted((meta[name].data_ptr(), meta[name].data_ptr() + 4 * meta[name].numel()) for name in shapes)
    assert all(end <= begin for (_, end), (begin, _) in itertools.pairwise(ends)), "none lies in another"


def test_facts_that_were_changed_before_the_backward_pass_are_refused(launched):
    colors, _, meta = draw(leaves())
    meta["radii"].add_(1)
    with pytest.raises(UsageError, match="radii, depths, conics or tiles of a frame were changed in place"):
        colors.sum().backward()


def test_tensors_that_kernels_cannot_read_where_they_are_are_copied(launched):
    inputs = leaves()
    inputs["means"] = torch.randn(3, 61).T.requires_grad_()
    odd = torch.randn(1 + 61 * 4)[1:].view(61, 4).requires_grad_()
    assert odd.data_ptr() % 16 != 0
    inputs["quats"] = odd
    colors, _, _ = draw(inputs)
    for _, frame in launched:
        assert frame.means not in (None, inputs["means"].data_ptr()) and frame.quats not in (None, odd.data_ptr())
        assert frame.means % 16 == frame.quats % 16 == 0 and frame.scales == inputs["scales"].data_ptr()
    grads = torch.autograd.grad(colors, [inputs["means"], odd], torch.ones_like(colors))
    assert all(grad.is_contiguous() for grad in grads)


def test_frames_that_are_alive_share_no_memory(launched):
    inputs = leaves()
    alive = [draw(inputs) for _ in range(2)]
    first, second = (launched[place][1] for place in (0, 1))
    for name in ("image", "alphas", "means2d", "radii", "depths", "conics", "shade", "light", "lasts", "ids", "ranges"):
        assert getattr(first, name) != getattr(second, name)
    assert [frame.image for frame in (first, second)] == [colors.data_ptr() for colors, _, _ in alive]


def test_what_frames_have_in_common_is_worked_out_once_for_each_kind(launched):
    splats, view = as_splats(CASE.make(CPU)), CASE.view

    def numbers(**options) -> dict[str, object]:
        launched.clear()
        cuda.forward(splats, replace(view, **options))
        frame = launched[0][1]
        return {name: getattr(frame, name) for name, kind in frame._fields_ if kind is not ctypes.c_void_p}

    numbers()  # the room is known from now on
    plain = numbers()
    misses = plans_of.cache_info().misses
    assert numbers() == plain and plans_of.cache_info().misses == misses
    plan = cuda._plan(splats, view)
    assert cuda._plan(splats, view) is plan, "with the same room it is the same plan"
    for name, value in (("raw", 1), ("antialiased", 1), ("eps2d", 0.5), ("radius_clip", 2.0)):
        assert numbers(**{name: value}) == plain | {name: value}
    assert plain["tiles_x"] == 7 and numbers(width=113)["tiles_x"] == 8
    assert numbers() == plain


def test_addresses_are_told_in_the_order_of_the_structure():
    fields = cuda_program.frame_type()
    learned = ("v_image", "v_alphas", "v_means2d", *(f"out_{name}" for name in cuda.FOUND))
    assert cuda_program.DRAWN_WITH[: len(INPUTS)] == INPUTS and learned == cuda_program.LEARNED_WITH
    names = cuda_program.DRAWN_WITH + cuda_program.LEARNED_WITH
    assert [getattr(fields, name).offset for name in names] == [8 * place for place in range(len(names))]
    frame, ones = fields(), range(1, len(names) + 1)
    cuda_program.tell_forward(frame, ones[: len(cuda_program.DRAWN_WITH)])
    cuda_program.tell_backward(frame, ones[: len(INPUTS)], frame.means2d, ones[len(cuda_program.DRAWN_WITH) :])
    assert [getattr(frame, name) for name in names] == list(ones) and frame.num_splats == 0


def test_frames_can_be_learned_from_after_one_of_their_kind_was_drawn_for_inference(launched):
    plans_of.cache_clear()
    inputs = leaves()
    with torch.inference_mode():
        draw(inputs)
    colors, alphas, meta = draw(inputs)
    assert not any(tensor.is_inference() for tensor in (colors, alphas, meta["means2d"], meta["radii"]))
    (colors.sum() + alphas.sum()).backward()
    assert inputs["means"].grad.shape == inputs["means"].shape


@pytest.mark.parametrize("options", [{}, {"cameras": 2, "background": True}, {"splats": 0}], ids=str)
def test_results_lie_in_memory_as_tensors_of_their_shapes_do(options, launched):
    case = replace(CASE, **options)
    drawn = cuda.forward(as_splats(case.make(CPU)), case.view)
    for tensor in (drawn.colors, drawn.alphas, drawn.means2d):
        assert tensor.stride() == torch.empty(tensor.shape).stride()
        assert tensor.untyped_storage().nbytes() == tensor.nbytes
    screen = (case.cameras, case.height, case.width)
    assert drawn.colors.shape == (*screen, 3) and drawn.alphas.shape == (*screen, 1)
    assert drawn.means2d.shape == (case.cameras, case.splats, 2)


def test_kernels_are_loaded_where_their_card_is_the_current_one(monkeypatch):
    current, seen = [0], []

    @contextmanager
    def switched(device):
        before, current[0] = current[0], device
        yield
        current[0] = before

    monkeypatch.setattr(torch.cuda, "current_device", lambda: current[0])
    monkeypatch.setattr(torch.cuda, "device", switched)
    monkeypatch.setattr(cuda_program, "load_function", lambda index, program, name: seen.append((index, current[0])))
    monkeypatch.setattr(cuda_program, "enqueue_all", lambda ready, address, index: seen.append(index))
    frame, card = cuda_program.frame_type()(), torch.device("cuda", 3)
    cuda_program.launch(Variant(channels=1, depth=False, sh_degree=None), (("splat_clear_kernel", 1, 1),), frame, card)
    cuda_program._loaded.cache_clear()
    assert seen == [(3, 3), 3] and current == [0]


def test_a_count_is_waited_for_on_the_stream_that_was_the_current_one_of_its_card(monkeypatch):
    handles, asked, card = [70], [], torch.device("cuda", 2)

    def current_stream(index: int) -> str:
        asked.append(index)
        return f"stream {handles[0]} of card {index}"

    def slot() -> cuda_room.Slot:
        return cuda_room.Slot(torch.zeros(1, dtype=torch.int32), ctypes.c_int(7))

    monkeypatch.setattr(torch.cuda, "current_stream", current_stream)
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda index: handles[0], raising=False)
    monkeypatch.setattr(cuda_room.Told, "_unread", [])
    monkeypatch.setattr(cuda_room.Told, "_slots", {card: [slot(), slot(), slot()]})
    cuda_room._stream.cache_clear()
    told = []
    for handle in (70, 90, 70):
        handles[0] = handle
        told.append(cuda_room.Told(cuda_room.Key(card, 1, 70, 100), num_splats=1, capacity=1))
    cuda_room._stream.cache_clear()
    assert [one._stream for one in told] == [f"stream {handle} of card 2" for handle in (70, 90, 70)]
    assert asked == [2, 2], "an object for each stream, made once"
    assert not any(one._is_there() for one in told), "what an earlier frame has told is forgotten"


def test_what_graphs_need_can_be_written_whoever_asked_first():
    cuda_room.needed_by_graphs.cache_clear()
    with torch.inference_mode():
        needed = cuda_room.needed_by_graphs(CPU)
    needed[1] = 7
    assert cuda_room.overflowed(CPU) and not cuda_room.overflowed(CPU)
    cuda_room.ROOM.least.pop(CPU, None)
