"""Whether a batch holds the samples that it was asked for: a step's time is shared out among them."""

from __future__ import annotations

from typing import Any

from hotlap.base.errors import TargetError
from hotlap.device.seed import generator
from hotlap.measure.session import Session


def require_samples(session: Session) -> None:
    """Refuses a batch of fewer samples than it was asked for: the larger the size, the faster it would seem.

    Where samples lie is seen beside a batch of two: in a dimension that is 2 there and larger here. Of those that are
    packed in another way nothing is known, but that more of them are something else.
    """
    import torch

    two = _sizes(session.workload.worst_case_batch(2, torch.device("cpu"), generator(session.seed)))
    here = _sizes(session.host_batches[0])
    pairs = [pair for pair in zip(two, here, strict=True) if pair[0] == 2] if len(two) == len(here) else []
    counts = {size for _, size in pairs if size > 2} or ({2} if pairs and two == here else set())
    if session.batch > 2 and counts and session.batch not in counts:
        raise TargetError(
            f"of {session.workload.name!r} {session.batch} samples were asked, and make_batch() gave {max(counts)}",
            expected="as many as it is asked for, since a step's time is shared out among them",
            remedy=f"Let it repeat some, or take at most {max(counts)} (tune --max-batch, bench --batch)",
        )


def _sizes(batch: Any) -> list[int]:
    """The dimensions of all tensors of a batch, one after the other."""
    from torch.utils._pytree import tree_leaves

    return [size for leaf in tree_leaves(batch) for size in getattr(leaf, "shape", ())]
