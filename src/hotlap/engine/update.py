"""The optimizer's step, so that memory running out in it costs nothing: undone, and done again with less."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from hotlap.base.errors import OutOfMemory
from hotlap.device.host import memory_available
from hotlap.device.memory import is_out_of_memory, release_memory
from hotlap.engine.undo import Undo, first_line

FIRST_STEPS = 3
"""Updates after a start or a new split that can always be undone: state is created there."""
ATTEMPTS = 3
"""As it is; with the allocator's cache emptied and the copies on the host; one parameter at a time."""
LOOK_EVERY = 16
"""Updates between looks at how much of the allocator's memory is free."""
KEPT_SHARE = 1 / 8
"""Of the host's free memory: on the CPU, copies of no more than this are kept from update to update."""


class StepLost(OutOfMemory):
    """Memory ran out where a step can be neither undone nor repeated; the last checkpoint is the way on."""

    def __init__(self, what: str) -> None:
        remedy = "Go on from the last checkpoint with --resume; a smaller --micro leaves more room"
        super().__init__(what, remedy=remedy)


class Update:
    """Steps an optimizer whose gradients are whole and unscaled, and its loss scale."""

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        scaler: torch.amp.GradScaler | None,
        device: torch.device,
        say: Callable[[str], None],
        let_go: Callable[[], object] = lambda: None,
    ) -> None:
        """``let_go`` gives up what others hold and can make again, when memory has run out."""
        self.optimizer, self.scaler = optimizer, scaler
        self._device, self._say, self._let_go = device, say, let_go
        self._young, self._watched = 0, 0
        self._roomy = False
        self._aside_bytes = 0
        self._keeps = False
        self._room: Sequence[Tensor] = ()

    def be_careful(self) -> None:
        """The next few updates can be undone, whatever the allocator holds; copies are not kept meanwhile."""
        self._young, self._keeps, self._room = 0, False, ()

    def set_aside(self, num_bytes: int) -> None:
        """So much of what the allocator calls free is not: recordings of passes keep it for themselves."""
        if num_bytes != self._aside_bytes:
            self.be_careful()
            self._watched = 0
        self._aside_bytes = num_bytes

    def __call__(self) -> None:
        """Raises StepLost, or OutOfMemory with parameters and optimizer state as they were."""
        may_fail, what = self._may_fail(), ""
        for attempt in range(ATTEMPTS):
            undo = None
            try:
                undo = Undo(self.optimizer, on_host=attempt > 0, room=self._room) if may_fail else None
                self._step()
            except Exception as error:
                if not is_out_of_memory(error):
                    raise
                what = first_line(error)
            else:
                self._update_scale()
                self._keep(undo)
                return
            if not may_fail:
                raise StepLost(f"memory ran out in an optimizer step that was not expected to need any: {what}")
            self.be_careful()
            self._let_go()
            release_memory()
            if undo is not None:
                insist(undo.back, self._device, "an optimizer step was being undone")
            if attempt > 0:
                self._go_one_by_one()
        raise OutOfMemory(
            f"memory ran out in the optimizer step of {type(self.optimizer).__name__}: {what}",
            remedy="What would help: an optimizer with less state (SGD), --fsdp over several devices, a smaller model",
        )

    def _keep(self, undo: Undo | None) -> None:
        """On the CPU, where every update is copied: writing over the last copies takes a third of making new ones."""
        if undo is None or self._device.type != "cpu":
            return
        if self._young == FIRST_STEPS + 1:
            free = memory_available()
            self._keeps = free is not None and sum(copy.nbytes for copy in undo.copies) <= KEPT_SHARE * free
        if self._keeps:
            self._room = undo.copies

    def _step(self) -> None:
        if self.scaler is None:
            self.optimizer.step()
        else:
            self.scaler.step(self.optimizer)

    def _update_scale(self) -> None:
        if self.scaler is not None:
            insist(self.scaler.update, self._device, "the loss scale was being updated")

    def _go_one_by_one(self) -> None:
        """Least memory: a fused step makes no temporaries, any other makes them for one parameter at a time."""
        plain = [group for group in self.optimizer.param_groups if "foreach" in group and not group.get("fused")]
        if any(group["foreach"] is not False for group in plain):
            self._say("out of memory in the optimizer step; parameters are now updated one by one")
        for group in plain:
            group["foreach"] = False

    def _may_fail(self) -> bool:
        """Whether the step must be undoable: unless the allocator already holds all it could ask for."""
        self._young += 1
        if self._device.type != "cuda" or self._young <= FIRST_STEPS:
            return True
        if self._watched % LOOK_EVERY == 0:
            self._roomy = self._has_room()
        self._watched += 1
        return not self._roomy

    def _has_room(self) -> bool:
        weights = [p for group in self.optimizer.param_groups for p in group["params"]]
        need = 3 * sum(p.numel() * p.element_size() for p in weights) + 64 * 2**20
        if self._aside_bytes and self._free_bytes() < need:
            # Recordings keep the memory of their passes, which would be free here otherwise: some is fetched once.
            with contextlib.suppress(torch.OutOfMemoryError):
                torch.empty(need, dtype=torch.uint8, device=self._device)
        return self._free_bytes() >= need

    def _free_bytes(self) -> int:
        # torch's memory_reserved() and memory_allocated() each put all statistics in order first, for 180 us.
        stats = torch.cuda.memory_stats_as_nested_dict(self._device)
        held: int = stats["reserved_bytes"]["all"]["current"] - stats["allocated_bytes"]["all"]["current"]
        return held - self._aside_bytes


def insist(action: Callable[[], None], device: torch.device, doing: str) -> None:
    """Does what needs next to no memory, twice if need be, the second time with all given back; else StepLost."""
    what = ""
    for _ in range(2):
        try:
            action()
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            what = first_line(error)
        else:
            return
        release_memory()
    raise StepLost(f"memory ran out while {doing}: {what}")
