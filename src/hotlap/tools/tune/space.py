"""What can be tried: the arms of a device for a model, and the sizes between two batches."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hotlap.base.errors import TargetError, UsageError
from hotlap.measure.arms import COMPILE_MODES, SDPA, ArmSpec, Precision, parse_arm, refuse_batch
from hotlap.measure.jobs import Description

Change = dict[str, Any]
EAGER: Change = {"compile": "", "graph": False}
PLAIN: Change = {
    "fused": False, "cudnn_benchmark": False, "folded": False, "padded": False, "shuffled": False, "unbiased": False,
    "kernels": False, "threads": 0, "sdpa": "",
}  # fmt: skip
"""What switches leave off, key by key."""


@dataclass(frozen=True, kw_only=True)
class Space:
    """The arms of one search, in three groups, and the bounds of the batch."""

    firsts: tuple[ArmSpec, ...]
    """Raced first: precision by layout, eager; the plain one leads."""
    switches: tuple[Change, ...] = ()
    """Then tried one by one and together on the leader."""
    compiled: tuple[Change, ...] = ()
    """Tried on finalists only."""
    exact: frozenset[str] = frozenset()
    """Names of the only arms allowed, where the user gave a list."""
    can_recompute: bool = False
    batch: int
    """Where the search of the batch begins."""
    max_batch: int
    fixed: bool = False
    """The batch is given and stays."""
    effective: int = 0
    """Batch whose divisors are tried as well; 0 for none."""
    sizes: tuple[int, ...] = ()
    """The only batches allowed, where the user gave a list, smallest first; otherwise sizes are doubled and halved."""

    from_one: bool = False
    """The best arm that is not compiled is run at the smallest size as well: batching is measured by that."""

    @property
    def smallest(self) -> int:
        return self.sizes[0] if self.sizes else 1

    @property
    def num_cells(self) -> int:
        """Arms by batches, where both were listed; 0 where they were not."""
        return len(self.exact) * len(self.sizes)

    def allows(self, arm: ArmSpec) -> bool:
        return not self.exact or arm.name in self.exact

    def switched(self, arm: ArmSpec) -> list[ArmSpec]:
        """``arm`` with each switch turned alone; never ``arm`` itself."""
        single = [_change(arm, change) for change in self.switches]
        return _unique([a for a in single if a != arm and self.allows(a)])

    def together(self, arm: ArmSpec, changes: Sequence[Change]) -> ArmSpec | None:
        """``arm`` with several switches turned; of those that exclude each other the first. None for fewer than two."""
        merged: Change = {}
        for change in changes:
            merged = {**change, **merged}
        changed = _change(arm, merged)
        return changed if len(merged) > 1 and self.allows(changed) else None

    def compile_forms(self, arm: ArmSpec) -> list[ArmSpec]:
        """``arm`` compiled or recorded, in each way there is."""
        return _unique([a for change in self.compiled if self.allows(a := _change(arm, change))])

    def recomputed(self, arm: ArmSpec) -> list[ArmSpec]:
        form = dataclasses.replace(arm, recompute=True)
        return [form] if self.can_recompute and self.allows(form) else []

    def larger(self, batch: int) -> int | None:
        """The next size up, about twice as large; None where there is none."""
        if self.sizes:
            more = [size for size in self.sizes if size > batch]
            return next((size for size in more if size >= 2 * batch), more[-1] if more else None)
        return min(2 * batch, self.max_batch) if batch < self.max_batch else None

    def smaller(self, batch: int) -> int | None:
        """The next size down, about half as large; None where there is none."""
        if self.sizes:
            less = [size for size in self.sizes if size < batch]
            return next((size for size in reversed(less) if 2 * size <= batch), less[0] if less else None)
        return batch // 2 or None

    def between(self, good: int, bad: int) -> list[int]:
        """Sizes worth a try between one that ran and one that did not: a multiple of 8, a divisor of the effective."""
        if self.sizes:
            return [size for size in self.sizes if good < size < bad]
        middle = (good + bad) // 2
        sizes = {middle // 8 * 8 if middle >= 16 else middle}
        sizes |= {d for d in _divisors(self.effective) if good < d < bad}
        return sorted(size for size in sizes if good < size < bad)[-2:]

    def around(self, batch: int) -> list[int]:
        """Neighbours of a good size that doubling leaves out."""
        if self.sizes:
            place, less, more = self.sizes.index(batch), self.smaller(batch), self.larger(batch)
            ends = [self.sizes.index(size) for size in (less, more) if size is not None]
            return [self.sizes[(place + end) // 2] for end in ends if abs(place - end) > 1]
        sizes = [batch * 3 // 4, batch * 3 // 2]
        return [s for s in (size // 8 * 8 if size >= 16 else size for size in sizes) if 1 <= s <= self.max_batch]


def _change(arm: ArmSpec, change: Change) -> ArmSpec:
    return dataclasses.replace(arm, **change)


def _unique(arms: list[ArmSpec]) -> list[ArmSpec]:
    return list(dict.fromkeys(arms))


def _divisors(number: int) -> list[int]:
    return [d for d in range(1, number + 1) if number % d == 0] if number else []


def make_space(
    about: Description,
    *,
    mode: str,
    device: str = "",
    arms: tuple[str, ...] = (),
    graphs: str = "auto",
    batch: int | None = None,
    max_batch: int | None = None,
    batches: tuple[int, ...] = (),
    compile_modes: tuple[str, ...] = COMPILE_MODES[:3],
) -> Space:
    """The space for a model on a device; ``arms`` leaves only those, ``batch`` or ``batches`` the sizes."""
    specs = [parse_arm(name) for name in arms]
    for spec in specs:
        refuse_batch(spec, "--batch")
        _refuse_others(spec)
    if len({(spec.device, spec.index) for spec in specs}) > 1:
        raise UsageError(f"arms = {', '.join(arms)} are of several devices", expected="arms of one device")
    if specs and device and parse_arm(device).torch_device != specs[0].torch_device:
        raise UsageError(
            f"device = {device!r}, but arms = {', '.join(arms)} are of {specs[0].torch_device}",
            expected="one of them, or arms of that device, as cuda:1:bf16",
        )
    if mode == "train" and about.num_samples == 0:
        raise TargetError(
            f"train_data() of {about.name!r} has 0 samples", expected="at least 1, or None for random ones"
        )
    plain = _plain(specs, device, about)
    start = batch or about.default_batch
    caps = [cap for cap in (max_batch, about.num_samples if mode == "train" else None) if cap is not None]
    cap = min(caps, default=max(65536, start))
    start = min(start, cap)
    sizes = tuple(sorted({size for size in batches if size <= cap}))
    if batches and not sizes:
        raise UsageError(f"batches = {', '.join(map(str, batches))} are all above {cap}", expected=f"at most {cap}")
    if sizes and batch is None:
        start = min(sizes, key=lambda size: abs(size - start))
    bounds: dict[str, Any] = {
        "batch": start, "max_batch": cap, "fixed": batch is not None, "effective": about.default_batch,
        "can_recompute": mode == "train" and about.has_blocks, "sizes": sizes if batch is None else (),
        "from_one": mode == "infer" and batch is None,
    }  # fmt: skip
    if specs:
        return _only(specs, bounds)
    return Space(
        firsts=tuple(_firsts(plain, about)),
        switches=tuple(_switches(plain, about, mode)),
        compiled=tuple(_compiled(plain, about, graphs, compile_modes)),
        **bounds,
    )


def _refuse_others(spec: ArmSpec) -> None:
    """Refuses arms that no profile can hold: a file has one shape and no ragged tail, and tuned is no settings yet."""
    if spec.form:
        raise UsageError(
            f"arm {spec.name!r}: {spec.form} is a file of one shape, which a search cannot choose",
            remedy="'hotlap export' makes such files, of what a search has chosen, and measures them",
        )
    if spec.tuned:
        raise UsageError(
            f"arm {spec.name!r}: tuned stands for what a bench finds before its timing",
            remedy="Leave --arms out: the search tries the settings of the CPU itself",
        )


def _plain(specs: list[ArmSpec], device: str, about: Description) -> ArmSpec:
    if specs:
        return ArmSpec(device=specs[0].device, index=specs[0].index)
    return parse_arm(device or ("cuda" if about.num_cuda else "cpu"))


def _firsts(plain: ArmSpec, about: Description) -> list[ArmSpec]:
    cpu: tuple[Precision, ...] = ("fp32", "bf16") if about.fast_bf16 else ("fp32",)
    precisions: tuple[Precision, ...] = cpu if plain.device == "cpu" else ("fp32", "tf32", "bf16", "fp16")
    layouts = (False, True) if about.has_convolutions else (False,)
    kept = plain.device == "cpu" and about.can_keep_memory
    found = [
        dataclasses.replace(plain, precision=p, channels_last=layout, keep_memory=kept)
        for p in precisions
        for layout in layouts
    ]
    # Fresh pages make times jump from one process and one batch to the next: only the plain arm is judged by those.
    return _unique([plain, *found])


def _switches(plain: ArmSpec, about: Description, mode: str) -> list[Change]:
    found: list[Change] = [{"fused": True}] if mode == "train" else []
    found += [{"folded": True}] if mode == "infer" and about.has_norms else []
    found += [{"shuffled": True}] if about.has_block_convolutions else []
    found += [{"unbiased": True}] if mode == "train" and about.has_lost_biases else []
    if about.has_attention:  # the others of those that a device has: on a CPU flash is what torch takes
        kinds = ("math",) if plain.device == "cpu" else tuple(kind for kind in SDPA if kind != "math")
        found += [{"sdpa": kind} for kind in kinds]
    if plain.device == "cpu":
        counts = sorted({about.usable_cores // 2, about.usable_cores // 4} - {0}, reverse=True)
        given_back: list[Change] = [{"keep_memory": False}] if about.can_keep_memory else []
        return found + given_back + [{"threads": count} for count in counts]
    found += [{"cudnn_benchmark": True}] if about.has_convolutions else []
    found += [{"padded": True}] if about.has_odd_channels else []
    return found + ([{"kernels": True}] if about.has_kernels else [])


def _compiled(plain: ArmSpec, about: Description, graphs: str, modes: tuple[str, ...]) -> list[Change]:
    """Forms of one arm, the cheap ones first: a recording costs no more than an eager trial."""
    modes = modes if about.can_compile else ()
    default: list[Change] = [{"compile": "default"}] if "default" in modes else []
    if plain.device == "cpu":
        return default
    record = graphs != "off"
    found: list[Change] = [{"graph": True}] if record else []
    found += default
    found += [{**form, "graph": True} for form in default if record]
    return found + [{"compile": mode} for mode in modes if mode != "default"]


def _only(specs: list[ArmSpec], bounds: dict[str, Any]) -> Space:
    """The arms given, in the same three groups: what is raced first, switches of those, and forms of finalists.

    An arm whose plainer form was not given is raced as it is, or it would never be tried.
    """
    given = set(specs)
    firsts: list[ArmSpec] = []
    switches: dict[tuple[Any, ...], Change] = {}
    forms: dict[tuple[Any, ...], Change] = {}
    for spec in specs:
        eager = dataclasses.replace(spec, **EAGER)
        plain = dataclasses.replace(eager, **PLAIN)
        if (spec != eager and eager not in given) or (spec == eager != plain and plain not in given):
            firsts.append(spec)
        elif spec != eager:
            forms.setdefault((spec.compile, spec.graph), {"compile": spec.compile, "graph": spec.graph})
        elif eager != plain:
            for key in (key for key, off in PLAIN.items() if getattr(eager, key) != off):
                switches.setdefault((key, getattr(eager, key)), {key: getattr(eager, key)})
        else:
            firsts.append(spec)
    exact = frozenset(spec.name for spec in specs)
    dear = sorted(forms.values(), key=lambda form: bool(form["compile"]))
    return Space(firsts=tuple(firsts), switches=tuple(switches.values()), compiled=tuple(dear), exact=exact, **bounds)
