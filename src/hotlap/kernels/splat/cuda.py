"""Splatting on an NVIDIA card: nine kernels in CUDA C++, compiled at run time for the view's channels and degree.

The host never waits for a picture. It waits for one number of a frame, the count of its pairs, if the frame is drawn
without gradients or is one of the first of its size; cuda.md says exactly when, and what happens to a frame that turns
out to have had too little room. While a CUDA graph is captured nothing waits at all: see :func:`overflowed`.

A small frame takes the host longer than the card, and most of the host's time is operations of torch. So memory is
asked for in few pieces, the kernels are told addresses in them, and what frames have in common is worked out once: see
:mod:`~hotlap.kernels.splat.cuda_plan`.
"""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hotlap.base.errors import UsageError
from hotlap.kernels.nvrtc import why_no_compiler
from hotlap.kernels.splat import cuda_program as program
from hotlap.kernels.splat import cuda_room as room
from hotlap.kernels.splat.cuda_plan import Plan, plans_of
from hotlap.kernels.splat.cuda_program import Variant, frame_type
from hotlap.kernels.splat.cuda_room import overflowed as overflowed
from hotlap.kernels.splat.frame import GRADIENTS, INPUTS, Drawn, Facts, Splats, View, inputs_of

MAX_CHANNELS = 40
"""A block keeps the channels of 32 splats for each warp in 48 KiB of shared memory."""
MAX_SPLATS = 2**28
"""A splat's number and four flags share 32 bits."""
SHORT_LISTS = 256
"""Pairs that one warp sorts in its registers; with no more than this in the mean tile, a warp takes a tile each."""
FEW_TILES = 1024
"""Up to so many, warps are too few to fill a card, and a thread blends one pixel: eight warps then share a tile."""
PLANES = ("quats", "means", "scales", "opacities")
"""Gradients whose memory holds the pixels' sums of a splat until they are made from those: 11 numbers a splat."""


def why_not(splats: Splats, view: View) -> str:
    """Why this implementation cannot draw such splats; '' if it can."""
    device, dtype = splats.means.device, splats.means.dtype
    num_splats = splats.means.shape[0]  # len() takes torch three times as long
    channels = (3 if view.sh_degree is not None else splats.colors.shape[-1]) + view.depth
    if not room.is_card(device):
        return f"the tensors are on {device.type}"
    if dtype != torch.float32:
        return f"{str(dtype).removeprefix('torch.')} is not float32"
    if channels > MAX_CHANNELS:
        return f"{channels} channels are above {MAX_CHANNELS}"
    if num_splats >= MAX_SPLATS:
        return f"{num_splats} splats are not below {MAX_SPLATS}"
    return _why_no_card(device)


@functools.cache
def _why_no_card(device: torch.device) -> str:
    """Why the kernels cannot be compiled for a card; asked once, for the answer stays the same."""
    if reason := why_no_compiler():
        return reason
    major, minor = torch.cuda.get_device_capability(device)
    return "" if major >= 8 else f"the kernels need sm_80 or newer, and the card is sm_{major}{minor}"


ADDED_TO = ("viewmats", "Ks", "backgrounds")
"""Gradients that kernels add to, and that begin as zeros."""
FOUND = (*GRADIENTS, "means2d_abs")
"""All gradients, as ``frame.cuh`` has their addresses at the end of those that the backward pass needs."""


class CardFacts(Facts):
    """``Facts`` in one piece of memory; a tensor of it is made when somebody asks for it, which most do not."""

    def __init__(self, memory: Tensor, plan: Plan) -> None:
        self.memory, self.places, self.shape = memory, plan.facts.places, (plan.key.cameras, plan.num_splats)
        """int32; what lies where in it; cameras and splats."""

    def changes(self) -> int:
        return self.memory._version  # all tensors made of it count there

    @functools.cached_property
    def radii(self) -> Tensor:  # type: ignore[override]
        return self._part("radii", 2)

    @functools.cached_property
    def depths(self) -> Tensor:  # type: ignore[override]
        return self._part("depths").view(torch.float32)

    @functools.cached_property
    def conics(self) -> Tensor:  # type: ignore[override]
        return self._part("conics", 3).view(torch.float32)

    @functools.cached_property
    def tiles_per_splat(self) -> Tensor:  # type: ignore[override]
        return self._part("tiles_per_splat")

    def _part(self, name: str, *each: int) -> Tensor:
        begin, shape = dict(self.places)[name] // 4, self.shape + each
        return self.memory[begin : begin + math.prod(shape)].view(shape)


