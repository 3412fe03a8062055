"""Shape checks that bind each letter once and say what is already known."""

from __future__ import annotations

from typing import Any

from hotlap.base.errors import ShapeError


def bind_dims(**tensors: tuple[Any, str]) -> dict[str, int]:
    """The size of every named dimension, after checking each tensor against its spec.

    A spec is names and numbers separated by spaces, ``"N 3"``; a name means the same size everywhere, ``...`` at the
    start takes any leading dimensions. A shape may stand for its tensor.

    >>> bind_dims(means=(means, "N 3"), quats=(quats, "N 4"))
    ShapeError: quats must be [N, 4], got [7, 3] (bound: N=8)
    """
    bound: dict[str, int] = {}
    for name, (tensor, spec) in tensors.items():
        want = spec.split()
        got = list(getattr(tensor, "shape", tensor))
        tail = got
        if want and want[0] == "...":
            want = want[1:]
            tail = got[len(got) - len(want) :] if len(got) >= len(want) else got
        fits = len(tail) == len(want)
        fresh = dict(bound)
        for size, dim in zip(tail, want, strict=False):
            expected = int(dim) if dim.isdigit() else fresh.setdefault(dim, size)
            fits = fits and size == expected
        if not fits:
            known = ", ".join(f"{key}={value}" for key, value in bound.items())
            message = f"{name} must be [{', '.join(spec.split())}], got {got}"
            raise ShapeError(message + (f" (bound: {known})" if known else ""))
        bound = fresh
    return bound
