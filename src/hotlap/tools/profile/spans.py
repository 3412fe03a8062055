"""Operators with what surrounds them: the operator they belong to, their module, their phase, their category."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from hotlap.data.kineto import LOSS_MARK, MODULE_MARK, NONE, Events, Ints, Trace
from hotlap.tools.profile.categories import COMMUNICATION, LOSS, OTHER, WHOLE, category_of
from hotlap.tools.profile.timeline import parents

FORWARD, BACKWARD, OPTIMIZER_STEP = "forward", "backward", "optimizer"
_MODULE = re.compile(re.escape(MODULE_MARK) + r"(.*) \((.*)\)")
_NN_MODULE = "nn.Module: "
_ENGINE = "autograd::engine::evaluate_function"


@dataclass(frozen=True, kw_only=True)
class Spans:
    """Operators and annotations of a trace, nested. Columns run in parallel."""

    events: Events
    is_op: np.ndarray  # [n] bool; the others are annotations
    parent: Ints
    parent_op: Ints
    """The nearest operator around it."""
    category: list[str]
    phase: list[str]
    module: list[str]
    """Full name of the innermost module around it; of a backward operator, that of its forward one; '' outside."""
    classes: dict[str, str]
    """The class of each module."""

    def __len__(self) -> int:
        return len(self.events)


def nest(trace: Trace) -> Spans:
    """The operators of a trace with their surroundings."""
    notes = trace.notes
    marked = trace.mask(notes, lambda name: name.startswith(MODULE_MARK))
    tables = [trace.ops, notes]
    if not marked.any() and len(trace.python):
        # A trace that is not ours knows modules from its Python stacks, by class and number.
        tables.append(trace.python.take(trace.mask(trace.python, lambda name: name.startswith(_NN_MODULE))))
    columns = {
        field: np.concatenate([getattr(table, field) for table in tables])
        for field in ("name", "start", "end", "thread", "link", "correlation", "extra", "sequence")
    }
    is_op = np.zeros(len(columns["start"]), dtype=bool)
    is_op[: len(trace.ops)] = True
    order = np.lexsort((is_op, -columns["end"], columns["start"]))
    events = Events(**{field: column[order] for field, column in columns.items()})
    is_op = is_op[order]
    return _Surroundings(trace, events, is_op).spans()


class _Surroundings:
    """One walk from the outermost spans inwards, then the backward ones by their sequence numbers."""

    def __init__(self, trace: Trace, events: Events, is_op: np.ndarray) -> None:
        self.trace, self.events, self.is_op = trace, events, is_op
        self.parent = parents(events.start, events.end, events.thread)
        names = trace.names
        distinct = {int(index): names[index] for index in np.unique(events.name)} if len(events) else {}
        self.own_category = {index: category_of(name) for index, name in distinct.items()}
        self.own_module = {index: _module_of(name) for index, name in distinct.items()}
        self.own_phase = {index: _phase_of(name) for index, name in distinct.items()}
        self.loss_marks = {index for index, name in distinct.items() if name == LOSS_MARK}
        size = len(events)
        self.category, self.phase, self.module = [""] * size, [FORWARD] * size, [""] * size
        self.in_loss, self.node = [False] * size, [NONE] * size
        self.parent_op = [NONE] * size

    def spans(self) -> Spans:
        self._walk()
        self._link_backward()
        classes = {found[0]: found[1] for found in self.own_module.values() if found[0]}
        return Spans(
            events=self.events,
            is_op=self.is_op,
            parent=self.parent,
            parent_op=np.array(self.parent_op, dtype=np.int64),
            category=[category or OTHER for category in self.category],
            phase=self.phase,
            module=self.module,
            classes=classes,
        )

    def _walk(self) -> None:
        parent, is_op = self.parent.tolist(), self.is_op.tolist()
        names, sequence = self.events.name.tolist(), self.events.sequence.tolist()
        for index, (name, above) in enumerate(zip(names, parent, strict=True)):
            own = self.own_module[name][0]
            phase, category, seq = self.own_phase[name], "", NONE
            if above >= 0:
                phase = phase or self.phase[above]
                category, seq = self.category[above], self.node[above]
                own = own or self.module[above]
                self.in_loss[index] = self.in_loss[above]
                self.parent_op[index] = above if is_op[above] else self.parent_op[above]
            self.in_loss[index] |= name in self.loss_marks
            self.module[index] = own
            self.phase[index] = phase or FORWARD
            if not category and self.in_loss[index] and not own and is_op[index]:
                category = LOSS
            # A mark's name holds a class's name, which says nothing about what runs inside; an optimizer's step does.
            speaks = is_op[index] or self.own_phase[name] == OPTIMIZER_STEP
            said = self.own_category[name] if speaks else ""
            # Exchanges start from hooks inside whatever operator finished last, so their own name decides.
            self.category[index] = said if said == COMMUNICATION else category or said
            self.node[index] = sequence[index] if sequence[index] >= 0 else seq

    def _link_backward(self) -> None:
        forward = {
            seq: index
            for index, (seq, phase) in enumerate(zip(self.events.sequence.tolist(), self.phase, strict=True))
            if seq >= 0 and phase == FORWARD
        }
        for index, (seq, phase) in enumerate(zip(self.node, self.phase, strict=True)):
            origin = forward.get(seq, NONE) if phase == BACKWARD else NONE
            if origin == NONE:
                continue
            self.module[index] = self.module[origin]
            if self.category[origin] in WHOLE and self.category[index] != COMMUNICATION:
                self.category[index] = self.category[origin]


def _module_of(name: str) -> tuple[str, str]:
    """The module that a mark names, and its class."""
    match = _MODULE.fullmatch(name)
    if match:
        return match[1], match[2]
    if name.startswith(_NN_MODULE):
        label = name[len(_NN_MODULE) :]
        return label, label.rpartition("_")[0]
    return "", ""


def _phase_of(name: str) -> str:
    if name.startswith(_ENGINE):
        return BACKWARD
    return OPTIMIZER_STEP if name.startswith("Optimizer.") else ""
