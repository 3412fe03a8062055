"""Products in a faster precision: what they would take, and what the change itself costs in passes over memory."""

from __future__ import annotations

from dataclasses import dataclass

from hotlap.tools.profile.categories import ATTENTION, CONVOLUTION, MATMUL, RECURRENT
from hotlap.tools.profile.found import Roofline, RoofRow

PRODUCTS = (CONVOLUTION, MATMUL, ATTENTION, RECURRENT)
WIDTH = {"tf32": 1.0, "bf16": 0.5}
"""Bytes of an activation over those in float32."""
CAST_BYTES = 6
"""A weight is read in four bytes and written in two; its gradient the other way round."""


@dataclass(frozen=True, kw_only=True)
class Faster:
    """The products of a step, before and after, in ms."""

    before_ms: float
    after_ms: float
    """Where each keeps the share that it reaches today of its nearer ceiling."""
    after_most_ms: float
    """Where what each loses today beside its ceiling, in launching, loading and uneven ends, takes as long as now."""
    layout_ms: float
    """Of both: passes that turn the memory format of convolutions."""


def faster_products(roof: Roofline, today: str, name: str, *, layout_ms: float, turns: bool) -> Faster | None:
    """Products in the precision ``name``; None where its ceilings were not measured or no product is known.

    ``layout_ms`` is what passes that turn the memory format of convolutions take today. ``turns``: those that need none
    today would on tensor cores, which want the channels last.
    """
    rows = [row for row in roof.rows if row.precision == today and row.category in PRODUCTS]
    if not {today, name, "copy"} <= set(roof.ceilings) or not rows:
        return None
    convolutions = [row for row in rows if row.category == CONVOLUTION]
    convolved = sum(row.ms for row in convolutions)
    seen = min(layout_ms, convolved)
    after = most = 0.0
    for row in rows:
        own = row.ms * (1 - seen / convolved) if row.category == CONVOLUTION and convolved else row.ms
        before = _ideal_ms(roof, row, today)
        ideal = min(_ideal_ms(roof, row, name, WIDTH[name]), before)
        after += own * ideal / before if before else own
        most += ideal + max(own - before, 0.0)
    layout = seen * WIDTH[name]
    if turns and not seen:
        # Every tensor of a convolution once more: read in one format, written in the other.
        layout = pass_ms(roof, 2 * WIDTH[name] * sum(row.bytes for row in convolutions))
    return Faster(
        before_ms=sum(row.ms for row in rows),
        after_ms=after + layout,
        after_most_ms=max(most, after) + layout,
        layout_ms=layout,
    )


def _ideal_ms(roof: Roofline, row: RoofRow, precision: str, width: float = 1.0) -> float:
    return 1e3 * max(row.flops / roof.ceilings[precision] / 1e12, width * row.bytes / roof.ceilings["copy"] / 1e9)


def pass_ms(roof: Roofline, moved: float) -> float:
    """So many bytes at the rate that this step's own elementwise operators reach; 0 without ceilings."""
    copy = roof.ceilings.get("copy")
    return 1e3 * moved / (copy * 1e9 * (roof.memory_share or 1.0)) if copy else 0.0