@dataclass(eq=False)
class Saved:
    """What the backward pass needs of a frame."""

    plan: Plan
    """How it was drawn."""
    told: room.Told | None
    """Who knows whether the pairs fitted; None: they did, or a graph was captured."""
    frame: Any = None
    """As the kernels of the forward pass were given it; addresses of the user's tensors and of the three results that
    have gradients may be old."""
    memory: Tensor | None = None
    """int32: shade, light, lasts, order, ranges, ids and sums of ``frame.cuh``, one behind the other."""
    cleared: bool = False
    """The sums are 0, as the first backward pass wants them."""


def _addresses_of(tensors: Sequence[Tensor | None], copies: list[Tensor]) -> list[int]:
    """Where kernels find tensors, 0 for those that are not there.

    Kernels read 16 bytes at once and no gaps: what does not lie like that is copied, and the copies must live until the
    kernels are launched.
    """
    addresses: list[int] = []
    for tensor in tensors:
        if tensor is None:
            addresses.append(0)
            continue
        address = tensor.data_ptr()
        if address % 16 or not tensor.is_contiguous():
            copies.append(tensor.clone(memory_format=torch.contiguous_format))
            address = copies[-1].data_ptr()
        addresses.append(address)
    return addresses


def _variant(splats: Splats, view: View, plan: Plan, needs: frozenset[str] | None = None) -> Variant:
    """Of the forward pass, or of a backward pass that ``needs`` gradients."""
    # Forward a long list is walked sooner by more warps; backward its parts fill a card, and four pixels are less work.
    few = needs is None if plan.numbers.part else plan.num_tiles <= FEW_TILES
    needs = needs or frozenset()
    return _known_variant(
        3 if view.sh_degree is not None else splats.colors.shape[-1],
        view.depth,
        view.sh_degree,
        view.absgrad and "means2d" in needs,
        "viewmats" in needs or "Ks" in needs,
        1 if few else None,
    )


@functools.cache
def _known_variant(
    channels: int, depth: bool, sh_degree: int | None, absgrad: bool, camera: bool, pixels: int | None
) -> Variant:
    return Variant(
        channels=channels, depth=depth, sh_degree=sh_degree, absgrad=absgrad, camera=camera, pixels=pixels
    )  # fmt: skip


def forward(splats: Splats, view: View) -> Drawn:
    """The frames of all cameras, complete: the host waits until it knows that all pairs fitted."""
    drawn = _begin(splats, view)
    _complete(splats, view, drawn)
    return drawn


def forward_ahead(splats: Splats, view: View) -> Drawn:
    """As ``forward``, but for a backward pass: once the room is settled the host waits for nothing.

    ``backward`` looks whether all pairs fitted, and draws the frame again, into the same tensors, if they did not.
    """
    drawn = _begin(splats, view)
    told = drawn.saved.told
    if told is not None and room.ROOM.is_settled(told.key, told.num_splats):
        told.handed_out = True
    else:
        _complete(splats, view, drawn)
    return drawn


def _begin(splats: Splats, view: View) -> Drawn:
    """One attempt at a frame, with the room that is known."""
    device = splats.means.device
    captured = room.capturing(device)
    if not captured:
        room.Told.read_those_there(device)
    plan = _plan(splats, view)
    told = None if captured else room.Told(plan.key, plan.num_splats, plan.capacity)
    drawn = _room_for_frame(plan, Saved(plan, told))
    _draw(splats, view, drawn)
    return drawn


def _plan(splats: Splats, view: View) -> Plan:
    means = splats.means
    plans = plans_of(view, means.device, splats.viewmats.shape[0], means.shape[0], splats.colors.shape)
    return plans.with_room(room.ROOM.of(plans.key, plans.num_splats))


def _complete(splats: Splats, view: View, drawn: Drawn) -> None:
    """Waits for the count of pairs; draws again, with more room and into the same tensors, until all have fitted."""
    saved: Saved = drawn.saved
    while saved.told is not None and not saved.told.wait():
        saved.told.warn()
        saved.told.check_limit()
        saved.plan = _plan(splats, view)
        saved.told = room.Told(saved.plan.key, saved.plan.num_splats, saved.plan.capacity)
        _draw(splats, view, drawn)
    saved.told = None


def _room_for_frame(plan: Plan, saved: Saved) -> Drawn:
    """Memory for what users are given of a frame."""
    colors, alphas, means2d = plan.results
    facts = CardFacts(torch.empty_like(plan.facts.like), plan)
    return Drawn(torch.empty_like(colors), torch.empty_like(alphas), torch.empty_like(means2d), facts, saved)


