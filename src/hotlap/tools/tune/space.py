"""What can be tried: the arms of a device for a model, and the sizes between two batches."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from hotlap.base.errors import UsageError
from hotlap.measure.arms import SDPA, ArmSpec, Precision, parse_arm, refuse_batch
from hotlap.measure.jobs import Description

Change = dict[str, Any]


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

    def allows(self, arm: ArmSpec) -> bool:
        return not self.exact or arm.name in self.exact

    def switched(self, arm: ArmSpec) -> list[ArmSpec]:
        """``arm`` with each switch turned alone, and with all that go together; never ``arm`` itself."""
        single = [_change(arm, change) for change in self.switches]
        flags = {key: value for change in self.switches for key, value in change.items() if value is True}
        together = [_change(arm, flags)] if len(flags) > 1 else []
        return _unique([a for a in [*single, *together] if a != arm and self.allows(a)])  # the last: all together

    def compile_forms(self, arm: ArmSpec) -> list[ArmSpec]:
        """``arm`` compiled or recorded, in each way there is."""
        return _unique([a for change in self.compiled if self.allows(a := _change(arm, change))])

    def recomputed(self, arm: ArmSpec) -> list[ArmSpec]:
        form = dataclasses.replace(arm, recompute=True)
        return [form] if self.can_recompute and self.allows(form) else []

    def between(self, good: int, bad: int) -> list[int]:
        """Sizes worth a try between one that ran and one that did not: a multiple of 8, a divisor of the effective."""
        middle = (good + bad) // 2
        sizes = {middle // 8 * 8 if middle >= 16 else middle}
        sizes |= {d for d in _divisors(self.effective) if good < d < bad}
        return sorted(size for size in sizes if good < size < bad)[-2:]

    def around(self, batch: int) -> list[int]:
        """Neighbours of a good size that doubling leaves out."""
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
) -> Space:
    """The space for a model on a device; ``arms`` leaves only those, ``batch`` fixes the size."""
    specs = [parse_arm(name) for name in arms]
    for spec in specs:
        refuse_batch(spec, "--batch")
    if len({(spec.device, spec.index) for spec in specs}) > 1:
        raise UsageError(f"arms = {', '.join(arms)} are of several devices", expected="arms of one device")
    plain = _plain(specs, device, about)
    start = batch or about.default_batch
    caps = [cap for cap in (max_batch, about.num_samples if mode == "train" else None) if cap is not None]
    cap = min(caps, default=max(65536, start))
    if start > cap:
        start = cap
    bounds: dict[str, Any] = {
        "batch": start, "max_batch": cap, "fixed": batch is not None, "effective": about.default_batch,
        "can_recompute": mode == "train" and about.has_blocks,
    }  # fmt: skip
    if specs:
        return _only(specs, bounds)
    return Space(
        firsts=tuple(_firsts(plain, about)),
        switches=tuple(_switches(plain, about, mode)),
        compiled=tuple(_compiled(plain, about, mode, graphs)),
        **bounds,
    )


def _plain(specs: list[ArmSpec], device: str, about: Description) -> ArmSpec:
    if specs:
        return ArmSpec(device=specs[0].device, index=specs[0].index)
    return parse_arm(device or ("cuda" if about.num_cuda else "cpu"))


def _firsts(plain: ArmSpec, about: Description) -> list[ArmSpec]:
    cpu: tuple[Precision, ...] = ("fp32", "bf16") if about.fast_bf16 else ("fp32",)
    precisions: tuple[Precision, ...] = cpu if plain.device == "cpu" else ("fp32", "tf32", "bf16", "fp16")
    layouts = (False, True) if about.has_convolutions else (False,)
    return [dataclasses.replace(plain, precision=p, channels_last=layout) for p in precisions for layout in layouts]


def _switches(plain: ArmSpec, about: Description, mode: str) -> list[Change]:
    found: list[Change] = [{"fused": True}] if mode == "train" else []
    if plain.device == "cpu":
        counts = sorted({about.usable_cores // 2, about.usable_cores // 4} - {0}, reverse=True)
        return found + [{"threads": count} for count in counts]
    found += [{"cudnn_benchmark": True}] if about.has_convolutions else []
    found += [{"kernels": True}] if about.has_kernels else []
    return found + ([{"sdpa": kind} for kind in SDPA if kind != "math"] if about.has_attention else [])


def _compiled(plain: ArmSpec, about: Description, mode: str, graphs: str) -> list[Change]:
    found: list[Change] = [{"compile": "default"}] if about.can_compile else []
    if plain.device == "cpu":
        return found
    record = graphs == "on" or (graphs == "auto" and mode == "infer")
    found += [{"graph": True}] if record else []
    if about.can_compile:
        found.append({"compile": "reduce-overhead"})
        found += [{"compile": "default", "graph": True}] if record else []
        found.append({"compile": "max-autotune"})
    return found


def _only(specs: list[ArmSpec], bounds: dict[str, Any]) -> Space:
    """The arms given: eager ones are raced; compiled ones wait for the finalists, or are raced where all are."""
    eager = [spec for spec in specs if not spec.compile and not spec.graph]
    later = [spec for spec in specs if spec not in eager]
    if not eager:
        return Space(firsts=tuple(later), exact=frozenset(s.name for s in later), **bounds)
    forms = list({(s.compile, s.graph): {"compile": s.compile, "graph": s.graph} for s in later}.values())
    # A compiled arm whose eager form was not given is raced as it is, or it would never be tried.
    alone = [s for s in later if dataclasses.replace(s, compile="", graph=False) not in eager]
    exact = frozenset(spec.name for spec in specs)
    return Space(firsts=(*eager, *alone), compiled=tuple(forms), exact=exact, **bounds)