def _draw(splats: Splats, view: View, drawn: Drawn) -> None:
    """Fills a frame's tensors. What only this needs is free for others as soon as it is done."""
    saved: Saved = drawn.saved
    facts: CardFacts = drawn.facts  # type: ignore[assignment]
    plan, told, device = saved.plan, saved.told, splats.means.device
    most = room.ROOM.most(plan.key)
    short_lists = most is not None and most <= SHORT_LISTS * plan.num_tiles
    frame = saved.frame = frame_type().from_buffer_copy(plan.numbers)
    few_tiles = plan.num_tiles <= FEW_TILES and not frame.part
    frame.short_lists, frame.sort_first = short_lists, few_tiles
    kept, now = torch.empty_like(plan.kept.like), torch.empty_like(plan.now.like)
    saved.memory, saved.cleared = kept, frame.sums_each > 0
    copies: list[Tensor] = []
    bases = (
        *_addresses_of(inputs_of(splats), copies),
        drawn.colors.data_ptr(), drawn.alphas.data_ptr(), drawn.means2d.data_ptr(),
        facts.memory.data_ptr(), kept.data_ptr(), now.data_ptr(),
        0 if told is None else told.address, plan.needed,
    )  # fmt: skip
    program.tell_forward(frame, [bases[number] + place for number, place in plan.places])
    variant = _variant(splats, view, plan)
    kernels = plan.few if few_tiles else plan.short if short_lists else plan.long
    program.launch(variant, kernels, frame, device)
    del copies, now  # torch gives their memory to nobody who is not behind the kernels in the stream


def backward(
    splats: Splats,
    view: View,
    drawn: Drawn,
    v_colors: Tensor | None,  # [C, H, W, D(+1)]
    v_alphas: Tensor | None,  # [C, H, W, 1]
    v_means2d: Tensor | None,  # [C, N, 2]
    needs: frozenset[str],
) -> dict[str, Tensor]:
    """The gradients asked for, by name; ``means2d`` is that of the blending alone, without ``v_means2d``."""
    device = splats.means.device
    check_determinism(device)
    captured = room.capturing(device)
    if drawn.saved.told is not None and not captured:
        _complete(splats, view, drawn)
    saved: Saved = drawn.saved
    plan, frame = saved.plan, frame_type().from_buffer_copy(saved.frame)
    variant = _variant(splats, view, plan, needs)
    inputs = inputs_of(splats)
    found = _room_for_gradients(inputs, needs)
    kernels, sums = plan.backward[1:], None
    # A graph may run this pass again without the forward pass, so that it has to clear by itself.
    if saved.cleared and not captured:
        saved.cleared = False
    elif plan.key.cameras != 1 or variant.sums > 11 or not needs.issuperset(PLANES):
        sums = inputs[0].new_zeros(plan.key.cameras, plan.num_splats, variant.sums)
        frame.sums = sums.data_ptr()
    else:  # they lie in the memory of the gradients that are made from them, which the first kernel clears
        kernels, frame.sums = plan.backward, None
    if "means2d" in needs:
        found["means2d"] = torch.empty_like(drawn.means2d)
        if view.absgrad:
            found["means2d_abs"] = torch.empty_like(drawn.means2d)
    copies: list[Tensor] = []
    others = _addresses_of((v_colors, v_alphas, v_means2d), copies)
    others += [0 if tensor is None else tensor.data_ptr() for tensor in map(found.get, FOUND)]
    program.tell_backward(frame, _addresses_of(inputs, copies), drawn.means2d.data_ptr(), others)
    program.launch(variant, kernels, frame, device)
    del copies, sums  # as in the forward pass
    return found


def check_determinism(device: torch.device) -> None:
    """Says that gradients are sums in no fixed order where torch was told to be deterministic."""
    if not room.is_card(device) or not torch.are_deterministic_algorithms_enabled():
        return
    message = (
        f"gradients of splatting on {device} are sums in no fixed order, and deterministic algorithms are asked for"
    )
    if torch.is_deterministic_algorithms_warn_only_enabled():
        warnings.warn(message, RuntimeWarning, stacklevel=3)
        return
    raise UsageError(
        message, remedy="Take impl='cpu', whose gradients are the same bits in every run, or warn_only=True"
    )


def _room_for_gradients(inputs: Sequence[Tensor], needs: frozenset[str]) -> dict[str, Tensor]:
    """Memory for the gradients of the inputs, zeros where kernels add to it."""
    found: dict[str, Tensor] = {}
    for name, given in zip(INPUTS, inputs, strict=True):
        if name in needs:
            kind = torch.zeros_like if name in ADDED_TO else torch.empty_like
            # The layout is named only where it must be: that takes torch as long as the rest.
            found[name] = kind(given) if given.is_contiguous() else kind(given, memory_format=torch.contiguous_format)
    return found
